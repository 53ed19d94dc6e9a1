//! A job that ends for good is undone: the last step first, each once, whatever is lost on the way.

use crate::nodes::shared_postgres;
use crate::process::{Place, Provider, Way};
use crate::world::{OK, Reply, World};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::postgres::verify;
use clinch_store::read::JobStory;
use serde_json::json;
use std::os::unix::process::ExitStatusExt;

const ORDER: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3}
run:
  - name: shape
    transform: {what: '{{ body.order }}'}
  - name: reserve
    http: {url: http://TARGET/reserve, body_from: body}
    compensate:
      http: {method: DELETE, url: 'http://TARGET/reserve/{{ steps.reserve.output.id }}'}
  - name: note
    http: {url: http://TARGET/note, body_from: body}
  - name: charge
    http: {url: http://TARGET/charge, body_from: body}
    compensate:
      http: {url: http://TARGET/refund, body: {charge: '{{ steps.charge.output.id }}', of: '{{ steps.shape.output.what }}'}}
  - name: ship
    http: {url: http://TARGET/ship, body_from: body}
";

const BODY: &str = r#"{"order":7}"#;

fn prepare(world: &World) {
    world.target.script("/reserve", [Reply::With { status: 201, headers: &[], body: r#"{"id":"r1"}"# }]);
    world.target.script("/charge", [Reply::With { status: 201, headers: &[], body: r#"{"id":"c1"}"# }]);
}

async fn world() -> World {
    let world = World::new(&[("workers/charge.yml", ORDER)]).await;
    prepare(&world);
    world
}

/// What the target was asked, in order.
fn asked(world: &World) -> Vec<String> {
    world.target.calls().iter().map(|call| format!("{} {}", call.method, call.path)).collect()
}

fn ledger(story: &JobStory) -> Vec<(&str, &str)> {
    story.effects.iter().map(|effect| (effect.name.as_str(), effect.state.word())).collect()
}

const FORWARD: [&str; 4] = ["POST /reserve", "POST /note", "POST /charge", "POST /ship"];
const BACK: [&str; 2] = ["POST /refund", "DELETE /reserve/r1"];

async fn check_an_order(world: World) -> World {
    prepare(&world);
    world.target.script("/ship", [Reply::Status(422)]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    let job = dead.row.id;
    assert_eq!(asked(&world), [&FORWARD[..], &BACK].concat(), "the last first, and each once");
    assert_eq!(world.target.calls_at("/refund")[0].body, r#"{"charge":"c1","of":7}"#);
    assert_eq!(dead.row.reason, Some(Reason::RejectedByTarget));
    assert_eq!(dead.row.error.as_deref(), Some("step `ship`: the target answered 422; undone: charge, reserve"));
    let lines = [
        ("reserve", "done"),
        ("note", "done"),
        ("charge", "done"),
        ("ship", "not_done"),
        ("end:1", "done"),
        ("undo:charge", "done"),
        ("undo:reserve", "done"),
    ];
    assert_eq!(ledger(&dead), lines);
    let told = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
    assert_eq!(told["effects"][5]["step"], "undo:charge", "{told}");

    // Repaired and replayed: what was undone is done again under other keys, and the rest stays as it is.
    world.target.script("/ship", [OK]);
    assert_eq!(world.replay(job, json!({"reason": "the address was corrected"})).await.json()["replayed"], true);
    let story = world.wait(job, Word::Success).await;
    let again = ["POST /reserve", "POST /charge", "POST /ship"];
    assert_eq!(asked(&world)[6..], again);
    for (path, is_same) in [("/reserve", false), ("/charge", false), ("/ship", true)] {
        let calls = world.target.calls_at(path);
        assert_eq!(calls[0].key() == calls[1].key(), is_same, "{path}");
    }
    assert_eq!(ledger(&story)[7..], [("reserve@2", "done"), ("charge@2", "done")]);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_refused_step_undoes_those_before_it_in_reverse_and_a_replay_does_them_again() {
    let world = World::new(&[("workers/charge.yml", ORDER)]).await;
    check_an_order(world).await.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_refused_step_undoes_those_before_it_on_postgres() {
    tokio::task::block_in_place(|| shared_postgres().create_database("sagas"));
    let url = shared_postgres().url("sagas");
    let mut world = check_an_order(World::on(url.clone(), &[("workers/charge.yml", ORDER)]).await).await;
    world.close().await;
    let report = verify(&url, Timestamp::from_micros(0)).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_job_that_is_undone_and_fails_again_is_undone_again() {
    let world = world().await;
    world.target.script("/ship", [Reply::Status(422)]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    world.replay(job, json!({"reason": "try"})).await;
    let story =
        world.wait_until(job, "dead again", |story| story.row.word == Word::Dead && story.row.replays == 1).await;
    let again = ["POST /reserve", "POST /charge", "POST /ship", "POST /refund", "DELETE /reserve/r1"];
    assert_eq!(asked(&world)[6..], again);
    let refunds = world.target.calls_at("/refund");
    assert_ne!(refunds[0].key(), refunds[1].key(), "another effect, another key");
    assert!(ledger(&story).contains(&("undo:reserve@2", "done")), "{:?}", ledger(&story));
    assert_eq!(story.row.error.as_deref(), Some("step `ship`: the target answered 422; undone: charge, reserve"));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_d3_what_was_undone_is_called_again_also_where_clinch_remembers_the_call() {
    let worker =
        ORDER.replace("TARGET/reserve, body_from: body}", "TARGET/reserve, body_from: body, idempotency: wrap}");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    prepare(&world);
    world.target.script("/ship", [Reply::Status(422), OK]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    world.replay(job, json!({"reason": "the address was corrected"})).await;
    world.wait(job, Word::Success).await;
    assert_eq!(asked(&world)[6..], ["POST /reserve", "POST /charge", "POST /ship"]);
    world.close_and_verify().await;
}

/// Its reservation is remembered by the number of the order, whichever job makes it.
async fn shared() -> World {
    let said = "body_from: body, idempotency: wrap, wrap_key: '{{ body.order }}'}";
    let worker = ORDER.replace("TARGET/reserve, body_from: body}", &format!("TARGET/reserve, {said}"));
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    prepare(&world);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_d3_a_job_does_not_undo_what_another_job_did() {
    let world = shared().await;
    world.target.script("/ship", [OK, Reply::Status(422)]);
    world.post_and_wait("k-1", BODY, Word::Success).await;
    let dead = world.post_and_wait("k-2", BODY, Word::Dead).await;
    assert_eq!(asked(&world)[4..], ["POST /note", "POST /charge", "POST /ship", "POST /refund"]);
    assert_eq!(dead.row.error.as_deref(), Some("step `ship`: the target answered 422; undone: charge"));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_d3_what_was_undone_is_called_again_for_another_job_and_undone_again() {
    let world = shared().await;
    world.target.script("/ship", [Reply::Status(422), Reply::Status(422), OK]);
    for key in ["k-1", "k-2"] {
        world.post_and_wait(key, BODY, Word::Dead).await;
    }
    world.post_and_wait("k-3", BODY, Word::Success).await;
    assert_eq!(asked(&world), [&FORWARD[..], &BACK, &FORWARD, &BACK, &FORWARD].concat());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_p4_undoing_has_attempts_of_its_own() {
    let world = world().await;
    // Its attempts are spent when the undoing begins, which then fails twice.
    world.target.script("/ship", [Reply::Status(503)]);
    world.target.script("/refund", [Reply::Status(503), Reply::Status(500), OK]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    let ships = ["POST /ship"; 2];
    assert_eq!(asked(&world), [&FORWARD[..], &ships, &["POST /refund"; 2], &BACK].concat());
    assert_eq!(story.row.reason, Some(Reason::TargetDown));
    assert_eq!(story.row.error.as_deref(), Some("step `ship`: the target answered 503; undone: charge, reserve"));
    let errors: Vec<_> = story.attempts.iter().filter_map(|attempt| attempt.error.as_deref()).collect();
    let waiting = "step `ship`: the target answered 503; still to be undone: charge (the target answered 503)";
    assert_eq!(errors[3], waiting);
    let refunds = world.target.calls_at("/refund");
    assert!(refunds.iter().all(|call| call.key() == refunds[0].key()), "always under the same key");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_what_cannot_be_undone_is_named_and_nothing_is_undone_out_of_order() {
    let world = world().await;
    world.target.script("/ship", [Reply::Status(422), OK]);
    world.target.script("/refund", [Reply::Status(409)]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(asked(&world), [&FORWARD[..], &BACK[..1]].concat());
    assert_eq!(dead.row.reason, Some(Reason::RejectedByTarget));
    let error = "step `ship`: the target answered 422; not undone: charge (the target answered 409)";
    assert_eq!(dead.row.error.as_deref(), Some(error));
    assert!(ledger(&dead).contains(&("undo:charge", "given_up")), "{:?}", ledger(&dead));
    // What still stands is not done again.
    world.replay(dead.row.id, json!({"reason": "go on"})).await;
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(asked(&world)[5..], ["POST /ship"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_p3_nothing_is_undone_before_a_person_has_decided_about_an_unknown_outcome() {
    let world = world().await;
    world.target.script("/ship", [Reply::Drop, Reply::Status(422)]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::UnknownOutcome));
    assert_eq!(asked(&world), FORWARD);
    let ask = json!({"reason": "they do not have it", "unknown": "resend"});
    assert_eq!(world.replay(dead.row.id, ask).await.json()["replayed"], true);
    let dead =
        world.wait_until(dead.row.id, "undone", |story| story.row.replays == 1 && story.row.word == Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::RejectedByTarget));
    assert_eq!(asked(&world), [&FORWARD[..], &["POST /ship"], &BACK].concat());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_p3_nothing_is_undone_when_a_lost_answer_is_followed_by_a_refusal() {
    let worker = ORDER.replace("url: http://TARGET/ship,", "url: http://TARGET/ship, idempotency: header,");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    prepare(&world);
    world.target.script("/ship", [Reply::Drop, Reply::Status(422)]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::RejectedByTarget));
    assert_eq!(asked(&world), [&FORWARD[..], &["POST /ship"]].concat());
    assert!(ledger(&dead).contains(&("ship", "unknown")), "{:?}", ledger(&dead));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_p3_an_undoing_of_unknown_outcome_is_for_a_person() {
    let world = world().await;
    world.target.script("/ship", [Reply::Status(422), OK]);
    world.target.script("/refund", [Reply::Drop]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::UnknownOutcome));
    let error = dead.row.error.as_deref().unwrap();
    assert!(
        error.starts_with("step `ship`: the target answered 422; not undone: charge (sent, but no answer"),
        "{error}"
    );
    let problem = world.replay(dead.row.id, json!({"reason": "again"})).await.check_problem(409, "needs-ruling");
    assert_eq!(problem["steps"], json!(["undo:charge"]));
    // It was refunded: so it is charged again, and the reservation stands.
    world.replay(dead.row.id, json!({"reason": "it is in the books", "unknown": "skip"})).await;
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(asked(&world)[5..], ["POST /charge", "POST /ship"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_replay_first_finds_out_whether_a_step_still_stands() {
    let worker = ORDER.replace("url: http://TARGET/refund,", "url: http://TARGET/refund, idempotency: header,");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    prepare(&world);
    world.target.script("/ship", [Reply::Status(422), OK]);
    world.target.script("/refund", [Reply::Drop, Reply::Drop, Reply::Drop, OK]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert!(ledger(&dead).contains(&("undo:charge", "unknown")), "{:?}", ledger(&dead));
    world.replay(dead.row.id, json!({"reason": "they are back"})).await;
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(asked(&world)[7..], ["POST /refund", "POST /charge", "POST /ship"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_c9_what_a_branch_has_done_is_undone_when_another_is_given_up() {
    let worker = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 2}
run:
  - name: all
    parallel:
      - name: a
        http: {url: http://TARGET/a, body_from: body}
        compensate: {http: {url: http://TARGET/not-a}}
      - name: b
        http: {url: http://TARGET/b, body_from: body}
        compensate: {http: {url: http://TARGET/not-b}}
";
    let world = World::new(&[("workers/charge.yml", worker)]).await;
    world.target.script("/b", [Reply::Status(503), Reply::Status(503), OK]);
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    let counts = || ["/a", "/b", "/not-a", "/not-b"].map(|path| world.target.calls_at(path).len());
    assert_eq!(counts(), [1, 2, 1, 0]);
    let error = dead.row.error.as_deref().unwrap();
    assert!(error.ends_with("missing: b (the target answered 503); undone: a"), "{error}");
    world.replay(dead.row.id, json!({"reason": "b is back"})).await;
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(counts(), [2, 3, 1, 0]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_c8_what_undoes_a_step_reads_the_results_of_a_list_before_it() {
    let worker = "
version: 1
name: charge
consumes: {queue: orders}
retry: {max_attempts: 1}
run:
  - name: lines
    foreach: body.lines
    if: item > 1
    http: {url: 'http://TARGET/line/{{ item }}', body_from: item}
  - name: twice
    foreach: body.lines
    transform: {n: '{{ item * 2 }}'}
  - name: book
    http: {url: http://TARGET/book, body_from: body}
    compensate:
      http: {url: http://TARGET/unbook, body: {lines: '{{ steps.lines.output }}', twice: '{{ steps.twice.output }}'}}
  - name: ship
    http: {url: http://TARGET/ship, body_from: body}
";
    let world = World::new(&[("workers/charge.yml", worker)]).await;
    world.target.script("/line/2", [Reply::With { status: 200, headers: &[], body: r#"{"id":7}"# }]);
    world.target.script("/ship", [Reply::Status(422)]);
    let dead = world.post_and_wait("k", r#"{"lines":[1,2]}"#, Word::Dead).await;
    assert_eq!(dead.row.error.as_deref(), Some("step `ship`: the target answered 422; undone: book"));
    let asked: serde_json::Value = serde_json::from_str(&world.target.calls_at("/unbook")[0].body).unwrap();
    assert_eq!(asked, json!({"lines": [null, {"id": 7}], "twice": [{"n": 2}, {"n": 4}]}));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_scripts_and_statements_undo_too() {
    let worker = "
version: 1
name: charge
consumes: {queue: orders}
retry: {max_attempts: 1}
run:
  - name: seat
    sql: {database: hall, statement: 'INSERT INTO seats (who) VALUES ($1) RETURNING id', params: ['{{ body.order }}']}
    compensate:
      sql: {database: hall, statement: 'DELETE FROM seats WHERE id = $1', params: ['{{ steps.seat.output.rows[0].id }}']}
  - name: lamp
    uses: bash
    script: echo \"$IDEMPOTENCY_KEY\" >> lit; echo '{\"lamp\":1}'
    compensate:
      uses: bash
      env: {LAMP: '{{ steps.lamp.output.lamp }}'}
      script: echo \"$LAMP $IDEMPOTENCY_KEY\" >> unlit
  - name: show
    http: {url: http://TARGET/show, body_from: body}
";
    let mut world = World::unopened(&[&crate::world::USUAL[..], &[("workers/charge.yml", worker)]].concat()).await;
    let hall = world.workspace_dir().join("hall.db");
    let seats = rusqlite::Connection::open(&hall).unwrap();
    seats.execute_batch("CREATE TABLE seats (id INTEGER PRIMARY KEY, who TEXT)").unwrap();
    world.write("clinch.yml", "integrations:\n  hall:\n    url: sqlite:hall.db\n");
    world.target.script("/show", [Reply::Status(422)]);
    world.open(clinch::app::Roles::ALL).await;
    let dead = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(dead.row.error.as_deref(), Some("step `show`: the target answered 422; undone: lamp, seat"));
    let left: i64 = seats.query_row("SELECT count(*) FROM seats", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    let read = |file: &str| std::fs::read_to_string(world.workspace_dir().join(file)).unwrap();
    let (lit, unlit) = (read("lit"), read("unlit"));
    assert_eq!(lit.trim(), "k");
    assert!(unlit.starts_with("1 clinch-"), "undoing is another effect, with a key of its own: {unlit}");
    world.close_and_verify().await;
}

const WAY: Way = Way { name: "saga", idempotency: "none", steps: &["unused"], concurrency: 1 };

/// Two steps that can be undone and one that never works, with few attempts.
async fn three_steps(idempotency: &str) -> (Place, Provider) {
    let place = Place::new(&[WAY]).await;
    let http = |path: &str, idempotency: &str| {
        format!("{{url: 'http://{}/saga/{path}', body_from: body, idempotency: {idempotency}}}", place.sink.address)
    };
    let step = |name: &str| {
        let (done, undone) = (http(name, "none"), http(&format!("not-{name}"), idempotency));
        format!("  - name: {name}\n    http: {done}\n    compensate: {{http: {undone}}}\n")
    };
    let head = "name: w\nconsumes: {queue: saga}\nretry: {base_delay: 10ms, jitter: none, max_attempts: 2}\nrun:\n";
    let ship = format!("  - name: ship\n    http: {}\n", http("ship", "none"));
    place.write("workers/saga.yml", &[head, &step("reserve"), &step("charge"), &ship].concat());
    place.sink.answer_with(|call| if call.step == "ship" { 503 } else { 200 });
    (place, Provider::new(WAY))
}

async fn crash(place: &Place, provider: &Provider, point: &str) {
    // With a job to go on with it may be gone before its doors are open.
    let mut server = place.spawn(&[("CLINCH_CRASH_AT", point)]);
    if provider.made() == 0 {
        server.opened().await;
        provider.deliver(&server.intake).await;
    }
    let status = server.exited().await;
    assert_eq!(status.signal(), Some(6), "it ends at {point}: {status}: {}", server.said());
}

fn steps(place: &Place) -> Vec<String> {
    place.sink.calls().into_iter().map(|call| call.step).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_a_crash_between_two_undoings_repeats_neither_and_leaves_none_out() {
    let (place, provider) = three_steps("none").await;
    crash(&place, &provider, "after_undo").await;
    let story = place.after_a_restart(&provider).await;
    assert_eq!(steps(&place), ["reserve", "charge", "ship", "ship", "not-charge", "not-reserve"]);
    assert_eq!((story.row.word, story.row.reason), (Word::Dead, Some(Reason::TargetDown)));
    let error = story.row.error.as_deref().unwrap();
    assert_eq!(error, "step `ship`: the target answered 503; undone: charge, reserve");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_a_crash_before_the_end_is_on_record_undoes_all_the_same() {
    let (place, provider) = three_steps("none").await;
    crash(&place, &provider, "after_mark").await;
    let story = place.after_a_restart(&provider).await;
    assert_eq!(steps(&place), ["reserve", "charge", "ship", "ship", "not-charge", "not-reserve"]);
    assert_eq!(story.row.word, Word::Dead);
    let error = story.row.error.as_deref().unwrap();
    assert!(error.ends_with("; undone: charge, reserve"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_p3_a_crash_while_it_is_undone_sends_again_only_what_may_be_sent_again() {
    for idempotency in ["header", "none"] {
        let (place, provider) = three_steps(idempotency).await;
        crash(&place, &provider, "after_undo").await;
        crash(&place, &provider, "after_send").await;
        let story = place.after_a_restart(&provider).await;
        let undone: Vec<_> = place.sink.calls().into_iter().filter(|call| call.step == "not-reserve").collect();
        assert!(undone.iter().all(|call| call.effect == undone[0].effect), "under one key: {undone:?}");
        let state = &story.effects.iter().find(|effect| effect.name == "undo:reserve").unwrap().state;
        if idempotency == "header" {
            assert_eq!(undone.len(), 2);
            assert!(matches!(state, EffectState::Done(_)), "{state:?}");
            assert_eq!(story.row.reason, Some(Reason::TargetDown));
        } else {
            assert_eq!((undone.len(), state), (1, &EffectState::Unknown));
            assert_eq!(story.row.reason, Some(Reason::UnknownOutcome));
        }
        assert_eq!((story.row.word, place.sink.count_of("not-charge")), (Word::Dead, 1), "{idempotency}");
    }
}
