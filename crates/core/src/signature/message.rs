//! HTTP Message Signatures (RFC 9421), to the extent that proves a delivery: HMAC-SHA256 and Ed25519, and a signature
//! that does not cover method, address and body proves nothing.

use super::address::Address;
use super::secret::Key;
use super::{Proof, Refusal, Request, SIGNATURES_MAX, digest};
use crate::time::Timestamp;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use data_encoding::BASE64;

pub(super) const HEADERS: [&str; 2] = ["signature", "signature-input"];
const INPUT: &str = HEADERS[1];
const COMPONENTS_MAX: usize = 32;

pub(super) fn verify(request: &Request<'_>, keys: &[&Key], now: Timestamp) -> Result<Proof, Refusal> {
    let (inputs, signatures) = (dictionary(request, INPUT)?, dictionary(request, HEADERS[0])?);
    let mut first = None;
    for (label, input) in inputs {
        let Some((_, signature)) = signatures.iter().find(|(signed, _)| *signed == label) else { continue };
        match one(request, keys, now, input, signature) {
            Ok(proof) => return Ok(proof),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    Err(first.unwrap_or_else(|| malformed(HEADERS[0])))
}

fn one(request: &Request<'_>, keys: &[&Key], now: Timestamp, input: &str, sent: &str) -> Result<Proof, Refusal> {
    let input = Input::parse(input).ok_or_else(|| malformed(INPUT))?;
    covers(&input, request)?;
    let key = matching_key(&input, request, keys, sent)?;
    if input.components.contains(&"content-digest") {
        digest::check(request.header("content-digest")?, request.body).map_err(|_| Refusal::BodyDigest)?;
    }
    let created = input.created.ok_or_else(|| Refusal::NotCovered("created".into()))?;
    if let Some(expires) = input.expires
        && expires < now
    {
        return Err(Refusal::Stale { age: now.since(created), tolerance: expires.since(created) });
    }
    Ok(Proof { key, at: Some(created) })
}

/// What a signature must cover before it counts: to whom, how, and what.
fn covers(input: &Input<'_>, request: &Request<'_>) -> Result<(), Refusal> {
    let has = |name: &str| input.components.contains(&name);
    if !has("@method") {
        return Err(Refusal::NotCovered("@method".into()));
    }
    if !has("@target-uri") && !has("@authority") {
        return Err(Refusal::NotCovered("@target-uri".into()));
    }
    if !has("content-digest") && !request.body.is_empty() {
        return Err(Refusal::NotCovered("content-digest".into()));
    }
    Ok(())
}

fn matching_key(input: &Input<'_>, request: &Request<'_>, keys: &[&Key], sent: &str) -> Result<usize, Refusal> {
    let base = input.base(request)?;
    let base64 = sent.strip_prefix(':').and_then(|sent| sent.strip_suffix(':')).ok_or_else(|| malformed(HEADERS[0]))?;
    let wrong = || Refusal::Encoding { header: HEADERS[0].into(), wanted: "base64" };
    let sent = BASE64.decode(base64.as_bytes()).map_err(|_| wrong())?;
    // The key decides the algorithm. A sender that names another one is confused, or wants us to be.
    let named = |algorithm: &str| input.algorithm.is_none_or(|named| named == algorithm);
    let mut matched = None;
    for (place, key) in keys.iter().enumerate() {
        let fits = match key {
            Key::Shared(secret) if named("hmac-sha256") => {
                let computed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), base.as_bytes());
                verify_slices_are_equal(computed.as_ref(), &sent).is_ok()
            }
            Key::Ed25519(public) if named("ed25519") => public.verify_sig(base.as_bytes(), &sent).is_ok(),
            _ => false,
        };
        if fits {
            matched = Some(place);
        }
    }
    matched.ok_or(Refusal::Mismatch)
}

fn malformed(header: &str) -> Refusal {
    let wanted = if header == INPUT { "sig=(\"@method\" …);created=…" } else { "sig=:<base64>:" };
    Refusal::Malformed { header: header.into(), wanted: wanted.into() }
}

