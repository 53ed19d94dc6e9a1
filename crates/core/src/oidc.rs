//! Log-in by a provider of identities (OpenID Connect): what a browser takes along, what of the provider's answers is believed, and
//! who somebody is then. The clock, the dice and the network are others'.

use crate::time::Timestamp;
use crate::user::{NAME_BYTES_MAX, Role, UserName};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// Between being sent to the provider and coming back no more time may pass.
pub const BEGUN_LASTS: Duration = Duration::from_secs(600);
/// So far may the provider's clock be from ours.
pub const SKEW: Duration = Duration::from_secs(60);
/// No token and no document of a provider is longer.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
pub const DOCUMENT_BYTES_MAX: usize = 512 << 10;
const KEYS_MAX: usize = 100;
const BACK_BYTES_MAX: usize = 512;
/// The standard's own bound.
const SUBJECT_BYTES_MAX: usize = 255;

/// `oidc:` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcRule {
    /// As the provider writes it itself, to the letter.
    pub issuer: String,
    pub client_id: String,
    /// The name of the secret.
    pub client_secret: Option<String>,
    /// Where browsers find the console, if that is not what they call it by.
    pub url: Option<String>,
    /// What is asked for besides `openid`.
    pub scopes: Vec<String>,
    /// Only people with an address of these are let in.
    pub domains: Vec<String>,
    /// The claim that a new user is called by.
    pub name: String,
    pub roles: Option<RoleRule>,
    /// Users whom an admin has added, by the subject or the address of who may be one of them.
    pub users: Vec<(String, UserName)>,
}

/// Which claim gives which role. The first line that fits counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRule {
    pub claim: String,
    pub map: Vec<(String, Role)>,
}

/// The address of what answers a document, or why it is none.
pub fn discovery_url(issuer: &str) -> String {
    format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))
}

/// A log-in that was begun. All of it is in a cookie of the browser that began it; what leaves is derived from its secret, so that
/// who sees the one does not know the other, and every node knows what was asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct Begun {
    secret: [u8; 32],
    pub at: Timestamp,
    /// The page that was wanted.
    pub back: String,
}

impl Begun {
    pub fn new(secret: [u8; 32], at: Timestamp, back: &str) -> Begun {
        let back = if back.len() <= BACK_BYTES_MAX { back } else { "/" };
        Begun { secret, at, back: back.into() }
    }

    /// For the cookie.
    pub fn encode(&self) -> String {
        let of = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        format!("{}.{}.{}", of(&self.secret), self.at.as_micros(), of(self.back.as_bytes()))
    }

    pub fn decode(cookie: &str) -> Option<Begun> {
        let mut parts = cookie.splitn(3, '.');
        let bytes = |text: Option<&str>| BASE64URL_NOPAD.decode(text?.as_bytes()).ok();
        let secret = bytes(parts.next())?.try_into().ok()?;
        let at = Timestamp::from_micros(parts.next()?.parse().ok()?);
        let back = String::from_utf8(bytes(parts.next())?).ok()?;
        (back.len() <= BACK_BYTES_MAX).then_some(Begun { secret, at, back })
    }

    pub fn is_live(&self, now: Timestamp) -> bool {
        now.since(self.at) < BEGUN_LASTS && self.at.since(now) < SKEW
    }

    fn derived(&self, word: &str) -> String {
        let text = [word.as_bytes(), b" ", &self.secret].concat();
        BASE64URL_NOPAD.encode(digest(&SHA256, &text).as_ref())
    }

    pub fn state(&self) -> String {
        self.derived("state")
    }

    pub fn nonce(&self) -> String {
        self.derived("nonce")
    }

    /// Proves to the provider that who brings the code is who asked for it (PKCE, RFC 7636).
    pub fn verifier(&self) -> String {
        self.derived("verifier")
    }

