//! The command line. Standard output is data; everything else goes to standard error.

mod about;
mod alerts;
mod aliases;
mod apply;
mod approve;
mod audit;
mod audit_idempotency;
mod budget;
mod check;
mod client;
mod commit;
mod completions;
mod dashboards;
mod demo;
mod diff;
mod dlq;
mod doctor;
mod drop;
mod dry_run;
mod effects;
mod events;
mod exit;
mod explain;
mod find;
mod findings;
mod flows;
mod forget;
mod init;
mod integrations;
mod jobs;
mod key;
mod keys;
mod latency;
mod listen;
mod metrics;
mod migrate;
mod open;
mod openapi;
mod pause;
mod plan;
mod presets;
mod problems;
mod prompt;
mod proxy;
mod render;
mod replay;
mod runbook;
mod safe_mode;
mod schedules;
mod schema;
mod send;
mod serve;
mod set;
mod skill;
mod sources;
mod stream;
mod test;
mod token;
mod top;
mod trace;
mod users;
mod verify;
mod verify_signature;
mod version;

pub use exit::Exit;

use clap::{Args, Parser, Subcommand};
use exit::Failure;
use render::{Color, Output};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Parser, Debug)]
#[command(
    name = "clinch",
    version,
    about = "Turns webhooks into side effects that happen once.",
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  clinch demo                                   see it work, with a target that fails on purpose
  clinch init contacts                          a workspace to start from
  clinch test                                   does it do what its tests say?
  clinch check .                                is this workspace right?
  clinch serve --workspace .                    run it
  clinch send /hooks/signup -d '{\"id\":1}' --key k-1
  clinch find evt_1Qw8Zx2eZvKYlo2C              a provider's id, a key, a trace, a job: whatever you have
  clinch trace job_01HZX5T0N8W2A                its life as a waterfall: attempts, waits, effects
  clinch dlq groups                             what gave up, and why
  clinch replay job_01HZX5T0N8W2A --reason 'token rotated, INC-482'
  clinch effects ls state:unknown               what may or may not have happened

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 not allowed, 5 conflict, 6 config invalid,
7 server not reachable, 8 done but not all of it ended well, 9 refused by a guard, 10 something is different or was found
(only with --exit-code), 124 --wait ran out.";

/// What every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Where the server keeps its data, its token and its address
    #[arg(long, global = true, env = "CLINCH_DATA_DIR", default_value = ".clinch", value_name = "DIR")]
    data_dir: PathBuf,
    /// The admin address of the server; found in the data directory if not given. The token is read from CLINCH_TOKEN,
    /// or from the data directory
    #[arg(long, global = true, env = "CLINCH_URL", value_name = "URL")]
    url: Option<String>,
    /// How to print: a table on a terminal, otherwise plain (tab-separated)
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// The same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
    /// The Idempotency-Key of a command that changes something: the same command under the same id is carried out once, for 24 hours
    #[arg(long, global = true, value_name = "ID")]
    request_id: Option<String>,
    /// When to use colour; NO_COLOR is honoured
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,
}

