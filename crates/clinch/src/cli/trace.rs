//! `clinch trace`: the life of an event as a waterfall, drawn from the store alone. No collector is needed.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::jobs::after_death;
use super::render::{self, BOLD, DIM, Output, clean, cut};
use crate::api::approvals::{Approval, ApprovalList};
use crate::api::shapes::{Found, JobShow, Moment};
use anstyle::Style;
use clap::Args;
use clinch_core::saga;
use clinch_core::time::{Timestamp, human};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;
use std::time::Duration;

/// No more jobs are drawn at once.
const JOBS_MAX: usize = 20;
const NAME_CHARS: usize = 24;
/// Time is as wide as this.
const CELLS: usize = 32;
const SAID_CHARS: usize = 90;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch trace job_01HZX5T0N8W2A                    a job, or an event
  clinch trace 0192f1c8d2a37c9be1f04a5b6c7d8e9f     the trace id of an answer, a log line or a collector
  clinch trace k-1                                  the key of a delivery
  clinch trace job_01HZX5T0N8W2A -o json            the same as data

A bar is work, dots are waiting, a diamond is a moment. It is drawn from what clinch keeps itself, also without a collector.")]
pub struct Trace {
    /// job_…, evt_…, a trace id, or an idempotency key
    #[arg(value_name = "ID|KEY")]
    id: String,
}

impl Trace {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (client, output) = (Client::open(globals)?, globals.output());
        let found = client.get::<Found>(&["search"], &[("q", self.id.clone())]).await?.told;
        let jobs = &found.jobs.jobs;
        if jobs.is_empty() {
            found.notes.iter().for_each(|note| render::note(note));
            let said = format!("Nothing is known of `{}`", cut(&clean(&self.id), 80));
            return Err(Failure::new(Exit::NotFound, "CL0505", said).fix("clinch jobs ls shows what there is"));
        }
        let mut lives = Vec::new();
        for job in jobs.iter().rev().take(JOBS_MAX) {
            let told = client.get::<JobShow>(&["jobs", &job.id], &[]).await?.told;
            let asked = client.get::<ApprovalList>(&["approvals"], &[("job", job.id.clone())]).await?.told;
            lives.push((told, asked.approvals));
        }
        let now = render::now();
        let rows: Vec<Row> = lives.iter().flat_map(|(told, asked)| rows(told, asked, now)).collect();
        match output {
            Output::Json | Output::Jsonl => {
                let trace = lives.first().map(|(told, _)| &told.job.trace_id);
                render::json(output, &json!({"schema": "clinch.trace/v1", "trace_id": trace, "rows": rows}))?;
            }
            Output::Id => render::data(&jobs.iter().map(|job| format!("{}\n", job.id)).collect::<String>())?,
            Output::Table | Output::Plain => render::data(&text(&lives, &rows))?,
        }
        if jobs.len() > JOBS_MAX {
            render::note(&format!("{} jobs are like this; {JOBS_MAX} of them are drawn", jobs.len()));
        }
        let told = &lives[0].0;
        match told.job.state.as_str() {
            "dead" => render::next(output, &after_death(told)),
            _ => render::next(output, &format!("clinch jobs show {}", told.job.id)),
        }
        Ok(Exit::Done)
    }
}

/// One line of the waterfall.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    job_id: String,
    kind: Kind,
    name: String,
    began_at: Moment,
    ended_at: Moment,
    seconds: f64,
    said: String,
    /// Whether it ended well, where it did or did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Delivery,
    Wait,
    Attempt,
    Effect,
    Approval,
    /// What somebody did: a replay, a word on an effect.
    Act,
    LateAnswer,
}

