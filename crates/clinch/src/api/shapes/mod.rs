//! The JSON of the admin API, as server and command line both know it. Within v1 fields are only added. Times are
//! RFC 3339 in UTC, lengths of time are seconds, ids are strings.

mod audit;
mod budgets;
mod dead;
mod effects;
mod encryption;
mod events;
mod jobs;
mod keys;
mod latency;
mod overview;
mod schedules;
mod senders;
mod users;

pub use audit::*;
pub use budgets::*;
pub use dead::*;
pub use effects::*;
pub use encryption::*;
pub use events::*;
pub use jobs::*;
pub use keys::*;
pub use latency::*;
pub use overview::*;
pub use schedules::*;
pub use senders::*;
pub use users::*;

use crate::masking::rules;
use clinch_core::effect::EffectState;
use clinch_core::mask;
use clinch_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::str::FromStr;
use utoipa::ToSchema;

/// A moment, in JSON a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for Moment {
    type Err = jiff::Error;
    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        let at: jiff::Timestamp = text.parse()?;
        Ok(Moment(Timestamp::from_micros(at.as_microsecond())))
    }
}

pub fn version(id: clinch_store::VersionId) -> String {
    format!("v{}", id.0)
}

/// A body's shape, its texts masked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    pub bytes: usize,
    pub json: bool,
    pub lines: Vec<String>,
    /// Whether there are more lines.
    pub cut: bool,
}

impl Preview {
    pub fn of(body: &[u8]) -> Preview {
        let mask::Preview { bytes, json, lines, cut } = rules().preview(body);
        Preview { bytes, json, lines, cut }
    }

    /// Where there was one, and something in it.
    pub fn of_answer(state: &EffectState) -> Option<Preview> {
        match state {
            EffectState::Done(receipt) if !receipt.body.is_empty() => Some(Preview::of(&receipt.body)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_rfc_3339_and_reads_back() {
        let moment = Moment(Timestamp::from_micros(1_790_000_000_123_000));
        let text = serde_json::to_string(&moment).expect("JSON");
        assert!(text.starts_with("\"2026-") && text.ends_with(".123Z\""), "{text}");
        assert_eq!(serde_json::from_str::<Moment>(&text).expect("reads"), moment);
    }
}
