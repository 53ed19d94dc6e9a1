//! All that is sealed: walked over, counted, sealed again, erased. And the keys that the nodes share.
//!
//! No node may write what another that lives cannot read. So a key is known to every node before one of them writes with it:
//! who comes tells which keys it has, must know all that were ever written with, and writes with one that all others have.

use super::pool::Line;
use super::rows;
use super::{Fault, Shared, audit, lock};
use crate::read::{Contents, KeyUse};
use crate::seal::{self, Kept, Part, Sealer, result_place};
use crate::{ForgetAsk, Forgotten, Resealed, StoreError};
use clinch_core::call::CallKey;
use clinch_core::id::{EventId, JobId};
use clinch_core::seal::{FORGOTTEN, HEAD_BYTES, KeyCheck, KeyId, KeyRing, Place};
use std::collections::HashMap;

/// The rows that are counted in one statement.
const COUNT_ROWS_MAX: i64 = 50_000;
/// A statement that another transaction got in the way of is tried again this often.
const CONFLICTS_MAX: u32 = 5;
const ALL_SEALED: &str = "all_sealed";

async fn checks(line: &mut Line) -> Result<Vec<KeyCheck>, Fault> {
    let rows = line.query("SELECT name, value FROM secret", &[]).await?;
    let mut found = Vec::new();
    for row in &rows {
        found.extend(seal::check(row.try_get(0)?, row.try_get(1)?));
    }
    Ok(found)
}

/// Refuses a wrong key and makes the right one known, in the transaction in which a node comes. The keys it has.
pub(super) async fn unlock(line: &mut Line, sealer: &Sealer, own_boot: i64) -> Result<Vec<String>, Fault> {
    let ring = sealer.ring();
    let keys = admit(line, ring.as_deref(), own_boot).await?;
    if ring.is_some() {
        let all = "INSERT INTO secret (name, value) SELECT $1, '' WHERE NOT EXISTS (SELECT 1 FROM event)
                       AND NOT EXISTS (SELECT 1 FROM call WHERE answer IS NOT NULL)
                   ON CONFLICT DO NOTHING";
        line.query(all, &[&ALL_SEALED]).await?;
    }
    if !line.query("SELECT 1 FROM secret WHERE name = $1", &[&ALL_SEALED]).await?.is_empty() {
        sealer.be_strict();
    }
    Ok(keys)
}

async fn admit(line: &mut Line, ring: Option<&KeyRing>, own_boot: i64) -> Result<Vec<String>, Fault> {
    let refused = |error: StoreError| match error {
        StoreError::Open(why) => Fault::Refused(why),
        other => Fault::Refused(other.to_string()),
    };
    seal::refuse_unknown(ring, &checks(line).await?).map_err(refused)?;
    let Some(ring) = ring else { return Ok(Vec::new()) };
    let active = seal::check_name(ring.active());
    let sql = "SELECT boot FROM node WHERE boot <> $1 AND NOT $2 = ANY(keys) ORDER BY boot LIMIT 1";
    if let Some(row) = line.query(sql, &[&own_boot, &&*active]).await?.first() {
        let boot: i64 = row.try_get(0)?;
        return Err(Fault::Refused(format!(
            "node {boot} is running and does not know {active}; first give that key to every node under `older` in \
             `encryption:` and restart them, then make it the `key` (a node that was killed is forgotten after 10 seconds)"
        )));
    }
    let keep = "INSERT INTO secret (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    line.query(keep, &[&&*active, &&ring.check().as_bytes()[..]]).await?;
    Ok(ring.ids().map(seal::check_name).collect())
}

pub(super) async fn use_keys(shared: &Shared, keys: KeyRing) -> Result<(), Fault> {
    let boot = lock(&shared.node).boot;
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    super::node::alone_at_the_door(&mut line).await?;
    let known = admit(&mut line, Some(&keys), boot).await?;
    line.query("UPDATE node SET keys = $2 WHERE boot = $1", &[&boot, &known]).await?;
    line.commit().await?;
    shared.sealer.use_keys(keys);
    Ok(())
}

