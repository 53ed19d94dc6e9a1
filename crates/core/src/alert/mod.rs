//! An alert: something that a person should know now, by a rule of a fixed list.
//!
//! The list is here and nowhere else (`rules`). Clinch judges it by itself (`reading`), the same list is printed for
//! Prometheus (`prometheus`), and what people read is put together from it (`notice`). `watch` is the only place where an
//! alert begins and ends, and `route` says who is told, when, and how often.

pub mod notice;
pub mod prometheus;
mod reading;
mod route;
mod rules;
mod watch;

pub use reading::{
    DeadReading, FlowReading, Found, IntakeReading, PartnerReading, Readings, StoreReading, WINDOW_FAST, WINDOW_LONG,
    WINDOW_NOTICES, WINDOW_SIGNATURES,
};
pub use route::{
    Channel, ChannelKind, PAGERDUTY, REPEAT_DEFAULT, Routes, SILENCE, Silence, Threshold, Word, due, is_at_rest,
};
pub use rules::{END_TO_END_SLOW, RULES, Rule};
pub use watch::{Episode, SEEN_EVERY, Step, UNSEEN, Watch};

use crate::time::{Timestamp, human};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// No more alerts are open at once; what is found beyond them is counted in the log and not told.
pub const OPEN_MAX: usize = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// May wake a person.
    Critical,
    /// Becomes a ticket.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    pub const ALL: [Severity; 3] = [Severity::Critical, Severity::Warning, Severity::Info];

    pub const fn word(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }

    /// As the first word of a notice.
    pub const fn short(self) -> &'static str {
        match self {
            Severity::Critical => "CRIT",
            Severity::Warning => "WARN",
            Severity::Info => "INFO",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What the value of a rule and its limit are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    /// Of one.
    Share,
    Seconds,
    Bytes,
    /// So many times what would be just right.
    Times,
    /// It is so or it is not: there is no limit.
    Flag,
}

impl Unit {
    /// A value, for people.
    pub fn told(self, value: f64) -> String {
        match self {
            Unit::Count | Unit::Flag => format!("{value:.0}"),
            Unit::Share => format!("{:.1}%", value * 100.0),
            Unit::Seconds => human(Duration::try_from_secs_f64(value.max(0.0).round()).unwrap_or_default()),
            Unit::Bytes if value < 1e9 => format!("{:.0} MB", value / 1e6),
            Unit::Bytes => format!("{:.1} GB", value / 1e9),
            Unit::Times => format!("{value:.1}"),
        }
    }

    /// How a limit of it is written.
    pub const fn example(self) -> &'static str {
        match self {
            Unit::Count => "a number, such as 10",
            Unit::Share => "a share, such as 5%",
            Unit::Seconds => "a length of time, such as 10m",
            Unit::Bytes => "a size, such as 2GiB",
            Unit::Times => "a number, such as 14.4",
            Unit::Flag => "none",
        }
    }
}

/// A limit, in millionths of its unit: so that two can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(u64);

impl Limit {
    pub fn new(value: f64) -> Limit {
        Limit((value.max(0.0) * 1e6).round() as u64)
    }

    pub fn value(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// What an alert is known by: its rule, and the values of the rule's labels. `ClinchCircuitOpen:crm`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub rule: String,
    pub values: Vec<String>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        if !self.values.is_empty() {
            write!(f, ":{}", self.values.join(","))?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no alert; write the name of a rule, or one alert of it, as `clinch alerts ls` shows it: ClinchCircuitOpen:crm"
)]
pub struct NotAName(String);

impl FromStr for Name {
    type Err = NotAName;
    fn from_str(text: &str) -> Result<Name, NotAName> {
        let (rule, values) = text.split_once(':').map_or((text, None), |(rule, values)| (rule, Some(values)));
        let known = Rule::find(rule).ok_or_else(|| NotAName(text.chars().take(80).collect()))?;
        let values: Vec<String> = values.iter().flat_map(|values| values.split(',')).map(str::to_string).collect();
        match values.is_empty() || values.len() == known.labels.len() {
            true => Ok(Name { rule: rule.into(), values }),
            false => Err(NotAName(text.chars().take(80).collect())),
        }
    }
}

/// One time that a rule was broken, from its beginning to its end, and who was told of it. Nothing of an event is in it: labels
/// are names of the workspace and words of fixed lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    pub rule: String,
    /// In the order of the rule's labels.
    pub labels: Vec<(String, String)>,
    pub severity: Severity,
    /// As it was seen last.
    pub value: f64,
    /// What it was held against when it fired.
    pub limit: f64,
    /// The first observation of it.
    #[serde(with = "micros")]
    pub fault_at: Timestamp,
    #[serde(with = "micros")]
    pub fired_at: Timestamp,
    /// Some node saw it then.
    #[serde(with = "micros")]
    pub seen_at: Timestamp,
    #[serde(default, with = "maybe_micros", skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Timestamp>,
    /// When somebody could know of it first.
    #[serde(default, with = "maybe_micros", skip_serializing_if = "Option::is_none")]
    pub signal_at: Option<Timestamp>,
    /// By channel.
    #[serde(default)]
    pub told: BTreeMap<String, Told>,
}

