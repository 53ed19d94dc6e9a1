//! Fires schedules: looks which slots have come, and puts the event of a run into its queue. Every node does; the store lets one.

use crate::firing;
use crate::house::House;
use crate::telemetry::ByFlowOutcome;
use crate::tracer::trace_of;
use clinch_core::config::Workspace;
use clinch_core::schedule::{Due, MISSED_MAX, Schedule};
use clinch_core::time::Timestamp;
use clinch_core::worker::Worker;
use clinch_store::{FireAsk, Fired};
use std::time::Duration;

/// At least this often the clock is looked at: it may have been set.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(10);

pub async fn run(house: House) {
    let mut changes = house.versions.changes();
    while !house.stop.is_cancelled() {
        let now = changes.borrow_and_update().clone();
        tokio::select! {
            () = house.stop.cancelled() => return,
            () = follow_all(&house, &now.plain) => {}
            // What is set over the files is no other workspace.
            Ok(_) = changes.wait_for(|later| later.live != now.live) => {}
        }
    }
}

/// The schedules of one workspace, for as long as it is live.
async fn follow_all(house: &House, workspace: &Workspace) {
    let mut followed: Vec<Followed<'_>> =
        workspace.schedules().map(|(worker, schedule)| Followed { worker, schedule, last: None, held: None }).collect();
    loop {
        let mut pause = LOOK_EVERY;
        for one in &mut followed {
            match one.follow(house).await {
                Ok(next) => pause = pause.min(next),
                Err(error) => tracing::warn!("schedule {} could not be followed: {error}", one.worker.name),
            }
        }
        tokio::time::sleep(pause.max(PAUSE_MIN)).await;
    }
}

struct Followed<'w> {
    worker: &'w Worker,
    schedule: &'w Schedule,
    /// The slot that was used up last, as far as this node knows: the store knows better, and says so.
    last: Option<Timestamp>,
    /// The slot that waits for an earlier run to finish.
    held: Option<Timestamp>,
}

impl Followed<'_> {
    /// Fires what is due. How long until the next slot.
    async fn follow(&mut self, house: &House) -> clinch_store::Result<Duration> {
        let last = match self.last {
            Some(last) => last,
            None => self.begin(house).await?,
        };
        self.last = Some(last);
        for _ in 0..MISSED_MAX {
            let now = house.clock.now();
            let ask = match self.schedule.due(self.last.unwrap_or(now), now) {
                Due::Nothing => break,
                Due::Fire(slot) => firing::of_slot(house, self.worker, self.schedule, slot),
                Due::LetPass(slot) => firing::pass(self.worker, self.schedule, slot, now),
            };
            if !self.fire(house, ask).await? {
                // An earlier run is not finished: looked at again, as long as that takes.
                return Ok(LOOK_EVERY);
            }
        }
        let now = house.clock.now();
        Ok(self.schedule.next(now).map_or(LOOK_EVERY, |next| next.since(now)))
    }

    /// A schedule that was never seen begins now: nothing from before is made up for.
    async fn begin(&self, house: &House) -> clinch_store::Result<Timestamp> {
        let known = house.store.schedules().await?;
        if let Some(row) = known.iter().find(|row| *row.name == *self.worker.name) {
            return Ok(row.last);
        }
        let now = house.clock.now();
        match house.store.fire(firing::pass(self.worker, self.schedule, now, now)).await? {
            Fired::Before(last) => Ok(last),
            _ => Ok(now),
        }
    }

    /// Whether the slot is used up.
    async fn fire(&mut self, house: &House, ask: FireAsk) -> clinch_store::Result<bool> {
        let (name, slot, event) = (&self.worker.name, ask.slot, ask.event.clone());
        let outcome = match house.store.fire(ask).await? {
            Fired::Fired(accepted) => {
                if let Some(event) = &event {
                    house.tracer.scheduled(&accepted, event, house.clock.now());
                }
                tracing::info!(job.id = %accepted.job, trace.id = %accepted.trace, "schedule {name} runs as {}", accepted.job);
                self.last = slot;
                "fired"
            }
            Fired::Passed => {
                tracing::info!("schedule {name}: missed runs are let pass");
                self.last = slot;
                "passed"
            }
            // Another node was faster.
            Fired::Before(last) => {
                self.last = Some(last);
                return Ok(true);
            }
            Fired::Busy(_) if self.held == slot => return Ok(false),
            Fired::Busy(job) => {
                let trace = trace_of(house, job).await;
                tracing::info!(job.id = %job, trace.id = trace, "schedule {name} waits until its run {job} is finished");
                self.held = slot;
                "held"
            }
        };
        let labels = ByFlowOutcome { flow: name.into(), outcome: outcome.into() };
        house.metrics.schedule_slots.get_or_create(&labels).inc();
        Ok(outcome != "held")
    }
}
