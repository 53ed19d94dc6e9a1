//! Trials of a workspace, carried out in the real house: the embedded store in a directory of its own, the intake on a loopback
//! socket, workers, keeper and API, with stand-ins for everybody outside. Pauses are jumped over: the clock is put forward when all
//! that is left to do is due later.

mod clock;
pub mod foresight;

use crate::api::approvals::ApprovalList;
use crate::app::{self, App, Options, Roles};
use crate::letters;
use crate::rehearsal::Rehearsal;
use crate::stand_ins::{StandIns, secrets};
use clinch_core::config::Workspace;
use clinch_core::effect::EffectWord;
use clinch_core::id::JobId;
use clinch_core::integration::Integration;
use clinch_core::job::{Waits, Word};
use clinch_core::trial::{Act, Letter, SeenAct, SeenAnswer, SeenCall, SeenJob, Trial, What, call_differences};
use clinch_store::read::{JobFilter, JobRow, LIST_ROWS_MAX};
use clock::JumpingClock;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A trial that does not come to rest in this time of the machine has gone wrong.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is due is begun within this, unless something is in its way.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// The keeper looks more often than this.
const KEEPER_LOOKS: Duration = Duration::from_millis(1_100);
const TICK: Duration = Duration::from_millis(2);
/// Nothing is waited for that is further away.
const AHEAD_MAX: Duration = Duration::from_secs(400 * 86_400);
/// Directories that are only looked into: they are large, and nothing of clinch writes there.
const LINKED: &[&str] = &["node_modules", "target", "venv", ".venv"];

/// What came of a trial.
#[derive(Debug)]
pub struct Outcome {
    /// None: all is as it was expected.
    pub differences: Vec<String>,
    /// What was jumped over.
    pub skipped: Duration,
    pub took: Duration,
    pub calls: Vec<SeenCall>,
}

/// Why no trial of a workspace can be carried out: somebody outside whom nothing stands in for.
pub fn obstacle(workspace: &Workspace) -> Option<String> {
    let is_away = |partner: &&Arc<Integration>| {
        let Some(url) = &partner.url else { return false };
        let (clinch_core::expr::Template::Plain(text) | clinch_core::expr::Template::Mixed(text)) = url;
        !text.starts_with("sqlite:")
    };
    let away = workspace.integrations.iter().find(is_away)?;
    Some(format!(
        "integration `{}` is a database, and nothing stands in for one; write `url: sqlite:FILE` to test it",
        away.name
    ))
}

/// Carries out one trial, in a copy of the workspace.
pub async fn run(workspace: &Workspace, directory: &Path, trial: &Trial) -> Outcome {
    let began = Instant::now();
    let mut outcome =
        Outcome { differences: Vec::new(), skipped: Duration::ZERO, took: Duration::ZERO, calls: Vec::new() };
    if let Err(why) = perform(workspace, directory, trial, &mut outcome).await {
        outcome.differences.push(why);
    }
    outcome.took = began.elapsed();
    outcome
}

async fn perform(workspace: &Workspace, directory: &Path, trial: &Trial, outcome: &mut Outcome) -> Result<(), String> {
    let unknown = trial.answers.iter().find(|(name, _)| workspace.integration(name).is_none() && !name.contains('.'));
    if let Some((name, _)) = unknown {
        return Err(format!("`answers` names `{name}`, which is no integration of clinch.yml and no host"));
    }
    let place = tempfile::Builder::new().prefix("clinch-test-").tempdir().map_err(|error| error.to_string())?;
    let copy_at = place.path().join("workspace");
    copy(directory, &copy_at).map_err(|error| format!("the workspace cannot be copied: {error}"))?;
    let secrets = secrets::made_up(workspace);
    let stand_ins = StandIns::start(workspace, &copy_at, |name| secrets.get(name).cloned()).await?;
    for (name, replies) in &trial.answers {
        stand_ins.answer(name, replies.iter().cloned());
    }
    let clock = Arc::new(JumpingClock::new(trial.at));
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let options = Options {
        workspace: copy_at.clone(),
        data_dir: place.path().join("data"),
        store: None,
        listen: Some(any),
        admin: Some(any),
        tls: None,
        admin_tls: None,
        roles: Roles::ALL,
        proxy: None,
        watch: false,
        grace: Duration::from_secs(5),
        rehearsal: Some(Rehearsal {
            clock: clock.clone(),
            detour: Arc::new(stand_ins.detour()),
            secrets: secrets.clone(),
            reads_environment: false,
        }),
    };
    let app = app::start(options).await.map_err(|error| format!("the workspace is not served: {error}"))?;
    let http = reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())?;
    let stage = Stage { app: &app, workspace, directory: &copy_at, clock: &clock, secrets: &secrets, http };
    let acted = stage.act_all(trial, outcome).await;
    app.stop().await;
    outcome.calls = stand_ins.calls();
    acted?;
    if let Some(wanted) = &trial.calls {
        outcome.differences.extend(call_differences(wanted, &outcome.calls));
    }
    Ok(())
}

