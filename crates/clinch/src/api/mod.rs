//! The admin API: what console and command line ask. It listens on the private address; everything under `/api/v1`
//! needs a token: that of the admin, or of a user. Health and metrics are open, because their labels come from the workspace and never from an
//! event.

pub mod approvals;
mod audit;
pub mod auth;
mod budgets;
pub mod controls;
mod dead;
pub mod drops;
mod effects;
mod encryption;
mod health;
mod jobs;
mod keys;
mod latency;
mod problem;
mod query;
pub mod replays;
pub mod safe_mode;
mod schedules;
pub mod shapes;
mod sources;
mod tokens;
mod users;

pub use auth::AdminToken;

use crate::house::House;
use crate::inquiry::Inquiry;
use crate::people::People;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use problem::Problem;
use std::sync::Arc;

/// The largest body that a command may have.
const BODY_BYTES_MAX: usize = 64 << 10;

/// `partners` is who can be asked whether an effect was done; `people`, what those see who decide.
pub fn router(house: House, token: AdminToken, partners: Arc<dyn Inquiry>, people: Arc<dyn People>) -> Router {
    Router::new()
        .route("/api/v1/overview", get(health::overview))
        .route("/api/v1/jobs", get(jobs::list))
        .route("/api/v1/jobs/{id}", get(jobs::show))
        .route("/api/v1/jobs/{id}/replay", post(jobs::replay))
        .route("/api/v1/events/{id}", get(jobs::of_event))
        .route("/api/v1/dead", get(dead::list))
        .route("/api/v1/dead/groups", get(dead::groups))
        .route("/api/v1/dead/drops", get(drops::list))
        .route("/api/v1/dead/drop", post(drops::ask))
        .route("/api/v1/dead/drop/confirm", post(drops::confirm))
        .route("/api/v1/dead/undrop", post(drops::take_back))
        .route("/api/v1/replays", get(replays::list).post(replays::plan))
        .route("/api/v1/replays/{id}", get(replays::show))
        .route("/api/v1/replays/{id}/jobs", get(replays::jobs))
        .route("/api/v1/replays/{id}/start", post(replays::start))
        .route("/api/v1/replays/{id}/pause", post(replays::pause))
        .route("/api/v1/replays/{id}/resume", post(replays::resume))
        .route("/api/v1/replays/{id}/stop", post(replays::stop))
        .route("/api/v1/effects", get(effects::list))
        .route("/api/v1/effects/{job}/{step}", get(effects::show))
        .route("/api/v1/effects/{job}/{step}/verify", post(effects::verify))
        .route("/api/v1/effects/{job}/{step}/resolve", post(effects::resolve))
        .route("/api/v1/approvals", get(approvals::list))
        .route("/api/v1/approvals/decide", post(approvals::decide_many))
        .route("/api/v1/approvals/{job}/{step}", get(approvals::show))
        .route("/api/v1/approvals/{job}/{step}/decide", post(approvals::decide))
        .route("/api/v1/keys", get(keys::show))
        .route("/api/v1/encryption", get(encryption::keys))
        .route("/api/v1/encryption/rotate", post(encryption::rotate))
        .route("/api/v1/forget", post(encryption::forget))
        .route("/api/v1/chore", get(encryption::chore))
        .route("/api/v1/latency", get(latency::show))
        .route("/api/v1/audit", get(audit::list))
        .route("/api/v1/audit/verify", get(audit::verify))
        .route("/api/v1/sources", get(sources::list))
        .route("/api/v1/sources/{name}/rejections", get(sources::rejections))
        .route("/api/v1/budgets", get(budgets::list))
        .route("/api/v1/budgets/{name}", get(budgets::show))
        .route("/api/v1/budgets/{name}/grant", post(budgets::grant))
        .route("/api/v1/schedules", get(schedules::list))
        .route("/api/v1/schedules/{name}/run", post(schedules::run))
        .route("/api/v1/pauses", get(controls::pauses).post(controls::pause))
        .route("/api/v1/pauses/{scope}/resume", post(controls::resume))
        .route("/api/v1/safe-mode", get(safe_mode::show).post(safe_mode::on))
        .route("/api/v1/safe-mode/off", post(safe_mode::off))
        .route("/api/v1/tokens", get(tokens::list).post(tokens::make))
        .route("/api/v1/tokens/{id}/revoke", post(tokens::revoke))
        .route("/api/v1/users", get(users::list).post(users::add))
        .route("/api/v1/users/{name}/remove", post(users::remove))
        // Only the routes above this line need a token.
        .route_layer(from_fn_with_state((token, house.clone()), auth::require))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/api/{*path}", any(unknown_path))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(harden))
        .layer(Extension(partners))
        .layer(Extension(people))
        .with_state(house)
}

async fn unknown_path(uri: Uri) -> Problem {
    Problem::not_found(format!("Nothing is at {}. The API is under /api/v1.", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::wrong_method(format!("{} does not take {method}; the Allow header says what it takes.", uri.path()))
}

/// Answers are of one moment and for one person.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
