//! The keys that the store is encrypted with, a change of them, and the erasure of somebody's data.

use super::jobs::reason;
use super::problem::Problem;
use super::query::Query;
use super::shapes::{ChoreShow, ForgetAsk, KeyRow, KeysList};
use crate::chores::{self, Erasure, Whose};
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::id::EventId;
use clinch_core::key::Pepper;
use clinch_core::minimise::HashKey;
use clinch_core::subject::Subject;
use clinch_store::read::KeyUse;

pub async fn keys(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<KeysList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let active = house.store.active_key();
    let mut uses = house.store.key_uses().await?;
    if active.is_some() && !uses.iter().any(|of| of.key == active) {
        uses.push(KeyUse { key: active, payloads: 0, results: 0, errors: 0 });
    }
    uses.sort_by_key(|of| (of.key != active, of.key));
    let row = |of: &KeyUse| KeyRow {
        id: of.key.map_or_else(|| "none".into(), |key| key.to_string()),
        state: match of.key {
            None => "not_encrypted".into(),
            key if key == active => "active".into(),
            Some(_) => "older".into(),
        },
        payloads: of.payloads,
        results: of.results,
        errors: of.errors,
    };
    Ok(Json(KeysList { schema: "clinch.keys.list/v1".into(), keys: uses.iter().map(row).collect() }))
}

pub async fn rotate(State(house): State<House>, Extension(who): Extension<Who>) -> Result<Json<ChoreShow>, Problem> {
    if house.store.active_key().is_none() {
        return Err(Problem::not_now("Encryption is off (`encryption: none` in clinch.yml): there is no key.".into()));
    }
    begun(&house, chores::rotate(&house, who))
}

pub async fn forget(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ChoreShow>, Problem> {
    let body = body.map_err(|_| Problem::too_large())?;
    // Not the parser's own words: they may repeat the value.
    let ask: ForgetAsk = serde_json::from_slice(&body).map_err(|_| Problem::bad_body(ASK.into()))?;
    let reason = reason(&ask.reason, 1)?;
    let whose = match (&ask.value, &ask.event) {
        (Some(value), None) => {
            let key = HashKey::of_store(&Pepper::new(house.store.pepper()));
            let subject = Subject::new(value, &key).map_err(|bad| Problem::bad_body(format!("value: {bad}.")))?;
            if subject.is_in(ask.reason.as_bytes()) {
                return Err(Problem::bad_body("reason: it is kept on record and must not name the value.".into()));
            }
            Whose::Subject(subject)
        }
        (None, Some(event)) => {
            let event: EventId = event.parse().map_err(|error| Problem::bad_body(format!("event: {error}.")))?;
            if house.store.jobs_of(event).await?.is_empty() {
                return Err(Problem::not_found(format!("There is no event {event}; its retention may have ended.")));
            }
            Whose::Event(event)
        }
        _ => return Err(Problem::bad_body(ASK.into())),
    };
    begun(&house, chores::forget(&house, Erasure { whose, reason, who, dry_run: ask.dry_run }))
}

const ASK: &str = "Write `value` or `event`, a `reason`, and `dry_run` to erase nothing.";

pub async fn chore(State(house): State<House>) -> Result<Json<ChoreShow>, Problem> {
    match house.chores.last() {
        Some(chore) => Ok(Json(ChoreShow::from(&chore))),
        None => Err(Problem::not_found("Nothing of the kind was asked for since this server started.".into())),
    }
}

fn begun(house: &House, began: bool) -> Result<Json<ChoreShow>, Problem> {
    match (began, house.chores.last()) {
        (true, Some(chore)) => Ok(Json(ChoreShow::from(&chore))),
        (_, chore) => {
            let kind = chore.map_or("another", |chore| chore.kind);
            Err(Problem::not_now(format!("`{kind}` is under way; wait until it has ended.")))
        }
    }
}
