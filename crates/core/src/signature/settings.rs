//! The `hmac` scheme as people write it: a few words and a template instead of code.

use super::signed::{Algorithm, At, Encoding, Moment, Part, Signed, Written};
use super::window::{TOLERANCE_USUAL, Unit};
use crate::time::{BadDuration, parse_duration};

/// Every setting, with what it means; the order in which they are told.
pub const KNOWN: [(&str, &str); 11] = [
    ("header", "the header with the signature; needed"),
    (
        "signed",
        "what is signed: a template of {body}, {timestamp}, {url}, {method}, {header:NAME}; {body} if not given",
    ),
    ("algorithm", "sha256 (if not given), sha512 or sha1"),
    ("allow_sha1", "true to accept sha1"),
    ("encoding", "hex (if not given), base64 or base64url"),
    ("prefix", "what stands before the signature, such as sha256="),
    ("pair", "the name of the signature in a list of pairs such as t=1,v1=ab"),
    ("separator", "what stands between pairs; a comma if not given"),
    ("timestamp", "where it is: header:NAME, pair:NAME or body:/json/pointer"),
    ("timestamp_unit", "s (if not given), ms, rfc3339 or http-date"),
    ("tolerance", "how far the timestamp may be from now, such as 5m"),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    #[error("`{0}` is not a setting of the hmac scheme; known are: {known}", known = names())]
    Unknown(String),
    #[error("`{0}` is given twice")]
    Twice(String),
    #[error("the hmac scheme needs `header`: the name of the header with the signature")]
    NoHeader,
    #[error("`{key}` cannot be `{value}`; write {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
    #[error("sha1 is accepted only with `allow_sha1: true`; ask the sender for sha256 first")]
    Sha1,
    #[error(
        "`{{{0}}}` is not a part that can be signed; write {{body}}, {{timestamp}}, {{url}}, {{method}} or {{header:NAME}}"
    )]
    Part(String),
    #[error("`signed` has a `{{` without its `}}`")]
    Brace,
    #[error("`signed` has no {{body}}: such a signature would fit any body")]
    NoBody,
    #[error("`signed` has no {{timestamp}}: a timestamp that is not signed can be changed by anybody")]
    TimestampUnsigned,
    #[error("`signed` has {{timestamp}}, and `timestamp` does not say where it is")]
    TimestampNowhere,
    #[error("`timestamp: pair:…` needs `pair`: the name of the signature beside it")]
    PairAlone,
    #[error("`tolerance`: {0}")]
    Tolerance(#[from] BadDuration),
}

fn names() -> String {
    KNOWN.map(|(name, _)| name).join(", ")
}

/// Reads settings into a scheme that can be checked.
pub fn read(settings: &[(&str, &str)]) -> Result<Signed, BadSetting> {
    for (place, (key, _)) in settings.iter().enumerate() {
        if !KNOWN.iter().any(|(known, _)| known == key) {
            return Err(BadSetting::Unknown(key.to_string()));
        }
        if settings[..place].iter().any(|(earlier, _)| earlier == key) {
            return Err(BadSetting::Twice(key.to_string()));
        }
    }
    let get = |name: &str| settings.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let header = get("header").and_then(header_name).ok_or(BadSetting::NoHeader)?;
    let moment = get("timestamp").map(|place| moment(place, get("timestamp_unit"))).transpose()?;
    let parts = parts(get("signed").unwrap_or("{body}"))?;
    let timestamp_signed = parts.contains(&Part::Timestamp);
    match moment.as_ref().map(|moment| &moment.place) {
        None | Some(At::Body(_)) if timestamp_signed => return Err(BadSetting::TimestampNowhere),
        Some(At::Header(_) | At::Pair(_)) if !timestamp_signed => return Err(BadSetting::TimestampUnsigned),
        Some(At::Pair(_)) if get("pair").is_none() => return Err(BadSetting::PairAlone),
        _ => {}
    }
    let tolerance = match get("tolerance") {
        Some(text) => Some(parse_duration(text)?),
        None => moment.as_ref().map(|_| TOLERANCE_USUAL),
    };
    Ok(Signed {
        algorithm: algorithm(get("algorithm"), get("allow_sha1"))?,
        headers: vec![header],
        written: match get("pair") {
            Some(name) => Written::Pairs { separator: separator(get("separator"))?, name: name.into() },
            None => Written::Alone { prefix: get("prefix").unwrap_or_default().into() },
        },
        encoding: encoding(get("encoding"))?,
        parts,
        moment,
        tolerance,
        ..Signed::default()
    })
}

fn header_name(text: &str) -> Option<String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (!text.is_empty() && text.bytes().all(token)).then(|| text.to_ascii_lowercase())
}

fn algorithm(named: Option<&str>, allow_sha1: Option<&str>) -> Result<Algorithm, BadSetting> {
    let wrong = |key, value: &str, wanted| Err(BadSetting::Value { key, value: value.into(), wanted });
    let sha1_allowed = match allow_sha1 {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return wrong("allow_sha1", other, "true or false"),
    };
    match named.unwrap_or("sha256") {
        "sha256" => Ok(Algorithm::HmacSha256),
        "sha512" => Ok(Algorithm::HmacSha512),
        "sha1" if sha1_allowed => Ok(Algorithm::HmacSha1),
        "sha1" => Err(BadSetting::Sha1),
        other => wrong("algorithm", other, "sha256, sha512 or sha1"),
    }
}

