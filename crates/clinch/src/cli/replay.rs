//! `clinch replay`: a dead letter runs again, under the same keys, with a reason on record. Pressing twice is pressing
//! once. Many of them run by a plan.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::plan::Plans;
use super::render::{self, Output};
use super::{Globals, jobs};
use crate::api::shapes::{JobShow, ReplayAsk, ReplayOn, Replayed, Ruling};
use clap::Args;
use clinch_core::id::JobId;
use clinch_core::time::{human, parse_duration};
use serde_json::json;
use std::time::{Duration, Instant};

/// How often `--wait` looks.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  clinch replay job_01HZX5T0N8W2A --reason 'token rotated, INC-482'
  clinch replay job_01HZX5T0N8W2A --reason 'fixed the flow' --config live --wait
  clinch replay job_01HZX5T0N8W2A --reason 'seen in the CRM' --unknown skip
  clinch replay plan 'reason:auth_failed since:2h'       many: count them first
  clinch replay apply rpl_01HZX5T0N8W2A --reason 'token rotated, INC-482' --rate 20/s

Effects that are done are skipped. The job keeps its id, its keys and its trace."
)]
pub struct Replay {
    #[command(subcommand)]
    plan: Option<Plans>,
    /// The dead letter
    #[arg(value_name = "ID", required_unless_present = "id_flag")]
    id: Option<JobId>,
    /// The same, as old runbooks write it
    #[arg(long = "id", id = "id_flag", value_name = "ID", conflicts_with = "id")]
    id_flag: Option<JobId>,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Which workspace it runs
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    config: ReplayOn,
    /// What to do with effects that may or may not have happened
    #[arg(long, value_enum, value_name = "RULING")]
    unknown: Option<Ruling>,
    /// Wait until it has ended, at most this long
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = parse_duration)]
    wait: Option<Duration>,
}

impl Replay {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        if let Some(plan) = &self.plan {
            return plan.run(globals).await;
        }
        let id = self.id.or(self.id_flag).expect("clap asks for one of the two");
        let Some(reason) = self.reason.clone().filter(|reason| !reason.trim().is_empty()) else {
            return Err(Failure::new(Exit::Refused, "CL0522", "A replay needs a reason; it is kept on record")
                .fix(jobs::replay_command(&id.to_string())));
        };
        let client = Client::open(globals)?;
        let output = globals.output();
        let ask = ReplayAsk { reason, config: self.config, unknown: self.unknown };
        let path = ["jobs", &id.to_string(), "replay"];
        let answer = client.post::<Replayed>(&path, &json!(ask)).await.map_err(|failure| options(failure, id))?;
        let told = &answer.told;
        if !told.replayed && told.replays == 0 {
            let said = format!("{id} is not a dead letter and never was: {}", told.state);
            return Err(Failure::new(Exit::Conflict, "CL0509", said).fix(format!("clinch jobs show {id}")));
        }
        match self.wait {
            None => {
                render::show(output, &answer.document, &told.job_id, || sentence(told))?;
                render::next(output, &format!("clinch jobs show {id}"));
                Ok(Exit::Done)
            }
            Some(wait) => {
                render::note(&sentence(told));
                ended(&client, output, id, wait, "again").await
            }
        }
    }
}

/// The two words that a person can say, next to the refusal.
fn options(failure: Failure, id: JobId) -> Failure {
    match failure.exit {
        Exit::Refused => failure
            .fact("--unknown skip      treat it as done")
            .fact("--unknown resend    send it again; it may happen twice")
            .fact(format!("one by one, with proof: clinch effects ls state:unknown job:{id}"))
            .fix(format!("look at the target, then choose one: clinch replay {id} --reason TEXT --unknown skip")),
        _ => failure,
    }
}

fn sentence(told: &Replayed) -> String {
    match told.replayed {
        true => format!("{} is replayed (replay {}); effects that are done are skipped", told.job_id, told.replays),
        false => format!("{} was replayed already and is {}; nothing done", told.job_id, render::clean(&told.state)),
    }
}

/// Waits until a job has ended, and tells how. `again` is said of a dead letter that was one before.
pub async fn ended(client: &Client, output: Output, id: JobId, wait: Duration, again: &str) -> Result<Exit, Failure> {
    let began = Instant::now();
    loop {
        let answer = client.get::<JobShow>(&["jobs", &id.to_string()], &[]).await?;
        let job = &answer.told.job;
        let effects = &answer.told.effects;
        match job.state.as_str() {
            "success" | "noop" => {
                let done = effects.iter().filter(|effect| effect.state == "done").count();
                let text = || {
                    format!(
                        "{} {} in {}, {} done",
                        id,
                        job.state,
                        human(began.elapsed()),
                        render::count(done, "effect")
                    )
                };
                render::show(output, &answer.document, &job.id, text)?;
                return Ok(Exit::Done);
            }
            "dead" => {
                let reason = job.reason.as_deref().unwrap_or("no reason");
                let said = format!("{id} is a dead letter {again}: {reason}").replace(" :", ":");
                let failure = Failure::new(Exit::Failed, "CL0535", said).fix(format!("clinch dlq show {id}"));
                return Err(match &job.error {
                    Some(error) => failure.fact(error.clone()),
                    None => failure,
                });
            }
            state if began.elapsed() >= wait => {
                let said = format!("{id} is still {state} after {}", human(wait));
                return Err(Failure::new(Exit::WaitRanOut, "CL0523", said).fix(format!("clinch jobs show {id}")));
            }
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p8_pressing_twice_says_that_nothing_was_done() {
        let told = |replayed| Replayed {
            schema: String::new(),
            job_id: "job_1".into(),
            replayed,
            state: "success".into(),
            replays: 1,
        };
        assert_eq!(sentence(&told(true)), "job_1 is replayed (replay 1); effects that are done are skipped");
        assert_eq!(sentence(&told(false)), "job_1 was replayed already and is success; nothing done");
    }
}
