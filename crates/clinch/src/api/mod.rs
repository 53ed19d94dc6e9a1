//! The admin API: what console and command line ask. It listens on the private address; everything under `/api/v1`
//! needs a token: that of the admin, or of a user whose role allows it. Health and metrics are open, because their labels come from the
//! workspace and never from an event.

pub mod about;
pub mod alerts;
pub mod approvals;
mod audit;
pub mod auth;
mod budgets;
pub mod config;
pub mod controls;
pub mod dead;
pub mod drops;
pub mod dry_run;
mod effects;
mod encryption;
mod events;
pub mod flows;
mod health;
pub mod integrations;
mod jobs;
mod keys;
mod latency;
mod ledger;
pub mod me;
mod metrics;
pub mod needs;
pub mod objective;
mod once;
pub mod openapi;
pub mod overview;
mod problem;
mod query;
pub mod replays;
pub mod runbooks;
pub mod safe_mode;
mod schedules;
mod search;
pub mod settings;
pub mod shapes;
mod sources;
pub mod stream;
mod tokens;
pub mod users;

pub use auth::AdminToken;
pub use jobs::REASON_CHARS_MAX;

use crate::alarms::Alarms;
use crate::forecast::Forecast;
use crate::house::House;
use crate::inquiry::Inquiry;
use crate::partners::Outlook;
use crate::people::People;
use crate::sessions::Sessions;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post, put};
use axum::{Extension, Router};
use clinch_core::user::Permission;
use problem::Problem;
use std::sync::Arc;

/// The largest body that a command may have.
const BODY_BYTES_MAX: usize = 64 << 10;

/// The routes of the API, each with what it needs. A caller is taken from the request: who asks from inside the house says who
/// asks.
pub fn routes(house: House, sessions: Arc<Sessions>, outside: Outside) -> Router {
    finish(table().router, house, sessions, outside)
}

/// Who is asked what the store does not know.
#[derive(Clone)]
pub struct Outside {
    /// Whether an effect was done.
    pub partners: Arc<dyn Inquiry>,
    /// What is seen of the partners.
    pub outlook: Arc<dyn Outlook>,
    /// What those see who decide.
    pub people: Arc<dyn People>,
    /// Whether they would hear an alarm.
    pub alarms: Arc<dyn Alarms>,
    /// What would be done for an event.
    pub forecast: Arc<dyn Forecast>,
}

/// The same for those outside, who show a token; and what is open to all.
pub fn router(house: House, token: AdminToken, sessions: Arc<Sessions>, outside: Outside) -> Router {
    let router = table()
        .router
        .route_layer(from_fn_with_state((token, house.clone()), auth::require))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::show));
    finish(router, house, sessions, outside)
}

