//! Jobs: in lists, as a whole story, found by a search, and replayed.

use super::{Audit, Effect, Event, LateAnswer, Moment, Preview, version};
use crate::masking::rules;
use clinch_core::death::Reason;
use clinch_core::policy;
use clinch_store::read;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: String,
    pub event_id: String,
    pub trace_id: String,
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
            trace_id: row.trace.to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

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

/// A dead letter, for the tests of those who show one.
#[cfg(test)]
pub mod sample {
    use super::{Attempt, Effect, Job, JobShow, Moment, Preview};
    use clinch_core::time::Timestamp;

    pub fn at(second: i64) -> Moment {
        Moment(Timestamp::from_micros((1_790_000_000 + second) * 1_000_000))
    }

    pub fn job() -> Job {
        Job {
            id: "job_01HZX5T0N8W2A".into(),
            event_id: "evt_01HZX5T0N8W29".into(),
            trace_id: "019a8b2c41f07d4e8a1b2c3d4e5f6071".into(),
            flow: "signup".into(),
            queue: "crm".into(),
            version: "v1".into(),
            state: "dead".into(),
            received_at: at(0),
            due_at: None,
            waits_for: None,
            failures: 2,
            attempts: 2,
            replays: 0,
            ended_at: Some(at(60)),
            reason: Some("auth_failed".into()),
            error: Some("401 from the target".into()),
            refusal: None,
        }
    }

    /// All that is told of a job with these attempts and effects.
    pub fn told(job: Job, attempts: Vec<Attempt>, effects: Vec<Effect>) -> JobShow {
        JobShow {
            schema: String::new(),
            job,
            reason_meaning: None,
            event: None,
            answer_status: 202,
            key_until: None,
            priority: 0,
            waits_behind: None,
            failures_max: Some(3),
            attempts,
            effects,
            late_answers: vec![],
            deliveries: vec![],
            audit: vec![],
            unread: None,
            body: Preview { bytes: 0, json: false, lines: vec![], cut: false },
            entrance: None,
        }
    }
}
