//! What a sender and we both know: read once, when the source is loaded, and never shown again.

use crate::time::Timestamp;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ED25519, ParsedPublicKey};
use data_encoding::BASE64;
use std::fmt;

/// More live secrets than this is a rotation that nobody finishes.
pub const SECRETS_MAX: usize = 5;

/// How a provider hands out its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretFormat {
    /// The text itself, whole, as UTF-8; also where it looks like base64, as Stripe's `whsec_…` does.
    Text { chars_min: usize },
    /// `whsec_` and base64 for a shared secret, `whpk_` and base64 for an Ed25519 public key.
    StandardWebhooks,
    /// The text as WordPress would sign with it: `&amp;` and its kin stand for the character.
    WordPress,
    /// A P-256 public key: SubjectPublicKeyInfo in base64.
    P256Public,
    /// `hmac-sha256:BASE64` or `ed25519:BASE64`.
    Labelled,
}

/// What a signature is checked with.
#[derive(Clone)]
pub enum Key {
    Shared(Vec<u8>),
    Ed25519(ParsedPublicKey),
    P256(ParsedPublicKey),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Key::Shared(_) => "Shared(***)",
            Key::Ed25519(_) => "Ed25519(***)",
            Key::P256(_) => "P256(***)",
        })
    }
}

/// Why a text cannot be a secret. Never shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    #[error("the secret is empty; copy it from the provider's settings")]
    Empty,
    #[error("the secret is shorter than the {0} characters this provider hands out; copy the whole of it")]
    Short(usize),
    #[error("the secret is not `{0}`; copy it from the provider's settings, with its prefix")]
    NotAs(&'static str),
    #[error("the secret holds {0} bytes; this provider hands out 24 to 64")]
    Length(usize),
    #[error("this is a private key; give the public one, which begins with `whpk_`")]
    Private,
    #[error("this is not a public key that a signature could be checked with")]
    NotAKey,
    #[error("a source has 1 to {SECRETS_MAX} secrets, and this one has {0}")]
    Count(usize),
}

impl SecretFormat {
    pub fn read(self, text: &str) -> Result<Key, BadSecret> {
        if text.trim().is_empty() {
            return Err(BadSecret::Empty);
        }
        match self {
            SecretFormat::Text { chars_min } if text.chars().count() < chars_min => Err(BadSecret::Short(chars_min)),
            SecretFormat::Text { .. } => Ok(Key::Shared(text.as_bytes().to_vec())),
            SecretFormat::WordPress => Ok(Key::Shared(without_entities(text).into_bytes())),
            SecretFormat::StandardWebhooks => standard(text),
            SecretFormat::P256Public => p256(text),
            SecretFormat::Labelled => labelled(text),
        }
    }

    /// How such a secret is told to a person.
    pub fn told(self) -> &'static str {
        match self {
            SecretFormat::Text { .. } => "text, used whole as it is",
            SecretFormat::WordPress => "text; HTML entities stand for their character",
            SecretFormat::StandardWebhooks => "`whsec_` and base64, or `whpk_` and base64 (Ed25519 public key)",
            SecretFormat::P256Public => "the public verification key in base64",
            SecretFormat::Labelled => "`hmac-sha256:BASE64` or `ed25519:BASE64`",
        }
    }
}

/// White space that most likely came with copying; it is used as it stands, so somebody should be told.
pub fn has_stray_space(text: &str) -> bool {
    text.trim() != text || text.contains(['\n', '\r', '\t'])
}

fn standard(text: &str) -> Result<Key, BadSecret> {
    const SHAPE: &str = "whsec_… or whpk_…";
    let decoded = |base64: &str| BASE64.decode(base64.as_bytes()).map_err(|_| BadSecret::NotAs(SHAPE));
    if let Some(shared) = text.strip_prefix("whsec_") {
        let key = decoded(shared)?;
        return match key.len() {
            0 => Err(BadSecret::Empty),
            24..=64 => Ok(Key::Shared(key)),
            bytes => Err(BadSecret::Length(bytes)),
        };
    }
    if text.starts_with("whsk_") {
        return Err(BadSecret::Private);
    }
    ed25519(&decoded(text.strip_prefix("whpk_").ok_or(BadSecret::NotAs(SHAPE))?)?)
}

fn labelled(text: &str) -> Result<Key, BadSecret> {
    const SHAPE: &str = "hmac-sha256:BASE64 or ed25519:BASE64";
    let (label, base64) = text.split_once(':').ok_or(BadSecret::NotAs(SHAPE))?;
    let key = BASE64.decode(base64.as_bytes()).map_err(|_| BadSecret::NotAs(SHAPE))?;
    match label {
        _ if key.is_empty() => Err(BadSecret::Empty),
        "hmac-sha256" => Ok(Key::Shared(key)),
        "ed25519" => ed25519(&key),
        _ => Err(BadSecret::NotAs(SHAPE)),
    }
}

