//! The JSON of the admin API, as server and command line both know it. Within v1 fields are only added. Times are
//! RFC 3339 in UTC, lengths of time are seconds, ids are strings.

use super::overview::{Need, Window};
use super::safe_mode::SafeMode;
use crate::chores::{self, Chore};
use crate::masking::rules;
use clinch_core::audit;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::mask;
use clinch_core::policy;
use clinch_core::time::Timestamp;
use clinch_store::read;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;
use utoipa::ToSchema;

/// A moment, in JSON a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for Moment {
    type Err = jiff::Error;
    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        let at: jiff::Timestamp = text.parse()?;
        Ok(Moment(Timestamp::from_micros(at.as_microsecond())))
    }
}

/// A job in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: String,
    pub event_id: String,
    pub flow: String,
    pub queue: String,
    /// The workspace that it runs.
    pub version: String,
    pub state: String,
    pub received_at: Moment,
    /// When it is due, if it waits.
    pub due_at: Option<Moment>,
    /// For what it waits, if not for its turn or its next attempt.
    pub waits_for: Option<String>,
    pub failures: u32,
    pub attempts: u32,
    pub replays: u32,
    pub ended_at: Option<Moment>,
    pub reason: Option<String>,
    pub error: Option<String>,
    /// Which policy would not have it, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// Why a policy refused something.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    pub policy: String,
    /// consent, quiet_hours, frequency, channel_limit
    pub rule: String,
    /// What the rule was held against.
    pub fact: String,
    pub reason: String,
}

impl Refusal {
    /// Of an end, as it is shown.
    fn of(reason: Option<Reason>, error: Option<&str>) -> Option<Refusal> {
        let error = error.filter(|_| reason == Some(Reason::PolicyDenied))?;
        let policy::Refusal { policy, rule, fact } = policy::Refusal::read(&rules().text(error))?;
        Some(Refusal { policy: policy.to_string(), rule: rule.word().into(), fact, reason: rule.reason().into() })
    }
}

impl From<&read::JobRow> for Job {
    fn from(row: &read::JobRow) -> Job {
        Job {
            id: row.id.to_string(),
            event_id: row.event.to_string(),
            flow: row.flow.to_string(),
            queue: row.queue.to_string(),
            version: version(row.version),
            state: row.word.as_str().into(),
            received_at: Moment(row.received_at),
            due_at: row.run_at.map(Moment),
            waits_for: row.waits.map(|waits| waits.word().into()),
            failures: row.failures,
            attempts: row.attempts,
            replays: row.replays,
            ended_at: row.ended_at.map(Moment),
            reason: row.reason.map(|reason| reason.to_string()),
            error: row.error.as_deref().map(|error| rules().text(error)),
            refusal: Refusal::of(row.reason, row.error.as_deref()),
        }
    }
}

pub fn version(id: clinch_store::VersionId) -> String {
    format!("v{}", id.0)
}

/// `clinch.jobs.list/v1`, `clinch.dlq.list/v1`, `clinch.events.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    pub schema: String,
    pub jobs: Vec<Job>,
    /// Whether older ones exist that were not looked at.
    pub more: bool,
    /// Ask again with `before` of this for the next page.
    pub next_before: Option<String>,
    #[serde(default)]
    pub scope: Scope,
}

impl JobList {
    pub fn new(schema: &str, page: &read::JobPage) -> JobList {
        JobList {
            schema: schema.into(),
            jobs: page.rows.iter().map(Job::from).collect(),
            more: page.more,
            next_before: page.next.map(|next| next.to_string()),
            scope: Scope {
                looked_at: page.looked_at,
                back_to: page.next.map(|next| Moment(next.given_at())),
                matches: page.matches.map(|matches| matches.min(read::COUNT_MAX)),
                more_match: page.matches.is_some_and(|matches| matches > read::COUNT_MAX),
            },
        }
    }

    /// All of these, and no others exist.
    pub fn all(schema: &str, rows: Vec<read::JobRow>) -> JobList {
        let (looked_at, matches) = (rows.len() as u64, Some(rows.len() as u64));
        JobList::new(schema, &read::JobPage { rows, more: false, next: None, looked_at, matches })
    }
}

