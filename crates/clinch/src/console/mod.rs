//! The console: HTML for people, rendered here, from what the public API answers. Reading and all that changes something in
//! bounds works without a script; the script adds keys and live numbers.

mod alerts;
mod approvals;
mod ask;
mod audit;
mod chart;
mod dead;
mod door;
mod effects;
mod events;
mod files;
mod flows;
mod frame;
pub mod held;
mod integrations;
mod jobs;
mod keys;
mod list;
mod live;
mod look;
mod oidc;
mod overview;
mod pauses;
mod replays;
mod runbooks;
mod safe_mode;
mod settings;
mod timeline;

pub use ask::Api;
pub use door::Hosts;

use crate::clock::Clock;
use crate::oidc::{CALLBACK, Oidc};
use crate::sessions::Sessions;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{get, post};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The largest form that is taken.
const FORM_BYTES_MAX: usize = 256 << 10;
/// Only what comes from here is shown or run; nobody frames it, and no text becomes a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types clinch";

/// What every page is made with.
#[derive(Clone)]
pub struct Desk {
    pub api: Api,
    pub sessions: Arc<Sessions>,
    pub oidc: Arc<Oidc>,
    pub clock: Arc<dyn Clock>,
    pub hosts: Hosts,
    pub stop: CancellationToken,
    pub held: held::Held,
}

pub fn router(desk: Desk) -> Router {
    Router::new()
        .route("/", get(overview::show))
        .route("/jobs", get(list::show))
        .route("/find", get(list::show))
        .route("/jobs/selected", get(list::selected))
        .route("/jobs/{id}", get(jobs::show))
        .route("/jobs/{id}/replay", post(jobs::replay))
        .route("/runbooks", get(runbooks::list))
        .route("/runbooks/{name}", get(runbooks::show))
        .route("/alerts", get(alerts::show))
        .route("/alerts/silence", post(alerts::silence))
        .route("/alerts/unsilence", post(alerts::unsilence))
        .route("/alerts/test", post(alerts::test))
        .route("/events", get(events::list))
        .route("/events/{id}", get(events::show))
        .route("/effects", get(effects::list))
        .route("/effects/{job}/{step}", get(effects::show))
        .route("/effects/{job}/{step}/verify", post(effects::verify))
        .route("/effects/{job}/{step}/resolve", post(effects::resolve))
        .route("/keys", get(keys::show))
        .route("/flows", get(flows::list))
        .route("/flows/{name}", get(flows::show))
        .route("/audit", get(audit::list))
        .route("/audit/export.jsonl", get(audit::export))
        .route("/settings", get(settings::show))
        .route("/integrations", get(integrations::list))
        .route("/integrations/{name}", get(integrations::show))
        .route("/integrations/{name}/pause", post(integrations::pause))
        .route("/integrations/{name}/resume", post(integrations::resume))
        .route("/safe-mode", get(safe_mode::show))
        .route("/safe-mode/on", post(safe_mode::on))
        .route("/safe-mode/off", post(safe_mode::off))
        .route("/dead", get(dead::list))
        .route("/dead/drops", get(dead::drops))
        .route("/dead/drop", post(dead::review))
        .route("/dead/drop/ask", post(dead::ask_drop))
        .route("/dead/drop/confirm", post(dead::confirm_drop))
        .route("/dead/undrop", post(dead::undrop))
        .route("/replays", get(replays::list).post(replays::plan))
        .route("/replays/new", get(replays::new))
        .route("/replays/{id}", get(replays::show))
        .route("/replays/{id}/start", post(replays::start))
        .route("/replays/{id}/turn", post(replays::turn))
        .route("/approvals", get(approvals::list))
        .route("/approvals/review", post(approvals::review))
        .route("/approvals/decide", post(approvals::decide))
        .route("/approvals/{job}/{step}", get(approvals::show))
        .route("/pauses", get(pauses::list).post(pauses::pause))
        .route("/pauses/resume", post(pauses::resume))
        .route("/held/{id}/undo", post(held::undo))
        .route("/live", get(live::stream))
        .route("/login", get(door::ask_in).post(door::log_in))
        .route("/login/oidc", get(oidc::begin))
        .route(CALLBACK, get(oidc::finish))
        .route("/logout", post(door::log_out))
        .route("/theme", post(door::theme))
        .route("/static/{file}", get(files::serve))
        .fallback(door::nothing_here)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn_with_state(desk.clone(), door::guard))
        .layer(map_response(harden))
        .with_state(desk)
}

async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    keep_private(headers);
    response
}

/// Pages are of one moment and for one person; files say themselves how long they are good.
fn keep_private(headers: &mut HeaderMap) {
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
