//! All that is sealed: walked over, counted, sealed again, erased. And the keys that the store knows.

use super::memory::Settled;
use super::writer::{Batch, lock};
use super::{audit, open_error};
use crate::read::{Contents, KeyUse};
use crate::seal::{self, Kept, Part, Sealer, result_place};
use crate::{ForgetAsk, Forgotten, Result};
use clinch_core::call::CallKey;
use clinch_core::id::{EventId, JobId};
use clinch_core::seal::{FORGOTTEN, HEAD_BYTES, KeyCheck, KeyId, KeyRing, Place};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::path::Path;

/// A part of a walk holds no more bytes than this, if it has more than one event.
const BYTES_MAX: usize = 8 << 20;
const ALL_SEALED: &str = "all_sealed";

/// The keys that the store of this directory has envelopes of; none if there is no store. Needs no key.
pub fn keys_of(data_dir: &Path) -> Result<Vec<KeyId>> {
    let path = super::database_path(data_dir);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(open_error)?;
    super::refuse_newer(&conn)?;
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'secret')";
    if !conn.query_row(is_there, [], |row| row.get(0)).map_err(open_error)? {
        return Ok(Vec::new());
    }
    Ok(checks(&conn).map_err(open_error)?.iter().map(KeyCheck::key).collect())
}

pub(super) fn checks(conn: &Connection) -> rusqlite::Result<Vec<KeyCheck>> {
    let mut rows = conn.prepare("SELECT name, value FROM secret")?;
    let found = rows.query_map([], |row| Ok(seal::check(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_blob()?)))?;
    found.filter_map(rusqlite::Result::transpose).collect()
}

/// Refuses a wrong key, and makes the right one known.
pub(super) fn unlock(conn: &Connection, sealer: &Sealer) -> Result<()> {
    let ring = sealer.ring();
    seal::refuse_unknown(ring.as_deref(), &checks(conn).map_err(open_error)?)?;
    let note = |ring: &KeyRing| -> rusqlite::Result<()> {
        let is_empty =
            "SELECT NOT EXISTS (SELECT 1 FROM event) AND NOT EXISTS (SELECT 1 FROM call WHERE answer IS NOT NULL)";
        if conn.query_row(is_empty, [], |row| row.get(0))? {
            put(conn, ALL_SEALED, &[])?;
        }
        note_key(conn, ring)
    };
    if let Some(ring) = &ring {
        note(ring).map_err(open_error)?;
    }
    let all = conn.query_row("SELECT EXISTS (SELECT 1 FROM secret WHERE name = ?1)", [ALL_SEALED], |row| row.get(0));
    if all.map_err(open_error)? {
        sealer.be_strict();
    }
    Ok(())
}

fn put(conn: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    conn.execute("INSERT INTO secret (name, value) VALUES (?1, ?2) ON CONFLICT DO NOTHING", params![name, value])?;
    Ok(())
}

pub(super) fn note_key(conn: &Connection, ring: &KeyRing) -> rusqlite::Result<()> {
    put(conn, &seal::check_name(ring.active()), ring.check().as_bytes())
}

/// A row whose content is to be replaced, if it is still what was read.
pub(super) struct Swap {
    sql: &'static str,
    ids: (i64, Option<Id>),
    old: Vec<u8>,
    new: Vec<u8>,
}

enum Id {
    Step(String),
    Attempt(u32),
    Late(String, i64),
    Call(CallKey),
}

#[derive(Default)]
pub(super) struct Swaps {
    pub rows: Vec<Swap>,
    pub last: Option<EventId>,
    pub events: u64,
    pub unreadable: u64,
}

