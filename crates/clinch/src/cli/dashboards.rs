//! `clinch dashboards`: what Grafana imports. Needs no server.

use super::exit::{Exit, Failure};
use super::render;
use crate::dashboard;
use clap::Subcommand;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch dashboards print > clinch-overview.json       then in Grafana: Dashboards, New, Import")]
pub enum Dashboards {
    /// Print the dashboard of Grafana, as JSON
    Print,
}

impl Dashboards {
    pub fn run(&self) -> Result<Exit, Failure> {
        render::data(&serde_json::to_string_pretty(&dashboard::document()).expect("a document is JSON"))?;
        Ok(Exit::Done)
    }
}
