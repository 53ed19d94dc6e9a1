//! Encryption at rest: an envelope that can be read only with the key, and only in the place it was written for.
//!
//! `C1 4C 4E` | version | key id (4) | nonce (12) | ciphertext | tag (16). No text and no stored event begins with the
//! byte C1, so what was written before encryption was switched on is never taken for an envelope. The cipher is
//! AES-256-GCM under a key of its own for every place, derived from the master key: random nonces then only have to
//! differ among the few envelopes that one place ever holds. The place is also authenticated, so a row that is copied
//! to another job does not open there. The key is chosen by its id alone; no key is ever tried.
//!
//! What was erased leaves a mark in its place: an envelope of version 0 with nothing in it.

use crate::call::CallKey;
use crate::id::{EventId, JobId};
use crate::time::Timestamp;
use aws_lc_rs::{aead, hmac};
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use std::fmt;
use zeroize::Zeroizing;

const MAGIC: [u8; 3] = [0xC1, b'L', b'N'];
const VERSION: u8 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 1 + KeyId::BYTES;
pub const NONCE_BYTES: usize = aead::NONCE_LEN;
const TAG_BYTES: usize = 16;
/// Stands where something was erased.
pub const FORGOTTEN: [u8; 4] = [MAGIC[0], MAGIC[1], MAGIC[2], 0];
/// The head of an envelope: whatever begins alike is under the same key.
pub const HEAD_BYTES: usize = HEADER_BYTES;
/// What an envelope adds to the length of what is in it.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + NONCE_BYTES + TAG_BYTES;

/// The one place where an envelope opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    Payload(EventId),
    /// What a step of a job got back.
    Result {
        job: JobId,
        step: &'a str,
    },
    /// How the attempt of a job failed that began then.
    Error {
        job: JobId,
        started_at: Timestamp,
    },
    /// What a call got back that was made for somebody else.
    Answer(&'a CallKey),
}

impl Place<'_> {
    /// What is authenticated beside the text: the head of its envelope, and behind it the place.
    fn behind(&self, head: &[u8]) -> Vec<u8> {
        let (kind, id, rest): (u8, u64, &[u8]) = match self {
            Place::Payload(event) => (1, event.number(), &[]),
            Place::Result { job, step } => (2, job.number(), step.as_bytes()),
            Place::Error { job, started_at } => (3, job.number(), &started_at.as_micros().to_be_bytes()),
            Place::Answer(call) => (4, 0, call.as_bytes()),
        };
        [head, &[kind], &id.to_be_bytes(), rest].concat()
    }
}

/// Names a key without telling anything about it. It follows from the key, so nobody has to number keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; Self::BYTES]);

impl KeyId {
    const BYTES: usize = 4;
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key_{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Recognises a key. The store keeps one for each key that it has envelopes of; a wrong key is then refused at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCheck([u8; Self::BYTES]);

impl KeyCheck {
    pub const BYTES: usize = 20;

    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        KeyCheck(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub fn key(&self) -> KeyId {
        let [a, b, c, d, ..] = self.0;
        KeyId([a, b, c, d])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("{0} is empty; write 32 random bytes as 64 hex digits or as base64, such as from `openssl rand -hex 32`")]
    Empty(Which),
    #[error(
        "{0} is not 32 bytes in hex or base64; write 64 hex digits or 44 base64 characters, such as from `openssl rand -hex 32`"
    )]
    NotAKey(Which),
    #[error("{0} repeats one byte and protects nothing; make one with `openssl rand -hex 32`")]
    Weak(Which),
    #[error("{0} was already given ({1}); name each key once")]
    Twice(Which, KeyId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Active,
    /// Counted from 1.
    Older(usize),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Active => f.write_str("the encryption key"),
            Which::Older(no) => write!(f, "older encryption key {no}"),
        }
    }
}

