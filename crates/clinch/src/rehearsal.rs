//! A rehearsal: the house as it is, and stand-ins for everybody outside. `clinch serve --dev` and `clinch test` run in one; what
//! leaves the house goes no further than this machine, and secrets that nobody has given are made up.

use crate::clock::Clock;
use crate::secrets;
use clinch_core::config::Workspace;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone)]
pub struct Rehearsal {
    pub clock: Arc<dyn Clock>,
    pub detour: Arc<Detour>,
    /// Made-up secrets, by name.
    pub secrets: BTreeMap<String, String>,
    /// Whether secrets count that somebody has given.
    pub reads_environment: bool,
}

/// Where calls go instead.
#[derive(Clone, Debug)]
pub struct Detour {
    pub http: SocketAddr,
    /// By the host of a mail server.
    pub mail: BTreeMap<String, SocketAddr>,
}

/// What installations share is outside; this one has a store and a key of its own, and talks to this machine alone.
pub fn keep_inside(workspace: &mut Workspace) {
    let settings = &mut workspace.settings;
    settings.kv.clear();
    settings.alerts.channels.clear();
    (settings.encryption, settings.tls, settings.admin_tls, settings.oidc) = (None, None, None, None);
}

impl Detour {
    /// Who stands in for a mail server.
    pub fn mail_at(&self, host: &str) -> Option<SocketAddr> {
        self.mail.get(host).copied()
    }
}

impl Rehearsal {
    /// What stands for a secret. Nothing where the real one counts.
    pub fn secret(&self, name: &str) -> Option<String> {
        if self.reads_environment && secrets::is_given(name) {
            return None;
        }
        // One that was named after the start may be an address as well as a token.
        let named_later = || format!("https://{}.stand-in.invalid", name.to_ascii_lowercase().replace('_', "-"));
        Some(self.secrets.get(name).cloned().unwrap_or_else(named_later))
    }
}

impl fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rehearsal({})", self.detour.http)
    }
}
