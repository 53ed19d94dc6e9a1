//! A workspace: the files that say what clinch does, read and checked as a whole.
//!
//! Text becomes a tree that knows its places (`yaml`), the tree is held against the dialect (`shape`, `dialect`), each
//! file is read as far as it can be (`…_file`), and then they are looked at together (`cross`).

mod alert_file;
mod cross;
mod dialect;
mod flow_file;
mod integration;
mod named_action;
pub(crate) mod nearest;
mod oidc;
pub(crate) mod outline;
mod places;
mod playbook_file;
mod policy_file;
pub mod problem;
mod queues_file;
mod read;
mod schema;
mod settable;
mod settings_file;
mod shape;
mod source;
mod spelling;
mod step;
mod template_file;
mod trial_file;
mod value;
mod worker_file;
mod yaml;

#[cfg(test)]
mod tests;

pub use places::{Place, Places};
pub use problem::{Code, Problem, Severity, Span, position};
pub use schema::json_schema;
pub use settable::{Overrides, Settable};
pub use template_file::ENDINGS as TEMPLATE_ENDINGS;
pub use trial_file::trials;

use crate::alert;
use crate::egress::Allowed;
use crate::expr::{BadExpr, Template};
use crate::flow::{Flow, Queue};
use crate::integration::Integration;
use crate::lane::{OnDead, Order};
use crate::mask::Rules;
use crate::message::MessageTemplate;
use crate::oidc::OidcRule;
use crate::playbook::Playbook;
use crate::policy::Policy;
use crate::safe_mode::SafeModeRule;
use crate::schedule::Schedule;
use crate::schema::Schema;
use crate::script::Runtime;
use crate::slo::Slo;
use crate::source::{Proof, Source};
use crate::trace;
use crate::worker::{Action, Step, Worker};
use aws_lc_rs::digest;
use cross::Parts;
use data_encoding::HEXLOWER;
use problem::Report;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The files of a workspace as they were read: path relative to the workspace, and text. Sorted by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files(pub Vec<(String, String)>);

impl Files {
    /// The same files have the same version, in whatever order they were found.
    pub fn version(&self) -> Version {
        let mut files: Vec<_> = self.0.iter().collect();
        files.sort();
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in files.iter().flat_map(|(path, text)| [path, text]) {
            // Length first, so that no text can pass for a path.
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Version(hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == path).map(|(_, text)| text.as_str())
    }

    /// One text that holds all of them, for the store.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("texts are JSON")
    }

