//! Where clinch may call: nowhere inside, unless it is told so. A target is a host, its addresses are what the host turns out
//! to be, and both must be allowed: names lie.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// What a workspace and the way it is served allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    pub allow: Vec<Allowed>,
    /// Only this machine can reach the server, so the server may reach this machine.
    pub loopback: bool,
}

/// A place that may be called though it is inside, or without TLS, or at another port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    Host(String),
    /// Every host below it: `*.internal.example`.
    Below(String),
    Net {
        address: IpAddr,
        bits: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a host nor a network; write `crm.internal`, `*.internal`, `10.1.0.0/16` or `127.0.0.1`")]
pub struct BadAllowed(String);

impl FromStr for Allowed {
    type Err = BadAllowed;
    fn from_str(text: &str) -> Result<Self, BadAllowed> {
        let bad = || BadAllowed(text.chars().take(80).collect());
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            return Ok(Allowed::Net { address, bits });
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits: u8 = bits.parse().map_err(|_| bad())?;
            return if bits <= most { Ok(Allowed::Net { address, bits }) } else { Err(bad()) };
        }
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = normal(name);
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
            return Err(bad());
        }
        Ok(if below { Allowed::Below(name) } else { Allowed::Host(name) })
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Host(host) => f.write_str(host),
            Allowed::Below(host) => write!(f, "*.{host}"),
            Allowed::Net { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

impl Allowed {
    fn has_host(&self, host: &str) -> bool {
        match self {
            Allowed::Host(allowed) => allowed == host,
            Allowed::Below(allowed) => host.strip_suffix(allowed.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Allowed::Net { .. } => false,
        }
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let Allowed::Net { address: net, bits } = self else { return false };
        match (net, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(*bits);
                shift >= 32 || u32::from(*net) >> shift == u32::from(address) >> shift
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(*bits);
                shift >= 128 || u128::from(*net) >> shift == u128::from(address) >> shift
            }
            _ => false,
        }
    }
}

/// Where servers take mails, by custom and by standard.
const MAIL_PORTS: &[u16] = &[25, 465, 587, 2525];

/// Why a place may not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{place}` is not called: {why}; if it is meant, add it to `egress: {{allow: […]}}` of clinch.yml")]
pub struct Blocked {
    place: String,
    why: &'static str,
}

/// Small letters, and not the dot that some write at the end.
fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl Egress {
    /// Before anything is looked up.
    pub fn check_host(&self, tls: bool, host: &str, port: u16) -> Result<(), Blocked> {
        self.check(
            host,
            match (tls, port) {
                (true, 443) => None,
                (false, _) => Some("it would be called without TLS"),
                (true, _) => Some("its port is not 443"),
            },
        )
    }

    /// The same of a server that takes mails.
    pub fn check_mail_host(&self, tls: bool, host: &str, port: u16) -> Result<(), Blocked> {
        self.check(
            host,
            match tls {
                false => Some("it would be called without TLS"),
                true if MAIL_PORTS.contains(&port) => None,
                true => Some("its port is none of those that take mails (25, 465, 587, 2525)"),
            },
        )
    }

    /// `outside` is what speaks against the place if it is on the open network.
    fn check(&self, host: &str, outside: Option<&'static str>) -> Result<(), Blocked> {
        let name = normal(host);
        let blocked = |why| Err(Blocked { place: host.to_string(), why });
        if self.allows_host(&name) {
            return Ok(());
        }
        if let Ok(address) = name.parse::<IpAddr>() {
            if self.allows_address(address) {
                return Ok(());
            }
            self.check_address(host, address)?;
        }
        let is_local = ["localhost", "local", "internal", "localdomain"]
            .iter()
            .any(|inside| name == *inside || name.strip_suffix(inside).is_some_and(|rest| rest.ends_with('.')));
        if is_local && !(self.loopback && (name == "localhost" || name.ends_with(".localhost"))) {
            return blocked("it is the name of a place inside");
        }
        if is_local {
            return Ok(());
        }
        outside.map_or(Ok(()), blocked)
    }

    /// What its name turned out to be. One address inside is enough to be blocked.
    pub fn check_address(&self, host: &str, address: IpAddr) -> Result<(), Blocked> {
        if self.allows_host(&normal(host)) || self.allows_address(address) {
            return Ok(());
        }
        match inside(address) {
            None => Ok(()),
            Some(why) => Err(Blocked { place: host.to_string(), why }),
        }
    }

    fn allows_host(&self, name: &str) -> bool {
        self.allow.iter().any(|allowed| allowed.has_host(name))
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|allowed| allowed.has_address(address))
            || (self.loopback && matches!(plain(address), Some(plain) if plain.is_loopback()))
    }
}

/// 127.0.0.0/8 and ::1 as they are, and not in disguise.
fn plain(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V6(v6) if v6 != Ipv6Addr::LOCALHOST => None,
        address => Some(address),
    }
}

/// Why an address is not on the open network, if it is not.
pub fn inside(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => inside_v4(address),
        IpAddr::V6(address) => inside_v6(address),
    }
}

