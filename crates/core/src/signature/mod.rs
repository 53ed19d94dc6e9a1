//! Who sent this: a request, the secrets of its source and the time go in; a proof or a refusal comes out.
//!
//! Reading order: `request`, `secret`, `refusal`, then `signed` (most providers, as data), `standard` and `message` (the
//! two schemes that need code), `presets` (one provider per file), `handshake`, `doctor`.

mod address;
pub mod digest;
pub mod doctor;
pub mod handshake;
pub mod message;
pub mod presets;
mod refusal;
mod request;
mod secret;
pub mod settings;
pub mod sign;
pub mod signed;
pub mod standard;
pub mod window;

pub use address::Spelling;
pub use refusal::{ANSWER, Refusal};
pub use request::Request;
pub use secret::{BadSecret, Key, SECRETS_MAX, Secret, SecretFormat, Secrets, has_stray_space};
pub use signed::Signed;

use crate::time::Timestamp;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value;
use std::time::Duration;

/// More signatures in one request than any rotation needs.
pub const SIGNATURES_MAX: usize = 10;

/// How a source's requests are proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    Signed(Box<Signed>),
    /// Standard Webhooks v1 and v1a.
    Standard,
    /// RFC 9421.
    Message,
    /// No signature: the secret itself, in the body at this pointer.
    Token(&'static str),
}

impl From<Signed> for Scheme {
    fn from(signed: Signed) -> Scheme {
        Scheme::Signed(Box::new(signed))
    }
}

/// A request that was proven. Only [`verify`] makes one, so who holds it need not ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Which secret matched: when the old one no longer does, it can go.
    pub secret_id: String,
    /// When it was signed, where the scheme says so.
    pub signed_at: Option<Timestamp>,
}

/// Which key matched, and when it was signed.
struct Proof {
    key: usize,
    at: Option<Timestamp>,
}

/// The clock, and how far from it a request may be dated.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub now: Timestamp,
    /// Instead of the scheme's own tolerance.
    pub tolerance: Option<Duration>,
}

impl Window {
    pub fn at(now: Timestamp) -> Window {
        Window { now, tolerance: None }
    }
}

/// Proves that a request comes from somebody who holds one of the live secrets, and that it is fresh.
pub fn verify(scheme: &Scheme, request: &Request<'_>, secrets: &Secrets, window: Window) -> Result<Verified, Refusal> {
    let live: Vec<&Secret> = secrets.live(window.now).collect();
    if live.is_empty() {
        return Err(Refusal::NoLiveSecret);
    }
    let keys: Vec<&Key> = live.iter().map(|secret| &secret.key).collect();
    let proof = match scheme {
        Scheme::Signed(signed) => signed.verify(request, &keys),
        Scheme::Standard => standard::verify(request, &keys),
        Scheme::Message => message::verify(request, &keys, window.now),
        Scheme::Token(pointer) => token(request, pointer, &keys),
    }?;
    if let (Some(at), Some(tolerance)) = (proof.at, window.tolerance.or(scheme.tolerance())) {
        window::check(at, window.now, tolerance)?;
    }
    Ok(Verified { secret_id: live[proof.key].id.clone(), signed_at: proof.at })
}

/// Compares digests, which have one length, so that not even the secret's length shows.
fn token(request: &Request<'_>, pointer: &str, keys: &[&Key]) -> Result<Proof, Refusal> {
    let body: Value = serde_json::from_slice(request.body).map_err(|_| Refusal::Body("JSON"))?;
    let missing = || Refusal::TokenMissing(pointer.into());
    let sent = body.pointer(pointer).and_then(Value::as_str).ok_or_else(missing)?;
    let sent = digest(&SHA256, sent.as_bytes());
    let mut matched = None;
    for (place, key) in keys.iter().enumerate() {
        if let Key::Shared(secret) = key
            && verify_slices_are_equal(digest(&SHA256, secret).as_ref(), sent.as_ref()).is_ok()
        {
            matched = Some(place);
        }
    }
    Ok(Proof { key: matched.ok_or(Refusal::Mismatch)?, at: None })
}

impl Scheme {
    pub fn tolerance(&self) -> Option<Duration> {
        match self {
            Scheme::Signed(signed) => signed.tolerance,
            Scheme::Standard | Scheme::Message => Some(window::TOLERANCE_USUAL),
            Scheme::Token(_) => None,
        }
    }

    pub fn secret_format(&self) -> SecretFormat {
        match self {
            Scheme::Signed(signed) => signed.secret,
            Scheme::Standard => SecretFormat::StandardWebhooks,
            Scheme::Message => SecretFormat::Labelled,
            Scheme::Token(_) => SecretFormat::Text { chars_min: 1 },
        }
    }

    /// Whether the public address must be configured.
    pub fn needs_url(&self) -> bool {
        match self {
            Scheme::Signed(signed) => signed.needs_url(),
            Scheme::Message => true,
            Scheme::Standard | Scheme::Token(_) => false,
        }
    }

    /// Every header that the scheme reads, the signature's first.
    pub fn headers(&self) -> Vec<String> {
        match self {
            Scheme::Signed(signed) => signed.headers_read(),
            Scheme::Standard => standard::HEADERS.map(String::from).to_vec(),
            Scheme::Message => message::HEADERS.map(String::from).to_vec(),
            Scheme::Token(_) => Vec::new(),
        }
    }

    /// The scheme in one line, for people.
    pub fn told(&self) -> String {
        match self {
            Scheme::Signed(signed) => signed.told(),
            Scheme::Standard => {
                "HMAC-SHA256 or Ed25519 of {id}.{timestamp}.{body}, written v1,<base64> or v1a,<base64>".into()
            }
            Scheme::Message => "HMAC-SHA256 or Ed25519 of the components, written sig=:<base64>:".into(),
            Scheme::Token(pointer) => format!("nothing is signed; the secret itself is at {pointer} in the body"),
        }
    }

    pub(crate) fn said_at(&self, request: &Request<'_>) -> Option<Timestamp> {
        match self {
            Scheme::Signed(signed) => signed.said_at(request),
            Scheme::Standard => standard::said_at(request),
            Scheme::Message | Scheme::Token(_) => None,
        }
    }
}
