//! Who comes in: the name under which the console is called, where a request comes from, and the session in its cookie.

use super::Desk;
use super::ask::{Ask, Refusal};
use super::frame::{self, Frame};
use super::held::Held;
use super::oidc;
use crate::api::auth::Peer;
use crate::sessions::Entry;
use askama::Template;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::header::{COOKIE, HOST, LOCATION, ORIGIN, RETRY_AFTER, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use clinch_core::audit::Who;
use clinch_core::time::Timestamp;
use clinch_store::StoreError;
use data_encoding::BASE64URL_NOPAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Not sent over a wire that others read, not to other ports' scripts, not from other sites.
const SESSION: &str = "__Host-clinch";
const SESSION_RULES: &str = "; Path=/; Secure; HttpOnly; SameSite=Strict";
const THEME: &str = "clinch-theme";
pub const THEMES: [&str; 4] = ["auto", "light", "dark", "contrast"];

/// The names that the console may be called by: a page of others whose name was pointed here is none of them.
#[derive(Clone)]
pub struct Hosts(Arc<Vec<String>>);

impl Hosts {
    /// The address that is listened on, this machine's own names, and those that the workspace adds.
    pub fn of(address: SocketAddr, added: &[String]) -> Hosts {
        let port = address.port();
        let own = ["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}:{port}"));
        // With brackets where browsers write them.
        let own = own.into_iter().chain([address.to_string()]);
        Hosts(Arc::new(own.chain(added.iter().map(|name| name.to_ascii_lowercase())).collect()))
    }

    fn knows(&self, host: &str) -> bool {
        self.0.iter().any(|known| known.eq_ignore_ascii_case(host))
    }
}

/// The name that somebody called.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let named = headers.get(HOST).and_then(|value| value.to_str().ok());
    named.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

/// Somebody who is not logged in.
pub struct Caller {
    /// One of the console's own names: others do not get past the guard.
    pub host: String,
    pub from: IpAddr,
}

impl FromRequestParts<Desk> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _desk: &Desk) -> Result<Caller, Response> {
        let from = parts.extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |Peer(ip)| *ip);
        Ok(Caller { host: host(&parts.headers, &parts.uri).unwrap_or_default().into(), from })
    }
}

/// Lets nobody in who comes by another name or from another site.
pub async fn guard(State(desk): State<Desk>, request: Request, next: Next) -> Response {
    let host = host(request.headers(), request.uri());
    if !host.is_some_and(|host| desk.hosts.knows(host)) {
        let said = "The console is not known by this name. Add it to `console: {hosts: […]}` in clinch.yml.\n";
        return (StatusCode::MISDIRECTED_REQUEST, said).into_response();
    }
    if *request.method() != Method::GET && *request.method() != Method::HEAD && !is_own(request.headers(), host) {
        return (StatusCode::FORBIDDEN, "Forms are taken from the console's own pages only.\n").into_response();
    }
    next.run(request).await
}

/// Whether one of our own pages sent it. A browser says so; what says nothing is not believed.
fn is_own(headers: &HeaderMap, host: Option<&str>) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match (text("sec-fetch-site"), text(ORIGIN.as_str())) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, from)| from == host)),
        (None, None) => false,
    }
}

pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
}

/// The secret of the log-in that a request came with.
pub fn secret(headers: &HeaderMap) -> Option<&str> {
    cookie(headers, SESSION)
}

/// Somebody who is logged in, and looks.
#[derive(Clone)]
pub struct Visitor {
    pub ask: Ask,
    pub who: Who,
    pub now: Timestamp,
    /// Proves that a form is from one of this session's pages.
    pub csrf: String,
    pub theme: &'static str,
    /// What was said to be done on the page before.
    pub done: Option<String>,
    /// What was pressed and may still be taken back.
    pub held: Held,
    /// Where one is, to come back to.
    pub path: String,
    /// The page can be asked for again: it is not the answer to a form.
    pub live: bool,
}

impl Visitor {
    /// The frame of a page in this place, with what is shown on all of them.
    pub async fn frame(&self, title: impl Into<String>, place: &'static str) -> Result<Frame, Refused> {
        Frame::of(self, title.into(), place).await.map_err(|refusal| self.refused(refusal))
    }

    /// What the API answers, as this person.
    pub async fn get<T: DeserializeOwned>(&self, path: impl Display) -> Result<T, Refused> {
        self.ask.get(path).await.map_err(|refusal| self.refused(refusal))
    }

    pub async fn post<T: DeserializeOwned>(&self, path: impl Display, ask: &impl Serialize) -> Result<T, Refused> {
        self.ask.post(path, ask).await.map_err(|refusal| self.refused(refusal))
    }

    /// A form that says too little, or what cannot be.
    pub fn unread(&self, title: &str, detail: &str) -> Refused {
        self.refused(Refusal { status: 400, code: "CL0507".into(), title: title.into(), detail: detail.into() })
    }

    /// The API answered, and not as it should.
    pub fn strange(&self, detail: &str) -> Refused {
        self.refused(Refusal::strange(detail.into()))
    }

