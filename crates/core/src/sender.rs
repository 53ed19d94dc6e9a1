//! A sender's token: says who sends, until when, and is signed, so that no list of tokens has to be looked up when a
//! request comes. Only the ids of revoked ones have to be known.

use crate::time::Timestamp;
use aws_lc_rs::hmac;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// What a token begins with, so that people and scanners of leaked secrets know it.
pub const PREFIX: &str = "cls_";
pub const NAME_BYTES_MAX: usize = 64;
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 1 + 8 + 8 + 8;
const MAC_BYTES: usize = 32;
const TEXT_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SenderName(String);

impl SenderName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a sender's name; use 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, `.`, `_` and `-`")]
pub struct BadSenderName(String);

impl FromStr for SenderName {
    type Err = BadSenderName;
    fn from_str(text: &str) -> Result<Self, BadSenderName> {
        let fine = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if (1..=NAME_BYTES_MAX).contains(&text.len()) && fine {
            Ok(SenderName(text.to_string()))
        } else {
            Err(BadSenderName(text.chars().take(80).collect()))
        }
    }
}

impl fmt::Display for SenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a token without being one; what a list of revoked tokens holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId([u8; 8]);

impl TokenId {
    /// From random bytes of whoever has dice.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        TokenId(bytes)
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tok_{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token's id; one looks like tok_0f1e2d3c4b5a6978")]
pub struct BadTokenId;

impl FromStr for TokenId {
    type Err = BadTokenId;
    fn from_str(text: &str) -> Result<Self, BadTokenId> {
        let bytes = text.strip_prefix("tok_").and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok());
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Ok(TokenId(bytes)),
            // What was pasted by mistake may be a whole token: it must not come back in a message.
            None => Err(BadTokenId),
        }
    }
}

/// The server's secret under which tokens are signed.
#[derive(Clone)]
pub struct SenderKey(hmac::Key);

impl SenderKey {
    pub fn new(secret: &[u8; 32]) -> Self {
        SenderKey(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The one that every node of a store has. Derived, so that what else is done with the store's secret says nothing
    /// about it.
    pub fn of_store(pepper: &[u8; 32]) -> Self {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, pepper), b"clinch sender key");
        SenderKey(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }
}

impl fmt::Debug for SenderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SenderKey(***)")
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    pub name: SenderName,
    pub token: TokenId,
    pub issued_at: Timestamp,
    /// `None`: until it is revoked.
    pub expires_at: Option<Timestamp>,
}

/// Why a token is not accepted. For operators: a caller is told nothing but 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASender {
    #[error("the request has no `Authorization: Bearer` header with a token, or several")]
    NoToken,
    #[error("it is not a sender's token; one begins with {PREFIX} and comes from `clinch token new --sender NAME`")]
    NotAToken,
    #[error("it is a token of version {0}, which this version of clinch does not know; use a newer clinch")]
    Version(u8),
    #[error("it was not signed by this server, or was changed; make one here with `clinch token new --sender NAME`")]
    Forged,
    #[error("{id} of sender {name} was revoked; make another with `clinch token new --sender {name}`")]
    Revoked { id: TokenId, name: SenderName },
    #[error("{id} of sender {name} expired at {at}; make another with `clinch token new --sender {name}`")]
    Expired { id: TokenId, name: SenderName, at: Timestamp },
}

impl NotASender {
    /// Every word that there is.
    pub const WORDS: [&'static str; 5] =
        ["token_missing", "token_malformed", "token_forged", "token_revoked", "token_expired"];

    /// A word with few values, for metrics and `error.type`.
    pub fn word(&self) -> &'static str {
        match self {
            NotASender::NoToken => "token_missing",
            NotASender::NotAToken | NotASender::Version(_) => "token_malformed",
            NotASender::Forged => "token_forged",
            NotASender::Revoked { .. } => "token_revoked",
            NotASender::Expired { .. } => "token_expired",
        }
    }
}

