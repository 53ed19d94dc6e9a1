//! Masking: what people and logs may see of data. One place for logs, errors, API, CLI, console and exports.
//!
//! In JSON every text is hidden but for its first character or the ends that its shape allows; numbers, booleans and
//! null stay, unless the field's name, a rule or the shape of a card says otherwise. In free text, such as a partner's
//! error message, only what is recognised is hidden: by the name in front of it, or by its shape. What was masked once
//! stays the same when it is masked again. Names of fields and signs that could confuse a terminal are masked too.

mod name;
mod shape;

use crate::form;
use crate::pointer::{BadPointer, Pointer};
use crate::raw::{self, Kind};
use name::{Class, Names};
use serde_json::value::RawValue;
use std::ops::ControlFlow;

/// Stands for what is not shown. As long for one character as for a thousand.
pub const HIDDEN: &str = "•••";
/// More of a text than this is not shown.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// After so much masked JSON the rest is left out.
pub const JSON_BYTES_MAX: usize = 64 * 1024;
pub const PREVIEW_LINES_MAX: usize = 10;
const PREVIEW_LINE_CHARS_MAX: usize = 160;
const NAME_CHARS_MAX: usize = 64;
const NUMBER_BYTES_MAX: usize = 40;
const JSON_DEPTH_MAX: usize = 32;
const NAMES_MAX: usize = 256;

/// What a workspace adds to the usual rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Names of fields that show nothing: `crm_id`, `*note*`.
    pub names: &'a [String],
    /// Places in a body that show nothing, with all below them.
    pub pointers: &'a [String],
    /// Whether IP addresses are hidden in free text too. Fields whose name says that they hold one always are.
    pub addresses: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    #[error(
        "`{0}` is not a field name to mask; write a name such as `crm_id`, or `*note*` for every name with note in it"
    )]
    Name(String),
    #[error(transparent)]
    Pointer(#[from] BadPointer),
    #[error("{0} names and pointers are more than {NAMES_MAX}; use patterns such as `*note*`")]
    TooMany(usize),
}

/// Checked rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    names: Names,
    pointers: Vec<Pointer>,
    addresses: bool,
}

impl Default for Rules {
    /// What holds without any configuration.
    fn default() -> Self {
        Rules { names: Names::usual(), pointers: Vec::new(), addresses: false }
    }
}

/// The beginning of a body, masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    pub bytes: usize,
    pub json: bool,
    /// At most [`PREVIEW_LINES_MAX`]; none for what is not text.
    pub lines: Vec<String>,
    /// Whether there is more than the lines show.
    pub cut: bool,
}

impl Rules {
    pub fn new(wanted: Wanted<'_>) -> Result<Self, BadRules> {
        let count = wanted.names.len() + wanted.pointers.len();
        if count > NAMES_MAX {
            return Err(BadRules::TooMany(count));
        }
        let mut rules = Rules { addresses: wanted.addresses, ..Rules::default() };
        for name in wanted.names {
            if !rules.names.add(name) {
                return Err(BadRules::Name(name.chars().take(80).collect()));
            }
        }
        rules.pointers = wanted.pointers.iter().map(|pointer| pointer.parse()).collect::<Result<_, _>>()?;
        Ok(rules)
    }

    /// Free text: a partner's message, an error, a key that a sender chose.
    pub fn text(&self, text: &str) -> String {
        self.shown(text, &self.names)
    }

    /// A sentence of our own that repeats what it was given: only shapes count in it, for `SECRET: it is not set` is no secret.
    pub fn sentence(&self, text: &str) -> String {
        self.shown(text, &Names::none())
    }

    fn shown(&self, text: &str, names: &Names) -> String {
        // A little further than is shown, so that nothing is cut in two and missed.
        let seen = &text[..text.floor_char_boundary(TEXT_BYTES_MAX + shape::SHAPE_BYTES_MAX)];
        let mut end = seen.floor_char_boundary(TEXT_BYTES_MAX);
        let mut shown = String::with_capacity(end);
        let mut from = 0;
        for span in shape::find(seen, names, self.addresses) {
            if span.start >= end {
                break;
            }
            shown.push_str(&seen[from..span.start]);
            shown.push_str(&span.shown);
            from = span.end;
            end = end.max(from);
        }
        shown.push_str(&seen[from..end]);
        let mut shown = harmless(&shown);
        if end < text.len() {
            shown.push_str(&format!("… ({} bytes more)", text.len() - end));
        }
        shown
    }