/// How far a list has looked.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Scope {
    /// So many were looked at.
    pub looked_at: u64,
    /// Back to here; nothing where it was looked back to the beginning.
    pub back_to: Option<Moment>,
    /// How many of those that were looked at fit, where they were counted.
    pub matches: Option<u64>,
    /// More fit than were counted.
    pub more_match: bool,
}

/// `clinch.events.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    pub schema: String,
    pub events: Vec<EventLine>,
    /// Ask again with `before` of this for the next page.
    pub next_before: Option<String>,
    pub scope: Scope,
}

/// An event in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventLine {
    pub id: String,
    pub source: String,
    pub received_at: Moment,
    /// The status that its sender got.
    pub answer_status: u16,
    pub jobs: u32,
    /// Until when its key is held, if it has one.
    pub key_until: Option<Moment>,
    /// How often it came again with the same body: nothing was repeated.
    pub duplicates: u64,
    /// How often another body came under its key.
    pub conflicts: u64,
}

impl From<&read::EventRow> for EventLine {
    fn from(row: &read::EventRow) -> EventLine {
        EventLine {
            id: row.id.to_string(),
            source: row.source.to_string(),
            received_at: Moment(row.received_at),
            answer_status: row.status,
            jobs: row.jobs,
            key_until: row.key_until.map(Moment),
            duplicates: row.duplicates,
            conflicts: row.conflicts,
        }
    }
}

/// `clinch.search/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Found {
    pub schema: String,
    /// What the text was taken for: job, event, plan, step, trace, text or query.
    pub taken_for: String,
    /// Where the one thing is that it names: a path of this API below `/api/v1`, and of the console.
    pub open: Option<String>,
    /// What it names.
    pub hits: Vec<Hit>,
    /// The jobs that it names, or that fit the query.
    pub jobs: JobList,
    /// What was not looked through and why, and what may have been meant.
    pub notes: Vec<String>,
}

/// Something that a text names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hit {
    /// job, effect, approval or plan.
    pub kind: String,
    pub id: String,
    pub path: String,
    /// By what it was found: id, event, trace, key, effect_key or find_by.
    pub by: String,
}

/// `clinch.jobs.show/v1`: everything about one job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobShow {
    pub schema: String,
    pub job: Job,
    /// What its reason means, in a sentence.
    pub reason_meaning: Option<String>,
    /// What is known of the delivery; nothing when it cannot be read.
    pub event: Option<Event>,
    /// The status that the sender got.
    pub answer_status: u16,
    pub key_until: Option<Moment>,
    #[serde(default)]
    pub priority: i16,
    /// The job of its group that must end first, where its queue keeps the order.
    #[serde(default)]
    pub waits_behind: Option<String>,
    /// How often it may fail before it is a dead letter, as the workspace that it runs says.
    #[serde(default)]
    pub failures_max: Option<u32>,
    pub attempts: Vec<Attempt>,
    pub effects: Vec<Effect>,
    /// What workers learned of effects after the job was another's.
    #[serde(default)]
    pub late_answers: Vec<LateAnswer>,
    pub deliveries: Vec<Delivery>,
    pub audit: Vec<Audit>,
    /// Why the body is not shown: it was erased, or changed.
    #[serde(default)]
    pub unread: Option<String>,
    pub body: Preview,
    /// How its sender would send it again; nothing where the live workspace has no such way in.
    #[serde(default)]
    pub entrance: Option<Entrance>,
}

/// A way in, as a sender uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entrance {
    pub method: String,
    pub path: String,
    /// `Name: value`, with `$CLINCH_SECRET` for what proves the sender.
    pub headers: Vec<String>,
}

