//! The sender's side: what a request must carry to be known as its sender's. For trials and for sending by hand; whoever verifies
//! never asks this.

use super::signed::{Algorithm, At, Encoding, Moment, Signed, Written};
use super::window::Unit;
use super::{Key, Request, Scheme, standard};
use crate::time::Timestamp;
use aws_lc_rs::hmac;
use data_encoding::{BASE64, BASE64URL, HEXLOWER};

/// Why nobody here can sign like this sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSign {
    #[error("only the sender has the key that it signs with")]
    TheirKey,
    #[error("messages signed by RFC 9421 are not made here")]
    Message,
    #[error("its secret must be in the body at `{0}`")]
    InBody(&'static str),
    #[error("{0}")]
    Lacks(String),
}

/// The headers to add to the request.
pub fn sign(
    scheme: &Scheme,
    request: &Request<'_>,
    key: &Key,
    now: Timestamp,
) -> Result<Vec<(String, String)>, CannotSign> {
    match scheme {
        Scheme::Signed(signed) => by_data(signed, request, key, now),
        Scheme::Standard => by_standard(request, key, now),
        Scheme::Message => Err(CannotSign::Message),
        Scheme::Token(pointer) => Err(CannotSign::InBody(pointer)),
    }
}

fn by_data(
    signed: &Signed,
    request: &Request<'_>,
    key: &Key,
    now: Timestamp,
) -> Result<Vec<(String, String)>, CannotSign> {
    if signed.algorithm == Algorithm::EcdsaP256 {
        return Err(CannotSign::TheirKey);
    }
    let (timestamp, place) = match &signed.moment {
        Some(Moment { place: At::Body(_), .. }) | None => (String::new(), None),
        Some(Moment { place, unit }) => (written(*unit, now), Some(place)),
    };
    let mut added: Vec<(String, String)> = signed.version.iter().cloned().collect();
    if let Some(At::Header(name)) = place {
        added.push((name.clone(), timestamp.clone()));
    }
    let mut headers = request.headers.to_vec();
    headers.extend(added.iter().map(|(name, value)| (name.as_str(), value.as_bytes())));
    let whole = Request { headers: &headers, ..*request };
    let signature = signed.signature(&whole, &timestamp, key).map_err(CannotSign::Lacks)?;
    let signature = match signed.encoding {
        Encoding::Hex => HEXLOWER.encode(&signature),
        Encoding::Base64 => BASE64.encode(&signature),
        Encoding::Base64Url => BASE64URL.encode(&signature),
    };
    let text = match (&signed.written, place) {
        (Written::Alone { prefix }, _) => format!("{prefix}{signature}"),
        (Written::Pairs { separator, name }, Some(At::Pair(at))) => {
            format!("{at}={timestamp}{separator}{name}={signature}")
        }
        (Written::Pairs { name, .. }, _) => format!("{name}={signature}"),
    };
    added.push((signed.headers.first().expect("a scheme names its header").clone(), text));
    Ok(added)
}

fn by_standard(request: &Request<'_>, key: &Key, now: Timestamp) -> Result<Vec<(String, String)>, CannotSign> {
    let Key::Shared(secret) = key else { return Err(CannotSign::TheirKey) };
    let [signature, id_name, at_name] = standard::HEADERS;
    let at = written(Unit::Seconds, now);
    let given = request.header(id_name).ok().map(str::to_string);
    let id = given.clone().unwrap_or_else(|| format!("msg_{}", now.as_micros()));
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    for piece in [id.as_bytes(), b".", at.as_bytes(), b".", request.body] {
        mac.update(piece);
    }
    let mut added = vec![(at_name.to_string(), at)];
    if given.is_none() {
        added.push((id_name.to_string(), id));
    }
    added.push((signature.to_string(), format!("v1,{}", BASE64.encode(mac.sign().as_ref()))));
    Ok(added)
}

fn written(unit: Unit, at: Timestamp) -> String {
    let moment = || jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    match unit {
        Unit::Seconds => at.as_micros().div_euclid(1_000_000).to_string(),
        Unit::Millis => at.as_micros().div_euclid(1_000).to_string(),
        Unit::Rfc3339 => moment().to_string(),
        Unit::HttpDate => {
            jiff::fmt::rfc2822::to_string(&moment().to_zoned(jiff::tz::TimeZone::UTC)).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::presets::ALL;
    use crate::signature::{Secret, Secrets, Window, verify};

    /// What a secret of this format looks like.
    fn secret(scheme: &Scheme) -> Option<Key> {
        let texts = ["a-secret-that-is-long-enough-for-everybody", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"];
        texts.iter().find_map(|text| scheme.secret_format().read(text).ok())
    }

    #[test]
    fn j4_what_is_signed_here_is_verified_as_the_senders_own() {
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        let mut signed = 0;
        for preset in ALL {
            let scheme = (preset.scheme)();
            let Some(key) = secret(&scheme) else { continue };
            let url = "https://hooks.example.com/in/x";
            let body: &[u8] = if preset.name == "mandrill" || preset.name == "twilio" { b"a=1" } else { b"{\"a\":1}" };
            let headers: &[(&str, &[u8])] = &[("content-type", b"application/json"), ("x-zoom", b"")];
            let request = Request { method: "POST", url, headers, body };
            let Ok(added) = sign(&scheme, &request, &key, now) else { continue };
            let mut all = headers.to_vec();
            all.extend(added.iter().map(|(name, value)| (name.as_str(), value.as_bytes())));
            let whole = Request { headers: &all, ..request };
            let secrets = Secrets::new(vec![Secret::new("1", key)]).expect("one");
            let proven = verify(&scheme, &whole, &secrets, Window::at(now));
            // Where the moment is in the body, this body has none.
            if proven.is_ok() {
                signed += 1;
            } else {
                let said = format!("{:?}", proven);
                assert!(said.contains("Timestamp"), "{}: {said}", preset.name);
            }
            let other = Secrets::new(vec![Secret::new("2", Key::Shared(b"another".to_vec()))]).expect("one");
            assert!(verify(&scheme, &whole, &other, Window::at(now)).is_err(), "{}", preset.name);
        }
        assert!(signed >= 18, "{signed} presets can be signed for");
    }
}
