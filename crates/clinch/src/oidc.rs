//! Log-in by a provider of identities: asks it through whoever may call out, remembers where it takes what and what it signs with, and
//! says for whom it vouches. What of that is believed is decided in core; a provider that is away is nobody's business but theirs who
//! come by it.

use crate::clock::secret_bytes;
use crate::house::House;
use crate::people::Soon;
use bytes::Bytes;
use clinch_core::oidc::{self, BEGUN_LASTS, BadToken, Begun, Claims, Expected, Guest, Keys, OidcRule, Provider};
use clinch_core::time::Timestamp;
use data_encoding::BASE64;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;
use url::form_urlencoded::{self, byte_serialize};

/// Where the provider sends people back to.
pub const CALLBACK: &str = "/login/oidc/callback";
/// One question to the provider takes no longer.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// What it said of itself and its keys is asked for again after so long, or when a key is not known.
const KNOWN_LASTS: Duration = Duration::from_secs(3_600);
/// So many are on their way at once.
const PLACES: usize = 32;
/// So many answers are remembered as used.
const SPENT_MAX: usize = 10_000;

/// Asks somebody outside who is no partner of a step.
pub trait Wire: Send + Sync {
    /// The status and all of the answer, or why there is none. It takes no longer than `TIMEOUT`.
    fn ask<'a>(&'a self, question: Request<Bytes>) -> Soon<'a, Result<(StatusCode, Bytes), String>>;
}

/// Why somebody does not come in. He is told, so it holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotIn {
    #[error(
        "The provider cannot be asked at the moment: {0}. A name and a password, or `clinch open`, still let you in."
    )]
    Away(String),
    #[error("Too many log-ins are on their way. Try again in a moment.")]
    Busy,
    #[error(
        "This is not the answer to a log-in that this browser began, or it took too long, or it was used before. Begin again."
    )]
    Stray,
    #[error("The provider did not let you in: {0}.")]
    Declined(String),
    #[error("What the provider said is not believed: {0}.")]
    NotBelieved(String),
    #[error("You are not let in: {0}.")]
    NotLetIn(String),
}

/// What is known of a provider.
struct Known {
    issuer: String,
    provider: Provider,
    keys: Keys,
    at: Timestamp,
}

pub struct Oidc {
    house: House,
    wire: Arc<dyn Wire>,
    /// The console is behind TLS of its own.
    is_secure: bool,
    known: Mutex<Option<Arc<Known>>>,
    /// Who holds it asks; the others wait for what he learns.
    asking: tokio::sync::Mutex<()>,
    /// When asking failed last, and why.
    failed: Mutex<Option<(Instant, String)>>,
    places: Semaphore,
    /// What was brought back once is not taken again, until it is too old anyway. Codes are good once at the provider as well, which is
    /// what counts where other nodes are.
    spent: Mutex<HashMap<String, Timestamp>>,
}

impl Oidc {
    pub fn new(house: House, wire: Arc<dyn Wire>, is_secure: bool) -> Oidc {
        Oidc {
            house,
            wire,
            is_secure,
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
            places: Semaphore::new(PLACES),
            spent: Mutex::default(),
        }
    }

    pub fn rule(&self) -> Option<OidcRule> {
        self.house.versions.now().settings.oidc.clone()
    }