    pub fn refused(&self, refusal: Refusal) -> Refused {
        Refused { refusal, theme: self.theme }
    }
}

impl FromRequestParts<Desk> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, desk: &Desk) -> Result<Visitor, Response> {
        let origin = parts.extensions.get::<Peer>().map_or_else(|| "web".into(), |Peer(ip)| format!("web {ip}"));
        let secret = secret(&parts.headers);
        let who = match secret {
            Some(secret) => desk.sessions.whose(secret, origin).await.map_err(away)?,
            None => None,
        };
        let (Some(secret), Some(who)) = (secret, who) else {
            return Err(to_log_in(&parts.method, &parts.uri));
        };
        let done = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .find(|(name, _)| name == "done")
            .map(|(_, word)| word.into_owned());
        Ok(Visitor {
            ask: Ask::new(desk.api.clone(), who.clone()),
            who,
            now: desk.clock.now(),
            csrf: csrf_of(secret),
            theme: theme_of(&parts.headers),
            done,
            held: desk.held.clone(),
            path: if parts.method == Method::GET { here(&parts.uri) } else { "/".into() },
            live: parts.method == Method::GET,
        })
    }
}

/// This page, without what was said on it.
fn here(uri: &Uri) -> String {
    let asked = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let kept: Vec<_> = asked.filter(|(name, _)| name != "done").collect();
    let kept: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (&**name, &**value)).collect();
    format!("{}{}", uri.path(), super::ask::query(&kept))
}

/// Who only looks is brought back after the log-in; a form has to be sent again. What was asked for on the page is left behind: it may
/// be somebody's address, and the log-in page is shown to anybody.
fn to_log_in(method: &Method, uri: &Uri) -> Response {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"/_-".contains(&letter);
    let back = if *method == Method::GET && uri.path().bytes().all(is_plain) { uri.path() } else { "/" };
    see_other(&format!("/login{}", super::ask::query(&[("back", back)])))
}

/// A form of somebody who is logged in, from one of the pages of that session.
pub struct Post {
    pub visitor: Visitor,
    fields: Vec<(String, String)>,
}

impl Post {
    pub fn text(&self, name: &str) -> &str {
        self.fields.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value.trim())
    }

    /// All that were chosen under this name.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.trim()).collect()
    }

    /// Nothing where nothing was written.
    pub fn given(&self, name: &str) -> Option<String> {
        Some(self.text(name).to_string()).filter(|text| !text.is_empty())
    }
}

impl FromRequest<Desk> for Post {
    type Rejection = Response;

    async fn from_request(request: Request, desk: &Desk) -> Result<Post, Response> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, desk).await?;
        let body =
            Bytes::from_request(Request::from_parts(parts, body), desk).await.map_err(IntoResponse::into_response)?;
        let post = Post { fields: url::form_urlencoded::parse(&body).into_owned().collect(), visitor };
        match verify_slices_are_equal(post.text("csrf").as_bytes(), post.visitor.csrf.as_bytes()) {
            Ok(()) => Ok(post),
            Err(_) => {
                let said = "This form is from another log-in. Go back, load the page again, and send it again.\n";
                Err((StatusCode::FORBIDDEN, said).into_response())
            }
        }
    }
}

fn csrf_of(secret: &str) -> String {
    BASE64URL_NOPAD.encode(digest(&SHA256, format!("form {secret}").as_bytes()).as_ref())
}

pub fn theme_of(headers: &HeaderMap) -> &'static str {
    let asked = cookie(headers, THEME).unwrap_or_default();
    THEMES.into_iter().find(|theme| *theme == asked).unwrap_or(THEMES[0])
}

/// What somebody is told who does not get his page.
pub struct Refused {
    pub refusal: Refusal,
    pub theme: &'static str,
}

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'a> {
    refusal: &'a Refusal,
    theme: &'a str,
    assets: &'static str,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let page = RefusedPage { refusal: &self.refusal, theme: self.theme, assets: super::files::version() };
        (self.refusal.status(), frame::html(&page)).into_response()
    }
}

pub async fn nothing_here(visitor: Visitor, uri: Uri) -> Refused {
    let detail = format!("There is no page {}. The overview has links to all of them.", uri.path());
    let title = "It is not there".into();
    visitor.refused(Refusal { status: 404, code: "CL0505".into(), title, detail })
}

/// A path of ours to go back to: never to another site.
pub fn own_path(path: &str) -> &str {
    // Browsers pass over line breaks and tabs: `/\t/host` is another site.
    let is_plain = path.bytes().all(|letter| letter > b' ' && letter != 0x7f && letter != b'\\');
    if path.starts_with('/') && !path.starts_with("//") && is_plain { path } else { "/" }
}

pub fn see_other(to: &str) -> Response {
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    theme: &'static str,
    assets: &'static str,
    back: String,
    code: String,
    failed: bool,
    /// Who else vouches for people.
    provider: Option<String>,
}