/// Everything that is on record of a job, in the order of time.
fn rows(told: &JobShow, asked: &[Approval], now: Timestamp) -> Vec<Row> {
    let row = |kind, name: String, from: Moment, to: Moment, said: String, ok| {
        let seconds = to.0.since(from.0).as_secs_f64();
        Row { job_id: told.job.id.clone(), kind, name, began_at: from, ended_at: to, seconds, said, ok }
    };
    let (came, status) = (told.job.received_at, told.answer_status);
    let mut rows = vec![row(Kind::Delivery, "delivery".into(), came, came, format!("answered {status}"), Some(true))];
    for again in &told.deliveries {
        let body = if again.conflict { "another body: the first stays" } else { "the same again: nothing repeated" };
        rows.push(row(Kind::Delivery, "delivery".into(), again.at, again.at, format!("{}× {body}", again.times), None));
    }
    let mut since = came;
    for attempt in &told.attempts {
        if attempt.waited_seconds > 0.0 {
            // From when people were asked on it waited for them, which is a line of its own.
            let asked_at = asked.iter().map(|approval| approval.asked_at);
            let until = asked_at.filter(|at| (since..attempt.started_at).contains(at)).min();
            let until = until.unwrap_or(attempt.started_at);
            rows.push(row(Kind::Wait, "waits".into(), since, until, attempt.waited_why.clone(), None));
        }
        let said = [Some(attempt.outcome.as_str()), attempt.reason.as_deref(), attempt.error.as_deref()];
        let said: Vec<&str> = said.into_iter().flatten().collect();
        let ok = match attempt.outcome.as_str() {
            "success" | "noop" => Some(true),
            "put_off" | "interrupted" => None,
            _ => Some(false),
        };
        let name = format!("attempt {}", attempt.no);
        rows.push(row(Kind::Attempt, name, attempt.started_at, attempt.ended_at, said.join(": "), ok));
        since = attempt.ended_at;
    }
    let is_asked = |step: &str| asked.iter().any(|approval| approval.step == step);
    for effect in told.effects.iter().filter(|effect| !saga::is_end(&effect.step) && !is_asked(&effect.step)) {
        let answer = effect.answer_status.map_or_else(String::new, |status| format!(", answered {status}"));
        let tried = if effect.sends > 1 { format!(", tried {} times", effect.sends) } else { String::new() };
        let said = format!("{}{answer}{tried}", effect.state.replace('_', " "));
        let ok = match effect.state.as_str() {
            "done" => Some(true),
            "not_done" | "unknown" | "given_up" => Some(false),
            _ => None,
        };
        let name = format!("  effect {}", effect.step);
        rows.push(row(Kind::Effect, name, effect.first_intended_at, effect.changed_at, said, ok));
    }
    for approval in asked {
        let until = approval.decided_at.unwrap_or(Moment(now));
        let by = approval.decided_by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
        let name = format!("  approval {}", approval.step);
        let ok = approval.decided_at.map(|_| approval.state == "approved");
        rows.push(row(Kind::Approval, name, approval.asked_at, until, format!("{}{by}", approval.state), ok));
    }
    for late in &told.late_answers {
        let said = format!("an answer came when the job was another's: {}", late.state.replace('_', " "));
        rows.push(row(Kind::LateAnswer, format!("  effect {}", late.step), late.at, late.at, said, None));
    }
    for act in told.audit.iter().filter(|act| !act.action.starts_with("approval.")) {
        let said = format!("by {}: {}", act.actor, act.reason);
        rows.push(row(Kind::Act, act.action.clone(), act.at, act.at, said, None));
    }
    if let Some(due) = told.job.due_at {
        let said = match (&told.job.waits_for, &told.waits_behind) {
            (Some(waits), _) => format!("for {waits}"),
            (None, Some(first)) => format!("behind {first}"),
            (None, None) => "for its next attempt".to_string(),
        };
        rows.push(row(Kind::Wait, "waits".into(), since, Moment(due.0.max(since.0)), said, None));
    }
    rows.sort_by_key(|row| row.began_at.0);
    rows
}

fn text(lives: &[(JobShow, Vec<Approval>)], rows: &[Row]) -> String {
    let (Some(from), Some(to)) =
        (rows.iter().map(|row| row.began_at.0).min(), rows.iter().map(|row| row.ended_at.0).max())
    else {
        return String::new();
    };
    let span = to.since(from);
    let worked: Duration = rows.iter().filter(|row| row.kind == Kind::Attempt).map(took).sum();
    let trace = lives.first().map_or("", |(told, _)| &told.job.trace_id);
    let mut text = format!(
        "{BOLD}trace {}{BOLD:#}   from {from}   {}, of which {} worked\n",
        clean(trace),
        human(span),
        human(worked)
    );
    for (told, _) in lives {
        let job = &told.job;
        let reason = job.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {}{reason}   flow {}   event {}",
            job.id,
            render::state(&job.state),
            clean(&job.flow),
            job.event_id
        );
        for row in rows.iter().filter(|row| row.job_id == job.id) {
            let _ = writeln!(text, "{}", line(row, from, span).trim_end());
        }
    }
    text
}

fn took(row: &Row) -> Duration {
    row.ended_at.0.since(row.began_at.0)
}

fn line(row: &Row, from: Timestamp, span: Duration) -> String {
    let style = match row.ok {
        _ if row.kind == Kind::Wait => DIM,
        Some(true) => render::state_style("success"),
        Some(false) => render::state_style("dead"),
        None => Style::new(),
    };
    let offset = human(row.began_at.0.since(from));
    let length = if took(row).is_zero() { String::new() } else { human(took(row)) };
    let (name, bar) = (cut(&clean(&row.name), NAME_CHARS), bar(row, from, span));
    let said = cut(&clean(&row.said), SAID_CHARS);
    format!("  {offset:>8}  {name:<NAME_CHARS$} {style}{bar}{style:#} {length:>8}  {said}")
}