/// Rows of one table whose content is replaced, each if it is still what was read.
#[derive(Default)]
struct Swaps {
    ids: Vec<i64>,
    steps: Vec<String>,
    numbers: Vec<i32>,
    fences: Vec<i64>,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
}

impl Swaps {
    fn add(&mut self, sealed: &mut Resealed, sealer: &Sealer, place: Place<'_>, stored: &[u8]) -> bool {
        match sealer.again(place, stored) {
            Ok(None) => false,
            Ok(Some(new)) => {
                self.old.push(stored.to_vec());
                self.new.push(new);
                true
            }
            Err(_) => {
                sealed.unreadable += 1;
                false
            }
        }
    }

    fn columns(&self) -> (Vec<&[u8]>, Vec<&[u8]>) {
        (self.old.iter().map(|bytes| &bytes[..]).collect(), self.new.iter().map(|bytes| &bytes[..]).collect())
    }
}

/// A part of a walk holds no more bytes of payloads than this, if it has more than one event.
const BYTES_MAX: i64 = 8 << 20;
const EVENTS: &str = "
    SELECT id, jobs, payload FROM (
        SELECT id, jobs, payload, sum(octet_length(payload)) OVER (ORDER BY id) - octet_length(payload) AS before
        FROM (SELECT id, jobs, payload FROM event WHERE id > $1 ORDER BY id LIMIT $2) AS next
    ) AS next WHERE before <= $3 ORDER BY id";
const RESULTS: &str = "SELECT job, name, body FROM effect WHERE job > $1 AND job <= $2 AND body IS NOT NULL";
const LATE: &str = "SELECT job, name, body, fence FROM late_answer WHERE job > $1 AND job <= $2 AND body IS NOT NULL";
const ERRORS: &str =
    "SELECT job, no, started_at, error FROM attempt WHERE job > $1 AND job <= $2 AND error IS NOT NULL";

const ANSWERS: &str = "
    SELECT key, answer FROM (
        SELECT key, answer, sum(octet_length(answer)) OVER (ORDER BY key) - octet_length(answer) AS before
        FROM (SELECT key, answer FROM call WHERE key > $1 AND answer IS NOT NULL ORDER BY key LIMIT $2) AS next
    ) AS next WHERE before <= $3 ORDER BY key";

/// A part of the walk takes the ids up to its last event; the last part finds no event, and takes all the rest.
pub(super) async fn reseal(shared: &Shared, after: Option<EventId>, most: usize) -> Result<Resealed, Fault> {
    let sealer = &shared.sealer;
    let after = after.map_or(0, |event| event.number().cast_signed());
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut line = shared.hands.line().await?;
    let mut sealed = Resealed::default();
    let (mut payloads, mut results, mut errors) = (Swaps::default(), Swaps::default(), Swaps::default());
    let mut late = Swaps::default();
    for row in &line.query(EVENTS, &[&after, &most, &BYTES_MAX]).await? {
        sealed.events += 1;
        let event = rows::event_id(row, 0)?;
        sealed.last = Some(event);
        if payloads.add(&mut sealed, sealer, Place::Payload(event), row.try_get(2)?) {
            payloads.ids.push(row.try_get(0)?);
        }
    }
    let last = sealed.last.map_or(i64::MAX, |event| event.number().cast_signed());
    for row in &line.query(RESULTS, &[&after, &last]).await? {
        let step: &str = row.try_get(1)?;
        if results.add(&mut sealed, sealer, result_place(rows::job_id(row, 0)?, step), row.try_get(2)?) {
            results.ids.push(row.try_get(0)?);
            results.steps.push(step.to_string());
        }
    }
    for row in &line.query(LATE, &[&after, &last]).await? {
        let step: &str = row.try_get(1)?;
        if late.add(&mut sealed, sealer, result_place(rows::job_id(row, 0)?, step), row.try_get(2)?) {
            late.ids.push(row.try_get(0)?);
            late.steps.push(step.to_string());
            late.fences.push(row.try_get(3)?);
        }
    }
    for row in &line.query(ERRORS, &[&after, &last]).await? {
        let place = Place::Error { job: rows::job_id(row, 0)?, started_at: rows::time(row, 2)? };
        if errors.add(&mut sealed, sealer, place, row.try_get(3)?) {
            errors.ids.push(row.try_get(0)?);
            errors.numbers.push(row.try_get(1)?);
        }
    }
    // What somebody changed or erased meanwhile stays as it is now.
    let (old, new) = payloads.columns();
    let sql =
        "UPDATE event SET payload = new.new FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) AS new (id, old, new)
               WHERE event.id = new.id AND event.payload = new.old RETURNING 1";
    sealed.places += line.query(sql, &[&payloads.ids, &old, &new]).await?.len() as u64;
    let (old, new) = results.columns();
    let sql = "UPDATE effect SET body = new.new
               FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bytea[]) AS new (job, name, old, new)
               WHERE effect.job = new.job AND effect.name = new.name AND effect.body = new.old RETURNING 1";
    sealed.places += line.query(sql, &[&results.ids, &results.steps, &old, &new]).await?.len() as u64;
    let (old, new) = late.columns();
    let sql = "UPDATE late_answer SET body = new.new
               FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[]) AS new (job, name, fence, old, new)
               WHERE late_answer.job = new.job AND late_answer.name = new.name AND late_answer.fence = new.fence
                   AND late_answer.body = new.old RETURNING 1";
    sealed.places += line.query(sql, &[&late.ids, &late.steps, &late.fences, &old, &new]).await?.len() as u64;
    let (old, new) = errors.columns();
    let sql = "UPDATE attempt SET error = new.new
               FROM unnest($1::bigint[], $2::integer[], $3::bytea[], $4::bytea[]) AS new (job, no, old, new)
               WHERE attempt.job = new.job AND attempt.no = new.no AND attempt.error = new.old RETURNING 1";
    sealed.places += line.query(sql, &[&errors.ids, &errors.numbers, &old, &new]).await?.len() as u64;
    if sealed.last.is_none() {
        reseal_answers(&mut line, sealer, most, &mut sealed).await?;
    }
    Ok(sealed)
}

