//! What the doctor looks at, area by area. Each says what it saw; none changes anything that was there before.

use super::{Area, Finding, Verdict};
use crate::api::about::About;
use crate::api::alerts::AlertList;
use crate::api::auth::TOKEN_FILE;
use crate::certificate;
use crate::cli::Globals;
use crate::cli::client::{self, Card, Client};
use crate::cli::render;
use crate::encryption::KEY_FILE;
use crate::reload::secrets_of;
use crate::roles::Roles;
use crate::runtimes;
use crate::secrets::{self, Secrets};
use crate::traces;
use crate::trust::tls_config;
use crate::workspace::read_files;
use clinch_core::config::{self, Files, Severity, Workspace};
use clinch_core::message::Channel;
use clinch_core::time::human;
use clinch_store::sqlite;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

/// A host that does not answer within this is not there.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);
const FREE_WARN: u64 = 1 << 30;
const FREE_FAIL: u64 = 100 << 20;
/// A disk that takes longer to sync answers events late.
const SYNC_WARN: Duration = Duration::from_millis(50);
const SYNCS: u32 = 5;
/// Server and we should not be further apart: signatures are checked against time.
const SKEW_WARN: Duration = Duration::from_secs(2);
const SKEW_FAIL: Duration = Duration::from_secs(60);
const CERTIFICATE_WARN: Duration = Duration::from_secs(14 * 86_400);
/// Who keeps the clock right leaves one of these.
const KEEPERS_OF_TIME: &[(&str, &str)] = &[
    ("/run/systemd/timesync/synchronized", "systemd-timesyncd"),
    ("/run/chrony", "chrony"),
    ("/run/ntpd.pid", "ntpd"),
];

/// Who is looked at: a server if one answers, a workspace, a data directory.
pub struct Patient {
    data_dir: PathBuf,
    directory: PathBuf,
    files: Option<Files>,
    workspace: Result<Workspace, Finding>,
    /// The running server, or why there is none; whether somebody expects one.
    server: Result<Server, String>,
    is_expected: bool,
}

struct Server {
    client: Client,
    about: About,
}

fn ok(area: &'static str, seen: impl Into<String>) -> Finding {
    Finding { area, verdict: Verdict::Ok, seen: seen.into(), fix: None }
}

fn warn(area: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { area, verdict: Verdict::Warn, seen: seen.into(), fix: Some(fix.into()) }
}

fn fail(area: &'static str, seen: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { area, verdict: Verdict::Fail, seen: seen.into(), fix: Some(fix.into()) }
}

impl Patient {
    pub async fn meet(globals: &Globals, asked: Option<&Path>) -> Patient {
        let card = Card::read(globals);
        let directory = asked.map(Path::to_path_buf).or_else(|| card.as_ref()?.workspace.clone());
        let directory = directory.unwrap_or_else(|| PathBuf::from("."));
        let server = match Client::open(globals) {
            Ok(client) => match client.get::<About>(&["about"], &[]).await {
                Ok(answer) => Ok(Server { client, about: answer.told }),
                Err(failure) => Err(failure.message().to_string()),
            },
            Err(failure) => Err(failure.message().to_string()),
        };
        let files = read_files(&directory).ok().filter(|files| !files.0.is_empty());
        Patient {
            workspace: workspace(&directory, files.as_ref()),
            is_expected: globals.url.is_some() || card.is_some(),
            data_dir: globals.data_dir.clone(),
            directory,
            files,
            server,
        }
    }

    pub async fn check(&self, area: Area) -> Vec<Finding> {
        match area {
            Area::Config => self.config(),
            Area::Clock => self.clock().await,
            Area::Disk => self.disk(),
            Area::Store => self.store().await,
            Area::Dns => self.dns().await,
            Area::Tls => self.tls().await,
            Area::Secrets => self.secrets(),
            Area::Alerts => self.alerts().await,
            Area::Otel => self.otel().await,
            Area::Permissions => self.permissions(),
        }
    }

    /// What runs, for programs.
    pub fn server(&self) -> Value {
        match &self.server {
            Ok(server) => {
                json!({"clinch": server.about.clinch, "version": server.about.version, "engine": server.about.engine})
            }
            Err(_) => Value::Null,
        }
    }

    /// The names of the files of the workspace, and the beginning of the hash of all.
    pub fn files(&self) -> Value {
        match &self.files {
            Some(files) => {
                let names: Vec<&str> = files.0.iter().map(|(name, _)| name.as_str()).collect();
                json!({"version": files.version().to_string(), "files": names})
            }
            None => Value::Null,
        }
    }

