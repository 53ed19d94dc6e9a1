//! A group of dead letters: what their messages have in common, and how the group stands. Nothing here changes a job.

use crate::death::Reason;
use crate::time::Timestamp;
use std::fmt::Write;
use std::time::Duration;

/// How messages are told apart. It grows when the rules below change, so that two counts can be compared.
pub const SHAPE_VERSION: u32 = 1;
/// A group that grew within this is still failing.
pub const FAILING_WITHIN: Duration = Duration::from_secs(300);
/// More of a message says nothing more about its kind.
const MESSAGE_CHARS_MAX: usize = 160;

/// An error without what differs from job to job: ids, numbers, addresses, what was masked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// The step that failed.
    pub step: Option<String>,
    /// What the target answered.
    pub status: Option<u16>,
    pub message: String,
}

impl Shape {
    pub fn of(error: &str) -> Shape {
        let named = error.strip_prefix("step `").and_then(|rest| rest.split_once("`: "));
        let (step, said) = named.map_or((None, error), |(step, said)| (Some(step.to_string()), said));
        let status = said.split_once("answered ").and_then(|(_, after)| {
            let digits = after.get(..3).filter(|_| !after[3..].starts_with(|next: char| next.is_ascii_digit()));
            digits?.parse::<u16>().ok().filter(|status| (100..600).contains(status))
        });
        let mut message = String::new();
        for word in said.split_whitespace() {
            let kept = status.is_some_and(|status| bare(word) == status.to_string());
            let separator = if message.is_empty() { "" } else { " " };
            let _ = write!(message, "{separator}{}", if kept { word.to_string() } else { plain(word) });
            if message.chars().count() > MESSAGE_CHARS_MAX {
                message = message.chars().take(MESSAGE_CHARS_MAX).chain(['…']).collect();
                break;
            }
        }
        Shape { step, status, message }
    }
}

/// A word without the signs around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|sign: char| !sign.is_alphanumeric() && sign != '•')
}

/// A word, or what kind of a thing it names.
fn plain(word: &str) -> String {
    let core = bare(word);
    if core.is_empty() {
        return word.into();
    }
    let digits = core.chars().filter(char::is_ascii_digit).count();
    let is_hex = core.len() >= 8 && core.chars().all(|one| one.is_ascii_hexdigit() || one == '-');
    let kind = if core.contains('@') || core.contains('•') {
        "<hidden>"
    } else if digits > 0 && core.chars().all(|one| one.is_ascii_digit() || ".,:-/%TZ".contains(one)) {
        "<number>"
    } else if digits > 0 && (is_hex || core.len() >= 12) {
        "<id>"
    } else if digits > 0 {
        return without_digits(word);
    } else {
        return word.into();
    };
    word.replacen(core, kind, 1)
}

/// However many digits there are, they are one sign.
fn without_digits(word: &str) -> String {
    let mut told = String::with_capacity(word.len());
    for one in word.chars().map(|one| if one.is_ascii_digit() { '#' } else { one }) {
        if one != '#' || !told.ends_with('#') {
            told.push(one);
        }
    }
    told
}

/// How a group stands, from the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing but a person's word helps.
    NeedsPerson,
    /// It grew after it was last replayed.
    Regressed,
    /// It grew just now.
    Failing,
    Quiet,
}

impl Standing {
    pub fn word(self) -> &'static str {
        match self {
            Standing::NeedsPerson => "needs_person",
            Standing::Regressed => "regressed",
            Standing::Failing => "failing",
            Standing::Quiet => "quiet",
        }
    }

    /// `replayed_at`: when a plan for this group was last started.
    pub fn of(reason: Reason, last_at: Timestamp, replayed_at: Option<Timestamp>, now: Timestamp) -> Standing {
        if reason == Reason::UnknownOutcome {
            Standing::NeedsPerson
        } else if replayed_at.is_some_and(|at| at < last_at) {
            Standing::Regressed
        } else if now.since(last_at) < FAILING_WITHIN {
            Standing::Failing
        } else {
            Standing::Quiet
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_messages_that_differ_in_ids_numbers_and_addresses_only_are_one() {
        let message = |error: &str| Shape::of(error).message;
        for (one, other, told) in [
            ("step `mail`: the target answered 422", "step `mail`: the target answered 422", "the target answered 422"),
            (
                "no answer within 30 s from 10.0.0.7:443",
                "no answer within 5 s from 10.0.0.9:443",
                "no answer within <number> s from <number>",
            ),
            ("order ord_01HZX5T0N8W2A is gone", "order ord_01HZX5T0N8W2B is gone", "order <id> is gone"),
            ("(ada@example.com) bounced", "(a•••@e•••.com) bounced", "(<hidden>) bounced"),
            ("trace 4bf92f3577b34da6,", "trace 00f067aa0ba902b7,", "trace <id>,"),
            ("line2: x", "line31: x", "line#: x"),
        ] {
            assert_eq!(message(one), told);
            assert_eq!(message(other), told);
        }
        assert_ne!(message("the target answered 401"), message("the target answered 403"));
        assert!(message(&"long ".repeat(100)).chars().count() <= MESSAGE_CHARS_MAX + 1);
    }

    #[test]
    fn f1_the_step_and_the_status_are_read_from_the_error() {
        let read = |error: &str| (Shape::of(error).step, Shape::of(error).status);
        assert_eq!(read("step `mail`: the target answered 401"), (Some("mail".into()), Some(401)));
        assert_eq!(read("step `mail`: the target answered 4012 things"), (Some("mail".into()), None));
        for plain in ["it answered é", "step `mail", "answered ", "answered 40", ""] {
            assert_eq!(read(plain), (None, None), "{plain}");
        }
    }

    #[test]
    fn f1_a_group_says_whether_it_grows_and_whether_a_replay_helped() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let stands =
            |last, replayed: Option<i64>| Standing::of(Reason::Timeout, at(last), replayed.map(at), at(10_000));
        assert_eq!(stands(9_900, None), Standing::Failing);
        assert_eq!(stands(9_700, None), Standing::Quiet);
        assert_eq!(stands(9_000, Some(8_000)), Standing::Regressed);
        assert_eq!(stands(9_000, Some(9_500)), Standing::Quiet);
        assert_eq!(Standing::of(Reason::UnknownOutcome, at(1), None, at(10_000)), Standing::NeedsPerson);
    }
}
