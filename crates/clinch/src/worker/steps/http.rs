//! `http:` one request to a target, with our idempotency key.

use crate::effects::HttpCall;
use crate::worker::scope::Scope;
use bytes::Bytes;
use clinch_core::expr::BadExpr;
use clinch_core::key::IdempotencyKey;
use clinch_core::payload::Payload;
use clinch_core::worker::{HttpAction, HttpBody};
use clinch_store::Claim;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

/// The request that the step means for this event.
pub fn plan(
    action: &HttpAction,
    step: &str,
    claim: &Claim,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> Result<HttpCall, BadExpr> {
    let uri = absolute(&text(&action.url, scope)?)?;
    let method = Method::from_bytes(action.method.as_bytes()).map_err(|_| BadExpr("its method is not one".into()))?;
    let (body, content_type) = body(action, payload, scope)?;
    let mut headers = HeaderMap::new();
    if let Some(content_type) = content_type {
        let value = HeaderValue::from_str(content_type).map_err(|_| BadExpr("its content type is not one".into()))?;
        headers.insert(http::header::CONTENT_TYPE, value);
    }
    for (name, template) in &action.headers {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| BadExpr(format!("`{name}` is not a header name")))?;
        let value = HeaderValue::from_str(&text(template, scope)?)
            .map_err(|_| BadExpr(format!("the value of header `{name}` has characters that a header may not have")))?;
        headers.insert(name, value);
    }
    let key = IdempotencyKey::of(claim.lease.job, step);
    Ok(HttpCall { method, uri, headers, body, timeout: action.timeout, key })
}

/// As it is written, if it is plain; else with what a URL may not have in it encoded.
fn absolute(text: &str) -> Result<Uri, BadExpr> {
    if let Ok(uri) = text.parse() {
        return Ok(uri);
    }
    let url = url::Url::parse(text).map_err(|error| BadExpr(format!("its url is not one: {error}")))?;
    url.as_str().parse().map_err(|_| BadExpr("its url is not one".into()))
}

fn text(template: &clinch_core::expr::Template, scope: &mut Scope<'_>) -> Result<String, BadExpr> {
    match template {
        clinch_core::expr::Template::Plain(plain) => Ok(plain.clone()),
        mixed => mixed.text(scope.names()),
    }
}

fn body<'a>(
    action: &HttpAction,
    payload: &Payload,
    scope: &mut Scope<'a>,
) -> Result<(Bytes, Option<&'a str>), BadExpr> {
    const JSON: Option<&str> = Some("application/json");
    Ok(match &action.body {
        HttpBody::Empty => (Bytes::new(), None),
        HttpBody::Event => (payload.body.clone(), Some(scope.content_type())),
        HttpBody::From(expr) => (expr.value(scope.names())?.to_string().into(), JSON),
        HttpBody::Tree(tree) => (tree.value(scope.names())?.to_string().into(), JSON),
        HttpBody::Text(template) => (text(template, scope)?.into(), Some("text/plain; charset=utf-8")),
    })
}
