//! The one search box: whatever names something is found by it, and words narrow the list of jobs. What is not understood is an
//! error, never everything; and what cannot be looked through is said.

use super::jobs::ROWS_DEFAULT;
use super::keys;
use super::problem::Problem;
use super::query::Query;
use super::shapes::{Found, Hit, JobList};
use crate::house::House;
use crate::masking::rules;
use axum::Json;
use axum::extract::{RawQuery, State};
use clinch_core::approval::ApprovalId;
use clinch_core::effect::EffectId;
use clinch_core::id::{EventId, JobId, PlanId};
use clinch_core::job::Word;
use clinch_core::key::{DedupKey, IdempotencyKey, KEY_BYTES_MAX, Pepper};
use clinch_core::payload::TENANT_DEFAULT;
use clinch_core::search::{Query as Which, TEXT_BYTES_MAX, Text, meant};
use clinch_core::subject::Handle;
use clinch_store::read::{EffectFilter, EffectRow, JobFilter, JobRow, LIST_ROWS_MAX, Within};
use std::collections::BTreeSet;

/// So many effects are looked through for the key that one was sent under.
const EFFECTS_LOOKED_AT_MAX: usize = 10 * LIST_ROWS_MAX;
/// So many events of one person, or of one trace, are told, the newest.
const EVENTS_FOUND_MAX: usize = 50;

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<Found>, Problem> {
    let query = Query::parse(raw.as_deref(), &["q", "before", "limit"])?;
    let text = query.text("q").unwrap_or_default();
    if text.len() > TEXT_BYTES_MAX {
        return Err(Problem::bad_query(format!("q: at most {TEXT_BYTES_MAX} bytes.")));
    }
    let read = Text::read(text, house.clock.now()).map_err(|error| Problem::bad_query(format!("q: {error}.")))?;
    let page = Paging { before: query.get::<JobId>("before")?, limit: query.limit(ROWS_DEFAULT)?, counts: true };
    let found = match read {
        Text::Job(id) => job(&house, id).await?,
        Text::Event(id) => jobs("event", of_events(&house, &[id]).await?, "event"),
        Text::Plan(id) => plan(&house, id).await?,
        Text::Step(id) => step(&house, &id).await?,
        Text::Trace(trace) => {
            let mut events = house.store.begun_by(trace, EVENTS_FOUND_MAX).await?;
            // Those that a sender's trace, or the trace of another event, went on in.
            if let Some(handle) = Handle::of(&Pepper::new(house.store.pepper()), &trace.to_string()) {
                let others = house.store.found_by(handle, EVENTS_FOUND_MAX).await?;
                events.extend(others.into_iter().filter(|event| !events.contains(event)).collect::<Vec<_>>());
            }
            let found = jobs("trace", of_events(&house, &events).await?, "trace");
            if found.hits.is_empty() { bare(&house, text.trim(), "trace").await? } else { found }
        }
        Text::Query(which) => {
            let list = house.store.jobs(filter(&house, &which, page).await?).await?;
            let list = JobList::new("clinch.jobs.list/v1", &list);
            Found { jobs: list, notes: unknown_names(&house, &which), ..nothing("query") }
        }
        Text::Bare(text) => bare(&house, &text, "text").await?,
    };
    Ok(Json(opened(found)))
}

fn nothing(taken_for: &str) -> Found {
    Found {
        schema: "clinch.search/v1".into(),
        taken_for: taken_for.into(),
        open: None,
        hits: Vec::new(),
        jobs: JobList::all("clinch.jobs.list/v1", Vec::new()),
        notes: Vec::new(),
    }
}

/// The one thing that was found is to be opened.
fn opened(mut found: Found) -> Found {
    found.open = match found.hits.as_slice() {
        [one] => Some(one.path.clone()),
        _ => None,
    };
    // What somebody looks for may be an address.
    found.notes.iter_mut().for_each(|note| *note = rules().sentence(note));
    if found.hits.is_empty() && found.taken_for != "query" && found.notes.is_empty() {
        found.notes.push("Nothing has this id; its retention may have ended.".into());
    }
    found
}

