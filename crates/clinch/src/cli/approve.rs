//! `clinch approve`: what waits for people, and a vote on it.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, Output, Table, clean};
use crate::api::approvals::{Approval, ApprovalList, ApprovalShow, Ballot, BulkAsk, BulkQuery, BulkVoted};
use clap::Subcommand;
use clinch_core::approval::ApprovalId;
use clinch_core::time::Timestamp;
use serde_json::json;
use std::fmt::Write;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch approve ls                                            what waits
  clinch approve ls flow:winback state:rejected
  clinch approve show job_01HZX5T0N8W2A/review                 all about one, with its votes
  clinch approve yes job_01HZX5T0N8W2A/review --reason 'known customer'
  clinch approve no  job_01HZX5T0N8W2A/review --reason 'too much'
  clinch approve yes --query 'flow:winback' --max 8 --reason 'checked list'

An approval is named by its job and its step.")]
pub enum Approve {
    /// List approvals, those that wait if not asked otherwise
    Ls {
        /// Only these: state:pending|approved|rejected|expired|cancelled, flow:NAME, step:NAME, job:ID
        #[arg(value_name = "QUERY")]
        query: Vec<String>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
        limit: u16,
        /// Only those after it: the last id of the page before
        #[arg(long, value_name = "ID")]
        before: Option<ApprovalId>,
    },
    /// Show what is to be decided, who has voted, and what is on record
    Show {
        /// job_…/STEP
        id: ApprovalId,
    },
    /// Approve
    Yes(Decide),
    /// Reject: one is enough
    No(Decide),
    /// Take it back: it need not be decided any more, and the job ends without it
    Cancel(Decide),
}

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["ids", "query"])))]
pub struct Decide {
    /// job_…/STEP
    #[arg(value_name = "ID")]
    ids: Vec<ApprovalId>,
    /// All that wait and are like this: flow:NAME, step:NAME
    #[arg(long, requires = "max", value_name = "QUERY")]
    query: Option<String>,
    /// With --query: if more are like this, none is decided
    #[arg(long, requires = "query", value_name = "N")]
    max: Option<usize>,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

const WORDS: [&str; 4] = ["state", "flow", "step", "job"];

/// The words of a question. A word that is not known would otherwise mean everything.
fn read(query: &[String], known: &[&'static str]) -> Result<Vec<(&'static str, String)>, Failure> {
    let refuse = |said: String| {
        let words: Vec<String> = known.iter().map(|word| format!("{word}:…")).collect();
        Failure::new(Exit::Usage, "CL0503", said).fact(format!("what can be asked: {}", words.join(", ")))
    };
    let mut asked: Vec<(&'static str, String)> = Vec::new();
    for part in query.iter().flat_map(|part| part.split_whitespace()) {
        let Some((name, value)) = part.split_once(':').filter(|(_, value)| !value.is_empty()) else {
            return Err(refuse(format!("`{part}` is not a question: write word:value")));
        };
        let Some(word) = known.iter().find(|word| **word == name) else {
            return Err(refuse(format!("approvals cannot be asked for by `{name}`")));
        };
        if asked.iter().any(|(known, _)| known == word) {
            return Err(refuse(format!("`{word}` was given twice")));
        }
        asked.push((word, value.to_string()));
    }
    Ok(asked)
}

impl Approve {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        match self {
            Approve::Ls { query, limit, before } => list(globals, output, query, *limit, before.as_ref()).await,
            Approve::Show { id } => show(globals, output, id).await,
            Approve::Yes(decide) => decide.run(globals, output, "yes", Ballot::Approve).await,
            Approve::No(decide) => decide.run(globals, output, "no", Ballot::Reject).await,
            Approve::Cancel(decide) => decide.run(globals, output, "cancel", Ballot::Cancel).await,
        }
    }
}

async fn list(
    globals: &Globals,
    output: Output,
    query: &[String],
    limit: u16,
    before: Option<&ApprovalId>,
) -> Result<Exit, Failure> {
    let mut asked = read(query, &WORDS)?;
    if !asked.iter().any(|(word, _)| matches!(*word, "state" | "job")) {
        asked.push(("state", "pending".into()));
    }
    asked.push(("limit", limit.to_string()));
    asked.extend(before.map(|id| ("before", id.to_string())));
    let answer = Client::open(globals)?.get::<ApprovalList>(&["approvals"], &asked).await?;
    let told = &answer.told;
    table(&told.approvals, render::now()).print(output, &answer.document, "approvals")?;
    match told.approvals.first() {
        None => render::note("nothing waits for you like this"),
        Some(first) if first.state == "pending" => {
            render::next(output, &format!("clinch approve yes {} --reason TEXT (or no)", first.id));
        }
        Some(first) => render::next(output, &format!("clinch approve show {}", first.id)),
    }
    if let Some(last) = &told.next_before {
        render::note(&format!("there are more: add --before {last}"));
    }
    Ok(Exit::Done)
}

fn table(approvals: &[Approval], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "STATE", "FLOW", "VOTES", "ASKED", "LEFT", "WHAT"]);
    for row in approvals {
        let left = row.expires_at.0.since(now);
        let left = if row.state == "pending" { clinch_core::time::human(left) } else { "-".into() };
        table.row(vec![
            Cell::text(&row.id),
            Cell::state(&row.state),
            Cell::text(&row.flow),
            Cell::text(format!("{} of {}", row.approved, row.need)),
            Cell::age(row.asked_at, now),
            Cell::text(left),
            Cell::short(&row.title, 60),
        ]);
    }
    table
}

