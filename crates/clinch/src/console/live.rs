//! The pulse of the pages: what is shown on all of them, whenever it changed. A page that hears of a change asks for itself
//! again; nothing else is rendered elsewhere.

use super::Desk;
use super::ask::Ask;
use super::door::{self, Visitor};
use crate::api::shapes::Overview;
use axum::extract::State;
use axum::http::HeaderMap;
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

/// The beats of one page, for as long as who looks is logged in.
struct Beats {
    desk: Desk,
    ask: Ask,
    secret: String,
    beat: Interval,
}

impl Beats {
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            () = self.desk.stop.cancelled() => return None,
            _ = self.beat.tick() => {}
        }
        // Asked each time: who logged out or was removed hears nothing more.
        if !self.desk.sessions.stands(&self.secret).await.ok()? {
            return None;
        }
        let told = self.ask.get::<Overview>("overview").await.ok()?;
        Event::default().event("pulse").json_data(Pulse::of(&told)).ok()
    }
}

pub async fn stream(
    State(desk): State<Desk>,
    visitor: Visitor,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send> {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let secret = door::secret(&headers).unwrap_or_default().to_string();
    let beats = Beats { desk, ask: visitor.ask, secret, beat };
    let beats = stream::unfold(beats, |mut beats| async move { Some((Ok(beats.next().await?), beats)) });
    Sse::new(beats).keep_alive(KeepAlive::default())
}
