//! The audit: the one place that writes rows of it, always in the transaction of the act itself, and the walk along its chain.

use super::pool::{Line, Pool};
use super::rows::{self, Read};
use super::{Fault, Shared, user};
use crate::read::{AuditFilter, AuditRow, AuditWalk, Inspected};
use clinch_core::audit::{Act, Chain, Digest, Inspection, Record, Right};
use clinch_core::id::JobId;
use std::sync::Arc;
use tokio_postgres::Row;

/// So many rows are looked at in one part.
const PART: usize = 1_000;

pub(super) const COLUMNS: &str = "id, at, actor, origin, action, object, job, before, after, reason, hash";
pub(super) const HEAD: &str = "SELECT count, hash FROM audit_head";
pub(super) const SET_HEAD: &str = "UPDATE audit_head SET count = $1, hash = $2";
/// Rows of many columns at once.
pub(super) const INSERT: &str =
    "INSERT INTO audit (id, at, actor, origin, action, object, job, before, after, reason, hash)
     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[],
                          $9::text[], $10::text[], $11::bytea[])";

/// The last thing of a transaction before its commit, and once in it: the end of the chain is what all who act wait for, so who
/// has it must wait for nobody.
pub(super) async fn append<'a>(
    line: &mut Line,
    acts: impl IntoIterator<Item = &'a (Act, Record)>,
) -> Result<(), Fault> {
    let acts: Vec<&(Act, Record)> = acts.into_iter().collect();
    if acts.is_empty() {
        return Ok(());
    }
    let found = line.query(&format!("{HEAD} FOR UPDATE"), &[]).await?;
    let mut chain = head(&found)?;
    allow(line, &acts).await?;
    let rows: Vec<AuditRow> = acts.iter().map(|(act, record)| chain.append(act, record)).collect();
    let columns = Columns::of(&rows);
    let (count, hash) = (chain.count.cast_signed(), &chain.hash.as_bytes()[..]);
    line.query_both((INSERT, &columns.params()), (SET_HEAD, &[&count, &hash])).await?;
    Ok(())
}

/// Asked once the end of the chain is ours: who is removed, or gets another role, is so before this or after it.
async fn allow(line: &mut Line, acts: &[&(Act, Record)]) -> Result<(), Fault> {
    let of_people: Vec<_> = acts.iter().filter(|(_, record)| record.right != Right::Given).collect();
    if of_people.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = of_people.iter().map(|(_, record)| &*record.actor).collect();
    let roles = user::roles(line, names).await?;
    for (act, record) in of_people {
        record.allows(act.action, roles.get(&record.actor).copied())?;
    }
    Ok(())
}

/// An act that changes nothing here.
pub(super) async fn note(shared: &Shared, act: Act, record: Record) -> Result<(), Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    append(&mut line, [&(act, record)]).await?;
    line.commit().await
}

/// Rows of the audit, column by column.
pub(super) struct Columns<'a> {
    no: Vec<i64>,
    at: Vec<i64>,
    actor: Vec<&'a str>,
    origin: Vec<&'a str>,
    action: Vec<&'a str>,
    object: Vec<&'a str>,
    job: Vec<Option<i64>>,
    before: Vec<Option<&'a str>>,
    after: Vec<Option<&'a str>>,
    reason: Vec<&'a str>,
    hash: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    pub fn of(rows: &'a [AuditRow]) -> Columns<'a> {
        Columns {
            no: rows.iter().map(|row| row.no.cast_signed()).collect(),
            at: rows.iter().map(|row| row.at.as_micros()).collect(),
            actor: rows.iter().map(|row| &*row.actor).collect(),
            origin: rows.iter().map(|row| &*row.origin).collect(),
            action: rows.iter().map(|row| &*row.action).collect(),
            object: rows.iter().map(|row| &*row.object).collect(),
            job: rows.iter().map(|row| row.job.map(|job| job.number().cast_signed())).collect(),
            before: rows.iter().map(|row| row.before.as_deref()).collect(),
            after: rows.iter().map(|row| row.after.as_deref()).collect(),
            reason: rows.iter().map(|row| &*row.reason).collect(),
            hash: rows.iter().map(|row| &row.hash.as_bytes()[..]).collect(),
        }
    }

    pub fn params(&self) -> [&(dyn super::param::Param + Sync); 11] {
        [
            &self.no,
            &self.at,
            &self.actor,
            &self.origin,
            &self.action,
            &self.object,
            &self.job,
            &self.before,
            &self.after,
            &self.reason,
            &self.hash,
        ]
    }
}