    pub fn from_json(json: &str) -> Result<Files, BadFiles> {
        serde_json::from_str(json).map(Files).map_err(|error| BadFiles(error.to_string()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored workspace cannot be read: {0}")]
pub struct BadFiles(String);

/// Which text of the workspace: the SHA-256 of its files. Shown by its first 12 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version([u8; 32]);

impl Version {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Version(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0[..6]))
    }
}

/// A checked workspace. It cannot be built otherwise than by `load`.
#[derive(Clone, Debug)]
pub struct Workspace {
    pub settings: Settings,
    pub queues: Vec<Queue>,
    /// Those of `flows/`, and those that start playbooks.
    pub flows: Vec<Flow>,
    /// Those of `workers/`, and those that run playbooks.
    pub workers: Vec<Worker>,
    pub playbooks: Vec<Playbook>,
    /// Those of `clinch.yml`, and the flows' own.
    pub sources: Vec<Source>,
    pub integrations: Vec<Arc<Integration>>,
    pub policies: Vec<Arc<Policy>>,
    /// `schemas/*.json`, by name.
    schemas: BTreeMap<String, Arc<Schema>>,
    /// `templates/*`, by name.
    templates: BTreeMap<String, MessageTemplate>,
    /// The names of every secret that some step reads.
    pub secrets: BTreeSet<String>,
    /// The runtimes that its scripts need, and where they say so.
    pub runtimes: Vec<NeededRuntime>,
    /// What of it can be set while it runs.
    pub settable: Vec<Settable>,
    refusals: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededRuntime {
    pub runtime: Runtime,
    pub file: String,
    pub span: Span,
}

impl Workspace {
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Whether there is a source of this name.
    pub fn source_named(&self, name: &str) -> bool {
        self.sources.iter().any(|source| source.name == name)
    }

    pub fn flow(&self, name: &str) -> Option<&Flow> {
        self.flows.iter().find(|flow| flow.name == name)
    }

    pub fn playbook(&self, name: &str) -> Option<&Playbook> {
        self.playbooks.iter().find(|playbook| playbook.name == name)
    }

    pub fn integration(&self, name: &str) -> Option<&Arc<Integration>> {
        self.integrations.iter().find(|integration| *integration.name == *name)
    }

    pub fn template(&self, name: &str) -> Option<&MessageTemplate> {
        self.templates.get(name)
    }

    pub fn schema(&self, name: &str) -> Option<&Arc<Schema>> {
        self.schemas.get(name)
    }

    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.policies.iter().find(|policy| *policy.name == *name)
    }

    /// What rules over a step: the policies that it names, and those that cover it.
    pub fn policies_over<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = &'a Arc<Policy>> {
        let is_over = |policy: &&Arc<Policy>| {
            step.policies.iter().any(|name| **name == *policy.name) || policy.covers(&step.action)
        };
        self.policies.iter().filter(move |policy| is_over(policy))
    }

    /// Whether some step of a worker is counted.
    pub fn counts(&self, worker: &Worker) -> bool {
        worker.all_steps().any(|step| self.policies_over(step).any(|policy| !policy.caps.is_empty()))
    }

    /// Everybody whom its steps may call.
    pub fn partners(&self) -> impl Iterator<Item = &Arc<Integration>> {
        let called = self.workers.iter().flat_map(Worker::actions).filter_map(Action::outward);
        let mut all: BTreeMap<&str, &Arc<Integration>> = called.map(|(partner, _)| (&*partner.name, partner)).collect();
        all.extend(self.integrations.iter().map(|partner| (&*partner.name, partner)));
        all.into_values()
    }

    /// Whom this effect of a job of this queue is with.
    pub fn partner_of(&self, queue: &str, effect: &str) -> Option<&Arc<Integration>> {
        let (action, _) = self.worker_for(queue)?.action_of(effect)?;
        action.outward().map(|(partner, _)| partner)
    }

    /// The files that its steps look addresses up in.
    pub fn geoip_files(&self) -> BTreeSet<&str> {
        let steps = self.workers.iter().flat_map(Worker::all_steps);
        steps
            .filter_map(|step| match &step.action {
                Action::Geoip(geoip) => Some(&*geoip.database),
                _ => None,
            })
            .collect()
    }

    /// Whether the jobs of a queue belong to different tenants or groups.
    pub fn is_shared(&self, queue: &str) -> bool {
        let groups = |flow: &Flow| flow.enqueue.iter().any(|step| step.queue == queue && step.group.is_some());
        let tenants = |flow: &Flow| {
            let source = |name: &str| self.sources.iter().find(|source| source.name == name);
            let mut from_sources = flow.subscriptions.iter().filter_map(|from| source(&from.source));
            flow.enqueue.iter().any(|step| step.queue == queue)
                && (flow.routes.iter().any(|route| route.tenant.is_some())
                    || from_sources.any(|source| source.tenant.is_some()))
        };
        self.queues.iter().any(|known| known.name == queue && known.group.is_some())
            || self.flows.iter().any(|flow| groups(flow) || tenants(flow))
    }

    pub fn settable(&self, name: &str) -> Option<&Settable> {
        self.settable.iter().find(|known| *known.name == *name)
    }

    pub fn worker_for(&self, queue: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.queue() == queue)
    }

    /// The workers that run by themselves, and when.
    pub fn schedules(&self) -> impl Iterator<Item = (&Worker, &Schedule)> {
        self.workers.iter().filter_map(|worker| Some((worker, worker.schedule()?)))
    }

    /// The queues whose dead letters are kept under this name.
    pub fn queues_of_dead(&self, name: &str) -> Vec<String> {
        let kept = |worker: &&Worker| worker.dead_letters.as_deref().unwrap_or(worker.queue()) == name;
        self.workers.iter().filter(kept).map(|worker| worker.queue().to_string()).collect()
    }

