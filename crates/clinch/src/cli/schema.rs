//! `clinch schema`: the JSON Schema that gives completion in editors.

use super::exit::{Exit, Failure};
use super::render::{self, Output};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch schema --out clinch.schema.json
  and at the top of a file:  # yaml-language-server: $schema=../clinch.schema.json")]
pub struct Schema {
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Schema {
    pub fn run(&self) -> Result<Exit, Failure> {
        let schema = clinch_core::config::json_schema();
        match &self.out {
            None => render::json(Output::Json, &schema)?,
            Some(path) => {
                let text = serde_json::to_string_pretty(&schema).expect("a JSON value is always JSON") + "\n";
                std::fs::write(path, text).map_err(|error| {
                    Failure::new(Exit::Failed, "CL0531", format!("{} cannot be written: {error}", path.display()))
                })?;
                render::note(&format!("wrote {}", path.display()));
            }
        }
        Ok(Exit::Done)
    }
}
