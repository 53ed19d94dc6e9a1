//! A source in a file: below `sources:` of `clinch.yml`, or as a flow's own `http:` trigger.

use super::problem::{Code, Problem, Span, shown};
use super::read::{Reader, Spot, word};
use super::value::{self, Read};
use super::yaml::Node;
use crate::flow::{BODY_BYTES_DEFAULT, Method, OnConflict, OnDuplicateOfDead, TypePattern};
use crate::key::KeyPart;
use crate::minimise::{BadRules, Minimise, Wanted};
use crate::signature::handshake::Handshake;
use crate::signature::presets::{self, Preset};
use crate::signature::{SECRETS_MAX, Scheme, settings};
use crate::source::{
    CloudEvents, Content, Keys, KindRule, LimitMode, LimitRule, OnMismatch, Proof, SameBody, SchemaRule, SecretRule,
    SignatureRule, Source, TTL_DEFAULT,
};
use crate::time::human;
use crate::trace::Incoming;
use std::collections::HashSet;
use std::time::Duration;

/// What a file says about a source, as far as it can be read.
pub(super) struct SourceFile {
    pub name: Spot<String>,
    /// Where its path is written; for a path that follows from the name, where that is.
    pub path: Option<Spot<String>>,
    pub ttl: Option<Spot<Duration>>,
    pub schemas: Vec<Spot<String>>,
    pub source: Option<Source>,
}

/// The preset that stands for senders of no provider.
const ANY: &str = "hmac";
const NONE: &str = "none";
const SENDER: &str = "sender";
const INCOMING: [(&str, Incoming); 3] =
    [("link", Incoming::Link), ("continue", Incoming::Continue), ("ignore", Incoming::Ignore)];
const SAME_BODY: [(&str, SameBody); 2] = [("count", SameBody::Count), ("drop", SameBody::Drop)];

/// A source under `sources:`, by its name.
pub(super) fn read_named(name: Spot<String>, map: Reader<'_>) -> SourceFile {
    let path = match map.has("path") {
        true => map.spot("path", value::path),
        false => Some(Spot { value: format!("/in/{}", name.value), ..name.clone() }),
    };
    let scope = format!("source {}", name.value);
    let source = path.as_ref().and_then(|path| read(map, Method::Post, &name.value, &path.value, scope));
    SourceFile { path, ttl: map.spot("ttl", value::duration), schemas: schemas(map), source, name }
}

/// An `http:` trigger that says more than a route does. Its keys are those of the route, so that nothing is accepted twice
/// when a signature is added to it; and a status that the flow names stays what is answered.
pub(super) fn read_inline(flow: Spot<String>, method: Method, status: Option<u16>, http: Reader<'_>) -> SourceFile {
    let path = http.spot("path", value::path);
    let source = path.as_ref().and_then(|path| {
        let scope = format!("{} {}", method.word(), path.value);
        let source = read(http, method, &flow.value, &path.value, scope)?;
        let ack = status.filter(|_| !http.has("ack")).unwrap_or(source.ack);
        Some(Source { ack, ..source })
    });
    let ttl = http.map("idempotency").unwrap_or(http).spot("ttl", value::duration);
    SourceFile { path, ttl, schemas: schemas(http), source, name: flow }
}

/// Whether a trigger says more than a route that anybody may send to.
pub(super) fn is_source(http: Reader<'_>) -> bool {
    let more = super::dialect::EDGE.iter().map(|field| field.name).any(|name| name != "verify" && http.has(name));
    more || http.node.get("verify").is_some_and(|verify| verify.text() != Some(NONE))
}

