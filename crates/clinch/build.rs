//! What built this: told by `clinch_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CLINCH_REVISION");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).arg("--version").output().ok();
    let said = said.and_then(|said| String::from_utf8(said.stdout).ok()).unwrap_or_default();
    // `rustc 1.95.0 (… 2026-…)`
    let version = said.split_whitespace().nth(1).unwrap_or("unknown");
    println!("cargo::rustc-env=CLINCH_RUSTC={version}");
}