    /// The value of a named thing: a header, a form field, a setting.
    pub fn field(&self, name: &str, value: &str) -> String {
        match self.names.class(name) {
            Some(class) if !value.is_empty() => harmless(&shape::hidden(value, class)),
            _ => self.text(value),
        }
    }

    /// Bytes of any kind, such as a partner's answer: JSON as JSON, the rest as text, whatever its encoding.
    pub fn bytes(&self, bytes: &[u8]) -> String {
        let structured = matches!(bytes.trim_ascii_start(), [b'{' | b'[', ..]);
        match if structured { self.json(bytes) } else { None } {
            Some(json) => json,
            // JSON that is cut short has names and values too, and they can no longer be told apart.
            None if structured => self.preview(bytes).lines.join("\n"),
            None => {
                let start = &bytes[..bytes.len().min(TEXT_BYTES_MAX + shape::SHAPE_BYTES_MAX)];
                let more = bytes.len() - start.len();
                let shown = self.text(&String::from_utf8_lossy(start));
                if more == 0 { shown } else { format!("{shown} ({more} bytes more)") }
            }
        }
    }

    /// JSON again, in one line; `None` when it is no JSON. When it grows too long, `"…": "cut"` stands for the rest.
    pub fn json(&self, body: &[u8]) -> Option<String> {
        Some(self.written(raw::parse(body)?, Layout::Compact).0)
    }

    /// 5 to 10 lines by which a person recognises a body.
    pub fn preview(&self, body: &[u8]) -> Preview {
        let bytes = body.len();
        if let Some(raw) = raw::parse(body) {
            let (text, cut) = self.written(raw, Layout::Lines);
            let lines: Vec<String> = text.lines().take(PREVIEW_LINES_MAX).map(one_line).collect();
            return Preview { bytes, json: true, cut: cut || text.lines().count() > lines.len(), lines };
        }
        let start = &body[..bytes.min(TEXT_BYTES_MAX)];
        let lines: Vec<String> = if looks_like_form(start) {
            form::raw_fields(start).take(PREVIEW_LINES_MAX + 1).map(|field| one_line(&self.form_line(&field))).collect()
        } else {
            match std::str::from_utf8(start) {
                Err(error) if error.error_len().is_some() => Vec::new(),
                _ => {
                    let text = String::from_utf8_lossy(start);
                    text.lines().take(PREVIEW_LINES_MAX + 1).map(|line| one_line(&words_hidden(line))).collect()
                }
            }
        };
        let cut = lines.len() > PREVIEW_LINES_MAX || bytes > TEXT_BYTES_MAX;
        Preview { bytes, json: false, cut, lines: lines.into_iter().take(PREVIEW_LINES_MAX).collect() }
    }

    fn form_line(&self, field: &form::RawField<'_>) -> String {
        let (name, value) = (field.name(), field.value());
        let value = String::from_utf8_lossy(&value);
        format!("{}={}", self.name(&name), self.leaf(&value, self.names.class(&name)))
    }

    fn written(&self, raw: &RawValue, layout: Layout) -> (String, bool) {
        let mut writer = Writer { rules: self, layout, out: String::new(), cut: false };
        let pointers: Vec<&Pointer> = self.pointers.iter().collect();
        writer.value(raw, None, &pointers, 0);
        (writer.out, writer.cut)
    }

    /// A text in a structure. Unlike a message, it may be anything: so nothing of it is shown that is not known to be safe.
    fn leaf(&self, text: &str, class: Option<Class>) -> String {
        if text.is_empty() || shape::is_ours(text.as_bytes()) {
            return text.to_string();
        }
        if let Some(class) = class {
            return harmless(&shape::hidden(text, class));
        }
        let short = text.len() <= 4 * shape::SHAPE_BYTES_MAX;
        let shown = if short { shape::whole(text) } else { None };
        harmless(&shown.unwrap_or_else(|| shape::first_letter(text, 4)))
    }

