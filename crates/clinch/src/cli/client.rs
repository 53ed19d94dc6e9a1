//! Talks to the running server: finds its address and its token, asks, and turns refusals into exits.

use super::Globals;
use super::exit::{Exit, Failure};
use super::stream::Events;
use crate::api::auth;
use crate::clock::{Clock, SystemClock};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use url::{Host, Url};

/// So often a command is sent whose answer was lost.
const TRIES: u32 = 3;
/// Room is left for what is added to it.
const REQUEST_ID_BYTES_MAX: usize = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest list takes a while to gather.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The server ends a stream long before.
const STREAM_TIMEOUT: Duration = Duration::from_secs(86_400);

/// `server.json`: what a running server leaves in its data directory.
#[derive(Clone, Debug, Deserialize)]
pub struct Card {
    pub intake: Option<String>,
    pub admin: Option<String>,
    #[serde(default)]
    pub routes: Vec<CardRoute>,
    /// The directory of its workspace.
    #[serde(default)]
    pub workspace: Option<PathBuf>,
    /// With `serve --dev`: who stands in for everybody outside.
    #[serde(default)]
    pub stand_ins: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CardRoute {
    pub flow: String,
    pub method: String,
    pub path: String,
}

impl Card {
    pub fn read(globals: &Globals) -> Option<Card> {
        let text = std::fs::read(globals.data_dir.join("server.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: String,
    /// What the commands of this run are recognised by, and how many went to each address.
    request_id: String,
    sent: Mutex<HashMap<String, u32>>,
}

/// An answer as it came, and as we understand it.
pub struct Answer<T> {
    pub document: Value,
    pub told: T,
}

impl Client {
    pub fn open(globals: &Globals) -> Result<Client, Failure> {
        let base = base(globals)?;
        let request_id = match &globals.request_id {
            Some(id)
                if !(1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
                    || !id.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                let said = format!("--request-id has 1 to {REQUEST_ID_BYTES_MAX} visible characters without spaces");
                return Err(Failure::new(Exit::Usage, "CL0503", said));
            }
            Some(id) => id.clone(),
            None => format!("{:032x}", SystemClock::default().random()),
        };
        let (http, token) = (http(is_local(&base))?, token(globals, &base)?);
        Ok(Client { http, token, base, request_id, sent: Mutex::default() })
    }

    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<Answer<T>, Failure> {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.ask(self.http.get(url)).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &Value) -> Result<Answer<T>, Failure> {
        self.command(Method::POST, path, body).await
    }

    pub async fn put<T: DeserializeOwned>(&self, path: &[&str], body: &Value) -> Result<Answer<T>, Failure> {
        self.command(Method::PUT, path, body).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &[&str], body: &Value) -> Result<Answer<T>, Failure> {
        self.command(Method::DELETE, path, body).await
    }

    /// Under a key of its own, so that it may be sent again when its answer is lost.
    async fn command<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: &Value,
    ) -> Result<Answer<T>, Failure> {
        let key = self.key(&method, path);
        let request = || self.http.request(method.clone(), self.url(path)).json(body).header("idempotency-key", &key);
        let mut tried = 1;
        loop {
            match request().bearer_auth(&self.token).send().await {
                // Nobody was there: that is soon told. Otherwise it may have been carried out.
                Err(error) if !error.is_connect() && tried < TRIES => tried += 1,
                sent => return self.told(sent).await,
            }
        }
    }

    fn key(&self, method: &Method, path: &[&str]) -> String {
        let to = format!("{method} {}", path.join("/"));
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = sent.entry(to.clone()).and_modify(|nth| *nth += 1).or_insert(1);
        let digest = digest(&SHA256, format!("{to} {nth}").as_bytes());
        format!("{}-{}", self.request_id, HEXLOWER.encode(&digest.as_ref()[..8]))
    }

    /// The address of a page of the console.
    pub fn page(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }

    /// Something that goes on until somebody ends it.
    pub async fn stream(&self, path: &[&str], query: &[(&str, String)]) -> Result<Events, Failure> {
        let mut url = self.url(path);
        url.query_pairs_mut().extend_pairs(query);
        let request = self.http.get(url).timeout(STREAM_TIMEOUT).bearer_auth(&self.token);
        let response = request.send().await.map_err(|error| not_reachable(&self.base, &error))?;
        let status = response.status();
        if !status.is_success() {
            let body = response.bytes().await.map_err(|error| not_reachable(&self.base, &error))?;
            return Err(refusal(status.as_u16(), &body, &self.base));
        }
        Ok(Events::new(response, self.base.clone()))
    }

    /// The server's own address.
    pub fn base(&self) -> &Url {
        &self.base
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http address has a path").pop_if_empty().extend(["api", "v1"]).extend(path);
        url
    }

    async fn ask<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<Answer<T>, Failure> {
        self.told(request.bearer_auth(&self.token).send().await).await
    }

    async fn told<T: DeserializeOwned>(&self, sent: reqwest::Result<reqwest::Response>) -> Result<Answer<T>, Failure> {
        let unreachable = |error: reqwest::Error| not_reachable(&self.base, &error);
        let response = sent.map_err(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?;
        if !status.is_success() {
            return Err(refusal(status.as_u16(), &body, &self.base));
        }
        let strange = |error: serde_json::Error| {
            Failure::new(
                Exit::Failed,
                "CL0530",
                format!("{} answered what this version cannot read: {error}", self.base),
            )
            .fix("use the same version for server and command line: clinch version")
        };
        let document: Value = serde_json::from_slice(&body).map_err(strange)?;
        let told = T::deserialize(&document).map_err(strange)?;
        Ok(Answer { document, told })
    }
}

pub fn base(globals: &Globals) -> Result<Url, Failure> {
    let text = match (&globals.url, Card::read(globals)) {
        (Some(url), _) => url.clone(),
        (None, Some(Card { admin: Some(admin), .. })) => admin,
        (None, _) => {
            let said = format!("No server is running with the data directory {}", globals.data_dir.display());
            return Err(Failure::new(Exit::NotReachable, "CL0520", said).fix(START));
        }
    };
    let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    url.ok_or_else(|| {
        Failure::new(Exit::Usage, "CL0532", format!("`{text}` is not the address of a server"))
            .fix("write it like http://127.0.0.1:7401")
    })
}

const START: &str = "start `clinch serve`, or name the server with --url or --data-dir; \
                     `clinch verify` reads the store while the server is down";

/// The token of the data directory is for the server of this machine: it is never sent to another one.
fn token(globals: &Globals, base: &Url) -> Result<String, Failure> {
    if let Some(token) = std::env::var("CLINCH_TOKEN").ok().filter(|token| !token.is_empty()) {
        return Ok(token);
    }
    let refuse = |said: String| Failure::new(Exit::NotAllowed, "CL0521", said);
    if !is_local(base) && globals.url.is_some() {
        return Err(refuse(format!("There is no token for {base}")).fix("set CLINCH_TOKEN"));
    }
    let path = globals.data_dir.join(auth::TOKEN_FILE);
    auth::read(&path).map_err(|error| {
        let failure = refuse(format!("The admin token cannot be read: {error}"));
        match error.kind() {
            ErrorKind::NotFound => failure.fix("set CLINCH_TOKEN, or name the server's data directory with --data-dir"),
            _ => failure,
        }
    })
}

fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback() || ip.is_unspecified(),
        Some(Host::Ipv6(ip)) => ip.is_loopback() || ip.is_unspecified(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// A client that follows nobody elsewhere. On this machine there is no proxy in between.
pub fn http(local: bool) -> Result<reqwest::Client, Failure> {
    let builder = || {
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .user_agent(concat!("clinch/", env!("CARGO_PKG_VERSION")));
        if local { builder.no_proxy() } else { builder }
    };
    // A machine without certificate files still has the roots that clinch brings along.
    builder().build().or_else(|_| {
        let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
        let roots = roots.filter_map(|der| reqwest::Certificate::from_der(der).ok());
        let failed = |error| Failure::new(Exit::Failed, "CL0533", format!("The HTTP client cannot be made: {error}"));
        builder().tls_certs_only(roots).build().map_err(failed)
    })
}

pub fn is_local_text(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| is_local(&url))
}

pub fn not_reachable(base: &Url, error: &reqwest::Error) -> Failure {
    Failure::new(Exit::NotReachable, "CL0520", format!("The server at {base} does not answer: {}", cause(error)))
        .fix(START)
}

/// The innermost cause: the others only say that something failed.
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// RFC 9457, as far as it was sent.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Told {
    pub title: String,
    pub detail: String,
    pub code: String,
    pub steps: Vec<String>,
}

fn refusal(status: u16, body: &[u8], base: &Url) -> Failure {
    let told: Told = serde_json::from_slice(body).unwrap_or_default();
    let exit = match status {
        400 | 405 | 413 => Exit::Usage,
        401 | 403 => Exit::NotAllowed,
        404 => Exit::NotFound,
        409 if !told.steps.is_empty() => Exit::Refused,
        422 if told.code == "CL0519" => Exit::ConfigInvalid,
        409 | 422 => Exit::Conflict,
        _ => Exit::Failed,
    };
    if told.code.is_empty() {
        let said = format!("{base} answered {status}, which is not how clinch answers");
        return Failure::new(exit, "CL0530", said).fix("is this the admin address? see `clinch serve --admin`");
    }
    match exit {
        // Who it is, is known: another token does not help, another role does.
        Exit::NotAllowed if status == 401 => {
            Failure::new(exit, &told.code, told.title).fix("set CLINCH_TOKEN, or use the server's own --data-dir")
        }
        _ => Failure::new(exit, &told.code, told.detail),
    }
}

/// Asks for a list of jobs with only what was given.
pub fn given(pairs: &[(&'static str, Option<String>)]) -> Vec<(&'static str, String)> {
    pairs.iter().filter_map(|(name, value)| Some((*name, value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_become_exits() {
        let base = Url::parse("http://127.0.0.1:7401").expect("a URL");
        let check =
            |status, body: &str, exit| assert_eq!(refusal(status, body.as_bytes(), &base).exit, exit, "{status}");
        check(404, r#"{"code":"CL0505","detail":"no"}"#, Exit::NotFound);
        check(401, r#"{"code":"CL0501","detail":"no"}"#, Exit::NotAllowed);
        check(409, r#"{"code":"CL0508","detail":"no","steps":["post"]}"#, Exit::Refused);
        check(400, r#"{"code":"CL0503","detail":"no"}"#, Exit::Usage);
        check(503, r#"{"code":"CL0510","detail":"no"}"#, Exit::Failed);
        check(502, "<html>", Exit::Failed);
    }

    #[test]
    fn only_this_machine_is_local() {
        for local in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert!(is_local_text(local), "{local}");
        }
        for other in ["http://10.0.0.1", "http://localhost.example.com", "nonsense"] {
            assert!(!is_local_text(other), "{other}");
        }
    }
}
