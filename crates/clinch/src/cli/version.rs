//! `clinch version`.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render;
use serde_json::json;

pub fn run(globals: &Globals) -> Result<Exit, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let document = json!({ "schema": "clinch.version/v1", "version": version, "os": os, "arch": arch });
    render::show(globals.output(), &document, version, || format!("clinch {version} {os} {arch}"))?;
    Ok(Exit::Done)
}