fn read(map: Reader<'_>, method: Method, name: &str, path: &str, scope: String) -> Option<Source> {
    let verify = map.may("verify", verify)?.unwrap_or(Verify::None);
    let preset = verify.preset();
    let words = [("reject", LimitMode::Reject), ("defer", LimitMode::Defer)];
    let limits = match map.map("limits") {
        None => LimitRule::default(),
        Some(limits) => LimitRule {
            address: limits.may("address", value::rate)?,
            sender: limits.may("sender", value::rate)?,
            source: limits.may("source", value::rate)?,
            mode: limits.or("mode", LimitMode::Reject, word(&words))?,
        },
    };
    let cloudevents = match map.map("cloudevents") {
        None => CloudEvents::default(),
        Some(said) => CloudEvents {
            batches: said.or("batches", false, value::bool)?,
            origins: said.or("origins", Vec::new(), texts)?,
        },
    };
    let source = Source {
        name: name.to_string(),
        method,
        path: path.to_string(),
        scope,
        body_bytes_max: map.or("body_max", BODY_BYTES_DEFAULT, value::size)?,
        preset,
        keys: read_keys(map, name, &verify)?,
        ack: u16::try_from(map.or("ack", i64::from(preset.ack), value::int)?).ok()?,
        kind: match (map.may("type", value::name)?, map.may("type_from", value::key_part)?) {
            (Some(kind), _) => KindRule::Fixed(kind),
            (None, Some(part)) => KindRule::From(part),
            (None, None) => KindRule::Preset,
        },
        kinds: map.or("types", Vec::new(), value::renames)?,
        tenant: map.may("tenant_from", value::key_part)?,
        find_by: map.may("find_by", value::key_rule)?.map_or_else(Vec::new, |rule| rule.parts().to_vec()),
        schema: read_schema(map, &verify)?,
        minimise: minimise(map, preset)?.ok()?,
        cloudevents,
        limits,
        content: map.or("content", Content::Preset, word(&[("json", Content::Preset), ("raw", Content::Raw)]))?,
        takes_gzip: map.has("accept_encoding"),
        trace: match map.map("trace") {
            None => Incoming::Link,
            Some(trace) => trace.or("incoming", Incoming::Link, word(&INCOMING))?,
        },
        silence: map.may("silence", value::duration)?,
        same_body: match verify.signs_no_id().then(|| map.or("same_body", SameBody::Count, word(&SAME_BODY))) {
            Some(rule) => Some(rule?),
            None => None,
        },
        proof: match verify {
            Verify::None => None,
            Verify::Sender => Some(Proof::Sender),
            Verify::By(_, scheme) => Some(Proof::Signature(Box::new(read_proof(map, *scheme)?))),
        },
    };
    map.is_sound().then_some(source)
}

/// What stands after `verify:`.
#[derive(Clone, Debug)]
pub(super) enum Verify {
    None,
    /// By a token that was made here.
    Sender,
    By(&'static Preset, Box<Scheme>),
}

impl Verify {
    fn preset(&self) -> &'static Preset {
        match self {
            Verify::None | Verify::Sender => presets::find(ANY).expect("it is one of the presets"),
            Verify::By(preset, _) => preset,
        }
    }

    /// Its deliveries are a provider's, who would not understand a conflict.
    fn is_provider(&self) -> bool {
        matches!(self, Verify::By(..))
    }

    /// Whoever captured a delivery can write another id on it.
    fn signs_no_id(&self) -> bool {
        matches!(self, Verify::By(preset, _) if !preset.id_is_signed)
    }
}

/// The name of a preset, `none`, or the settings of a scheme.
pub(super) fn verify(node: &Node, name: &str) -> Read<Verify> {
    let bad = |code, said: String| Problem::error(code, node.head(), said);
    if let Some(written) = node.text() {
        if written == NONE {
            return Ok(Verify::None);
        }
        if written == SENDER {
            return Ok(Verify::Sender);
        }
        return match presets::find(written) {
            Ok(preset) => Ok(Verify::By(preset, Box::new((preset.scheme)()))),
            Err(unknown) => {
                let problem = bad(Code::BadChoice, format!("there is no preset `{}`", shown(written)));
                Err(Box::new(match unknown.meant {
                    Some(meant) => problem.help(format!("did you mean `{meant}`?")),
                    None => problem.help("`clinch presets ls` names them; write `none` if nobody signs"),
                }))
            }
        };
    }
    let mut pairs = Vec::new();
    for (key, setting) in node.fields() {
        pairs.push((key.text.as_str(), value::text(setting, &key.text)?));
    }
    match settings::read(&pairs) {
        Ok(signed) => Ok(Verify::By(presets::find(ANY).expect("a preset"), Box::new(signed.into()))),
        Err(error) => {
            let said = format!("these settings of `{name}` prove nothing: {error}");
            Err(Box::new(bad(Code::BadVerify, said).help("docs/sources.md tells every setting")))
        }
    }
}

