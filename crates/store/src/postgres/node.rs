//! This node among the others: its number, its heartbeat, and what becomes of the jobs of one that fell silent.

use super::ids::Ids;
use super::lanes::Standing;
use super::pool::{Line, Pool};
use super::{Fault, Shared, Versions, doubt, lanes, lock, ring, rows, sealed};
use crate::seal::Sealer;
use crate::{LIVE_JOBS_MAX, VersionId};
use clinch_core::term::Term;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_postgres::Row;

const BEAT_EVERY: Duration = Duration::from_secs(2);
/// How far the others have come is asked this often: what was served since some exchanges ago is what a look steps over.
const LEARN_EVERY: Duration = Duration::from_millis(100);
/// A beat that is not answered by then is sent again on another line: this one may lead nowhere, while others do not.
const BEAT_MAX: Duration = Duration::from_secs(3);
/// While the database does not answer it is asked after a pause between these two.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(600);
/// The size of the database and of the backlog are looked at this often.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// A node is never buried before this many beats are missing.
const BEATS_MISSED_MIN: u32 = 4;
/// The lock of whoever comes or goes.
const REGISTRAR: i64 = 0x636c_696e_6368_0003;

/// Who this node is, since it last came.
pub(super) struct Identity {
    /// Leases belong to it.
    pub boot: i64,
    ids: Ids,
    /// Before it asked to come.
    came_at: Instant,
    /// When the last beat was sent that was answered.
    heard_at: Instant,
    /// Since when every beat is answered.
    listening_since: Option<Instant>,
}

impl Identity {
    /// For each event, received at a moment and with so many jobs, its id; those of its jobs follow it.
    pub fn take_ids(&mut self, events: impl Iterator<Item = (Timestamp, usize)>) -> (i64, Vec<u64>) {
        (self.boot, events.map(|(at, jobs)| self.ids.take(at, jobs as u64)).collect())
    }

    /// How long it surely counts as alive among others who wait for it no longer than `silence`.
    pub fn life(&self, silence: Duration) -> Term {
        Term::asked_at(self.came_at, silence).renewed(self.heard_at, silence)
    }

    fn heard(&mut self, sent_at: Instant) {
        // Who was away knows nothing of the silence of others until he has listened again for as long.
        let was_away = sent_at.saturating_duration_since(self.heard_at) > BEATS_MISSED_MIN * BEAT_EVERY;
        self.listening_since = self.listening_since.filter(|_| !was_away).or(Some(sent_at));
        self.heard_at = sent_at;
    }
}

/// Takes the lowest number that is free, after the jobs of silent nodes have been given back.
pub(super) async fn register(lines: &Arc<Pool>, silence: Duration, sealer: &Sealer) -> Result<Identity, Fault> {
    let came_at = Instant::now();
    let mut line = lines.line().await?;
    line.begin().await?;
    alone_at_the_door(&mut line).await?;
    bury_silent(&mut line, 0, silence).await?;
    let keys = sealed::unlock(&mut line, sealer, 0).await?;
    let rows = line
        .query(
            "INSERT INTO node (number, keys) SELECT free, $1 FROM generate_series(0, 255) AS free
             WHERE NOT EXISTS (SELECT 1 FROM node WHERE number = free) ORDER BY free LIMIT 1
             RETURNING boot, number",
            &[&keys],
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
    Ok(Identity { boot, ids, came_at, heard_at: came_at, listening_since: None })
}

/// Until the transaction ends nobody else comes or goes.
pub(super) async fn alone_at_the_door(line: &mut Line) -> Result<(), Fault> {
    line.query("SELECT pg_advisory_xact_lock($1)", &[&REGISTRAR]).await.map(drop)
}

/// Silence counts from when the server came up: while it was down nobody could be heard. The queues whose jobs were given
/// back.
async fn bury_silent(line: &mut Line, own_boot: i64, silence: Duration) -> Result<Vec<String>, Fault> {
    let mut queues = Vec::new();
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
        let of_its_jobs = bury(line, boot).await?;
        let jobs = of_its_jobs.len();
        tracing::warn!("node {boot} is silent and taken for dead; {jobs} jobs that it had are given back");
        queues.extend(of_its_jobs);
    }
    queues.sort();
    queues.dedup();
    Ok(queues)
}

/// Gives back what a node had. The queue of each of its jobs.
async fn bury(line: &mut Line, boot: i64) -> Result<Vec<String>, Fault> {
    let sql = "SELECT id, queue FROM job WHERE slot BETWEEN 1 AND 3 AND state = 4 AND node = $1
               ORDER BY id FOR NO KEY UPDATE";
    let rows = line.query(sql, &[&boot]).await?;
    let queues = give_back(line, &rows).await?;
    line.query("DELETE FROM node WHERE boot = $1", &[&boot]).await?;
    Ok(queues)
}

