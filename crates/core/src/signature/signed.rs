//! A signature scheme written as data. Most providers differ only in what they sign, with what, and how they write it
//! into a header: that is what this says.

use super::address::Spelling;
use super::secret::{Key, SecretFormat};
use super::window::Unit;
use super::{Proof, Refusal, Request, SIGNATURES_MAX};
use crate::form;
use crate::time::Timestamp;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use data_encoding::{BASE64, BASE64URL, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::Value;
use std::borrow::Cow;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub algorithm: Algorithm,
    /// Where the signature is, in lower case. Several names where a provider is changing from one to the other; the
    /// first that came counts.
    pub headers: Vec<String>,
    pub written: Written,
    pub encoding: Encoding,
    /// What is signed, in this order.
    pub parts: Vec<Part>,
    pub moment: Option<Moment>,
    /// How far a timestamp may be from now, in both directions; `None` where the provider names no limit.
    pub tolerance: Option<Duration>,
    /// A header that says which of a provider's schemes this is, and the word for this one.
    pub version: Option<(String, String)>,
    pub spelling: Spelling,
    pub secret: SecretFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    HmacSha1,
    HmacSha256,
    HmacSha512,
    /// SHA-256 without a MAC around it; the secret is one of the parts.
    Sha256,
    /// The signature is DER, the key a public one.
    EcdsaP256,
}

/// How signatures stand in their header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// One, behind a prefix that may be empty.
    Alone { prefix: String },
    /// `t=1,v1=ab,v1=cd`: those under this name count.
    Pairs { separator: char, name: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Hex,
    Base64,
    Base64Url,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Body,
    /// The timestamp, as it was written.
    Timestamp,
    Url,
    Method,
    Header(String),
    Text(String),
    Secret,
    /// The fields of a form, sorted by name, each name with its value behind it.
    SortedForm,
    /// The same, a repeated field's values sorted and once each; nothing when the address holds the body's digest.
    TwilioBody,
}

/// Where the timestamp is, and how it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    pub place: At,
    pub unit: Unit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    Header(String),
    /// Beside the signature, under this name.
    Pair(String),
    /// In the signed body.
    Body(String),
}

impl Default for Signed {
    /// HMAC-SHA256 of the body in lower-case hex, the whole header; no timestamp.
    fn default() -> Self {
        Signed {
            algorithm: Algorithm::HmacSha256,
            headers: Vec::new(),
            written: Written::Alone { prefix: String::new() },
            encoding: Encoding::Hex,
            parts: vec![Part::Body],
            moment: None,
            tolerance: None,
            version: None,
            spelling: Spelling::AsConfigured,
            secret: SecretFormat::Text { chars_min: 1 },
        }
    }
}

impl Encoding {
    pub fn decode(self, text: &str) -> Option<Vec<u8>> {
        let text = text.as_bytes();
        match self {
            Encoding::Hex => HEXLOWER_PERMISSIVE.decode(text).ok(),
            Encoding::Base64 => BASE64.decode(text).ok(),
            Encoding::Base64Url => BASE64URL.decode(text).or_else(|_| BASE64URL_NOPAD.decode(text)).ok(),
        }
        .filter(|bytes| !bytes.is_empty())
    }

    pub fn told(self) -> &'static str {
        match self {
            Encoding::Hex => "hex",
            Encoding::Base64 => "base64",
            Encoding::Base64Url => "base64url",
        }
    }
}

/// What the signature header and its neighbours say, before anything is checked.
struct Presented<'a> {
    signatures: Vec<Vec<u8>>,
    /// As written; empty where the timestamp is in the body.
    timestamp: &'a str,
    at: Option<Timestamp>,
}

impl Signed {
    pub(super) fn verify(&self, request: &Request<'_>, keys: &[&Key]) -> Result<Proof, Refusal> {
        let presented = self.presented(request)?;
        let messages = self.messages(request, presented.timestamp)?;
        let mut matched = None;
        // Every key meets every signature, also after a match: how long it takes tells nothing.
        for (place, key) in keys.iter().enumerate() {
            for message in &messages {
                if self.matches(key, message, &presented.signatures) {
                    matched = Some(place);
                }
            }
        }
        let key = matched.ok_or(Refusal::Mismatch)?;
        Ok(Proof { key, at: presented.at.map_or_else(|| self.at_in_body(request), |at| Ok(Some(at)))? })
    }

