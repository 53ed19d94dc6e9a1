//! `clinch integrations`: whom the server calls, how that goes, and what is kept from them.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, RED, Table, age, clean, count};
use crate::api::integrations::{CircuitShow, Integration, IntegrationList, IntegrationShow};
use clap::{Args, Subcommand};
use clinch_core::time::{Timestamp, human};
use std::fmt::Write;
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch integrations ls
  clinch integrations show crm --window 1h
  clinch pause integration:crm --reason 'their migration, INC-482' --until 2h

Calls, times and circuits are what that node has seen since its start.")]
pub enum Integrations {
    /// Circuit, share of calls that went well, times and limits of each
    Ls(Within),
    /// Everything about one
    Show {
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        within: Within,
    },
}

#[derive(Args, Debug)]
pub struct Within {
    /// Calls of the last …
    #[arg(long, default_value = "15m", value_parser = ["15m", "1h", "6h", "24h"], value_name = "TIME")]
    window: String,
}

impl Integrations {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (client, output) = (Client::open(globals)?, globals.output());
        match self {
            Integrations::Ls(within) => {
                let query = [("window", within.window.clone())];
                let answer = client.get::<IntegrationList>(&["integrations"], &query).await?;
                table(&answer.told).print(output, &answer.document, "integrations")?;
                let open = answer.told.integrations.iter().find(|one| state(one) != "closed" && one.circuit.is_some());
                match open {
                    Some(open) => render::next(output, &format!("clinch integrations show {}", open.name)),
                    None if answer.told.integrations.is_empty() => render::note("no step calls anybody"),
                    None => {}
                }
            }
            Integrations::Show { name, within } => {
                let query = [("window", within.window.clone())];
                let answer = client.get::<IntegrationShow>(&["integrations", name], &query).await?;
                let told = &answer.told;
                render::show(output, &answer.document, name, || text(&told.integration, &told.window, render::now()))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn state(one: &Integration) -> &str {
    one.circuit.as_ref().map_or("-", |circuit| circuit.state.as_str())
}

fn table(told: &IntegrationList) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "CIRCUIT",
        "CALLS",
        "OK",
        "P50",
        "P95",
        "P99",
        "OURS P95",
        "IN FLIGHT",
        "RATE",
        "WAITING",
        "HELD",
    ]);
    for one in &told.integrations {
        let circuit = match state(one) {
            word @ ("open" | "half_open") => Cell::alarm(word),
            word => Cell::text(word),
        };
        table.row(vec![
            Cell::text(&one.name),
            circuit,
            Cell::number(one.calls),
            Cell::text(share(one.ok)),
            Cell::text(seconds(one.p50)),
            Cell::text(seconds(one.p95)),
            Cell::text(seconds(one.p99)),
            Cell::text(seconds(one.wait_p95)),
            Cell::text(places(one)),
            Cell::text(one.rate.as_deref().unwrap_or("-")),
            Cell::number(one.waiting),
            if one.paused.is_some() { Cell::alarm("paused") } else { held(one) },
        ]);
    }
    table
}

fn held(one: &Integration) -> Cell {
    if one.safe_mode.is_some() { Cell::alarm("safe mode") } else { Cell::text("-") }
}

fn places(one: &Integration) -> String {
    one.concurrency.map_or_else(|| one.in_flight.to_string(), |most| format!("{} / {most}", one.in_flight))
}

fn share(ok: Option<f64>) -> String {
    ok.map_or_else(|| "-".into(), |ok| format!("{} %", (ok * 1_000.0).floor() / 10.0))
}

fn seconds(value: Option<f64>) -> String {
    let span = value.and_then(|value| Duration::try_from_secs_f64(value).ok());
    span.map_or_else(|| "-".into(), human)
}

