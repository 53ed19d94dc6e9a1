//! `clinch.yml`.

use super::alert_file;
use super::dialect::SETTINGS;
use super::integration;
use super::nearest::nearest;
use super::oidc;
use super::problem::{Code, Problem, Report, printable};
use super::read::{Reader, Spot, word};
use super::shape;
use super::source::{self, SourceFile};
use super::step::read_headers;
use super::value;
use super::yaml::{Key, Node};
use super::{ConnectionLimits, Encryption, MetricsRule, Settings, SharedStore, SlackButtons, TlsRule};
use crate::breaker::BreakerRule;
use crate::budget::Allowance;
use crate::egress::Allowed;
use crate::integration::Integration;
use crate::mask::{BadRules, Rules, Wanted};
use crate::safe_mode::{Circuits, SafeModeRule, Trip};
use crate::slo::Slo;
use crate::trace::{self, AttributeRule, Protocol, Share};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// The errors of safe mode are counted over so long, if nothing else is said.
const ERRORS_WINDOW: Duration = Duration::from_secs(300);

/// What the settings say, as far as they can be read.
#[derive(Default)]
pub(super) struct SettingsFile {
    pub settings: Settings,
    /// The names of the key stores.
    pub kv: Vec<Spot<String>>,
    pub sources: Vec<SourceFile>,
    pub integrations: Vec<Arc<Integration>>,
    pub integration_names: Vec<Spot<String>>,
    /// The templates of safe mode: instead of which, and which.
    pub safe_templates: Vec<(Spot<String>, Spot<String>)>,
    /// Whose circuits turn it on.
    pub safe_circuits: Vec<Spot<String>>,
}

pub(super) fn read(root: &Node, report: &mut Report<'_>) -> SettingsFile {
    shape::check(root, &SETTINGS, root.head(), report);
    let reader = Reader { node: root, report };
    let (listen, admin) = (reader.spot("listen", value::address), reader.spot("admin", value::address));
    let slo = reader.map("slo").and_then(read_slo);
    let stores = reader.node.get("kv").map_or(&[][..], Node::fields);
    let sources = reader.node.get("sources").map_or(&[][..], Node::fields);
    let integrations = reader.node.get("integrations").map_or(&[][..], Node::fields);
    let spot = |(key, _): &(Key, Node)| Spot { value: key.text.clone(), file: report.file.to_string(), span: key.span };
    let file = SettingsFile {
        settings: Settings {
            listen: listen.as_ref().map(|spot| spot.value),
            admin: admin.as_ref().map(|spot| spot.value),
            masking: reader.map("masking").and_then(|map| masking(map)?.ok()).unwrap_or_default(),
            tls: reader.map("tls").and_then(read_tls),
            admin_tls: reader.map("admin_tls").and_then(read_tls),
            connections: reader.map("connections").map(read_connections).unwrap_or_default(),
            encryption: read_encryption(reader),
            egress: reader.map("egress").and_then(|map| map.or("allow", Vec::new(), allowed)).unwrap_or_default(),
            safe_mode: reader.map("safe_mode").and_then(read_safe_mode).unwrap_or_default(),
            approvals: reader.map("approvals").and_then(read_approvals),
            console_hosts: reader.map("console").and_then(read_hosts).unwrap_or_default(),
            slo: slo.unwrap_or_default(),
            metrics: reader.map("metrics").and_then(read_metrics).unwrap_or_default(),
            oidc: reader.map("oidc").and_then(oidc::read),
            tracing: reader.map("tracing").and_then(read_tracing).unwrap_or_default(),
            alerts: alert_file::read(reader, slo.map(|slo| slo.end_to_end)),
            kv: stores.iter().filter_map(|(key, node)| read_store(&key.text, Reader { node, report })).collect(),
        },
        kv: stores.iter().map(spot).collect(),
        integrations: integrations
            .iter()
            .filter_map(|(key, node)| integration::read(&key.text, Reader { node, report }))
            .map(|read| Arc::new(Integration { carries: channels(reader, &read.name), ..read }))
            .collect(),
        integration_names: integrations.iter().map(spot).collect(),
        safe_templates: safe_templates(reader),
        safe_circuits: safe_circuits(reader),
        sources: sources
            .iter()
            .map(|entry| source::read_named(spot(entry), Reader { node: &entry.1, report }))
            .collect(),
    };
    let mut problems: Vec<Problem> = reader.map("masking").and_then(bad_masking).into_iter().collect();
    problems.extend(reader.map("console").and_then(bad_host));
    reader.map("oidc").into_iter().for_each(|map| oidc::check(map, &mut problems));
    alert_file::check(reader, &file, &mut problems);
    problems.extend(messaging(reader).filter_map(|(_, named)| no_carrier(&named, &file)));
    integrations.iter().for_each(|(_, node)| integration::check(Reader { node, report }, &mut problems));
    for (key, node) in sources {
        let map = Reader { node, report };
        if map.has("verify") {
            source::check(map, key.span, &mut problems);
        } else if node.text().is_none() {
            let said = format!("source `{}` does not say how its sender is recognised", key.text);
            let problem = Problem::error(Code::MissingKey, key.span, said).label("needs `verify`");
            problems.push(problem.help("add `verify: PRESET` (`clinch presets ls`), or `verify: none`"));
        }
    }
    problems.into_iter().for_each(|problem| report.add(problem));
    if let (Some(listen), Some(admin)) = (listen, admin)
        && listen.value == admin.value
        && listen.value.port() != 0
    {
        let said = "`listen` and `admin` are the same address: what is private would be public";
        let problem = Problem::error(Code::BadAddress, admin.span, said).label("also for the console and the API");
        report.add(problem.also(listen.span, "for deliveries").help("give one of them another port"));
    }
    for kv in &file.kv {
        report.add(forgetful(kv));
    }
    file
}

