//! `Content-Digest` (RFC 9530): what the sender says the body's digest is.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA512, digest};
use data_encoding::BASE64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDigest {
    #[error("Content-Digest is not written as `sha-256=:BASE64:`")]
    Unreadable,
    #[error("Content-Digest names no digest that is known here; send sha-256 or sha-512")]
    Unknown,
    #[error("the body does not have the digest that Content-Digest states")]
    Mismatch,
}

/// Checks every digest that is known; one at least must be there.
pub fn check(content_digest: &str, body: &[u8]) -> Result<(), BadDigest> {
    let mut known = 0;
    for member in content_digest.split(',') {
        let (name, value) = member.trim().split_once('=').ok_or(BadDigest::Unreadable)?;
        let algorithm = match name {
            "sha-256" => &SHA256,
            "sha-512" => &SHA512,
            _ => continue,
        };
        let base64 = value.strip_prefix(':').and_then(|value| value.strip_suffix(':')).ok_or(BadDigest::Unreadable)?;
        let stated = BASE64.decode(base64.as_bytes()).map_err(|_| BadDigest::Unreadable)?;
        verify_slices_are_equal(digest(algorithm, body).as_ref(), &stated).map_err(|_| BadDigest::Mismatch)?;
        known += 1;
    }
    if known > 0 { Ok(()) } else { Err(BadDigest::Unknown) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t038_a_digest_is_checked_against_the_body() {
        let stated = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
        let body = br#"{"hello": "world"}"#;
        assert_eq!(check(stated, body), Ok(()));
        assert_eq!(check(&format!("unixsum=:AAAA:, {stated}"), body), Ok(()));
        assert_eq!(check(stated, br#"{"hello": "World"}"#), Err(BadDigest::Mismatch));
        for unreadable in ["", "sha-256", "sha-256=abc", "sha-256=:!:"] {
            assert_eq!(check(unreadable, body), Err(BadDigest::Unreadable), "{unreadable}");
        }
        assert_eq!(check("md5=:AAAA:", body), Err(BadDigest::Unknown));
    }
}
