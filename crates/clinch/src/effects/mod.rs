//! The door out: the only place from which bytes leave. Used by `worker` alone.

mod connection;
mod gate;
mod http;

pub use gate::{Gate, Passed};
pub use http::{HttpCall, Sent};
