//! This node among the others: its number, the ids it gives, its heartbeat, and what becomes of the jobs of one that fell
//! silent.

use super::lanes::Standing;
use super::pool::{Line, Pool};
use super::{Fault, Shared, Versions, lanes, lock, rows};
use crate::{LIVE_JOBS_MAX, VersionId};
use clinch_core::id::EventId;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

const BEAT_EVERY: Duration = Duration::from_secs(2);
/// While the database does not answer it is asked after a pause between these two.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(600);
/// The size of the database and of the backlog are looked at this often.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// A node is never buried before this many beats are missing.
const BEATS_MISSED_MIN: u32 = 4;
/// The lock of whoever comes or goes.
const REGISTRAR: i64 = 0x636c_696e_6368_0003;

/// Ids carry milliseconds above these bits, the number of the node below, and a counter in the lowest.
const MILLISECOND_BITS: u32 = 20;
const COUNTER_BITS: u32 = 12;
const ROOM: u64 = 1 << COUNTER_BITS;

/// Who this node is, since it last came.
pub(super) struct Identity {
    /// Leases belong to it.
    pub boot: i64,
    ids: Ids,
}

impl Identity {
    /// For each event, received at a moment and with so many jobs, its id; those of its jobs follow it.
    pub fn take_ids(&mut self, events: impl Iterator<Item = (Timestamp, usize)>) -> (i64, Vec<u64>) {
        (self.boot, events.map(|(at, jobs)| self.ids.take(at, jobs as u64)).collect())
    }
}

/// No two nodes that live have the same number, so the ids of two nodes never meet, whatever their clocks say: in each
/// millisecond a node has a room of its own. The ids of one node grow. A new one begins above every id that is stored, so
/// that they also grow from one life of a node to the next. And should a node that was taken for dead come back while
/// another has its number: it is refused before it writes, and the primary key is there if that came too late.
struct Ids {
    number: u64,
    last: u64,
}

impl Ids {
    fn take(&mut self, at: Timestamp, jobs: u64) -> u64 {
        let now = EventId::first_at(at).number() + (self.number << COUNTER_BITS);
        let mut id = now.max(self.last + 1);
        let is_ours = (id >> COUNTER_BITS) & (ROOM_OWNERS - 1) == self.number;
        if !is_ours || id % ROOM + jobs >= ROOM {
            id = (((id >> MILLISECOND_BITS) + 1) << MILLISECOND_BITS) + (self.number << COUNTER_BITS);
        }
        self.last = id + jobs;
        id
    }
}

const ROOM_OWNERS: u64 = 1 << (MILLISECOND_BITS - COUNTER_BITS);

/// Takes the lowest number that is free, after the jobs of silent nodes have been given back.
pub(super) async fn register(hands: &Arc<Pool>, silence: Duration) -> Result<Identity, Fault> {
    let mut line = hands.line().await?;
    line.begin().await?;
    line.query("SELECT pg_advisory_xact_lock($1)", &[&REGISTRAR]).await?;
    bury_silent(&mut line, 0, silence).await?;
    let rows = line
        .query(
            "INSERT INTO node (number) SELECT free FROM generate_series(0, 255) AS free
             WHERE NOT EXISTS (SELECT 1 FROM node WHERE number = free) ORDER BY free LIMIT 1
             RETURNING boot, number",
            &[],
        )
        .await?;
    let Some(row) = rows.first() else { return Err(Fault::TooManyNodes) };
    let (boot, number): (i64, i16) = (row.try_get(0)?, row.try_get(1)?);
    let rows = line
        .query(
            "SELECT greatest((SELECT max(id) FROM event), (SELECT max(id) FROM job),
                             (SELECT value FROM fact WHERE name = 'last_id'))",
            &[],
        )
        .await?;
    let last = rows.first().map(|row| row.try_get::<_, Option<i64>>(0)).transpose()?.flatten().unwrap_or(0);
    line.commit().await?;
    let ids = Ids { number: u64::from(number.cast_unsigned()), last: last.cast_unsigned() };
    Ok(Identity { boot, ids })
}

/// Silence counts from when the server came up: while it was down nobody could be heard.
async fn bury_silent(line: &mut Line, own_boot: i64, silence: Duration) -> Result<(), Fault> {
    let micros = i64::try_from(silence.as_micros()).unwrap_or(i64::MAX);
    let rows = line
        .query(
            "SELECT boot FROM node
             WHERE boot <> $1
               AND greatest(seen_at, pg_postmaster_start_time()) < clock_timestamp() - $2 * interval '1 microsecond'
             ORDER BY boot FOR UPDATE",
            &[&own_boot, &(micros as f64)],
        )
        .await?;
    for row in &rows {
        let boot = row.try_get(0)?;
        let jobs = bury(line, boot).await?;
        tracing::warn!("node {boot} is silent and taken for dead; {jobs} jobs that it had are given back");
    }
    Ok(())
}

