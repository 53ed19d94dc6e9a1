//! A problem with a workspace: what is wrong, at which place, and what to write instead.

use std::collections::HashSet;
use std::fmt;

/// A stretch of a file's text, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub const fn new(start: usize, end: usize) -> Self {
        Span { start, end }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub code: Code,
    /// The path of the file in the workspace.
    pub file: String,
    pub span: Span,
    /// One sentence in plain words.
    pub message: String,
    /// A few words for under the caret; may be empty.
    pub label: String,
    /// Facts that help to understand it.
    pub notes: Vec<String>,
    /// What to write instead.
    pub help: Option<String>,
    /// A second place in the same file, and its few words.
    pub also: Option<(Span, String)>,
}

impl Problem {
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        Problem {
            severity: Severity::Error,
            code,
            file: String::new(),
            span,
            message: message.into(),
            label: String::new(),
            notes: Vec::new(),
            help: None,
            also: None,
        }
    }

    pub fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Problem { severity: Severity::Warning, ..Problem::error(code, span, message) }
    }

    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// For a name that is not known: the nearest one that is, if any, and what to add if it was not meant.
    pub(super) fn meant(self, nearest: Option<&str>, add: String) -> Self {
        match nearest {
            Some(meant) => self.help(format!("did you mean `{meant}`? If not, {add}")),
            None => self.help(add),
        }
    }

    pub fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.also = Some((span, label.into()));
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

macro_rules! codes {
    ($($name:ident = $number:literal, $title:literal;)+) => {
        /// What kind of problem it is. A number, once given, keeps its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($name,)+
        }

        impl Code {
            pub const ALL: &[Code] = &[$(Code::$name,)+];

            /// The problem in one line, whatever the file.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Code::$name => $title,)+
                }
            }

            const fn number(self) -> &'static str {
                match self {
                    $(Code::$name => $number,)+
                }
            }
        }
    };
}

codes! {
    Syntax = "CL0101", "the file is not valid YAML";
    YamlFeature = "CL0102", "a part of YAML that clinch does not read";
    TooLarge = "CL0103", "a file is larger or deeper than clinch reads";
    UnknownFile = "CL0104", "a file that is no part of a workspace";
    DuplicateKey = "CL0105", "a key is written twice in one map";
    UnknownQueue = "CL0110", "a queue is named and not defined";
    DuplicateName = "CL0111", "two things have the same name";
    UnknownStep = "CL0112", "a step is named that is not there";
    DuplicateRoute = "CL0113", "two routes have the same method and path";
    DuplicateConsumer = "CL0114", "two workers consume the same queue";
    Unconsumed = "CL0115", "nobody consumes a queue that a flow fills";
    TtlTooShort = "CL0116", "a key is forgotten before its job is out of retries";
    UnusedStore = "CL0117", "a key store that no flow uses";
    ForgetfulStore = "CL0118", "keys are remembered as well as a Redis remembers them";
    OneGroup = "CL0119", "the jobs of a whole queue run one after the other";
    UnknownSource = "CL0120", "a source is named and not defined";
    UnknownKey = "CL0121", "a key that is not known at this place";
    MissingKey = "CL0122", "a key that must be written is missing";
    WrongType = "CL0123", "a value of another type is needed";
    OutOfRange = "CL0124", "a value is too small or too large";
    BadChoice = "CL0125", "a value is not one of those that are known";
    EitherOr = "CL0126", "keys that exclude each other";
    BadDuration = "CL0131", "a duration cannot be read";
    BadSize = "CL0132", "a size cannot be read";
    BadName = "CL0133", "a name has characters that names do not have";
    BadKeyRule = "CL0134", "a rule for finding a key cannot be read";
    BadExpression = "CL0135", "an expression or a template cannot be read";
    BadUrl = "CL0136", "a URL cannot be called";
    BadHeader = "CL0137", "a header cannot be sent";
    BadPath = "CL0138", "a path cannot be matched";
    BadAddress = "CL0139", "a socket address cannot be read";
    BadStore = "CL0140", "the address of a key store cannot be used";
    NotYet = "CL0141", "a part of the dialect that this version cannot run yet";
    Unverified = "CL0142", "a route that anybody may send to, and that does not say so";
    BadVerify = "CL0143", "settings of a signature that would prove nothing";
    TtlShorterThanRetries = "CL0144", "a key is forgotten before its sender stops trying";
    BadRules = "CL0145", "what is to be kept, dropped and hashed contradicts itself";
    BadSchema = "CL0146", "a file is not a JSON Schema that can be used";
    UnknownSchema = "CL0147", "a schema is named and there is no such file";
    UnusedSource = "CL0148", "no flow takes the events of a source";
    BadPointer = "CL0149", "a path into a body cannot be read";
    BadRate = "CL0150", "a rate cannot be read";
    BadMoment = "CL0151", "a moment cannot be read";
    BadType = "CL0152", "a type of events cannot be read";
    BadSpread = "CL0160", "a pause between two lengths cannot be read";
    BadStatuses = "CL0161", "a list of statuses cannot be read";
    BadAllowed = "CL0163", "a place that may be called cannot be read";
    UnknownIntegration = "CL0162", "an integration is named that is not there";
    BadStatement = "CL0165", "a statement for a database cannot be run as it is written";
    BadDatabase = "CL0166", "the address of a database cannot be used";
    BadMailServer = "CL0167", "how mails are sent cannot be read";
    BadTemplate = "CL0168", "a template of messages cannot be used";
    UnknownTemplate = "CL0169", "a template is named and there is no such file";
    BadEnv = "CL0170", "a variable cannot be given to a script";
    NoRuntime = "CL0171", "the runtime of a script is not installed";
    Unstarted = "CL0174", "no source sends the events that start a playbook";
    BadSchedule = "CL0180", "when a worker runs cannot be read";
    NoDeadLetters = "CL0181", "nobody's dead letters are kept in a queue that is read from";
    UnknownPolicy = "CL0185", "a policy is named and not defined";
    UnknownChannel = "CL0186", "a channel is named over which nothing goes";
    BadTimeZone = "CL0187", "a time zone is not known";
    BadHours = "CL0188", "a time of day cannot be read, or says nothing";
    IdlePolicy = "CL0189", "nothing is under a policy";
    BadShare = "CL0190", "a share of a hundred cannot be read";
    UnknownAlert = "CL0195", "an alert is named that clinch does not know";
    BadAlert = "CL0196", "what is said of an alert or its channel cannot be used";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.number())
    }
}

