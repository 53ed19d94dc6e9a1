//! Approvals: asked, voted on, decided once, on record. Whoever waits for a verdict is woken by it.

use super::audit;
use super::ledger::holds;
use super::memory::Settled;
use super::rows;
use super::writer::Batch;
use crate::approval::{
    ApprovalFilter, ApprovalPage, ApprovalRow, Place, Undecided, expiry, names, spelt, vote, vote_number,
};
use crate::moving::ApprovalPart;
use crate::read::LIST_ROWS_MAX;
use crate::{ApprovalAsk, Asked, DecideAsk, Decided, LeaseRef, TellAsk};
use clinch_core::approval::{ApprovalId, Ballot, Decision, OnExpiry, Ruling, Verdict, remind_at, rule};
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

const COLUMNS: &str = "job, step, flow, voters, need, on_expiry, requester, integration, channel, asked_at, expires_at, told, \
                       state, decided_at, decided_by, reason";

fn number(job: JobId) -> i64 {
    job.number().cast_signed()
}

fn row(row: &Row<'_>) -> rusqlite::Result<ApprovalRow> {
    let place = match (row.get(7)?, row.get(8)?) {
        (Some(integration), Some(channel)) => Some(Place { integration, channel }),
        _ => None,
    };
    let decision = match Verdict::from_number(row.get(12)?) {
        None => None,
        Some(verdict) => Some(Decision {
            verdict,
            at: rows::time(row, 13)?,
            by: row.get::<_, Option<String>>(14)?.unwrap_or_default(),
            reason: row.get::<_, Option<String>>(15)?.unwrap_or_default(),
        }),
    };
    Ok(ApprovalRow {
        id: ApprovalId { job: rows::job_id(row, 0)?, step: row.get(1)? },
        flow: rows::name(row, 2)?,
        of: names(row.get_ref(3)?.as_str()?),
        need: row.get(4)?,
        on_expiry: if row.get::<_, i64>(5)? == 1 { OnExpiry::Approve } else { OnExpiry::Reject },
        requester: row.get(6)?,
        place,
        asked_at: rows::time(row, 9)?,
        expires_at: rows::time(row, 10)?,
        told: row.get(11)?,
        ballots: Vec::new(),
        decision,
    })
}

fn ballots(conn: &Connection, id: &ApprovalId) -> rusqlite::Result<Vec<Ballot>> {
    let ballot = |row: &Row<'_>| {
        Ok(Ballot { actor: row.get(0)?, vote: vote(row.get(1)?), at: rows::time(row, 2)?, reason: row.get(3)? })
    };
    conn.prepare_cached("SELECT actor, vote, at, reason FROM vote WHERE job = ?1 AND step = ?2 ORDER BY at, actor")?
        .query_map(params![number(id.job), id.step], ballot)?
        .collect()
}

pub(super) fn find(conn: &Connection, id: &ApprovalId) -> rusqlite::Result<Option<ApprovalRow>> {
    let sql = format!("SELECT {COLUMNS} FROM approval WHERE job = ?1 AND step = ?2");
    let found = conn.prepare_cached(&sql)?.query_row(params![number(id.job), id.step], row).optional()?;
    found.map(|found| Ok(ApprovalRow { ballots: ballots(conn, id)?, ..found })).transpose()
}

/// All of one job, for who moves it elsewhere.
pub(super) fn of_job(conn: &Connection, job: JobId) -> rusqlite::Result<Vec<ApprovalPart>> {
    let sql = format!("SELECT {COLUMNS}, remind_at, tell_at FROM approval WHERE job = ?1 ORDER BY step");
    let part = |found: &Row<'_>| {
        let (remind_at, tell_at) = (rows::maybe_time(found, 16)?, rows::maybe_time(found, 17)?);
        Ok(ApprovalPart { row: row(found)?, remind_at, tell_at })
    };
    let mut parts: Vec<ApprovalPart> =
        conn.prepare_cached(&sql)?.query_map([number(job)], part)?.collect::<rusqlite::Result<_>>()?;
    for part in &mut parts {
        part.row.ballots = ballots(conn, &part.row.id)?;
    }
    Ok(parts)
}

fn with_ballots(conn: &Connection, found: Vec<ApprovalRow>) -> rusqlite::Result<Vec<ApprovalRow>> {
    found.into_iter().map(|row| Ok(ApprovalRow { ballots: ballots(conn, &row.id)?, ..row })).collect()
}

