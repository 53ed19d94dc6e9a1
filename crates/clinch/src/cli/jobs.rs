//! `clinch jobs`: lists, and everything about one.

use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, Output, Table, clean};
use super::{Globals, effects};
use crate::api::shapes::{Job, JobList, JobShow};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::time::{Timestamp, human};
use std::fmt::Write;
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch jobs ls --state retrying
  clinch jobs ls flow:orders state:dead 'age>5m' 'try>=3' integration:hubspot
  clinch jobs ls --flow signup --limit 200 -o jsonl
  clinch jobs show job_01HZX5T0N8W2A
  clinch jobs show evt_01HZX5T0N8W29          the jobs of an event")]
pub enum Jobs {
    /// List jobs, newest first
    Ls {
        /// Only jobs in this state
        #[arg(long, value_parser = PossibleValuesParser::new(Word::ALL.iter().map(|word| word.as_str())))]
        state: Option<String>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Show everything about a job, or the jobs of an event
    Show {
        /// job_… or evt_…
        id: String,
        /// Print its delivery as a curl command, the body masked and the secret left to $CLINCH_SECRET
        #[arg(long)]
        curl: bool,
    },
}

/// What a list can be narrowed by.
#[derive(Args, Debug)]
pub struct Filter {
    /// Words that all must fit: flow:, queue:, state:, source:, reason:, integration:, step:, key:, job:, since:, until:, age>, try>=
    #[arg(value_name = "QUERY")]
    words: Vec<String>,
    /// Only jobs of this flow
    #[arg(long)]
    flow: Option<String>,
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only dead letters with this reason
    #[arg(long, value_parser = PossibleValuesParser::new(Reason::ALL.iter().map(|reason| reason.word())), hide_possible_values = true)]
    reason: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    limit: u16,
    /// Only older ones: the last id of the page before
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
}

impl Filter {
    pub fn query(&self, state: Option<String>) -> Vec<(&'static str, String)> {
        given(&[
            ("q", (!self.words.is_empty()).then(|| self.words.join(" "))),
            ("state", state),
            ("flow", self.flow.clone()),
            ("queue", self.queue.clone()),
            ("reason", self.reason.clone()),
            ("before", self.before.map(|id| id.to_string())),
            ("limit", Some(self.limit.to_string())),
        ])
    }

    /// The command for the next page, if there is one: the same question, further back.
    pub fn more(&self, output: Output, command: &str, state: Option<String>, next_before: Option<&str>) {
        let Some(before) = next_before else { return };
        let kept = self.query(state).into_iter().filter(|(name, _)| !matches!(*name, "before" | "q"));
        let words: String = self.words.iter().map(|word| format!(" '{word}'")).collect();
        let flags: String = kept.map(|(name, value)| format!(" --{name} {value}")).collect();
        render::next(output, &format!("{command}{words}{flags} --before {before}"));
    }
}

impl Jobs {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let client = Client::open(globals)?;
        match self {
            Jobs::Ls { state, filter } => list(&client, globals.output(), state.clone(), filter).await,
            Jobs::Show { id, curl: true } => curl(&client, id).await,
            Jobs::Show { id, .. } if id.starts_with("evt_") => of_event(&client, globals.output(), id).await,
            Jobs::Show { id, .. } => {
                let told = show(&client, globals.output(), id).await?;
                let job = &told.job;
                match job.state.as_str() {
                    "dead" => render::next(globals.output(), &after_death(&told)),
                    _ => render::next(globals.output(), &format!("clinch jobs ls --flow {}", job.flow)),
                }
                Ok(Exit::Done)
            }
        }
    }
}

/// The next command for a dead letter: a word on what is unknown comes before a replay.
pub fn after_death(told: &JobShow) -> String {
    effects::next_for(told).unwrap_or_else(|| replay_command(&told.job.id))
}

pub fn replay_command(id: &str) -> String {
    format!("clinch replay {id} --reason TEXT")
}

