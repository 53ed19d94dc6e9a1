//! The house: the only file that knows every room. It builds them, opens the doors, and closes them in order.

use crate::alerts::Alarm;
use crate::api::auth::Peer;
use crate::api::{self, AdminToken};
use crate::clock::{Clock, SystemClock, secret_bytes};
use crate::controls::{self, LiveControls};
use crate::encryption::{Keys, Made, UNSAID};
use crate::geoip::Geoip;
use crate::house::House;
use crate::intake::KeyStore;
use crate::minutes::{self, Minutes};
use crate::oidc::{Oidc, Wire};
use crate::people::People;
use crate::rehearsal::{self, Rehearsal};
use crate::rejections::Rejections;
use crate::reload::{self, Reload};
pub use crate::roles::Roles;
use crate::secrets::{self, Secrets};
use crate::senders::{self, Senders};
use crate::server::tls::{Tls, TlsFiles};
use crate::server::{Listener, Places};
use crate::sessions::Sessions;
use crate::telemetry::Metrics;
use crate::threads::{Threads, hand_over};
use crate::tracer::Tracer;
use crate::traces::{self, Exporter};
use crate::workspace::{Versions, read_files};
use crate::{console, intake, keeper, masking, proxy, recall, runtimes, server, worker};
use clinch_core::audit::Who;
use clinch_core::config::{self, Files, Problem, Severity, SlackButtons, TlsRule, Workspace};
use clinch_core::egress::Egress;
use clinch_core::key::Pepper;
use clinch_core::live::Beside;
use clinch_core::minimise::HashKey;
use clinch_core::time::Timestamp;
use clinch_store::postgres::{self, PostgresStore};
use clinch_store::sqlite::{self, SqliteStore};
use clinch_store::{ActivateAsk, Activated, Activation, Store, StoreError, VersionId};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub const LISTEN_DEFAULT: &str = "127.0.0.1:7400";
pub const ADMIN_DEFAULT: &str = "127.0.0.1:7401";
/// What nobody should overlook; only a terminal gets the colour.
const RED: anstyle::Style = anstyle::AnsiColor::Red.on_default().bold();
/// After the rooms are empty, it is looked so often whether somebody still holds the store, for about two seconds.
/// Looks are counted and not time: in a process that stood still meanwhile nobody could let go.
const LOOKS_MAX: u32 = 1_000;
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Clone, Debug)]
pub struct Options {
    pub workspace: PathBuf,
    pub data_dir: PathBuf,
    /// `sqlite:DIRECTORY` or `postgres://…`; without one the store is in the data directory.
    pub store: Option<String>,
    /// Flags win over `clinch.yml`, which wins over the defaults.
    pub listen: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub tls: Option<TlsFiles>,
    pub admin_tls: Option<TlsFiles>,
    pub roles: Roles,
    /// Instead of a workspace: a target that idempotency is put in front of.
    pub proxy: Option<proxy::Rules>,
    /// Whether files that change are read again by themselves.
    pub watch: bool,
    /// After a stop, jobs under way have this long.
    pub grace: Duration,
    /// Nobody outside is called.
    pub rehearsal: Option<Rehearsal>,
}

