//! `clinch dlq`: the jobs that gave up, and why.

use super::Globals;
use super::client::Client;
use super::drop::{Drop, Which};
use super::exit::{Exit, Failure};
use super::jobs::{self, Filter};
use super::render::{self, Cell, Output, Table, clean};
use crate::api::dead::DeadShapes;
use crate::api::shapes::{DeadGroups, Job, JobList};
use clap::Subcommand;
use clinch_core::time::human;
use std::collections::HashSet;
use std::time::Duration;

/// How often a tail looks again.
const LOOK: Duration = Duration::from_secs(1);
/// How many rows one look takes.
const LOOK_ROWS: usize = 200;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch dlq groups                        how many, by reason
  clinch dlq shapes --reason auth_failed   which messages, from whom
  clinch dlq ls --reason auth_failed
  clinch dlq tail -f                       the newest ones, and those to come
  clinch dlq show job_01HZX5T0N8W2A
  clinch dlq drop job_01HZX5T0N8W2A --reason 'poison, INC-482'")]
pub enum Dlq {
    /// List dead letters, newest first
    Ls {
        #[command(flatten)]
        filter: Filter,
    },
    /// Count dead letters by flow and reason
    Groups,
    /// Compare the messages of the newest dead letters: by integration, step, status and text
    Shapes {
        /// Only of this flow
        #[arg(long, value_name = "NAME")]
        flow: Option<String>,
        /// Only with this reason
        #[arg(long, value_name = "WORD")]
        reason: Option<String>,
    },
    /// Print the newest dead letters, oldest first
    Tail {
        /// Go on with those to come
        #[arg(short, long)]
        follow: bool,
        /// How many to begin with
        #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(0..=200), value_name = "N")]
        lines: u16,
    },
    /// Show everything about a dead letter
    Show { id: String },
    /// Give dead letters up, with a reason and a second person
    Drop(Drop),
    /// Take back what was dropped, or asked for
    Undrop(Which),
}

impl Dlq {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Dlq::Ls { filter } => list(&client, output, filter).await,
            Dlq::Groups => groups(&client, output).await,
            Dlq::Shapes { flow, reason } => shapes(&client, output, flow.as_ref(), reason.as_ref()).await,
            Dlq::Tail { follow, lines } => tail(&client, output, *follow, usize::from(*lines)).await,
            Dlq::Drop(drop) => drop.run(&client, output).await,
            Dlq::Undrop(which) => which.run(&client, output, &["dead", "undrop"]).await,
            Dlq::Show { id } => {
                let told = jobs::show(&client, output, id).await?;
                match told.job.state.as_str() {
                    "dead" => render::next(output, &jobs::after_death(&told)),
                    state => render::note(&format!("it is not a dead letter (any more): {state}")),
                }
                Ok(Exit::Done)
            }
        }
    }
}

async fn list(client: &Client, output: Output, filter: &Filter) -> Result<Exit, Failure> {
    let answer = client.get::<JobList>(&["dead"], &filter.query(None)).await?;
    jobs::table(&answer.told.jobs, render::now()).print(output, &answer.document, "jobs")?;
    match answer.told.jobs.first() {
        None => render::note("no dead letter is like this"),
        Some(first) => render::next(output, &format!("clinch dlq show {}", first.id)),
    }
    filter.more(output, "clinch dlq ls", None, answer.told.next_before.as_deref());
    Ok(Exit::Done)
}

async fn groups(client: &Client, output: Output) -> Result<Exit, Failure> {
    let answer = client.get::<DeadGroups>(&["dead", "groups"], &[]).await?;
    let now = render::now();
    // An id comes first: `-o id` gives one example of each group.
    let mut table =
        Table::new(&["EXAMPLE", "REASON", "FLOW", "JOBS", "FIRST", "LAST", "STANDS", "LAST REPLAY", "MEANING"]);
    for group in &answer.told.groups {
        table.row(vec![
            Cell::text(&group.example),
            Cell::text(&group.reason),
            Cell::text(&group.flow),
            Cell::number(group.jobs),
            Cell::age(group.first_at, now),
            Cell::age(group.last_at, now),
            Cell::text(&group.standing),
            group.last_replay.as_ref().map_or_else(|| Cell::text("never"), |replay| Cell::age(replay.started_at, now)),
            Cell::text(&group.meaning),
        ]);
    }
    table.print(output, &answer.document, "groups")?;
    match answer.told.groups.first() {
        None => render::note("there are no dead letters"),
        Some(first) => {
            let all: u64 = answer.told.groups.iter().map(|group| group.jobs).sum();
            let oldest = answer.told.groups.iter().map(|group| group.first_at).min().unwrap_or(first.first_at);
            let jobs = usize::try_from(all).unwrap_or(usize::MAX);
            render::note(&format!("{}, oldest {}", render::count(jobs, "dead letter"), human(now.since(oldest.0))));
            render::next(output, &format!("clinch dlq ls --reason {}", first.reason));
        }
    }
    Ok(Exit::Done)
}

