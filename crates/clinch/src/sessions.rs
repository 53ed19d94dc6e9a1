//! Who is logged in to the console: a secret in a cookie, of which only the digest is kept, in the store; so every node knows it, and
//! every node knows when it is over.

use crate::api::AdminToken;
use crate::clock::secret_bytes;
use crate::house::House;
use crate::passwords::{self, BadPassword, Passwords};
use clinch_core::audit::Who;
use clinch_core::oidc::Guest;
use clinch_core::session::{LINK_LASTS, Tries, wants_note};
use clinch_core::time::Timestamp;
use clinch_core::user::{ADMIN, PasswordHash, TokenDigest, UserName};
use clinch_store::{NewLink, NewSession, Proof, Seen, Welcomed};
use data_encoding::BASE64URL_NOPAD;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// An address may try so often at once, and again after so long.
const ADDRESS_TRIES: (u32, Duration) = (20, Duration::from_secs(15));
/// So may all the world with one name.
const NAME_TRIES: (u32, Duration) = (10, Duration::from_secs(60));
/// So many addresses, and so many names, are remembered.
const TRIED_MAX: usize = 10_000;

pub struct Sessions {
    house: House,
    admin: AdminToken,
    passwords: Passwords,
    by_address: Mutex<Tries<IpAddr>>,
    by_name: Mutex<Tries<TokenDigest>>,
}

/// What comes of an attempt to log in.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// The secret of a new session, for its cookie.
    In(String),
    /// It is not known who that is.
    Refused,
    /// There were too many of late: the next is looked at after so long.
    Wait(Duration),
}

/// Why somebody for whom a provider vouches is not let in, and who can change that.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    #[error(
        "The provider knows you, and nobody has given you a role here. Ask an admin for one: by a group of yours (`oidc: {{roles: …}}` in \
         clinch.yml), or as a user (`clinch users add` and `oidc: {{users: …}}`)."
    )]
    NoRole,
    #[error(
        "A user here is called `{0}` already, and nobody has said that it is you. Ask an admin for a line below `oidc: {{users: …}}` in \
         clinch.yml."
    )]
    Taken(UserName),
    #[error("There are as many users as there can be. Ask an admin to remove one.")]
    TooMany,
    #[error("You were removed at this moment.")]
    Gone,
}

/// What comes of a new password of one's own.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    Changed,
    /// The one that was given for the present one is not it.
    Refused,
    Wait(Duration),
}

impl Sessions {
    pub fn new(house: House, admin: AdminToken) -> Sessions {
        let tries = |(most, every)| Mutex::new(Tries::new(most, every, TRIED_MAX));
        Sessions {
            house,
            admin,
            passwords: Passwords::prepared(),
            by_address: tries(ADDRESS_TRIES),
            by_name: Mutex::new(Tries::new(NAME_TRIES.0, NAME_TRIES.1, TRIED_MAX)),
        }
    }

    /// Logs in with a name and a password; the admin with the admin token.
    pub async fn enter(&self, name: &str, word: &str, from: IpAddr) -> clinch_store::Result<Entry> {
        if let Err(wait) = self.may_try(Some(name), from) {
            return Ok(Entry::Wait(wait));
        }
        let proof = match name == ADMIN {
            // Pasted, perhaps with a space around it.
            true => self.admin.recognises(word.trim()).then_some(Proof::Admin),
            false => self.proof(name, word).await?,
        };
        let entry = match proof {
            Some(proof) => self.open(proof, from).await?,
            None => Entry::Refused,
        };
        match entry {
            Entry::In(_) => self.was_good(Some(name), from),
            // Not the name: people type passwords there.
            _ => tracing::warn!("a log-in from {from} was refused"),
        }
        Ok(entry)
    }

    /// Logs in with a link, which is used up by it.
    pub async fn redeem(&self, code: &str, from: IpAddr) -> clinch_store::Result<Entry> {
        if let Err(wait) = self.may_try(None, from) {
            return Ok(Entry::Wait(wait));
        }
        let entry = self.open(Proof::Link(TokenDigest::of(code)), from).await?;
        if let Entry::In(_) = entry {
            self.was_good(None, from);
        }
        Ok(entry)
    }

    /// Logs somebody in for whom a provider vouches: as who he is known, or was invited, or with the role that he is given.
    pub async fn welcome(&self, guest: Guest, from: IpAddr) -> clinch_store::Result<Result<String, Unwelcome>> {
        let record = Who::clinch(&format!("web {from}")).record("a log-in by OIDC", self.house.clock.now());
        let name = match self.house.store.welcome(guest.clone(), record).await? {
            Welcomed::As(name) => name,
            Welcomed::NoRole => return Ok(Err(Unwelcome::NoRole)),
            Welcomed::Taken => return Ok(Err(Unwelcome::Taken(guest.name))),
            Welcomed::TooMany => return Ok(Err(Unwelcome::TooMany)),
        };
        Ok(match self.open(Proof::Identity(name, guest.identity), from).await? {
            Entry::In(secret) => {
                self.was_good(None, from);
                Ok(secret)
            }
            _ => Err(Unwelcome::Gone),
        })
    }