fn read_proof(map: Reader<'_>, scheme: Scheme) -> Option<SignatureRule> {
    Some(SignatureRule {
        scheme,
        secrets: secrets(map)?,
        public_url: map.may("public_url", value::public_url)?,
        tolerance: map.may("tolerance", value::duration)?,
        verify_token: map.may("verify_token", value::variable)?,
    })
}

/// The secrets, under either key.
fn secrets(map: Reader<'_>) -> Option<Vec<SecretRule>> {
    let alone = |variable: String| SecretRule { id: variable.clone(), variable, not_before: None, not_after: None };
    if let Some(variable) = map.may("secret", value::variable)? {
        return Some(vec![alone(variable)]);
    }
    let items = map.node.get("secrets").map_or(&[][..], Node::items);
    let dated = |node: &Node| {
        let map = Reader { node, report: map.report };
        let variable = map.must("secret", value::variable)?;
        Some(SecretRule {
            id: map.or("id", variable.clone(), value::name)?,
            variable,
            not_before: map.may("not_before", value::moment)?,
            not_after: map.may("not_after", value::moment)?,
        })
    };
    let read = |node: &Node| match node.text() {
        Some(_) => value::variable(node, "secrets").ok().map(alone),
        None => dated(node),
    };
    items.iter().map(read).collect()
}

fn read_keys(map: Reader<'_>, name: &str, verify: &Verify) -> Option<Keys> {
    let conflicts = [("reject", OnConflict::Reject), ("keep_first", OnConflict::KeepFirst)];
    let dead = [("keep", OnDuplicateOfDead::Keep), ("replay", OnDuplicateOfDead::Replay)];
    let on_conflict = if verify.is_provider() { OnConflict::KeepFirst } else { OnConflict::Reject };
    let rule = map.map("idempotency").unwrap_or(map);
    Some(Keys {
        rule: rule.may("key_from", value::key_rule)?,
        required: rule.or("required", true, value::bool)?,
        store: rule.or("store", name.to_string(), |node, name| value::prefixed(node, name, "kv:"))?,
        ttl: rule.or("ttl", ttl_default(verify.preset()), value::duration)?,
        on_conflict: rule.or("on_conflict", on_conflict, word(&conflicts))?,
        on_duplicate_of_dead: rule.or("on_duplicate_of_dead", OnDuplicateOfDead::Keep, word(&dead))?,
    })
}

fn ttl_default(preset: &Preset) -> Duration {
    preset.retry_window().map_or(TTL_DEFAULT, |window| window.max(TTL_DEFAULT))
}

fn read_schema(map: Reader<'_>, verify: &Verify) -> Option<Option<SchemaRule>> {
    let rules = [("reject", OnMismatch::Reject), ("dead_letter", OnMismatch::DeadLetter)];
    let usual = if verify.is_provider() { OnMismatch::DeadLetter } else { OnMismatch::Reject };
    let on_mismatch = map.or("on_mismatch", usual, word(&rules))?;
    let by_kind = map.may("schema", value::schemas)?;
    Some(by_kind.map(|by_kind| SchemaRule { by_kind, on_mismatch }))
}

/// The schemas that a source names, each at its place.
fn schemas(map: Reader<'_>) -> Vec<Spot<String>> {
    let Some(node) = map.node.get("schema") else { return Vec::new() };
    let file = map.report.file.to_string();
    let spot = |node: &Node| {
        let value = value::name(node, "schema").ok()?;
        Some(Spot { value, file: file.clone(), span: node.head() })
    };
    match node.text() {
        Some(_) => spot(node).into_iter().collect(),
        None => node.fields().iter().filter_map(|(_, node)| spot(node)).collect(),
    }
}

