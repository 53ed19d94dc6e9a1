//! Why a signature does not match, as far as it can be found out by trying: the same request with what usually goes
//! wrong put right.

use super::presets::{ALL, Preset};
use super::signed::{Encoding, Signed, Written};
use super::{BadSecret, Key, Refusal, Request, Scheme, Secret, Secrets, Verified, Window, has_stray_space, verify};
use crate::time::human;
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use serde_json::Value;
use std::borrow::Cow;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    pub verdict: Verdict,
    pub checks: Vec<Check>,
    /// What to look at, the likeliest first; never a secret or a signature.
    pub hints: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted(Verified),
    Refused(Refusal),
    /// The secret of this number, from 1, cannot be one.
    BadSecret(usize, BadSecret),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub what: String,
    pub passed: bool,
    pub found: String,
}

/// Checks a request with each of the secrets, and looks for what is nearly right.
pub fn diagnose(preset: &Preset, scheme: &Scheme, request: &Request<'_>, texts: &[&str], window: Window) -> Diagnosis {
    let mut diagnosis = Diagnosis {
        verdict: Verdict::Refused(Refusal::NoLiveSecret),
        checks: header_checks(scheme, request),
        hints: header_hints(preset, scheme, request),
    };
    let format = scheme.secret_format();
    let read: Vec<Result<Key, BadSecret>> = texts.iter().map(|text| format.read(text)).collect();
    for (place, key) in read.iter().enumerate() {
        let told = match key {
            Err(bad) => Err(bad.to_string()),
            Ok(key) => anytime(scheme, request, key.clone()).map_err(|refusal| match refusal {
                Refusal::Mismatch => "does not match".into(),
                other => format!("cannot be tried: {other}"),
            }),
        };
        let (passed, found) = match told {
            Ok(()) => (true, "matches".into()),
            Err(said) => (false, said),
        };
        diagnosis.checks.push(Check { what: format!("secret {}", place + 1), passed, found });
    }
    diagnosis.checks.extend(timestamp_check(scheme, request, window));
    diagnosis.verdict = verdict(scheme, request, read, window);
    if let Verdict::Accepted(_) = diagnosis.verdict {
        diagnosis.hints.clear();
    } else if diagnosis.checks.iter().all(|check| !check.what.starts_with("secret") || !check.passed) {
        diagnosis.hints.extend(secret_hints(scheme, request, texts));
        diagnosis.hints.extend(near_misses(scheme, request, texts));
    }
    diagnosis
}

fn verdict(scheme: &Scheme, request: &Request<'_>, read: Vec<Result<Key, BadSecret>>, window: Window) -> Verdict {
    let mut secrets = Vec::new();
    for (place, key) in read.into_iter().enumerate() {
        match key {
            Ok(key) => secrets.push(Secret::new((place + 1).to_string(), key)),
            Err(bad) => return Verdict::BadSecret(place + 1, bad),
        }
    }
    match Secrets::new(secrets) {
        Err(bad) => Verdict::BadSecret(1, bad),
        Ok(secrets) => match verify(scheme, request, &secrets, window) {
            Ok(verified) => Verdict::Accepted(verified),
            Err(refusal) => Verdict::Refused(refusal),
        },
    }
}

/// Whether the signature fits, whenever it was made.
fn anytime(scheme: &Scheme, request: &Request<'_>, key: Key) -> Result<(), Refusal> {
    let secrets = Secrets::new(vec![Secret::new("", key)]).expect("one secret");
    let now = scheme.said_at(request).unwrap_or_default();
    verify(scheme, request, &secrets, Window { now, tolerance: Some(Duration::MAX) }).map(drop)
}

fn header_checks(scheme: &Scheme, request: &Request<'_>) -> Vec<Check> {
    let needed = needed_headers(scheme, request);
    let check = |name: String| {
        let (passed, found) = match request.header(&name) {
            Ok(_) => (true, "present".to_string()),
            Err(refusal) => (false, refusal.to_string()),
        };
        Check { what: name, passed, found }
    };
    needed.into_iter().map(check).collect()
}

/// Of several names for one thing, the one that came.
fn needed_headers(scheme: &Scheme, request: &Request<'_>) -> Vec<String> {
    let mut names = scheme.headers();
    if let Scheme::Signed(signed) = scheme {
        let came = signed.headers.iter().find(|name| request.has(name)).or(signed.headers.first()).cloned();
        names.retain(|name| !signed.headers.contains(name));
        names.splice(0..0, came);
    }
    if *scheme == Scheme::Standard && !request.has(&names[0]) && request.has("svix-signature") {
        names = names.iter().map(|name| name.replace("webhook-", "svix-")).collect();
    }
    names
}

