//! A policy: what must be so before something is done to a contact that cannot be taken back. That it has agreed, that it has
//! not had enough, and that it is not night where it is.

use crate::expr::{Expr, Template};
use crate::integration::{Integration, Lookup};
use crate::key::EntityKey;
use crate::time::{Timestamp, human};
use crate::worker::Action;
use jiff::Zoned;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub const CAP_MAX: u32 = 100_000;
/// What counts in the day of one time zone may count a little longer in that of another.
const DAY_KEPT: Duration = Duration::from_secs(50 * 3_600);

#[derive(Clone, Debug)]
pub struct Policy {
    pub name: Arc<str>,
    /// What goes over these channels is under it …
    pub channels: Vec<String>,
    /// … and what goes to these integrations.
    pub integrations: Vec<String>,
    /// Who is counted. It is there where there are caps.
    pub contact: Option<Template>,
    pub consent: Option<Consent>,
    /// Whose days and hours count.
    pub time_zone: Template,
    pub caps: Vec<Cap>,
    pub quiet: Option<QuietHours>,
}

/// Whether the contact has agreed.
#[derive(Clone, Debug)]
pub enum Consent {
    /// The event says so, or a step before.
    Said(Expr),
    /// A partner knows.
    Asked(Box<Question>),
}

#[derive(Clone, Debug)]
pub struct Question {
    pub partner: Arc<Integration>,
    pub timeout: Duration,
    /// It is done when the contact has agreed.
    pub lookup: Lookup,
}

/// So many in such a time, of one contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    pub max: NonZeroU32,
    pub per: Window,
    /// Only what goes over this channel counts, and only that is refused.
    pub channel: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// From midnight to midnight where the contact is.
    Day,
    /// The last so long, whenever it is.
    Last(Duration),
}

/// Hours in which nobody is disturbed. `from` is never `to`; it may be later, and then they go over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietHours {
    pub from: Time,
    pub to: Time,
    pub then: Then,
}

/// What becomes of a job that comes in quiet hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Wait,
    Decline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Consent,
    QuietHours,
    Frequency,
    ChannelLimit,
}

impl Rule {
    pub const ALL: [Rule; 4] = [Rule::Consent, Rule::QuietHours, Rule::Frequency, Rule::ChannelLimit];

    pub const fn word(self) -> &'static str {
        match self {
            Rule::Consent => "consent",
            Rule::QuietHours => "quiet_hours",
            Rule::Frequency => "frequency",
            Rule::ChannelLimit => "channel_limit",
        }
    }

    /// Why that is a reason not to do it.
    pub const fn reason(self) -> &'static str {
        match self {
            Rule::Consent => "the contact has not agreed to it",
            Rule::QuietHours => "the contact is not to be disturbed at this hour",
            Rule::Frequency => "the contact has had as many as it may have in this time",
            Rule::ChannelLimit => "the contact has had as many over this channel as it may have in this time",
        }
    }
}

/// Why it is not done. It tells nothing of the contact but what the rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub policy: Arc<str>,
    pub rule: Rule,
    /// What the rule was held against.
    pub fact: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { policy, rule, fact } = self;
        write!(f, "policy `{policy}`, rule `{}`: {fact}: {}", rule.word(), rule.reason())
    }
}

impl Refusal {
    /// Out of the text of an attempt, as it was written into it.
    pub fn read(text: &str) -> Option<Refusal> {
        let (_, rest) = text.split_once("policy `")?;
        let (policy, rest) = rest.split_once("`, rule `")?;
        let (word, rest) = rest.split_once("`: ")?;
        let rule = Rule::ALL.into_iter().find(|rule| rule.word() == word)?;
        let fact = rest.strip_suffix(rule.reason())?.strip_suffix(": ")?;
        Some(Refusal { policy: policy.into(), rule, fact: fact.into() })
    }
}

/// What a policy says of something that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    Allow,
    Decline(Refusal),
    /// Not before then, for it is night where the contact is.
    WaitUntil(Timestamp),
}

/// One contact under one policy, and how it is counted there.
#[derive(Clone, Debug)]
pub struct Tally {
    pub contact: EntityKey,
    /// How it is to go; empty where it goes over none.
    pub channel: Arc<str>,
    pub zone: TimeZone,
    /// Those that are about this channel.
    pub caps: Vec<Cap>,
}