pub(super) fn texts(node: &Node, name: &str) -> Read<Vec<String>> {
    node.items().iter().map(|item| value::text(item, name).map(str::to_string)).collect()
}

fn minimise(map: Reader<'_>, preset: &Preset) -> Option<Result<Minimise, BadRules>> {
    let list = |name: &str| map.may(name, texts);
    let (keep, drop, hash, headers) = (list("keep")?, list("drop")?, list("hash")?, list("headers")?);
    // What a provider puts into the body to prove itself is never stored.
    let drop: Vec<String> = drop.into_iter().flatten().chain(preset.drop.iter().map(ToString::to_string)).collect();
    let hash = hash.unwrap_or_default();
    Some(Minimise::new(Wanted { keep: keep.as_deref(), drop: &drop, hash: &hash, headers: headers.as_deref() }))
}

/// What is wrong with a source as a whole, though each of its keys is right. `at` is where to point when nothing is there.
pub(super) fn check(map: Reader<'_>, at: Span, report: &mut Problems) {
    let verify = match map.node.get("verify").filter(|node| !map.report.is_flawed(node.span)) {
        Some(node) => match verify(node, "verify") {
            Ok(verify) => verify,
            // The words of a preset were looked at before; settings are looked at together, which is here.
            Err(problem) => return report.extend(node.text().is_none().then_some(*problem)),
        },
        None if map.has("verify") => return,
        None => Verify::None,
    };
    match &verify {
        Verify::None => report.extend(unsigned(map, "`verify: none` says that nobody does")),
        Verify::Sender => report.extend(unsigned(map, "`verify: sender` takes tokens")),
        Verify::By(preset, scheme) => report.extend(signed(map, preset, scheme, at)),
    }
    let preset = verify.preset();
    let broken = minimise(map, preset).and_then(Result::err);
    // A path that cannot be read was told at its own place.
    let broken = broken.filter(|error| !matches!(error, BadRules::Pointer { .. }));
    report.extend(broken.map(|error| bad_rules(map, at, &error)));
    report.extend(hidden_type(map, preset));
    report.extend(idle_limit(map, &verify));
    report.extend(idle_guard(map, &verify));
    report.extend(unproven_trace(map, &verify));
    report.extend(raw(map, preset));
    report.extend(short_ttl(map, preset));
    if let Some((key, _)) = map.node.entry("on_mismatch").filter(|_| !map.has("schema")) {
        let said = "`on_mismatch` is for a source with a schema, and this one has none";
        report.push(Problem::error(Code::EitherOr, key.span, said).help("add `schema: NAME`, or remove it"));
    }
}

/// Problems of one file, collected while the file is being read.
pub(super) type Problems = Vec<Problem>;

/// Whoever may send could make us record what it wants, in whose trace it wants.
fn unproven_trace(map: Reader<'_>, verify: &Verify) -> Option<Problem> {
    let (_, node) = map.map("trace")?.node.entry("incoming")?;
    if node.text() != Some("continue") || !matches!(verify, Verify::None) {
        return None;
    }
    let said = "a trace is continued only for a sender that is known, and here anybody may send";
    let problem = Problem::error(Code::EitherOr, node.head(), said).label("needs `verify`");
    Some(problem.help("add `verify:` (`clinch presets ls`), or write `incoming: link`"))
}

/// A limit for each sender needs senders that can be told apart.
fn idle_limit(map: Reader<'_>, verify: &Verify) -> Option<Problem> {
    let (key, _) = map.map("limits")?.node.entry("sender").filter(|_| !matches!(verify, Verify::Sender))?;
    let said = "`limits: sender` is for senders that are told apart by their tokens";
    let problem = Problem::error(Code::EitherOr, key.span, said).label("there is one sender here");
    Some(problem.help("write `verify: sender`, or limit the source as a whole with `source:`"))
}

