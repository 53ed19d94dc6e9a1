//! Who is told of an alert, when, and how often: `alerts:` of `clinch.yml`, what people silenced, and what a channel was told
//! before.

use super::{Alert, How, Limit, Name, Rule, Severity, Told};
use crate::control::Control;
use crate::expr::Template;
use crate::message::Mailbox;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An alert that lasts is told again after so long, if nothing else is said.
pub const REPEAT_DEFAULT: Duration = Duration::from_secs(4 * 3_600);
/// Where PagerDuty takes events.
pub const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";
/// Who took a notice has this long to tell it. Then another does.
pub const LEASE: Duration = Duration::from_secs(180);
/// What could not be told is tried again after so long, while it lasts.
pub const AGAIN: Duration = Duration::from_secs(300);
/// The controls of silences begin so.
pub const SILENCE: &str = "silence/";

/// `alerts:` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Where people find the console; its own address if not given.
    pub console: Option<String>,
    pub repeat: Duration,
    /// Rules that are not judged.
    pub off: BTreeSet<String>,
    /// What is said of rules, by name: here, and by the objective.
    pub rules: BTreeMap<String, Threshold>,
    pub channels: Vec<Channel>,
}

impl Default for Routes {
    fn default() -> Self {
        Routes {
            console: None,
            repeat: REPEAT_DEFAULT,
            off: BTreeSet::new(),
            rules: BTreeMap::new(),
            channels: Vec::new(),
        }
    }
}

/// What a workspace says of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    pub limit: Option<Limit>,
    pub after: Option<Duration>,
    pub severity: Option<Severity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    pub name: String,
    pub kind: ChannelKind,
    /// What it is told.
    pub severities: BTreeSet<Severity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// An incoming webhook of Slack: the name of the secret that is its address.
    SlackHook { url: String },
    /// An integration with `message: slack`, and the channel there.
    Slack { integration: String, to: String },
    /// An integration with `smtp`.
    Mail { integration: String, to: Vec<Mailbox> },
    /// Anything that takes JSON; signed if there is a secret, whose name this is.
    Webhook { url: Template, secret: Option<String> },
    /// The name of the secret that is the routing key.
    PagerDuty { key: String, url: String },
}

impl ChannelKind {
    pub const fn word(&self) -> &'static str {
        match self {
            ChannelKind::SlackHook { .. } | ChannelKind::Slack { .. } => "slack",
            ChannelKind::Mail { .. } => "email",
            ChannelKind::Webhook { .. } => "webhook",
            ChannelKind::PagerDuty { .. } => "pagerduty",
        }
    }
}

impl Routes {
    /// The rules that are judged.
    pub fn judged(&self) -> impl Iterator<Item = &'static Rule> {
        super::RULES.iter().filter(|rule| rule.judge.is_some() && !self.off.contains(rule.name))
    }

    fn threshold(&self, rule: &Rule) -> Threshold {
        self.rules.get(rule.name).copied().unwrap_or_default()
    }

    pub fn limit(&self, rule: &Rule) -> f64 {
        self.threshold(rule).limit.map_or(rule.limit, Limit::value)
    }

    pub fn after(&self, rule: &Rule) -> Duration {
        self.threshold(rule).after.unwrap_or(rule.after)
    }

    pub fn severity(&self, rule: &Rule) -> Severity {
        self.threshold(rule).severity.unwrap_or(rule.severity)
    }

    pub fn channel(&self, name: &str) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.name == name)
    }

    /// The names of the secrets that channels need.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        self.channels.iter().flat_map(|channel| match &channel.kind {
            ChannelKind::SlackHook { url } => vec![url.clone()],
            ChannelKind::PagerDuty { key, .. } => vec![key.clone()],
            ChannelKind::Webhook { url, secret } => url.secrets().into_iter().chain(secret.clone()).collect(),
            ChannelKind::Slack { .. } | ChannelKind::Mail { .. } => Vec::new(),
        })
    }
}

/// What somebody does not want to hear of, for a while. It fires, is shown and counted all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// A rule, or one alert of it.
    pub name: Name,
    pub reason: String,
    pub actor: String,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
}

/// What the control of a silence holds.
#[derive(Debug, Serialize, Deserialize)]
struct SilenceValue {
    reason: String,
}

impl Silence {
    /// The name of its control.
    pub fn control(name: &Name) -> std::sync::Arc<str> {
        format!("{SILENCE}{name}").into()
    }

    /// The value of its control.
    pub fn value(reason: &str) -> String {
        serde_json::json!(SilenceValue { reason: reason.into() }).to_string()
    }

