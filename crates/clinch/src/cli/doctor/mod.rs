//! `clinch doctor`: looks at everything that a server needs, with or without one that runs, and says what to do.

mod bundle;
mod checks;

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{self, Output, RED};
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch doctor                        all of it
  clinch doctor store                  only the store
  clinch doctor --url http://clinch.internal:7401
  clinch doctor --bundle report.tar.gz a file to send to somebody who helps: no secrets, no payloads, no workspace files

It looks up the hosts of integrations and shakes hands with them over TLS; it sends them nothing.")]
pub struct Doctor {
    /// Only this
    #[arg(value_enum, value_name = "AREA")]
    area: Option<Area>,
    /// The workspace; that of the running server if not given
    #[arg(long, env = "CLINCH_WORKSPACE", value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Also write what was found to this file, for somebody who helps
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Area {
    Config,
    Clock,
    Disk,
    Store,
    Dns,
    Tls,
    Secrets,
    Alerts,
    Otel,
    Permissions,
}

impl Area {
    const ALL: [Area; 10] = [
        Area::Config,
        Area::Clock,
        Area::Disk,
        Area::Store,
        Area::Dns,
        Area::Tls,
        Area::Secrets,
        Area::Alerts,
        Area::Otel,
        Area::Permissions,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub area: &'static str,
    pub verdict: Verdict,
    /// What was looked at, and what was seen.
    pub seen: String,
    /// What to do, if something is to be done.
    pub fix: Option<String>,
}

impl Doctor {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let patient = checks::Patient::meet(globals, self.workspace.as_deref()).await;
        let mut findings = Vec::new();
        for area in Area::ALL.into_iter().filter(|area| self.area.is_none_or(|asked| asked == *area)) {
            findings.extend(patient.check(area).await);
        }
        let document = json!({
            "schema": "clinch.doctor/v1",
            "server": patient.server(),
            "failed": count(&findings, Verdict::Fail),
            "warnings": count(&findings, Verdict::Warn),
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        });
        if let Some(path) = &self.bundle {
            bundle::write(path, &document, &patient).await.map_err(|error| {
                Failure::new(Exit::Failed, "CL0531", format!("{} cannot be written: {error}", path.display()))
            })?;
            render::note(&format!("wrote {}; look into it before you send it", path.display()));
        }
        match globals.output() {
            output @ (Output::Json | Output::Jsonl) => render::json(output, &document)?,
            Output::Id => {}
            Output::Table | Output::Plain => render::data(&text(&findings))?,
        }
        match count(&findings, Verdict::Fail) {
            0 => Ok(Exit::Done),
            failed => {
                let said = format!("{failed} of {} failed", render::count(findings.len(), "check"));
                Err(Failure::new(Exit::Failed, "CL0555", said))
            }
        }
    }
}

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    findings.iter().filter(|finding| finding.verdict == verdict).count()
}

impl Finding {
    fn json(&self) -> Value {
        json!({"area": self.area, "verdict": self.verdict.word(), "seen": self.seen, "fix": self.fix})
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        }
    }

    fn style(self) -> Style {
        match self {
            Verdict::Ok => Style::new(),
            Verdict::Warn => AnsiColor::Yellow.on_default(),
            Verdict::Fail => RED,
        }
    }
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { area, verdict, seen, fix } in findings {
        let style = verdict.style();
        let _ = writeln!(text, "{style}{:<5}{style:#} {area:<12}{}", verdict.word(), render::clean(seen));
        if let Some(fix) = fix {
            let _ = writeln!(text, "{:<18}fix: {}", "", render::clean(fix));
        }
    }
    let (failed, warned) = (count(findings, Verdict::Fail), count(findings, Verdict::Warn));
    let _ = write!(text, "{} ok, {}, {failed} failed", count(findings, Verdict::Ok), render::count(warned, "warning"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_told_with_what_to_do() {
        let finding = |verdict, fix: Option<&str>| Finding {
            area: "disk",
            verdict,
            seen: "9 GB free".into(),
            fix: fix.map(String::from),
        };
        let told = text(&[finding(Verdict::Ok, None), finding(Verdict::Fail, Some("make room"))]);
        let plain = anstream::adapter::strip_str(&told).to_string();
        let expected = "\
ok    disk        9 GB free
FAIL  disk        9 GB free
                  fix: make room
1 ok, 0 warnings, 1 failed";
        assert_eq!(plain, expected);
    }
}
