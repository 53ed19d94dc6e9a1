//! spend and grant: what entities have used of their retry budgets.

use super::audit;
use super::writer::Batch;
use crate::read::{BudgetFilter, BudgetRow};
use crate::{GrantAsk, SpendAsk};
use clinch_core::budget::{Account, Allowance, Spent};
use clinch_core::key::EntityKey;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub(super) const COLUMNS: &str = "budget, entity, since, spent, extra, units, lasts";

pub(super) fn spend(batch: &Batch<'_>, ask: &SpendAsk) -> rusqlite::Result<Spent> {
    let before = account(batch, &ask.budget, ask.entity)?.unwrap_or(Account::new(ask.now));
    let (after, spent) = before.spend(ask.now, ask.allowance, ask.on_exhausted, ask.latest);
    // Also when nothing was taken: what is allowed may be another by now.
    write(batch, &ask.budget, ask.entity, after, ask.allowance)?;
    Ok(spent)
}

pub(super) fn grant(batch: &Batch<'_>, ask: &GrantAsk) -> rusqlite::Result<BudgetRow> {
    let before = account(batch, &ask.budget, ask.entity)?.unwrap_or(Account::new(ask.record.at));
    let account = before.grant(ask.record.at, ask.allowance, ask.units);
    write(batch, &ask.budget, ask.entity, account, ask.allowance)?;
    let row = |account| BudgetRow { budget: ask.budget.clone(), entity: ask.entity, account, allowance: ask.allowance };
    audit::append(batch, &ask.act(&row(before).at(ask.record.at), &row(account)), &ask.record)?;
    Ok(row(account))
}

fn account(batch: &Batch<'_>, budget: &str, entity: EntityKey) -> rusqlite::Result<Option<Account>> {
    batch
        .conn
        .prepare_cached("SELECT since, spent, extra FROM budget WHERE budget = ?1 AND entity = ?2")?
        .query_row(params![budget, entity.as_bytes()], |row| {
            Ok(Account { since: Timestamp::from_micros(row.get(0)?), spent: row.get(1)?, extra: row.get(2)? })
        })
        .optional()
}

fn write(
    batch: &Batch<'_>,
    budget: &str,
    entity: EntityKey,
    account: Account,
    allowance: Allowance,
) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached(
            "INSERT INTO budget (budget, entity, since, spent, extra, units, lasts, free_at, over_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (budget, entity) DO UPDATE SET
                 since = excluded.since, spent = excluded.spent, extra = excluded.extra, units = excluded.units,
                 lasts = excluded.lasts, free_at = excluded.free_at, over_at = excluded.over_at",
        )?
        .execute(params![
            budget,
            entity.as_bytes(),
            account.since.as_micros(),
            account.spent,
            account.extra,
            allowance.units.get(),
            i64::try_from(allowance.window.as_micros()).unwrap_or(i64::MAX),
            account.free_at(allowance).map_or(0, Timestamp::as_micros),
            account.over_at(allowance).as_micros(),
        ])?;
    Ok(())
}

pub(super) fn row(row: &Row<'_>) -> rusqlite::Result<BudgetRow> {
    let window = u64::try_from(row.get::<_, i64>(6)?).unwrap_or(0);
    Ok(BudgetRow {
        budget: Arc::from(row.get_ref(0)?.as_str()?),
        entity: EntityKey::from_bytes(row.get(1)?),
        account: Account { since: Timestamp::from_micros(row.get(2)?), spent: row.get(3)?, extra: row.get(4)? },
        allowance: Allowance {
            units: NonZeroU32::new(row.get(5)?).unwrap_or(NonZeroU32::MIN),
            window: Duration::from_micros(window),
        },
    })
}

pub(super) fn find(conn: &Connection, filter: &BudgetFilter) -> rusqlite::Result<Vec<BudgetRow>> {
    let (now, most) = (filter.now.as_micros(), i64::try_from(filter.limit).unwrap_or(i64::MAX));
    let of = "(?3 IS NULL OR budget = ?3) AND (?4 IS NULL OR entity = ?4)";
    let which = match filter.is_exhausted {
        true => format!("free_at > ?1 AND free_at > 0 AND {of} ORDER BY free_at DESC, budget, entity"),
        false => format!("over_at > ?1 AND {of} ORDER BY budget, entity"),
    };
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM budget WHERE {which} LIMIT ?2"))?
        .query_map(params![now, most, filter.budget, filter.entity.map(|entity| *entity.as_bytes())], row)?
        .map(|found| found.map(|found| found.at(filter.now)))
        .collect()
}

pub(super) fn exhausted(conn: &Connection, now: Timestamp) -> rusqlite::Result<Vec<(Arc<str>, u64)>> {
    conn.prepare_cached("SELECT budget, count(*) FROM budget WHERE free_at > ?1 AND free_at > 0 GROUP BY budget")?
        .query_map([now.as_micros()], |row| {
            Ok((Arc::from(row.get_ref(0)?.as_str()?), row.get::<_, i64>(1)?.cast_unsigned()))
        })?
        .collect()
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "DELETE FROM budget WHERE (budget, entity) IN
                 (SELECT budget, entity FROM budget WHERE over_at <= ?1 LIMIT ?2)";