/// Line and column of a byte offset, both counted from 1, columns in characters.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let offset = text.floor_char_boundary(offset);
    let before = &text[..offset];
    // A byte order mark takes no room on the screen.
    let before = before.strip_prefix('\u{feff}').unwrap_or(before);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.bytes().filter(|b| *b == b'\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// What was written, short enough for a sentence and without characters that a terminal obeys.
pub(super) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

pub(super) fn printable(text: &str) -> String {
    text.chars().flat_map(visible).collect()
}

fn visible(c: char) -> impl Iterator<Item = char> {
    let hidden =
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let (raw, escaped) = if hidden { (None, Some(c.escape_default())) } else { (Some(c), None) };
    raw.into_iter().chain(escaped.into_iter().flatten())
}

/// The problems of one file, as they are found.
pub(super) struct Report<'a> {
    pub file: &'a str,
    pub text: &'a str,
    pub problems: Vec<Problem>,
    /// Where the values begin that were found wrong: nothing is concluded from them.
    flawed: HashSet<usize>,
}

impl<'a> Report<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Report { file, text, problems: Vec::new(), flawed: HashSet::new() }
    }

    /// A problem with this very value.
    pub fn flaw(&mut self, value: Span, problem: Problem) {
        self.flawed.insert(value.start);
        self.add(problem);
    }

    pub fn is_flawed(&self, value: Span) -> bool {
        self.flawed.contains(&value.start)
    }

    pub fn add(&mut self, problem: Problem) {
        self.problems.push(Problem { file: self.file.to_string(), ..problem });
    }

    /// The part of `span` where `word` is written; all of it when it is not there as such.
    pub fn narrow(&self, span: Span, word: &str) -> Span {
        let place = self.text.get(span.start..span.end).and_then(|source| find_word(source, word));
        place.map_or(span, |at| Span::new(span.start + at, span.start + at + word.len()))
    }
}

fn find_word(source: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = source[..*at].chars().next_back();
        let after = source[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j1_lines_and_columns_count_from_one_in_characters() {
        let text = "a: ä€\r\nbé: c\n";
        let of = |word: &str| position(text, text.find(word).expect("there"));
        assert_eq!(of("a"), (1, 1));
        assert_eq!(of("€"), (1, 5));
        assert_eq!(of("c"), (2, 5));
        assert_eq!(position(text, text.len()), (3, 1));
        assert_eq!(position(text, 9_999), (3, 1));
        assert_eq!(position("\u{feff}x", 3), (1, 1));
    }

    #[test]
    fn every_code_has_a_number_of_its_own() {
        let numbers: HashSet<String> = Code::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(numbers.len(), Code::ALL.len());
        assert_eq!(Code::UnknownStep.to_string(), "CL0112");
        assert!(Code::ALL.iter().all(|code| !code.title().is_empty()));
    }

    #[test]
    fn what_is_shown_is_short_and_cannot_command_a_terminal() {
        assert_eq!(shown("plain é"), "plain é");
        assert_eq!(shown("\u{1b}[31m"), "\\u{1b}[31m");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), 61);
    }
}
