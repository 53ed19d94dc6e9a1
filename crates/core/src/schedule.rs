//! A schedule: at which moments a worker runs by itself, and what becomes of moments that were missed.

use crate::time::Timestamp;
use croner::Cron;
use croner::parser::{CronParser, Year};
use jiff::Zoned;
use jiff::tz::TimeZone;
use std::time::Duration;

/// Of the slots that were missed, so many of the newest are made up for where all are wanted.
pub const MISSED_MAX: usize = 100;
/// A slot that is no later than this was not missed: somebody was busy, or started again.
pub const LATE_MAX: Duration = Duration::from_secs(30);
/// What the queues of schedules begin with.
pub const QUEUE_PREFIX: &str = "schedule.";
/// What the events of schedules have as their source.
pub const SOURCE: &str = "schedule";
const CRON_BYTES_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The queue of its own: `schedule.NAME`.
    pub queue: String,
    pub cron: CronLine,
    pub zone: Zone,
    pub missed: Missed,
    /// Whether it runs again while an earlier run is not finished.
    pub overlaps: bool,
}

/// What becomes of slots at which nobody could fire: nothing ran, or the run before was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missed {
    /// One run makes up for all of them.
    #[default]
    Once,
    /// They are let pass.
    Skip,
    /// Each is made up for, the oldest first; of very many only the newest.
    All,
}

impl Missed {
    pub const fn word(self) -> &'static str {
        match self {
            Missed::Once => "once",
            Missed::Skip => "skip",
            Missed::All => "all",
        }
    }
}

/// A line such as `*/10 * * * *`; with six fields the first is seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct CronLine(Cron);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCron {
    #[error("it is not a cron line: {0}")]
    Unreadable(String),
    #[error("there is no such moment, ever")]
    Never,
}

impl CronLine {
    pub fn parse(text: &str) -> Result<CronLine, BadCron> {
        if text.len() > CRON_BYTES_MAX {
            return Err(BadCron::Unreadable(format!("it is longer than {CRON_BYTES_MAX} bytes")));
        }
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let cron = parser.parse(text).map_err(|error| BadCron::Unreadable(error.to_string()))?;
        let start = jiff::civil::date(2000, 1, 1).at(0, 0, 0, 0);
        cron.find_next_occurrence(&start, true).map_err(|_| BadCron::Never)?;
        Ok(CronLine(cron))
    }

    pub fn text(&self) -> &str {
        self.0.as_str()
    }
}

/// A time zone by its name, such as `Europe/Berlin`.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    pub const UTC: Zone = Zone(TimeZone::UTC);

    pub fn parse(name: &str) -> Option<Zone> {
        TimeZone::get(name).ok().map(Zone)
    }

    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    fn of(&self, at: Timestamp) -> Option<Zoned> {
        Some(jiff::Timestamp::from_microsecond(at.as_micros()).ok()?.to_zoned(self.0.clone()))
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// A run for this slot. Those before it are used up with it.
    Fire(Timestamp),
    /// Up to this slot all are let pass.
    LetPass(Timestamp),
}

impl Schedule {
    /// `last` is the slot that was used up last.
    pub fn due(&self, last: Timestamp, now: Timestamp) -> Due {
        let Some(newest) = self.slot_until(now).filter(|slot| *slot > last) else { return Due::Nothing };
        match self.missed {
            Missed::Once => Due::Fire(newest),
            Missed::Skip if now.since(newest) <= LATE_MAX => Due::Fire(newest),
            Missed::Skip => Due::LetPass(newest),
            Missed::All => Due::Fire(self.oldest_after(last, newest)),
        }
    }

