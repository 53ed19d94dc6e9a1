//! Questions that a provider asks before or between deliveries. The intake answers them itself; nothing is stored.

use super::secret::{Key, Secrets};
use super::{Request, Verified};
use crate::form;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

/// Nobody asks with more; what is longer is not echoed.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// What a provider asks, and when it may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// `GET ?hub.mode=subscribe&hub.verify_token=…&hub.challenge=…`, proven by the token instead of a signature.
    Meta,
    /// `{"type":"url_verification","challenge":…}`, signed.
    Slack,
    /// `{"event":"endpoint.url_validation","payload":{"plainToken":…}}`, signed.
    Zoom,
    /// `HEAD`, before the key exists.
    Mandrill,
    /// A form `webhook_id=<n>`, not signed.
    WooCommerce,
    /// `{"topic":"ping"}`, signed.
    Intercom,
}

/// What to send back; always with `X-Content-Type-Options: nosniff`, never HTML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: Option<&'static str>,
    pub body: String,
}

impl Answer {
    fn empty(status: u16) -> Answer {
        Answer { status, content_type: None, body: String::new() }
    }

    fn text(body: &str) -> Answer {
        Answer { status: 200, content_type: Some("text/plain; charset=utf-8"), body: body.into() }
    }
}

impl Handshake {
    /// Whether the question must carry a good signature: then only [`Handshake::answer_signed`] answers it.
    pub fn is_signed(self) -> bool {
        matches!(self, Handshake::Slack | Handshake::Zoom | Handshake::Intercom)
    }

    pub fn told(self) -> &'static str {
        match self {
            Handshake::Meta => "GET with hub.challenge, proven by the verify token",
            Handshake::Slack => "signed url_verification",
            Handshake::Zoom => "signed endpoint.url_validation",
            Handshake::Mandrill => "HEAD before the key exists",
            Handshake::WooCommerce => "unsigned ping",
            Handshake::Intercom => "signed ping",
        }
    }

    /// Answers a question that carries no signature, before one is asked for. `None`: this is a delivery.
    pub fn answer_unsigned(self, request: &Request<'_>, verify_token: Option<&str>) -> Option<Answer> {
        match self {
            Handshake::Meta if request.method == "GET" => Some(meta(request.url, verify_token)),
            Handshake::Mandrill if request.method == "HEAD" => Some(Answer::empty(200)),
            Handshake::WooCommerce if is_woocommerce_ping(request) => Some(Answer::empty(200)),
            _ => None,
        }
    }

    /// Answers a question whose signature was checked; that is what `Verified` is for. `None`: this is a delivery.
    pub fn answer_signed(self, request: &Request<'_>, proof: &Verified, secrets: &Secrets) -> Option<Answer> {
        let asked: Value = match self.is_signed() {
            true => serde_json::from_slice(request.body).ok()?,
            false => return None,
        };
        let text = |pointer: &str| asked.pointer(pointer).and_then(Value::as_str);
        match self {
            Handshake::Slack if text("/type") == Some("url_verification") => Some(echo(text("/challenge")?)),
            Handshake::Zoom if text("/event") == Some("endpoint.url_validation") => {
                zoom(text("/payload/plainToken")?, proof, secrets)
            }
            Handshake::Intercom if text("/topic") == Some("ping") => Some(Answer::empty(200)),
            _ => None,
        }
    }
}

fn echo(challenge: &str) -> Answer {
    match challenge.len() {
        1..=CHALLENGE_BYTES_MAX => Answer::text(challenge),
        _ => Answer::empty(400),
    }
}

fn meta(url: &str, verify_token: Option<&str>) -> Answer {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let Ok(fields) = form::fields(query.as_bytes()) else { return Answer::empty(400) };
    let mut found = ["hub.mode", "hub.verify_token", "hub.challenge"].map(|wanted| {
        let mut values = fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        values.next().filter(|_| values.next().is_none())
    });
    let [mode, token, challenge] = &mut found;
    let same = |given: &str, known: &str| {
        let hash = |text: &str| digest(&SHA256, text.as_bytes());
        verify_slices_are_equal(hash(given).as_ref(), hash(known).as_ref()).is_ok()
    };
    let known = verify_token.filter(|token| !token.is_empty());
    match (mode, token, known, challenge) {
        (Some("subscribe"), Some(given), Some(known), Some(challenge)) if same(given, known) => echo(challenge),
        _ => Answer::empty(403),
    }
}

/// Signs with the secret that the question was signed with: while secrets rotate, it is the one that Zoom knows.
fn zoom(plain: &str, proof: &Verified, secrets: &Secrets) -> Option<Answer> {
    if plain.is_empty() || plain.len() > CHALLENGE_BYTES_MAX {
        return Some(Answer::empty(400));
    }
    let matched = secrets.all().iter().find(|secret| secret.id == proof.secret_id)?;
    let Key::Shared(secret) = &matched.key else { return None };
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), plain.as_bytes());
    let body = json!({ "plainToken": plain, "encryptedToken": HEXLOWER.encode(tag.as_ref()) });
    Some(Answer { status: 200, content_type: Some("application/json"), body: body.to_string() })
}

fn is_woocommerce_ping(request: &Request<'_>) -> bool {
    let number = |digits: &[u8]| (1..=20).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    request.method == "POST"
        && !request.has("x-wc-webhook-signature")
        && request.body.strip_prefix(b"webhook_id=").is_some_and(number)
}

/// CloudEvents webhooks: `OPTIONS` asks whether an origin may deliver. `None` allows nothing.
pub fn cloudevents_origin<'a>(request: &Request<'a>, allowed: &[&str]) -> Option<&'a str> {
    let origin = request.header("webhook-request-origin").ok()?;
    (request.method == "OPTIONS" && allowed.iter().any(|one| one.eq_ignore_ascii_case(origin))).then_some(origin)
}