/// Where in the whole it is.
fn bar(row: &Row, from: Timestamp, span: Duration) -> String {
    let cell = |at: Timestamp| {
        let part = at.since(from).as_secs_f64() / span.as_secs_f64().max(f64::MIN_POSITIVE);
        ((part * CELLS as f64) as usize).min(CELLS - 1)
    };
    let (first, last) = (cell(row.began_at.0), cell(row.ended_at.0));
    let sign = match row.kind {
        _ if took(row).is_zero() => '◆',
        Kind::Wait | Kind::Approval => '·',
        _ => '█',
    };
    (0..CELLS).map(|at| if (first..=last).contains(&at) { sign } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::{at, job, told};
    use crate::api::shapes::{Attempt, Effect, Job};

    fn attempt(no: u32, from: i64, to: i64, outcome: &str) -> Attempt {
        Attempt {
            no,
            started_at: at(from),
            ended_at: at(to),
            seconds: 1.0,
            outcome: outcome.into(),
            reason: Some("timeout".into()).filter(|_| outcome == "failed"),
            error: None,
            refusal: None,
            waited_seconds: 1.0,
            waited_why: "the pause after timeout".into(),
        }
    }

    fn life() -> JobShow {
        let effects = vec![Effect {
            step: "charge".into(),
            state: "done".into(),
            idempotency: "header".into(),
            sends: 2,
            first_intended_at: at(12),
            changed_at: at(99),
            answer_status: Some(200),
            key: None,
            proof: None,
            if_replayed: None,
        }];
        told(
            Job {
                received_at: at(0),
                ended_at: Some(at(100)),
                due_at: None,
                state: "success".into(),
                reason: None,
                ..job()
            },
            vec![attempt(1, 10, 20, "failed"), attempt(2, 60, 100, "success")],
            effects,
        )
    }

    #[test]
    fn h3_a_waterfall_has_what_happened_and_why_nothing_did_in_the_order_of_time() {
        let rows = rows(&life(), &[], at(500).0);
        let told: Vec<(&str, &str)> = rows.iter().map(|row| (row.name.trim(), row.said.as_str())).collect();
        assert_eq!(
            told,
            [
                ("delivery", "answered 202"),
                ("waits", "the pause after timeout"),
                ("attempt 1", "failed: timeout"),
                ("effect charge", "done, answered 200, tried 2 times"),
                ("waits", "the pause after timeout"),
                ("attempt 2", "success"),
            ]
        );
        let text = anstream::adapter::strip_str(&text(&[(life(), Vec::new())], &rows)).to_string();
        assert!(text.starts_with("trace 019a8b2c41f07d4e8a1b2c3d4e5f6071   from "), "{text}");
        assert!(text.contains("1m40s, of which 50s worked"), "{text}");
        assert!(text.contains("success   flow "), "{text}");
    }

    #[test]
    fn h3_who_waits_for_people_does_not_pause() {
        let asked = Approval {
            id: "job_1/review".into(),
            job_id: "job_1".into(),
            trace_id: None,
            step: "review".into(),
            flow: "orders".into(),
            state: "approved".into(),
            title: "fine?".into(),
            of: vec![],
            need: 1,
            approved: 1,
            on_expiry: "reject".into(),
            requester: None,
            asked_at: at(25),
            expires_at: at(900),
            decided_at: Some(at(59)),
            decided_by: Some("maya".into()),
            reason: Some("yes".into()),
            shown: vec![],
        };
        let rows = rows(&life(), &[asked], at(500).0);
        let told: Vec<(&str, f64)> = rows.iter().map(|row| (row.name.trim(), row.seconds)).collect();
        assert_eq!(told[4..6], [("waits", 5.0), ("approval review", 34.0)]);
    }

    #[test]
    fn h3_a_bar_stands_where_its_time_is() {
        let rows = rows(&life(), &[], at(500).0);
        let bars: Vec<String> = rows.iter().map(|row| bar(row, at(0).0, Duration::from_secs(100))).collect();
        let cells = |name: usize| {
            let first = bars[name].chars().position(|sign| sign != ' ').expect("something is drawn");
            (first, bars[name].chars().filter(|sign| *sign != ' ').count())
        };
        assert_eq!((cells(0), cells(2), cells(5)), ((0, 1), (3, 4), (19, 13)));
        assert!(bars.iter().all(|bar| bar.chars().count() == CELLS));
    }
}