    pub fn challenge(&self) -> String {
        BASE64URL_NOPAD.encode(digest(&SHA256, self.verifier().as_bytes()).as_ref())
    }

    /// Whether the provider's answer is to this.
    pub fn is_answered_by(&self, state: &str) -> bool {
        verify_slices_are_equal(state.as_bytes(), self.state().as_bytes()).is_ok()
    }
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Begun(***, {})", self.at)
    }
}

/// Where a provider takes what: its discovery document, as far as it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    pub jwks_uri: String,
    /// The secret of the client goes into the form, not into a header.
    pub secret_in_form: bool,
    /// It says in its answers who it is (RFC 9207).
    pub names_itself: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDocument {
    #[error("its discovery document cannot be read")]
    Unreadable,
    #[error("its discovery document is of another issuer, `{0}`; write `issuer:` exactly so if that is meant")]
    OtherIssuer(String),
    #[error("its discovery document has no usable `{0}`")]
    NoEndpoint(&'static str),
    #[error("its keys cannot be read")]
    Keys,
}

impl Provider {
    pub fn read(document: &[u8], issuer: &str) -> Result<Provider, BadDocument> {
        let document: Map<String, Value> = serde_json::from_slice(document).map_err(|_| BadDocument::Unreadable)?;
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let named = text("issuer").ok_or(BadDocument::Unreadable)?;
        if named != issuer {
            return Err(BadDocument::OtherIssuer(named.chars().filter(|c| !c.is_control()).take(200).collect()));
        }
        let endpoint = |name: &'static str| {
            let is_fine = |url: &&str| {
                let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
                host.is_some_and(|host| !host.is_empty()) && url.bytes().all(|b| (0x21..=0x7e).contains(&b))
            };
            text(name).filter(is_fine).map(str::to_string).ok_or(BadDocument::NoEndpoint(name))
        };
        let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
        let takes = |word: &str| methods.is_some_and(|methods| methods.iter().any(|method| method == word));
        Ok(Provider {
            authorization_endpoint: endpoint("authorization_endpoint")?,
            token_endpoint: endpoint("token_endpoint")?,
            jwks_uri: endpoint("jwks_uri")?,
            secret_in_form: takes("client_secret_post") && !takes("client_secret_basic"),
            names_itself: document.get("authorization_response_iss_parameter_supported") == Some(&Value::Bool(true)),
        })
    }
}

/// How tokens may be signed: with these and nothing else, whatever a token says. `none` and those that anybody who knows the public key
/// could make are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    fn of(word: &str) -> Option<Algorithm> {
        match word {
            "RS256" => Some(Algorithm::Rs256),
            "ES256" => Some(Algorithm::Es256),
            _ => None,
        }
    }
}

/// The keys that a provider signs with, as far as they can be used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256 { point: Vec<u8> },
}

impl Keys {
    /// Keys of kinds that are not used here are passed over: a provider may have them for others.
    pub fn read(document: &[u8]) -> Result<Keys, BadDocument> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Map<String, Value>>,
        }
        let set: Set = serde_json::from_slice(document).map_err(|_| BadDocument::Keys)?;
        Ok(Keys(set.keys.iter().take(KEYS_MAX).filter_map(Key::read).collect()))
    }

    /// Those that this token may be signed with.
    fn candidates(&self, algorithm: Algorithm, id: Option<&str>) -> impl Iterator<Item = &Public> {
        let fits = move |key: &&Key| {
            let kind = match key.public {
                Public::Rsa { .. } => Algorithm::Rs256,
                Public::P256 { .. } => Algorithm::Es256,
            };
            kind == algorithm && id.is_none_or(|id| key.id.as_deref() == Some(id))
        };
        self.0.iter().filter(fits).map(|key| &key.public)
    }
}

