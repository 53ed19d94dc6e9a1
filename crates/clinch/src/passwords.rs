//! Passwords: what makes a good one, what is kept of it, and whether one fits. The work of it is heavy on purpose, so it is done beside
//! the threads that answer, and by few at a time.

use crate::clock::secret_bytes;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use clinch_core::user::PasswordHash;
use std::sync::Arc;
use tokio::sync::Semaphore;

pub const CHARS_MIN: usize = 12;
pub const BYTES_MAX: usize = 256;
/// Each takes a processor and 19 MiB for a moment: whoever tries in masses waits in line.
const AT_ONCE: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPassword {
    #[error("a password has at least {CHARS_MIN} characters; several words make a good one")]
    Short,
    #[error("a password has at most {BYTES_MAX} bytes")]
    Long,
    #[error("a password is something else than the name")]
    Name,
}

/// Whether somebody of this name may have this password.
pub fn check(name: &str, password: &str) -> Result<(), BadPassword> {
    if password.chars().count() < CHARS_MIN {
        return Err(BadPassword::Short);
    }
    if password.len() > BYTES_MAX {
        return Err(BadPassword::Long);
    }
    match password.eq_ignore_ascii_case(name) {
        true => Err(BadPassword::Name),
        false => Ok(()),
    }
}

pub struct Passwords {
    places: Arc<Semaphore>,
    /// What fits nothing: whether there is a user of some name must not be heard from how long the answer takes.
    of_nobody: PasswordHash,
}

impl Passwords {
    pub fn prepared() -> Passwords {
        // Made of what nobody knows, with the cost of a real one; the work is done once, at the start.
        let nobody = hash(&data_encoding::BASE64URL_NOPAD.encode(&secret_bytes()));
        Passwords { places: Arc::new(Semaphore::new(AT_ONCE)), of_nobody: nobody }
    }

    pub async fn hash(&self, password: String) -> PasswordHash {
        self.beside(move || hash(&password)).await
    }

    /// Whether it fits; without a hash it costs the same and does not.
    pub async fn fits(&self, password: String, kept: Option<PasswordHash>) -> bool {
        let is_kept = kept.is_some();
        let kept = kept.unwrap_or_else(|| self.of_nobody.clone());
        self.beside(move || argon2().verify_password(password.as_bytes(), kept.as_str()).is_ok()).await && is_kept
    }

    async fn beside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let place = self.places.clone().acquire_owned().await.expect("the places are never closed");
        // It keeps its place until it has ended, also when nobody waits for it any more.
        let work = move || {
            let done = work();
            drop(place);
            done
        };
        tokio::task::spawn_blocking(work).await.expect("hashing does not panic")
    }
}

/// Argon2id with 19 MiB, two rounds, one lane: what OWASP names first.
fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default())
}

fn hash(password: &str) -> PasswordHash {
    let salt: [u8; 16] = *secret_bytes().first_chunk().expect("32 bytes begin with 16");
    let phc = argon2().hash_password_with_salt(password.as_bytes(), &salt).expect("the parameters are sound");
    PasswordHash::new(phc.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn k1_a_password_fits_what_was_kept_of_it_and_nothing_else_does() {
        let passwords = Passwords::prepared();
        let kept = passwords.hash("correct horse battery".into()).await;
        assert!(kept.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{}", kept.as_str());
        assert_ne!(kept, passwords.hash("correct horse battery".into()).await, "salted");
        assert!(passwords.fits("correct horse battery".into(), Some(kept.clone())).await);
        assert!(!passwords.fits("correct horse batterz".into(), Some(kept)).await);
        assert!(!passwords.fits("correct horse battery".into(), None).await);
        assert!(!passwords.fits("x".into(), Some(PasswordHash::new("not one".into()))).await);
    }

    #[tokio::test]
    async fn k1_who_hangs_up_does_not_make_room_for_more_work_than_there_are_places() {
        let passwords = Passwords::prepared();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let work = passwords.beside(move || {
            begun.send(()).expect("somebody listens");
            let _ = ends.recv();
        });
        tokio::select! {
            () = work => panic!("it goes on until it is told"),
            begun = begins => begun.expect("it began"),
        }
        assert_eq!(passwords.places.available_permits(), AT_ONCE - 1, "nobody waits for it, and it is at work");
        end.send(()).expect("it waits");
        let _all = passwords.places.acquire_many(AT_ONCE as u32).await.expect("never closed");
    }

    #[test]
    fn k1_a_password_is_long_enough_and_not_the_name() {
        assert_eq!(check("maya", "correct horse"), Ok(()));
        assert_eq!(check("maya", "short"), Err(BadPassword::Short));
        assert_eq!(check("maya", &"x".repeat(257)), Err(BadPassword::Long));
        assert_eq!(check("maya-of-clinch", "Maya-of-Clinch"), Err(BadPassword::Name));
    }
}
