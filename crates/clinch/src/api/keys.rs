//! A key's whole history: deliveries, attempts, effects and replays, in the order in which they happened.

use super::ledger;
use super::problem::Problem;
use super::query::Query;
use super::shapes::{Job, KeyFound, KeyShow, Moment, StoryLine};
use crate::house::House;
use crate::masking::rules;
use axum::Json;
use axum::extract::{RawQuery, State};
use clinch_core::audit::change;
use clinch_core::config::Workspace;
use clinch_core::flow::OnDuplicateOfDead;
use clinch_core::id::EventId;
use clinch_core::key::{DedupKey, KEY_BYTES_MAX, Pepper};
use clinch_core::payload::TENANT_DEFAULT;
use clinch_core::source::Source;
use clinch_core::time::human;
use clinch_store::read::JobStory;

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<KeyShow>, Problem> {
    let query = Query::parse(raw.as_deref(), &["key", "flow", "tenant"])?;
    let key = query.text("key").unwrap_or_default();
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Err(Problem::bad_query(format!("key: write the key to look for, 1 to {KEY_BYTES_MAX} bytes.")));
    }
    let tenant = query.text("tenant").unwrap_or(TENANT_DEFAULT);
    let scopes = scopes(&house.versions.workspace(), query.text("flow"))?;
    let pepper = Pepper::new(house.store.pepper());
    let mut found = Vec::new();
    for scope in &scopes {
        let scoped = DedupKey::scoped(&pepper, tenant, &scope.name, key);
        if let Some(event) = house.store.key(scoped).await? {
            found.push(history(&house, scope, tenant, event).await?);
        }
    }
    if found.is_empty() {
        return Err(Problem::not_found(unseen(tenant, &scopes)));
    }
    Ok(Json(KeyShow { schema: "clinch.keys.show/v1".into(), key: rules().text(key), found }))
}

/// The events that hold this key, of one flow or of all, where nobody tells tenants apart.
pub async fn holders(house: &House, key: &str, flow: Option<&str>) -> Result<Vec<EventId>, Problem> {
    let pepper = Pepper::new(house.store.pepper());
    let mut found = Vec::new();
    for scope in scopes(&house.versions.workspace(), flow)? {
        found.extend(house.store.key(DedupKey::scoped(&pepper, TENANT_DEFAULT, &scope.name, key)).await?);
    }
    Ok(found)
}

/// Where keys are told apart: a route, or a source.
pub struct Scope {
    /// The flow, or the source.
    pub owner: String,
    pub name: String,
    pub has_tenants: bool,
    on_duplicate_of_dead: Option<OnDuplicateOfDead>,
}

/// The scopes of one flow, those of its sources included, or of all.
pub fn scopes(workspace: &Workspace, named: Option<&str>) -> Result<Vec<Scope>, Problem> {
    let flows = &workspace.flows;
    let flow = named.map(|name| flows.iter().find(|flow| flow.name == name).ok_or(name)).transpose();
    let flow = flow.map_err(|name| {
        let known: Vec<&str> = flows.iter().map(|flow| flow.name.as_str()).collect();
        Problem::bad_query(format!("flow: there is no flow `{name}`; the flows are {}.", known.join(", ")))
    })?;
    let asked = flows.iter().filter(|other| flow.is_none_or(|flow| flow.name == other.name));
    let routes = asked.flat_map(|flow| flow.routes.iter().map(move |route| (flow, route)));
    let routes = routes.filter(|(_, route)| route.dedup.is_some()).map(|(flow, route)| Scope {
        owner: flow.name.clone(),
        name: route.scope(),
        has_tenants: route.tenant.is_some(),
        on_duplicate_of_dead: route.dedup.as_ref().map(|rule| rule.on_duplicate_of_dead),
    });
    let names = |source: &&Source| {
        flow.is_none_or(|flow| flow.subscriptions.iter().any(|subscription| subscription.source == source.name))
    };
    let sources = workspace.sources.iter().filter(names).map(|source| Scope {
        owner: source.name.clone(),
        name: source.scope.clone(),
        has_tenants: source.tenant.is_some(),
        on_duplicate_of_dead: Some(source.keys.on_duplicate_of_dead),
    });
    Ok(routes.chain(sources).collect())
}

fn unseen(tenant: &str, scopes: &[Scope]) -> String {
    let looked: Vec<&str> = scopes.iter().map(|scope| scope.name.as_str()).collect();
    let mut said = match looked.as_slice() {
        [] => "No route here has an idempotency key.".to_string(),
        _ => format!("The key is not held by tenant `{tenant}` on {}; its time may be over.", looked.join(", ")),
    };
    if scopes.iter().any(|scope| scope.has_tenants) {
        said.push_str(" Some routes tell tenants apart: say which one with `tenant`.");
    }
    said
}