    /// What the server counted; its labels are from the workspace or from fixed lists.
    pub async fn metrics(&self) -> Option<String> {
        let server = self.server.as_ref().ok()?;
        let answer = client::http(true).ok()?.get(server.client.page("/metrics")).send().await.ok()?;
        answer.text().await.ok()
    }

    fn config(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        match (&self.workspace, &self.files) {
            (Err(finding), _) => findings.push(finding.clone()),
            (Ok(workspace), files) => {
                let at = self.directory.display();
                let warnings =
                    files.as_ref().and_then(|files| config::load(files).ok()).map_or(0, |(_, found)| found.len());
                let (flows, workers) = (workspace.flows.len(), workspace.workers.len());
                let seen = format!("{at}: {}, {}", render::count(flows, "flow"), render::count(workers, "worker"));
                findings.push(match warnings {
                    0 => ok("config", seen),
                    _ => warn(
                        "config",
                        format!("{seen}, {}", render::count(warnings, "warning")),
                        format!("clinch check {at}"),
                    ),
                });
                for missing in runtimes::missing(workspace, Severity::Error) {
                    let fix = missing.help.unwrap_or_else(|| "install it".into());
                    findings.push(fail("config", format!("{}: {}", missing.file, missing.message), fix));
                }
            }
        }
        if let (Ok(server), Some(files)) = (&self.server, &self.files) {
            let own = files.version().to_string();
            findings.push(match own.starts_with(&server.about.hash) || server.about.hash.starts_with(&own) {
                true => ok("config", format!("the server runs these files ({})", server.about.version)),
                false => warn(
                    "config",
                    format!("the server runs {} ({}), the files are {own}", server.about.version, server.about.hash),
                    "look at what is different: clinch diff; make the files live: clinch apply --reason TEXT",
                ),
            });
        }
        findings
    }

    async fn clock(&self) -> Vec<Finding> {
        let now = render::now();
        let keeper = KEEPERS_OF_TIME.iter().find(|(path, _)| Path::new(path).exists());
        let mut findings = vec![match keeper {
            Some((_, name)) => ok("clock", format!("{now}, kept right by {name}")),
            None => warn(
                "clock",
                format!("{now}; nothing is seen that keeps it right"),
                "run systemd-timesyncd, chrony or ntpd: signatures, terms and quiet hours go by the clock",
            ),
        }];
        if let Ok(server) = &self.server
            && let Some(skew) = skew(&server.client).await
        {
            let seen = format!("the server's clock and ours are {} apart", human(skew));
            let fix = "keep the clocks of both machines right";
            findings.push(match skew {
                far if far >= SKEW_FAIL => fail("clock", seen, fix),
                far if far >= SKEW_WARN => warn("clock", seen, fix),
                _ => ok("clock", seen),
            });
        }
        findings
    }