    fn name(&self, name: &str) -> String {
        let shown = self.text(name);
        match shown.char_indices().nth(NAME_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &shown[..end]),
            None => shown,
        }
    }
}

/// Whether something in this text looks like what is not shown: an address, a phone, a card, a token.
pub fn is_revealing(text: &str) -> bool {
    !shape::find(text, &Names::none(), false).is_empty()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Compact,
    Lines,
}

struct Writer<'r> {
    rules: &'r Rules,
    layout: Layout,
    out: String,
    cut: bool,
}

impl Writer<'_> {
    fn value(&mut self, raw: &RawValue, class: Option<Class>, pointers: &[&Pointer], depth: usize) {
        let text = raw.get();
        match raw::kind(raw) {
            Kind::Word => self.out.push_str(text),
            Kind::Number if class.is_some() || text.len() > NUMBER_BYTES_MAX => self.text(HIDDEN),
            Kind::Number if text.bytes().all(|b| b.is_ascii_digit()) && shape::is_card(text.as_bytes()) => {
                self.text(&shape::shown_card(text.as_bytes()));
            }
            Kind::Number => self.out.push_str(text),
            Kind::Text => {
                let shown = raw::text(raw).map_or_else(|| HIDDEN.to_string(), |text| self.rules.leaf(&text, class));
                self.text(&shown);
            }
            Kind::Object | Kind::List if depth == JSON_DEPTH_MAX => self.text(HIDDEN),
            kind @ (Kind::Object | Kind::List) => self.container(raw, kind, class, pointers, depth),
        }
    }

    fn container(&mut self, raw: &RawValue, kind: Kind, class: Option<Class>, pointers: &[&Pointer], depth: usize) {
        let named = kind == Kind::Object;
        let most = if self.layout == Layout::Lines { JSON_BYTES_MAX / 8 } else { JSON_BYTES_MAX };
        self.out.push(if named { '{' } else { '[' });
        let mut first = true;
        let read = raw::each(raw, |name, value| {
            if !std::mem::take(&mut first) {
                self.out.push(',');
            }
            self.new_line(depth + 1);
            if self.out.len() > most {
                self.cut = true;
                self.out.push_str(if named { r#""…":"cut""# } else { r#""… cut""# });
                return ControlFlow::Break(());
            }
            if named {
                let shown = self.rules.name(name);
                self.text(&shown);
                self.out.push_str(if self.layout == Layout::Lines { ": " } else { ":" });
            }
            let reach = |pointer: &&&Pointer| pointer.segments().get(depth).is_some_and(|part| part.matches(name));
            let below: Vec<&Pointer> = pointers.iter().filter(reach).copied().collect();
            let named_here = below.iter().any(|pointer| pointer.segments().len() == depth + 1);
            let by_name = if named { self.rules.names.class(name) } else { None };
            let class = match (class, by_name) {
                _ if named_here => Some(Class::Secret),
                (Some(Class::Secret), _) | (_, Some(Class::Secret)) => Some(Class::Secret),
                (outer, own) => own.or(outer),
            };
            self.value(value, class, &below, depth + 1);
            ControlFlow::Continue(())
        });
        if read.is_err() {
            // A name that is half a character: what was written so far stands, the rest is left out.
            self.cut = true;
            self.out.push_str(match (named, first) {
                (true, true) => r#""…":"cut""#,
                (true, false) => r#","…":"cut""#,
                (false, _) => "",
            });
        }
        if !first {
            self.new_line(depth);
        }
        self.out.push(if named { '}' } else { ']' });
    }

    fn text(&mut self, text: &str) {
        self.out.push_str(&serde_json::Value::from(text).to_string());
    }

    fn new_line(&mut self, depth: usize) {
        if self.layout == Layout::Lines {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n("  ", depth));
        }
    }
}

fn looks_like_form(body: &[u8]) -> bool {
    let plain = body.iter().all(|b| b.is_ascii_graphic() && !b"<>\"{}".contains(b));
    plain && body.iter().position(|b| *b == b'=').is_some_and(|at| at > 0)
}

