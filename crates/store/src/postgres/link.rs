//! The way to the database: its address as people write it, TLS, and a session with the settings every verb relies on.

use crate::{Result, StoreError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection that is not made by then is not made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Link {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// Whether it leads to PgBouncer in transaction mode.
    pub is_pooled: bool,
    /// Whether the operator knows that this server may forget what was accepted.
    pub is_unsafe_accepted: bool,
}

impl Link {
    /// Reads `postgres://user@host/database?sslmode=…&sslrootcert=…&passfile=…`. Without `sslmode` the network is never
    /// crossed in clear: only this machine is spoken to without TLS. A certificate is always verified. A password that is
    /// not in the address is looked for in the password file (`passfile`, PGPASSFILE or ~/.pgpass).
    pub fn parse(url: &str) -> Result<Link> {
        let Split { rest, ssl_mode, root, passfile, pgbouncer, unsafe_durability } = split(url);
        let mut config = Config::from_str(&rest).map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            StoreError::Open(format!(
                "the address of the database cannot be read: {why}; write postgres://user@host/database"
            ))
        })?;
        let encrypted = match ssl_mode.as_deref() {
            None | Some("prefer") => !is_local(&config),
            Some("disable") => false,
            Some("require" | "verify-ca" | "verify-full") => true,
            Some(other) => {
                return Err(StoreError::Open(format!(
                    "sslmode={other} is not known; write disable, prefer, require, verify-ca or verify-full"
                )));
            }
        };
        config.ssl_mode(if encrypted { SslMode::Require } else { SslMode::Disable });
        config.connect_timeout(CONNECT_MAX);
        if config.get_application_name().is_none() {
            config.application_name("clinch");
        }
        if config.get_password().is_none()
            && let Some(password) = password(passfile, &config)?
        {
            config.password(password);
        }
        let tls = if encrypted { Some(tls(root.as_deref())?) } else { None };
        let is_pooled = match pgbouncer.as_deref() {
            None => false,
            Some("transaction") => true,
            Some(other) => {
                return Err(StoreError::Open(format!(
                    "pgbouncer={other} is not known; write pgbouncer=transaction, or nothing for a pooler in session mode"
                )));
            }
        };
        let is_unsafe_accepted = match unsafe_durability.as_deref() {
            None => false,
            Some("accept") => true,
            Some(_) => {
                return Err(StoreError::Open("unsafe_durability can only be accept; or leave it out".into()));
            }
        };
        Ok(Link { config, tls, is_pooled, is_unsafe_accepted })
    }

    /// What people call it, without a password.
    pub fn name(&self) -> String {
        let host = |host: &Host| match host {
            Host::Tcp(name) if name.contains(':') => format!("[{name}]"),
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string().replace('/', "%2F"),
        };
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).filter(|port| **port != 5432);
        let hosts = self.config.get_hosts().iter().enumerate();
        let hosts = hosts.map(|(at, name)| host(name) + &port(at).map_or(String::new(), |port| format!(":{port}")));
        let user = self.config.get_user().map_or(String::new(), |user| format!("{user}@"));
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("postgres://{user}{}/{database}", hosts.collect::<Vec<_>>().join(","))
    }

    /// A bare connection. The second half must be polled for the first to work.
    pub async fn dial(&self) -> std::result::Result<(Client, Driver), tokio_postgres::Error> {
        match &self.tls {
            None => self.config.connect(NoTls).await.map(|(client, wire)| (client, Driver::Plain(Box::new(wire)))),
            Some(tls) => {
                let (client, wire) = self.config.connect(tls.clone()).await?;
                Ok((client, Driver::Tls(Box::new(wire))))
            }
        }
    }

    pub(super) async fn connect(&self) -> std::result::Result<(Client, Driver), super::Fault> {
        tokio::time::timeout(CONNECT_MAX, self.dial()).await.map_err(|_| super::Fault::Silent)?.map_err(Into::into)
    }
}

/// What must be polled for a client to work.
pub(crate) enum Driver {
    Plain(Box<Connection<Socket, tokio_postgres::tls::NoTlsStream>>),
    Tls(Box<Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>>),
}

impl Driver {
    /// The next thing that the server says on its own; `None` when the connection is over.
    pub async fn hear(&mut self) -> Option<std::result::Result<tokio_postgres::AsyncMessage, tokio_postgres::Error>> {
        match self {
            Driver::Plain(wire) => std::future::poll_fn(|context| wire.poll_message(context)).await,
            Driver::Tls(wire) => std::future::poll_fn(|context| wire.poll_message(context)).await,
        }
    }

    /// Until the connection is over. Why is told to whoever asks the client something.
    pub async fn run(mut self) {
        while let Some(Ok(_)) = self.hear().await {}
    }
}

fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    })
}

/// An address without what the client library has no words for, or fewer than people use.
#[derive(Default)]
struct Split {
    rest: String,
    ssl_mode: Option<String>,
    root: Option<String>,
    passfile: Option<String>,
    pgbouncer: Option<String>,
    unsafe_durability: Option<String>,
}