impl Entrance {
    /// One command for a shell. The body is as it is shown: masked.
    pub fn curl(&self, body: &Preview) -> String {
        let single = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        // Only our own `$CLINCH_SECRET` is for the shell to fill in.
        let header = |text: &String| match text.strip_suffix("$CLINCH_SECRET") {
            Some(before) => format!(" -H {}\"$CLINCH_SECRET\"", single(before)),
            None => format!(" -H {}", single(text)),
        };
        let headers: String = self.headers.iter().map(header).collect();
        let (method, path, body) = (&self.method, single(&self.path), single(&body.lines.join("\n")));
        format!("curl -X {method} \"$CLINCH_INTAKE\"{path}{headers} -d {body}")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub id: String,
    pub source: String,
    pub source_event_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub tenant: String,
    /// Whose token it came with, where senders have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    #[serde(default = "one")]
    pub schema_version: u32,
    pub trace_id: String,
    pub received_at: Moment,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    pub no: u32,
    pub started_at: Moment,
    pub ended_at: Moment,
    pub seconds: f64,
    pub outcome: String,
    pub reason: Option<String>,
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// How long nothing happened before it, and why.
    #[serde(default)]
    pub waited_seconds: f64,
    #[serde(default)]
    pub waited_why: String,
}

impl From<&read::AttemptRow> for Attempt {
    fn from(row: &read::AttemptRow) -> Attempt {
        Attempt {
            no: row.no,
            started_at: Moment(row.started_at),
            ended_at: Moment(row.ended_at),
            seconds: row.ended_at.since(row.started_at).as_secs_f64(),
            outcome: row.outcome.clone(),
            reason: row.reason.map(|reason| reason.to_string()),
            error: row.error.as_deref().map(|error| rules().text(error)),
            refusal: Refusal::of(row.reason, row.error.as_deref()),
            waited_seconds: 0.0,
            waited_why: String::new(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Effect {
    pub step: String,
    pub state: String,
    /// What the target does with a repetition: header, natural, none.
    pub idempotency: String,
    /// How often it was about to be sent.
    pub sends: u32,
    pub first_intended_at: Moment,
    pub changed_at: Moment,
    /// What the target answered, if it is done.
    pub answer_status: Option<u16>,
    /// The idempotency key that was sent with it; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How its state is known; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// What a replay does with it: skipped, runs, looks_up, asks_first; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_replayed: Option<String>,
}

impl From<&clinch_core::effect::Effect> for Effect {
    fn from(effect: &clinch_core::effect::Effect) -> Effect {
        Effect {
            step: effect.name.clone(),
            state: effect.state.word().into(),
            idempotency: effect.class.word().into(),
            sends: effect.sends,
            first_intended_at: Moment(effect.first_intended_at),
            changed_at: Moment(effect.changed_at),
            answer_status: match &effect.state {
                // What a person took as done was answered by nobody.
                EffectState::Done(receipt) => Some(receipt.status).filter(|status| *status > 0),
                EffectState::Open | EffectState::NotDone | EffectState::Unknown | EffectState::GivenUp(_) => None,
            },
            key: None,
            proof: None,
            if_replayed: None,
        }
    }
}

/// What became of a send whose worker had lost the job by then: evidence, which changed nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LateAnswer {
    pub step: String,
    /// What it says of the effect: done, not_done, unknown.
    pub state: String,
    pub answer_status: Option<u16>,
    pub at: Moment,
    /// Of the lease under which it was sent.
    pub fence: u64,
    /// Its shape, its texts masked.
    pub answer: Option<Preview>,
}

impl From<&clinch_core::effect::LateAnswer> for LateAnswer {
    fn from(late: &clinch_core::effect::LateAnswer) -> LateAnswer {
        LateAnswer {
            step: late.step.clone(),
            state: late.state.word().into(),
            answer_status: late.status,
            at: Moment(late.at),
            fence: late.fence.0,
            answer: Preview::of_answer(&late.state),
        }
    }
}

/// `clinch.effects.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectList {
    pub schema: String,
    pub effects: Vec<EffectRow>,
    /// Whether more exist that were not looked at.
    pub more: bool,
    /// Ask again with `before` of this for the next page.
    pub next_before: Option<String>,
}

/// An effect in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectRow {
    /// Its job and its step: `job_…/charge`.
    pub id: String,
    pub job_id: String,
    pub job_state: String,
    pub flow: String,
    /// Whom it calls; nothing when the workspace of its job cannot be read any more.
    pub integration: Option<String>,
    #[serde(flatten)]
    pub effect: Effect,
    /// A late answer says that it was done.
    pub late_done: bool,
}

/// `clinch.effects.show/v1`: everything about one effect.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectShow {
    pub schema: String,
    pub id: String,
    pub job: Job,
    pub integration: Option<String>,
    pub effect: Effect,
    /// The shape of the answer, its texts masked.
    pub answer: Option<Preview>,
    pub late_answers: Vec<LateAnswer>,
    /// What people did to its job.
    pub audit: Vec<Audit>,
}

/// `clinch.effects.verify/v1`: what the partner says. Nothing was changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectVerified {
    pub schema: String,
    pub id: String,
    /// done, not_done, no_answer, cannot_be_asked
    pub found: String,
    pub answer_status: Option<u16>,
    /// Why nothing was found out.
    pub why: Option<String>,
    /// What the ledger says.
    pub state: String,
    /// Whether its job has not ended: then it decides itself.
    pub job_state: String,
}

