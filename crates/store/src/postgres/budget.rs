//! spend and grant: what entities have used of their retry budgets, on all nodes together. Times are those of the database.

use super::pool::Line;
use super::{Fault, Shared, audit};
use crate::read::{BudgetFilter, BudgetRow};
use crate::{GrantAsk, SpendAsk};
use clinch_core::budget::{Account, Allowance, Spent};
use clinch_core::key::EntityKey;
use clinch_core::time::Timestamp;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

// Whoever comes second waits here for the first, and is then told what the first has left.
const OPEN: &str = "
    INSERT INTO budget (budget, entity, since, spent, extra, units, lasts, free_at, over_at)
    VALUES ($1, $2, $3, 0, 0, 1, 0, 0, 0)
    ON CONFLICT (budget, entity) DO UPDATE SET entity = excluded.entity
    RETURNING since, spent, extra";

const WRITE: &str = "
    UPDATE budget SET since = $3, spent = $4, extra = $5, units = $6, lasts = $7, free_at = $8, over_at = $9
    WHERE budget = $1 AND entity = $2";

const COLUMNS: &str = "budget, entity, since, spent, extra, units, lasts";

pub(super) async fn spend(shared: &Shared, ask: &SpendAsk) -> Result<Spent, Fault> {
    let now = shared.skew.to_database(ask.now);
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let before = open(&mut line, &ask.budget, ask.entity, now).await?;
    let latest = ask.latest.map(|latest| shared.skew.to_database(latest));
    let (after, spent) = before.spend(now, ask.allowance, ask.on_exhausted, latest);
    write(&mut line, &ask.budget, ask.entity, after, ask.allowance).await?;
    line.commit().await?;
    let here = |at| shared.skew.back_from_database(at);
    Ok(match spent {
        Spent::Granted { left } => Spent::Granted { left },
        Spent::Later { at } => Spent::Later { at: here(at) },
        Spent::Exhausted { until } => Spent::Exhausted { until: here(until) },
    })
}

pub(super) async fn grant(shared: &Shared, ask: &GrantAsk) -> Result<BudgetRow, Fault> {
    let now = shared.skew.to_database(ask.record.at);
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let before = open(&mut line, &ask.budget, ask.entity, now).await?;
    let account = before.grant(now, ask.allowance, ask.units);
    write(&mut line, &ask.budget, ask.entity, account, ask.allowance).await?;
    let row = |account| BudgetRow { budget: ask.budget.clone(), entity: ask.entity, account, allowance: ask.allowance };
    let acted = (ask.act(&row(before).at(now), &row(account)), ask.record.clone());
    audit::append(&mut line, [&acted]).await?;
    line.commit().await?;
    Ok(row(Account { since: shared.skew.back_from_database(account.since), ..account }))
}

async fn open(line: &mut Line, budget: &str, entity: EntityKey, now: Timestamp) -> Result<Account, Fault> {
    let rows = line.query(OPEN, &[&budget, &&entity.as_bytes()[..], &now.as_micros()]).await?;
    rows.first().map_or(Err(Fault::Silent), |row| account(row, 0))
}

fn account(row: &Row, first: usize) -> Result<Account, Fault> {
    let units = |column| -> Result<u32, Fault> { Ok(u32::try_from(row.try_get::<_, i32>(column)?).unwrap_or(0)) };
    let since = Timestamp::from_micros(row.try_get(first)?);
    Ok(Account { since, spent: units(first + 1)?, extra: units(first + 2)? })
}

async fn write(
    line: &mut Line,
    budget: &str,
    entity: EntityKey,
    account: Account,
    allowance: Allowance,
) -> Result<(), Fault> {
    let units = |units: u32| i32::try_from(units).unwrap_or(i32::MAX);
    line.query(
        WRITE,
        &[
            &budget,
            &&entity.as_bytes()[..],
            &account.since.as_micros(),
            &units(account.spent),
            &units(account.extra),
            &units(allowance.units.get()),
            &i64::try_from(allowance.window.as_micros()).unwrap_or(i64::MAX),
            &account.free_at(allowance).map_or(0, Timestamp::as_micros),
            &account.over_at(allowance).as_micros(),
        ],
    )
    .await
    .map(drop)
}

pub(super) async fn find(shared: &Shared, filter: &BudgetFilter) -> Result<Vec<BudgetRow>, Fault> {
    let now = shared.skew.to_database(filter.now);
    let of = "($3::text IS NULL OR budget = $3) AND ($4::bytea IS NULL OR entity = $4)";
    let which = match filter.is_exhausted {
        true => format!("free_at > $1 AND free_at > 0 AND {of} ORDER BY free_at DESC, budget, entity"),
        false => format!("over_at > $1 AND {of} ORDER BY budget, entity"),
    };
    let (most, entity) = (i64::try_from(filter.limit).unwrap_or(i64::MAX), filter.entity);
    let entity = entity.as_ref().map(|entity| &entity.as_bytes()[..]);
    let sql = format!("SELECT {COLUMNS} FROM budget WHERE {which} LIMIT $2");
    let rows = shared.eyes.ask(&sql, &[&now.as_micros(), &most, &filter.budget.as_deref(), &entity]).await?;
    let told = |found: &Row| {
        let found = row(found)?.at(now);
        let since = shared.skew.back_from_database(found.account.since);
        Ok(BudgetRow { account: Account { since, ..found.account }, ..found })
    };
    rows.iter().map(told).collect()
}

fn row(row: &Row) -> Result<BudgetRow, Fault> {
    let damaged = || Fault::Damaged("a retry budget");
    let entity: [u8; 16] = row.try_get::<_, &[u8]>(1)?.try_into().map_err(|_| damaged())?;
    let units = u32::try_from(row.try_get::<_, i32>(5)?).ok().and_then(NonZeroU32::new).ok_or_else(damaged)?;
    let window = u64::try_from(row.try_get::<_, i64>(6)?).map_err(|_| damaged())?;
    Ok(BudgetRow {
        budget: row.try_get::<_, &str>(0)?.into(),
        entity: EntityKey::from_bytes(entity),
        account: account(row, 2)?,
        allowance: Allowance { units, window: Duration::from_micros(window) },
    })
}

pub(super) async fn exhausted(shared: &Shared, now: Timestamp) -> Result<Vec<(Arc<str>, u64)>, Fault> {
    let now = shared.skew.to_database(now).as_micros();
    // As the index says it.
    let sql = "SELECT budget, count(*) FROM budget WHERE free_at > $1 AND free_at > 0 GROUP BY budget";
    let rows = shared.eyes.ask(sql, &[&now]).await?;
    let told = |row: &Row| Ok((row.try_get::<_, &str>(0)?.into(), row.try_get::<_, i64>(1)?.cast_unsigned()));
    rows.iter().map(told).collect()
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "
    WITH over AS MATERIALIZED (
        SELECT budget, entity FROM budget WHERE over_at <= $1 ORDER BY over_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM budget USING over WHERE budget.budget = over.budget AND budget.entity = over.entity
        RETURNING budget.entity
    ) SELECT count(*) FROM gone";
