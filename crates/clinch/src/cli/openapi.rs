//! `clinch openapi`: the API, described for machines. Needs no server.

use super::exit::{Exit, Failure};
use super::render;
use crate::api::openapi;
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch openapi > openapi.json
  curl -H \"Authorization: Bearer $CLINCH_TOKEN\" http://127.0.0.1:7401/api/v1/openapi.json    the same, of a running server")]
pub struct OpenApi {}

impl OpenApi {
    pub fn run(&self) -> Result<Exit, Failure> {
        render::data(&serde_json::to_string_pretty(&openapi::document()).expect("a document is JSON"))?;
        Ok(Exit::Done)
    }
}