pub async fn ask_in(
    State(desk): State<Desk>,
    Query(asked): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let text = |name: &str| asked.get(name).cloned().unwrap_or_default();
    let page = LoginPage {
        theme: theme_of(&headers),
        assets: super::files::version(),
        back: text("back"),
        code: text("code"),
        failed: false,
        provider: desk.oidc.rule().as_ref().map(oidc::called),
    };
    frame::html(&page)
}

/// Who it is cannot be found out while the store is away.
pub fn away(error: StoreError) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "2")], format!("{error}\n")).into_response()
}

pub async fn log_in(
    State(desk): State<Desk>,
    Caller { from, .. }: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let fields: BTreeMap<String, String> = url::form_urlencoded::parse(&body).into_owned().collect();
    let text = |name: &str| fields.get(name).map_or("", |value| value.trim());
    // As it was typed: a space at its end is a part of it.
    let password = fields.get("password").map_or("", String::as_str);
    let back = text("back");
    let back = own_path(back);
    let entry = match text("code") {
        "" => desk.sessions.enter(text("name"), password, from).await,
        code => desk.sessions.redeem(code, from).await,
    };
    match entry {
        Ok(Entry::In(secret)) => let_in(&desk, &headers, &secret, see_other(back)).await,
        Err(error) => away(error),
        Ok(Entry::Refused | Entry::Wait(_)) => {
            let page = LoginPage {
                theme: theme_of(&headers),
                assets: super::files::version(),
                back: back.into(),
                code: String::new(),
                failed: true,
                provider: desk.oidc.rule().as_ref().map(oidc::called),
            };
            (StatusCode::UNAUTHORIZED, frame::html(&page)).into_response()
        }
    }
}

/// The answer to somebody who is logged in from now on.
pub async fn let_in(desk: &Desk, headers: &HeaderMap, secret: &str, mut response: Response) -> Response {
    // Nobody goes on under a secret that he had before.
    if let Some(before) = self::secret(headers)
        && let Err(error) = desk.sessions.leave(before).await
    {
        return away(error);
    }
    set_cookie(&mut response, &format!("{SESSION}={secret}{SESSION_RULES}"));
    response
}

pub async fn log_out(State(desk): State<Desk>, headers: HeaderMap, _post: Post) -> Response {
    if let Some(secret) = secret(&headers)
        && let Err(error) = desk.sessions.leave(secret).await
    {
        return away(error);
    }
    let mut response = see_other("/login");
    set_cookie(&mut response, &format!("{SESSION}={SESSION_RULES}; Max-Age=0"));
    response
}

/// How the pages look, for this browser.
pub async fn theme(post: Post) -> Response {
    let asked = post.text("theme");
    let theme = THEMES.into_iter().find(|theme| *theme == asked).unwrap_or(THEMES[0]);
    let mut response = see_other("/settings");
    set_cookie(&mut response, &format!("{THEME}={theme}; Path=/; SameSite=Strict; Max-Age=31536000"));
    response
}

pub fn set_cookie(response: &mut Response, cookie: &str) {
    let cookie = HeaderValue::from_str(cookie).expect("a cookie of ours is printable");
    response.headers_mut().append(SET_COOKIE, cookie);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_099_forms_of_other_sites_are_not_taken() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value))).collect()
        };
        let own = |pairs| is_own(&headers(pairs), Some("127.0.0.1:7401"));
        assert!(own(&[("sec-fetch-site", "same-origin")]));
        assert!(own(&[("origin", "http://127.0.0.1:7401")]));
        assert!(!own(&[("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:7401")]));
        assert!(!own(&[("sec-fetch-site", "none")]));
        assert!(!own(&[("origin", "http://evil.example")]));
        assert!(!own(&[]));
    }

    #[test]
    fn k1_after_a_log_in_one_comes_back_to_a_page_of_the_console_and_to_no_other_site() {
        for own in ["/", "/jobs?state=dead&q=a%20b", "/effects/job_1/step"] {
            assert_eq!(own_path(own), own);
        }
        for other in [
            "",
            "jobs",
            "//evil.example",
            "/\\evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "https://evil.example",
            "/ /x",
            "/\0/x",
        ] {
            assert_eq!(own_path(other), "/", "{other:?}");
        }
    }

    #[test]
    fn t_100_the_console_answers_to_its_own_names_only() {
        let hosts = Hosts::of("10.0.0.5:7401".parse().expect("an address"), &["clinch.corp.example".into()]);
        for known in ["10.0.0.5:7401", "localhost:7401", "127.0.0.1:7401", "CLINCH.corp.example"] {
            assert!(hosts.knows(known), "{known}");
        }
        let newer = Hosts::of("[2001:db8::5]:7401".parse().expect("an address"), &[]);
        assert!(newer.knows("[2001:db8::5]:7401") && !newer.knows("[2001:db8::6]:7401"));
        for other in ["evil.example", "localhost:7400", "localhost", "10.0.0.5:7401.evil.example", ""] {
            assert!(!hosts.knows(other), "{other}");
        }
    }
}