fn hit(kind: &str, id: &str, path: &str, by: &str) -> Hit {
    Hit { kind: kind.into(), id: id.into(), path: format!("/{path}/{id}"), by: by.into() }
}

/// Jobs that were found by the same thing.
fn jobs(taken_for: &str, rows: Vec<JobRow>, by: &str) -> Found {
    let hits = rows.iter().map(|row| hit("job", &row.id.to_string(), "jobs", by)).collect();
    Found { hits, jobs: JobList::all("clinch.jobs.list/v1", rows), ..nothing(taken_for) }
}

async fn of_events(house: &House, events: &[EventId]) -> Result<Vec<JobRow>, Problem> {
    let mut rows = Vec::new();
    for event in events {
        rows.extend(house.store.jobs_of(*event).await?);
    }
    Ok(rows)
}

async fn job(house: &House, id: JobId) -> Result<Found, Problem> {
    let filter = JobFilter { jobs: Some(vec![id]), limit: 1, ..JobFilter::default() };
    Ok(jobs("job", house.store.jobs(filter).await?.rows, "id"))
}

async fn plan(house: &House, id: PlanId) -> Result<Found, Problem> {
    let row = house.store.plan_row(id).await?;
    let hits = row.iter().map(|_| hit("plan", &id.to_string(), "replays", "id")).collect();
    Ok(Found { hits, ..nothing("plan") })
}

/// A step is an effect, or a question to people, or both.
async fn step(house: &House, id: &EffectId) -> Result<Found, Problem> {
    let mut hits = Vec::new();
    let Some(story) = house.store.job(id.job).await? else { return Ok(nothing("step")) };
    if story.effects.iter().any(|effect| effect.name == id.step) {
        hits.push(hit("effect", &id.to_string(), "effects", "id"));
    }
    let asked = ApprovalId { job: id.job, step: id.step.clone() };
    if house.store.approval(&asked).await?.is_some() {
        hits.push(hit("approval", &id.to_string(), "approvals", "id"));
    }
    Ok(Found { hits, jobs: JobList::all("clinch.jobs.list/v1", vec![story.row]), ..nothing("step") })
}

/// A key, or a provider's id, which is the key of its source; or what `find_by` names.
async fn bare(house: &House, text: &str, taken_for: &str) -> Result<Found, Problem> {
    let found = jobs(taken_for, of_events(house, &of_key(house, text).await?).await?, "key");
    if !found.hits.is_empty() {
        return Ok(found);
    }
    let found = about(house, text, taken_for).await?;
    if !found.hits.is_empty() {
        return Ok(found);
    }
    if IdempotencyKey::is_like(text) {
        return sent_under(house, text, taken_for).await;
    }
    Ok(Found { notes: not_found(house), ..found })
}

/// The effect that partners know by this key. It does not tell its job, so the newest effects are looked through.
async fn sent_under(house: &House, key: &str, taken_for: &str) -> Result<Found, Problem> {
    let mut filter = EffectFilter { limit: LIST_ROWS_MAX, ..EffectFilter::default() };
    for _ in 0..EFFECTS_LOOKED_AT_MAX / LIST_ROWS_MAX {
        let page = house.store.effects(filter.clone()).await?;
        let is_it = |row: &&EffectRow| IdempotencyKey::of(row.job, &row.effect.name).as_str() == key;
        if let Some(row) = page.rows.iter().find(is_it) {
            let found = job(house, row.job).await?;
            let hits = vec![hit("effect", &row.id().to_string(), "effects", "effect_key")];
            return Ok(Found { taken_for: taken_for.into(), hits, ..found });
        }
        match page.rows.last().filter(|_| page.more) {
            Some(last) => filter.before = Some(last.id()),
            None => break,
        }
    }
    let said = format!(
        "None of the newest {EFFECTS_LOOKED_AT_MAX} effects was sent under this key; older ones were not looked through."
    );
    Ok(Found { notes: vec![said], ..nothing(taken_for) })
}