impl Policy {
    /// Whether it rules over what such a step does, without being named by it: what cannot be taken back, over one of its channels
    /// or with one of its integrations.
    pub fn covers(&self, action: &Action) -> bool {
        let Some((partner, _)) = action.outward() else { return false };
        let is_irreversible = matches!(action, Action::Send(_)) || partner.class.is_irreversible();
        let by_channel = partner.channel_word().is_some_and(|word| self.channels.iter().any(|channel| channel == word));
        is_irreversible && (by_channel || self.integrations.iter().any(|name| **name == *partner.name))
    }

    /// Consent first: who has not agreed need not wait for the morning. What is counted is asked of the store afterwards.
    /// `consent` is whether it has agreed, and by which fact.
    pub fn rule(&self, consent: Option<(bool, String)>, zone: &TimeZone, now: Timestamp) -> Ruling {
        let decline = |rule, fact| Ruling::Decline(Refusal { policy: self.name.clone(), rule, fact });
        if let Some((false, fact)) = consent {
            return decline(Rule::Consent, fact);
        }
        match self.quiet.and_then(|quiet| Some((quiet, quiet.until(now, zone)?))) {
            None => Ruling::Allow,
            Some((QuietHours { then: Then::Wait, .. }, until)) => Ruling::WaitUntil(until),
            Some((quiet, _)) => decline(Rule::QuietHours, quiet.to_string()),
        }
    }

    /// The caps that something over this channel is held against.
    pub fn caps_for(&self, channel: &str) -> Vec<Cap> {
        self.caps.iter().filter(|cap| cap.channel.as_deref().is_none_or(|own| own == channel)).cloned().collect()
    }

    /// What is said when this cap is reached.
    pub fn reached(&self, cap: &Cap, sent: u32) -> Refusal {
        let rule = if cap.channel.is_some() { Rule::ChannelLimit } else { Rule::Frequency };
        Refusal { policy: self.name.clone(), rule, fact: format!("{sent} of {cap}") }
    }
}

impl Tally {
    /// The first cap that is reached, by how many were sent in the time of each.
    pub fn reached(&self, sent: &[u32]) -> Option<(usize, u32)> {
        let full = |(_, (cap, sent)): &(usize, (&Cap, &u32))| **sent >= cap.max.get();
        self.caps.iter().zip(sent).enumerate().find(full).map(|(at, (_, sent))| (at, *sent))
    }

    /// From then on nothing counts that was sent at this moment.
    pub fn over_at(&self, at: Timestamp) -> Timestamp {
        let kept = self.caps.iter().map(|cap| match cap.per {
            Window::Day => DAY_KEPT,
            Window::Last(span) => span,
        });
        at + kept.max().unwrap_or_default()
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per {
            Window::Day => write!(f, "{} per day", self.max)?,
            Window::Last(span) => write!(f, "{} per {}", self.max, human(span))?,
        }
        self.channel.as_ref().map_or(Ok(()), |channel| write!(f, " by {channel}"))
    }
}

impl Window {
    /// What was sent after this moment counts.
    pub fn since(self, now: Timestamp, zone: &TimeZone) -> Timestamp {
        let midnight = || Some(moment(&local(now, zone)?.start_of_day().ok()?) - Duration::from_micros(1));
        match self {
            Window::Last(span) => now - span,
            // Beyond the calendar a day has 24 hours.
            Window::Day => midnight().unwrap_or(now - Duration::from_secs(86_400)),
        }
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(f, "between {:02}:{:02} and {:02}:{:02}", from.hour(), from.minute(), to.hour(), to.minute())
    }
}

impl QuietHours {
    /// When they end, if it is in them.
    pub fn until(self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let here = local(now, zone)?;
        let (time, over_midnight) = (here.time(), self.from > self.to);
        let (has_begun, has_not_ended) = (time >= self.from, time < self.to);
        let is_quiet = if over_midnight { has_begun || has_not_ended } else { has_begun && has_not_ended };
        if !is_quiet {
            return None;
        }
        let day = if has_not_ended { here.date() } else { here.date().tomorrow().ok()? };
        let end = zone.to_ambiguous_zoned(day.to_datetime(self.to));
        let first = moment(&end.clone().compatible().ok()?);
        // Where clocks are put back an hour comes twice, and this may be the second.
        Some(if first > now { first } else { moment(&end.later().ok()?) })
    }
}

