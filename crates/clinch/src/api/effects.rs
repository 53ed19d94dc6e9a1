//! Effects: lists, the whole story of one, the question to the partner, and a person's word.

use super::jobs::{self, on_record, read_body, reason};
use super::ledger;
use super::problem::Problem;
use super::query::{Query, StepOf};
use super::shapes::{
    Audit, Effect, EffectList, EffectResolved, EffectRow, EffectShow, EffectVerified, Job, LateAnswer, Preview,
    ResolveAsk, ResolveTo,
};
use crate::house::House;
use crate::inquiry::{Finding, Inquiry};
use crate::tracer::trace_of;
use crate::unresolved::partner;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::effect::{EffectId, EffectWord};
use clinch_core::id::JobId;
use clinch_store::read::{EffectFilter, JobStory};
use clinch_store::resolve::Standing;
use clinch_store::{Resolution, Resolved, read};
use std::sync::Arc;

const ROWS_DEFAULT: usize = 50;
/// Who asks for one integration is looked for in no more pages than this; further ones are a question of their own.
const PAGES_MAX: usize = 20;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<EffectList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["state", "integration", "flow", "job", "before", "limit"])?;
    let integration = query.text("integration");
    let limit = query.limit(ROWS_DEFAULT)?;
    let mut filter = EffectFilter {
        state: query.get::<EffectWord>("state")?,
        flow: query.text("flow").map(String::from),
        job: query.get::<JobId>("job")?,
        before: query.get::<EffectId>("before")?,
        limit: if integration.is_some() { read::LIST_ROWS_MAX } else { limit },
    };
    let (mut effects, mut more, mut last) = (Vec::new(), false, None);
    for _ in 0..PAGES_MAX {
        let page = house.store.effects(filter.clone()).await?;
        more = page.more;
        for row in &page.rows {
            if effects.len() == limit {
                more = true;
                break;
            }
            last = Some(row.id());
            let partner = partner(&house, row.version, &row.queue, &row.effect.name).await?;
            if integration.is_none_or(|asked| partner.as_deref() == Some(asked)) {
                effects.push(told(row, partner));
            }
        }
        // A short page has looked as far back as a question may.
        if !more || effects.len() == limit || page.rows.len() < filter.limit {
            break;
        }
        filter.before.clone_from(&last);
    }
    let next_before = last.filter(|_| more).map(|id| id.to_string());
    Ok(Json(EffectList { schema: "clinch.effects.list/v1".into(), effects, more, next_before }))
}

fn told(row: &read::EffectRow, integration: Option<String>) -> EffectRow {
    EffectRow {
        id: row.id().to_string(),
        job_id: row.job.to_string(),
        trace_id: row.trace.to_string(),
        job_state: row.word.as_str().into(),
        flow: row.flow.to_string(),
        integration,
        effect: Effect::from(&row.effect),
        late_done: row.late_done,
    }
}

pub async fn show(
    State(house): State<House>,
    StepOf(job, step): StepOf,
    RawQuery(raw): RawQuery,
) -> Result<Json<EffectShow>, Problem> {
    let id = EffectId { job, step };
    Query::parse(raw.as_deref(), &[])?;
    let (story, effect) = find(&house, &id).await?;
    let workspace = house.versions.get(story.row.version, &*house.store).await?;
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&story.row.queue));
    Ok(Json(EffectShow {
        schema: "clinch.effects.show/v1".into(),
        integration: partner(&house, story.row.version, &story.row.queue, &id.step).await?,
        job: Job::from(&story.row),
        effect: ledger::line(&story, worker, &effect),
        answer: Preview::of_answer(&effect.state),
        late_answers: story.late.iter().filter(|late| late.step == id.step).map(LateAnswer::from).collect(),
        audit: story.audit.iter().map(Audit::from).collect(),
        id: id.to_string(),
    }))
}

async fn find(house: &House, id: &EffectId) -> Result<(JobStory, clinch_core::effect::Effect), Problem> {
    let story = jobs::find(house, id.job).await?;
    match story.effects.iter().find(|effect| effect.name == id.step) {
        Some(effect) => {
            let effect = effect.clone();
            Ok((story, effect))
        }
        None => {
            let known: Vec<&str> = story.effects.iter().map(|effect| effect.name.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let step = &id.step;
            Err(Problem::not_found(format!("{} has no effect `{step}`; its effects: {known}.", id.job)))
        }
    }
}

/// Asks the partner. Nothing is changed, whatever it says: that is a person's to do.
pub async fn verify(
    State(house): State<House>,
    Extension(partners): Extension<Arc<dyn Inquiry>>,
    StepOf(job, step): StepOf,
) -> Result<Json<EffectVerified>, Problem> {
    let id = EffectId { job, step };
    let (story, effect) = find(&house, &id).await?;
    let (found, answer_status, why) = match partners.was_done(&story, &id.step).await? {
        Finding::Done { status } => ("done", Some(status), None),
        Finding::NotDone { status } => ("not_done", Some(status), None),
        Finding::NoAnswer(why) => ("no_answer", None, Some(why)),
        Finding::CannotBeAsked(why) => ("cannot_be_asked", None, Some(why)),
    };
    tracing::info!(job.id = %id.job, trace.id = %story.row.trace, "effect {id} was verified: {found}");
    Ok(Json(EffectVerified {
        schema: "clinch.effects.verify/v1".into(),
        id: id.to_string(),
        found: found.into(),
        answer_status,
        why: why.map(|why| crate::masking::rules().text(&why)),
        state: effect.state.word().into(),
        job_state: story.row.word.as_str().into(),
    }))
}

pub async fn resolve(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    StepOf(job, step): StepOf,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EffectResolved>, Problem> {
    let id = EffectId { job, step };
    let ask: ResolveAsk = read_body(body)?;
    let resolution = match ask.outcome {
        ResolveTo::Done => Resolution::Done,
        ResolveTo::NotDone => Resolution::NotDone,
    };
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let proof = on_record("proof", &ask.proof, 1)?;
    let asked = clinch_store::ResolveAsk { effect: id.clone(), resolution, proof, record };
    let answer = |resolved, standing: Standing| EffectResolved {
        schema: "clinch.effects.resolve/v1".into(),
        id: id.to_string(),
        resolved,
        state: match ask.outcome {
            ResolveTo::Done => EffectWord::Done.as_str().into(),
            ResolveTo::NotDone => EffectWord::NotDone.as_str().into(),
        },
        job_id: id.job.to_string(),
        job_state: standing.job.as_str().into(),
        unknown_left: standing.unknown,
    };
    match house.store.resolve(asked).await? {
        Resolved::Resolved(standing) => {
            let trace = trace_of(&house, id.job).await;
            tracing::info!(job.id = %id.job, trace.id = trace, "effect {id} was resolved by a person");
            Ok(Json(answer(true, standing)))
        }
        Resolved::Before(standing) => Ok(Json(answer(false, standing))),
        Resolved::NotUnknown { state } => {
            Err(Problem::not_unknown(format!("{id} is {state}, which is known; nothing was changed.")))
        }
        Resolved::Unfinished { job } => Err(Problem::not_now(format!(
            "{} is {} and settles its effects by what the integration declares; nothing was changed. If it becomes a dead \
             letter, say it then.",
            id.job,
            job.as_str()
        ))),
        Resolved::NotFound => {
            find(&house, &id).await?;
            Err(Problem::not_found(format!("There is no effect {id} any more.")))
        }
    }
}
