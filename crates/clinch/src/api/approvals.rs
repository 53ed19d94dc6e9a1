//! Approvals: what waits for people, and their votes, one by one and in bulk. Every item of a bulk has an answer of its own.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Query, StepOf};
use super::shapes::{Audit, Moment};
use crate::house::House;
use crate::people::{People, decide as vote};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::approval::{ApprovalId, Card, OnExpiry, PENDING, Verdict, Vote};
use clinch_core::audit::Who;
use clinch_core::id::JobId;
use clinch_core::payload::TraceId;
use clinch_store::approval::ApprovalFilter;
use clinch_store::{ApprovalRow, DecideAsk, Decided};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

const ROWS_DEFAULT: usize = 50;
/// More are not decided at once.
const BULK_MAX: usize = 500;

/// An approval in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    pub id: String,
    pub job_id: String,
    /// Nothing, if its job went while it was looked at.
    pub trace_id: Option<String>,
    pub step: String,
    pub flow: String,
    pub state: String,
    /// What is to be decided.
    pub title: String,
    /// Who may decide; empty: anybody.
    pub of: Vec<String>,
    pub need: u32,
    pub approved: u32,
    pub on_expiry: String,
    pub requester: Option<String>,
    pub asked_at: Moment,
    pub expires_at: Moment,
    pub decided_at: Option<Moment>,
    pub decided_by: Option<String>,
    pub reason: Option<String>,
    /// What those see who decide.
    #[serde(default)]
    pub shown: Vec<Fact>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ApprovalList {
    pub schema: String,
    pub approvals: Vec<Approval>,
    pub more: bool,
    pub next_before: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Fact {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VoteCast {
    pub actor: String,
    pub vote: String,
    pub at: Moment,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ApprovalShow {
    pub schema: String,
    pub approval: Approval,
    pub shown: Vec<Fact>,
    pub votes: Vec<VoteCast>,
    pub audit: Vec<Audit>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ballot {
    Approve,
    Reject,
    Cancel,
}

impl From<Ballot> for Vote {
    fn from(ballot: Ballot) -> Vote {
        match ballot {
            Ballot::Approve => Vote::Approve,
            Ballot::Reject => Vote::Reject,
            Ballot::Cancel => Vote::Cancel,
        }
    }
}

/// What `POST /api/v1/approvals/{job}/{step}/decide` takes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoteAsk {
    pub vote: Ballot,
    pub reason: String,
}

/// What `POST /api/v1/approvals/decide` takes: these, or those that wait and are like this, if they are not too many.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkAsk {
    pub vote: Ballot,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<BulkQuery>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkQuery {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// What came of one vote.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VoteOutcome {
    pub id: String,
    /// `decided`, `counted`, `before`, `late`, `not_allowed` or `not_found`.
    pub outcome: String,
    /// The verdict, or `pending`.
    pub state: Option<String>,
    pub said: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BulkVoted {
    pub schema: String,
    pub outcomes: Vec<VoteOutcome>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Voted {
    pub schema: String,
    #[serde(flatten)]
    pub outcome: VoteOutcome,
}

pub async fn list(
    State(house): State<House>,
    Extension(people): Extension<Arc<dyn People>>,
    RawQuery(raw): RawQuery,
) -> Result<Json<ApprovalList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["state", "flow", "step", "job", "before", "limit"])?;
    let filter = ApprovalFilter {
        state: query.text("state").map(state).transpose()?,
        flow: query.text("flow").map(String::from),
        step: query.text("step").map(String::from),
        job: query.get::<JobId>("job")?,
        before: query.get::<ApprovalId>("before")?,
        limit: query.limit(ROWS_DEFAULT)?,
    };
    let page = house.store.approvals(filter).await?;
    let traces = house.store.traces(page.rows.iter().map(|row| row.id.job).collect()).await?;
    let mut approvals = Vec::with_capacity(page.rows.len());
    for row in &page.rows {
        approvals.push(told(row, &people.card(&row.id).await?, traces.get(&row.id.job)));
    }
    let next_before = approvals.last().filter(|_| page.more).map(|last| last.id.clone());
    Ok(Json(ApprovalList { schema: "clinch.approvals.list/v1".into(), approvals, more: page.more, next_before }))
}

fn state(word: &str) -> Result<Option<Verdict>, Problem> {
    let known = Verdict::ALL.into_iter().map(Some).chain([None]);
    let spelt = |verdict: Option<Verdict>| verdict.map_or(PENDING, Verdict::word);
    known.into_iter().find(|verdict| spelt(*verdict) == word).ok_or_else(|| {
        let words = "pending, approved, rejected, expired, cancelled";
        Problem::bad_query(format!("state: `{word}` is not one; they are {words}."))
    })
}

pub async fn show(
    State(house): State<House>,
    Extension(people): Extension<Arc<dyn People>>,
    StepOf(job, step): StepOf,
    RawQuery(raw): RawQuery,
) -> Result<Json<ApprovalShow>, Problem> {
    let id = ApprovalId { job, step };
    Query::parse(raw.as_deref(), &[])?;
    let row = house.store.approval(&id).await?.ok_or_else(|| absent(&id))?;
    let card = people.card(&id).await?;
    let story = house.store.job(id.job).await?;
    let name = id.to_string();
    let audit = story.iter().flat_map(|story| &story.audit).filter(|row| row.object == name).map(Audit::from);
    let votes = row.ballots.iter().map(|ballot| VoteCast {
        actor: ballot.actor.clone(),
        vote: ballot.vote.word().into(),
        at: Moment(ballot.at),
        reason: ballot.reason.clone(),
    });
    Ok(Json(ApprovalShow {
        schema: "clinch.approvals.show/v1".into(),
        approval: told(&row, &card, story.as_ref().map(|story| &story.row.trace)),
        shown: facts(&card),
        votes: votes.collect(),
        audit: audit.collect(),
    }))
}

pub async fn decide(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    StepOf(job, step): StepOf,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Voted>, Problem> {
    let id = ApprovalId { job, step };
    let ask: VoteAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let decided = vote(&house, DecideAsk { approval: id.clone(), vote: ask.vote.into(), record }).await?;
    match &decided {
        Decided::Late(decision) => Err(Problem::decided_before(format!("{id}: {}.", decision.told()))),
        Decided::NotAllowed(why) => Err(Problem::not_yours(format!("{id}: {why}."))),
        Decided::NotFound => Err(absent(&id)),
        Decided::Verdict(_) | Decided::Counted(_) | Decided::Before(_) => {
            Ok(Json(Voted { schema: "clinch.approvals.decide/v1".into(), outcome: outcome(&id, &decided) }))
        }
    }
}

pub async fn decide_many(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<BulkVoted>, Problem> {
    let ask: BulkAsk = read_body(body)?;
    let reason = reason(&ask.reason, 1)?;
    let ids = chosen(&house, &ask).await?;
    let mut outcomes = Vec::with_capacity(ids.len());
    for id in ids {
        let record = who.record(&*reason, house.clock.now());
        let decided = vote(&house, DecideAsk { approval: id.clone(), vote: ask.vote.into(), record }).await?;
        outcomes.push(outcome(&id, &decided));
    }
    Ok(Json(BulkVoted { schema: "clinch.approvals.decide_many/v1".into(), outcomes }))
}

/// Which are meant. More than was said are not decided: then none is.
async fn chosen(house: &House, ask: &BulkAsk) -> Result<Vec<ApprovalId>, Problem> {
    match (&ask.query, ask.ids.as_slice()) {
        (None, ids @ [_, ..]) if ids.len() <= BULK_MAX => {
            ids.iter().map(|id| id.parse().map_err(|error| Problem::bad_body(format!("ids: {error}.")))).collect()
        }
        (None, [_, ..]) => Err(Problem::bad_body(format!("ids: at most {BULK_MAX} are decided at once."))),
        (Some(query), []) => {
            let Some(max) = ask.max.filter(|max| (1..=BULK_MAX).contains(max)) else {
                return Err(Problem::bad_body(format!("max: say how many at most, from 1 to {BULK_MAX}.")));
            };
            if query.flow.is_none() && query.step.is_none() {
                return Err(Problem::bad_body("query: say which, by `flow`, by `step`, or by both.".into()));
            }
            let filter = ApprovalFilter {
                state: Some(None),
                flow: query.flow.clone(),
                step: query.step.clone(),
                limit: max,
                ..ApprovalFilter::default()
            };
            let page = house.store.approvals(filter).await?;
            match page.more {
                true => Err(Problem::not_now(format!("More than {max} wait that are like this; none was decided."))),
                false => Ok(page.rows.into_iter().map(|row| row.id).collect()),
            }
        }
        _ => Err(Problem::bad_body("write `ids`, or `query` and `max`.".into())),
    }
}

fn absent(id: &ApprovalId) -> Problem {
    Problem::not_found(format!("There is no approval {id}; its retention may have ended."))
}

fn told(row: &ApprovalRow, card: &Card, trace: Option<&TraceId>) -> Approval {
    let decision = row.decision.as_ref();
    Approval {
        id: row.id.to_string(),
        job_id: row.id.job.to_string(),
        trace_id: trace.map(TraceId::to_string),
        step: row.id.step.clone(),
        flow: row.flow.to_string(),
        state: decision.map_or(PENDING, |decision| decision.verdict.word()).into(),
        title: card.title.clone(),
        of: row.of.clone(),
        need: row.need,
        approved: row.tally().have,
        on_expiry: if row.on_expiry == OnExpiry::Approve { "approve" } else { "reject" }.into(),
        requester: row.requester.clone(),
        asked_at: Moment(row.asked_at),
        expires_at: Moment(row.expires_at),
        decided_at: decision.map(|decision| Moment(decision.at)),
        decided_by: decision.map(|decision| decision.by.clone()),
        reason: decision.map(|decision| decision.reason.clone()),
        shown: facts(card),
    }
}

fn facts(card: &Card) -> Vec<Fact> {
    card.facts.iter().map(|(name, value)| Fact { name: name.clone(), value: value.clone() }).collect()
}

fn outcome(id: &ApprovalId, decided: &Decided) -> VoteOutcome {
    let (outcome, state, said) = match decided {
        Decided::Verdict(decision) => {
            ("decided", Some(decision.verdict.word()), format!("it is {}", decision.verdict.word()))
        }
        Decided::Counted(tally) => ("counted", Some(PENDING), format!("the vote counts; {tally}")),
        Decided::Before(tally) => ("before", Some(PENDING), format!("it was said before; {tally}")),
        Decided::Late(decision) => ("late", Some(decision.verdict.word()), decision.told()),
        Decided::NotAllowed(why) => ("not_allowed", Some(PENDING), why.to_string()),
        Decided::NotFound => ("not_found", None, "it is not there; its retention may have ended".into()),
    };
    VoteOutcome { id: id.to_string(), outcome: outcome.into(), state: state.map(String::from), said }
}
