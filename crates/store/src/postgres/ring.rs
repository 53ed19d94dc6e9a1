//! The ring: the slots that jobs are in until they have ended. `slot BETWEEN 1 AND 3` says the same in SQL.
//!
//! Every claim and every end of a job leaves an old version of its row behind. As long as anybody keeps an old snapshot, as a
//! session forgotten in a transaction does, no vacuum removes them, and all who look for a job must step over them. A
//! table can be emptied as a whole in spite of that. So new jobs go into one slot until it is big enough, and then into the
//! next. Those that are in the old one come to their ends, and go to rest; the few that stay are moved into the present slot;
//! and then the old one is emptied.
//!
//! Nobody can miss a job that is moved:
//!
//! - A job that runs is moved while nobody else has begun anything with its slot: the lock that empties it waits for them, and
//!   they for it. It all is one transaction. A statement looks at the moment after it got its locks, so it finds the job where
//!   it is then. Who looks at one moment for longer has the lock before: see `BEGIN_READING`.
//! - One that waits may be moved under everybody's hands. Whoever locks such a row steps over what is locked or gone, and
//!   comes again.
//!
//! No clock has a part in this, and nothing is left half done. Who does not know yet that the ring has turned writes into an
//! old slot, and it is emptied later. Where no slot is free, the present one stays, and grows.

use super::keep::alone_with;
use super::pool::Line;
use super::{Fault, Shared, lanes};
use std::time::Duration;

/// The lock of whoever turns the ring.
const TURNER: i64 = 0x636c_696e_6368_0004;
/// From this size on the next slot is begun. Space that a vacuum made free is used again first: where nobody is in its way
/// and little is done, the ring stands still.
pub(super) const FULL_BYTES: i64 = 8 << 20;
/// No more live rows than this are moved while everybody waits.
const MOVED_AT_ONCE_MAX: i64 = 2_000;
/// Where no slot is free, a row is worth moving for so many old versions in the ring. They are bounded by what lives, then: a
/// backlog is not moved for its own sake.
const DEAD_PER_MOVE: i64 = 4;
/// A lane is worth rewriting for so many bytes of their table.
const BYTES_PER_LANE: i64 = 2_000;
/// Who wants to empty a slot waits no longer than this for those who use it, and they no longer for him.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '100ms'";
/// Somebody who did not let go of a slot may have forgotten it, and everybody waited for nothing: so nobody asks again at once.
const LOCKED_OUT_FOR: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    active: usize,
    /// Of each slot, from the first on. One that was emptied has none.
    bytes: [i64; 3],
    /// Old versions of rows in all of them, about.
    dead: i64,
}

impl Ring {
    /// The other slots, in the order in which they were begun.
    fn others(&self) -> impl Iterator<Item = (usize, i64)> {
        let slots = self.bytes.len();
        (self.active..self.active + slots - 1).map(move |slot| (slot % slots + 1, self.bytes[slot % slots]))
    }

    /// Those that were begun and are to be emptied, the oldest first.
    fn old(&self) -> impl Iterator<Item = usize> {
        self.others().filter(|(_, bytes)| *bytes > 0).map(|(slot, _)| slot)
    }

    /// The one to begin, if the present one is big enough.
    fn next(&self, full_bytes: i64) -> Option<usize> {
        let mut free = self.others().filter(|(_, bytes)| *bytes == 0).map(|(slot, _)| slot);
        free.next().filter(|_| self.is_full(full_bytes))
    }

    fn is_full(&self, full_bytes: i64) -> bool {
        self.bytes[self.active - 1] >= full_bytes
    }

    /// So many rows are moved out of a slot to empty it. Most leave by themselves: they are waited for, unless there is nowhere
    /// else to go.
    fn moved_max(&self, full_bytes: i64) -> i64 {
        let is_stuck = self.is_full(full_bytes) && self.next(full_bytes).is_none();
        let worth = if is_stuck { self.dead / DEAD_PER_MOVE } else { 0 };
        worth.max(MOVED_AT_ONCE_MAX)
    }
}