impl Key {
    fn read(jwk: &Map<String, Value>) -> Option<Key> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| BASE64URL_NOPAD.decode(text(name)?.as_bytes()).ok();
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let (public, algorithm) = match text("kty")? {
            "RSA" => {
                let whole = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect();
                (Public::Rsa { n: whole(bytes("n")?), e: whole(bytes("e")?) }, "RS256")
            }
            "EC" if text("crv") == Some("P-256") => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                if x.len() != 32 || y.len() != 32 {
                    return None;
                }
                (Public::P256 { point: [&[4][..], &x, &y].concat() }, "ES256")
            }
            _ => return None,
        };
        // A key that says what it is for is for nothing else.
        let is_ours = text("alg").is_none_or(|said| said == algorithm);
        is_ours.then(|| Key { id: text("kid").map(str::to_string), public })
    }
}

impl Public {
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Public::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Public::P256 { point } => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

/// Why a token is not believed. None of them shows the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("the id_token cannot be read")]
    Unreadable,
    #[error("the id_token is signed in a way that is not taken; set the provider to RS256 or ES256")]
    Algorithm,
    /// Perhaps it is a new one: the keys are asked for again, once.
    #[error("the id_token is signed with a key that the provider does not publish")]
    UnknownKey,
    #[error("the signature of the id_token is wrong")]
    Signature,
    #[error("the id_token is of another issuer")]
    Issuer,
    #[error("the id_token is for another client; compare `client_id:` with the provider's")]
    Audience,
    #[error("the id_token has expired; compare the clocks of the provider and of this machine")]
    Expired,
    #[error("the id_token is from the future, or too old; compare the clocks of the provider and of this machine")]
    Time,
    #[error("the id_token is for another log-in")]
    Nonce,
    #[error("the id_token does not say whom it is about")]
    Subject,
}

/// What a token must say.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub issuer: &'a str,
    pub client_id: &'a str,
    pub nonce: &'a str,
    pub now: Timestamp,
}

/// What a provider says of somebody, which was verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims(Map<String, Value>);

/// The claims of a token that the provider signed for this log-in. The signature comes first: nothing else of what is not signed is
/// looked at.
pub fn verify(token: &str, keys: &Keys, expected: Expected<'_>) -> Result<Claims, BadToken> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(BadToken::Unreadable);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Unreadable)?;
    let (head, claims) =
        signed.split_once('.').filter(|(_, claims)| !claims.contains('.')).ok_or(BadToken::Unreadable)?;
    let decoded = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| BadToken::Unreadable);
    let object = |text: &str| -> Result<Map<String, Value>, BadToken> {
        serde_json::from_slice(&decoded(text)?).map_err(|_| BadToken::Unreadable)
    };
    let head = object(head)?;
    let algorithm = head.get("alg").and_then(Value::as_str).and_then(Algorithm::of).ok_or(BadToken::Algorithm)?;
    if head.contains_key("crit") {
        return Err(BadToken::Unreadable);
    }
    let id = match head.get("kid") {
        None => None,
        Some(id) => Some(id.as_str().ok_or(BadToken::Unreadable)?),
    };
    let signature = decoded(signature)?;
    let mut candidates = keys.candidates(algorithm, id).peekable();
    candidates.peek().ok_or(BadToken::UnknownKey)?;
    if !candidates.any(|key| key.verifies(signed.as_bytes(), &signature)) {
        // Without a name for its key it may be a new one.
        return Err(if id.is_some() { BadToken::Signature } else { BadToken::UnknownKey });
    }
    let claims = Claims(object(claims)?);
    claims.check(expected)?;
    Ok(claims)
}