/// Answers of calls belong to no event: the end of the walk takes them, some at a time.
async fn reseal_answers(line: &mut Line, sealer: &Sealer, most: i64, sealed: &mut Resealed) -> Result<(), Fault> {
    let mut after = None;
    loop {
        let found = kept(line, after, most).await?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        after = Some(*last);
        let (mut swaps, mut keys) = (Swaps::default(), Vec::new());
        for (key, answer) in &found {
            if swaps.add(sealed, sealer, Place::Answer(key), answer) {
                keys.push(&key.as_bytes()[..]);
            }
        }
        let (old, new) = swaps.columns();
        let sql =
            "UPDATE call SET answer = new.new FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS new (key, old, new)
                   WHERE call.key = new.key AND call.answer = new.old RETURNING 1";
        sealed.places += line.query(sql, &[&keys, &old, &new]).await?.len() as u64;
    }
}

/// The next answers of calls, as they are stored.
async fn kept(line: &mut Line, after: Option<CallKey>, most: i64) -> Result<Vec<(CallKey, Vec<u8>)>, Fault> {
    let after = after.as_ref().map_or(&[][..], |key| key.as_bytes());
    let mut found = Vec::new();
    for row in &line.query(ANSWERS, &[&after, &most, &BYTES_MAX]).await? {
        found.push((call_key(row.try_get(0)?)?, row.try_get(1)?));
    }
    Ok(found)
}

fn call_key(bytes: &[u8]) -> Result<CallKey, Fault> {
    bytes.try_into().map(CallKey::from_bytes).map_err(|_| Fault::Damaged("the key of a call"))
}

pub(super) async fn answers(
    shared: &Shared,
    after: Option<CallKey>,
    most: usize,
) -> Result<Vec<(CallKey, Kept)>, Fault> {
    let mut line = shared.eyes.line().await?;
    let kept = kept(&mut line, after, i64::try_from(most).unwrap_or(i64::MAX)).await?.into_iter();
    Ok(kept.map(|(key, answer)| (key, shared.sealer.open(Place::Answer(&key), &answer))).collect())
}

