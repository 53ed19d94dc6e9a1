//! The values of the dialect: how a scalar of YAML is read as what it stands for. Used to check a file and to read it,
//! so that both agree.

use super::problem::{Code, Problem, Span, printable, shown};
use super::spelling::{in_templates, in_whole_templates, nesting, spelt_out, templates};
use super::yaml::{Node, Value};
use crate::egress::Allowed;
use crate::expr::{BadExpr, Expr, Template, Tree};
use crate::flow::{BadTypePattern, TypePattern};
use crate::integration::HEADERS_NOT_YOURS;
use crate::key::{KeyPart, KeyRule};
use crate::limit::Rate;
use crate::message::{BadMailbox, Mailbox};
use crate::phone::Country;
use crate::pointer::Pointer;
use crate::policy::{self, Window};
use crate::schedule::{CronLine, Zone};
use crate::script::Runtime;
use crate::slo::Target;
use crate::time::{BadDuration, Timestamp, parse_duration};
use jiff::civil::Time;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// A reader of values takes the node and the name of its key, for the message.
pub(super) type Read<T> = Result<T, Box<Problem>>;

pub const NAME_CHARS_MAX: usize = 64;
pub const KEY_PARTS_MAX: usize = 16;
pub const EXPR_BYTES_MAX: usize = 1 << 10;
pub const EXPR_NESTING_MAX: usize = 32;
const PATH_BYTES_MAX: usize = 1024;

pub(super) fn bad(code: Code, node: &Node, message: impl Into<String>) -> Problem {
    Problem::error(code, node.head(), message)
}

pub(super) fn wrong_type(node: &Node, name: &str, needed: &str) -> Problem {
    bad(Code::WrongType, node, format!("`{name}` must be {needed}, not {}", node.kind()))
        .label(format!("this is {}", node.kind()))
}

pub(super) fn text<'n>(node: &'n Node, name: &str) -> Read<&'n str> {
    node.text().ok_or_else(|| Box::new(wrong_type(node, name, "a text")))
}

/// A name of a queue, a flow, a worker or a step.
pub(super) fn name(node: &Node, name: &str) -> Read<String> {
    let written = text(node, name)?;
    match is_name(written) {
        true => Ok(written.to_string()),
        false => Err(bad_name(node, written)),
    }
}

/// A name that is the key of a map.
pub(super) fn chosen_name(written: &str, span: Span) -> Read<()> {
    if is_name(written) { Ok(()) } else { Err(not_a_name(written, span)) }
}

