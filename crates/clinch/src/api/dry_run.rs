//! A dry run: what would be done for events by a workspace, beside what another does for them. Nothing is sent and nothing is written.

use super::config::{Compared, SideAsk, SideShow, compared, invalid};
use super::jobs::read_body;
use super::problem::Problem;
use crate::forecast::{Considered, Forecast, JobPlan, RecordedJob, differences};
use crate::house::House;
use crate::reload::checked;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::{Extension, Json};
use clinch_core::config::Workspace;
use clinch_core::id::EventId;
use clinch_core::payload::{About, Payload, TENANT_DEFAULT, TraceId};
use clinch_store::read::{EventFilter, LIST_ROWS_MAX};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;

/// No more events are looked at in one go.
pub const EVENTS_MAX: usize = 10_000;
/// Of those that differ, so many are told; all are counted.
const TOLD_MAX: usize = 100;
/// So many are read from the store at a time.
const AT_ONCE: usize = 32;

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DryRunAsk {
    /// What is tried.
    pub to: SideAsk,
    /// What it is compared with; the live workspace if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<SideAsk>,
    /// Only events of this flow, looked for among the newest 10,000; needed with `body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// The newest so many recorded events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// This recorded event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// An event that nobody sent: its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

/// `clinch.config.dry_run/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    pub schema: String,
    pub from: SideShow,
    pub to: SideShow,
    /// Events that were planned.
    pub events: usize,
    pub same: usize,
    pub different: usize,
    /// Events whose data cannot be read any more.
    pub unreadable: usize,
    /// Always 0: nothing passes the gate in a dry run.
    pub effects_sent: usize,
    /// Those that differ, the newest first, 100 at most.
    pub differences: Vec<EventDifference>,
    /// The plan by the workspace that is tried, where one event was asked for.
    pub plan: Option<Vec<JobPlan>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventDifference {
    pub event: String,
    pub said: Vec<String>,
}

pub async fn run(
    State(house): State<House>,
    Extension(forecast): Extension<Arc<dyn Forecast>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DryRun>, Problem> {
    let ask: DryRunAsk = read_body(body)?;
    let to = compared(&house, ask.to.clone()).await?;
    let against = ask.against.clone().unwrap_or_else(|| SideAsk::of_version("live"));
    let from = compared(&house, against).await?;
    let load = |side: &Compared| match checked(&side.files) {
        Ok((workspace, _)) => Ok(workspace),
        Err(flaws) => Err(invalid(&side.files, &flaws)),
    };
    let show = |side: &Compared| SideShow { name: side.name.clone(), hash: side.files.version().to_string() };
    let (old, new) = (load(&from)?, load(&to)?);
    if let Some(flow) = ask.flow.as_ref().filter(|flow| old.flow(flow).is_none() && new.flow(flow).is_none()) {
        return Err(Problem::not_found(format!("There is no flow {flow} in either; `clinch flows ls` has them.")));
    }
    let mut told = DryRun {
        schema: "clinch.config.dry_run/v1".into(),
        from: show(&from),
        to: show(&to),
        events: 0,
        same: 0,
        different: 0,
        unreadable: 0,
        effects_sent: 0,
        differences: Vec::new(),
        plan: None,
    };
    let mut trial = Trial { forecast: &*forecast, old: &old, new: &new, flow: ask.flow.clone(), told: &mut told };
    match (ask.last, &ask.event, ask.body) {
        (Some(last), None, None) => {
            let last = last.min(EVENTS_MAX);
            let (mut before, mut looked_at) = (None, 0);
            while trial.taken() < last && looked_at < EVENTS_MAX {
                let left = if trial.flow.is_some() { EVENTS_MAX - looked_at } else { last - trial.taken() };
                let filter = EventFilter { before, limit: left.clamp(1, LIST_ROWS_MAX), ..EventFilter::default() };
                let page = house.store.events(filter).await?;
                looked_at += page.rows.len();
                for rows in page.rows.chunks(AT_ONCE) {
                    for read in join_all(rows.iter().map(|row| recorded(&house, row.id))).await {
                        let read = read?;
                        if trial.taken() < last {
                            trial.take(read);
                        }
                    }
                }
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
        }
        (None, Some(event), None) => {
            let id: EventId = event.parse().map_err(|error| Problem::bad_body(format!("event: {error}.")))?;
            if house.store.jobs_of(id).await?.is_empty() {
                return Err(Problem::not_found(format!("There is no event {id}; its retention may have ended.")));
            }
            let read = recorded(&house, id).await?;
            trial.told.plan = read.as_ref().map(|event| forecast.foresee(&new, event));
            trial.take(read);
        }
        (None, None, Some(body)) => {
            let flow =
                ask.flow.ok_or_else(|| Problem::bad_body("flow: say which flow would take this event.".into()))?;
            let event = given(&house, &new, &old, flow, &body);
            trial.told.plan = Some(forecast.foresee(&new, &event));
            trial.take(Some(event));
        }
        _ => return Err(Problem::bad_body("Say `last`, `event` or `body`, one of them.".into())),
    }
    Ok(Json(told))
}

struct Trial<'a> {
    forecast: &'a dyn Forecast,
    old: &'a Workspace,
    new: &'a Workspace,
    flow: Option<String>,
    told: &'a mut DryRun,
}

impl Trial<'_> {
    fn taken(&self) -> usize {
        self.told.events + self.told.unreadable
    }

    fn take(&mut self, event: Option<Considered>) {
        let Some(event) = event else {
            self.told.unreadable += 1;
            return;
        };
        let only = |plans: Vec<JobPlan>| -> Vec<JobPlan> {
            plans.into_iter().filter(|plan| self.flow.as_ref().is_none_or(|flow| plan.flow == *flow)).collect()
        };
        let (before, after) =
            (only(self.forecast.foresee(self.old, &event)), only(self.forecast.foresee(self.new, &event)));
        if self.flow.is_some() && before.is_empty() && after.is_empty() {
            return;
        }
        self.told.events += 1;
        let said = differences(&before, &after);
        if said.is_empty() {
            self.told.same += 1;
            return;
        }
        self.told.different += 1;
        if self.told.differences.len() < TOLD_MAX {
            self.told.differences.push(EventDifference { event: event.event.to_string(), said });
        }
    }
}

/// What is kept of an event; `None`: it cannot be read any more.
async fn recorded(house: &House, id: EventId) -> Result<Option<Considered>, Problem> {
    let mut jobs = Vec::new();
    let (mut payload, mut received_at) = (None, None);
    for row in house.store.jobs_of(id).await? {
        let Some(story) = house.store.job(row.id).await? else { continue };
        payload = payload.or_else(|| story.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok()));
        received_at = Some(row.received_at);
        jobs.push(RecordedJob { id: row.id, flow: row.flow, queue: row.queue, effects: story.effects });
    }
    let read = payload.zip(received_at);
    Ok(read.map(|(payload, received_at)| Considered {
        event: id,
        received_at,
        payload: payload.into(),
        jobs,
        flow: None,
    }))
}

/// An event that nobody sent, as this flow would get it.
fn given(house: &House, new: &Workspace, old: &Workspace, flow: String, body: &Value) -> Considered {
    let now = house.clock.now();
    let known = new.flow(&flow).or_else(|| old.flow(&flow));
    let source =
        known.and_then(|flow| flow.subscriptions.first()).map_or_else(|| flow.clone(), |from| from.source.clone());
    let about = About {
        source: source.into(),
        source_event_id: "".into(),
        kind: flow.clone().into(),
        tenant: TENANT_DEFAULT.into(),
        sender: "".into(),
        schema_version: 1,
        mismatch: "".into(),
        trace: TraceId::new(now, house.clock.random()),
        job_keys: Vec::new(),
        headers: Vec::new(),
    };
    let payload = Payload { about, body: body.to_string().into() };
    // A number that no event has: the plan of the same body is the same tomorrow.
    Considered {
        event: EventId::from_number(1),
        received_at: now,
        payload: payload.into(),
        jobs: Vec::new(),
        flow: Some(flow),
    }
}
