//! The one binary: server, command line and runbook aliases.

use clinch::cli;
use std::process::ExitCode;

/// Requests are parsed on one thread and freed on another, all day long: the C library's allocator spends an eighth of
/// intake's time on that. Its version 2, because 3 takes longer to find again what another thread has freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let asked = cli::parse(std::env::args_os().collect());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(cli::run(asked)).into(),
        Err(error) => {
            eprintln!("error: threads cannot be started: {error}");
            cli::Exit::Failed.into()
        }
    }
}