fn split(url: &str) -> Split {
    let Some((base, query)) = url.split_once('?') else { return Split { rest: url.into(), ..Split::default() } };
    let path = |value: &str| Some(value.replace("%2F", "/").replace("%2f", "/"));
    let (mut split, mut rest) = (Split::default(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => split.ssl_mode = Some(value.to_string()),
            Some(("sslrootcert", value)) => split.root = path(value),
            Some(("passfile", value)) => split.passfile = path(value),
            Some(("unsafe_durability", value)) => split.unsafe_durability = Some(value.to_string()),
            Some(("pgbouncer", value)) => split.pgbouncer = Some(value.to_string()),
            _ => rest.push(pair),
        }
    }
    split.rest = if rest.is_empty() { base.to_string() } else { format!("{base}?{}", rest.join("&")) };
    split
}

/// The password of the first line that fits the first host. A file that was named must be there; one that others can read
/// is not used.
fn password(named: Option<String>, config: &Config) -> Result<Option<String>> {
    let is_named = named.is_some();
    let path = named.map(PathBuf::from).or_else(|| std::env::var_os("PGPASSFILE").map(PathBuf::from));
    let Some(path) = path.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"))) else {
        return Ok(None);
    };
    let refuse = |why: String| StoreError::Open(format!("the password file {} is not used: {why}", path.display()));
    let file = match std::fs::metadata(&path) {
        Ok(file) => file,
        Err(error) if is_named => return Err(refuse(error.to_string())),
        Err(_) => return Ok(None),
    };
    if file.permissions().mode() & 0o077 != 0 {
        return Err(refuse("others can read it; chmod 600 it".into()));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| refuse(error.to_string()))?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        _ => "localhost".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    Ok(password_for(&text, [&host, &port, config.get_dbname().unwrap_or(user), user]))
}

/// Lines of `host:port:database:user:password`; `*` fits everything, a backslash takes the meaning from `:` and `\`.
fn password_for(text: &str, of: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            match character {
                ':' if fields.len() < 5 => fields.push(String::new()),
                '\\' => fields.last_mut()?.extend(characters.next()),
                plain => fields.last_mut()?.push(plain),
            }
        }
        let password = (fields.len() == 5).then(|| fields.pop()).flatten()?;
        fields.iter().zip(of).all(|(field, of)| field == "*" || field == of).then_some(password)
    })
}

/// Trusts the certificates of this file, or those that browsers trust.
fn tls(root: Option<&str>) -> Result<MakeRustlsConnect> {
    let mut roots = rustls::RootCertStore::empty();
    match root {
        None => {
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
        Some(path) => {
            let unreadable = |why: String| StoreError::Open(format!("sslrootcert {path} cannot be read: {why}"));
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Open(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_encrypted(url: &str) -> bool {
        Link::parse(url).expect("read").tls.is_some()
    }

    #[test]
    fn the_network_is_not_crossed_in_clear_unless_told_to() {
        assert!(!is_encrypted("postgres://clinch@localhost/clinch"));
        assert!(!is_encrypted("postgres://clinch@127.0.0.1:5433,[::1]/clinch"));
        assert!(!is_encrypted("postgres:///clinch?host=/run/postgresql"));
        assert!(is_encrypted("postgres://clinch@db.example/clinch"));
        assert!(is_encrypted("postgres://clinch@localhost,db.example/clinch"));
        assert!(is_encrypted("postgres://clinch@localhost/clinch?sslmode=verify-full"));
        assert!(!is_encrypted("postgres://clinch@db.example/clinch?sslmode=disable&target_session_attrs=read-write"));
    }

    #[test]
    fn a_password_is_found_by_host_port_database_and_user() {
        let file =
            "# comment\nshort:line\ndb.example:5432:clinch:clinch:one:two\\\\\n*:5433:*:a\\:b:other\n*:*:*:*:any";
        let found = |of| password_for(file, of).expect("found");
        assert_eq!(found(["db.example", "5432", "clinch", "clinch"]), "one:two\\");
        assert_eq!(found(["elsewhere", "5433", "clinch", "a:b"]), "other");
        assert_eq!(found(["elsewhere", "5432", "clinch", "clinch"]), "any");
        assert_eq!(password_for("a:1:b:c:d", ["a", "1", "b", "x"]), None);
    }

    #[test]
    fn an_address_that_cannot_be_read_says_what_to_write() {
        for (url, said) in [
            ("postgres://clinch@localhost:port/clinch", "write postgres://"),
            ("postgres://localhost/clinch?sslmode=sometimes", "write disable, prefer"),
            ("postgres://localhost/clinch?unsafe_durability=yes", "can only be accept"),
            ("postgres://localhost/clinch?pgbouncer=statement", "write pgbouncer=transaction"),
            ("postgres://localhost/clinch?sslmode=require&sslrootcert=/nowhere.pem", "/nowhere.pem cannot be read"),
        ] {
            let why = Link::parse(url).err().expect("refused").to_string();
            assert!(why.contains(said), "{why}");
        }
    }
}