/// A house in which a trial is carried out.
struct Stage<'a> {
    app: &'a App,
    workspace: &'a Workspace,
    directory: &'a Path,
    clock: &'a JumpingClock,
    secrets: &'a BTreeMap<String, String>,
    http: reqwest::Client,
}

impl Stage<'_> {
    async fn act_all(&self, trial: &Trial, outcome: &mut Outcome) -> Result<(), String> {
        for (place, act) in trial.acts.iter().enumerate() {
            let seen = self.act(act, outcome).await.map_err(|why| format!("step {}: {why}", place + 1))?;
            let found = act.expect.differences(&seen);
            outcome.differences.extend(found.into_iter().map(|found| format!("step {}: {found}", place + 1)));
        }
        Ok(())
    }

    async fn act(&self, act: &Act, outcome: &mut Outcome) -> Result<SeenAct, String> {
        let before: BTreeSet<JobId> = self.jobs().await?.iter().map(|job| job.id).collect();
        let (answer, about) = match &act.what {
            What::Send(letter) => self.send(letter).await?,
            What::Replay(reason) => (None, About::Jobs(self.replay(reason).await?)),
            What::Approve(reason) => (None, About::Jobs(self.decide("approve", reason).await?)),
            What::Reject(reason) => (None, About::Jobs(self.decide("reject", reason).await?)),
            What::Wait(pause) => {
                self.clock.jump(crate::clock::Clock::now(self.clock) + *pause);
                outcome.skipped += *pause;
                // Terms that ran out are noticed by the keeper, who looks every now and then.
                tokio::time::sleep(KEEPER_LOOKS).await;
                (None, About::Jobs(before.iter().copied().collect()))
            }
        };
        outcome.skipped += self.settle().await?;
        let rows = self.jobs().await?;
        let is_meant = |row: &&JobRow| match &about {
            About::Event(event) => row.event.to_string() == *event,
            About::Jobs(jobs) => jobs.contains(&row.id),
            About::New => !before.contains(&row.id),
        };
        let mut jobs = Vec::new();
        for row in rows.iter().filter(is_meant) {
            jobs.push(self.seen(row).await?);
        }
        jobs.sort_by(|one, other| one.worker.cmp(&other.worker));
        Ok(SeenAct { answer, jobs })
    }

    async fn send(&self, letter: &Letter) -> Result<(Option<SeenAnswer>, About), String> {
        let intake = self.app.intake.ok_or("there is no intake")?;
        let mut last = None;
        for _ in 0..letter.times {
            let secret = |name: &str| self.secrets.get(name).cloned();
            let now = crate::clock::Clock::now(self.clock);
            let post = letters::post(self.workspace, self.directory, letter, secret, now)?;
            let method = post.method.parse::<reqwest::Method>().map_err(|error| error.to_string())?;
            let mut request = self.http.request(method, format!("http://{intake}{}", post.path)).body(post.body);
            for (name, value) in &post.headers {
                request = request.header(name, value);
            }
            let answer = request.send().await.map_err(|error| format!("the intake does not answer: {error}"))?;
            let (status, is_replayed) =
                (answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed"));
            let text = answer.text().await.map_err(|error| error.to_string())?;
            let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
            last = Some(SeenAnswer { status, is_replayed, body });
        }
        let about = match last.as_ref().and_then(|answer| answer.body["event_id"].as_str()) {
            Some(event) => About::Event(event.to_string()),
            None => About::New,
        };
        Ok((last, about))
    }

    /// As an operator does it, one by one.
    async fn replay(&self, reason: &str) -> Result<Vec<JobId>, String> {
        let dead: Vec<JobId> =
            self.jobs().await?.into_iter().filter(|job| job.word == Word::Dead).map(|job| job.id).collect();
        if dead.is_empty() {
            return Err("there is no dead letter to replay".into());
        }
        for job in &dead {
            self.command(&format!("jobs/{job}/replay"), &json!({"reason": reason})).await?;
        }
        Ok(dead)
    }

    async fn decide(&self, vote: &str, reason: &str) -> Result<Vec<JobId>, String> {
        let list: ApprovalList = self.ask("approvals?state=pending").await?;
        if list.approvals.is_empty() {
            return Err("nothing waits for a person".into());
        }
        let mut jobs = Vec::new();
        for approval in &list.approvals {
            let path = format!("approvals/{}/{}/decide", approval.job_id, approval.step);
            self.command(&path, &json!({"vote": vote, "reason": reason})).await?;
            jobs.extend(approval.job_id.parse::<JobId>().ok());
        }
        Ok(jobs)
    }

    fn request(&self, method: reqwest::Method, path: &str) -> Result<reqwest::RequestBuilder, String> {
        let (admin, token) =
            (self.app.admin.ok_or("there is no API")?, self.app.new_token.as_deref().unwrap_or_default());
        Ok(self.http.request(method, format!("http://{admin}/api/v1/{path}")).bearer_auth(token))
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = self.request(reqwest::Method::GET, path)?.send().await.map_err(|error| error.to_string())?;
        answer.json().await.map_err(|error| format!("{path}: {error}"))
    }

    async fn command(&self, path: &str, body: &Value) -> Result<(), String> {
        let answer = self.request(reqwest::Method::POST, path)?.json(body).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(format!("{path} was refused: {}", answer.text().await.unwrap_or_default())),
        }
    }

    async fn jobs(&self) -> Result<Vec<JobRow>, String> {
        let filter = JobFilter { limit: LIST_ROWS_MAX, ..JobFilter::default() };
        let page = self.app.house.store.jobs(filter).await.map_err(|error| error.to_string())?;
        Ok(page.rows)
    }

    /// Until nothing moves: every job has ended, or waits for somebody. How much time was jumped over.
    async fn settle(&self) -> Result<Duration, String> {
        let (began, mut moved, mut skipped) = (Instant::now(), Instant::now(), Duration::ZERO);
        let mut last = Vec::new();
        loop {
            let now = crate::clock::Clock::now(self.clock);
            let open: Vec<JobRow> = self.jobs().await?.into_iter().filter(|job| !job.word.is_over()).collect();
            let state: Vec<_> = open.iter().map(|job| (job.id, job.word, job.attempts, job.run_at)).collect();
            if state != last {
                (last, moved) = (state, Instant::now());
            }
            let is_busy = open.iter().any(|job| job.word == Word::Running || job.run_at.is_some_and(|at| at <= now));
            // What waits for people waits until they say something.
            let alone =
                open.iter().filter(|job| !matches!(job.waits, Some(Waits::Approval | Waits::Paused | Waits::SafeMode)));
            let next = alone.filter_map(|job| job.run_at).filter(|at| at.since(now) <= AHEAD_MAX).min();
            match next {
                _ if is_busy && moved.elapsed() < STUCK_AFTER => {}
                Some(at) if at > now => {
                    skipped += at.since(now);
                    self.clock.jump(at);
                }
                _ => return Ok(skipped),
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{} jobs did not come to rest within {} s", open.len(), PATIENCE.as_secs()));
            }
            tokio::time::sleep(TICK).await;
        }
    }

    async fn seen(&self, row: &JobRow) -> Result<SeenJob, String> {
        let story = self.app.house.store.job(row.id).await.map_err(|error| error.to_string())?;
        let effects = story.map(|story| story.effects).unwrap_or_default();
        let effects = effects
            .into_iter()
            .filter_map(|effect| Some((effect.name, effect.state.word().parse::<EffectWord>().ok()?)));
        Ok(SeenJob {
            worker: self
                .workspace
                .worker_for(&row.queue)
                .map_or_else(|| row.queue.to_string(), |worker| worker.name.clone()),
            state: row.word,
            reason: row.reason,
            attempts: row.attempts,
            effects: effects.collect(),
            error: row.error.clone(),
        })
    }
}