fn table() -> Routes {
    use Permission::*;
    Routes::default()
        .get("/api/v1/overview", Read, overview::show)
        .get("/api/v1/search", Read, search::show)
        .get_of_source("/api/v1/jobs", Read, jobs::list)
        .get_of_source("/api/v1/jobs/{id}", Read, jobs::show)
        .post("/api/v1/jobs/{id}/replay", Replay, jobs::replay)
        .get_of_source("/api/v1/events", Read, events::list)
        .get_of_source("/api/v1/events/{id}", Read, jobs::of_event)
        .get_of_source("/api/v1/dead", Read, dead::list)
        .get("/api/v1/dead/groups", Read, dead::groups)
        .get("/api/v1/dead/shapes", Read, dead::shapes)
        .get("/api/v1/dead/drops", Read, drops::list)
        .post("/api/v1/dead/drop", Drop, drops::ask)
        .post("/api/v1/dead/drop/confirm", Drop, drops::confirm)
        .post("/api/v1/dead/undrop", Drop, drops::take_back)
        .get("/api/v1/replays", Read, replays::list)
        .post("/api/v1/replays", Replay, replays::plan)
        .get("/api/v1/replays/{id}", Read, replays::show)
        .get("/api/v1/replays/{id}/jobs", Read, replays::jobs)
        .post("/api/v1/replays/{id}/start", Replay, replays::start)
        .post("/api/v1/replays/{id}/pause", Replay, replays::pause)
        .post("/api/v1/replays/{id}/resume", Replay, replays::resume)
        .post("/api/v1/replays/{id}/stop", Replay, replays::stop)
        .get("/api/v1/effects", Read, effects::list)
        .get("/api/v1/effects/{job}/{step}", Read, effects::show)
        .post("/api/v1/effects/{job}/{step}/verify", Resolve, effects::verify)
        .post("/api/v1/effects/{job}/{step}/resolve", Resolve, effects::resolve)
        .get("/api/v1/approvals", Read, approvals::list)
        .post("/api/v1/approvals/decide", Approve, approvals::decide_many)
        .get("/api/v1/approvals/{job}/{step}", Read, approvals::show)
        .post("/api/v1/approvals/{job}/{step}/decide", Approve, approvals::decide)
        .get("/api/v1/alerts", Read, alerts::list)
        .get("/api/v1/alerts/history", Read, alerts::history)
        .get("/api/v1/alerts/rules", Read, alerts::rules)
        .post("/api/v1/alerts/silences", Alerts, alerts::silence)
        .post("/api/v1/alerts/silences/{name}/end", Alerts, alerts::unsilence)
        .post("/api/v1/alerts/channels/{name}/test", Alerts, alerts::test)
        .get("/api/v1/runbooks", Read, runbooks::list)
        .get("/api/v1/runbooks/{name}", Read, runbooks::show)
        .get("/api/v1/about", Read, about::show)
        .get("/api/v1/flows", Read, flows::list)
        .get("/api/v1/flows/{name}", Read, flows::show)
        .get("/api/v1/flows/{name}/diff", Read, flows::compare)
        .get("/api/v1/config", Read, config::show)
        .post("/api/v1/config/diff", Read, config::diff)
        // Files of one's own read every secret and every event that they name: who tries them could as well make them live.
        .post("/api/v1/config/dry-run", Config, dry_run::run)
        .post("/api/v1/config/apply", Config, config::apply)
        .post("/api/v1/config/rollback", Config, config::roll_back)
        .get("/api/v1/integrations", Read, integrations::list)
        .get("/api/v1/integrations/{name}", Read, integrations::show)
        .get("/api/v1/stream", Read, stream::listen)
        .get("/api/v1/keys", Read, keys::show)
        .get("/api/v1/encryption", Read, encryption::keys)
        .post("/api/v1/encryption/rotate", Encryption, encryption::rotate)
        .post("/api/v1/forget", Erase, encryption::forget)
        .get("/api/v1/chore", Read, encryption::chore)
        .get("/api/v1/latency", Read, latency::show)
        .get("/api/v1/audit", Read, audit::list)
        .get("/api/v1/audit/verify", Read, audit::verify)
        .get("/api/v1/sources", Read, sources::list)
        .get("/api/v1/sources/{name}/rejections", Read, sources::rejections)
        .get("/api/v1/budgets", Read, budgets::list)
        .get("/api/v1/budgets/{name}", Read, budgets::show)
        .post("/api/v1/budgets/{name}/grant", Budget, budgets::grant)
        .get("/api/v1/schedules", Read, schedules::list)
        .post("/api/v1/schedules/{name}/run", Schedule, schedules::run)
        .get("/api/v1/pauses", Read, controls::pauses)
        .post("/api/v1/pauses", Pause, controls::pause)
        .post("/api/v1/pauses/{scope}/resume", Pause, controls::resume)
        .get("/api/v1/safe-mode", Read, safe_mode::show)
        .post("/api/v1/safe-mode", SafeMode, safe_mode::on)
        .post("/api/v1/safe-mode/off", SafeMode, safe_mode::off)
        .get("/api/v1/tokens", Read, tokens::list)
        .post("/api/v1/tokens", Senders, tokens::make)
        .post("/api/v1/tokens/{id}/revoke", Senders, tokens::revoke)
        .get("/api/v1/users", Read, users::list)
        .post("/api/v1/users", Users, users::add)
        .post("/api/v1/users/{name}/remove", Users, users::remove)
        .post("/api/v1/users/{name}/role", Users, users::set_role)
        .post("/api/v1/users/{name}/password", Users, users::set_password)
        .get("/api/v1/users/{name}/tokens", Users, users::tokens)
        .post("/api/v1/users/{name}/tokens", Users, users::make_token)
        .post("/api/v1/users/{name}/tokens/{id}/remove", Users, users::remove_token)
        .get_of_source("/api/v1/me", Read, me::show)
        .post("/api/v1/me/password", Read, me::password)
        .post("/api/v1/login-links", Read, me::link)
        .get("/api/v1/settings", Read, settings::list)
        .get("/api/v1/settings/{name}", Read, settings::show)
        .put("/api/v1/settings/{name}", Settings, settings::set)
        .delete("/api/v1/settings/{name}", Settings, settings::unset)
        .post("/api/v1/settings/{name}/rollback", Settings, settings::roll_back)
        .get("/api/v1/openapi.json", Read, openapi::show)
}