fn inside_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (127, ..) => "its address is this machine",
        (0, ..) => "its address is nobody's",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => "its address is of a private network",
        (169, 254, _) => "its address is of the local link, where clouds tell secrets",
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) | (198, 51, 100) | (203, 0, 113) => {
            "its address is reserved"
        }
        (224..=255, ..) => "its address is of a group or reserved",
        _ => return None,
    })
}

fn inside_v6(address: Ipv6Addr) -> Option<&'static str> {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let hidden = |address: Ipv4Addr| Some(inside_v4(address).unwrap_or("its address hides another"));
    if address.is_loopback() {
        return Some("its address is this machine");
    }
    match parts {
        // Mapped, compatible, translated: IPv4 in disguise.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => hidden(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inside_v4(v4(high, low)),
        [0x2002, high, low, ..] => inside_v4(v4(high, low)),
        [.., 0x0 | 0x200, 0x5efe, high, low] => hidden(v4(high, low)),
        [0x2001, 0..=0x1ff, ..] => Some("its address is of a tunnel or reserved"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("its address is reserved"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("its address is not of the open network"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(egress: &Egress, host: &str, allowed: bool) {
        let verdict = egress.check_host(true, host, 443);
        assert_eq!(verdict.is_ok(), allowed, "{host}: {verdict:?}");
    }

    #[test]
    fn t083_places_inside_are_not_called() {
        let egress = Egress::default();
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "localhost",
            "localhost.",
            "a.localhost",
            "::1",
            "::",
            "0.0.0.0",
            "169.254.169.254",
            "100.64.0.1",
            "192.168.1.1",
            "10.0.0.1",
            "172.31.255.255",
            "224.0.0.1",
            "255.255.255.255",
            "printer.local",
            "metadata.google.internal",
        ] {
            check(&egress, host, false);
        }
        for host in
            ["example.com", "172.32.0.1", "8.8.8.8", "2606:4700::1111", "localhost.example.com", "internal.example.com"]
        {
            check(&egress, host, true);
        }
    }

    #[test]
    fn t084_addresses_in_disguise_are_not_called() {
        for address in [
            "::ffff:127.0.0.1",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::",
            "::169.254.169.254",
            "fe81::1",
            "fd00::1",
            "2001:0:1::1",
            "2001:db8::1",
            "2606:4700::5efe:a00:1",
            "ff02::1",
            "fec0::1",
            "100::1",
            "::ffff:0:7f00:1",
        ] {
            assert!(inside(address.parse().expect("an address")).is_some(), "{address}");
        }
        assert_eq!(inside("64:ff9b::8.8.8.8".parse().expect("an address")), None);
    }

    #[test]
    fn t085_one_address_inside_is_enough() {
        let egress = Egress::default();
        assert!(egress.check_address("partner.example", "8.8.8.8".parse().expect("an address")).is_ok());
        assert!(egress.check_address("partner.example", "10.0.0.8".parse().expect("an address")).is_err());
    }

    #[test]
    fn k4_without_tls_or_at_another_port_a_place_must_be_allowed_by_name() {
        let egress = Egress { allow: vec!["crm.example".parse().expect("a host")], loopback: false };
        assert!(egress.check_host(false, "crm.example", 8080).is_ok());
        assert!(egress.check_host(false, "CRM.example.", 80).is_ok());
        for (tls, port) in [(false, 80), (true, 25), (true, 6379), (true, 8443)] {
            assert!(egress.check_host(tls, "other.example", port).is_err(), "{tls} {port}");
        }
    }

    #[test]
    fn k4_what_is_allowed_is_a_host_those_below_one_or_a_network() {
        let allow = ["crm.internal", "*.corp.example", "10.1.0.0/16", "fd00::/8"];
        let egress = Egress { allow: allow.map(|text| text.parse().expect("allowed")).to_vec(), loopback: false };
        for host in ["crm.internal", "a.corp.example", "b.a.corp.example", "10.1.255.1", "fd12::1"] {
            check(&egress, host, true);
        }
        for host in ["xcrm.internal", "10.2.0.1", "fe80::1", "127.0.0.1"] {
            check(&egress, host, false);
        }
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(egress.check_address("crm.internal", address("192.168.0.9")).is_ok());
        assert!(egress.check_address("corp.example", address("192.168.0.9")).is_err());
        for bad in ["", "a b", "10.0.0.0/33", "http://x", "*.", "x/8"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad}");
        }
        for text in allow {
            assert_eq!(text.parse::<Allowed>().expect("allowed").to_string(), text);
        }
    }

    #[test]
    fn k4_a_server_that_only_this_machine_reaches_may_call_this_machine() {
        let egress = Egress { allow: Vec::new(), loopback: true };
        for host in ["127.0.0.1", "localhost", "::1"] {
            assert!(egress.check_host(false, host, 9931).is_ok(), "{host}");
        }
        for host in ["10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "printer.local"] {
            assert!(egress.check_host(false, host, 80).is_err(), "{host}");
        }
        assert!(egress.check_address("localhost", "127.0.0.1".parse().expect("an address")).is_ok());
    }
}
