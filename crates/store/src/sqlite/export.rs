//! A stopped store, read from end to end. It is locked meanwhile, and left as it is but for the mark that it was moved.

use super::rows::{self, DEAD, DROPPED, NOOP, SUCCESS};
use super::{MIGRATIONS, database_path, lock_directory, open_error, refuse_newer};
use super::{approval, audit, budget, control, late, schedule, token, user};
use crate::moving::{AdmissionPart, CallPart, EventPart, Facts, JobPart, OncePart, Totals, VersionPart};
use crate::people::{UserRow, UserTokenRow};
use crate::read::{AuditRow, BudgetRow, ScheduleRow, TokenRow};
use crate::{Result, StoreError, VersionId};
use bytes::Bytes;
use clinch_core::control::Control;
use clinch_core::effect::EffectState;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::key::{DedupKey, Fingerprint};
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) struct Source {
    conn: Connection,
    pepper: [u8; 32],
    /// How often it was opened: if that is the same, so is all the rest.
    boot: i64,
    moved_to: Option<String>,
    names: HashMap<i64, Arc<str>>,
    _lock: std::fs::File,
}

impl Source {
    pub fn open(data_dir: &Path) -> Result<Source> {
        let path = database_path(data_dir);
        if !path.exists() {
            return Err(StoreError::Open(format!("there is no store in {}", data_dir.display())));
        }
        let lock = lock_directory(data_dir)?;
        let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(open_error)?;
        refuse_newer(&conn)?;
        conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA cache_size = -16384").map_err(open_error)?;
        Source::read(conn, lock).map_err(damaged)?.ok_or_else(|| {
            StoreError::Open("it was written by an older clinch; start this one on it once, and stop it again".into())
        })
    }

