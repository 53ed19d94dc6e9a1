//! YAML as a tree in which every node knows its place. Bounded, and without what makes YAML surprising: anchors,
//! aliases, tags, keys that are not texts, several documents in one file.

use super::problem::{Code, Problem, Report, Span, printable, shown};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput};
use std::borrow::Cow;
use std::collections::HashMap;

pub const FILE_BYTES_MAX: usize = 1 << 20;
pub const DEPTH_MAX: usize = 64;
pub const NODES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub span: Span,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// `quoted` stands for every style that is text whatever it contains: quotes and blocks.
    Scalar {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub text: String,
    pub span: Span,
}

impl Node {
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.entry(name).map(|(_, node)| node)
    }

    pub fn entry(&self, name: &str) -> Option<(&Key, &Node)> {
        self.fields().iter().find(|(key, _)| key.text == name).map(|(key, node)| (key, node))
    }

    /// The entries of a map; nothing for the rest.
    pub fn fields(&self) -> &[(Key, Node)] {
        match &self.value {
            Value::Map(fields) => fields,
            _ => &[],
        }
    }

    /// The items of a list; nothing for the rest.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a scalar that is not null.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// The text of a scalar without quotes, which may be a number or a boolean.
    pub fn plain(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, quoted: false } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, quoted: false } => matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// A place on one line that stands for the whole node.
    pub fn head(&self) -> Span {
        match &self.value {
            Value::Map(fields) => fields.first().map_or(self.span, |(key, _)| key.span),
            Value::List(items) => items.first().map_or(self.span, Node::head),
            Value::Scalar { .. } => self.span,
        }
    }

    /// What it is, in the words of a person.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Map(_) => "a map",
            Value::List(_) => "a list",
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { quoted: true, .. } => "a text",
            Value::Scalar { text, .. } if matches!(text.as_str(), "true" | "false") => "a boolean",
            Value::Scalar { text, .. } if text.parse::<f64>().is_ok() => "a number",
            Value::Scalar { .. } => "a text",
        }
    }
}

/// The tree of the report's text; `None` when there is none to look at. An empty file is an empty map.
pub(super) fn parse(report: &mut Report<'_>) -> Option<Node> {
    let whole = report.text;
    if whole.len() > FILE_BYTES_MAX {
        report.add(
            Problem::error(Code::TooLarge, Span::default(), format!("the file has {} bytes", whole.len()))
                .note(format!("the most that clinch reads is {FILE_BYTES_MAX} bytes"))
                .help("split it into several files"),
        );
        return None;
    }
    let body = whole.strip_prefix('\u{feff}').unwrap_or(whole);
    let offsets = Offsets::new(body, whole.len() - body.len());
    let masked = mask_templates(body);
    let parser = Parser::new_from_str(&masked);
    Builder { parser, offsets, report, nodes: 0, broken: false }.document()
}

/// Where the parser's characters are, in bytes of the file.
struct Offsets {
    /// Empty when every character is one byte.
    bytes: Vec<usize>,
    base: usize,
    end: usize,
}

impl Offsets {
    fn new(body: &str, base: usize) -> Self {
        let bytes = if body.is_ascii() { Vec::new() } else { body.char_indices().map(|(at, _)| at).collect() };
        Offsets { bytes, base, end: body.len() }
    }

    fn byte(&self, mark: Marker) -> usize {
        let at = if self.bytes.is_empty() { Some(&mark.index()) } else { self.bytes.get(mark.index()) };
        self.base + at.copied().unwrap_or(self.end).min(self.end)
    }

    fn span(&self, span: saphyr_parser::Span) -> Span {
        let start = self.byte(span.start);
        Span::new(start, self.byte(span.end).max(start))
    }
}

/// The file cannot be read any further; why is in the report.
struct Stop;

struct Builder<'a, 'r, 't> {
    parser: Parser<'a, StrInput<'a>>,
    offsets: Offsets,
    report: &'r mut Report<'t>,
    nodes: usize,
    /// Something was left out of the tree: what it would say about the rest may be wrong.
    broken: bool,
}

