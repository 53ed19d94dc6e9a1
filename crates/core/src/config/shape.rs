//! Shapes: which keys a map may have and what their values must be, as data. A tree is held against a shape here; the
//! JSON Schema is made from the same tables, so completion and check cannot disagree.

use super::integration;
use super::nearest::nearest;
use super::problem::{Code, Problem, Report, Span, shown};
use super::source;
use super::value::{self, ANSWER_ROOTS, EVENT_ROOTS, MESSAGE_ROOTS, Names, ROOTS, Read};
use super::yaml::{Node, Value};
use crate::time::human;
use std::collections::HashMap;
use std::time::Duration;

/// No list is longer.
pub const ITEMS_MAX: usize = 1_000;

pub(super) struct Shape {
    /// Its name among the definitions of the JSON Schema.
    pub name: &'static str,
    pub doc: &'static str,
    /// In groups, so that shapes can share them.
    pub fields: &'static [&'static [Field]],
    pub choices: &'static [Choose],
}

pub(super) struct Field {
    pub name: &'static str,
    pub kind: Kind,
    pub need: Need,
    pub doc: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    Optional,
}

/// Keys of which only one may be written.
#[derive(Clone, Copy)]
pub(super) struct Choose {
    pub keys: &'static [&'static str],
    /// Whether one of them must be.
    pub need: Need,
    /// What is wrong with none or with two of them.
    pub none: &'static str,
    pub two: &'static str,
    /// What to do when there is none.
    pub help: &'static str,
}

