//! A person who may ask: known by name, recognised by a token of which only the digest is kept, and allowed what his role
//! allows.

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use std::fmt;
use std::str::FromStr;

pub const NAME_BYTES_MAX: usize = 64;
/// Whoever shows the admin token.
pub const ADMIN: &str = "admin";
/// Who does what clinch does by itself.
pub const CLINCH: &str = "clinch";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserName(String);

impl UserName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUserName {
    #[error("`{0}` is not a user's name; use 1 to {NAME_BYTES_MAX} of a-z, 0-9, `.`, `_` and `-`, a letter first")]
    NotAName(String),
    #[error("`{0}` is a name of clinch itself; choose another")]
    Taken(String),
}

impl FromStr for UserName {
    type Err = BadUserName;
    fn from_str(text: &str) -> Result<Self, BadUserName> {
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
        let fine = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
        if !begins || !fine || text.len() > NAME_BYTES_MAX {
            return Err(BadUserName::NotAName(text.chars().take(80).collect()));
        }
        match is_own(text) {
            true => Err(BadUserName::Taken(text.into())),
            false => Ok(UserName(text.into())),
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a name is that of no user: clinch itself, or whoever has the admin token.
pub fn is_own(name: &str) -> bool {
    matches!(name, ADMIN | CLINCH)
}

/// What somebody is here for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Looks.
    Viewer,
    /// Keeps it running: replays, resolves, pauses, drops.
    Operator,
    /// Decides what waits for people.
    Approver,
    /// Decides, and stops what goes out.
    Growth,
    Admin,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role; they are viewer, operator, approver, growth, admin")]
pub struct NotARole(String);

impl Role {
    pub const ALL: [Role; 5] = [Role::Viewer, Role::Operator, Role::Approver, Role::Growth, Role::Admin];

    pub const fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Approver => "approver",
            Role::Growth => "growth",
            Role::Admin => "admin",
        }
    }

    /// The one table of who may do what; docs/users.md shows it.
    pub const fn may(self, permission: Permission) -> bool {
        use Permission::*;
        match self {
            Role::Viewer => matches!(permission, Read),
            Role::Operator => {
                matches!(
                    permission,
                    Read | Replay | Resolve | Pause | SafeMode | Drop | Settings | Budget | Schedule | Alerts
                )
            }
            Role::Approver => matches!(permission, Read | Approve),
            Role::Growth => matches!(permission, Read | Approve | SafeMode),
            Role::Admin => true,
        }
    }

    /// Whether it allows all that the other allows.
    pub fn covers(self, other: Role) -> bool {
        Permission::ALL.into_iter().all(|permission| !other.may(permission) || self.may(permission))
    }
}

impl FromStr for Role {
    type Err = NotARole;
    fn from_str(text: &str) -> Result<Self, NotARole> {
        let spelt = |role: &Role| role.word() == text;
        Role::ALL.into_iter().find(spelt).ok_or_else(|| NotARole(text.chars().take(80).collect()))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What can be allowed. Every route of the API needs one, and so does every act on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// To look, at what is masked for everybody.
    Read,
    /// To let dead letters run again.
    Replay,
    /// To say what became of an effect of unknown outcome.
    Resolve,
    Pause,
    SafeMode,
    /// To vote on what waits for people.
    Approve,
    /// To give dead letters up, or to confirm it.
    Drop,
    Settings,
    Budget,
    /// To let a schedule run now.
    Schedule,
    /// To silence alerts, and to try their channels.
    Alerts,
    /// To erase somebody's data.
    Erase,
    /// To change the keys of the store.
    Encryption,
    /// To give senders tokens.
    Senders,
    Users,
    /// To make another workspace live, or to try one.
    Config,
}

impl Permission {
    pub const ALL: [Permission; 16] = [
        Permission::Read,
        Permission::Replay,
        Permission::Resolve,
        Permission::Pause,
        Permission::SafeMode,
        Permission::Approve,
        Permission::Drop,
        Permission::Settings,
        Permission::Budget,
        Permission::Schedule,
        Permission::Alerts,
        Permission::Erase,
        Permission::Encryption,
        Permission::Senders,
        Permission::Users,
        Permission::Config,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Permission::Read => "read",
            Permission::Replay => "replay",
            Permission::Resolve => "resolve",
            Permission::Pause => "pause",
            Permission::SafeMode => "safe_mode",
            Permission::Approve => "approve",
            Permission::Drop => "drop",
            Permission::Settings => "settings",
            Permission::Budget => "budget",
            Permission::Schedule => "schedule",
            Permission::Alerts => "alerts",
            Permission::Erase => "erase",
            Permission::Encryption => "encryption",
            Permission::Senders => "senders",
            Permission::Users => "users",
            Permission::Config => "config",
        }
    }