/// What `POST /api/v1/effects/{job}/{step}/resolve` takes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveAsk {
    pub outcome: ResolveTo,
    /// How the person knows.
    pub proof: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolveTo {
    Done,
    NotDone,
}

/// `clinch.effects.resolve/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectResolved {
    pub schema: String,
    pub id: String,
    /// False: it was so already and nothing was changed.
    pub resolved: bool,
    pub state: String,
    pub job_id: String,
    pub job_state: String,
    /// Effects of its job that are unknown still.
    pub unknown_left: usize,
}

/// A later delivery of the same key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    pub at: Moment,
    pub conflict: bool,
    pub times: u64,
}

impl From<&read::DeliveryRow> for Delivery {
    fn from(row: &read::DeliveryRow) -> Delivery {
        Delivery { at: Moment(row.at), conflict: row.conflict, times: row.times }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    pub no: u64,
    pub at: Moment,
    /// As it goes into the hash.
    pub at_micros: i64,
    pub actor: String,
    /// Where from: `api ADDRESS`, or the room in which clinch acts by itself.
    pub origin: String,
    pub action: String,
    pub object: String,
    pub job_id: Option<String>,
    /// How it was and how it is: texts of JSON, as they go into the hash.
    pub before: Option<String>,
    pub after: Option<String>,
    pub reason: String,
    pub hash: String,
}

impl From<&read::AuditRow> for Audit {
    fn from(row: &read::AuditRow) -> Audit {
        Audit {
            no: row.no,
            at: Moment(row.at),
            at_micros: row.at.as_micros(),
            actor: row.actor.clone(),
            origin: row.origin.clone(),
            action: row.action.clone(),
            object: row.object.clone(),
            job_id: row.job.map(|job| job.to_string()),
            before: row.before.clone(),
            after: row.after.clone(),
            reason: rules().text(&row.reason),
            hash: row.hash.to_string(),
        }
    }
}

impl Audit {
    /// For people.
    pub fn change(&self) -> String {
        audit::change(self.before.as_deref(), self.after.as_deref())
    }
}

/// `clinch.audit.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    pub schema: String,
    pub audit: Vec<Audit>,
    /// Whether there are others beyond the last of these.
    pub more: bool,
}

/// `clinch.audit.verify/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditVerified {
    pub schema: String,
    /// Every row is where it was and as it was.
    pub ok: bool,
    pub rows: u64,
    /// The hash of the last row: who notes it elsewhere can ask for it later.
    pub head: String,
    /// What does not fit, and the first row that does not.
    pub problem: Option<String>,
    pub row: Option<u64>,
}

/// `clinch.users.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    pub schema: String,
    pub users: Vec<User>,
}

/// A user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct User {
    pub name: String,
    pub role: String,
    pub added_at: Moment,
    /// Whether there is one to log in with.
    pub password: bool,
}