#[cfg(test)]
mod tests {
    use super::super::{Secret, SecretFormat};
    use super::*;

    fn request<'a>(method: &'a str, url: &'a str, body: &'a str) -> Request<'a> {
        Request { method, url, headers: &[], body: body.as_bytes() }
    }

    fn secrets(texts: &[&str]) -> Secrets {
        let read = |text: &&str| SecretFormat::Text { chars_min: 1 }.read(text).expect("a secret");
        Secrets::new(texts.iter().map(|text| Secret::new(*text, read(text))).collect()).expect("secrets")
    }

    fn signed(handshake: Handshake, body: &str) -> Option<Answer> {
        let proof = Verified { secret_id: "new".into(), signed_at: None };
        handshake.answer_signed(&request("POST", "", body), &proof, &secrets(&["old", "new", "next"]))
    }

    #[test]
    fn t041_meta_gets_its_challenge_for_the_right_token_only() {
        let check = |query: &str, token: Option<&str>, status: u16, body: &str| {
            let url = format!("https://a.example/in?{query}");
            let answer = Handshake::Meta.answer_unsigned(&request("GET", &url, ""), token).expect("an answer");
            assert_eq!((answer.status, answer.body.as_str()), (status, body), "{query}");
            assert!(status != 200 || answer.content_type == Some("text/plain; charset=utf-8"));
        };
        let good = "hub.mode=subscribe&hub.verify_token=T&hub.challenge=1158201444";
        check(good, Some("T"), 200, "1158201444");
        check(good, Some("U"), 403, "");
        check(good, Some(""), 403, "");
        check(good, None, 403, "");
        check("hub.mode=subscribe&hub.challenge=1", Some("T"), 403, "");
        check("hub.mode=subscribe&hub.verify_token=x&hub.verify_token=T&hub.challenge=1", Some("T"), 403, "");
        check("hub.mode=unsubscribe&hub.verify_token=T&hub.challenge=1", Some("T"), 403, "");
        let script = "hub.mode=subscribe&hub.verify_token=T&hub.challenge=%3Cscript%3E";
        check(script, Some("T"), 200, "<script>");
        let long = format!("hub.mode=subscribe&hub.verify_token=T&hub.challenge={}", "1".repeat(1025));
        check(&long, Some("T"), 400, "");
        assert_eq!(Handshake::Meta.answer_unsigned(&request("POST", "https://a.example/", "{}"), Some("T")), None);
    }

    #[test]
    fn t042_slack_gets_its_challenge_and_only_behind_a_signature() {
        let asked = r#"{"token":"x","challenge":"3eZbrw1aB10FEMAGAZd4FyFQ","type":"url_verification"}"#;
        assert_eq!(signed(Handshake::Slack, asked), Some(Answer::text("3eZbrw1aB10FEMAGAZd4FyFQ")));
        assert_eq!(Handshake::Slack.answer_unsigned(&request("POST", "", asked), None), None);
        assert_eq!(signed(Handshake::Slack, r#"{"type":"event_callback"}"#), None);
    }

    #[test]
    fn t043_zoom_gets_its_token_signed_with_the_secret_it_signed_with() {
        let answer =
            signed(Handshake::Zoom, r#"{"event":"endpoint.url_validation","payload":{"plainToken":"abc123"}}"#)
                .expect("an answer");
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(body["plainToken"], "abc123");
        // Computed with another implementation: HMAC-SHA256 of `abc123` under `new`.
        assert_eq!(body["encryptedToken"], "df19d1bb24e575b5859dcc152388bad0992d49ebfd612bd4a7d151c916888003");
        assert_eq!(signed(Handshake::Zoom, r#"{"event":"meeting.started"}"#), None);
    }

    #[test]
    fn t025_mandrill_may_look_before_it_has_a_key() {
        assert_eq!(Handshake::Mandrill.answer_unsigned(&request("HEAD", "", ""), None), Some(Answer::empty(200)));
        assert_eq!(Handshake::Mandrill.answer_unsigned(&request("POST", "", "mandrill_events=[]"), None), None);
    }

    #[test]
    fn t044_a_woocommerce_ping_is_answered_and_anything_else_is_a_delivery() {
        let check = |body: &str, answered: bool| {
            let answer = Handshake::WooCommerce.answer_unsigned(&request("POST", "", body), None);
            assert_eq!(answer, answered.then(|| Answer::empty(200)), "{body}");
        };
        check("webhook_id=5", true);
        for body in ["webhook_id=", "webhook_id=5&x=1", "webhook_id=x", r#"{"id":5}"#, ""] {
            check(body, false);
        }
    }

    #[test]
    fn an_intercom_ping_is_answered_behind_its_signature() {
        assert_eq!(
            signed(Handshake::Intercom, r#"{"type":"notification_event","topic":"ping"}"#),
            Some(Answer::empty(200))
        );
        assert_eq!(signed(Handshake::Intercom, r#"{"topic":"contact.created"}"#), None);
    }

    #[test]
    fn t045_only_an_allowed_origin_may_deliver_cloudevents() {
        let headers: &[(&str, &[u8])] = &[("webhook-request-origin", b"eventemitter.example.com")];
        let asked = Request { method: "OPTIONS", url: "", headers, body: b"" };
        assert_eq!(cloudevents_origin(&asked, &["eventemitter.example.com"]), Some("eventemitter.example.com"));
        assert_eq!(cloudevents_origin(&asked, &["other.example"]), None);
        assert_eq!(cloudevents_origin(&Request { method: "GET", ..asked }, &["eventemitter.example.com"]), None);
    }
}
