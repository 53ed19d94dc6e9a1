//! `clinch effects`: what was done outside, what is not known of it, and a person's word on that.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, Output, Table, clean};
use super::{Globals, jobs};
use crate::api::shapes::{
    Effect, EffectList, EffectResolved, EffectRow, EffectShow, EffectVerified, JobShow, LateAnswer, ResolveAsk,
    ResolveTo,
};
use clap::Subcommand;
use clinch_core::effect::EffectId;
use clinch_core::time::Timestamp;
use serde_json::json;
use std::fmt::Write;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch effects ls state:unknown                         what may or may not have happened
  clinch effects ls state:unknown integration:stripe
  clinch effects ls job:job_01HZX5T0N8W2A
  clinch effects show job_01HZX5T0N8W2A/charge
  clinch effects verify job_01HZX5T0N8W2A/charge          ask the partner; changes nothing
  clinch effects resolve job_01HZX5T0N8W2A/charge --done --proof 'payment 77 in the dashboard' --reason INC-482

An effect is named by its job and its step.")]
pub enum Effects {
    /// List effects, those of the newest jobs first
    Ls {
        /// Only these: state:open|done|not_done|unknown, integration:NAME, flow:NAME, job:ID
        #[arg(value_name = "QUERY")]
        query: Vec<String>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
        limit: u16,
        /// Only those after it: the last id of the page before
        #[arg(long, value_name = "ID")]
        before: Option<EffectId>,
    },
    /// Show everything about an effect: its answer, late answers, and what people said
    Show {
        /// job_…/STEP
        id: EffectId,
    },
    /// Ask the partner whether it was done, by the `lookup:` of its integration; changes nothing
    Verify {
        /// job_…/STEP
        id: EffectId,
    },
    /// Say whether an effect of unknown outcome was done; it is kept on record
    Resolve(Resolve),
}

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("outcome").required(true).args(["done", "not_done"])))]
pub struct Resolve {
    /// job_…/STEP
    id: EffectId,
    /// It was done: a replay skips it
    #[arg(long)]
    done: bool,
    /// It was not done: a replay sends it
    #[arg(long)]
    not_done: bool,
    /// How you know
    #[arg(long, value_name = "TEXT")]
    proof: Option<String>,
    /// Why you say it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Effects {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        match self {
            Effects::Ls { query, limit, before } => list(globals, output, query, *limit, before.as_ref()).await,
            Effects::Show { id } => show(&Client::open(globals)?, output, id).await,
            Effects::Verify { id } => verify(&Client::open(globals)?, output, id).await,
            Effects::Resolve(resolve) => resolve.run(globals, output).await,
        }
    }
}

const WORDS: [&str; 4] = ["state", "integration", "flow", "job"];

