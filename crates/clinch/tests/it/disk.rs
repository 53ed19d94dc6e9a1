//! Disks that are full, that fail, and that stop a process in the middle of a write. The faults are real: a small file
//! system on a loop device, and calls to the kernel that `strace` makes fail. Where a machine does not allow that, a
//! test says so and proves nothing.

use super::process::{AGAIN, Fault, ONCE, PATIENCE, Pace, Place, Provider, Server, Told, Tracer, client, eventually};
use super::world::{Reply, Target};
use clinch_core::job::Word;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// As many events as a disk has room for take their time.
const LONG: Duration = Duration::from_secs(120);

/// A file system of its own, as large as said.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// `None`, with the reason printed, where nothing can be mounted.
    fn new(mebibytes: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        std::fs::create_dir(dir.path().join("mount")).unwrap();
        let disk = SmallDisk { dir };
        let made = run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
            .and_then(|()| run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.path())));
        match made {
            Ok(()) => Some(disk),
            Err(why) => {
                eprintln!("skipped: a full disk needs root, mkfs.ext4 and loop devices: {why}");
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// Takes what is left, down to the last block.
    fn fill(&self, name: &str, bytes_max: usize) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.path().join(name)).unwrap();
        let mut left = bytes_max;
        for piece in [1 << 20, 4096, 512] {
            let zeros = vec![0; piece];
            while left >= piece && file.write_all(&zeros).is_ok() {
                left -= piece;
            }
        }
    }

    fn free(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that even a process that hangs on it cannot keep it from going.
        let _ = run(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).trim().to_string()) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_a_disk_that_fills_up_while_events_are_stored_loses_nothing_and_recovers() {
    full_disk(24, 8).await;
}

/// The log is brought into the database when it has 32 MiB, and beside the reserve there is no room for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f09_a_disk_that_fills_up_while_the_log_is_brought_in_loses_nothing_and_recovers() {
    full_disk(96, 40).await;
}

async fn full_disk(mebibytes: u64, reserve: usize) {
    let Some(disk) = SmallDisk::new(mebibytes) else { return };
    let place = Place::with_data_in(&[ONCE], disk.path().join("data")).await;
    let server = place.start().await;
    let client = client();
    disk.fill("reserve", reserve << 20);
    // As many effects as fit are under way while the disk fills up.
    place.sink.pace(Pace::Held);
    let provider = Arc::new(Provider::with_padding(ONCE, 64 << 10));
    load_until_refused(&provider, &server).await;
    place.sink.called(ONCE.concurrency).await;
    refused_for_good(&disk, &provider, &server).await;

    let answer = client.post(server.hook("once")).header("idempotency-key", "late").body("{}").send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert!(answer.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    let problem: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(problem["type"], "urn:clinch:problem:storage-unavailable");
    assert!(!server.is_ready(&client).await, "/readyz says that new work should go elsewhere");

    // The target answers. Results are written down where a last block is found, or wait; nothing leaves unwritten.
    place.sink.pace(Pace::Prompt);
    assert_eq!(provider.deliver(&server.intake).await, Told::Refused(503));
    let left = place.sink.count() as i64;
    let intended: i64 = place.report().effects.iter().map(|(_, effects)| effects).sum();
    assert!(left <= intended, "{left} effects left, {intended} intents are on disk");

    disk.free("reserve");
    disk.free("rest");
    eventually("the server is ready again, without a restart", PATIENCE, async || server.is_ready(&client).await).await;
    provider.settle(&server.intake).await;
    assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
    eventually("every job ends", LONG, async || place.jobs("queued") + place.jobs("retrying") == 0).await;
    assert_eq!(place.jobs("success") as usize, provider.made());
    server.stop().await;
    place.verified();
    each_event_once(&place, &provider);
    eprintln!("{mebibytes} MiB: {} events, refused {:?}", provider.made(), provider.refusals());
}

async fn load_until_refused(provider: &Arc<Provider>, server: &Server) {
    let stop = CancellationToken::new();
    let load = {
        let (provider, intake, stop) = (provider.clone(), server.intake.clone(), stop.clone());
        tokio::spawn(async move { provider.load(&intake, 8, 2_000, &stop).await })
    };
    eventually("the disk is full", LONG, async || !provider.refusals().is_empty()).await;
    stop.cancel();
    load.await.unwrap();
    assert!(provider.acknowledged().len() > 50, "the disk was full from the start");
}

/// A file system finds a last block here and there, so it is filled up until no answer is an acknowledgement any more,
/// for long enough that the store has tried to write several times.
async fn refused_for_good(disk: &SmallDisk, provider: &Provider, server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        assert!(Instant::now() < deadline, "acknowledgements do not end");
        disk.fill("rest", usize::MAX);
        match provider.deliver(&server.intake).await {
            Told::Acknowledged => since = Instant::now(),
            told => assert_eq!(told, Told::Refused(503)),
        }
    }
}

