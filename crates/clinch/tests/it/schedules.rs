//! Workers that run by the clock, steps that run for each of a list, and dead letters that go back into their queues.

use crate::nodes::shared_postgres;
use crate::process::{PATIENCE, Place, client, eventually};
use crate::scripts::{CONTACTS, TABLES};
use crate::world::{FLOW, OK, QUEUES, Reply, WORKER, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::attempt::Failure;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::id::JobId;
use clinch_core::job::{Change, Word};
use clinch_core::time::Timestamp;
use clinch_store::read::{JobFilter, JobRow, JobStory};
use clinch_store::{ClaimAsk, FireAsk, Settlement, Store};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// One call to the target for each run, with what the run is about.
const TICK: &str = "
name: tick
schedule: {cron: '* * * * * *'}
run:
  - name: tell
    http: {url: http://TARGET/tick, body_from: body, idempotency: header}
";

fn now() -> Timestamp {
    Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
}

/// What the command says, and its exit code.
async fn clinch(data_dir: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(arguments).env("CLINCH_DATA_DIR", data_dir).env_remove("CLINCH_URL").stdin(Stdio::null());
    let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (said.status.code().unwrap(), String::from_utf8(said.stdout).unwrap() + &String::from_utf8(said.stderr).unwrap())
}

async fn jobs_in(store: &dyn Store, queue: &str) -> Vec<JobRow> {
    let filter = JobFilter { queue: Some(queue.into()), limit: 1_000, ..JobFilter::default() };
    store.jobs(filter).await.unwrap().rows
}

/// The slots that were told to the target, in order.
fn slots(world: &World) -> Vec<String> {
    let slot = |body: &str| serde_json::from_str::<Value>(body).unwrap()["slot"].as_str().unwrap().to_string();
    world.target.calls_at("/tick").iter().map(|call| slot(&call.body)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_a_worker_runs_at_each_of_its_moments_and_shows_when() {
    let world = World::new(&[("workers/tick.yml", TICK)]).await;
    world.target.called(3).await;
    let told = slots(&world);
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    assert!(told.iter().all(|slot| slot.ends_with(".000Z")), "{told:?}");

    let listed = world.admin("/api/v1/schedules").await.json();
    let row = &listed["schedules"][0];
    assert_eq!((&row["name"], &row["cron"], &row["time_zone"]), (&json!("tick"), &json!("* * * * * *"), &json!("UTC")));
    assert_eq!((&row["missed"], &row["overlap"]), (&json!("once"), &json!(false)));
    assert!(row["next"].as_str() > row["last"].as_str() && row["job_id"].is_string(), "{row}");
    let (code, shown) = clinch(&world.data_dir(), &["schedules", "ls", "-o", "plain"]).await;
    assert!(code == 0 && shown.contains("tick"), "{shown}");
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_schedule_slots_total{flow="tick",outcome="fired"}"#), "{metrics}");
    world.close_and_verify().await;
}

/// An hourly line whose next slot is half an hour away, whenever this runs.
fn hourly() -> String {
    let minute = jiff::Timestamp::now().as_second() / 60 % 60;
    format!("'{} * * * *'", (minute + 30) % 60)
}

/// The world after three slots at which nobody ran.
async fn after_three_missed(missed: &str) -> World {
    let worker = TICK.replace("'* * * * * *'", &format!("{}, missed: {missed}", hourly()));
    let mut world = World::with_roles(Roles { keeper: false, ..Roles::ALL }, &[("workers/tick.yml", &worker)]).await;
    let long_ago = now() - Duration::from_secs(3 * 3_600);
    let ask = FireAsk {
        schedule: "tick".into(),
        slot: Some(long_ago),
        event: None,
        overlaps: false,
        record: None,
        at: long_ago,
    };
    world.app().house.store.fire(ask).await.unwrap();
    world.close().await;
    world.open(Roles::ALL).await;
    world
}

/// Until the schedule has come to its newest slot, which was less than an hour ago.
async fn caught_up(world: &World) {
    eventually("it has caught up", PATIENCE, async || {
        let row = world.app().house.store.schedules().await.unwrap().pop().unwrap();
        now().since(row.last) < Duration::from_secs(3_600)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_what_was_missed_is_made_up_for_once_for_each_or_not_at_all() {
    let once = after_three_missed("once").await;
    once.target.called(1).await;
    caught_up(&once).await;
    assert_eq!(jobs_in(&*once.app().house.store, "schedule.tick").await.len(), 1);
    once.close_and_verify().await;

    let all = after_three_missed("all").await;
    all.target.called(3).await;
    caught_up(&all).await;
    let told = slots(&all);
    assert!(told.len() == 3 && told.windows(2).all(|pair| pair[0] < pair[1]), "the oldest first: {told:?}");
    all.close_and_verify().await;

    let skip = after_three_missed("skip").await;
    caught_up(&skip).await;
    assert_eq!(jobs_in(&*skip.app().house.store, "schedule.tick").await.len(), 0);
    let metrics = skip.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_schedule_slots_total{flow="tick",outcome="passed"} 1"#), "{metrics}");
    skip.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_two_nodes_on_one_database_run_each_moment_once() {
    let postgres = shared_postgres();
    tokio::task::block_in_place(|| postgres.create_database("schedules_of_two"));
    let url = format!("postgres://clinch@127.0.0.1:{}/schedules_of_two", postgres.port());
    let (mut one, mut two) = tokio::join!(
        World::on(url.clone(), &[("workers/tick.yml", TICK)]),
        World::on(url.clone(), &[("workers/tick.yml", TICK)])
    );
    eventually("they run for a while", PATIENCE, async || slots(&one).len() + slots(&two).len() >= 6).await;
    one.close().await;
    // Both follow the files of one of them, and those name its target.
    let all = || slots(&one).len() + slots(&two).len();
    let before = all();
    eventually("one goes on alone", PATIENCE, async || all() >= before + 2).await;
    let store = two.app().house.store.clone();
    let jobs = jobs_in(&*store, "schedule.tick").await.len();
    drop(store);
    two.close().await;
    let mut told: Vec<String> = [slots(&one), slots(&two)].concat();
    let calls = told.len();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), calls, "no slot is run twice: {told:?}");
    assert!(jobs >= 8, "{jobs} runs");
}

const HELD: &str = r#"clinch_schedule_slots_total{flow="tick",outcome="held"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn c10_no_run_begins_while_the_one_before_is_not_finished_also_not_by_hand() {
    let world = World::unopened(&[("workers/tick.yml", TICK), ("queues.yml", QUEUES)]).await;
    world.target.script("/tick", [Reply::Held, OK]);
    let mut world = world;
    world.open(Roles::ALL).await;
    world.target.called(1).await;
    let store = world.app().house.store.clone();
    let first = jobs_in(&*store, "schedule.tick").await[0].id;
    let (code, said) = clinch(&world.data_dir(), &["schedules", "run", "tick", "--reason", "again"]).await;
    assert!(code == 5 && said.contains(&first.to_string()) && said.contains("overlap: true"), "{code}: {said}");
    eventually("slots come and are held", PATIENCE, async || {
        let metrics = world.admin("/metrics").await.body;
        let held = metrics.lines().find_map(|line| line.strip_prefix(HELD)).unwrap_or("0");
        held.trim().parse::<u32>().unwrap() >= 2
    })
    .await;
    assert_eq!(jobs_in(&*store, "schedule.tick").await.len(), 1, "none of them begins a run");
    world.target.release();
    world.target.called(2).await;
    let told = slots(&world);
    assert!(told[0] < told[1], "{told:?}");
    drop(store);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_a_run_by_hand_is_on_record_and_uses_up_no_moment() {
    let yearly = TICK.replace("'* * * * * *'", "'0 0 1 1 *'");
    let world = World::new(&[("workers/tick.yml", &yearly)]).await;
    eventually("the schedule has begun", PATIENCE, async || {
        !world.app().house.store.schedules().await.unwrap().is_empty()
    })
    .await;
    let before = world.app().house.store.schedules().await.unwrap()[0].last;
    let (code, said) =
        clinch(&world.data_dir(), &["schedules", "run", "tick", "--reason", "the CRM is back", "-o", "json"]).await;
    let told: Value =
        serde_json::from_str(said.lines().next().unwrap()).unwrap_or_else(|_| serde_json::from_str(&said).unwrap());
    assert_eq!(code, 0, "{said}");
    let job: JobId = told["job_id"].as_str().unwrap().parse().unwrap();
    let story = world.wait(job, Word::Success).await;
    assert_eq!(story.audit[0].reason, "the CRM is back");
    assert_eq!(world.app().house.store.schedules().await.unwrap()[0].last, before);
    let (code, said) = clinch(&world.data_dir(), &["schedules", "run", "nobody", "--reason", "x"]).await;
    assert!(code == 3 && said.contains("`nobody`"), "{said}");
    world.command("/api/v1/schedules/tick/run", json!({"reason": ""})).await.check_problem(400, "bad-body");
    world.close_and_verify().await;
}

const EACH: &str = "  - name: line
    foreach: body.lines
    if: 'item.count > 0'
    http: {url: 'http://TARGET/line/{{ item.id }}', body_from: item, idempotency: none}
  - name: sum
    http: {url: http://TARGET/sum, body_from: steps.line.output, idempotency: header}
";

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_step_runs_once_for_each_of_a_list_and_the_failure_of_one_repeats_no_other() {
    let world = World::new(&[("workers/charge.yml", &worker_with_step(EACH))]).await;
    world.target.script("/line/b", [Reply::Status(503), Reply::With { status: 200, headers: &[], body: r#"{"n":2}"# }]);
    let body = json!({"lines": [{"id": "a", "count": 1}, {"id": "b", "count": 2}, {"id": "none", "count": 0}, {"id": "c", "count": 3}]});
    let story = world.post_and_wait("k", &body.to_string(), Word::Success).await;
    let calls = |path: &str| world.target.calls_at(path).len();
    assert_eq!((calls("/line/a"), calls("/line/b"), calls("/line/c"), calls("/line/none")), (1, 2, 1, 0));
    let keys = ["/line/a", "/line/b", "/line/c"].map(|path| world.target.calls_at(path)[0].key().to_string());
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
    assert_eq!(world.target.calls_at("/sum")[0].body, r#"[{},{"n":2},null,{}]"#);
    let lines: Vec<&str> = story.effects.iter().map(|effect| effect.name.as_str()).collect();
    assert_eq!(lines, ["line[0]", "line[1]", "line[3]", "sum"]);
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"step="line",outcome="ok""#) && !metrics.contains("line[0]"), "{metrics}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_p3_an_item_that_can_never_be_done_is_told_and_the_others_are_done() {
    let world = World::new(&[("workers/charge.yml", &worker_with_step(EACH))]).await;
    world.target.script("/line/b", [Reply::Status(422)]);
    let body = json!({"lines": [{"id": "a", "count": 1}, {"id": "b", "count": 2}, {"id": "c", "count": 3}]});
    let story = world.post_and_wait("k", &body.to_string(), Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::RejectedByTarget));
    let error = story.row.error.as_deref().unwrap();
    assert!(error.contains("2 of 3 items are done; missing: line[1] (the target answered 422)"), "{error}");
    // A replay does only what is missing.
    world.target.script("/line/b", [OK]);
    world.replay(story.row.id, json!({"reason": "fixed"})).await;
    world.wait(story.row.id, Word::Success).await;
    for (path, calls) in [("/line/a", 1), ("/line/b", 2), ("/line/c", 1), ("/sum", 1)] {
        assert_eq!(world.target.calls_at(path).len(), calls, "{path}");
    }
    let no_list = world.post_and_wait("other", r#"{"lines": 7}"#, Word::Dead).await;
    assert_eq!(no_list.row.reason, Some(Reason::MissingData));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_p3_a_crash_in_the_middle_of_a_list_repeats_no_item_and_leaves_the_unclear_one_to_a_person() {
    let place = Place::new(&[]).await;
    let step = "  - name: line
    foreach: body.lines
    http: {url: 'http://TARGET/orders/line', body_from: item, idempotency: none}
";
    let worker = worker_with_step(step).replace("TARGET", &place.sink.address.to_string());
    for (file, text) in [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", &worker)] {
        place.write(file, text);
    }
    let mut crashing = place.start_with(&[("CLINCH_CRASH_AT", "after_send")]).await;
    let body = json!({"lines": [{"event": "a"}, {"event": "b"}, {"event": "c"}]}).to_string();
    let request = client().post(format!("{}/hooks/orders", crashing.intake)).body(body);
    // The crash may come before the answer is read.
    let _ = request.header("idempotency-key", "k").send().await;
    assert!(!crashing.exited().await.success());
    let server = place.start().await;
    place.drained().await;
    server.stop().await;
    place.verified();
    let books = place.books().await;
    let job = jobs_in(&*books.0, "orders").await[0].id;
    let story = books.story(job).await;
    assert_eq!((story.row.word, story.row.reason), (Word::Dead, Some(Reason::UnknownOutcome)), "{story:#?}");
    let states: Vec<&str> = story.effects.iter().map(|effect| effect.state.word()).collect();
    assert_eq!(states, ["unknown", "done", "done"], "the others go on");
    assert_eq!(place.sink.count(), 3, "none is sent twice");
}

/// Replays what died of `orders`, as often as a person presses the button, without a pace.
const REPLAYER: &str = "
name: again
schedule: {cron: '0 0 1 1 *'}
run:
  - name: pull
    queue_pull: {from: orders-dlq, max_messages: 50}
  - name: back
    foreach: step:pull.messages
    if: \"item.body.order | default(0) != 13\"
    queue: {name: orders, body_from: item.body, key_from: item.headers.Idempotency-Key}
";

async fn runs_again(world: &World) -> JobStory {
    let answer = world.command("/api/v1/schedules/again/run", json!({"reason": "the target is back"})).await;
    let job: JobId = answer.json()["job_id"].as_str().unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap();
    world.wait(job, Word::Success).await
}

/// What became of each item.
fn results(story: &JobStory) -> Vec<String> {
    let result = |state: &EffectState| match state {
        EffectState::Done(receipt) => receipt.output()["result"].as_str().unwrap_or("?").to_string(),
        other => other.word().to_string(),
    };
    story.effects.iter().filter(|effect| effect.name.starts_with("back[")).map(|effect| result(&effect.state)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_p8_a_dead_letter_goes_back_as_the_same_job_under_its_old_key_and_once() {
    let world = World::new(&[("workers/again.yml", REPLAYER)]).await;
    check_dead_letters_go_back(&world).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_p8_a_dead_letter_goes_back_as_the_same_job_on_postgresql_too() {
    let postgres = shared_postgres();
    tokio::task::block_in_place(|| postgres.create_database("schedules_replay"));
    let url = format!("postgres://clinch@127.0.0.1:{}/schedules_replay", postgres.port());
    let mut world = World::on(url, &[("workers/again.yml", REPLAYER)]).await;
    check_dead_letters_go_back(&world).await;
    world.close().await;
}

async fn check_dead_letters_go_back(world: &World) {
    world.target.script("/charge", [Reply::Status(422)]);
    let mut jobs = Vec::new();
    for key in ["a", "b", "c"] {
        jobs.push(world.post_and_wait(key, r#"{"order":1}"#, Word::Dead).await.row.id);
    }
    world.target.script("/charge", [OK]);
    let run = runs_again(world).await;
    assert_eq!(results(&run), ["replayed", "replayed", "replayed"]);
    for job in &jobs {
        let story = world.wait(*job, Word::Success).await;
        assert_eq!((story.row.replays, story.audit[0].origin.as_str()), (1, "schedule again"));
    }
    let pulled = run.effects.iter().find(|effect| effect.name == "pull").unwrap();
    let EffectState::Done(receipt) = &pulled.state else { panic!("{pulled:?}") };
    let first = &receipt.output()["messages"][0];
    assert_eq!((&first["id"], &first["body"]), (&json!(jobs[0].to_string()), &json!({"order": 1})));
    assert_eq!((&first["headers"]["Idempotency-Key"], &first["reason"]), (&json!("a"), &json!("rejected_by_target")));
    assert_eq!((&first["attempts"], &first["replays"], &first["queue"]), (&json!(1), &json!(0), &json!("orders")));
    // The keys are still those of the first deliveries, and there is nothing left to pull.
    assert!(world.post("a", r#"{"order":1}"#).await.is_replayed());
    assert_eq!(results(&runs_again(world).await), Vec::<String>::new());
    let mut keys: Vec<String> = world.target.calls_at("/charge").iter().map(|call| call.key().to_string()).collect();
    keys[3..].sort();
    keys[..3].sort();
    assert_eq!(keys[..3], keys[3..], "the target sees the keys again that it has seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_p3_what_only_a_person_can_decide_and_what_the_step_leaves_out_stays_dead() {
    let worker = WORKER.replace("idempotency: header", "idempotency: none");
    let world = World::new(&[("workers/again.yml", REPLAYER), ("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Drop, Reply::Status(422)]);
    let unknown = world.post_and_wait("a", "{}", Word::Dead).await.row;
    let refused = world.post_and_wait("b", "{}", Word::Dead).await.row;
    let unlucky = world.post_and_wait("c", r#"{"order":13}"#, Word::Dead).await.row;
    assert_eq!(unknown.reason, Some(Reason::UnknownOutcome));
    world.target.script("/charge", [OK]);
    assert_eq!(results(&runs_again(&world).await), ["replayed"]);
    world.wait(refused.id, Word::Success).await;
    for left in [unknown, unlucky] {
        assert_eq!(world.job(left.id).await.row.word, Word::Dead);
    }
    world.close_and_verify().await;
}

const HAND_OVER: &str = "  - name: each
    foreach: body.lines
    queue: {name: lines, body_from: item, key_from: item.id}
";
const LINES: &str = "
name: lines
consumes: {queue: lines}
run:
  - name: line
    http: {url: http://TARGET/line, body_from: body, idempotency: header}
";

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_step_puts_jobs_into_another_queue_and_a_key_is_taken_once() {
    let queues = format!("{QUEUES}  - name: lines\n");
    let files = [
        ("queues.yml", queues.as_str()),
        ("workers/charge.yml", &worker_with_step(HAND_OVER)),
        ("workers/lines.yml", LINES),
    ];
    let world = World::new(&files).await;
    let dead = "job_01HZX5T0N8W2A";
    let body = json!({"lines": [{"id": "x", "n": 1}, {"id": "y", "n": 2}, {"id": dead, "queue": "lines", "n": 3}]});
    let story = world.post_and_wait("k", &body.to_string(), Word::Success).await;
    world.target.called(3).await;
    let again = json!({"lines": [{"id": "x", "n": 1}, {"id": "y", "n": 99}]});
    let second = world.post_and_wait("other", &again.to_string(), Word::Success).await;
    let result = |story: &JobStory, at: usize| match &story.effects[at].state {
        EffectState::Done(receipt) => receipt.output()["result"].clone(),
        other => panic!("{other:?}"),
    };
    let told: Vec<Value> = (0..3).map(|at| result(&story, at)).collect();
    assert_eq!(told, ["queued", "queued", "queued"], "who only names a job moves nobody's dead letter");
    assert_eq!((result(&second, 0), result(&second, 1)), (json!("duplicate"), json!("conflict")));
    let mut bodies: Vec<Value> =
        world.target.calls_at("/line").iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect();
    bodies.sort_by_key(|body| body["n"].as_i64());
    assert_eq!(bodies, *body["lines"].as_array().unwrap());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_a_pace_holds_between_items_and_a_job_that_waits_for_it_holds_no_place() {
    let paced = EACH.replace("    if: 'item.count > 0'\n", "    rate_limit: {per_integration: 1/s, jitter: 1-5ms}\n");
    let worker = worker_with_step(&paced).replace("retry:", "concurrency: 1\nretry:");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let lines = |ids: &[&str]| json!({"lines": ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>()}).to_string();
    world.target.script("/line/a", [Reply::Held]);
    let posted = now();
    let long = world.post("long", &lines(&["a", "b", "c"])).await.job();
    world.target.called(1).await;
    let none = world.post("none", &lines(&[])).await.job();
    assert_eq!(world.job(none).await.row.word, Word::Queued, "the only place is taken");
    let released = now();
    world.target.release();
    // However long that took: between the last two items the only place of the worker is free.
    let free = world.wait(none, Word::Success).await;
    let story = world.wait(long, Word::Success).await;
    assert!(free.row.ended_at < story.row.ended_at, "{free:?} {story:?}");
    assert_eq!((story.row.failures, story.effects.len()), (0, 4));
    // An item may be late and so come close to the next. None comes before its moment, a second after that of the one before.
    let begun: Vec<Timestamp> = story.effects[..3].iter().map(|effect| effect.first_intended_at).collect();
    for (item, since) in [(1, posted), (2, released)] {
        assert!(begun[item].since(since) >= Duration::from_secs(1), "{begun:?} since {since:?}");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_p4_an_item_that_cannot_be_sent_leaves_its_moment_to_the_next() {
    let paced = EACH.replace("    if: 'item.count > 0'\n", "    rate_limit: {per_integration: 4/s}\n");
    let world = World::new(&[("workers/charge.yml", &worker_with_step(&paced))]).await;
    // The first has no id, and of the second nobody knows what came of it.
    world.target.script("/line/lost", [Reply::Drop]);
    let body = json!({"lines": [{}, {"id": "lost"}, {"id": "a"}, {"id": "b"}]});
    let dead = world.post_and_wait("k", &body.to_string(), Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::UnknownOutcome), "{:?}", dead.row.error);
    for path in ["/line/lost", "/line/a", "/line/b"] {
        assert_eq!(world.target.calls_at(path).len(), 1, "{path}");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_b8_keys_of_a_list_are_set_one_after_the_other_and_each_once() {
    let step = "  - name: first\n    foreach: body.lines\n    rate_limit: {per_integration: 4/s}\n    setnx: {key: '{{ item }}', ttl: 1h}\n";
    let world = World::new(&[("workers/charge.yml", &worker_with_step(step))]).await;
    let story = world.post_and_wait("k", r#"{"lines": ["a", "b", "a"]}"#, Word::Success).await;
    let set = story.effects.iter().map(|effect| match &effect.state {
        EffectState::Done(receipt) => (effect.name.as_str(), effect.sends, receipt.output()["set"].clone()),
        other => panic!("{other:?}"),
    });
    let told = [("first[0]", 1, json!(true)), ("first[1]", 1, json!(true)), ("first[2]", 1, json!(false))];
    assert_eq!(set.collect::<Vec<_>>(), told);
    world.close_and_verify().await;
}

/// Dead letters of the tutorial's queue, as workers leave them that have tried seven times.
async fn bury(store: &dyn Store, queue: &str) -> Vec<JobId> {
    let ask =
        ClaimAsk { queue: queue.into(), most: 100, but: None, now: now(), until: now() + Duration::from_secs(60) };
    let mut dead = Vec::new();
    for claim in store.claim(ask).await.unwrap() {
        let failure = Failure::new(Reason::ScriptError, "the database is away");
        let (reason, at) = (failure.reason, now());
        let outcome = clinch_core::attempt::Outcome::Failed(failure);
        let end = Settlement::of(&outcome, Change::Buried { at, reason }, at, at, None);
        store.settle(claim.lease, end).await.unwrap();
        dead.push(claim.lease.job);
    }
    dead.sort();
    dead
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_c10_the_tutorials_files_run_byte_for_byte_and_its_replay_worker_brings_dead_letters_back() {
    let postgres = shared_postgres();
    tokio::task::block_in_place(|| postgres.create_database("replayed_contacts"));
    let url = postgres.url("replayed_contacts");
    let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    database.batch_execute(TABLES).await.unwrap();

    let place = Place::new(&[]).await;
    let tutorial = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/tutorial");
    for file in ["queues.yml", "flows/ingest.yml", "workers/contact-upsert.yml", "workers/replay-dlq.yml"] {
        place.write(file, &std::fs::read_to_string(tutorial.join(file)).unwrap());
    }
    place.write("lib/contacts.js", CONTACTS);
    place.write("package.json", r#"{"type": "module"}"#);
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders/node_modules");
    assert!(modules.join("pg").exists(), "run `npm ci` in crates/clinch/tests/senders");
    std::os::unix::fs::symlink(modules, place.dir.path().join("workspace/node_modules")).unwrap();

    let mut server = place.launch(&place.data_dir, &["--roles", "intake,admin"], &[("DB_URL", &url)]);
    server.opened().await;
    for n in 0..2 {
        let body = json!({"tenant_id": "acme", "payload": {"email": format!("p{n}@example.com")}}).to_string();
        let request = client().post(format!("{}/intake/contact", server.intake)).body(body);
        assert_eq!(request.header("idempotency-key", format!("key-{n}")).send().await.unwrap().status(), 202);
    }
    server.stop().await;
    let books = place.books().await;
    let dead = bury(&*books.0, "contact-upserts").await;
    assert_eq!(dead.len(), 2);
    drop(books);

    let server = place.start_with(&[("DB_URL", &url)]).await;
    let (code, said) =
        clinch(&place.data_dir, &["schedules", "run", "replay-contact-dlq", "--reason", "the database is back"]).await;
    // Every ten minutes it has begun by itself.
    assert!(code == 0 || (code == 5 && said.contains("is not finished")), "{code}: {said}");
    // Twelve seconds of it are the pace.
    eventually("all is done", 3 * PATIENCE, async || place.jobs("success") >= 3).await;
    server.stop().await;

    let books = place.books().await;
    for job in &dead {
        let story = books.story(*job).await;
        assert_eq!((story.row.word, story.row.replays), (Word::Success, 1));
        assert_eq!(story.audit[0].origin, "schedule replay-contact-dlq");
    }
    let runs = jobs_in(&*books.0, "schedule.replay-contact-dlq").await;
    let run = books.story(runs.last().unwrap().id).await;
    assert_eq!((run.row.word, run.row.failures), (Word::Success, 0));
    let begun: BTreeMap<&str, Timestamp> =
        run.effects.iter().map(|effect| (effect.name.as_str(), effect.first_intended_at)).collect();
    assert_eq!(begun.keys().copied().collect::<Vec<_>>(), ["pull-batch", "requeue[0]", "requeue[1]"]);
    // The first may have been late for its moment, which was not before all of them were pulled.
    assert!(begun["requeue[1]"].since(begun["pull-batch"]) >= Duration::from_secs(12), "5/min: {begun:?}");
    drop(books);
    place.verified();

    let joined =
        "select e.idempotency_key, c.email, c.writes from effects e join contacts c on c.id = e.ref_id order by 1";
    let rows = database.query(joined, &[]).await.unwrap();
    let told: Vec<(String, String, i32)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let expected = (0..2).map(|n| (format!("key-{n}"), format!("p{n}@example.com"), 1)).collect::<Vec<_>>();
    assert_eq!(told, expected, "the original keys, and each contact written once");
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_crash_between_the_replay_and_its_line_in_the_ledger_repeats_no_effect() {
    let place = Place::new(&[]).await;
    let address = place.sink.address.to_string();
    let worker = WORKER.replace("TARGET/charge", &format!("{address}/orders/charge"));
    for (file, text) in [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", &worker)] {
        place.write(file, text);
    }
    place.write("workers/again.yml", REPLAYER);
    let mut server = place.launch(&place.data_dir, &["--roles", "intake,admin"], &[]);
    server.opened().await;
    for n in 0..3 {
        let request = client().post(format!("{}/hooks/orders", server.intake)).body(format!(r#"{{"event":"{n}"}}"#));
        assert_eq!(request.header("idempotency-key", format!("key-{n}")).send().await.unwrap().status(), 202);
    }
    server.stop().await;
    let books = place.books().await;
    let dead = bury(&*books.0, "orders").await;
    drop(books);

    let mut crashing = place.start_with(&[("CLINCH_CRASH_AT", "after_queue")]).await;
    clinch(&place.data_dir, &["schedules", "run", "again", "--reason", "the target is back"]).await;
    assert!(!crashing.exited().await.success());
    let server = place.start().await;
    place.drained().await;
    server.stop().await;
    place.verified();
    let books = place.books().await;
    for job in &dead {
        let story = books.story(*job).await;
        assert_eq!((story.row.word, story.row.replays), (Word::Success, 1), "{story:#?}");
    }
    let run = books.story(jobs_in(&*books.0, "schedule.again").await[0].id).await;
    assert_eq!(run.row.word, Word::Success);
    let mut told = results(&run);
    told.sort();
    assert_eq!(told, ["replayed", "replayed", "skipped"], "the first was replayed before the crash");
    // The call that was on its way at the crash may come again, under its key: the target honours it.
    let keys: BTreeSet<String> = place.sink.calls().into_iter().map(|call| call.effect).collect();
    assert_eq!(keys.len(), 3, "each effect once");
}