/// Gives back what a node had. A job that had begun nothing is ready again; one with an open effect stays as if running
/// under a lease that is over, so that it is settled as lost and not silently run again.
async fn bury(line: &mut Line, boot: i64) -> Result<usize, Fault> {
    // Two statements: the second must see the intents of those that the first had to wait for.
    let sql = "SELECT id FROM job WHERE state = 4 AND node = $1 ORDER BY id FOR NO KEY UPDATE";
    let rows = line.query(sql, &[&boot]).await?;
    let jobs: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let moved = line
        .query(
            "UPDATE job SET
             state = CASE WHEN open.yes THEN 4 WHEN ord > 0 THEN 5 ELSE 0 END,
             lease_until = CASE WHEN open.yes THEN 0 END,
             node = NULL
         FROM (SELECT id, EXISTS (SELECT 1 FROM effect WHERE effect.job = id AND effect.state = 0) AS yes
               FROM unnest($1::bigint[]) AS id) AS open
         WHERE job.id = open.id
         RETURNING job.id, job.queue, job.lane, job.pos, job.run_at, job.state = 5",
            &[&jobs],
        )
        .await?;
    let mut standing = Vec::new();
    for row in &moved {
        if row.try_get(5)? {
            standing.push(Standing {
                job: row.try_get(0)?,
                queue: rows::name(row, 1)?,
                lane: row.try_get(2)?,
                pos: row.try_get(3)?,
                run_at: row.try_get(4)?,
            });
        }
    }
    lanes::give_back(line, &standing).await?;
    line.query("DELETE FROM node WHERE boot = $1", &[&boot]).await?;
    Ok(jobs.len())
}

/// Beats until the store is closed; then says goodbye, so that nobody waits for the silence.
pub(super) async fn live(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    let mut heard_since: Option<Instant> = None;
    let mut turn = 0u32;
    while !*closed.borrow() {
        let rest = match beat(&shared, &mut heard_since).await {
            Ok(()) => {
                shared.well();
                Rest::UntilDoubt
            }
            Err(fault) => {
                heard_since = None;
                shared.judge(&fault);
                turn = turn.wrapping_add(1);
                Rest::Pause(jittered(lock(&shared.node).boot, turn, PAUSE_MIN, PAUSE_MAX))
            }
        };
        let rested = async {
            match rest {
                // Somebody who was refused wants to know whether all would be.
                Rest::UntilDoubt => {
                    let _ = tokio::time::timeout(BEAT_EVERY, shared.doubt.notified()).await;
                }
                Rest::Pause(pause) => tokio::time::sleep(pause).await,
            }
        };
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => break,
            () = rested => {}
        }
    }
    if let Err(fault) = goodbye(&shared).await {
        tracing::debug!("left without a goodbye: {fault}");
    }
}

enum Rest {
    UntilDoubt,
    Pause(Duration),
}

/// One that lives is never buried for being a little late.
fn patience(shared: &Shared) -> Duration {
    shared.silence.max(BEATS_MISSED_MIN * BEAT_EVERY)
}

async fn beat(shared: &Shared, heard_since: &mut Option<Instant>) -> Result<(), Fault> {
    let boot = lock(&shared.node).boot;
    let mut line = shared.hands.line().await?;
    let (sent, sent_at) = (Instant::now(), (shared.clock)());
    let rows = line
        .query(
            "UPDATE node SET seen_at = clock_timestamp() WHERE boot = $1
             RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
            &[&boot],
        )
        .await?;
    let Some(row) = rows.first() else {
        drop(line);
        let identity = register(&shared.hands, patience(shared)).await?;
        tracing::warn!("this node was taken for dead and has come back as node {}", identity.boot);
        *lock(&shared.node) = identity;
        return Ok(());
    };
    shared.skew.measured(rows::time(row, 0)?, sent_at, sent.elapsed());
    shared.rota.exchange(&mut line).await?;
    let heard_since = *heard_since.get_or_insert_with(Instant::now);
    // Who was away himself knows nothing about the silence of others until he has listened for as long.
    if heard_since.elapsed() >= patience(shared) {
        line.begin().await?;
        bury_silent(&mut line, boot, patience(shared)).await?;
        line.commit().await?;
    }
    Ok(())
}

/// How far the queues have come, as the others say.
pub(super) async fn learn(shared: &Shared) -> Result<(), Fault> {
    shared.rota.exchange(&mut shared.hands.line().await?).await
}

/// Looks at how big everything is. Not part of the heartbeat, which must not wait for a long count.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
        if let Err(fault) = measure(&shared).await {
            tracing::debug!("the database was not measured: {fault}");
        }
    }
}

