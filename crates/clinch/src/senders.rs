//! Whose token counts on this node. A token proves itself; what was revoked is known from the store, and looked for again
//! every moment, so that a token that was revoked on one node is soon refused on all.

use crate::clock::secret_bytes;
use crate::house::House;
use clinch_core::sender::{NotASender, Sender, SenderKey, SenderName, TokenId};
use clinch_core::time::Timestamp;
use clinch_store::Store;
use std::collections::HashSet;
use std::sync::RwLock;
use std::time::Duration;

/// How soon a token that was revoked elsewhere is refused here.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub struct Senders {
    key: SenderKey,
    revoked: RwLock<HashSet<TokenId>>,
}

impl Senders {
    pub async fn load(store: &dyn Store) -> clinch_store::Result<Senders> {
        let senders = Senders { key: SenderKey::of_store(store.pepper()), revoked: RwLock::default() };
        senders.look(store).await?;
        Ok(senders)
    }

    /// Who sends a request with these headers.
    pub fn recognise(&self, headers: &[(&str, &[u8])], now: Timestamp) -> Result<Sender, NotASender> {
        let revoked = self.revoked.read().expect("nobody panics while holding the revoked");
        Sender::of_headers(headers, &self.key, now, &revoked)
    }

    /// A new token: what it says, and its text, which is a secret.
    pub fn make(&self, name: SenderName, issued_at: Timestamp, expires_at: Option<Timestamp>) -> (Sender, String) {
        let id = *secret_bytes().first_chunk().expect("32 bytes begin with 8");
        let sender = Sender { name, token: TokenId::from_bytes(id), issued_at, expires_at };
        let text = sender.token(&self.key);
        (sender, text)
    }

    /// Reads what was revoked.
    pub async fn look(&self, store: &dyn Store) -> clinch_store::Result<()> {
        let tokens = store.tokens().await?;
        let revoked = tokens.into_iter().filter(|row| row.revoked_at.is_some()).map(|row| row.sender.token);
        // Nothing is taken out: what is revoked stays so, and a look that began before another may end after it.
        self.revoked.write().expect("nobody panics while holding the revoked").extend(revoked);
        Ok(())
    }
}

/// Looks until the house is left. While the store is away, what is known still counts.
pub async fn run(house: House) {
    loop {
        tokio::select! {
            () = house.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if let Err(error) = house.senders.look(&*house.store).await {
            tracing::debug!("which tokens were revoked could not be read: {error}");
        }
    }
}
