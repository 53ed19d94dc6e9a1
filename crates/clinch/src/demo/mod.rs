//! `clinch demo`: a workspace, a target that misbehaves, a burst of events; then a summary counted at the target.

mod sink;

use crate::app::{self, App, Roles};
use clinch_core::audit::Who;
use clinch_core::job::Word;
use clinch_store::read::JobFilter;
use clinch_store::{ReviveAsk, Revived};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sink::Sink;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Where the workspace and the data go; a temporary directory without it.
    pub dir: Option<PathBuf>,
    /// End after the summary instead of leaving the server running.
    pub exit: bool,
    pub events: usize,
}

/// Posts under way at once.
const SENDERS: usize = 32;
/// The demonstration gives up waiting for its jobs after this long.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn run(options: Options) -> Result<(), String> {
    let temporary = tempfile::Builder::new().prefix("clinch-demo-").tempdir().map_err(|e| e.to_string())?;
    let directory = options.dir.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    let sink = Sink::start().await.map_err(|error| format!("the demo's target cannot be started: {error}"))?;
    write_workspace(&directory, sink.address).map_err(|error| format!("{}: {error}", directory.display()))?;
    let app = start(&directory).await?;
    let intake = app.intake.ok_or("the demo has no intake")?;
    say(&format!("workspace  {}", directory.display()));
    say(&format!("intake     http://{intake}/hooks/signup"));
    say(&format!("target     http://{} (fails some calls on purpose)", sink.address));

    let count = options.events.clamp(10, 100_000);
    let answers = burst(intake, count).await?;
    settled(&app).await?;
    let dead = dead_letters(&app).await?;
    say(&format!("\nThe target refuses {} events for good. It is repaired now, and they are replayed:", dead.len()));
    sink.repair();
    let replayed = replay(&app, &dead).await?;
    settled(&app).await?;

    let summary =
        Summary { answers, dead: dead.len(), replayed, left: dead_letters(&app).await?.len(), target: sink.count() };
    print!("{summary}");
    let verdict = summary.verdict(count);
    if options.exit || verdict.is_err() {
        app.stop().await;
        return verdict;
    }
    invite(&app, &directory);
    // Only a signal that cannot be listened for ends the wait early.
    let _ = tokio::signal::ctrl_c().await;
    app.stop().await;
    Ok(())
}

fn say(line: &str) {
    eprintln!("{line}");
}

async fn start(directory: &Path) -> Result<App, String> {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut options = app::Options {
        workspace: directory.to_path_buf(),
        data_dir: directory.join(".clinch"),
        store: None,
        listen: None,
        admin: None,
        tls: None,
        admin_tls: None,
        roles: Roles::ALL,
        proxy: None,
        watch: false,
        grace: Duration::from_secs(5),
        rehearsal: None,
    };
    match app::start(options.clone()).await {
        // The usual ports are taken: any others will do for a demonstration.
        Err(app::StartError::Io(_)) => {
            options.listen = Some(any);
            options.admin = Some(any);
            app::start(options).await.map_err(|error| error.to_string())
        }
        started => started.map_err(|error| error.to_string()),
    }
}