    /// What is written in the dialect and cannot be run by this version: reasons not to serve it.
    pub fn refusals(&self) -> &[Problem] {
        &self.refusals
    }
}

/// A way in, and how whoever comes is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrance<'a> {
    pub method: &'static str,
    pub path: &'a str,
    /// The flow or the source that it leads to.
    pub to: (&'static str, &'a str),
    /// The preset, or `sender` for tokens; nothing where anybody may send.
    pub verify: Option<&'static str>,
    /// How many secrets prove a sender.
    pub secrets: usize,
}

impl Workspace {
    /// The routes of flows, then the sources.
    pub fn entrances(&self) -> impl Iterator<Item = Entrance<'_>> {
        let routes = self.flows.iter().flat_map(|flow| flow.routes.iter().map(move |route| (flow, route)));
        let routes = routes.map(|(flow, route)| Entrance {
            method: route.method.word(),
            path: &route.path,
            to: ("flow", &flow.name),
            verify: None,
            secrets: 0,
        });
        routes.chain(self.sources.iter().map(|source| Entrance {
            method: source.method.word(),
            path: &source.path,
            to: ("source", &source.name),
            verify: source.proof.as_ref().map(|proof| match proof {
                Proof::Signature(_) => source.preset.name,
                Proof::Sender => "sender",
            }),
            secrets: source.signature().map_or(0, |rule| rule.secrets.len()),
        }))
    }
}

/// `clinch.yml`; flags of `serve` win over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub listen: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    /// Of the intake.
    pub tls: Option<TlsRule>,
    pub admin_tls: Option<TlsRule>,
    pub connections: ConnectionLimits,
    /// What people and logs may see of data.
    pub masking: Rules,
    /// Nothing is said: the key file of an embedded store.
    pub encryption: Option<Encryption>,
    /// Places inside that steps may call all the same.
    pub egress: Vec<Allowed>,
    pub kv: Vec<SharedStore>,
    pub safe_mode: SafeModeRule,
    /// Whether people may decide in Slack.
    pub approvals: Option<SlackButtons>,
    /// Names that the console may be called by, besides its own address.
    pub console_hosts: Vec<String>,
    /// Who vouches for people who log in, besides their passwords.
    pub oidc: Option<OidcRule>,
    /// How soon how many jobs are to end well.
    pub slo: Slo,
    pub metrics: MetricsRule,
    /// Who is told of traces.
    pub tracing: trace::Rule,
    /// Who is told when something is wrong.
    pub alerts: alert::Routes,
}

/// `metrics:` of `clinch.yml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsRule {
    /// Whether steps have metrics of their own.
    pub per_step: bool,
}

impl Default for MetricsRule {
    fn default() -> MetricsRule {
        MetricsRule { per_step: true }
    }
}

/// `approvals: {slack: …}` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlackButtons {
    /// The name of the secret that Slack signs requests with.
    pub signing_secret: String,
    /// Names of people, by the id of their Slack user.
    pub users: Vec<(String, String)>,
}

impl SlackButtons {
    /// Where Slack sends what somebody pressed.
    pub const PATH: &str = "/slack/actions";

    pub fn person(&self, user: &str) -> Option<&str> {
        self.users.iter().find(|(id, _)| id == user).map(|(_, name)| name.as_str())
    }
}

/// The files of a certificate and its key, as they are written: below the workspace, unless they begin with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsRule {
    pub cert: String,
    pub key: String,
}

/// How many may be connected to a listener at once; what is usual where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub all: Option<usize>,
    pub address: Option<usize>,
}

/// `encryption:` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Everything is stored as it came.
    None,
    /// The names of secrets: the key that writes, and those that only read.
    Keys { key: String, older: Vec<String> },
    /// A key file, which is there.
    File(String),
}

impl Encryption {
    /// The names of its secrets. No step ever sees them.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let (key, older) = match self {
            Encryption::None | Encryption::File(_) => (None, &[][..]),
            Encryption::Keys { key, older } => (Some(key), &older[..]),
        };
        key.into_iter().chain(older).map(String::as_str)
    }
}

