//! Stand-ins for partners, on loopback alone: they take every call, write it down, and answer as they are told, or 200. A key that
//! they know is answered as it was the first time.

mod mail;
pub mod secrets;

use crate::clock::SystemClock;
use crate::rehearsal::{Detour, Rehearsal};
use crate::secrets::Secrets;
use bytes::Bytes;
use clinch_core::config::{Workspace, address};
use clinch_core::message::Channel;
use clinch_core::trial::{Reply, SeenCall};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use url::Url;

/// What tells a question to the stand-ins themselves from a call to one of them. A page in a browser cannot send it unasked.
pub const CONTROL_HEADER: &str = "clinch-stand-ins";
/// No call of clinch has a longer body.
const BODY_BYTES_MAX: usize = 16 << 20;
/// In a server that goes on for days, the last ones are enough.
const CALLS_MAX: usize = 10_000;
/// Answers that wait to be given by one of them.
const ANSWERS_MAX: usize = 10_000;
/// The answers of successes, by integration.
const USUAL: &str = "fixtures/answers";

pub struct StandIns {
    pub address: SocketAddr,
    mail: BTreeMap<String, SocketAddr>,
    book: Arc<Book>,
}

#[derive(Default)]
struct Book {
    /// Who is at an address: host and port, the path that its calls begin with, and its name.
    homes: Vec<Home>,
    /// Everybody who is stood in for, mail servers too.
    names: Vec<String>,
    /// The bodies of successes.
    usual: BTreeMap<String, Value>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    answers: HashMap<String, VecDeque<Reply>>,
    calls: Vec<SeenCall>,
    /// What was answered under a key, for each of them.
    known: HashMap<(String, String), Value>,
    /// How many each has done something for.
    done: HashMap<String, usize>,
}

/// Status, body and headers of an answer.
type Given = (u16, Value, Vec<(String, String)>);

struct Home {
    authority: String,
    path: String,
    name: String,
}

/// Everybody outside the workspace of this directory has a stand-in from now on, for a server that people try things out on.
pub async fn rehearse(workspace: &Workspace, directory: &Path) -> Result<Rehearsal, String> {
    let made_up = secrets::made_up(workspace);
    // Whoever gave a secret wants it to count; it is shown to nobody outside all the same.
    let given = |name: &str| Secrets::read([name], |_| None).ok().and_then(|secrets| secrets.get(name));
    let stand_ins =
        StandIns::start(workspace, directory, |name| given(name).or_else(|| made_up.get(name).cloned())).await?;
    Ok(Rehearsal {
        clock: Arc::new(SystemClock::default()),
        detour: Arc::new(stand_ins.detour()),
        secrets: made_up,
        reads_environment: true,
    })
}

impl StandIns {
    /// For every integration of the workspace, whose secrets are these. Answers of successes are read from its fixtures.
    pub async fn start(
        workspace: &Workspace,
        directory: &Path,
        secret: impl Fn(&str) -> Option<String>,
    ) -> Result<StandIns, String> {
        let io = |error: std::io::Error| format!("the stand-ins cannot listen: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
        let own = listener.local_addr().map_err(io)?;
        let (mut homes, mut mailboxes) = (Vec::new(), Vec::new());
        for partner in &workspace.integrations {
            let place = |template| {
                let text =
                    address(template, &secret).map_err(|error| format!("integration `{}`: {error}", partner.name))?;
                Url::parse(&text).map_err(|_| format!("integration `{}`: its address is not one", partner.name))
            };
            if let Some(base) = &partner.base_url {
                let url = place(base)?;
                homes.push(Home {
                    authority: authority(&url),
                    path: url.path().trim_end_matches('/').to_string(),
                    name: partner.name.to_string(),
                });
            }
            if let Some(Channel::Mail(server)) = &partner.channel {
                let host = place(&server.address)?.host_str().unwrap_or_default().to_string();
                mailboxes.push((host, partner.name.to_string()));
            }
        }
        // The one whose path says most about it first.
        homes.sort_by_key(|home| std::cmp::Reverse(home.path.len()));
        let names = homes.iter().map(|home| &home.name).chain(mailboxes.iter().map(|(_, name)| name));
        let names = names.cloned().collect();
        let book = Arc::new(Book { homes, names, usual: usual(directory)?, pages: Mutex::default() });
        let mut mail = BTreeMap::new();
        for (host, name) in mailboxes {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
            mail.insert(host, listener.local_addr().map_err(io)?);
            tokio::spawn(mail::serve(listener, name, book.clone()));
        }
        tokio::spawn(serve(listener, own, book.clone()));
        Ok(StandIns { address: own, mail, book })
    }

    pub fn detour(&self) -> Detour {
        Detour { http: self.address, mail: self.mail.clone() }
    }

    /// What one of them answers next.
    pub fn answer(&self, name: &str, replies: impl IntoIterator<Item = Reply>) {
        self.book.pages().answers.entry(name.to_string()).or_default().extend(replies);
    }

    /// The calls since the last time that somebody asked.
    pub fn calls(&self) -> Vec<SeenCall> {
        std::mem::take(&mut self.book.pages().calls)
    }
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_string(), |port| format!("{host}:{port}"))
}