/// The store was written with a key that is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store has data under {missing}, and the configured key is {active}; give the key it was written with, or list it among the older keys"
)]
pub struct WrongKey {
    pub missing: KeyId,
    pub active: KeyId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    #[error("it was erased (clinch forget)")]
    Forgotten,
    /// Written before encryption was switched on. Whoever expects such rows may use the bytes as they are.
    #[error("it is not encrypted")]
    NotSealed,
    #[error("it is encrypted with {0}, which is not configured; list that key among the older keys")]
    UnknownKey(KeyId),
    #[error("it is in envelope format {0}, which this version does not know; use a newer clinch")]
    UnknownVersion(u8),
    #[error("it was changed or belongs to another row; restore it from a backup")]
    Tampered,
}

/// One key that writes, and the older ones that still read.
#[derive(Clone)]
pub struct KeyRing {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    check: KeyCheck,
    master: hmac::Key,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyRing").field(&self.ids().collect::<Vec<_>>()).finish()
    }
}

impl KeyRing {
    /// From the texts of the keys, as they stand in a file or in the environment.
    pub fn new(active: &str, older: &[&str]) -> Result<Self, BadKey> {
        let mut keys: Vec<Key> = Vec::with_capacity(1 + older.len());
        let texts = std::iter::once((Which::Active, active))
            .chain(older.iter().enumerate().map(|(at, text)| (Which::Older(at + 1), *text)));
        for (which, text) in texts {
            let key = Key::read(text, which)?;
            if keys.iter().any(|other| other.check.key() == key.check.key()) {
                return Err(BadKey::Twice(which, key.check.key()));
            }
            keys.push(key);
        }
        Ok(KeyRing { keys })
    }

    /// The key that new envelopes are written with.
    pub fn active(&self) -> KeyId {
        self.keys[0].check.key()
    }

    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys.iter().map(|key| key.check.key())
    }

    /// What the store keeps about the active key.
    pub fn check(&self) -> KeyCheck {
        self.keys[0].check
    }

    /// Refuses to go on without a key that the store has data under.
    pub fn recognises(&self, kept: &[KeyCheck]) -> Result<(), WrongKey> {
        match kept.iter().find(|check| !self.keys.iter().any(|key| key.check == **check)) {
            Some(check) => Err(WrongKey { missing: check.key(), active: self.active() }),
            None => Ok(()),
        }
    }

    /// The nonce is fresh from the operating system for every call.
    pub fn seal(&self, place: Place<'_>, nonce: [u8; NONCE_BYTES], plain: &[u8]) -> Vec<u8> {
        let key = &self.keys[0];
        let mut sealed = Vec::with_capacity(OVERHEAD_BYTES + plain.len());
        sealed.extend_from_slice(&MAGIC);
        sealed.push(VERSION);
        sealed.extend_from_slice(&key.check.key().0);
        let about = place.behind(&sealed);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let tag = key
            .for_place(&about[HEADER_BYTES..])
            .seal_in_place_separate_tag(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(&about),
                &mut sealed[HEADER_BYTES + NONCE_BYTES..],
            )
            .expect("a body is far shorter than the 64 GB that one key may encrypt");
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    pub fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<Vec<u8>, NotOpened> {
        let id = sealed_with(sealed)?;
        let key = self.keys.iter().find(|key| key.check.key() == id).ok_or(NotOpened::UnknownKey(id))?;
        let (header, rest) = sealed.split_at(HEADER_BYTES);
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(NotOpened::Tampered)?;
        let about = place.behind(header);
        // A fresh buffer: when the tag is wrong, nobody ever sees what was in it.
        let mut plain = ciphertext.to_vec();
        let length = key
            .for_place(&about[HEADER_BYTES..])
            .open_in_place(aead::Nonce::assume_unique_for_key(*nonce), aead::Aad::from(&about), &mut plain)
            .map_err(|_| NotOpened::Tampered)?
            .len();
        plain.truncate(length);
        Ok(plain)
    }
}