/// What `find_by` names: somebody's address, the number of an order.
async fn about(house: &House, text: &str, taken_for: &str) -> Result<Found, Problem> {
    let pepper = Pepper::new(house.store.pepper());
    let Some(handle) = Handle::of(&pepper, text) else { return Ok(nothing(taken_for)) };
    let mut events = house.store.found_by(handle, EVENTS_FOUND_MAX + 1).await?;
    let is_cut = events.len() > EVENTS_FOUND_MAX;
    events.truncate(EVENTS_FOUND_MAX);
    let mut found = jobs(taken_for, of_events(house, &events).await?, "find_by");
    if is_cut {
        found.jobs.scope.more_match = true;
        found.notes.push(format!("These are the newest {EVENTS_FOUND_MAX} events; there are more."));
    }
    Ok(found)
}

/// The events that hold this text as a key: as it is, or after the name of its flow or source.
async fn of_key(house: &House, text: &str) -> Result<Vec<EventId>, Problem> {
    if text.len() > KEY_BYTES_MAX {
        return Ok(Vec::new());
    }
    let pepper = Pepper::new(house.store.pepper());
    let mut found = BTreeSet::new();
    for scope in keys::scopes(&house.versions.workspace(), None)? {
        let of_owner = text.strip_prefix(&*scope.owner).and_then(|rest| rest.strip_prefix(':'));
        for key in [Some(text), of_owner].into_iter().flatten() {
            let scoped = DedupKey::scoped(&pepper, TENANT_DEFAULT, &scope.name, key);
            found.extend(house.store.key(scoped).await?);
        }
    }
    Ok(found.into_iter().rev().collect())
}

/// What was looked through, and what cannot be.
fn not_found(house: &House) -> Vec<String> {
    let workspace = &house.versions.workspace();
    let scopes = keys::scopes(workspace, None).unwrap_or_default();
    let names = |tenants: bool| -> Vec<&str> {
        scopes.iter().filter(|scope| scope.has_tenants == tenants).map(|scope| &*scope.name).collect()
    };
    let mut notes = Vec::new();
    match names(false).as_slice() {
        [] => notes.push("No route or source here has a key that could be looked up.".to_string()),
        looked => notes.push(format!("No key of {} is this; its time may be over.", looked.join(", "))),
    }
    if let with @ [_, ..] = names(true).as_slice() {
        notes.push(format!("{} tell tenants apart: `clinch key show KEY --tenant T` looks there.", with.join(", ")));
    }
    let flows = workspace.flows.iter().filter(|flow| flow.routes.iter().any(|route| !route.find_by.is_empty()));
    let sources = workspace.sources.iter().filter(|source| !source.find_by.is_empty());
    let named: Vec<&str> = flows.map(|flow| &*flow.name).chain(sources.map(|source| &*source.name)).collect();
    notes.push(match named.as_slice() {
        [] => "Payloads are encrypted and not searched; `find_by` of a source or a flow's trigger says what its events are found by.".into(),
        named => format!("Nor is it what `find_by` of {} names; payloads are encrypted and not searched.", named.join(", ")),
    });
    notes
}

/// Names that the live workspace does not have: old jobs may still have them, and they may be mistyped.
fn unknown_names(house: &House, which: &Which) -> Vec<String> {
    let workspace = &house.versions.workspace();
    let flows: Vec<&str> = workspace.flows.iter().map(|flow| &*flow.name).collect();
    let queues: Vec<&str> = workspace.queues.iter().map(|queue| &*queue.name).collect();
    let sources: Vec<&str> =
        workspace.sources.iter().map(|source| &*source.name).chain(flows.iter().copied()).collect();
    let asked = [("flow", &which.flow, flows), ("queue", &which.queue, queues), ("source", &which.source, sources)];
    asked.into_iter().filter_map(|(word, name, known)| unknown(word, name.as_deref()?, &known)).collect()
}

