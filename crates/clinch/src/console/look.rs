//! How things look that many pages show: times, numbers, states, and what was done.

use crate::api::shapes::Moment;
use clinch_core::time::{Timestamp, human};
use std::time::Duration;

/// How long ago, or in how long.
pub fn ago(at: &Moment, now: &Timestamp) -> String {
    match *now >= at.0 {
        true => format!("{} ago", human(rough(now.since(at.0)))),
        false => format!("in {}", human(rough(at.0.since(*now)))),
    }
}

/// Nobody reads tenths of a second of what is past.
fn rough(span: Duration) -> Duration {
    if span.as_secs() == 0 { span } else { Duration::from_secs(span.as_secs()) }
}

/// How often.
pub fn times(times: &u32) -> String {
    match times {
        1 => "once".into(),
        _ => count(&u64::from(*times), "time"),
    }
}

/// So many of these.
pub fn count(of: &u64, what: &str) -> String {
    format!("{} {what}{}", number(of), if *of == 1 { "" } else { "s" })
}

/// Day and time, for tables in which the order of things matters.
pub fn clock(at: &Moment) -> String {
    let text = at.0.to_string();
    match (text.get(5..10), text.get(11..19)) {
        (Some(day), Some(time)) => format!("{day} {time}"),
        _ => text,
    }
}

/// A length of time.
pub fn took(seconds: &f64) -> String {
    human(Duration::try_from_secs_f64(*seconds).unwrap_or_default())
}

/// What a replay does with an effect.
pub fn again(word: &str) -> &str {
    match word {
        "skipped" => "skipped, it is done",
        "looks_up" => "asks the partner, then runs or is skipped",
        "asks_first" => "asks you first",
        other => other,
    }
}

/// How old: 14m2s.
pub fn age(at: &Moment, now: &Timestamp) -> String {
    human(now.since(at.0))
}

/// For how long it has been so.
pub fn since(at: &Moment, now: &Timestamp) -> String {
    format!("for {}", age(at, now))
}

/// A length of time in seconds, as the API tells it.
pub fn seconds(value: &Option<f64>) -> String {
    let span = value.and_then(|value| std::time::Duration::try_from_secs_f64(value).ok());
    span.map_or_else(|| "–".into(), human)
}

/// A share of one. What is not all is not called all.
pub fn percent(share: &f64) -> String {
    let percent = (share * 1_000.0).floor() / 10.0;
    format!("{percent} %")
}

/// How many times as much as may be.
pub fn rate(rate: &f64) -> String {
    format!("{rate:.1}")
}

/// A size: 41 GB.
pub fn bytes(bytes: &u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MB", bytes >> 20),
        _ => format!("{:.1} GB", *bytes as f64 / f64::from(1u32 << 30)),
    }
}

/// What needs a person, as a heading.
pub fn kind(kind: &str) -> &'static str {
    match kind {
        "store" => "Store",
        "circuit" => "Circuit open",
        "unknown_effects" => "Unknown outcome",
        "dead_letters" => "Dead letters",
        "approvals" => "Approvals",
        "budget" => "Budget exhausted",
        _ => "Look",
    }
}

/// How bad an alert is, as the first word of it.
pub fn severity(word: &str) -> &'static str {
    match word {
        "critical" => "CRIT",
        "warning" => "WARN",
        _ => "INFO",
    }
}

/// The state of a circuit, for people.
pub fn circuit(word: &str) -> &str {
    match word {
        "half_open" => "half-open (testing)",
        "open" => "open (cut off)",
        other => other,
    }
}

/// A page in which nothing that somebody sent turns the order of letters around or hides: such characters are shown as a sign.
pub fn inert(page: String) -> String {
    let acts = |c: char| {
        let is_blank = matches!(c, '\n' | '\t' | '\r');
        let turns =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (c.is_control() && !is_blank)
    };
    if page.contains(acts) { page.replace(acts, "\u{fffd}") } else { page }
}

/// For what a job waits, for people.
pub fn waits(word: &str) -> String {
    match word {
        "circuit" => "an open circuit".into(),
        "limit" => "a rate limit".into(),
        "approval" => "approval".into(),
        "paused" => "a pause to end".into(),
        other => other.replace('_', " "),
    }
}

/// A number for people: 12,431.
pub fn number(number: &u64) -> String {
    let digits = number.to_string();
    let mut told = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

/// The sign before a state: colour is never all that tells it.
pub fn glyph(state: &str) -> &'static str {
    match state {
        "queued" | "planned" => "○",
        "running" | "released" => "▶",
        "waiting" | "pending" => "◔",
        "paused" => "‖",
        "retrying" => "↻",
        "success" | "done" | "closed" | "approved" => "✓",
        "noop" => "–",
        "dead" | "open" | "failed" => "!",
        "rejected" | "stopped" => "✗",
        "changed" => "≠",
        "half_open" => "◐",
        "unknown" | "asks" => "?",
        _ => "·",
    }
}

/// What is said above a page after a form was sent. Only these: nobody puts words on our pages by a link.
pub fn said(word: &str) -> Option<&'static str> {
    Some(match word {
        "replayed" => "It runs again.",
        "safe-mode-on" => "Safe mode is on. Events are still accepted.",
        "safe-mode-off" => "Safe mode is off. What waited is let go at its rate.",
        "undone" => "Taken back. Nothing was done.",
        "too-late" => "It was too late to take it back.",
        "drop-asked" => "It is on record. A second person confirms it, or you do from tomorrow on.",
        "drop-confirmed" => "Dropped. They are kept for 30 days and can be taken back.",
        "undropped" => "Taken back. They are dead letters again.",
        "planned" => "The set is frozen and counted. Nothing runs yet.",
        "started" => "It was started.",
        "started-before" => "It was started before. Pressing twice is pressing once.",
        "turned" => "Done.",
        "turned-before" => "It was so already; nothing was changed.",
        "paused" => "It stands still. Events are still accepted.",
        "resumed" => "It goes on. Jobs that were sent away are called back.",
        "not-paused" => "It was not paused; nothing was changed.",
        "not-dead" => "It is no dead letter any more; nothing was changed.",
        "resolved" => "Your word is on record. A replay follows it.",
        "resolved-before" => "It was so already; nothing was changed.",
        "left-alone" => "It is not called any more. Events are still accepted.",
        "called-again" => "It is called again.",
        "silenced" => "Nobody is told that it fires. It is still shown here.",
        "unsilenced" => "People are told again.",
        "not-silenced" => "It was not silenced; nothing was changed.",
        "channel-works" => "The test was sent.",
        "channel-fails" => "The test could not be sent; the log says why, and so does `clinch alerts test`.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{clock, inert, number as grouped};
    use crate::api::shapes::Moment;
    use clinch_core::time::Timestamp;

    #[test]
    fn t_098_a_text_cannot_turn_the_page_around() {
        assert_eq!(inert("a\u{202e}b\u{2066}c\0\x1b[2J\n".into()), "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}[2J\n");
        assert_eq!(inert("plain é 漢".into()), "plain é 漢");
    }

    #[test]
    fn a_moment_in_a_table_is_day_and_time() {
        assert_eq!(clock(&Moment(Timestamp::from_micros(1_790_000_000_123_000))), "09-21 14:13:20");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, told) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_431, "12,431"), (1_000_000, "1,000,000")] {
            assert_eq!(grouped(&number), told);
        }
    }
}