impl Sender {
    /// The text of the token: a secret, to be shown once.
    pub fn token(&self, key: &SenderKey) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.token.0);
        bytes.extend_from_slice(&self.issued_at.as_micros().to_be_bytes());
        bytes.extend_from_slice(&self.expires_at.map_or(NEVER, Timestamp::as_micros).to_be_bytes());
        bytes.extend_from_slice(self.name.0.as_bytes());
        let mac = hmac::sign(&key.0, &signed(&bytes));
        bytes.extend_from_slice(mac.as_ref());
        format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }

    /// Who sends, by what stands in the `Authorization` headers of a request: one, with one token.
    pub fn of_headers(
        headers: &[(&str, &[u8])],
        key: &SenderKey,
        now: Timestamp,
        revoked: &HashSet<TokenId>,
    ) -> Result<Sender, NotASender> {
        let mut sent = headers.iter().filter(|(name, _)| *name == "authorization").map(|(_, value)| *value);
        let (Some(one), None) = (sent.next(), sent.next()) else { return Err(NotASender::NoToken) };
        let text = std::str::from_utf8(one).map_err(|_| NotASender::NotAToken)?;
        let (scheme, token) = text.split_once(' ').ok_or(NotASender::NoToken)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(NotASender::NoToken);
        }
        Sender::verify(token.trim(), key, now, revoked)
    }

    /// Who sends. Says nothing about a token before its signature is known to be ours; compares in constant time.
    pub fn verify(
        text: &str,
        key: &SenderKey,
        now: Timestamp,
        revoked: &HashSet<TokenId>,
    ) -> Result<Sender, NotASender> {
        let coded = text.strip_prefix(PREFIX).filter(|_| text.len() <= TEXT_BYTES_MAX).ok_or(NotASender::NotAToken)?;
        let bytes = BASE64URL_NOPAD.decode(coded.as_bytes()).map_err(|_| NotASender::NotAToken)?;
        match bytes.first() {
            Some(&VERSION) => {}
            Some(other) => return Err(NotASender::Version(*other)),
            None => return Err(NotASender::NotAToken),
        }
        let (claims, mac) = bytes.split_last_chunk::<MAC_BYTES>().ok_or(NotASender::NotAToken)?;
        hmac::verify(&key.0, &signed(claims), mac).map_err(|_| NotASender::Forged)?;
        let sender = Sender::read(claims).ok_or(NotASender::NotAToken)?;
        if revoked.contains(&sender.token) {
            return Err(NotASender::Revoked { id: sender.token, name: sender.name });
        }
        match sender.expires_at {
            Some(at) if now >= at => Err(NotASender::Expired { id: sender.token, name: sender.name, at }),
            _ => Ok(sender),
        }
    }

    fn read(claims: &[u8]) -> Option<Sender> {
        let (fixed, name) = claims.split_first_chunk::<FIXED_BYTES>()?;
        let eight = |from: usize| -> Option<[u8; 8]> { fixed.get(from..from + 8)?.try_into().ok() };
        let expires = i64::from_be_bytes(eight(17)?);
        Some(Sender {
            name: std::str::from_utf8(name).ok()?.parse().ok()?,
            token: TokenId(eight(1)?),
            issued_at: Timestamp::from_micros(i64::from_be_bytes(eight(9)?)),
            expires_at: (expires != NEVER).then(|| Timestamp::from_micros(expires)),
        })
    }
}

const NEVER: i64 = i64::MAX;