/// Which jobs an act is about.
enum About {
    Event(String),
    Jobs(Vec<JobId>),
    New,
}

/// What clinch may write in is copied; the rest is linked.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let target = to.join(&name);
        if LINKED.contains(&&*text) {
            std::os::unix::fs::symlink(std::path::absolute(entry.path())?, target)?;
        } else if text.starts_with('.') {
            // Data, secrets and version control are no part of a workspace.
        } else if entry.path().is_dir() {
            // A server follows links as well. One that leads to where it is has no end.
            if !from.canonicalize()?.starts_with(entry.path().canonicalize()?) {
                copy(&entry.path(), &target)?;
            }
        } else if entry.path().is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j4_a_folder_that_is_a_link_is_part_of_the_workspace_that_is_tested() {
        let place = tempfile::tempdir().expect("a directory");
        let (shared, workspace, copied) =
            (place.path().join("shared"), place.path().join("workspace"), place.path().join("copied"));
        std::fs::create_dir_all(&shared).expect("made");
        std::fs::create_dir_all(workspace.join("flows")).expect("made");
        std::fs::write(shared.join("order.v1.json"), "{}").expect("written");
        std::os::unix::fs::symlink("../shared", workspace.join("schemas")).expect("linked");
        std::os::unix::fs::symlink("..", workspace.join("flows/up")).expect("linked");
        copy(&workspace, &copied).expect("copied");
        assert!(copied.join("schemas/order.v1.json").is_file() && copied.join("flows").is_dir());
        assert!(!copied.join("flows/up").exists(), "a link to where it is has no end");
    }
}
