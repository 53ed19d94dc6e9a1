//! How things look that many pages show: times, numbers, states, and what was done.

use crate::api::shapes::Moment;
use clinch_core::time::{Timestamp, human};

/// How long ago, or in how long.
pub fn ago(at: &Moment, now: &Timestamp) -> String {
    match *now >= at.0 {
        true => format!("{} ago", human(now.since(at.0))),
        false => format!("in {}", human(at.0.since(*now))),
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
        "paused" => "⏸",
        "retrying" => "↻",
        "success" | "done" | "closed" | "approved" => "✓",
        "noop" => "–",
        "dead" | "open" | "failed" => "!",
        "rejected" | "stopped" => "✗",
        "changed" => "≠",
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
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::number as grouped;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, told) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_431, "12,431"), (1_000_000, "1,000,000")] {
            assert_eq!(grouped(&number), told);
        }
    }
}