/// In parts: no statement looks at everything.
pub(super) async fn uses(shared: &Shared) -> Result<Vec<KeyUse>, Fault> {
    let mut uses: Vec<KeyUse> = Vec::new();
    let columns: [(&str, &str, &str, Part); 4] = [
        ("event", "id", "payload", |of| &mut of.payloads),
        ("effect", "job", "body", |of| &mut of.results),
        ("late_answer", "job", "body", |of| &mut of.results),
        ("attempt", "job", "error", |of| &mut of.errors),
    ];
    for (table, id, column, part) in columns {
        // All rows of one job are in the same part.
        let sql = format!(
            "WITH part AS (SELECT {id} FROM {table} WHERE {id} > $1 ORDER BY {id} LIMIT $2), last AS (SELECT max({id}) FROM part)
             SELECT substring({column} FROM 1 FOR {HEAD_BYTES}), count(*), (SELECT * FROM last) FROM {table}
             WHERE {id} > $1 AND {id} <= (SELECT * FROM last) AND {column} IS NOT NULL GROUP BY 1
             UNION ALL SELECT NULL, 0, (SELECT * FROM last)"
        );
        let mut after = 0i64;
        loop {
            let rows = shared.eyes.ask(&sql, &[&after, &COUNT_ROWS_MAX]).await?;
            for row in &rows {
                if let Some(head) = row.try_get::<_, Option<&[u8]>>(0)? {
                    KeyUse::add(&mut uses, head, rows::big_count(row, 1)?, part);
                }
            }
            match rows.first().map(|row| row.try_get::<_, Option<i64>>(2)).transpose()?.flatten() {
                Some(last) => after = last,
                None => break,
            }
        }
    }
    let sql = format!(
        "WITH part AS (
             SELECT key, substring(answer FROM 1 FOR {HEAD_BYTES}) AS head FROM call WHERE key > $1 ORDER BY key LIMIT $2
         ) SELECT head, count(*), (SELECT key FROM part ORDER BY key DESC LIMIT 1) FROM part GROUP BY head"
    );
    let mut after: Vec<u8> = Vec::new();
    loop {
        let rows = shared.eyes.ask(&sql, &[&&after[..], &COUNT_ROWS_MAX]).await?;
        for row in &rows {
            if let Some(head) = row.try_get::<_, Option<&[u8]>>(0)? {
                KeyUse::add(&mut uses, head, rows::big_count(row, 1)?, |of| &mut of.results);
            }
        }
        match rows.first() {
            Some(row) => after = row.try_get(2)?,
            None => break,
        }
    }
    Ok(uses)
}

/// Forgets checks of keys that nothing is under and that no node writes with.
pub(super) async fn retire(shared: &Shared, uses: &[KeyUse]) -> Result<Vec<KeyId>, Fault> {
    let used = |key: KeyId| uses.iter().any(|of| of.key == Some(key) && of.places() > 0);
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    super::node::alone_at_the_door(&mut line).await?;
    let mut retired = Vec::new();
    for key in checks(&mut line).await?.iter().map(KeyCheck::key).filter(|key| !used(*key)) {
        let gone =
            "DELETE FROM secret WHERE name = $1 AND NOT EXISTS (SELECT 1 FROM node WHERE keys[1] = $1) RETURNING 1";
        if !line.query(gone, &[&&*seal::check_name(key)]).await?.is_empty() {
            retired.push(key);
        }
    }
    let are_all_sealed = uses.iter().all(|of| of.key.is_some() || of.places() == 0);
    if are_all_sealed {
        let all = "INSERT INTO secret (name, value) VALUES ($1, '') ON CONFLICT DO NOTHING";
        line.query(all, &[&ALL_SEALED]).await?;
    }
    line.commit().await?;
    if are_all_sealed {
        shared.sealer.be_strict();
    }
    Ok(retired)
}