/// What a channel was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub word: Word,
    #[serde(with = "micros")]
    pub at: Timestamp,
    pub how: How,
    /// It had been told before that it fires, whatever became of it since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows: bool,
}

impl Told {
    /// What it is told after what it was told before.
    pub fn after(before: Option<&Told>, word: Word, how: How, at: Timestamp) -> Told {
        let knows = before.is_some_and(|told| told.knows || (told.word == Word::Firing && told.how == How::Sent));
        Told { word, at, how, knows }
    }
}

/// How far a notice has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Somebody is telling it. Should he not say so in time, another tells it.
    Taken,
    Sent,
    /// It could not be told, and nobody tries any more.
    Dropped,
}

impl How {
    pub const fn word(self) -> &'static str {
        match self {
            How::Taken => "taken",
            How::Sent => "sent",
            How::Dropped => "dropped",
        }
    }
}

impl Alert {
    pub fn name(&self) -> Name {
        Name { rule: self.rule.clone(), values: self.labels.iter().map(|(_, value)| value.clone()).collect() }
    }

    pub fn is_firing(&self) -> bool {
        self.resolved_at.is_none()
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// As it is stored.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an alert is plain data")
    }

    /// What cannot be read was written by a newer clinch, and is left to it.
    pub fn from_json(text: &str) -> Option<Alert> {
        serde_json::from_str(text).ok()
    }
}

mod micros {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(at.as_micros())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        i64::deserialize(deserializer).map(Timestamp::from_micros)
    }
}

mod maybe_micros {
    use super::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        at.map(Timestamp::as_micros).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<i64>::deserialize(deserializer)?.map(Timestamp::from_micros))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    pub fn after(seconds: u64) -> Timestamp {
        NOW + Duration::from_secs(seconds)
    }

    pub fn alert(rule: &str, values: &[&str]) -> Alert {
        let known = Rule::find(rule).expect("a rule");
        let labels = known.labels.iter().zip(values).map(|(label, value)| (label.to_string(), value.to_string()));
        Alert {
            rule: rule.into(),
            labels: labels.collect(),
            severity: known.severity,
            value: 1.0,
            limit: known.limit,
            fault_at: NOW,
            fired_at: NOW,
            seen_at: NOW,
            resolved_at: None,
            signal_at: None,
            told: BTreeMap::new(),
        }
    }

    #[test]
    fn h4_an_alert_reads_back_as_it_was_stored() {
        let mut alert = alert("ClinchCircuitOpen", &["crm"]);
        alert.told.insert("ops".into(), Told::after(None, Word::Firing, How::Sent, NOW));
        alert.signal_at = Some(after(3));
        assert_eq!(Alert::from_json(&alert.to_json()), Some(alert));
        assert_eq!(Alert::from_json("{}"), None);
    }

    #[test]
    fn h4_a_name_is_a_rule_or_one_alert_of_it() {
        let read = |text: &str| text.parse::<Name>().map(|name| name.to_string());
        assert_eq!(read("ClinchCircuitOpen"), Ok("ClinchCircuitOpen".into()));
        assert_eq!(read("ClinchCircuitOpen:crm"), Ok("ClinchCircuitOpen:crm".into()));
        assert_eq!(read("ClinchSafeModeLong:flow:orders"), Ok("ClinchSafeModeLong:flow:orders".into()));
        assert!(read("ClinchCircuitOpen:crm,mail").is_err() && read("CircuitOpen").is_err() && read("").is_err());
    }

    #[test]
    fn h4_values_are_told_in_their_unit() {
        let told = [
            Unit::Count.told(12.0),
            Unit::Share.told(0.053),
            Unit::Seconds.told(842.4),
            Unit::Bytes.told(512e6),
            Unit::Bytes.told(1.5e9),
            Unit::Times.told(14.4),
        ];
        assert_eq!(told, ["12", "5.3%", "14m2s", "512 MB", "1.5 GB", "14.4"]);
    }
}
