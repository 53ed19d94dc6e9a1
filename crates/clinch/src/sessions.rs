//! Who is logged in to the console: a secret in a cookie, of which only the digest is kept.

use crate::api::AdminToken;
use crate::clock::secret_bytes;
use clinch_core::audit::Who;
use clinch_core::user::{ADMIN, Role, TokenDigest};
use data_encoding::BASE64URL_NOPAD;
use std::collections::HashMap;
use std::sync::Mutex;

pub struct Sessions {
    admin: AdminToken,
    open: Mutex<HashMap<[u8; 32], String>>,
}

impl Sessions {
    pub fn new(admin: AdminToken) -> Sessions {
        Sessions { admin, open: Mutex::default() }
    }

    /// The secret of a new session; `None`: it is not known who that is.
    pub async fn enter(&self, name: &str, word: &str) -> Option<String> {
        if name != ADMIN || !self.admin.recognises(word) {
            return None;
        }
        let secret = BASE64URL_NOPAD.encode(&secret_bytes());
        self.open().insert(*TokenDigest::of(&secret).as_bytes(), name.into());
        Some(secret)
    }

    pub async fn whose(&self, secret: &str, origin: String) -> Option<Who> {
        let name = self.open().get(TokenDigest::of(secret).as_bytes())?.clone();
        Some(Who { name, origin, role: Role::Admin })
    }

    pub async fn leave(&self, secret: &str) {
        self.open().remove(TokenDigest::of(secret).as_bytes());
    }

    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], String>> {
        self.open.lock().expect("nobody panics while holding the sessions")
    }
}