    /// Where the browser is sent, and what it takes along.
    pub async fn begin(&self, rule: &OidcRule, host: &str, back: &str) -> Result<(String, Begun), NotIn> {
        let _place = self.place()?;
        let known = self.known(rule, None).await?;
        let begun = Begun::new(secret_bytes(), self.house.clock.now(), back);
        let mut url = Url::parse(&known.provider.authorization_endpoint)
            .map_err(|_| NotIn::Away("the address of its log-in page cannot be read".into()))?;
        let scopes = ["openid"].into_iter().chain(rule.scopes.iter().map(String::as_str));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &rule.client_id)
            .append_pair("redirect_uri", &self.redirect_uri(rule, host))
            .append_pair("scope", &scopes.collect::<Vec<_>>().join(" "))
            .append_pair("state", &begun.state())
            .append_pair("nonce", &begun.nonce())
            .append_pair("code_challenge", &begun.challenge())
            .append_pair("code_challenge_method", "S256");
        Ok((url.into(), begun))
    }

    /// For whom the provider vouches, of what the browser brought back from it.
    pub async fn finish(
        &self,
        rule: &OidcRule,
        host: &str,
        begun: &Begun,
        brought: &BTreeMap<String, String>,
    ) -> Result<Guest, NotIn> {
        let text = |name: &str| brought.get(name).map_or("", String::as_str);
        let now = self.house.clock.now();
        if !begun.is_answered_by(text("state")) || !begun.is_live(now) {
            return Err(NotIn::Stray);
        }
        self.spend(begun, now)?;
        if brought.contains_key("error") {
            return Err(NotIn::Declined(word(text("error"))));
        }
        let _place = self.place()?;
        let known = self.known(rule, None).await?;
        let says = brought.get("iss").map(String::as_str);
        if says.map_or(known.provider.names_itself, |says| says != rule.issuer) {
            return Err(NotIn::NotBelieved("another provider answered".into()));
        }
        let token = self.exchange(rule, &known.provider, host, begun, text("code")).await?;
        let claims = self.believed(rule, known, begun, &token).await?;
        Guest::of(&claims, rule).map_err(|why| NotIn::NotLetIn(why.to_string()))
    }

    fn place(&self) -> Result<SemaphorePermit<'_>, NotIn> {
        self.places.try_acquire().map_err(|_| NotIn::Busy)
    }

    fn spend(&self, begun: &Begun, now: Timestamp) -> Result<(), NotIn> {
        let mut spent = lock(&self.spent);
        spent.retain(|_, until| *until > now);
        if spent.len() >= SPENT_MAX {
            return Err(NotIn::Busy);
        }
        match spent.insert(begun.state(), begun.at + BEGUN_LASTS) {
            None => Ok(()),
            Some(_) => Err(NotIn::Stray),
        }
    }

    /// As the provider must have it on its list.
    fn redirect_uri(&self, rule: &OidcRule, host: &str) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        let called = || format!("{scheme}://{host}");
        let url = rule.url.clone().unwrap_or_else(called);
        format!("{}{CALLBACK}", url.trim_end_matches('/'))
    }

    /// A key that is not known may be new: then, and only once, the provider is asked again.
    async fn believed(&self, rule: &OidcRule, known: Arc<Known>, begun: &Begun, token: &str) -> Result<Claims, NotIn> {
        let nonce = begun.nonce();
        let verified = |known: &Known| {
            let now = self.house.clock.now();
            let expected = Expected { issuer: &rule.issuer, client_id: &rule.client_id, nonce: &nonce, now };
            oidc::verify(token, &known.keys, expected)
        };
        let claims = match verified(&known) {
            Err(BadToken::UnknownKey) => verified(&*self.known(rule, Some(&known)).await?),
            claims => claims,
        };
        claims.map_err(|why| NotIn::NotBelieved(why.to_string()))
    }

    /// The token for a code.
    async fn exchange(
        &self,
        rule: &OidcRule,
        provider: &Provider,
        host: &str,
        begun: &Begun,
        code: &str,
    ) -> Result<String, NotIn> {
        let secret = match &rule.client_secret {
            None => None,
            Some(name) => {
                let read = self.house.secrets.current(name);
                // The name of the secret is for who runs this, not for who stands outside.
                Some(read.map_err(|why| {
                    tracing::error!("nobody can log in by {}: secret {name}: {why}", rule.issuer);
                    NotIn::Away("a secret is missing here; the log says which".into())
                })?)
            }
        };
        let ask = self.token_request(rule, provider, host, begun, code, secret.as_deref());
        let (status, answer) = self.ask(ask).await.map_err(NotIn::Away)?;
        if status.is_server_error() {
            return Err(NotIn::Away(format!("it answered {}", status.as_u16())));
        }
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if !status.is_success() {
            let why = word(answer["error"].as_str().unwrap_or_default());
            return Err(NotIn::NotBelieved(format!("it did not take the code ({why})")));
        }
        let token = answer["id_token"].as_str().map(str::to_string);
        token.ok_or_else(|| NotIn::NotBelieved("its answer has no id_token".into()))
    }

    fn token_request(
        &self,
        rule: &OidcRule,
        provider: &Provider,
        host: &str,
        begun: &Begun,
        code: &str,
        secret: Option<&str>,
    ) -> http::Result<Request<Bytes>> {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", &self.redirect_uri(rule, host))
            .append_pair("code_verifier", &begun.verifier());
        let mut ask = Request::builder().method(Method::POST).uri(&provider.token_endpoint);
        ask = ask.header(CONTENT_TYPE, "application/x-www-form-urlencoded").header(ACCEPT, "application/json");
        match secret {
            Some(secret) if !provider.secret_in_form => {
                let part = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", part(&rule.client_id), part(secret));
                ask = ask.header(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair.as_bytes())));
            }
            secret => {
                form.append_pair("client_id", &rule.client_id);
                if let Some(secret) = secret {
                    form.append_pair("client_secret", secret);
                }
            }
        }
        ask.body(Bytes::from(form.finish()))
    }

    /// What the provider says of itself, at most so old; and not what is stale.
    async fn known(&self, rule: &OidcRule, stale: Option<&Arc<Known>>) -> Result<Arc<Known>, NotIn> {
        let fresh = || {
            let now = self.house.clock.now();
            let is_fresh = |known: &Arc<Known>| {
                known.issuer == rule.issuer
                    && now.since(known.at) < KNOWN_LASTS
                    && stale.is_none_or(|stale| !Arc::ptr_eq(stale, known))
            };
            lock(&self.known).clone().filter(is_fresh)
        };
        if let Some(known) = fresh() {
            return Ok(known);
        }
        let since = self.house.clock.instant();
        let _asking = self.asking.lock().await;
        if let Some(known) = fresh() {
            return Ok(known);
        }
        // It failed for who asked while we waited: so it would for us, one after the other.
        if let Some((_, why)) = lock(&self.failed).as_ref().filter(|(at, _)| *at >= since) {
            return Err(NotIn::Away(why.clone()));
        }
        match self.learn(rule).await {
            Ok(known) => {
                let known = Arc::new(known);
                *lock(&self.known) = Some(known.clone());
                Ok(known)
            }
            Err(why) => {
                *lock(&self.failed) = Some((self.house.clock.instant(), why.clone()));
                Err(NotIn::Away(why))
            }
        }
    }

    async fn learn(&self, rule: &OidcRule) -> Result<Known, String> {
        let document = self.document(&oidc::discovery_url(&rule.issuer)).await?;
        let provider = Provider::read(&document, &rule.issuer).map_err(|why| why.to_string())?;
        let keys = Keys::read(&self.document(&provider.jwks_uri).await?).map_err(|why| why.to_string())?;
        Ok(Known { issuer: rule.issuer.clone(), provider, keys, at: self.house.clock.now() })
    }

    async fn document(&self, url: &str) -> Result<Bytes, String> {
        let ask = Request::builder().method(Method::GET).uri(url).header(ACCEPT, "application/json");
        let (status, document) = self.ask(ask.body(Bytes::new())).await?;
        if status.is_success() { Ok(document) } else { Err(format!("it answered {}", status.as_u16())) }
    }

    async fn ask(&self, question: http::Result<Request<Bytes>>) -> Result<(StatusCode, Bytes), String> {
        let question = question.map_err(|_| "one of its addresses cannot be read".to_string())?;
        self.wire.ask(question).await
    }
}

/// A word of the provider's, as it can be shown.
fn word(text: &str) -> String {
    let shown: String = text.chars().filter(|c| c.is_ascii_graphic()).take(80).collect();
    if shown.is_empty() { "it does not say why".into() } else { shown }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().expect("nobody panics while holding it")
}
