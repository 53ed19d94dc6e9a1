//! Who may ask: whoever shows the admin token, made at the first start and kept in the data directory for the local command
//! line; and people with tokens of their own.

use super::Route;
use super::problem::Problem;
use crate::clock;
use crate::house::House;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{AUTHORIZATION, USER_AGENT};
use axum::middleware::Next;
use axum::response::Response;
use clinch_core::audit::Who;
use clinch_core::session::wants_note;
use clinch_core::user::{ADMIN, Role, TokenDigest};
use clinch_store::Seen;
use data_encoding::BASE64URL_NOPAD;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The name of its file in the data directory.
pub const TOKEN_FILE: &str = "admin.token";
const PREFIX: &str = "clk_";

/// What is known of the admin token.
#[derive(Clone, Copy)]
pub struct AdminToken(TokenDigest);

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(***)")
    }
}

impl AdminToken {
    pub fn of(token: &str) -> AdminToken {
        AdminToken(TokenDigest::of(token))
    }

    /// Reads the token of this data directory, or makes one, which is given in clear this once.
    pub fn load_or_create(data_dir: &Path) -> io::Result<(AdminToken, Option<String>)> {
        let path = data_dir.join(TOKEN_FILE);
        if path.exists() {
            return Ok((AdminToken::of(&read(&path)?), None));
        }
        let token = new_token();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(named)?;
        file.write_all(format!("{token}\n").as_bytes()).and_then(|()| file.sync_all()).map_err(named)?;
        Ok((AdminToken::of(&token), Some(token)))
    }

    /// Digests are compared, all of them to the end: how long it takes says nothing about the token.
    pub fn recognises(&self, presented: &str) -> bool {
        verify_slices_are_equal(self.0.as_bytes(), TokenDigest::of(presented).as_bytes()).is_ok()
    }
}

/// The token in this file, which only its owner may read.
pub fn read(path: &Path) -> io::Result<String> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mode = std::fs::metadata(path).map_err(named)?.mode();
    if mode & 0o077 != 0 {
        let said = format!("{0}: others may read the admin token; run `chmod 600 {0}`", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
    }
    let text = std::fs::read_to_string(path).map_err(named)?;
    let token = text.trim();
    if !token.starts_with(PREFIX) || token.len() < 40 {
        let said = format!("{}: this is no admin token; remove the file and start again to get one", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    Ok(token.to_string())
}

/// The text of a token that nobody has: a secret, to be shown once.
pub fn new_token() -> String {
    format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&clock::secret_bytes()))
}

/// The address of whoever called, which the listener knows.
#[derive(Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Lets through who shows a token, and tells the others in the room who it is.
pub async fn require(
    State((admin, house)): State<(AdminToken, House)>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
    let origin = request.extensions().get::<Peer>().map_or_else(|| "api".into(), |Peer(ip)| format!("api {ip}"));
    let who = match shown {
        Some(shown) if admin.recognises(shown) => Who { name: ADMIN.into(), origin, role: Role::Admin, source: None },
        // Found by its digest: how long that takes says nothing about any token. Asked each time, so that who was removed is
        // out at once, on every node.
        Some(shown) if shown.starts_with(PREFIX) => {
            let (digest, now) = (TokenDigest::of(shown), house.clock.now());
            let Some(holder) = house.store.holder(digest, now).await? else { return Err(Problem::unauthorized()) };
            if wants_note(holder.used_at, now) {
                house.saw(Seen::Token(digest)).await;
            }
            Who { name: holder.name.to_string(), origin, role: holder.role, source: holder.source }
        }
        _ => return Err(Problem::unauthorized()),
    };
    request.extensions_mut().insert(who);
    Ok(next.run(request).await)
}

/// Lets through whose role allows what the route needs. Whether it still does is asked again where something is written.
pub async fn may(State(route): State<Route>, request: Request, next: Next) -> Result<Response, Problem> {
    let Some(who) = request.extensions().get::<Who>() else { return Err(Problem::unauthorized()) };
    let Who { name, role, source, .. } = who;
    if !role.may(route.permission) {
        let needs = route.permission;
        let said =
            format!("{name} is {role}, and that role does not allow `{needs}`; docs/users.md has the table of roles.");
        return Err(Problem::not_allowed(said));
    }
    if let (Some(source), false) = (source, route.of_source) {
        let said =
            format!("This token of {name} shows jobs and events of source {source} only, and does nothing else.");
        return Err(Problem::not_allowed(said));
    }
    let acts = if route.method == Method::GET { None } else { request.extensions().get::<House>().cloned() };
    let via = via(&request, &who.origin);
    let response = next.run(request).await;
    if let Some(house) = acts.filter(|_| response.status().is_success()) {
        house.metrics.acted(route.permission.word(), via);
    }
    Ok(response)
}

/// Where somebody acts: on a page, on the command line, or with a program of his own.
fn via(request: &Request, origin: &str) -> &'static str {
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    match () {
        () if origin.starts_with("web") => "web",
        () if agent.starts_with("clinch/") => "cli",
        () => "api",
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_kept_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, printed) = AdminToken::load_or_create(dir.path()).expect("made");
        let printed = printed.expect("a new token is printed");
        assert_eq!(printed.len(), 4 + 43);
        assert!(first.recognises(&printed) && !first.recognises("clk_other"));
        let (second, again) = AdminToken::load_or_create(dir.path()).expect("read");
        assert!(second.recognises(&printed) && again.is_none());

        let path = dir.path().join(TOKEN_FILE);
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        let said = AdminToken::load_or_create(dir.path()).expect_err("others may read it").to_string();
        assert!(said.contains("chmod 600"), "{said}");
    }

    #[test]
    fn a_bearer_token_is_found_in_its_header() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer abc"), Some("abc"));
        for other in ["", "abc", "Basic abc"] {
            assert_eq!(bearer(other), None, "{other}");
        }
    }
}
