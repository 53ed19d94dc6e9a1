//! An integration below `integrations:` of `clinch.yml`.

use super::problem::{Code, Problem, shown};
use super::read::{Reader, word};
use super::step::read_headers;
use super::value::{self, Read, bad};
use super::yaml::{Key, Node};
use crate::breaker::BreakerRule;
use crate::effect::{EffectClass, Idempotency};
use crate::integration::{Auth, Integration, KEY_HEADER_DEFAULT, Lookup, Promise, Said, Spread, Statuses};
use crate::message::{Channel, MailServer, MessageBody, MessageRequest};
use crate::time::parse_duration;
use std::time::Duration;

const PROMISES: &[(&str, Idempotency)] = &[
    ("header", Idempotency::Header),
    ("lookup", Idempotency::Lookup),
    ("natural", Idempotency::Natural),
    ("none", Idempotency::None),
    ("wrap", Idempotency::Wrap),
];
pub(super) const CLASSES: &[&str] = &["read", "create", "state", "monetary"];
const JITTER_MAX: Duration = Duration::from_secs(60);

pub(super) fn read(name: &str, map: Reader<'_>) -> Option<Integration> {
    let usual = Integration::unsaid(name);
    let classes = [
        ("read", EffectClass::Read),
        ("create", EffectClass::Create),
        ("state", EffectClass::State),
        ("monetary", EffectClass::Monetary),
    ];
    let limit = map.map("rate_limit");
    let (rate, jitter) = match limit {
        Some(limit) => (limit.may("per_integration", value::rate)?, limit.may("jitter", spread)?),
        None => (map.may("rate", value::rate)?, map.may("jitter", spread)?),
    };
    let read = Integration {
        url: map.may("url", value::database_url)?,
        base_url: map.may("base_url", value::url)?,
        channel: read_channel(map)?,
        channel_name: map.may("channel", value::name)?,
        auth: match map.map("auth") {
            None => None,
            Some(auth) => Some(read_auth(auth)?),
        },
        headers: map.map("headers").map_or(Some(Vec::new()), read_headers)?,
        key_header: map.or("key_header", KEY_HEADER_DEFAULT, value::text)?.to_string(),
        timeout: map.may("timeout", value::duration)?,
        concurrency: match map.may("concurrency", value::int)? {
            None => None,
            Some(calls) => Some(usize::try_from(calls).ok()?),
        },
        rate,
        jitter,
        breaker: read_breaker(map)?,
        retry_on: map.or("retry_on", usual.retry_on.clone(), statuses)?,
        promise: Promise::default().with(read_promise(map)?),
        class: map.or("class", usual.class, word(&classes))?,
        propagate_trace: map.or("propagate_trace", false, value::bool)?,
        ..usual
    };
    map.is_sound().then_some(read)
}

/// The inner `None`: messages are not sent to it.
fn read_channel(map: Reader<'_>) -> Option<Option<Channel>> {
    if let Some(address) = map.may("smtp", value::mail_url)? {
        let clear = map.or("tls", false, word(&[("required", false), ("none", true)]))?;
        return Some(Some(Channel::Mail(Box::new(MailServer {
            address,
            clear,
            from: map.must("from", value::mailbox)?,
        }))));
    }
    match map.node.get("message") {
        None => return Some(None),
        Some(node) if node.text().is_some() => return Some(Some(Channel::Slack)),
        Some(_) => {}
    }
    let request = map.map("message")?;
    let field = |(key, node): &(Key, Node)| Some((key.text.clone(), value::template(node, &key.text).ok()?));
    let body = match (request.node.get("form"), request.node.get("body")) {
        (Some(form), _) => MessageBody::Form(form.fields().iter().map(field).collect::<Option<_>>()?),
        (_, Some(body)) => MessageBody::Tree(value::tree(body, "body").ok()?),
        (None, None) => MessageBody::Written,
    };
    let url = request.must("url", value::url_or_path)?;
    request.is_sound().then_some(Some(Channel::Request(Box::new(MessageRequest { url, body }))))
}

fn read_auth(auth: Reader<'_>) -> Option<Auth> {
    if auth.has("bearer") {
        return Some(Auth::Bearer(auth.must("bearer", value::secret)?));
    }
    let basic = auth.map("basic")?;
    Some(Auth::Basic { user: basic.must("user", value::template)?, password: basic.must("password", value::secret)? })
}

/// `none`, or the settings of one; without a word, the usual one.
fn read_breaker(map: Reader<'_>) -> Option<Option<BreakerRule>> {
    let usual = BreakerRule::default();
    let Some(node) = map.node.get("breaker") else {
        return Some(Some(usual));
    };
    if node.text().is_some() {
        return Some(None);
    }
    let said = map.map("breaker")?;
    let count = |name, usual: u32| u32::try_from(said.or(name, i64::from(usual), value::int)?).ok();
    Some(Some(BreakerRule {
        errors_percent: u8::try_from(said.or("errors_percent", i64::from(usual.errors_percent), value::int)?).ok()?,
        window: said.or("window", usual.window, value::duration)?,
        calls_min: count("min_calls", usual.calls_min)?,
        open_for: said.or("open_for", usual.open_for, value::duration)?,
        probes: count("probes", usual.probes)?,
    }))
}

/// What is written of a promise.
pub(super) fn read_promise(map: Reader<'_>) -> Option<Said> {
    let lookup = match map.map("lookup") {
        None => None,
        Some(lookup) => Some(Box::new(Lookup {
            method: lookup.or("method", "GET", value::text)?.to_string(),
            url: lookup.must("url", value::url_or_path)?,
            headers: lookup.map("headers").map_or(Some(Vec::new()), read_headers)?,
            done: lookup.must("done", value::expr)?,
        })),
    };
    let honoured_for = map.may("honoured_for", value::duration)?;
    let wrap_key = map.may("wrap_key", value::template)?;
    Some(Said { idempotency: map.may("idempotency", word(PROMISES))?, honoured_for, lookup, wrap_key })
}

