//! A dry run for which there is no server: the real house with an empty store, in a directory that is gone afterwards. It is asked
//! as any other is asked. There is nobody outside of it, nothing comes in, and secrets are made up.

use crate::api::dry_run::{DryRun, DryRunAsk};
use crate::app::{self, Options, Roles};
use crate::clock::SystemClock;
use crate::rehearsal::{Detour, Rehearsal};
use crate::stand_ins::secrets;
use clinch_core::config::Workspace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What a server of the workspace in this directory would answer that has seen nothing yet. `workspaces` are those that are
/// planned with, whose secrets are stood in for.
pub async fn ask(directory: &Path, workspaces: &[Workspace], ask: &DryRunAsk) -> Result<DryRun, String> {
    let place = tempfile::Builder::new().prefix("clinch-plan-").tempdir().map_err(|error| error.to_string())?;
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let secrets = workspaces
        .iter()
        .map(secrets::made_up)
        .fold(BTreeMap::new(), |all, more| all.into_iter().chain(more).collect());
    let options = Options {
        workspace: directory.to_path_buf(),
        data_dir: place.path().join("data"),
        store: None,
        listen: None,
        admin: Some(any),
        tls: None,
        admin_tls: None,
        roles: Roles { intake: false, worker: true, keeper: false, admin: true },
        proxy: None,
        watch: false,
        grace: Duration::ZERO,
        rehearsal: Some(Rehearsal {
            clock: Arc::new(SystemClock::default()),
            // Nothing passes the gate in a dry run, and nobody is behind it.
            detour: Arc::new(Detour { http: any, mail: BTreeMap::new() }),
            secrets,
            reads_environment: false,
        }),
    };
    let app = app::start(options).await.map_err(|error| format!("the workspace is not served: {error}"))?;
    let names = workspaces.iter().flat_map(|workspace| &workspace.secrets).map(String::as_str);
    let held = app.house.secrets.hold(names).map_err(|_| "a secret cannot be stood in for".to_string());
    let answer = match held {
        Ok(()) => post(app.admin, app.new_token.as_deref(), ask).await,
        Err(why) => Err(why),
    };
    app.stop().await;
    answer
}

async fn post(admin: Option<SocketAddr>, token: Option<&str>, ask: &DryRunAsk) -> Result<DryRun, String> {
    let http = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
    let url = format!("http://{}/api/v1/config/dry-run", admin.ok_or("there is no API")?);
    let sent = http.post(url).bearer_auth(token.unwrap_or_default()).json(ask).send().await;
    let answer = sent.map_err(|error| error.to_string())?;
    let status = answer.status();
    let told: Value = answer.json().await.map_err(|error| error.to_string())?;
    match status.is_success() {
        true => serde_json::from_value(told).map_err(|error| error.to_string()),
        false => Err(told["detail"].as_str().unwrap_or("it was refused").to_string()),
    }
}