async fn show(globals: &Globals, output: Output, id: &ApprovalId) -> Result<Exit, Failure> {
    let path = ["approvals", &id.job.to_string(), &id.step];
    let answer = Client::open(globals)?.get::<ApprovalShow>(&path, &[]).await?;
    let told = &answer.told;
    render::show(output, &answer.document, &told.approval.id, || text(told))?;
    match told.approval.state.as_str() {
        "pending" => render::next(output, &format!("clinch approve yes {id} --reason TEXT (or no)")),
        _ => render::next(output, &format!("clinch jobs show {}", told.approval.job_id)),
    }
    Ok(Exit::Done)
}

fn text(told: &ApprovalShow) -> String {
    let row = &told.approval;
    let mut text = format!("{BOLD}{}{BOLD:#}  {}", clean(&row.id), render::state(&row.state));
    let mut fact = |name: &str, value: String| {
        let _ = write!(text, "\n  {:<12}{value}", clean(name));
    };
    fact("what", clean(&row.title));
    for shown in &told.shown {
        fact(&shown.name, clean(&shown.value));
    }
    fact("flow", clean(&row.flow));
    let of = if row.of.is_empty() { "anybody".to_string() } else { clean(&row.of.join(", ")) };
    fact("decide", format!("{} of {of}; {} have approved", row.need, row.approved));
    if let Some(requester) = &row.requester {
        fact("asked by", clean(requester));
    }
    fact("asked", row.asked_at.0.to_string());
    fact("expires", format!("{}, then {}", row.expires_at.0, row.on_expiry));
    if let (Some(by), Some(at)) = (&row.decided_by, row.decided_at) {
        let reason = row.reason.as_deref().map(clean).unwrap_or_default();
        fact("decided", format!("{} by {} at {}: {reason}", row.state, clean(by), at.0));
    }
    for vote in &told.votes {
        fact("vote", format!("{}  {} {}: {}", vote.at.0, clean(&vote.actor), vote.vote, clean(&vote.reason)));
    }
    for audit in &told.audit {
        let (action, actor) = (clean(&audit.action), clean(&audit.actor));
        fact(
            "on record",
            format!("{}  {action} by {actor} ({}): {}", audit.at.0, clean(&audit.origin), clean(&audit.reason)),
        );
    }
    text.push('\n');
    text
}

impl Decide {
    async fn run(&self, globals: &Globals, output: Output, word: &str, vote: Ballot) -> Result<Exit, Failure> {
        let Some(reason) = self.reason.clone().filter(|text| !text.trim().is_empty()) else {
            let which = self.ids.first().map_or_else(|| "--query QUERY --max N".into(), ToString::to_string);
            let said = "A vote needs a reason; it is kept on record";
            return Err(
                Failure::new(Exit::Refused, "CL0522", said).fix(format!("clinch approve {word} {which} --reason TEXT"))
            );
        };
        let query = match &self.query {
            None => None,
            Some(query) => Some(bulk(&read(std::slice::from_ref(query), &["flow", "step"])?)),
        };
        let ids = self.ids.iter().map(ToString::to_string).collect();
        let ask = BulkAsk { vote, reason, ids, query, max: self.max };
        let answer = Client::open(globals)?.post::<BulkVoted>(&["approvals", "decide"], &json!(ask)).await?;
        let outcomes = &answer.told.outcomes;
        let mut table = Table::new(&["ID", "OUTCOME", "STATE", "SAID"]);
        for row in outcomes {
            table.row(vec![
                Cell::text(&row.id),
                Cell::text(&row.outcome),
                Cell::state(row.state.as_deref().unwrap_or("-")),
                Cell::text(&row.said),
            ]);
        }
        table.print(output, &answer.document, "outcomes")?;
        if outcomes.is_empty() {
            render::note("nothing waits that is like this");
        }
        let worst = |outcome: &str| match outcome {
            "decided" | "counted" | "before" => Exit::Done,
            "not_found" => Exit::NotFound,
            "not_allowed" => Exit::NotAllowed,
            _ => Exit::Conflict,
        };
        Ok(outcomes.iter().map(|row| worst(&row.outcome)).find(|exit| *exit != Exit::Done).unwrap_or(Exit::Done))
    }
}

fn bulk(words: &[(&'static str, String)]) -> BulkQuery {
    let word = |name: &str| words.iter().find(|(word, _)| *word == name).map(|(_, value)| value.clone());
    BulkQuery { flow: word("flow"), step: word("step") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g2_a_question_is_read_and_an_unknown_word_is_never_everything() {
        let ask = |text: &str, known: &[&'static str]| read(&[text.to_string()], known);
        assert_eq!(
            ask("flow:winback state:rejected", &WORDS).expect("fine"),
            [("flow", "winback".to_string()), ("state", "rejected".to_string())]
        );
        let said = format!("{:?}", ask("flo:winback", &["flow", "step"]).expect_err("unknown"));
        assert!(said.contains("cannot be asked for by `flo`") && said.contains("flow:…, step:…"), "{said}");
        assert!(ask("flow:a flow:b", &WORDS).is_err() && ask("winback", &WORDS).is_err());
        let both = bulk(&ask("step:review flow:winback", &["flow", "step"]).expect("fine"));
        assert_eq!((both.flow.as_deref(), both.step.as_deref()), (Some("winback"), Some("review")));
    }
}
