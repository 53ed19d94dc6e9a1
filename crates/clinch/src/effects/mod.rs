//! The door out: the only place from which bytes leave. Used by `worker` and `proxy` alone.

mod act;
mod connection;
mod gate;
mod http;
mod mail;
mod partner;
mod places;
pub mod policy;
mod question;
mod record;
mod safety;
mod script;
mod slack;
mod sql;
mod trail;

pub use act::{Act, Sent};
pub use gate::{Effect, Gate, Passage, Passed, Trace};
pub use http::{Forwarded, HttpCall, HttpClient};
pub use mail::{MailCall, Server};
pub use partner::Wait;
pub use question::Question;
pub use safety::Outgoing;
pub use script::{Home, ScriptCall};
pub use slack::SlackCall;
pub use sql::SqlCall;