/// What of the next events is not under the active key, sealed again; nothing is written yet. A part of the walk takes the ids
/// up to its last event; the last part finds no event, and takes all the rest.
pub(super) fn swaps(conn: &Connection, sealer: &Sealer, after: i64, most: usize) -> rusqlite::Result<Swaps> {
    let mut found = Swaps::default();
    let mut bytes = 0;
    let mut events = conn.prepare_cached("SELECT id, payload FROM event WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut events = events.query(params![after, i64::try_from(most).unwrap_or(i64::MAX)])?;
    let mut last = i64::MAX;
    while let Some(row) = events.next()? {
        let id: i64 = row.get(0)?;
        let payload = row.get_ref(1)?.as_blob()?;
        let event = EventId::from_number(id.cast_unsigned());
        found.events += 1;
        bytes += payload.len();
        found.add(sealer, Place::Payload(event), payload, || Swap {
            sql: "UPDATE event SET payload = ?3 WHERE id = ?1 AND payload = ?4 AND ?2 IS NULL",
            ids: (id, None),
            old: payload.to_vec(),
            new: Vec::new(),
        });
        (last, found.last) = (id, Some(event));
        if bytes > BYTES_MAX {
            break;
        }
    }
    let window = params![after, last];
    let sql = "SELECT job, name, body FROM effect WHERE job > ?1 AND job <= ?2 AND body IS NOT NULL";
    let mut effects = conn.prepare_cached(sql)?;
    let mut effects = effects.query(window)?;
    while let Some(row) = effects.next()? {
        let (job, step, body): (i64, String, &[u8]) = (row.get(0)?, row.get(1)?, row.get_ref(2)?.as_blob()?);
        let place = JobId::from_number(job.cast_unsigned());
        found.add(sealer, result_place(place, &step), body, || Swap {
            sql: "UPDATE effect SET body = ?3 WHERE job = ?1 AND name = ?2 AND body = ?4",
            ids: (job, Some(Id::Step(step.clone()))),
            old: body.to_vec(),
            new: Vec::new(),
        });
    }
    let sql = "SELECT job, name, fence, body FROM late_answer WHERE job > ?1 AND job <= ?2 AND body IS NOT NULL";
    let mut late = conn.prepare_cached(sql)?;
    let mut late = late.query(window)?;
    while let Some(row) = late.next()? {
        let (job, step, body): (i64, String, &[u8]) = (row.get(0)?, row.get(1)?, row.get_ref(3)?.as_blob()?);
        let fence = row.get(2)?;
        found.add(sealer, result_place(JobId::from_number(job.cast_unsigned()), &step), body, || Swap {
            sql: "UPDATE late_answer SET body = ?3 WHERE job = ?1 AND name = ?2 AND body = ?4 AND fence = ?5",
            ids: (job, Some(Id::Late(step.clone(), fence))),
            old: body.to_vec(),
            new: Vec::new(),
        });
    }
    let sql = "SELECT job, no, started_at, error FROM attempt WHERE job > ?1 AND job <= ?2 AND error IS NOT NULL";
    let mut attempts = conn.prepare_cached(sql)?;
    let mut attempts = attempts.query(window)?;
    while let Some(row) = attempts.next()? {
        let (job, no, error): (i64, u32, &[u8]) = (row.get(0)?, row.get(1)?, row.get_ref(3)?.as_blob()?);
        let place =
            Place::Error { job: JobId::from_number(job.cast_unsigned()), started_at: super::rows::time(row, 2)? };
        found.add(sealer, place, error, || Swap {
            sql: "UPDATE attempt SET error = ?3 WHERE job = ?1 AND no = ?2 AND error = ?4",
            ids: (job, Some(Id::Attempt(no))),
            old: error.to_vec(),
            new: Vec::new(),
        });
    }
    Ok(found)
}

/// The next answers of calls, as they are stored.
fn kept(conn: &Connection, after: Option<CallKey>, most: usize) -> rusqlite::Result<Vec<(CallKey, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let sql = "SELECT key, answer FROM call WHERE key > ?1 AND answer IS NOT NULL ORDER BY key LIMIT ?2";
    let mut rows = conn.prepare_cached(sql)?;
    let after = after.as_ref().map_or(&[][..], |key| key.as_bytes());
    let mut rows = rows.query(params![after, i64::try_from(most).unwrap_or(i64::MAX)])?;
    while bytes <= BYTES_MAX
        && let Some(row) = rows.next()?
    {
        let answer: Vec<u8> = row.get(1)?;
        bytes += answer.len();
        found.push((CallKey::from_bytes(row.get(0)?), answer));
    }
    Ok(found)
}

/// What of the next answers of calls is not under the active key, sealed again, and the last of them; nothing is written yet.
pub(super) fn answer_swaps(
    conn: &Connection,
    sealer: &Sealer,
    after: Option<CallKey>,
    most: usize,
) -> rusqlite::Result<(Swaps, Option<CallKey>)> {
    let mut found = Swaps::default();
    let kept = kept(conn, after, most)?;
    for (key, answer) in &kept {
        found.add(sealer, Place::Answer(key), answer, || Swap {
            sql: "UPDATE call SET answer = ?3 WHERE key = ?2 AND answer = ?4 AND ?1 = 0",
            ids: (0, Some(Id::Call(*key))),
            old: answer.clone(),
            new: Vec::new(),
        });
    }
    Ok((found, kept.last().map(|(key, _)| *key)))
}

pub(super) fn answers(
    conn: &Connection,
    sealer: &Sealer,
    after: Option<CallKey>,
    most: usize,
) -> rusqlite::Result<Vec<(CallKey, Kept)>> {
    let kept = kept(conn, after, most)?.into_iter();
    Ok(kept.map(|(key, answer)| (key, sealer.open(Place::Answer(&key), &answer))).collect())
}

impl Swaps {
    fn add(&mut self, sealer: &Sealer, place: Place<'_>, stored: &[u8], swap: impl FnOnce() -> Swap) {
        match sealer.again(place, stored) {
            Ok(None) => {}
            Ok(Some(new)) => self.rows.push(Swap { new, ..swap() }),
            Err(_) => self.unreadable += 1,
        }
    }
}

/// What somebody changed or erased meanwhile stays as it is now.
pub(super) fn write(batch: &Batch<'_>, swaps: &[Swap]) -> rusqlite::Result<u64> {
    let mut places = 0;
    for swap in swaps {
        let mut statement = batch.conn.prepare_cached(swap.sql)?;
        let (row, id) = (swap.ids.0, &swap.ids.1);
        places += match id {
            None => statement.execute(params![row, None::<i64>, swap.new, swap.old])?,
            Some(Id::Step(step)) => statement.execute(params![row, step, swap.new, swap.old])?,
            Some(Id::Late(step, fence)) => statement.execute(params![row, step, swap.new, swap.old, fence])?,
            Some(Id::Call(key)) => statement.execute(params![row, key.as_bytes(), swap.new, swap.old])?,
            Some(Id::Attempt(no)) => statement.execute(params![row, no, swap.new, swap.old])?,
        } as u64;
    }
    Ok(places)
}

pub(super) fn uses(conn: &Connection) -> rusqlite::Result<Vec<KeyUse>> {
    let mut uses: Vec<KeyUse> = Vec::new();
    let columns: [(&str, &str, Part); 5] = [
        ("payload", "event", |of| &mut of.payloads),
        ("body", "effect", |of| &mut of.results),
        ("body", "late_answer", |of| &mut of.results),
        ("answer", "call", |of| &mut of.results),
        ("error", "attempt", |of| &mut of.errors),
    ];
    for (column, table, part) in columns {
        let sql = format!(
            "SELECT substr({column}, 1, {HEAD_BYTES}) AS head, count(*) FROM {table} WHERE {column} IS NOT NULL GROUP BY head"
        );
        let mut rows = conn.prepare(&sql)?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            KeyUse::add(&mut uses, row.get_ref(0)?.as_blob()?, row.get::<_, i64>(1)?.cast_unsigned(), part);
        }
    }
    Ok(uses)
}

