//! Events: what came in, and how often it came again.

use super::jobs::{ROWS_DEFAULT, narrow};
use super::problem::Problem;
use super::query::Query;
use super::shapes::{EventLine, EventList, Moment, Scope};
use crate::house::House;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::id::EventId;
use clinch_core::search;
use clinch_core::time::Timestamp;
use clinch_store::read::{Again, EventFilter, Within};

pub async fn list(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    RawQuery(raw): RawQuery,
) -> Result<Json<EventList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["source", "again", "since", "until", "before", "limit"])?;
    let now = house.clock.now();
    let moment = |name: &str| -> Result<Option<Timestamp>, Problem> {
        let read = |text| search::moment(text, now).map_err(|error| Problem::bad_query(format!("{name}: {error}.")));
        query.text(name).map(read).transpose()
    };
    let again = match query.text("again") {
        None => None,
        Some("duplicate") => Some(Again::Duplicate),
        Some("conflict") => Some(Again::Conflict),
        Some(_) => return Err(Problem::bad_query("again: write `duplicate` or `conflict`.".into())),
    };
    let mut source = query.text("source").map(String::from);
    narrow(&who, &mut source)?;
    let filter = EventFilter {
        source,
        again,
        accepted: Within { since: moment("since")?, until: moment("until")? },
        before: query.get::<EventId>("before")?,
        limit: query.limit(ROWS_DEFAULT)?,
    };
    let page = house.store.events(filter).await?;
    Ok(Json(EventList {
        schema: "clinch.events.list/v1".into(),
        events: page.rows.iter().map(EventLine::from).collect(),
        next_before: page.next.map(|next| next.to_string()),
        scope: Scope {
            looked_at: page.looked_at,
            back_to: page.next.map(|next| Moment(next.given_at())),
            ..Scope::default()
        },
    }))
}
