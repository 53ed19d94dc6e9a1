//! Logs: to standard error, without secrets, also when clinch itself fails.

use crate::masking::rules;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs go to standard error; `CLINCH_LOG` chooses what (default `info`).
pub fn start_logging(format: LogFormat) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("CLINCH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start in one process (a test) keeps the first.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            builder.with_target(false).with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
        }
    };
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        tracing::error!("clinch itself failed{place}: {}", failed(panic.payload_as_str().unwrap_or_default()));
    }));
}

/// What a panic says may have a piece of an event in it: it is masked like everything else.
fn failed(message: &str) -> String {
    rules().text(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t110_a_panic_shows_no_secret_and_nobodys_address() {
        let said = failed("byte index 3 is not a char boundary of `ada@example.com sk_live_canary4eC39HqLyjWDarjt`");
        assert!(
            said.starts_with("byte index 3 is not") && !said.contains("ada@") && !said.contains("canary"),
            "{said}"
        );
    }
}
