//! What happens on this node, as it happens, and every moment how many jobs there are: server-sent events for who shows a
//! token. A stream ends after a while and is asked for again: who may no longer listen does not.

use super::problem::Problem;
use super::query::Query;
use super::shapes::Moment;
use crate::happenings::{Happening, Heard, Listener};
use crate::house::House;
use axum::extract::{RawQuery, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use clinch_core::job::Word;
use clinch_store::read::Counts;
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use utoipa::ToSchema;

/// How often the numbers are told.
const BEAT: Duration = Duration::from_secs(2);
const LASTS: Duration = Duration::from_secs(15 * 60);
/// What can happen.
pub const WORDS: [&str; 10] =
    ["accepted", "duplicate", "ignored", "handshake", "rejected", "success", "noop", "retry", "waits", "dead"];

/// Something that happened: `event: happening`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Happened {
    pub at: Moment,
    /// One of accepted, duplicate, ignored, handshake, rejected, success, noop, retry, waits, dead.
    pub what: String,
    /// The source, or the flow whose route it is, for what happens at the door.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl From<&Happening> for Happened {
    fn from(happening: &Happening) -> Happened {
        Happened {
            at: Moment(happening.at),
            what: happening.what.into(),
            source: happening.source.as_deref().map(String::from),
            flow: happening.flow.as_deref().map(String::from),
            job_id: happening.job.clone(),
            trace_id: happening.trace.map(|trace| trace.to_string()),
            reason: happening.reason.map(String::from),
            said: happening.said.clone(),
        }
    }
}

/// `event: overview`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pulse {
    pub queued: u64,
    pub running: u64,
    pub waiting: u64,
    pub retrying: u64,
    pub dead: u64,
}

impl From<&Counts> for Pulse {
    fn from(counts: &Counts) -> Pulse {
        let of =
            |word: Word| counts.live.iter().filter(|(_, as_word, _)| *as_word == word).map(|(.., jobs)| jobs).sum();
        Pulse {
            queued: of(Word::Queued),
            running: of(Word::Running),
            waiting: of(Word::Waiting),
            retrying: of(Word::Retrying),
            dead: counts.dead.iter().map(|(.., jobs)| jobs).sum(),
        }
    }
}

/// `event: missed`: the listener was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Missed {
    pub missed: u64,
}

/// What somebody wants to hear of.
struct Wanted {
    only: Vec<String>,
    source: Option<String>,
    flow: Option<String>,
}

impl Wanted {
    fn read(raw: Option<&str>) -> Result<Wanted, Problem> {
        let query = Query::parse(raw, &["only", "source", "flow"])?;
        let only: Vec<String> =
            query.text("only").map_or(Vec::new(), |text| text.split(',').map(String::from).collect());
        if let Some(unknown) = only.iter().find(|word| !WORDS.contains(&word.as_str())) {
            let known = WORDS.join(", ");
            return Err(Problem::bad_query(format!("only: `{unknown}` does not happen; what does: {known}.")));
        }
        let text = |name| query.text(name).map(String::from);
        Ok(Wanted { only, source: text("source"), flow: text("flow") })
    }

    fn fits(&self, happening: &Happening) -> bool {
        // A flow with a route of its own is the source of what comes there.
        let from = happening.source.as_deref();
        (self.only.is_empty() || self.only.iter().any(|word| word == happening.what))
            && self.source.as_deref().is_none_or(|source| from == Some(source))
            && self.flow.as_deref().is_none_or(|flow| happening.flow.as_deref() == Some(flow) || from == Some(flow))
    }
}

struct Ear {
    house: House,
    wanted: Wanted,
    listener: Listener,
    beat: Interval,
    until: Instant,
}

impl Ear {
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                () = self.house.stop.cancelled() => return None,
                () = sleep_until(self.until) => return None,
                heard = self.listener.next() => match heard? {
                    Heard::Happening(happening) if self.wanted.fits(&happening) => {
                        return Event::default().event("happening").json_data(Happened::from(&*happening)).ok();
                    }
                    Heard::Happening(_) => {}
                    Heard::Missed(missed) => return Event::default().event("missed").json_data(Missed { missed }).ok(),
                },
                _ = self.beat.tick() => {
                    // While the store is away there is nothing to tell, and still something to hear.
                    if let Ok(counts) = self.house.store.counts().await {
                        return Event::default().event("overview").json_data(Pulse::from(&counts)).ok();
                    }
                }
            }
        }
    }
}

pub async fn listen(
    State(house): State<House>,
    RawQuery(raw): RawQuery,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + Send>, Problem> {
    let wanted = Wanted::read(raw.as_deref())?;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let listener = house.metrics.happenings.listen();
    let ear = Ear { house, wanted, listener, beat, until: Instant::now() + LASTS };
    let events = stream::unfold(ear, |mut ear| async move { Some((Ok(ear.next().await?), ear)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::time::Timestamp;

    fn happening(what: &'static str, source: Option<&str>, flow: Option<&str>) -> Happening {
        let (at, said) = (Timestamp::from_micros(0), String::new());
        Happening {
            at,
            what,
            source: source.map(Into::into),
            flow: flow.map(Into::into),
            job: None,
            trace: None,
            reason: None,
            said,
        }
    }

    #[test]
    fn i2_who_listens_hears_what_he_asked_for_and_nothing_else() {
        let door = happening("rejected", Some("stripe"), None);
        let end = happening("dead", None, Some("orders"));
        let check = |query: &str, hears: (bool, bool)| {
            let wanted = Wanted::read(Some(query)).expect("a question");
            assert_eq!((wanted.fits(&door), wanted.fits(&end)), hears, "{query}");
        };
        check("", (true, true));
        check("only=rejected,dead", (true, true));
        check("only=success", (false, false));
        check("source=stripe", (true, false));
        check("flow=orders", (false, true));
        check("flow=stripe", (true, false));
        assert!(Wanted::read(Some("only=ded")).is_err());
    }
}
