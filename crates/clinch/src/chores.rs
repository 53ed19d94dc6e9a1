//! Long work on the whole store that somebody asked for: a new key for everything, the erasure of somebody's data. One at a
//! time, in small steps between which everybody else goes first; it can be watched, and ends at the stop.

use crate::house::House;
use clinch_core::audit::{Act, Who};
use clinch_core::call::CallKey;
use clinch_core::id::EventId;
use clinch_core::seal::NotOpened;
use clinch_core::subject::Subject;
use clinch_store::read::Contents;
use clinch_store::{ForgetAsk, Kept, StoreError};
use serde_json::Value;
use std::sync::Mutex;
use std::time::Duration;

/// Events that are looked at in one step.
const STEP: usize = 200;
/// Nodes that still write with an older key could keep a rotation busy for ever.
const WALKS_MAX: u32 = 5;
/// Between two steps.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Default)]
pub struct Chores(Mutex<Option<Chore>>);

/// How far one has come.
#[derive(Clone, Debug, Default)]
pub struct Chore {
    pub kind: &'static str,
    pub state: State,
    /// Events that were looked at.
    pub looked_at: u64,
    /// Places that were sealed again, or events whose data was erased, or would have been.
    pub changed: u64,
    /// What does not open: it was left as it is.
    pub unreadable: u64,
    /// Jobs that had not ended, and those of them that were running, with the data in hand.
    pub unfinished: u64,
    pub running: u64,
    /// What there is to say at the end.
    pub said: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Running,
    Done,
    Failed(String),
}

impl Chores {
    /// What is under way, or was the last.
    pub fn last(&self) -> Option<Chore> {
        self.current().clone()
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Chore>> {
        self.0.lock().expect("nobody panics while holding the chores")
    }

    /// `false`: another is under way.
    fn begin(&self, kind: &'static str) -> bool {
        let mut current = self.current();
        if current.as_ref().is_some_and(|chore| chore.state == State::Running) {
            return false;
        }
        *current = Some(Chore { kind, ..Chore::default() });
        true
    }

    fn note(&self, change: impl FnOnce(&mut Chore)) {
        if let Some(chore) = &mut *self.current() {
            change(chore);
        }
    }
}

/// Whose data is to go.
pub enum Whose {
    Subject(Subject),
    Event(EventId),
}

pub struct Erasure {
    pub whose: Whose,
    pub reason: String,
    pub who: Who,
    pub dry_run: bool,
}

/// Begins to seal everything with the active key; a new one is made first where that is ours to do and nothing is left from
/// an earlier time. `false`: another chore is under way.
pub fn rotate(house: &House, who: Who) -> bool {
    start(house, "rotate", seal_again(house.clone(), who))
}

/// Begins to erase. `false`: another chore is under way.
pub fn forget(house: &House, erasure: Erasure) -> bool {
    start(house, "forget", erase(house.clone(), erasure))
}

fn start(
    house: &House,
    kind: &'static str,
    work: impl Future<Output = clinch_store::Result<()>> + Send + 'static,
) -> bool {
    if !house.chores.begin(kind) {
        return false;
    }
    let house = house.clone();
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = work => ended.map_err(|error| error.to_string()),
            () = house.stop.cancelled() => Err("the server stopped; ask again and it goes on".into()),
        };
        if let Err(why) = &ended {
            tracing::warn!("{kind} did not end: {why}");
        }
        house.chores.note(|chore| chore.state = ended.err().map_or(State::Done, State::Failed));
    });
    true
}

