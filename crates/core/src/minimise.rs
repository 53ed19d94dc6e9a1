//! Data minimisation: what of a delivery may be written down. Applied before anything is stored or logged.
//!
//! A pointer stands for the value that it names and for everything below. For each value the strictest rule wins:
//! 1. `drop` removes it, also from inside something that is kept;
//! 2. `hash` puts a keyed hash in the place of each text, number and boolean (so `hash` keeps the field, unreadable);
//! 3. `keep`, where it is given, lets through only what it names; where it is not given, everything else stays.
//!
//! What stays is copied as it came: digits, order, fields that are sent twice. Items that go leave no hole; rules count
//! items as they came. In a form a pointer has one part, the name of a field. A body that is neither JSON nor a form is
//! refused when there are rules: nobody could say that the named field is not in it.

use crate::form;
use crate::key::Pepper;
use crate::payload;
use crate::pointer::{BadPointer, Pointer};
use crate::raw::{self, Kind};
use aws_lc_rs::hmac;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde_json::value::RawValue;
use std::fmt;
use std::ops::ControlFlow;

pub const RULES_MAX: usize = 256;
/// Below this depth a hashed value is hashed as one text.
const HASH_DEPTH_MAX: usize = 64;

/// What a source says about its deliveries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// `None`: everything that is not dropped. An empty list: nothing.
    pub keep: Option<&'a [String]>,
    pub drop: &'a [String],
    pub hash: &'a [String],
    /// `None`: the headers that are always kept.
    pub headers: Option<&'a [String]>,
}

/// Checked rules.
#[derive(Clone, Debug, Default)]
pub struct Minimise {
    rules: Vec<Rule>,
    keeps_only_named: bool,
    headers: Option<Vec<String>>,
}