fn write_workspace(directory: &Path, sink: SocketAddr) -> std::io::Result<()> {
    for (path, text) in [
        ("queues.yml", include_str!("workspace/queues.yml").to_string()),
        ("flows/signup.yml", include_str!("workspace/signup.yml").to_string()),
        ("workers/welcome.yml", include_str!("workspace/welcome.yml").replace("127.0.0.1:9", &sink.to_string())),
    ] {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Answers {
    accepted: usize,
    duplicates: usize,
    refused: usize,
}

/// Every event once, every fifth one twice, a few at a time.
async fn burst(intake: SocketAddr, events: usize) -> Result<Answers, String> {
    let client = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
    let order: Vec<usize> = (0..events).flat_map(|n| std::iter::repeat_n(n, 1 + usize::from(n % 5 == 0))).collect();
    let bar = bar(order.len() as u64, "posting");
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let order = Arc::new(order);
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (client, next, order, bar) = (client.clone(), next.clone(), order.clone(), bar.clone());
        senders.spawn(async move {
            let mut answers = Answers::default();
            while let Some(n) = order.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                match post(&client, intake, *n).await {
                    Ok(false) => answers.accepted += 1,
                    Ok(true) => answers.duplicates += 1,
                    Err(()) => answers.refused += 1,
                }
                bar.inc(1);
            }
            answers
        });
    }
    let mut all = Answers::default();
    while let Some(one) = senders.join_next().await {
        let one = one.map_err(|error| error.to_string())?;
        all.accepted += one.accepted;
        all.duplicates += one.duplicates;
        all.refused += one.refused;
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Whether the answer was a repeated one.
async fn post(client: &reqwest::Client, intake: SocketAddr, n: usize) -> Result<bool, ()> {
    let plan = if n % 50 == 7 { "broken" } else { "pro" };
    let answer = client
        .post(format!("http://{intake}/hooks/signup"))
        .header("idempotency-key", format!("signup-{n}"))
        .header("content-type", "application/json")
        .body(format!(r#"{{"user":{n},"plan":"{plan}","email":"user{n}@example.com"}}"#))
        .send()
        .await
        .map_err(|_| ())?;
    if answer.status() != 202 {
        return Err(());
    }
    Ok(answer.headers().contains_key("idempotent-replayed"))
}

/// Waits until no job is unfinished, showing how many are.
async fn settled(app: &App) -> Result<(), String> {
    let bar = bar(0, "running");
    let began = app.house.clock.now();
    loop {
        let counts = app.house.store.counts().await.map_err(|error| error.to_string())?;
        let live: u64 = counts.live.iter().map(|(_, _, jobs)| jobs).sum();
        bar.set_length(live.max(bar.length().unwrap_or(0)));
        bar.set_position(bar.length().unwrap_or(0) - live);
        if live == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        if app.house.clock.now().since(began) > PATIENCE {
            return Err(format!("{live} jobs did not end within {} s", PATIENCE.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn bar(length: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:10} [{bar:40}] {pos}/{len}").expect("the template is right");
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr())
        .with_style(style.progress_chars("##."));
    bar.set_message(what.to_string());
    bar
}

async fn dead_letters(app: &App) -> Result<Vec<clinch_core::id::JobId>, String> {
    let filter = JobFilter { word: Some(Word::Dead), limit: 1_000, ..JobFilter::default() };
    let page = app.house.store.jobs(filter).await.map_err(|error| error.to_string())?;
    Ok(page.rows.into_iter().map(|row| row.id).collect())
}

async fn replay(app: &App, jobs: &[clinch_core::id::JobId]) -> Result<usize, String> {
    let mut replayed = 0;
    for job in jobs {
        let ask = ReviveAsk {
            job: *job,
            record: Who::clinch("demo").record("the target was repaired", app.house.clock.now()),
            version: None,
            unknown: None,
        };
        let revived = app.house.store.revive(ask).await.map_err(|error| error.to_string())?;
        replayed += usize::from(matches!(revived, Revived::Revived { .. }));
    }
    Ok(replayed)
}

struct Summary {
    answers: Answers,
    dead: usize,
    replayed: usize,
    /// Dead letters after the replay.
    left: usize,
    target: sink::Count,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Answers { accepted, duplicates, .. } = self.answers;
        let sink::Count { calls, effects, retried, repeated } = self.target;
        writeln!(f, "\naccepted             {accepted:>7}   answered 202 after they were on disk")?;
        writeln!(f, "duplicates stopped   {duplicates:>7}   got the first answer again, no second job")?;
        writeln!(f, "retried              {retried:>7}   failed at first, worked later")?;
        writeln!(f, "dead letters         {:>7}   refused by the target", self.dead)?;
        writeln!(f, "replayed             {:>7}   after the repair; {} are left", self.replayed, self.left)?;
        writeln!(f, "effects at target    {effects:>7}   in {calls} calls")?;
        writeln!(f, "effects repeated     {repeated:>7}")
    }
}

impl Summary {
    /// The promises, held against what the target saw.
    fn verdict(&self, events: usize) -> Result<(), String> {
        let right = self.answers.accepted == events
            && self.answers.refused == 0
            && self.target.repeated == 0
            && self.target.effects == events
            && self.left == 0;
        if right { Ok(()) } else { Err("the figures above do not add up; please report this".into()) }
    }
}

fn invite(app: &App, directory: &Path) {
    let data = directory.join(".clinch");
    say("\nThe server goes on. In another terminal:");
    say(&format!("  export CLINCH_DATA_DIR={}", data.display()));
    say("  clinch jobs ls");
    say("  clinch key show signup-5");
    say("  clinch send signup -d '{\"user\": 1001, \"plan\": \"pro\"}' --key signup-1001");
    say("  clinch latency --window 15m --percentile 95");
    if let Some(admin) = app.admin {
        say(&format!("  curl http://{admin}/metrics"));
    }
    say("Press Ctrl-C to end it.");
}