    fn disk(&self) -> Vec<Finding> {
        // Before the first start there is no data directory, and it will be made below the nearest that is there.
        let place = std::path::absolute(&self.data_dir).unwrap_or_else(|_| self.data_dir.clone());
        let Some(there) = place.ancestors().find(|path| path.is_dir()) else { return Vec::new() };
        let shown = there.display();
        let mut findings = Vec::new();
        match rustix::fs::statvfs(there) {
            Err(error) => findings.push(fail("disk", format!("{shown} cannot be looked at: {error}"), "mount it")),
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                let seen = format!("{shown}: {} MB free", free >> 20);
                let fix = "make room, shorten `retention` of queues, or move the data directory";
                findings.push(match free {
                    0..FREE_FAIL => fail("disk", seen, fix),
                    FREE_FAIL..FREE_WARN => warn("disk", seen, fix),
                    _ => ok("disk", seen),
                });
            }
        }
        findings.push(match sync_time(there) {
            Ok(took) if took >= SYNC_WARN => warn(
                "disk",
                format!("{shown}: a sync takes {}", human(took)),
                "use a disk of this machine: every event waits for a sync before it is answered",
            ),
            Ok(took) => ok("disk", format!("{shown}: a sync takes {}", human(took))),
            Err(error) => fail(
                "disk",
                format!("{shown} cannot be written to: {error}"),
                "give it to the user that clinch runs as",
            ),
        });
        findings
    }

    async fn store(&self) -> Vec<Finding> {
        match &self.server {
            Ok(Server { client, about }) => {
                let seen =
                    format!("{}: {} MB, {} MB free", about.engine, about.store_bytes >> 20, about.free_bytes >> 20);
                let ready = client::http(true).ok();
                let ready = match ready {
                    Some(http) => http.get(client.page("/readyz")).send().await.ok(),
                    None => None,
                };
                let is_ready = ready.is_some_and(|answer| answer.status().is_success());
                let said = about.store_says.as_deref().unwrap_or("it is not ready");
                vec![match is_ready {
                    true if about.store_says.is_some() => {
                        warn("store", format!("{seen}; {said}"), "see docs/operating.md")
                    }
                    true => ok("store", seen),
                    false => {
                        fail("store", format!("{seen}; {said}"), "look at the log and the disk: clinch doctor disk")
                    }
                }]
            }
            Err(why) if self.is_expected => {
                vec![fail(
                    "store",
                    format!("the server does not answer: {why}"),
                    "start it, or correct --url or --data-dir",
                )]
            }
            Err(_) if !self.data_dir.join("clinch.db").exists() => {
                vec![ok("store", format!("{}: there is none yet; `clinch serve` makes it", self.data_dir.display()))]
            }
            Err(_) => vec![match sqlite::keys_of(&self.data_dir) {
                Ok(_) => ok("store", format!("{}: no server runs; the store can be opened", self.data_dir.display())),
                Err(error) => {
                    fail("store", error.to_string(), "clinch verify says more; restore it from a copy, or report it")
                }
            }],
        }
    }

    /// Everybody whom the workspace calls, as far as secrets are there.
    fn hosts(&self) -> Vec<Host> {
        let Ok(workspace) = &self.workspace else { return Vec::new() };
        let secret = |name: &str| Secrets::read([name], |_| None).ok()?.get(name);
        let mut hosts = Vec::new();
        for partner in &workspace.integrations {
            let mail = match &partner.channel {
                Some(Channel::Mail(server)) => Some(&server.address),
                _ => None,
            };
            for template in partner.base_url.iter().chain(mail) {
                let url = config::address(template, secret).ok().and_then(|text| Url::parse(&text).ok());
                let Some(url) = url else { continue };
                let Some(name) = url.host_str().map(|host| host.trim_matches(['[', ']']).to_string()) else { continue };
                let port = url.port_or_known_default().unwrap_or(match url.scheme() {
                    "smtps" => 465,
                    _ => 587,
                });
                let is_tls = matches!(url.scheme(), "https" | "smtps");
                hosts.push(Host { integration: partner.name.to_string(), name, port, is_tls });
            }
        }
        hosts
    }

    async fn dns(&self) -> Vec<Finding> {
        let hosts = self.hosts();
        if hosts.is_empty() {
            return vec![ok("dns", "no integration has a host that is known here")];
        }
        let mut findings = Vec::new();
        for Host { integration, name, port, .. } in hosts {
            let looked = tokio::time::timeout(HOST_TIMEOUT, tokio::net::lookup_host((name.as_str(), port))).await;
            let addresses = looked.map(|found| found.map(Iterator::count));
            findings.push(match addresses {
                Ok(Ok(count)) if count > 0 => ok(
                    "dns",
                    format!("{integration}: {name} has {count} address{}", if count == 1 { "" } else { "es" }),
                ),
                Ok(Ok(_)) => fail(
                    "dns",
                    format!("{integration}: {name} has no address"),
                    "correct its base_url, or the resolver",
                ),
                Ok(Err(error)) => {
                    fail("dns", format!("{integration}: {name}: {error}"), "correct its base_url, or the resolver")
                }
                Err(_) => fail("dns", format!("{integration}: {name}: no answer"), "see /etc/resolv.conf"),
            });
        }
        findings
    }

    async fn tls(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Ok(workspace) = &self.workspace {
            let rules = [("tls", &workspace.settings.tls), ("admin_tls", &workspace.settings.admin_tls)];
            for (key, rule) in rules.into_iter().filter_map(|(key, rule)| Some((key, rule.as_ref()?))) {
                findings.push(own_certificate(key, &self.directory.join(&rule.cert)));
            }
        }
        let connector = match tls_config() {
            Ok(config) => TlsConnector::from(Arc::new(config)),
            Err(error) => return vec![fail("tls", error, "install ca-certificates")],
        };
        for Host { integration, name, port, .. } in self.hosts().into_iter().filter(|host| host.is_tls) {
            let shaken = tokio::time::timeout(HOST_TIMEOUT, shake(&connector, &name, port)).await;
            findings.push(match shaken {
                Ok(Ok(())) => ok("tls", format!("{integration}: {name}:{port} proves who it is")),
                Ok(Err(why)) => fail(
                    "tls",
                    format!("{integration}: {name}:{port}: {why}"),
                    "is it up, and does a proxy or firewall stand in between?",
                ),
                Err(_) => {
                    fail("tls", format!("{integration}: {name}:{port}: no answer"), "does a firewall stand in between?")
                }
            });
        }
        if findings.is_empty() {
            findings.push(ok("tls", "no certificate of our own, and no integration over TLS that is known here"));
        }
        findings
    }

    fn secrets(&self) -> Vec<Finding> {
        let Ok(workspace) = &self.workspace else {
            return vec![ok("secrets", "none are known without a workspace that can be read")];
        };
        let names = secrets_of(workspace, Roles::ALL);
        if names.is_empty() {
            return vec![ok("secrets", "the workspace names none")];
        }
        let mut findings: Vec<Finding> = Vec::new();
        let (mut in_environment, mut elsewhere) = (0, 0);
        for name in &names {
            match Secrets::read([*name], |_| None) {
                Ok(secrets) => in_environment += secrets.in_environment(),
                // What the server has need not be in the environment of who asks.
                Err(_) if !secrets::is_given(name) && self.server.is_ok() => elsewhere += 1,
                Err(why) => {
                    let why = why.values().next().map_or_else(String::new, ToString::to_string);
                    let fix = format!("set {name}_FILE to a file that only you may read, or the variable {name}");
                    findings.push(fail("secrets", format!("{name}: {why}"), fix));
                }
            }
        }
        if elsewhere > 0 {
            findings.push(ok(
                "secrets",
                format!("{elsewhere} of {} are not set here; the server runs with its own", names.len()),
            ));
        }
        if in_environment > 0 {
            let seen = format!("{in_environment} of {} from the environment", names.len());
            findings.push(warn("secrets", seen, "files (NAME_FILE) are seen by fewer people"));
        }
        if findings.is_empty() {
            findings.push(ok("secrets", format!("all {} can be read, from files that nobody else sees", names.len())));
        }
        findings
    }

    async fn alerts(&self) -> Vec<Finding> {
        const NOBODY: &str = "write `alerts: {channels: …}` into clinch.yml (docs/alerts.md)";
        let Ok(Server { client, .. }) = &self.server else {
            let channels = self.workspace.as_ref().map_or(0, |workspace| workspace.settings.alerts.channels.len());
            return vec![match channels {
                0 => warn("alerts", "nobody is told when something is wrong", NOBODY),
                count => ok("alerts", format!("{} configured", render::count(count, "channel"))),
            }];
        };
        let list = match client.get::<AlertList>(&["alerts"], &[]).await {
            Ok(answer) => answer.told,
            Err(failure) => return vec![fail("alerts", failure.message(), "ask with a token that may read")],
        };
        let mut findings: Vec<Finding> = (list.channels.iter())
            .map(|channel| {
                let seen = format!(
                    "{} ({}): {} sent, {} tries failed",
                    channel.name, channel.kind, channel.sent, channel.errors
                );
                let fix = format!("clinch alerts test {} says why", channel.name);
                match channel {
                    bad if bad.dropped > 0 => fail("alerts", format!("{seen}, {} given up", bad.dropped), fix),
                    shaky if shaky.errors > 0 => warn("alerts", seen, fix),
                    _ => ok("alerts", seen),
                }
            })
            .collect();
        if findings.is_empty() {
            findings.push(warn("alerts", "nobody is told when something is wrong", NOBODY));
        }
        for alert in &list.alerts {
            let fix = format!("clinch runbook {}", alert.rule);
            findings.push(warn("alerts", format!("{} fires: {}", alert.rule, alert.summary), fix));
        }
        findings
    }

    async fn otel(&self) -> Vec<Finding> {
        let endpoint = self.workspace.as_ref().ok().and_then(|workspace| traces::endpoint(&workspace.settings.tracing));
        let Some(endpoint) = endpoint else {
            return vec![ok("otel", "no collector is told; `clinch trace` draws traces without one")];
        };
        if let Some(metrics) = self.metrics().await {
            let count = |name: &str| -> f64 {
                let lines = metrics.lines().filter(|line| line.starts_with(name));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
            };
            let (failed, dropped) =
                (count("clinch_otlp_export_failures_total"), count("clinch_otlp_dropped_spans_total"));
            let seen = format!("{endpoint}: {failed} exports failed, {dropped} spans were dropped since the start");
            return vec![match failed + dropped > 0.0 {
                true => warn("otel", seen, "is the collector up, and does it take this protocol? (docs/traces.md)"),
                false => ok("otel", seen),
            }];
        }
        let place = Url::parse(&endpoint)
            .ok()
            .and_then(|url| Some((url.host_str()?.to_string(), url.port_or_known_default()?)));
        let Some((host, port)) = place else {
            return vec![fail("otel", format!("{endpoint} is not an address"), "write it like http://127.0.0.1:4318")];
        };
        let reached = tokio::time::timeout(HOST_TIMEOUT, TcpStream::connect((host.as_str(), port))).await;
        vec![match reached {
            Ok(Ok(_)) => ok("otel", format!("{endpoint} answers")),
            Ok(Err(error)) => {
                fail("otel", format!("{endpoint}: {error}"), "start the collector, or correct `tracing:`")
            }
            Err(_) => fail("otel", format!("{endpoint}: no answer"), "start the collector, or correct `tracing:`"),
        }]
    }

    fn permissions(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if rustix::process::geteuid().is_root() {
            let seen = "this is root; if the server is too, a script of a workspace may do anything";
            findings.push(warn("permissions", seen, "run it as a user of its own (docs/operating.md)"));
        }
        if self.data_dir.is_dir() {
            for (path, most) in [
                (self.data_dir.clone(), 0o700),
                (self.data_dir.join(TOKEN_FILE), 0o600),
                (self.data_dir.join(KEY_FILE), 0o600),
            ] {
                let Ok(metadata) = std::fs::metadata(&path) else { continue };
                let mode = metadata.permissions().mode() & 0o777;
                if mode & !most != 0 {
                    let seen = format!("others may look into {} (mode {mode:04o})", path.display());
                    findings.push(fail("permissions", seen, format!("chmod {most:o} {}", path.display())));
                }
            }
        }
        let env = self.directory.join(".env");
        if let Ok(metadata) = std::fs::metadata(&env)
            && metadata.permissions().mode() & 0o077 != 0
        {
            let seen = format!("others may read the secrets in {}", env.display());
            findings.push(fail("permissions", seen, format!("chmod 600 {}", env.display())));
        }
        if findings.is_empty() {
            findings.push(ok("permissions", format!("{}: nobody else looks in", self.data_dir.display())));
        }
        findings
    }
}

