//! `clinch top`: the overview in the terminal, again and again.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, DIM, Output, RED, age, clean, cut, state, thousands};
use crate::api::objective::{Objective, Stars};
use crate::api::overview::{EndToEnd, Window};
use crate::api::shapes::{FlowNow, Overview};
use clap::Args;
use clinch_core::time::human;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const AGAIN: Duration = Duration::from_secs(2);
const BAR_WIDTH: u64 = 24;
/// From the upper left corner, over what was there.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch top                          until Ctrl-C
  clinch top --window 24h
  clinch top --json | jq '.needs'     once, for programs

Jobs and what needs a person are those of the whole installation; what was counted in the window is of that node, since its start.")]
pub struct Top {
    /// What was counted in the last …
    #[arg(long, default_value = "1h", value_parser = ["15m", "1h", "6h", "24h"], value_name = "TIME")]
    window: String,
}

impl Top {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (client, output) = (Client::open(globals)?, globals.output());
        loop {
            let answer = client.get::<Overview>(&["overview"], &[("window", self.window.clone())]).await?;
            if output != Output::Table {
                render::show(output, &answer.document, "", || text(&answer.told))?;
                return Ok(Exit::Done);
            }
            render::data(&format!("{CLEAR}{}{DIM}every {}; Ctrl-C ends it{DIM:#}", text(&answer.told), human(AGAIN)))?;
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn text(told: &Overview) -> String {
    let now = told.at.0;
    let mut text = format!("{BOLD}clinch {}{BOLD:#}  workspace {}  {now}\n", clean(&told.clinch), clean(&told.version));
    for mode in &told.safe_mode {
        let since = age(mode.since, now);
        let (scope, actor, reason) = (clean(&mode.scope), clean(&mode.actor), clean(&mode.reason));
        let _ = writeln!(text, "{RED}safe mode is on{RED:#} ({scope}) for {since} by {actor}: {reason}");
    }
    if told.needs.is_empty() {
        text += "nothing needs you\n";
    }
    for need in &told.needs {
        let since = need.since.map_or_else(String::new, |since| format!(", for {}", age(since, now)));
        let (said, command) = (cut(&clean(&need.said), 160), clean(&need.command));
        let _ = writeln!(text, "{RED}!{RED:#} {said}{since}\n    {DIM}{command}{DIM:#}");
    }
    let sum = |of: fn(&FlowNow) -> u64| -> u64 { told.flows.iter().map(of).sum() };
    let states = [
        ("queued", sum(|flow| flow.queued)),
        ("running", sum(|flow| flow.running)),
        ("waiting", sum(|flow| flow.waiting)),
        ("retrying", sum(|flow| flow.retrying)),
        ("dead", sum(|flow| flow.dead)),
    ];
    let states = states.map(|(word, jobs)| format!("{} {}", state(word), thousands(jobs)));
    let _ = writeln!(text, "\njobs       {}", states.join("   "));
    let mut waiting: BTreeMap<&str, u64> = BTreeMap::new();
    told.waiting.iter().for_each(|one| *waiting.entry(&one.waits_for).or_default() += one.jobs);
    if !waiting.is_empty() {
        let waiting: Vec<String> =
            waiting.iter().map(|(why, jobs)| format!("{} {}", clean(why), thousands(*jobs))).collect();
        let _ = writeln!(text, "waiting    for {}", waiting.join(", "));
    }
    if let Some((at, flow)) = told.flows.iter().filter_map(|flow| Some((flow.oldest_at?, &flow.flow))).min() {
        let _ = writeln!(text, "oldest     {}  {}", age(at, now), clean(flow));
    }
    if let Some(window) = &told.window {
        text += &counted(window);
    }
    text += &objective(told);
    dead_letters(&mut text, told);
    text
}

fn counted(window: &Window) -> String {
    let counted = &window.counted;
    let causes: Vec<String> =
        window.rejections.iter().map(|some| format!("{} {}", clean(&some.outcome), thousands(some.requests))).collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    let mut text = format!("\n{DIM}last {}, on this node since {}{DIM:#}\n", clean(&window.window), window.since.0);
    let _ = writeln!(
        text,
        "intake     accepted {}   duplicates {}   rejected {}{causes}",
        thousands(counted.accepted),
        thousands(counted.duplicates),
        thousands(counted.rejected)
    );
    let _ = writeln!(
        text,
        "ended      success {}   noop {}   dead {}   effects not repeated {}",
        thousands(counted.success),
        thousands(counted.noop),
        thousands(counted.dead),
        thousands(counted.effects_saved)
    );
    let EndToEnd { p50, p95, p99, within_target, target_seconds, jobs, cut } = window.end_to_end;
    let seconds = |value: Option<f64>| match value.and_then(|value| Duration::try_from_secs_f64(value).ok()) {
        Some(span) => human(span),
        None => "-".into(),
    };
    let share = within_target.map_or_else(String::new, |share| {
        format!("   {} % within {target_seconds} s", (share * 1_000.0).floor() / 10.0)
    });
    let of = if cut { format!("   (the newest {jobs} jobs)") } else { String::new() };
    let _ = writeln!(text, "end to end p50 {}   p95 {}   p99 {}{share}{of}", seconds(p50), seconds(p95), seconds(p99));
    text
}

/// The objective with how fast it is missed, and the other north stars.
fn objective(told: &Overview) -> String {
    let Objective { end_to_end_seconds, target, burning, windows } = &told.objective;
    let rates = windows.iter().filter_map(|one| Some(format!("   {} {:.1}", clean(&one.window), one.rate?)));
    let style = if burning == "no" { anstyle::Style::new() } else { RED };
    let share = (target * 100_000.0).round() / 1_000.0;
    let mut text = format!(
        "objective  {share} % within {end_to_end_seconds} s   burns {style}{}{style:#}{}\n",
        clean(burning),
        rates.collect::<String>()
    );
    let Stars { steps, protected, dead_in_day, replayed_in_day } = told.stars;
    let (dead, replayed) = (thousands(dead_in_day), thousands(replayed_in_day));
    let _ = writeln!(
        text,
        "protected  {protected} of {steps} steps that act outside   dead in 24h {dead}   replayed well within 24h {replayed}"
    );
    text
}

fn dead_letters(text: &mut String, told: &Overview) {
    let most = told.dead.iter().map(|group| group.jobs).max().unwrap_or(0).max(1);
    if !told.dead.is_empty() {
        let _ = writeln!(text, "\n{DIM}dead letters by reason{DIM:#}");
    }
    for group in told.dead.iter().take(10) {
        let bar = "#".repeat(usize::try_from((group.jobs * BAR_WIDTH / most).max(1)).unwrap_or(1));
        let (reason, flow, jobs) = (clean(&group.reason), clean(&group.flow), thousands(group.jobs));
        let _ = writeln!(text, "{reason:<20} {jobs:>9}  {bar:<24}  {flow}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::needs::Need;
    use crate::api::objective::BurnNow;
    use crate::api::overview::{Counted, Rejections};
    use crate::api::shapes::sample::at;
    use crate::api::shapes::{DeadNow, StoreNow, WaitingNow};

    #[test]
    fn i1_top_says_what_needs_a_person_first() {
        let counted =
            Counted { accepted: 12_431, duplicates: 318, rejected: 41, success: 11_902, ..Counted::default() };
        let told = Overview {
            schema: String::new(),
            clinch: "0.1.0".into(),
            version: "v42".into(),
            at: at(3_600),
            needs: vec![Need {
                kind: "dead_letters".into(),
                about: None,
                count: 37,
                said: "37 dead letters: jobs that gave up".into(),
                since: Some(at(0)),
                command: "clinch dlq groups".into(),
                page: "/dead".into(),
            }],
            alerts: Vec::new(),
            safe_mode: Vec::new(),
            flows: vec![FlowNow { flow: "orders".into(), queued: 164, waiting: 12, dead: 37, ..FlowNow::default() }],
            dead: vec![DeadNow { flow: "orders".into(), reason: "auth_failed".into(), jobs: 37 }],
            waiting: vec![WaitingNow { flow: "orders".into(), waits_for: "circuit".into(), jobs: 12, oldest_at: None }],
            window: Some(Window {
                window: "1h".into(),
                since: at(0),
                until: at(3_600),
                counted,
                rejections: vec![Rejections { outcome: "bad_signature".into(), requests: 41 }],
                end_to_end: EndToEnd {
                    jobs: 2_000,
                    cut: true,
                    p50: Some(1.2),
                    p95: Some(9.8),
                    p99: None,
                    target_seconds: 30.0,
                    within_target: Some(0.9916),
                },
                parts: Vec::new(),
            }),
            objective: Objective {
                end_to_end_seconds: 30.0,
                target: 0.95,
                burning: "slowly".into(),
                windows: vec![
                    BurnNow { window: "5m".into(), jobs: 0, missed: 0, rate: None },
                    BurnNow { window: "30m".into(), jobs: 100, missed: 50, rate: Some(10.0) },
                ],
            },
            stars: Stars { steps: 14, protected: 12, dead_in_day: 37, replayed_in_day: 30 },
            store: StoreNow {
                unwell: None,
                warning: None,
                bytes: 0,
                free_bytes: 0,
                pending_verbs: 0,
                commits: 0,
                write_errors: 0,
            },
        };
        let text = anstream::adapter::strip_str(&super::text(&told)).to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        let expected = "\
! 37 dead letters: jobs that gave up, for 1h
    clinch dlq groups

jobs       queued 164   running 0   waiting 12   retrying 0   dead 37
waiting    for circuit 12
";
        assert!(lines.join("\n").starts_with(expected.trim_end()), "{text}");
        assert!(
            text.contains("intake     accepted 12,431   duplicates 318   rejected 41 (bad_signature 41)\n"),
            "{text}"
        );
        let speed = "end to end p50 1.2s   p95 9.8s   p99 -   99.1 % within 30 s   (the newest 2000 jobs)\n";
        assert!(text.contains(speed), "{text}");
        assert!(text.contains("objective  95 % within 30 s   burns slowly   30m 10.0\n"), "{text}");
        let stars = "protected  12 of 14 steps that act outside   dead in 24h 37   replayed well within 24h 30\n";
        assert!(text.contains(stars), "{text}");
        assert!(text.contains("auth_failed                 37  ########################  orders\n"), "{text}");
    }
}