/// A guard against another id on the same body, where there is something to guard against.
fn idle_guard(map: Reader<'_>, verify: &Verify) -> Option<Problem> {
    let (key, _) = map.node.entry("same_body")?;
    if !verify.signs_no_id() {
        let said = "`same_body` is for senders that sign the body and not the id";
        let problem = Problem::error(Code::EitherOr, key.span, said).label("nothing to guard against");
        return Some(problem.help("remove it"));
    }
    let drops = map.must("same_body", word(&SAME_BODY)) == Some(SameBody::Drop);
    let (other, _) = map.map("idempotency").unwrap_or(map).node.entry("key_from").filter(|_| drops)?;
    let said = "`same_body: drop` recognises an event by its body, and `key_from` by something else";
    let problem = Problem::error(Code::EitherOr, key.span, said).also(other.span, "the other rule");
    Some(problem.help("remove one of the two"))
}

/// Nothing looks into raw bytes.
fn raw(map: Reader<'_>, preset: &Preset) -> Problems {
    let words = [("json", Content::Preset), ("raw", Content::Raw)];
    let Some((key, _)) = map.node.entry("content") else { return Problems::new() };
    if map.must("content", word(&words)) != Some(Content::Raw) {
        return Problems::new();
    }
    let mut found = Problems::new();
    if !preset.family.is_empty() {
        let said = format!("`content: raw` is for senders of any bytes, and those of `{}` are known", preset.name);
        found.push(Problem::error(Code::EitherOr, key.span, said).help("remove it"));
    }
    let rule = map.map("idempotency").unwrap_or(map);
    let looks = |map: Reader<'_>, name: &str| map.must(name, value::key_rule).is_some_and(|rule| rule.reads_body());
    let reading = [(rule, "key_from"), (map, "tenant_from"), (map, "type_from"), (map, "find_by")];
    let reading = reading.into_iter().filter(|(map, name)| looks(*map, name));
    let cutting = ["keep", "drop", "hash", "schema", "cloudevents"].into_iter().map(|name| (map, name));
    for (other, _) in reading.chain(cutting).filter_map(|(map, name)| map.node.entry(name)) {
        let said = format!("`{}` looks into the body, and nothing looks into raw bytes", other.text);
        let problem = Problem::error(Code::EitherOr, other.span, said).also(key.span, "any bytes");
        found.push(problem.help("remove one of the two; `header:NAME` can be read"));
    }
    found
}

/// Nobody signs: what is only for signatures has no meaning.
fn unsigned(map: Reader<'_>, why: &str) -> Problems {
    let idle = ["secret", "secrets", "public_url", "tolerance", "verify_token"];
    let written = idle.iter().filter_map(|name| map.node.entry(name));
    let verify = map.node.entry("verify").map(|(key, _)| key.span);
    let problem = |(key, _): (&super::yaml::Key, &Node)| {
        let said = format!("`{}` is for senders that sign, and {why}", key.text);
        let problem = Problem::error(Code::EitherOr, key.span, said).label("never looked at");
        let problem = verify.into_iter().fold(problem, |problem, span| problem.also(span, "nothing is signed"));
        problem.help("name the sender's preset after `verify:` (`clinch presets ls`), or remove this")
    };
    written.map(problem).collect()
}

