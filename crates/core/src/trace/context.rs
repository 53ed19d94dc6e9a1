//! W3C Trace Context: what a sender says of its trace, and what a partner is told of ours.

use crate::payload::TraceId;
use aws_lc_rs::digest;
use std::fmt;

/// The headers of W3C Trace Context, by which traces travel.
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";
/// Somebody records it.
pub const SAMPLED: u8 = 0b01;
/// The last 7 bytes of the trace id are dice.
pub const RANDOM: u8 = 0b10;

/// So many members may be in a tracestate.
const MEMBERS_MAX: usize = 32;
/// So much of a tracestate travels on at least; longer ones lose whole members.
pub(super) const STATE_BYTES_MAX: usize = 512;
/// Members that are longer go first.
const LONG_MEMBER_BYTES: usize = 128;
const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 256;

/// One span of a trace. Never 0, which means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    pub const fn of_number(number: u64) -> SpanId {
        SpanId(if number == 0 { 1 } else { number })
    }

    pub const fn number(self) -> u64 {
        self.0
    }

    pub(super) fn derived(trace: TraceId, what: &str, parts: &[&[u8]]) -> SpanId {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(&trace.0.to_be_bytes());
        for part in std::iter::once(what.as_bytes()).chain(parts.iter().copied()) {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let hash = hash.finish();
        SpanId::of_number(u64::from_be_bytes(*hash.as_ref().first_chunk().expect("SHA-256 has 32 bytes")))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span, as it is named to others: what a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: TraceId,
    pub span: SpanId,
    pub flags: u8,
}

impl Context {
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// What the headers of this name say, if there is one and it can be read: anything else begins a new trace.
    pub fn read<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<Context> {
        let mut values = values.into_iter();
        let (Some(only), None) = (values.next(), values.next()) else { return None };
        let text = std::str::from_utf8(only).ok()?.trim_matches([' ', '\t']);
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let mut hex = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        // Of a version to come only these four are understood.
        let ends_well = rest.is_empty() || (version != 0 && rest.starts_with('-'));
        if version == 0xff || trace == 0 || span == 0 || !ends_well || parts.next().is_some() {
            return None;
        }
        let (span, flags) = (u64::try_from(span).ok()?, u8::try_from(flags).ok()?);
        Some(Context { trace: TraceId(trace), span: SpanId(span), flags: flags & (SAMPLED | RANDOM) })
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// What the headers of this name say together, as it may travel on; empty when any of it is wrong.
pub fn read_state<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for value in values {
        let Ok(value) = std::str::from_utf8(value) else { return String::new() };
        for member in value.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            if member.is_empty() {
                continue;
            }
            let Some((key, value)) = member.split_once('=') else { return String::new() };
            if !is_key(key) || !is_value(value) || members.len() == MEMBERS_MAX {
                return String::new();
            }
            // Of two with one key the first is the newer one.
            if members.iter().all(|(known, _)| *known != key) {
                members.push((key, value));
            }
        }
    }
    let length = |(key, value): &(&str, &str)| key.len() + 1 + value.len();
    let all = |members: &[(&str, &str)]| members.iter().map(length).sum::<usize>() + members.len().saturating_sub(1);
    while all(&members) > STATE_BYTES_MAX {
        let long = members.iter().rposition(|member| length(member) > LONG_MEMBER_BYTES);
        members.remove(long.unwrap_or(members.len() - 1));
    }
    let spelt: Vec<String> = members.iter().map(|(key, value)| format!("{key}={value}")).collect();
    spelt.join(",")
}

fn is_key(key: &str) -> bool {
    let begins = key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let goes_on = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    begins && key.len() <= KEY_BYTES_MAX && key.bytes().all(goes_on)
}

fn is_value(value: &str) -> bool {
    let is_fine = |byte: u8| matches!(byte, 0x20..=0x7e) && byte != b',' && byte != b'=';
    (1..=VALUE_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_fine)
}

/// What is done with the trace that a sender says it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Incoming {
    /// The event begins a trace of its own, which is linked to the sender's.
    #[default]
    Link,
    /// The event belongs to the sender's trace, if it is known who sent it.
    Continue,
    /// As if nothing were said.
    Ignore,
}

/// The sender's trace, of which an event is a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    pub context: Context,
    pub state: String,
}

impl Remote {
    /// From the headers of a request.
    pub fn read(headers: &[(&str, &[u8])]) -> Option<Remote> {
        let named =
            |name: &'static str| headers.iter().filter(move |(there, _)| *there == name).map(|(_, value)| *value);
        Some(Remote { context: Context::read(named(TRACEPARENT))?, state: read_state(named(TRACESTATE)) })
    }
}
