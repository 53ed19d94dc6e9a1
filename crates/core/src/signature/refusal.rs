//! Why a request was not accepted. For operators, logs and metrics; the sender is only ever told [`ANSWER`].

use crate::time::human;
use std::time::Duration;

/// The one text for every refusal: a sender that may not come in learns nothing from it.
pub const ANSWER: &str = "The signature was not accepted.";

/// Names the cause, never a signature, a secret or a piece of the body: a computed signature is good for whatever body
/// an attacker sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the request has no `{0}` header")]
    HeaderMissing(String),
    #[error("the body has no text at `{0}`, where this provider puts its secret")]
    TokenMissing(String),
    #[error("the header `{0}` was sent more than once")]
    HeaderTwice(String),
    #[error("the header `{0}` has bytes that are not visible ASCII")]
    HeaderUnreadable(String),
    #[error("the header `{0}` is too long to be a signature")]
    HeaderTooLong(String),
    #[error("the header `{header}` is not written as this provider writes it: {wanted}")]
    Malformed { header: String, wanted: String },
    #[error("the header `{header}` has no signature of a version that is accepted here: {wanted}")]
    Version { header: String, wanted: String },
    #[error("the signature in `{header}` is not {wanted}")]
    Encoding { header: String, wanted: &'static str },
    #[error("the header `{0}` has more signatures than are tried")]
    TooManySignatures(String),
    #[error("the timestamp in {place} is not {wanted}")]
    Timestamp { place: String, wanted: &'static str },
    #[error("the signature is right, but {} old; at most {} is accepted", human(*age), human(*tolerance))]
    Stale { age: Duration, tolerance: Duration },
    #[error("the signature is right, but dated {} in the future; at most {} is accepted", human(*ahead), human(*tolerance))]
    Future { ahead: Duration, tolerance: Duration },
    #[error("`{0}` has a dot or is empty: it could be read as part of the timestamp")]
    AmbiguousId(String),
    #[error("the body is not {0}, which this provider signs")]
    Body(&'static str),
    #[error("the body does not have the digest that the sender signed")]
    BodyDigest,
    #[error("the signature does not cover `{0}`")]
    NotCovered(String),
    #[error("no public address is configured, and this provider signs it")]
    NoUrl,
    #[error("no secret is live at this moment")]
    NoLiveSecret,
    #[error(
        "no live secret matches: it was signed with another secret, or something on the way changed what was signed"
    )]
    Mismatch,
}

impl Refusal {
    /// Every word that there is.
    pub const WORDS: [&'static str; 5] = [
        "signature_missing",
        "timestamp_out_of_tolerance",
        "signature_malformed",
        "signature_not_checkable",
        "signature_invalid",
    ];

    /// A word with few values, for metrics and `error.type`.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::HeaderMissing(_) | Refusal::TokenMissing(_) => "signature_missing",
            Refusal::Stale { .. } | Refusal::Future { .. } => "timestamp_out_of_tolerance",
            Refusal::HeaderTwice(_)
            | Refusal::HeaderUnreadable(_)
            | Refusal::HeaderTooLong(_)
            | Refusal::Malformed { .. }
            | Refusal::Version { .. }
            | Refusal::Encoding { .. }
            | Refusal::TooManySignatures(_)
            | Refusal::Timestamp { .. }
            | Refusal::AmbiguousId(_)
            | Refusal::Body(_) => "signature_malformed",
            Refusal::NoUrl | Refusal::NoLiveSecret => "signature_not_checkable",
            Refusal::BodyDigest | Refusal::NotCovered(_) | Refusal::Mismatch => "signature_invalid",
        }
    }

    /// What to look at first.
    pub fn advice(&self) -> &'static str {
        match self {
            Refusal::HeaderMissing(_) => {
                "see that nothing before clinch drops headers, and that the sender signs at all"
            }
            Refusal::TokenMissing(_) => "see that the key is set in the sender's settings",
            Refusal::HeaderTwice(_) => "see which hop adds the header a second time",
            Refusal::HeaderUnreadable(_) | Refusal::HeaderTooLong(_) | Refusal::TooManySignatures(_) => {
                "no provider sends this: see who does"
            }
            Refusal::Malformed { .. } | Refusal::Version { .. } | Refusal::Encoding { .. } => {
                "see that the preset is the sender's, in the version that it signs with"
            }
            Refusal::Timestamp { .. } | Refusal::AmbiguousId(_) => "see what the sender writes into its headers",
            Refusal::Stale { .. } => {
                "it is a replay, or a clock is off: compare this machine's clock, or ask the sender to deliver again"
            }
            Refusal::Future { .. } => "a clock is off: compare this machine's clock",
            Refusal::Body(_) | Refusal::BodyDigest => {
                "see whether something between the sender and clinch rewrites the body"
            }
            Refusal::NotCovered(_) => "have the sender sign that too; what is not signed can be changed by anybody",
            Refusal::NoUrl => "give the address that the sender calls, exactly as it is in the sender's settings",
            Refusal::NoLiveSecret => "see when the secrets begin and end to count",
            Refusal::Mismatch => {
                "compare the secret with the sender's settings (of this endpoint; live, not test), then see whether \
                 something on the way rewrites the body"
            }
        }
    }
}
