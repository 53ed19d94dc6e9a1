//! A question to a partner, asked for a step of a job: it changes nothing there, and is a span of the event's trace like the call of
//! an effect.

use super::http::HttpCall;
use crate::tracer::{Asking, Spans};
use clinch_core::trace::{self, SpanId};

pub struct Question {
    pub call: HttpCall,
    /// Which may be in its headers.
    pub span: SpanId,
}

impl Question {
    /// Where it is told, if somebody listens.
    pub fn asking<'a>(&self, spans: Option<&'a Spans>, step: &'a str, question: trace::Question) -> Option<Asking<'a>> {
        spans.map(|spans| Asking { spans, span: self.span, step, question })
    }
}
