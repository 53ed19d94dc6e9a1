//! Idempotency in front of a target that has none: any HTTP client points here and sends a key. The first success under a
//! key is kept and given again, calls at the same time are joined, another call under the same key is refused, and what may
//! have happened is not sent again by itself.

mod answer;
mod calls;

use crate::effects::{HttpCall, HttpClient};
use crate::house::House;
use crate::server::{self, Listener};
use answer::Answer;
use bytes::Bytes;
use calls::{Call, Calls};
use clinch_core::call::CallKey;
use clinch_core::config::Files;
use clinch_core::effect::Idempotency;
use clinch_core::egress::{Allowed, Egress};
use clinch_core::integration::HEADERS_NOT_YOURS;
use clinch_core::key::{Fingerprint, Pepper};
use http::header::{AUTHORIZATION, CONNECTION, HeaderName};
use http::request::Parts;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

pub const LISTEN_DEFAULT: &str = "127.0.0.1:7410";
pub const KEY_CHARS_MAX: usize = 255;
/// What is said where no key file is named.
const NO_KEY_FILE: &str = "version: 1";
/// The body of a request has to be here within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What is put in front of what.
#[derive(Clone, Debug)]
pub struct Rules {
    /// http or https, with a host; a path is put before every other.
    pub to: Uri,
    pub key_header: HeaderName,
    /// How long an answer is kept.
    pub keep: Duration,
    pub timeout: Duration,
    /// Whether a call that changes something is refused without a key.
    pub needs_key: bool,
    /// Whether what may have happened is sent again.
    pub resends: bool,
    pub body_bytes_max: usize,
    /// What encrypts the answers; without one, a store of its own has a key beside it.
    pub key_file: Option<PathBuf>,
}

impl Rules {
    /// What a workspace would say of it.
    pub fn files(&self) -> Files {
        let encryption = self.key_file.as_ref().map(|file| json!({"encryption": {"file": file}}).to_string());
        Files(vec![("clinch.yml".into(), encryption.unwrap_or_else(|| NO_KEY_FILE.into()))])
    }

    /// Did a proxy write this, whatever it is in front of?
    pub fn wrote(files: &Files) -> bool {
        let [(path, text)] = &files.0[..] else { return false };
        let names_a_key = || {
            let said: Value = serde_json::from_str(text).unwrap_or_default();
            let file = &said["encryption"]["file"];
            file.is_string() && said == json!({"encryption": {"file": file}})
        };
        path == "clinch.yml" && (text == NO_KEY_FILE || names_a_key())
    }

    fn uri(&self, asked: Option<&PathAndQuery>) -> Option<Uri> {
        let before = self.to.path().trim_end_matches('/');
        let asked = asked.map_or("/", PathAndQuery::as_str);
        let mut parts = self.to.clone().into_parts();
        parts.path_and_query = Some(format!("{before}{asked}").parse().ok()?);
        Uri::from_parts(parts).ok()
    }
}

struct Proxy {
    house: House,
    rules: Rules,
    http: Arc<HttpClient>,
    calls: Arc<Calls>,
    pepper: Pepper,
}

/// Serves until the house is left, then lets calls under way end.
pub async fn run(socket: TcpListener, listener: Listener, house: House, rules: Rules) -> Result<(), String> {
    // The operator named it, so it may be called wherever it is; nothing else may.
    let host = rules.to.host().unwrap_or_default();
    let allow: Vec<Allowed> = host.parse().into_iter().collect();
    let http = Arc::new(HttpClient::new(Arc::new(Egress { allow, loopback: true }), None)?);
    let under_way = TaskTracker::new();
    let calls = Arc::new(Calls::new(house.clone(), http.clone(), rules.clone(), under_way.clone()));
    let pepper = Pepper::new(house.store.pepper());
    let stop = house.stop.clone();
    let proxy = Arc::new(Proxy { house, rules, http, calls, pepper });
    server::serve(socket, listener, move |_| Service(proxy.clone()), stop).await;
    under_way.close();
    under_way.wait().await;
    Ok(())
}

