//! Partitions of the engine for many nodes: what is over goes with its partition, and nothing else does.

use crate::laws::*;
use crate::postgres::{PATIENCE, Postgres, in_the_wild};
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::id::EventId;
use clinch_core::time::Timestamp;
use clinch_store::postgres::PostgresStore;
use clinch_store::{Acceptance, Accepted, ClaimAsk, Dedup, Held, NewEvent, Retention, Store};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// Partitions are made for the time of the clock, so these tests play in the present.
fn now() -> Timestamp {
    (in_the_wild().clock)()
}

/// Under a key that lives for long.
fn long(key: &str, at: Timestamp) -> NewEvent {
    NewEvent { dedup: Some(Dedup { ttl: 20 * DAY, ..dedup(key, b"the body") }), ..received(key, at) }
}

fn received(key: &str, at: Timestamp) -> NewEvent {
    let mut event = NewEvent { received_at: at, ..event(key) };
    event.jobs.iter_mut().for_each(|job| job.run_at = at);
    event
}

/// As its keeper does it, until there is nothing more to do.
async fn prune(store: &dyn Store, now: Timestamp) {
    let retention = Retention { default: RETENTION, finished: Vec::new(), dead: vec![("work".into(), 50 * DAY)] };
    while !store.prune(now, retention.clone(), 100).await.expect("pruned").finished {}
}

async fn accepted(store: &dyn Store, event: NewEvent) -> Accepted {
    match store.accept(event).await.expect("answered") {
        Acceptance::Fresh(accepted) => accepted,
        other => panic!("not fresh: {other:?}"),
    }
}

async fn tables(postgres: &Postgres, like: &str) -> i64 {
    postgres.count(&format!("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE '{like}'")).await
}