fn each_event_once(place: &Place, provider: &Provider) {
    let mut events: Vec<String> = place.sink.calls().into_iter().map(|call| call.event).collect();
    events.sort_unstable();
    let acknowledged: Vec<String> = provider.acknowledged().into_keys().collect();
    assert_eq!(events, acknowledged, "every acknowledged event is at the sink once, and nothing else");
}

const SYNCS: &str = "fsync,fdatasync";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_failed_sync_ends_the_process_and_is_never_tried_again() {
    let place = Place::new(&[ONCE]).await;
    let server = place.start().await;
    let provider = Arc::new(Provider::new(ONCE));
    for _ in 0..10 {
        assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
    }
    place.drained().await;
    // Once: whoever syncs again is told that all is well, and believes it.
    let fault = Fault { calls: SYNCS, file: None, then: "error=EIO:when=1" };
    let Some(tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
    let told = provider.deliver(&server.intake).await;
    assert!(matches!(told, Told::Refused(503) | Told::Nothing), "{told:?} after a failed sync");
    ends_at_the_failed_sync(server, tracer).await;
    everything_acknowledged_is_there(&place, &provider).await;
}

/// The log is synced and then brought into the database: this is the sync of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_failed_sync_of_the_database_ends_the_process_too() {
    let place = Place::new(&[ONCE]).await;
    let server = place.start().await;
    let fault = Fault { calls: SYNCS, file: Some("clinch.db"), then: "error=EIO:when=1" };
    let Some(tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
    // More than the log takes before it is brought in.
    let provider = Arc::new(Provider::with_padding(ONCE, 200 << 10));
    let stop = CancellationToken::new();
    let load = {
        let (provider, intake, stop) = (provider.clone(), server.intake.clone(), stop.clone());
        tokio::spawn(async move { provider.load(&intake, 8, 1_000, &stop).await })
    };
    ends_at_the_failed_sync(server, tracer).await;
    stop.cancel();
    load.await.unwrap();
    everything_acknowledged_is_there(&place, &provider).await;
}

async fn ends_at_the_failed_sync(mut server: Server, tracer: Tracer) {
    let status = server.exited().await;
    assert_eq!(status.code(), Some(1), "{status}: {}", server.said());
    assert!(server.said().contains("a sync to disk failed"), "it says why: {}", server.said());
    let trace = tracer.end();
    assert_eq!(trace.matches("INJECTED").count(), 1, "{trace}");
    let after = trace.lines().skip_while(|line| !line.contains("INJECTED")).skip(1);
    assert_eq!(after.filter(|line| line.contains("sync(")).count(), 0, "a sync was tried again:\n{trace}");
}

/// Started again on a sound disk, it has what it promised. Effects that the end cut off are parked, not repeated.
async fn everything_acknowledged_is_there(place: &Place, provider: &Provider) {
    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    assert_eq!(provider.acknowledged().len(), provider.made());
    assert_eq!((place.jobs("success") + place.jobs("dead")) as usize, provider.made());
    let mut events: Vec<String> = place.sink.calls().into_iter().map(|call| call.event).collect();
    events.sort_unstable();
    assert!(events.windows(2).all(|pair| pair[0] != pair[1]), "an effect was repeated");
    assert!(events.len() as i64 >= place.jobs("success"));
    eprintln!("{} events, {} effects, {} parked", provider.made(), events.len(), place.jobs("dead"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_a_failed_write_refuses_the_event_and_the_server_goes_on() {
    for then in ["error=EIO:when=1", "error=ENOSPC:when=2", "error=EIO:when=3"] {
        let place = Place::new(&[ONCE]).await;
        let server = place.start().await;
        let provider = Provider::new(ONCE);
        assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
        place.drained().await;
        let fault = Fault { calls: "pwrite64", file: None, then };
        let Some(tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
        assert_eq!(provider.deliver(&server.intake).await, Told::Refused(503), "{then}");
        let trace = tracer.end();
        assert!(trace.contains("INJECTED"), "{then}: {trace}");
        eventually("the store writes again", PATIENCE, async || server.is_ready(&client()).await).await;
        provider.settle(&server.intake).await;
        assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged, "{then}");
        place.drained().await;
        server.stop().await;
        place.verified();
        each_event_once(&place, &provider);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_p4_a_moment_of_a_rate_that_cannot_be_written_at_first_costs_no_attempt() {
    let (place, partner) = (Place::new(&[ONCE]).await, Target::start().await);
    let (called, base_url) = ("{integration: crm, url: /charge, body_from: body}", partner.address);
    let integrations =
        format!("  know: {{base_url: 'http://{base_url}'}}\n  crm: {{base_url: 'http://{base_url}', rate: 100/s}}\n");
    let consent = "{integration: know, url: /consent, given: answer.status == 200}";
    place.write("clinch.yml", &format!("integrations:\n{integrations}"));
    place.write("policies.yml", &format!("policies:\n  agreed:\n    integrations: [crm]\n    consent: {consent}\n"));
    let worker =
        format!("version: 1\nname: once\nconsumes: {{queue: once}}\nrun:\n  - name: charge\n    http: {called}\n");
    place.write("workers/once.yml", &worker);
    // Between the question and the call nothing is written but the moment of the call.
    partner.script("/consent", [Reply::Held]);
    let server = place.start().await;
    let provider = Provider::new(ONCE);
    assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
    partner.called_at("/consent", 1).await;
    let fault = Fault { calls: "pwrite64", file: None, then: "error=EIO:when=1" };
    let Some(tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
    partner.release();
    place.drained().await;
    assert!(tracer.end().contains("INJECTED"));
    server.stop().await;
    place.verified();
    let job = provider.acknowledged().into_values().next().unwrap();
    let row = place.books().await.story(job).await.row;
    assert_eq!((row.word, row.attempts, row.failures), (Word::Success, 1, 0));
    assert_eq!((partner.calls_at("/consent").len(), partner.calls_at("/charge").len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f08_an_interrupted_write_is_finished() {
    let place = Place::new(&[ONCE]).await;
    let server = place.start().await;
    let provider = Provider::new(ONCE);
    let fault = Fault { calls: "pwrite64", file: None, then: "error=EINTR:when=1+2" };
    let Some(tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
    assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
    place.drained().await;
    assert!(tracer.end().contains("INJECTED"));
    server.stop().await;
    place.verified();
    each_event_once(&place, &provider);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_killed_at_any_write_or_sync_it_has_lost_nothing() {
    let place = Place::new(&[AGAIN]).await;
    let provider = Provider::new(AGAIN);
    for nth in 1..=16 {
        let mut server = place.start().await;
        let then = format!("signal=KILL:when={nth}");
        let fault = Fault { calls: "pwrite64,fsync,fdatasync", file: None, then: &then };
        let Some(_tracer) = Tracer::hold_writer(&place, &server, fault).await else { return };
        eventually("it is killed", PATIENCE, async || {
            provider.deliver(&server.intake).await;
            server.exit_status().is_some()
        })
        .await;
        let status = server.exited().await;
        assert_eq!(status.signal(), Some(9), "{status}");
        place.verified();
    }
    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    assert_eq!(place.jobs("success") as usize, provider.made());
    let called: std::collections::BTreeSet<String> = place.sink.calls().into_iter().map(|call| call.event).collect();
    assert!(provider.acknowledged().keys().all(|event| called.contains(event)));
}