fn text(one: &Integration, window: &str, now: Timestamp) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}  class {}\n", clean(&one.name), clean(&one.class));
    match &one.circuit {
        None => text += "circuit    none: it is called however it fares\n",
        Some(CircuitShow { state, since, why, probe_at, rule, .. }) => {
            let since = since.map_or_else(String::new, |since| format!(" for {}", age(since, now)));
            let style = if state == "closed" { anstyle::Style::new() } else { RED };
            let _ = writeln!(text, "circuit    {style}{}{style:#}{since}", clean(state));
            if let Some(why) = why {
                let _ = writeln!(text, "           {}", clean(why));
            }
            if let Some(at) = probe_at {
                let _ = writeln!(text, "           asked again in {}", human(at.0.since(now)));
            }
            let _ = writeln!(text, "           {}", clean(rule));
        }
    }
    let (p50, p95, p99) = (seconds(one.p50), seconds(one.p95), seconds(one.p99));
    let calls = count(usize::try_from(one.calls).unwrap_or(usize::MAX), "call");
    let _ = writeln!(text, "last {window:<6}{calls}, {} ok   p50 {p50}   p95 {p95}   p99 {p99}", share(one.ok));
    let (p50, p95, p99) = (seconds(one.wait_p50), seconds(one.wait_p95), seconds(one.wait_p99));
    let _ = writeln!(text, "           waited for our own limits before   p50 {p50}   p95 {p95}   p99 {p99}");
    let rate = one.rate.as_deref().unwrap_or("none");
    let used = one.rate_used.map_or_else(String::new, |used| format!(", {} used on this node", share(Some(used))));
    let _ = writeln!(text, "limits     in flight {}   rate {}{used}", places(one), clean(rate));
    let waiting = count(usize::try_from(one.waiting).unwrap_or(usize::MAX), "job");
    let _ = writeln!(text, "waiting    {waiting}: they keep their place, and a wait is not a try");
    if let Some(pause) = &one.paused {
        let (actor, reason) = (clean(&pause.actor), clean(&pause.reason));
        let _ = writeln!(text, "paused     for {} by {actor}: {reason}", age(pause.since, now));
    }
    if let Some(mode) = &one.safe_mode {
        let (scope, reason) = (clean(&mode.scope), clean(&mode.reason));
        let _ = writeln!(text, "safe mode  on ({scope}) for {}: {reason}", age(mode.since, now));
    }
    if one.unresolved > 0 {
        let effects = count(usize::try_from(one.unresolved).unwrap_or(usize::MAX), "effect");
        let _ =
            writeln!(text, "unknown    {effects}: clinch effects ls state:unknown integration:{}", clean(&one.name));
    }
    let flows = if one.flows.is_empty() { "no flow".into() } else { one.flows.join(", ") };
    let _ = writeln!(text, "called by  {}", clean(&flows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::at;

    fn crm() -> Integration {
        Integration {
            name: "crm".into(),
            declared: true,
            class: "create".into(),
            circuit: Some(CircuitShow {
                state: "open".into(),
                since: Some(at(0)),
                why: Some("61 of 100 calls within 30s failed; the limit is 50 %".into()),
                probe_at: Some(at(100)),
                rule: "opens at once".into(),
                turns: Vec::new(),
            }),
            calls: 100,
            failed: 61,
            ok: Some(0.39),
            p50: Some(0.21),
            p95: Some(2.9),
            p99: None,
            wait_p50: Some(0.0),
            wait_p95: Some(1.5),
            wait_p99: None,
            rate_used: Some(0.25),
            in_flight: 0,
            concurrency: Some(10),
            rate: Some("100/10s".into()),
            waiting: 88,
            unresolved: 0,
            paused: None,
            safe_mode: None,
            flows: vec!["leads".into()],
        }
    }

    #[test]
    fn e3_an_open_circuit_says_why_and_when_it_is_asked_again() {
        let text = anstream::adapter::strip_str(&text(&crm(), "15m", at(60).0)).to_string();
        let expected = "\
crm  class create
circuit    open for 1m
           61 of 100 calls within 30s failed; the limit is 50 %
           asked again in 40s
           opens at once
last 15m   100 calls, 39 % ok   p50 210ms   p95 2.9s   p99 -
           waited for our own limits before   p50 0ms   p95 1.5s   p99 -
limits     in flight 0 / 10   rate 100/10s, 25 % used on this node
waiting    88 jobs: they keep their place, and a wait is not a try
called by  leads
";
        assert_eq!(text, expected);
    }
}