async fn seal_again(house: House, who: Who) -> clinch_store::Result<()> {
    let (store, chores) = (&house.store, &house.chores);
    let Some(active) = store.active_key() else {
        return Err(StoreError::Open("encryption is off (`encryption: none`); there is no key".into()));
    };
    let act =
        Act { action: "keys.rotate", object: active.to_string(), job: None, before: Value::Null, after: Value::Null };
    store.note(act, who.record("", house.clock.now())).await?;
    let is_finished = store.key_uses().await?.iter().all(|of| of.key == Some(active) || of.places() == 0);
    if is_finished {
        let renewed = house.keys.renewed().map_err(|error| StoreError::Open(error.to_string()))?;
        match renewed {
            Some(ring) => store.use_keys(ring).await?,
            None => chores.note(|chore| {
                chore.said.push(format!(
                    "everything is under {active} already; to change it, give a new `key` and the present one as `older` in \
                     clinch.yml, restart, and rotate again"
                ));
            }),
        }
    } else {
        chores.note(|chore| chore.said.push("what was not under the active key is; no new key was made".into()));
    }
    // What was on its way into the store when the key changed may lie behind a walk that has passed.
    for _ in 0..WALKS_MAX {
        if walk(&house).await? == 0 {
            break;
        }
    }
    for key in store.retire_keys().await? {
        let said = format!("nothing is under {key} any more: it can be removed, when no backup needs it either");
        chores.note(|chore| chore.said.push(said));
    }
    Ok(())
}

/// Seals again what is not under the active key; how many places that were.
async fn walk(house: &House) -> clinch_store::Result<u64> {
    let (mut after, mut looked_at, mut places, mut unreadable) = (None, 0, 0, 0);
    loop {
        let part = house.store.reseal(after, STEP).await?;
        looked_at += part.events;
        places += part.places;
        unreadable += part.unreadable;
        house.chores.note(|chore| {
            chore.looked_at = chore.looked_at.max(looked_at);
            chore.changed += part.places;
            chore.unreadable = chore.unreadable.max(unreadable);
        });
        match part.last {
            Some(last) => after = Some(last),
            None => return Ok(places),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn erase(house: House, erasure: Erasure) -> clinch_store::Result<()> {
    let (store, chores) = (&house.store, &house.chores);
    let subject = match &erasure.whose {
        Whose::Event(event) => {
            return erase_found(&house, &erasure, vec![*event], Vec::new(), &event.to_string()).await;
        }
        Whose::Subject(subject) => subject,
    };
    let mut after = None;
    loop {
        let part = store.contents(after, STEP).await?;
        let Some(last) = part.last() else { break };
        after = Some(last.event);
        let is_about = |of: &Contents| {
            of.payload.as_ref().is_ok_and(|stored| subject.is_in_event(stored))
                || of.others.iter().flatten().any(|stored| subject.is_in(stored))
        };
        let unreadable = part.iter().filter(|of| matches!(of.payload, Err(why) if why != NotOpened::Forgotten)).count();
        chores.note(|chore| {
            chore.looked_at += part.len() as u64;
            chore.unreadable += unreadable as u64;
        });
        let found: Vec<EventId> = part.iter().filter(|of| is_about(of)).map(|of| of.event).collect();
        if !found.is_empty() {
            erase_found(&house, &erasure, found, Vec::new(), subject.mark()).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    let (mut after, mut answers) = (None, 0);
    loop {
        let part = store.answers(after, STEP).await?;
        let Some((last, _)) = part.last() else { break };
        after = Some(*last);
        let is_about = |kept: &Kept| kept.as_ref().is_ok_and(|stored| subject.is_in_answer(stored));
        let found: Vec<CallKey> = part.iter().filter(|(_, kept)| is_about(kept)).map(|(key, _)| *key).collect();
        if !found.is_empty() {
            answers += found.len();
            erase_found(&house, &erasure, Vec::new(), found, subject.mark()).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    if answers > 0 {
        let said = if erasure.dry_run { "would be erased" } else { "are erased" };
        let said = format!("{answers} answers that were kept for calls {said}; the calls are not made again");
        chores.note(|chore| chore.said.push(said));
    }
    Ok(())
}

async fn erase_found(
    house: &House,
    erasure: &Erasure,
    events: Vec<EventId>,
    answers: Vec<CallKey>,
    subject: &str,
) -> clinch_store::Result<()> {
    if erasure.dry_run {
        house.chores.note(|chore| chore.changed += events.len() as u64);
        return Ok(());
    }
    let record = erasure.who.record(&erasure.reason, house.clock.now());
    let ask = ForgetAsk { events, answers, subject: subject.into(), record };
    let erased = house.store.forget(ask).await?;
    house.chores.note(|chore| {
        chore.changed += erased.events;
        chore.unfinished += erased.unfinished;
        chore.running += erased.running;
    });
    Ok(())
}
