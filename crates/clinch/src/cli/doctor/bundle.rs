//! A file for somebody who helps: what the doctor found, names and hashes of files, and what the server counted. No secret, no payload
//! and no text of a workspace is in it.

use super::checks::Patient;
use crate::masking::rules;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub async fn write(path: &Path, findings: &Value, patient: &Patient) -> std::io::Result<()> {
    let about = json!({
        "clinch": env!("CARGO_PKG_VERSION"),
        "system": std::env::consts::OS,
        "machine": std::env::consts::ARCH,
        "server": patient.server(),
        "workspace": patient.files(),
    });
    let pretty = |value: &Value| serde_json::to_string_pretty(value).expect("a JSON value is always JSON");
    let mut files = vec![("about.json", pretty(&about)), ("doctor.json", pretty(findings))];
    if let Some(metrics) = patient.metrics().await {
        files.push(("metrics.txt", metrics));
    }
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    for (name, text) in files {
        // Whatever it says, personal data is masked as everywhere.
        let text: String = text.lines().map(|line| rules().sentence(line) + "\n").collect();
        out.write_all(&header(name, text.len()))?;
        out.write_all(text.as_bytes())?;
        out.write_all(&vec![0; text.len().next_multiple_of(512) - text.len()])?;
    }
    out.write_all(&[0; 1024])?;
    std::fs::write(path, out.finish()?)
}

/// The head of a file in a tar archive (ustar).
fn header(name: &str, length: usize) -> [u8; 512] {
    let mut head = [0u8; 512];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, &format!("clinch-report/{name}"));
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{length:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}