    fn presented<'a>(&self, request: &Request<'a>) -> Result<Presented<'a>, Refusal> {
        if let Some((name, wanted)) = &self.version {
            let said = request.header(name)?;
            if said != wanted {
                return Err(Refusal::Version { header: name.clone(), wanted: format!("`{wanted}`") });
            }
        }
        let first = self.headers.first().expect("a scheme names its header");
        let name = self.headers.iter().find(|name| request.has(name)).unwrap_or(first);
        let value = request.header(name)?;
        let found = self.found(name, value)?;
        if found.len() > SIGNATURES_MAX {
            return Err(Refusal::TooManySignatures(name.clone()));
        }
        let signatures: Vec<Vec<u8>> = found.iter().filter_map(|text| self.encoding.decode(text)).collect();
        if signatures.is_empty() {
            return Err(Refusal::Encoding { header: name.clone(), wanted: self.encoding.told() });
        }
        let timestamp = match self.moment.as_ref().map(|moment| &moment.place) {
            None | Some(At::Body(_)) => "",
            Some(At::Header(name)) => request.header(name)?,
            Some(At::Pair(pair)) => {
                let Written::Pairs { separator, .. } = self.written else { return Err(self.malformed(name)) };
                one_pair(value, separator, pair).ok_or_else(|| self.malformed(name))?
            }
        };
        let at = match &self.moment {
            None | Some(Moment { place: At::Body(_), .. }) => None,
            Some(moment) => Some(moment.read(timestamp)?),
        };
        Ok(Presented { signatures, timestamp, at })
    }

    /// The signatures in the header, still encoded.
    fn found<'a>(&self, name: &str, value: &'a str) -> Result<Vec<&'a str>, Refusal> {
        match &self.written {
            Written::Alone { prefix } => match value.trim().strip_prefix(prefix.as_str()) {
                Some(signature) => Ok(vec![signature]),
                None => Err(Refusal::Version { header: name.into(), wanted: format!("`{prefix}…`") }),
            },
            Written::Pairs { separator, name: wanted } => {
                let pairs = pairs(value, *separator);
                if pairs.is_empty() {
                    return Err(self.malformed(name));
                }
                let found: Vec<&str> = pairs.iter().filter(|(name, _)| name == wanted).map(|(_, v)| *v).collect();
                match found.is_empty() {
                    true => Err(Refusal::Version { header: name.into(), wanted: format!("`{wanted}=…`") }),
                    false => Ok(found),
                }
            }
        }
    }

    fn malformed(&self, header: &str) -> Refusal {
        Refusal::Malformed { header: header.into(), wanted: self.shape() }
    }

    /// How the header looks, for people.
    pub fn shape(&self) -> String {
        match (&self.written, self.moment.as_ref().map(|moment| &moment.place)) {
            (Written::Alone { prefix }, _) => format!("{prefix}<{}>", self.encoding.told()),
            (Written::Pairs { separator, name }, Some(At::Pair(at))) => {
                format!("{at}=<timestamp>{separator}{name}=<{}>", self.encoding.told())
            }
            (Written::Pairs { name, .. }, _) => format!("{name}=<{}>", self.encoding.told()),
        }
    }

    /// The whole scheme in one line, for people.
    pub(super) fn told(&self) -> String {
        let algorithm = match self.algorithm {
            Algorithm::HmacSha1 => "HMAC-SHA1",
            Algorithm::HmacSha256 => "HMAC-SHA256",
            Algorithm::HmacSha512 => "HMAC-SHA512",
            Algorithm::Sha256 => "SHA-256",
            Algorithm::EcdsaP256 => "ECDSA P-256",
        };
        let parts: String = self.parts.iter().map(Part::told).collect();
        format!("{algorithm} of {parts}, written {}", self.shape())
    }

    /// What may have been signed: one message for each spelling of the address.
    fn messages<'a>(&'a self, request: &Request<'a>, timestamp: &'a str) -> Result<Vec<Vec<Piece<'a>>>, Refusal> {
        if !self.needs_url() {
            return Ok(vec![self.message(request, timestamp, "")?]);
        }
        if request.url.is_empty() {
            return Err(Refusal::NoUrl);
        }
        let spellings = self.spelling.of(request.url);
        spellings.iter().map(|url| self.message(request, timestamp, url)).collect()
    }

    fn message<'a>(&'a self, request: &Request<'a>, timestamp: &'a str, url: &str) -> Result<Vec<Piece<'a>>, Refusal> {
        let piece = |part: &'a Part| {
            Ok(Piece::Bytes(match part {
                Part::Secret => return Ok(Piece::Secret),
                Part::Body => request.body.into(),
                Part::Timestamp => timestamp.as_bytes().into(),
                Part::Url => url.as_bytes().to_vec().into(),
                Part::Method => request.method.as_bytes().into(),
                Part::Header(name) => request.header(name)?.as_bytes().into(),
                Part::Text(text) => text.as_bytes().into(),
                Part::SortedForm => sorted_form(request.body, Repeated::Kept)?.into(),
                Part::TwilioBody => twilio_body(request)?.into(),
            }))
        };
        self.parts.iter().map(piece).collect()
    }

    fn matches(&self, key: &Key, message: &[Piece<'_>], signatures: &[Vec<u8>]) -> bool {
        if let (Algorithm::EcdsaP256, Key::P256(public)) = (self.algorithm, key) {
            let mut whole = Vec::new();
            feed(message, &[], &mut |bytes| whole.extend_from_slice(bytes));
            return signatures.iter().filter(|signature| public.verify_sig(&whole, signature).is_ok()).count() > 0;
        }
        let Some(computed) = self.computed(key, message) else { return false };
        signatures.iter().filter(|signature| verify_slices_are_equal(&computed, signature).is_ok()).count() > 0
    }

    /// The signature of a message, where who verifies could also have made it.
    fn computed(&self, key: &Key, message: &[Piece<'_>]) -> Option<Vec<u8>> {
        let Key::Shared(secret) = key else { return None };
        let hmac = |algorithm| {
            let mut mac = hmac::Context::with_key(&hmac::Key::new(algorithm, secret));
            feed(message, secret, &mut |bytes| mac.update(bytes));
            mac.sign().as_ref().to_vec()
        };
        Some(match self.algorithm {
            Algorithm::HmacSha1 => hmac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            Algorithm::HmacSha256 => hmac(hmac::HMAC_SHA256),
            Algorithm::HmacSha512 => hmac(hmac::HMAC_SHA512),
            Algorithm::Sha256 => {
                let mut hash = digest::Context::new(&digest::SHA256);
                feed(message, secret, &mut |bytes| hash.update(bytes));
                hash.finish().as_ref().to_vec()
            }
            Algorithm::EcdsaP256 => return None,
        })
    }

    /// As the sender makes it; of several spellings of the address, the first.
    pub(super) fn signature(&self, request: &Request<'_>, timestamp: &str, key: &Key) -> Result<Vec<u8>, String> {
        let messages = self.messages(request, timestamp).map_err(|refusal| refusal.to_string())?;
        let message = messages.first().ok_or("there is no address to sign")?;
        self.computed(key, message).ok_or_else(|| "its secret is no key for this".into())
    }

    /// A timestamp in the body is only worth reading once the body is known to be the sender's.
    fn at_in_body(&self, request: &Request<'_>) -> Result<Option<Timestamp>, Refusal> {
        let Some(moment @ Moment { place: At::Body(pointer), .. }) = &self.moment else { return Ok(None) };
        let body: Value = serde_json::from_slice(request.body).map_err(|_| Refusal::Body("JSON"))?;
        match body.pointer(pointer) {
            Some(Value::Number(number)) => moment.read(&number.to_string()).map(Some),
            Some(Value::String(text)) => moment.read(text).map(Some),
            _ => Err(moment.unreadable()),
        }
    }

    /// When the request says it was signed, whether or not the signature is right; for the doctor.
    pub(super) fn said_at(&self, request: &Request<'_>) -> Option<Timestamp> {
        match self.presented(request) {
            Ok(Presented { at: Some(at), .. }) => Some(at),
            _ => self.at_in_body(request).ok().flatten(),
        }
    }

    pub fn needs_url(&self) -> bool {
        self.parts.contains(&Part::Url)
    }

    pub(super) fn headers_read(&self) -> Vec<String> {
        let mut names = self.headers.clone();
        names.extend(self.version.iter().map(|(name, _)| name.clone()));
        if let Some(Moment { place: At::Header(name), .. }) = &self.moment {
            names.push(name.clone());
        }
        let signed = self.parts.iter().filter_map(|part| match part {
            Part::Header(name) => Some(name.clone()),
            _ => None,
        });
        names.extend(signed);
        names
    }
}

impl Part {
    fn told(&self) -> String {
        match self {
            Part::Body => "{body}".into(),
            Part::Timestamp => "{timestamp}".into(),
            Part::Url => "{url}".into(),
            Part::Method => "{method}".into(),
            Part::Header(name) => format!("{{header:{name}}}"),
            Part::Text(text) => text.clone(),
            Part::Secret => "{secret}".into(),
            Part::SortedForm | Part::TwilioBody => "{sorted form}".into(),
        }
    }
}

/// What a message is made of: bytes, or the secret that is being tried.
enum Piece<'a> {
    Bytes(Cow<'a, [u8]>),
    Secret,
}

fn feed(message: &[Piece<'_>], secret: &[u8], take: &mut dyn FnMut(&[u8])) {
    for piece in message {
        take(match piece {
            Piece::Bytes(bytes) => bytes,
            Piece::Secret => secret,
        });
    }
}

impl Moment {
    fn read(&self, text: &str) -> Result<Timestamp, Refusal> {
        self.unit.read(text).ok_or_else(|| self.unreadable())
    }

    fn unreadable(&self) -> Refusal {
        let place = match &self.place {
            At::Header(name) => format!("`{name}`"),
            At::Pair(name) => format!("`{name}=`"),
            At::Body(pointer) => format!("the body at `{pointer}`"),
        };
        Refusal::Timestamp { place, wanted: self.unit.told() }
    }
}

/// `t=1, v1=ab` as its pairs; what is not a pair is left out, for providers add words of their own.
fn pairs(value: &str, separator: char) -> Vec<(&str, &str)> {
    value.split(separator).filter_map(|pair| pair.trim().split_once('=')).collect()
}

/// The value under a name that may stand there once only.
fn one_pair<'a>(value: &'a str, separator: char, wanted: &str) -> Option<&'a str> {
    let pairs = pairs(value, separator);
    let mut found = pairs.iter().filter(|(name, _)| *name == wanted);
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Some(value),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    Kept,
    OnceAndSorted,
}

fn sorted_form(body: &[u8], repeated: Repeated) -> Result<Vec<u8>, Refusal> {
    let mut fields = form::fields(body).map_err(|_| Refusal::Body("a form"))?;
    match repeated {
        Repeated::Kept => fields.sort_by(|a, b| a.0.cmp(&b.0)),
        Repeated::OnceAndSorted => {
            fields.sort();
            fields.dedup();
        }
    }
    let bytes = fields.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]).flatten();
    Ok(bytes.copied().collect())
}

/// A JSON body is signed through its digest in the address; any other body is a form.
fn twilio_body(request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let query = request.url.split_once('?').map_or("", |(_, query)| query);
    let Some(stated) = one_pair(query, '&', "bodySHA256") else {
        return sorted_form(request.body, Repeated::OnceAndSorted);
    };
    let computed = HEXLOWER.encode(digest::digest(&digest::SHA256, request.body).as_ref());
    match verify_slices_are_equal(computed.as_bytes(), stated.to_ascii_lowercase().as_bytes()) {
        Ok(()) => Ok(Vec::new()),
        Err(_) => Err(Refusal::BodyDigest),
    }
}