fn unknown(word: &str, name: &str, known: &[&str]) -> Option<String> {
    if known.contains(&name) {
        return None;
    }
    let hint = meant(name, known.iter().copied()).map_or_else(String::new, |meant| format!(" Did you mean `{meant}`?"));
    Some(format!("The live workspace has no {word} `{name}`.{hint}"))
}

/// Which part of a list is asked for.
pub struct Paging {
    pub before: Option<JobId>,
    pub limit: usize,
    pub counts: bool,
}

/// What is meant, as the store is asked for it.
pub async fn filter(house: &House, which: &Which, page: Paging) -> Result<JobFilter, Problem> {
    let mut jobs = which.jobs.clone();
    if let Some(key) = &which.key {
        let holders = keys::holders(house, key, which.flow.as_deref()).await?;
        let held = of_events(house, &holders).await?.into_iter().map(|row| row.id);
        jobs = Some(held.filter(|id| which.jobs.as_ref().is_none_or(|jobs| jobs.contains(id))).collect());
    }
    let told = Within { since: which.since, until: which.until };
    let is_dead = which.state == Some(Word::Dead);
    // When they died is what a plan is asked about, too.
    let (ended, told) = if is_dead { (told, Within::default()) } else { (Within::default(), told) };
    Ok(JobFilter {
        word: which.state,
        flow: which.flow.clone(),
        queue: which.queue.clone(),
        reason: which.reason,
        source: which.source.clone(),
        steps: steps(house, which)?,
        jobs,
        attempts_min: which.tries_min.unwrap_or(0),
        attempts_max: which.tries_max,
        accepted: Within {
            since: told.since.max(which.younger),
            until: told.until.into_iter().chain(which.older).min(),
        },
        ended,
        before: page.before,
        limit: page.limit,
        counts: page.counts,
    })
}

/// The steps that are meant by name, or by whom they call in the live workspace.
pub fn steps(house: &House, which: &Which) -> Result<Option<Vec<String>>, Problem> {
    let Some(integration) = &which.integration else { return Ok(which.step.clone().map(|step| vec![step])) };
    let workspace = &house.versions.workspace();
    let steps = workspace.workers.iter().flat_map(|worker| worker.all_steps());
    let calling: BTreeSet<String> = steps
        .filter(|step| step.action.outward().is_some_and(|(partner, _)| *partner.name == **integration))
        .map(|step| step.name.to_string())
        .collect();
    if calling.is_empty() {
        let known: Vec<&str> = workspace.integrations.iter().map(|integration| &*integration.name).collect();
        let said = unknown("integration", integration, &known);
        return Err(Problem::bad_query(said.unwrap_or_else(|| format!("No step calls `{integration}`."))));
    }
    Ok(Some(calling.into_iter().filter(|name| which.step.as_ref().is_none_or(|step| step == name)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_what_is_mistyped_is_told_the_nearest_name() {
        assert_eq!(unknown("flow", "orders", &["orders"]), None);
        let said = unknown("flow", "ordrs", &["bills", "orders"]).expect("not known");
        assert_eq!(said, "The live workspace has no flow `ordrs`. Did you mean `orders`?");
    }

    #[test]
    fn i1_only_one_hit_is_opened() {
        let of = |jobs: &[&str]| {
            let hits = jobs.iter().map(|id| hit("job", id, "jobs", "key")).collect();
            opened(Found { hits, ..nothing("text") })
        };
        assert_eq!(of(&["job_1"]).open.as_deref(), Some("/jobs/job_1"));
        assert_eq!(of(&["job_1", "job_2"]).open, None);
        assert_eq!(of(&[]).notes.len(), 1);
    }
}