    /// `None`: its schema is an older one.
    fn read(conn: Connection, lock: std::fs::File) -> rusqlite::Result<Option<Source>> {
        let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version < MIGRATIONS.len() as i64 {
            return Ok(None);
        }
        let pepper = conn.query_row("SELECT value FROM fact WHERE name = 'pepper'", [], |row| row.get(0))?;
        let (boot, moved_to) = (rows::fact(&conn, "boot")?, moved_to(&conn)?);
        let names = conn
            .prepare("SELECT id, text FROM name")?
            .query_map([], |row| Ok((row.get(0)?, Arc::from(row.get_ref(1)?.as_str()?))))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Some(Source { conn, pepper, boot, moved_to, names, _lock: lock }))
    }

    pub fn pepper(&self) -> &[u8; 32] {
        &self.pepper
    }

    pub fn boot(&self) -> i64 {
        self.boot
    }

    pub fn moved_to(&self) -> Option<&str> {
        self.moved_to.as_deref()
    }

    pub fn facts(&self) -> Result<Facts> {
        let fact = |name: &str| rows::fact(&self.conn, name).map_err(damaged);
        let newest =
            self.number("SELECT max((SELECT ifnull(max(id), 0) FROM event), (SELECT ifnull(max(id), 0) FROM job))")?;
        Ok(Facts {
            last_id: fact("last_id")?.max(newest),
            accepted: fact("accepted")?,
            created: fact("created")?,
            expired: fact("expired")?,
            events_expired: fact("events_expired")?,
            live_version: fact("live_version")?,
            live_chosen: fact("live_chosen")?,
            audit: audit::head(&self.conn).map_err(damaged)?,
        })
    }

    pub fn versions(&self) -> Result<Vec<VersionPart>> {
        let version = |row: &Row<'_>| {
            let at = rows::time(row, 3)?;
            Ok(VersionPart { id: VersionId(row.get(0)?), hash: row.get(1)?, files: row.get(2)?, at })
        };
        self.all("SELECT id, hash, files, at FROM version ORDER BY id", params![], version)
    }

    pub fn tokens(&self) -> Result<Vec<TokenRow>> {
        token::all(&self.conn).map_err(damaged)
    }

    pub fn users(&self) -> Result<Vec<UserRow>> {
        user::all(&self.conn).map_err(damaged)
    }

    pub fn user_tokens(&self) -> Result<Vec<UserTokenRow>> {
        user::tokens(&self.conn).map_err(damaged)
    }

    pub fn controls(&self) -> Result<Vec<Control>> {
        control::all(&self.conn).map_err(damaged)
    }

    /// What it knows of its keys.
    pub fn secrets(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.all("SELECT name, value FROM secret", params![], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    pub fn events(&self) -> Result<i64> {
        self.events_after(0)
    }

    pub fn events_after(&self, event: i64) -> Result<i64> {
        let sql = "SELECT count(*) FROM event WHERE id > ?1";
        self.conn.query_row(sql, [event], |row| row.get(0)).map_err(damaged)
    }

    /// The next events, with all that hangs on them.
    pub fn next(&self, after: i64, events_max: usize, bytes_max: usize) -> Result<Vec<EventPart>> {
        self.next_events(after, events_max, bytes_max).map_err(damaged)
    }

    fn next_events(&self, after: i64, events_max: usize, bytes_max: usize) -> rusqlite::Result<Vec<EventPart>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id, source, received_at, key, fingerprint, expires_at, status, jobs, trace, payload
             FROM event WHERE id > ?1 ORDER BY id LIMIT ?2",
        )?;
        let mut found = statement.query(params![after, i64::try_from(events_max).unwrap_or(i64::MAX)])?;
        let (mut events, mut bytes) = (Vec::new(), 0);
        while let Some(row) = found.next()? {
            let event = self.event(row)?;
            bytes += event.bytes();
            if bytes > bytes_max && !events.is_empty() {
                break;
            }
            events.push(event);
        }
        Ok(events)
    }

    fn event(&self, row: &Row<'_>) -> rusqlite::Result<EventPart> {
        let id = EventId::from_number(row.get::<_, i64>(0)?.cast_unsigned());
        Ok(EventPart {
            id,
            source: self.name(row.get(1)?),
            received_at: rows::time(row, 2)?,
            key: row.get::<_, Option<[u8; 32]>>(3)?.map(DedupKey::from_bytes),
            fingerprint: row.get::<_, Option<[u8; 32]>>(4)?.map(Fingerprint::from_bytes),
            expires_at: rows::time(row, 5)?,
            status: row.get(6)?,
            jobs_born: row.get(7)?,
            trace: rows::trace(row, 8)?,
            payload: Bytes::copy_from_slice(row.get_ref(9)?.as_blob()?),
            deliveries: rows::deliveries(&self.conn, id)?,
            handles: self
                .conn
                .prepare_cached("SELECT mark FROM handle WHERE event = ?1")?
                .query_map([id.number().cast_signed()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?,
            jobs: self.jobs(id)?,
        })
    }

    fn jobs(&self, event: EventId) -> rusqlite::Result<Vec<JobPart>> {
        self.conn
            .prepare_cached(
                "SELECT job.id, job.queue, job.version, job.state, job.run_at, job.failures, job.attempts, job.replays,
                        job.first_attempt_at, job.ended_at, job.reason,
                        (SELECT ifnull(max(fence), 0) FROM effect WHERE effect.job = job.id),
                        job.lane, job.ord, job.priority, job.flow
                 FROM job JOIN event ON event.id = job.event
                 WHERE event.id = ?1 AND job.id > ?1 AND job.id <= ?1 + event.jobs ORDER BY job.id",
            )?
            .query_map([event.number().cast_signed()], |row| self.job(row))?
            .collect()
    }

    fn job(&self, row: &Row<'_>) -> rusqlite::Result<JobPart> {
        let id = JobId::from_number(row.get::<_, i64>(0)?.cast_unsigned());
        let effects = rows::effects(&self.conn, id)?;
        let failures = row.get(5)?;
        let place = rows::place(row, 12)?;
        let word = match row.get(3)? {
            SUCCESS => Word::Success,
            NOOP => Word::Noop,
            DEAD => Word::Dead,
            DROPPED => Word::Dropped,
            _ if effects.iter().any(|effect| effect.state == EffectState::Open) => Word::Running,
            _ if failures > 0 => Word::Retrying,
            _ => Word::Queued,
        };
        Ok(JobPart {
            id,
            flow: self.name(row.get(15)?),
            queue: self.name(row.get(1)?),
            version: VersionId(row.get(2)?),
            word,
            run_at: rows::time(row, 4)?,
            lane: place.lane,
            order: place.order,
            priority: place.priority,
            failures,
            attempts_made: row.get(6)?,
            replays: row.get(7)?,
            first_attempt_at: rows::maybe_time(row, 8)?,
            ended_at: rows::maybe_time(row, 9)?,
            reason: row.get::<_, Option<i64>>(10)?.map(rows::reason),
            fence: row.get::<_, i64>(11)?.cast_unsigned(),
            attempts: rows::attempts(&self.conn, id)?,
            effects,
            late: late::of(&self.conn, id)?,
            approvals: approval::of_job(&self.conn, id)?,
        })
    }

    pub fn plans(&self) -> Result<Vec<i64>> {
        self.all("SELECT id FROM replay_plan ORDER BY id", params![], |row| row.get(0))
    }

    /// Rows as a list of JSON: for tables that have the same columns in both engines. `which` names the rows, `?1` in it is `id`.
    pub fn rows_of(&self, table: &str, columns: &[&str], which: &str, id: i64) -> Result<String> {
        let pairs: Vec<String> = columns.iter().map(|column| format!("'{column}', {column}")).collect();
        let sql = format!("SELECT json_group_array(json_object({})) FROM {table} WHERE {which}", pairs.join(", "));
        self.conn.query_row(&sql, [id], |row| row.get(0)).map_err(damaged)
    }

    pub fn next_audit(&self, after: i64, rows_max: usize) -> Result<Vec<AuditRow>> {
        audit::next(&self.conn, after.cast_unsigned(), rows_max).map_err(damaged)
    }

    pub fn next_once(&self, after: &[u8], rows_max: usize) -> Result<Vec<OncePart>> {
        let part = |row: &Row<'_>| Ok(OncePart { key: row.get(0)?, until: rows::time(row, 1)? });
        let sql = "SELECT key, until FROM once WHERE key > ?1 ORDER BY key LIMIT ?2";
        self.all(sql, params![after, i64::try_from(rows_max).unwrap_or(i64::MAX)], part)
    }

    pub fn next_calls(&self, after: &[u8], rows_max: usize) -> Result<Vec<CallPart>> {
        let part = |row: &Row<'_>| {
            Ok(CallPart {
                key: row.get(0)?,
                fingerprint: row.get(1)?,
                turn: row.get(2)?,
                fence: row.get(3)?,
                state: row.get(4)?,
                since: rows::time(row, 5)?,
                until: rows::time(row, 6)?,
                expires: rows::time(row, 7)?,
                answer: row.get(8)?,
            })
        };
        let sql = "SELECT key, fingerprint, turn, fence, state, since, until, expires, answer FROM call
                   WHERE key > ?1 ORDER BY key LIMIT ?2";
        self.all(sql, params![after, i64::try_from(rows_max).unwrap_or(i64::MAX)], part)
    }

    pub fn next_budgets(&self, after: Option<&BudgetRow>, rows_max: usize) -> Result<Vec<BudgetRow>> {
        let (budget, entity) = after.map_or(("", &[][..]), |last| (&*last.budget, &last.entity.as_bytes()[..]));
        let sql = format!(
            "SELECT {} FROM budget WHERE (budget, entity) > (?1, ?2) ORDER BY budget, entity LIMIT ?3",
            budget::COLUMNS
        );
        self.all(&sql, params![budget, entity, i64::try_from(rows_max).unwrap_or(i64::MAX)], budget::row)
    }

    /// As few as a workspace has workers.
    pub fn schedules(&self) -> Result<Vec<ScheduleRow>> {
        schedule::all(&self.conn).map_err(damaged)
    }

    pub fn next_admissions(&self, after: Option<&AdmissionPart>, rows_max: usize) -> Result<Vec<AdmissionPart>> {
        let (job, step, contact) = after.map_or((0, "", &[][..]), |last| (last.job, &*last.step, &last.contact[..]));
        let part = |row: &Row<'_>| {
            Ok(AdmissionPart {
                job: row.get(0)?,
                step: row.get(1)?,
                contact: row.get(2)?,
                channel: row.get(3)?,
                at: row.get(4)?,
                until: row.get(5)?,
            })
        };
        let sql = "SELECT job, step, contact, channel, at, until FROM admission
                   WHERE (job, step, contact) > (?1, ?2, ?3) ORDER BY job, step, contact LIMIT ?4";
        self.all(sql, params![job, step, contact, i64::try_from(rows_max).unwrap_or(i64::MAX)], part)
    }

    /// Counted as the other engine counts: there a job that was done at once has a row for its attempt.
    pub fn totals(&self) -> Result<Totals> {
        let count = |table: &str| self.number(&format!("SELECT count(*) FROM {table}"));
        Ok(vec![
            ("versions", count("version")?),
            ("events", count("event")?),
            ("keys", self.number("SELECT count(DISTINCT key) FROM event")?),
            ("jobs", count("job")?),
            ("attempts", count("attempt")? + count("job WHERE state IN (1, 2) AND attempts = 1 AND reason IS NULL")?),
            ("effects", count("effect")?),
            ("late answers", count("late_answer")?),
            ("approvals", count("approval")?),
            ("votes", count("vote")?),
            ("deliveries", count("delivery")?),
            ("handles", count("handle")?),
            ("audit rows", count("audit")?),
            ("set keys", count("once")?),
            ("calls", count("call")?),
            ("retry budgets", count("budget")?),
            ("schedules", count("schedule")?),
            ("counts of contacts", count("admission")?),
            ("sender tokens", count("sender_token")?),
            ("users", count("person")?),
            ("user tokens", count("person_token")?),
            ("controls", count("control")?),
            ("replay plans", count("replay_plan")?),
            ("jobs of replay plans", count("replay_item")?),
            ("requests to drop", count("drop_ask")?),
            ("alerts", count("alert")?),
        ])
    }

    /// From here on it is not served from. Nothing else in it is changed.
    pub fn mark_moved(&mut self, to: &str, at: Timestamp) -> Result<()> {
        let mark = |conn: &mut Connection| -> rusqlite::Result<()> {
            let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            for (name, value) in [("moved_to", &to as &dyn rusqlite::ToSql), ("moved_at", &at.as_micros())] {
                tx.execute(
                    "INSERT INTO fact (name, value) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                    params![name, value],
                )?;
            }
            tx.commit()
        };
        mark(&mut self.conn).map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    fn name(&self, id: i64) -> Arc<str> {
        self.names.get(&id).cloned().unwrap_or_else(|| Arc::from("?"))
    }

    fn number(&self, sql: &str) -> Result<i64> {
        self.conn.query_row(sql, [], |row| row.get(0)).map_err(damaged)
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        part: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.conn.prepare_cached(sql).map_err(damaged)?;
        let found = statement.query_map(params, part).map_err(damaged)?;
        found.collect::<rusqlite::Result<_>>().map_err(damaged)
    }
}

fn damaged(error: rusqlite::Error) -> StoreError {
    StoreError::Damaged(error.to_string())
}

fn moved_to(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM fact WHERE name = 'moved_to'", [], |row| row.get(0)).optional()
}

/// What was moved lives elsewhere: served from here as well, its jobs would have two lives.
pub(super) fn refuse_moved(conn: &Connection) -> Result<()> {
    let is_new = |conn: &Connection| -> rusqlite::Result<bool> {
        conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'fact')", [], |row| row.get(0))
    };
    if is_new(conn).map_err(open_error)? {
        return Ok(());
    }
    match moved_to(conn).map_err(open_error)? {
        None => Ok(()),
        Some(to) => Err(StoreError::Open(format!(
            "it was moved to {to} by `clinch migrate`, where its jobs go on; serve from there: --store {to}"
        ))),
    }
}
