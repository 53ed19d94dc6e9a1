//! Branches side by side: each is done once, whatever becomes of the others.

use crate::nodes::shared_postgres;
use crate::process::{Pace, Place, Provider, Way};
use crate::world::{Call, OK, Reply, World};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::postgres::verify;
use clinch_store::read::JobStory;
use serde_json::json;
use std::os::unix::process::ExitStatusExt;

const HEAD: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3}
run:
";

const EVERYWHERE: &str = "
  - name: everywhere
    parallel:
      - name: crm
        http: {url: http://TARGET/crm, body_from: body}
      - name: analytics
        steps:
          - name: shape
            transform: {of: '{{ body.order }}'}
          - name: track
            http: {url: http://TARGET/track, body_from: steps.shape.output}
      - name: audit
        http: {url: http://TARGET/audit, body_from: body}
  - name: after
    http: {url: http://TARGET/after, body: {crm: '{{ steps.crm.output.id }}', track: '{{ steps.track.status }}'}}
";

async fn world(steps: &str) -> World {
    World::new(&[("workers/charge.yml", &format!("{HEAD}{steps}"))]).await
}

fn state<'s>(story: &'s JobStory, step: &str) -> &'s EffectState {
    let found = story.effects.iter().find(|effect| effect.name == step);
    &found.unwrap_or_else(|| panic!("{step} is in the ledger: {:?}", story.effects)).state
}

fn counts<const N: usize>(world: &World, paths: [&str; N]) -> [usize; N] {
    paths.map(|path| world.target.calls_at(path).len())
}

/// Each of these bodies came, and each of them once.
fn came_once(calls: &[Call], bodies: &[String]) {
    let mut came: Vec<&str> = calls.iter().map(|call| call.body.as_str()).collect();
    came.sort_unstable();
    assert_eq!(came, bodies.iter().map(String::as_str).collect::<Vec<_>>());
}

async fn check_one_dead_sink(world: World) -> World {
    world.target.script("/crm", [Reply::With { status: 201, headers: &[], body: r#"{"id":7}"# }]);
    world.target.script("/track", [Reply::Status(503)]);
    let bodies: Vec<String> = (0..5).map(|order| json!({ "order": order }).to_string()).collect();
    let mut jobs = Vec::new();
    for body in &bodies {
        jobs.push(world.post(body, body).await.job());
    }
    for job in &jobs {
        let dead = world.wait(*job, Word::Dead).await;
        assert_eq!((dead.row.reason, dead.row.failures), (Some(Reason::TargetDown), 3));
        let error = dead.row.error.as_deref().unwrap();
        let missing =
            "step `everywhere`: 2 of 3 branches are done; missing: analytics (step `track`: the target answered 503)";
        assert_eq!(error, missing);
        assert_eq!(*state(&dead, "track"), EffectState::GivenUp(Reason::TargetDown));
        let told = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
        let words: Vec<_> = told["effects"].as_array().unwrap().iter().map(|effect| effect["state"].clone()).collect();
        assert!(words.contains(&json!("given_up")), "{told}");
    }
    assert_eq!(counts(&world, ["/crm", "/track", "/audit", "/after"]), [5, 15, 5, 0]);
    came_once(&world.target.calls_at("/crm"), &bodies);
    came_once(&world.target.calls_at("/audit"), &bodies);

    world.target.script("/track", [Reply::Status(204)]);
    for job in &jobs {
        assert_eq!(world.replay(*job, json!({"reason": "analytics is back"})).await.json()["replayed"], true);
        let story = world.wait(*job, Word::Success).await;
        assert!(story.effects.iter().all(|effect| matches!(effect.state, EffectState::Done(_))), "{:?}", story.effects);
    }
    assert_eq!(counts(&world, ["/crm", "/track", "/audit", "/after"]), [5, 20, 5, 5], "only the missing one is called");
    let tracks = world.target.calls_at("/track");
    let keys = |body: &str| tracks.iter().filter(|call| call.body == body).map(|call| call.key().to_string()).collect();
    let mut keys: Vec<String> = keys(r#"{"of":0}"#);
    keys.dedup();
    assert_eq!(keys.len(), 1, "always under the same key");
    assert_eq!(world.target.calls_at("/after")[0].body, r#"{"crm":7,"track":204}"#);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_one_dead_sink_repeats_none_of_the_others_and_a_replay_calls_only_the_missing_one() {
    let report = check_one_dead_sink(world(EVERYWHERE).await).await.close_and_verify().await;
    assert!(report.effects.contains(&("done", 20)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_one_dead_sink_repeats_none_of_the_others_on_postgres() {
    tokio::task::block_in_place(|| shared_postgres().create_database("fanout"));
    let url = shared_postgres().url("fanout");
    let files = [("workers/charge.yml", &*format!("{HEAD}{EVERYWHERE}"))];
    let mut world = check_one_dead_sink(World::on(url.clone(), &files).await).await;
    world.close().await;
    let report = verify(&url, Timestamp::from_micros(0)).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.effects.contains(&("done", 20)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_branches_run_side_by_side_and_the_next_step_waits_for_all() {
    let world = world(EVERYWHERE).await;
    for path in ["/crm", "/track", "/audit"] {
        world.target.script(path, [Reply::Held]);
    }
    let job = world.post("k", r#"{"order":1}"#).await.job();
    // All three are there before any of them is answered.
    assert_eq!(world.target.called(3).await.len(), 3);
    world.target.release();
    world.target.release();
    let done = |story: &JobStory| story.effects.iter().filter(|effect| effect.state.word() == "done").count();
    world.wait_until(job, "two are on disk while the third is out", |story| done(story) == 2).await;
    assert_eq!(counts(&world, ["/after"]), [0]);
    world.target.release();
    // `/crm` gave no id.
    let story = world.wait(job, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::MissingData));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_p4_a_branch_that_waits_is_not_buried_by_the_failures_of_another() {
    let world = world(
        "
  - name: all
    parallel:
      - name: slow
        steps:
          - name: pause
            delay: 4s
          - name: late
            http: {url: http://TARGET/late, body_from: body}
      - name: down
        http: {url: http://TARGET/down, body_from: body}
",
    )
    .await;
    world.target.script("/down", [Reply::Status(500)]);
    world.target.script("/late", [Reply::Status(503), Reply::Status(503), OK]);
    let job = world.post("k", "{}").await.job();
    let waiting = world.wait(job, Word::Waiting).await;
    assert_eq!(*state(&waiting, "down"), EffectState::GivenUp(Reason::TargetDown));
    let story = world.wait(job, Word::Dead).await;
    assert_eq!(counts(&world, ["/down", "/late"]), [3, 3], "each has its own attempts");
    assert_eq!(story.row.reason, Some(Reason::TargetDown));
    let error = story.row.error.as_deref().unwrap();
    assert!(
        error.starts_with("step `all`: 1 of 2 branches are done; missing: down (step `down` was given up"),
        "{error}"
    );
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_d2_a_branch_that_was_given_up_in_doubt_is_unknown_until_a_person_settles_it() {
    let world = world(
        "
  - name: all
    parallel:
      - name: crm
        http: {url: http://TARGET/crm, body_from: body}
      - name: bank
        http: {url: http://TARGET/bank, body_from: body, idempotency: header}
",
    )
    .await;
    world.target.script("/bank", [Reply::Drop]);
    let dead = world.post_and_wait("k", "{}", Word::Dead).await;
    assert_eq!(counts(&world, ["/crm", "/bank"]), [1, 3]);
    assert_eq!(*state(&dead, "bank"), EffectState::GivenUp(Reason::UnknownOutcome));
    let id = format!("{}/bank", dead.row.id);
    let listed = async |state: &str| {
        let page = world.admin(&format!("/api/v1/effects?state={state}")).await.json();
        page["effects"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["id"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!((listed("unknown").await, listed("given_up").await), (vec![id.clone()], vec![]));
    let unresolved = async || {
        let metrics = world.admin("/metrics").await.body;
        let lines = metrics.lines().filter(|line| line.starts_with("clinch_effects_unresolved{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum::<u32>()
    };
    assert_eq!(unresolved().await, 1);
    let ask = json!({"outcome": "done", "proof": "payment 77", "reason": "INC-482"});
    let told = world.command(&format!("/api/v1/effects/{id}/resolve"), ask).await.json();
    assert_eq!((&told["resolved"], &told["unknown_left"]), (&json!(true), &json!(0)));
    assert_eq!((listed("unknown").await, unresolved().await), (vec![], 0));
    world.replay(dead.row.id, json!({"reason": "it was done"})).await;
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(counts(&world, ["/crm", "/bank"]), [1, 3], "what a person knows to be done is not sent again");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_p4_a_message_in_a_branch_is_sent_no_more_often_than_it_may_be() {
    let worker = format!(
        "{HEAD}
  - name: all
    parallel:
      - name: note
        send_template: {{integration: hook, template: note, to: somebody}}
      - name: crm
        http: {{url: http://TARGET/crm, body_from: body}}
"
    );
    let files = [
        ("workers/charge.yml", &*worker),
        ("clinch.yml", "integrations:\n  hook:\n    message: {url: http://TARGET/hook}\n"),
        ("templates/note.json", r#"{"order": "{{ body.order }}"}"#),
    ];
    let world = World::new(&files).await;
    world.target.script("/hook", [Reply::Status(503)]);
    let story = world.post_and_wait("k", r#"{"order":1}"#, Word::Dead).await;
    assert_eq!(counts(&world, ["/hook", "/crm"]), [3, 1]);
    assert_eq!(*state(&story, "note"), EffectState::GivenUp(Reason::TargetDown));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_p3_a_branch_of_unknown_outcome_is_left_for_a_person_and_the_others_go_on() {
    let world = world(
        "
  - name: all
    parallel:
      - name: lost
        http: {url: http://TARGET/lost, body_from: body, idempotency: none}
      - name: shaky
        http: {url: http://TARGET/shaky, body_from: body}
      - name: refused
        http: {url: http://TARGET/refused, body_from: body}
",
    )
    .await;
    world.target.script("/lost", [Reply::Drop, OK]);
    world.target.script("/shaky", [Reply::Status(503), OK]);
    world.target.script("/refused", [Reply::Status(422), OK]);
    let story = world.post_and_wait("k", "{}", Word::Dead).await;
    let job = story.row.id;
    assert_eq!(story.row.reason, Some(Reason::UnknownOutcome));
    assert_eq!(counts(&world, ["/lost", "/shaky", "/refused"]), [1, 2, 1]);
    assert_eq!(*state(&story, "lost"), EffectState::Unknown);
    assert_eq!(*state(&story, "refused"), EffectState::GivenUp(Reason::RejectedByTarget));

    let problem = world.replay(job, json!({"reason": "again"})).await.check_problem(409, "needs-ruling");
    assert_eq!(problem["steps"], json!(["lost"]));
    let ask = json!({"reason": "it is not in their books", "unknown": "resend"});
    assert_eq!(world.replay(job, ask).await.json()["replayed"], true);
    world.wait(job, Word::Success).await;
    assert_eq!(counts(&world, ["/lost", "/shaky", "/refused"]), [2, 2, 2]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_branches_that_are_left_out_are_done() {
    let world = world(
        "
  - name: all
    parallel:
      - name: a
        if: body.a
        http: {url: http://TARGET/a, body_from: body}
      - name: b
        if: body.b
        steps:
          - name: c
            http: {url: http://TARGET/c, body_from: body}
",
    )
    .await;
    world.post_and_wait("1", r#"{"a":true,"b":false}"#, Word::Success).await;
    world.post_and_wait("2", r#"{"a":false,"b":true}"#, Word::Success).await;
    assert_eq!(counts(&world, ["/a", "/c"]), [1, 1]);
    // A condition that cannot be answered is the end of its branch alone.
    let story = world.post_and_wait("3", r#"{"b":true}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::MissingData));
    assert_eq!(counts(&world, ["/a", "/c"]), [1, 2]);
    world.close_and_verify().await;
}

const PARTED: Way = Way { name: "parted", idempotency: "none", steps: &["unused"], concurrency: 1 };

/// Three branches, of which only the last may be repeated.
async fn three_branches() -> (Place, Provider) {
    let place = Place::new(&[PARTED]).await;
    let branch = |name: &str, idempotency: &str| {
        let url = format!("http://{}/parted/{name}", place.sink.address);
        let http = format!("{{url: '{url}', body_from: body, idempotency: {idempotency}, headers: {{x-node: a}}}}");
        format!("      - name: {name}\n        http: {http}\n")
    };
    let branches = [branch("first", "none"), branch("second", "none"), branch("third", "header")].concat();
    let head = "name: w\nconsumes: {queue: parted}\nretry: {base_delay: 10ms, jitter: none}\nrun:\n  - name: all\n    parallel:\n";
    place.write("workers/parted.yml", &format!("{head}{branches}"));
    (place, Provider::new(PARTED))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_p3_a_crash_among_branches_repeats_only_what_may_be_repeated() {
    for point in ["after_intend", "after_send", "after_conclude"] {
        let (place, provider) = three_branches().await;
        let mut server = place.start_with(&[("CLINCH_CRASH_AT", point)]).await;
        provider.deliver(&server.intake).await;
        let status = server.exited().await;
        assert_eq!(status.signal(), Some(6), "it ends at {point}: {status}: {}", server.said());
        let story = place.after_a_restart(&provider).await;
        for step in ["first", "second"] {
            let calls = place.sink.count_of(step);
            match state(&story, step) {
                EffectState::Done(_) => assert_eq!(calls, 1, "{point}: {step}"),
                EffectState::Unknown => assert!(calls <= 1, "{point}: {step} was repeated"),
                other => panic!("{point}: {step} is {other:?}"),
            }
        }
        // The others are finished all the same.
        assert!(matches!(state(&story, "third"), EffectState::Done(_)), "{point}: {:?}", story.effects);
        assert!((1..=2).contains(&place.sink.count_of("third")), "{point}");
        let is_unknown = story.effects.iter().any(|effect| effect.state == EffectState::Unknown);
        let end = if is_unknown { (Word::Dead, Some(Reason::UnknownOutcome)) } else { (Word::Success, None) };
        assert_eq!((story.row.word, story.row.reason), end, "{point}: {:?}", story.effects);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_p3_kill_9_while_all_branches_are_out_leaves_to_a_person_what_may_not_be_repeated() {
    let (place, provider) = three_branches().await;
    place.sink.pace(Pace::Held);
    let mut server = place.start().await;
    provider.deliver(&server.intake).await;
    place.sink.called(3).await;
    server.kill9();
    place.sink.pace(Pace::Prompt);
    let story = place.after_a_restart(&provider).await;
    assert_eq!(["first", "second", "third"].map(|step| place.sink.count_of(step)), [1, 1, 2]);
    assert_eq!(["first", "second", "third"].map(|step| state(&story, step).word()), ["unknown", "unknown", "done"]);
    assert_eq!((story.row.word, story.row.reason), (Word::Dead, Some(Reason::UnknownOutcome)));
    let error = story.row.error.as_deref().unwrap();
    assert!(error.starts_with("step `all`: 1 of 3 branches are done; missing: first ("), "{error}");
}
