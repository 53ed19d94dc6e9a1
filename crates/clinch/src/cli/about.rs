//! `clinch about`: what the server that runs is, and how it keeps what it keeps.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, RED, age, clean};
use crate::api::about;
use clap::Args;
use clinch_core::time::{Timestamp, human};
use std::fmt::Write;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct About;

impl About {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let answer = Client::open(globals)?.get::<about::About>(&["about"], &[]).await?;
        render::show(globals.output(), &answer.document, &answer.told.version, || text(&answer.told, render::now()))?;
        Ok(Exit::Done)
    }
}

fn text(told: &about::About, now: Timestamp) -> String {
    let mut text = format!("{BOLD}clinch {}{BOLD:#}  up for {}\n", clean(&told.clinch), age(told.started_at, now));
    let _ = writeln!(text, "workspace   {} ({}), {} files", clean(&told.version), clean(&told.hash), told.files.len());
    let (bytes, free) = (told.store_bytes >> 20, told.free_bytes >> 20);
    let _ = writeln!(text, "store       {}, {bytes} MB, {free} MB free", clean(&told.engine));
    if let Some(says) = &told.store_says {
        let _ = writeln!(text, "            {RED}{}{RED:#}", clean(says));
    }
    let key = told.active_key.as_deref().map_or_else(String::new, |key| format!(", writes with {}", clean(key)));
    let _ = writeln!(text, "encryption  {}{key}", clean(&told.encryption));
    for queue in &told.queues {
        let kept = human(Duration::from_secs(queue.retention_seconds));
        let _ = writeln!(text, "queue       {} keeps what ended for {kept}", clean(&queue.queue));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::at;

    #[test]
    fn i3_about_tells_what_runs_and_what_is_kept() {
        let told = about::About {
            schema: String::new(),
            clinch: "0.1.0".into(),
            version: "v2".into(),
            hash: "abc".into(),
            files: vec!["queues.yml".into()],
            started_at: at(0),
            engine: "sqlite".into(),
            store_bytes: 5 << 20,
            free_bytes: 9 << 30,
            store_says: None,
            encryption: "a key file".into(),
            active_key: Some("key_1".into()),
            queues: vec![about::QueueKept { queue: "orders".into(), retention_seconds: 86_400 }],
            console_hosts: Vec::new(),
        };
        let expected = "\
clinch 0.1.0  up for 1m
workspace   v2 (abc), 1 files
store       sqlite, 5 MB, 9216 MB free
encryption  a key file, writes with key_1
queue       orders keeps what ended for 1d
";
        assert_eq!(anstream::adapter::strip_str(&text(&told, at(60).0)).to_string(), expected);
    }
}