/// The size of the database, and what waits or runs in it.
pub(super) async fn measure(shared: &Shared) -> Result<(), Fault> {
    let before = Versions(lock(&shared.versions).0.clone());
    let (size, live) = shared
        .eyes
        .line()
        .await?
        .query_both(
            ("SELECT pg_database_size(current_database())", &[]),
            (
                "SELECT version, count(*) FROM (SELECT version FROM job WHERE state = 0
                                                UNION ALL SELECT version FROM job WHERE state = 5
                                                UNION ALL SELECT version FROM job WHERE state = 4) AS live
                 GROUP BY version",
                &[],
            ),
        )
        .await?;
    if let Some(row) = size.first() {
        shared.bytes.store(row.try_get::<_, i64>(0)?.cast_unsigned(), Ordering::Relaxed);
    }
    let mut seen = Vec::with_capacity(live.len());
    for row in &live {
        seen.push((VersionId(row.try_get(0)?), row.try_get::<_, i64>(1)?));
    }
    let unfinished = seen.iter().map(|(_, jobs)| jobs).sum::<i64>();
    shared.is_full.store(unfinished >= LIVE_JOBS_MAX as i64, Ordering::Relaxed);
    lock(&shared.versions).looked(&before, seen);
    Ok(())
}

async fn goodbye(shared: &Shared) -> Result<(), Fault> {
    let boot = lock(&shared.node).boot;
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // The same order as whoever buries: first the node, then its jobs.
    let here = line.query("SELECT 1 FROM node WHERE boot = $1 FOR UPDATE", &[&boot]).await?;
    if !here.is_empty() {
        bury(&mut line, boot).await?;
    }
    line.commit().await
}

/// Somewhere between the two, another place for each node and turn: those who were cut off together need not come back
/// together.
pub(super) fn jittered(boot: i64, turn: u32, least: Duration, most: Duration) -> Duration {
    let mixed = (boot.cast_unsigned() ^ (u64::from(turn) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    least + (most - least).mul_f64((mixed >> 40) as f64 / f64::from(1 << 24))
}

/// How far the clock of the database is ahead of ours. Whether a job is due and whether a lease is over is decided by
/// comparing what different nodes wrote: such moments are written in the time of the database. Those that only tell when
/// something happened are left as they were handed in.
#[derive(Default)]
pub(super) struct Skew {
    micros: AtomicI64,
}

/// A smaller difference is left alone: leases are much longer, and what was handed in reads back unchanged.
const SKEW_MIN: i64 = 250_000;
/// An answer that took longer than this says little about the clock.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(100);

impl Skew {
    fn measured(&self, database: Timestamp, sent_at: Timestamp, round_trip: Duration) {
        if round_trip > ROUND_TRIP_MAX {
            return;
        }
        let ahead = database.as_micros().saturating_sub((sent_at + round_trip / 2).as_micros());
        let ahead = if ahead.abs() < SKEW_MIN { 0 } else { ahead };
        let before = self.micros.swap(ahead, Ordering::Relaxed);
        if (before == 0) != (ahead == 0) {
            tracing::warn!("the clock of the database is {ahead} µs ahead of ours; its time counts for leases");
        }
    }

    pub fn to_database(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add(self.micros.load(Ordering::Relaxed)))
    }

    pub fn back_from_database(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_sub(self.micros.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const AT: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    #[test]
    fn the_ids_of_all_nodes_grow_and_never_meet_whatever_their_clocks_say() {
        let mut seen = HashSet::new();
        for number in [0, 1, 2, 127, 254, 255] {
            // Each begins above an id of another, and has a clock of its own that goes back once.
            let mut ids = Ids { number, last: EventId::first_at(AT).number() + 77 * (number + 1) };
            let mut last = ids.last;
            for turn in 0..6_000u64 {
                let clock = if turn == 3_000 { -2_000_000 } else { i64::try_from(number).expect("small") * 500 };
                let jobs = turn % 4 + 1;
                let event = ids.take(Timestamp::from_micros(AT.as_micros() + clock), jobs);
                assert!(event > last, "node {number}, turn {turn}");
                last = event + jobs;
                for id in event..=last {
                    assert_eq!((id >> COUNTER_BITS) & 255, number, "it stays in its room");
                    assert!(seen.insert(id), "node {number}, turn {turn}");
                }
            }
        }
    }

    #[test]
    fn an_id_tells_when_it_was_given() {
        let mut ids = Ids { number: 200, last: 0 };
        assert_eq!(EventId::from_number(ids.take(AT, 3)).given_at(), AT);
    }

    #[test]
    fn a_moment_goes_to_the_database_and_comes_back() {
        let skew = Skew::default();
        skew.measured(AT + Duration::from_millis(200), AT, Duration::ZERO);
        assert_eq!(skew.to_database(AT), AT, "a small difference is left alone");
        skew.measured(AT + Duration::from_secs(30), AT, Duration::ZERO);
        assert_eq!(skew.to_database(AT), AT + Duration::from_secs(30));
        assert_eq!(skew.back_from_database(skew.to_database(AT)), AT);
        skew.measured(AT, AT, Duration::from_secs(3));
        assert_eq!(skew.to_database(AT), AT + Duration::from_secs(30), "a slow answer says nothing");
    }
}