    pub(crate) fn read(name: &str, row: &Control) -> Option<Silence> {
        let SilenceValue { reason } = serde_json::from_str(&row.value).ok()?;
        Some(Silence { name: name.parse().ok()?, reason, actor: row.actor.clone(), since: row.at, until: row.until })
    }

    /// Whether it still counts.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    pub fn is_about(&self, alert: &Alert) -> bool {
        self.name.rule == alert.rule && (self.name.values.is_empty() || self.name == alert.name())
    }
}

/// What a notice says of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Firing,
    Resolved,
}

impl Word {
    pub const fn as_str(self) -> &'static str {
        match self {
            Word::Firing => "firing",
            Word::Resolved => "resolved",
        }
    }
}

/// What this channel is to be told of the alert now. `is_silent`: somebody does not want to hear that it fires; that it is over
/// is told to whoever was told that it began.
pub fn due(alert: &Alert, channel: &Channel, is_silent: bool, repeat: Duration, now: Timestamp) -> Option<Word> {
    let is_for = channel.severities.contains(&alert.severity) && !is_own(alert, channel) && !is_silent;
    let firing = (alert.is_firing() && is_for).then_some(Word::Firing);
    match alert.told.get(&channel.name) {
        None => firing,
        Some(Told { how: How::Taken, at, .. }) if now < *at + LEASE => None,
        Some(Told { word: Word::Resolved, how: How::Taken, .. }) => Some(Word::Resolved),
        Some(Told { word: Word::Resolved, .. }) => None,
        Some(Told { word: Word::Firing, how, at, knows }) => match (alert.is_firing(), how) {
            (false, How::Dropped) => knows.then_some(Word::Resolved),
            (false, How::Sent | How::Taken) => Some(Word::Resolved),
            (true, How::Taken) => firing,
            (true, How::Sent) => firing.filter(|_| now >= *at + repeat),
            (true, How::Dropped) => firing.filter(|_| now >= *at + AGAIN.min(repeat)),
        },
    }
}

/// A channel is not told by itself that it cannot be told anything.
fn is_own(alert: &Alert, channel: &Channel) -> bool {
    alert.label("channel") == Some(channel.name.as_str())
}