/// Keeps the signs between words, so that a person sees what kind of text it is.
fn words_hidden(line: &str) -> String {
    let mut shown = String::new();
    for part in line.split_inclusive(|c: char| !c.is_alphanumeric()).take(PREVIEW_LINE_CHARS_MAX) {
        let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !word.is_empty() {
            shown.push_str(&shape::first_letter(word, 4));
        }
        shown.push_str(&part[word.len()..]);
    }
    harmless(&shown)
}

fn one_line(line: &str) -> String {
    match line.char_indices().nth(PREVIEW_LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}

/// Without signs that could move a terminal's cursor or turn the direction of writing.
fn harmless(text: &str) -> String {
    let is_harmful = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn check(text: &str, shown: &str) {
        let rules = Rules::default();
        assert_eq!(rules.text(text), shown, "{text}");
        assert_eq!(rules.text(shown), shown, "masking again changes {shown}");
    }

    #[test]
    fn h6_mail_addresses_show_where_they_begin_and_end() {
        check("ada@example.com", "a•••@e•••.com");
        check("no such user: <ada.lovelace+x@mail.example.co.uk>.", "no such user: <a•••@m•••.uk>.");
        check("mailto:ada@example.com?x=1", "mailto:a•••@e•••.com?x=1");
        check("ada%40example.com", "a•••@e•••.com");
        check("a@b.de, root@localhost", "•••@•••.de, r•••@l•••");
        check("jürgen@müller.de", "j•••@m•••.de");
        check("at @home @ 5", "at @home @ 5");
        check("postgres://me:pa55@db.local/x", "postgres://•••@db.local/x");
    }

    #[test]
    fn h6_phones_show_their_ends() {
        check("+4915112345689", "+49•••89");
        check("call +1 (555) 010-9999 now", "call +15•••99 now");
        check("call (555) 010-9999", "call (•••99");
        check("030/12345678, 01 23 45 67 89, 555.010.9999", "•••78, •••89, •••99");
        check("to=%2B4915112345689", "to=+49•••89");
        check("00491511234567", "•••67");
    }

    #[test]
    fn h6_cards_and_accounts_show_their_last_digits() {
        check("4111111111111111", "•••1111");
        check("card 4111 1111 1111 1111 declined", "card •••1111 declined");
        check("order-5500-0000-0000-0004", "order-•••0004");
        check("12 4111 1111 1111 1111", "12 •••1111");
        check("4111111111111112", "4111111111111112");
        check("DE89370400440532013000", "DE•••3000");
        check("to DE89 3704 0044 0532 0130 00 from here", "to DE•••3000 from here");
        check("gb82west12345698765432", "gb•••5432");
        check("DE88370400440532013000", "DE88370400440532013000");
        check("078-05-1120", "•••");
    }

    #[test]
    fn h6_secrets_show_their_kind() {
        check("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_•••");
        check("key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=.", "key whsec_•••");
        check("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1g", "eyJ•••");
        check("Authorization: Bearer abc123def", "Authorization: •••");
        check("got bearer abc123def, twice", "got bearer •••, twice");
        check("Basic dXNlcjpwYXNz is wrong", "Basic ••• is wrong");
        check("Basic authentication needed", "Basic authentication needed");
        check("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=", "v1,K5oZ•••");
        check("0123456789abcdef0123456789abcdef-us1", "0123•••");
        check("cls_AQIDBAUGBwgABlwb", "cls_•••");
    }

    #[test]
    fn h6_the_value_after_a_sensitive_name_is_hidden() {
        check("password=hunter2&plan=pro", "password=•••&plan=pro");
        check(r#"bad {"token": "a b\"c", "n": 1}"#, r#"bad {"token": "•••", "n": 1}"#);
        check(r#"bad {\"first_name\":\"Ada\"}"#, r#"bad {\"first_name\":\"•••\"}"#);
        check("first_name: Ada Lovelace, plan: pro", "first_name: •••, plan: pro");
        check("api_key => 'x y'", "api_key => '•••'");
        check("https://x.test/?sig=abc&a=1", "https://x.test/?sig=•••&a=1");
        check("secret: {a: 1, b: 2}", "secret: •••");
        check("email=nobody", "email=•••");
        check("phone=4915112345689", "phone=•••89");
        check("email: is not valid", "email: is not valid");
        check("email: ada@example.com is taken", "email: a•••@e•••.com is taken");
        check("token: ", "token: ");
        check("secret://vault", "secret://vault");
    }

    #[test]
    fn h6_what_is_no_secret_stays_readable() {
        for open in [
            "status 422: plan `pro` is not for sale",
            "2026-11-05T10:00:00Z took 1500ms",
            "at 2026-11-05 10:00:00.123 attempt 3 of 7",
            "job_01HZX5T0N8W2A of evt_01HZX5T0N8W2A",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "connect to 127.0.0.1:8080 refused",
            "id 1790000000 then 1790000000123",
            "No such customer: cus_NffrFeUfNV2Hib",
            "clinch-0123456789abcdef0123456789abcdef",
            "h_0123456789abcdef0123456789abcdef",
            "https://api.example.com/v1/customers/17/orders?page=2",
            "rows 100 200 300 400",
            "52.5200066, 13.404954",
            "",
        ] {
            check(open, open);
        }
    }

    #[test]
    fn h6_a_sentence_of_our_own_hides_what_it_repeats_and_not_what_it_says() {
        let check = |text: &str, shown: &str| assert_eq!(Rules::default().sentence(text), shown);
        check("STD_SECRET: the secret is empty", "STD_SECRET: the secret is empty");
        check("there is no flow `ada@example.com`", "there is no flow `a•••@e•••.com`");
    }

    #[test]
    fn h6_addresses_are_hidden_when_asked() {
        let rules = Rules::new(Wanted { addresses: true, ..Wanted::default() }).expect("rules");
        for (text, shown) in [
            ("from 203.0.113.7:99", "from 203.•••:99"),
            ("from [2001:db8::7]:99", "from [2001:•••]:99"),
            ("at 10:00:00", "at 10:00:00"),
            ("1.2.3", "1.2.3"),
        ] {
            assert_eq!(rules.text(text), shown);
        }
        assert_eq!(Rules::default().field("X-Forwarded-For", "203.0.113.7"), "203.•••");
    }

    #[test]
    fn t_102_signs_that_steer_a_terminal_are_replaced() {
        assert_eq!(
            Rules::default().text("a\u{1b}[31mb\u{202e}c\r\nd\u{7}"),
            "a\u{fffd}[31mb\u{fffd}c\u{fffd}\nd\u{fffd}"
        );
    }

    #[test]
    fn h6_long_text_is_cut_with_a_note_and_nothing_slips_through_the_cut() {
        for canary in ["4111 1111 1111 1111", "ada@example.com", "+49 151 12345689", "DE89 3704 0044 0532 0130 00"] {
            for shift in 0..canary.len() + 2 {
                let text = format!("{} {canary} {}", "x".repeat(TEXT_BYTES_MAX - shift), "y".repeat(100));
                let shown = Rules::default().text(&text);
                assert!(shown.contains(" bytes more)") && shown.len() < TEXT_BYTES_MAX + 200);
                let tail = &shown[TEXT_BYTES_MAX - shift..];
                assert!(!tail.contains(&canary[..8]), "{shift}: {tail}");
            }
        }
        let binary = Rules::default().bytes(&vec![0xff; 1 << 20]);
        assert!(binary.len() < 4 * TEXT_BYTES_MAX && binary.contains("bytes more"));
    }

    #[test]
    fn h6_fields_are_masked_by_their_name() {
        let check =
            |name: &str, value: &str, shown: &str| assert_eq!(Rules::default().field(name, value), shown, "{name}");
        check("Authorization", "Basic x", "•••");
        check("x-api-key", "short", "•••");
        check("email", "ada@example.com", "a•••@e•••.com");
        check("phone", "4915112345689", "•••89");
        check("card", "4111111111111111", "•••1111");
        check("card", "none", "•••");
        check("user-agent", "curl/8 (ada@example.com)", "curl/8 (a•••@e•••.com)");
        check("password", "", "");
    }

    fn check_json(wanted: Wanted<'_>, body: &str, shown: &str) {
        let rules = Rules::new(wanted).expect("rules");
        assert_eq!(rules.json(body.as_bytes()).expect(body), shown);
        assert_eq!(rules.bytes(shown.as_bytes()), rules.json(shown.as_bytes()).unwrap_or_default());
    }

    #[test]
    fn p9_json_shows_its_form_and_no_text() {
        let usual = Wanted::default();
        check_json(
            usual,
            r#"{"id":9007199254740993,"email":"ada@example.com","plan":"prepaid","x":"abc","t":"","ok":true,"n":null}"#,
            r#"{"id":9007199254740993,"email":"a•••@e•••.com","plan":"p•••","x":"•••","t":"","ok":true,"n":null}"#,
        );
        check_json(usual, r#"{"phone":4915112345689,"n":4111111111111111}"#, r#"{"phone":"•••","n":"•••1111"}"#);
        check_json(
            usual,
            r#"{"card":{"last":"4242","ok":true},"s":["+4915112345689"]}"#,
            r#"{"card":{"last":"•••","ok":true},"s":["+49•••89"]}"#,
        );
        check_json(
            usual,
            r#"{"ada@example.com":1,"h":"h_0123456789abcdef0123456789abcdef"}"#,
            r#"{"a•••@e•••.com":1,"h":"h_0123456789abcdef0123456789abcdef"}"#,
        );
        check_json(usual, r#"{"e":1e400,"d":1,"d":2,"s":"\ud800"}"#, r#"{"e":1e400,"d":1,"d":2,"s":"•••"}"#);
        check_json(usual, r#"{"token":["a",{"b":1}]}"#, r#"{"token":["•••",{"b":"•••"}]}"#);
        check_json(usual, r#""ada@example.com""#, r#""a•••@e•••.com""#);
        let own = ["plan".to_string()];
        let places = ["/items/*/note".to_string(), "/deep".to_string()];
        check_json(
            Wanted { names: &own, pointers: &places, addresses: false },
            r#"{"plan":7,"items":[{"note":5,"id":5}],"deep":{"a":[1,2]}}"#,
            r#"{"plan":"•••","items":[{"note":"•••","id":5}],"deep":{"a":["•••","•••"]}}"#,
        );
    }

    #[test]
    fn h6_bad_rules_are_refused() {
        let check = |name: &str, pointer: Option<&str>| {
            let (names, pointers) = ([name.to_string()], pointer.map(|text| text.to_string()));
            let wanted = Wanted { names: &names, pointers: pointers.as_slice(), addresses: false };
            assert!(Rules::new(wanted).is_err(), "{name} {pointers:?}");
        };
        check("a*b", None);
        check("", None);
        check("fine", Some("no/slash"));
        let many = vec!["x".to_string(); 257];
        assert_eq!(Rules::new(Wanted { names: &many, ..Wanted::default() }).err(), Some(BadRules::TooMany(257)));
    }

    #[test]
    fn t_077_deep_wide_and_broken_json_is_bounded() {
        let rules = Rules::default();
        let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(rules.json(deep.as_bytes()).expect("JSON").len() < 200);
        let wide = format!("{{{}\"z\":[1]}}", "\"key\":\"value\",".repeat(100_000));
        let shown = rules.json(wide.as_bytes()).expect("JSON");
        assert!(shown.len() < JSON_BYTES_MAX + 200 && shown.ends_with(r#""…":"cut"}"#));
        let _: Value = serde_json::from_str(&shown).expect("what is cut is still JSON");
        let half = rules.json(br#"{"a":1,"\ud800":"ada","b":2}"#).expect("JSON");
        assert_eq!(half, r#"{"a":1,"…":"cut"}"#);
        assert_eq!(rules.bytes(br#"{"note": "Lovelace", "x"#), r#"{"n•••": "L•••", "•••"#);
        assert_eq!(rules.bytes(b"f\xfcr ada@example.com"), "f\u{fffd}r a•••@e•••.com");
    }

    fn check_preview(body: &[u8], lines: &[&str], cut: bool) {
        let seen = Rules::default().preview(body);
        assert_eq!(seen.lines, lines);
        assert_eq!((seen.bytes, seen.cut), (body.len(), cut));
    }

    #[test]
    fn f1_a_preview_is_a_few_masked_lines() {
        check_preview(
            br#"{"a":{"e":"ada@example.com"}}"#,
            &["{", "  \"a\": {", "    \"e\": \"a•••@e•••.com\"", "  }", "}"],
            false,
        );
        check_preview(b"[]", &["[]"], false);
        check_preview(
            b"email=ada%40example.com&note=Lovelace&x=1",
            &["email=a•••@e•••.com", "note=L•••", "x=•••"],
            false,
        );
        check_preview(b"<name>Lovelace</name>\nx", &["<n•••>L•••</n•••>", "•••"], false);
        check_preview(b"\xff\xfe\x00", &[], false);
        check_preview(b"", &[], false);
        let long = serde_json::to_string(&(0..100).collect::<Vec<_>>()).expect("JSON");
        let seen = Rules::default().preview(long.as_bytes());
        assert_eq!((seen.lines.len(), seen.json, seen.cut), (PREVIEW_LINES_MAX, true, true));
        let seen = Rules::default().preview("name \n".repeat(20).as_bytes());
        assert_eq!((seen.lines.len(), seen.cut), (PREVIEW_LINES_MAX, true));
        let seen = Rules::default().preview("-".repeat(100_000).as_bytes());
        assert!(seen.lines[0].chars().count() <= PREVIEW_LINE_CHARS_MAX + 1 && seen.cut);
    }

    const CANARIES: [&str; 6] = [
        "canary.one@example.com",
        "+4915199988877",
        "4012888888881881",
        "DE89370400440532013000",
        "sk_live_canary4eC39HqLyjWDarjt",
        "eyJhbGciOiJIUzI1NiJ9.eyJjYW5hcnkiOiIxIn0.c2lnbmF0dXJlMTIz",
    ];

    proptest! {
        #[test]
        fn t_109_no_canary_is_shown_whatever_surrounds_it(
            before in "(\\PC{0,20}[ \"':=<(\\[,;&]|)", which in 0..CANARIES.len(), after in "([ \"'<>)\\],;&]\\PC{0,20}|)",
        ) {
            let canary = CANARIES[which];
            let text = format!("{before}{canary}{after}");
            let rules = Rules::default();
            prop_assert!(!rules.text(&text).contains(canary), "{}", rules.text(&text));
            prop_assert!(!rules.bytes(text.as_bytes()).contains(canary));
            prop_assert!(!rules.preview(text.as_bytes()).lines.concat().contains(canary));
            let body = serde_json::json!({ "any": text, "list": [canary], canary: 1 }).to_string();
            prop_assert!(!rules.json(body.as_bytes()).expect("JSON").contains(canary));
            prop_assert!(!rules.preview(body.as_bytes()).lines.concat().contains(canary));
        }

        #[test]
        fn p9_masked_json_is_json_without_a_text_of_the_body(texts in proptest::collection::vec("[a-z]{4,12}", 1..20)) {
            let body = serde_json::to_string(&texts).expect("JSON");
            let shown = Rules::default().json(body.as_bytes()).expect("JSON");
            let items: Vec<String> = serde_json::from_str(&shown).expect("JSON");
            prop_assert_eq!(items.len(), texts.len());
            prop_assert!(items.iter().zip(&texts).all(|(item, text)| item != text && item.chars().count() == 4));
        }

        #[test]
        fn h6_no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "[a-f0-9@%+:=\\\\\"'. ()/é•-]{0,200}") {
            let rules = Rules::new(Wanted { addresses: true, ..Wanted::default() }).expect("rules");
            for bytes in [&bytes[..], text.as_bytes()] {
                rules.bytes(bytes);
                rules.preview(bytes);
                rules.text(&String::from_utf8_lossy(bytes));
            }
            rules.text(&format!("token{text}"));
            rules.field("email", &text);
        }
    }
}
