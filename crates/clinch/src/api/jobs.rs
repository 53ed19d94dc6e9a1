//! Jobs: lists, the whole story of one, and a replay.

use super::ledger;
use super::problem::Problem;
use super::query::{Id, Query};
use super::search::{self, Paging};
use super::shapes;
use super::shapes::{Attempt, Audit, Delivery, Entrance, Event, Job, JobList, JobShow, LateAnswer, Moment};
use super::shapes::{ReplayAsk, ReplayOn, Replayed, Ruling};
use crate::house::House;
use crate::masking::rules;
use crate::tracer::trace_of;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::config::Workspace;
use clinch_core::death::Reason;
use clinch_core::gap;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::key::{KeyPart, KeyRule};
use clinch_core::payload::Payload;
use clinch_core::search::Query as Which;
use clinch_core::source::Proof;
use clinch_core::worker::Worker;
use clinch_store::read::{AuditRow, JobFilter, JobStory};
use clinch_store::{ReviveAsk, Revived, UnknownRuling};
use serde::de::DeserializeOwned;

pub const ROWS_DEFAULT: usize = 50;
pub const REASON_CHARS_MAX: usize = 500;

/// What a list can be narrowed by; `jobs` adds the state.
pub const FILTERS: &[&str] = &["q", "flow", "queue", "reason", "count", "before", "limit"];

/// Which jobs a request asks for: in words (`q`), or by one name each. A token of one source sees what came from there.
pub async fn filter(house: &House, query: &Query, word: Option<Word>, who: &Who) -> Result<JobFilter, Problem> {
    let mut which = match query.text("q") {
        None => Which::default(),
        Some(text) => {
            Which::parse(text, house.clock.now()).map_err(|error| Problem::bad_query(format!("q: {error}.")))?
        }
    };
    let reasons = |text: &str| {
        let known: Vec<&str> = clinch_core::death::Reason::ALL.iter().map(|reason| reason.word()).collect();
        Problem::bad_query(format!("reason: `{text}` is not a reason; the reasons are {}.", known.join(", ")))
    };
    one_of("state", &mut which.state, word.or(query.get::<Word>("state")?))?;
    one_of("flow", &mut which.flow, query.text("flow").map(String::from))?;
    one_of("queue", &mut which.queue, query.text("queue").map(String::from))?;
    let reason = query.text("reason").map(|text| text.parse().map_err(|_| reasons(text))).transpose()?;
    one_of("reason", &mut which.reason, reason)?;
    narrow(who, &mut which.source)?;
    let counts = query.get::<bool>("count")?.unwrap_or(false);
    let page = Paging { before: query.get::<JobId>("before")?, limit: query.limit(ROWS_DEFAULT)?, counts };
    search::filter(house, &which, page).await
}

/// A token may be for one source only.
pub fn narrow(who: &Who, slot: &mut Option<String>) -> Result<(), Problem> {
    let Some(own) = who.source.as_deref() else { return Ok(()) };
    match slot {
        Some(asked) if asked != own => Err(Problem::not_allowed(format!("This token is for source {own} only."))),
        _ => {
            *slot = Some(own.into());
            Ok(())
        }
    }
}

/// The same, said in both ways, must be the same.
fn one_of<T: PartialEq>(name: &str, slot: &mut Option<T>, given: Option<T>) -> Result<(), Problem> {
    match (&slot, given) {
        (_, None) => Ok(()),
        (Some(there), Some(given)) if *there != given => {
            Err(Problem::bad_query(format!("`{name}` is there twice, in `q` and beside it, and not the same.")))
        }
        (_, Some(given)) => {
            *slot = Some(given);
            Ok(())
        }
    }
}

pub async fn list(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    RawQuery(raw): RawQuery,
) -> Result<Json<JobList>, Problem> {
    let query = Query::parse(raw.as_deref(), &[&["state"], FILTERS].concat())?;
    let page = house.store.jobs(filter(&house, &query, None, &who).await?).await?;
    Ok(Json(JobList::new("clinch.jobs.list/v1", &page)))
}

pub async fn show(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(id): Id<JobId>,
    RawQuery(raw): RawQuery,
) -> Result<Json<JobShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let story = find(&house, id).await?;
    if !is_for(&house, &who, story.row.event).await? {
        return Err(absent(id));
    }
    let workspace = house.versions.get(story.row.version, &*house.store).await?;
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&story.row.queue));
    Ok(Json(told(&story, worker, &house.versions.workspace())))
}

