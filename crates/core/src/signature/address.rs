//! The address that some providers sign, and the spellings in which they sign it.

/// Scheme, authority, path and query of an absolute address, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    pub scheme: &'a str,
    pub authority: &'a str,
    /// Begins with `/`, or is empty.
    pub path: &'a str,
    /// Begins with `?`, or is empty.
    pub query: &'a str,
}

impl<'a> Address<'a> {
    pub fn parse(url: &'a str) -> Option<Address<'a>> {
        let url = url.split('#').next().unwrap_or_default();
        let (scheme, rest) = url.split_once("://")?;
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        (!authority.is_empty()).then_some(Address { scheme, authority, path, query })
    }

    fn port_default(&self) -> &'static str {
        if self.scheme.eq_ignore_ascii_case("http") { "80" } else { "443" }
    }

    /// Host and port; a colon inside an IPv6 address is not a port's.
    fn host_and_port(&self) -> (&'a str, Option<&'a str>) {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                (host, Some(port))
            }
            _ => (self.authority, None),
        }
    }

    fn with_authority(&self, authority: &str) -> String {
        format!("{}://{authority}{}{}", self.scheme, self.path, self.query)
    }

    /// In lower case, without user and default port: what RFC 9421 calls `@authority`.
    pub fn plain_authority(&self) -> String {
        let (host, port) = self.host_and_port();
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host).to_ascii_lowercase();
        match port {
            Some(port) if port != self.port_default() => format!("{host}:{port}"),
            _ => host,
        }
    }
}

/// In which spellings a provider may have signed the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spelling {
    #[default]
    AsConfigured,
    /// Twilio leaves the port out or writes it, the default one too.
    AnyPort,
    /// HubSpot's documentation undoes some escapes, its libraries do not.
    HubSpot,
}

impl Spelling {
    pub(super) fn of(self, url: &str) -> Vec<String> {
        let mut spellings = vec![url.to_string()];
        let mut add = |spelling: String| {
            if !spellings.contains(&spelling) {
                spellings.push(spelling);
            }
        };
        match self {
            Spelling::AsConfigured => {}
            Spelling::HubSpot => add(hubspot_decoded(url)),
            Spelling::AnyPort => {
                if let Some(address) = Address::parse(url) {
                    let (host, port) = address.host_and_port();
                    add(address.with_authority(host));
                    add(address.with_authority(&format!("{host}:{}", port.unwrap_or(address.port_default()))));
                }
            }
        }
        spellings
    }
}

fn hubspot_decoded(url: &str) -> String {
    const UNDONE: [(&str, char); 12] = [
        ("%3A", ':'),
        ("%2F", '/'),
        ("%3F", '?'),
        ("%40", '@'),
        ("%21", '!'),
        ("%24", '$'),
        ("%27", '\''),
        ("%28", '('),
        ("%29", ')'),
        ("%2A", '*'),
        ("%2C", ','),
        ("%3B", ';'),
    ];
    let mut plain = String::with_capacity(url.len());
    let mut rest = url;
    while let Some(next) = rest.chars().next() {
        let escape =
            rest.get(..3).and_then(|start| UNDONE.iter().find(|(escape, _)| start.eq_ignore_ascii_case(escape)));
        let (stands_for, taken) = escape.map_or((next, next.len_utf8()), |(_, stands_for)| (*stands_for, 3));
        plain.push(stands_for);
        rest = &rest[taken..];
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart_as_written() {
        let address = Address::parse("https://User@Example.com:443/a/b?c=d#e").expect("an address");
        assert_eq!((address.path, address.query), ("/a/b", "?c=d"));
        assert_eq!(address.plain_authority(), "example.com");
        assert_eq!(Address::parse("http://[::1]:8080?x").expect("an address").plain_authority(), "[::1]:8080");
        assert_eq!(Address::parse("/a"), None);
    }

    #[test]
    fn t015_a_port_may_be_written_or_left_out() {
        let check = |url: &str, spellings: &[&str]| assert_eq!(Spelling::AnyPort.of(url), spellings, "{url}");
        check("https://a.example/x?y=1", &["https://a.example/x?y=1", "https://a.example:443/x?y=1"]);
        check("http://u:p@a.example", &["http://u:p@a.example", "http://u:p@a.example:80"]);
        check("https://a.example:1234/x", &["https://a.example:1234/x", "https://a.example/x"]);
    }

    #[test]
    fn hubspot_undoes_twelve_escapes_in_one_pass() {
        assert_eq!(hubspot_decoded("https://x/a%3a%2f%3F%20%253A%3D"), "https://x/a:/?%20%253A%3D");
        assert_eq!(hubspot_decoded("%é%2"), "%é%2");
    }
}
