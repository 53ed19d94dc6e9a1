//! A trace: one for the life of an event. Which spans it has, whose children they are and what they are linked to follows from the
//! event's id alone, so that an attempt of next week belongs to the delivery of today and nothing more has to be stored.
//!
//! The creation of an event is the parent of all that is done for it: attempts, on whatever day, and waits for people. Each of them is
//! also linked to it, and an attempt to the one before.

mod context;
mod span;
#[cfg(test)]
mod tests;

pub use context::*;
pub use span::*;

use crate::attempt::Outcome;
use crate::expr::Template;
use crate::id::{EventId, JobId};
use crate::job::{Change, Fence};
use crate::payload::{About, TraceId};
use crate::time::Timestamp;
use std::borrow::Cow;
use std::fmt;

/// Where an event stands in its trace: all that follows from it has its ids from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Story<'a> {
    pub trace: TraceId,
    pub event: EventId,
    /// The sender's span, where the event is in the sender's trace.
    pub within: Option<Context>,
    /// The sender's state, likewise.
    pub state: &'a str,
}

impl<'a> Story<'a> {
    /// As it is stored with the event.
    pub fn of(event: EventId, about: &'a About<'_>) -> Story<'a> {
        let named = |name: &'static str| about.headers.iter().filter(move |(there, _)| there == name);
        let sender = Context::read(named(TRACEPARENT).map(|(_, value)| value.as_bytes()));
        let within = sender.filter(|context| context.trace == about.trace);
        let state = within.and_then(|_| named(TRACESTATE).next()).map_or("", |(_, value)| value);
        Story { trace: about.trace, event, within, state }
    }

    /// Whether somebody records it: who began it says so, and of our own a share is taken. It depends on the id alone, so that all who
    /// ask are told the same.
    pub fn is_kept(&self, share: Share) -> bool {
        match self.within {
            Some(sender) => sender.is_sampled(),
            None => share.has(self.trace),
        }
    }

    fn context(&self, span: SpanId, is_kept: bool) -> Context {
        let dice = self.within.map_or(RANDOM, |sender| sender.flags & RANDOM);
        Context { trace: self.trace, span, flags: dice | if is_kept { SAMPLED } else { 0 } }
    }

    /// The delivery that became the event.
    pub fn delivery(&self) -> SpanId {
        SpanId::derived(self.trace, "delivery", &[&self.event.number().to_be_bytes()])
    }

    /// The event came to be: the parent of all that is done for it.
    pub fn creation(&self) -> SpanId {
        SpanId::derived(self.trace, "creation", &[&self.event.number().to_be_bytes()])
    }

    /// Attempts are counted from 1.
    pub fn attempt(&self, job: JobId, no: u32) -> SpanId {
        SpanId::derived(self.trace, "attempt", &[&job.number().to_be_bytes(), &no.to_be_bytes()])
    }

    pub fn effect(&self, job: JobId, no: u32, step: &str) -> SpanId {
        let parts: [&[u8]; 3] = [&job.number().to_be_bytes(), &no.to_be_bytes(), step.as_bytes()];
        SpanId::derived(self.trace, "effect", &parts)
    }

    /// The request by which an effect is done: what the partner is told.
    pub fn call(&self, job: JobId, no: u32, step: &str, is_kept: bool) -> Context {
        let parts: [&[u8]; 3] = [&job.number().to_be_bytes(), &no.to_be_bytes(), step.as_bytes()];
        self.context(SpanId::derived(self.trace, "call", &parts), is_kept)
    }

    /// A question to a partner. Nothing else has to find it, and it may be asked many times: its id is dice.
    pub fn question(&self, span: SpanId, is_kept: bool) -> Context {
        self.context(span, is_kept)
    }

    /// A run of an attempt that had to wait before it could end. It is no attempt of its own, and there may be many of them.
    fn run(&self, job: JobId, fence: Fence) -> SpanId {
        SpanId::derived(self.trace, "run", &[&job.number().to_be_bytes(), &fence.0.to_be_bytes()])
    }

    fn settling(&self, run: SpanId) -> SpanId {
        SpanId::derived(self.trace, "settling", &[&run.number().to_be_bytes()])
    }

    fn approval(&self, job: JobId, step: &str, asked_at: Timestamp) -> SpanId {
        let parts: [&[u8]; 3] = [&job.number().to_be_bytes(), step.as_bytes(), &asked_at.as_micros().to_be_bytes()];
        SpanId::derived(self.trace, "approval", &parts)
    }
}

/// How many of all traces: the same everywhere, by the dice at the end of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u64);

impl Share {
    const DICE_BITS: u32 = 56;
    pub const ALL: Share = Share(1 << Self::DICE_BITS);

    /// From 0 to 1.
    pub fn of(part: f64) -> Share {
        Share((part.clamp(0.0, 1.0) * Share::ALL.0 as f64) as u64)
    }

    pub fn has(self, trace: TraceId) -> bool {
        trace.0 & (u128::from(Share::ALL.0) - 1) < u128::from(self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0 as f64 / Share::ALL.0 as f64 * 100.0)
    }
}

/// What `tracing:` of `clinch.yml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where the collector is. `None`: nothing is sent to anybody.
    pub endpoint: Option<String>,
    pub protocol: Protocol,
    /// Only secrets are computed in them.
    pub headers: Vec<(String, Template)>,
    /// What the collector calls us.
    pub service: String,
    pub share: Share,
    pub attributes: Vec<AttributeRule>,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            endpoint: None,
            protocol: Protocol::Http,
            headers: Vec::new(),
            service: "clinch".into(),
            share: Share::ALL,
            attributes: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// What an attempt says of the business that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeRule {
    pub name: String,
    /// Reads the event alone.
    pub value: Template,
    /// Somebody's own: only a keyed hash of it is told.
    pub is_personal: bool,
}