fn encoding(named: Option<&str>) -> Result<Encoding, BadSetting> {
    match named.unwrap_or("hex") {
        "hex" => Ok(Encoding::Hex),
        "base64" => Ok(Encoding::Base64),
        "base64url" => Ok(Encoding::Base64Url),
        other => Err(BadSetting::Value { key: "encoding", value: other.into(), wanted: "hex, base64 or base64url" }),
    }
}

fn separator(named: Option<&str>) -> Result<char, BadSetting> {
    let text = named.unwrap_or(",");
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(one), None) if one != '=' => Ok(one),
        _ => Err(BadSetting::Value { key: "separator", value: text.into(), wanted: "one character such as , or ;" }),
    }
}

fn moment(place: &str, unit: Option<&str>) -> Result<Moment, BadSetting> {
    let unit = match unit.unwrap_or("s") {
        "s" => Unit::Seconds,
        "ms" => Unit::Millis,
        "rfc3339" => Unit::Rfc3339,
        "http-date" => Unit::HttpDate,
        other => {
            let wanted = "s, ms, rfc3339 or http-date";
            return Err(BadSetting::Value { key: "timestamp_unit", value: other.into(), wanted });
        }
    };
    let place = match place.split_once(':') {
        Some(("header", name)) => header_name(name).map(At::Header),
        Some(("pair", name)) if !name.is_empty() => Some(At::Pair(name.into())),
        Some(("body", pointer)) if pointer.starts_with('/') => Some(At::Body(pointer.into())),
        _ => None,
    }
    .ok_or_else(|| BadSetting::Value {
        key: "timestamp",
        value: place.into(),
        wanted: "header:NAME, pair:NAME or body:/json/pointer",
    })?;
    Ok(Moment { place, unit })
}

/// The parts of a template such as `v0:{timestamp}:{body}`.
fn parts(template: &str) -> Result<Vec<Part>, BadSetting> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, after)) = rest.split_once('{') {
        let (name, left) = after.split_once('}').ok_or(BadSetting::Brace)?;
        if !text.is_empty() {
            parts.push(Part::Text(text.into()));
        }
        parts.push(match name {
            "body" => Part::Body,
            "timestamp" => Part::Timestamp,
            "url" => Part::Url,
            "method" => Part::Method,
            _ => {
                let header = name.strip_prefix("header:").and_then(header_name);
                Part::Header(header.ok_or_else(|| BadSetting::Part(name.into()))?)
            }
        });
        rest = left;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.into()));
    }
    if parts.contains(&Part::Body) { Ok(parts) } else { Err(BadSetting::NoBody) }
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a3_the_settings_express_what_providers_do() {
        let check = |preset: &str, settings: &[(&str, &str)]| {
            let preset = presets::find(preset).expect("a preset");
            assert_eq!((preset.scheme)(), read(settings).expect("settings").into(), "{}", preset.name);
        };
        check("github", &[("header", "X-Hub-Signature-256"), ("prefix", "sha256=")]);
        check(
            "slack",
            &[
                ("header", "X-Slack-Signature"),
                ("prefix", "v0="),
                ("signed", "v0:{timestamp}:{body}"),
                ("timestamp", "header:X-Slack-Request-Timestamp"),
            ],
        );
        check(
            "stripe",
            &[
                ("header", "Stripe-Signature"),
                ("pair", "v1"),
                ("signed", "{timestamp}.{body}"),
                ("timestamp", "pair:t"),
                ("tolerance", "5m"),
            ],
        );
        check(
            "square",
            &[("header", "x-square-hmacsha256-signature"), ("signed", "{url}{body}"), ("encoding", "base64")],
        );
        check("segment", &[("header", "X-Signature"), ("algorithm", "sha1"), ("allow_sha1", "true")]);
    }

    #[test]
    fn a3_settings_that_would_prove_nothing_are_refused() {
        let check = |settings: &[(&str, &str)], error: BadSetting| {
            let mut given = vec![("header", "x-sig")];
            given.extend(settings);
            assert_eq!(read(&given), Err(error), "{settings:?}");
        };
        check(&[("algorithm", "sha1")], BadSetting::Sha1);
        check(&[("signed", "{url}")], BadSetting::NoBody);
        check(&[("signed", "{body")], BadSetting::Brace);
        check(&[("signed", "{body}{ts}")], BadSetting::Part("ts".into()));
        check(&[("signed", "{timestamp}{body}")], BadSetting::TimestampNowhere);
        check(&[("timestamp", "header:x-ts")], BadSetting::TimestampUnsigned);
        check(&[("timestamp", "pair:t"), ("signed", "{timestamp}{body}")], BadSetting::PairAlone);
        check(&[("header", "y")], BadSetting::Twice("header".into()));
        check(&[("hedaer", "y")], BadSetting::Unknown("hedaer".into()));
        assert_eq!(read(&[]), Err(BadSetting::NoHeader));
    }

    proptest! {
        #[test]
        fn reading_a_template_never_panics(template in ".{0,80}") {
            let _ = parts(&template);
        }
    }
}
