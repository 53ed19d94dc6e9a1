//! The claim loop of one queue: never more jobs at once than the worker may run, never a claim after the stop.

use super::attempt;
use super::lease::Leases;
use crate::effects::Gate;
use crate::house::House;
use crate::telemetry::ByState;
use clinch_core::config::Workspace;
use clinch_store::{ClaimAsk, LeaseRef};
use prometheus_client::metrics::gauge::Gauge;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// A claim takes at most this many jobs at once.
const CLAIM_MAX: usize = 64;
/// Woken or not, a queue is looked at this often: the wake-up is a hint, the look is the truth.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a store that cannot answer is left alone.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Runs every worker of the live workspace, and those of older ones that jobs were accepted with, until the stop; then
/// waits up to `grace` for jobs under way.
pub async fn run(house: House, grace: Duration) -> Result<(), String> {
    let gate = Arc::new(Gate::new(house.clone())?);
    let pools = TaskTracker::new();
    for (queue, pool) in pools_of(&house).await {
        pools.spawn(serve(house.clone(), gate.clone(), Arc::from(queue), pool));
    }
    pools.close();
    house.stop.cancelled().await;
    if tokio::time::timeout(grace, pools.wait()).await.is_err() {
        tracing::warn!("jobs were still under way after {grace:?}; what they had begun to send is unknown");
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Pool {
    concurrency: usize,
    visibility_timeout: Duration,
}

/// One pool per queue. The live workspace decides how wide it is; a queue that it no longer has keeps its old width.
async fn pools_of(house: &House) -> BTreeMap<String, Pool> {
    let mut pools = BTreeMap::new();
    for version in house.store.live_versions() {
        if let Ok(Some(workspace)) = house.versions.get(version, &*house.store).await {
            add_pools(&workspace, &mut pools);
        }
    }
    add_pools(&house.versions.workspace, &mut pools);
    pools
}

fn add_pools(workspace: &Workspace, pools: &mut BTreeMap<String, Pool>) {
    for queue in &workspace.queues {
        if let Some(worker) = workspace.worker_for(&queue.name) {
            let pool = Pool { concurrency: worker.concurrency, visibility_timeout: queue.visibility_timeout };
            pools.insert(queue.name.clone(), pool);
        }
    }
}

async fn serve(house: House, gate: Arc<Gate>, queue: Arc<str>, pool: Pool) {
    let places = Arc::new(Semaphore::new(pool.concurrency));
    let leases = Arc::new(Leases::new(house.clone(), pool.visibility_timeout));
    let under_way = TaskTracker::new();
    let heartbeat = tokio::spawn(leases.clone().keep());
    let places_metric =
        |state: &'static str| house.metrics.workers.get_or_create_owned(&ByState { state: state.into() });
    places_metric("all").inc_by(i64::try_from(pool.concurrency).unwrap_or(i64::MAX));
    let busy = places_metric("busy");
    loop {
        let place = tokio::select! {
            biased;
            () = house.stop.cancelled() => break,
            place = places.clone().acquire_owned() => place.expect("the places are never closed"),
        };
        let most = (places.available_permits() + 1).min(CLAIM_MAX);
        let now = house.clock.now();
        let ask = ClaimAsk { queue: queue.clone(), most, now, until: now + pool.visibility_timeout };
        let claims = match house.store.claim(ask).await {
            Ok(claims) => claims,
            Err(error) => {
                tracing::warn!("queue {queue}: {error}");
                drop(place);
                tokio::select! { () = house.stop.cancelled() => break, () = tokio::time::sleep(STORE_PAUSE) => continue }
            }
        };
        if claims.is_empty() {
            drop(place);
            rest(&house, &queue).await;
            continue;
        }
        let mut first = Some(place);
        for claim in claims {
            let place = match first.take() {
                Some(place) => place,
                None => places.clone().try_acquire_owned().expect("as many were free as were asked for"),
            };
            let (house, gate) = (house.clone(), gate.clone());
            let seat = Seat::take(claim.lease, place, leases.clone(), busy.clone());
            under_way.spawn(async move {
                attempt::run(&house, &gate, claim).await;
                drop(seat);
            });
        }
    }
    under_way.close();
    under_way.wait().await;
    heartbeat.abort();
}

/// A job under way. However it ends, even by a panic, its place is free again and its lease is no longer renewed.
struct Seat {
    lease: LeaseRef,
    leases: Arc<Leases>,
    busy: Gauge,
    _place: OwnedSemaphorePermit,
}

impl Seat {
    fn take(lease: LeaseRef, place: OwnedSemaphorePermit, leases: Arc<Leases>, busy: Gauge) -> Seat {
        leases.add(lease);
        busy.inc();
        Seat { lease, leases, busy, _place: place }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leases.remove(self.lease);
        self.busy.dec();
    }
}

/// Until there may be work: somebody says so, a job comes due, or it is time to look anyway.
async fn rest(house: &House, queue: &str) {
    let pause = match house.store.next_due(queue) {
        Some(due) => due.since(house.clock.now()).min(LOOK_EVERY),
        None => LOOK_EVERY,
    };
    tokio::select! {
        () = house.stop.cancelled() => {}
        () = house.store.work(queue) => {}
        () = tokio::time::sleep(pause) => {}
    }
}