/// Turns the ring if it is time to, and empties old slots as far as they can be. By one node at a time.
pub(super) async fn turn(shared: &Shared, full_bytes: i64) -> Result<(), Fault> {
    loop {
        match step(shared, full_bytes).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(fault) if fault.is_locked_out() => {
                let micros = i64::try_from(LOCKED_OUT_FOR.as_micros()).unwrap_or(i64::MAX);
                let sql = "UPDATE ring SET not_before = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1";
                shared.hands.ask(sql, &[&micros]).await?;
                return Ok(());
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Whether there may be more to do.
async fn step(shared: &Shared, full_bytes: i64) -> Result<bool, Fault> {
    let Some(mut line) = alone_with(shared, TURNER).await? else { return Ok(false) };
    line.run(&format!("{LOCK_WAIT}; SET LOCAL enable_seqscan = on")).await?;
    let (ring, is_locked_out) = look(&mut line).await?;
    let most = ring.moved_max(full_bytes);
    for slot in ring.old().filter(|_| !is_locked_out) {
        let live = format!("SELECT count(*) FROM (SELECT FROM job_{slot} LIMIT $1) AS live");
        let live = number(&mut line, &live, most + 1).await?;
        if live > most {
            continue;
        }
        let is_progress = if live > MOVED_AT_ONCE_MAX {
            number(&mut line, &move_waiting(slot), MOVED_AT_ONCE_MAX).await? > 0
        } else {
            line.run(&empty(slot)).await?;
            true
        };
        line.commit().await?;
        return Ok(is_progress);
    }
    if !is_locked_out {
        lanes::rewrite(&mut line, full_bytes, full_bytes / BYTES_PER_LANE).await?;
    }
    if let Some(next) = ring.next(full_bytes) {
        line.run(&format!("UPDATE ring SET active = {next}")).await?;
        tracing::debug!("jobs go into slot {next} from now on");
    }
    line.commit().await?;
    Ok(false)
}

async fn look(line: &mut Line) -> Result<(Ring, bool), Fault> {
    let sql = "SELECT active, pg_relation_size('job_1'), pg_relation_size('job_2'), pg_relation_size('job_3'),
                      not_before > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                      pg_stat_get_dead_tuples('job_1'::regclass) + pg_stat_get_dead_tuples('job_2'::regclass)
                          + pg_stat_get_dead_tuples('job_3'::regclass)
               FROM ring";
    let rows = line.query(sql, &[]).await?;
    let row = rows.first().ok_or(Fault::Silent)?;
    let active = usize::try_from(row.try_get::<_, i16>(0)?).unwrap_or(1);
    let ring = Ring { active, bytes: [row.try_get(1)?, row.try_get(2)?, row.try_get(3)?], dead: row.try_get(5)? };
    Ok((ring, row.try_get(4)?))
}

/// The answer to a question that counts.
async fn number(line: &mut Line, sql: &str, most: i64) -> Result<i64, Fault> {
    let rows = line.query(sql, &[&most]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
}

macro_rules! columns {
    () => {
        "id, event, version, received_at, run_at, lane, turn, pos, fence, lease_until, node, first_attempt_at, ended_at, failures,
         attempts, replays, state, ord, priority, reason, waits, flow, queue"
    };
}

/// Puts rows into the present slot, from the table that is named next.
const INSERT_FROM: &str =
    concat!("INSERT INTO job (slot, ", columns!(), ") SELECT (SELECT active FROM ring), ", columns!(), " FROM ");

/// What waits and is in nobody's hands.
fn move_waiting(slot: usize) -> String {
    format!(
        "WITH waiting AS MATERIALIZED (
             SELECT id FROM job_{slot} WHERE state IN (0, 5) LIMIT $1 FOR UPDATE SKIP LOCKED
         ), gone AS (
             DELETE FROM job_{slot} USING waiting WHERE job_{slot}.id = waiting.id RETURNING job_{slot}.*
         ), moved AS ({INSERT_FROM} gone RETURNING 1)
         SELECT count(*) FROM moved"
    )
}

/// What is left when everybody else has let go of it.
fn empty(slot: usize) -> String {
    format!("LOCK TABLE job_{slot} IN ACCESS EXCLUSIVE MODE; {INSERT_FROM} job_{slot}; TRUNCATE job_{slot}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::claim::tests::{PATIENCE, accept, ask, client, finished, job, live, now, open};
    use crate::postgres::{PostgresStore, verify};
    use crate::{ClaimAsk, Held, NewEffect, ReviveAsk, Revived, Settlement, Store};
    use clinch_core::death::Reason;
    use clinch_core::effect::{EffectState, Idempotency, Receipt};
    use clinch_core::id::JobId;
    use clinch_core::job::Change;
    use clinch_testbed::Postgres;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::task::{JoinHandle, JoinSet};
    use tokio_postgres::Client;

    /// A slot that has anything in it is big enough.
    const AT_ONCE: i64 = 1;

    fn ring(active: usize, bytes: [i64; 3]) -> Ring {
        Ring { active, bytes, dead: 100_000 }
    }

    #[test]
    fn f42_the_ring_turns_to_the_next_slot_that_is_empty_when_the_present_one_is_big_enough() {
        for (ring, next, old) in [
            (ring(1, [99, 0, 0]), None, vec![]),
            (ring(1, [100, 0, 0]), Some(2), vec![]),
            (ring(2, [1, 100, 0]), Some(3), vec![1]),
            (ring(3, [0, 5, 100]), Some(1), vec![2]),
            (ring(3, [5, 5, 100]), None, vec![1, 2]),
            (ring(2, [5, 100, 5]), None, vec![3, 1]),
        ] {
            assert_eq!(ring.next(100), next, "{ring:?}");
            assert_eq!(ring.old().collect::<Vec<_>>(), old, "{ring:?}");
        }
    }

    #[test]
    fn f42_many_rows_are_moved_only_where_there_is_nowhere_else_to_go_and_much_is_dead() {
        let big = 100 * FULL_BYTES;
        assert_eq!(ring(1, [big, 0, big]).moved_max(FULL_BYTES), MOVED_AT_ONCE_MAX, "there is a free one");
        assert_eq!(ring(1, [1, big, big]).moved_max(FULL_BYTES), MOVED_AT_ONCE_MAX, "there is room in the present one");
        assert_eq!(ring(1, [big, big, big]).moved_max(FULL_BYTES), 100_000 / DEAD_PER_MOVE);
        let backlog = Ring { dead: 10, ..ring(1, [big, big, big]) };
        assert_eq!(backlog.moved_max(FULL_BYTES), MOVED_AT_ONCE_MAX, "it would free nothing");
    }

    async fn number(client: &Client, sql: &str) -> i64 {
        client.query_one(sql, &[]).await.expect("counted").get(0)
    }

    async fn verified(server: &Postgres) {
        let report = verify(&server.url("postgres"), now()).await.expect("read");
        assert_eq!(report.problems, Vec::<String>::new());
    }

    async fn leases(store: &PostgresStore, most: usize) -> Vec<crate::LeaseRef> {
        let claims = store.claim(ask("work", most)).await.expect("claimed");
        claims.iter().map(|claim| claim.lease).collect()
    }

    fn intent() -> NewEffect {
        NewEffect { name: "post".into(), class: Idempotency::None, at: now() }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p6_who_writes_under_a_lease_while_its_job_is_moved_still_holds_it() {
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        for lane in 0..3 {
            accept(&store, job("work", lane)).await;
        }
        let [renewed, intended, settled] = leases(&store, 3).await[..] else { panic!("all were claimed") };
        let mover = client(&server).await;
        mover.batch_execute(&format!("BEGIN; UPDATE ring SET active = 2; {}", empty(1))).await.expect("moved");
        let mut writes = JoinSet::new();
        let writer = store.clone();
        writes.spawn(async move { writer.renew(&[renewed], now() + PATIENCE).await.expect("answered")[0] });
        let writer = store.clone();
        writes.spawn(async move { writer.intend(intended, intent()).await.expect("answered") });
        let writer = store.clone();
        writes.spawn(async move { writer.settle(settled, finished()).await.expect("answered") });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'job'";
        let onlooker = client(&server).await;
        let all_wait = async {
            while number(&onlooker, waiting).await < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, all_wait).await.expect("they wait");
        mover.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(writes.join_all().await, [Held::Held; 3]);
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job WHERE slot = 2 AND state = 4").await, 2);
        verified(&server).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p6_who_waits_for_a_job_that_comes_to_its_end_is_told_that_the_lease_is_over() {
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        for lane in 0..2 {
            accept(&store, job("work", lane)).await;
        }
        let [ends, goes_on] = leases(&store, 2).await[..] else { panic!("both were claimed") };
        // An end that is not committed yet, as a settlement of another node writes it.
        let other = client(&server).await;
        let end = format!(
            "BEGIN;
             WITH over AS (DELETE FROM job WHERE id = {} RETURNING *)
             INSERT INTO job SELECT (jsonb_populate_record(NULL::job, to_jsonb(over) || '{{\"slot\": 0, \"state\": 1}}')).*
             FROM over",
            ends.job.number()
        );
        other.batch_execute(&end).await.expect("written");
        let writer = store.clone();
        let renewing = tokio::spawn(async move { writer.renew(&[ends, goes_on], now() + PATIENCE).await });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'lease_until'";
        let onlooker = client(&server).await;
        let waits = async {
            while number(&onlooker, waiting).await < 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.expect("it waits");
        other.batch_execute("COMMIT").await.expect("committed");
        let held = renewing.await.expect("ended").expect("answered");
        assert_eq!(held, [Held::Lost, Held::Held], "the others do not suffer for it");
    }

    /// Turns the ring all the time, and does not wait after it was locked out. Counts how often it turned.
    fn turning(store: &Arc<PostgresStore>, is_over: &Arc<AtomicBool>, turns: &Arc<AtomicUsize>) -> JoinHandle<()> {
        let (store, is_over, turns) = (store.clone(), is_over.clone(), turns.clone());
        tokio::spawn(async move {
            let mut before = 1;
            while !is_over.load(Ordering::Relaxed) {
                turn(&store.shared, AT_ONCE).await.expect("turned");
                let sql = "UPDATE ring SET not_before = 0 RETURNING active";
                let active: i16 = store.shared.hands.ask(sql, &[]).await.expect("read")[0].get(0);
                turns.fetch_add(usize::from(active != before), Ordering::Relaxed);
                before = active;
            }
        })
    }

    /// Jobs of every kind are accepted, claimed, put off, brought to an end, and buried and revived, on two nodes. How often
    /// each came to a good end.
    async fn lives(nodes: &[Arc<PostgresStore>; 2], jobs: u64) -> HashMap<JobId, usize> {
        let ended = Arc::new(std::sync::Mutex::new(HashMap::new()));
        let left = Arc::new(AtomicUsize::new(usize::try_from(jobs).expect("few")));
        let mut hands = JoinSet::new();
        for (nth, store) in nodes.iter().cloned().enumerate() {
            hands.spawn(async move {
                for lane in 0..jobs / 2 {
                    accept(&store, job(if lane % 4 == 0 { "groups" } else { "work" }, lane % 16)).await;
                }
            });
            for hand in 0..3 {
                let (store, ended, left) = (nodes[(nth + hand) % 2].clone(), ended.clone(), left.clone());
                hands.spawn(async move {
                    let mut turn = hand;
                    while left.load(Ordering::Relaxed) > 0 {
                        for queue in ["work", "groups"] {
                            let ask = ClaimAsk {
                                queue: queue.into(),
                                most: 5,
                                but: None,
                                now: now(),
                                until: now() + PATIENCE,
                            };
                            for claim in store.claim(ask).await.expect("claimed") {
                                turn += 1;
                                let end = finished();
                                let change = match turn % 7 {
                                    0 => Change::Retried { run_at: now() },
                                    1 => Change::Buried { at: now(), reason: Reason::Timeout },
                                    _ => end.change,
                                };
                                let end = Settlement { change, ..end };
                                if turn % 7 == 2 {
                                    let held = store.renew(&[claim.lease], now() + PATIENCE).await.expect("renewed");
                                    assert_eq!(held, [Held::Held]);
                                }
                                assert_eq!(store.settle(claim.lease, end).await.expect("settled"), Held::Held);
                                let job = claim.lease.job;
                                match turn % 7 {
                                    0 => {}
                                    1 => {
                                        let ask = ReviveAsk {
                                            job,
                                            record: clinch_core::audit::Who::clinch("test").record("again", now()),
                                            version: None,
                                            unknown: None,
                                        };
                                        let revived = store.revive(ask).await.expect("answered");
                                        assert!(matches!(revived, Revived::Revived { .. }), "{revived:?}");
                                    }
                                    _ => {
                                        *ended.lock().expect("held").entry(job).or_default() += 1;
                                        left.fetch_sub(1, Ordering::Relaxed);
                                    }
                                }
                            }
                        }
                        tokio::task::yield_now().await;
                    }
                });
            }
        }
        tokio::time::timeout(4 * PATIENCE, hands.join_all()).await.expect("all came to an end");
        std::mem::take(&mut *ended.lock().expect("held"))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p6_no_job_is_lost_or_runs_twice_while_the_ring_turns_under_two_nodes() {
        const JOBS: u64 = 1_000;
        let server = Postgres::start();
        let nodes = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
        let (is_over, turns) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let turning = nodes.each_ref().map(|node| turning(node, &is_over, &turns));
        let ended = lives(&nodes, JOBS).await;
        is_over.store(true, Ordering::Relaxed);
        for turning in turning {
            turning.await.expect("it ended well");
        }
        let turns = turns.load(Ordering::Relaxed);
        assert!(turns > 3, "it turned {turns} times");
        assert_eq!(ended.len() as u64, JOBS);
        assert!(ended.values().all(|times| *times == 1), "{ended:?}");
        verified(&server).await;
        let onlooker = client(&server).await;
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job WHERE slot > 0").await, 0);
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_rest WHERE state = 1").await, JOBS.cast_signed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p5_who_looks_at_one_moment_sees_every_job_once_while_the_ring_turns() {
        let server = Postgres::start();
        let nodes = [Arc::new(open(&server).await), Arc::new(open(&server).await)];
        let (is_over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let turning = turning(&nodes[0], &is_over, &turns);
        let url = server.url("postgres");
        let (over, turned) = (is_over.clone(), turns.clone());
        let looking = tokio::spawn(async move {
            let (mut problems, mut seen) = (Vec::new(), usize::MAX);
            // Once for each turn: who reads all the time keeps the ring from turning.
            while !over.load(Ordering::Relaxed) {
                if turned.load(Ordering::Relaxed) == seen {
                    tokio::task::yield_now().await;
                    continue;
                }
                seen = turned.load(Ordering::Relaxed);
                problems.extend(verify(&url, now()).await.expect("read").problems);
            }
            problems
        });
        let enough = async {
            while turns.load(Ordering::Relaxed) < 5 {
                lives(&nodes, 200).await;
            }
        };
        tokio::time::timeout(4 * PATIENCE, enough).await.expect("it turns");
        is_over.store(true, Ordering::Relaxed);
        turning.await.expect("it ended well");
        assert_eq!(looking.await.expect("it ended well"), Vec::<String>::new());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p1_a_turn_that_is_cut_off_anywhere_loses_nothing() {
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        for lane in 0..20 {
            accept(&store, job(if lane % 2 == 0 { "work" } else { "groups" }, lane)).await;
        }
        assert_eq!(leases(&store, 5).await.len(), 5);
        client(&server).await.batch_execute("UPDATE ring SET active = 2").await.expect("begun");
        let whole = empty(1);
        let parts: Vec<&str> = whole.split("; ").collect();
        assert_eq!(parts.len(), 3);
        for done in 1..=parts.len() {
            let cut_off = client(&server).await;
            cut_off.batch_execute(&format!("BEGIN; {}", parts[..done].join("; "))).await.expect("done");
            drop(cut_off);
            verified(&server).await;
        }
        turn(&store.shared, FULL_BYTES).await.expect("turned");
        let onlooker = client(&server).await;
        assert_eq!(number(&onlooker, "SELECT pg_relation_size('job_1')").await, 0);
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job WHERE slot = 2").await, 20);
        verified(&server).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_a_slot_that_somebody_has_forgotten_stays_and_nobody_waits_for_long() {
        let server = Postgres::start();
        let store = open(&server).await;
        accept(&store, job("work", 1)).await;
        let reader = client(&server).await;
        reader.batch_execute("UPDATE ring SET active = 2").await.expect("begun");
        reader.batch_execute("BEGIN; SELECT count(*) FROM job").await.expect("forgotten");
        turn(&store.shared, AT_ONCE).await.expect("looked");
        let onlooker = client(&server).await;
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_1").await, 1, "it is as it was");
        reader.batch_execute("COMMIT").await.expect("ended");
        turn(&store.shared, AT_ONCE).await.expect("looked");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_1").await, 1, "nobody asks again at once");
        onlooker.batch_execute("UPDATE ring SET not_before = 0").await.expect("later");
        turn(&store.shared, AT_ONCE).await.expect("turned");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_1").await, 0);
        assert_eq!(leases(&store, 5).await.len(), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_what_waits_for_long_is_moved_where_no_slot_is_free() {
        const WAITING: i64 = MOVED_AT_ONCE_MAX + 100;
        let server = Postgres::start();
        let store = open(&server).await;
        accept(&store, job("work", 1)).await;
        let onlooker = client(&server).await;
        let fill = |slot: i64, from: i64, jobs: i64| {
            format!(
                "INSERT INTO job (id, event, version, received_at, run_at, flow, queue, lane, ord, priority, turn, state, slot)
                 SELECT {from} + nth, 1, 1, 0, 0, 'orders', 'later', nth, 0, 0, nth, 5, {slot} FROM generate_series(1, {jobs}) AS nth"
            )
        };
        let filled = [fill(2, 0, WAITING), fill(3, 100_000, WAITING)].join("; ");
        onlooker.batch_execute(&filled).await.expect("filled");
        turn(&store.shared, FULL_BYTES).await.expect("looked");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_2").await, WAITING, "there is room in the present one");
        turn(&store.shared, AT_ONCE).await.expect("looked");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_2").await, WAITING, "it would free too little");
        // As many lives leave it.
        let lived =
            format!("{}; DELETE FROM job WHERE id > 200000 AND slot = 1 AND queue = 'later'", fill(1, 200_000, 20_000));
        onlooker.batch_execute(&lived).await.expect("left behind");
        onlooker.batch_execute("SELECT pg_stat_force_next_flush()").await.expect("told");
        turn(&store.shared, AT_ONCE).await.expect("moved");
        assert_eq!(number(&onlooker, "SELECT active::bigint FROM ring").await, 2, "it was emptied and begun");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job_3").await, WAITING, "there was no need to");
        assert_eq!(number(&onlooker, "SELECT count(*) FROM job WHERE slot > 0").await, 2 * WAITING + 1);
    }

    async fn one_life(store: &PostgresStore, queue: &'static str, lane: u64) {
        accept(store, job(queue, lane)).await;
        let claim = store.claim(ask(queue, 1)).await.expect("claimed").pop();
        let Some(claim) = claim else { return };
        assert_eq!(store.intend(claim.lease, intent()).await.expect("intended"), Held::Held);
        let state = EffectState::Done(Receipt { status: 200, body: Default::default() });
        let conclusion = Some(crate::Conclusion { name: "post".into(), state, at: now() });
        let end = Settlement { conclusion, ..finished() };
        assert_eq!(store.settle(claim.lease, end).await.expect("settled"), Held::Held);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_what_lives_leave_behind_is_bounded_while_a_session_is_forgotten_in_a_transaction() {
        const FULL: i64 = 128 << 10;
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        let forgotten = client(&server).await;
        forgotten.batch_execute("BEGIN; SELECT txid_current()").await.expect("pinned");
        let onlooker = client(&server).await;
        let hot = "SELECT sum(pg_total_relation_size(name))::bigint FROM unnest(ARRAY['job_1', 'job_2', 'job_3', 'lane']) AS name";
        let mut most = Vec::new();
        for _ in 0..2 {
            let mut biggest = 0;
            for _ in 0..6 {
                live(&store, "work", 500).await;
                live(&store, "groups", 500).await;
                for lane in 0..10 {
                    one_life(&store, "work", lane).await;
                }
                turn(&store.shared, FULL).await.expect("turned");
                biggest = biggest.max(number(&onlooker, hot).await);
            }
            most.push(biggest);
        }
        assert!(most[1] < most[0] * 3 / 2, "twice as many lives leave no more behind: {most:?}");
        // What has ended was written once: a copy is as big.
        for table in ["job_rest", "effect", "attempt", "event", "dedup"] {
            let copy = format!("CREATE TEMP TABLE copy AS TABLE {table}");
            onlooker.batch_execute(&copy).await.expect("copied");
            let parts =
                format!("SELECT sum(pg_relation_size(relid))::bigint FROM pg_partition_tree('{table}') WHERE isleaf");
            let (is, could_be) =
                (number(&onlooker, &parts).await, number(&onlooker, "SELECT pg_relation_size('copy')").await);
            onlooker.batch_execute("DROP TABLE copy").await.expect("dropped");
            assert!(is < could_be * 5 / 4 + (64 << 10), "{table}: {is} bytes, and {could_be} would do");
        }
        forgotten.batch_execute("COMMIT").await.expect("still there");
        verified(&server).await;
    }
}
