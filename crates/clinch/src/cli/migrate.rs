//! `clinch migrate`: moves a stopped store from its directory into PostgreSQL.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, thousands};
use crate::crash;
use crate::encryption::KEY_FILE;
use clap::Args;
use clinch_store::StoreError;
use clinch_store::moving::{Moved, Step, carry};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch migrate --to postgres://clinch@db.internal/clinch                  the store in .clinch
  clinch migrate --from sqlite:/var/lib/clinch --to postgres://clinch@db.internal/clinch
  clinch migrate --from sqlite:/var/lib/clinch --to postgres://clinch@db.internal/clinch --json | jq .counts

Stop the server first. Everything is moved: events, keys, jobs in every state, attempts, effects, audit; ids stay the same.
The database must be empty, or hold an earlier run of the same move, which is then finished. The directory is left as it is
and marked: it is not served from any more. Running it again does no harm.
What is encrypted stays so, under the same keys: give them to the nodes in clinch.yml, such as `encryption: {file: KEYS}` with
a copy of encryption.key.")]
pub struct Migrate {
    /// The store to move: sqlite:DIRECTORY; the one in the data directory if not given
    #[arg(long, value_name = "STORE", value_parser = directory)]
    from: Option<PathBuf>,
    /// Where to: postgres://…
    #[arg(long, value_name = "STORE", value_parser = database)]
    to: String,
}

fn directory(store: &str) -> Result<PathBuf, String> {
    let path = store.strip_prefix("sqlite:").filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| "a store is moved from a directory: write sqlite:DIRECTORY".into())
}

// A wrong one is not repeated: it may have a password in it.
fn database(store: &str) -> Result<String, String> {
    let is_database = store.starts_with("postgres://") || store.starts_with("postgresql://");
    if is_database { Ok(store.into()) } else { Err("a store is moved into PostgreSQL: write postgres://…".into()) }
}

impl Migrate {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let from = self.from.as_ref().unwrap_or(&globals.data_dir);
        let bar = bar();
        let step = |step: Step| match step {
            Step::Events { done, of } => {
                bar.set_length(of.unsigned_abs());
                bar.set_position(done.unsigned_abs());
                if done > 0 {
                    crash::point("migrate_part");
                }
            }
            Step::Marked => crash::point("migrate_marked"),
        };
        let moved = carry(from, &self.to, render::now(), step).await;
        bar.finish_and_clear();
        let moved = moved.map_err(failure)?;
        let document = document(&moved, &from.display().to_string());
        render::show(globals.output(), &document, "", || text(&moved))?;
        if let Some(hint) = key_hint(from) {
            render::note(&hint);
        }
        render::next(globals.output(), &format!("clinch serve --store {}", moved.to));
        Ok(Exit::Done)
    }
}

/// Nodes share a key, so a database has none beside it: whoever serves from it next has to say where that of the directory is.
fn key_hint(from: &Path) -> Option<String> {
    let file = std::path::absolute(from.join(KEY_FILE)).ok().filter(|file| file.is_file())?;
    let file = file.display();
    Some(format!(
        "the key is in {file}: give it to every node as a secret, or write `encryption: {{file: {file}}}` into clinch.yml"
    ))
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:26.cyan/dim} {pos}/{len} events  {per_sec}  {eta}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn failure(error: StoreError) -> Failure {
    let failure = Failure::new(Exit::Failed, "CL0537", format!("The store was not moved: {error}"));
    match error {
        StoreError::Open(_) => failure.fix("stop whoever serves from the store, and name an empty database with --to"),
        StoreError::Unavailable(_) => failure.fix("run it again: what has arrived is not sent again"),
        _ => failure.fix("keep a copy of the directory, and report it"),
    }
}

fn document(moved: &Moved, from: &str) -> Value {
    let counts: Map<String, Value> =
        moved.totals.iter().map(|(kind, number)| (kind.replace(' ', "_"), json!(number))).collect();
    json!({
        "schema": "clinch.migrate/v1",
        "status": if moved.before { "already_moved" } else { "moved" },
        "from": from,
        "to": moved.to,
        "resumed": moved.resumed,
        "counts": counts,
    })
}

fn text(moved: &Moved) -> String {
    let counts: Vec<String> =
        moved.totals.iter().map(|(kind, number)| format!("{} {kind}", thousands(number.unsigned_abs()))).collect();
    let counts = counts.join(", ");
    match moved.before {
        true => format!("{BOLD}moved before{BOLD:#} to {}, where there are {counts} now\n", moved.to),
        false => format!("{BOLD}moved{BOLD:#} to {}: {counts}\nok: all of it arrived, and adds up\n", moved.to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k3_a_move_says_what_was_moved_and_where() {
        let mut moved = Moved {
            to: "postgres://clinch@db/clinch".into(),
            before: false,
            resumed: true,
            totals: vec![("events", 1_200), ("audit rows", 3)],
        };
        let told = anstream::adapter::strip_str(&text(&moved)).to_string();
        assert!(told.starts_with("moved to postgres://clinch@db/clinch: 1,200 events, 3 audit rows\n"), "{told}");
        let document = document(&moved, "/data");
        assert_eq!((&document["status"], &document["counts"]["audit_rows"]), (&json!("moved"), &json!(3)));
        moved.before = true;
        assert!(text(&moved).contains("moved before"));
    }

    #[test]
    fn k3_a_store_is_moved_from_a_directory_into_a_database() {
        assert_eq!(directory("sqlite:/data"), Ok("/data".into()));
        assert!(directory("postgres://a@b/c").is_err() && directory("sqlite:").is_err());
        let refused = database("mysql://u:secret@h/d").expect_err("no database of ours");
        assert!(!refused.contains("secret"));
    }

    #[test]
    fn k4_whoever_moved_a_store_is_told_where_its_key_is() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(key_hint(directory.path()), None);
        std::fs::write(directory.path().join(KEY_FILE), "").expect("written");
        let hint = key_hint(directory.path()).expect("there is a key");
        assert!(hint.contains(&directory.path().join(KEY_FILE).display().to_string()), "{hint}");
    }
}
