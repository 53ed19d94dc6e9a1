//! A request to Slack, which answers 200 also to what it will not do.

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use super::http::HttpCall;
use clinch_core::death::Reason;
use clinch_core::effect::{Idempotency, Receipt};
use clinch_core::key::Fingerprint;
use http::{Method, Uri};
use serde::Deserialize;
use std::time::Duration;

pub struct SlackCall(pub HttpCall);

#[derive(Deserialize)]
struct Said {
    ok: bool,
    #[serde(default)]
    error: String,
}

impl Act for SlackCall {
    fn timeout(&self) -> Duration {
        self.0.timeout
    }

    fn fingerprint(&self) -> Option<(String, Fingerprint)> {
        self.0.fingerprint()
    }

    fn request(&self) -> Option<(Method, Uri)> {
        self.0.request()
    }

    fn told(&self) -> (String, Fingerprint) {
        self.0.told()
    }

    fn send<'a>(self: Box<Self>, tools: &'a Tools, class: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a> {
        Box::pin(async move { judged(tools.http.send(self.0, class, may_begin).await) })
    }
}

/// What is in the answer counts, where its status says that all is well.
fn judged(sent: Sent) -> Sent {
    let Sent::Answered { receipt: Receipt { status: 200..=299, body }, .. } = &sent else { return sent };
    let Ok(Said { ok: false, error }) = serde_json::from_slice(body) else { return sent };
    // Slack's words for errors are short and of these letters; anything else is not repeated.
    let is_word = error.len() <= 60 && error.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let word = if is_word { error } else { "an error".into() };
    match word.as_str() {
        "ratelimited" | "rate_limited" | "message_limit_exceeded" => {
            Sent::Failed { reason: Reason::RateLimited, why: format!("Slack said `{word}`") }
        }
        // Slack says of these that a part may have been done before.
        "internal_error" | "fatal_error" => {
            Sent::Broken { reason: Reason::TargetDown, why: format!("Slack said `{word}`") }
        }
        "service_unavailable" | "request_timeout" | "team_added_to_org" => {
            Sent::Failed { reason: Reason::TargetDown, why: format!("Slack said `{word}`") }
        }
        "invalid_auth" | "not_authed" | "account_inactive" | "token_revoked" | "token_expired" | "missing_scope" => {
            Sent::Failed { reason: Reason::AuthFailed, why: format!("Slack said `{word}`") }
        }
        _ => Sent::Refused(format!("Slack said `{word}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn c8_slacks_refusals_are_read_from_its_answer() {
        let check = |status: u16, body: &'static str, expected: &str| {
            let receipt = Receipt { status, body: Bytes::from_static(body.as_bytes()) };
            let told = format!("{:?}", judged(Sent::Answered { receipt, is_whole: true, retry_after: None }));
            assert!(told.starts_with(expected), "{body}: {told}");
        };
        check(200, r#"{"ok":true,"ts":"1.2"}"#, "Answered");
        check(200, "not JSON", "Answered");
        check(429, r#"{"ok":false,"error":"ratelimited"}"#, "Answered");
        check(200, r#"{"ok":false,"error":"ratelimited"}"#, "Failed { reason: RateLimited");
        check(200, r#"{"ok":false,"error":"service_unavailable"}"#, "Failed { reason: TargetDown");
        check(200, r#"{"ok":false,"error":"invalid_auth"}"#, "Failed { reason: AuthFailed");
        check(200, r#"{"ok":false,"error":"channel_not_found"}"#, "Refused(\"Slack said `channel_not_found`\")");
        check(200, r#"{"ok":false,"error":"Hello ada@example.com"}"#, "Refused(\"Slack said `an error`\")");
    }

    #[test]
    fn p3_what_slack_broke_off_may_have_been_done() {
        for word in ["fatal_error", "internal_error"] {
            let body = Bytes::from(format!(r#"{{"ok":false,"error":"{word}"}}"#));
            let answer = Sent::Answered { receipt: Receipt { status: 200, body }, is_whole: true, retry_after: None };
            let judged = judged(answer);
            assert!(matches!(judged, Sent::Broken { reason: Reason::TargetDown, .. }), "{judged:?}");
        }
    }
}