/// How the names of the tables end that this event and its history are in.
async fn span_of(postgres: &Postgres, event: EventId) -> String {
    let sql = format!("SELECT first FROM span WHERE first <= {0} AND {0} < next", event.number());
    postgres.count(&sql).await.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_the_same_key_at_the_same_instant_is_one_event_while_buckets_turn_and_go() {
    let postgres = Postgres::new().await;
    let nodes = [postgres.node().await, postgres.node().await];
    let keeper = postgres.node().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let turning = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            let mut turns = 0;
            while !is_over.load(Ordering::Relaxed) {
                turns += 1;
                keeper.prune(now() + turns * 2 * DAY, Retention::default(), 10_000).await.expect("pruned");
            }
        }
    });
    let mut fresh = HashSet::new();
    let mut first_bucket = 1;
    // Until buckets have turned under a good many keys.
    for round in 0..200 {
        let mut deliveries = tokio::task::JoinSet::new();
        for nth in 0..40u64 {
            let node = nodes[usize::from(nth % 2 == 1)].clone();
            let key = format!("{round}-{}", nth / 2);
            deliveries.spawn(async move { (key.clone(), node.accept(event(&key)).await.expect("answered")) });
        }
        for (key, answer) in deliveries.join_all().await {
            match answer {
                Acceptance::Fresh(_) => assert!(fresh.insert(key.clone()), "{key} was fresh twice"),
                Acceptance::Duplicate(_) => {}
                other => panic!("{other:?}"),
            }
        }
        first_bucket = postgres.count("SELECT min(no)::bigint FROM bucket").await;
        if round >= 10 && first_bucket > 20 {
            break;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    turning.await.expect("it ended well");
    assert!(first_bucket > 1, "buckets went meanwhile");
    assert_eq!(postgres.count("SELECT count(*) FROM event").await, fresh.len() as i64);
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new(), "every key is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_bucket_is_not_sealed_under_who_writes_into_it_and_nobody_writes_into_a_sealed_one() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let start = now();
    accepted(&**world, long("k", start)).await;
    let newest = "SELECT max(no)::bigint FROM bucket";
    let write = "INSERT INTO dedup (key, event, expires_at, jobs, bucket) VALUES ('other', 1, 1, 1, 1)";
    // An acceptance that is not committed yet.
    let writer = postgres.client().await;
    writer.batch_execute(&format!("BEGIN; {write}")).await.expect("written");
    prune(&**world, start + 2 * DAY).await;
    assert_eq!(postgres.count(newest).await, 1, "it waits for the writer");
    writer.batch_execute("ROLLBACK").await.expect("ended");
    // One that began before the next bucket was there, and writes afterwards.
    writer.batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {newest}")).await.expect("begun");
    prune(&**world, start + 2 * DAY).await;
    assert_eq!(postgres.count(newest).await, 2);
    let sees: i64 = writer.query_one(newest, &[]).await.expect("read").get(0);
    assert_eq!(sees, 1);
    let refused = writer.batch_execute(write).await.expect_err("it is sealed");
    assert_eq!(refused.as_db_error().and_then(|error| error.constraint()), Some("sealed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_key_in_an_older_bucket_is_known_until_it_expires() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let start = now();
    let first = accepted(&**world, long("k", start)).await;
    world.finish(start).await;
    prune(&**world, start + 2 * DAY).await;
    assert_eq!(tables(&postgres, "dedup_%").await, 2);
    assert_eq!(world.duplicate(long("k", start + 3 * DAY)).await, first);
    let conflict = NewEvent { dedup: Some(dedup("k", b"another")), ..received("k", start + 3 * DAY) };
    assert_eq!(world.accept(conflict).await.expect("answered"), Acceptance::Conflict(first));
    assert_eq!(world.key(key("k")).await.expect("read"), Some(first.event));
    let second = accepted(&**world, long("k", start + 20 * DAY)).await;
    assert_ne!(second.event, first.event);
    assert_eq!(world.duplicate(long("k", start + 20 * DAY)).await, second, "the newest holds it");
    assert_eq!(world.key(key("k")).await.expect("read"), Some(second.event));
    world.adds_up_at(start + 20 * DAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t_058_a_key_outlives_its_bucket_while_its_job_is_unfinished_or_a_dead_letter() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let start = now();
    let finished = accepted(&**world, received("finished", start)).await;
    world.finish(start).await;
    let dead = world.dead("dead", start, Reason::TargetDown).await;
    let queued = accepted(&**world, received("queued", start)).await;
    prune(&**world, start + 2 * DAY).await;
    assert_eq!(tables(&postgres, "dedup_1").await, 0, "the bucket is gone");
    // And so is the next one, into which they were carried.
    let much_later = start + 40 * DAY;
    prune(&**world, much_later).await;
    assert_eq!(tables(&postgres, "dedup_2").await, 0);
    assert_eq!(world.duplicate(received("dead", much_later)).await, dead);
    assert_eq!(world.duplicate(received("queued", much_later)).await, queued);
    let again = accepted(&**world, received("finished", much_later)).await;
    assert_ne!(again.event, finished.event);
    world.adds_up_at(much_later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_retention_drops_a_span_whole_and_what_lives_on_in_it_stays() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let start = now();
    let mut event = None;
    for nth in 0..30 {
        let accepted = accepted(&**world, received(&format!("k{nth}"), start)).await;
        event = Some(accepted.event);
        let claim = world.take(start).await;
        world.intends(claim.lease, "post", Idempotency::None, start).await;
        world.concludes(claim.lease, "post", done(), start).await;
        world.settles(claim.lease, finished(start)).await;
    }
    let dead = world.dead("dead", start, Reason::TargetDown).await;
    world.duplicate(received("dead", start)).await;
    let queued = accepted(&**world, received("queued", start)).await;
    let span = span_of(&postgres, event.expect("accepted")).await;
    assert_eq!(tables(&postgres, &format!("%_{span}")).await, 5);
    prune(&**world, start + 2 * DAY).await;

    // Intake goes on meanwhile.
    let much_later = start + 10 * DAY;
    let is_over = Arc::new(AtomicBool::new(false));
    let intake = tokio::spawn({
        let (store, is_over) = (world.clone(), is_over.clone());
        async move {
            let mut taken = 0;
            while !is_over.load(Ordering::Relaxed) {
                taken += 1;
                accepted(&*store, received(&format!("meanwhile-{taken}"), much_later)).await;
            }
            taken
        }
    });
    let gone = async {
        while tables(&postgres, &format!("%_{span}")).await > 0 {
            prune(&**world, much_later).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the span goes");
    is_over.store(true, Ordering::Relaxed);
    let taken = intake.await.expect("it ended well");

    let report = world.report(much_later).await;
    assert_eq!(report.problems, Vec::<String>::new());
    let part = |name: &str| report.parts.iter().find(|(part, _)| *part == name).expect("a part").1;
    assert_eq!((report.accepted, part("expired by retention"), part("dead")), (32 + taken, 30, 1));
    let story = world.story(dead.job).await;
    assert_eq!(
        (&opened(&story.payload)[..], story.attempts.len(), story.deliveries.len()),
        (&b"the payload"[..], 1, 1)
    );
    let claims = world.claims("work", 1, much_later).await;
    assert_eq!(claims[0].lease.job, queued.job);
    world.settles(claims[0].lease, finished(much_later)).await;

    // In their own time they go as well.
    prune(&**world, start + 60 * DAY).await;
    assert!(world.job(dead.job).await.expect("read").is_none());
    world.adds_up_at(start + 60 * DAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_what_was_moved_out_of_a_span_leaves_nothing_behind_however_many_prune() {
    let postgres = Postgres::new().await;
    let (one, other) = (postgres.node().await, postgres.node().await);
    let start = now();
    let accepted_first = accepted(&*one, received("k", start)).await;
    let span = span_of(&postgres, accepted_first.event).await;
    prune(&*one, start + 2 * DAY).await;
    // The first has begun a round and knows the span; the second drops it, with a job moved that is not over.
    let retention = Retention { default: RETENTION, ..Retention::default() };
    let much_later = start + 10 * DAY;
    accepted(&*one, NewEvent { dedup: None, ..received("another", start) }).await;
    let ended_at = much_later - 5 * DAY;
    let ask = ClaimAsk { queue: "work".into(), most: 1, but: None, now: ended_at, until: ended_at + LEASE };
    let claim = one.claim(ask).await.expect("claimed").pop().expect("one of them");
    assert_eq!(one.settle(claim.lease, finished(ended_at)).await.expect("settled"), Held::Held);
    let begun = one.prune(ended_at, retention.clone(), 1).await.expect("pruned");
    assert!(!begun.finished);
    prune(&*other, much_later).await;
    assert_eq!(tables(&postgres, &format!("%_{span}")).await, 0);
    let ask = ClaimAsk { queue: "work".into(), most: 9, but: None, now: much_later, until: much_later + LEASE };
    for claim in one.claim(ask).await.expect("claimed") {
        assert_eq!(one.settle(claim.lease, finished(start)).await.expect("settled"), Held::Held);
    }
    while !one.prune(much_later, retention.clone(), 1).await.expect("pruned").finished {}
    prune(&*one, much_later).await;
    assert_eq!(postgres.count("SELECT count(*) FROM event").await, 0);
    assert_eq!(postgres.verify(much_later).await.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_in_use_is_dropped_in_a_later_round_and_intake_does_not_wait() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let start = now();
    let accepted_first = accepted(&**world, received("k", start)).await;
    world.finish(start).await;
    prune(&**world, start + 2 * DAY).await;
    let span = format!("%_{}", span_of(&postgres, accepted_first.event).await);
    let reader = postgres.client().await;
    reader.batch_execute("BEGIN; SELECT count(*) FROM event").await.expect("read");
    prune(&**world, start + 10 * DAY).await;
    assert_eq!(tables(&postgres, &span).await, 5, "somebody reads in it");
    accepted(&**world, received("another", start + 10 * DAY)).await;
    reader.batch_execute("COMMIT").await.expect("ended");
    prune(&**world, start + 10 * DAY).await;
    assert_eq!(tables(&postgres, &span).await, 0);
    world.adds_up_at(start + 10 * DAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_accepted_where_no_partition_is_and_goes_row_by_row() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    // Of clocks that are wrong by years.
    let (early, late) = (now() - 900 * DAY, now() + 900 * DAY);
    for (key, at) in [("early", early), ("late", late)] {
        accepted(&**world, received(key, at)).await;
        world.finish(at).await;
    }
    assert_eq!(postgres.count("SELECT count(*) FROM event_rest").await, 2);
    // Its time comes, and there are rows already where its partition would be.
    prune(&**world, late).await;
    assert_eq!(postgres.count("SELECT count(*) FROM event_rest").await, 1);
    accepted(&**world, received("then", late)).await;
    world.finish(late).await;
    world.adds_up_at(late).await;
    prune(&**world, late + 10 * DAY).await;
    assert_eq!(postgres.count("SELECT count(*) FROM event").await, 0);
    world.adds_up_at(late + 10 * DAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_as_long_as_they_are_told_and_made_ahead() {
    let postgres = Postgres::new().await;
    let span = Duration::from_secs(3_600);
    let options = clinch_store::postgres::Options { span, ..in_the_wild() };
    let store = PostgresStore::open(&postgres.url(), PEPPER, keys(KEY), options).await.expect("opened");
    for hour in 0..3u32 {
        accepted(&store, received(&format!("k{hour}"), now() + hour * span)).await;
    }
    assert_eq!(postgres.count("SELECT count(*) FROM event_rest").await, 0);
    assert_eq!(postgres.count("SELECT count(DISTINCT tableoid) FROM event").await, 3);
}