/// The purpose comes first, so that no other signature under this key is ever a token.
fn signed(claims: &[u8]) -> Vec<u8> {
    [b"clinch sender token\0", claims].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000_000;
    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn key() -> SenderKey {
        SenderKey::new(&[7; 32])
    }

    fn shop(expires_at: Option<Timestamp>) -> Sender {
        Sender {
            name: "shop-1".parse().expect("a name"),
            token: TokenId::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
            issued_at: NOW,
            expires_at,
        }
    }

    fn check(text: &str, at: Timestamp, revoked: &[TokenId], expected: Result<Sender, NotASender>) {
        let revoked = revoked.iter().copied().collect();
        assert_eq!(Sender::verify(text, &key(), at, &revoked), expected, "{at}");
    }

    #[test]
    fn a4_a_token_says_who_sends_until_it_ends() {
        let forever = shop(None);
        let token = forever.token(&key());
        assert!(token.starts_with("cls_") && token.len() < 120, "{} bytes", token.len());
        check(&token, NOW + std::time::Duration::from_secs(1 << 40), &[], Ok(forever.clone()));
        let end = Timestamp::from_micros(NOW.as_micros() + HOUR);
        let brief = shop(Some(end));
        let token = brief.token(&key());
        check(&token, NOW, &[], Ok(brief.clone()));
        // A clock that runs behind the one that made it does no harm.
        check(&token, NOW - std::time::Duration::from_secs(60), &[], Ok(brief.clone()));
        check(&token, Timestamp::from_micros(end.as_micros() - 1), &[], Ok(brief.clone()));
        let (id, name) = (brief.token, brief.name);
        check(&token, end, &[], Err(NotASender::Expired { id, name, at: end }));
    }

    #[test]
    fn a4_a_revoked_token_is_refused_by_its_id_alone() {
        let sender = shop(None);
        let token = sender.token(&key());
        let id: TokenId = sender.token.to_string().parse().expect("an id");
        check(&token, NOW, &[id], Err(NotASender::Revoked { id, name: sender.name.clone() }));
        check(&token, NOW, &[TokenId::from_bytes([0; 8])], Ok(sender));
    }

    #[test]
    fn a4_a_token_of_another_server_or_a_changed_one_is_refused() {
        let token = shop(None).token(&key());
        let other = Sender::verify(&token, &SenderKey::new(&[8; 32]), NOW, &HashSet::new());
        assert_eq!(other, Err(NotASender::Forged));
        let bytes = BASE64URL_NOPAD.decode(&token.as_bytes()[PREFIX.len()..]).expect("base64");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let expected = if at == 0 { NotASender::Version(0) } else { NotASender::Forged };
            check(&format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&changed)), NOW, &[], Err(expected));
        }
        for bad in ["", "cls_", "cls_AQ", "clk_abc", "cls_!!", &token[..20], &format!("{token}A"), &"cls_A".repeat(100)]
        {
            assert!(Sender::verify(bad, &key(), NOW, &HashSet::new()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a4_a_request_has_one_token_in_one_header() {
        let token = shop(None).token(&key());
        let ask = |headers: &[(&str, &str)]| {
            let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            Sender::of_headers(&headers, &key(), NOW, &HashSet::new())
        };
        let bearer = format!("Bearer {token}");
        assert_eq!(ask(&[("authorization", &bearer)]), Ok(shop(None)));
        assert_eq!(ask(&[("authorization", &bearer.replace("Bearer", "bearer"))]), Ok(shop(None)));
        assert_eq!(ask(&[]), Err(NotASender::NoToken));
        assert_eq!(ask(&[("authorization", &bearer), ("authorization", &bearer)]), Err(NotASender::NoToken));
        assert_eq!(ask(&[("authorization", &token)]), Err(NotASender::NoToken));
        assert_eq!(ask(&[("authorization", &format!("Basic {token}"))]), Err(NotASender::NoToken));
        assert_eq!(ask(&[("authorization", "Bearer \u{e9}")]), Err(NotASender::NotAToken));
        let other = SenderKey::of_store(&[7; 32]);
        assert_eq!(Sender::verify(&token, &other, NOW, &HashSet::new()), Err(NotASender::Forged));
    }

    #[test]
    fn t_040_no_error_shows_a_token() {
        let token = shop(Some(NOW)).token(&key());
        let secret = &token[PREFIX.len() + 40..];
        for text in [token.as_str(), &format!("{token}A"), &format!("x{token}")] {
            let said = Sender::verify(text, &key(), NOW, &HashSet::new()).expect_err(text).to_string();
            assert!(!said.contains(secret), "{said}");
            let said = text.parse::<TokenId>().expect_err(text).to_string();
            assert!(!said.contains(secret), "{said}");
        }
        assert_eq!(format!("{:?}", key()), "SenderKey(***)");
    }

    #[test]
    fn a4_a_name_is_plain() {
        for bad in ["", "a b", "é", "a/b", &"x".repeat(65)] {
            assert!(bad.parse::<SenderName>().is_err(), "{bad}");
        }
        assert_eq!("Shop_1.eu".parse::<SenderName>().expect("a name").to_string(), "Shop_1.eu");
    }

    proptest! {
        #[test]
        fn a4_every_token_reads_back(name in "[A-Za-z0-9._-]{1,64}", id in any::<[u8; 8]>(), issued in any::<i64>(), expires in proptest::option::of(NOW.as_micros() + 1..i64::MAX)) {
            let sender = Sender {
                name: name.parse().expect("a name"),
                token: TokenId::from_bytes(id),
                issued_at: Timestamp::from_micros(issued),
                expires_at: expires.map(Timestamp::from_micros),
            };
            let token = sender.token(&key());
            prop_assert_eq!(Sender::verify(&token, &key(), NOW, &HashSet::new()), Ok(sender));
        }

        #[test]
        fn a4_no_text_makes_it_panic(text in "(cls_)?[A-Za-z0-9_-]{0,300}|\\PC{0,20}") {
            prop_assert!(Sender::verify(&text, &key(), NOW, &HashSet::new()).is_err());
        }
    }
}
