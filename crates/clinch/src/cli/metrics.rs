//! `clinch metrics`: every metric there is, as the code has it.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{Cell, Table};
use crate::telemetry::{Entry, Metrics};
use clap::Subcommand;
use serde_json::{Value, json};

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch metrics ls
  clinch metrics ls -o json | jq -r '.metrics[].name'
  curl http://127.0.0.1:7401/metrics       what they are now")]
pub enum MetricsCommand {
    /// List every metric: its name, its kind, its labels and what it means
    Ls,
}

impl MetricsCommand {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let entries = Metrics::list();
        table(&entries).print(globals.output(), &document(&entries), "metrics")?;
        Ok(Exit::Done)
    }
}

fn document(entries: &[Entry]) -> Value {
    let told = |entry: &Entry| {
        let labels = entry.labels.iter().map(|label| json!({ "name": label, "values": values(entry, label) }));
        json!({
            "name": entry.name,
            "type": entry.kind.word(),
            "labels": labels.collect::<Vec<_>>(),
            "help": entry.help,
        })
    };
    json!({ "schema": "clinch.metrics.list/v1", "metrics": entries.iter().map(told).collect::<Vec<_>>() })
}

fn values<'e>(entry: &'e Entry, label: &str) -> Option<&'e Vec<&'static str>> {
    entry.words.iter().find(|(of, _)| *of == label).map(|(_, words)| words)
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(&["NAME", "TYPE", "LABELS", "MEANING"]);
    for entry in entries {
        table.row(vec![
            Cell::text(entry.name),
            Cell::text(entry.kind.word()),
            Cell::text(entry.labels.join(", ")),
            Cell::text(entry.help),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::path::Path;

    const BEGIN: &str = "<!-- the list: clinch metrics ls -->\n";
    const END: &str = "<!-- the end of the list -->\n";

    fn list(entries: &[Entry]) -> String {
        let mut text = String::from("| Name | Type | Labels | Meaning |\n|---|---|---|---|\n");
        for entry in entries {
            let told = |label: &&str| match values(entry, label) {
                Some(words) => format!("{label}: {}", words.join(", ")),
                None => (*label).to_string(),
            };
            let labels: Vec<String> = entry.labels.iter().map(told).collect();
            let (name, kind, help) = (entry.name, entry.kind.word(), entry.help);
            let _ = writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join("; "));
        }
        text
    }

    #[test]
    fn h1_the_list_in_the_documentation_is_what_the_code_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let kept = std::fs::read_to_string(&path).expect("there");
        let (before, rest) = kept.split_once(BEGIN).expect("where the list begins");
        let (old, after) = rest.split_once(END).expect("where it ends");
        let new = list(&Metrics::list());
        if std::env::var_os("CLINCH_WRITE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{BEGIN}{new}{END}{after}")).expect("written");
            return;
        }
        let how = "CLINCH_WRITE_DOCS=1 cargo test -p clinch --lib h1_the_list";
        assert!(old == new, "the list in docs/metrics.md is old; write it again: {how}");
    }

    #[test]
    fn h1_every_metric_has_a_sound_name_and_says_what_it_means() {
        let entries = Metrics::list();
        for entry in &entries {
            let (name, help) = (entry.name, entry.help);
            let is_ours = name.starts_with("clinch_") || name.starts_with("process_");
            assert!(
                is_ours && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit()),
                "{name}"
            );
            assert_eq!(name.ends_with("_total"), entry.kind == crate::telemetry::Kind::Counter, "{name}");
            assert!(help.len() > 10 && !help.ends_with('.') && !help.contains('|'), "{name}: {help}");
            assert!(entry.words.iter().all(|(label, _)| entry.labels.contains(label)), "{name} has words for no label");
        }
        let mut names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        names.dedup();
        assert_eq!(names.len(), entries.len(), "a name is given twice");
    }
}