async fn list(client: &Client, output: Output, state: Option<String>, filter: &Filter) -> Result<Exit, Failure> {
    let answer = client.get::<JobList>(&["jobs"], &filter.query(state.clone())).await?;
    table(&answer.told.jobs, render::now()).print(output, &answer.document, "jobs")?;
    match answer.told.jobs.first() {
        None if answer.told.more => {
            render::note("no job among the newest ones is like this; older ones were not looked at")
        }
        None => render::note("no job is like this"),
        Some(first) => render::next(output, &format!("clinch jobs show {}", first.id)),
    }
    filter.more(output, "clinch jobs ls", state, answer.told.next_before.as_deref());
    Ok(Exit::Done)
}

async fn of_event(client: &Client, output: Output, id: &str) -> Result<Exit, Failure> {
    let id: EventId = id.parse().map_err(|error| bad_id(&error))?;
    let answer = client.get::<JobList>(&["events", &id.to_string()], &[]).await?;
    table(&answer.told.jobs, render::now()).print(output, &answer.document, "jobs")?;
    if let Some(first) = answer.told.jobs.first() {
        render::next(output, &format!("clinch jobs show {}", first.id));
    }
    Ok(Exit::Done)
}

/// What a person is told of a job that waits.
fn waits_words(waits: &str) -> String {
    match waits {
        "circuit" => "a partner whose circuit is open".into(),
        "limit" => "its turn at a partner that has a limit".into(),
        "delay" => "the time that a step names".into(),
        "key" => "a node that has the key of its data".into(),
        "budget" => "a later window of its retry budget".into(),
        other => clean(other).to_string(),
    }
}

/// What a replay does with an effect.
pub fn again_words(again: &str) -> String {
    match again {
        "looks_up" => "asks the partner".into(),
        "asks_first" => "asks you first".into(),
        other => clean(other),
    }
}

fn bad_id(error: &clinch_core::id::BadId) -> Failure {
    Failure::new(Exit::Usage, "CL0503", error.to_string()).fix("clinch jobs ls -o id lists ids")
}

/// Shows one job; the caller says what comes next.
pub async fn show(client: &Client, output: Output, id: &str) -> Result<JobShow, Failure> {
    let id: JobId = id.parse().map_err(|error| bad_id(&error))?;
    let answer = client.get::<JobShow>(&["jobs", &id.to_string()], &[]).await?;
    let told = &answer.told;
    render::show(output, &answer.document, &told.job.id, || text(told, render::now()))?;
    Ok(answer.told)
}

async fn curl(client: &Client, id: &str) -> Result<Exit, Failure> {
    let id: JobId = id.parse().map_err(|error| bad_id(&error))?;
    let told = client.get::<JobShow>(&["jobs", &id.to_string()], &[]).await?.told;
    let Some(entrance) = &told.entrance else {
        let said = format!("The live workspace has no way in any more by which {id} came, or its body is gone");
        return Err(Failure::new(Exit::NotFound, "CL0505", said).fix("clinch sources ls lists the ways in"));
    };
    render::data(&format!("{}\n", entrance.curl(&told.body)))?;
    Ok(Exit::Done)
}

pub fn table(jobs: &[Job], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "STATE", "FLOW", "QUEUE", "AGE", "TRIES", "REPLAYS", "REASON", "ERROR"]);
    for job in jobs {
        table.row(vec![
            Cell::text(&job.id),
            Cell::state(&job.state),
            Cell::text(&job.flow),
            Cell::text(&job.queue),
            Cell::age(job.received_at, now),
            Cell::number(job.attempts),
            Cell::number(job.replays),
            Cell::text(job.reason.as_deref().unwrap_or("-")),
            Cell::short(job.error.as_deref().unwrap_or("-"), 50),
        ]);
    }
    table
}