/// Whose key opens it; for counting what a rotation still has to do.
pub fn sealed_with(sealed: &[u8]) -> Result<KeyId, NotOpened> {
    let rest = sealed.strip_prefix(&MAGIC).ok_or(NotOpened::NotSealed)?;
    match rest {
        [0] => Err(NotOpened::Forgotten),
        [VERSION, a, b, c, d, ..] => Ok(KeyId([*a, *b, *c, *d])),
        [VERSION, ..] | [] => Err(NotOpened::Tampered),
        [other, ..] => Err(NotOpened::UnknownVersion(*other)),
    }
}

impl Key {
    fn read(text: &str, which: Which) -> Result<Self, BadKey> {
        let text = text.trim().as_bytes();
        if text.is_empty() {
            return Err(BadKey::Empty(which));
        }
        let spellings = [HEXLOWER_PERMISSIVE, BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD];
        let secret = spellings
            .iter()
            .filter_map(|spelling| spelling.decode(text).ok().map(Zeroizing::new))
            .find(|bytes| bytes.len() == 32)
            .ok_or(BadKey::NotAKey(which))?;
        if secret.iter().all(|byte| *byte == secret[0]) {
            return Err(BadKey::Weak(which));
        }
        let master = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let check = hmac::sign(&master, b"clinch key check 1\0");
        let check = check.as_ref()[..KeyCheck::BYTES].try_into().expect("HMAC-SHA256 has 32 bytes");
        Ok(Key { check: KeyCheck(check), master })
    }

    fn for_place(&self, place: &[u8]) -> aead::LessSafeKey {
        let mut derived = hmac::Context::with_key(&self.master);
        derived.update(b"clinch seal 1\0");
        derived.update(place);
        cipher(derived.sign().as_ref())
    }
}