impl Globals {
    fn output(&self) -> Output {
        match self.output {
            _ if self.json => Output::Json,
            Some(asked) => asked,
            None => Output::usual(),
        }
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a workspace to start from, with its tests
    Init(init::Init),
    /// Run the server: intake, workers, keeper and admin API
    Serve(serve::Serve),
    /// Put idempotency in front of an HTTP API that has none
    Proxy(proxy::Proxy),
    /// Read a workspace and tell every problem in it
    Check(check::Check),
    /// Walk six questions over a workspace: what is protected against twice, what is not, and the line to change
    AuditIdempotency(audit_idempotency::AuditIdempotency),
    /// What a change of the workspace means: for keys, jobs in flight, those who are called; and its lines
    Diff(diff::Diff),
    /// Recorded or given events through the files, beside what is live; nothing is sent
    DryRun(dry_run::DryRunCommand),
    /// Make files live, after showing what that means; on all nodes, on record
    Apply(apply::Apply),
    /// Make a version live again that was
    Rollback(apply::Rollback),
    /// Run the tests of a workspace: events in, what must come of them out
    Test(test::Test),
    /// Print the JSON Schema of the workspace files, for editors
    Schema(schema::Schema),
    /// Print the OpenAPI document of the API
    #[command(name = "openapi")]
    OpenApi(openapi::OpenApi),
    /// Post an event to the intake, once or many times
    Send(send::Send),
    /// Find what a text names: an id, a key, a trace, an address; or jobs by words
    Find(find::Find),
    /// Draw the life of an event as a waterfall: deliveries, waits, attempts, effects, approvals, replays
    Trace(trace::Trace),
    /// The overview in the terminal: what needs a person, jobs by state, what came in
    Top(top::Top),
    /// What happens on the server, as it happens
    Listen(listen::Listen),
    /// List jobs, or show everything about one
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// List what came in, and how often it came again
    #[command(subcommand)]
    Events(events::Events),
    /// Dead letters: jobs that gave up
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// Run a dead letter again, under the same keys, on record
    Replay(replay::Replay),
    /// What was done outside, and what may or may not have happened
    #[command(subcommand)]
    Effects(effects::Effects),
    /// What runs, in which versions of the workspace, and what is different between two
    #[command(subcommand)]
    Flows(flows::Flows),
    /// Whom the server calls: circuits, times, limits, and what waits for them
    #[command(subcommand)]
    Integrations(integrations::Integrations),
    /// Stop a queue, flow, playbook, integration, source or all replays; events are still accepted
    Pause(pause::Pause),
    /// Let go on what was paused
    Resume(pause::Resume),
    /// What is paused, since when, by whom and why
    Pauses(pause::Pauses),
    /// Hold what cannot be taken back, and let it go again at a bearable rate
    #[command(subcommand)]
    SafeMode(safe_mode::SafeMode),
    /// Change retries, limits, budgets, caps and safe mode of the running system, or see what can be changed
    Set(set::Set),
    /// Let the file count again
    Unset(set::Unset),
    /// What waits for people, and your vote on it
    #[command(subcommand)]
    Approve(approve::Approve),
    /// Retry budgets: who has used how much, and more for one
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Workers that run by themselves: when, and a run now
    #[command(subcommand)]
    Schedules(schedules::Schedules),
    /// The history of an idempotency key
    #[command(subcommand)]
    Key(key::Key),
    /// What the store is encrypted with, and a change of key while it serves
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Erase what is kept of one person; the books stay as they are
    Forget(forget::Forget),
    /// Who did what, from where and why, and whether that record is whole
    #[command(subcommand)]
    Audit(audit::Audit),
    /// How long jobs take: histogram and percentiles
    Latency(latency::Latency),
    /// What is counted, for Prometheus
    #[command(subcommand)]
    Metrics(metrics::MetricsCommand),
    /// The dashboard of Grafana
    #[command(subcommand)]
    Dashboards(dashboards::Dashboards),
    /// Prove from the store alone that nothing vanished; also while the server is down
    Verify(verify::Verify),
    /// Move a stopped store from its directory into PostgreSQL, with everything in it
    Migrate(migrate::Migrate),
    /// Who may send to the running server, and how that is proven
    #[command(subcommand)]
    Sources(sources::Sources),
    /// Providers whose webhooks are known: how they sign, what recognises an event
    #[command(subcommand)]
    Presets(presets::Presets),
    /// Tokens that senders of your own prove themselves with
    #[command(subcommand)]
    Token(token::Token),
    /// A link into the console, which logs you in once
    Open(open::Open),
    /// Who may ask and do what: people with roles, their passwords and tokens
    #[command(subcommand)]
    Users(users::Users),
    /// What is wrong now, who is told, and the rules; silences for a while
    #[command(subcommand)]
    Alerts(alerts::Alerts),
    /// What to do about an alert, or about dead letters by their reason
    Runbook(runbook::Runbook),
    /// Look at everything that a server needs, and say what to do
    Doctor(doctor::Doctor),
    /// What a code means that was printed, and what to do about it
    Explain(explain::Explain),
    /// Say whether a webhook's signature is right, and if not, why
    VerifySignature(verify_signature::VerifySignature),
    /// What clinch knows for coding agents, as files that they read
    #[command(subcommand)]
    Skill(skill::Skill),
    /// Short names for runbooks: dlq_tail, replay_msg, latency_histogram
    #[command(subcommand)]
    Aliases(aliases::Aliases),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// What the running server is: its workspace, its store, and how long it keeps what
    About(about::About),
    /// Print the version
    Version,
    /// A tour: a workspace, a target that misbehaves, a burst of events, and the count at the target
    Demo(demo::Demo),
}

/// Reads the command line, or ends the process with help or a usage error.
pub fn parse(args: Vec<OsString>) -> Cli {
    let (args, alias) = aliases::expand(args);
    let cli = Cli::parse_from(args);
    cli.globals.color.apply();
    if let Some(alias) = alias {
        render::note(&alias);
    }
    cli
}

/// Does what was asked.
pub async fn run(cli: Cli) -> Exit {
    let globals = &cli.globals;
    let done = match cli.command {
        Command::Init(command) => command.run(globals),
        Command::Serve(command) => command.run(globals).await,
        Command::Proxy(command) => command.run(globals).await,
        Command::Check(command) => command.run(globals).await,
        Command::AuditIdempotency(command) => command.run(globals),
        Command::Diff(command) => command.run(globals).await,
        Command::DryRun(command) => command.run(globals).await,
        Command::Apply(command) => command.run(globals).await,
        Command::Rollback(command) => command.run(globals).await,
        Command::Test(command) => command.run(globals).await,
        Command::Schema(command) => command.run(),
        Command::OpenApi(command) => command.run(),
        Command::Send(command) => command.run(globals).await,
        Command::Find(command) => command.run(globals).await,
        Command::Trace(command) => command.run(globals).await,
        Command::Top(command) => command.run(globals).await,
        Command::Listen(command) => command.run(globals).await,
        Command::Jobs(command) => command.run(globals).await,
        Command::Events(command) => command.run(globals).await,
        Command::Dlq(command) => command.run(globals).await,
        Command::Replay(command) => command.run(globals).await,
        Command::Effects(command) => command.run(globals).await,
        Command::Flows(command) => command.run(globals).await,
        Command::Integrations(command) => command.run(globals).await,
        Command::Pause(command) => command.run(globals).await,
        Command::Resume(command) => command.run(globals).await,
        Command::Pauses(command) => command.run(globals).await,
        Command::SafeMode(command) => command.run(globals).await,
        Command::Set(command) => command.run(globals).await,
        Command::Unset(command) => command.run(globals).await,
        Command::Approve(command) => command.run(globals).await,
        Command::Budget(command) => command.run(globals).await,
        Command::Schedules(command) => command.run(globals).await,
        Command::Key(command) => command.run(globals).await,
        Command::Keys(command) => command.run(globals).await,
        Command::Forget(command) => command.run(globals).await,
        Command::Audit(command) => command.run(globals).await,
        Command::Latency(command) => command.run(globals).await,
        Command::Metrics(command) => command.run(globals),
        Command::Dashboards(command) => command.run(),
        Command::Verify(command) => command.run(globals).await,
        Command::Migrate(command) => command.run(globals).await,
        Command::Sources(command) => command.run(globals).await,
        Command::Presets(command) => command.run(globals),
        Command::Token(command) => command.run(globals).await,
        Command::Open(command) => command.run(globals).await,
        Command::Users(command) => command.run(globals).await,
        Command::Alerts(command) => command.run(globals).await,
        Command::Runbook(command) => command.run(globals),
        Command::Doctor(command) => command.run(globals).await,
        Command::Explain(command) => command.run(globals),
        Command::VerifySignature(command) => command.run(globals).await,
        Command::Skill(command) => command.run(globals),
        Command::Aliases(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::About(command) => command.run(globals).await,
        Command::Version => version::run(globals),
        Command::Demo(command) => command.run().await,
    };
    done.unwrap_or_else(|failure: Failure| {
        failure.print();
        failure.exit
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_output_is_a_usage_error_also_in_the_wrong_case() {
        for bad in ["xml", "JSON"] {
            let error = Cli::try_parse_from(["clinch", "jobs", "ls", "-o", bad]).expect_err("not an output");
            assert_eq!(error.exit_code(), i32::from(Exit::Usage as u8));
        }
    }

    #[test]
    fn the_words_of_the_old_runbooks_are_understood() {
        for line in [
            "clinch replay --id job_01HZX5T0N8W2A --reason fixed",
            "clinch replay job_01HZX5T0N8W2A --reason fixed --wait",
            "clinch replay job_01HZX5T0N8W2A --reason fixed --wait=5s --unknown skip --config live",
            "clinch latency --window 15m --percentile 95",
            "clinch latency --window 15m --percentile 95,99.9",
            "clinch dlq tail -f",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