async fn shapes(
    client: &Client,
    output: Output,
    flow: Option<&String>,
    reason: Option<&String>,
) -> Result<Exit, Failure> {
    let asked = [("flow", flow), ("reason", reason)];
    let query: Vec<_> = asked.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect();
    let answer = client.get::<DeadShapes>(&["dead", "shapes"], &query).await?;
    let (told, now) = (&answer.told, render::now());
    let mut table = Table::new(&["EXAMPLE", "JOBS", "INTEGRATION", "STEP", "STATUS", "LAST", "MESSAGE"]);
    let text = |text: Option<&String>| Cell::text(text.map_or("-", String::as_str));
    for shape in &told.shapes {
        table.row(vec![
            text(shape.examples.first().map(|job| &job.id)),
            Cell::number(shape.jobs),
            text(shape.integration.as_ref()),
            text(shape.step.as_ref()),
            Cell::text(shape.status.map_or_else(|| "-".into(), |status| status.to_string())),
            Cell::age(shape.last_at, now),
            Cell::text(&shape.message),
        ]);
    }
    table.print(output, &answer.document, "shapes")?;
    match told.shapes.is_empty() {
        true => render::note("no dead letter is like this"),
        false if told.more => render::note(&format!("only the newest {} were compared", told.compared)),
        false => (),
    }
    Ok(Exit::Done)
}

async fn tail(client: &Client, output: Output, follow: bool, lines: usize) -> Result<Exit, Failure> {
    if follow && output == Output::Json {
        let said = "What has no end is no JSON document";
        return Err(Failure::new(Exit::Usage, "CL0503", said).fix("clinch dlq tail -f -o jsonl"));
    }
    let first = dead(client, lines.max(1)).await?;
    if output == Output::Json {
        render::json(output, &first.0)?;
        return Ok(Exit::Done);
    }
    let mut seen = Seen::default();
    let begin: Vec<Job> = first.1.into_iter().take(lines).collect();
    print(output, seen.fresh(begin))?;
    if !follow {
        if seen.0.is_empty() {
            render::note("there are no dead letters");
        }
        render::next(output, "clinch dlq tail -f");
        return Ok(Exit::Done);
    }
    // What was there before counts as seen, also beyond the first lines.
    seen.fresh(dead(client, LOOK_ROWS).await?.1);
    loop {
        tokio::time::sleep(LOOK).await;
        print(output, seen.fresh(dead(client, LOOK_ROWS).await?.1))?;
    }
}

async fn dead(client: &Client, limit: usize) -> Result<(serde_json::Value, Vec<Job>), Failure> {
    let answer = client.get::<JobList>(&["dead"], &[("limit", limit.to_string())]).await?;
    Ok((answer.document, answer.told.jobs))
}

/// A job that died, was replayed and died again is told again.
#[derive(Default)]
struct Seen(HashSet<(String, Option<String>)>);

impl Seen {
    /// Those that were not seen before, oldest first. What is no longer in the list need not be remembered.
    fn fresh(&mut self, newest_first: Vec<Job>) -> Vec<Job> {
        let mark = |job: &Job| (job.id.clone(), job.ended_at.map(|at| at.0.to_string()));
        let before = std::mem::replace(&mut self.0, newest_first.iter().map(mark).collect());
        newest_first.into_iter().rev().filter(|job| !before.contains(&mark(job))).collect()
    }
}

fn print(output: Output, jobs: Vec<Job>) -> Result<(), Failure> {
    for job in jobs {
        match output {
            Output::Json | Output::Jsonl => {
                render::data(&serde_json::to_string(&job).expect("a job is JSON"))?;
            }
            Output::Id => render::data(&job.id)?,
            Output::Table | Output::Plain => render::data(&line(&job))?,
        }
    }
    Ok(())
}

fn line(job: &Job) -> String {
    let at = job.ended_at.unwrap_or(job.received_at).0.to_string();
    let red = render::state_style("dead");
    format!(
        "{at} {} {} {red}{}{red:#} try {} {}",
        job.id,
        clean(&job.flow),
        clean(job.reason.as_deref().unwrap_or("-")),
        job.attempts,
        clean(job.error.as_deref().unwrap_or("-")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::{at, job};

    #[test]
    fn a_tail_tells_each_death_once_and_a_second_death_again() {
        let mut seen = Seen::default();
        let other = Job { id: "job_01HZX5T0N8W2B".into(), ..job() };
        let told = seen.fresh(vec![other.clone(), job()]);
        assert_eq!(
            told.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(),
            ["job_01HZX5T0N8W2A", "job_01HZX5T0N8W2B"]
        );
        assert!(seen.fresh(vec![other.clone(), job()]).is_empty());
        let again = Job { ended_at: Some(at(99)), ..job() };
        assert_eq!(seen.fresh(vec![again, other]).len(), 1);
    }

    #[test]
    fn a_line_of_the_tail_reads_alone() {
        let told = anstream::adapter::strip_str(&line(&job())).to_string();
        assert!(told.ends_with("Z job_01HZX5T0N8W2A signup auth_failed try 2 401 from the target"), "{told}");
    }
}