fn is_name(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= NAME_CHARS_MAX && text.bytes().all(fine) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn bad_name(node: &Node, written: &str) -> Box<Problem> {
    not_a_name(written, node.head())
}

fn not_a_name(written: &str, span: Span) -> Box<Problem> {
    let said = format!("`{}` is not a name", shown(written));
    let help = format!("use letters, digits, `-`, `_` and `.`, {NAME_CHARS_MAX} at most, a letter or digit first");
    Box::new(Problem::error(Code::BadName, span, said).help(help))
}

/// The name after `kv:`, `dlq:` or `step:`.
pub(super) fn prefixed(node: &Node, name: &str, prefix: &str) -> Read<String> {
    let written = text(node, name)?;
    let Some(rest) = written.strip_prefix(prefix) else {
        let said = format!("`{name}` must begin with `{prefix}`");
        let help =
            if is_name(written) { format!("write `{prefix}{written}`") } else { format!("write `{prefix}NAME`") };
        return Err(Box::new(bad(Code::BadName, node, said).help(help)));
    };
    if is_name(rest) { Ok(rest.to_string()) } else { Err(bad_name(node, rest)) }
}

pub(super) fn bool(node: &Node, name: &str) -> Read<bool> {
    match node.plain() {
        Some("true" | "True" | "TRUE") => Ok(true),
        Some("false" | "False" | "FALSE") => Ok(false),
        _ => {
            let problem = wrong_type(node, name, "true or false");
            let meant = match node.text().map(str::to_ascii_lowercase).as_deref() {
                Some("yes" | "on" | "y" | "true") => Some("true"),
                Some("no" | "off" | "n" | "false") => Some("false"),
                _ => None,
            };
            Err(Box::new(match meant {
                Some(meant) => problem.help(format!("write `{name}: {meant}`, without quotes")),
                None => problem,
            }))
        }
    }
}

pub(super) fn int(node: &Node, name: &str) -> Read<i64> {
    let number = node.plain().and_then(parse_int);
    match number {
        Some(number) => i64::try_from(number).map_err(|_| {
            let said = format!("`{name}` is a number that is too large");
            Box::new(bad(Code::OutOfRange, node, said))
        }),
        None => Err(Box::new(unquoted(wrong_type(node, name, "a whole number"), node, name))),
    }
}

/// Any whole number in the spellings of YAML 1.2; one with more digits than counted is only very large.
fn parse_int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (digits, radix) = match digits.get(..2) {
        Some("0x") if !negative => (&digits[2..], 16),
        Some("0o") if !negative => (&digits[2..], 8),
        _ => (digits, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).unwrap_or(i128::MAX);
    Some(if negative { -number } else { number })
}

/// The range is that of the dialect.
pub(super) fn priority(node: &Node, name: &str) -> Read<i16> {
    i16::try_from(int(node, name)?).map_err(|_| Box::new(wrong_type(node, name, "a number between -100 and 100")))
}

pub(super) fn number(node: &Node, name: &str) -> Read<f64> {
    let number = node.plain().and_then(parse_number);
    number.ok_or_else(|| Box::new(unquoted(wrong_type(node, name, "a number"), node, name)))
}

fn parse_number(text: &str) -> Option<f64> {
    let looks = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    text.parse::<f64>().ok().filter(|number| looks && number.is_finite())
}

/// A number in quotes is a text; say so, for it is easily overlooked.
fn unquoted(problem: Problem, node: &Node, name: &str) -> Problem {
    match &node.value {
        Value::Scalar { text, quoted: true } if parse_number(text).is_some() => {
            problem.help(format!("write `{name}: {}`, without quotes", text.trim()))
        }
        _ => problem,
    }
}

pub(super) fn duration(node: &Node, name: &str) -> Read<Duration> {
    let written = text(node, name)?;
    parse_duration(written).map_err(|error| {
        let written = shown(written);
        let problem = |said: String| bad(Code::BadDuration, node, said);
        Box::new(match error {
            BadDuration::NoUnit(number) => problem(format!("`{name}` needs a unit"))
                .label(format!("{} what?", shown(&number)))
                .help(format!("write `{0}s` for seconds or `{0}ms` for milliseconds", shown(&number))),
            BadDuration::NotADuration(_) => problem(format!("`{written}` is not a duration"))
                .help("write a number and a unit: 250ms, 30s, 5m, 48h, 7d"),
            BadDuration::TooLong(_) => {
                problem(format!("`{written}` is longer than clinch counts")).help("the most is 3650d")
            }
        })
    })
}

/// Bytes: `512B`, `256KiB`, `2MB`.
pub(super) fn size(node: &Node, name: &str) -> Read<usize> {
    let written = text(node, name)?.trim();
    let digits = written.find(|c: char| !c.is_ascii_digit()).unwrap_or(written.len());
    let (number, unit) = written.split_at(digits);
    let problem = |said: String| bad(Code::BadSize, node, said);
    let factor: u64 = match unit.trim_start() {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        "" if !number.is_empty() => {
            let said = problem(format!("`{name}` needs a unit")).label(format!("{} what?", shown(number)));
            return Err(Box::new(said.help(format!("write `{0}B` for bytes or `{0}KiB`", shown(number)))));
        }
        _ => 0,
    };
    if factor == 0 || number.is_empty() {
        let said = problem(format!("`{}` is not a size", shown(written)));
        return Err(Box::new(said.help("write a whole number and a unit: 512B, 256KiB, 2MB")));
    }
    // More than can be counted is more than any bound.
    let bytes = number.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(factor);
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

pub(super) fn address(node: &Node, name: &str) -> Read<SocketAddr> {
    let written = text(node, name)?;
    written.parse().map_err(|_| {
        let port = written.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok()).unwrap_or("7400");
        let said = format!("`{}` is not an address to listen on", shown(written));
        let help = format!("write an IP address and a port, such as 127.0.0.1:{port} or [::1]:{port}");
        Box::new(bad(Code::BadAddress, node, said).help(help))
    })
}

/// The path of a route: literal, matched whole.
pub(super) fn path(node: &Node, name: &str) -> Read<String> {
    let written = text(node, name)?;
    let problem = |why: &str| bad(Code::BadPath, node, format!("`{}` {why}", shown(written)));
    let fine = |b: u8| (0x21..=0x7e).contains(&b);
    Err(Box::new(if !written.starts_with('/') {
        problem("does not begin with `/`").help(format!("write `/{}`", shown(written)))
    } else if written.contains(['?', '#']) {
        problem("has a query or a fragment").help("a route is matched by its path alone; end it before the `?` or `#`")
    } else if written.contains(['{', '}', '*']) {
        problem("looks like a pattern").help("a path is matched whole; write one trigger for each path")
    } else if !written.bytes().all(fine) {
        problem("has characters that a path does not have").help("percent-encode them, as in `/a%20b`")
    } else if written.len() > PATH_BYTES_MAX {
        problem("is too long").help(format!("the most is {PATH_BYTES_MAX} characters"))
    } else {
        return Ok(written.to_string());
    }))
}

pub(super) fn key_part(node: &Node, name: &str) -> Read<KeyPart> {
    let written = text(node, name)?;
    written.parse().map_err(|_| {
        let said = format!("`{}` does not say where to look for the key", shown(written));
        Box::new(bad(Code::BadKeyRule, node, said).help(key_part_meant(written)))
    })
}

fn key_part_meant(written: &str) -> String {
    let rest = written.strip_prefix("request.").unwrap_or(written);
    let meant = match rest.split_once(['.', ':']) {
        Some(("headers" | "header", name)) => format!("header:{name}"),
        Some(("body", path)) => format!("body:/{}", path.replace('.', "/")),
        Some(_) => String::new(),
        None => format!("header:{rest}"),
    };
    match meant.parse::<KeyPart>() {
        Ok(_) => format!("did you mean `{}`?", shown(&meant)),
        Err(_) => "write `header:NAME` or `body:/json/pointer`".to_string(),
    }
}

/// One part, or a list of parts that are hashed together.
pub(super) fn key_rule(node: &Node, name: &str) -> Read<KeyRule> {
    match &node.value {
        Value::List(items) if items.is_empty() || items.len() > KEY_PARTS_MAX => {
            let said = format!("`{name}` must have 1 to {KEY_PARTS_MAX} parts, not {}", items.len());
            Err(Box::new(bad(Code::OutOfRange, node, said)))
        }
        Value::List(items) => {
            let parts = items.iter().map(|item| rule_part(item, name));
            Ok(KeyRule::Tuple(parts.collect::<Result<_, _>>()?))
        }
        _ => Ok(KeyRule::One(rule_part(node, name)?)),
    }
}

/// A place, or `{{ … }}` that reads the body.
pub(super) fn rule_part(node: &Node, name: &str) -> Read<KeyPart> {
    if !text(node, name)?.contains("{{") {
        return key_part(node, name);
    }
    let expr = expr(node, name)?;
    match expr.roots().into_iter().find(|root| root != "body") {
        None => Ok(KeyPart::Computed(expr)),
        Some(root) => {
            let said =
                format!("`{name}` reads `{}`, and only the body is there when a key is looked for", shown(&root));
            Err(Box::new(bad(Code::BadExpression, node, said).help("read `body`; for a header write `header:NAME`")))
        }
    }
}

/// What an expression or a template may be about.
pub(super) const ROOTS: &[&str] =
    &["body", "request", "headers", "key", "event", "job", "step", "steps", "item", "secrets"];

/// What a rule may be about that is asked whatever became of the steps.
pub(super) const EVENT_ROOTS: &[&str] = &["body", "request", "headers", "key", "event"];

/// What a rule that reads an answer may also use.
pub(super) const ANSWER_ROOTS: &[&str] =
    &["answer", "body", "request", "headers", "key", "event", "job", "step", "steps", "item", "secrets"];

/// What a request that carries a message may also use.
pub(super) const MESSAGE_ROOTS: &[&str] =
    &["message", "body", "request", "headers", "key", "event", "job", "step", "steps", "item", "secrets"];

/// What a message may be about: no secrets.
pub(super) const TEMPLATE_ROOTS: &[&str] =
    &["with", "body", "request", "headers", "key", "event", "job", "step", "steps", "item"];

/// What a template reads.
pub(super) struct Names {
    pub roots: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

impl Names {
    pub fn of(template: &Template) -> Self {
        Names { roots: template.roots(), secrets: template.secrets() }
    }

    pub fn of_expr(expr: &Expr) -> Self {
        let template = Template::parse(&format!("{{{{ {} }}}}", expr.source()));
        Names { roots: expr.roots(), secrets: template.map(|template| template.secrets()).unwrap_or_default() }
    }
}

pub(super) fn expr(node: &Node, name: &str) -> Read<Expr> {
    let text = text(node, name)?;
    expr_of(text).map_err(|error| bad_expr(node, name, &error))
}

/// A field of the body by its path, such as `customer.id`, or an expression: `{{ … }}`, or a path that begins with a
/// known name.
pub(super) fn body_field(node: &Node, name: &str) -> Read<Expr> {
    let written = text(node, name)?.trim();
    let is_expr = written.starts_with("{{") || written.split_once('.').is_some_and(|(root, _)| ROOTS.contains(&root));
    if is_expr {
        return expr(node, name);
    }
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if !written.split('.').all(is_part) {
        let said = format!("`{}` is not a field", shown(written));
        let help = "write a path such as `customer.id`, or an expression: `{{ body[\"customer id\"] }}`";
        return Err(Box::new(bad(Code::BadExpression, node, said).help(help)));
    }
    let path: String = written.split('.').map(|part| format!("[\"{part}\"]")).collect();
    expr_of(&format!("body{path}")).map_err(|error| bad_expr(node, name, &error))
}

/// An expression that is not written in YAML.
pub(super) fn expr_of(text: &str) -> Result<Expr, BadExpr> {
    bounded(text).and_then(|text| Expr::parse(&spelt_out(text)))
}

/// A text of a tree that is not written in YAML.
pub(super) fn tree_of(text: &str) -> Result<Tree, BadExpr> {
    bounded_templates(text).and_then(|text| Tree::text(&in_templates(text, spelt_out)))
}

/// The first names of what is computed in such a text.
pub(super) fn roots_of(text: &str) -> BTreeSet<String> {
    Template::parse(&in_templates(text, spelt_out)).map(|template| template.roots()).unwrap_or_default()
}

pub(super) fn template(node: &Node, name: &str) -> Read<Template> {
    let text = text(node, name)?;
    let read = bounded_templates(text).and_then(|text| Template::parse(&in_templates(text, spelt_out)));
    read.map_err(|error| bad_expr(node, name, &error))
}

/// A name that is known, or a template that an event makes one of.
pub(super) fn zone_of_contact(node: &Node, name: &str) -> Read<Template> {
    let template = template(node, name)?;
    match &template {
        Template::Plain(zone) if policy::time_zone(zone).is_none() => {
            let said = format!("`{}` is not a time zone", shown(zone));
            let help = "write one such as Europe/Berlin, or a template such as \"{{ body.time_zone }}\"";
            Err(Box::new(bad(Code::BadTimeZone, node, said).help(help)))
        }
        _ => Ok(template),
    }
}

/// `21:00`.
pub(super) fn hour(node: &Node, name: &str) -> Read<Time> {
    let written = text(node, name)?;
    let read = written.split_once(':').and_then(|(hour, minute)| {
        let is_short = |text: &str| text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| text.parse().ok().filter(|_| is_short(text));
        Time::new(number(hour)?, number(minute)?, 0, 0).ok()
    });
    read.ok_or_else(|| {
        let said = format!("`{}` is not a time of day", shown(written));
        Box::new(bad(Code::BadHours, node, said).help("write hours and minutes in quotes, such as \"21:00\""))
    })
}

/// `day`, or a duration.
pub(super) fn window(node: &Node, name: &str) -> Read<Window> {
    if text(node, name)? == "day" {
        return Ok(Window::Day);
    }
    match duration(node, name)? {
        span if span < Duration::from_secs(1) => Err(Box::new(
            bad(Code::OutOfRange, node, format!("`{name}` is too small")).help("write 1s or more, or `day`"),
        )),
        span => Ok(Window::Last(span)),
    }
}

// The language descends into an expression as deep as it is long or nested, and would fall off the stack.
fn bounded(expr: &str) -> Result<&str, BadExpr> {
    if expr.len() > EXPR_BYTES_MAX {
        return Err(BadExpr(format!("an expression has {} bytes; the most is {EXPR_BYTES_MAX}", expr.len())));
    }
    if nesting(expr.as_bytes()) > EXPR_NESTING_MAX {
        return Err(BadExpr(format!("an expression nests brackets more than {EXPR_NESTING_MAX} deep")));
    }
    Ok(expr)
}

fn bounded_templates(text: &str) -> Result<&str, BadExpr> {
    for template in templates(text) {
        bounded(&text[template])?;
    }
    for (open, _) in text.match_indices("${") {
        bounded(&text[open..open + text[open..].find('}').unwrap_or(0)])?;
    }
    Ok(text)
}

fn bad_expr(node: &Node, name: &str, error: &BadExpr) -> Box<Problem> {
    let said = format!("`{}` cannot be read: {}", shown(name), shown_long(&error.0));
    let known = format!("names that are known here: {}", ROOTS.join(", "));
    Box::new(bad(Code::BadExpression, node, said).note(known))
}

/// A sentence about a template repeats it; a long one is cut in the middle, where the template is.
fn shown_long(text: &str) -> String {
    const HALF: usize = 80;
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= 2 * HALF {
        return super::problem::printable(text);
    }
    let part = |chars: &[char]| super::problem::printable(&chars.iter().collect::<String>());
    format!("{} … {}", part(&chars[..HALF]), part(&chars[chars.len() - HALF..]))
}

/// A tree as it will be written, its strings being templates.
pub(super) fn tree(node: &Node, name: &str) -> Read<Tree> {
    match &node.value {
        Value::List(items) => Ok(Tree::List(items.iter().map(|item| tree(item, name)).collect::<Result<_, _>>()?)),
        Value::Map(fields) => {
            let fields = fields.iter().map(|(key, item)| Ok((key.text.clone(), tree(item, &key.text)?)));
            Ok(Tree::Map(fields.collect::<Read<_>>()?))
        }
        Value::Scalar { text, quoted } => {
            if let Some(value) = (!quoted).then(|| json_scalar(node, name)).transpose()?.flatten() {
                return Ok(Tree::Value(value));
            }
            tree_of(text).map_err(|error| bad_expr(node, name, &error))
        }
    }
}

/// What JSON makes of a plain scalar, if it is no text there.
#[cfg(test)]
pub(super) fn plain_json(node: &Node) -> Option<serde_json::Value> {
    json_scalar(node, "").ok().flatten()
}

/// What is written, as JSON. Nothing is computed in it.
pub(super) fn json(node: &Node, name: &str) -> Read<serde_json::Value> {
    Ok(match &node.value {
        Value::Map(fields) => {
            let fields = fields.iter().map(|(key, node)| Ok((key.text.clone(), json(node, &key.text)?)));
            serde_json::Value::Object(fields.collect::<Read<_>>()?)
        }
        Value::List(items) => serde_json::Value::Array(items.iter().map(|node| json(node, name)).collect::<Read<_>>()?),
        Value::Scalar { text, quoted: true } => text.clone().into(),
        Value::Scalar { text, quoted: false } => json_scalar(node, name)?.unwrap_or_else(|| text.clone().into()),
    })
}

/// The JSON value of a plain scalar; `None` when it is a text.
fn json_scalar(node: &Node, name: &str) -> Read<Option<serde_json::Value>> {
    let Some(text) = node.plain() else {
        return Ok(Some(serde_json::Value::Null));
    };
    let inexact = || {
        let said = format!("`{}` holds a number that JSON cannot hold exactly", shown(name));
        Box::new(bad(Code::OutOfRange, node, said).help("put it in quotes to send it as a text"))
    };
    if let Some(number) = parse_int(text) {
        let exact = i64::try_from(number).map(serde_json::Number::from);
        let exact = exact.or_else(|_| u64::try_from(number).map(serde_json::Number::from));
        return exact.map(|number| Some(number.into())).map_err(|_| inexact());
    }
    if let Some(number) = parse_number(text) {
        return Ok(Some(serde_json::Number::from_f64(number).ok_or_else(inexact)?.into()));
    }
    Ok(bool(node, name).ok().map(serde_json::Value::from))
}

/// A URL that can be called, as far as its templates let us see.
/// A URL, or what comes after the base of an integration.
pub(super) fn url_or_path(node: &Node, name: &str) -> Read<Template> {
    let written = template(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &written;
    if !text.starts_with('/') {
        return url(node, name);
    }
    let filled = in_whole_templates(text, |_| "x".to_string());
    match url_problem(&filled, true) {
        None => Ok(written),
        Some(problem) => {
            Err(Box::new(bad(Code::BadUrl, node, format!("`{}` {}", shown(text), problem.0)).help(problem.1)))
        }
    }
}

pub(super) fn url(node: &Node, name: &str) -> Read<Template> {
    let template = template(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    // What is computed may be anything; `x` is something that every part of a URL may contain.
    let filled = in_whole_templates(text, |_| "x".to_string());
    let computed = text.starts_with("{{");
    let Some(problem) = url_problem(&filled, computed) else {
        return Ok(template);
    };
    Err(Box::new(bad(Code::BadUrl, node, format!("`{}` {}", shown(text), problem.0)).help(problem.1)))
}

fn url_problem(url: &str, begins_computed: bool) -> Option<(&'static str, &'static str)> {
    if !url.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
        return Some(("has a space or another character that URLs do not have", "percent-encode it, as in `%20`"));
    }
    if begins_computed {
        return None;
    }
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return Some(("is not a URL that clinch calls", "begin it with `https://` or `http://`"));
    };
    let authority = &rest[..rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len())];
    if authority.contains('@') {
        return Some((
            "has a user or a password in it",
            "send them in a header: `authorization: Basic ${secrets.NAME}`",
        ));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port),
        _ => (authority, "443"),
    };
    if host.is_empty() {
        return Some(("names no host", "write the host after `//`, as in `https://api.example.com/path`"));
    }
    if port != "x" && port.parse::<u16>().is_err() {
        return Some(("has a port that is not a number up to 65535", "correct or remove the port"));
    }
    None
}