impl<'a> Builder<'a, '_, '_> {
    fn document(mut self) -> Option<Node> {
        let mut root = None;
        loop {
            let (event, span) = self.next().ok()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) if root.is_some() => {
                    self.refuse(span, "a second document begins here", "one file holds one document; remove the `---`");
                    return None;
                }
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => root = Some(self.node(event, span, 0).ok()?),
            }
        }
        if self.broken {
            return None;
        }
        let empty = Node { span: Span::default(), value: Value::Map(Vec::new()) };
        Some(root.filter(|node| !node.is_null()).unwrap_or(empty))
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.offsets.span(span))),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Stop> {
        self.count(span, depth)?;
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) => (*anchor, tag),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag),
            _ => (0, &None),
        };
        if anchor != 0 {
            self.refuse(
                span,
                "an anchor (`&name`) is not read here",
                "write the value out at each place that needs it",
            );
        }
        if tag.is_some() {
            self.refuse(
                span,
                "a tag (`!name`) is not read here",
                "remove it; put the value in quotes to make it a text",
            );
        }
        match event {
            Event::Scalar(text, style, ..) => {
                let quoted = style != ScalarStyle::Plain;
                Ok(Node { span: self.on_one_line(span, style), value: Value::Scalar { text: unmask(&text), quoted } })
            }
            Event::SequenceStart(..) => self.list(span, depth),
            Event::MappingStart(..) => self.map(span, depth),
            Event::Alias(_) => {
                self.refuse(
                    span,
                    "an alias (`*name`) is not read here",
                    "write the value out at each place that needs it",
                );
                Ok(Node { span, value: Value::Scalar { text: String::new(), quoted: true } })
            }
            _ => unreachable!("the parser ends what it begins"),
        }
    }

    fn list(&mut self, start: Span, depth: usize) -> Result<Node, Stop> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                let span = Span::new(start.start, span.end.max(start.end));
                return Ok(Node { span, value: Value::List(items) });
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn map(&mut self, start: Span, depth: usize) -> Result<Node, Stop> {
        let mut fields: Vec<(Key, Node)> = Vec::new();
        let mut seen: HashMap<String, Span> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                let span = Span::new(start.start, span.end.max(start.end));
                return Ok(Node { span, value: Value::Map(fields) });
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let Value::Scalar { text, .. } = key.value else {
                let said = "a key must be a text";
                self.refuse(key.head(), said, "put it in quotes, also when it is a template: \"{{ … }}\"");
                continue;
            };
            match seen.get(&text) {
                Some(first) => self.report.add(
                    Problem::error(Code::DuplicateKey, key.span, format!("`{}` is written twice", shown(&text)))
                        .label("again here")
                        .also(*first, "first here")
                        .help("keep one of the two"),
                ),
                None => {
                    seen.insert(text.clone(), key.span);
                    fields.push((Key { text, span: key.span }, value));
                }
            }
        }
    }

    fn count(&mut self, span: Span, depth: usize) -> Result<(), Stop> {
        self.nodes += 1;
        let said = if depth > DEPTH_MAX {
            format!("this is nested more than {DEPTH_MAX} levels deep")
        } else if self.nodes > NODES_MAX {
            format!("the file has more than {NODES_MAX} values")
        } else {
            return Ok(());
        };
        self.report.add(Problem::error(Code::TooLarge, span, said).label("from here on it is not read"));
        Err(Stop)
    }

    fn refuse(&mut self, span: Span, said: &str, help: &str) {
        self.broken = true;
        self.report.add(Problem::error(Code::YamlFeature, span, said).help(help));
    }

    /// A block of text is pointed at by its first line.
    fn on_one_line(&self, span: Span, style: ScalarStyle) -> Span {
        let source = self.report.text.get(span.start..span.end).unwrap_or_default();
        let source = if style == ScalarStyle::Plain { source.trim_end() } else { source };
        let line = source.lines().next().unwrap_or_default();
        Span::new(span.start, span.start + line.trim_end().len())
    }

    fn syntax(&mut self, error: &ScanError) -> Stop {
        let text = self.report.text;
        let at = self.offsets.byte(*error.marker());
        if error.info().contains("recursion limit") {
            let said = format!("this is nested more than {DEPTH_MAX} levels deep");
            self.report.add(Problem::error(Code::TooLarge, Span::new(at, at), said));
            return Stop;
        }
        let is_end = text[at..].trim().is_empty();
        let (said, help) = plain_words(error.info(), is_end);
        let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        let indent = &line[..line.len() - line.trim_start().len()];
        let problem = match indent.find('\t') {
            Some(tab) => {
                let tab = line_start + tab;
                Problem::error(Code::Syntax, Span::new(tab, tab + 1), "the line is indented with a tab")
                    .label("a tab")
                    .help("indent with spaces; YAML does not take tabs")
            }
            None => {
                let width = text[at..].chars().next().filter(|c| *c != '\n' && *c != '\r').map_or(0, char::len_utf8);
                Problem::error(Code::Syntax, Span::new(at, at + width), said).help(help)
            }
        };
        self.report.add(problem.note(format!("the YAML reader says: {}", printable(error.info()))));
        Stop
    }
}