fn signed(map: Reader<'_>, preset: &Preset, scheme: &Scheme, at: Span) -> Problems {
    let place = map.node.entry("verify").map_or(at, |(key, _)| key.span);
    let missing = |said: String, help: &str| Problem::error(Code::MissingKey, place, said).help(help);
    let mut found = Problems::new();
    match secrets(map).filter(|_| map.has("secret") || map.has("secrets")) {
        None if map.has("secret") || map.has("secrets") => {}
        None => {
            let said = format!("`{}` signs its requests, and there is no secret to check them with", preset.name);
            found.push(missing(said, "add `secret: ${secrets.NAME}`; the value is read from the environment"));
        }
        Some(secrets) if secrets.len() > SECRETS_MAX => {
            let said = format!("{} secrets are more than the {SECRETS_MAX} of a rotation", secrets.len());
            found.push(Problem::error(Code::OutOfRange, place, said).help("remove those that no sender uses any more"));
        }
        Some(secrets) => {
            let mut seen = HashSet::new();
            let twice = secrets.iter().find(|secret| !seen.insert(secret.id.as_str()));
            found.extend(twice.map(|secret| {
                let said = format!("two secrets have the id `{}`", secret.id);
                Problem::error(Code::DuplicateName, place, said).help("give each an id of its own")
            }));
        }
    }
    if scheme.needs_url() && !map.has("public_url") {
        let said = format!("`{}` signs the address it calls, and that is not known here", preset.name);
        found.push(missing(said, "add `public_url:` exactly as it is in the sender's settings"));
    }
    let asks = preset.handshake == Some(Handshake::Meta);
    if asks && !map.has("verify_token") {
        let said = format!("`{}` asks with a verify token before it delivers", preset.name);
        found.push(missing(said, "add `verify_token: ${secrets.NAME}`, the word from the sender's settings"));
    }
    if let Some((key, _)) = map.node.entry("verify_token").filter(|_| !asks) {
        let said = format!("`{}` never asks with a verify token", preset.name);
        found.push(Problem::error(Code::EitherOr, key.span, said).help("remove it"));
    }
    found
}

fn bad_rules(map: Reader<'_>, at: Span, error: &BadRules) -> Problem {
    let list = match error {
        BadRules::Pointer { list, .. } | BadRules::Contradiction { list, .. } => list,
        BadRules::HeaderName(_) | BadRules::Credential(_) => "headers",
        BadRules::TooMany(_) => "drop",
    };
    let span = map.node.entry(list).map_or(at, |(key, _)| key.span);
    Problem::error(Code::BadRules, span, error.to_string()).label("cannot be kept like this")
}

/// A type is written down and matched in clear.
fn hidden_type(map: Reader<'_>, preset: &Preset) -> Option<Problem> {
    let part = map.spot("type_from", value::key_part)?;
    let rules = minimise(map, preset)?.ok()?;
    let KeyPart::Body(pointer) = &part.value else { return None };
    if rules.shows(pointer) {
        return None;
    }
    let said = format!("`type_from` reads {}, which is not kept, and a type is written down", part.value);
    Some(Problem::error(Code::BadRules, part.span, said).help("keep that field, or say the type with `type:`"))
}

fn short_ttl(map: Reader<'_>, preset: &Preset) -> Option<Problem> {
    let ttl = map.map("idempotency").unwrap_or(map).spot("ttl", value::duration)?;
    let window = preset.retry_window().filter(|window| ttl.value < *window)?;
    let said = format!(
        "keys are forgotten after {}, and `{}` tries again for {}",
        human(ttl.value),
        preset.name,
        human(window)
    );
    let problem =
        Problem::warning(Code::TtlShorterThanRetries, ttl.span, said).label("a late try would be a new event");
    Some(problem.help(format!("write `ttl: {}` or longer, or remove it", human(window))))
}

/// A route that anybody may send to must say so, or `check` asks.
pub(super) fn unsaid(http: Reader<'_>) -> Option<Problem> {
    if http.has("verify") {
        return None;
    }
    let place = http.spot("path", value::path)?;
    let said = format!("anybody may send to {}: nothing proves who does", place.value);
    let problem = Problem::warning(Code::Unverified, place.span, said).label("not verified");
    Some(problem.help("name the sender's preset after `verify:` (`clinch presets ls`), or write `verify: none`"))
}

/// The patterns after `on:`.
pub(super) fn patterns(node: &Node, name: &str) -> Read<Vec<TypePattern>> {
    match node.text() {
        Some(_) => Ok(vec![value::type_pattern(node, name)?]),
        None => node.items().iter().map(|item| value::type_pattern(item, name)).collect(),
    }
}
