//! The accounting of P5 and the ledger's own rules, proved from the file alone.

use super::audit;
use super::rows::{self, DEAD, DROPPED, NOOP, READY, SUCCESS};
use crate::verify::Report;
use crate::{Result, StoreError};
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Opens the store read-only; a server may be running on it.
pub fn verify(data_dir: &Path, now: Timestamp) -> Result<Report> {
    let path = super::database_path(data_dir);
    if !path.exists() {
        return Err(StoreError::Open(format!("there is no store in {}", data_dir.display())));
    }
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(super::open_error)?;
    super::refuse_newer(&conn)?;
    report(&conn, now).map_err(|error| StoreError::Damaged(error.to_string()))
}

fn report(conn: &Connection, now: Timestamp) -> rusqlite::Result<Report> {
    // One read transaction: all figures are of one moment.
    conn.execute_batch("BEGIN")?;
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let mut report =
        Report { accepted: rows::fact(conn, "created")?, events: rows::fact(conn, "accepted")?, ..Report::default() };
    let states = [
        ("queued", format!("state = {READY} AND failures = 0")),
        ("retrying", format!("state = {READY} AND failures > 0")),
        ("success", format!("state = {SUCCESS}")),
        ("noop", format!("state = {NOOP}")),
        ("dead", format!("state = {DEAD}")),
        ("dropped", format!("state = {DROPPED}")),
    ];
    for (word, condition) in &states {
        report.parts.push((word, count(&format!("SELECT count(*) FROM job WHERE {condition}"))?));
    }
    report.parts.push(("expired by retention", rows::fact(conn, "expired")?));
    for (word, state) in [("open", 0), ("done", 1), ("not done", 2), ("unknown", 3), ("given up", 4)] {
        report.effects.push((word, count(&format!("SELECT count(*) FROM effect WHERE state = {state}"))?));
    }

    let sum: i64 = report.parts.iter().map(|(_, jobs)| jobs).sum();
    if sum != report.accepted {
        report.problems.push(format!("{} jobs were accepted, but {sum} are accounted for", report.accepted));
    }
    let events = count("SELECT count(*) FROM event")? + rows::fact(conn, "events_expired")?;
    if events != report.events {
        report.problems.push(format!("{} events were accepted, but {events} are accounted for", report.events));
    }
    let whole: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if whole != "ok" {
        report.problems.push(format!("the database file is damaged: {whole}"));
    }
    for (rule, sql) in RULES {
        let broken: Vec<i64> = conn
            .prepare(&format!("{sql} LIMIT 5"))?
            .query_map(rusqlite::named_params! {}, |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        if let Some(first) = broken.first() {
            let job = JobId::from_number(first.cast_unsigned());
            report.problems.push(format!("{rule}, such as {job}"));
        }
    }
    let twice = conn.query_row(
        "SELECT count(*) FROM (SELECT 1 FROM event WHERE key IS NOT NULL AND expires_at > ?1 GROUP BY key HAVING count(*) > 1)",
        [now.as_micros()],
        |row| row.get::<_, i64>(0),
    )?;
    if twice > 0 {
        report.problems.push(format!("{twice} keys are held by more than one event"));
    }
    let audit = audit::inspect(conn, None)?;
    report.audit_rows = audit.head.count;
    report.problems.extend(audit.broken.map(|broken| broken.to_string()));
    conn.execute_batch("COMMIT")?;
    Ok(report)
}

/// Each names rows that must not exist.
const RULES: &[(&str, &str)] = &[
    ("jobs are in no known state", "SELECT id FROM job WHERE state NOT IN (0, 1, 2, 3, 6)"),
    ("jobs keep no known order", "SELECT id FROM job WHERE ord NOT IN (0, 1, 2)"),
    (
        "unfinished jobs lie where the next start does not look",
        "SELECT id FROM job WHERE state = 0 AND id < (SELECT value FROM fact WHERE name = 'live_from')",
    ),
    ("jobs have no event", "SELECT id FROM job WHERE NOT EXISTS (SELECT 1 FROM event WHERE event.id = job.event)"),
    (
        "events have no job",
        "SELECT id FROM event WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id > event.id AND job.id <= event.id + event.jobs)",
    ),
    ("ended jobs do not say when", "SELECT id FROM job WHERE state <> 0 AND ended_at IS NULL"),
    ("dead letters do not say why", "SELECT id FROM job WHERE state IN (3, 6) AND reason IS NULL"),
    (
        "jobs have other attempts than they count",
        "SELECT id FROM job WHERE attempts - (attempts = 1 AND state IN (1, 2) AND reason IS NULL)
             <> (SELECT count(*) FROM attempt WHERE attempt.job = job.id)",
    ),
    (
        "jobs ended while an effect was open",
        "SELECT job.id FROM effect JOIN job ON job.id = effect.job WHERE effect.state = 0 AND job.state <> 0",
    ),
    (
        "jobs ended well with an effect of unknown outcome",
        "SELECT job.id FROM effect JOIN job ON job.id = effect.job WHERE effect.state = 3 AND job.state = 1
             AND effect.name NOT LIKE 'undo:%' AND effect.name NOT LIKE 'end:%'",
    ),
    (
        "late answers are of no effect",
        "SELECT job FROM late_answer AS late
         WHERE NOT EXISTS (SELECT 1 FROM effect WHERE effect.job = late.job AND effect.name = late.name)",
    ),
    (
        "approvals have no job",
        "SELECT job FROM approval WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = approval.job)",
    ),
    (
        "decided approvals do not say by whom or when",
        "SELECT job FROM approval WHERE state <> 0 AND (decided_by IS NULL OR decided_at IS NULL)",
    ),
    ("late answers say nothing", "SELECT job FROM late_answer WHERE state NOT IN (1, 2, 3)"),
    (
        "effects have no job",
        "SELECT effect.job FROM effect WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = effect.job)",
    ),
];