    /// What an act needs that the audit calls so. `None`: no user does it.
    pub fn of_act(action: &str) -> Option<Permission> {
        let (family, verb) = action.split_once('.')?;
        match (family, verb) {
            ("job", "replay") | ("replay", _) => Some(Permission::Replay),
            ("job", "drop" | "drop.ask" | "drop.withdraw" | "undrop") => Some(Permission::Drop),
            ("effect", "resolve") => Some(Permission::Resolve),
            ("pause", _) => Some(Permission::Pause),
            ("safe_mode", "on" | "off") => Some(Permission::SafeMode),
            ("approval", "approve" | "reject" | "cancel") => Some(Permission::Approve),
            ("setting", _) => Some(Permission::Settings),
            ("budget", _) => Some(Permission::Budget),
            ("schedule", _) => Some(Permission::Schedule),
            ("alert", _) => Some(Permission::Alerts),
            ("data", "forget") => Some(Permission::Erase),
            ("keys", "rotate") => Some(Permission::Encryption),
            ("token", _) => Some(Permission::Senders),
            ("user", _) => Some(Permission::Users),
            ("config", "apply" | "rollback") => Some(Permission::Config),
            // What everybody does with himself.
            ("me", "log_in" | "link" | "password") => Some(Permission::Read),
            _ => None,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What is kept of a token: enough to recognise it, and nothing that could leak it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> TokenDigest {
        TokenDigest(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(***)")
    }
}

/// What is kept of a password: an argon2id string (PHC), which says how it was made and not what it was made of.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    pub fn new(phc: String) -> PasswordHash {
        PasswordHash(phc)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(***)")
    }
}

/// Names a token of a user without being one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserTokenId([u8; 8]);

impl UserTokenId {
    /// From random bytes of whoever has dice.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        UserTokenId(bytes)
    }
}

impl fmt::Display for UserTokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for UserTokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the id of a user's token; one looks like key_0f1e2d3c4b5a6978")]
pub struct BadUserTokenId(String);

impl FromStr for UserTokenId {
    type Err = BadUserTokenId;
    fn from_str(text: &str) -> Result<Self, BadUserTokenId> {
        let bytes = text.strip_prefix("key_").and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok());
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) => Ok(UserTokenId(bytes)),
            // A whole token that was pasted by mistake must not come back in a message.
            None => Err(BadUserTokenId(text.chars().take(8).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g3_a_user_has_a_plain_name_that_is_not_one_of_clinchs_own() {
        for good in ["maya", "j.doe-2", "a"] {
            assert_eq!(good.parse::<UserName>().expect("a name").to_string(), good);
        }
        for bad in ["", "Maya", "a b", "é", "2nd", "-x", "schedule nightly", &"x".repeat(65)] {
            assert!(matches!(bad.parse::<UserName>(), Err(BadUserName::NotAName(_))), "{bad}");
        }
        for own in ["admin", "clinch"] {
            assert_eq!(own.parse::<UserName>(), Err(BadUserName::Taken(own.into())));
        }
    }

    #[test]
    fn k1_every_role_may_what_the_table_says_and_nothing_else() {
        use Permission::*;
        let table = [
            (Role::Viewer, vec![Read]),
            (Role::Operator, vec![Read, Replay, Resolve, Pause, SafeMode, Drop, Settings, Budget, Schedule, Alerts]),
            (Role::Approver, vec![Read, Approve]),
            (Role::Growth, vec![Read, SafeMode, Approve]),
            (Role::Admin, Permission::ALL.to_vec()),
        ];
        for (role, allowed) in table {
            let may: Vec<_> = Permission::ALL.into_iter().filter(|permission| role.may(*permission)).collect();
            assert_eq!(may, allowed, "{role}");
            assert_eq!(role.word().parse(), Ok(role));
            assert!(role.covers(Role::Viewer) && Role::Admin.covers(role));
        }
        assert!(!Role::Operator.covers(Role::Approver) && !Role::Approver.covers(Role::Operator));
        for none in ["", "Admin", "root", "viewer "] {
            assert!(none.parse::<Role>().is_err(), "{none}");
        }
    }

    #[test]
    fn k1_what_no_user_does_needs_more_than_any_permission() {
        assert_eq!(Permission::of_act("job.drop.ask"), Some(Permission::Drop));
        for own in ["config.activate", "safe_mode.trip", "approval.ask", "approval.expire", "job", "", "job.fly"] {
            assert_eq!(Permission::of_act(own), None, "{own}");
        }
    }
}