/// A job that had begun nothing is ready again; one with an open effect stays as if running under a lease that is over, so
/// that it is settled as lost and not silently run again. A statement of its own: it must see the intents of those that
/// the one that locked the jobs had to wait for.
pub(super) async fn give_back(line: &mut Line, jobs: &[Row]) -> Result<Vec<String>, Fault> {
    let ids: Vec<i64> = jobs.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let moved = line
        .query(
            "UPDATE job SET
             state = CASE WHEN open.yes THEN 4 WHEN ord > 0 THEN 5 ELSE 0 END,
             lease_until = CASE WHEN open.yes THEN 0 END,
             waits = nullif(waits, 0),
             node = NULL
         FROM (SELECT id, EXISTS (SELECT 1 FROM effect WHERE effect.job = id AND effect.state = 0 AND NOT EXISTS (
                              SELECT 1 FROM effect AS later
                              WHERE later.job = id AND later.name = effect.name AND later.no > effect.no)) AS yes
               FROM unnest($1::bigint[]) AS id) AS open
         WHERE job.id BETWEEN open.id AND open.id AND job.slot BETWEEN 1 AND 3
         RETURNING job.id, job.queue, job.lane, job.pos, job.run_at, job.state = 5",
            &[&ids],
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
    Ok(jobs.iter().map(|row| row.try_get(1)).collect::<Result<_, _>>()?)
}

pub(super) fn wake_all(shared: &Shared, queues: &[String]) {
    for queue in queues {
        shared.wake.put_back(queue);
        shared.wake.ready(queue, Timestamp::from_micros(0));
    }
}

/// Beats until the store is closed; then says goodbye, so that nobody waits for the silence.
pub(super) async fn live(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    let mut turn = 0u32;
    while !*closed.borrow() {
        let rest = match beat(&shared).await {
            Ok(()) => {
                shared.well();
                Rest::UntilDoubt
            }
            Err(fault) => {
                lock(&shared.node).listening_since = None;
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
    shared.gone.send_replace(true);
}

enum Rest {
    UntilDoubt,
    Pause(Duration),
}

/// One that lives is never buried for being a little late.
fn patience(shared: &Shared) -> Duration {
    shared.silence.max(BEATS_MISSED_MIN * BEAT_EVERY)
}

/// Tells that this node lives; and what time it is there.
pub(super) async fn beat(shared: &Shared) -> Result<(), Fault> {
    let boot = lock(&shared.node).boot;
    let (sent_at, told) = tokio::time::timeout(BEAT_MAX, tell(shared, boot)).await.map_err(|_| Fault::Silent)??;
    match told {
        Some(database) => {
            shared.skew.measured(database, sent_at, sent_at.elapsed());
            lock(&shared.node).heard(sent_at);
        }
        None => {
            let identity = register(&shared.heart, patience(shared), &shared.sealer).await?;
            tracing::warn!("this node was taken for dead and has come back as node {}", identity.boot);
            *lock(&shared.node) = identity;
        }
    }
    Ok(())
}

/// When it was sent, and the time of the database, if the node is known there.
async fn tell(shared: &Shared, boot: i64) -> Result<(Instant, Option<Timestamp>), Fault> {
    let mut line = shared.heart.line().await?;
    let sent_at = Instant::now();
    let rows = line
        .query(
            "UPDATE node SET seen_at = clock_timestamp() WHERE boot = $1
             RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
            &[&boot],
        )
        .await?;
    Ok((sent_at, rows.first().map(|row| rows::time(row, 0)).transpose()?))
}

/// What is due as often as a beat: the ring of jobs turns; and what nobody would run is given back, the jobs of those who fell
/// silent and what was claimed unheard. Not part of the heartbeat, which must not wait for whoever holds them.
pub(super) async fn mind_others(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep(BEAT_EVERY) => {}
        }
        if let Err(fault) = doubt::resolve_doubts(&shared).await {
            tracing::debug!("claims without an answer are not given back for the moment: {fault}");
        }
        if let Err(fault) = ring::turn(&shared, ring::FULL_BYTES).await {
            tracing::debug!("the ring of jobs does not turn for the moment: {fault}");
        }
        let (boot, listening_since) = {
            let node = lock(&shared.node);
            (node.boot, node.listening_since)
        };
        if listening_since.is_some_and(|since| since.elapsed() >= patience(&shared))
            && let Err(fault) = bury_all_silent(&shared, boot).await
        {
            tracing::debug!("silent nodes are not buried for the moment: {fault}");
        }
    }
}

async fn bury_all_silent(shared: &Shared, own_boot: i64) -> Result<(), Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let queues = bury_silent(&mut line, own_boot, patience(shared)).await?;
    line.commit().await?;
    wake_all(shared, &queues);
    Ok(())
}

/// Tells the others how far this node has come, and hears of them.
pub(super) async fn keep_learning(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep(LEARN_EVERY) => {}
        }
        if let Err(fault) = learn(&shared).await {
            tracing::debug!("how far the queues have come is not known for the moment: {fault}");
        }
    }
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
            ("SELECT version, count(*) FROM job WHERE slot BETWEEN 1 AND 3 GROUP BY version", &[]),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f43_a_node_is_surely_alive_only_since_it_came_and_until_some_time_after_it_was_last_heard() {
        let now = Instant::now();
        let silence = Duration::from_secs(10);
        let ids = Ids { number: 0, last: 0 };
        let mut node = Identity { boot: 1, ids, came_at: now, heard_at: now, listening_since: None };
        assert!(node.life(silence).until < now + silence);
        let beat = now + BEAT_EVERY;
        node.heard(beat);
        let life = node.life(silence);
        assert!(life.since == now && beat < life.until && life.until < beat + silence, "{life:?}");
        assert_eq!(node.listening_since, Some(beat));
        node.heard(beat + BEAT_EVERY);
        assert_eq!(node.listening_since, Some(beat));
        node.heard(beat + 30 * BEAT_EVERY);
        assert_eq!(node.listening_since, Some(beat + 30 * BEAT_EVERY), "it was away in between");
    }
}
