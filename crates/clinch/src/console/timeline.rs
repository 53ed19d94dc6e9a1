//! The timeline of a job: when it was tried, when each of its steps was about, and why nothing happened in between. It is
//! drawn here, as SVG without a script.

use crate::api::shapes::{Attempt, JobShow, Moment};
use clinch_core::saga;
use clinch_core::time::{Timestamp, human};
use std::time::Duration;

/// Of more attempts the first share one row.
const ATTEMPTS_DRAWN: usize = 12;
const STEPS_DRAWN: usize = 40;
/// Where time begins and ends in the drawing.
const FROM: f64 = 150.0;
const WIDTH: f64 = 470.0;
const ROW: u32 = 24;
const TOP: u32 = 30;
/// What took no time can be seen still.
const BAR_MIN: f64 = 3.0;
/// As many characters fit beside a row.
const NOTE_CHARS: usize = 46;

pub struct Timeline {
    pub rows: Vec<Row>,
    pub height: u32,
    /// Along the upper edge.
    pub marks: Vec<(String, String)>,
    pub total: String,
    pub busy: String,
}

pub struct Row {
    pub y: u32,
    pub label: String,
    pub bars: Vec<Span>,
    pub gaps: Vec<Span>,
    pub note: String,
    /// All of the note.
    pub title: String,
}

/// A part of a row, in the drawing's own units.
pub struct Span {
    pub x: String,
    pub width: String,
    pub kind: &'static str,
    pub title: String,
}

struct Scale {
    from: Timestamp,
    span: f64,
}

impl Scale {
    fn x(&self, at: Timestamp) -> f64 {
        FROM + WIDTH * (at.since(self.from).as_secs_f64() / self.span).clamp(0.0, 1.0)
    }

    fn span(&self, from: Moment, to: Moment, kind: &'static str, title: String) -> Span {
        let (x, end) = (self.x(from.0), self.x(to.0));
        let width = (end - x).max(BAR_MIN);
        let x = x.min(FROM + WIDTH - width);
        Span { x: format!("{x:.1}"), width: format!("{width:.1}"), kind, title }
    }
}

impl Timeline {
    pub fn of(told: &JobShow, now: Timestamp) -> Timeline {
        let job = &told.job;
        let began = job.received_at.0;
        let known = told.attempts.iter().map(|attempt| attempt.ended_at.0);
        let known = known.chain(told.effects.iter().map(|effect| effect.changed_at.0));
        let last = known.chain(job.ended_at.map(|at| at.0)).chain(job.due_at.map(|at| at.0)).max().unwrap_or(began);
        let end = if job.ended_at.is_some() { last } else { last.max(now) };
        let total = end.since(began);
        let scale = Scale { from: began, span: total.as_secs_f64().max(0.001) };
        let mut rows = vec![accepted(told, &scale)];
        rows.extend(attempts(told, &scale));
        rows.extend(next(told, &scale));
        rows.extend(steps(told, &scale));
        for (place, row) in rows.iter_mut().enumerate() {
            row.y = TOP + ROW * u32::try_from(place).unwrap_or(u32::MAX / ROW / 2);
            row.note = short(&row.title);
        }
        let busy = told.attempts.iter().map(|attempt| attempt.ended_at.0.since(attempt.started_at.0)).sum();
        Timeline {
            height: rows.last().map_or(TOP, |row| row.y) + ROW,
            rows,
            marks: [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| mark(total, part)).to_vec(),
            total: human(total),
            busy: human(busy),
        }
    }
}

fn mark(total: Duration, part: f64) -> (String, String) {
    (format!("{:.1}", FROM + WIDTH * part), human(total.mul_f64(part)))
}

