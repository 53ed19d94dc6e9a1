//! The places of a partner that bears so many calls at once, as far as they are this node's. The store divides them among
//! the nodes that call the partner; a call asks nobody.

use crate::house::House;
use clinch_core::portion;
use clinch_core::term::is_of_this_life;
use clinch_core::time::Timestamp;
use clinch_store::ShareAsk;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often the store hears of a partner that is called.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// And where others still have what is ours.
const ASK_SOON: Duration = Duration::from_millis(200);
/// Whoever has not called for so long leaves its places to the others.
const IDLE_MAX: Duration = Duration::from_secs(3);

pub struct Places {
    name: Arc<str>,
    max: AtomicU32,
    desk: Mutex<Desk>,
    /// Held by the one who asks the store.
    asking: tokio::sync::Mutex<()>,
    /// There is something to give back.
    changed: Notify,
    guess: Mutex<portion::Guess>,
}

#[derive(Default)]
struct Desk {
    places: portion::Places,
    /// From before the store was asked for them, if it was.
    asked_at: Option<Instant>,
    failed_at: Option<Instant>,
    wanted_at: Option<Instant>,
    /// Somebody sees to it that the store hears of us.
    is_kept: bool,
}

/// One call that may be made.
pub struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        if lock(&self.0.desk).places.give_back() {
            self.0.changed.notify_one();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counted(max: usize) -> u32 {
    u32::try_from(max).unwrap_or(u32::MAX)
}

impl Desk {
    fn is_known(&self, house: &House) -> bool {
        self.asked_at.is_some_and(|at| is_of_this_life(house.clock.instant(), at, house.store.life()))
    }

    fn is_wanted(&self, now: Instant, within: Duration) -> bool {
        self.wanted_at.is_some_and(|at| now.duration_since(at) < within)
    }
}

impl Places {
    pub fn new(name: Arc<str>, max: usize) -> Places {
        Places {
            name,
            max: AtomicU32::new(counted(max)),
            desk: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            guess: Mutex::default(),
        }
    }

    /// So many calls at once from here on. Those that are under way go on, and count.
    pub fn follow(&self, max: usize) {
        if self.max.swap(counted(max), Ordering::Relaxed) != counted(max) {
            // The store is asked before the next call.
            lock(&self.desk).asked_at = None;
        }
    }

    fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// A place, if one of ours is free.
    pub async fn take(self: &Arc<Self>, house: &House) -> Option<Place> {
        let is_known = {
            let mut desk = lock(&self.desk);
            desk.wanted_at = Some(house.clock.instant());
            desk.is_known(house)
        };
        if !is_known {
            self.begin(house).await;
        }
        lock(&self.desk).places.take().then(|| Place(self.clone()))
    }

    /// When to come back, where none is free.
    pub fn free_at(&self, now: Timestamp) -> Timestamp {
        let granted = lock(&self.desk).places.granted();
        lock(&self.guess).free_at(granted, now)
    }

    /// A call took so long.
    pub fn learn(&self, took: Duration) {
        lock(&self.guess).learn(took);
    }

    /// The first call, or the first of a new life: nothing is ours before the store says so.
    async fn begin(self: &Arc<Self>, house: &House) {
        let asking = self.asking.lock().await;
        let is_settled = {
            let mut desk = lock(&self.desk);
            let is_known = desk.is_known(house);
            if !is_known {
                desk.places.lose();
                desk.asked_at = None;
            }
            let now = house.clock.instant();
            is_known || desk.failed_at.is_some_and(|at| now.duration_since(at) < ASK_EVERY)
        };
        if !is_settled {
            self.ask(house).await;
        }
        drop(asking);
        self.keep(house);
    }

    /// Only by who holds `asking`: what the store hears last is what is true.
    async fn ask(&self, house: &House) {
        let mut is_more = true;
        while is_more {
            let asked_at = house.clock.instant();
            let (held, in_use) = lock(&self.desk).places.tell();
            let (name, max, now) = (self.name.clone(), self.max(), house.clock.now());
            let answer = house.store.share(ShareAsk { name, max, held, in_use, stays: true, now }).await;
            let mut desk = lock(&self.desk);
            match answer {
                Ok(share) => {
                    is_more = desk.places.hear(share);
                    (desk.asked_at, desk.failed_at) = (Some(asked_at), None);
                }
                Err(error) => {
                    tracing::debug!("the places of integration `{}` are not known: {error}", self.name);
                    desk.failed_at = Some(house.clock.instant());
                    return;
                }
            }
        }
    }

    /// From here on the store hears of us, for as long as we call.
    fn keep(self: &Arc<Self>, house: &House) {
        // Who is alone shares with nobody.
        if house.store.life().is_none() || std::mem::replace(&mut lock(&self.desk).is_kept, true) {
            return;
        }
        let (places, house) = (self.clone(), house.clone());
        tokio::spawn(async move {
            while !house.stop.is_cancelled() {
                tokio::select! {
                    () = house.stop.cancelled() => return,
                    () = places.changed.notified() => {}
                    () = tokio::time::sleep(places.pause(&house)) => {}
                }
                let _asking = places.asking.lock().await;
                if places.leaves(&house).await {
                    return;
                }
                places.renew(&house).await;
            }
        });
    }

    fn pause(&self, house: &House) -> Duration {
        let desk = lock(&self.desk);
        let lacks = desk.places.lacks() && desk.is_wanted(house.clock.instant(), ASK_EVERY);
        if lacks { ASK_SOON } else { ASK_EVERY }
    }

    async fn renew(&self, house: &House) {
        {
            let mut desk = lock(&self.desk);
            if !desk.is_known(house) {
                desk.places.lose();
            }
        }
        self.ask(house).await;
    }

    /// Whether nobody calls any more, and the others know it.
    async fn leaves(&self, house: &House) -> bool {
        {
            let mut desk = lock(&self.desk);
            if !desk.places.are_idle() || desk.is_wanted(house.clock.instant(), IDLE_MAX) {
                return false;
            }
            // Before it is told: what others are given is not used here.
            desk.places.lose();
            desk.asked_at = None;
        }
        let (name, max, now) = (self.name.clone(), self.max(), house.clock.now());
        let gone = house.store.share(ShareAsk { name, max, held: 0, in_use: 0, stays: false, now }).await;
        let is_gone = gone.is_ok();
        lock(&self.desk).is_kept = !is_gone;
        is_gone
    }
}
