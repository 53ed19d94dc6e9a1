//! `clinch replay plan` and what follows it: many dead letters, counted first, then let go at a pace that live jobs do not feel.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table, clean, thousands};
use crate::api::replays::{Plan as Told, PlanAsk, PlanJobs, PlanList, PlanShow, PlanStart, PlanTurn};
use crate::api::shapes::ReplayOn;
use clap::{Args, Subcommand};
use clinch_core::id::PlanId;
use clinch_core::limit::Rate;
use clinch_core::replay::{ItemState, Percent};
use clinch_core::time::human;
use serde_json::json;
use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::num::NonZeroU32;
use std::time::Duration;

/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The bar has so many places.
const BAR: u64 = 20;

#[derive(Subcommand, Debug)]
pub enum Plans {
    /// Count dead letters and freeze the set; nothing is run
    #[command(after_help = "\
Words: flow:NAME queue:NAME reason:WORD since:TIME until:TIME key:KEY job:ID. All must fit; a word that is not known is an error.
since and until say when it died: how long ago (2h), or a moment (2026-08-01T00:00:00Z).

Example: clinch replay plan 'reason:auth_failed since:2h'")]
    Plan {
        /// Which dead letters: flow:NAME reason:WORD since:2h …
        #[arg(value_name = "QUERY", required = true)]
        query: Vec<String>,
        /// What for; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Start a plan and watch it; pressing twice is pressing once
    Apply(Apply),
    /// Show a plan: what was counted, and what became of it
    Show {
        #[arg(value_name = "PLAN")]
        id: PlanId,
        /// List its jobs in this state: waiting, released, success, noop, failed, changed, asks
        #[arg(long, value_name = "STATE")]
        jobs: Option<ItemState>,
        /// Only those after this number: the next page
        #[arg(long, value_name = "NO", requires = "jobs")]
        after: Option<u64>,
    },
    /// List plans, newest first
    Ls,
    /// Let no more go for now; what was let go goes on
    Pause(Turn),
    /// Go on
    Resume(Turn),
    /// Let no more go, for good
    Stop(Turn),
}

#[derive(Args, Debug)]
pub struct Apply {
    #[arg(value_name = "PLAN")]
    id: PlanId,
    /// Why; it is kept on record of each job
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// So many in such a time, at most [default: 50/s]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// At most so many jobs [default: all of the plan]
    #[arg(long, value_name = "N")]
    max: Option<NonZeroU32>,
    /// So many first; the others when these have ended well [default: 1]
    #[arg(long, value_name = "N")]
    canary: Option<u32>,
    /// Stop when this share failed again, of at least 5; or `never` [default: 20%]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    stop_at: Option<String>,
    /// So many in work at the same time [default: 8]
    #[arg(long, value_name = "N")]
    at_once: Option<NonZeroU32>,
    /// Which workspace they run
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    config: ReplayOn,
    /// Do not wait for its end
    #[arg(long)]
    detach: bool,
}

#[derive(Args, Debug)]
pub struct Turn {
    #[arg(value_name = "PLAN")]
    id: PlanId,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

fn share(text: &str) -> Result<String, String> {
    match text {
        "never" => Ok(text.into()),
        share => share.parse::<Percent>().map(|share| share.to_string()),
    }
}

fn needed(reason: Option<&String>, fix: &str) -> Result<String, Failure> {
    reason.filter(|reason| !reason.trim().is_empty()).cloned().ok_or_else(|| {
        Failure::new(Exit::Refused, "CL0522", "This needs a reason; it is kept on record")
            .fix(format!("{fix} --reason TEXT"))
    })
}

impl Plans {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        match self {
            Plans::Plan { query, reason } => plan(globals, output, &query.join(" "), reason).await,
            Plans::Apply(apply) => apply.run(globals, output).await,
            Plans::Show { id, jobs: Some(state), after } => jobs(globals, output, *id, *state, *after).await,
            Plans::Show { id, jobs: None, .. } => {
                let answer = Client::open(globals)?.get::<PlanShow>(&["replays", &id.to_string()], &[]).await?;
                render::show(output, &answer.document, &answer.told.plan.id, || story(&answer.told.plan))?;
                follow_up(output, &answer.told.plan);
                Ok(Exit::Done)
            }
            Plans::Ls => list(globals, output).await,
            Plans::Pause(turn) => turn.run(globals, output, "pause").await,
            Plans::Resume(turn) => turn.run(globals, output, "resume").await,
            Plans::Stop(turn) => turn.run(globals, output, "stop").await,
        }
    }
}

async fn plan(globals: &Globals, output: Output, query: &str, reason: &str) -> Result<Exit, Failure> {
    let ask = PlanAsk { query: query.into(), reason: reason.into() };
    let answer = Client::open(globals)?.post::<PlanShow>(&["replays"], &json!(ask)).await?;
    let plan = &answer.told.plan;
    render::show(output, &answer.document, &plan.id, || story(plan))?;
    if plan.more {
        render::note("more dead letters are like this than one plan can have: plan again when this one is done");
    }
    follow_up(output, plan);
    Ok(Exit::Done)
}

/// The next useful command.
fn follow_up(output: Output, plan: &Told) {
    let id = &plan.id;
    match plan.state.as_str() {
        "planned" => render::next(output, &format!("clinch replay apply {id} --reason TEXT")),
        "paused" => render::next(output, &format!("clinch replay resume {id} --reason TEXT")),
        _ if plan.failed > 0 => render::next(output, &format!("clinch replay show {id} --jobs failed")),
        _ if plan.changed > 0 => render::next(output, &format!("clinch replay show {id} --jobs changed")),
        _ if plan.asked > 0 => render::next(output, &format!("clinch replay show {id} --jobs asks")),
        _ => {}
    }
}

impl Apply {
    async fn run(&self, globals: &Globals, output: Output) -> Result<Exit, Failure> {
        let id = self.id.to_string();
        let ask = PlanStart {
            reason: needed(self.reason.as_ref(), &format!("clinch replay apply {id}"))?,
            rate: self.rate.map(|rate| rate.to_string()),
            max: self.max,
            canary: self.canary,
            stop_at: self.stop_at.clone(),
            at_once: self.at_once,
            config: self.config,
        };
        let client = Client::open(globals)?;
        let mut answer = client.post::<PlanShow>(&["replays", &id, "start"], &json!(ask)).await?;
        if answer.told.changed == Some(false) {
            render::note(&format!("{id} was started before and is {}; nothing done", clean(&answer.told.plan.state)));
        }
        if self.detach {
            render::show(output, &answer.document, &id, || story(&answer.told.plan))?;
            render::next(output, &format!("clinch replay show {id}"));
            return Ok(Exit::Done);
        }
        let is_watched = std::io::stderr().is_terminal();
        let mut before = (answer.told.plan.released, None);
        // A plan that was stopped has not ended before all that it let go has.
        while answer.told.plan.state == "running" || answer.told.plan.under_way > 0 {
            if is_watched {
                let plan = &answer.told.plan;
                let speed = before.1.map(|_: ()| plan.released.saturating_sub(before.0) as f64 / LOOK.as_secs_f64());
                before = (plan.released, Some(()));
                // Who closed it does not want to know.
                let _ = write!(anstream::stderr(), "\r{}   ", bar(plan, speed));
            }
            if answer.told.plan.state == "paused" {
                break;
            }
            tokio::time::sleep(LOOK).await;
            answer = client.get::<PlanShow>(&["replays", &id], &[]).await?;
        }
        if is_watched {
            let _ = writeln!(anstream::stderr());
        }
        let plan = &answer.told.plan;
        render::show(output, &answer.document, &plan.id, || outcome(plan))?;
        follow_up(output, plan);
        Ok(match plan.failed + plan.changed + plan.asked + plan.left {
            0 => Exit::Done,
            _ => Exit::Partly,
        })
    }
}

fn bar(plan: &Told, speed: Option<f64>) -> String {
    let all = plan.jobs.max(1);
    let ended = plan.success + plan.noop + plan.failed + plan.changed + plan.asked;
    let full = usize::try_from(BAR * ended.min(all) / all).unwrap_or(0);
    let mut line =
        format!("[{:.<width$}] {}/{}", "#".repeat(full), thousands(ended), thousands(plan.jobs), width = BAR as usize);
    let _ = write!(line, "  ok {}  noop {}  failed {}  left {}", plan.success, plan.noop, plan.failed, plan.left);
    if let Some(speed) = speed {
        let _ = write!(line, "  {speed:.1}/s");
    }
    line
}

fn outcome(plan: &Told) -> String {
    let mut line =
        format!("{}: {} success, {} noop, {} failed again", plan.state, plan.success, plan.noop, plan.failed);
    for (jobs, what) in [(plan.changed, "changed since they were counted and not run"), (plan.asked, "ask first")] {
        if jobs > 0 {
            let _ = write!(line, ", {jobs} {what}");
        }
    }
    if plan.left > 0 {
        let _ = write!(line, ", {} left", plan.left);
    }
    if let Some(why) = &plan.why {
        let _ = write!(line, " ({})", clean(why));
    }
    line
}

fn story(plan: &Told) -> String {
    let mut text = format!(
        "plan {}  {}  {} jobs, counted {} by {}\n  {}",
        plan.id,
        plan.state,
        thousands(plan.jobs),
        plan.planned_at.0,
        clean(&plan.planned_by),
        clean(&plan.query)
    );
    let _ = write!(
        text,
        "\n  will run {}   noop {}   ask first {}   effects not repeated {}",
        plan.will_run,
        plan.will_be_noop,
        plan.ask_first,
        plan.not_repeated.values().sum::<u64>()
    );
    for (step, effects) in &plan.not_repeated {
        let _ = write!(text, "\n    {} x{effects}", clean(step));
    }
    if let Some((oldest, newest)) = plan.oldest.zip(plan.newest) {
        let _ = write!(text, "\n  died {} to {}", oldest.0, newest.0);
    }
    if let (Some(rate), Some(started_at)) = (&plan.rate, plan.started_at) {
        let _ = write!(
            text,
            "\n  started {} by {}: {}\n  rate {rate}, canary {}, stop at {}, at once {}",
            started_at.0,
            clean(plan.started_by.as_deref().unwrap_or("-")),
            clean(plan.reason.as_deref().unwrap_or("-")),
            plan.canary.unwrap_or(0),
            plan.stop_at.as_deref().unwrap_or("never"),
            plan.at_once.unwrap_or(0)
        );
        let _ = write!(text, "\n  {}", outcome(plan));
        if let Some(ended_at) = plan.ended_at {
            let _ = write!(text, "\n  took {}", human(ended_at.0.since(started_at.0)));
        }
    } else if plan.state == "planned" {
        let _ = write!(text, "\n  start it before {}", plan.start_until.0);
    }
    text
}

async fn jobs(
    globals: &Globals,
    output: Output,
    id: PlanId,
    state: ItemState,
    after: Option<u64>,
) -> Result<Exit, Failure> {
    let mut query = vec![("state", state.to_string())];
    query.extend(after.map(|after| ("after", after.to_string())));
    let answer = Client::open(globals)?.get::<PlanJobs>(&["replays", &id.to_string(), "jobs"], &query).await?;
    let now = render::now();
    let mut table = Table::new(&["JOB", "NO", "STATE", "DIED", "ENDED"]);
    for job in &answer.told.jobs {
        let ended = job.ended_at.map_or_else(|| Cell::text("-"), |at| Cell::age(at, now));
        table.row(vec![
            Cell::text(&job.job_id),
            Cell::number(job.no),
            Cell::text(&job.state),
            Cell::age(job.died_at, now),
            ended,
        ]);
    }
    table.print(output, &answer.document, "jobs")?;
    if let Some(after) = answer.told.next_after {
        render::next(output, &format!("clinch replay show {id} --jobs {state} --after {after}"));
    }
    Ok(Exit::Done)
}

async fn list(globals: &Globals, output: Output) -> Result<Exit, Failure> {
    let answer = Client::open(globals)?.get::<PlanList>(&["replays"], &[]).await?;
    let now = render::now();
    let mut table = Table::new(&["PLAN", "STATE", "PLANNED", "BY", "JOBS", "OK", "NOOP", "FAILED", "LEFT", "QUERY"]);
    for plan in &answer.told.plans {
        table.row(vec![
            Cell::text(&plan.id),
            Cell::text(&plan.state),
            Cell::age(plan.planned_at, now),
            Cell::text(&plan.planned_by),
            Cell::number(plan.jobs),
            Cell::number(plan.success),
            Cell::number(plan.noop),
            Cell::number(plan.failed),
            Cell::number(plan.left),
            Cell::short(&plan.query, 60),
        ]);
    }
    table.print(output, &answer.document, "plans")?;
    if answer.told.plans.is_empty() {
        render::note("there is no plan");
        render::next(output, "clinch replay plan reason:WORD");
    }
    Ok(Exit::Done)
}

impl Turn {
    async fn run(&self, globals: &Globals, output: Output, word: &str) -> Result<Exit, Failure> {
        let id = self.id.to_string();
        let reason = needed(self.reason.as_ref(), &format!("clinch replay {word} {id}"))?;
        let answer =
            Client::open(globals)?.post::<PlanShow>(&["replays", &id, word], &json!(PlanTurn { reason })).await?;
        let plan = &answer.told.plan;
        let was = if answer.told.changed == Some(true) { "" } else { " already; nothing done" };
        render::show(output, &answer.document, &id, || format!("{id} is {}{was}", clean(&plan.state)))?;
        render::next(output, &format!("clinch replay show {id}"));
        Ok(Exit::Done)
    }
}
