//! Schedules: when each runs next, what its last run came to, and a run now.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::{Moment, Schedule as Row, ScheduleList, ScheduleRun, ScheduleRunAsk};
use crate::firing;
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::schedule::Schedule;
use clinch_core::worker::Worker;
use clinch_store::Fired;
use clinch_store::read::ScheduleRow;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<ScheduleList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let known = house.store.schedules().await?;
    let mut schedules = Vec::new();
    for (worker, schedule) in house.versions.workspace().schedules() {
        let row = known.iter().find(|row| *row.name == *worker.name);
        schedules.push(told(&house, worker, schedule, row).await?);
    }
    Ok(Json(ScheduleList { schema: "clinch.schedules.list/v1".into(), schedules }))
}

pub async fn run(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ScheduleRun>, Problem> {
    let ask: ScheduleRunAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let workspace = house.versions.workspace();
    let found = workspace.schedules().find(|(worker, _)| worker.name == name);
    let Some((worker, schedule)) = found else {
        return Err(Problem::not_found(format!("No worker `{name}` has a schedule.")));
    };
    let ask = firing::by_hand(&house, worker, schedule, record);
    let event = ask.event.clone();
    match house.store.fire(ask).await? {
        Fired::Fired(accepted) => {
            if let Some(event) = &event {
                house.tracer.scheduled(&accepted, event, house.clock.now());
            }
            tracing::info!(job.id = %accepted.job, trace.id = %accepted.trace, "schedule {name} runs as {}, asked for by a person", accepted.job);
            Ok(Json(ScheduleRun {
                schema: "clinch.schedules.run/v1".into(),
                schedule: name,
                job_id: accepted.job.to_string(),
                event_id: accepted.event.to_string(),
                trace_id: accepted.trace.to_string(),
            }))
        }
        Fired::Busy(job) => Err(Problem::not_now(format!(
            "Its run {job} is not finished. Wait for it, or write `overlap: true` below `schedule:` of the worker."
        ))),
        Fired::Passed | Fired::Before(_) => Err(Problem::not_now("The run was not begun; ask again.".into())),
    }
}

async fn told(house: &House, worker: &Worker, schedule: &Schedule, row: Option<&ScheduleRow>) -> Result<Row, Problem> {
    let job = match row.and_then(|row| row.job) {
        Some(job) => house.store.job(job).await?.map(|story| story.row),
        None => None,
    };
    Ok(Row {
        name: worker.name.clone(),
        cron: schedule.cron.text().to_string(),
        time_zone: schedule.zone.name().to_string(),
        missed: schedule.missed.word().into(),
        overlap: schedule.overlaps,
        next: schedule.next(house.clock.now()).map(Moment),
        last: row.map(|row| Moment(row.last)),
        job_id: job.as_ref().map(|job| job.id.to_string()),
        trace_id: job.as_ref().map(|job| job.trace.to_string()),
        state: job.map(|job| job.word.as_str().to_string()),
    })
}