/// Whether he may see this event: a token may be for those of one source only.
async fn is_for(house: &House, who: &Who, event: EventId) -> Result<bool, Problem> {
    match &who.source {
        None => Ok(true),
        Some(source) => Ok(house.store.source_of(event).await?.as_deref() == Some(source)),
    }
}

pub async fn of_event(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(id): Id<EventId>,
    RawQuery(raw): RawQuery,
) -> Result<Json<JobList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let rows = house.store.jobs_of(id).await?;
    if rows.is_empty() || !is_for(&house, &who, id).await? {
        return Err(Problem::not_found(format!("There is no event {id}; its retention may have ended.")));
    }
    Ok(Json(JobList::all("clinch.events.show/v1", rows)))
}

pub async fn replay(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(id): Id<JobId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Replayed>, Problem> {
    let ask = read_ask(body)?;
    let revived = house
        .store
        .revive(ReviveAsk {
            job: id,
            record: who.record(ask.reason, house.clock.now()),
            version: match ask.config {
                ReplayOn::Original => None,
                ReplayOn::Live => Some(house.versions.live()),
            },
            unknown: ask.unknown.map(|ruling| match ruling {
                Ruling::Resend => UnknownRuling::Resend,
                Ruling::Skip => UnknownRuling::Skip,
            }),
        })
        .await?;
    let told = |replayed, state: Word, replays| Replayed {
        schema: "clinch.jobs.replay/v1".into(),
        job_id: id.to_string(),
        replayed,
        state: state.as_str().into(),
        replays,
    };
    match revived {
        Revived::Revived { replays } => {
            let trace = trace_of(&house, id).await;
            tracing::info!(job.id = %id, trace.id = trace, "job {id} is replayed (replay {replays})");
            Ok(Json(told(true, Word::Queued, replays)))
        }
        Revived::NotDead { state } => {
            // Asked again: another replay may have come first, and then this one is its echo.
            let replays = find(&house, id).await?.row.replays;
            Ok(Json(told(false, state, replays)))
        }
        Revived::Ask { steps } => Err(Problem::needs_ruling(steps)),
        Revived::NotFound => Err(absent(id)),
    }
}

fn read_ask(body: Result<Bytes, BytesRejection>) -> Result<ReplayAsk, Problem> {
    let mut ask: ReplayAsk = read_body(body)?;
    ask.reason = reason(&ask.reason, 1)?;
    Ok(ask)
}

/// A command, as JSON.
pub fn read_body<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let body = body.map_err(|refused| match refused.status() {
        axum::http::StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(),
        _ => Problem::bad_body(refused.body_text()),
    })?;
    serde_json::from_slice(&body).map_err(|error| Problem::bad_body(format!("{error}.")))
}

/// Why somebody does something, of a length that can be kept on record.
pub fn reason(text: &str, chars_min: usize) -> Result<String, Problem> {
    on_record("reason", text, chars_min)
}

/// What somebody writes for those who will read the record.
pub fn on_record(name: &str, text: &str, chars_min: usize) -> Result<String, Problem> {
    // It is kept for long, and beside the payload, which can be forgotten: nobody's address belongs into it.
    let text = rules().text(text.trim());
    match (chars_min..=REASON_CHARS_MAX).contains(&text.chars().count()) {
        true => Ok(text),
        false => {
            let said = format!("{name}: write {chars_min} to {REASON_CHARS_MAX} characters; it is kept on record.");
            Err(Problem::bad_body(said))
        }
    }
}

pub async fn find(house: &House, id: JobId) -> Result<JobStory, Problem> {
    house.store.job(id).await?.ok_or_else(|| absent(id))
}

fn absent(id: JobId) -> Problem {
    Problem::not_found(format!("There is no job {id}; its retention may have ended."))
}

/// Its attempts, each with what came before it.
fn attempts(story: &JobStory) -> Vec<Attempt> {
    let replay = |row: &'_ AuditRow| (row.action == "job.replay").then(|| (row.at, row.actor.clone()));
    let replays: Vec<_> = story.audit.iter().filter_map(replay).collect();
    let replays: Vec<_> = replays.iter().map(|(at, by)| gap::Replayed { at: *at, by }).collect();
    let mut told = Vec::new();
    let (mut since, mut before) = (story.row.received_at, gap::Before::Accepted);
    for row in &story.attempts {
        told.push(Attempt {
            waited_seconds: row.started_at.since(since).as_secs_f64(),
            waited_why: gap::why(before, since, row.started_at, &replays),
            ..Attempt::from(row)
        });
        since = row.ended_at;
        before = gap::Before::Attempt { outcome: &row.outcome, reason: row.reason.map(Reason::word) };
    }
    told
}