fn finish(router: Router<House>, house: House, sessions: Arc<Sessions>, outside: Outside) -> Router {
    router
        .route("/api/{*path}", any(unknown_path))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(harden))
        .layer(Extension(sessions))
        .layer(Extension(outside.partners))
        .layer(Extension(outside.outlook))
        .layer(Extension(outside.people))
        .layer(Extension(outside.alarms))
        .layer(Extension(outside.forecast))
        .layer(Extension(house.clone()))
        .with_state(house)
}

/// What can be asked, and what one needs to ask it.
#[derive(Clone, Debug)]
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub permission: Permission,
    /// Whether it is open to a token of one source.
    pub of_source: bool,
}

impl Route {
    /// The largest body that it takes: a workspace is larger than a command.
    fn body_bytes_max(&self) -> usize {
        if self.path.starts_with("/api/v1/config/") { config::FILES_BYTES_MAX } else { BODY_BYTES_MAX }
    }
}

/// Every route there is.
pub fn all() -> Vec<Route> {
    table().all
}

/// A route cannot be added here without what it needs: nothing is open because somebody forgot to close it.
#[derive(Default)]
struct Routes {
    router: Router<House>,
    all: Vec<Route>,
}

impl Routes {
    fn get<H: Handler<T, House>, T: 'static>(self, path: &'static str, permission: Permission, handler: H) -> Routes {
        self.at(Route { method: Method::GET, path, permission, of_source: false }, get(handler))
    }

    /// One that tells a token of one source what came from there, and nothing else. Only these are open to such a token.
    fn get_of_source<H: Handler<T, House>, T: 'static>(
        self,
        path: &'static str,
        permission: Permission,
        handler: H,
    ) -> Routes {
        self.at(Route { method: Method::GET, path, permission, of_source: true }, get(handler))
    }

    fn post<H: Handler<T, House>, T: 'static>(self, path: &'static str, permission: Permission, handler: H) -> Routes {
        self.at(Route { method: Method::POST, path, permission, of_source: false }, post(handler))
    }

    fn put<H: Handler<T, House>, T: 'static>(self, path: &'static str, permission: Permission, handler: H) -> Routes {
        self.at(Route { method: Method::PUT, path, permission, of_source: false }, put(handler))
    }

    fn delete<H: Handler<T, House>, T: 'static>(
        self,
        path: &'static str,
        permission: Permission,
        handler: H,
    ) -> Routes {
        self.at(Route { method: Method::DELETE, path, permission, of_source: false }, delete(handler))
    }

    fn at(mut self, route: Route, handler: MethodRouter<House>) -> Routes {
        let handler = handler.layer(DefaultBodyLimit::max(route.body_bytes_max()));
        // Who may not is told so before anything is looked up under his key.
        let handler = match route.method {
            Method::GET => handler,
            _ => handler.layer(from_fn_with_state(route.clone(), once::keep)),
        };
        let guarded = handler.route_layer(from_fn_with_state(route.clone(), auth::may));
        self.router = self.router.route(route.path, guarded);
        self.all.push(route);
        self
    }
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