/// Whether nothing more will be said of it to any of these.
pub fn is_at_rest(alert: &Alert, channels: &[Channel], now: Timestamp) -> bool {
    let is_silent = |channel: &Channel| {
        let is_taken = alert.told.get(&channel.name).is_some_and(|told| told.how == How::Taken);
        !is_taken && due(alert, channel, false, Duration::MAX, now).is_none()
    };
    !alert.is_firing() && channels.iter().all(is_silent)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, after, alert};
    use super::*;
    use proptest::prelude::*;

    fn channel() -> Channel {
        let kind = ChannelKind::SlackHook { url: "HOOK".into() };
        Channel { name: "ops".into(), kind, severities: [Severity::Critical, Severity::Warning].into() }
    }

    fn told(word: Word, how: How, at: Timestamp) -> Alert {
        let mut alert = alert("ClinchCircuitOpen", &["crm"]);
        alert.told.insert("ops".into(), Told::after(None, word, how, at));
        alert
    }

    fn check(alert: &Alert, now: Timestamp, expected: Option<Word>) {
        assert_eq!(due(alert, &channel(), false, REPEAT_DEFAULT, now), expected, "{alert:?}");
    }

    #[test]
    fn h4_an_alert_is_told_once_again_after_a_while_and_when_it_is_over() {
        let mut alert = alert("ClinchCircuitOpen", &["crm"]);
        check(&alert, NOW, Some(Word::Firing));
        assert_eq!(due(&alert, &channel(), true, REPEAT_DEFAULT, NOW), None, "it is silenced");
        alert = told(Word::Firing, How::Sent, NOW);
        check(&alert, after(3_600), None);
        check(&alert, after(4 * 3_600), Some(Word::Firing));
        alert.resolved_at = Some(after(10));
        check(&alert, after(10), Some(Word::Resolved));
        assert_eq!(
            due(&alert, &channel(), true, REPEAT_DEFAULT, NOW),
            Some(Word::Resolved),
            "he was told that it began"
        );
        let mut over = told(Word::Resolved, How::Sent, after(11));
        over.resolved_at = Some(after(10));
        check(&over, after(100_000), None);
        assert!(is_at_rest(&over, &[channel()], after(12)) && !is_at_rest(&alert, &[channel()], after(12)));
    }

    #[test]
    fn h4_what_nobody_was_told_is_not_told_to_be_over() {
        let mut alert = alert("ClinchCircuitOpen", &["crm"]);
        alert.resolved_at = Some(after(5));
        check(&alert, after(6), None);
        assert!(is_at_rest(&alert, &[channel()], after(6)));
        let mut dropped = told(Word::Firing, How::Dropped, NOW);
        check(&dropped, after(299), None);
        check(&dropped, after(300), Some(Word::Firing));
        dropped.resolved_at = Some(after(310));
        check(&dropped, after(400), None);
    }

    #[test]
    fn h4_who_was_told_that_it_began_is_told_that_it_is_over_also_when_a_repetition_was_lost() {
        let mut alert = told(Word::Firing, How::Sent, NOW);
        for (how, second) in
            [(How::Taken, 14_400), (How::Dropped, 14_401), (How::Taken, 14_800), (How::Dropped, 14_801)]
        {
            let again = Told::after(alert.told.get("ops"), Word::Firing, how, after(second));
            alert.told.insert("ops".into(), again);
        }
        alert.resolved_at = Some(after(14_900));
        check(&alert, after(14_900), Some(Word::Resolved));
        assert!(!is_at_rest(&alert, &[channel()], after(14_900)));
    }

    #[test]
    fn h4_who_took_a_notice_and_did_not_tell_it_is_followed_by_another() {
        let mut taken = told(Word::Firing, How::Taken, NOW);
        check(&taken, after(179), None);
        check(&taken, after(180), Some(Word::Firing));
        taken.resolved_at = Some(after(5));
        check(&taken, after(180), Some(Word::Resolved));
        assert!(!is_at_rest(&taken, &[channel()], after(6)), "somebody is telling it");
    }

    #[test]
    fn h4_only_who_wants_it_is_told_and_no_channel_of_itself() {
        let info = alert("ClinchReplayRunning", &[]);
        check(&info, NOW, None);
        check(&alert("ClinchNotificationsFailing", &["ops"]), NOW, None);
        check(&alert("ClinchNotificationsFailing", &["mail"]), NOW, Some(Word::Firing));
    }

    #[test]
    fn h4_a_silence_is_about_a_rule_or_one_alert_of_it() {
        let silence = |name: &str| {
            let name = name.parse().expect("a name");
            Silence { name, reason: "x".into(), actor: "ada".into(), since: NOW, until: Some(after(10)) }
        };
        let crm = alert("ClinchCircuitOpen", &["crm"]);
        assert!(silence("ClinchCircuitOpen").is_about(&crm) && silence("ClinchCircuitOpen:crm").is_about(&crm));
        assert!(!silence("ClinchCircuitOpen:mail").is_about(&crm) && !silence("ClinchErrorRate").is_about(&crm));
        assert!(silence("ClinchCircuitOpen").holds(after(9)) && !silence("ClinchCircuitOpen").holds(after(10)));
    }

    proptest! {
        /// However a channel fares: between two tellings that it fires there is `repeat` (or `AGAIN` after one that failed), and that
        /// it is over is told at most once, and only after it was told that it began.
        #[test]
        fn h4_no_channel_hears_the_same_twice(pauses in proptest::collection::vec((1u64..4_000, 0u8..4), 1..60), over in 0usize..60) {
            let (channel, repeat) = (channel(), Duration::from_secs(1_800));
            let (mut alert, mut now, mut said) = (alert("ClinchCircuitOpen", &["crm"]), NOW, Vec::new());
            for (nth, (pause, fate)) in pauses.into_iter().enumerate() {
                now = now + Duration::from_secs(pause);
                if nth == over {
                    alert.resolved_at = Some(now);
                }
                let Some(word) = due(&alert, &channel, false, repeat, now) else { continue };
                // One in four is lost with who took it, one in four fails.
                let how = [How::Sent, How::Sent, How::Taken, How::Dropped][usize::from(fate)];
                let told = Told::after(alert.told.get("ops"), word, how, now);
                alert.told.insert("ops".into(), told);
                said.push((word, how, now));
            }
            for pair in said.windows(2) {
                prop_assert!(!(pair[0].0 == Word::Resolved && pair[0].1 != How::Taken), "nothing after the end");
                if pair == [(Word::Firing, How::Sent, pair[0].2), (Word::Firing, pair[1].1, pair[1].2)] {
                    prop_assert!(pair[1].2.since(pair[0].2) >= repeat);
                }
            }
            prop_assert!(said.first().is_none_or(|first| first.0 == Word::Firing));
            let knows = said.iter().any(|(word, how, _)| (*word, *how) == (Word::Firing, How::Sent));
            let is_over = !alert.is_firing() && due(&alert, &channel, false, repeat, now + LEASE).is_none();
            prop_assert!(!(knows && is_over) || said.iter().any(|one| one.0 == Word::Resolved), "who knows hears the end");
        }
    }
}