    async fn proof(&self, name: &str, word: &str) -> clinch_store::Result<Option<Proof>> {
        let user = match name.parse::<UserName>() {
            Ok(name) => self.house.store.user(name).await?,
            Err(_) => None,
        };
        let kept = user.as_ref().and_then(|user| user.password.clone());
        // What is too long is nobody's; it costs the same.
        let word = if word.len() <= passwords::BYTES_MAX { word } else { "" };
        let fits = self.passwords.fits(word.to_string(), kept.clone()).await;
        Ok(user.zip(kept).filter(|_| fits).map(|(user, kept)| Proof::Password(user.name, kept)))
    }

    async fn open(&self, proof: Proof, from: IpAddr) -> clinch_store::Result<Entry> {
        let secret = new_secret();
        let (digest, at) = (TokenDigest::of(&secret), self.house.clock.now());
        let session = NewSession { digest, proof, origin: format!("web {from}"), at };
        Ok(match self.house.store.open_session(session).await? {
            Some(_) => Entry::In(secret),
            None => Entry::Refused,
        })
    }

    /// Who has this session, if it is live. Asked each time, so that who was removed is out at once, on every node.
    pub async fn whose(&self, secret: &str, origin: String) -> clinch_store::Result<Option<Who>> {
        let (digest, now) = (TokenDigest::of(secret), self.house.clock.now());
        let Some(session) = self.house.store.session(digest).await?.filter(|session| session.is_live(now)) else {
            return Ok(None);
        };
        if wants_note(Some(session.seen_at), now) {
            self.house.saw(Seen::Session(digest)).await;
        }
        Ok(Some(Who { name: session.name, origin, role: session.role, source: None }))
    }

    /// Whether this log-in still stands. To ask is not to use it.
    pub async fn stands(&self, secret: &str) -> clinch_store::Result<bool> {
        let session = self.house.store.session(TokenDigest::of(secret)).await?;
        Ok(session.is_some_and(|session| session.is_live(self.house.clock.now())))
    }

    pub async fn leave(&self, secret: &str) -> clinch_store::Result<()> {
        self.house.store.end_session(TokenDigest::of(secret)).await
    }

    /// A code that logs this person in once, with what he came with, and until when.
    pub async fn link(&self, who: &Who) -> clinch_store::Result<(String, Timestamp)> {
        let (code, at) = (new_secret(), self.house.clock.now());
        let link = NewLink { digest: TokenDigest::of(&code), who: who.clone(), at, expires_at: at + LINK_LASTS };
        let until = link.expires_at;
        self.house.store.make_link(link).await?;
        Ok((code, until))
    }

    /// What is kept of a new password of this user.
    pub async fn hash(&self, name: &str, password: &str) -> Result<PasswordHash, BadPassword> {
        passwords::check(name, password)?;
        Ok(self.passwords.hash(password.to_string()).await)
    }

    /// Another password of one's own, for who knows the present one.
    pub async fn change(
        &self,
        who: &Who,
        present: &str,
        new: PasswordHash,
        from: IpAddr,
    ) -> clinch_store::Result<Changed> {
        if let Err(wait) = self.may_try(Some(&who.name), from) {
            return Ok(Changed::Wait(wait));
        }
        let Some(Proof::Password(name, _)) = self.proof(&who.name, present).await? else { return Ok(Changed::Refused) };
        self.was_good(Some(&who.name), from);
        let record = who.record("", self.house.clock.now());
        Ok(match self.house.store.set_password(name, new, record).await? {
            true => Changed::Changed,
            false => Changed::Refused,
        })
    }

    /// Counted before it is looked at: many at once are many.
    pub fn may_try(&self, name: Option<&str>, from: IpAddr) -> Result<(), Duration> {
        let now = self.house.clock.now();
        lock(&self.by_address).take(&network(from), now)?;
        name.map_or(Ok(()), |name| lock(&self.by_name).take(&TokenDigest::of(name), now))
    }

    fn was_good(&self, name: Option<&str>, from: IpAddr) {
        lock(&self.by_address).give_back(&network(from));
        if let Some(name) = name {
            lock(&self.by_name).give_back(&TokenDigest::of(name));
        }
    }
}

fn lock<T>(tries: &Mutex<T>) -> MutexGuard<'_, T> {
    tries.lock().expect("nobody panics while holding the tries")
}

fn new_secret() -> String {
    BASE64URL_NOPAD.encode(&secret_bytes())
}

/// Who has one address of the new kind has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_the_addresses_of_one_network_try_as_one() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
