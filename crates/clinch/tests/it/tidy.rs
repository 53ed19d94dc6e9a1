//! House rules that a compiler does not keep. Each failure says what to do instead.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(under: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(under)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no sources under {under}");
    found
}

#[test]
fn rooms_meet_in_the_store_and_never_in_each_other() {
    for room in ["intake", "worker", "keeper", "alerts", "api", "effects", "console", "traces"] {
        for (name, text) in sources(&format!("crates/clinch/src/{room}")) {
            for other in
                ["intake", "worker", "keeper", "alerts", "api", "effects", "console", "traces", "cli", "app", "demo"]
            {
                // The console is a client of the API, in the same process.
                let allowed = other == room || matches!((room, other), ("worker", "effects") | ("console", "api"));
                let imports = text.contains(&format!("crate::{other}::")) || text.contains(&format!("crate::{other};"));
                assert!(
                    allowed || !imports,
                    "{name} uses crate::{other}: let the two meet in the store or in core's types"
                );
            }
        }
    }
}

#[test]
fn time_and_dice_are_read_in_one_file() {
    for (name, text) in
        sources("crates/clinch/src").into_iter().chain(sources("crates/store/src")).chain(sources("crates/core/src"))
    {
        for reader in ["SystemTime::now", "fastrand::", "Timestamp::now"] {
            assert!(
                name.ends_with("clinch/src/clock.rs") || !text.contains(reader),
                "{name} has {reader}: take the time from the Clock that is handed in"
            );
        }
    }
}

#[test]
fn sql_is_spoken_in_the_store_only() {
    for (name, text) in sources("crates/clinch/src").into_iter().chain(sources("crates/core/src")) {
        for word in ["SELECT ", "INSERT INTO", "rusqlite"] {
            assert!(!text.contains(word), "{name} has `{word}`: add a verb or a question to clinch-store instead");
        }
    }
}

#[test]
fn only_the_gate_opens_connections_outward() {
    // The command line, the demo and trials are clients; which runtimes there are is asked of the machine, not of anybody outside; and the collector of
    // traces is the operator's own, like the store: no event can say where it is.
    let may = ["effects/", "cli/", "demo/", "trials/", "runtimes.rs", "traces/collector.rs"];
    for (name, text) in sources("crates/clinch/src") {
        for way in ["reqwest", "TcpStream::connect", "lookup_host", "Command::new"] {
            let is_gate = may.iter().any(|part| name.starts_with(&format!("crates/clinch/src/{part}")));
            assert!(is_gate || !text.contains(way), "{name} has {way}: pass the gate in effects/ instead");
        }
    }
}

#[test]
fn every_dead_letter_reason_has_a_meaning() {
    for reason in clinch_core::death::Reason::ALL {
        assert!(reason.meaning().len() > 20, "{reason} needs a sentence in core/death.rs");
    }
}