pub(super) fn ask(batch: &mut Batch<'_>, lease: LeaseRef, ask: &ApprovalAsk) -> rusqlite::Result<Option<Asked>> {
    if !holds(batch, lease) {
        return Ok(None);
    }
    let id = ApprovalId { job: lease.job, step: ask.step.to_string() };
    let Some(known) = find(batch.conn, &id)? else {
        insert(batch, &id, ask)?;
        return Ok(Some(Asked::Pending { expires_at: ask.at + ask.rule.expires }));
    };
    let decision = match &known.decision {
        None if ask.at < known.expires_at => return Ok(Some(Asked::Pending { expires_at: known.expires_at })),
        // The job came before whoever looks after the time.
        None => expire_one(batch, &known, ask.at)?,
        Some(decision) => decision.clone(),
    };
    Ok(Some(Asked::Decided { decision, on_expiry: known.on_expiry }))
}

fn insert(batch: &Batch<'_>, id: &ApprovalId, ask: &ApprovalAsk) -> rusqlite::Result<()> {
    let ApprovalAsk { rule, place, at, .. } = ask;
    batch
        .conn
        .prepare_cached(
            "INSERT INTO approval (job, step, flow, state, voters, need, on_expiry, requester, asked_at, expires_at, remind_at,
                                   integration, channel, tell_at)
             VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?
        .execute(params![
            number(id.job),
            id.step,
            &*ask.flow,
            spelt(&rule.of),
            rule.need,
            i64::from(rule.on_expiry == OnExpiry::Approve),
            ask.requester,
            at.as_micros(),
            (*at + rule.expires).as_micros(),
            remind_at(rule, *at).map(Timestamp::as_micros),
            place.as_ref().map(|place| &place.integration),
            place.as_ref().map(|place| &place.channel),
            place.as_ref().map(|_| at.as_micros()),
        ])?;
    let (act, record) = ask.act(id);
    audit::append(batch, &act, &record)
}

pub(super) fn decide(batch: &mut Batch<'_>, ask: &DecideAsk) -> rusqlite::Result<Decided> {
    let (id, record) = (&ask.approval, &ask.record);
    let Some(known) = find(batch.conn, id)? else { return Ok(Decided::NotFound) };
    let decided = match rule(known.standing(), &record.actor, ask.vote, record.at) {
        Ruling::Decides(verdict) => {
            cast(batch, ask)?;
            let decision = ask.decision(verdict);
            end(batch, id, &decision)?;
            Decided::Verdict(decision)
        }
        Ruling::Counts(tally) => {
            cast(batch, ask)?;
            Decided::Counted(tally)
        }
        Ruling::Before(tally) => Decided::Before(tally),
        Ruling::Overdue => Decided::Late(expire_one(batch, &known, record.at)?),
        Ruling::Late(decision) => Decided::Late(decision),
        Ruling::NotAllowed(why) => Decided::NotAllowed(why),
    };
    if let Some((act, record)) = ask.act(&decided) {
        audit::append(batch, &act, &record)?;
    }
    Ok(decided)
}

fn cast(batch: &Batch<'_>, ask: &DecideAsk) -> rusqlite::Result<()> {
    let (id, ballot) = (&ask.approval, ask.ballot());
    // Who has approved and cancels then has said the last.
    batch
        .conn
        .prepare_cached(
            "INSERT INTO vote (job, step, actor, vote, at, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (job, step, actor) DO UPDATE SET vote = excluded.vote, at = excluded.at, reason = excluded.reason",
        )?
        .execute(params![
            number(id.job),
            id.step,
            ballot.actor,
            vote_number(ballot.vote),
            ballot.at.as_micros(),
            ballot.reason
        ])?;
    Ok(())
}

/// The verdict. Nobody is told of it any more, and the job goes on.
fn end(batch: &mut Batch<'_>, id: &ApprovalId, decision: &Decision) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached(
            "UPDATE approval SET state = ?3, decided_at = ?4, decided_by = ?5, reason = ?6, tell_at = NULL
             WHERE job = ?1 AND step = ?2 AND state = 0",
        )?
        .execute(params![
            number(id.job),
            id.step,
            decision.verdict.number(),
            decision.at.as_micros(),
            decision.by,
            decision.reason
        ])?;
    batch.changes.push(Settled::Woken { job: id.job, at: decision.at });
    Ok(())
}

fn expire_one(batch: &mut Batch<'_>, known: &ApprovalRow, at: Timestamp) -> rusqlite::Result<Decision> {
    let decision = Decision::expired(at);
    end(batch, &known.id, &decision)?;
    let (act, record) = expiry(known, &decision);
    audit::append(batch, &act, &record)?;
    Ok(decision)
}

