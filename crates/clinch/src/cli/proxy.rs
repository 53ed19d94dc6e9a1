//! `clinch proxy`: idempotency in front of an API that has none.

use super::Globals;
use super::exit::{Exit, Failure};
use crate::app::{self, Options, Roles, StartError};
use crate::proxy::Rules;
use crate::telemetry::{LogFormat, start_logging};
use clap::Args;
use clinch_core::time::parse_duration;
use http::header::HeaderName;
use http::uri::Uri;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch proxy --to https://api.crm.example
  curl -X POST http://127.0.0.1:7410/v1/leads -H 'Idempotency-Key: lead-4711' -d '{\"email\": \"a@example.com\"}'
  clinch proxy --to http://10.0.0.5:8080 --listen 0.0.0.0:7410 --store postgres://… --keep 72h

The first success under a key is kept and given again (Idempotent-Replayed: true); calls at the same time are joined;
another call under the same key is 422; a call whose answer was lost is 409 and is not sent again. A call that failed
(an answer other than 2xx) is not remembered. Keys of different Authorization headers never meet.")]
pub struct Proxy {
    /// What is called: http:// or https://, with a path before every other if you like
    #[arg(long, value_name = "URL", value_parser = target)]
    to: Uri,
    /// The address that clients use instead (default 127.0.0.1:7410)
    #[arg(long, env = "CLINCH_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The address of API, metrics and health
    #[arg(long, env = "CLINCH_ADMIN", default_value = "127.0.0.1:7411", value_name = "ADDR")]
    admin: SocketAddr,
    /// Where answers are kept: sqlite:DIRECTORY or postgres://…; without it, in `proxy` of the data directory
    #[arg(long, env = "CLINCH_STORE", value_name = "STORE")]
    store: Option<String>,
    /// A file with what encrypts the answers; needed where several proxies share a database
    #[arg(long, env = "CLINCH_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The header with the caller's key
    #[arg(long, default_value = "Idempotency-Key", value_name = "NAME")]
    key_header: HeaderName,
    /// How long an answer is kept and its key is taken
    #[arg(long, default_value = "24h", value_parser = parse_duration, value_name = "TIME")]
    keep: Duration,
    /// How long the target may take
    #[arg(long, default_value = "30s", value_parser = parse_duration, value_name = "TIME")]
    timeout: Duration,
    /// The largest body that is taken, in bytes
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES")]
    body_max: usize,
    /// Refuse calls that change something and have no key, instead of handing them on
    #[arg(long)]
    require_key: bool,
    /// Send a call again whose answer was lost: only for targets where that does no harm
    #[arg(long)]
    resend_unknown: bool,
    /// How log lines look
    #[arg(long, env = "CLINCH_LOG_FORMAT", value_enum, default_value = "text", value_name = "FORMAT")]
    log: LogFormat,
}

fn target(text: &str) -> Result<Uri, String> {
    let bad = || "write http://HOST or https://HOST, with a port and a path if need be".to_string();
    let uri: Uri = text.parse().map_err(|_| bad())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.query().is_none() && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if is_http && is_plain && uri.host().is_some_and(|host| !host.is_empty()) { Ok(uri) } else { Err(bad()) }
}

impl Proxy {
    pub async fn run(self, globals: &Globals) -> Result<Exit, Failure> {
        start_logging(self.log);
        let rules = Rules {
            to: self.to,
            key_header: self.key_header,
            keep: self.keep,
            timeout: self.timeout,
            needs_key: self.require_key,
            resends: self.resend_unknown,
            body_bytes_max: self.body_max,
            key_file: self.key_file,
        };
        let options = Options {
            workspace: PathBuf::from("."),
            data_dir: globals.data_dir.join("proxy"),
            store: self.store,
            listen: self.listen,
            admin: Some(self.admin),
            tls: None,
            admin_tls: None,
            roles: Roles { intake: false, worker: false, keeper: true, admin: true },
            proxy: Some(rules),
            watch: false,
            grace: self.timeout,
            rehearsal: None,
        };
        match app::serve(options).await {
            Ok(()) => Ok(Exit::Done),
            Err(StartError::Store(error)) => Err(Failure::new(Exit::Failed, "CL0526", error.to_string())),
            Err(error) => Err(Failure::new(Exit::Failed, "CL0528", error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d3_a_target_is_a_host_with_a_scheme_and_nothing_that_would_be_lost() {
        for good in ["http://127.0.0.1:8080", "https://crm.example/api"] {
            assert!(target(good).is_ok(), "{good}");
        }
        for bad in ["crm.example", "/x", "ftp://crm.example", "https://a:b@crm.example", "https://crm.example/?a=1", ""]
        {
            assert!(target(bad).is_err(), "{bad}");
        }
    }
}
