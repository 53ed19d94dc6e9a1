//! Spans as OTLP has them: the protocol buffers of `opentelemetry.proto.trace.v1`, written by hand. Eight messages that have been stable
//! for years are less to keep than a generator, its runtime and the types that it makes; the tests read them with the official ones.

use clinch_core::time::Timestamp;
use clinch_core::trace::{Attributes, Context, Kind, Moment, Span, Value};

/// What is told of us with every batch.
pub struct Resource {
    pub service: String,
    pub instance: String,
}

/// An `ExportTraceServiceRequest`.
pub fn request(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    Message::of(|request| {
        request.message(1, |of_resource| {
            of_resource.message(1, |told| {
                for (name, value) in [
                    ("service.name", resource.service.as_str()),
                    ("service.version", version),
                    ("service.instance.id", &resource.instance),
                ] {
                    told.message(1, |pair| {
                        pair.text(1, name);
                        pair.message(2, |any| any.text(1, value));
                    });
                }
            });
            of_resource.message(2, |of_scope| {
                of_scope.message(1, |scope| {
                    scope.text(1, "clinch");
                    scope.text(2, version);
                });
                for one in spans {
                    of_scope.message(2, |message| span(message, one));
                }
            });
        });
    })
}

fn span(message: &mut Message, span: &Span) {
    message.bytes(1, &span.context.trace.0.to_be_bytes());
    message.bytes(2, &span.context.span.number().to_be_bytes());
    if !span.state.is_empty() {
        message.text(3, &span.state);
    }
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.number().to_be_bytes());
    }
    message.text(5, &span.name);
    message.number(6, kind(span.kind));
    message.fixed64(7, nanos(span.began));
    message.fixed64(8, nanos(span.ended));
    attributes(message, 9, &span.attributes);
    span.moments.iter().for_each(|one| message.message(11, |message| moment(message, one)));
    span.links.iter().for_each(|one| message.message(13, |message| link(message, one)));
    if span.error.is_some() {
        message.message(15, |status| status.number(3, 2));
    }
    message.fixed32(16, span.context.flags.into());
}

fn moment(message: &mut Message, moment: &Moment) {
    message.fixed64(1, nanos(moment.at));
    message.text(2, moment.name);
    attributes(message, 3, &moment.attributes);
}

fn link(message: &mut Message, link: &Context) {
    message.bytes(1, &link.trace.0.to_be_bytes());
    message.bytes(2, &link.span.number().to_be_bytes());
    message.fixed32(6, link.flags.into());
}

fn attributes(message: &mut Message, field: u32, attributes: &Attributes) {
    for (name, value) in attributes {
        message.message(field, |pair| {
            pair.text(1, name);
            pair.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                Value::Number(number) => any.number(3, number.cast_unsigned()),
            });
        });
    }
}

const fn kind(kind: Kind) -> u64 {
    match kind {
        Kind::Internal => 1,
        Kind::Server => 2,
        Kind::Client => 3,
        Kind::Producer => 4,
        Kind::Consumer => 5,
    }
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(0).saturating_mul(1_000)
}

/// A message that is being written: fields with their numbers, in the wire's few shapes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn of(write: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::default();
        write(&mut message);
        message.0
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number as u8 & 0x7f) | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, field: u32, shape: u64) {
        self.varint(u64::from(field) << 3 | shape);
    }

    fn number(&mut self, field: u32, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.tag(field, 5);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let inner = Message::of(write);
        self.bytes(field, &inner);
    }
}