#[derive(Clone, Debug)]
struct Rule {
    act: Act,
    pointer: Pointer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Keep,
    Drop,
    Hash,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    #[error("{list}: {why}")]
    Pointer { list: &'static str, why: BadPointer },
    #[error("`{dropped}` is dropped, so `{other}` under `{list}` can never have an effect; remove one of them")]
    Contradiction { dropped: Pointer, other: Pointer, list: &'static str },
    #[error("{0} rules are more than {RULES_MAX}; name a whole part such as `/customer` instead of each field in it")]
    TooMany(usize),
    #[error("`{0}` is not a header name")]
    HeaderName(String),
    #[error("header `{0}` can authenticate somebody and is never kept; remove it from the list")]
    Credential(String),
}

/// Why a body was refused. It names no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMinimised {
    #[error("the body is neither JSON nor a form, so the fields that must not be kept cannot be found in it")]
    NotReadable,
    #[error("a field name in the body spells half of a character and cannot be compared with the rules")]
    BadName,
}

/// Makes equal values recognisable and none readable: the same value gives the same hash, for as long as the key lives.
#[derive(Clone)]
pub struct HashKey(hmac::Key);

impl HashKey {
    pub fn new(secret: &[u8; 32]) -> Self {
        HashKey(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// A key of its own for each store: nobody else's hashes can be compared with ours.
    pub fn of_store(pepper: &Pepper) -> Self {
        HashKey::new(&pepper.mac("clinch minimise 1", &[]))
    }

    /// `h_` and 32 digits. A number hashes as its digits do, so that `42` and `"42"` still meet.
    pub fn hash(&self, value: &[u8]) -> String {
        let mut mac = hmac::Context::with_key(&self.0);
        mac.update(b"clinch hash 1\0");
        mac.update(value);
        format!("h_{}", HEXLOWER.encode(&mac.sign().as_ref()[..16]))
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(***)")
    }
}

impl Minimise {
    pub fn new(wanted: Wanted<'_>) -> Result<Self, BadRules> {
        let lists = [
            ("keep", Act::Keep, wanted.keep.unwrap_or_default()),
            ("drop", Act::Drop, wanted.drop),
            ("hash", Act::Hash, wanted.hash),
        ];
        let mut rules = Vec::new();
        for (list, act, pointers) in lists {
            for text in pointers {
                let pointer = text.parse().map_err(|why| BadRules::Pointer { list, why })?;
                rules.push(Rule { act, pointer });
            }
        }
        if rules.len() > RULES_MAX {
            return Err(BadRules::TooMany(rules.len()));
        }
        for dropped in rules.iter().filter(|rule| rule.act == Act::Drop) {
            let idle = rules.iter().find(|rule| rule.act != Act::Drop && dropped.pointer.covers(&rule.pointer));
            if let Some(idle) = idle {
                return Err(BadRules::Contradiction {
                    dropped: dropped.pointer.clone(),
                    other: idle.pointer.clone(),
                    list: if idle.act == Act::Keep { "keep" } else { "hash" },
                });
            }
        }
        let headers = wanted.headers.map(|names| names.iter().map(|name| header_name(name)).collect()).transpose()?;
        Ok(Minimise { rules, keeps_only_named: wanted.keep.is_some(), headers })
    }

    /// Whether a text at this place of a body stays readable. What is taken out of a body before it is minimised, such as a
    /// key, must not be written down more readably than the body itself.
    pub fn shows(&self, pointer: &str) -> bool {
        let mut level = Level::root(self);
        for name in pointer.split('/').skip(1) {
            match level.below(&name.replace("~1", "/").replace("~0", "~")) {
                Some(below) => level = below,
                None => return false,
            }
        }
        level.fate == Fate::Kept
    }

    /// Whether a body may come out otherwise than it went in.
    pub fn changes_bodies(&self) -> bool {
        self.keeps_only_named || !self.rules.is_empty()
    }

    /// The name is in lower case.
    pub fn keeps_header(&self, name: &str) -> bool {
        match &self.headers {
            Some(names) => names.iter().any(|kept| kept == name),
            None => payload::is_kept(name),
        }
    }

    /// What may be written down of a body.
    pub fn body(&self, body: &Bytes, content_type: Option<&str>, key: &HashKey) -> Result<Bytes, NotMinimised> {
        if body.is_empty() || !self.changes_bodies() {
            return Ok(body.clone());
        }
        let root = Level::root(self);
        let mut out = Vec::with_capacity(body.len());
        if content_type.is_some_and(form::is_form) {
            root.write_form(body, key, &mut out);
            return Ok(out.into());
        }
        let whole = raw::parse(body).ok_or(NotMinimised::NotReadable)?;
        match raw::kind(whole) {
            Kind::Object | Kind::List => root.write_container(whole, key, &mut out)?,
            _ if root.fate == Fate::Kept => out.extend_from_slice(whole.get().as_bytes()),
            _ => out.extend_from_slice(b"null"),
        }
        Ok(out.into())
    }
}

fn header_name(text: &str) -> Result<String, BadRules> {
    let name = text.to_ascii_lowercase();
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) {
        return Err(BadRules::HeaderName(text.chars().take(80).collect()));
    }
    let credential =
        ["authorization", "cookie", "signature", "token", "secret", "password", "api-key", "apikey", "hmac"];
    if credential.iter().any(|part| name.contains(part)) {
        return Err(BadRules::Credential(name));
    }
    Ok(name)
}

/// What becomes of a value, unless a rule further below says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Gone,
    Kept,
    Hashed,
}

/// A value of a body, with the rules that look into it.
struct Level<'r> {
    fate: Fate,
    /// How many parts of each rule's pointer are matched so far.
    depth: usize,
    rules: Vec<&'r Rule>,
}

impl<'r> Level<'r> {
    fn root(minimise: &'r Minimise) -> Level<'r> {
        let fate = if minimise.keeps_only_named { Fate::Gone } else { Fate::Kept };
        Level { fate, depth: 0, rules: minimise.rules.iter().collect() }
    }

    /// The field or item `name` of this value; `None` when it is gone and nothing below can be wanted.
    fn below(&self, name: &str) -> Option<Level<'r>> {
        let mut fate = self.fate;
        let mut rules = Vec::new();
        for rule in &self.rules {
            let segments = rule.pointer.segments();
            if !segments[self.depth].matches(name) {
                continue;
            }
            if segments.len() > self.depth + 1 {
                rules.push(*rule);
                continue;
            }
            fate = match (rule.act, fate) {
                (Act::Drop, _) => return None,
                (Act::Hash, _) | (Act::Keep, Fate::Hashed) => Fate::Hashed,
                (Act::Keep, _) => Fate::Kept,
            };
        }
        let wanted = fate != Fate::Gone || rules.iter().any(|rule| rule.act != Act::Drop);
        wanted.then_some(Level { fate, depth: self.depth + 1, rules })
    }

