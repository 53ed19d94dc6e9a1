//! Effects that may or may not have happened: found, asked about, ruled on by a person; and answers that came too late.

use crate::cli::{self, Said};
use crate::nodes::{Nodes, shared_postgres};
use crate::process::{ONCE, PATIENCE, Pace, Provider, Told, eventually, keys_in};
use crate::world::{OK, Reply, World, worker_with_step};
use clinch_core::attempt::Outcome;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, LateAnswer};
use clinch_core::id::JobId;
use clinch_core::job::{Change, Word};
use clinch_core::time::Timestamp;
use clinch_store::postgres::{Options, PostgresStore};
use clinch_store::read::Read;
use clinch_store::{Conclusion, Held, Settlement};
use rustix::process::Signal;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const BODY: &str = r#"{"order":7}"#;
const LOOKUP: &str =
    "    lookup: {url: \"/leads?key={{ step.key }}\", done: \"answer.status == 200 and answer.body.total > 0\"}\n";

/// A step that calls the integration `crm`, of which this is said.
async fn world(said: &str) -> World {
    let clinch = format!("integrations:\n  crm:\n    base_url: http://TARGET\n{said}");
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await
}

fn found(body: &'static str) -> Reply {
    Reply::With { status: 200, headers: &[], body }
}

/// A dead letter of which nobody knows whether the target did it.
async fn unknown(world: &World, key: &str) -> JobId {
    world.target.script("/charge", [Reply::Drop]);
    let job = world.post_and_wait(key, BODY, Word::Dead).await.row.id;
    assert_eq!(world.job(job).await.effects[0].state, EffectState::Unknown);
    job
}

