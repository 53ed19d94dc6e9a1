//! Coming in by a provider of identities: sent there with a cookie that only this browser has, and back with an answer to it.

use super::Desk;
use super::door::{self, Caller, own_path, see_other};
use super::frame;
use crate::oidc::NotIn;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use clinch_core::oidc::{BEGUN_LASTS, Begun, OidcRule};
use std::collections::BTreeMap;
use std::time::Duration;

/// `Lax`, unlike that of a session: the provider's page is another site, and sends people back from there.
const BEGUN: &str = "__Host-clinch-oidc";
const BEGUN_RULES: &str = "; Path=/; Secure; HttpOnly; SameSite=Lax";

#[derive(Template)]
#[template(path = "oidc_refused.html")]
struct RefusedPage<'a> {
    theme: &'a str,
    assets: &'static str,
    detail: &'a str,
    again: bool,
}

#[derive(Template)]
#[template(path = "oidc_entered.html")]
struct EnteredPage<'a> {
    theme: &'a str,
    assets: &'static str,
    back: &'a str,
}

/// The provider, as it is called on a button: its host.
pub fn called(rule: &OidcRule) -> String {
    let host = rule.issuer.split_once("://").map_or(rule.issuer.as_str(), |(_, rest)| rest);
    host.split('/').next().unwrap_or(host).to_string()
}

/// Sends the browser to the provider.
pub async fn begin(
    State(desk): State<Desk>,
    Caller { host, .. }: Caller,
    Query(asked): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let Some(rule) = desk.oidc.rule() else { return none(&headers) };
    let back = own_path(asked.get("back").map_or("/", String::as_str));
    match desk.oidc.begin(&rule, &host, back).await {
        Ok((url, begun)) => {
            let mut response = see_other(&url);
            let seconds = BEGUN_LASTS.as_secs();
            let cookie = format!("{BEGUN}={}{BEGUN_RULES}; Max-Age={seconds}", begun.encode());
            door::set_cookie(&mut response, &cookie);
            response
        }
        Err(why) => refused(&headers, &rule, &why),
    }
}

/// The browser is back. Whatever comes of it, what it took along is used up.
pub async fn finish(
    State(desk): State<Desk>,
    caller: Caller,
    Query(brought): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let mut response = match desk.oidc.rule() {
        None => none(&headers),
        Some(rule) => finished(&desk, &rule, &caller, &brought, &headers).await,
    };
    door::set_cookie(&mut response, &format!("{BEGUN}={BEGUN_RULES}; Max-Age=0"));
    response
}

async fn finished(
    desk: &Desk,
    rule: &OidcRule,
    caller: &Caller,
    brought: &BTreeMap<String, String>,
    headers: &HeaderMap,
) -> Response {
    let Some(begun) = door::cookie(headers, BEGUN).and_then(Begun::decode) else {
        return refused(headers, rule, &NotIn::Stray);
    };
    if let Err(wait) = desk.sessions.may_try(None, caller.from) {
        return too_often(headers, wait);
    }
    let guest = match desk.oidc.finish(rule, &caller.host, &begun, brought).await {
        Ok(guest) => guest,
        Err(why) => return refused(headers, rule, &why),
    };
    let secret = match desk.sessions.welcome(guest, caller.from).await {
        Ok(Ok(secret)) => secret,
        Ok(Err(why)) => {
            tracing::warn!("a log-in by {} from {} was refused: {why}", rule.issuer, caller.from);
            return page(headers, StatusCode::FORBIDDEN, &why.to_string(), false);
        }
        Err(error) => return door::away(error),
    };
    // A page, not a redirect: the browser would follow one as if it came from the provider's site, and leave the session's cookie behind.
    let back = own_path(&begun.back);
    let entered = EnteredPage { theme: door::theme_of(headers), assets: super::files::version(), back };
    door::let_in(desk, headers, &secret, frame::html(&entered)).await
}

fn refused(headers: &HeaderMap, rule: &OidcRule, why: &NotIn) -> Response {
    tracing::warn!("a log-in by {} was refused: {why}", rule.issuer);
    let (status, again) = match why {
        NotIn::Away(_) => (StatusCode::BAD_GATEWAY, true),
        NotIn::Busy => (StatusCode::SERVICE_UNAVAILABLE, true),
        NotIn::Stray => (StatusCode::BAD_REQUEST, true),
        NotIn::NotBelieved(_) => (StatusCode::UNAUTHORIZED, true),
        NotIn::Declined(_) | NotIn::NotLetIn(_) => (StatusCode::FORBIDDEN, false),
    };
    page(headers, status, &why.to_string(), again)
}

fn too_often(headers: &HeaderMap, wait: Duration) -> Response {
    let seconds = wait.as_secs().max(1);
    let said = format!("There were too many tries of late. Try again in {seconds} seconds.");
    let mut response = page(headers, StatusCode::TOO_MANY_REQUESTS, &said, true);
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
    response
}

fn none(headers: &HeaderMap) -> Response {
    let said = "No provider of identities is set up here (`oidc:` in clinch.yml).";
    page(headers, StatusCode::NOT_FOUND, said, false)
}

fn page(headers: &HeaderMap, status: StatusCode, detail: &str, again: bool) -> Response {
    let page = RefusedPage { theme: door::theme_of(headers), assets: super::files::version(), detail, again };
    (status, frame::html(&page)).into_response()
}
