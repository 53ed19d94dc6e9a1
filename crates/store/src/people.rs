//! People: who they are, their tokens, and their log-ins. What recognises them is kept as digests only.

use crate::{Act, Record};
use clinch_core::audit::{Right, Who};
use clinch_core::oidc::{Guest, Identity};
use clinch_core::session::{IDLE, LASTS, Session};
use clinch_core::time::Timestamp;
use clinch_core::user::{ADMIN, PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use serde_json::{Value, json};
use std::sync::Arc;

/// At most this many people are users.
pub const USERS_MAX: i64 = 1_000;
/// At most this many tokens has one of them.
pub const USER_TOKENS_MAX: i64 = 50;
/// At most this many log-ins of one person are live; the oldest goes for a new one. The same holds for links.
pub const SESSIONS_MAX: i64 = 20;

/// Somebody who is to be a user.
#[derive(Clone, Debug)]
pub struct NewUser {
    pub name: UserName,
    pub role: Role,
    pub password: Option<PasswordHash>,
    pub token: Option<NewUserToken>,
}

/// A token that somebody is to have.
#[derive(Clone, Debug)]
pub struct NewUserToken {
    pub id: UserTokenId,
    pub digest: TokenDigest,
    /// `None`: that of the user, also when it changes.
    pub role: Option<Role>,
    /// Only what came in through this source.
    pub source: Option<String>,
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserAdded {
    Added,
    /// Somebody has this name; nothing was changed.
    Taken,
    /// There are as many as may be.
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserTokenMade {
    Made,
    /// There is no such user.
    NotFound,
    /// The user has this role, which does not allow all that the token would.
    TooMuch(Role),
    /// He has as many as may be.
    TooMany,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    pub name: UserName,
    pub added_at: Timestamp,
    pub role: Role,
    pub password: Option<PasswordHash>,
    /// Who a provider says that it is.
    pub identity: Option<Identity>,
}

/// A token of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTokenRow {
    pub id: UserTokenId,
    pub user: UserName,
    pub made_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub used_at: Option<Timestamp>,
    pub role: Option<Role>,
    pub source: Option<String>,
    pub digest: TokenDigest,
}

/// Who shows a token, and what he may do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: UserName,
    pub role: Role,
    pub source: Option<Arc<str>>,
    pub used_at: Option<Timestamp>,
}

impl Holder {
    /// `None`: the token is for more than its user may.
    pub(crate) fn of(token: &UserTokenRow, user: Role) -> Option<Holder> {
        let role = token.role.unwrap_or(user);
        let source = token.source.as_deref().map(Arc::from);
        user.covers(role).then(|| Holder { name: token.user.clone(), role, source, used_at: token.used_at })
    }
}

/// Who somebody is here whom a provider vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Welcomed {
    As(UserName),
    /// Nobody has given him a role. If he was known, his log-ins are over.
    NoRole,
    /// A user has his name, and nobody said that it is he.
    Taken,
    /// There are as many users as may be.
    TooMany,
}

/// What is to be done to welcome somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    Nothing,
    Change(Role),
    /// He is the user of that name from now on, with this role if it is another.
    Link(Option<Role>),
    Add(Role),
    NoRole,
    Taken,
}

/// `known` is the user who he is, `named` the one who has his name. Nobody becomes a user who was there before because of a name.
pub(crate) fn welcome(guest: &Guest, known: Option<&UserRow>, named: Option<&UserRow>) -> Welcome {
    let other = |user: &UserRow| guest.role.filter(|role| *role != user.role);
    match (known, named) {
        (Some(_), _) if guest.role.is_none() && !guest.is_invited => Welcome::NoRole,
        (Some(user), _) => other(user).map_or(Welcome::Nothing, Welcome::Change),
        (None, Some(user)) if guest.is_invited && user.identity.is_none() => Welcome::Link(other(user)),
        (None, Some(_)) => Welcome::Taken,
        (None, None) => guest.role.map_or(Welcome::NoRole, Welcome::Add),
    }
}

/// A link that logs somebody in, once.
#[derive(Clone, Debug)]
pub struct NewLink {
    pub digest: TokenDigest,
    /// Who asked for it, for himself; with what he came with, and no more.
    pub who: Who,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// Somebody is to be logged in.
#[derive(Clone, Debug)]
pub struct NewSession {
    pub digest: TokenDigest,
    pub proof: Proof,
    pub origin: String,
    pub at: Timestamp,
}

#[derive(Clone, Debug)]
pub enum Proof {
    /// His password was found to fit this, which must still be what is kept of it.
    Password(UserName, PasswordHash),
    /// A provider says that it is he, who must still be this user.
    Identity(UserName, Identity),
    /// He showed the admin token.
    Admin,
    /// He has this link, which is used up with it.
    Link(TokenDigest),
}

/// What somebody was recognised by.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    Session(TokenDigest),
    Token(TokenDigest),
}

impl NewSession {
    pub(crate) fn of(&self, name: &str, role: Role) -> Session {
        let (made_at, expires_at) = (self.at, self.at + LASTS);
        Session { name: name.into(), role, made_at, seen_at: made_at, expires_at }
    }