fn ed25519(point: &[u8]) -> Result<Key, BadSecret> {
    // All zeros is a point of small order: there are signatures that fit it for any message.
    if point.len() != 32 || point.iter().all(|byte| *byte == 0) {
        return Err(BadSecret::NotAKey);
    }
    ParsedPublicKey::new(&ED25519, point).map(Key::Ed25519).map_err(|_| BadSecret::NotAKey)
}

fn p256(text: &str) -> Result<Key, BadSecret> {
    let lines = text.lines().filter(|line| !line.starts_with("-----"));
    let base64: String = lines.flat_map(str::chars).filter(|c| !c.is_ascii_whitespace()).collect();
    let der = BASE64.decode(base64.as_bytes()).map_err(|_| BadSecret::NotAs("a public key in base64"))?;
    ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, der).map(Key::P256).map_err(|_| BadSecret::NotAKey)
}

fn without_entities(text: &str) -> String {
    const ENTITIES: [(&str, char); 8] = [
        ("&amp;", '&'),
        ("&#038;", '&'),
        ("&lt;", '<'),
        ("&gt;", '>'),
        ("&quot;", '"'),
        ("&#034;", '"'),
        ("&#039;", '\''),
        ("&#x27;", '\''),
    ];
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let (stands_for, taken) = match ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity)) {
            Some((entity, character)) => (*character, entity.len()),
            None => (next, next.len_utf8()),
        };
        plain.push(stands_for);
        rest = &rest[taken..];
    }
    plain
}

/// A secret and when it counts.
#[derive(Clone, Debug)]
pub struct Secret {
    /// What operators see instead of the secret: which one still matches, which one is dead.
    pub id: String,
    pub not_before: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
    pub key: Key,
}

impl Secret {
    pub fn new(id: impl Into<String>, key: Key) -> Secret {
        Secret { id: id.into(), not_before: None, not_after: None, key }
    }

    fn is_live(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|from| from <= now) && self.not_after.is_none_or(|until| now <= until)
    }
}

/// The secrets of one source: several while one replaces another.
#[derive(Clone, Debug)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    pub fn new(secrets: Vec<Secret>) -> Result<Secrets, BadSecret> {
        match secrets.len() {
            1..=SECRETS_MAX => Ok(Secrets(secrets)),
            count => Err(BadSecret::Count(count)),
        }
    }

    pub fn live(&self, now: Timestamp) -> impl Iterator<Item = &Secret> {
        self.0.iter().filter(move |secret| secret.is_live(now))
    }

    pub fn all(&self) -> &[Secret] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t006_an_empty_or_broken_secret_is_no_secret() {
        let check = |format: SecretFormat, text: &str, error: BadSecret| match format.read(text) {
            Err(said) => assert_eq!(said, error, "{text:?}"),
            Ok(_) => panic!("{text:?} was taken as a secret"),
        };
        for format in [
            SecretFormat::Text { chars_min: 1 },
            SecretFormat::WordPress,
            SecretFormat::StandardWebhooks,
            SecretFormat::P256Public,
            SecretFormat::Labelled,
        ] {
            check(format, "", BadSecret::Empty);
            check(format, " \t\n", BadSecret::Empty);
        }
        let standard = SecretFormat::StandardWebhooks;
        check(standard, "whsec_", BadSecret::Empty);
        check(standard, "whsec_AAAA", BadSecret::Length(3));
        check(standard, "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", BadSecret::NotAs("whsec_… or whpk_…"));
        check(standard, "whsk_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", BadSecret::Private);
        check(SecretFormat::Text { chars_min: 16 }, "short", BadSecret::Short(16));
        check(SecretFormat::Labelled, "hmac-sha256:", BadSecret::Empty);
        check(SecretFormat::P256Public, "AAAA", BadSecret::NotAKey);
    }

    #[test]
    fn t036_a_key_of_zeros_is_refused_when_the_source_is_loaded() {
        let zeros = format!("whpk_{}", BASE64.encode(&[0; 32]));
        assert!(matches!(SecretFormat::StandardWebhooks.read(&zeros), Err(BadSecret::NotAKey)));
    }

    #[test]
    fn t024_wordpress_signs_with_what_an_entity_stands_for() {
        assert_eq!(without_entities("a&amp;b&lt;&#039;c&d"), "a&b<'c&d");
        assert_eq!(without_entities("&amp;amp;é"), "&amp;é");
    }

    #[test]
    fn t040_a_secret_is_never_shown() {
        let secret = Secret::new("old", SecretFormat::Text { chars_min: 1 }.read("hunter2").expect("a secret"));
        let shown = format!("{:?}", Secrets::new(vec![secret]).expect("one secret"));
        assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
    }

    #[test]
    fn a_source_has_a_few_secrets_and_at_least_one() {
        let one = Secret::new("a", Key::Shared(vec![1]));
        assert!(matches!(Secrets::new(vec![]), Err(BadSecret::Count(0))));
        assert!(matches!(Secrets::new(vec![one; 6]), Err(BadSecret::Count(6))));
    }

    #[test]
    fn white_space_around_a_secret_is_noticed() {
        assert!(has_stray_space("abc\n") && has_stray_space(" abc") && !has_stray_space("a b"));
    }
}
