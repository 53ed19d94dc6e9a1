//! A message: what a template of the workspace says for an event, and the channel that carries it.

use crate::expr::{BadExpr, Expr, OUTPUT_BYTES_MAX, Template, Tree};
use crate::scope::Scope;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;

/// How messages get to a partner.
#[derive(Clone, Debug)]
pub enum Channel {
    Mail(Box<MailServer>),
    /// Slack's `chat.postMessage`.
    Slack,
    Request(Box<MessageRequest>),
}

#[derive(Clone, Debug)]
pub struct MailServer {
    /// `smtp://…` or `smtps://…`. Nothing but secrets is computed in it.
    pub address: Template,
    /// Whether `smtp://` may go on in clear.
    pub clear: bool,
    pub from: Mailbox,
}

/// A request that a message is put into. Its templates may read `message`.
#[derive(Clone, Debug)]
pub struct MessageRequest {
    pub url: Template,
    pub body: MessageBody,
}

#[derive(Clone, Debug)]
pub enum MessageBody {
    /// The message itself, as its template writes it.
    Written,
    Form(Vec<(String, Template)>),
    Tree(Tree),
}

/// The files `templates/NAME.*`, read.
#[derive(Clone, Debug, Default)]
pub struct MessageTemplate {
    pub subject: Option<Letter>,
    /// `NAME.txt` or `NAME.md`.
    pub text: Option<Letter>,
    /// `NAME.html`: values are escaped.
    pub html: Option<Letter>,
    /// `NAME.json`: a tree, so that no value can break it.
    pub json: Option<Tree>,
}

/// What a template says for one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub subject: Option<String>,
    pub text: Option<String>,
    pub html: Option<String>,
    pub json: Option<Value>,
}

impl MessageTemplate {
    pub fn write(&self, scope: &Scope) -> Result<Message, BadExpr> {
        let written = |letter: &Option<Letter>| letter.as_ref().map(|letter| letter.text(scope)).transpose();
        Ok(Message {
            subject: written(&self.subject)?,
            text: written(&self.text)?,
            html: self.html.as_ref().map(|letter| letter.html(scope)).transpose()?,
            json: self.json.as_ref().map(|tree| tree.value(scope)).transpose()?,
        })
    }
}

impl Message {
    /// As `message` for the templates of a request. What it does not have is not there.
    pub fn named(&self, to: &str) -> Value {
        let parts = [("subject", &self.subject), ("text", &self.text), ("html", &self.html)];
        let parts = parts.into_iter().filter_map(|(name, part)| Some((name, Value::from(part.clone()?))));
        let parts = parts.chain(self.json.clone().map(|json| ("json", json))).chain([("to", to.into())]);
        Value::Object(parts.map(|(name, part)| (name.to_string(), part)).collect())
    }

    /// Itself, and what kind of text it is.
    pub fn written(self) -> (String, &'static str) {
        match self {
            Message { json: Some(json), .. } => (json.to_string(), "application/json"),
            Message { text: Some(text), .. } => (text, "text/plain; charset=utf-8"),
            Message { html, .. } => (html.unwrap_or_default(), "text/html; charset=utf-8"),
        }
    }
}

/// A text with values in it. Each is an expression of its own, so that an error names it and not the whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letter(pub Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Value(Expr),
}

impl Letter {
    pub fn text(&self, scope: &Scope) -> Result<String, BadExpr> {
        self.with(scope, |value| value)
    }

    pub fn html(&self, scope: &Scope) -> Result<String, BadExpr> {
        self.with(scope, |value| escaped(&value))
    }