fn short(text: &str) -> String {
    match text.char_indices().nth(NOTE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

fn row(label: impl Into<String>, title: String) -> Row {
    Row { y: 0, label: label.into(), bars: Vec::new(), gaps: Vec::new(), note: String::new(), title }
}

/// The delivery, and every later one of the same key.
fn accepted(told: &JobShow, scale: &Scale) -> Row {
    let again: u64 = told.deliveries.iter().map(|delivery| delivery.times).sum();
    let came = if again > 0 { format!(", came {again} times more") } else { String::new() };
    let at = told.job.received_at;
    let mut row = row("accepted", format!("answered {}{came}", told.answer_status));
    row.bars.push(scale.span(at, at, "fine", format!("accepted {}", at.0)));
    for delivery in &told.deliveries {
        let (kind, said) = if delivery.conflict { ("bad", "another body") } else { ("dull", "the same body") };
        row.bars.push(scale.span(delivery.at, delivery.at, kind, format!("{said} {}", delivery.at.0)));
    }
    row
}

fn kind(outcome: &str) -> &'static str {
    match outcome {
        "success" | "noop" | "done" => "fine",
        "unknown" | "lost" | "open" => "doubt",
        "put_off" | "interrupted" => "dull",
        _ => "bad",
    }
}

fn said(attempt: &Attempt) -> String {
    let took = human(attempt.ended_at.0.since(attempt.started_at.0));
    match &attempt.reason {
        Some(reason) => format!("{took}, {}: {reason}", attempt.outcome),
        None => format!("{took}, {}", attempt.outcome),
    }
}

fn attempts(told: &JobShow, scale: &Scale) -> Vec<Row> {
    let folded = told.attempts.len().saturating_sub(ATTEMPTS_DRAWN);
    let (first, others) = told.attempts.split_at(folded);
    let bar =
        |attempt: &Attempt| scale.span(attempt.started_at, attempt.ended_at, kind(&attempt.outcome), said(attempt));
    let mut rows = Vec::new();
    let mut since = told.job.received_at;
    if let (Some(one), Some(last)) = (first.first(), first.last()) {
        let mut row =
            row(format!("attempts {}–{}", one.no, last.no), format!("{} attempts, see the table", first.len()));
        row.bars.extend(first.iter().map(bar));
        rows.push(row);
        since = last.ended_at;
    }
    for attempt in others {
        let mut row = row(format!("attempt {}", attempt.no), said(attempt));
        if attempt.waited_seconds > 0.0 {
            let waited = human(attempt.started_at.0.since(since.0));
            row.gaps.push(scale.span(since, attempt.started_at, "gap", format!("{waited}: {}", attempt.waited_why)));
        }
        row.bars.push(bar(attempt));
        since = attempt.ended_at;
        rows.push(row);
    }
    rows
}

/// What it waits for now.
fn next(told: &JobShow, scale: &Scale) -> Option<Row> {
    let due = told.job.due_at?;
    let since = told.attempts.last().map_or(told.job.received_at, |attempt| attempt.ended_at);
    let why = told.job.waits_for.as_ref().map_or_else(String::new, |waits| format!(", waits for {waits}"));
    let mut row = row("next attempt", format!("due {}{why}", due.0));
    row.gaps.push(scale.span(since, due, "gap", row.title.clone()));
    Some(row)
}

fn steps(told: &JobShow, scale: &Scale) -> Vec<Row> {
    let effects = told.effects.iter().filter(|effect| !saga::is_end(&effect.step));
    let drawn = effects.take(STEPS_DRAWN).map(|effect| {
        let sends = if effect.sends == 1 { "tried once".into() } else { format!("tried {} times", effect.sends) };
        let mut row = row(short(&effect.step), format!("{}, {sends}", effect.state.replace('_', " ")));
        let (first, last, kind) = (effect.first_intended_at, effect.changed_at, kind(&effect.state));
        match effect.sends {
            0 | 1 => row.bars.push(scale.span(first, last, kind, row.title.clone())),
            // When the others were is known of the attempts only.
            _ => {
                row.gaps.push(scale.span(first, last, "gap", row.title.clone()));
                row.bars.extend([first, last].map(|at| scale.span(at, at, kind, row.title.clone())));
            }
        }
        row
    });
    drawn.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::{at, job, told};
    use crate::api::shapes::{Effect, Job};

    fn attempt(no: u32, from: i64, to: i64) -> Attempt {
        Attempt {
            no,
            started_at: at(from),
            ended_at: at(to),
            seconds: 1.0,
            outcome: "failed".into(),
            reason: Some("auth_failed".into()),
            error: None,
            refusal: None,
            waited_seconds: 1.0,
            waited_why: "the pause after auth_failed".into(),
        }
    }

    fn story(attempts: Vec<Attempt>) -> JobShow {
        let effects = vec![Effect {
            step: "charge".into(),
            state: "not_done".into(),
            idempotency: "none".into(),
            sends: 2,
            first_intended_at: at(50),
            changed_at: at(100),
            answer_status: None,
            key: None,
            proof: None,
            if_replayed: None,
        }];
        told(Job { ended_at: Some(at(100)), reason: None, error: None, ..job() }, attempts, effects)
    }

    #[test]
    fn i1_a_row_stands_where_its_time_is_and_a_gap_says_why() {
        let drawn = Timeline::of(&story(vec![attempt(1, 0, 50), attempt(2, 75, 100)]), at(500).0);
        let labels: Vec<&str> = drawn.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["accepted", "attempt 1", "attempt 2", "charge"]);
        let second = &drawn.rows[2];
        assert_eq!((&*second.gaps[0].x, &*second.gaps[0].width), ("385.0", "117.5"));
        assert_eq!(second.gaps[0].title, "25s: the pause after auth_failed");
        assert_eq!((&*second.bars[0].x, &*second.bars[0].width), ("502.5", "117.5"));
        assert_eq!((&*drawn.total, &*drawn.busy), ("1m40s", "1m15s"));
    }

    #[test]
    fn i1_nothing_is_drawn_outside_and_many_attempts_share_a_row() {
        let many = (1..=30).map(|no| attempt(no, i64::from(no), i64::from(no))).collect();
        let drawn = Timeline::of(&story(many), at(500).0);
        assert_eq!(drawn.rows[1].label, "attempts 1–18");
        assert_eq!(drawn.rows[1].bars.len(), 18);
        for span in drawn.rows.iter().flat_map(|row| row.bars.iter().chain(&row.gaps)) {
            let (x, width): (f64, f64) = (span.x.parse().expect("a number"), span.width.parse().expect("a number"));
            assert!(x >= FROM && x + width <= FROM + WIDTH + 0.1, "{x} {width}");
        }
    }
}