/// The members of a structured dictionary, as written: `label` and what stands behind its `=`.
fn dictionary<'a>(request: &Request<'a>, name: &str) -> Result<Vec<(&'a str, &'a str)>, Refusal> {
    let members = members(request.header(name)?).ok_or_else(|| malformed(name))?;
    match members.len() {
        0..=SIGNATURES_MAX => Ok(members),
        _ => Err(Refusal::TooManySignatures(name.into())),
    }
}

/// Splits at commas that stand neither in quotes nor in brackets.
fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    let (mut quoted, mut escaped, mut depth, mut start) = (false, false, 0_u32, 0);
    let mut found = Vec::new();
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                found.push(text[start..place].trim());
                start = place + 1;
            }
            _ => {}
        }
    }
    found.push(text[start..].trim());
    found.into_iter().map(|member| member.split_once('=')).collect()
}

/// One `Signature-Input`, of which the very text is part of what is signed.
struct Input<'a> {
    text: &'a str,
    components: Vec<&'a str>,
    created: Option<Timestamp>,
    expires: Option<Timestamp>,
    algorithm: Option<&'a str>,
}

impl<'a> Input<'a> {
    fn parse(text: &'a str) -> Option<Input<'a>> {
        let (list, parameters) = text.strip_prefix('(')?.split_once(')')?;
        let components: Vec<&str> = list
            .split(' ')
            .filter(|component| !component.is_empty())
            // A component with parameters of its own (`;sf`, `;key=`) is not read here, and thus not proven.
            .map(|component| component.strip_prefix('"')?.strip_suffix('"').filter(|name| !name.contains('"')))
            .collect::<Option<_>>()?;
        let twice = components.iter().enumerate().any(|(place, name)| components[..place].contains(name));
        if twice || components.len() > COMPONENTS_MAX {
            return None;
        }
        let mut input = Input { text, components, created: None, expires: None, algorithm: None };
        for parameter in parameters.split(';').skip(1) {
            let (name, value) = parameter.split_once('=')?;
            let moment = || super::window::Unit::Seconds.read(value);
            match name {
                "created" => input.created = Some(moment()?),
                "expires" => input.expires = Some(moment()?),
                "alg" => input.algorithm = Some(value.strip_prefix('"')?.strip_suffix('"')?),
                _ => {}
            }
        }
        Some(input)
    }

    /// The signature base: a line for each component, and the input itself.
    fn base(&self, request: &Request<'_>) -> Result<String, Refusal> {
        let mut base = String::new();
        for name in &self.components {
            base += &format!("\"{name}\": {}\n", component(name, request)?);
        }
        Ok(base + "\"@signature-params\": " + self.text)
    }
}

fn component(name: &str, request: &Request<'_>) -> Result<String, Refusal> {
    if !name.starts_with('@') {
        return request.header(name).map(|value| value.trim().to_string());
    }
    let address = || Address::parse(request.url).ok_or(Refusal::NoUrl);
    let path = |address: &Address<'_>| if address.path.is_empty() { "/" } else { address.path }.to_string();
    Ok(match name {
        "@method" => request.method.to_string(),
        "@target-uri" => address().map(|_| request.url.to_string())?,
        "@authority" => address()?.plain_authority(),
        "@scheme" => address()?.scheme.to_ascii_lowercase(),
        "@path" => path(&address()?),
        "@query" => address().map(|address| if address.query.is_empty() { "?" } else { address.query }.to_string())?,
        "@request-target" => address().map(|address| path(&address) + address.query)?,
        unknown => return Err(Refusal::Version { header: INPUT.into(), wanted: format!("not `{unknown}`") }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Scheme, Secret, SecretFormat, Secrets, Verified, Window, verify as verify_any};
    use super::*;
    use proptest::prelude::*;

    const SHARED: &str =
        "hmac-sha256:uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==";
    const ED25519: &str = "ed25519:JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=";
    const B25: (&str, &str) = (
        r#"("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret""#,
        ":pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=:",
    );
    const B26: (&str, &str) = (
        r#"("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519""#,
        ":wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:",
    );
    const BODY: &[u8] = br#"{"hello": "world"}"#;
    const CREATED: i64 = 1_618_884_473;

    /// The request of the RFC's appendix B.2.
    const HEADERS_SENT: [(&str, &[u8]); 4] = [
        ("date", b"Tue, 20 Apr 2021 02:07:55 GMT"),
        ("content-type", b"application/json"),
        ("content-digest", b"sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"),
        ("content-length", b"18"),
    ];

    fn request<'a>(headers: &'a [(&'a str, &'a [u8])]) -> Request<'a> {
        Request { method: "POST", url: "https://example.com/foo?param=Value&Pet=dog", headers, body: BODY }
    }

    fn key(text: &str) -> Key {
        SecretFormat::Labelled.read(text).expect("a key")
    }

    fn moment(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn t037_the_vectors_of_the_rfc_have_the_signature_base_and_the_algorithm() {
        for ((input, signature), secret, other) in [(B25, SHARED, ED25519), (B26, ED25519, SHARED)] {
            let (input, request) = (Input::parse(input).expect("an input"), request(&HEADERS_SENT));
            let check = |secret: &str, signature: &str| matching_key(&input, &request, &[&key(secret)], signature);
            assert_eq!(check(secret, signature), Ok(0));
            assert_eq!(check(other, signature), Err(Refusal::Mismatch));
            assert!(check(secret, &signature.replace("=:", "A=:")).is_err());
        }
    }

    fn sent(input: &str, secret: &str) -> (String, String) {
        let Key::Shared(secret) = key(secret) else { panic!("a shared key") };
        let base = Input::parse(input).expect("an input").base(&request(&HEADERS_SENT)).expect("a base");
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), base.as_bytes());
        (format!("sig={input}"), format!("sig=:{}:", BASE64.encode(tag.as_ref())))
    }

