//! The pulse of the pages: what is shown on all of them, whenever it changed. A page that hears of a change asks for itself
//! again; nothing else is rendered elsewhere.

use super::Desk;
use super::ask::Ask;
use super::door::Visitor;
use crate::api::shapes::Overview;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Pages are at most this far behind.
const BEAT: Duration = Duration::from_secs(2);

/// What the header of every page shows.
#[derive(Default, PartialEq, Eq, Serialize)]
struct Pulse {
    queued: u64,
    running: u64,
    waiting: u64,
    retrying: u64,
    dead: u64,
}

impl Pulse {
    fn of(overview: &Overview) -> Pulse {
        overview.flows.iter().fold(Pulse::default(), |sum, flow| Pulse {
            queued: sum.queued + flow.queued,
            running: sum.running + flow.running,
            waiting: sum.waiting + flow.waiting,
            retrying: sum.retrying + flow.retrying,
            dead: sum.dead + flow.dead,
        })
    }
}

pub async fn stream(
    State(desk): State<Desk>,
    visitor: Visitor,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send> {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let beats = stream::unfold((desk, visitor.ask, beat), |(desk, ask, mut beat): (Desk, Ask, Interval)| async move {
        tokio::select! {
            _ = desk.stop.cancelled() => None,
            _ = beat.tick() => {
                let told = ask.get::<Overview>("overview").await.ok()?;
                let event = Event::default().event("pulse").json_data(Pulse::of(&told)).ok()?;
                Some((Ok(event), (desk, ask, beat)))
            }
        }
    });
    Sse::new(beats).keep_alive(KeepAlive::default())
}