pub(super) enum Kind {
    Text,
    /// The name of something.
    Name,
    /// A name after a fixed beginning, such as `kv:`.
    Prefixed(&'static str),
    Int {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
        max: f64,
    },
    Bool,
    Duration {
        min: Duration,
    },
    Size {
        min: usize,
        max: usize,
    },
    Choice(&'static [&'static str]),
    Address,
    Path,
    Url,
    Headers,
    /// A runtime of scripts.
    Runtime,
    /// The environment of a script.
    Env,
    KeyPart,
    /// One key part or a list of them.
    KeyRule,
    Expr,
    /// An expression that may also read `answer`.
    AnswerExpr,
    /// Text with templates, or a tree with templates in its texts.
    Body,
    /// Anything; not looked at.
    Tree,
    /// Of 1 to `ITEMS_MAX` items.
    List(&'static Kind),
    Map(&'static Shape),
    /// A map of names that people choose, each with such a map.
    Named(&'static Shape),
    /// A URL in which only secrets may be computed.
    RedisUrl,
    /// One secret, by its name.
    Secret,
    /// A scalar of the first kind, or a map of the second.
    Or(&'static Kind, &'static Kind),
    /// The name of a preset, or `none`.
    Verify,
    /// The address that senders call.
    PublicUrl,
    /// The address of a collector.
    Endpoint,
    /// Headers in which only secrets may be computed.
    SecretHeaders,
    /// A map of names, each with a template that reads the event alone.
    Attributes,
    /// A map of texts, each with a name.
    Renames,
    /// A path into a body.
    Pointer,
    /// A host or a network.
    Place,
    /// So many in such a time.
    Rate,
    /// More than nothing and less than all: `95%`.
    Share,
    /// A length between two others.
    Spread,
    /// A list of HTTP statuses and ranges of them.
    Statuses,
    /// A URL, or a path of an integration.
    UrlOrPath,
    /// A moment in time.
    Moment,
    /// Text with templates.
    Template,
    /// Text with templates that read the event alone.
    EventTemplate,
    /// One statement of SQL, in which nothing is computed.
    Statement,
    /// The address of a database, in which only secrets may be computed.
    DatabaseUrl,
    /// The address of a mail server, in which only secrets may be computed.
    MailUrl,
    /// A name and a mail address.
    Mailbox,
    /// A body that may also read `message`.
    MessageBody,
    /// A country by its two letters.
    Country,
    /// When a schedule fires.
    Cron,
    /// A time zone by its name.
    TimeZone,
    /// `step:NAME.PATH`, or an expression that gives a list.
    ListExpr,
    /// A file of the workspace whose name ends like this.
    File(&'static str),
    /// A type of events, the beginning of types, or a list of these.
    Patterns,
    /// A field of the body, or an expression.
    BodyField,
    /// The name of an action. Those that are known were read as their short forms before.
    NamedAction,
    /// The name of a time zone, or a template that becomes one.
    ZoneOfContact,
    /// A time of day.
    Hour,
    /// A day, or the last so long.
    Window,
}

impl Shape {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().flat_map(|group| group.iter())
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields().map(|field| field.name)
    }

    /// How a sentence calls it.
    fn words(&self) -> String {
        self.name.replace('_', " ")
    }
}

impl Kind {
    /// What such a value looks like, for the line that a person should add.
    fn example(&self) -> &'static str {
        match self {
            Kind::Text | Kind::Tree => "…",
            Kind::Name => "NAME",
            Kind::Prefixed("kv:") => "kv:NAME",
            Kind::Prefixed("dlq:") => "dlq:NAME",
            Kind::Prefixed(_) => "step:NAME",
            Kind::Int { .. } | Kind::Number { .. } => "1",
            Kind::Bool => "true",
            Kind::Duration { .. } => "48h",
            Kind::Size { .. } => "256KiB",
            Kind::Choice(words) => words[0],
            Kind::Address => "127.0.0.1:7400",
            Kind::Runtime => "node:18",
            Kind::Path => "/intake/NAME",
            Kind::Url => "https://api.example.com/path",
            Kind::KeyPart | Kind::KeyRule => "header:Idempotency-Key",
            Kind::Expr => "body",
            Kind::AnswerExpr => "answer.status == 200",
            Kind::Body => "\"{{ body.id }}\"",
            Kind::RedisUrl => "redis://127.0.0.1:6379",
            Kind::Secret => "${secrets.NAME}",
            Kind::Or(scalar, _) => scalar.example(),
            Kind::Verify => "PRESET",
            Kind::PublicUrl => "https://hooks.example.com/in/NAME",
            Kind::Endpoint => "http://127.0.0.1:4318",
            Kind::Pointer => "/customer/email",
            Kind::Place => "crm.internal",
            Kind::Rate => "100/s",
            Kind::Share => "95%",
            Kind::Spread => "200-600ms",
            Kind::Statuses => "[429, 500-599]",
            Kind::UrlOrPath => "https://api.example.com/path",
            Kind::Moment => "2026-08-01T00:00:00Z",
            Kind::Patterns => "shopify.*",
            Kind::MailUrl => "smtp://user:${secrets.NAME}@mail.example.com:587",
            Kind::Mailbox => "Shop <hello@example.com>",
            Kind::MessageBody => "\"{{ message.text }}\"",
            Kind::Country => "DE",
            Kind::Cron => "\"*/10 * * * *\"",
            Kind::TimeZone => "Europe/Berlin",
            Kind::ListExpr => "step:NAME.messages",
            Kind::Statement => "UPDATE contacts SET seen = now() WHERE id = $1",
            Kind::DatabaseUrl => "${secrets.NAME}",
            Kind::Template | Kind::EventTemplate => "\"{{ body.id }}\"",
            Kind::File(_) => "GeoLite2-City.mmdb",
            Kind::BodyField => "customer_id",
            Kind::NamedAction => "store.setnx",
            Kind::ZoneOfContact => "Europe/Berlin",
            Kind::Hour => "\"21:00\"",
            Kind::Window => "day",
            Kind::List(_)
            | Kind::Map(_)
            | Kind::Named(_)
            | Kind::Headers
            | Kind::SecretHeaders
            | Kind::Attributes
            | Kind::Env
            | Kind::Renames => "",
        }
    }
}

/// Holds a map against its shape. `at` is where to point when something is not there.
pub(super) fn check(node: &Node, shape: &Shape, at: Span, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        let said = format!("this {} must be a map, not {}", shape.words(), node.kind());
        let problem = Problem::error(Code::WrongType, node.head(), said).label(format!("this is {}", node.kind()));
        let known: Vec<&str> = shape.names().collect();
        return report.flaw(node.span, problem.note(format!("its keys: {}", known.join(", "))));
    };
    let mut meant = Vec::new();
    for (key, child) in fields {
        match shape.field(&key.text) {
            Some(field) => check_value(child, &field.kind, field.name, key.span, report),
            None => {
                meant.extend(nearest(&key.text, shape.names()));
                report.flaw(node.span, unknown_key(&key.text, key.span, shape));
            }
        }
    }
    let written: HashMap<&str, Span> = fields.iter().map(|(key, _)| (key.text.as_str(), key.span)).collect();
    // A misspelt key is one problem, not also a missing one.
    let is_there = |name: &str| written.contains_key(name) || meant.contains(&name);
    for field in shape.fields().filter(|field| field.need == Need::Required && !is_there(field.name)) {
        report.flaw(node.span, missing(field, shape, at));
    }
    for choice in shape.choices.iter().filter(|choice| !choice.keys.iter().any(|key| meant.contains(key))) {
        for problem in check_choice(choice, &written, at) {
            report.flaw(node.span, problem);
        }
    }
}

fn missing(field: &Field, shape: &Shape, at: Span) -> Problem {
    let said = format!("`{}` is missing in this {}", field.name, shape.words());
    let line = format!("{}: {}", field.name, field.kind.example());
    Problem::error(Code::MissingKey, at, said)
        .label(format!("needs `{}`", field.name))
        .help(format!("add `{}`", line.trim_end()))
}

fn unknown_key(key: &str, span: Span, shape: &Shape) -> Problem {
    let allowed: Vec<&str> = shape.names().collect();
    let said = format!("`{}` is not a key of this {}", shown(key), shape.words());
    let problem = Problem::error(Code::UnknownKey, span, said)
        .label("unknown key")
        .note(format!("allowed here: {}", allowed.join(", ")));
    match nearest(key, allowed) {
        Some(meant) => problem.help(format!("did you mean `{meant}`?")),
        None => problem.help("remove it, or move it to where it belongs"),
    }
}

fn check_choice(choice: &Choose, written: &HashMap<&str, Span>, at: Span) -> Vec<Problem> {
    let mut present: Vec<(&str, Span)> =
        choice.keys.iter().filter_map(|key| written.get(key).map(|span| (*key, *span))).collect();
    present.sort_by_key(|(_, span)| span.start);
    match present.as_slice() {
        [] if choice.need == Need::Required => {
            vec![Problem::error(Code::MissingKey, at, choice.none).label("here").help(choice.help)]
        }
        [] => Vec::new(),
        [(first, first_at), rest @ ..] => {
            let excluded = rest.iter().map(|(key, span)| {
                let said = format!("`{first}` and `{key}` exclude each other: {}", choice.two);
                let problem = Problem::error(Code::EitherOr, *span, said).label("and this");
                problem.also(*first_at, "either this").help("keep one of the two")
            });
            excluded.collect()
        }
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Holds a value against its kind.
fn check_value(node: &Node, kind: &Kind, name: &str, key: Span, report: &mut Report<'_>) {
    if node.is_null() && !matches!(kind, Kind::Tree) {
        let problem = Problem::error(Code::WrongType, key, format!("`{name}` is empty")).label("has no value");
        return report.flaw(node.span, problem.help(empty_help(name, kind)));
    }
    match kind {
        Kind::Tree => {}
        Kind::Map(shape) => check(node, shape, key, report),
        Kind::Named(shape) => check_named(node, shape, name, report),
        Kind::List(kind) => check_list(node, kind, name, key, report),
        Kind::KeyRule => check_key_rule(node, name, report),
        Kind::Headers => check_headers(node, name, report),
        Kind::SecretHeaders => {
            check_headers(node, name, report);
            for (key, value) in node.fields() {
                keep(value, value::secrets_only(value, &key.text), report);
            }
        }
        Kind::Attributes => check_attributes(node, name, report),
        Kind::Endpoint => keep(node, value::endpoint(node, name), report),
        Kind::Env => check_env(node, name, report),
        Kind::Runtime => keep(node, value::runtime(node, name), report),
        Kind::Body => check_body(node, name, report),
        Kind::Expr => check_names(node, value::expr(node, name).map(|expr| Names::of_expr(&expr)), report),
        Kind::AnswerExpr => {
            check_roots(node, value::expr(node, name).map(|expr| Names::of_expr(&expr)), ANSWER_ROOTS, report);
        }
        Kind::Url => check_names(node, value::url(node, name).map(|url| Names::of(&url)), report),
        Kind::RedisUrl => keep(node, value::redis_url(node, name), report),
        Kind::Secret => keep(node, value::secret(node, name), report),
        Kind::Or(scalar, _) if node.text().is_some() => check_value(node, scalar, name, key, report),
        Kind::Or(_, map) => check_value(node, map, name, key, report),
        Kind::Verify => keep(node, source::verify(node, name), report),
        Kind::PublicUrl => keep(node, value::public_url(node, name), report),
        Kind::Renames => check_renames(node, name, report),
        Kind::Pointer => keep(node, value::pointer(node, name), report),
        Kind::Place => keep(node, value::allowed(node, name), report),
        Kind::Rate => keep(node, value::rate(node, name), report),
        Kind::Share => keep(node, value::share(node, name), report),
        Kind::Spread => keep(node, integration::spread(node, name), report),
        Kind::Statuses => check_statuses(node, name, key, report),
        Kind::UrlOrPath => check_names(node, value::url_or_path(node, name).map(|url| Names::of(&url)), report),
        Kind::Moment => keep(node, value::moment(node, name), report),
        Kind::Patterns => check_patterns(node, name, report),
        Kind::BodyField => check_names(node, value::body_field(node, name).map(|expr| Names::of_expr(&expr)), report),
        Kind::NamedAction => keep(node, value::text(node, name), report),
        Kind::Template => check_names(node, value::template(node, name).map(|text| Names::of(&text)), report),
        Kind::EventTemplate => {
            check_roots(node, value::template(node, name).map(|text| Names::of(&text)), EVENT_ROOTS, report);
        }
        Kind::Statement => keep(node, value::statement(node, name), report),
        Kind::DatabaseUrl => keep(node, value::database_url(node, name), report),
        Kind::MailUrl => keep(node, value::mail_url(node, name), report),
        Kind::Mailbox => keep(node, value::mailbox(node, name), report),
        Kind::MessageBody => check_tree(node, name, MESSAGE_ROOTS, report),
        Kind::Country => keep(node, value::country(node, name), report),
        Kind::Cron => keep(node, value::cron(node, name), report),
        Kind::TimeZone => keep(node, value::time_zone(node, name), report),
        Kind::ListExpr => check_names(node, value::list(node, name).map(|expr| Names::of_expr(&expr)), report),
        Kind::File(ending) => keep(node, value::file(node, name, ending), report),
        Kind::ZoneOfContact => {
            check_names(node, value::zone_of_contact(node, name).map(|text| Names::of(&text)), report)
        }
        Kind::Hour => keep(node, value::hour(node, name), report),
        Kind::Window => keep(node, value::window(node, name), report),
        Kind::Text => keep(node, value::text(node, name), report),
        Kind::Name => keep(node, value::name(node, name), report),
        Kind::Prefixed(prefix) => keep(node, value::prefixed(node, name, prefix), report),
        Kind::Bool => keep(node, value::bool(node, name), report),
        Kind::Address => keep(node, value::address(node, name), report),
        Kind::Path => keep(node, value::path(node, name), report),
        Kind::KeyPart => keep(node, value::key_part(node, name), report),
        Kind::Choice(words) => keep(node, choice(node, name, words), report),
        Kind::Int { min, max } => {
            let (least, most) = (min.to_string(), max.to_string());
            keep(node, within(node, name, value::int(node, name), (min, least), (max, most)), report);
        }
        Kind::Number { min, max } => {
            let (least, most) = (min.to_string(), max.to_string());
            keep(node, within(node, name, value::number(node, name), (min, least), (max, most)), report);
        }
        Kind::Duration { min } => {
            let (least, most) = (human(*min), "3650d".to_string());
            keep(node, within(node, name, value::duration(node, name), (min, least), (&Duration::MAX, most)), report);
        }
        Kind::Size { min, max } => {
            let least = if *min < 1 << 20 { format!("{min}B") } else { format!("{}MiB", min >> 20) };
            let most = format!("{}MiB", max >> 20);
            keep(node, within(node, name, value::size(node, name), (min, least), (max, most)), report);
        }
    }
}

fn check_statuses(node: &Node, name: &str, key: Span, report: &mut Report<'_>) {
    check_list(node, &Kind::Text, name, key, report);
    if !report.is_flawed(node.span) {
        keep(node, integration::statuses(node, name), report);
    }
}

fn empty_help(name: &str, kind: &Kind) -> String {
    match kind.example() {
        "" => format!("write something below `{name}:`, or remove it"),
        example => format!("write `{name}: {example}`, or remove it"),
    }
}

fn keep<T>(node: &Node, read: Read<T>, report: &mut Report<'_>) {
    if let Err(problem) = read {
        report.flaw(node.span, *problem);
    }
}

fn within<T: PartialOrd>(
    node: &Node,
    name: &str,
    read: Read<T>,
    (min, least): (&T, String),
    (max, most): (&T, String),
) -> Read<T> {
    let said = match read? {
        value if value < *min => format!("`{name}` is too small"),
        value if value > *max => format!("`{name}` is too large"),
        value => return Ok(value),
    };
    let help = if least == most { format!("write {least}") } else { format!("write {least} to {most}") };
    Err(Box::new(Problem::error(Code::OutOfRange, node.head(), said).help(help)))
}

fn choice(node: &Node, name: &str, words: &[&'static str]) -> Read<()> {
    let written = value::text(node, name)?;
    if words.contains(&written) {
        return Ok(());
    }
    let said = format!("`{}` is not a value of `{name}`", shown(written));
    let problem = Problem::error(Code::BadChoice, node.head(), said);
    Err(Box::new(match nearest(written, words.iter().copied()) {
        Some(meant) => {
            problem.note(format!("known values: {}", words.join(", "))).help(format!("did you mean `{meant}`?"))
        }
        None if words.len() == 1 => problem.help(format!("write `{name}: {}`, or remove it", words[0])),
        None => problem.help(format!("write one of {}", quoted(words))),
    }))
}

fn check_list(node: &Node, kind: &'static Kind, name: &str, key: Span, report: &mut Report<'_>) {
    let Value::List(items) = &node.value else {
        let problem = value::wrong_type(node, name, "a list");
        return report.flaw(node.span, problem.help("begin each item with `- `"));
    };
    if items.is_empty() {
        let problem = Problem::error(Code::MissingKey, node.head(), format!("`{name}` has no items"));
        return report.flaw(node.span, problem.help("add at least one"));
    }
    if items.len() > ITEMS_MAX {
        let said = format!("`{name}` has {} items", items.len());
        let problem = Problem::error(Code::TooLarge, node.head(), said);
        return report.flaw(node.span, problem.help(format!("write at most {ITEMS_MAX}")));
    }
    for item in items {
        match kind {
            Kind::Map(shape) if !item.is_null() => check(item, shape, item.head(), report),
            kind => check_value(item, kind, name, if item.is_null() { key } else { item.head() }, report),
        }
    }
}

fn check_named(node: &Node, shape: &'static Shape, name: &str, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        return report.flaw(node.span, value::wrong_type(node, name, "a map of names"));
    };
    if fields.len() > ITEMS_MAX {
        let problem = Problem::error(Code::TooLarge, node.head(), format!("`{name}` has {} names", fields.len()));
        return report.flaw(node.span, problem.help(format!("write at most {ITEMS_MAX}")));
    }
    for (key, child) in fields {
        if let Err(problem) = value::chosen_name(&key.text, key.span) {
            report.flaw(child.span, *problem);
        }
        check(child, shape, key.span, report);
    }
}

fn check_renames(node: &Node, name: &str, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        return report.flaw(node.span, value::wrong_type(node, name, "a map of words and names"));
    };
    if fields.len() > ITEMS_MAX {
        let problem = Problem::error(Code::TooLarge, node.head(), format!("`{name}` has {} words", fields.len()));
        return report.flaw(node.span, problem.help(format!("write at most {ITEMS_MAX}")));
    }
    for (key, named) in fields {
        if named.is_null() {
            let problem = Problem::error(Code::WrongType, key.span, format!("`{}` is empty", shown(&key.text)));
            report.flaw(named.span, problem.help("write a name after it, or remove it"));
        } else {
            keep(named, value::name(named, name), report);
        }
    }
}

fn check_patterns(node: &Node, name: &str, report: &mut Report<'_>) {
    match &node.value {
        Value::List(items) if (1..=ITEMS_MAX).contains(&items.len()) => {
            for item in items {
                keep(item, value::type_pattern(item, name), report);
            }
        }
        Value::List(items) => {
            let said = format!("`{name}` must have 1 to {ITEMS_MAX} types, not {}", items.len());
            report.flaw(node.span, Problem::error(Code::OutOfRange, node.head(), said));
        }
        _ => keep(node, value::type_pattern(node, name), report),
    }
}

fn check_key_rule(node: &Node, name: &str, report: &mut Report<'_>) {
    match &node.value {
        Value::List(items) if (1..=value::KEY_PARTS_MAX).contains(&items.len()) => {
            for item in items {
                keep(item, value::rule_part(item, name), report);
            }
        }
        _ => keep(node, value::key_rule(node, name), report),
    }
}

fn check_headers(node: &Node, name: &str, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        let problem = value::wrong_type(node, name, "a map of names and values");
        return report.flaw(node.span, problem);
    };
    let mut seen: HashMap<String, Span> = HashMap::new();
    for (key, value) in fields {
        if let Some((said, help)) = value::header_problem(&key.text) {
            report.add(Problem::error(Code::BadHeader, key.span, said).help(help));
        }
        if let Some(first) = seen.insert(key.text.to_ascii_lowercase(), key.span) {
            let said = format!("the header `{}` is written twice", shown(&key.text));
            let problem = Problem::error(Code::DuplicateKey, key.span, said).label("again here");
            report.add(problem.also(first, "first here").help("keep one of the two; header names have no case"));
        }
        check_names(value, value::header_value(value, &key.text).map(|value| Names::of(&value)), report);
    }
}

fn check_env(node: &Node, name: &str, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        return report.flaw(node.span, value::wrong_type(node, name, "a map of names and values"));
    };
    for (key, value) in fields {
        if let Some((said, help)) = value::env_problem(&key.text) {
            report.flaw(node.span, Problem::error(Code::BadEnv, key.span, said).help(help));
        }
        check_names(value, value::template(value, &key.text).map(|value| Names::of(&value)), report);
    }
}