/// The channels below `messaging:`, each with the integration that carries its messages.
fn messaging<'a>(settings: Reader<'a>) -> impl Iterator<Item = (&'a str, Spot<String>)> {
    let channels = settings.node.get("messaging").map_or(&[][..], Node::fields).iter();
    channels.filter_map(move |(key, node)| {
        let value = value::name(node, &key.text).ok()?;
        Some((key.text.as_str(), Spot { value, file: settings.report.file.to_string(), span: node.head() }))
    })
}

fn channels(settings: Reader<'_>, integration: &str) -> Vec<String> {
    let own = messaging(settings).filter(|(_, named)| named.value == integration);
    own.map(|(channel, _)| channel.to_string()).collect()
}

/// A channel whose integration is not there, or that no message can be sent to.
fn no_carrier(named: &Spot<String>, file: &SettingsFile) -> Option<Problem> {
    let known = file.integration_names.iter().map(|known| known.value.as_str());
    if !known.clone().any(|known| known == named.value) {
        let said = format!("integration `{}` is not defined", named.value);
        let problem = Problem::error(Code::UnknownIntegration, named.span, said).label("unknown integration");
        let add = format!("add it below `integrations:`:\n  {}:\n    smtp: smtp://…", named.value);
        return Some(problem.meant(nearest(&named.value, known), add));
    }
    let read = file.integrations.iter().find(|known| *known.name == *named.value)?;
    read.channel.is_none().then(|| {
        let said = format!("integration `{}` does not say how a message is sent to it", named.value);
        let problem = Problem::error(Code::BadMailServer, named.span, said).label("has neither `smtp` nor `message`");
        problem.help(format!("add `smtp:` and `from:`, or `message:`, below `{}:`", named.value))
    })
}

fn masking(map: Reader<'_>) -> Option<Result<Rules, BadRules>> {
    let list = |name: &str| map.or(name, Vec::new(), source::texts);
    let (names, pointers) = (list("fields")?, list("pointers")?);
    Some(Rules::new(Wanted { names: &names, pointers: &pointers, addresses: map.or("addresses", false, value::bool)? }))
}

