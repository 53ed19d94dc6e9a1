//! What a crash leaves behind: nothing acknowledged is lost, nothing is done twice behind anybody's back.

use super::process::{
    AGAIN, ONCE, PATIENCE, Pace, Place, Provider, Server, Told, Way, client, eventually, nothing_was_lost_or_repeated,
};
use clinch_core::death::Reason;
use clinch_core::job::Word;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 50;
/// A machine that is busy with other things does little in each: then there are more of them.
const ROUNDS_MAX: usize = 4 * ROUNDS;
const EVENTS_MAX: usize = 10_000;
/// A run in which little happened proves little.
const EFFECTS_MIN: usize = 500;

pub fn seed() -> u64 {
    let seed = std::env::var("CLINCH_TEST_SEED").ok().map(|seed| seed.parse().expect("CLINCH_TEST_SEED is a number"));
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    eprintln!("CLINCH_TEST_SEED={seed}");
    seed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_p1_kill_9_at_random_moments_under_load_loses_nothing() {
    let mut dice = fastrand::Rng::with_seed(seed());
    let place = Place::new(&[ONCE, AGAIN]).await;
    place.sink.pace(Pace::Within(Duration::from_millis(20)));
    let providers = [Arc::new(Provider::new(ONCE)), Arc::new(Provider::new(AGAIN))];
    let mut rounds = 0;
    while rounds < ROUNDS || (place.sink.count() <= EFFECTS_MIN && rounds < ROUNDS_MAX) {
        rounds += 1;
        // Starting is a moment like any other.
        if dice.u8(..5) == 0 {
            let mut server = place.spawn(&[]);
            tokio::time::sleep(Duration::from_millis(dice.u64(..100))).await;
            server.kill9();
        }
        let mut server = place.start().await;
        let stop = CancellationToken::new();
        let [once, again] = providers.each_ref().map(|provider| {
            let (provider, intake, stop) = (provider.clone(), server.intake.clone(), stop.clone());
            tokio::spawn(async move { provider.load(&intake, 8, EVENTS_MAX, &stop).await })
        });
        tokio::time::sleep(Duration::from_millis(dice.u64(20..300))).await;
        server.kill9();
        stop.cancel();
        once.await.unwrap();
        again.await.unwrap();
    }
    place.sink.pace(Pace::Prompt);
    let server = place.start().await;
    for provider in &providers {
        provider.settle(&server.intake).await;
        assert!(provider.refusals().is_empty(), "refused: {:?}", provider.refusals());
    }
    // Much may be left of what came just before each kill.
    let unfinished = || place.jobs("queued") + place.jobs("retrying");
    eventually("every job ends", 4 * PATIENCE, async || unfinished() == 0).await;
    server.stop().await;
    place.verified();

    let unknown = nothing_was_lost_or_repeated(&place.sink, &place.books().await, &providers).await;
    assert!(unknown.iter().all(|effect| effect.sends == 1), "{unknown:#?}");
    let unknown = unknown.len();
    let [once, again] = providers.map(|provider| provider.made());
    let effects = place.sink.count();
    eprintln!("{rounds} kills: {once} + {again} events, {effects} effects, {unknown} of unknown outcome");
    assert!(effects > EFFECTS_MIN, "only {effects} effects in {rounds} rounds");
    assert!(unknown > 0, "no kill came between an intent and its result");
}

/// What one event left behind after a crash at a certain place and a restart. `(first, second)` are the two steps.
#[derive(Debug, PartialEq, Eq)]
struct Aftermath {
    calls_before: (usize, usize),
    calls_after: (usize, usize),
    end: (Word, Option<Reason>),
    /// State and sends of each step in the ledger.
    ledger: Vec<(&'static str, u32)>,
}

async fn crash_at(point: &str, idempotency: &'static str) -> Aftermath {
    let way = Way { name: "two", idempotency, steps: &["first", "second"], concurrency: 1 };
    let place = Place::new(&[way]).await;
    let calls = || (place.sink.count_of("first"), place.sink.count_of("second"));
    let provider = Provider::new(way);
    let mut server = place.start_with(&[("CLINCH_CRASH_AT", point)]).await;
    provider.deliver(&server.intake).await;
    let status = server.exited().await;
    assert_eq!(status.signal(), Some(6), "it ends at {point}: {status}: {}", server.said());
    let calls_before = calls();

    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    let effects: Vec<_> = place.sink.calls().into_iter().filter(|call| call.step == "first").collect();
    assert!(effects.iter().all(|call| call.effect == effects[0].effect), "sent again under another key: {effects:?}");
    let books = place.books().await;
    let job =
        provider.acknowledged().into_values().next().expect("it was acknowledged, at the latest after the restart");
    let story = books.story(job).await;
    Aftermath {
        calls_before,
        calls_after: calls(),
        end: (story.row.word, story.row.reason),
        ledger: story.effects.iter().map(|effect| (effect.state.word(), effect.sends)).collect(),
    }
}

const BURIED: (Word, Option<Reason>) = (Word::Dead, Some(Reason::UnknownOutcome));
const DONE: (Word, Option<Reason>) = (Word::Success, None);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_p3_a_crash_after_the_intent_sends_only_where_it_may_be_sent_again() {
    let parked = Aftermath { calls_before: (0, 0), calls_after: (0, 0), end: BURIED, ledger: vec![("unknown", 1)] };
    assert_eq!(crash_at("after_intend", "none").await, parked);
    for idempotency in ["header", "natural"] {
        let sent =
            Aftermath { calls_before: (0, 0), calls_after: (1, 1), end: DONE, ledger: vec![("done", 2), ("done", 1)] };
        assert_eq!(crash_at("after_intend", idempotency).await, sent, "{idempotency}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_p3_a_crash_after_the_send_leaves_it_unknown_and_repeats_only_what_may_be_repeated() {
    let parked = Aftermath { calls_before: (1, 0), calls_after: (1, 0), end: BURIED, ledger: vec![("unknown", 1)] };
    assert_eq!(crash_at("after_send", "none").await, parked);
    for idempotency in ["header", "natural"] {
        let sent =
            Aftermath { calls_before: (1, 0), calls_after: (2, 1), end: DONE, ledger: vec![("done", 2), ("done", 1)] };
        assert_eq!(crash_at("after_send", idempotency).await, sent, "{idempotency}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_a_crash_between_two_steps_repeats_neither() {
    for idempotency in ["none", "header", "natural"] {
        let sent =
            Aftermath { calls_before: (1, 0), calls_after: (1, 1), end: DONE, ledger: vec![("done", 1), ("done", 1)] };
        assert_eq!(crash_at("after_conclude", idempotency).await, sent, "{idempotency}");
    }
}

/// Twelve events for four places: four are under way and eight wait when the process dies.
async fn killed_at_work(way: Way) -> Place {
    let way = Way { concurrency: 4, ..way };
    let place = Place::new(&[way]).await;
    place.sink.pace(Pace::Held);
    let mut server = place.start().await;
    let provider = Provider::new(way);
    for _ in 0..12 {
        assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
    }
    place.sink.called(4).await;
    server.kill9();
    place.sink.pace(Pace::Prompt);
    place
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_killed_workers_jobs_run_again_within_seconds() {
    for (way, success, dead) in [(AGAIN, 12, 0), (ONCE, 8, 4)] {
        let place = killed_at_work(way).await;
        let server = place.start().await;
        // Half of the time that their leases would still last.
        eventually("the jobs run again", PATIENCE, async || place.jobs("success") == success).await;
        eventually("the others are parked", PATIENCE, async || place.jobs("dead") == dead).await;
        let repeated = if way.idempotency == "header" { 4 } else { 0 };
        assert_eq!(place.sink.count(), 12 + repeated, "{}", way.name);
        server.stop().await;
        place.verified();
    }
}

async fn refused(place: &Place) -> String {
    let mut second: Server = place.spawn(&[]);
    let status = second.exited().await;
    assert_eq!(status.code(), Some(1), "{}", second.said());
    second.said()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44_a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let place = Place::new(&[ONCE]).await;
    let server = place.start().await;
    let said = refused(&place).await;
    assert!(said.contains("another clinch is using") && said.contains("--data-dir"), "{said}");
    assert!(server.is_ready(&client()).await);
    assert_eq!(Provider::new(ONCE).deliver(&server.intake).await, Told::Acknowledged);
    place.drained().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f35_a_store_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new(&[ONCE]).await;
    place.start().await.stop().await;
    let file = place.data_dir.join("clinch.db");
    let newer = rusqlite::Connection::open(&file).unwrap();
    newer.pragma_update(None, "user_version", 999).unwrap();
    drop(newer);
    let before = std::fs::read(&file).unwrap();
    let said = refused(&place).await;
    assert!(said.contains("written by a newer clinch (schema 999"), "{said}");
    let verify = Command::new(env!("CARGO_BIN_EXE_clinch")).arg("verify").arg(&place.data_dir).output().unwrap();
    assert_eq!(verify.status.code(), Some(1));
    assert_eq!(std::fs::read(&file).unwrap(), before, "a store that is not understood is not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f34_a_stop_under_load_ends_in_good_order_and_leaves_nothing_unknown() {
    let place = Place::new(&[ONCE]).await;
    place.sink.pace(Pace::Within(Duration::from_millis(50)));
    let provider = Arc::new(Provider::new(ONCE));
    let server = place.start().await;
    let stop = CancellationToken::new();
    let load = {
        let (provider, intake, stop) = (provider.clone(), server.intake.clone(), stop.clone());
        tokio::spawn(async move { provider.load(&intake, 8, 2_000, &stop).await })
    };
    place.sink.called(50).await;
    server.stop().await;
    stop.cancel();
    load.await.unwrap();
    assert_eq!(place.jobs("dead"), 0, "an effect was cut off");

    place.sink.pace(Pace::Prompt);
    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    assert_eq!(place.jobs("success") as usize, provider.made());
    assert_eq!(place.sink.count(), provider.made(), "each of them once");
}