fn check_attributes(node: &Node, name: &str, report: &mut Report<'_>) {
    let Value::Map(fields) = &node.value else {
        return report.flaw(node.span, value::wrong_type(node, name, "a map of names and templates"));
    };
    for (key, value) in fields {
        if let Some((said, help)) = value::attribute_problem(&key.text) {
            report.flaw(node.span, Problem::error(Code::BadName, key.span, said).help(help));
        }
        let template = value::template(value, &key.text).map(|text| Names::of(&text));
        check_roots(value, template, EVENT_ROOTS, report);
    }
}

fn check_body(node: &Node, name: &str, report: &mut Report<'_>) {
    if node.text().is_some() {
        return check_names(node, value::template(node, name).map(|text| Names::of(&text)), report);
    }
    check_tree(node, name, ROOTS, report);
}

fn check_tree(node: &Node, name: &str, known: &[&'static str], report: &mut Report<'_>) {
    for item in node.items() {
        check_tree(item, name, known, report);
    }
    for (key, item) in node.fields() {
        check_tree(item, &key.text, known, report);
    }
    if node.text().is_some() {
        // Read as a tree for its numbers, and as a template for the names in it.
        let text = value::tree(node, name).and_then(|_| value::template(node, name));
        check_roots(node, text.map(|text| Names::of(&text)), known, report);
    }
}

fn check_names(node: &Node, names: Read<Names>, report: &mut Report<'_>) {
    check_roots(node, names, ROOTS, report);
}

fn check_roots(node: &Node, names: Read<Names>, known: &[&'static str], report: &mut Report<'_>) {
    let names = match names {
        Ok(names) => names,
        Err(problem) => return report.flaw(node.span, *problem),
    };
    for root in names.roots.iter().filter(|root| !known.contains(&root.as_str())) {
        let span = report.narrow(node.span, root);
        let problem = Problem::error(Code::BadExpression, span, format!("the name `{}` is not known", shown(root)))
            .label("unknown name")
            .note(format!("names that are known here: {}", known.join(", ")));
        let help = match nearest(root, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("for a field of the event write `body.{0}`; for a text write `'{0}'`", shown(root)),
        };
        report.flaw(node.span, problem.help(help));
    }
    // Which secrets a workspace needs must be known before it runs.
    if names.roots.contains("secrets") && names.secrets.is_empty() {
        let span = report.narrow(node.span, "secrets");
        let problem = Problem::error(Code::BadExpression, span, "a secret is read without its name");
        report.flaw(node.span, problem.help("write `${secrets.NAME}` or `{{ secrets.NAME }}`"));
    }
}
