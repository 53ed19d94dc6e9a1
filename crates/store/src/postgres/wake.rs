//! Who waits for work, and how they hear of it: at once from this node, by NOTIFY from another. Both are hints; the look
//! into the table is the truth.

use super::ground::{Ground, Reach};
use super::node::jittered;
use super::{Fault, Shared, lock};
use clinch_core::time::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio_postgres::AsyncMessage;

const CHANNEL: &str = "clinch_work";
/// A node speaks no more often than this: every NOTIFY holds up the commits of the whole database for a moment.
const SPEAK_EVERY: Duration = Duration::from_millis(100);
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// Where nobody can be heard, a queue is looked into after a pause between these two.
const LOOK_MIN: Duration = Duration::from_millis(250);
const LOOK_MAX: Duration = Duration::from_millis(500);
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Wake {
    queues: Mutex<HashMap<Arc<str>, Queue>>,
    /// What the others have not been told yet.
    untold: Mutex<BTreeSet<Arc<str>>>,
    news: Notify,
    looks: AtomicU32,
}

#[derive(Default)]
struct Queue {
    due: Option<Timestamp>,
    /// When the next job has to be given its turn.
    later: Option<Timestamp>,
    /// Whether it has lanes that keep their order, and whether they were asked first at the last look.
    has_lanes: bool,
    lanes_came_first: bool,
    ground: Ground,
    wake: Arc<Notify>,
}

/// What a look into a queue found to come.
pub(super) struct Outlook {
    pub due: Option<Timestamp>,
    pub later: Option<Timestamp>,
    pub has_lanes: bool,
}

impl Wake {
    fn with<T>(&self, queue: &str, look: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queues = lock(&self.queues);
        if !queues.contains_key(queue) {
            queues.insert(Arc::from(queue), Queue::default());
        }
        look(queues.get_mut(queue).expect("it was just put there"))
    }

    pub fn wake_of(&self, queue: &str) -> Arc<Notify> {
        self.with(queue, |queue| queue.wake.clone())
    }

    /// As far as this node knows.
    pub fn next_due(&self, queue: &str) -> Option<Timestamp> {
        lock(&self.queues).get(queue)?.due
    }

    /// How long to wait before a look that nobody asked for: another time for each node and look.
    pub fn look_pause(&self, boot: i64) -> Duration {
        jittered(boot, self.looks.fetch_add(1, Ordering::Relaxed), LOOK_MIN, LOOK_MAX)
    }

    /// A job became ready here: whoever waits for it, on whatever node, may come.
    pub fn ready(&self, queue: &str, run_at: Timestamp) {
        self.ready_here(queue, run_at);
        let mut untold = lock(&self.untold);
        if !untold.contains(queue) {
            untold.insert(Arc::from(queue));
            self.news.notify_one();
        }
    }

    pub fn ready_here(&self, queue: &str, run_at: Timestamp) {
        self.with(queue, |queue| {
            queue.due = Some(queue.due.map_or(run_at, |due| due.min(run_at)));
            queue.ground.put(run_at);
            queue.wake.notify_one();
        });
    }

    /// A job comes due here at this time, and has no turn until then.
    pub fn later(&self, queue: &str, run_at: Timestamp) {
        self.with(queue, |queue| queue.later = Some(queue.later.map_or(run_at, |later| later.min(run_at))));
        self.ready_here(queue, run_at);
    }

    /// Whether jobs may have come due that have no turn yet.
    pub fn is_later_due(&self, queue: &str, now: Timestamp) -> bool {
        lock(&self.queues).get(queue).is_some_and(|queue| queue.later.is_some_and(|later| later <= now))
    }

    pub fn keeps_order(&self, queue: &str) {
        self.with(queue, |queue| queue.has_lanes = true);
    }

    /// Whether there are lanes that keep their order, and if so whether they are to be asked first: every other time.
    pub fn lanes_first(&self, queue: &str) -> Option<bool> {
        self.with(queue, |queue| {
            queue.lanes_came_first = !queue.lanes_came_first;
            queue.has_lanes.then_some(queue.lanes_came_first)
        })
    }

    /// A job has its old place again.
    pub fn put_back(&self, queue: &str) {
        self.with(queue, |queue| queue.ground.put_back());
    }

    /// Somebody is going to look into the queue.
    pub fn look(&self, queue: &str) -> Reach {
        self.with(queue, |queue| queue.ground.look(Instant::now()))
    }

    /// Until it is time to look at all of the queue, if the last look did not.
    pub async fn whole_look(&self, queue: &str) {
        match self.with(queue, |queue| queue.ground.whole_at()) {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// A whole look that began then found the first that is due at some time.
    pub fn looked_whole(&self, queue: &str, began: Instant, first: Option<Timestamp>, now: Timestamp) {
        self.with(queue, |queue| queue.ground.looked(Instant::now(), began.elapsed(), first, now));
    }

    /// The queue was looked into, and this is what comes.
    pub fn looked(&self, queue: &str, outlook: &Outlook) {
        self.with(queue, |queue| {
            queue.due = outlook.due;
            queue.later = outlook.later;
            queue.has_lanes = outlook.has_lanes;
        });
    }

    fn told(&self, queue: &str) {
        if let Some(queue) = lock(&self.queues).get(queue) {
            queue.wake.notify_one();
        }
    }

    fn told_of_all(&self) {
        for queue in lock(&self.queues).values() {
            queue.wake.notify_one();
        }
    }
}

/// Listens and speaks on a connection of its own, until the store is closed.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    for turn in 0.. {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            fault = converse(&shared) => {
                if let Err(fault) = fault {
                    tracing::debug!("other nodes are not heard for the moment: {fault}");
                }
            }
        }
        let pause = jittered(lock(&shared.node).boot, turn, RECONNECT_MIN, RECONNECT_MAX);
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Until the connection is over.
async fn converse(shared: &Shared) -> Result<(), Fault> {
    let (client, mut driver) = shared.link.connect().await?;
    let (heard, mut hearing) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = driver.hear().await {
            if let AsyncMessage::Notification(notification) = message {
                // Nobody hears it when the store is closed.
                let _ = heard.send(notification);
            }
        }
    });
    // A lost hint is no loss, so nobody waits for the disk on its account.
    let greeting = format!("SET synchronous_commit = off; SET statement_timeout = 5000; LISTEN {CHANNEL}");
    within(client.batch_execute(&greeting)).await?;
    // What was said while nobody listened.
    shared.wake.told_of_all();
    loop {
        tokio::select! {
            notification = hearing.recv() => match notification {
                None => return Ok(()),
                Some(notification) => {
                    let own = lock(&shared.node).boot.to_string();
                    match notification.payload().split_once(' ') {
                        Some((boot, queue)) if boot != own => shared.wake.told(queue),
                        _ => {}
                    }
                }
            },
            () = shared.wake.news.notified() => {
                let untold = std::mem::take(&mut *lock(&shared.wake.untold));
                let boot = lock(&shared.node).boot.to_string();
                let queues: Vec<&str> = untold.iter().map(|queue| &**queue).collect();
                let sql = "SELECT pg_notify($1, $2 || ' ' || queue) FROM unnest($3::text[]) AS queue";
                within(client.query(sql, &[&CHANNEL, &boot, &queues])).await?;
                tokio::time::sleep(SPEAK_EVERY).await;
            }
        }
    }
}

async fn within<T>(asking: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
    Ok(tokio::time::timeout(ANSWER_MAX, asking).await.map_err(|_| Fault::Silent)??)
}