impl Claims {
    fn check(&self, expected: Expected<'_>) -> Result<(), BadToken> {
        if self.text("iss") != Some(expected.issuer) {
            return Err(BadToken::Issuer);
        }
        self.check_audience(expected.client_id)?;
        let now = expected.now;
        if self.moment("exp").ok_or(BadToken::Expired)? <= now - SKEW {
            return Err(BadToken::Expired);
        }
        let made = self.moment("iat").ok_or(BadToken::Time)?;
        let is_later = self.0.contains_key("nbf") && self.moment("nbf").is_none_or(|from| from > now + SKEW);
        if made > now + SKEW || made < now - BEGUN_LASTS - SKEW || is_later {
            return Err(BadToken::Time);
        }
        let nonce = self.text("nonce").unwrap_or_default();
        verify_slices_are_equal(nonce.as_bytes(), expected.nonce.as_bytes()).map_err(|_| BadToken::Nonce)?;
        let is_subject = |subject: &str| !subject.is_empty() && subject.len() <= SUBJECT_BYTES_MAX;
        if !self.text("sub").is_some_and(is_subject) {
            return Err(BadToken::Subject);
        }
        Ok(())
    }

    /// It is for us; and if it is for others too, we are who asked for it.
    fn check_audience(&self, client_id: &str) -> Result<(), BadToken> {
        let (is_ours, is_shared) = match self.0.get("aud") {
            Some(Value::String(one)) => (one == client_id, false),
            Some(Value::Array(all)) => (all.iter().any(|one| one == client_id), all.len() > 1),
            _ => (false, false),
        };
        let party = self.0.get("azp");
        let is_party = party.map_or(!is_shared, |party| party == client_id);
        if is_ours && is_party { Ok(()) } else { Err(BadToken::Audience) }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn moment(&self, name: &str) -> Option<Timestamp> {
        let value = self.0.get(name)?;
        let seconds = value.as_i64().or_else(|| value.as_f64().map(|seconds| seconds as i64))?;
        seconds.checked_mul(1_000_000).map(Timestamp::from_micros)
    }

    /// By its whole name, or by a path: `realm_access.roles`.
    fn find(&self, name: &str) -> Option<&Value> {
        self.0.get(name).or_else(|| {
            let (first, rest) = name.split_once('.')?;
            rest.split('.').try_fold(self.0.get(first)?, |value, part| value.get(part))
        })
    }

    fn values(&self, name: &str) -> Vec<&str> {
        match self.find(name) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// An address that the provider has verified, in small letters.
    fn address(&self) -> Option<String> {
        let is_verified = match self.0.get("email_verified") {
            Some(Value::Bool(said)) => *said,
            // As some write it.
            Some(Value::String(said)) => said == "true",
            _ => false,
        };
        self.text("email").filter(|email| is_verified && email.contains('@')).map(str::to_ascii_lowercase)
    }
}

/// Somebody at a provider, for good: of its name and his there, only this is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; 32]);

impl Identity {
    pub fn of(issuer: &str, subject: &str) -> Identity {
        // Length first, so that no two of them can pass for each other.
        let text = format!("{} {issuer} {subject}", issuer.len());
        Identity(digest(&SHA256, text.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Identity {
        Identity(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(***)")
    }
}

/// Somebody whom a provider vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    pub identity: Identity,
    /// Who he is here if he is not known yet.
    pub name: UserName,
    /// What his claims give him.
    pub role: Option<Role>,
    /// An admin has said that he is the user of that name.
    pub is_invited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGuest {
    #[error("only people of {} are let in, with an address that the provider has verified", .0.join(", "))]
    Domain(Vec<String>),
    #[error("the provider gives no name that can be a user's here: claim `{0}` has none")]
    Name(String),
}

impl Guest {
    pub fn of(claims: &Claims, rule: &OidcRule) -> Result<Guest, NoGuest> {
        let (address, subject) = (claims.address(), claims.text("sub").unwrap_or_default());
        let domain = address.as_deref().and_then(|address| address.rsplit_once('@')).map(|(_, domain)| domain);
        if !rule.domains.is_empty() && !domain.is_some_and(|domain| rule.domains.iter().any(|known| known == domain)) {
            return Err(NoGuest::Domain(rule.domains.clone()));
        }
        let is_he = |key: &str| key == subject || Some(key.to_ascii_lowercase()) == address;
        let invited = rule.users.iter().find(|(key, _)| is_he(key)).map(|(_, name)| name.clone());
        let is_invited = invited.is_some();
        let name = invited.or_else(|| claims.text(&rule.name).and_then(name_of));
        Ok(Guest {
            identity: Identity::of(&rule.issuer, subject),
            name: name.ok_or_else(|| NoGuest::Name(rule.name.clone()))?,
            role: rule.roles.as_ref().and_then(|roles| roles.of(claims)),
            is_invited,
        })
    }
}

impl RoleRule {
    fn of(&self, claims: &Claims) -> Option<Role> {
        let values = claims.values(&self.claim);
        self.map.iter().find(|(value, _)| values.contains(&value.as_str())).map(|(_, role)| *role)
    }
}

/// As names are here: `Maya.K@example.com` is `maya.k`.
fn name_of(text: &str) -> Option<UserName> {
    let local = text.split('@').next().unwrap_or_default().to_lowercase();
    let fine = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c) { c } else { '-' };
    let name: String = local.chars().map(fine).take(NAME_BYTES_MAX).collect();
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
    use serde_json::json;

    const ISSUER: &str = "https://id.example.com";

    fn now() -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000)
    }

    fn seconds(after: i64) -> i64 {
        1_790_000_000 + after
    }

    fn expected<'a>() -> Expected<'a> {
        Expected { issuer: ISSUER, client_id: "clinch", nonce: "n-1", now: now() }
    }

    fn good() -> Value {
        json!({"iss": ISSUER, "sub": "u-1", "aud": "clinch", "exp": seconds(300), "iat": seconds(0), "nonce": "n-1"})
    }

    fn part(value: &Value) -> String {
        BASE64URL_NOPAD.encode(value.to_string().as_bytes())
    }

    fn ec() -> EcdsaKeyPair {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key")
    }

    fn jwk_of(key: &EcdsaKeyPair, id: &str) -> Value {
        let point = key.public_key().as_ref();
        let of = |bytes| BASE64URL_NOPAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256", "x": of(&point[1..33]), "y": of(&point[33..65])})
    }

    fn keys(all: &[Value]) -> Keys {
        Keys::read(json!({ "keys": all }).to_string().as_bytes()).expect("keys")
    }

    fn signed_with(key: &EcdsaKeyPair, head: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(head), part(claims));
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }

    /// What comes of a token that is good but for what is changed in its claims.
    fn check(changes: Value, wanted: Result<(), BadToken>) {
        let key = ec();
        let mut claims = good();
        for (name, value) in changes.as_object().expect("changes") {
            match value {
                Value::Null => drop(claims.as_object_mut().expect("claims").remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        let token = signed_with(&key, &json!({"alg": "ES256", "kid": "k"}), &claims);
        let told = verify(&token, &keys(&[jwk_of(&key, "k")]), expected());
        assert_eq!(told.map(drop), wanted, "{changes}");
    }

    #[test]
    fn k1_a_token_is_believed_if_the_issuer_signed_it_for_this_client_and_log_in_and_its_time_is_now() {
        check(json!({}), Ok(()));
        check(json!({"iss": "https://evil.example"}), Err(BadToken::Issuer));
        check(json!({"iss": format!("{ISSUER}/")}), Err(BadToken::Issuer));
        check(json!({"aud": "other"}), Err(BadToken::Audience));
        check(json!({"aud": ["clinch"]}), Ok(()));
        check(json!({"aud": ["clinch", "other"]}), Err(BadToken::Audience));
        check(json!({"aud": ["clinch", "other"], "azp": "clinch"}), Ok(()));
        check(json!({"azp": "other"}), Err(BadToken::Audience));
        check(json!({"aud": null}), Err(BadToken::Audience));
        check(json!({"exp": seconds(-59)}), Ok(()));
        check(json!({"exp": seconds(-60)}), Err(BadToken::Expired));
        check(json!({"exp": null}), Err(BadToken::Expired));
        check(json!({"exp": "soon"}), Err(BadToken::Expired));
        check(json!({"exp": i64::MAX}), Err(BadToken::Expired));
        check(json!({"iat": seconds(60)}), Ok(()));
        check(json!({"iat": seconds(61)}), Err(BadToken::Time));
        check(json!({"iat": seconds(-661)}), Err(BadToken::Time));
        check(json!({"iat": null}), Err(BadToken::Time));
        check(json!({"nbf": seconds(61)}), Err(BadToken::Time));
        check(json!({"nonce": "n-2"}), Err(BadToken::Nonce));
        check(json!({"nonce": null}), Err(BadToken::Nonce));
        check(json!({"sub": ""}), Err(BadToken::Subject));
        check(json!({"sub": 7}), Err(BadToken::Subject));
        check(json!({"sub": "x".repeat(256)}), Err(BadToken::Subject));
    }

    #[test]
    fn k1_how_a_token_is_signed_is_decided_here_and_not_by_the_token() {
        let (key, other) = (ec(), ec());
        let known = keys(&[jwk_of(&key, "k")]);
        let told = |token: &str| verify(token, &known, expected()).map(drop);
        let with = |head: Value| signed_with(&key, &head, &good());
        assert_eq!(told(&with(json!({"alg": "ES256", "kid": "k"}))), Ok(()));
        assert_eq!(told(&with(json!({"alg": "ES256"}))), Ok(()), "there is only one");
        for alg in ["none", "None", "", "HS256", "RS512", "es256"] {
            assert_eq!(told(&with(json!({"alg": alg, "kid": "k"}))), Err(BadToken::Algorithm), "{alg}");
        }
        assert_eq!(told(&with(json!({"kid": "k"}))), Err(BadToken::Algorithm));
        assert_eq!(told(&with(json!({"alg": "RS256", "kid": "k"}))), Err(BadToken::UnknownKey), "of another kind");
        assert_eq!(told(&with(json!({"alg": "ES256", "kid": "new"}))), Err(BadToken::UnknownKey));
        assert_eq!(told(&with(json!({"alg": "ES256", "kid": 7}))), Err(BadToken::Unreadable));
        assert_eq!(told(&with(json!({"alg": "ES256", "kid": "k", "crit": ["b64"]}))), Err(BadToken::Unreadable));
        let forged = signed_with(&other, &json!({"alg": "ES256", "kid": "k"}), &good());
        assert_eq!(told(&forged), Err(BadToken::Signature));
        // What a token says of its key itself is not looked at.
        let own = signed_with(&other, &json!({"alg": "ES256", "kid": "k", "jwk": jwk_of(&other, "k")}), &good());
        assert_eq!(told(&own), Err(BadToken::Signature));

        let whole = with(json!({"alg": "ES256", "kid": "k"}));
        let (signed, _) = whole.rsplit_once('.').expect("a signature");
        assert_eq!(told(&format!("{signed}.")), Err(BadToken::Signature));
        for bad in ["", "a", "a.b", "a.b.c", &format!("{whole}."), &format!("{whole}="), &"x".repeat(70_000)] {
            assert_eq!(told(bad), Err(BadToken::Unreadable), "{}", bad.len());
        }
    }

    #[test]
    fn k1_a_token_signed_with_rsa_is_believed_and_one_that_is_keyed_with_the_public_key_is_not() {
        let key = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let of = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let (n, e) = (key.public_key().modulus(), key.public_key().exponent());
        let (n, e) = (n.big_endian_without_leading_zero(), e.big_endian_without_leading_zero());
        let jwk = json!({"kty": "RSA", "kid": "k", "n": of(&[&[0][..], n].concat()), "e": of(e)});
        let signed = format!("{}.{}", part(&json!({"alg": "RS256", "kid": "k"})), part(&good()));
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).expect("signed");
        let token = format!("{signed}.{}", of(&signature));
        let told = |token: &str, jwk: &Value| verify(token, &keys(std::slice::from_ref(jwk)), expected()).map(drop);
        assert_eq!(told(&token, &jwk), Ok(()));
        for (name, value) in [("use", "enc"), ("alg", "RS512"), ("kty", "oct"), ("kid", "other")] {
            let mut jwk = jwk.clone();
            jwk[name] = value.into();
            assert_eq!(told(&token, &jwk), Err(BadToken::UnknownKey), "{name}");
        }
        let keyed = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key.public_key().as_ref());
        let signed = format!("{}.{}", part(&json!({"alg": "HS256", "kid": "k"})), part(&good()));
        let token = format!("{signed}.{}", of(aws_lc_rs::hmac::sign(&keyed, signed.as_bytes()).as_ref()));
        assert_eq!(told(&token, &jwk), Err(BadToken::Algorithm));
    }

    #[test]
    fn k1_a_discovery_document_is_of_the_issuer_that_was_asked() {
        let document = |changes: Value| {
            let mut document = json!({"issuer": ISSUER, "authorization_endpoint": "https://id.example.com/a",
                                      "token_endpoint": "https://id.example.com/t", "jwks_uri": "https://id.example.com/k"});
            for (name, value) in changes.as_object().expect("changes") {
                document[name] = value.clone();
            }
            Provider::read(document.to_string().as_bytes(), ISSUER)
        };
        let provider = document(json!({})).expect("a provider");
        assert!(!provider.secret_in_form && !provider.names_itself);
        let post = json!({"token_endpoint_auth_methods_supported": ["client_secret_post"]});
        assert!(document(post).expect("a provider").secret_in_form);
        let other = document(json!({"issuer": "https://other.example"}));
        assert_eq!(other, Err(BadDocument::OtherIssuer("https://other.example".into())));
        for bad in [json!(7), json!("javascript:alert(1)"), json!("https://"), json!("https://a b"), json!("/t")] {
            let told = document(json!({ "token_endpoint": bad }));
            assert_eq!(told, Err(BadDocument::NoEndpoint("token_endpoint")));
        }
        assert_eq!(Provider::read(b"<html>", ISSUER), Err(BadDocument::Unreadable));
        assert_eq!(Keys::read(b"{}"), Err(BadDocument::Keys));
    }

    #[test]
    fn k1_what_a_browser_takes_along_says_nothing_of_what_is_sent_and_is_over_after_a_while() {
        let begun = Begun::new([7; 32], now(), "/jobs?state=dead");
        assert_eq!(Begun::decode(&begun.encode()), Some(begun.clone()));
        let sent = [begun.state(), begun.nonce(), begun.challenge()];
        for word in &sent {
            assert!(!begun.encode().contains(word.as_str()) && *word != begun.verifier());
        }
        assert_eq!(begun.challenge().len(), 43);
        assert!(begun.is_answered_by(&begun.state()));
        assert!(!begun.is_answered_by("") && !begun.is_answered_by(&Begun::new([8; 32], now(), "/").state()));
        assert!(begun.is_live(now() + BEGUN_LASTS - Duration::from_secs(1)) && !begun.is_live(now() + BEGUN_LASTS));
        assert!(!begun.is_live(now() - SKEW));
        for bad in ["", ".", "..", "a.b.c", &begun.encode()[1..]] {
            assert_eq!(Begun::decode(bad), None, "{bad}");
        }
        assert_eq!(Begun::new([7; 32], now(), &"/".repeat(600)).back, "/");
        assert!(!format!("{begun:?}").contains("7, 7"));
    }

    fn rule() -> OidcRule {
        let role = |(value, role): (&str, Role)| (value.to_string(), role);
        OidcRule {
            issuer: ISSUER.into(),
            client_id: "clinch".into(),
            client_secret: None,
            url: None,
            scopes: Vec::new(),
            domains: Vec::new(),
            name: "preferred_username".into(),
            roles: Some(RoleRule {
                claim: "groups".into(),
                map: [("ops", Role::Operator), ("all", Role::Viewer)].map(role).to_vec(),
            }),
            users: vec![
                ("boss@example.com".into(), "ada".parse().expect("a name")),
                ("u-9".into(), "ben".parse().expect("a name")),
            ],
        }
    }

    fn guest(rule: &OidcRule, claims: Value) -> Result<(String, Option<Role>, bool), NoGuest> {
        let Value::Object(claims) = claims else { panic!("claims") };
        Guest::of(&Claims(claims), rule).map(|guest| (guest.name.to_string(), guest.role, guest.is_invited))
    }

    #[test]
    fn k1_a_role_comes_from_the_first_line_that_a_claim_fits() {
        let maya = |groups: Value| {
            guest(&rule(), json!({"sub": "u-1", "preferred_username": "Maya.K@example.com", "groups": groups}))
        };
        let told = |role| Ok(("maya.k".to_string(), role, false));
        assert_eq!(maya(json!(["all", "ops"])), told(Some(Role::Operator)));
        assert_eq!(maya(json!("all")), told(Some(Role::Viewer)));
        assert_eq!(maya(json!(["Ops", 7, "ops "])), told(None));
        assert_eq!(maya(json!({"ops": true})), told(None));
        let nested = OidcRule {
            roles: Some(RoleRule { claim: "realm.roles".into(), map: vec![("x".into(), Role::Admin)] }),
            ..rule()
        };
        let claims = json!({"sub": "u-1", "preferred_username": "maya", "realm": {"roles": ["x"]}});
        assert_eq!(guest(&nested, claims), Ok(("maya".into(), Some(Role::Admin), false)));
    }

    #[test]
    fn k1_who_was_invited_is_known_by_his_subject_or_by_an_address_that_was_verified() {
        let told = |claims| guest(&rule(), claims);
        let mail = |verified: Value| {
            told(
                json!({"sub": "u-1", "preferred_username": "x", "email": "Boss@Example.com", "email_verified": verified}),
            )
        };
        assert_eq!(mail(json!(true)), Ok(("ada".into(), None, true)));
        assert_eq!(mail(json!(false)), Ok(("x".into(), None, false)));
        assert_eq!(mail(json!(null)), Ok(("x".into(), None, false)));
        assert_eq!(told(json!({"sub": "u-9"})), Ok(("ben".into(), None, true)));
        for nobody in [json!(null), json!(""), json!("admin"), json!("clinch"), json!("7up"), json!("@")] {
            let named = told(json!({"sub": "u-1", "preferred_username": nobody}));
            assert_eq!(named, Err(NoGuest::Name("preferred_username".into())), "{nobody}");
        }
    }

    #[test]
    fn k1_where_domains_are_named_an_address_that_was_verified_must_be_of_one() {
        let rule = OidcRule { domains: vec!["example.com".into()], ..rule() };
        let told = |email: &str, verified: bool| {
            let claims = json!({"sub": "u-1", "preferred_username": "x", "email": email, "email_verified": verified});
            guest(&rule, claims).is_ok()
        };
        assert!(told("x@example.com", true) && told("x@EXAMPLE.com", true));
        for (email, verified) in [
            ("x@example.com", false),
            ("x@evil-example.com", true),
            ("x@example.com.evil", true),
            ("x", true),
            ("x@example.com@evil", true),
        ] {
            assert!(!told(email, verified), "{email}");
        }
    }

    #[test]
    fn k1_two_people_are_never_one() {
        assert_eq!(Identity::of("https://a", "b"), Identity::of("https://a", "b"));
        assert_ne!(Identity::of("https://a", "b c"), Identity::of("https://a b", "c"));
    }
}