pub(super) async fn contents(shared: &Shared, after: Option<EventId>, most: usize) -> Result<Vec<Contents>, Fault> {
    let sealer = &shared.sealer;
    let after = after.map_or(0, |event| event.number().cast_signed());
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut line = shared.eyes.line().await?;
    let found = line.query(EVENTS, &[&after, &most, &BYTES_MAX]).await?;
    let mut contents = Vec::with_capacity(found.len());
    let (mut events, mut of_job) = (0i64, HashMap::new());
    for row in &found {
        let event = rows::event_id(row, 0)?;
        let jobs = u64::from(rows::count(row, 1)?);
        events = event.number().saturating_add(jobs).cast_signed();
        of_job.extend((1..=jobs).map(|nth| (JobId::from_number(event.number() + nth), contents.len())));
        let payload = sealer.open_payload(event, row.try_get(2)?);
        contents.push(Contents { event, payload, others: Vec::new() });
    }
    for sql in [RESULTS, LATE] {
        for row in &line.query(sql, &[&after, &events]).await? {
            let job = rows::job_id(row, 0)?;
            if let Some(at) = of_job.get(&job) {
                contents[*at].others.push(sealer.open(result_place(job, row.try_get(1)?), row.try_get(2)?));
            }
        }
    }
    for row in &line.query(ERRORS, &[&after, &events]).await? {
        let job = rows::job_id(row, 0)?;
        if let Some(at) = of_job.get(&job) {
            let place = Place::Error { job, started_at: rows::time(row, 2)? };
            contents[*at].others.push(sealer.open(place, row.try_get(3)?));
        }
    }
    Ok(contents)
}

pub(super) async fn forget(shared: &Shared, ask: &ForgetAsk) -> Result<Forgotten, Fault> {
    let mut conflicts = 0;
    loop {
        match forget_once(shared, ask).await {
            Err(fault) if fault.is_conflict() && conflicts < CONFLICTS_MAX => conflicts += 1,
            answer => return answer,
        }
    }
}

async fn forget_once(shared: &Shared, ask: &ForgetAsk) -> Result<Forgotten, Fault> {
    let events: Vec<i64> = ask.events.iter().map(|event| event.number().cast_signed()).collect();
    let mark = &FORGOTTEN[..];
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let mut erased: Vec<i64> = Vec::new();
    for sql in [
        "UPDATE event SET payload = $2 WHERE id = ANY($1) AND payload <> $2 RETURNING id",
        "UPDATE effect SET body = $2 FROM (SELECT id, jobs FROM event WHERE id = ANY($1)) AS of
         WHERE effect.job > of.id AND effect.job <= of.id + of.jobs AND effect.body <> $2 RETURNING of.id",
        "UPDATE late_answer SET body = $2 FROM (SELECT id, jobs FROM event WHERE id = ANY($1)) AS of
         WHERE late_answer.job > of.id AND late_answer.job <= of.id + of.jobs AND late_answer.body <> $2 RETURNING of.id",
        "UPDATE attempt SET error = $2 FROM (SELECT id, jobs FROM event WHERE id = ANY($1)) AS of
         WHERE attempt.job > of.id AND attempt.job <= of.id + of.jobs AND attempt.error <> $2 RETURNING of.id",
    ] {
        for row in &line.query(sql, &[&events, &mark]).await? {
            erased.push(row.try_get(0)?);
        }
    }
    for row in &line.query("DELETE FROM handle WHERE event = ANY($1) RETURNING event", &[&events]).await? {
        erased.push(row.try_get(0)?);
    }
    erased.sort_unstable();
    erased.dedup();
    let sql = "SELECT count(*), count(*) FILTER (WHERE job.state = 4)
               FROM (SELECT id, jobs FROM event WHERE id = ANY($1)) AS of
               JOIN job ON job.id > of.id AND job.id <= of.id + of.jobs WHERE job.state NOT IN (1, 2, 3)";
    let rows = line.query(sql, &[&erased]).await?;
    let mut told = Forgotten { events: erased.len() as u64, ..Forgotten::default() };
    if let Some(row) = rows.first() {
        (told.unfinished, told.running) = (rows::big_count(row, 0)?, rows::big_count(row, 1)?);
    }
    let answers: Vec<&[u8]> = ask.answers.iter().map(|key| &key.as_bytes()[..]).collect();
    let sql = "UPDATE call SET answer = $2 WHERE key = ANY($1) AND answer <> $2 RETURNING 1";
    told.answers = line.query(sql, &[&answers, &mark]).await?.len() as u64;
    if told.events + told.answers > 0 {
        audit::append(&mut line, [&(ask.act(&told), ask.record.clone())]).await?;
    }
    line.commit().await?;
    Ok(told)
}