fn text(told: &JobShow, now: Timestamp) -> String {
    let job = &told.job;
    let mut text = format!("{BOLD}{}{BOLD:#}  {}", job.id, render::state(&job.state));
    if let Some(reason) = &job.reason {
        let meaning = told.reason_meaning.as_deref().unwrap_or_default();
        let _ = write!(text, "  {}: {}", clean(reason), clean(meaning));
    }
    let mut fact = |name: &str, value: String| {
        let _ = write!(text, "\n  {name:<12}{value}");
    };
    fact("flow", format!("{}   queue {}   workspace {}", clean(&job.flow), clean(&job.queue), clean(&job.version)));
    fact(
        "received",
        format!("{} ({} ago), answered {}", job.received_at.0, render::age(job.received_at, now), told.answer_status),
    );
    if let Some(due) = job.due_at {
        fact("due", format!("{} (in {})", due.0, human(due.0.since(now))));
    }
    if let Some(waits) = &job.waits_for {
        fact("waits", format!("for {}; this costs no attempt", waits_words(waits)));
    }
    if let Some(first) = &told.waits_behind {
        fact("waits", format!("behind {} in its group", clean(first)));
    }
    if told.priority != 0 {
        fact("priority", told.priority.to_string());
    }
    if let Some(ended) = job.ended_at {
        fact("ended", format!("{} (after {})", ended.0, human(ended.0.since(job.received_at.0))));
    }
    if let Some(event) = &told.event {
        fact("event", format!("{}   type {}   tenant {}", event.id, clean(&event.kind), clean(&event.tenant)));
        let version = match event.schema_version {
            1 => String::new(),
            version => format!("   schema version {version}"),
        };
        let sender = event.sender.as_ref().map_or_else(String::new, |sender| format!("   sender {}", clean(sender)));
        fact("source", format!("{}{sender}{version}", clean(&event.source)));
        if !event.source_event_id.is_empty() {
            let until = told.key_until.map_or_else(String::new, |until| format!("   kept until {}", until.0));
            fact("key", format!("{}{until}", clean(&event.source_event_id)));
        }
    }
    fact("trace", clean(&job.trace_id));
    if let Some(error) = &job.error {
        fact("last error", clean(error));
    }
    text.push('\n');
    section(
        &mut text,
        "attempts",
        told.attempts.iter().map(|attempt| {
            let took = human(Duration::try_from_secs_f64(attempt.seconds).unwrap_or_default());
            let said = [attempt.reason.as_deref(), attempt.error.as_deref()];
            let said: Vec<String> = said.into_iter().flatten().map(clean).collect();
            let waited = human(Duration::try_from_secs_f64(attempt.waited_seconds).unwrap_or_default());
            format!(
                "{:>3}  {}  {:<12} {took:<6} {}   (waited {waited}: {})",
                attempt.no,
                attempt.started_at.0,
                clean(&attempt.outcome),
                said.join(": "),
                clean(&attempt.waited_why)
            )
        }),
    );
    section(
        &mut text,
        "effects",
        told.effects.iter().flat_map(|effect| {
            let answer = effect.answer_status.map_or_else(String::new, |status| format!("   answered {status}"));
            // An intent is counted, and what could not be delivered was never sent.
            let tried = format!("tried {}×", effect.sends);
            let again = effect
                .if_replayed
                .as_deref()
                .map_or_else(String::new, |again| format!("   if replayed: {}", again_words(again)));
            let known = format!(
                "{}  {}   {tried}   idempotency {}{answer}{again}",
                clean(&effect.step),
                render::state(&effect.state),
                effect.idempotency
            );
            let late = told.late_answers.iter().filter(|late| late.step == effect.step);
            std::iter::once(known).chain(late.map(|late| format!("  {}", effects::late_line(late))))
        }),
    );
    section(
        &mut text,
        "later deliveries",
        told.deliveries.iter().map(|delivery| {
            let kind = if delivery.conflict { "another body: the first stays" } else { "same body: nothing repeated" };
            format!("{}  {}×  {kind}", delivery.at.0, delivery.times)
        }),
    );
    section(
        &mut text,
        "on record",
        told.audit.iter().map(|audit| {
            format!(
                "{}  {} by {}: {} ({})",
                audit.at.0,
                clean(&audit.action),
                clean(&audit.actor),
                clean(&audit.reason),
                clean(&audit.change())
            )
        }),
    );
    if let Some(why) = &told.unread {
        let _ = writeln!(text, "{BOLD}body{BOLD:#} not shown: {}", clean(why));
        return text;
    }
    let masked = match (told.body.json, told.body.lines.is_empty()) {
        (true, _) => "its texts masked",
        (false, false) => "not JSON, its words masked",
        (false, true) => "not text, not shown",
    };
    let lines = told.body.lines.iter().map(|line| clean(line)).chain(told.body.cut.then(|| "…".to_string()));
    let heading = format!("body, {} bytes, {masked}", render::thousands(told.body.bytes as u64));
    let _ = writeln!(text, "{BOLD}{heading}{BOLD:#}");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn section(text: &mut String, heading: &str, lines: impl Iterator<Item = String>) {
    for (place, line) in lines.enumerate() {
        if place == 0 {
            let _ = writeln!(text, "{BOLD}{heading}{BOLD:#}");
        }
        let _ = writeln!(text, "  {}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::{at, job, told};
    use crate::api::shapes::{Attempt, Effect, Preview};

    #[test]
    fn a_job_is_shown_with_its_attempts_effects_and_masked_body() {
        let told = JobShow {
            schema: String::new(),
            job: job(),
            reason_meaning: Some("the target refused our credentials".into()),
            event: None,
            answer_status: 202,
            key_until: None,
            priority: -3,
            waits_behind: Some("job_01HZX5T0N8W1Z".into()),
            failures_max: Some(3),
            attempts: vec![Attempt {
                no: 1,
                started_at: at(1),
                ended_at: at(3),
                seconds: 2.0,
                outcome: "failed".into(),
                reason: Some("auth_failed".into()),
                error: None,
                refusal: None,
                waited_seconds: 1.0,
                waited_why: "in its queue".into(),
            }],
            effects: vec![Effect {
                step: "post".into(),
                state: "not_done".into(),
                idempotency: "header".into(),
                sends: 2,
                first_intended_at: at(1),
                changed_at: at(3),
                answer_status: None,
                key: Some("clinch-01".into()),
                proof: Some("refused, or never sent".into()),
                if_replayed: Some("runs".into()),
            }],
            late_answers: vec![],
            deliveries: vec![],
            audit: vec![],
            unread: None,
            body: Preview { bytes: 17, json: true, lines: vec!["{".into(), "}".into()], cut: false },
            entrance: None,
        };
        let text = anstream::adapter::strip_str(&text(&told, at(120).0)).to_string();
        for part in [
            "job_01HZX5T0N8W2A  dead  auth_failed: the target refused our credentials\n",
            "  flow        signup   queue crm   workspace v1\n",
            "(2m ago), answered 202\n",
            "  waits       behind job_01HZX5T0N8W1Z in its group\n",
            "  priority    -3\n",
            "(after 1m)\n",
            "attempts\n    1  2026-",
            "failed       2s     auth_failed   (waited 1s: in its queue)\n",
            "effects\n  post  not_done   tried 2×   idempotency header   if replayed: runs\n",
            "body, 17 bytes, its texts masked\n  {\n  }\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("later deliveries") && !text.contains("on record"), "{text}");
        assert_eq!(after_death(&told), "clinch replay job_01HZX5T0N8W2A --reason TEXT");
    }

    #[test]
    fn d2_a_dead_letter_with_a_late_answer_says_so_and_suggests_a_word() {
        use super::super::effects::tests::{effect, late};
        let effects = vec![effect("unknown", "none")];
        let told = JobShow { late_answers: vec![late("done", Some(200))], ..told(job(), vec![], effects) };
        let shown = anstream::adapter::strip_str(&text(&told, at(120).0)).to_string();
        let late = format!("    late answer: 200 at {}, from fence 3: it was done\n", at(90).0);
        assert!(shown.contains(&late), "{late:?} is not in\n{shown}");
        let next = after_death(&told);
        assert!(
            next.starts_with("clinch effects resolve job_01HZX5T0N8W2A/charge --done --proof 'late answer"),
            "{next}"
        );
    }
}