/// Somebody is to be one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserAsk {
    pub name: String,
    pub role: String,
    /// To log in with; without one there is a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// `clinch.users.add/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserMade {
    pub schema: String,
    pub user: User,
    /// The token: told this once, and kept nowhere.
    pub token: Option<String>,
}

/// `clinch.users.remove/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserRemoved {
    pub schema: String,
    pub name: String,
}

/// `clinch.sources.list/v1`: every way in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceList {
    pub schema: String,
    pub sources: Vec<SourceNow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceNow {
    pub name: String,
    /// source, or flow for a flow's own route.
    pub kind: String,
    pub method: String,
    pub path: String,
    /// A preset, or none: anybody may send.
    pub verify: String,
    /// How many secrets it accepts.
    pub secrets: usize,
    /// When this node accepted something there last, since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_accepted_at: Option<Moment>,
    /// How many of the last refusals this node remembers.
    #[serde(default)]
    pub rejections: usize,
}

/// `clinch.tokens.list/v1`: tokens of senders, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    pub schema: String,
    pub tokens: Vec<Token>,
}

/// A sender's token without what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    pub id: String,
    pub sender: String,
    /// live, expired or revoked
    pub state: String,
    pub issued_at: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Moment>,
}

/// What is asked for when a token is made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenAsk {
    pub sender: String,
    /// How long it counts, such as `90d`; until it is revoked if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// `clinch.tokens.new/v1`: the only time that its text is told.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    pub schema: String,
    pub text: String,
    pub token: Token,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RevokeAsk {
    pub reason: String,
}

/// `clinch.tokens.revoke/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenRevoked {
    pub schema: String,
    pub id: String,
    /// Whether it was live until now.
    pub revoked: bool,
}

/// `clinch.budgets.list/v1`: who has used something of a retry budget.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetList {
    pub schema: String,
    pub budgets: Vec<Budget>,
    /// Whether there are more than are told.
    pub more: bool,
}

/// `clinch.budgets.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetShow {
    pub schema: String,
    pub budget: Budget,
}

/// What one entity has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// The worker's name.
    pub budget: String,
    /// A hash; nobody's name.
    pub entity: String,
    pub left: u32,
    /// Units of this window, and beyond its own of those that follow.
    pub spent: u32,
    /// What a person gave on top and is not used.
    pub granted: u32,
    pub max: u32,
    pub window: String,
    /// When the window began, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// When something is left again, if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_at: Option<Moment>,
    /// When all of it is there again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_at: Option<Moment>,
}

/// `clinch.schedules.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    pub schema: String,
    pub schedules: Vec<Schedule>,
}

/// When a worker runs by itself, and what its last run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The worker's name.
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    pub missed: String,
    pub overlap: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Moment>,
    /// The slot that was used up last, if it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Moment>,
    /// The job of the last run, and its state, if it is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A run now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRunAsk {
    pub reason: String,
}

/// `clinch.schedules.run/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    pub schema: String,
    pub schedule: String,
    pub job_id: String,
    pub event_id: String,
}

/// More for one entity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetGrant {
    /// Its name as the event says it, or `ent_…`.
    pub entity: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub units: u32,
    pub reason: String,
}

/// `clinch.keys.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeysList {
    pub schema: String,
    pub keys: Vec<KeyRow>,
}

/// A key that the store is encrypted with, and how much is under it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyRow {
    /// `none` for what is from before encryption.
    pub id: String,
    /// active, older, not_encrypted
    pub state: String,
    pub payloads: u64,
    pub results: u64,
    pub errors: u64,
}

/// Whose data is to be erased: a value, or an event.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ForgetAsk {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    pub reason: String,
    #[serde(default)]
    pub dry_run: bool,
}

/// `clinch.chore/v1`: long work on the whole store, under way or the last that was.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChoreShow {
    pub schema: String,
    /// rotate, forget
    pub kind: String,
    /// running, done, failed
    pub state: String,
    pub error: Option<String>,
    pub events_looked_at: u64,
    /// Places sealed again; or events whose data was erased, or would have been.
    pub changed: u64,
    pub unreadable: u64,
    pub jobs_unfinished: u64,
    pub jobs_running: u64,
    pub notes: Vec<String>,
}