/// How a sender would deliver this, if the workspace still has the way that it came.
fn entrance(workspace: &Workspace, payload: &Payload) -> Option<Entrance> {
    let source = &*payload.about.source;
    let mut headers = vec!["content-type: application/json".to_string()];
    let way = workspace.entrances().find(|way| way.to.1 == source)?;
    let route = workspace.flows.iter().find(|flow| flow.name == source).and_then(|flow| flow.routes.first());
    if let Some(KeyRule::One(KeyPart::Header(name))) =
        route.and_then(|route| route.dedup.as_ref()).map(|rule| &rule.key)
    {
        headers.push(format!("{name}: {}", rules().text(&payload.about.source_event_id)));
    }
    let proof = workspace.sources.iter().find(|own| own.name == source).and_then(|own| own.proof.as_ref());
    match proof {
        Some(Proof::Signature(rule)) => {
            headers.extend(rule.scheme.headers().first().map(|name| format!("{name}: $CLINCH_SECRET")));
        }
        Some(Proof::Sender) => headers.push("authorization: Bearer $CLINCH_SECRET".into()),
        None => {}
    }
    Some(Entrance { method: way.method.into(), path: way.path.into(), headers })
}

/// `worker` is what it runs; `live`, the workspace that takes in events now.
fn told(story: &JobStory, worker: Option<&Worker>, live: &Workspace) -> JobShow {
    let payload = story.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok());
    JobShow {
        schema: "clinch.jobs.show/v1".into(),
        job: Job::from(&story.row),
        reason_meaning: story.row.reason.map(|reason| reason.meaning().into()),
        event: payload.as_ref().map(|payload| Event {
            id: story.row.event.to_string(),
            source: payload.about.source.to_string(),
            source_event_id: rules().text(&payload.about.source_event_id),
            kind: payload.about.kind.to_string(),
            tenant: rules().text(&payload.about.tenant),
            sender: Some(payload.about.sender.to_string()).filter(|sender| !sender.is_empty()),
            schema_version: payload.about.schema_version,
            trace_id: story.row.trace.to_string(),
            received_at: Moment(story.row.received_at),
        }),
        answer_status: story.answer_status,
        key_until: story.key_until.map(Moment),
        priority: story.priority,
        waits_behind: story.behind.map(|job| job.to_string()),
        failures_max: worker.map(|worker| worker.retry.attempts_max.get()),
        attempts: attempts(story),
        effects: ledger::told(story, worker),
        late_answers: story.late.iter().map(LateAnswer::from).collect(),
        deliveries: story.deliveries.iter().map(Delivery::from).collect(),
        audit: story.audit.iter().map(Audit::from).collect(),
        unread: story.payload.as_ref().err().map(ToString::to_string),
        entrance: payload.as_ref().and_then(|payload| entrance(live, payload)),
        body: payload.map_or(
            shapes::Preview {
                bytes: story.payload.as_ref().map_or(0, Bytes::len),
                json: false,
                lines: Vec::new(),
                cut: false,
            },
            |payload| shapes::Preview::of(&payload.body),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p8_a_replay_has_a_reason_of_sensible_length() {
        let read = |reason: &str| read_ask(Ok(serde_json::json!({ "reason": reason }).to_string().into()));
        assert_eq!(read(" token rotated ").expect("fine").reason, "token rotated");
        assert_eq!(read("ada@example.com called").expect("fine").reason, "a•••@e•••.com called");
        assert!(read("  ").is_err());
        assert!(read(&"é".repeat(500)).is_ok());
        assert!(read(&"x".repeat(501)).is_err());
    }

    #[test]
    fn what_is_said_twice_must_be_the_same() {
        let mut slot = Some("a");
        assert!(one_of("flow", &mut slot, Some("a")).is_ok());
        assert!(one_of("flow", &mut slot, None).is_ok());
        assert!(
            format!("{:?}", one_of("flow", &mut slot, Some("b")).expect_err("another"))
                .contains("`flow` is there twice")
        );
    }
}