/// A Redis that several installations share, to tell each other which keys they have seen: `kv:` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStore {
    pub name: String,
    /// `redis://…` or `rediss://…`. It may have secrets in it, and nothing else that is computed.
    pub url: Template,
    /// The secret that keys are hashed under; without one whoever reads the Redis can guess them.
    pub pepper: Option<Template>,
    /// What its keys begin with.
    pub prefix: String,
}

impl SharedStore {
    fn secrets(&self) -> impl Iterator<Item = String> {
        let pepper = self.pepper.iter().flat_map(Template::secrets);
        self.url.secrets().into_iter().chain(pepper)
    }

    pub fn address(&self, secret: impl Fn(&str) -> Option<String>) -> Result<String, BadExpr> {
        address(&self.url, secret)
    }

    pub fn secret_pepper(&self, secret: impl Fn(&str) -> Option<String>) -> Result<Option<String>, BadExpr> {
        self.pepper.as_ref().map(|pepper| filled(pepper, secret)).transpose()
    }
}

/// An address with its secrets in place: as they are where one is all of it, escaped where it is a part.
pub fn address(url: &Template, secret: impl Fn(&str) -> Option<String>) -> Result<String, BadExpr> {
    let is_all = matches!(url, Template::Mixed(text) if text.starts_with("{{"));
    filled(url, |name| secret(name).map(|value| if is_all { value } else { escaped(&value) }))
}

/// A text with its secrets in place.
pub fn filled(template: &Template, secret: impl Fn(&str) -> Option<String>) -> Result<String, BadExpr> {
    let known = template.secrets().into_iter().filter_map(|name| Some((name.clone(), secret(&name)?.into())));
    let secrets = serde_json::Value::Object(known.collect());
    template.text(&[("secrets".to_string(), secrets)].into_iter().collect())
}

/// As a part of a URL that has no meaning of its own.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// More problems than this are counted and not told.
pub const PROBLEMS_MAX: usize = 1_000;

/// Reads and checks a workspace. What is wrong is told all at once, by file and place; `Ok` comes with the warnings.
pub fn load(files: &Files) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
    load_with(files, &Overrides::new())
}

/// The same, with what is set over the files in place of what they say. Names that nothing has are passed over.
pub fn load_with(files: &Files, over: &Overrides) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
    let mut found = Found { over: over.clone(), ..Found::default() };
    let mut parts = Parts {
        kv: Vec::new(),
        integrations: Vec::new(),
        safe_templates: Vec::new(),
        safe_circuits: Vec::new(),
        has_buttons: false,
        sources: Vec::new(),
        schemas: BTreeMap::new(),
        templates: BTreeMap::new(),
        settings_unread: false,
        texts: files.0.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect(),
        queues: None,
        policies: None,
        flows: Vec::new(),
        workers: Vec::new(),
        playbooks: Vec::new(),
        queues_unread: false,
        workers_unread: false,
        playbooks_unread: false,
        policies_unread: false,
    };
    // The settings first: steps name what is in them.
    let (settings, others): (Vec<_>, Vec<_>) =
        files.0.iter().partition(|(path, _)| FileKind::of(path) == Some(FileKind::Settings));
    for (path, text) in settings.into_iter().chain(others) {
        let mut report = Report::new(path, text);
        found.read_file(&mut report, &mut parts);
        found.problems.extend(report.problems);
    }
    found.problems.extend(cross::check(&parts));
    found.finish(parts)
}

/// What the files gave, beside their parts.
#[derive(Default)]
struct Found {
    settings: Settings,
    integrations: Vec<Arc<Integration>>,
    problems: Vec<Problem>,
    refusals: Vec<Problem>,
    /// The files that may be there once, by what they are.
    single: HashMap<&'static str, String>,
    over: Overrides,
    settable: Vec<Settable>,
}

