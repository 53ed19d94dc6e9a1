//! Until when a certificate is valid. Nothing else of it is read: whoever is shown it checks the rest.

use clinch_core::time::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::Path;

/// The end of the first certificate of a PEM file.
pub fn ends_at(path: &Path) -> Result<Timestamp, String> {
    let mut all = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let first = all.next().ok_or("it has no certificate")?.map_err(|error| error.to_string())?;
    not_after(&first).ok_or_else(|| "it is not a certificate that can be read".into())
}

/// Certificate, what is signed of it, past version, serial, algorithm and issuer: the validity.
fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = piece(der)?;
    let (_, mut signed, _) = piece(certificate)?;
    let (tag, _, rest) = piece(signed)?;
    if tag == 0xa0 {
        signed = rest;
    }
    for _ in ["serial", "algorithm", "issuer"] {
        signed = piece(signed)?.2;
    }
    let (_, validity, _) = piece(signed)?;
    let (_, _, end) = piece(validity)?;
    let (tag, text, _) = piece(end)?;
    moment(tag, std::str::from_utf8(text).ok()?)
}

/// Its kind, its content, and what comes after it.
fn piece(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, length) = (*der.first()?, *der.get(1)?);
    let (length, head) = match length {
        short @ 0..=0x7f => (usize::from(short), 2),
        long @ 0x81..=0x84 => {
            let bytes = usize::from(long & 0x7f);
            let length =
                der.get(2..2 + bytes)?.iter().try_fold(0usize, |sum, byte| Some((sum << 8) | usize::from(*byte)));
            (length?, 2 + bytes)
        }
        _ => return None,
    };
    let end = head.checked_add(length)?;
    Some((tag, der.get(head..end)?, der.get(end..)?))
}

/// `260801120000Z` (the years from 1950 to 2049), or `20260801120000Z`.
fn moment(tag: u8, text: &str) -> Option<Timestamp> {
    let (year, rest) = match tag {
        0x17 => {
            let year: i16 = text.get(..2)?.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        0x18 => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let two = |at: usize| rest.get(at..at + 2).and_then(|digits| digits.parse::<i8>().ok());
    let at = jiff::civil::DateTime::new(year, two(0)?, two(2)?, two(4)?, two(6)?, two(8)?, 0).ok()?;
    let at = at.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Timestamp::from_micros(at.timestamp().as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_read_in_both_spellings_of_a_year() {
        let told = |tag, text| moment(tag, text).map(|at| at.to_string());
        assert_eq!(told(0x17, "260801120000Z").as_deref(), Some("2026-08-01T12:00:00.000Z"));
        assert_eq!(told(0x17, "991231235959Z").as_deref(), Some("1999-12-31T23:59:59.000Z"));
        assert_eq!(told(0x18, "20510101000000Z").as_deref(), Some("2051-01-01T00:00:00.000Z"));
        assert_eq!(told(0x18, "2051"), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bad in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x03\x30\x01\x02", &[0x30; 64]] {
            assert_eq!(not_after(bad), None);
        }
    }
}