fn timestamp_check(scheme: &Scheme, request: &Request<'_>, window: Window) -> Option<Check> {
    let at = scheme.said_at(request)?;
    let (age, ahead) = (window.now.since(at), at.since(window.now));
    let off = age.max(ahead);
    let direction = if ahead > age { "in the future" } else { "old" };
    let tolerance = window.tolerance.or(scheme.tolerance());
    let limit = tolerance.map_or("no limit".into(), |limit| format!("limit {}", human(limit)));
    let passed = tolerance.is_none_or(|limit| off <= limit);
    Some(Check { what: "timestamp".into(), passed, found: format!("{} {direction}, {limit}", human(off)) })
}

fn header_hints(preset: &Preset, scheme: &Scheme, request: &Request<'_>) -> Vec<String> {
    let mine = scheme.headers();
    if mine.iter().any(|name| request.has(name)) || mine.is_empty() {
        return Vec::new();
    }
    let others = ALL.iter().filter(|other| other.name != preset.name && !other.family.is_empty());
    let from: Vec<&str> = others
        .filter(|other| (other.scheme)().headers().first().is_some_and(|name| request.has(name)))
        .map(|other| other.name)
        .collect();
    match from.is_empty() {
        true => vec!["no header of any known provider: is something before clinch dropping headers?".into()],
        false => vec![format!("the headers are those of {}: choose that preset", from.join(" or "))],
    }
}

fn secret_hints(scheme: &Scheme, request: &Request<'_>, texts: &[&str]) -> Vec<String> {
    let mut hints = Vec::new();
    for (place, text) in texts.iter().enumerate() {
        let number = place + 1;
        if let Some(how) = secret_variants(text).into_iter().find_map(|(how, bytes)| {
            (!bytes.is_empty() && anytime(scheme, request, Key::Shared(bytes)).is_ok()).then_some(how)
        }) {
            hints.push(format!("it matches if secret {number} is {how}"));
        } else if has_stray_space(text) {
            hints.push(format!("secret {number} has white space at an end or a line break in it"));
        }
        if ["sk_", "pk_", "rk_", "xoxb-", "shpat_", "ghp_"].iter().any(|prefix| text.starts_with(prefix)) {
            hints.push(format!("secret {number} looks like an API key; the webhook has a secret of its own"));
        }
    }
    hints
}

fn secret_variants(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let trimmed = text.trim();
    let (label, bare) = match trimmed.find(['_', ':']) {
        Some(place) if place < 12 => trimmed.split_at(place + 1),
        _ => ("", trimmed),
    };
    let mut variants = vec![
        ("used as it is, prefix and all", text.as_bytes().to_vec()),
        ("used without the white space around it", trimmed.as_bytes().to_vec()),
    ];
    let decoded = [
        ("decoded from base64", BASE64.decode(trimmed.as_bytes()).ok()),
        ("decoded from base64url", BASE64URL_NOPAD.decode(trimmed.trim_end_matches('=').as_bytes()).ok()),
        ("decoded from hex", HEXLOWER_PERMISSIVE.decode(trimmed.as_bytes()).ok()),
        ("used without its prefix", (!label.is_empty()).then(|| bare.as_bytes().to_vec())),
        ("decoded from base64 behind its prefix", BASE64.decode(bare.as_bytes()).ok().filter(|_| !label.is_empty())),
    ];
    variants.extend(decoded.into_iter().filter_map(|(how, bytes)| Some((how, bytes?))));
    variants
}