fn local(now: Timestamp, zone: &TimeZone) -> Option<Zoned> {
    Some(jiff::Timestamp::from_microsecond(now.as_micros()).ok()?.to_zoned(zone.clone()))
}

fn moment(at: &Zoned) -> Timestamp {
    Timestamp::from_micros(at.timestamp().as_microsecond())
}

/// A time zone by its name, such as `Europe/Berlin`.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name.trim()).ok()
}

/// The name that a contact is counted under: an address is the same in whatever case.
pub fn contact(written: &str) -> Option<String> {
    let name = written.trim();
    // What is there and says nothing is written as `null`.
    let name = Some(name).filter(|name| !name.is_empty() && *name != "null")?;
    Some(if name.contains('@') { name.to_lowercase() } else { name.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().expect("a moment").as_microsecond())
    }

    fn zone(name: &str) -> TimeZone {
        time_zone(name).expect("a time zone")
    }

    fn night() -> QuietHours {
        QuietHours { from: Time::constant(21, 0, 0, 0), to: Time::constant(8, 0, 0, 0), then: Then::Wait }
    }

    fn cap(max: u32, per: Window, channel: Option<&str>) -> Cap {
        Cap { max: NonZeroU32::new(max).expect("not zero"), per, channel: channel.map(Arc::from) }
    }

    fn policy() -> Policy {
        Policy {
            name: "marketing".into(),
            channels: Vec::new(),
            integrations: Vec::new(),
            contact: None,
            consent: None,
            time_zone: Template::Plain("UTC".into()),
            caps: vec![cap(2, Window::Day, None), cap(1, Window::Last(Duration::from_secs(7 * 86_400)), Some("sms"))],
            quiet: Some(night()),
        }
    }

    #[test]
    fn g1_quiet_hours_are_those_of_the_contacts_own_night() {
        let check = |place: &str, now: &str, until: Option<&str>| {
            assert_eq!(night().until(at(now), &zone(place)), until.map(at), "{place} at {now}");
        };
        check("UTC", "2026-07-01T12:00:00Z", None);
        check("UTC", "2026-07-01T20:59:59Z", None);
        check("UTC", "2026-07-01T21:00:00Z", Some("2026-07-02T08:00:00Z"));
        check("UTC", "2026-07-02T07:59:59Z", Some("2026-07-02T08:00:00Z"));
        check("UTC", "2026-07-02T08:00:00Z", None);
        // It is evening in Berlin and afternoon in New York.
        check("Europe/Berlin", "2026-07-01T20:00:00Z", Some("2026-07-02T06:00:00Z"));
        check("America/New_York", "2026-07-01T20:00:00Z", None);
        // The night of the change is an hour shorter, or longer.
        check("Europe/Berlin", "2026-03-28T22:00:00Z", Some("2026-03-29T06:00:00Z"));
        check("Europe/Berlin", "2026-10-24T22:00:00Z", Some("2026-10-25T07:00:00Z"));
    }

    #[test]
    fn g1_an_hour_that_comes_twice_or_never_keeps_nobody_waiting_for_ever() {
        let early = |hour, minute| QuietHours { to: Time::constant(hour, minute, 0, 0), ..night() };
        let berlin = zone("Europe/Berlin");
        // Half past two comes twice on this day; this is after the first.
        assert_eq!(
            early(2, 30).until(at("2026-10-25T01:10:00Z"), &berlin),
            Some(at("2026-10-25T01:30:00Z")),
            "the second half past two"
        );
        assert_eq!(early(2, 30).until(at("2026-10-25T00:10:00Z"), &berlin), Some(at("2026-10-25T00:30:00Z")));
        // And on this one never.
        assert_eq!(early(2, 30).until(at("2026-03-29T00:10:00Z"), &berlin), Some(at("2026-03-29T01:30:00Z")));
    }

    #[test]
    fn g1_a_day_is_that_of_the_contact_and_a_window_is_the_last_so_long() {
        let now = at("2026-07-01T23:30:00Z");
        let since = |window: Window, place: &str| window.since(now, &zone(place));
        let just_before = |text: &str| at(text) - Duration::from_micros(1);
        assert_eq!(since(Window::Day, "UTC"), just_before("2026-07-01T00:00:00Z"));
        assert_eq!(since(Window::Day, "Europe/Berlin"), just_before("2026-07-01T22:00:00Z"));
        assert_eq!(since(Window::Day, "America/New_York"), just_before("2026-07-01T04:00:00Z"));
        assert_eq!(since(Window::Last(Duration::from_secs(3_600)), "UTC"), at("2026-07-01T22:30:00Z"));
    }

    #[test]
    fn g1_the_first_rule_that_is_broken_is_named_with_its_fact() {
        let (noon, midnight) = (at("2026-07-01T12:00:00Z"), at("2026-07-01T23:00:00Z"));
        let utc = TimeZone::UTC;
        let no = || Some((false, "`body.consent` is false".to_string()));
        let Ruling::Decline(refusal) = policy().rule(no(), &utc, midnight) else { panic!("it has not agreed") };
        assert_eq!((refusal.rule, &*refusal.fact), (Rule::Consent, "`body.consent` is false"));
        let yes = || Some((true, String::new()));
        assert_eq!(policy().rule(yes(), &utc, noon), Ruling::Allow);
        assert_eq!(policy().rule(yes(), &utc, midnight), Ruling::WaitUntil(at("2026-07-02T08:00:00Z")));
        let strict = Policy { quiet: Some(QuietHours { then: Then::Decline, ..night() }), ..policy() };
        let Ruling::Decline(refusal) = strict.rule(None, &utc, midnight) else { panic!("it is night") };
        assert_eq!((refusal.rule, &*refusal.fact), (Rule::QuietHours, "between 21:00 and 08:00"));
    }

    #[test]
    fn g1_a_cap_of_a_channel_is_for_that_channel_alone() {
        let tally = |channel: &str| Tally {
            contact: EntityKey::from_bytes([7; 16]),
            channel: channel.into(),
            zone: TimeZone::UTC,
            caps: policy().caps_for(channel),
        };
        assert_eq!((tally("email").caps.len(), tally("sms").caps.len()), (1, 2));
        assert_eq!(tally("email").reached(&[1]), None);
        assert_eq!(tally("email").reached(&[2]), Some((0, 2)));
        assert_eq!(tally("sms").reached(&[1, 1]), Some((1, 1)));
        let sms = &tally("sms").caps[1];
        assert_eq!(policy().reached(sms, 1).fact, "1 of 1 per 7d by sms");
        assert_eq!(policy().reached(sms, 1).rule, Rule::ChannelLimit);
        assert_eq!(tally("email").over_at(at("2026-07-01T00:00:00Z")), at("2026-07-03T02:00:00Z"));
    }

    #[test]
    fn g1_a_contact_is_the_same_however_its_address_is_written() {
        assert_eq!(contact(" Ada@Example.org "), contact("ada@example.org"));
        assert_ne!(contact("Kx7"), contact("kx7"), "ids are told apart by their case");
        for nobody in ["", "  ", "null"] {
            assert_eq!(contact(nobody), None);
        }
    }

    proptest! {
        #[test]
        fn g1_a_refusal_is_read_back_out_of_the_text_of_its_attempt(policy in "[a-z][a-z-]{0,9}", rule in 0..4usize, fact in "\\PC{0,40}") {
            let refusal = Refusal { policy: policy.into(), rule: Rule::ALL[rule], fact };
            prop_assert_eq!(Refusal::read(&format!("step `remind`: {refusal}")), Some(refusal));
        }

        #[test]
        fn g1_quiet_hours_end_after_now_and_within_two_days(
            place in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
            seconds in 0..4_000_000_000i64, from in 0..1_440i16, to in 0..1_440i16,
        ) {
            prop_assume!(from != to);
            let time = |minutes: i16| Time::new((minutes / 60) as i8, (minutes % 60) as i8, 0, 0).expect("a time");
            let quiet = QuietHours { from: time(from), to: time(to), then: Then::Wait };
            let now = Timestamp::from_micros(seconds * 1_000_000);
            if let Some(until) = quiet.until(now, &zone(place)) {
                prop_assert!(until > now);
                prop_assert!(until.since(now) <= Duration::from_secs(2 * 86_400));
            }
        }
    }
}