impl From<&Chore> for ChoreShow {
    fn from(chore: &Chore) -> ChoreShow {
        let (state, error) = match &chore.state {
            chores::State::Running => ("running", None),
            chores::State::Done => ("done", None),
            chores::State::Failed(why) => ("failed", Some(why.clone())),
        };
        ChoreShow {
            schema: "clinch.chore/v1".into(),
            kind: chore.kind.into(),
            state: state.into(),
            error,
            events_looked_at: chore.looked_at,
            changed: chore.changed,
            unreadable: chore.unreadable,
            jobs_unfinished: chore.unfinished,
            jobs_running: chore.running,
            notes: chore.said.clone(),
        }
    }
}

/// `clinch.sources.rejections/v1`: what this node refused since it started, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RejectionList {
    pub schema: String,
    pub source: String,
    pub rejections: Vec<Rejection>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rejection {
    pub at: Moment,
    /// A word of a fixed list.
    pub reason: String,
    pub message: String,
    pub advice: String,
    /// The names of the headers that came.
    pub headers: Vec<String>,
}

/// A body's shape, its texts masked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    pub bytes: usize,
    pub json: bool,
    pub lines: Vec<String>,
    /// Whether there are more lines.
    pub cut: bool,
}

impl Preview {
    pub fn of(body: &[u8]) -> Preview {
        let mask::Preview { bytes, json, lines, cut } = rules().preview(body);
        Preview { bytes, json, lines, cut }
    }

    /// Where there was one, and something in it.
    pub fn of_answer(state: &EffectState) -> Option<Preview> {
        match state {
            EffectState::Done(receipt) if !receipt.body.is_empty() => Some(Preview::of(&receipt.body)),
            _ => None,
        }
    }
}

/// What `POST /api/v1/jobs/{id}/replay` takes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayAsk {
    pub reason: String,
    #[serde(default)]
    pub config: ReplayOn,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Ruling>,
}

/// The workspace to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReplayOn {
    /// The one it was accepted with.
    #[default]
    Original,
    /// The one that is live now.
    Live,
}

/// A person's word on effects that may or may not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Ruling {
    /// Send again; it may happen twice.
    Resend,
    /// Treat it as done.
    Skip,
}

/// `clinch.jobs.replay/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Replayed {
    pub schema: String,
    pub job_id: String,
    /// False: it is not a dead letter (any more) and nothing was changed.
    pub replayed: bool,
    pub state: String,
    pub replays: u32,
}

