//! A person who may ask: known by name, and recognised by a token of which only the digest is kept.

use aws_lc_rs::digest::{SHA256, digest};
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
        match text {
            ADMIN | CLINCH => Err(BadUserName::Taken(text.into())),
            _ => Ok(UserName(text.into())),
        }
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is kept of a token: enough to recognise it, and nothing that could leak it.
#[derive(Clone, Copy, PartialEq, Eq)]
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
}