impl Options {
    /// The address of a database that nodes share.
    fn database(&self) -> Option<&str> {
        let is_database = |store: &&str| store.starts_with("postgres://") || store.starts_with("postgresql://");
        self.store.as_deref().filter(is_database)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The workspace has errors, or asks for what this version cannot do.
    #[error("the workspace has problems")]
    Config { files: Files, problems: Vec<Problem> },
    #[error("{0}")]
    Workspace(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Io(String),
}

/// A running house.
pub struct App {
    pub intake: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    /// Whether the intake and the admin listener speak TLS.
    is_secure: (bool, bool),
    /// The admin token, if this start made it.
    pub new_token: Option<String>,
    /// Where the proxy listens, and what it is in front of.
    pub proxy: Option<(SocketAddr, proxy::Rules)>,
    /// Why it is not the files that are live, if it is not.
    pub kept: Option<String>,
    pub warnings: Vec<Problem>,
    pub files: Files,
    pub house: House,
    rooms: TaskTracker,
    /// They outlive the store: it may have connections that were opened on them.
    threads: Threads,
    /// Who passes traces on. It is the last to leave, for the others tell of their end.
    exporter: (CancellationToken, TaskTracker),
    card: PathBuf,
}

/// Builds everything and opens the doors. Nothing runs if this fails.
pub async fn start(options: Options) -> Result<App, StartError> {
    let files = match &options.proxy {
        Some(rules) => rules.files(),
        None => read_files(&options.workspace).map_err(|error| StartError::Workspace(error.to_string()))?,
    };
    let (mut workspace, warnings) = checked(&files)?;
    if options.rehearsal.is_some() {
        rehearsal::keep_inside(&mut workspace);
    }
    let missing = runtimes::missing(&workspace, Severity::Error);
    if options.roles.worker && !missing.is_empty() {
        return Err(StartError::Config { files, problems: missing });
    }
    let directory =
        std::path::absolute(&options.workspace).map_err(|error| StartError::Workspace(error.to_string()))?;
    let secrets = read_secrets(&workspace, &options)?;
    let geoip_files = if options.roles.worker { workspace.geoip_files() } else { BTreeSet::new() };
    let geoip = Geoip::open(&options.workspace, geoip_files).map_err(StartError::Workspace)?;
    if options.roles.intake {
        intake::credentials(&workspace.sources, &secrets).map_err(StartError::Workspace)?;
    }
    let keys = Keys::asked_for(workspace.settings.encryption.as_ref(), &secrets, options.database().is_some());
    let keys = keys.map_err(StartError::Workspace)?;
    let intake = match options.roles.intake {
        true => Some(bind(options.listen.or(workspace.settings.listen), LISTEN_DEFAULT, "--listen")?),
        false => None,
    };
    let proxy = match options.proxy {
        Some(_) => Some(bind(options.listen, proxy::LISTEN_DEFAULT, "--listen")?),
        None => None,
    };
    let admin = match options.roles.admin {
        true => Some(bind(options.admin.or(workspace.settings.admin), ADMIN_DEFAULT, "--admin")?),
        false => None,
    };
    let settings = &workspace.settings;
    let tls = Certificates {
        intake: certificate(&options, options.tls.as_ref(), settings.tls.as_ref())?,
        admin: certificate(&options, options.admin_tls.as_ref(), settings.admin_tls.as_ref())?,
    };
    let io = |error: std::io::Error| StartError::Io(error.to_string());
    refuse_others(&options).await?;
    make_private(&options.data_dir).map_err(io)?;
    let clock: Arc<dyn Clock> = match &options.rehearsal {
        Some(rehearsal) => rehearsal.clock.clone(),
        None => Arc::new(SystemClock::default()),
    };
    let (store, keys) = open_store(&options, keys, &clock).await?;
    let (token, new_token) = AdminToken::load_or_create(&options.data_dir).map_err(io)?;

    let read = (files, workspace, warnings);
    let started = activate(&*store, read, (options.roles, &secrets), (&options.workspace, clock.now())).await?;
    let (live, files, workspace, warnings, kept) = started;
    masking::follow(&workspace.settings.masking);
    let workspace = Arc::new(workspace);
    let metrics = Arc::new(Metrics::new(&workspace));
    metrics.config_live(&format!("v{}", live.0), &files.version().to_string(), clock.now());
    let key_stores = match options.roles.intake {
        true => key_stores(&workspace, &secrets, &*store, &metrics)?,
        false => Vec::new(),
    };
    let exporter = (CancellationToken::new(), TaskTracker::new());
    // A rehearsal is nobody's business outside.
    let collector = traces::endpoint(&workspace.settings.tracing).filter(|_| options.rehearsal.is_none());
    let tracer = match collector {
        None => Tracer::off(),
        Some(endpoint) => {
            let rule = &workspace.settings.tracing;
            let hash_key = HashKey::of_store(&Pepper::new(store.pepper()));
            let (tracer, spans) = Tracer::on(rule, hash_key, &metrics);
            let (known, stop) = ((&secrets, &*metrics), exporter.0.clone());
            let opened = Exporter::new(&endpoint, rule, known, clock.random(), spans, stop);
            exporter.1.spawn(opened.map_err(StartError::Workspace)?.run());
            tracer
        }
    };
    exporter.1.close();
    let rejections = Rejections::of(workspace.sources.iter().map(|source| source.name.as_str()));
    let senders = Arc::new(Senders::load(&*store).await?);
    let versions = Arc::new(Versions::new(live, files.clone(), (workspace, warnings.clone()), directory));
    let controls = Arc::new(LiveControls::load(&*store, versions.clone(), clock.now()).await?);
    let is_local = |listener: &TcpListener| listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let loopback = [&intake, &admin].into_iter().flatten().all(is_local);
    if options.rehearsal.is_some() && !loopback {
        return Err(StartError::Workspace("--dev is for this machine alone: listen on 127.0.0.1".into()));
    }
    let house = House {
        directory: std::path::absolute(&options.data_dir).map_err(io)?,
        egress: Arc::new(Egress { allow: versions.workspace().settings.egress.clone(), loopback }),
        detour: options.rehearsal.as_ref().map(|rehearsal| rehearsal.detour.clone()),
        senders,
        controls,
        rejections: Arc::new(rejections),
        minutes: Arc::new(Minutes::new(clock.now())),
        keys: Arc::new(keys),
        chores: Arc::default(),
        reload: Arc::new(Reload::new(options.roles, options.watch, options.proxy.is_some())),
        store,
        clock,
        metrics,
        tracer: Arc::new(tracer),
        versions,
        secrets: Arc::new(secrets),
        geoip: Arc::new(geoip),
        stop: CancellationToken::new(),
    };
    let threads =
        Threads::start(options.roles).map_err(|error| StartError::Io(format!("threads cannot be started: {error}")))?;
    let intake = intake.map(|listener| hand_over(listener, &threads.intake)).transpose().map_err(io)?;
    let mut app = App {
        is_secure: (tls.intake.is_some(), tls.admin.is_some()),
        intake: intake.as_ref().and_then(|listener| listener.local_addr().ok()),
        admin: admin.as_ref().and_then(|listener| listener.local_addr().ok()),
        proxy: proxy.as_ref().and_then(|listener| listener.local_addr().ok()).zip(options.proxy.clone()),
        new_token,
        kept,
        warnings,
        files,
        house,
        rooms: TaskTracker::new(),
        threads,
        exporter,
        card: options.data_dir.join("server.json"),
    };
    let doors = Doors { proxy, intake, key_stores, admin, token, tls };
    app.open(doors, &options);
    let left = app.card().leave(&app.house.versions.workspace());
    left.map_err(|error| StartError::Io(format!("{}: {error}", app.card.display())))?;
    Ok(app)
}

/// What the rooms with a door need to open it.
struct Doors {
    proxy: Option<TcpListener>,
    intake: Option<TcpListener>,
    key_stores: Vec<Arc<KeyStore>>,
    admin: Option<TcpListener>,
    token: AdminToken,
    tls: Certificates,
}

/// The certificates of the listeners that have one, and where they come from.
struct Certificates {
    intake: Option<(Tls, TlsFiles)>,
    admin: Option<(Tls, TlsFiles)>,
}

/// Flags win over the workspace, in which files are found below its directory.
fn certificate(
    options: &Options,
    flags: Option<&TlsFiles>,
    rule: Option<&TlsRule>,
) -> Result<Option<(Tls, TlsFiles)>, StartError> {
    let below = |file: &String| options.workspace.join(file);
    let files = match (flags, rule) {
        (Some(files), _) => files.clone(),
        (None, Some(rule)) => TlsFiles { cert: below(&rule.cert), key: below(&rule.key) },
        (None, None) => return Ok(None),
    };
    let tls = Tls::open(&files).map_err(|error| StartError::Workspace(format!("TLS cannot be offered: {error}")))?;
    Ok(Some((tls, files)))
}

/// Every secret that this process needs, or the names of those that cannot be had, why, and who needs them.
fn read_secrets(workspace: &Workspace, options: &Options) -> Result<Secrets, StartError> {
    let rehearsal = options.rehearsal.clone();
    let stand_in = move |name: &str| rehearsal.as_ref().and_then(|rehearsal| rehearsal.secret(name));
    Secrets::read(reload::secrets_of(workspace, options.roles), stand_in)
        .map_err(|unread| StartError::Workspace(reload::unread_secrets(workspace, &unread)))
}

/// The workspace of a directory, if it can be served.
pub fn read(directory: &Path) -> Result<Workspace, StartError> {
    let files = read_files(directory).map_err(|error| StartError::Workspace(error.to_string()))?;
    checked(&files).map(|(workspace, _)| workspace)
}

/// A workspace without errors in which every step can be run.
fn checked(files: &Files) -> Result<(Workspace, Vec<Problem>), StartError> {
    if files.0.is_empty() {
        return Err(StartError::Workspace(
            "there is no workspace here: a directory with flows/*.yml, workers/*.yml and queues.yml is needed; name it with --workspace".into(),
        ));
    }
    reload::checked(files).map_err(|problems| StartError::Config { files: files.clone(), problems })
}

/// What is live from now on: these files, or what an operator chose after they were known. And what to say about that.
async fn activate(
    store: &dyn Store,
    (files, workspace, warnings): (Files, Workspace, Vec<Problem>),
    (roles, secrets): (Roles, &Secrets),
    (directory, now): (&Path, Timestamp),
) -> Result<(VersionId, Files, Workspace, Vec<Problem>, Option<String>), StartError> {
    let ask = ActivateAsk {
        hash: *files.version().as_bytes(),
        files: files.to_json(),
        by: Activation::Files,
        record: Who::clinch("start").record("a server started with it", now),
    };
    let (live, own) = match store.activate(ask).await? {
        Activated::Live(version) => return Ok((version, files, workspace, warnings, None)),
        Activated::Kept { live, files } => (live, files),
        Activated::Conflict(_) => unreachable!("nothing was expected"),
    };
    let directory = directory.display().to_string();
    let unusable = |why: String| {
        let said = format!("v{} is live, because an operator chose it, and cannot be run here: {why}", live.0);
        StartError::Workspace(format!("{said}; the files in {directory} are v{}", own.0))
    };
    let stored = store.version_files(live).await?.and_then(|json| Files::from_json(&json).ok());
    let files = stored.ok_or_else(|| unusable("the store does not have its files".into()))?;
    let (workspace, warnings) = checked(&files)?;
    secrets
        .hold(reload::secrets_of(&workspace, roles))
        .map_err(|unread| unusable(reload::unread_secrets(&workspace, &unread)))?;
    Ok((live, files, workspace, warnings, Some(reload::kept(live, own, &directory))))
}

/// What the workspace shares with other installations.
fn key_stores(
    workspace: &Workspace,
    secrets: &Secrets,
    store: &dyn Store,
    metrics: &Metrics,
) -> Result<Vec<Arc<KeyStore>>, StartError> {
    let open = |kv| Ok(Arc::new(KeyStore::new(kv, secrets, store, metrics)?));
    workspace.settings.kv.iter().map(open).collect()
}

/// So many connections may wait at a listener until they are accepted, if the system lets them. Who finds no room there hears nothing, and tries again
/// after a second.
const UNACCEPTED_MAX: u32 = 4_096;

fn bind(asked: Option<SocketAddr>, default: &str, flag: &str) -> Result<TcpListener, StartError> {
    let address = asked.unwrap_or_else(|| default.parse().expect("defaults are addresses"));
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(UNACCEPTED_MAX)
    };
    listen().map_err(|error| {
        StartError::Io(format!("{address} cannot be listened on: {error}; choose another address with {flag}"))
    })
}

/// A database that many nodes share, or a directory of this one.
async fn open_store(
    options: &Options,
    keys: Option<Keys>,
    clock: &Arc<dyn Clock>,
) -> Result<(Arc<dyn Store>, Keys), StartError> {
    let ring = |keys: &Keys| keys.ring().map_err(StartError::Workspace);
    if let (Some(url), Some(keys)) = (options.database(), &keys) {
        let clock = clock.clone();
        let among_others = postgres::Options::new(Arc::new(move || clock.now()));
        let store = PostgresStore::open(url, secret_bytes(), ring(keys)?, among_others).await?;
        return Ok((Arc::new(store), keys.clone()));
    }
    let directory = store_directory(options)?;
    make_private(&directory).map_err(|error| StartError::Io(error.to_string()))?;
    let keys = match keys {
        Some(keys) => keys,
        None => Keys::beside(&directory, &sqlite::keys_of(&directory)?).map_err(StartError::Workspace)?,
    };
    let store = SqliteStore::open(&directory, secret_bytes(), ring(&keys)?).await?;
    Ok((Arc::new(store), keys))
}

/// A proxy and a server share no store: what one of them started with would be live for the other, and be kept as long as that says.
async fn refuse_others(options: &Options) -> Result<(), StartError> {
    let first = match options.database() {
        Some(url) => postgres::first_files(url).await?,
        None => sqlite::first_files(&store_directory(options)?)?,
    };
    let Some(first) = first.and_then(|json| Files::from_json(&json).ok()) else { return Ok(()) };
    let said = match (options.proxy.is_some(), proxy::Rules::wrote(&first)) {
        (true, false) => {
            "it is the store of a `clinch serve`; give the proxy one of its own with --store (CLINCH_STORE), or leave that out"
        }
        (false, true) => {
            "it is the store of a `clinch proxy`; give the server one of its own with --store (CLINCH_STORE)"
        }
        _ => return Ok(()),
    };
    Err(StoreError::Open(said.into()).into())
}

fn store_directory(options: &Options) -> Result<PathBuf, StartError> {
    match options.store.as_deref() {
        None => Ok(options.data_dir.clone()),
        Some(store) => {
            // Not repeated: it may be the address of a database with a password in it, written a little wrong.
            store.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(PathBuf::from).ok_or_else(|| {
                StartError::Io("--store is not known; write sqlite:DIRECTORY or postgres://…, or leave it out".into())
            })
        }
    }
}

/// Events are for the owner's eyes only.
fn make_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

impl App {
    fn open(&mut self, doors: Doors, options: &Options) {
        let house = &self.house;
        self.rooms.spawn(secrets::read_on_hangup(house.secrets.clone(), house.stop.clone()));
        for store in &doors.key_stores {
            let store = store.clone();
            self.rooms.spawn(async move { store.look().await });
        }
        self.rooms.spawn(controls::run(house.clone()));
        self.rooms.spawn(minutes::run(house.clone()));
        self.rooms.spawn(recall::run(house.clone()));
        if doors.intake.is_some() {
            self.rooms.spawn(senders::run(house.clone()));
        }
        if options.proxy.is_none() {
            self.rooms.spawn(reload::run(house.clone()));
            self.rooms.spawn(self.card().keep(house.clone()));
        }
        if let (Some(listener), Some(rules)) = (doors.proxy, &options.proxy) {
            let (door, house, rules) = (self.listener("proxy", None), house.clone(), rules.clone());
            self.rooms.spawn(async move {
                if let Err(error) = proxy::run(listener, door, house.clone(), rules).await {
                    tracing::error!("nothing is called: {error}");
                    house.stop.cancel();
                }
            });
        }
        // Where people press buttons may come with another workspace.
        let calls_out = doors.admin.is_some() || options.roles.worker || options.roles.keeper || doors.intake.is_some();
        let hands = calls_out.then(|| worker::Hands::new(house.clone())).transpose();
        let hands = hands.map(|hands| hands.map(Arc::new)).unwrap_or_else(|error| {
            tracing::error!("nobody outside can be called: {error}");
            house.stop.cancel();
            None
        });
        let people = hands.clone().map(|hands| hands as Arc<dyn People>);
        let console = self.admin_url().unwrap_or_else(|| format!("http://{ADMIN_DEFAULT}"));
        let alarm = hands.clone().map(|hands| Arc::new(Alarm::new(house.clone(), hands.clone(), hands, console)));
        if let Some(listener) = doors.intake {
            let door = self.listener("intake", doors.tls.intake);
            let run = intake::run(listener, door, house.clone(), doors.key_stores, people.clone());
            self.rooms.spawn_on(run, &self.threads.intake);
        }
        if let (Some(listener), Some(hands), Some(alarm)) = (doors.admin, &hands, &alarm) {
            let sessions = Arc::new(Sessions::new(house.clone(), doors.token));
            let to = house.clone();
            let outside = api::Outside {
                partners: hands.clone(),
                outlook: hands.clone(),
                people: hands.clone(),
                alarms: alarm.clone(),
                forecast: hands.clone(),
            };
            let api = api::router(to.clone(), doors.token, sessions.clone(), outside.clone());
            let wire: Arc<dyn Wire> = hands.clone();
            let desk = console::Desk {
                oidc: Arc::new(Oidc::new(house.clone(), wire, self.is_secure.1)),
                api: console::Api(api::routes(to, sessions.clone(), outside)),
                sessions,
                clock: house.clock.clone(),
                hosts: console::Hosts::of(
                    self.admin.expect("it is listened on"),
                    &house.versions.workspace().settings.console_hosts,
                ),
                stop: house.stop.clone(),
                held: console::held::Held::new(house.stop.clone()),
            };
            let service = hyper_util::service::TowerToHyperService::new(api.fallback_service(console::router(desk)));
            let door = self.listener("admin", doors.tls.admin);
            let of_peer = move |peer| {
                let service = service.clone();
                service_fn(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(Peer(peer));
                    service.call(request)
                })
            };
            self.rooms.spawn(server::serve(listener, door, of_peer, house.stop.clone()));
        }
        if let (true, Some(hands)) = (options.roles.worker, hands) {
            let grace = options.grace;
            self.rooms.spawn_on(async move { hands.work(grace).await }, &self.threads.worker);
        }
        if options.roles.keeper {
            self.rooms.spawn(keeper::reaper::run(house.clone()));
            self.rooms.spawn(keeper::pruner::run(house.clone()));
            self.rooms.spawn(keeper::scheduler::run(house.clone()));
            self.rooms.spawn(keeper::expirer::run(house.clone()));
            if let Some(people) = people {
                self.rooms.spawn(keeper::messenger::run(house.clone(), people));
            }
            self.rooms.spawn(keeper::replayer::run(house.clone()));
            if let Some(alarm) = alarm {
                self.rooms.spawn(async move { alarm.watch().await });
            }
        }
        self.rooms.close();
    }

