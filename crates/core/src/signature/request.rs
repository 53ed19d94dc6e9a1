//! A request as its sender signed it: raw bytes, nothing decoded, nothing merged.

use super::Refusal;

/// No signature header of any provider comes near it; what is longer is not read.
const HEADER_BYTES_MAX: usize = 8 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    /// The address as the sender wrote it: the configured public one with the query string that came. Never made from
    /// `Host` or `X-Forwarded-*`, which the caller chooses. Empty when none is configured.
    pub url: &'a str,
    /// Names in lower case; a name that was sent twice is here twice.
    pub headers: &'a [(&'a str, &'a [u8])],
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(there, _)| *there == name)
    }

    /// The one value of a header. Two could be read differently by two readers, so two are refused.
    pub fn header(&self, name: &str) -> Result<&'a str, Refusal> {
        let mut values = self.headers.iter().filter(|(there, _)| *there == name).map(|(_, value)| *value);
        let value = values.next().ok_or_else(|| Refusal::HeaderMissing(name.into()))?;
        if values.next().is_some() {
            return Err(Refusal::HeaderTwice(name.into()));
        }
        if value.len() > HEADER_BYTES_MAX {
            return Err(Refusal::HeaderTooLong(name.into()));
        }
        match std::str::from_utf8(value) {
            Ok(text) if text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) => Ok(text),
            _ => Err(Refusal::HeaderUnreadable(name.into())),
        }
    }

    /// The media type without its parameters, in lower case; empty when the sender named none.
    pub fn media_type(&self) -> String {
        let named = self.header("content-type").unwrap_or_default();
        named.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }
}