/// What no field can be called, at its place. A path that cannot be read was told at its own.
fn bad_masking(map: Reader<'_>) -> Option<Problem> {
    let error = masking(map)?.err().filter(|error| !matches!(error, BadRules::Pointer(_)))?;
    let items = map.node.get("fields").map_or(&[][..], Node::items);
    let is_bad = |item: &&Node| {
        let names: Vec<String> = item.text().map(str::to_string).into_iter().collect();
        Rules::new(Wanted { names: &names, ..Wanted::default() }).is_err()
    };
    let (code, span) = match items.iter().find(is_bad) {
        Some(item) => (Code::BadName, item.head()),
        None => (Code::OutOfRange, map.node.head()),
    };
    Some(Problem::error(code, span, printable(&error.to_string())))
}

/// Hosts and networks that may be called though they are inside.
pub(super) fn allowed(node: &Node, name: &str) -> value::Read<Vec<Allowed>> {
    node.items().iter().map(|item| value::allowed(item, name)).collect()
}

fn read_slo(map: Reader<'_>) -> Option<Slo> {
    let usual = Slo::default();
    Some(Slo {
        end_to_end: map.or("end_to_end", usual.end_to_end, value::duration)?,
        target: map.or("target", usual.target, value::share)?,
    })
}

fn read_metrics(map: Reader<'_>) -> Option<MetricsRule> {
    Some(MetricsRule { per_step: map.or("per_step", MetricsRule::default().per_step, value::bool)? })
}

fn read_safe_mode(map: Reader<'_>) -> Option<SafeModeRule> {
    let usual = SafeModeRule::default();
    Some(SafeModeRule {
        hold: map.or("hold", usual.hold, value::bool)?,
        templates: map.or("templates", Vec::new(), value::renames)?.into_iter().collect(),
        cap: match map.map("cap") {
            None => None,
            Some(cap) => Some(Allowance {
                units: NonZeroU32::new(u32::try_from(cap.must("max", value::int)?).ok()?)?,
                window: cap.must("per", value::duration)?,
            }),
        },
        max_age: map.may("max_age", value::duration)?,
        drain: map.or("drain", usual.drain, value::rate)?,
        trip: match map.map("trip") {
            None => None,
            Some(trip) => Some(read_trip(trip)?),
        },
    })
}

fn read_trip(map: Reader<'_>) -> Option<Trip> {
    let circuits = match map.node.get("circuits") {
        None => Circuits::Nobodys,
        Some(node) if node.text().is_some() => Circuits::Any,
        Some(node) => Circuits::Of(node.items().iter().filter_map(Node::text).map(str::to_string).collect()),
    };
    let errors = map.map("errors").map(|errors| {
        let number = |name, usual| u32::try_from(errors.or(name, usual, value::int)?).ok();
        let window = errors.or("window", ERRORS_WINDOW, value::duration)?;
        Some(BreakerRule {
            errors_percent: u8::try_from(number("percent", 50)?).ok()?,
            window,
            calls_min: number("min_calls", 20)?,
            ..BreakerRule::default()
        })
    });
    Some(Trip {
        circuits,
        errors: errors.flatten(),
        all: map.or("scope", false, word(&[("integration", false), ("all", true)]))?,
        lasts: map.may("for", value::duration)?,
    })
}

fn safe_templates(settings: Reader<'_>) -> Vec<(Spot<String>, Spot<String>)> {
    let Some(node) = settings.map("safe_mode").and_then(|map| map.node.get("templates")) else { return Vec::new() };
    let file = settings.report.file;
    let spot = |text: &str, span| Spot { value: text.to_string(), file: file.to_string(), span };
    let pair = |(key, node): &(Key, Node)| Some((spot(&key.text, key.span), spot(node.text()?, node.head())));
    node.fields().iter().filter_map(pair).collect()
}

fn safe_circuits(settings: Reader<'_>) -> Vec<Spot<String>> {
    let trip = settings.map("safe_mode").and_then(|map| map.map("trip"));
    let items = trip.and_then(|trip| trip.node.get("circuits")).map_or(&[][..], Node::items);
    let file = settings.report.file;
    let spot = |node: &Node| Some(Spot { value: node.text()?.into(), file: file.to_string(), span: node.head() });
    items.iter().filter_map(spot).collect()
}

fn read_tls(tls: Reader<'_>) -> Option<TlsRule> {
    let file = |node: &Node, name: &str| value::text(node, name).map(str::to_string);
    Some(TlsRule { cert: tls.must("cert", file)?, key: tls.must("key", file)? })
}

