//! Notices of alerts go out by the same door as everything else, past the queues and limits of jobs.

use super::steps::message;
use crate::carrier::{CARRY_MAX, NotCarried, Parcel};
use crate::effects::{Act, Gate, HttpCall, Sent, SlackCall};
use crate::house::House;
use clinch_core::config::address;
use clinch_core::expr::{BadExpr, Template};
use clinch_core::integration::{Auth, Integration};
use clinch_core::message::{Channel, Message};
use data_encoding::BASE64;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use std::sync::Arc;

pub async fn carry(house: &House, gate: &Gate, parcel: &Parcel) -> Result<(), NotCarried> {
    let act = act(house, parcel).map_err(NotCarried::Never)?;
    match gate.post(act).await {
        Sent::Answered { receipt, .. } if (200..300).contains(&receipt.status) => Ok(()),
        Sent::Answered { receipt, .. } => {
            let why = format!("it answered {}", receipt.status);
            let is_for_good = (400..500).contains(&receipt.status) && ![408, 425, 429].contains(&receipt.status);
            Err(if is_for_good { NotCarried::Never(why) } else { NotCarried::Later(why) })
        }
        Sent::Refused(why) | Sent::Blocked(why) | Sent::Invalid(why) => Err(NotCarried::Never(why)),
        Sent::NotSent(why) | Sent::Undone(why) | Sent::NoAnswer { why, .. } => Err(NotCarried::Later(why)),
        Sent::Failed { why, .. } | Sent::Broken { why, .. } => Err(NotCarried::Later(why)),
        Sent::TooLate => Err(NotCarried::Later("it was too late".into())),
    }
}

fn act(house: &House, parcel: &Parcel) -> Result<Box<dyn Act>, String> {
    match parcel {
        Parcel::Post { url, headers, body } => Ok(Box::new(post(url, json(headers)?, body.clone())?)),
        Parcel::Slack { integration, body } => {
            let partner = partner(house, integration)?;
            let unread = |_: BadExpr| format!("integration `{integration}` has a template that no alert can fill");
            let base = partner.base_url.as_ref().map(|base| filled(house, base)).transpose().map_err(unread)?;
            let url = message::slack_url(base.as_deref());
            let headers = credentials(house, &partner).map_err(unread)?;
            Ok(Box::new(SlackCall(post(&url, headers, body.to_string())?)))
        }
        Parcel::Mail { integration, to, subject, text, id } => {
            let partner = partner(house, integration)?;
            let Some(Channel::Mail(server)) = &partner.channel else {
                return Err(format!("integration `{integration}` sends no mails"));
            };
            let message = Message { subject: Some(subject.clone()), text: Some(text.clone()), ..Message::default() };
            let letter = message::letter(house, server, to, message, id, CARRY_MAX);
            Ok(Box::new(letter.map_err(|failure| failure.error)?))
        }
    }
}

fn partner(house: &House, name: &str) -> Result<Arc<Integration>, String> {
    let workspace = house.versions.now();
    workspace.integration(name).cloned().ok_or_else(|| format!("there is no integration `{name}`"))
}

fn filled(house: &House, template: &Template) -> Result<String, BadExpr> {
    address(template, |name| house.secrets.get(name))
}

/// What the integration is called with. An alert is about no event, so that only secrets can be in it.
fn credentials(house: &House, partner: &Integration) -> Result<HeaderMap, BadExpr> {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: String| {
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    };
    add(CONTENT_TYPE, "application/json; charset=utf-8".into());
    match &partner.auth {
        None => {}
        Some(Auth::Bearer(token)) => add(AUTHORIZATION, format!("Bearer {}", filled(house, token)?)),
        Some(Auth::Basic { user, password }) => {
            let pair = format!("{}:{}", filled(house, user)?, filled(house, password)?);
            add(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair.as_bytes())));
        }
    }
    for (name, value) in &partner.headers {
        if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
            add(name, filled(house, value)?);
        }
    }
    Ok(headers)
}

fn json(given: &[(&'static str, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in given {
        let value = HeaderValue::from_str(value).map_err(|_| format!("the header {name} cannot be sent"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

/// Does not repeat the address: it may be a secret.
fn post(url: &str, headers: HeaderMap, body: String) -> Result<HttpCall, String> {
    let uri: Uri = url.parse().map_err(|_| "its address is not a URL".to_string())?;
    if uri.authority().is_none() {
        return Err("its address is not a URL".into());
    }
    Ok(HttpCall { method: Method::POST, uri, headers, body: body.into(), timeout: CARRY_MAX, key: None })
}
