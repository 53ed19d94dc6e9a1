//! `http:` one request to a target, with our idempotency key.

use super::Outward;
use crate::effects::{Act, HttpCall, Question};
use crate::tracer::random_span;
use crate::worker::scope::Scope;
use bytes::Bytes;
use clinch_core::attempt::Failure;
use clinch_core::expr::{BadExpr, Template};
use clinch_core::integration::{Auth, Integration, Lookup, Promise};
use clinch_core::key::IdempotencyKey;
use clinch_core::payload::Payload;
use clinch_core::trace::{self, Context};
use clinch_core::worker::{HttpAction, HttpBody};
use clinch_store::Claim;
use data_encoding::BASE64;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use std::sync::Arc;
use std::time::Duration;

impl Outward for HttpAction {
    fn partner(&self) -> &Arc<Integration> {
        &self.partner
    }

    fn promise(&self) -> &Promise {
        &self.promise
    }

    fn plan(
        &self,
        step: &str,
        claim: &Claim,
        payload: &Payload,
        scope: &mut Scope<'_>,
    ) -> Result<Box<dyn Act>, Failure> {
        let (body, content_type) = body(self, payload, scope)?;
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            let value =
                HeaderValue::from_str(content_type).map_err(|_| BadExpr("its content type is not one".into()))?;
            headers.insert(http::header::CONTENT_TYPE, value);
        }
        let call = HttpCall {
            method: method(&self.method)?,
            uri: uri(&self.url, &self.partner, scope)?,
            headers,
            body,
            timeout: self.timeout,
            key: Some((header_name(&self.partner.key_header)?, IdempotencyKey::of(claim.lease.job, step))),
        };
        let mut call = with_headers(call, &self.partner, &self.headers, scope)?;
        if self.propagate_trace {
            let (story, no) = (scope.story(), claim.attempts.saturating_add(1));
            let context = scope.house().tracer.call(&story, claim.lease.job, no, step);
            tell_trace(&mut call.headers, context, story.state);
        }
        Ok(Box::new(call))
    }

    fn question(&self, scope: &mut Scope<'_>) -> Option<Result<Question, BadExpr>> {
        let lookup = self.promise.lookup.as_deref()?;
        Some(question(lookup, &self.partner, self.timeout, self.propagate_trace, scope))
    }
}

/// In which trace the target is called, and what the sender's systems say to each other about it.
fn tell_trace(headers: &mut HeaderMap, context: Context, state: &str) {
    let context = context.to_string();
    let pairs = [(trace::TRACEPARENT, &*context), (trace::TRACESTATE, state)];
    for (name, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
}

/// Asks the partner whether it was done, and perhaps tells it in which trace it is asked.
pub(super) fn question(
    lookup: &Lookup,
    partner: &Integration,
    timeout: Duration,
    tells_trace: bool,
    scope: &mut Scope<'_>,
) -> Result<Question, BadExpr> {
    let call = HttpCall {
        method: method(&lookup.method)?,
        uri: uri(&lookup.url, partner, scope)?,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout,
        key: None,
    };
    let mut call = with_headers(call, partner, &lookup.headers, scope)?;
    let house = scope.house();
    let span = random_span(&*house.clock);
    if tells_trace {
        let story = scope.story();
        tell_trace(&mut call.headers, house.tracer.question(&story, span), story.state);
    }
    Ok(Question { call, span })
}

fn method(written: &str) -> Result<Method, BadExpr> {
    Method::from_bytes(written.as_bytes()).map_err(|_| BadExpr("its method is not one".into()))
}

pub(super) fn header_name(name: &str) -> Result<HeaderName, BadExpr> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| BadExpr(format!("`{name}` is not a header name")))
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, BadExpr> {
    HeaderValue::from_str(value)
        .map_err(|_| BadExpr(format!("the value of header `{name}` has characters that a header may not have")))
}

/// A path is one of the partner's. Whatever an event says, its credentials go nowhere else.
pub(super) fn uri(url: &Template, partner: &Integration, scope: &mut Scope<'_>) -> Result<Uri, BadExpr> {
    let url = text(url, scope)?;
    let Some(base) = &partner.base_url else { return absolute(&url) };
    let base = text(base, scope)?;
    if url.starts_with('/') {
        return absolute(&format!("{}{url}", base.trim_end_matches('/')));
    }
    let (called, home) = (absolute(&url)?, absolute(&base)?);
    match (called.scheme(), called.authority()) == (home.scheme(), home.authority()) {
        true => Ok(called),
        false => Err(BadExpr(format!(
            "its url leads away from integration `{}`, whose credentials are for its `base_url` alone",
            partner.name
        ))),
    }
}

/// Those of the partner first; a step's own win.
pub(super) fn with_headers(
    mut call: HttpCall,
    partner: &Integration,
    own: &[(String, Template)],
    scope: &mut Scope<'_>,
) -> Result<HttpCall, BadExpr> {
    if let Some(auth) = &partner.auth {
        let value = match auth {
            Auth::Bearer(token) => format!("Bearer {}", text(token, scope)?),
            Auth::Basic { user, password } => {
                let pair = format!("{}:{}", text(user, scope)?, text(password, scope)?);
                format!("Basic {}", BASE64.encode(pair.as_bytes()))
            }
        };
        let mut value = header_value("authorization", &value)?;
        value.set_sensitive(true);
        call.headers.insert(http::header::AUTHORIZATION, value);
    }
    for (name, template) in partner.headers.iter().chain(own) {
        let value = header_value(name, &text(template, scope)?)?;
        call.headers.insert(header_name(name)?, value);
    }
    Ok(call)
}

/// As it is written, if it is plain; else with what a URL may not have in it encoded.
fn absolute(text: &str) -> Result<Uri, BadExpr> {
    if text.is_ascii()
        && let Ok(uri) = text.parse()
    {
        return Ok(uri);
    }
    // A reader of URLs would leave these out, and call another one than is written.
    if text.chars().any(char::is_control) {
        return Err(BadExpr("its url has characters that a url may not have".into()));
    }
    let url = url::Url::parse(text).map_err(|error| BadExpr(format!("its url is not one: {error}")))?;
    url.as_str().parse().map_err(|_| BadExpr("its url is not one".into()))
}

pub(super) fn text(template: &Template, scope: &mut Scope<'_>) -> Result<String, BadExpr> {
    match template {
        Template::Plain(plain) => Ok(plain.clone()),
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