/// The words of a question. A word that is not known would otherwise show everything.
fn read(query: &[String]) -> Result<Vec<(&'static str, String)>, Failure> {
    let refuse = |said: String| {
        Failure::new(Exit::Usage, "CL0503", said)
            .fact(format!("what can be asked: {}", WORDS.map(|word| format!("{word}:…")).join(", ")))
            .fix("clinch effects ls state:unknown integration:NAME")
    };
    let mut asked: Vec<(&'static str, String)> = Vec::new();
    for part in query.iter().flat_map(|part| part.split_whitespace()) {
        let Some((name, value)) = part.split_once(':').filter(|(_, value)| !value.is_empty()) else {
            return Err(refuse(format!("`{part}` is not a question: write word:value")));
        };
        let Some(word) = WORDS.into_iter().find(|word| *word == name) else {
            return Err(refuse(format!("effects cannot be asked for by `{name}`")));
        };
        if asked.iter().any(|(known, _)| *known == word) {
            return Err(refuse(format!("`{word}` was given twice")));
        }
        asked.push((word, value.to_string()));
    }
    Ok(asked)
}

async fn list(
    globals: &Globals,
    output: Output,
    query: &[String],
    limit: u16,
    before: Option<&EffectId>,
) -> Result<Exit, Failure> {
    let words = read(query)?;
    let mut asked = words.clone();
    asked.push(("limit", limit.to_string()));
    asked.extend(before.map(|id| ("before", id.to_string())));
    let answer = Client::open(globals)?.get::<EffectList>(&["effects"], &asked).await?;
    let told = &answer.told;
    table(&told.effects, render::now()).print(output, &answer.document, "effects")?;
    match told.effects.first() {
        None if told.more => {
            render::note("no effect among the newest ones is like this; older ones were not looked at")
        }
        None => render::note("no effect is like this"),
        Some(first) => render::next(output, &format!("clinch effects show {}", first.id)),
    }
    if let Some(before) = &told.next_before {
        let words: String = words.iter().map(|(name, value)| format!(" {name}:{value}")).collect();
        render::next(output, &format!("clinch effects ls{words} --limit {limit} --before {before}"));
    }
    Ok(Exit::Done)
}

fn table(effects: &[EffectRow], now: Timestamp) -> Table {
    let mut table =
        Table::new(&["ID", "STATE", "INTEGRATION", "FLOW", "JOB", "AGE", "TRIED", "IDEMPOTENCY", "EVIDENCE"]);
    for row in effects {
        table.row(vec![
            Cell::text(&row.id),
            Cell::state(&row.effect.state),
            Cell::text(row.integration.as_deref().unwrap_or("-")),
            Cell::text(&row.flow),
            Cell::state(&row.job_state),
            Cell::age(row.effect.changed_at, now),
            Cell::number(row.effect.sends),
            Cell::text(&row.effect.idempotency),
            Cell::text(if row.late_done { "late answer: done" } else { "-" }),
        ]);
    }
    table
}

async fn show(client: &Client, output: Output, id: &EffectId) -> Result<Exit, Failure> {
    let answer = client.get::<EffectShow>(&["effects", &id.job.to_string(), &id.step], &[]).await?;
    let told = &answer.told;
    render::show(output, &answer.document, &told.id, || text(told))?;
    let unfinished = !matches!(told.job.state.as_str(), "dead" | "success" | "noop");
    match told.effect.state.as_str() {
        "unknown" if unfinished => {
            render::note(&format!("its job is {} and settles it by what the integration declares", told.job.state))
        }
        "unknown" => render::next(output, &advice(&told.id, &told.effect, &told.late_answers)),
        _ => render::next(output, &format!("clinch jobs show {}", told.job.id)),
    }
    Ok(Exit::Done)
}

/// What to do about an effect of unknown outcome.
fn advice(id: &str, effect: &Effect, late: &[LateAnswer]) -> String {
    if let Some(proof) = proof(late) {
        return format!("clinch effects resolve {id} --done --proof '{proof}' --reason TEXT");
    }
    match effect.idempotency.as_str() {
        "lookup" => format!("clinch effects verify {id}"),
        _ => format!(
            "look at the partner, then clinch effects resolve {id} --done --proof TEXT --reason TEXT (or --not-done)"
        ),
    }
}

/// The late answer that says that it was done.
fn proof(late: &[LateAnswer]) -> Option<String> {
    let done = late.iter().rev().find(|late| late.state == "done")?;
    Some(format!("late answer {} at {}", status(done), done.at.0))
}

fn status(late: &LateAnswer) -> String {
    late.answer_status.map_or_else(|| "without a status".into(), |status| status.to_string())
}

/// What a worker learned after its job was another's.
pub fn late_line(late: &LateAnswer) -> String {
    let meaning = match late.state.as_str() {
        "done" => "it was done",
        "not_done" => "it was not done",
        _ => "no answer came to it either",
    };
    let answered = late.answer_status.map_or_else(|| "none".into(), |status| status.to_string());
    format!("late answer: {answered} at {}, from fence {}: {meaning}", late.at.0, late.fence)
}

/// What a person does next about a dead letter whose effects are not all known; `None`: a replay asks nothing.
pub fn next_for(told: &JobShow) -> Option<String> {
    let needs_word =
        |effect: &&Effect| effect.state == "unknown" && matches!(effect.idempotency.as_str(), "none" | "wrap");
    let late_of = |step: &str| told.late_answers.iter().filter(|late| late.step == step).cloned().collect::<Vec<_>>();
    let unknown = || told.effects.iter().filter(|effect| effect.state == "unknown");
    let proven = unknown().find(|effect| proof(&late_of(&effect.step)).is_some());
    let effect = proven.or_else(|| unknown().find(needs_word))?;
    Some(advice(&format!("{}/{}", told.job.id, effect.step), effect, &late_of(&effect.step)))
}

fn text(told: &EffectShow) -> String {
    let (effect, job) = (&told.effect, &told.job);
    let mut text = format!("{BOLD}{}{BOLD:#}  {}", clean(&told.id), render::state(&effect.state));
    let mut fact = |name: &str, value: String| {
        let _ = write!(text, "\n  {name:<12}{value}");
    };
    let partner = told.integration.as_deref().map_or_else(|| "not known any more".into(), clean);
    fact("integration", format!("{partner}   idempotency {}", effect.idempotency));
    let reason = job.reason.as_deref().map_or_else(String::new, |reason| format!("  {}", clean(reason)));
    fact("job", format!("{}  {}{reason}   flow {}", job.id, render::state(&job.state), clean(&job.flow)));
    fact("tried", format!("{}×, first at {}", effect.sends, effect.first_intended_at.0));
    fact("changed", effect.changed_at.0.to_string());
    if let Some(status) = effect.answer_status {
        fact("answered", status.to_string());
    }
    if let Some(key) = &effect.key {
        fact("key", clean(key));
    }
    if let Some(proof) = &effect.proof {
        fact("proof", clean(proof));
    }
    if let Some(again) = &effect.if_replayed {
        fact("if replayed", jobs::again_words(again));
    }
    for late in &told.late_answers {
        fact("evidence", late_line(late));
    }
    for audit in &told.audit {
        let (action, actor) = (clean(&audit.action), clean(&audit.actor));
        let said = format!("{action} by {actor}: {} ({})", clean(&audit.reason), clean(&audit.change()));
        fact("on record", format!("{}  {said}", audit.at.0));
    }
    text.push('\n');
    let late = told.late_answers.iter().filter_map(|late| Some(("late answer", late.answer.as_ref()?)));
    for (name, body) in told.answer.iter().map(|answer| ("answer", answer)).chain(late) {
        let bytes = render::thousands(body.bytes as u64);
        let _ = writeln!(text, "{BOLD}{name}, {bytes} bytes, its texts masked{BOLD:#}");
        let cut = body.cut.then(|| "…".to_string());
        for line in body.lines.iter().map(|line| clean(line)).chain(cut) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

async fn verify(client: &Client, output: Output, id: &EffectId) -> Result<Exit, Failure> {
    let path = ["effects", &id.job.to_string(), &id.step, "verify"];
    let answer = client.post::<EffectVerified>(&path, &json!({})).await?;
    let told = &answer.told;
    render::show(output, &answer.document, &told.id, || verdict(told))?;
    let is_over = matches!(told.job_state.as_str(), "dead" | "success" | "noop");
    match (told.found.as_str(), told.state.as_str()) {
        (found @ ("done" | "not_done"), "unknown") if is_over => {
            let status = told.answer_status.unwrap_or_default();
            let flag = if found == "done" { "--done" } else { "--not-done" };
            let command =
                format!("clinch effects resolve {id} {flag} --proof 'the lookup answered {status}' --reason TEXT");
            render::next(output, &command);
        }
        ("done" | "not_done", _) => render::next(output, &format!("clinch effects show {id}")),
        ("no_answer", _) => render::next(output, &format!("clinch effects verify {id}")),
        _ => render::next(
            output,
            &format!("clinch effects resolve {id} --done --proof TEXT --reason TEXT (or --not-done)"),
        ),
    }
    Ok(if matches!(told.found.as_str(), "done" | "not_done") { Exit::Done } else { Exit::Failed })
}

fn verdict(told: &EffectVerified) -> String {
    let (id, state) = (clean(&told.id), clean(&told.state));
    let why = told.why.as_deref().map(clean).unwrap_or_default();
    let status = told.answer_status.unwrap_or_default();
    match told.found.as_str() {
        "done" => format!("{id}: done, says the partner (the lookup answered {status}); the ledger says {state}"),
        "not_done" => {
            format!("{id}: not done, says the partner (the lookup answered {status}); the ledger says {state}")
        }
        "no_answer" => format!("{id}: the partner does not say: {why}"),
        _ => format!("{id}: the partner cannot be asked: {why}"),
    }
}

impl Resolve {
    async fn run(&self, globals: &Globals, output: Output) -> Result<Exit, Failure> {
        let id = &self.id;
        let outcome = if self.done { ResolveTo::Done } else { ResolveTo::NotDone };
        let written = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let (Some(proof), Some(reason)) = (written(&self.proof), written(&self.reason)) else {
            let flag = if self.done { "--done" } else { "--not-done" };
            let said = "A word on an effect needs a proof and a reason; both are kept on record";
            return Err(Failure::new(Exit::Refused, "CL0522", said)
                .fix(format!("clinch effects resolve {id} {flag} --proof TEXT --reason TEXT")));
        };
        let client = Client::open(globals)?;
        let path = ["effects", &id.job.to_string(), &id.step, "resolve"];
        let answer = client.post::<EffectResolved>(&path, &json!(ResolveAsk { outcome, proof, reason })).await;
        let answer = answer.map_err(|failure| match failure.exit {
            Exit::Conflict => failure.fix(format!("clinch effects show {id}")),
            _ => failure,
        })?;
        let told = &answer.told;
        render::show(output, &answer.document, &told.id, || sentence(told))?;
        if let Some(command) = after(told) {
            render::next(output, &command);
        }
        Ok(Exit::Done)
    }
}

fn sentence(told: &EffectResolved) -> String {
    let (id, word) = (clean(&told.id), if told.state == "done" { "done" } else { "not done" });
    match told.resolved {
        true => format!("{id} is taken as {word}; your word is on record"),
        false => format!("{id} is {word} already; nothing done"),
    }
}

/// What is left to do for the job.
fn after(told: &EffectResolved) -> Option<String> {
    match (told.unknown_left, told.job_state.as_str()) {
        (0, "dead") => Some(super::jobs::replay_command(&told.job_id)),
        (0, _) => None,
        _ => Some(format!("clinch effects ls state:unknown job:{}", told.job_id)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::shapes::Audit;
    use crate::api::shapes::sample::{at, job};

    pub fn late(state: &str, answer_status: Option<u16>) -> LateAnswer {
        LateAnswer { step: "charge".into(), state: state.into(), answer_status, at: at(90), fence: 3, answer: None }
    }

    pub fn effect(state: &str, idempotency: &str) -> Effect {
        Effect {
            step: "charge".into(),
            state: state.into(),
            idempotency: idempotency.into(),
            sends: 1,
            first_intended_at: at(1),
            changed_at: at(60),
            answer_status: None,
            key: None,
            proof: None,
            if_replayed: None,
        }
    }

    #[test]
    fn d2_a_question_of_words_is_read_and_a_word_that_is_not_known_lists_the_known_ones() {
        let ask = |text: &str| read(&[text.to_string()]);
        assert_eq!(
            ask("state:unknown integration:crm").expect("fine"),
            [("state", "unknown".to_string()), ("integration", "crm".to_string())]
        );
        assert_eq!(ask("").expect("fine"), []);
        for (bad, said) in [
            ("stat:unknown", "effects cannot be asked for by `stat`"),
            ("unknown", "`unknown` is not a question: write word:value"),
            ("state:", "`state:` is not a question: write word:value"),
            ("state:done state:done", "`state` was given twice"),
        ] {
            let failure = format!("{:?}", ask(bad).expect_err(bad));
            assert!(failure.contains(said), "{failure}");
            assert!(failure.contains("state:…, integration:…, flow:…, job:…"), "{failure}");
        }
    }

    #[test]
    fn d2_an_unknown_effect_is_shown_with_its_late_answer_and_what_to_do() {
        let told = EffectShow {
            schema: String::new(),
            id: "job_01HZX5T0N8W2A/charge".into(),
            job: job(),
            integration: Some("stripe".into()),
            effect: effect("unknown", "none"),
            answer: None,
            late_answers: vec![late("done", Some(200))],
            audit: vec![Audit {
                no: 1,
                at: at(100),
                at_micros: 0,
                actor: "maya".into(),
                origin: "api 127.0.0.1".into(),
                action: "job.replay".into(),
                object: "job_01HZX5T0N8W2A".into(),
                job_id: None,
                before: Some("{\"state\":\"dead\"}".into()),
                after: None,
                reason: "fixed".into(),
                hash: String::new(),
            }],
        };
        let text = anstream::adapter::strip_str(&text(&told)).to_string();
        let (first, when) = (at(1).0, at(90).0);
        for part in [
            "job_01HZX5T0N8W2A/charge  unknown\n",
            "  integration stripe   idempotency none\n",
            "  job         job_01HZX5T0N8W2A  dead  auth_failed   flow signup\n",
            &format!("  tried       1×, first at {first}\n"),
            &format!("  evidence    late answer: 200 at {when}, from fence 3: it was done\n"),
            "job.replay by maya: fixed ({\"state\":\"dead\"} → gone)\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert_eq!(
            advice(&told.id, &told.effect, &told.late_answers),
            format!(
                "clinch effects resolve job_01HZX5T0N8W2A/charge --done --proof 'late answer 200 at {when}' --reason TEXT"
            )
        );
    }

    #[test]
    fn d2_without_evidence_the_partner_is_asked_where_it_can_be() {
        let id = "job_01HZX5T0N8W2A/charge";
        assert_eq!(advice(id, &effect("unknown", "lookup"), &[]), format!("clinch effects verify {id}"));
        let by_hand = advice(id, &effect("unknown", "none"), &[late("not_done", Some(404))]);
        assert!(by_hand.starts_with("look at the partner, then clinch effects resolve"), "{by_hand}");
        assert!(late_line(&late("not_done", Some(404))).ends_with("from fence 3: it was not done"));
        assert!(late_line(&late("unknown", None)).starts_with("late answer: none at "));
    }

    #[test]
    fn d2_a_word_is_confirmed_once_and_the_next_step_is_told() {
        let told = |resolved, unknown_left, job_state: &str| EffectResolved {
            schema: String::new(),
            id: "job_1/charge".into(),
            resolved,
            state: "not_done".into(),
            job_id: "job_1".into(),
            job_state: job_state.into(),
            unknown_left,
        };
        assert_eq!(sentence(&told(true, 0, "dead")), "job_1/charge is taken as not done; your word is on record");
        assert_eq!(sentence(&told(false, 0, "dead")), "job_1/charge is not done already; nothing done");
        assert_eq!(after(&told(true, 0, "dead")).as_deref(), Some("clinch replay job_1 --reason TEXT"));
        assert_eq!(after(&told(true, 2, "dead")).as_deref(), Some("clinch effects ls state:unknown job:job_1"));
        assert_eq!(after(&told(true, 0, "success")), None);
    }

    #[test]
    fn d2_what_the_partner_says_is_told_beside_what_the_ledger_says() {
        let told = |found: &str, why: Option<&str>| EffectVerified {
            schema: String::new(),
            id: "job_1/charge".into(),
            found: found.into(),
            answer_status: why.is_none().then_some(200),
            why: why.map(String::from),
            state: "unknown".into(),
            job_state: "dead".into(),
        };
        assert_eq!(
            verdict(&told("done", None)),
            "job_1/charge: done, says the partner (the lookup answered 200); the ledger says unknown"
        );
        assert!(verdict(&told("not_done", None)).contains("not done, says the partner"));
        assert_eq!(verdict(&told("no_answer", Some("it slept"))), "job_1/charge: the partner does not say: it slept");
        assert!(verdict(&told("cannot_be_asked", Some("no rule"))).ends_with("cannot be asked: no rule"));
    }
}