    fn with(&self, scope: &Scope, change: impl Fn(String) -> String) -> Result<String, BadExpr> {
        let mut written = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => written.push_str(text),
                Piece::Value(expr) => written.push_str(&change(match expr.value(scope)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                })),
            }
            if written.len() > OUTPUT_BYTES_MAX {
                return Err(BadExpr(format!("its template writes more than {OUTPUT_BYTES_MAX} bytes")));
            }
        }
        Ok(written)
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A name, perhaps, and an address: `Shop <hello@example.com>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    pub name: Option<String>,
    pub local: String,
    pub domain: String,
}

/// Does not repeat the address: it is somebody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a mail address such as `ada@example.com` or `Ada <ada@example.com>`")]
pub struct BadMailbox;

impl FromStr for Mailbox {
    type Err = BadMailbox;
    fn from_str(text: &str) -> Result<Self, BadMailbox> {
        let text = text.trim_matches(' ');
        // A line break would be the end of its header and the beginning of another.
        if text.chars().any(char::is_control) {
            return Err(BadMailbox);
        }
        let (name, address) = match text.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
            Some((name, address)) => (name.trim().trim_matches('"').trim(), address),
            None => ("", text),
        };
        let (local, domain) = address.rsplit_once('@').ok_or(BadMailbox)?;
        let is_label = |label: &str| {
            let fine = |c: char| c.is_alphanumeric() || c == '-';
            !label.is_empty() && label.len() <= 63 && label.chars().all(fine)
        };
        let is_local = |c: char| !c.is_whitespace() && !"<>()[]\\,;:\"@".contains(c);
        let fits = (1..=64).contains(&local.len()) && local.chars().all(is_local) && domain.len() <= 253;
        if !fits || !domain.split('.').all(is_label) || name.contains(['<', '>']) {
            return Err(BadMailbox);
        }
        let name = (!name.is_empty()).then(|| name.to_string());
        Ok(Mailbox { name, local: local.to_string(), domain: domain.to_string() })
    }
}

impl Mailbox {
    pub fn address(&self) -> String {
        format!("{}@{}", self.local, self.domain)
    }
}

impl fmt::Display for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} <{}>", self.address()),
            None => f.write_str(&self.address()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn letter(expr: &str) -> Letter {
        Letter(vec![Piece::Text("Hello ".into()), Piece::Value(Expr::parse(expr).expect("an expression"))])
    }

    #[test]
    fn c8_values_are_escaped_in_html_and_nowhere_else() {
        let scope = Scope::from_iter([("body", json!({"name": "<b>Ada</b> & 'co'", "n": 7}))]);
        let template = MessageTemplate {
            text: Some(letter("body.name")),
            html: Some(letter("body.name")),
            json: Some(Tree::Map(vec![("name".into(), Tree::text("{{ body.name }}").expect("a tree"))])),
            subject: Some(letter("body.n")),
        };
        let message = template.write(&scope).expect("written");
        assert_eq!(message.text.as_deref(), Some("Hello <b>Ada</b> & 'co'"));
        assert_eq!(message.html.as_deref(), Some("Hello &lt;b&gt;Ada&lt;/b&gt; &amp; &#39;co&#39;"));
        assert_eq!(message.json, Some(json!({"name": "<b>Ada</b> & 'co'"})));
        assert_eq!(message.subject.as_deref(), Some("Hello 7"));
    }

    #[test]
    fn c8_a_value_that_is_not_there_is_named_and_not_the_whole_letter() {
        let said = letter("body.gone").text(&Scope::from_iter([("body", json!({}))])).expect_err("missing");
        assert!(said.0.contains("body.gone") && !said.0.contains("Hello"), "{said}");
    }

    #[test]
    fn c8_a_mailbox_is_an_address_with_or_without_a_name() {
        let check = |text: &str, name: Option<&str>, address: &str| {
            let read: Mailbox = text.parse().expect(text);
            assert_eq!((read.name.as_deref(), read.address().as_str()), (name, address), "{text}");
        };
        check("ada@example.com", None, "ada@example.com");
        check(" Ada Byron <ada+x@example.com> ", Some("Ada Byron"), "ada+x@example.com");
        check("\"Byron, Ada\" <ada@localhost>", Some("Byron, Ada"), "ada@localhost");
        check("ada@bücher.example", None, "ada@bücher.example");
        for bad in [
            "",
            "ada",
            "@example.com",
            "ada@",
            "ada@example..com",
            "a b@example.com",
            "ada@example.com, bob@example.com",
            "ada@example.com\r\nBcc: bob@example.com",
            "Ada\r\nBcc: x@example.com <ada@example.com>",
            "Ada <ada@example.com>\n",
            "<<ada@example.com>",
            "ada@exam ple.com",
            "a\u{0}@example.com",
        ] {
            assert_eq!(bad.parse::<Mailbox>(), Err(BadMailbox), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_mailbox_can_hold_a_line_break(text in "\\PC{0,30}[\\r\\n]?\\PC{0,30}") {
            if let Ok(mailbox) = text.parse::<Mailbox>() {
                prop_assert!(!mailbox.to_string().chars().any(char::is_control));
            }
        }
    }
}