struct Host {
    integration: String,
    name: String,
    port: u16,
    is_tls: bool,
}

fn workspace(directory: &Path, files: Option<&Files>) -> Result<Workspace, Finding> {
    let at = directory.display();
    let Some(files) = files else {
        let fix = "name it with --workspace, or make one: clinch init DIR";
        return Err(warn("config", format!("there is no workspace in {at}"), fix));
    };
    config::load(files).map(|(workspace, _)| workspace).map_err(|problems| {
        let errors = problems.iter().filter(|problem| problem.is_error()).count();
        fail("config", format!("{at}: {}", render::count(errors, "error")), format!("clinch check {at}"))
    })
}

/// How far the server's clock is from ours, in either direction, by what its answers are dated.
async fn skew(client: &Client) -> Option<Duration> {
    let answer = client::http(true).ok()?.get(client.page("/healthz")).send().await.ok()?;
    let date = answer.headers().get("date")?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let ours = render::now().as_micros() / 1_000_000;
    // Dates are in whole seconds.
    Some(Duration::from_secs(ours.abs_diff(theirs).saturating_sub(1)))
}

/// The middle one of a few, in a file that is gone afterwards.
fn sync_time(directory: &Path) -> std::io::Result<Duration> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[0; 4096])?;
        file.as_file().sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn own_certificate(key: &str, path: &Path) -> Finding {
    let shown = path.display();
    let now = render::now();
    match certificate::ends_at(path) {
        Err(why) => fail("tls", format!("`{key}`: {shown}: {why}"), "give the certificate and its chain as PEM"),
        Ok(end) if end <= now => {
            fail("tls", format!("`{key}`: {shown} ended at {end}"), "renew it; it is read again when it changes")
        }
        Ok(end) if end.since(now) < CERTIFICATE_WARN => warn(
            "tls",
            format!("`{key}`: {shown} ends in {}", human(end.since(now))),
            "renew it; it is read again when it changes",
        ),
        Ok(end) => ok("tls", format!("`{key}`: {shown} is valid until {end}")),
    }
}

async fn shake(connector: &TlsConnector, host: &str, port: u16) -> Result<(), String> {
    let name = ServerName::try_from(host.to_string()).map_err(|_| "its name is not one of certificates".to_string())?;
    let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    connector.connect(name, stream).await.map(|_| ()).map_err(|error| error.to_string())
}