    /// The first slot after this moment.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.cron.0.find_next_occurrence(&self.zone.of(after)?, false).ok().map(|at| moment(&at))
    }

    /// The last slot up to this moment.
    fn slot_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.cron.0.find_previous_occurrence(&self.zone.of(now)?, true).ok().map(|at| moment(&at))
    }

    fn oldest_after(&self, last: Timestamp, newest: Timestamp) -> Timestamp {
        let mut oldest = newest;
        for _ in 1..MISSED_MAX {
            let earlier = self.zone.of(oldest).and_then(|at| self.cron.0.find_previous_occurrence(&at, false).ok());
            match earlier.map(|at| moment(&at)) {
                Some(slot) if slot > last && slot < oldest => oldest = slot,
                _ => break,
            }
        }
        oldest
    }
}

/// Slots are whole seconds.
fn moment(at: &Zoned) -> Timestamp {
    Timestamp::from_micros(at.timestamp().as_second().saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().expect("a moment").as_microsecond())
    }

    fn schedule(cron: &str, zone: &str, missed: Missed) -> Schedule {
        let (cron, zone) = (CronLine::parse(cron).expect("a cron line"), Zone::parse(zone).expect("a zone"));
        Schedule { queue: "schedule.x".into(), cron, zone, missed, overlaps: false }
    }

    fn slots(schedule: &Schedule, from: &str, count: usize) -> Vec<String> {
        let next = |slot: &Timestamp| schedule.next(*slot);
        std::iter::successors(schedule.next(at(from)), next).take(count).map(|slot| slot.to_string()).collect()
    }

    #[test]
    fn c10_a_slot_fires_when_its_time_has_come_and_not_twice() {
        let tutorial = schedule("*/10 * * * *", "UTC", Missed::Once);
        let last = at("2026-03-01T10:10:00Z");
        assert_eq!(tutorial.due(last, at("2026-03-01T10:19:59.999Z")), Due::Nothing);
        assert_eq!(tutorial.due(last, at("2026-03-01T10:20:00Z")), Due::Fire(at("2026-03-01T10:20:00Z")));
        assert_eq!(tutorial.due(last, at("2026-03-01T10:20:00.4Z")), Due::Fire(at("2026-03-01T10:20:00Z")));
        assert_eq!(tutorial.due(at("2026-03-01T10:20:00Z"), at("2026-03-01T10:20:00.4Z")), Due::Nothing);
        // A clock that was set back fires nothing again.
        assert_eq!(tutorial.due(at("2026-03-01T10:20:00Z"), at("2026-03-01T09:00:00Z")), Due::Nothing);
        assert_eq!(tutorial.next(last), Some(at("2026-03-01T10:20:00Z")));
    }

    #[test]
    fn c10_missed_slots_are_made_up_for_as_the_schedule_says() {
        let (last, now) = (at("2026-03-01T10:00:00Z"), at("2026-03-01T10:35:00Z"));
        let due = |missed| schedule("*/10 * * * *", "UTC", missed).due(last, now);
        assert_eq!(due(Missed::Once), Due::Fire(at("2026-03-01T10:30:00Z")));
        assert_eq!(due(Missed::All), Due::Fire(at("2026-03-01T10:10:00Z")));
        assert_eq!(due(Missed::Skip), Due::LetPass(at("2026-03-01T10:30:00Z")));
        let in_time = at("2026-03-01T10:30:30Z");
        let skip = schedule("*/10 * * * *", "UTC", Missed::Skip);
        assert_eq!(skip.due(last, in_time), Due::Fire(at("2026-03-01T10:30:00Z")));
    }

    #[test]
    fn c10_after_a_year_away_no_more_are_made_up_for_than_are_counted() {
        let every_second = schedule("* * * * * *", "UTC", Missed::All);
        let now = at("2026-03-01T10:00:00Z");
        let Due::Fire(oldest) = every_second.due(at("2025-03-01T10:00:00Z"), now) else { panic!("it is due") };
        assert_eq!(now.since(oldest), Duration::from_secs(MISSED_MAX as u64 - 1));
    }

    #[test]
    fn c10_a_schedule_follows_the_clock_on_the_wall_of_its_zone() {
        let nine = schedule("0 9 * * *", "Europe/Berlin", Missed::Once);
        assert_eq!(
            slots(&nine, "2026-03-27T12:00:00Z", 3),
            ["2026-03-28T08:00:00.000Z", "2026-03-29T07:00:00.000Z", "2026-03-30T07:00:00.000Z"]
        );
        // 02:30 is not there on that day, and there twice on the other: one run each.
        let night = schedule("30 2 * * *", "Europe/Berlin", Missed::Once);
        assert_eq!(slots(&night, "2026-03-28T12:00:00Z", 2), ["2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]);
        assert_eq!(slots(&night, "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"]);
        assert_eq!(Zone::parse("Europe/Atlantis"), None);
        assert_eq!(Zone::parse("Europe/Berlin").expect("a zone").name(), "Europe/Berlin");
    }

    #[test]
    fn c10_who_looks_back_finds_the_same_slots_as_who_looks_ahead_also_when_clocks_are_changed() {
        let changes = [
            ("Europe/Berlin", "2026-03-28T12:00:00Z"),
            ("Europe/Berlin", "2026-10-24T12:00:00Z"),
            ("America/New_York", "2026-03-07T12:00:00Z"),
            ("America/New_York", "2026-10-31T12:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T06:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T06:00:00Z"),
        ];
        for ((zone, start), cron) in changes
            .iter()
            .flat_map(|change| ["30 2 * * *", "*/10 * * * *", "15 1-3 * * *", "0 */2 * * *"].map(|cron| (change, cron)))
        {
            let schedule = schedule(cron, zone, Missed::Once);
            let start = at(start);
            let end = start + Duration::from_secs(36 * 3_600);
            let ahead: Vec<Timestamp> = std::iter::successors(schedule.next(start), |slot| schedule.next(*slot))
                .take_while(|slot| *slot <= end)
                .collect();
            let (mut fired, mut last) = (Vec::new(), start);
            for minute in 1..=36 * 60 {
                if let Due::Fire(slot) = schedule.due(last, start + Duration::from_secs(60 * minute)) {
                    fired.push(slot);
                    last = slot;
                }
            }
            assert_eq!(fired, ahead, "{cron} in {zone} from {start}");
        }
    }

    #[test]
    fn c10_what_is_no_cron_line_is_refused() {
        for bad in ["", "* * * *", "61 * * * *", "* * * * * * 2030", "every day", "*/0 * * * *"] {
            assert!(matches!(CronLine::parse(bad), Err(BadCron::Unreadable(_))), "{bad}");
        }
        assert_eq!(CronLine::parse("0 0 30 2 *"), Err(BadCron::Never));
        assert!(CronLine::parse(&"1,".repeat(200)).is_err());
    }

    proptest! {
        // Each looks at thousands of slots.
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever the rule: a slot that fires is after the last one, not in the future, and using it up makes progress.
        #[test]
        fn c10_slots_come_in_order_and_none_twice(
            cron in prop::sample::select(vec!["*/10 * * * *", "30 2 * * *", "0 0 1 * *", "*/7 * * * * *", "0 12 * * MON"]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
            missed in prop::sample::select(vec![Missed::Once, Missed::Skip, Missed::All]),
            start in 1_760_000_000i64..1_800_000_000,
            pauses in prop::collection::vec(1u64..200_000, 1..5),
        ) {
            let schedule = schedule(cron, zone, missed);
            let mut now = Timestamp::from_micros(start * 1_000_000);
            let mut last = now;
            for pause in pauses {
                now = now + Duration::from_secs(pause);
                for _ in 0..=MISSED_MAX {
                    let used = match schedule.due(last, now) {
                        Due::Nothing => break,
                        Due::Fire(slot) | Due::LetPass(slot) => slot,
                    };
                    prop_assert!(used > last && used <= now, "{used} {last} {now}");
                    last = used;
                }
                prop_assert_eq!(schedule.due(last, now), Due::Nothing);
            }
        }

        #[test]
        fn c10_no_text_makes_the_reader_of_cron_lines_panic(text in "\\PC{0,40}") {
            let _ = CronLine::parse(&text);
        }
    }
}