/// The same request with the body, the address or the signature as it might have been.
fn near_misses(scheme: &Scheme, request: &Request<'_>, texts: &[&str]) -> Vec<String> {
    let keys: Vec<Key> = texts.iter().filter_map(|text| scheme.secret_format().read(text).ok()).collect();
    let fits =
        |scheme: &Scheme, request: &Request<'_>| keys.iter().any(|key| anytime(scheme, request, key.clone()).is_ok());
    let mut hints = Vec::new();
    for (how, body) in body_variants(request.body) {
        if fits(scheme, &Request { body: &body, ..*request }) {
            hints.push(format!("it matches if the body {how}: something between the sender and clinch rewrites it"));
            break;
        }
    }
    if scheme.needs_url() {
        for url in url_variants(request.url) {
            if fits(scheme, &Request { url: &url, ..*request }) {
                hints.push(format!("it matches for the address {url}: configure that one as the public address"));
                break;
            }
        }
    }
    if let Scheme::Signed(signed) = scheme {
        for (how, variant) in scheme_variants(signed) {
            if fits(&variant.into(), request) {
                hints.push(format!("it matches if the signature is read as {how}: another version, or another sender"));
                break;
            }
        }
    }
    hints
}

fn body_variants(body: &[u8]) -> Vec<(&'static str, Cow<'_, [u8]>)> {
    let mut variants: Vec<(&'static str, Cow<'_, [u8]>)> = Vec::new();
    let added = |end: &[u8]| [body, end].concat().into();
    variants.push(("has no white space at its ends", body.trim_ascii().into()));
    variants.push(("has no line break at its end", without_line_break(body).into()));
    variants.push(("ends with a line break", added(b"\n")));
    variants.push(("ends with CR LF", added(b"\r\n")));
    if let Some(rest) = body.strip_prefix(b"\xef\xbb\xbf") {
        variants.push(("has no byte order mark", rest.into()));
    }
    if let Ok(text) = std::str::from_utf8(body) {
        let unix = text.replace("\r\n", "\n");
        variants.push(("has LF line breaks", unix.clone().into_bytes().into()));
        variants.push(("has CR LF line breaks", unix.replace('\n', "\r\n").into_bytes().into()));
    }
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        variants.push(("is written as compact JSON", value.to_string().into_bytes().into()));
        if let Ok(pretty) = serde_json::to_vec_pretty(&value) {
            variants.push(("is written as indented JSON", pretty.into()));
        }
    }
    variants
}

fn without_line_break(body: &[u8]) -> &[u8] {
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    body.strip_suffix(b"\r").unwrap_or(body)
}