/// `200-600ms`: the unit of the first may be left out.
pub(super) fn spread(node: &Node, name: &str) -> Read<Spread> {
    let written = value::text(node, name)?;
    let read = written.split_once('-').and_then(|(least, most)| {
        let unit: String = most.chars().skip_while(|c| c.is_ascii_digit()).collect();
        let most = parse_duration(most.trim()).ok()?;
        let least = least.trim();
        let least = parse_duration(least).or_else(|_| parse_duration(&format!("{least}{}", unit.trim()))).ok()?;
        (least <= most && most <= JITTER_MAX).then_some(Spread { least, most })
    });
    read.ok_or_else(|| {
        let said = format!("`{}` is not a pause between two lengths", shown(written));
        Box::new(bad(Code::BadSpread, node, said).help("write the shortest and the longest, as in 200-600ms"))
    })
}

/// A list of `429` and `500-599`.
pub(super) fn statuses(node: &Node, name: &str) -> Read<Statuses> {
    let mut ranges = Vec::new();
    for item in node.items() {
        let written = value::text(item, name)?;
        let (first, last) = written.split_once('-').unwrap_or((written, written));
        match (status(first), status(last)) {
            (Some(first), Some(last)) if first <= last => ranges.push((first, last)),
            _ => {
                let said = format!("`{}` is not a status, nor a range of them", shown(written));
                return Err(Box::new(
                    bad(Code::BadStatuses, item, said).help("write 429 or 500-599, between 300 and 599"),
                ));
            }
        }
    }
    Ok(Statuses(ranges))
}

fn status(text: &str) -> Option<u16> {
    text.trim().parse().ok().filter(|status| (300..=599).contains(status))
}

/// What is wrong with an integration beyond its values.
pub(super) fn check(map: Reader<'_>, problems: &mut Vec<Problem>) {
    let promised = map.node.get("idempotency").and_then(Node::text);
    if promised == Some("lookup")
        && let Some((key, _)) = map.node.entry("idempotency").filter(|_| !map.has("lookup"))
    {
        let said = "`idempotency: lookup` needs to know what to ask";
        let problem = Problem::error(Code::MissingKey, key.span, said).label("needs `lookup`");
        problems.push(problem.help("add `lookup:` and below it `url:` and `done:`, which is true when it was done"));
    }
    check_mail(map, promised, problems);
    check_slack(map, promised, problems);
    if let Some((key, _)) =
        map.node.entry("honoured_for").filter(|_| promised.is_some_and(|word| word != "header" && word != "wrap"))
    {
        let said = "`honoured_for` says how long a key is honoured, and no key is";
        let problem = Problem::error(Code::EitherOr, key.span, said).label("goes with `idempotency: header` or `wrap`");
        problems.push(problem.help("remove it"));
    }
    if let Some((key, _)) = map.node.entry("wrap_key").filter(|_| promised.is_some_and(|word| word != "wrap")) {
        let said = "`wrap_key` says what is remembered under which key, and nothing is";
        let problem = Problem::error(Code::EitherOr, key.span, said).label("goes with `idempotency: wrap`");
        problems.push(problem.help("remove it, or write `idempotency: wrap`"));
    }
}

/// What is said of a mail server, and what is said as if there were one.
fn check_mail(map: Reader<'_>, promised: Option<&str>, problems: &mut Vec<Problem>) {
    let Some((smtp, _)) = map.node.entry("smtp") else {
        for (key, _) in ["tls", "from"].iter().filter_map(|name| map.node.entry(name)) {
            let problem = Problem::error(Code::MissingKey, key.span, format!("`{}` needs a mail server", key.text));
            problems.push(problem.label("goes with `smtp`").help("add `smtp: smtp://host:587`, or remove it"));
        }
        if let Some(form) = map.map("message").and_then(|message| message.node.get("form"))
            && (form.fields().is_empty() || form.fields().iter().any(|(_, value)| value.text().is_none()))
        {
            let problem = Problem::error(Code::WrongType, form.head(), "a form has names, each with a text");
            problems.push(problem.help("write `form: {To: \"{{ message.to }}\", Body: \"{{ message.text }}\"}`"));
        }
        return;
    };
    if !map.has("from") {
        let problem = Problem::error(Code::MissingKey, smtp.span, "mails must be from somebody").label("needs `from`");
        problems.push(problem.help("add `from: Shop <hello@example.com>`"));
    }
    if let Some((key, _)) =
        map.node.entry("idempotency").filter(|_| matches!(promised, Some("header" | "lookup" | "wrap")))
    {
        let said = "a mail server neither honours a key nor can be asked, and nothing is remembered for it";
        let problem = Problem::error(Code::BadChoice, key.span, said);
        problems.push(
            problem.help("write `none` (a person is asked when an answer is lost) or `natural` (it is sent again)"),
        );
    }
}

/// Slack takes no key: what is sent to it a second time is posted a second time.
fn check_slack(map: Reader<'_>, promised: Option<&str>, problems: &mut Vec<Problem>) {
    let is_slack = map.node.get("message").and_then(Node::text) == Some("slack");
    if let Some((key, _)) = map.node.entry("idempotency").filter(|_| is_slack && promised == Some("header")) {
        let problem = Problem::error(Code::BadChoice, key.span, "Slack honours no key");
        problems.push(
            problem.help("write `none` (a person is asked when an answer is lost) or `natural` (it is posted again)"),
        );
    }
}
