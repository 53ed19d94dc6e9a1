//! `Idempotency-Key` on our own commands: under one key a command is carried out once, and its answer is given again, so that
//! whoever lost an answer may ask again.

use super::Route;
use super::problem::Problem;
use crate::house::House;
use axum::Extension;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use clinch_core::audit::Who;
use clinch_core::call::{CallAnswer, CallKey, CallTurn, Caller};
use clinch_core::key::{self, Fingerprint, KeyPart, KeyRule, Pepper};
use clinch_core::source::Look;
use clinch_core::user::Permission;
use clinch_store::{CallAsk, CallEnd, Called};
use data_encoding::HEXLOWER;
use serde_json::Value;
use std::time::Duration;

const HEADER: &str = "idempotency-key";
const LOGIN_LINKS: &str = "/api/v1/login-links";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// So long a key belongs to its command.
const KEPT: Duration = Duration::from_secs(86_400);
/// By then a command has surely ended, if the server lives.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// A longer answer is not kept.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Carries a command out, unless that was done under its key.
pub async fn keep(
    State(route): State<Route>,
    Extension(house): Extension<House>,
    Extension(who): Extension<Who>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(key) = key_of(request.headers())? else { return Ok(next.run(request).await) };
    let (head, body) = request.into_parts();
    let body = to_bytes(body, route.body_bytes_max()).await.map_err(|_| Problem::too_large())?;
    let (pepper, now) = (Pepper::new(house.store.pepper()), house.clock.now());
    let turn = CallTurn::alone(u64::try_from(house.clock.random() >> 64).unwrap_or(0));
    let ask = CallAsk {
        // Nobody meets another's keys.
        key: CallKey::of(&pepper, &["api", &who.name], &key),
        caller: Caller { fingerprint: fingerprint(&pepper, &head, &body), turn, resends: false },
        at: now,
        until: now + COMMAND_MAX,
        expires: now + KEPT,
    };
    let key = ask.key;
    match house.store.begin_call(ask).await? {
        Called::Ours => {}
        Called::Before(kept) | Called::Own(kept) => {
            let kept = kept.ok().and_then(|kept| CallAnswer::decode(&kept));
            return kept.and_then(again).ok_or_else(|| Problem::key_in_use(TOLD_ONCE.into()));
        }
        Called::Other => return Err(Problem::key_reused(OTHER.into())),
        Called::Busy { .. } => return Err(Problem::key_in_use(BUSY.into())),
        Called::Unknown { since } => {
            let said = format!(
                "It is not known whether the command of {since} was carried out. Look, then ask under another key."
            );
            return Err(Problem::key_in_use(said));
        }
    }
    // Who leaves does not end it.
    let made = tokio::spawn(async move {
        let answer = next.run(Request::from_parts(head, Body::from(body))).await;
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let end = match head.status.is_success() {
            true => CallEnd::Done(answer_of(head.status, &head.headers, &body, &route).encode().into()),
            // Only successes are remembered.
            false => CallEnd::NotDone,
        };
        if let Err(error) = house.insist(|| house.store.end_call(key, turn, end.clone())).await {
            tracing::error!("how a command ended could not be written down: {error}");
        }
        Response::from_parts(head, Body::from(body))
    });
    made.await.map_err(|_| Problem::key_in_use("The command ended in an error of clinch; its log says more.".into()))
}

const OTHER: &str = "Under this Idempotency-Key another command was sent. Use a key for one command only.";
const BUSY: &str = "The command under this Idempotency-Key is being carried out. Ask again in a moment.";
const TOLD_ONCE: &str =
    "The command under this Idempotency-Key was carried out, and its answer was told once and is not kept.";

fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let given: Vec<(&str, &[u8])> = headers.get_all(HEADER).iter().map(|value| (HEADER, value.as_bytes())).collect();
    if given.is_empty() {
        return Ok(None);
    }
    let rule = KeyRule::One(KeyPart::Header(HEADER.into()));
    let found = key::find(&rule, &Look { headers: &given, value: &Value::Null });
    found.map(Some).map_err(|error| Problem::bad_query(format!("{error}.")))
}

/// Recognises the command, and tells nothing of it: there may be a password in it.
fn fingerprint(pepper: &Pepper, head: &Parts, body: &[u8]) -> Fingerprint {
    let plain = Fingerprint::of(&format!("{} {}", head.method, head.uri), body);
    let keyed = CallKey::of(pepper, &["api command"], &HEXLOWER.encode(plain.as_bytes()));
    Fingerprint::from_bytes(*keyed.as_bytes())
}

/// What is kept of an answer. What could be a secret is told once: it is not kept.
fn answer_of(status: StatusCode, headers: &HeaderMap, body: &Bytes, route: &Route) -> CallAnswer {
    let is_secret = matches!(route.permission, Permission::Users | Permission::Senders) || route.path == LOGIN_LINKS;
    let kind = headers.get(CONTENT_TYPE).map(|kind| (CONTENT_TYPE.to_string(), kind.as_bytes().to_vec()));
    let is_kept = !is_secret && body.len() <= ANSWER_BYTES_MAX;
    CallAnswer { status: status.as_u16(), headers: kind.into_iter().collect(), body: is_kept.then(|| body.clone()) }
}

fn again(kept: CallAnswer) -> Option<Response> {
    let mut response = Response::new(Body::from(kept.body?));
    *response.status_mut() = StatusCode::from_u16(kept.status).ok()?;
    for (_, value) in &kept.headers {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_bytes(value).ok()?);
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Some(response.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Method;

    fn headers(keys: &[&str]) -> HeaderMap {
        let all =
            keys.iter().map(|key| (HeaderName::from_static(HEADER), HeaderValue::from_str(key).expect("visible")));
        all.collect()
    }

    #[test]
    fn d2_a_key_is_read_as_at_the_intake() {
        assert_eq!(key_of(&headers(&[])).expect("none"), None);
        assert_eq!(key_of(&headers(&["k-1"])).expect("one").as_deref(), Some("k-1"));
        assert_eq!(key_of(&headers(&["\"k-1\""])).expect("one").as_deref(), Some("k-1"));
        for bad in [&["a", "b"][..], &[""], &["a,b"], &[&*"x".repeat(256)]] {
            assert!(key_of(&headers(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn p9_an_answer_with_a_secret_is_not_kept() {
        let body = Bytes::from_static(b"{}");
        let all = crate::api::all();
        let kept = |path: &str| {
            let route =
                all.iter().find(|route| route.path == path && route.method == Method::POST).expect("it is there");
            answer_of(StatusCode::OK, &HeaderMap::new(), &body, route).body
        };
        assert_eq!(kept("/api/v1/pauses"), Some(body.clone()));
        for path in ["/api/v1/users", "/api/v1/users/{name}/tokens", "/api/v1/tokens", LOGIN_LINKS] {
            assert_eq!(kept(path), None, "{path}");
        }
    }
}