fn usual(directory: &Path) -> Result<BTreeMap<String, Value>, String> {
    let Ok(entries) = std::fs::read_dir(directory.join(USUAL)) else { return Ok(BTreeMap::new()) };
    let mut usual = BTreeMap::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json").map(str::to_string));
        let Some(name) = name else { continue };
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read(&path).map_err(|error| said(&error))?;
        usual.insert(name, serde_json::from_slice(&text).map_err(|error| said(&error))?);
    }
    Ok(usual)
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is called. A step without an integration calls a host.
    fn name<'a>(&'a self, authority: &'a str, path: &str) -> &'a str {
        let fits = |home: &&Home| home.authority == authority && path.starts_with(&home.path);
        self.homes.iter().find(fits).map_or(authority, |home| &home.name)
    }

    /// What a call is answered, and written down with. `None`: nothing is answered.
    fn take(&self, mut call: SeenCall, success: u16) -> Option<Given> {
        let mut pages = self.pages();
        let told = pages.answers.get_mut(&call.to).and_then(VecDeque::pop_front);
        let answer = match told {
            Some(Reply::Lost) => None,
            Some(Reply::Answer { status, body, headers }) => {
                let is_success = (200..300).contains(&status);
                let body = body.unwrap_or_else(|| match is_success {
                    true => pages.usual_of(&call, &self.usual),
                    false => json!({"error": "told to fail"}),
                });
                Some((status, body, headers))
            }
            None => Some((success, pages.usual_of(&call, &self.usual), Vec::new())),
        };
        call.status = answer.as_ref().map(|(status, _, _)| *status);
        if pages.calls.len() >= CALLS_MAX {
            pages.calls.drain(..CALLS_MAX / 2);
        }
        pages.calls.push(call);
        answer
    }
}

impl Pages {
    fn usual_of(&mut self, call: &SeenCall, usual: &BTreeMap<String, Value>) -> Value {
        let known = call.key.as_ref().map(|key| (call.to.clone(), key.clone()));
        if let Some(first) = known.as_ref().and_then(|known| self.known.get(known)) {
            return first.clone();
        }
        let done = self.done.entry(call.to.clone()).or_default();
        *done += 1;
        let body = usual.get(&call.to).cloned();
        let body = body.unwrap_or_else(|| json!({"ok": true, "id": format!("{}-{done}", call.to)}));
        if let Some(known) = known {
            self.known.insert(known, body.clone());
        }
        body
    }
}

/// A call that is not answered ends with its connection.
#[derive(Debug, thiserror::Error)]
#[error("it is not answered")]
struct Lost;

async fn serve(listener: TcpListener, own: SocketAddr, book: Arc<Book>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let book = book.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let book = book.clone();
                async move { answer(request, own, &book).await }
            });
            // A caller that goes away is its own affair.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, own: SocketAddr, book: &Book) -> Result<Response<Full<Bytes>>, Lost> {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_| Lost)?.to_bytes();
    let authority = header(HOST.as_str()).unwrap_or_default().to_string();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_string();
    if authority == own.to_string() {
        return Ok(match header(CONTROL_HEADER) {
            Some(_) => control(head.method.as_str(), &path, &body, book),
            None => said(StatusCode::FORBIDDEN, &json!({"error": "these are stand-ins of clinch"})),
        });
    }
    let key = ["idempotency-key", "x-idempotency-key"].iter().find_map(|name| header(name)).map(str::to_string);
    let read = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into());
    let call = SeenCall {
        to: book.name(&authority, &path).to_string(),
        method: head.method.to_string(),
        path,
        body: read,
        key,
        status: None,
    };
    let (status, body, headers) = book.take(call, 200).ok_or(Lost)?;
    let mut answer = said(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), &body);
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<hyper::header::HeaderName>(), value.parse()) {
            answer.headers_mut().insert(name, value);
        }
    }
    Ok(answer)
}

fn said(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    response
}

/// What the command line asks of the stand-ins themselves: `POST /answers {"crm": [500, 500]}` and `GET /calls`.
fn control(method: &str, path: &str, body: &[u8], book: &Book) -> Response<Full<Bytes>> {
    match (method, path) {
        ("POST", "/answers") => {
            let Ok(asked) = serde_json::from_slice::<BTreeMap<String, Vec<u16>>>(body) else {
                return said(StatusCode::BAD_REQUEST, &json!({"error": "write {\"NAME\": [STATUS, …]}"}));
            };
            let mut pages = book.pages();
            for (name, statuses) in asked {
                let waiting = pages.answers.entry(name).or_default();
                let room = ANSWERS_MAX.saturating_sub(waiting.len());
                waiting.extend(statuses.into_iter().take(room).map(Reply::status));
            }
            said(StatusCode::OK, &json!({"stand_ins": book.names}))
        }
        ("GET", "/calls") => {
            let pages = book.pages();
            let calls = pages.calls.iter().map(|call| {
                json!({"to": call.to, "method": call.method, "path": call.path, "body": call.body, "key": call.key, "status": call.status})
            });
            said(StatusCode::OK, &json!({"calls": calls.collect::<Vec<_>>()}))
        }
        _ => said(StatusCode::NOT_FOUND, &json!({"error": "ask GET /calls or POST /answers"})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::config::{self, Files};

    #[tokio::test]
    async fn j4_everybody_who_is_stood_in_for_can_be_told_to_fail_also_who_carries_mail() {
        let text = "integrations:\n  crm: {base_url: 'https://crm.example'}\n  \
                    mail: {smtp: 'smtp://mail.example.com:587', from: 'Shop <hello@shop.example>'}\n";
        let files = Files(vec![("clinch.yml".into(), text.into())]);
        let (workspace, _) = config::load(&files).expect("a workspace");
        let directory = tempfile::tempdir().expect("a directory");
        let stand_ins = StandIns::start(&workspace, directory.path(), |_| None).await.expect("stand-ins");
        let told = control("POST", "/answers", br#"{"mail": [451]}"#, &stand_ins.book);
        let told = told.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(serde_json::from_slice::<Value>(&told).expect("JSON"), json!({"stand_ins": ["crm", "mail"]}));
    }
}