    /// A listener with places of its own, whose certificate is looked after.
    fn listener(&self, name: &'static str, tls: Option<(Tls, TlsFiles)>) -> Listener {
        if let Some((tls, files)) = tls.clone() {
            self.rooms.spawn(tls.keep_fresh(files, self.house.stop.clone()));
        }
        let places = Places::new(self.house.versions.workspace().settings.connections);
        Listener { name, places, tls: tls.map(|(tls, _)| tls), metrics: self.house.metrics.clone() }
    }

    fn intake_url(&self) -> Option<String> {
        self.intake.map(|address| url(address, self.is_secure.0))
    }

    fn admin_url(&self) -> Option<String> {
        self.admin.map(|address| url(address, self.is_secure.1))
    }

    fn card(&self) -> Card {
        let told = serde_json::json!({
            "intake": self.intake_url(), "admin": self.admin_url(),
            "proxy": self.proxy.as_ref().map(|(address, _)| url(*address, false)), "pid": std::process::id(),
            "workspace": self.house.versions.directory,
            "stand_ins": self.house.detour.as_ref().map(|detour| url(detour.http, false)),
        });
        Card { path: self.card.clone(), told }
    }

    /// Ends when the store has failed for good.
    pub async fn store_failed(&self) -> StoreError {
        self.house.store.failed().await
    }

