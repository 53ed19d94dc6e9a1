//! `clinch latency`: how long jobs take, as a histogram with percentiles.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, thousands};
use crate::api::shapes;
use clap::{Args, ValueEnum};
use clinch_core::time::{human, parse_duration};
use std::fmt::Write;
use std::time::Duration;

const BAR_WIDTH: usize = 26;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch latency --window 15m --percentile 95
  clinch latency --window 1h --percentile 50,95,99.9 --stage wait
  clinch latency --json | jq '.stages[] | {stage, p95}'")]
pub struct Latency {
    /// Jobs accepted in the last …
    #[arg(long, default_value = "15m", value_parser = window, value_name = "TIME")]
    window: String,
    /// Which percentiles
    #[arg(long, default_value = "95", value_delimiter = ',', value_parser = percentile, value_name = "P")]
    percentile: Vec<f64>,
    /// Which part of the way
    #[arg(long, value_enum, default_value_t)]
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Accepted to the end
    #[default]
    EndToEnd,
    /// Accepted to the first attempt
    Wait,
    /// First attempt to the end
    Run,
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Stage::EndToEnd => "end_to_end",
            Stage::Wait => "wait",
            Stage::Run => "run",
        }
    }
}

/// A length of time that the server will read again.
fn window(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.to_string()).map_err(|error| error.to_string())
}

fn percentile(text: &str) -> Result<f64, String> {
    let read = text.trim().parse().ok().filter(|p: &f64| *p > 0.0 && *p <= 100.0);
    read.ok_or_else(|| "write a number above 0, to 100".into())
}

impl Latency {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let client = Client::open(globals)?;
        let asked = self.percentile.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
        let query = [("window", self.window.clone()), ("percentile", asked)];
        let answer = client.get::<shapes::Latency>(&["latency"], &query).await?;
        render::show(globals.output(), &answer.document, "", || text(&answer.told, self.stage.word()))?;
        if answer.told.jobs == 0 {
            render::note("no job that was accepted in this window has ended; try a longer --window");
        }
        Ok(Exit::Done)
    }
}

fn text(told: &shapes::Latency, word: &str) -> String {
    let window = human(Duration::try_from_secs_f64(told.window_seconds).unwrap_or_default());
    let Some(stage) = told.stages.iter().find(|stage| stage.stage == word) else {
        return String::new();
    };
    let asked: Vec<String> =
        stage.percentiles.iter().map(|p| format!("p{} {}", p.percentile, seconds(p.seconds))).collect();
    let mut text = format!(
        "{}, all flows, {window}, n={}   {BOLD}{}{BOLD:#}   (p50 {}  p99 {}  max {})\n",
        word.replace('_', " "),
        thousands(told.jobs as u64),
        asked.join("  "),
        seconds(stage.p50),
        seconds(stage.p99),
        seconds(stage.max),
    );
    let most = stage.buckets.iter().map(|bucket| bucket.jobs).max().unwrap_or(0);
    let mut below = 0.0;
    // Empty buckets are told only between full ones.
    let first = stage.buckets.iter().position(|bucket| bucket.jobs > 0);
    let last = stage.buckets.iter().rposition(|bucket| bucket.jobs > 0);
    for (place, bucket) in stage.buckets.iter().enumerate() {
        let name = match bucket.le {
            Some(le) => format!("<= {le} s"),
            None => format!(" > {below} s"),
        };
        let above = std::mem::replace(&mut below, bucket.le.unwrap_or(f64::INFINITY));
        if Some(place) < first || Some(place) > last {
            continue;
        }
        let inside = |p: &&shapes::Percentile| p.seconds.is_some_and(|at| at <= below && (at > above || above == 0.0));
        let marks: Vec<String> =
            stage.percentiles.iter().filter(inside).map(|p| format!("p{}", p.percentile)).collect();
        let mark = if marks.is_empty() { String::new() } else { format!("  <- {}", marks.join(", ")) };
        let jobs = thousands(bucket.jobs as u64);
        let _ = writeln!(text, "  {name:<10} {:<BAR_WIDTH$} {jobs:>9}{mark}", bar(bucket.jobs, most));
    }
    let others: Vec<String> =
        told.stages.iter().map(|stage| format!("{} {}", stage.stage, seconds(stage.p95))).collect();
    let _ = writeln!(text, "by stage p95: {}", others.join("   "));
    let attempts = [
        ("p50", told.attempts.p50),
        ("p95", told.attempts.p95),
        ("p99", told.attempts.p99),
        ("max", told.attempts.max),
    ];
    let attempts: Vec<String> =
        attempts.iter().filter_map(|(name, attempts)| Some(format!("{name} {}", (*attempts)?))).collect();
    if !attempts.is_empty() {
        let _ = writeln!(text, "attempts: {}", attempts.join("   "));
    }
    if told.cut {
        text += "only the newest jobs of the window were counted\n";
    }
    text
}

/// A bucket that is not empty is never invisible.
fn bar(jobs: usize, most: usize) -> String {
    match (jobs * BAR_WIDTH).checked_div(most) {
        None => String::new(),
        Some(0) if jobs > 0 => "|".into(),
        Some(length) => "#".repeat(length),
    }
}

fn seconds(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value < 0.001 => format!("{:.0} us", value * 1e6),
        Some(value) if value < 1.0 => format!("{:.0} ms", value * 1e3),
        Some(value) if value < 10.0 => format!("{value:.1} s"),
        Some(value) => format!("{value:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::at;
    use crate::api::shapes::{Bucket, Percentile};

    #[test]
    fn a_histogram_marks_the_percentile_that_was_asked_for() {
        let stage = shapes::Stage {
            stage: "end_to_end".into(),
            p50: Some(0.05),
            p95: Some(9.8),
            p99: Some(29.0),
            max: Some(58.0),
            percentiles: vec![Percentile { percentile: 95.0, seconds: Some(9.8) }],
            buckets: vec![
                Bucket { le: Some(0.05), jobs: 0 },
                Bucket { le: Some(0.1), jobs: 2_600 },
                Bucket { le: Some(10.0), jobs: 300 },
                Bucket { le: None, jobs: 1 },
            ],
        };
        let told = shapes::Latency {
            schema: String::new(),
            window_seconds: 900.0,
            since: at(0),
            jobs: 2_901,
            cut: false,
            stages: vec![stage],
            attempts: shapes::Attempts { p50: Some(1), p95: Some(3), p99: Some(5), max: Some(12) },
        };
        let text = anstream::adapter::strip_str(&text(&told, "end_to_end")).to_string();
        let expected = "\
end to end, all flows, 15m, n=2,901   p95 9.8 s   (p50 50 ms  p99 29 s  max 58 s)
  <= 0.1 s   ##########################     2,600
  <= 10 s    ###                              300  <- p95
   > 10 s    |                                  1
by stage p95: end_to_end 9.8 s
attempts: p50 1   p95 3   p99 5   max 12
";
        assert_eq!(text, expected);
    }

    #[test]
    fn bars_and_spans_are_told_shortly() {
        assert_eq!((bar(0, 0), bar(0, 9), bar(1, 1_000)), (String::new(), String::new(), "|".into()));
        let told: Vec<String> = [0.0004, 0.25, 1.24, 61.4].map(|value| seconds(Some(value))).into();
        assert_eq!(told, ["400 us", "250 ms", "1.2 s", "61 s"]);
    }
}
