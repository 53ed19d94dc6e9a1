//! Many dead letters come back by a plan: counted first, let go at a pace, and what is acted on is what was counted.

use crate::cli::{ask, clinch, clinch_as};
use crate::nodes::{Nodes, shared_postgres};
use crate::process::{ONCE, PATIENCE, Place, Provider, Server, Sink, eventually};
use crate::world::{OK, Reply, World};
use clinch_core::audit::Who;
use clinch_core::id::{JobId, PlanId};
use clinch_core::job::Word;
use clinch_core::replay::{Mark, Terms};
use clinch_store::replay::Forecast;
use clinch_store::{NewItem, NewPlan, StartAsk, Started};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const BODY: &str = r#"{"order":7}"#;

pub const TWO_STEPS: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 1}
run:
  - name: invoice
    http: {url: http://TARGET/invoice, body_from: body}
  - name: mail
    http: {url: http://TARGET/mail, body_from: body}
";

/// So many dead letters whose invoice is made and whose mail was refused.
pub async fn dead(world: &World, jobs: usize) -> Vec<JobId> {
    world.target.script("/mail", [Reply::Status(422)]);
    let mut made = Vec::new();
    for nth in 0..jobs {
        made.push(world.post_and_wait(&format!("k-{nth}"), BODY, Word::Dead).await.row.id);
    }
    made
}

async fn ended(world: &World, plan: &str) -> Value {
    let path = format!("/api/v1/replays/{plan}");
    eventually("the plan ends", PATIENCE, async || {
        let told = world.admin(&path).await.json();
        ["done", "stopped"].contains(&told["plan"]["state"].as_str().unwrap()) && told["plan"]["under_way"] == 0
    })
    .await;
    world.admin(&path).await.json()["plan"].clone()
}

fn counts(plan: &Value) -> [u64; 5] {
    ["success", "noop", "failed", "changed", "left"].map(|name| plan[name].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_f5_a_plan_is_counted_then_applied_once_and_repeats_no_effect() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    let jobs = dead(&world, 8).await;

    // What is not known is an error, and never everything.
    for (query, says) in [("flwo:orders", "flwo"), ("everything", "everything"), ("reason:nothing", "auth_failed")] {
        let refused = ask(&world, &["replay", "plan", query]).await;
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{}", refused.err);
        assert!(refused.err.contains(says), "{}", refused.err);
    }
    assert_eq!(ask(&world, &["replay", "plan", "flow:other"]).await.code, 3);
    assert_eq!(world.admin("/api/v1/replays").await.json()["plans"], json!([]));

    let planned = ask(&world, &["replay", "plan", "flow:orders reason:rejected_by_target", "--json"]).await;
    assert_eq!(planned.code, 0, "{}", planned.err);
    let plan = planned.json()["plan"].clone();
    let id = plan["id"].as_str().unwrap().to_string();
    assert_eq!((&plan["jobs"], &plan["will_run"], &plan["ask_first"]), (&json!(8), &json!(8), &json!(0)));
    assert_eq!((&plan["state"], &plan["not_repeated"]), (&json!("planned"), &json!({"invoice": 8})));
    assert_eq!(world.job(jobs[0]).await.row.word, Word::Dead, "nothing was run");

    // One is replayed by hand meanwhile; a new one is like the others.
    world.replay(jobs[3], json!({"reason": "try"})).await;
    world.wait_until(jobs[3], "dead again", |story| story.row.word == Word::Dead && story.row.replays == 1).await;
    let newcomer = world.post_and_wait("new", BODY, Word::Dead).await.row.id;
    world.target.script("/mail", [OK]);

    let without = ask(&world, &["replay", "apply", &id]).await;
    assert_eq!(without.code, 9, "{}", without.err);
    let applied = ask(&world, &["replay", "apply", &id, "--reason", "the template was fixed", "--rate", "100/s"]).await;
    assert_eq!(applied.code, 8, "one was not run: {}{}", applied.out, applied.err);
    assert!(applied.out.contains("7 success") && applied.out.contains("1 changed"), "{}", applied.out);
    let plan = ended(&world, &id).await;
    assert_eq!((counts(&plan), &plan["state"]), ([7, 0, 0, 1, 0], &json!("done")));
    let changed = ask(&world, &["replay", "show", &id, "--jobs", "changed", "-o", "id"]).await;
    assert_eq!(changed.out.trim(), jobs[3].to_string());
    for (job, word) in [(jobs[0], Word::Success), (jobs[3], Word::Dead), (newcomer, Word::Dead)] {
        assert_eq!(world.job(job).await.row.word, word);
    }
    assert_eq!(world.target.calls_at("/invoice").len(), 9, "what was done is not done again");

    // The second press is none.
    let calls = world.target.calls().len();
    let again = ask(&world, &["replay", "apply", &id, "--reason", "again"]).await;
    assert!(again.err.contains("was started before"), "{}", again.err);
    assert_eq!((world.target.calls().len(), ended(&world, &id).await), (calls, plan));
    let story = world.job(jobs[0]).await;
    assert_eq!((story.audit.len(), story.row.replays), (1, 1));
    let entry = &story.audit[0];
    assert_eq!((entry.action.as_str(), entry.reason.as_str()), ("job.replay", "the template was fixed"));
    assert!(entry.after.as_deref().unwrap().contains(&id), "{entry:?}");
    eventually("seven were counted", PATIENCE, async || {
        world.admin_as(None, "/metrics").await.body.contains("clinch_time_to_replay_seconds_count 7")
    })
    .await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_the_canary_that_fails_stops_all_the_others() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    dead(&world, 5).await;
    let plan = world.command("/api/v1/replays", json!({"query": "queue:orders"})).await.json()["plan"].clone();
    let id = plan["id"].as_str().unwrap().to_string();
    let start = json!({"reason": "perhaps it is repaired", "canary": 2});
    assert_eq!(world.command(&format!("/api/v1/replays/{id}/start"), start).await.json()["changed"], true);
    let plan = ended(&world, &id).await;
    assert_eq!((&plan["state"], &plan["released"]), (&json!("stopped"), &json!(2)), "{plan}");
    assert!(plan["why"].as_str().unwrap().contains("failed again"), "{plan}");
    assert_eq!(world.target.calls_at("/mail").len(), 7);
    let path = format!("/api/v1/replays/{id}/resume");
    world.command(&path, json!({"reason": "go on"})).await.check_problem(409, "not-now");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_a_plan_is_paused_and_resumed_and_knows_what_will_be_a_noop_and_what_asks_first() {
    let worker = TWO_STEPS.replace("mail, body_from: body", "mail, body_from: body, idempotency: none");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/mail", [Reply::Drop]);
    let mut jobs = Vec::new();
    for key in ["a", "b"] {
        jobs.push(world.post_and_wait(key, BODY, Word::Dead).await.row.id);
    }
    let resolve = json!({"outcome": "done", "proof": "seen in the outbox", "reason": "INC-482"});
    let resolved = world.command(&format!("/api/v1/effects/{}/mail/resolve", jobs[0]), resolve).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let plan =
        world.command("/api/v1/replays", json!({"query": "reason:unknown_outcome"})).await.json()["plan"].clone();
    let told = (&plan["will_run"], &plan["will_be_noop"], &plan["ask_first"]);
    assert_eq!(told, (&json!(0), &json!(1), &json!(1)), "{plan}");
    let path = format!("/api/v1/replays/{}", plan["id"].as_str().unwrap());
    world.command(&format!("{path}/pause"), json!({"reason": "x"})).await.check_problem(409, "not-now");
    // As slow as can be: the second is not let go before it is paused.
    let start = json!({"reason": "go", "rate": "1/h", "canary": 0});
    assert_eq!(world.command(&format!("{path}/start"), start).await.status, 200);
    eventually("the first is let go", PATIENCE, async || world.admin(&path).await.json()["plan"]["released"] == 1)
        .await;
    assert_eq!(
        world.command(&format!("{path}/pause"), json!({"reason": "lunch"})).await.json()["plan"]["state"],
        "paused"
    );
    assert_eq!(world.command(&format!("{path}/pause"), json!({"reason": "lunch"})).await.json()["changed"], false);
    world.wait(jobs[0], Word::Success).await;
    // What it had let go is counted also while it is paused.
    eventually("it is counted", PATIENCE, async || world.admin(&path).await.json()["plan"]["success"] == 1).await;
    assert_eq!(
        world.command(&format!("{path}/resume"), json!({"reason": "back"})).await.json()["plan"]["state"],
        "running"
    );
    assert_eq!(world.command(&format!("{path}/stop"), json!({"reason": "enough"})).await.json()["plan"]["left"], 1);
    assert_eq!(world.target.calls_at("/mail").len(), 2, "nothing was sent by it");
    let actions = world.admin("/api/v1/audit?action=replay.*").await.json();
    let actions: Vec<_> = actions["audit"].as_array().unwrap().iter().map(|row| row["action"].clone()).collect();
    assert_eq!(actions, ["replay.stop", "replay.resume", "replay.pause", "replay.start", "replay.plan"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_plan_lets_nothing_go_while_all_replays_are_paused() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    dead(&world, 3).await;
    world.target.script("/mail", [OK]);
    assert_eq!(ask(&world, &["pause", "replays", "--reason", "the mail server rests"]).await.code, 0);
    let plan = world.command("/api/v1/replays", json!({"query": "flow:orders"})).await.json()["plan"].clone();
    let id = plan["id"].as_str().unwrap().to_string();
    let start = json!({"reason": "repaired"});
    assert_eq!(world.command(&format!("/api/v1/replays/{id}/start"), start).await.status, 200);
    // A live job runs meanwhile, and the gauge says that the plan was looked at.
    eventually("it is looked at", PATIENCE, async || {
        world.admin_as(None, "/metrics").await.body.contains("clinch_replay_batches_active 1")
    })
    .await;
    world.post_and_wait("live", BODY, Word::Success).await;
    assert_eq!(world.admin(&format!("/api/v1/replays/{id}")).await.json()["plan"]["released"], 0);
    assert_eq!(ask(&world, &["resume", "replays", "--reason", "it is back"]).await.code, 0);
    assert_eq!(counts(&ended(&world, &id).await), [3, 0, 0, 0, 0]);
    world.close_and_verify().await;
}

/// Plans that were counted after this one. They run, and let nothing go for an hour.
async fn younger(world: &World, than: PlanId, plans: u64, job: JobId) {
    let (store, now) = (&world.app().house.store, world.app().house.clock.now());
    let record = |at| Who::clinch("test").record("later", at);
    let one = NonZeroU32::MIN;
    let terms = Terms { rate: "1/h".parse().unwrap(), max: one, canary: 0, stop_at: None, at_once: one };
    for plan in (1..=plans).map(|nth| PlanId::from_number(than.number() + nth)) {
        let items = vec![NewItem { job, mark: Mark::from_number(0), replays: 0, died_at: now }];
        let (query, forecast) = ("flow:orders".into(), Forecast::default());
        store.plan(NewPlan { id: plan, query, forecast, items, record: record(now) }).await.unwrap();
        let ask = StartAsk { plan, terms, version: None, record: record(now + Duration::from_secs(3_600)) };
        assert_eq!(store.start(ask).await.unwrap(), Started::Started);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_a_plan_is_carried_out_however_many_younger_ones_are_open() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    let jobs = dead(&world, 2).await;
    world.target.script("/mail", [OK]);
    let plan = world.command("/api/v1/replays", json!({"query": "flow:orders"})).await.json()["plan"].clone();
    let id = plan["id"].as_str().unwrap().to_string();
    younger(&world, id.parse().unwrap(), 120, jobs[0]).await;
    let start = json!({"reason": "repaired"});
    assert_eq!(world.command(&format!("/api/v1/replays/{id}/start"), start).await.status, 200);
    assert_eq!(counts(&ended(&world, &id).await), [2, 0, 0, 0, 0]);
    eventually("the others are counted", PATIENCE, async || {
        world.admin_as(None, "/metrics").await.body.contains("clinch_replay_batches_active 120")
    })
    .await;
    world.close_and_verify().await;
}

const MANY: usize = 200;

/// Many dead letters of an effect that must never be repeated, at a sink that is repaired by now; and a plan for them.
async fn many_dead(sink: &Sink, server: &Server, drained: impl AsyncFnOnce()) -> String {
    sink.answer_with(|_| 422);
    let provider = Arc::new(Provider::new(ONCE));
    provider.load(&server.intake, 8, MANY, &CancellationToken::new()).await;
    drained().await;
    sink.answer_with(|_| 200);
    let planned = cli(server.data_dir(), &["replay", "plan", "queue:once", "--json"]).await;
    assert_eq!(planned["plan"]["jobs"], provider.made(), "{planned}");
    planned["plan"]["id"].as_str().unwrap().into()
}

async fn cli(data_dir: &Path, arguments: &[&str]) -> Value {
    let (data_dir, arguments) = (data_dir.to_path_buf(), arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
    let ask = move || clinch(&data_dir, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(ask).await.unwrap().json()
}

async fn press(server: &Server, plan: &str) -> Value {
    // So slow that who looks for the middle of it finds it.
    let ask =
        ["replay", "apply", plan, "--reason", "repaired", "--rate", "50/s", "--at-once", "8", "--detach", "--json"];
    cli(server.data_dir(), &ask).await
}

/// Until it is in the middle of it.
async fn half_way(sink: &Sink) {
    let made = || sink.calls().iter().filter(|call| call.is_made).count();
    eventually("a third is done", PATIENCE, async || made() > MANY / 3).await;
    assert!(made() < MANY);
}

/// Totals are equal, and no effect is there twice.
async fn nothing_twice(sink: &Sink, server: &Server, plan: &str) {
    // Each look is a process of its own.
    eventually("the plan ends", 2 * PATIENCE, async || {
        let told = cli(server.data_dir(), &["replay", "show", plan, "--json"]).await;
        ["done", "stopped"].contains(&told["plan"]["state"].as_str().unwrap()) && told["plan"]["under_way"] == 0
    })
    .await;
    let told = cli(server.data_dir(), &["replay", "show", plan, "--json"]).await["plan"].clone();
    let [success, noop, failed, changed, left] = counts(&told);
    assert_eq!((told["state"].as_str(), noop, changed, left), (Some("done"), 0, 0, 0), "{told}");
    assert_eq!(success + failed, told["jobs"].as_u64().unwrap(), "{told}");
    let mut made: HashMap<String, usize> = HashMap::new();
    for call in sink.calls().into_iter().filter(|call| call.is_made) {
        *made.entry(call.event).or_default() += 1;
    }
    assert!(made.values().all(|times| *times == 1), "{made:?}");
    // What was under way at the kill may have happened: those, and only those, failed again.
    assert!(failed <= 8 && made.len() as u64 >= success, "{told} {}", made.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn f32_a_plan_goes_on_after_a_kill_and_a_second_press_and_does_nothing_twice() {
    let place = Place::new(&[ONCE]).await;
    let mut server = place.start().await;
    let plan = many_dead(&place.sink, &server, async || place.drained().await).await;
    press(&server, &plan).await;
    half_way(&place.sink).await;
    server.kill9();
    let server = place.start().await;
    assert_eq!(press(&server, &plan).await["changed"], false);
    nothing_twice(&place.sink, &server, &plan).await;
    server.stop().await;
    place.verified();
}

#[tokio::test(flavor = "multi_thread")]
async fn f32_two_nodes_carry_out_one_plan_and_one_of_them_is_killed() {
    let nodes = Nodes::on(shared_postgres(), &[ONCE]).await;
    let (mut first, second) = (nodes.start().await, nodes.start().await);
    let sink = &nodes.place.sink;
    let plan = many_dead(sink, &first, async || nodes.drained().await).await;
    press(&first, &plan).await;
    assert_eq!(press(&second, &plan).await["changed"], false);
    half_way(sink).await;
    first.kill9();
    nothing_twice(sink, &second, &plan).await;
    second.stop().await;
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread")]
async fn f4_poison_is_dropped_by_two_people_on_record_and_taken_back() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    let jobs = dead(&world, 2).await;
    let (first, second) = (jobs[0].to_string(), jobs[1].to_string());
    let token = ask(&world, &["users", "add", "maya", "--role", "operator"]).await.out.trim().to_string();
    let data_dir = world.data_dir();
    let as_maya = async |arguments: &[&str]| {
        let (data_dir, token) = (data_dir.clone(), token.clone());
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let ask = move || clinch_as(&data_dir, &token, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(ask).await.unwrap()
    };

    assert_eq!(as_maya(&["dlq", "drop", &first]).await.code, 9, "why?");
    let asked = as_maya(&["dlq", "drop", &first, &second, "--reason", "poison, INC-482"]).await;
    assert_eq!(asked.code, 0, "{}{}", asked.out, asked.err);
    let waiting = ask(&world, &["dlq", "drop", "ls", "--json"]).await.json();
    assert_eq!((waiting["drops"].as_array().unwrap().len(), &waiting["drops"][0]["asked_by"]), (2, &json!("maya")));
    let alone = as_maya(&["dlq", "drop", "confirm", &first, "--reason", "sure"]).await;
    assert_eq!(alone.code, 5, "{}", alone.out);
    assert!(alone.out.contains("a second person"), "{}", alone.out);
    assert_eq!(world.job(jobs[0]).await.row.word, Word::Dead);

    let dropped = ask(&world, &["dlq", "drop", "confirm", &first, "--reason", "seen, agreed"]).await;
    assert_eq!(dropped.code, 0, "{}{}", dropped.out, dropped.err);
    assert_eq!(world.job(jobs[0]).await.row.word, Word::Dropped);
    assert_eq!(ask(&world, &["dlq", "ls", "-o", "id"]).await.out.trim(), second);
    assert_eq!(ask(&world, &["jobs", "ls", "--state", "dropped", "-o", "id"]).await.out.trim(), first);
    assert_eq!(ask(&world, &["dlq", "undrop", &second, "--reason", "keep it"]).await.code, 0, "it is withdrawn");
    let metrics = world.admin_as(None, "/metrics").await.body;
    assert!(metrics.contains(r#"clinch_dlq_left_total{flow="orders",how="dropped"} 1"#), "{metrics}");

    // What is dropped is not replayed, by nobody's plan.
    world.target.script("/mail", [OK]);
    let plan = world.command("/api/v1/replays", json!({"query": "flow:orders"})).await.json()["plan"].clone();
    assert_eq!(plan["jobs"], 1);
    let back = ask(&world, &["dlq", "undrop", &first, "--reason", "it was good after all"]).await;
    assert_eq!(back.code, 0, "{}", back.err);
    assert_eq!(ask(&world, &["replay", &first, "--reason", "repaired", "--wait"]).await.code, 0);
    let audit = world.job(jobs[0]).await.audit;
    let told: Vec<_> = audit.iter().map(|row| (row.action.as_str(), row.actor.as_str())).collect();
    let by_admin = |action| (action, "admin");
    assert_eq!(told, [("job.drop.ask", "maya"), by_admin("job.drop"), by_admin("job.undrop"), by_admin("job.replay")]);
    world.close_and_verify().await;
}