/// A template that computes nothing but secrets.
pub(super) fn secrets_only(node: &Node, name: &str) -> Read<Template> {
    let template = template(node, name)?;
    let names = Names::of(&template);
    if names.roots.iter().any(|root| root != "secrets") || names.roots.len() != names.secrets.len().min(1) {
        let said = format!("`{name}` may have secrets in it, and nothing else that is computed");
        return Err(Box::new(bad(Code::BadExpression, node, said).help("write `${secrets.NAME}`")));
    }
    Ok(template)
}

/// One secret and nothing around it.
pub(super) fn secret(node: &Node, name: &str) -> Read<Template> {
    let template = secrets_only(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    if in_whole_templates(text, |_| String::new()).is_empty() && template.secrets().len() == 1 {
        return Ok(template);
    }
    let said = format!("`{name}` must be a secret, which no file of a workspace holds");
    Err(Box::new(bad(Code::BadStore, node, said).help(format!("write `{name}: ${{secrets.NAME}}`"))))
}

/// The variable of one secret.
pub(super) fn variable(node: &Node, name: &str) -> Read<String> {
    let template = secret(node, name)?;
    template.secrets().into_iter().next().ok_or_else(|| Box::new(wrong_type(node, name, "a secret")))
}

/// The address that senders call: as it is in their settings, user and password included where they sign them.
pub(super) fn public_url(node: &Node, name: &str) -> Read<String> {
    let written = text(node, name)?;
    let host = written.strip_prefix("https://").or_else(|| written.strip_prefix("http://"));
    let host = host.map(|rest| &rest[..rest.find(['/', '?']).unwrap_or(rest.len())]);
    let fine = written.bytes().all(|b| (0x21..=0x7e).contains(&b)) && !written.contains('#');
    if fine && host.is_some_and(|host| !host.is_empty() && !host.ends_with('@')) {
        return Ok(written.to_string());
    }
    let said = format!("`{}` is not the address of a door", shown(written));
    Err(Box::new(
        bad(Code::BadUrl, node, said).help("write it as the sender has it: `https://hooks.example.com/in/NAME`"),
    ))
}

/// The address of a collector, which is called as it is written.
pub(super) fn endpoint(node: &Node, name: &str) -> Read<String> {
    let written = text(node, name)?;
    let host = written.strip_prefix("https://").or_else(|| written.strip_prefix("http://"));
    let host = host.map(|rest| &rest[..rest.find('/').unwrap_or(rest.len())]);
    let fine = written.bytes().all(|b| (0x21..=0x7e).contains(&b)) && !written.contains(['#', '?', '@']);
    if fine && host.is_some_and(|host| !host.is_empty()) {
        return Ok(written.to_string());
    }
    let said = format!("`{}` is not the address of a collector", shown(written));
    let help = "write it like `http://127.0.0.1:4318`; what proves who you are goes below `headers:`";
    Err(Box::new(bad(Code::BadUrl, node, said).help(help)))
}

/// What clinch says itself.
const OWN_ATTRIBUTES: &[&str] =
    &["clinch.", "messaging.", "http.", "url.", "error.", "server.", "client.", "network.", "user_agent."];

/// Why an attribute cannot have this name, and what to do.
pub(super) fn attribute_problem(name: &str) -> Option<(String, &'static str)> {
    let is_word = |part: &str| {
        let goes_on = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        part.starts_with(|c: char| c.is_ascii_lowercase()) && part.bytes().all(goes_on)
    };
    if name.len() > 64 || !name.split('.').all(is_word) {
        return Some((
            format!("`{}` is not the name of an attribute", shown(name)),
            "write it like `customer` or `shop.campaign`",
        ));
    }
    let own = OWN_ATTRIBUTES.iter().any(|own| name.starts_with(own));
    own.then(|| (format!("`{name}` is an attribute that clinch sets itself"), "give it another name"))
}

/// The sender's words, and ours.
pub(super) fn renames(node: &Node, name: &str) -> Read<Vec<(String, String)>> {
    let pair = |(key, named): &(super::yaml::Key, Node)| Ok((key.text.clone(), self::name(named, name)?));
    node.fields().iter().map(pair).collect()
}

/// One schema for all types, or one for each pattern.
pub(super) fn schemas(node: &Node, name: &str) -> Read<Vec<(TypePattern, String)>> {
    let all = || "*".parse().expect("it stands for every type");
    if node.text().is_some() {
        return Ok(vec![(all(), self::name(node, name)?)]);
    }
    let pair = |(pattern, named): (String, String)| match pattern.parse() {
        Ok(pattern) => Ok((pattern, named)),
        Err(error) => Err(bad_type(node.head(), &error)),
    };
    renames(node, name)?.into_iter().map(pair).collect()
}

pub(super) fn type_pattern(node: &Node, name: &str) -> Read<TypePattern> {
    text(node, name)?.parse().map_err(|error| bad_type(node.head(), &error))
}

fn bad_type(span: Span, error: &BadTypePattern) -> Box<Problem> {
    Box::new(Problem::error(Code::BadType, span, printable(&error.to_string())))
}

pub(super) fn pointer(node: &Node, name: &str) -> Read<Pointer> {
    let read: Result<Pointer, _> = text(node, name)?.parse();
    read.map_err(|error| Box::new(bad(Code::BadPointer, node, printable(&error.to_string()))))
}

pub(super) fn rate(node: &Node, name: &str) -> Read<Rate> {
    let read: Result<Rate, _> = text(node, name)?.parse();
    read.map_err(|error| Box::new(bad(Code::BadRate, node, printable(&error.to_string()))))
}

pub(super) fn share(node: &Node, name: &str) -> Read<Target> {
    let read: Result<Target, _> = text(node, name)?.parse();
    read.map_err(|error| Box::new(bad(Code::BadShare, node, printable(&error.to_string()))))
}

pub(super) fn allowed(node: &Node, name: &str) -> Read<Allowed> {
    let read: Result<Allowed, _> = text(node, name)?.parse();
    read.map_err(|error| Box::new(bad(Code::BadAllowed, node, printable(&error.to_string()))))
}

pub(super) fn moment(node: &Node, name: &str) -> Read<Timestamp> {
    let written = text(node, name)?;
    let read = written.parse::<jiff::Timestamp>().map(|at| Timestamp::from_micros(at.as_microsecond()));
    read.map_err(|_| {
        let said = format!("`{}` is not a moment", shown(written));
        Box::new(bad(Code::BadMoment, node, said).help("write day, time and zone, as in 2026-08-01T00:00:00Z"))
    })
}

/// A country by its two letters.
pub(super) fn country(node: &Node, name: &str) -> Read<Country> {
    let written = text(node, name)?;
    written.parse().map_err(|_| {
        let said = format!("`{}` is not a country", shown(written));
        Box::new(bad(Code::BadChoice, node, said).help("write its two letters (ISO 3166), as in `DE` or `US`"))
    })
}

pub(super) fn cron(node: &Node, name: &str) -> Read<CronLine> {
    let written = text(node, name)?;
    CronLine::parse(written).map_err(|error| {
        let said = format!("`{}` says no moment: {error}", shown(written));
        let help = "write minute, hour, day, month and day of the week, as in \"*/10 * * * *\" or \"0 9 * * MON\"";
        Box::new(bad(Code::BadSchedule, node, said).help(help))
    })
}

pub(super) fn time_zone(node: &Node, name: &str) -> Read<Zone> {
    let written = text(node, name)?;
    Zone::parse(written).ok_or_else(|| {
        let said = format!("`{}` is not a time zone", shown(written));
        Box::new(bad(Code::BadSchedule, node, said).help("write its name, as in `Europe/Berlin` or `UTC`"))
    })
}

/// `step:NAME.PATH` is what lies at the path of what the step came to; anything else is an expression.
pub(super) fn list(node: &Node, name: &str) -> Read<Expr> {
    let written = list_spelt_out(text(node, name)?);
    expr_of(&written).map_err(|error| bad_expr(node, name, &error))
}

pub(super) fn list_spelt_out(written: &str) -> String {
    match written.trim().strip_prefix("step:").map(|rest| rest.split_once('.').unwrap_or((rest, ""))) {
        Some((step, "")) => format!("steps.{step}.output"),
        Some((step, path)) => format!("steps.{step}.output.{path}"),
        None => written.to_string(),
    }
}

/// A file of the workspace, and of no other place.
pub(super) fn file(node: &Node, name: &str, ending: &str) -> Read<String> {
    let written = text(node, name)?;
    let inside = !written.starts_with('/') && !written.contains('\\');
    let inside = inside && written.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if inside && written.ends_with(ending) && !written.chars().any(char::is_control) {
        return Ok(written.to_string());
    }
    let said = format!("`{}` is not a file of the workspace that ends with `{ending}`", shown(written));
    Err(Box::new(bad(Code::BadPath, node, said).help(format!("write `NAME{ending}` or `folder/NAME{ending}`"))))
}

pub const STATEMENT_BYTES_MAX: usize = 64 << 10;

/// One statement. Values never become a part of its text.
pub(super) fn statement(node: &Node, name: &str) -> Read<String> {
    let written = text(node, name)?.trim();
    let problem = |said: &str, help: &str| Err(Box::new(bad(Code::BadStatement, node, said).help(help)));
    if written.contains("{{") || written.contains("${") {
        return problem(
            "a value inside the text of a statement could change what it does",
            "write `$1` in its place, and the value below `params:`, as in `params: [\"{{ body.id }}\"]`",
        );
    }
    if written.is_empty() || written.len() > STATEMENT_BYTES_MAX {
        return problem("this is not a statement", "write one, of at most 64KiB");
    }
    let first = written.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_ascii_uppercase();
    let ends = ["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE", "VACUUM"];
    if ends.contains(&first.as_str()) {
        return problem(
            "a statement cannot begin or end the transaction that it is run in",
            "remove it: clinch begins and commits one around each `sql` step",
        );
    }
    Ok(written.to_string())
}

/// The address of a database. A password in it is a secret, so that it is in no file.
pub(super) fn database_url(node: &Node, name: &str) -> Read<Template> {
    let template = secrets_only(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    let filled = in_whole_templates(text, |_| "\u{1}".to_string());
    let problem = |why: &str, help: &str| Err(Box::new(bad(Code::BadDatabase, node, why).help(help)));
    if filled == "\u{1}" {
        return Ok(template);
    }
    if let Some(path) = filled.strip_prefix("sqlite:") {
        let help = "write the path of the file after `sqlite:`, relative to the workspace, as in `sqlite:data/crm.db`";
        return if path.is_empty() { problem("it names no file", help) } else { Ok(template) };
    }
    let kinds = ["postgres://", "postgresql://", "mysql://", "mariadb://"];
    let Some(rest) = kinds.iter().find_map(|kind| filled.strip_prefix(kind)) else {
        return problem(
            "this is not the address of a database that clinch speaks to",
            "write `${secrets.NAME}`, `postgres://user:${secrets.NAME}@host/database`, the same with `mysql://`, or `sqlite:FILE`",
        );
    };
    let (user, host) = rest.rsplit_once('@').unwrap_or(("", rest));
    let password = user.split_once(':').map_or("", |(_, password)| password);
    if (!password.is_empty() && password != "\u{1}") || rest.contains("password=") {
        return problem("there is a password in this file", "write `:${secrets.NAME}@` in its place");
    }
    if host.is_empty() {
        return problem("it names no host", "write the host after `//`, as in `postgres://user@host/database`");
    }
    Ok(template)
}

/// The address of a mail server. A password in it is a secret, so that it is in no file.
pub(super) fn mail_url(node: &Node, name: &str) -> Read<Template> {
    let template = secrets_only(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    let filled = in_whole_templates(text, |_| "\u{1}".to_string());
    let problem = |why: &str, help: &str| Err(Box::new(bad(Code::BadMailServer, node, why).help(help)));
    if filled == "\u{1}" {
        return Ok(template);
    }
    let Some(rest) = filled.strip_prefix("smtp://").or_else(|| filled.strip_prefix("smtps://")) else {
        return problem(
            "this is not the address of a mail server",
            "write `smtp://user:${secrets.NAME}@host:587`, or `smtps://` for TLS from the first byte",
        );
    };
    let (user, host) = rest.rsplit_once('@').unwrap_or(("", rest));
    let password = user.split_once(':').map_or("", |(_, password)| password);
    if !password.is_empty() && password != "\u{1}" {
        return problem("there is a password in this file", "write `:${secrets.NAME}@` in its place");
    }
    if host.is_empty() || host.starts_with([':', '/']) {
        return problem("it names no host", "write the host after `//`, as in `smtp://mail.example.com:587`");
    }
    Ok(template)
}

pub(super) fn mailbox(node: &Node, name: &str) -> Read<Mailbox> {
    let written = text(node, name)?;
    written.parse().map_err(|error: BadMailbox| {
        let said = format!("`{}` is {error}", shown(written));
        Box::new(bad(Code::BadMailServer, node, said))
    })
}

/// The address of a Redis. A password in it is a secret, so that it is in no file.
pub(super) fn redis_url(node: &Node, name: &str) -> Read<Template> {
    let template = secrets_only(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    let filled = in_whole_templates(text, |_| "\u{1}".to_string());
    let problem = |why: &str, help: &str| Err(Box::new(bad(Code::BadStore, node, why).help(help)));
    if filled == "\u{1}" {
        return Ok(template);
    }
    let Some(rest) = filled.strip_prefix("redis://").or_else(|| filled.strip_prefix("rediss://")) else {
        return problem(
            "this is not the address of a key store",
            "begin it with `redis://`, or `rediss://` for TLS; without `kv:` keys are in the installation's own store",
        );
    };
    let (user, host) = rest.rsplit_once('@').unwrap_or(("", rest));
    let password = user.split_once(':').map_or("", |(_, password)| password);
    if !password.is_empty() && password != "\u{1}" {
        return problem("there is a password in this file", "write `:${secrets.NAME}@` in its place");
    }
    if host.is_empty() || host.starts_with([':', '/']) {
        return problem("it names no host", "write the host after `//`, as in `redis://127.0.0.1:6379`");
    }
    Ok(template)
}

/// What is wrong with the name of a variable.
pub(super) fn env_problem(name: &str) -> Option<(String, &'static str)> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || !name.bytes().all(fine) || name.starts_with(|c: char| c.is_ascii_digit()) {
        Some((format!("`{}` is not the name of a variable", shown(name)), "use letters, digits and `_`"))
    } else if crate::script::GIVEN.contains(&name) {
        Some((format!("`{name}` is set by clinch, the same in every script"), "choose another name"))
    } else {
        None
    }
}

pub(super) fn runtime(node: &Node, name: &str) -> Read<Runtime> {
    let written = text(node, name)?;
    written.parse().map_err(|_| {
        let said = format!("`{}` is not a runtime", shown(written));
        Box::new(bad(Code::BadChoice, node, said).help("write `node:18` (18 or newer), `python:3` or `bash`"))
    })
}

pub(super) fn header_problem(name: &str) -> Option<(String, &'static str)> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let lower = name.to_ascii_lowercase();
    if name.is_empty() || !name.bytes().all(token) {
        Some((format!("`{}` is not a header name", shown(name)), "use letters, digits and `-`"))
    } else if lower == "idempotency-key" {
        let said = format!("`{}` is set by clinch, the same on every attempt", shown(name));
        Some((said, "remove it and write `idempotency: header` in the step"))
    } else if HEADERS_NOT_YOURS.contains(&lower.as_str()) {
        Some((format!("`{}` is set by the connection, not by a step", shown(name)), "remove it"))
    } else {
        None
    }
}

/// The value of a header; one line.
pub(super) fn header_value(node: &Node, name: &str) -> Read<Template> {
    let template = template(node, name)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &template;
    if text.chars().any(|c| c.is_control() && c != '\t') {
        let said = format!("the value of `{}` has a line break or a control character", shown(name));
        return Err(Box::new(bad(Code::BadHeader, node, said).help("write it on one line, without `|` or `>`")));
    }
    Ok(template)
}

#[cfg(test)]
mod tests {
    use super::super::problem::Span;
    use super::*;
    use proptest::prelude::*;

    fn scalar(text: &str, quoted: bool) -> Node {
        Node { span: Span::new(0, text.len()), value: Value::Scalar { text: text.into(), quoted } }
    }

    fn plain(text: &str) -> Node {
        scalar(text, false)
    }

    #[test]
    fn whole_numbers_are_read_as_yaml_1_2_writes_them() {
        for (text, number) in [("7", 7), ("-3", -3), ("0x1F", 31), ("0o17", 15), ("+4", 4)] {
            assert_eq!(int(&plain(text), "n").ok(), Some(number), "{text}");
        }
        for bad in ["1e3", "", "-", "0b1", "1_000", "seven", "99999999999999999999999999999999999999999999"] {
            assert!(int(&plain(bad), "n").is_err(), "{bad}");
        }
        let said = int(&scalar("7", true), "n").expect_err("a text");
        assert_eq!(said.help.as_deref(), Some("write `n: 7`, without quotes"));
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("512B", 512), ("256KiB", 262_144), ("2MB", 2_000_000), ("1 MiB", 1 << 20)] {
            assert_eq!(size(&plain(text), "s").ok(), Some(bytes), "{text}");
        }
        let said = size(&plain("300"), "s").expect_err("no unit");
        assert_eq!(
            (said.label.as_str(), said.help.as_deref()),
            ("300 what?", Some("write `300B` for bytes or `300KiB`"))
        );
        assert!(size(&plain("1.5MB"), "s").is_err());
        assert_eq!(size(&plain("99999999999999999999GiB"), "s").ok(), Some(usize::MAX));
    }

    #[test]
    fn a_key_part_that_is_nearly_right_is_told_what_it_should_be() {
        let help = |text: &str| key_part(&plain(text), "key_from").expect_err("wrong").help;
        assert_eq!(help("Idempotency-Key").as_deref(), Some("did you mean `header:Idempotency-Key`?"));
        assert_eq!(help("request.headers.X-Id").as_deref(), Some("did you mean `header:X-Id`?"));
        assert_eq!(help("body.data.id").as_deref(), Some("did you mean `body:/data/id`?"));
        assert_eq!(help("query:x").as_deref(), Some("write `header:NAME` or `body:/json/pointer`"));
    }

    #[test]
    fn only_urls_that_can_be_called_are_taken() {
        for fine in
            ["http://127.0.0.1:9900/effect", "https://[::1]/", "https://a.b/{{ body.x y }}?q=1", "{{ secrets.URL }}/x"]
        {
            let fine = fine.replace(" y", "");
            assert!(url(&plain(&fine), "url").is_ok(), "{fine}");
        }
        for bad in [
            "ftp://a",
            "a.b/c",
            "https://",
            "https:///x",
            "https://u:p@h/",
            "http://a b",
            "http://a:99999/",
            "http://:80",
        ] {
            assert_eq!(url(&plain(bad), "url").expect_err(bad).code, Code::BadUrl);
        }
    }

    #[test]
    fn a_condition_may_name_a_step_with_a_hyphen() {
        assert!(expr(&plain("{{ steps.check-and-set.output.set == true }}"), "if").is_ok());
    }

    #[test]
    fn a_tree_keeps_the_types_of_its_values() {
        let value = |text: &str| tree(&plain(text), "body").expect("a tree");
        assert_eq!(value("no"), Tree::Value("no".into()));
        assert_eq!(value("true"), Tree::Value(true.into()));
        assert_eq!(value("~"), Tree::Value(serde_json::Value::Null));
        assert_eq!(value("18446744073709551615"), Tree::Value(u64::MAX.into()));
        assert_eq!(value("1.5"), Tree::Value(1.5.into()));
        assert_eq!(tree(&scalar("5", true), "body").ok(), Some(Tree::Value("5".into())));
        assert_eq!(tree(&plain("18446744073709551616"), "body").expect_err("too large").code, Code::OutOfRange);
    }

    proptest! {
        #[test]
        fn no_scalar_makes_a_reader_panic(text in "\\PC{0,40}", quoted: bool) {
            let node = scalar(&text, quoted);
            let _ = (int(&node, "x"), number(&node, "x"), size(&node, "x"), duration(&node, "x"), bool(&node, "x"));
            let _ = (key_rule(&node, "x"), path(&node, "x"), address(&node, "x"), url(&node, "x"), expr(&node, "x"));
            let _ = (tree(&node, "x"), header_value(&node, "x"), prefixed(&node, "x", "kv:"), super::super::spelling::steps_in_template(&text));
        }
    }
}