    /// Writes what stays of a value; false when nothing does.
    fn write(&self, value: &RawValue, key: &HashKey, out: &mut Vec<u8>) -> Result<bool, NotMinimised> {
        let looked_into = !self.rules.is_empty() || (self.fate == Fate::Hashed && self.depth < HASH_DEPTH_MAX);
        match (raw::kind(value), self.fate) {
            (Kind::Object | Kind::List, _) if looked_into => self.write_container(value, key, out)?,
            (_, Fate::Gone) => return Ok(false),
            (_, Fate::Kept) => out.extend_from_slice(value.get().as_bytes()),
            (Kind::Word, Fate::Hashed) if value.get() == "null" => out.extend_from_slice(b"null"),
            (_, Fate::Hashed) => {
                let text = raw::text(value);
                let hash = key.hash(text.as_deref().unwrap_or(value.get()).as_bytes());
                out.extend_from_slice(format!("\"{hash}\"").as_bytes());
            }
        }
        Ok(true)
    }

    fn write_container(&self, value: &RawValue, key: &HashKey, out: &mut Vec<u8>) -> Result<(), NotMinimised> {
        let named = raw::kind(value) == Kind::Object;
        out.push(if named { b'{' } else { b'[' });
        let start = out.len();
        let mut failed = Ok(());
        raw::each(value, |name, value| {
            let Some(level) = self.below(name) else { return ControlFlow::Continue(()) };
            let before = out.len();
            if before > start {
                out.push(b',');
            }
            if named {
                serde_json::to_writer(&mut *out, name).expect("a text is written to memory");
                out.push(b':');
            }
            match level.write(value, key, out) {
                Ok(true) => {}
                Ok(false) => out.truncate(before),
                Err(why) => {
                    failed = Err(why);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })
        .map_err(|raw::BadName| NotMinimised::BadName)?;
        out.push(if named { b'}' } else { b']' });
        failed
    }

    fn write_form(&self, body: &[u8], key: &HashKey, out: &mut Vec<u8>) {
        for field in form::raw_fields(body) {
            let fate = self.below(&field.name()).map_or(Fate::Gone, |level| level.fate);
            if fate == Fate::Gone {
                continue;
            }
            if !out.is_empty() {
                out.push(b'&');
            }
            match fate {
                Fate::Hashed => {
                    out.extend_from_slice(field.raw_name);
                    out.push(b'=');
                    out.extend_from_slice(key.hash(&field.value()).as_bytes());
                }
                Fate::Kept | Fate::Gone => out.extend_from_slice(field.raw),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn key() -> HashKey {
        HashKey::new(&[7; 32])
    }

    /// `keep /a /b; drop /c; hash /d`
    fn rules(text: &str) -> Result<Minimise, BadRules> {
        let (mut keep, mut drop, mut hash, mut headers) = (None, Vec::new(), Vec::new(), None);
        for list in text.split(';').map(str::trim).filter(|list| !list.is_empty()) {
            let (name, rest) = list.split_once(' ').unwrap_or((list, ""));
            let items: Vec<String> = rest.split_whitespace().map(str::to_string).collect();
            match name {
                "keep" => keep = Some(items),
                "drop" => drop = items,
                "hash" => hash = items,
                "headers" => headers = Some(items),
                other => panic!("{other}"),
            }
        }
        Minimise::new(Wanted { keep: keep.as_deref(), drop: &drop, hash: &hash, headers: headers.as_deref() })
    }

    fn check(wanted: &str, body: &str, stays: &str) {
        let kept = rules(wanted).expect(wanted).body(&Bytes::copy_from_slice(body.as_bytes()), None, &key());
        let kept = kept.expect(body);
        assert_eq!(std::str::from_utf8(&kept).expect("UTF-8"), stays.replace("h()", &key().hash(b"ada")), "{wanted}");
    }

    const FORM: Option<&str> = Some("application/x-www-form-urlencoded");

    #[test]
    fn a5_only_what_is_named_is_kept() {
        let body = r#"{"id":7,"customer":{"email":"ada","plan":"pro"},"items":[{"id":1,"note":"x"},{"id":2},3]}"#;
        check("keep /id", body, r#"{"id":7}"#);
        check("keep /customer", body, r#"{"customer":{"email":"ada","plan":"pro"}}"#);
        check("keep /customer/plan /items/*/id", body, r#"{"customer":{"plan":"pro"},"items":[{"id":1},{"id":2}]}"#);
        check("keep /items/1", body, r#"{"items":[{"id":2}]}"#);
        check("keep /*/plan", body, r#"{"customer":{"plan":"pro"},"items":[]}"#);
        check("keep /nothing", body, "{}");
        check("keep", body, "{}");
        check("keep /id/deeper", body, "{}");
        check("keep /a", "\"ada\"", "null");
        check("drop /a", "\"ada\"", "\"ada\"");
        check("keep /*/id", r#"[{"id":1,"x":2},"ada"]"#, r#"[{"id":1}]"#);
    }

    #[test]
    fn a5_what_is_dropped_goes_also_from_inside_what_is_kept() {
        let body = r#"{"a":{"b":1,"c":{"d":2,"e":3}},"f":[1,2,3]}"#;
        check("drop /a/c", body, r#"{"a":{"b":1},"f":[1,2,3]}"#);
        check("keep /a; drop /a/c/d", body, r#"{"a":{"b":1,"c":{"e":3}}}"#);
        check("drop /f/0", body, r#"{"a":{"b":1,"c":{"d":2,"e":3}},"f":[2,3]}"#);
        check("drop /*", body, "{}");
        check("keep /f; drop /a/b", body, r#"{"f":[1,2,3]}"#);
        check(
            "hash /a; drop /a/b /a/c/d /a/c/e",
            r#"{"a":{"b":1,"c":{"d":2},"n":"ada"}}"#,
            r#"{"a":{"c":{},"n":"h()"}}"#,
        );
    }

    #[test]
    fn a5_what_is_hashed_is_kept_unreadable_and_still_meets_its_equals() {
        check("hash /e", r#"{"e":"ada","x":1}"#, r#"{"e":"h()","x":1}"#);
        check("keep /x; hash /e", r#"{"e":"ada","x":1,"y":2}"#, r#"{"e":"h()","x":1}"#);
        check("keep /e; hash /e", r#"{"e":"\u0061da"}"#, r#"{"e":"h()"}"#);
        check("hash /c", r#"{"c":{"e":"ada","l":["ada",null]}}"#, r#"{"c":{"e":"h()","l":["h()",null]}}"#);
        check("keep /c/e; hash /c", r#"{"c":{"e":"ada"}}"#, r#"{"c":{"e":"h()"}}"#);
        let both = rules("hash /a /b").expect("rules");
        let body = both.body(&Bytes::from_static(br#"{"a":42,"b":"42"}"#), None, &key()).expect("JSON");
        let value: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(value["a"], value["b"]);
        assert_ne!(HashKey::new(&[8; 32]).hash(b"ada"), key().hash(b"ada"));
    }

    #[test]
    fn a5_it_is_known_beforehand_which_fields_stay_readable() {
        let check = |wanted: &str, pointer: &str, shown: bool| {
            assert_eq!(rules(wanted).expect(wanted).shows(pointer), shown, "{wanted}: {pointer}");
        };
        check("", "/a", true);
        check("drop /a", "/a/b", false);
        check("drop /a/b", "/a/c", true);
        check("hash /a", "/a", false);
        check("keep /a", "/a/b", true);
        check("keep /a", "/b", false);
        check("keep /items/*/id", "/items/0/id", true);
        check("drop /a~1b", "/a~1b", false);
    }

    #[test]
    fn a5_what_stays_is_not_damaged() {
        let odd = r#"{ "n":90071992547409931234567890, "f":1.0, "e":1e400, "a" : [ 1,  2 ], "n":2, "t":"\u00e9\/" }"#;
        check(
            "drop /x",
            odd,
            r#"{"n":90071992547409931234567890,"f":1.0,"e":1e400,"a":[ 1,  2 ],"n":2,"t":"\u00e9\/"}"#,
        );
        check("drop /n", odd, r#"{"f":1.0,"e":1e400,"a":[ 1,  2 ],"t":"\u00e9\/"}"#);
        check("keep /\u{e9}~1~0", r#"{"\u00e9/~":1,"b":2}"#, "{\"\u{e9}/~\":1}");
        check("drop /email", r#"{"\u0065mail":"ada","email":"ada","id":1}"#, r#"{"id":1}"#);
        check("", "  as it came ", "  as it came ");
    }

    #[test]
    fn a5_a_form_is_minimised_by_its_fields() {
        let check = |wanted: &str, body: &'static str, stays: &str| {
            let kept = rules(wanted).expect(wanted).body(&Bytes::from_static(body.as_bytes()), FORM, &key());
            assert_eq!(kept, Ok(Bytes::from(stays.replace("h()", &key().hash(b"ada")))), "{wanted}");
        };
        check("keep /a", "a=1&b=2&a=%203", "a=1&a=%203");
        check("drop /email", "e%6dail=ada&x=1", "x=1");
        check("hash /email; keep /x", "email=%61da&x=1&y", "email=h()&x=1");
        check("keep /a/b", "a=1", "");
    }

    #[test]
    fn a5_a_body_that_cannot_be_looked_into_is_refused_when_there_are_rules() {
        let refused = |body: &'static [u8], why| {
            for wanted in ["keep /a", "drop /a", "hash /a"] {
                let rules = rules(wanted).expect(wanted);
                assert_eq!(rules.body(&Bytes::from_static(body), Some("text/plain"), &key()), Err(why), "{wanted}");
            }
        };
        refused(b"email: ada", NotMinimised::NotReadable);
        refused(b"\xff\xfe", NotMinimised::NotReadable);
        let why = rules("keep /a").expect("rules").body(&Bytes::from_static(br#"{"\ud800":1}"#), None, &key());
        assert_eq!(why, Err(NotMinimised::BadName));
        let none = rules("").expect("rules");
        assert_eq!(none.body(&Bytes::from_static(b"\xff"), None, &key()), Ok(Bytes::from_static(b"\xff")));
        let empty = rules("keep /a").expect("rules").body(&Bytes::new(), None, &key());
        assert_eq!(empty, Ok(Bytes::new()), "nothing is in it");
    }

    #[test]
    fn a5_rules_that_contradict_each_other_are_refused_at_once() {
        let check = |wanted: &str, hint: &str| {
            let said = rules(wanted).expect_err(wanted).to_string();
            assert!(said.contains(hint), "{wanted}: {said}");
        };
        check("keep /a/b; drop /a", "`/a/b` under `keep`");
        check("hash /a; drop /a", "`/a` under `hash`");
        check("hash /a/0; drop /*", "can never have an effect");
        check("keep a", "keep: `a`");
        check("headers Authorization", "never kept");
        check("headers x-hub-signature-256", "never kept");
        check("headers a:b", "not a header name");
        check(&format!("keep{}", " /a".repeat(RULES_MAX + 1)), "more than 256");
    }

    #[test]
    fn a5_headers_are_kept_by_name() {
        let own = rules("headers X-Shop content-type").expect("rules");
        assert!(own.keeps_header("x-shop") && own.keeps_header("content-type") && !own.keeps_header("user-agent"));
        let usual = rules("keep /a").expect("rules");
        assert!(usual.keeps_header("user-agent") && !usual.keeps_header("authorization"));
    }

    #[test]
    fn t_077_deep_bodies_cost_no_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for wanted in ["keep /a/0", "hash /a", "drop /b"] {
            let rules = rules(wanted).expect(wanted);
            assert!(rules.body(&Bytes::from(deep.clone()), None, &key()).is_ok(), "{wanted}");
        }
    }

    fn bodies() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<i64>().prop_map(|n| json!(n)), "[a-c]{0,3}".prop_map(Value::from)];
        leaf.prop_recursive(4, 40, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-c]", inner), 0..4).prop_map(|f| Value::Object(f.into_iter().collect())),
            ]
        })
    }

    fn lookup<'a>(value: &'a Value, path: &[String]) -> Vec<&'a Value> {
        let [first, rest @ ..] = path else { return vec![value] };
        let next: Vec<&Value> = match value {
            Value::Object(fields) => {
                fields.iter().filter(|(n, _)| first == "*" || *n == first).map(|(_, v)| v).collect()
            }
            Value::Array(items) => items
                .iter()
                .enumerate()
                .filter(|(n, _)| first == "*" || n.to_string() == *first)
                .map(|(_, v)| v)
                .collect(),
            _ => vec![],
        };
        next.into_iter().flat_map(|value| lookup(value, rest)).collect()
    }

    proptest! {
        #[test]
        fn a5_nothing_that_is_dropped_stays_and_nothing_else_goes(
            body in bodies(), path in proptest::collection::vec("[a-c*]", 1..4),
        ) {
            let pointer = format!("/{}", path.join("/"));
            let bytes = Bytes::from(body.to_string());
            let dropped = rules(&format!("drop {pointer}")).expect("rules").body(&bytes, None, &key()).expect("JSON");
            let dropped: Value = serde_json::from_slice(&dropped).expect("still JSON");
            prop_assert_eq!(lookup(&dropped, &path), Vec::<&Value>::new());
            let kept = rules(&format!("keep {pointer}")).expect("rules").body(&bytes, None, &key()).expect("JSON");
            let kept: Value = serde_json::from_slice(&kept).expect("still JSON");
            prop_assert_eq!(lookup(&kept, &path), lookup(&body, &path));
            if lookup(&body, &path).is_empty() {
                prop_assert_eq!(dropped, body);
            }
        }

        #[test]
        fn a5_no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..60), form in any::<bool>()) {
            let rules = rules("keep /a/*; drop /a/b; hash /c").expect("rules");
            let _ = rules.body(&Bytes::from(body), form.then_some("application/x-www-form-urlencoded"), &key());
        }
    }
}
