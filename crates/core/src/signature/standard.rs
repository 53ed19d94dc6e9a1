//! Standard Webhooks: `v1` is HMAC-SHA256, `v1a` is Ed25519; the header may hold both, and several of each.

use super::secret::Key;
use super::window::Unit;
use super::{Proof, Refusal, Request, SIGNATURES_MAX};
use crate::time::Timestamp;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use data_encoding::BASE64;

pub(super) const HEADERS: [&str; 3] = ["webhook-signature", "webhook-id", "webhook-timestamp"];

/// The same headers, as they were named before the standard.
const SVIX: [&str; 3] = ["svix-signature", "svix-id", "svix-timestamp"];

struct Presented<'a> {
    id: &'a str,
    timestamp: &'a str,
    at: Timestamp,
    signatures: Vec<Signature>,
}

enum Signature {
    V1(Vec<u8>),
    V1a(Vec<u8>),
}

pub(super) fn verify(request: &Request<'_>, keys: &[&Key]) -> Result<Proof, Refusal> {
    let Presented { id, timestamp, at, signatures } = presented(request)?;
    let pieces = [id.as_bytes(), b".", timestamp.as_bytes(), b".", request.body];
    let mut matched = None;
    for (place, key) in keys.iter().enumerate() {
        let fits = match key {
            Key::Shared(secret) => {
                let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
                pieces.iter().for_each(|piece| mac.update(piece));
                let computed = mac.sign();
                count(
                    &signatures,
                    |one| matches!(one, Signature::V1(sent) if verify_slices_are_equal(computed.as_ref(), sent).is_ok()),
                )
            }
            Key::Ed25519(public) => {
                let message = pieces.concat();
                count(
                    &signatures,
                    |one| matches!(one, Signature::V1a(sent) if public.verify_sig(&message, sent).is_ok()),
                )
            }
            Key::P256(_) => 0,
        };
        if fits > 0 {
            matched = Some(place);
        }
    }
    Ok(Proof { key: matched.ok_or(Refusal::Mismatch)?, at: Some(at) })
}

/// Looks at all of them, also after one fits.
fn count(signatures: &[Signature], fits: impl Fn(&Signature) -> bool) -> usize {
    signatures.iter().filter(|signature| fits(signature)).count()
}

fn presented<'a>(request: &Request<'a>) -> Result<Presented<'a>, Refusal> {
    let older = !request.has(HEADERS[0]) && request.has(SVIX[0]);
    let [signature, id, timestamp] = if older { SVIX } else { HEADERS };
    let list = request.header(signature)?;
    let id_sent = request.header(id)?;
    // `a.1` signed at 2 and `a` signed at 1 with a body that begins with `2.` would be the same bytes.
    if id_sent.is_empty() || id_sent.contains('.') {
        return Err(Refusal::AmbiguousId(id.into()));
    }
    let sent_at = request.header(timestamp)?;
    let unreadable = || Refusal::Timestamp { place: format!("`{timestamp}`"), wanted: Unit::Seconds.told() };
    let at = Unit::Seconds.read(sent_at).ok_or_else(unreadable)?;
    Ok(Presented { id: id_sent, timestamp: sent_at, at, signatures: signatures(signature, list)? })
}

fn signatures(header: &str, list: &str) -> Result<Vec<Signature>, Refusal> {
    let words: Vec<&str> = list.split(' ').filter(|word| !word.is_empty()).collect();
    if words.len() > SIGNATURES_MAX {
        return Err(Refusal::TooManySignatures(header.into()));
    }
    let known: Vec<(&str, &str)> = words
        .iter()
        .filter_map(|word| word.split_once(','))
        .filter(|(version, _)| matches!(*version, "v1" | "v1a"))
        .collect();
    if known.is_empty() {
        return Err(Refusal::Version { header: header.into(), wanted: "`v1,…` or `v1a,…`".into() });
    }
    let read = known.iter().filter_map(|(version, text)| {
        let bytes = BASE64.decode(text.as_bytes()).ok().filter(|bytes| !bytes.is_empty())?;
        Some(if *version == "v1" { Signature::V1(bytes) } else { Signature::V1a(bytes) })
    });
    let read: Vec<Signature> = read.collect();
    match read.is_empty() {
        true => Err(Refusal::Encoding { header: header.into(), wanted: "base64" }),
        false => Ok(read),
    }
}

pub(super) fn said_at(request: &Request<'_>) -> Option<Timestamp> {
    presented(request).ok().map(|presented| presented.at)
}
