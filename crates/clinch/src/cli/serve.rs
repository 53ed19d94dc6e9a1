//! `clinch serve`: runs the house until it is told to stop.

use super::exit::{Exit, Failure};
use super::problems::Problems;
use super::{Globals, render};
use crate::app::{self, Options, Roles, StartError};
use crate::rehearsal::Rehearsal;
use crate::server::tls::TlsFiles;
use crate::stand_ins;
use crate::telemetry::{LogFormat, start_logging};
use clap::Args;
use clinch_core::time::parse_duration;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch serve                                        the workspace in this directory, data in .clinch
  clinch serve --workspace /etc/clinch --data-dir /var/lib/clinch --listen 0.0.0.0:7400
  clinch serve --listen 0.0.0.0:443 --tls-cert /etc/clinch/tls.crt --tls-key /etc/clinch/tls.key
  clinch serve --log json --grace 60s
  clinch serve --dev                                  try it out: nobody outside is called, secrets are made up

Intake is public, admin is private: keep --admin on an address that only you can reach.
SIGHUP reads secrets, certificates and the workspace again; what is wrong with it is logged, and the old one stays live.
CLINCH_LOG chooses what is logged: info (default), debug, clinch=debug.")]
pub struct Serve {
    /// The directory with flows/, workers/, playbooks/ and queues.yml
    #[arg(long, env = "CLINCH_WORKSPACE", default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
    /// Where events are kept: sqlite:DIRECTORY or postgres://…; without it, in the data directory
    #[arg(long, env = "CLINCH_STORE", value_name = "STORE")]
    store: Option<String>,
    /// The address of the intake (default 127.0.0.1:7400)
    #[arg(long, env = "CLINCH_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The address of API, metrics and health (default 127.0.0.1:7401)
    #[arg(long, env = "CLINCH_ADMIN", value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The certificate of the intake and its chain, as PEM; read again when it changes and on SIGHUP
    #[arg(long, env = "CLINCH_TLS_CERT", requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM, which others may not read
    #[arg(long, env = "CLINCH_TLS_KEY", requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The certificate of the admin address
    #[arg(long, env = "CLINCH_ADMIN_TLS_CERT", requires = "admin_tls_key", value_name = "FILE")]
    admin_tls_cert: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, env = "CLINCH_ADMIN_TLS_KEY", requires = "admin_tls_cert", value_name = "FILE")]
    admin_tls_key: Option<PathBuf>,
    /// What this process does
    #[arg(long, env = "CLINCH_ROLES", default_value = "intake,worker,keeper,admin", value_name = "ROLES")]
    roles: Roles,
    /// After a stop, jobs under way have this long
    #[arg(long, env = "CLINCH_GRACE", default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    grace: Duration,
    /// Read files of the workspace again when they change, and make them live; --dev does too
    #[arg(long, env = "CLINCH_WATCH")]
    watch: bool,
    /// Try it out on this machine alone: stand-ins for everybody outside, secrets that are made up, and files read again when they change
    #[arg(long)]
    dev: bool,
    /// How log lines look
    #[arg(long, env = "CLINCH_LOG_FORMAT", value_enum, default_value = "text", value_name = "FORMAT")]
    log: LogFormat,
}

/// A core dump would write secrets and payloads to a place that nobody guards.
fn keep_memory_from_disk() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!("a crash may write memory to disk: core dumps cannot be turned off: {error}");
    }
}

fn files(cert: &Option<PathBuf>, key: &Option<PathBuf>) -> Option<TlsFiles> {
    Some(TlsFiles { cert: cert.clone()?, key: key.clone()? })
}

impl Serve {
    pub async fn run(self, globals: &Globals) -> Result<Exit, Failure> {
        start_logging(self.log);
        keep_memory_from_disk();
        let rehearsal =
            if self.dev { Some(rehearsal(&self.workspace).await.map_err(|error| self.failure(error))?) } else { None };
        let options = Options {
            workspace: self.workspace.clone(),
            data_dir: globals.data_dir.clone(),
            store: self.store.clone(),
            listen: self.listen,
            admin: self.admin,
            tls: files(&self.tls_cert, &self.tls_key),
            admin_tls: files(&self.admin_tls_cert, &self.admin_tls_key),
            roles: self.roles,
            proxy: None,
            watch: self.watch || self.dev,
            grace: self.grace,
            rehearsal,
        };
        let Err(error) = app::serve(options).await else {
            return Ok(Exit::Done);
        };
        Err(self.failure(error))
    }

    fn failure(&self, error: StartError) -> Failure {
        match error {
            StartError::Config { files, problems } => {
                let problems = Problems { directory: &self.workspace, files: &files, found: &problems };
                render::complain(&(problems.human() + "\n"));
                Failure::new(Exit::ConfigInvalid, "CL0528", "Nothing was started: the workspace has problems")
                    .fix(format!("clinch check {}", self.workspace.display()))
            }
            StartError::Workspace(said) => Failure::new(Exit::ConfigInvalid, "CL0527", said),
            StartError::Store(error) => Failure::new(Exit::Failed, "CL0526", error.to_string()),
            StartError::Io(said) => Failure::new(Exit::Failed, "CL0528", said),
        }
    }
}

/// Stand-ins for everybody whom the workspace calls.
async fn rehearsal(directory: &Path) -> Result<Rehearsal, StartError> {
    let workspace = app::read(directory)?;
    stand_ins::rehearse(&workspace, directory).await.map_err(StartError::Workspace)
}