/// What the reader's sentence means for somebody who wrote the file, and what to do.
fn plain_words(info: &str, is_end: bool) -> (&'static str, &'static str) {
    let is = |part: &str| info.contains(part);
    if is("tab") {
        ("a tab is where only spaces may be", "indent with spaces; YAML does not take tabs")
    } else if is("mapping values are not allowed") {
        ("there is a `:` where no key can be", "check the indentation; a value that contains `: ` needs quotes")
    } else if is("block mapping") || is("block collection") || is("indentation") || is("simple key") {
        ("this line does not fit the lines above it", "check its indentation, and that every key is followed by `:`")
    } else if is("quoted scalar") && (is("end of stream") || is("document indicator")) {
        ("a quoted text begins and never ends", "close it with the same quote")
    } else if is("escape") {
        ("this escape is not known", "write `\\\\` for a backslash, or use single quotes")
    } else if is("trailing content") {
        ("something follows a quoted text", "put all of it inside the quotes")
    } else if is("flow ") || is("bracket") || (is("node content") && is_end) {
        ("a `[` or `{` is not closed, or a comma is missing", "close it; a template goes in quotes: \"{{ … }}\"")
    } else if is("unexpected character") || is("plain scalar") || is("node content") || is("anchor") {
        ("a value begins with a character that YAML keeps for itself", "put the value in quotes")
    } else if is("unprintable") {
        ("there is a character that no text file should have", "remove it")
    } else {
        ("the file is not valid YAML", "correct the line")
    }
}

/// Plane 16 is for private use: no file has these characters, and each stands for one character of ASCII.
const MASK: u32 = 0x10_0000;

/// Hides `{{ … }}` from the YAML reader where a value begins with it, because there YAML would see a map. Character
/// for character, so that places stay where they are.
fn mask_templates(body: &str) -> Cow<'_, str> {
    let is_mask = |c: char| u32::from(c) >= MASK;
    if !body.contains("{{") || body.contains(is_mask) {
        return Cow::Borrowed(body);
    }
    let mut masked = String::with_capacity(body.len());
    for line in body.split_inclusive('\n') {
        match value_start(line).filter(|at| line[*at..].starts_with("{{")) {
            None => masked.push_str(line),
            Some(at) => {
                masked.push_str(&line[..at]);
                mask_line(&line[at..], &mut masked);
            }
        }
    }
    Cow::Owned(masked)
}

fn mask_line(mut rest: &str, masked: &mut String) {
    while let Some(open) = rest.find("{{") {
        let Some(close) = rest[open..].find("}}").map(|at| open + at + 2) else {
            break;
        };
        masked.push_str(&rest[..open]);
        masked.extend(rest[open..close].chars().map(|c| if c.is_ascii() { mask(c) } else { c }));
        rest = &rest[close..];
    }
    masked.push_str(rest);
}

fn mask(c: char) -> char {
    char::from_u32(MASK + u32::from(c)).unwrap_or(c)
}

