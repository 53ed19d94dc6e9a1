//! The claim loop of one queue: never more jobs at once than the worker may run, never a claim after the stop.

use super::attempt;
use super::lease::Leases;
use super::share::Table;
use crate::effects::Gate;
use crate::house::House;
use crate::telemetry::ByState;
use clinch_core::control::{Pause, Scope};
use clinch_core::share::{Room, Shares};
use clinch_store::{ClaimAsk, LeaseRef};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A claim takes at most this many jobs at once.
const CLAIM_MAX: usize = 64;
/// Woken or not, a queue is looked at this often: the wake-up is a hint, the look is the truth.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a store that cannot answer is left alone.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// How long a queue is left alone of which one tenant or group has taken its share, unless something happens.
const CROWDED_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub queue: Arc<str>,
    pub concurrency: usize,
    /// Its jobs belong to different tenants or groups.
    pub is_shared: bool,
    pub visibility_timeout: Duration,
}

/// Runs jobs of the queue until the stop, and those under way to their end.
/// Claims until it is sent home; what it has begun it ends.
pub async fn serve(house: House, gate: Arc<Gate>, pool: Pool, leave: CancellationToken) {
    let (house, queue) = (Arc::new(house), &pool.queue);
    // A place is the right to call out; a chair is kept until the job is settled. So many may wait for the disk, no more.
    let places = Arc::new(Semaphore::new(pool.concurrency));
    let chairs = Arc::new(Semaphore::new(pool.concurrency.saturating_mul(2)));
    let shares = Table::new(Shares::new(if pool.is_shared { pool.concurrency } else { 0 }));
    let leases = Arc::new(Leases::new((*house).clone(), pool.visibility_timeout));
    let under_way = TaskTracker::new();
    let heartbeat = tokio::spawn(leases.clone().keep());
    let metric = |state: &'static str| house.metrics.workers.get_or_create_owned(&ByState { state: state.into() });
    let (busy, idle) = (metric("busy"), metric("idle"));
    idle.inc_by(i64::try_from(pool.concurrency).unwrap_or(i64::MAX));
    loop {
        resumed(&house, queue, &leave).await;
        let ready = async {
            let place = places.clone().acquire_owned().await.expect("the places are never closed");
            (place, chairs.clone().acquire_owned().await.expect("the chairs are never closed"))
        };
        let first = tokio::select! {
            biased;
            () = leave.cancelled() => break,
            first = ready => first,
        };
        let free = (places.available_permits().min(chairs.available_permits()) + 1).min(CLAIM_MAX);
        let Room { most, but } = shares.room(free);
        let (asked_at, now) = (house.clock.instant(), house.clock.now());
        let ask = ClaimAsk { queue: queue.clone(), most, but, now, until: now + pool.visibility_timeout };
        let claims = match house.store.claim(ask).await {
            Ok(claims) => claims,
            Err(error) => {
                tracing::warn!("queue {queue}: {error}");
                drop(first);
                tokio::select! { () = leave.cancelled() => break, () = tokio::time::sleep(STORE_PAUSE) => continue }
            }
        };
        if claims.is_empty() {
            drop(first);
            tokio::select! { () = rest(&house, queue, but.is_some(), &leave) => {}, () = shares.freed() => {} }
            continue;
        }
        house.tracer.claimed(&*house.clock, queue, &claims, now);
        let mut first = Some(first);
        for claim in claims {
            let free =
                |of: &Arc<Semaphore>| of.clone().try_acquire_owned().expect("as many were free as were asked for");
            let (place, chair) = first.take().unwrap_or_else(|| (free(&places), free(&chairs)));
            let (house, gate) = (house.clone(), gate.clone());
            let share = shares.take(claim.lane);
            let (place, seat) = (Place::take(place, &busy, &idle), Seat::take(claim.lease, asked_at, chair, &leases));
            // Boxed, because the future is large and would be copied at every hand-over.
            under_way.spawn(Box::pin(async move {
                let performed = attempt::perform(&house, &gate, &seat.leases, &claim).await;
                // Nobody outside is called any more: the next job may begin while this one is written down.
                drop((share, place));
                if let Some(performed) = performed {
                    attempt::settle(&house, &claim, performed).await;
                }
                drop(seat);
            }));
        }
    }
    // Its places are gone, once what is under way has left them.
    under_way.close();
    under_way.wait().await;
    idle.dec_by(i64::try_from(pool.concurrency).unwrap_or(i64::MAX));
    heartbeat.abort();
}

/// Until nobody has paused the queue, or the house is left.
async fn resumed(house: &House, queue: &Arc<str>, leave: &CancellationToken) {
    let scope = Scope::Queue(queue.clone());
    let rest = || {
        let now = house.clock.now();
        let pause = |pause: &Pause| pause.until.map_or(LOOK_EVERY, |until| until.since(now));
        house.controls.get().paused(&scope, now).map(pause)
    };
    while rest().is_some() {
        let changed = house.controls.changed();
        // Looked at again: what was switched before it was listened for is not missed.
        let Some(rest) = rest() else { return };
        tokio::select! {
            () = leave.cancelled() => return,
            () = changed => {}
            () = tokio::time::sleep(rest) => {}
        }
    }
}

/// The right to call out, shown in the metrics while it is used.
struct Place {
    busy: Gauge,
    idle: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(permit: OwnedSemaphorePermit, busy: &Gauge, idle: &Gauge) -> Place {
        busy.inc();
        idle.dec();
        Place { busy: busy.clone(), idle: idle.clone(), _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.busy.dec();
        self.idle.inc();
    }
}

/// A job under way. However it ends, even by a panic, its chair is free again and its lease is no longer renewed.
struct Seat {
    lease: LeaseRef,
    leases: Arc<Leases>,
    _chair: OwnedSemaphorePermit,
}

impl Seat {
    fn take(lease: LeaseRef, asked_at: Instant, chair: OwnedSemaphorePermit, leases: &Arc<Leases>) -> Seat {
        leases.add(lease, asked_at);
        Seat { lease, leases: leases.clone(), _chair: chair }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leases.remove(self.lease);
    }
}

/// Until there may be work: somebody says so, a job comes due, or it is time to look anyway.
async fn rest(house: &House, queue: &str, is_crowded: bool, leave: &CancellationToken) {
    let pause = match house.store.next_due(queue) {
        // What is due may be of one who has enough places.
        Some(_) if is_crowded => CROWDED_PAUSE,
        Some(due) => due.since(house.clock.now()).min(LOOK_EVERY),
        None => LOOK_EVERY,
    };
    tokio::select! {
        () = leave.cancelled() => {}
        () = house.store.work(queue) => {}
        () = house.clock.sleep(pause) => {}
    }
}