/// Forgets checks of keys that nothing is under, but for the one that is written with.
pub(super) fn retire(batch: &Batch<'_>, uses: &[KeyUse], active: KeyId) -> rusqlite::Result<Vec<KeyId>> {
    let used = |key: KeyId| uses.iter().any(|of| of.key == Some(key) && of.places() > 0);
    let retired: Vec<KeyId> =
        checks(batch.conn)?.iter().map(KeyCheck::key).filter(|key| *key != active && !used(*key)).collect();
    for key in &retired {
        batch.conn.execute("DELETE FROM secret WHERE name = ?1", [seal::check_name(*key)])?;
    }
    if uses.iter().all(|of| of.key.is_some() || of.places() == 0) {
        put(batch.conn, ALL_SEALED, &[])?;
        batch.shared.sealer.be_strict();
    }
    Ok(retired)
}

pub(super) fn contents(conn: &Connection, sealer: &Sealer, after: i64, most: usize) -> rusqlite::Result<Vec<Contents>> {
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut events = conn.prepare_cached("SELECT id, jobs, payload FROM event WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut events = events.query(params![after, i64::try_from(most).unwrap_or(i64::MAX)])?;
    while let Some(row) = events.next()? {
        let (id, jobs): (i64, i64) = (row.get(0)?, row.get(1)?);
        let event = EventId::from_number(id.cast_unsigned());
        let payload = row.get_ref(2)?.as_blob()?;
        bytes += payload.len();
        let mut others = Vec::new();
        let window = params![id, id.saturating_add(jobs)];
        let sql = "SELECT job, name, body FROM effect WHERE job > ?1 AND job <= ?2 AND body IS NOT NULL
                   UNION ALL
                   SELECT job, name, body FROM late_answer WHERE job > ?1 AND job <= ?2 AND body IS NOT NULL";
        let mut effects = conn.prepare_cached(sql)?;
        let mut effects = effects.query(window)?;
        while let Some(row) = effects.next()? {
            let job = JobId::from_number(row.get::<_, i64>(0)?.cast_unsigned());
            others.push(sealer.open(result_place(job, row.get_ref(1)?.as_str()?), row.get_ref(2)?.as_blob()?));
        }
        let sql = "SELECT job, started_at, error FROM attempt WHERE job > ?1 AND job <= ?2 AND error IS NOT NULL";
        let mut attempts = conn.prepare_cached(sql)?;
        let mut attempts = attempts.query(window)?;
        while let Some(row) = attempts.next()? {
            let job = JobId::from_number(row.get::<_, i64>(0)?.cast_unsigned());
            let place = Place::Error { job, started_at: super::rows::time(row, 1)? };
            others.push(sealer.open(place, row.get_ref(2)?.as_blob()?));
        }
        found.push(Contents { event, payload: sealer.open_payload(event, payload), others });
        if bytes > BYTES_MAX {
            break;
        }
    }
    Ok(found)
}

pub(super) fn forget(batch: &mut Batch<'_>, ask: &ForgetAsk) -> rusqlite::Result<Forgotten> {
    // What is overwritten is gone from its page; and from the log, as soon as that is cut.
    batch.conn.execute_batch("PRAGMA secure_delete = ON")?;
    let erased = erase(batch, ask);
    batch.conn.execute_batch("PRAGMA secure_delete = OFF")?;
    let erased = erased?;
    if erased.events + erased.answers > 0 {
        batch.shared.cut_log();
        audit::append(batch, &ask.act(&erased), &ask.record)?;
    }
    Ok(erased)
}

fn erase(batch: &mut Batch<'_>, ask: &ForgetAsk) -> rusqlite::Result<Forgotten> {
    let mut erased = Forgotten::default();
    for event in &ask.events {
        let id = event.number().cast_signed();
        let jobs = "SELECT jobs FROM event WHERE id = ?1";
        let jobs: Option<i64> = batch.conn.prepare_cached(jobs)?.query_row([id], |row| row.get(0)).optional()?;
        let Some(jobs) = jobs else { continue };
        let mut rows = 0;
        for sql in [
            "UPDATE event SET payload = ?3 WHERE id = ?1 AND payload <> ?3 AND ?2 IS NOT NULL",
            "UPDATE effect SET body = ?3 WHERE job > ?1 AND job <= ?2 AND body <> ?3",
            "UPDATE late_answer SET body = ?3 WHERE job > ?1 AND job <= ?2 AND body <> ?3",
            "UPDATE attempt SET error = ?3 WHERE job > ?1 AND job <= ?2 AND error <> ?3",
        ] {
            rows += batch.conn.prepare_cached(sql)?.execute(params![id, id.saturating_add(jobs), FORGOTTEN])?;
        }
        rows += batch.conn.prepare_cached("DELETE FROM handle WHERE event = ?1")?.execute([id])?;
        if rows == 0 {
            continue;
        }
        erased.events += 1;
        let of_event =
            (JobId::from_number(event.number() + 1), JobId::from_number(event.number() + jobs.cast_unsigned()));
        let (unfinished, running) = lock(&batch.shared.memory).unfinished(of_event.0, of_event.1);
        erased.unfinished += unfinished;
        erased.running += running;
        batch.changes.push(Settled::Erased { first: of_event.0, last: of_event.1 });
    }
    for key in &ask.answers {
        let sql = "UPDATE call SET answer = ?2 WHERE key = ?1 AND answer <> ?2";
        erased.answers += batch.conn.prepare_cached(sql)?.execute(params![key.as_bytes(), FORGOTTEN])? as u64;
    }
    Ok(erased)
}