fn read_connections(limits: Reader<'_>) -> ConnectionLimits {
    let count = |name: &str| limits.may(name, value::int).flatten().and_then(|count| usize::try_from(count).ok());
    ConnectionLimits { all: count("max"), address: count("per_address") }
}

fn read_encryption(settings: Reader<'_>) -> Option<Encryption> {
    if settings.node.get("encryption")?.text().is_some() {
        return Some(Encryption::None);
    }
    let map = settings.map("encryption")?;
    if map.has("file") {
        return map.must("file", value::text).map(|path| Encryption::File(path.to_string()));
    }
    let older = map.node.get("older").map_or(&[][..], Node::items);
    Some(Encryption::Keys {
        key: map.must("key", value::variable)?,
        older: older.iter().filter_map(|node| value::variable(node, "older").ok()).collect(),
    })
}

fn read_approvals(approvals: Reader<'_>) -> Option<SlackButtons> {
    let slack = approvals.map("slack")?;
    Some(SlackButtons {
        signing_secret: slack.must("signing_secret", value::variable)?,
        users: slack.must("users", value::renames)?,
    })
}

fn read_tracing(map: Reader<'_>) -> Option<trace::Rule> {
    let usual = trace::Rule::default();
    let attributes = |name: &str, is_personal: bool| {
        let fields = map.node.get(name).map_or(&[][..], Node::fields).iter();
        let read = move |(key, node): &(Key, Node)| {
            let value = value::template(node, &key.text).ok()?;
            Some(AttributeRule { name: key.text.clone(), value, is_personal })
        };
        fields.map(read).collect::<Option<Vec<_>>>()
    };
    let rule = trace::Rule {
        endpoint: map.may("endpoint", value::endpoint)?,
        protocol: map.or("protocol", usual.protocol, word(&[("http", Protocol::Http), ("grpc", Protocol::Grpc)]))?,
        headers: map.map("headers").map_or(Some(Vec::new()), read_headers)?,
        service: map.or("service", usual.service, value::name)?,
        share: map.may("sample", value::number)?.map_or(usual.share, Share::of),
        attributes: [attributes("attributes", false)?, attributes("personal", true)?].concat(),
    };
    map.is_sound().then_some(rule)
}

/// As a browser says them: in small letters, without a scheme.
fn read_hosts(console: Reader<'_>) -> Option<Vec<String>> {
    let hosts = console.or("hosts", Vec::new(), source::texts)?;
    Some(hosts.iter().map(|host| host.to_ascii_lowercase()).collect())
}

/// A name that no browser would say.
fn bad_host(console: Reader<'_>) -> Option<Problem> {
    let items = console.node.get("hosts").map_or(&[][..], Node::items);
    let is_bad = |host: &str| host.is_empty() || host.contains(|c: char| c == '/' || c == '*' || c.is_whitespace());
    let item = items.iter().find(|item| item.text().is_some_and(is_bad))?;
    let said = format!("`{}` is not a name that a browser calls the console by", printable(item.text()?));
    let problem = Problem::error(Code::BadAddress, item.head(), said).label("not a host");
    Some(problem.help("write the host as it is in the address bar, such as `clinch.example.com` or `10.0.0.5:7401`"))
}

fn read_store(name: &str, store: Reader<'_>) -> Option<SharedStore> {
    Some(SharedStore {
        name: name.to_string(),
        url: store.must("url", value::redis_url)?,
        pepper: store.may("pepper", value::secret)?,
        prefix: store.or("prefix", name.to_string(), value::name)?,
    })
}

/// Nobody should find out from a lost key that a Redis forgets when it is told to.
fn forgetful(kv: &Spot<String>) -> Problem {
    let said = format!("keys of `kv:{}` are remembered between installations as well as its Redis remembers", kv.value);
    Problem::warning(Code::ForgetfulStore, kv.span, said)
        .label("durability follows the settings of this Redis")
        .note("within one installation its own store still stops duplicates")
        .help("set in its redis.conf: appendonly yes, appendfsync always, maxmemory-policy noeviction")
}