fn unmask(text: &str) -> String {
    let back = |c: char| u32::from(c).checked_sub(MASK).filter(|c| *c < 128).and_then(char::from_u32).unwrap_or(c);
    text.chars().map(back).collect()
}

/// Where the value of a line begins: after its indentation, its dashes and its key.
fn value_start(line: &str) -> Option<usize> {
    let mut at = line.len() - line.trim_start_matches(' ').len();
    while let Some(rest) = line[at..].strip_prefix("- ") {
        at = line.len() - rest.trim_start_matches(' ').len();
    }
    if line[at..].starts_with("{{") {
        return Some(at);
    }
    let colon = at + line[at..].find(": ")?;
    let is_key = !line[at..colon].contains(['"', '\'', '{', '[', '#', ':']);
    is_key.then(|| line.len() - line[colon + 1..].trim_start_matches(' ').len())
}

#[cfg(test)]
mod tests {
    use super::super::problem::position;
    use super::*;
    use proptest::prelude::*;

    fn tree(text: &str) -> Node {
        let mut report = Report::new("a.yml", text);
        let node = parse(&mut report);
        assert_eq!(report.problems, []);
        node.expect("a tree")
    }

    fn problem(text: &str) -> Problem {
        let mut report = Report::new("a.yml", text);
        parse(&mut report);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        report.problems.remove(0)
    }

    /// The problem stands at this line and column, and its message and help contain these words.
    fn check(text: &str, code: Code, place: (usize, usize), said: &str, help: &str) {
        let problem = problem(text);
        assert_eq!(problem.code, code, "{problem:?}");
        assert_eq!(position(text, problem.span.start), place, "{problem:?}");
        assert!(problem.message.contains(said), "{problem:?}");
        assert!(problem.help.as_deref().unwrap_or_default().contains(help), "{problem:?}");
    }