    pub(crate) fn acted(&self, session: &Session) -> (Act, Record) {
        let with = match self.proof {
            Proof::Password(..) => "password",
            Proof::Identity(..) => "oidc",
            Proof::Admin => "admin token",
            Proof::Link(_) => "link",
        };
        let after = json!({ "with": with, "until": session.expires_at.to_string() });
        let right = if session.name == ADMIN { Right::Given } else { Right::User(session.role) };
        let record = Record {
            actor: session.name.clone(),
            origin: self.origin.clone(),
            right,
            reason: String::new(),
            at: self.at,
        };
        (act("me.log_in", &session.name, Value::Null, after), record)
    }

    /// What was not used since then is over.
    pub(crate) fn idle_before(&self) -> Timestamp {
        self.at - IDLE
    }
}

/// A session of somebody who is a user no more, or has less than he logged in with, is none.
pub(crate) fn standing(session: Session, user: Option<Role>) -> Option<Session> {
    let stands = session.name == ADMIN || user.is_some_and(|user| user.covers(session.role));
    stands.then_some(session)
}

impl NewUser {
    pub(crate) fn act(&self) -> Act {
        let after = json!({
            "role": self.role.word(),
            "password": self.password.is_some(),
            "token": self.token.as_ref().map(|token| token.id.to_string()),
        });
        act("user.add", self.name.as_str(), Value::Null, after)
    }
}

impl NewUserToken {
    pub(crate) fn act(&self, user: &UserName) -> Act {
        let after = json!({
            "token": self.id.to_string(),
            "role": self.role.map(Role::word),
            "source": self.source,
            "expires_at": self.expires_at.map(|at| at.to_string()),
        });
        act("user.token.make", user.as_str(), Value::Null, after)
    }
}

impl NewLink {
    pub(crate) fn acted(&self) -> (Act, Record) {
        let after = json!({ "until": self.expires_at.to_string() });
        (act("me.link", &self.who.name, Value::Null, after), self.who.record("", self.at))
    }
}

pub(crate) fn removed(user: &UserRow) -> Act {
    let before = json!({ "role": user.role.word(), "added_at": user.added_at.to_string() });
    act("user.remove", user.name.as_str(), before, Value::Null)
}

pub(crate) fn role_set(user: &UserRow, role: Role) -> Act {
    act("user.role", user.name.as_str(), json!({ "role": user.role.word() }), json!({ "role": role.word() }))
}

pub(crate) fn linked(user: &UserName) -> Act {
    act("user.link", user.as_str(), json!({ "identity": false }), json!({ "identity": true }))
}

/// Of himself, or of somebody else: the one needs nothing, the other the permission.
pub(crate) fn password_set(user: &UserRow, record: &Record) -> Act {
    let action = if record.actor == user.name.as_str() { "me.password" } else { "user.password" };
    act(action, user.name.as_str(), json!({ "password": user.password.is_some() }), json!({ "password": true }))
}

pub(crate) fn token_removed(user: &UserName, id: UserTokenId) -> Act {
    act("user.token.remove", user.as_str(), json!({ "token": id.to_string() }), Value::Null)
}

fn act(action: &'static str, name: &str, before: Value, after: Value) -> Act {
    Act { action, object: format!("user:{name}"), job: None, before, after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(role: Role, identity: Option<Identity>) -> UserRow {
        let name = "maya".parse().expect("a name");
        UserRow { name, added_at: Timestamp::from_micros(0), role, password: None, identity }
    }

    #[test]
    fn k1_a_name_alone_makes_nobody_a_user_who_was_there_before() {
        let identity = Identity::of("https://id.example.com", "u-1");
        let guest = |role, is_invited| Guest { identity, name: "maya".parse().expect("a name"), role, is_invited };
        let (free, held) = (user(Role::Viewer, None), user(Role::Viewer, Some(Identity::of("https://x", "y"))));
        let (admin, viewer) = (Some(Role::Admin), Some(Role::Viewer));
        for (guest, known, named, wanted) in [
            (guest(admin, false), None, None, Welcome::Add(Role::Admin)),
            (guest(None, true), None, None, Welcome::NoRole),
            (guest(admin, false), None, Some(&free), Welcome::Taken),
            (guest(admin, true), None, Some(&free), Welcome::Link(admin)),
            (guest(viewer, true), None, Some(&free), Welcome::Link(None)),
            (guest(None, true), None, Some(&free), Welcome::Link(None)),
            (guest(None, true), None, Some(&held), Welcome::Taken),
            (guest(viewer, false), Some(&held), Some(&free), Welcome::Nothing),
            (guest(admin, false), Some(&held), None, Welcome::Change(Role::Admin)),
            (guest(None, true), Some(&held), None, Welcome::Nothing),
            (guest(None, false), Some(&held), None, Welcome::NoRole),
        ] {
            assert_eq!(welcome(&guest, known, named), wanted, "{guest:?} {known:?} {named:?}");
        }
    }
}