impl Found {
    fn read_file(&mut self, report: &mut Report<'_>, parts: &mut Parts<'_>) {
        let Some(kind) = FileKind::of(report.file) else {
            return report.add(unknown_file(report.file));
        };
        if let Some(first) = kind.single().and_then(|what| self.single.insert(what, report.file.to_string())) {
            let said = format!("`{}` and `{first}` are the same file under two names", report.file);
            let problem = Problem::error(Code::UnknownFile, Span::default(), said);
            return report.add(problem.help("keep one of the two"));
        }
        if kind == FileKind::Schema {
            return read_schema(report, parts);
        }
        if kind == FileKind::Template {
            return template_file::read(report, parts);
        }
        let Some(mut root) = yaml::parse(report) else {
            parts.settings_unread |= kind == FileKind::Settings;
            parts.queues_unread |= kind == FileKind::Queues;
            parts.workers_unread |= kind == FileKind::Worker;
            parts.playbooks_unread |= kind == FileKind::Playbook;
            parts.policies_unread |= kind == FileKind::Policies;
            return;
        };
        settable::put_over(kind, &mut root, &self.over, &mut self.settable);
        match kind {
            FileKind::Settings => {
                let file = settings_file::read(&root, report);
                (self.settings, parts.kv) = (file.settings, file.kv);
                (self.integrations, parts.integrations) = (file.integrations, file.integration_names);
                parts.has_buttons = self.settings.approvals.is_some();
                parts.sources.extend(file.sources);
                parts.safe_templates = file.safe_templates;
                parts.safe_circuits = file.safe_circuits;
            }
            FileKind::Queues => parts.queues = Some(queues_file::read(&root, report)),
            FileKind::Policies => parts.policies = Some(policy_file::read(&root, &self.integrations, report)),
            FileKind::Flow => {
                let mut flow = flow_file::read(&root, report);
                self.refuse(report, std::mem::take(&mut flow.refusals));
                parts.sources.append(&mut flow.sources);
                parts.flows.push(flow);
            }
            FileKind::Worker => {
                let worker = worker_file::read(root, &self.integrations, report);
                parts.workers.push(worker);
            }
            FileKind::Playbook => {
                let (playbook, worker) = playbook_file::read(root, &self.integrations, report);
                parts.playbooks.push(playbook);
                parts.workers.push(worker);
            }
            FileKind::Schema | FileKind::Template => unreachable!("it is no YAML"),
        }
    }

    fn refuse(&mut self, report: &mut Report<'_>, refusals: Vec<Problem>) {
        let before = report.problems.len();
        refusals.into_iter().for_each(|problem| report.add(problem));
        self.refusals.extend_from_slice(&report.problems[before..]);
    }

    fn finish(mut self, parts: Parts<'_>) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
        let problems = &mut self.problems;
        problems.sort_by(|a, b| (&a.file, a.span, a.severity).cmp(&(&b.file, b.span, b.severity)));
        let has_errors = problems.iter().any(Problem::is_error);
        let left_out = problems.len().saturating_sub(PROBLEMS_MAX);
        problems.truncate(PROBLEMS_MAX);
        if let Some(last) = problems.last_mut().filter(|_| left_out > 0) {
            last.notes.push(format!("{left_out} more problems are not shown"));
        }
        if has_errors {
            return Err(self.problems);
        }
        let needed = parts.workers.iter().flat_map(|file| &file.runtimes);
        let runtimes =
            needed.map(|spot| NeededRuntime { runtime: spot.value, file: spot.file.clone(), span: spot.span });
        let runtimes = runtimes.collect();
        let workers: Vec<Worker> = parts.workers.into_iter().filter_map(|file| file.worker).collect();
        let shared = self.settings.kv.iter().flat_map(SharedStore::secrets);
        let collector: Vec<String> =
            self.settings.tracing.headers.iter().flat_map(|(_, value)| value.secrets()).collect();
        let partners = self.integrations.iter().flat_map(|partner| partner.templates().flat_map(Template::secrets));
        let sources: Vec<Source> = parts.sources.into_iter().filter_map(|file| file.source).collect();
        let playbooks: Vec<Playbook> = parts.playbooks.iter().filter_map(|file| file.playbook()).collect();
        let mut queues = parts.queues.map(|file| file.queues).unwrap_or_default();
        for own in playbooks.iter().map(Playbook::queue) {
            if !queues.iter().any(|declared| declared.name == own.name) {
                queues.push(own);
            }
        }
        let flows = parts.flows.into_iter().filter_map(|file| file.flow);
        let policies = parts.policies.map(|file| file.policies).unwrap_or_default();
        let of_policies = policies.iter().flat_map(|policy| policy_file::secrets(policy));
        let of_workers = workers.iter().flat_map(step::secrets);
        let of_alerts: Vec<String> = self.settings.alerts.secrets().collect();
        let of_settings = collector.into_iter().chain(of_alerts);
        let workspace = Workspace {
            secrets: of_workers.chain(of_policies).chain(shared).chain(partners).chain(of_settings).collect(),
            policies,
            settings: self.settings,
            integrations: self.integrations.clone(),
            queues: with_schedules(queues, &workers),
            flows: flows.chain(playbooks.iter().map(|playbook| playbook.flow(&sources))).collect(),
            workers,
            playbooks,
            sources,
            schemas: parts.schemas.into_iter().filter_map(|(name, schema)| Some((name, schema?))).collect(),
            templates: parts.templates,
            runtimes,
            settable: self.settable,
            refusals: self.refusals,
        };
        Ok((workspace, self.problems))
    }
}

