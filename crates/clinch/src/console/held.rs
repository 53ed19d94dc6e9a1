//! What somebody has pressed and may still take back: it is done when its window is over, and not before. It is held in memory
//! only, by the process that showed the page. What is held when that process stops is not done, and the page says so.

use super::ask::{Ask, Refusal};
use super::door::{Post, Refused, Visitor, own_path, see_other};
use crate::api::shapes::Moment;
use axum::extract::Path;
use axum::response::Response;
use clinch_core::time::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// So much is held at once, by all together.
const HELD_MAX: usize = 200;
/// What came of it is told for so long.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// Something to be done when its window is over: a command of the API.
pub struct Hold {
    /// What will be done, as a sentence without its end: `Approve 50`.
    pub what: String,
    pub path: String,
    pub body: Value,
    /// The ids of what it is about, so that pages can mark them.
    pub about: Vec<String>,
    pub window: Duration,
    /// What to say of the answer; the error is what went wrong.
    pub told: fn(&Value) -> Result<String, String>,
}

/// As a page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub id: u64,
    pub what: String,
    pub about: Vec<String>,
    pub step: Step,
}

impl Shown {
    /// Until when it can be taken back; nothing when it cannot any more.
    pub fn until(&self) -> Option<&Moment> {
        if let Step::Held { until } = &self.step { Some(until) } else { None }
    }

    pub fn done(&self) -> Option<&str> {
        if let Step::Done { said } = &self.step { Some(said) } else { None }
    }

