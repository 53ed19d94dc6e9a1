//! Retry budgets: who has used how much, and more for one of them. Entities are known by hashes; who asks for one says its name.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::{Budget, BudgetGrant, BudgetList, BudgetShow, Moment};
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::budget::{Account, RetryBudget, UNITS_MAX};
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::payload::TENANT_DEFAULT;
use clinch_core::time::{Timestamp, human};
use clinch_store::GrantAsk;
use clinch_store::read::{BudgetFilter, BudgetRow};
use std::sync::Arc;

const ROWS_DEFAULT: usize = 50;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<BudgetList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["budget", "exhausted", "limit"])?;
    let (now, limit) = (house.clock.now(), query.limit(ROWS_DEFAULT)?);
    let filter = BudgetFilter {
        budget: query.text("budget").map(String::from),
        entity: None,
        is_exhausted: query.get::<bool>("exhausted")?.unwrap_or(false),
        now,
        // One more than is told, to know whether there are more.
        limit: limit + 1,
    };
    let rows = house.store.budgets(filter).await?;
    Ok(Json(BudgetList {
        schema: "clinch.budgets.list/v1".into(),
        more: rows.len() > limit,
        budgets: rows.iter().take(limit).map(told).collect(),
    }))
}

pub async fn show(
    State(house): State<House>,
    Id(name): Id<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<BudgetShow>, Problem> {
    let query = Query::parse(raw.as_deref(), &["entity", "tenant"])?;
    let Some(text) = query.text("entity") else {
        return Err(Problem::bad_query("entity: say whose budget, by name or as ent_….".into()));
    };
    let budget = find(&house, &name)?;
    let entity = entity(&house, &budget, query.text("tenant"), text);
    Ok(Json(shown(account(&house, &budget, entity, house.clock.now()).await?)))
}

pub async fn grant(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<BudgetShow>, Problem> {
    let ask: BudgetGrant = read_body(body)?;
    if !(1..=UNITS_MAX).contains(&ask.units) {
        return Err(Problem::bad_body(format!("units: write a number from 1 to {UNITS_MAX}.")));
    }
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let budget = find(&house, &name)?;
    let entity = entity(&house, &budget, ask.tenant.as_deref(), &ask.entity);
    let (name, allowance, units) = (budget.name.clone(), budget.allowance, ask.units);
    let row = house.store.grant(GrantAsk { budget: name, entity, allowance, units, record }).await?;
    tracing::info!("{units} more retries for {entity} of `{}`", budget.name);
    Ok(Json(shown(row)))
}

/// The budget of a worker of the live workspace.
fn find(house: &House, name: &str) -> Result<Arc<RetryBudget>, Problem> {
    let workspace = house.versions.now();
    let worker = workspace.workers.iter().find(|worker| worker.name == name);
    let budget = worker.and_then(|worker| worker.retry.budget.clone());
    budget.ok_or_else(|| Problem::not_found(format!("There is no worker `{name}` with a retry budget.")))
}

/// By its name, or by what it is listed as.
fn entity(house: &House, budget: &RetryBudget, tenant: Option<&str>, text: &str) -> EntityKey {
    let (pepper, tenant) = (Pepper::new(house.store.pepper()), tenant.unwrap_or(TENANT_DEFAULT));
    text.parse().unwrap_or_else(|_| EntityKey::of(&pepper, tenant, &budget.name, text.trim()))
}

/// As it is now; who has used nothing has all of it.
async fn account(house: &House, budget: &RetryBudget, entity: EntityKey, now: Timestamp) -> Result<BudgetRow, Problem> {
    let name = Some(budget.name.to_string());
    let filter = BudgetFilter { budget: name, entity: Some(entity), is_exhausted: false, now, limit: 1 };
    let (budget, allowance) = (budget.name.clone(), budget.allowance);
    let unused = || BudgetRow { budget, entity, account: Account::new(now), allowance };
    Ok(house.store.budgets(filter).await?.pop().unwrap_or_else(unused))
}

fn shown(row: BudgetRow) -> BudgetShow {
    BudgetShow { schema: "clinch.budgets.show/v1".into(), budget: told(&row) }
}

fn told(row: &BudgetRow) -> Budget {
    let BudgetRow { account, allowance, .. } = row;
    let is_used = account.spent > 0 || account.extra > 0;
    Budget {
        budget: row.budget.to_string(),
        entity: row.entity.to_string(),
        left: account.left(*allowance),
        spent: account.spent,
        granted: account.extra,
        max: allowance.units.get(),
        window: human(allowance.window),
        since: is_used.then_some(Moment(account.since)),
        free_at: account.free_at(*allowance).map(Moment),
        over_at: is_used.then(|| Moment(account.over_at(*allowance))),
    }
}