    fn answer(input: &str, now: i64) -> Result<Verified, Refusal> {
        let (input, signature) = sent(input, SHARED);
        let mut headers = HEADERS_SENT.to_vec();
        headers.extend([(INPUT, input.as_bytes()), ("signature", signature.as_bytes())]);
        let secrets = Secrets::new(vec![Secret::new("one", key(SHARED))]).expect("one secret");
        verify_any(&Scheme::Message, &request(&headers), &secrets, Window::at(moment(now)))
    }

    #[test]
    fn t037_a_signature_counts_only_if_it_covers_method_address_and_body_and_is_fresh() {
        let good = r#"("@method" "@target-uri" "content-digest");created=1618884473;alg="hmac-sha256""#;
        assert!(answer(good, CREATED).is_ok());
        let uncovered = |name: &str| Err(Refusal::NotCovered(name.into()));
        assert_eq!(answer(B25.0, CREATED), uncovered("@method"));
        assert_eq!(answer(r#"("@method" "content-digest");created=1618884473"#, CREATED), uncovered("@target-uri"));
        assert_eq!(answer(r#"("@method" "@authority");created=1618884473"#, CREATED), uncovered("content-digest"));
        assert_eq!(answer(r#"("@method" "@authority" "content-digest")"#, CREATED), uncovered("created"));
        assert_eq!(answer(&good.replace("hmac-sha256", "ed25519"), CREATED), Err(Refusal::Mismatch));
        assert!(matches!(answer(good, CREATED + 301), Err(Refusal::Stale { .. })));
        assert!(matches!(answer(good, CREATED - 301), Err(Refusal::Future { .. })));
        let expired = format!("{good};expires=1618884475");
        assert!(matches!(answer(&expired, CREATED + 5), Err(Refusal::Stale { .. })));
        assert!(answer(&expired, CREATED + 1).is_ok());
    }

    proptest! {
        #[test]
        fn reading_an_input_never_panics(text in ".{0,200}") {
            let _ = members(&text);
            let _ = Input::parse(&text).map(|input| input.base(&request(&HEADERS_SENT)));
        }
    }
}