/// A worker with a schedule has a queue of its own, which `queues.yml` may say more about. Runs that may not overlap keep their order
/// there: not even one that is replayed runs beside another.
fn with_schedules(mut queues: Vec<Queue>, workers: &[Worker]) -> Vec<Queue> {
    for schedule in workers.iter().filter_map(Worker::schedule) {
        let order = if schedule.overlaps { Order::Any } else { Order::Fifo { on_dead: OnDead::Continue } };
        match queues.iter_mut().find(|queue| queue.name == schedule.queue) {
            Some(queue) => queue.order = order,
            None => queues.push(Queue { order, ..Queue::named(&schedule.queue) }),
        }
    }
    queues
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Settings,
    Queues,
    Policies,
    Flow,
    Worker,
    Playbook,
    Schema,
    Template,
}

impl FileKind {
    fn of(path: &str) -> Option<FileKind> {
        if let Some(name) = path.strip_prefix("schemas/").and_then(|name| name.strip_suffix(".json")) {
            return (!name.is_empty()).then_some(FileKind::Schema);
        }
        if path.starts_with("templates/") {
            return template_file::name_of(path).map(|_| FileKind::Template);
        }
        let stem = path.strip_suffix(".yml").or_else(|| path.strip_suffix(".yaml"))?;
        match stem.split_once('/') {
            None if stem == "clinch" => Some(FileKind::Settings),
            None if stem == "queues" => Some(FileKind::Queues),
            None if stem == "policies" => Some(FileKind::Policies),
            Some(("flows", name)) if !name.is_empty() => Some(FileKind::Flow),
            Some(("workers", name)) if !name.is_empty() => Some(FileKind::Worker),
            Some(("playbooks", name)) if !name.is_empty() => Some(FileKind::Playbook),
            _ => None,
        }
    }

    /// The name of the only file of its kind.
    const fn single(self) -> Option<&'static str> {
        match self {
            FileKind::Settings => Some("clinch"),
            FileKind::Queues => Some("queues"),
            FileKind::Policies => Some("policies"),
            FileKind::Flow | FileKind::Worker | FileKind::Playbook => None,
            FileKind::Schema | FileKind::Template => None,
        }
    }
}

/// A schema that cannot be used is known by its name all the same, so that nobody calls it missing too.
fn read_schema(report: &mut Report<'_>, parts: &mut Parts<'_>) {
    let name = report.file.trim_start_matches("schemas/").trim_end_matches(".json").to_string();
    let read = Schema::read(report.text);
    if let Err(bad) = &read {
        report.add(Problem::error(Code::BadSchema, bad.span, bad.why.clone()).label("here"));
    }
    parts.schemas.insert(name, read.ok().map(Arc::new));
}

fn unknown_file(path: &str) -> Problem {
    let said = format!("`{}` is not a file of a workspace", problem::shown(path));
    Problem::error(Code::UnknownFile, Span::default(), said).help(
        "a workspace has clinch.yml, queues.yml, policies.yml, flows/*.yml, workers/*.yml, playbooks/*.yml, schemas/*.json and templates/*; move or remove it",
    )
}