async fn history(house: &House, scope: &Scope, tenant: &str, event: EventId) -> Result<KeyFound, Problem> {
    let mut jobs = Vec::new();
    for row in house.store.jobs_of(event).await? {
        // Retention may take one between the two questions.
        jobs.extend(house.store.job(row.id).await?);
    }
    let mut effects = Vec::new();
    for job in &jobs {
        let workspace = house.versions.get(job.row.version, &*house.store).await?;
        effects
            .extend(ledger::told(job, workspace.as_deref().and_then(|workspace| workspace.worker_for(&job.row.queue))));
    }
    // Deliveries belong to the event, so every job tells the same ones.
    let deliveries = jobs.first().map_or(&[][..], |job| &job.deliveries);
    let times = |conflict| deliveries.iter().filter(|row| row.conflict == conflict).map(|row| row.times).sum();
    let (duplicates, conflicts): (u64, u64) = (times(false), times(true));
    Ok(KeyFound {
        flow: scope.owner.clone(),
        route: scope.name.clone(),
        tenant: rules().text(tenant),
        event_id: event.to_string(),
        kept_until: jobs.first().and_then(|job| job.key_until).map(Moment),
        on_duplicate_of_dead: scope.on_duplicate_of_dead.map(|does| match does {
            OnDuplicateOfDead::Keep => "keep".into(),
            OnDuplicateOfDead::Replay => "replay".into(),
        }),
        seen: 1 + duplicates + conflicts,
        duplicates,
        conflicts,
        jobs: jobs.iter().map(|job| Job::from(&job.row)).collect(),
        effects,
        story: story(event, &jobs),
    })
}

fn story(event: EventId, jobs: &[JobStory]) -> Vec<StoryLine> {
    let mut lines = Vec::new();
    let mut line = |at, what: &str, job: Option<&JobStory>, detail: String| {
        let job_id = job.map(|job| job.row.id.to_string());
        lines.push(StoryLine { at: Moment(at), what: what.into(), job_id, detail });
    };
    if let Some(first) = jobs.first() {
        line(first.row.received_at, "accepted", None, format!("{event}, answered {}", first.answer_status));
        for row in &first.deliveries {
            let times = if row.times > 1 { format!("{} times, ", row.times) } else { String::new() };
            match row.conflict {
                false => line(row.at, "duplicate", None, format!("{times}same body: nothing repeated")),
                true => line(row.at, "conflict", None, format!("{times}another body: the first stays")),
            }
        }
    }
    for job in jobs {
        for row in &job.attempts {
            let why = row.reason.map_or_else(String::new, |reason| format!(", {reason}"));
            let took = human(row.ended_at.since(row.started_at));
            line(row.started_at, "attempt", Some(job), format!("no. {}: {}{why}, took {took}", row.no, row.outcome));
        }
        for effect in &job.effects {
            let sent = if effect.sends == 1 { "sent once".into() } else { format!("sent {} times", effect.sends) };
            line(effect.changed_at, "effect", Some(job), format!("{}: {}, {sent}", effect.name, effect.state.word()));
        }
        for row in &job.audit {
            let changed = change(row.before.as_deref(), row.after.as_deref());
            line(
                row.at,
                &row.action,
                Some(job),
                format!("by {}: {} ({})", row.actor, rules().text(&row.reason), changed),
            );
        }
    }
    lines.sort_by_key(|line| line.at);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::audit::{Act, Chain, Who};
    use clinch_core::id::JobId;
    use clinch_core::job::Word;
    use clinch_core::payload::TraceId;
    use clinch_core::time::Timestamp;
    use clinch_store::VersionId;
    use clinch_store::read::{AttemptRow, DeliveryRow, JobRow};
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn job() -> JobStory {
        let (before, after) = (json!("dead"), json!("queued"));
        let replay = Act { action: "job.replay", object: "job".into(), job: None, before, after };
        JobStory {
            row: JobRow {
                id: JobId::from_number(2),
                event: EventId::from_number(1),
                trace: TraceId(1),
                flow: "f".into(),
                queue: "q".into(),
                version: VersionId(1),
                word: Word::Success,
                received_at: at(1),
                run_at: None,
                waits: None,
                failures: 0,
                attempts: 1,
                replays: 1,
                ended_at: Some(at(9)),
                reason: None,
                error: None,
            },
            attempts: vec![AttemptRow {
                no: 1,
                started_at: at(2),
                ended_at: at(4),
                outcome: "buried".into(),
                reason: Some(clinch_core::death::Reason::Timeout),
                error: None,
            }],
            effects: vec![],
            late: vec![],
            deliveries: vec![DeliveryRow { at: at(3), conflict: false, times: 4 }],
            audit: vec![{ Chain::START }.append(&replay, &Who::clinch("intake").record("fixed", at(5)))],
            payload: Ok(Default::default()),
            answer_status: 202,
            key_until: None,
            priority: 0,
            behind: None,
        }
    }

    #[test]
    fn b9_a_key_tells_its_story_in_the_order_of_time() {
        let told = story(EventId::from_number(1), &[job()]);
        let words: Vec<&str> = told.iter().map(|line| line.what.as_str()).collect();
        assert_eq!(words, ["accepted", "attempt", "duplicate", "job.replay"]);
        assert_eq!(told[1].detail, "no. 1: buried, timeout, took 2s");
        assert_eq!(told[2].detail, "4 times, same body: nothing repeated");
        assert_eq!(told[3].detail, "by clinch: fixed (\"dead\" → \"queued\")");
    }
}
