//! The way to the database: its address as people write it, and TLS.

use mysql_async::{Opts, OptsBuilder, SslOpts};
use std::net::IpAddr;
use std::path::PathBuf;

/// A value that does not fit is refused and not cut to size, whatever the server thinks of that; and a backslash in a text
/// means what the places of parameters are looked for with.
const MODE: &str =
    "SET SESSION sql_mode = CONCAT(REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', ''), ',STRICT_ALL_TABLES')";

/// Reads `mysql://user@host/database?sslmode=…&sslrootcert=…&socket=…`. As with PostgreSQL the network is never crossed in
/// clear without `sslmode`: only this machine is spoken to without TLS. A certificate is always verified.
pub fn parse(address: &str) -> Result<Opts, String> {
    let help = "write mysql://user@host/database";
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut ssl_mode, mut root, mut socket) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let path = |value: &str| Some(value.replace("%2F", "/").replace("%2f", "/"));
        match pair.split_once('=') {
            Some(("sslmode", value)) => ssl_mode = Some(value),
            Some(("sslrootcert", value)) => root = path(value),
            Some(("socket", value)) => socket = path(value),
            other => {
                let name = other.map_or(pair, |(name, _)| name);
                return Err(format!("`{name}` is not known there; write sslmode, sslrootcert or socket"));
            }
        }
    }
    let opts = Opts::from_url(&format!("mysql://{base}"))
        .map_err(|error| format!("the address of the database cannot be read: {error}; {help}"))?;
    if opts.db_name().unwrap_or_default().is_empty() {
        return Err(format!("the address names no database; {help}"));
    }
    let host = opts.ip_or_hostname().trim_matches(['[', ']']);
    let is_local =
        socket.is_some() || host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let encrypted = match ssl_mode {
        None | Some("prefer") => !is_local,
        Some("disable") => false,
        Some("require" | "verify-ca" | "verify-full") => true,
        Some(other) => {
            return Err(format!(
                "sslmode={other} is not known; write disable, prefer, require, verify-ca or verify-full"
            ));
        }
    };
    let builder = OptsBuilder::from_opts(opts)
        .ssl_opts(encrypted.then(|| trusting(root)))
        .socket(socket)
        // Nobody asked for another way than the one that is written.
        .prefer_socket(false)
        // As everywhere else, rows count that are found, also when they have the new values already.
        .client_found_rows(true)
        .init(vec![MODE]);
    Ok(builder.into())
}

/// Trusts the certificates of this file, or those that browsers trust.
fn trusting(root: Option<String>) -> SslOpts {
    match root {
        None => SslOpts::default(),
        Some(path) => {
            SslOpts::default().with_root_certs(vec![PathBuf::from(path).into()]).with_disable_built_in_roots(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_the_network_to_mysql_is_not_crossed_in_clear_unless_told_to() {
        let is_encrypted = |url: &str| parse(url).expect(url).ssl_opts().is_some();
        assert!(!is_encrypted("mysql://app@localhost/crm"));
        assert!(!is_encrypted("mariadb://app@127.0.0.1:3307/crm"));
        assert!(!is_encrypted("mysql://app@[::1]/crm?sslmode=prefer"));
        assert!(!is_encrypted("mysql://app@localhost/crm?socket=%2Frun%2Fmysqld%2Fmysqld.sock"));
        assert!(is_encrypted("mysql://app@db.example/crm"));
        assert!(is_encrypted("mysql://app@localhost/crm?sslmode=verify-full&sslrootcert=/etc/ca.pem"));
        assert!(!is_encrypted("mysql://app@db.example/crm?sslmode=disable"));
    }

    #[test]
    fn c8_an_address_of_mysql_is_read_with_its_escapes_and_refused_without_its_password() {
        let opts = parse("mysql://app:p%40ss%2Fw@db.example:3307/crm").expect("read");
        assert_eq!((opts.user(), opts.pass(), opts.tcp_port()), (Some("app"), Some("p@ss/w"), 3307));
        for (url, said) in [
            ("mysql://app:hunter2@db.example", "names no database"),
            ("mysql://app:hunter2@db.example:port/crm", "cannot be read"),
            ("mysql://app:hunter2@db.example/crm?sslmode=sometimes", "write disable, prefer"),
            ("mysql://app:hunter2@db.example/crm?require_ssl=false", "`require_ssl` is not known"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(said) && !why.contains("hunter2"), "{why}");
        }
    }
}