fn cipher(key: &[u8]) -> aead::LessSafeKey {
    let key = aead::UnboundKey::new(&aead::AES_256_GCM, key);
    aead::LessSafeKey::new(key.expect("a key of AES-256 has 32 bytes, and so has HMAC-SHA256"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "1f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100";

    fn ring(active: &str, older: &[&str]) -> KeyRing {
        KeyRing::new(active, older).expect("keys")
    }

    fn event(number: u64) -> Place<'static> {
        Place::Payload(EventId::from_number(number))
    }

    fn check(ring: &KeyRing, place: Place<'_>, sealed: &[u8], expected: Result<&str, NotOpened>) {
        assert_eq!(ring.open(place, sealed), expected.map(|text| text.as_bytes().to_vec()), "{place:?}");
    }

    #[test]
    fn k2_what_is_sealed_opens_in_its_place_and_shows_nothing() {
        let ring = ring(ONE, &[]);
        let sealed = ring.seal(event(7), [9; NONCE_BYTES], b"ada@example.com");
        check(&ring, event(7), &sealed, Ok("ada@example.com"));
        assert_eq!(sealed.len(), OVERHEAD_BYTES + 15);
        assert!(!sealed.windows(3).any(|part| part == b"ada"));
        assert_eq!(sealed_with(&sealed), Ok(ring.active()));
        check(&ring, event(7), &ring.seal(event(7), [9; NONCE_BYTES], b""), Ok(""));
    }

    #[test]
    fn k2_the_format_of_the_envelope_stays() {
        // Also made by other means: HMAC-SHA256 and AES-256-GCM of OpenSSL, from the description above.
        let sealed = ring(ONE, &[]).seal(event(7), [9; NONCE_BYTES], b"ada");
        assert_eq!(
            HEXLOWER.encode(&sealed),
            "c14c4e01f721610f090909090909090909090909ad8e364d6702bf43109a51f374b673e5f508f8"
        );
    }

    #[test]
    fn t103_an_envelope_does_not_open_in_another_place() {
        let ring = ring(ONE, &[]);
        let (job, other) = (JobId::from_number(7), JobId::from_number(8));
        let places = [
            event(7),
            event(8),
            Place::Result { job, step: "post" },
            Place::Result { job, step: "mail" },
            Place::Result { job, step: "\0\0\0\0\0\0\0\u{1}" },
            Place::Result { job: other, step: "post" },
            Place::Error { job, started_at: Timestamp::from_micros(1) },
            Place::Error { job, started_at: Timestamp::from_micros(2) },
            Place::Error { job: other, started_at: Timestamp::from_micros(1) },
        ];
        for written in places {
            let sealed = ring.seal(written, [3; NONCE_BYTES], b"x");
            for read in places {
                let expected = if read == written { Ok("x") } else { Err(NotOpened::Tampered) };
                check(&ring, read, &sealed, expected);
            }
        }
    }

    #[test]
    fn t104_any_changed_byte_is_noticed() {
        let ring = ring(ONE, &[TWO]);
        let sealed = ring.seal(event(7), [9; NONCE_BYTES], b"ada@example.com");
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                let refused = ring.open(event(7), &changed).expect_err("changed");
                let expected = match at {
                    0..3 => NotOpened::NotSealed,
                    3 => NotOpened::UnknownVersion(changed[3]),
                    4..8 => NotOpened::UnknownKey(sealed_with(&changed).expect("an id")),
                    _ => NotOpened::Tampered,
                };
                assert_eq!(refused, expected, "byte {at} bit {bit}");
            }
        }
        for length in 3..sealed.len() {
            check(&ring, event(7), &sealed[..length], Err(NotOpened::Tampered));
        }
    }

    #[test]
    fn t106_older_keys_read_what_the_active_one_no_longer_writes() {
        let old = ring(ONE, &[]).seal(event(7), [1; NONCE_BYTES], b"x");
        let rotated = ring(TWO, &[ONE]);
        check(&rotated, event(7), &old, Ok("x"));
        let new = rotated.seal(event(7), [2; NONCE_BYTES], b"x");
        assert_eq!(sealed_with(&new), Ok(rotated.active()));
        assert_ne!(sealed_with(&new), sealed_with(&old));
        let missing = ring(ONE, &[]).active();
        check(&ring(TWO, &[]), event(7), &old, Err(NotOpened::UnknownKey(missing)));
        assert!(NotOpened::UnknownKey(missing).to_string().contains(&missing.to_string()));
    }

    #[test]
    fn t106_a_wrong_key_is_refused_at_start() {
        let (one, two) = (ring(ONE, &[]), ring(TWO, &[]));
        let kept = KeyCheck::from_bytes(*one.check().as_bytes());
        assert_eq!(one.recognises(&[kept]), Ok(()));
        assert_eq!(two.recognises(&[]), Ok(()));
        assert_eq!(two.recognises(&[kept]), Err(WrongKey { missing: one.active(), active: two.active() }));
        assert_eq!(ring(TWO, &[ONE]).recognises(&[kept, two.check()]), Ok(()));
    }

    #[test]
    fn k2_what_was_written_before_encryption_is_told_apart() {
        let ring = ring(ONE, &[]);
        for plain in [&b"{\"a\":1}"[..], b"", b"\x01event", b"CLN1", "no answer: Á".as_bytes()] {
            assert_eq!(ring.open(event(7), plain), Err(NotOpened::NotSealed));
        }
    }

    #[test]
    fn k2_a_key_is_32_bytes_in_hex_or_base64() {
        let expected = ring(ONE, &[]).active();
        for same in [
            "000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F\n",
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            " AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8 ",
        ] {
            assert_eq!(ring(same, &[]).active(), expected);
        }
        let check = |active: &str, older: &[&str], hint: &str| {
            let said = KeyRing::new(active, older).expect_err(hint).to_string();
            assert!(said.contains(hint), "{said}");
            assert!(!said.contains("secret-canary"), "{said}");
        };
        check("", &[], "the encryption key is empty");
        check(" \n", &[], "openssl rand -hex 32");
        check("secret-canary", &[], "64 hex digits");
        check(&ONE[2..], &[], "not 32 bytes");
        check(ONE, &[TWO, "secret-canary"], "older encryption key 2");
        check(ONE, &[ONE], "already given");
        check(&"00".repeat(32), &[], "protects nothing");
    }

    #[test]
    fn t110_a_key_ring_shows_no_key() {
        let shown = format!("{:?}", ring(ONE, &[TWO]));
        assert!(shown.starts_with("KeyRing([key_") && !shown.contains("0001"), "{shown}");
    }

    #[test]
    fn t108_what_was_erased_says_so_in_every_place() {
        let ring = ring(ONE, &[]);
        check(&ring, event(7), &FORGOTTEN, Err(NotOpened::Forgotten));
        check(&ring, Place::Result { job: JobId::from_number(8), step: "post" }, &FORGOTTEN, Err(NotOpened::Forgotten));
        assert_eq!(sealed_with(&FORGOTTEN), Err(NotOpened::Forgotten));
    }

    /// AES-256-GCM as its authors published it (cases 13 to 16): key, nonce, what is authenticated, plain, sealed with tag.
    const PUBLISHED: [[&str; 5]; 4] = [
        [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "000000000000000000000000",
            "",
            "",
            "530f8afbc74536b9a963b4f1c4cb738b",
        ],
        [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "000000000000000000000000",
            "",
            "00000000000000000000000000000000",
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ],
        [
            "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
            "cafebabefacedbaddecaf888",
            "",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015adb094dac5d93471bdec1a502270e3cc6c",
        ],
        [
            "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
            "cafebabefacedbaddecaf888",
            "feedfacedeadbeeffeedfacedeadbeefabaddad2",
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b",
        ],
    ];

    #[test]
    fn t105_the_cipher_is_the_published_one_and_takes_nothing_that_was_changed() {
        for [key, nonce, aad, plain, sealed] in
            PUBLISHED.map(|case| case.map(|hex| HEXLOWER.decode(hex.as_bytes()).expect("hex")))
        {
            let cipher = cipher(&key);
            let nonce = || aead::Nonce::try_assume_unique_for_key(&nonce).expect("a nonce");
            let mut made = plain.clone();
            cipher.seal_in_place_append_tag(nonce(), aead::Aad::from(&aad), &mut made).expect("sealed");
            assert_eq!(made, sealed);
            assert_eq!(cipher.open_in_place(nonce(), aead::Aad::from(&aad), &mut made).expect("opened"), plain);
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(cipher.open_in_place(nonce(), aead::Aad::from(&aad), &mut changed).is_err(), "byte {at}");
            }
            let other = aead::Aad::from(b"other");
            assert!(cipher.open_in_place(nonce(), other, &mut sealed.clone()).is_err());
            assert!(cipher.open_in_place(nonce(), aead::Aad::from(&aad), &mut sealed[1..].to_vec()).is_err());
        }
    }

    proptest! {
        #[test]
        fn k2_every_body_comes_back(plain in proptest::collection::vec(any::<u8>(), 0..300), id in any::<u64>(), nonce in any::<[u8; NONCE_BYTES]>()) {
            let ring = ring(ONE, &[]);
            let sealed = ring.seal(event(id), nonce, &plain);
            prop_assert_eq!(ring.open(event(id), &sealed), Ok(plain));
        }

        #[test]
        fn t104_no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), magic in any::<bool>()) {
            let ring = ring(ONE, &[]);
            if magic {
                let head = ring.seal(event(1), [0; NONCE_BYTES], b"");
                bytes.splice(0..0, head[..HEADER_BYTES].iter().copied());
            }
            prop_assert!(ring.open(event(1), &bytes).is_err());
        }
    }
}