fn check(said: &Said, code: i32, out: &[&str], err: &[&str]) {
    assert_eq!(said.code, code, "{} {}", said.out, said.err);
    for part in out {
        assert!(said.out.contains(part), "{part:?} is not in {:?}; {}", said.out, said.err);
    }
    for part in err {
        assert!(said.err.contains(part), "{part:?} is not in {:?}", said.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_person_finds_an_unknown_effect_says_that_it_was_done_and_replays_the_job() {
    let world = world("    idempotency: none\n").await;
    let job = unknown(&world, "k").await;
    let id = format!("{job}/charge");
    let ask = async |arguments: &[&str]| cli::ask(&world, arguments).await;

    let listed = ask(&["effects", "ls", "state:unknown", "-o", "table"]).await;
    check(&listed, 0, &[&id, "unknown", "crm", "orders", "dead"], &[&format!("next: clinch effects show {id}")]);
    let listed = ask(&["effects", "ls", "state:unknown integration:crm flow:orders", "--json"]).await.json();
    assert_eq!((&listed["effects"][0]["id"], &listed["effects"][0]["integration"]), (&json!(id), &json!("crm")));
    assert_eq!((&listed["more"], &listed["next_before"]), (&json!(false), &json!(null)));
    let ids = ask(&["effects", "ls", &format!("job:{job}"), "-o", "id"]).await;
    assert_eq!(ids.out, format!("{id}\n"));
    for none in ["integration:stripe", "state:done", "flow:other"] {
        check(&ask(&["effects", "ls", none]).await, 0, &[], &["no effect is like this"]);
    }
    let known = "what can be asked: state:…, integration:…, flow:…, job:…";
    check(&ask(&["effects", "ls", "sate:unknown"]).await, 2, &[], &["cannot be asked for by `sate`", known]);
    check(&ask(&["effects", "ls", "state:lost"]).await, 2, &[], &["open, done, not_done, unknown"]);

    let shown = ask(&["effects", "show", &id, "-o", "table"]).await;
    let by_hand = format!("next: look at the partner, then clinch effects resolve {id} --done");
    check(&shown, 0, &[&id, "integration crm   idempotency none", "tried       1×"], &[&by_hand]);
    check(&ask(&["dlq", "show", &job.to_string(), "-o", "table"]).await, 0, &[], &[&by_hand]);
    let cannot = ask(&["effects", "verify", &id]).await;
    check(&cannot, 1, &["cannot be asked: no `lookup:` says how to ask `crm`"], &[]);

    let bare = ["effects", "resolve", &id, "--done"];
    check(&ask(&bare).await, 9, &[], &["needs a proof and a reason", "--proof TEXT --reason TEXT"]);
    check(&ask(&bare[..3]).await, 2, &[], &["--done|--not-done"]);
    let word = |outcome: &'static str| {
        let proof = ["--proof", "payment 77 of ada@example.com", "--reason", "INC-482", "-o", "table"];
        [&["effects", "resolve", &id, outcome][..], &proof[..]].concat()
    };
    let replay = format!("next: clinch replay {job} --reason TEXT");
    let unresolved = async |effects: &str| {
        let metrics = world.admin("/metrics").await.body;
        let line = format!("clinch_effects_unresolved{{integration=\"crm\"}} {effects}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
        assert!(metrics.contains("clinch_effects_protected_total{protected=\"no\"} 1\n"), "{metrics}");
    };
    unresolved("1").await;
    check(&ask(&word("--done")).await, 0, &[&format!("{id} is taken as done; your word is on record")], &[&replay]);
    check(&ask(&word("--done")).await, 0, &[&format!("{id} is done already; nothing done")], &[&replay]);
    check(&ask(&word("--not-done")).await, 5, &[], &["is done, which is known; nothing was changed"]);
    unresolved("0").await;
    let story = world.job(job).await;
    assert_eq!((story.audit.len(), story.row.word), (1, Word::Dead));
    let audit = &story.audit[0];
    assert_eq!((&*audit.reason, audit.before.as_deref()), ("INC-482", Some(r#"{"state":"unknown"}"#)));
    let after = r#"{"state":"done","proof":"payment 77 of a•••@e•••.com"}"#;
    assert_eq!(audit.after.as_deref(), Some(after));

    check(&ask(&["replay", &job.to_string(), "--reason", "it was done", "--wait"]).await, 0, &["success"], &[]);
    assert_eq!(world.target.calls_at("/charge").len(), 1, "what was done is not done again");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_what_a_person_says_was_not_done_is_done_by_a_replay() {
    let world = world("    idempotency: none\n").await;
    let job = unknown(&world, "k").await;
    let path = format!("/api/v1/effects/{job}/charge/resolve");
    let ask = json!({"outcome": "not_done", "proof": "no such payment", "reason": "INC-482"});
    let told = world.command(&path, ask.clone()).await.json();
    assert_eq!(
        (&told["resolved"], &told["state"], &told["unknown_left"]),
        (&json!(true), &json!("not_done"), &json!(0))
    );
    assert_eq!(world.command(&path, ask).await.json()["resolved"], false);
    world.target.script("/charge", [OK]);
    world.replay(job, json!({"reason": "it was not done"})).await;
    world.wait(job, Word::Success).await;
    let calls = world.target.calls_at("/charge");
    assert_eq!((calls.len(), calls[0].key()), (2, calls[1].key()));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_list_of_effects_goes_on_where_the_page_before_ended() {
    let world = world("    idempotency: none\n").await;
    let mut expected = Vec::new();
    for key in ["a", "b", "c"] {
        expected.insert(0, format!("{}/charge", unknown(&world, key).await));
    }
    for query in ["state=unknown&integration=crm", "state=unknown", "flow=orders"] {
        let (mut seen, mut next) = (Vec::new(), String::new());
        loop {
            let page = world.admin(&format!("/api/v1/effects?{query}&limit=2{next}")).await.json();
            seen.extend(page["effects"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_string()));
            let Some(before) = page["next_before"].as_str() else { break };
            next = format!("&before={before}");
        }
        assert_eq!(seen, expected, "{query}");
    }
    let first = cli::ask(&world, &["effects", "ls", "state:unknown", "--limit", "1", "-o", "table"]).await;
    let next = format!("next: clinch effects ls state:unknown --limit 1 --before {}", expected[0]);
    check(&first, 0, &[&expected[0]], &[&next]);
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_word_that_nobody_needs_is_refused_and_says_why() {
    let world = world("    idempotency: none\n").await;
    let word = json!({"outcome": "done", "proof": "seen", "reason": "INC-482"});
    let resolve =
        async |id: &str, ask: serde_json::Value| world.command(&format!("/api/v1/effects/{id}/resolve"), ask).await;
    world.target.script("/charge", [Reply::Held]);
    let job = world.post("k", BODY).await.job();
    world.target.called(1).await;
    let running = resolve(&format!("{job}/charge"), word.clone()).await.check_problem(409, "not-now");
    assert!(running["detail"].as_str().unwrap().contains("is running and settles its effects"), "{running}");
    world.target.release();
    world.wait(job, Word::Success).await;
    let contrary = json!({"outcome": "not_done", "proof": "seen", "reason": "INC-482"});
    resolve(&format!("{job}/charge"), contrary).await.check_problem(409, "not-unknown");
    let absent = resolve(&format!("{job}/mail"), word.clone()).await.check_problem(404, "not-found");
    assert!(absent["detail"].as_str().unwrap().contains("has no effect `mail`; its effects: charge"), "{absent}");
    let nobody = JobId::from_number(job.number() + 77);
    resolve(&format!("{nobody}/charge"), word.clone()).await.check_problem(404, "not-found");
    resolve("evt_1/charge", word).await.check_problem(400, "bad-query");
    for bad in [
        json!({"outcome": "done", "proof": " ", "reason": "INC-482"}),
        json!({"outcome": "done", "proof": "seen", "reason": ""}),
        json!({"outcome": "maybe", "proof": "seen", "reason": "INC-482"}),
        json!({"proof": "seen", "reason": "INC-482"}),
    ] {
        resolve(&format!("{job}/charge"), bad).await.check_problem(400, "bad-body");
    }
    world.admin("/api/v1/effects?sort=age").await.check_problem(400, "bad-query");
    world.admin(&format!("/api/v1/effects/{job}/mail")).await.check_problem(404, "not-found");
    let unnamed = world.admin_as(None, "/api/v1/effects").await;
    assert_eq!(unnamed.status, 401);
    assert!(world.job(job).await.audit.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_verify_asks_the_partner_tells_what_it_says_and_changes_nothing() {
    let world = world(LOOKUP).await;
    // It cannot be asked while the job lives, so the job gives up.
    world.target.script("/leads", [Reply::Status(503)]);
    let job = unknown(&world, "k").await;
    let id = format!("{job}/charge");
    let verify = async || cli::ask(&world, &["effects", "verify", &id, "-o", "table"]).await;
    let shown = cli::ask(&world, &["effects", "show", &id, "-o", "table"]).await;
    check(&shown, 0, &[], &[&format!("next: clinch effects verify {id}")]);

    check(&verify().await, 1, &["the partner does not say: to the lookup the target answered 503"], &[]);
    // Who is not let in is told nothing.
    world.target.script("/leads", [Reply::Status(401)]);
    check(&verify().await, 1, &["the partner does not say: to the lookup the target answered 401"], &[]);
    world.target.script("/leads", [found(r#"{"total": 1}"#)]);
    let done = format!("next: clinch effects resolve {id} --done --proof 'the lookup answered 200' --reason TEXT");
    check(&verify().await, 0, &["done, says the partner", "the ledger says unknown"], &[&done]);
    world.target.script("/leads", [found(r#"{"total": 0}"#)]);
    check(&verify().await, 0, &["not done, says the partner"], &[&format!("resolve {id} --not-done")]);

    let asked = world.target.calls_at("/leads");
    let key = world.target.calls_at("/charge")[0].key().to_string();
    assert!(asked.last().unwrap().path.ends_with(&format!("key={key}")), "{asked:?}");
    let story = world.job(job).await;
    assert_eq!((&story.effects[0].state, story.audit.len()), (&EffectState::Unknown, 0));
    assert_eq!(world.target.calls_at("/charge").len(), 1);
}

/// The steps of a job that needs what its first step got.
const TWO_STEPS: &str = "  - name: charge
    http: {url: http://TARGET/charge, body_from: body}
  - name: mail
    http: {url: http://TARGET/mail, body: {answer: '{{ steps.charge.status }}'}}
";

/// A worker waits for an answer when its lease ends: the job is taken from it and settled as the keeper does.
async fn taken_from_its_worker(world: &World, job: JobId) {
    let house = &world.app().house;
    // Far in the future, as seen by a worker that slept.
    let now = house.clock.now() + Duration::from_secs(86_400);
    let lost = house.store.lapse(now, 10, now + PATIENCE).await.unwrap().pop().expect("its lease is over by then");
    assert_eq!(lost.lease.job, job);
    let outcome = Outcome::Lost { open: Some(lost.effects[0].class) };
    let conclusion = Conclusion { name: "charge".into(), state: EffectState::Unknown, at: now };
    let change = Change::Buried { at: now, reason: Reason::UnknownOutcome };
    let end = Settlement::of(&outcome, change, now, now, Some(conclusion));
    assert_eq!(house.store.settle(lost.lease, end).await.unwrap(), Held::Held);
}

/// A job that was taken from its worker, which was answered afterwards.
async fn answered_late() -> (World, JobId, LateAnswer) {
    let world = World::new(&[("workers/charge.yml", &worker_with_step(TWO_STEPS))]).await;
    world.target.script("/charge", [Reply::Held]);
    let job = world.post("k", BODY).await.job();
    world.target.called(1).await;
    taken_from_its_worker(&world, job).await;
    assert_eq!(world.job(job).await.row.word, Word::Dead);
    world.target.release();
    let story = world.wait_until(job, "testified", |story| !story.late.is_empty()).await;
    assert_eq!((story.row.word, story.row.attempts, story.late.len()), (Word::Dead, 1, 1));
    assert_eq!(story.effects[0].state, EffectState::Unknown, "evidence changes nothing");
    let late = story.late[0].clone();
    assert_eq!((&*late.step, late.status, late.state.word()), ("charge", Some(200), "done"));
    (world, job, late)
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_the_answer_of_a_fenced_worker_is_kept_shown_and_becomes_the_result_by_a_persons_word() {
    let (world, job, late) = answered_late().await;
    let id = format!("{job}/charge");
    let line = format!("late answer: 200 at {}, from fence {}: it was done", late.at, late.fence.0);
    let proof = format!("late answer 200 at {}", late.at);
    let next = format!("next: clinch effects resolve {id} --done --proof '{proof}' --reason TEXT");
    for command in [["effects", "show", &id], ["jobs", "show", &job.to_string()], ["dlq", "show", &job.to_string()]] {
        check(&cli::ask(&world, &[&command[..], &["-o", "table"]].concat()).await, 0, &[&line], &[&next]);
    }
    let listed = cli::ask(&world, &["effects", "ls", "state:unknown", "-o", "table"]).await;
    check(&listed, 0, &["late answer: done"], &[]);
    let shown = cli::ask(&world, &["jobs", "show", &job.to_string(), "--json"]).await.json();
    assert_eq!(
        (&shown["late_answers"][0]["answer_status"], &shown["late_answers"][0]["step"]),
        (&json!(200), &json!("charge"))
    );

    let word = ["effects", "resolve", &id, "--done", "--proof", &proof, "--reason", "INC-482"];
    check(&cli::ask(&world, &word).await, 0, &["is taken as done"], &[]);
    let EffectState::Done(receipt) = &world.job(job).await.effects[0].state else { panic!("it is done") };
    assert_eq!((receipt.status, &receipt.body[..]), (200, &b"{}"[..]));
    world.replay(job, json!({"reason": "it was done"})).await;
    world.wait(job, Word::Success).await;
    let mails = world.target.calls_at("/mail");
    assert_eq!((world.target.calls_at("/charge").len(), mails.len()), (1, 1));
    assert_eq!(mails[0].body, r#"{"answer":200}"#, "the next step gets the answer that came late");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k3_late_answers_move_with_their_job() {
    let (mut world, job, late) = answered_late().await;
    world.close().await;
    let nodes = Nodes::on(shared_postgres(), &[]).await;
    let from = format!("sqlite:{}", world.data_dir().display());
    let moved = cli::clinch(&world.data_dir(), &["migrate", "--from", &from, "--to", &nodes.url, "--json"]);
    assert_eq!(moved.json()["counts"]["late_answers"], 1, "{}", moved.err);
    let clock = || Timestamp::from_micros(jiff::Timestamp::now().as_microsecond());
    let there = PostgresStore::open(&nodes.url, [0; 32], keys_in(&world.data_dir()), Options::new(Arc::new(clock)));
    let story = there.await.unwrap().job(job).await.unwrap().expect("it was moved");
    assert_eq!((story.late, &story.effects[0].state), (vec![late], &EffectState::Unknown));
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_p11_t_067_a_node_that_slept_past_its_lease_leaves_its_late_answer_as_evidence() {
    let nodes = Nodes::on(shared_postgres(), &[ONCE]).await;
    let (first, second) = (nodes.start().await, nodes.start().await);
    nodes.place.sink.pace(Pace::Held);
    let provider = Provider::new(ONCE);
    assert_eq!(provider.deliver(&first.intake).await, Told::Acknowledged);
    nodes.place.sink.called(1).await;
    let (sleeper, awake) = match nodes.place.sink.calls()[0].node == first.name {
        true => (first, second),
        false => (second, first),
    };
    sleeper.signal(Signal::STOP);
    // Who could not ask the database for a while begins anew to listen for the others.
    eventually("it is taken for dead and its job with it", 4 * PATIENCE, async || nodes.jobs("dead").await == 1).await;
    nodes.place.sink.pace(Pace::Prompt);
    sleeper.signal(Signal::CONT);
    let client = nodes.client().await;
    eventually("it wakes up, reads the answer and testifies", PATIENCE, async || {
        client.query("SELECT 1 FROM late_answer", &[]).await.unwrap().len() == 1
    })
    .await;
    let job = *provider.acknowledged().values().next().unwrap();
    let (id, directory) = (format!("{job}/charge"), awake.data_dir().to_path_buf());
    let asked = id.clone();
    let ask = move |command: &str| cli::clinch(&directory, &["effects", command, &asked, "-o", "table"]);
    let shown = tokio::task::block_in_place(|| ask("show"));
    let next = format!("next: clinch effects resolve {id} --done --proof 'late answer 200 at ");
    check(&shown, 0, &["unknown", "evidence    late answer: 200 at ", ": it was done"], &[&next]);
    assert_eq!(nodes.place.sink.count(), 1, "it was sent once");
    nodes.verified();
    for node in [sleeper, awake] {
        node.stop().await;
    }
}

#[test]
fn d5_check_tells_the_share_of_protected_effects() {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("queues.yml", crate::world::QUEUES);
    write("flows/orders.yml", crate::world::FLOW);
    write(
        "workers/charge.yml",
        &worker_with_step(TWO_STEPS).replace("TARGET/mail, ", "TARGET/mail, idempotency: natural, "),
    );
    let place = directory.path().display().to_string();
    let said = cli::clinch(directory.path(), &["check", &place, "-o", "table"]);
    let unprotected = "\nprotected effects: 1 of 2 steps (50 %)\n  charge/charge (TARGET): write `idempotency: header`";
    check(&said, 0, &[unprotected], &[]);
    let told = cli::clinch(directory.path(), &["check", &place, "--json"]).json();
    let share = &told["protected_effects"];
    assert_eq!((&share["steps"], &share["protected"], &share["percent"]), (&json!(2), &json!(1), &json!(50)));
    assert_eq!(share["unprotected"][0]["step"], "charge");
}