/// Whether there is something to expire, or to tell: who looks every second must not keep the writer busy.
pub(super) fn is_any(conn: &Connection, column: &'static str, now: Timestamp) -> rusqlite::Result<bool> {
    let state = if column == "expires_at" { " AND state = 0" } else { "" };
    let sql = format!("SELECT EXISTS (SELECT 1 FROM approval WHERE {column} <= ?1{state})");
    conn.prepare_cached(&sql)?.query_row([now.as_micros()], |row| row.get(0))
}

pub(super) fn expire(batch: &mut Batch<'_>, now: Timestamp, most: usize) -> rusqlite::Result<Vec<ApprovalRow>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM approval WHERE state = 0 AND expires_at <= ?1 ORDER BY expires_at, job, step LIMIT ?2"
    );
    let over: Vec<ApprovalRow> = batch
        .conn
        .prepare_cached(&sql)?
        .query_map(params![now.as_micros(), most as i64], row)?
        .collect::<rusqlite::Result<_>>()?;
    let over = with_ballots(batch.conn, over)?;
    over.into_iter()
        .map(|known| {
            let decision = expire_one(batch, &known, now)?;
            Ok(ApprovalRow { decision: Some(decision), ..known })
        })
        .collect()
}

pub(super) fn tell(batch: &Batch<'_>, ask: &TellAsk) -> rusqlite::Result<Vec<ApprovalRow>> {
    let place = |row: &Row<'_>| Ok(Place { integration: row.get(0)?, channel: row.get(1)? });
    let places: Vec<Place> = batch
        .conn
        .prepare_cached("SELECT DISTINCT integration, channel FROM approval WHERE tell_at <= ?1")?
        .query_map([ask.now.as_micros()], place)?
        .collect::<rusqlite::Result<_>>()?;
    let Some(place) = places.into_iter().find(|place| !ask.but.contains(place)) else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT {COLUMNS} FROM approval WHERE tell_at <= ?1 AND integration = ?2 AND channel = ?3
         ORDER BY tell_at, job, step LIMIT ?4"
    );
    let due: Vec<ApprovalRow> = batch
        .conn
        .prepare_cached(&sql)?
        .query_map(params![ask.now.as_micros(), place.integration, place.channel, ask.most as i64], row)?
        .collect::<rusqlite::Result<_>>()?;
    for row in &due {
        batch
            .conn
            .prepare_cached("UPDATE approval SET tell_at = ?3 WHERE job = ?1 AND step = ?2")?
            .execute(params![number(row.id.job), row.id.step, ask.until.as_micros()])?;
    }
    with_ballots(batch.conn, due)
}

/// The first time people are asked, the second time reminded.
pub(super) fn told(batch: &Batch<'_>, ids: &[ApprovalId], now: Timestamp) -> rusqlite::Result<()> {
    for id in ids {
        batch
            .conn
            .prepare_cached(
                "UPDATE approval SET told = told + 1, tell_at = CASE WHEN told = 0 AND remind_at > ?3 THEN remind_at END
                 WHERE job = ?1 AND step = ?2 AND state = 0",
            )?
            .execute(params![number(id.job), id.step, now.as_micros()])?;
    }
    Ok(())
}

pub(super) fn list(conn: &Connection, filter: &ApprovalFilter) -> rusqlite::Result<ApprovalPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (job, step) = filter.before.as_ref().map_or((i64::MAX, ""), |id| (number(id.job), &*id.step));
    let state = match filter.state {
        None => String::new(),
        Some(state) => format!(" AND state = {}", state.map_or(0, Verdict::number)),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM approval
         WHERE (job, step) < (?1, ?2){state} AND (?3 IS NULL OR flow = ?3) AND (?4 IS NULL OR step = ?4)
             AND (?5 IS NULL OR job = ?5)
         ORDER BY job DESC, step DESC LIMIT ?6"
    );
    let mut found: Vec<ApprovalRow> = conn
        .prepare_cached(&sql)?
        .query_map(params![job, step, filter.flow, filter.step, filter.job.map(number), limit as i64 + 1], row)?
        .collect::<rusqlite::Result<_>>()?;
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(ApprovalPage { rows: with_ballots(conn, found)?, more })
}

pub(super) fn waiting(conn: &Connection) -> rusqlite::Result<Vec<Undecided>> {
    let waiting = |row: &Row<'_>| {
        let approvals: i64 = row.get(1)?;
        Ok(Undecided { flow: rows::name(row, 0)?, approvals: approvals.cast_unsigned(), oldest: rows::time(row, 2)? })
    };
    conn.prepare_cached("SELECT flow, count(*), min(asked_at) FROM approval WHERE state = 0 GROUP BY flow")?
        .query_map([], waiting)?
        .collect()
}
