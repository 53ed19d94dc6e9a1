//! `clinch demo`: a tour without a workspace of one's own.

use super::exit::{Exit, Failure};
use crate::demo::{self, Options};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch demo                    leaves the server running, to look around
  clinch demo --exit             only the summary; fails if an effect happened twice
  clinch demo --dir ./tour       keeps the workspace and the data there")]
pub struct Demo {
    /// Where the workspace and the data go; a temporary directory without it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// End after the summary
    #[arg(long)]
    exit: bool,
    /// How many events to send
    #[arg(long, default_value_t = 500, value_name = "N")]
    events: usize,
}

impl Demo {
    pub async fn run(self) -> Result<Exit, Failure> {
        // The summary tells the story; who wants the log asks for it.
        if std::env::var_os("CLINCH_LOG").is_some() {
            crate::telemetry::start_logging(crate::telemetry::LogFormat::Text);
        }
        let options = Options { dir: self.dir, exit: self.exit, events: self.events };
        demo::run(options).await.map_err(|said| Failure::new(Exit::Failed, "CL0534", said))?;
        Ok(Exit::Done)
    }
}