#[derive(Clone)]
struct Service(Arc<Proxy>);

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let proxy = self.0.clone();
        Box::pin(async move {
            let answer = proxy.answer(request).await;
            proxy.house.metrics.proxy_call(answer.word());
            Ok(answer.into_response())
        })
    }
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let key = match self.key(&head.headers) {
            Ok(key) => key,
            Err(refusal) => return refusal,
        };
        let Some(uri) = self.rules.uri(head.uri.path_and_query()) else {
            return Answer::Malformed("its path is too odd");
        };
        match key {
            // What changes nothing may be asked as often as anybody likes.
            _ if head.method.is_safe() => self.pass(head, uri, body).await,
            None if self.rules.needs_key => Answer::NoKey(self.rules.key_header.clone()),
            None => self.pass(head, uri, body).await,
            Some(key) => {
                let who = head.headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
                let who = String::from_utf8_lossy(who);
                let key = CallKey::of(&self.pepper, &["proxy", &self.rules.to.to_string(), &who], &key);
                let fingerprint = Fingerprint::of(&format!("{} {uri}", head.method), &body);
                let call = Call { key, fingerprint, http: self.call(head, uri, body) };
                self.calls.join(call).await
            }
        }
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Answer> {
        let limited = Limited::new(body, self.rules.body_bytes_max).collect();
        match tokio::time::timeout(BODY_TIMEOUT, limited).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Answer::TooLarge(self.rules.body_bytes_max)),
            Ok(Err(_)) => Err(Answer::Malformed("its body broke off")),
            Err(_) => Err(Answer::Malformed("its body did not come in time")),
        }
    }

    fn key(&self, headers: &HeaderMap) -> Result<Option<String>, Answer> {
        let mut keys = headers.get_all(&self.rules.key_header).iter();
        let key = match (keys.next(), keys.next()) {
            (None, _) => return Ok(None),
            (Some(key), None) => key.to_str().unwrap_or_default().trim(),
            (Some(_), Some(_)) => return Err(Answer::Malformed("it has two keys")),
        };
        match key.len() {
            0 => Err(Answer::Malformed("its key is empty, or not plain text")),
            1..=KEY_CHARS_MAX => Ok(Some(key.to_string())),
            _ => Err(Answer::Malformed("its key is longer than 255 characters")),
        }
    }

    fn call(&self, head: Parts, uri: Uri, body: Bytes) -> HttpCall {
        HttpCall {
            method: head.method,
            uri,
            headers: end_to_end(head.headers),
            body,
            timeout: self.rules.timeout,
            key: None,
        }
    }

    /// Without a key nothing is promised.
    async fn pass(&self, head: Parts, uri: Uri, body: Bytes) -> Answer {
        let class = if head.method.is_idempotent() { Idempotency::Natural } else { Idempotency::None };
        let sent = self.http.forward(self.call(head, uri, body), class, calls::ANSWER_BYTES_MAX).await;
        match sent {
            Ok(forwarded) => Answer::passed(forwarded),
            Err(sent) => Answer::failed(sent),
        }
    }
}

/// Without what is only for the next one on the way.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HEADERS_NOT_YOURS {
        headers.remove(*name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_a_path_is_put_behind_that_of_the_target() {
        let rules = |to: &'static str| Rules {
            to: Uri::from_static(to),
            key_header: HeaderName::from_static("idempotency-key"),
            keep: Duration::ZERO,
            timeout: Duration::ZERO,
            needs_key: false,
            resends: false,
            body_bytes_max: 0,
            key_file: None,
        };
        let check = |to: &'static str, asked: &str, uri: &str| {
            let asked = asked.parse().expect("a path");
            assert_eq!(rules(to).uri(Some(&asked)).expect("a uri"), uri, "{to} {asked}");
        };
        check("https://crm.example", "/v1/leads?a=1", "https://crm.example/v1/leads?a=1");
        check("https://crm.example/api/", "/v1/leads", "https://crm.example/api/v1/leads");
        check("http://127.0.0.1:80/x", "/", "http://127.0.0.1:80/x/");
    }

    #[test]
    fn d3_headers_for_the_next_one_on_the_way_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "close, X-Mine"), ("x-mine", "1"), ("te", "trailers"), ("accept", "*/*")] {
            headers.insert(name, value.parse().expect("a value"));
        }
        let left = end_to_end(headers);
        assert_eq!(left.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