/// `clinch.dlq.groups/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadGroups {
    pub schema: String,
    pub groups: Vec<DeadGroup>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadGroup {
    pub flow: String,
    pub reason: String,
    pub meaning: String,
    pub jobs: u64,
    pub first_at: Moment,
    pub last_at: Moment,
    pub example: String,
    /// needs_person, regressed, failing or quiet.
    #[serde(default)]
    pub standing: String,
    /// The plan that was last started for all of it.
    #[serde(default)]
    pub last_replay: Option<LastReplay>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LastReplay {
    pub plan_id: String,
    pub state: String,
    pub started_at: Moment,
    pub started_by: String,
}

/// `clinch.keys.show/v1`: everything that ever happened under a key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyShow {
    pub schema: String,
    pub key: String,
    /// One entry for each route that knows the key.
    pub found: Vec<KeyFound>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyFound {
    pub flow: String,
    pub route: String,
    pub tenant: String,
    pub event_id: String,
    pub kept_until: Option<Moment>,
    /// What a duplicate of a dead letter does: keep, replay.
    #[serde(default)]
    pub on_duplicate_of_dead: Option<String>,
    /// Deliveries of all kinds, the first one included.
    pub seen: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    pub jobs: Vec<Job>,
    pub effects: Vec<Effect>,
    pub story: Vec<StoryLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoryLine {
    pub at: Moment,
    /// accepted, duplicate, conflict, attempt, effect, replay …
    pub what: String,
    pub job_id: Option<String>,
    pub detail: String,
}

/// `clinch.latency/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    pub schema: String,
    pub window_seconds: f64,
    pub since: Moment,
    /// Jobs that were accepted in the window and have ended.
    pub jobs: usize,
    /// Whether only the newest of them were counted.
    pub cut: bool,
    /// wait, run, end_to_end
    pub stages: Vec<Stage>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stage {
    pub stage: String,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    /// Those that were asked for.
    pub percentiles: Vec<Percentile>,
    pub buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Percentile {
    pub percentile: f64,
    pub seconds: Option<f64>,
}

/// How many took at most `le` seconds and more than the bucket before; the last one has no end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    pub le: Option<f64>,
    pub jobs: usize,
}

/// `clinch.overview/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    pub schema: String,
    pub clinch: String,
    /// The live workspace.
    pub version: String,
    /// When it was so.
    pub at: Moment,
    /// What needs a person, the most urgent first.
    pub needs: Vec<Need>,
    pub safe_mode: Vec<SafeMode>,
    pub flows: Vec<FlowNow>,
    /// The most jobs first.
    pub dead: Vec<DeadNow>,
    /// Jobs that wait for something else than their own work.
    pub waiting: Vec<WaitingNow>,
    /// What was counted, where a window was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    pub store: StoreNow,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingNow {
    pub flow: String,
    /// circuit, limit, delay, key, budget, approval, paused, safe_mode, quiet_hours
    pub waits_for: String,
    pub jobs: u64,
    pub oldest_at: Option<Moment>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlowNow {
    pub flow: String,
    pub routes: Vec<Route>,
    pub queued: u64,
    pub running: u64,
    pub waiting: u64,
    pub retrying: u64,
    pub dead: u64,
    pub oldest_at: Option<Moment>,
    pub oldest_dead_at: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Route {
    pub method: String,
    pub path: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadNow {
    pub flow: String,
    pub reason: String,
    pub jobs: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoreNow {
    /// Why it cannot write at the moment.
    pub unwell: Option<String>,
    /// What the operator accepted and should not forget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    pub bytes: u64,
    pub free_bytes: u64,
    pub pending_verbs: usize,
    pub commits: u64,
    pub write_errors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_rfc_3339_and_reads_back() {
        let moment = Moment(Timestamp::from_micros(1_790_000_000_123_000));
        let text = serde_json::to_string(&moment).expect("JSON");
        assert!(text.starts_with("\"2026-") && text.ends_with(".123Z\""), "{text}");
        assert_eq!(serde_json::from_str::<Moment>(&text).expect("reads"), moment);
    }

    #[test]
    fn i1_a_delivery_as_curl_has_no_secret_and_nothing_for_the_shell_to_run() {
        let headers = vec!["idempotency-key: it's $(id)".into(), "authorization: Bearer $CLINCH_SECRET".into()];
        let entrance = Entrance { method: "POST".into(), path: "/hooks/a".into(), headers };
        let body = Preview { bytes: 9, json: true, lines: vec!["{".into(), "`id`}".into()], cut: false };
        let told = r#"curl -X POST "$CLINCH_INTAKE"'/hooks/a' -H 'idempotency-key: it'\''s $(id)' -H 'authorization: Bearer '"$CLINCH_SECRET" -d '{
`id`}'"#;
        assert_eq!(entrance.curl(&body), told);
    }

    #[test]
    fn a_replay_refuses_words_that_it_does_not_know() {
        let ask: ReplayAsk = serde_json::from_str(r#"{"reason":"x"}"#).expect("the rest has defaults");
        assert_eq!((ask.config, ask.unknown), (ReplayOn::Original, None));
        for bad in [r#"{}"#, r#"{"reason":"x","unknown":"maybe"}"#, r#"{"reason":"x","force":true}"#] {
            assert!(serde_json::from_str::<ReplayAsk>(bad).is_err(), "{bad}");
        }
    }
}