fn url_variants(url: &str) -> Vec<String> {
    let other_scheme = match url.split_once("://") {
        Some(("http", rest)) => format!("https://{rest}"),
        Some((_, rest)) => format!("http://{rest}"),
        None => format!("https://{url}"),
    };
    let mut variants = Vec::new();
    for url in [url, &other_scheme] {
        let (bare, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        let slashed = bare.strip_suffix('/').map_or_else(|| format!("{bare}/"), str::to_string);
        variants.extend([url.to_string(), bare.to_string(), format!("{slashed}{query}"), slashed]);
    }
    variants
}

fn scheme_variants(signed: &Signed) -> Vec<(&'static str, Signed)> {
    let mut variants = Vec::new();
    for (how, encoding) in [("hex", Encoding::Hex), ("base64", Encoding::Base64), ("base64url", Encoding::Base64Url)] {
        variants.push((how, Signed { encoding, ..signed.clone() }));
    }
    if let Written::Alone { prefix } = &signed.written
        && !prefix.is_empty()
    {
        let written = Written::Alone { prefix: String::new() };
        variants.push(("a bare value, without a prefix", Signed { written, ..signed.clone() }));
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::super::presets::find;
    use super::*;
    use crate::time::Timestamp;
    use aws_lc_rs::hmac;
    use data_encoding::HEXLOWER;

    const AT: i64 = 1_700_000_000;

    fn hex(secret: &[u8], message: &[u8]) -> String {
        HEXLOWER.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref())
    }

    fn ask(preset: &str, headers: &[(&str, &str)], body: &str, secret: &str, now: i64) -> Diagnosis {
        let preset = find(preset).expect("a preset");
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let request = Request { method: "POST", url: "", headers: &headers, body: body.as_bytes() };
        let window = Window::at(Timestamp::from_micros(now * 1_000_000));
        diagnose(preset, &(preset.scheme)(), &request, &[secret], window)
    }

    fn stripe(secret: &[u8], signed: &str, delivered: &str, given: &str, now: i64) -> Diagnosis {
        let header = format!("t={AT},v1={}", hex(secret, format!("{AT}.{signed}").as_bytes()));
        ask("stripe", &[("stripe-signature", &header)], delivered, given, now)
    }

    #[track_caller]
    fn hinted(diagnosis: &Diagnosis, wanted: &str) {
        assert!(!matches!(diagnosis.verdict, Verdict::Accepted(_)), "{diagnosis:?}");
        assert!(diagnosis.hints.iter().any(|hint| hint.contains(wanted)), "no `{wanted}` in {diagnosis:?}");
    }

    #[test]
    fn the_doctor_accepts_what_is_right_and_says_which_secret() {
        let told = stripe(b"whsec_x", "{}", "{}", "whsec_x", AT);
        assert!(matches!(&told.verdict, Verdict::Accepted(Verified { secret_id, .. }) if secret_id == "1"), "{told:?}");
        assert!(told.hints.is_empty() && told.checks.iter().all(|check| check.passed), "{told:?}");
    }

    #[test]
    fn the_doctor_tells_an_old_delivery_from_a_wrong_secret() {
        let told = stripe(b"whsec_x", "{}", "{}", "whsec_x", AT + 552);
        assert!(matches!(told.verdict, Verdict::Refused(Refusal::Stale { .. })), "{told:?}");
        let found: Vec<(&str, bool)> = told.checks.iter().map(|check| (&*check.what, check.passed)).collect();
        assert_eq!(found, [("stripe-signature", true), ("secret 1", true), ("timestamp", false)]);
        assert_eq!(told.checks[2].found, "9m12s old, limit 5m");
        let wrong = stripe(b"whsec_x", "{}", "{}", "whsec_y", AT);
        assert_eq!((wrong.verdict, wrong.hints), (Verdict::Refused(Refusal::Mismatch), vec![]));
    }

    #[test]
    fn the_doctor_finds_a_body_that_was_rewritten() {
        let check = |signed: &str, delivered: &str, wanted: &str| {
            hinted(&stripe(b"whsec_x", signed, delivered, "whsec_x", AT), wanted);
        };
        check(r#"{"a":1}"#, "{\"a\":1}\n", "no white space at its ends");
        check("{\"a\":1}\r\n", r#"{"a":1}"#, "ends with CR LF");
        check(r#"{"a":1,"b":[2]}"#, r#"{ "a": 1, "b": [2] }"#, "compact JSON");
        check("{\n  \"a\": 1\n}", r#"{"a":1}"#, "indented JSON");
        check("a\r\nb", "a\nb", "CR LF line breaks");
    }

    #[test]
    fn the_doctor_finds_a_secret_that_was_read_otherwise() {
        let check = |used: &[u8], given: &str, wanted: &str| hinted(&stripe(used, "{}", "{}", given, AT), wanted);
        check(b"abc", "whsec_YWJj", "decoded from base64 behind its prefix");
        check(b"YWJj", "whsec_YWJj", "without its prefix");
        check(b"whsec_x", "whsec_x\n", "without the white space");
        check(b"whsec_x", "sk_live_x", "API key");
    }

    #[test]
    fn the_doctor_reads_a_signature_in_the_other_encoding_and_names_another_provider() {
        let tag = BASE64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"s"), b"{}").as_ref());
        hinted(&ask("github", &[("x-hub-signature-256", &format!("sha256={tag}"))], "{}", "s", AT), "base64");
        hinted(&ask("github", &[("x-shopify-hmac-sha256", &tag)], "{}", "s", AT), "shopify");
        hinted(&ask("github", &[], "{}", "s", AT), "dropping headers");
    }

    #[test]
    fn the_doctor_finds_the_address_that_was_signed() {
        let preset = find("square").expect("a preset");
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"s");
        let tag = BASE64.encode(hmac::sign(&key, b"https://a.example/in{}").as_ref());
        let headers: &[(&str, &[u8])] = &[("x-square-hmacsha256-signature", tag.as_bytes())];
        let request = Request { method: "POST", url: "http://a.example/in/", headers, body: b"{}" };
        let told = diagnose(preset, &(preset.scheme)(), &request, &["s"], Window::at(Timestamp::default()));
        hinted(&told, "the address https://a.example/in:");
    }

    #[test]
    fn t040_nothing_that_the_doctor_says_holds_a_secret_or_a_signature() {
        let right = hex(b"hunter2", format!("{AT}.{{}}").as_bytes());
        for told in [stripe(b"hunter2", "{}", "{}\n", "hunter2", AT), stripe(b"x", "{}", "{}", "hunter2", AT)] {
            let said = format!("{told:?}");
            assert!(!said.contains("hunter2") && !said.contains(&right), "{said}");
        }
    }
}