/// How far the chain goes, kept apart from it.
pub(super) fn head(found: &[Row]) -> Read<Chain> {
    match found.first() {
        Some(row) => Ok(Chain { count: row.try_get::<_, i64>(0)?.cast_unsigned(), hash: digest(row, 1)? }),
        // Somebody has removed it: then no row fits.
        None => Ok(Chain::START),
    }
}

/// A hash that is none fits nothing, and that is said of its row.
fn digest(row: &Row, column: usize) -> Read<Digest> {
    Ok(row.try_get::<_, &[u8]>(column)?.try_into().map_or(Chain::START.hash, Digest::from_bytes))
}

pub(super) fn row(row: &Row) -> Read<AuditRow> {
    Ok(AuditRow {
        no: row.try_get::<_, i64>(0)?.cast_unsigned(),
        at: rows::time(row, 1)?,
        actor: row.try_get(2)?,
        origin: row.try_get(3)?,
        action: row.try_get(4)?,
        object: row.try_get(5)?,
        job: row.try_get::<_, Option<i64>>(6)?.map(|id| JobId::from_number(id.cast_unsigned())),
        before: row.try_get(7)?,
        after: row.try_get(8)?,
        reason: row.try_get(9)?,
        hash: digest(row, 10)?,
    })
}

pub(super) async fn of_job(line: &mut Line, job: i64) -> Result<Vec<AuditRow>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM audit WHERE job = $1 ORDER BY id");
    Ok(line.query(&sql, &[&job]).await?.iter().map(row).collect::<Read<_>>()?)
}

pub(super) async fn find(eyes: &Arc<Pool>, filter: &AuditFilter) -> Result<Vec<AuditRow>, Fault> {
    let (order, from) = match filter.walk {
        AuditWalk::Back { before } => ("id < $1 ORDER BY id DESC", before.unwrap_or(u64::MAX)),
        AuditWalk::Forth { after } => ("id > $1 ORDER BY id", after),
    };
    let (action, is_family) = filter.action();
    let sql = format!(
        "SELECT {COLUMNS} FROM audit
         WHERE ($2::text IS NULL OR actor = $2) AND ($3::text IS NULL OR object = $3)
           AND ($4::bigint IS NULL OR at >= $4) AND ($5::bigint IS NULL OR at < $5)
           AND ($6::text IS NULL OR action = $6 OR ($7 AND starts_with(action, $6))) AND {order} LIMIT $8"
    );
    let found = eyes
        .ask(
            &sql,
            &[
                &i64::try_from(from).unwrap_or(i64::MAX),
                &filter.actor.as_deref().map(rows::text),
                &filter.object.as_deref().map(rows::text),
                &filter.since.map(|at| at.as_micros()),
                &filter.until.map(|at| at.as_micros()),
                &action.map(rows::text),
                &is_family,
                &i64::try_from(filter.limit).unwrap_or(i64::MAX),
            ],
        )
        .await?;
    Ok(found.iter().map(row).collect::<Read<_>>()?)
}

pub(super) fn part() -> String {
    format!("SELECT {COLUMNS} FROM audit WHERE id > $1 ORDER BY id LIMIT {PART}")
}

/// From end to end, as it is at one moment.
pub(super) async fn inspect(eyes: &Arc<Pool>, noted: Option<Digest>) -> Result<Inspected, Fault> {
    let mut line = eyes.line().await?;
    line.begin_reading().await?;
    let head = head(&line.query(HEAD, &[]).await?)?;
    let mut walk = Walk::new(head, noted);
    while let Some(after) = walk.goes_on_after() {
        walk.look(&line.query(&part(), &[&after]).await?)?;
    }
    line.commit().await?;
    Ok(walk.inspected())
}

/// A walk in parts.
pub(super) struct Walk {
    head: Chain,
    inspection: Inspection,
    after: i64,
    ended: Option<Inspected>,
}

impl Walk {
    pub fn new(head: Chain, noted: Option<Digest>) -> Walk {
        Walk { head, inspection: Inspection::new(head, noted), after: i64::MIN, ended: None }
    }

    pub fn goes_on_after(&self) -> Option<i64> {
        self.ended.is_none().then_some(self.after)
    }

    pub fn look(&mut self, part: &[Row]) -> Read<()> {
        for found in part {
            let found = row(found)?;
            self.after = found.no.cast_signed();
            if let Err(broken) = self.inspection.look(&found) {
                self.ended = Some(Inspected { head: self.head, broken: Some(broken) });
                return Ok(());
            }
        }
        if part.len() < PART {
            self.ended = Some(Inspected { head: self.head, broken: self.inspection.end().err() });
        }
        Ok(())
    }

    pub fn inspected(self) -> Inspected {
        self.ended.expect("it was walked to its end")
    }
}
