//! Logs and metrics. Labels come from the workspace or from fixed lists, never from an event.

mod book;
mod intake;
mod label;
mod log;
mod metrics;
mod notice;
mod now;
mod plain;
mod process;
mod store;
mod timing;
mod words;
mod work;

pub use book::{Entry, Kind};
pub use intake::{IntakeOutcome, SharedOutcome};
pub use label::*;
pub use log::{LogFormat, start_logging};
pub use metrics::Metrics;
pub use notice::NoticeOutcome;
pub use now::{Format, Sight};
pub use timing::Timing;
pub use words::PROXIED;
pub use work::{Called, Ended, Tried, step_outcome};