    fn source<'t>(text: &'t str, node: &Node) -> &'t str {
        &text[node.span.start..node.span.end]
    }

    #[test]
    fn every_node_knows_its_bytes() {
        for newline in ["\n", "\r\n"] {
            for mark in ["", "\u{feff}"] {
                let text = format!("{mark}# é€😀\na: ü\nb:\n  - 'ß'\n  - {{x: 1}}\nc: |\n  é\n  f\nd: end\n");
                let text = text.replace('\n', newline);
                let node = tree(&text);
                assert_eq!(node.fields().iter().map(|(key, _)| key.text.as_str()).collect::<String>(), "abcd");
                for (key, _) in node.fields() {
                    assert_eq!(&text[key.span.start..key.span.end], key.text);
                }
                assert_eq!(source(&text, node.get("a").expect("a")), "ü");
                let items = node.get("b").expect("b").items();
                assert_eq!(source(&text, &items[0]), "'ß'");
                assert_eq!(source(&text, items[1].get("x").expect("x")), "1");
                assert_eq!(node.get("c").and_then(Node::text), Some("é\nf\n"));
                assert_eq!(source(&text, node.get("d").expect("d")), "end");
            }
        }
    }

    #[test]
    fn yaml_1_2_knows_few_special_words() {
        let node = tree("a: no\nb: null\nc: \"null\"\nd: ~\ne:\nf: true\ng: 0x1F\n");
        assert_eq!(node.get("a").and_then(Node::text), Some("no"));
        for null in ["b", "d", "e"] {
            assert!(node.get(null).expect("there").is_null(), "{null}");
        }
        assert_eq!(node.get("c").and_then(Node::text), Some("null"));
        assert_eq!(node.get("f").expect("f").kind(), "a boolean");
    }

    #[test]
    fn templates_need_no_quotes_where_a_value_begins() {
        let text = "if: {{ steps.a-b.set == true }}\nto: {{ é.x }} and {{ \"y: #\" }}  # {{ no }}\n- : x\n";
        let text = text.strip_suffix("- : x\n").expect("the rest");
        let node = tree(text);
        assert_eq!(node.get("if").and_then(Node::text), Some("{{ steps.a-b.set == true }}"));
        assert_eq!(node.get("to").and_then(Node::text), Some("{{ é.x }} and {{ \"y: #\" }}"));
        let node = tree("- {{ a | b }}\n- k: {{ c }}\n- |\n  x: {{ d }}\n- \"{{ \\\"e\\\" }}\"\n");
        let texts: Vec<_> =
            node.items().iter().map(|item| item.text().or(item.get("k").and_then(Node::text))).collect();
        assert_eq!(texts, [Some("{{ a | b }}"), Some("{{ c }}"), Some("x: {{ d }}\n"), Some("{{ \"e\" }}")]);
    }

    #[test]
    fn j1_a_syntax_error_says_where_and_what_to_do() {
        check("é: 1\na: b: c\n", Code::Syntax, (2, 5), "`:` where no key", "needs quotes");
        check("é: 1\na:\n\tb: 1\n", Code::Syntax, (3, 1), "tab", "spaces");
        check("a:\n  b: 1\n c: 2\n", Code::Syntax, (3, 2), "does not fit", "indentation");
        check("ü: \"x\n", Code::Syntax, (1, 4), "never ends", "close it");
        check("a: [1, 2\n", Code::Syntax, (2, 1), "not closed", "close it");
        check("a: @b\n", Code::Syntax, (1, 4), "keeps for itself", "quotes");
    }

    #[test]
    fn what_makes_yaml_surprising_is_refused_with_its_place() {
        check("é: 1\nb: &x 2\n", Code::YamlFeature, (2, 4), "anchor", "write the value out");
        check("a: !!str 2\n", Code::YamlFeature, (1, 4), "tag", "quotes");
        check("a: 1\n---\nb: 1\n", Code::YamlFeature, (2, 1), "second document", "---");
        check("[a]: 1\n", Code::YamlFeature, (1, 2), "a key must be a text", "quotes");
    }

    #[test]
    fn a_key_written_twice_is_shown_at_both_places() {
        let text = "é: 1\nb: 2\né: 3\n";
        check(text, Code::DuplicateKey, (3, 1), "`é` is written twice", "keep one");
        let (first, label) = problem(text).also.expect("the first place");
        assert_eq!((position(text, first.start), label.as_str()), ((1, 1), "first here"));
    }

    #[test]
    fn p10_size_depth_and_number_of_values_are_bounded() {
        check(&"[".repeat(10_000), Code::TooLarge, (1, 256), "nested more than 64", "");
        check(&"- ".repeat(10_000), Code::TooLarge, (1, 131), "nested more than 64", "");
        check(&"{a: ".repeat(10_000), Code::TooLarge, (1, 1_021), "nested more than 64", "");
        check(&"x".repeat(FILE_BYTES_MAX + 1), Code::TooLarge, (1, 1), "bytes", "split");
        check(&format!("[{}1]", "1,".repeat(NODES_MAX)), Code::TooLarge, (1, 200_000), "more than 100000", "");
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        for text in ["", "\n\n", "# only a comment\n", "---\n", "\u{feff}", "null\n"] {
            assert_eq!(tree(text).fields(), [], "{text:?}");
        }
    }

    #[test]
    fn a_nul_byte_is_refused() {
        for text in ["a: \0", "\0", "a: \"\0\"", "a: b\0c\nd: e\n"] {
            let mut report = Report::new("a.yml", text);
            parse(&mut report);
            assert!(!report.problems.is_empty(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[\\PC\n\t\r\0\"'{}\\[\\]:,&*!|>#?%@ -]{0,80}") {
            let mut report = Report::new("a.yml", &text);
            parse(&mut report);
            for problem in report.problems {
                prop_assert!(text.get(problem.span.start..problem.span.end).is_some(), "{problem:?}");
            }
        }

        #[test]
        fn a_plain_scalar_is_what_stands_at_its_place(words in prop::collection::vec("[a-zé€😀]{1,8}( [a-zé]{1,3})?", 1..12)) {
            let text: String = words.iter().enumerate().map(|(n, word)| format!("k{n}:  {word}  # ü\r\n")).collect();
            for (_, node) in tree(&text).fields() {
                prop_assert_eq!(Some(source(&text, node)), node.text());
            }
        }
    }
}