    pub fn failed(&self) -> Option<&str> {
        if let Step::Failed { said } = &self.step { Some(said) } else { None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It can be taken back until then.
    Held {
        until: Moment,
    },
    UnderWay,
    Done {
        said: String,
    },
    Failed {
        said: String,
    },
}

struct Act {
    by: String,
    what: String,
    about: Vec<String>,
    step: Step,
    /// When it ended, if it did.
    ended: Option<Timestamp>,
    taken_back: CancellationToken,
}

#[derive(Clone)]
pub struct Held {
    acts: Arc<Mutex<BTreeMap<u64, Act>>>,
    stop: CancellationToken,
}

impl Held {
    pub fn new(stop: CancellationToken) -> Held {
        Held { acts: Arc::default(), stop }
    }

    /// Holds it for its window, then asks the API as the one who pressed. `false`: too much is held already, and this is not.
    fn hold(&self, ask: Ask, by: &str, hold: Hold, now: Timestamp) -> bool {
        let taken_back = CancellationToken::new();
        let mut acts = self.acts();
        forget(&mut acts, now);
        if acts.values().filter(|act| act.ended.is_none()).count() >= HELD_MAX {
            return false;
        }
        // Never the id of another, also not of one that was held before a restart: its page may still be open.
        let id = now.as_micros().cast_unsigned().max(acts.last_key_value().map_or(0, |(last, _)| last + 1));
        let act = Act {
            by: by.into(),
            what: hold.what,
            about: hold.about,
            step: Step::Held { until: Moment(now + hold.window) },
            ended: None,
            taken_back: taken_back.clone(),
        };
        acts.insert(id, act);
        let (held, ends) = (self.clone(), now + hold.window);
        tokio::spawn(async move {
            tokio::select! {
                _ = held.stop.cancelled() => return,
                _ = taken_back.cancelled() => return,
                _ = tokio::time::sleep(hold.window) => (),
            }
            if held.begin(id) {
                let answer: Result<Value, Refusal> = ask.post(&hold.path, &hold.body).await;
                let said = answer.map_err(|refusal| refusal.detail).and_then(|answer| (hold.told)(&answer));
                held.end(id, said, ends);
            }
        });
        true
    }

    /// Whether it may be done: nobody took it back. From then on nobody can.
    fn begin(&self, id: u64) -> bool {
        match self.acts().get_mut(&id) {
            Some(act) => {
                act.step = Step::UnderWay;
                true
            }
            None => false,
        }
    }

    fn end(&self, id: u64, said: Result<String, String>, at: Timestamp) {
        if let Some(act) = self.acts().get_mut(&id) {
            if let Err(why) = &said {
                tracing::warn!("what {} had pressed was not done as it was meant: {why}", act.by);
            }
            act.ended = Some(at);
            act.step = match said {
                Ok(said) => Step::Done { said },
                Err(said) => Step::Failed { said },
            };
        }
    }

    /// Whether it was in time. Only who pressed takes it back.
    fn take_back(&self, id: u64, by: &str) -> bool {
        let mut acts = self.acts();
        let in_time = |act: &Act| act.by == by && matches!(act.step, Step::Held { .. });
        match acts.get(&id).filter(|act| in_time(act)) {
            Some(act) => {
                act.taken_back.cancel();
                acts.remove(&id);
                true
            }
            None => false,
        }
    }

    /// What this person has pressed and can still see, oldest first.
    pub fn of(&self, by: &str, now: Timestamp) -> Vec<Shown> {
        let mut acts = self.acts();
        forget(&mut acts, now);
        let own = acts.iter().filter(|(_, act)| act.by == by);
        own.map(|(id, act)| Shown { id: *id, what: act.what.clone(), about: act.about.clone(), step: act.step.clone() })
            .collect()
    }

    fn acts(&self) -> MutexGuard<'_, BTreeMap<u64, Act>> {
        self.acts.lock().expect("nobody panics while holding what is held")
    }
}

fn forget(acts: &mut BTreeMap<u64, Act>, now: Timestamp) {
    acts.retain(|_, act| act.ended.is_none_or(|at| now.since(at) < TOLD_FOR));
}

impl Visitor {
    /// Holds a command for its window; the page after it offers to take it back.
    pub fn hold(&self, hold: Hold) -> Result<(), Refused> {
        if self.held.hold(self.ask.clone(), &self.who.name, hold, self.now) {
            return Ok(());
        }
        let detail = "Too much is held already. Nothing was done: wait some seconds, and press again.".into();
        Err(self.refused(Refusal {
            status: 409,
            code: "CL0511".into(),
            title: "There is no room for another".into(),
            detail,
        }))
    }
}

pub async fn undo(Path(id): Path<u64>, post: Post) -> Response {
    let word = match post.visitor.held.take_back(id, &post.visitor.who.name) {
        true => "undone",
        false => "too-late",
    };
    let back = own_path(post.text("back"));
    let and = if back.contains('?') { '&' } else { '?' };
    see_other(&format!("{back}{and}done={word}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Api;
    use axum::Router;
    use clinch_core::audit::Who;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    /// An API that knows nothing.
    fn ask() -> Ask {
        Ask::new(Api(Router::new()), Who::clinch("test"))
    }

    fn hold(window: Duration) -> Hold {
        let told = |_: &Value| Ok("done".into());
        Hold { what: "Approve 1".into(), path: "x".into(), body: Value::Null, about: Vec::new(), window, told }
    }

    #[tokio::test]
    async fn g3_no_more_is_held_than_there_is_room_for_and_only_who_pressed_takes_it_back() {
        let held = Held::new(CancellationToken::new());
        let press = |by: &str| held.hold(ask(), by, hold(Duration::from_secs(3_600)), NOW);
        for _ in 0..HELD_MAX {
            assert!(press("maya"));
        }
        assert!(!press("omar"), "there is no room");
        let first = held.of("maya", NOW)[0].id;
        assert_eq!((held.of("maya", NOW).len(), held.of("omar", NOW).len()), (HELD_MAX, 0));
        assert!(!held.take_back(first, "omar"), "it is not his");
        assert!(held.take_back(first, "maya"));
        assert!(!held.take_back(first, "maya"), "it is gone");
        assert!(press("omar"), "there is room again");
    }

    #[tokio::test]
    async fn g3_what_went_wrong_is_told_for_a_while_and_cannot_be_taken_back() {
        let held = Held::new(CancellationToken::new());
        assert!(held.hold(ask(), "maya", hold(Duration::ZERO), NOW));
        while held.of("maya", NOW)[0].failed().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(!held.take_back(held.of("maya", NOW)[0].id, "maya"));
        assert!(held.of("maya", NOW + TOLD_FOR).is_empty());
    }
}