    /// Closes the doors, lets what is under way finish, then the store.
    pub async fn stop(self) {
        self.house.stop.cancel();
        self.rooms.wait().await;
        self.exporter.0.cancel();
        self.exporter.1.wait().await;
        // Another start may have left its own card by now only if it has another data directory.
        let _ = std::fs::remove_file(&self.card);
        // Connections and heartbeats end a moment after their rooms. The store closes here and not with whoever is last,
        // so that it can be opened again as soon as this returns.
        for _ in 0..LOOKS_MAX {
            if Arc::strong_count(&self.house.store) == 1 {
                return self.house.store.close().await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        tracing::warn!("the store is still in use; it closes when the last job under way ends");
    }
}

/// Where the local command line finds us.
struct Card {
    path: PathBuf,
    told: serde_json::Value,
}

impl Card {
    fn leave(&self, workspace: &Workspace) -> std::io::Result<()> {
        let mut card = self.told.clone();
        let entrances = workspace.entrances();
        card["routes"] = entrances
            .map(|way| serde_json::json!({"flow": way.to.1, "method": way.method, "path": way.path}))
            .collect();
        // Written aside and renamed, so that nobody reads half of it.
        let aside = self.path.with_extension("new");
        std::fs::write(&aside, card.to_string())?;
        std::fs::rename(aside, &self.path)
    }

    /// Leaves another whenever another workspace is live.
    fn keep(self, house: House) -> impl Future<Output = ()> {
        let mut changes = house.versions.changes();
        let mut live = house.versions.live();
        async move {
            loop {
                tokio::select! {
                    () = house.stop.cancelled() => return,
                    Ok(now) = changes.wait_for(|now| now.live != live) => {
                        live = now.live;
                        if let Err(error) = self.leave(&now.plain) {
                            tracing::warn!("{} cannot be written: {error}", self.path.display());
                        }
                    }
                }
            }
        }
    }
}

fn url(address: SocketAddr, is_secure: bool) -> String {
    let scheme = if is_secure { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Runs until a signal or a store that failed for good.
pub async fn serve(options: Options) -> Result<(), StartError> {
    let grace = options.grace;
    // Listened for before anybody can know that we are ready: whoever knows it may tell us to stop.
    let mut signal = std::pin::pin!(signal());
    let app = tokio::select! {
        app = start(options) => app?,
        () = &mut signal => return Ok(()),
    };
    app.greet();
    tokio::select! {
        error = app.store_failed() => return Err(error.into()),
        () = &mut signal => {}
        () = app.house.stop.cancelled() => return Err(StartError::Io("clinch stopped; the log says why".into())),
    }
    eprintln!("stopping: no new events or jobs; jobs under way have {}", clinch_core::time::human(grace));
    app.stop().await;
    eprintln!("stopped");
    Ok(())
}

impl App {
    fn greet(&self) {
        let workspace = &self.house.versions.workspace();
        eprintln!("clinch {}  workspace {}", env!("CARGO_PKG_VERSION"), self.files.version());
        if let Some(detour) = &self.house.detour {
            let names: Vec<&str> = workspace.integrations.iter().map(|partner| &*partner.name).collect();
            eprintln!(
                "  dev      nobody outside is called; stand-ins at http://{} for {}",
                detour.http,
                names.join(", ")
            );
            eprintln!(
                "           `clinch send … --chaos NAME=500:2` lets one of them fail; secrets that nobody gave are made up"
            );
        }
        if let Some(intake) = self.intake_url() {
            for entrance in workspace.entrances() {
                let (kind, name) = entrance.to;
                let verified = entrance.verify.map_or_else(|| format!("{RED}anybody may send{RED:#}"), String::from);
                let (method, path) = (entrance.method, entrance.path);
                anstream::eprintln!("  intake   {method} {intake}{path}  -> {kind} {name} ({verified})");
            }
        }
        if let (Some(intake), Some(_)) = (self.intake_url(), &workspace.settings.approvals) {
            eprintln!("  intake   POST {intake}{}  -> approvals (slack)", SlackButtons::PATH);
        }
        if let Some((address, rules)) = &self.proxy {
            let (to, kept) = (&rules.to, clinch_core::time::human(rules.keep));
            eprintln!("  proxy    http://{address}  -> {to}  (keys in {}, answers kept for {kept})", rules.key_header);
        }
        if let Some(admin) = self.admin_url() {
            eprintln!("  admin    {admin}/api/v1   metrics /metrics   health /healthz /readyz");
            eprintln!("  console  {admin}/   (`clinch open` gives you a link that logs you in once)");
        }
        if let (true, Some(endpoint)) = (self.house.tracer.is_on(), traces::endpoint(&workspace.settings.tracing)) {
            eprintln!("  traces   {}", traces::greeting(&endpoint, &workspace.settings.tracing));
        }
        if let Some(token) = &self.new_token {
            eprintln!("  token    {token}   (shown once; kept in the data directory for the local command line)");
        }
        let in_environment = self.house.secrets.in_environment();
        if in_environment > 0 {
            eprintln!("  secrets  {in_environment} from the environment; files (NAME_FILE) are seen by fewer people");
        }
        match &*self.house.keys {
            Keys::Nothing => eprintln!("  warning  encryption: none: everything is stored readable"),
            Keys::Unsaid => anstream::eprintln!("  {RED}warning{RED:#}  {UNSAID}"),
            Keys::File { path, made: Made::Now } => eprintln!(
                "  key      {} was made and encrypts the store; keep a copy elsewhere: without it nothing can be read",
                path.display()
            ),
            Keys::File { .. } | Keys::Configured(_) => {}
        }
        for warning in &self.warnings {
            self.warn(warning);
        }
        if let Some(kept) = &self.kept {
            anstream::eprintln!("  {RED}warning{RED:#}  {kept}");
        }
        let (controls, state) = (self.house.controls.get(), self.house.versions.state());
        for set in controls.live(self.house.clock.now()) {
            eprintln!("  live     {}", Beside::of(set, &state.workspace, &state.refused));
        }
        eprintln!("ready");
    }

    fn warn(&self, warning: &Problem) {
        let text = self.files.text(&warning.file).unwrap_or_default();
        let (line, column) = config::position(text, warning.span.start);
        eprintln!("  warning  {}:{line}:{column}: {} [{}]", warning.file, warning.message, warning.code);
    }
}

/// From this call on the process is told of signals instead of ended by them.
fn signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).expect("signals can be listened for");
    let mut int = signal(SignalKind::interrupt()).expect("signals can be listened for");
    async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    }
}
