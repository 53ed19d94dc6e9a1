//! Retry budgets: one who fails again and again uses up its own, and nobody else's.

use crate::nodes::{Nodes, shared_postgres};
use crate::process::{AGAIN, Pace, Place, Server, Way, client, eventually};
use crate::world::{Answer, NO_WORKER, OK, PATIENCE, Reply, WORKER, World};
use clinch::api::auth::TOKEN_FILE;
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const NOISY: &str = "ada.lovelace@example.org";

/// The usual worker with this in its retry policy; a target of each contact's own.
fn worker(budget: &str) -> String {
    WORKER
        .replace("max_attempts: 3", &format!("max_attempts: 9, {budget}"))
        .replace("http://TARGET/charge", "'http://TARGET/{{ body.contact_id }}'")
}

async fn world(budget: &str) -> World {
    let world = World::new(&[("workers/charge.yml", &worker(budget))]).await;
    world.target.script("/noisy", [Reply::Status(503)]);
    world
}

fn body(contact: &str) -> String {
    json!({ "contact_id": contact, "email": NOISY }).to_string()
}

async fn post(world: &World, contact: &str, events: usize) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for nth in 0..events {
        jobs.push(world.post(&format!("{contact}-{nth}"), &body(contact)).await.job());
    }
    jobs
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_twenty_jobs_of_one_contact_cause_no_more_retries_than_its_budget_and_others_have_theirs() {
    let mut world = world("budget_per_contact: 5").await;
    world.target.script("/calm", [Reply::Status(503), OK]);
    let (noisy, calm) = (post(&world, "noisy", 20).await, post(&world, "calm", 1).await);
    for job in &noisy {
        let story = world.wait(*job, Word::Dead).await;
        assert_eq!(story.row.reason, Some(Reason::BudgetExhausted));
        let last = story.attempts.last().unwrap();
        assert_eq!(last.reason, Some(Reason::TargetDown), "the attempt itself failed for another reason");
        assert!(last.error.as_deref().is_some_and(|error| error.contains("the retry budget `charge` of ent_")));
    }
    world.wait(calm[0], Word::Success).await;
    assert_eq!(world.target.calls_at("/noisy").len(), 20 + 5, "first attempts never count");
    assert_eq!(world.target.calls_at("/calm").len(), 2);
    for line in [
        r#"clinch_budget_spent_total{budget="charge"} 6"#,
        r#"clinch_budget_refusals_total{budget="charge"} 20"#,
        r#"clinch_budget_entities_exhausted{budget="charge"} 1"#,
        r#"clinch_dlq_entered_total{flow="orders",reason="budget_exhausted"} 20"#,
    ] {
        // An end is counted a moment after it is on disk.
        eventually(line, PATIENCE, async || world.admin("/metrics").await.body.contains(line)).await;
    }
    // A restart gives nothing back.
    world.close().await;
    world.open(Roles::ALL).await;
    let more = world.post("noisy-more", &body("noisy")).await.job();
    assert_eq!(world.wait(more, Word::Dead).await.row.reason, Some(Reason::BudgetExhausted));
    assert_eq!(world.target.calls_at("/noisy").len(), 20 + 5 + 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_an_event_that_names_nobody_is_bounded_by_its_attempts_alone() {
    let world = world(r#"budget: {per: "{{ body.email }}", max: 1}"#).await;
    world.target.script("/nobody", [Reply::Status(503)]);
    for nth in 0..2 {
        let job = world.post(&format!("k{nth}"), r#"{"contact_id":"nobody"}"#).await.job();
        let story = world.wait(job, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 9));
    }
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_budget_without_entity_total{budget="charge"} 16"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_p4_who_waits_for_a_later_window_is_shown_so_and_runs_in_it() {
    // A pause long enough that no retry comes before the last first attempt, and before all were looked at.
    let budget = r#"budget: {per: "{{ body.contact_id }}", max: 1, window: 7s, on_exhausted: wait}"#;
    let slow = worker(budget).replace("base_delay: 10ms", "base_delay: 6s");
    assert!(slow.contains("base_delay: 6s"));
    let mut world = World::with_roles(NO_WORKER, &[("workers/charge.yml", &slow)]).await;
    world.target.script("/noisy", [Reply::Status(503), Reply::Status(503), Reply::Status(503), OK]);
    let jobs = post(&world, "noisy", 3).await;
    // All of them begin together.
    world.close().await;
    world.open(Roles::ALL).await;
    world.target.called(3).await;
    let mut waiting = 0;
    for job in &jobs {
        // The first has a unit of this window, the others of the two that follow.
        let story = world.wait_until(*job, "settled", |story| story.row.failures == 1).await;
        if story.row.waits == Some(Waits::Budget) {
            assert_eq!((story.row.word, story.row.attempts), (Word::Waiting, 1));
            let shown = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
            assert_eq!(shown["job"]["waits_for"], "budget", "{shown}");
            waiting += 1;
        }
    }
    assert_eq!(waiting, 2);
    // They do not come earlier for a restart.
    world.close().await;
    world.open(Roles::ALL).await;
    let mut stories = Vec::new();
    for job in &jobs {
        stories.push(world.wait(*job, Word::Success).await);
    }
    let begun = stories.iter().map(|story| story.attempts[0].ended_at).min().unwrap();
    let mut again: Vec<_> = stories.iter().map(|story| story.attempts[1].started_at).collect();
    again.sort();
    for (retry, windows) in again.into_iter().zip(0..) {
        assert!(retry >= begun + Duration::from_secs(7) * windows, "retry {windows} came in an earlier window");
    }
    assert!(stories.iter().all(|story| (story.row.failures, story.row.attempts) == (1, 2)), "waiting costs nothing");
    assert_eq!(world.target.calls().len(), 6);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_a_person_sees_who_has_nothing_left_and_grants_more_on_record() {
    let world = world(r#"budget: {per: "{{ body.email }}", max: 2}"#).await;
    let first = world.post("a", &body("noisy")).await.job();
    world.wait(first, Word::Dead).await;
    let (code, listed) = world.clinch(&["budget", "ls", "--exhausted", "-o", "json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((code, &listed["budgets"][0]["left"], &listed["more"]), (0, &json!(0), &json!(false)));
    let id = listed["budgets"][0]["entity"].as_str().unwrap();
    let shown = world.admin(&format!("/api/v1/jobs/{first}")).await.body;
    assert!(shown.contains(id), "the dead letter says whose budget it is: {shown}");
    // By its name and by what it is listed as.
    for whose in [NOISY, id] {
        let (_, shown) = world.clinch(&["budget", "show", "charge", whose, "-o", "json"]).await;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((shown["budget"]["entity"].as_str(), &shown["budget"]["spent"]), (Some(id), &json!(2)));
    }
    let (_, unused) = world.clinch(&["budget", "show", "charge", "bob@example.org", "-o", "json"]).await;
    assert!(unused.contains(r#""left": 2"#) || unused.contains(r#""left":2"#), "{unused}");
    let (code, said) = world.clinch(&["budget", "grant", "charge", NOISY, "3", "--reason", "the CRM is back"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(world.clinch(&["budget", "grant", "charge", NOISY, "3", "--reason", " "]).await.0, 2);
    assert_eq!(world.clinch(&["budget", "show", "nobody", NOISY]).await.0, 3);
    let calls = world.target.calls().len();
    let second = world.post("b", &body("noisy")).await.job();
    world.wait(second, Word::Dead).await;
    assert_eq!(world.target.calls().len() - calls, 1 + 3);
    let answers: Vec<Answer> = vec![world.admin("/api/v1/audit").await, world.admin("/api/v1/budgets").await];
    let audit = answers[0].json()["audit"][0].clone();
    assert_eq!((&audit["action"], &audit["reason"]), (&json!("budget.grant"), &json!("the CRM is back")));
    crate::world::check_absent("lovelace", &answers);
}

/// A worker whose calls may be repeated, with a budget of five for each contact.
const LIMITED: &str = "budget_per_contact: 5";

fn limit(place: &Place, way: Way) {
    let file = place.dir.path().join(format!("workspace/workers/{}.yml", way.name));
    let worker = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, worker.replace("max_attempts: 50", &format!("max_attempts: 50, {LIMITED}"))).unwrap();
}

async fn send(server: &Server, way: Way, contact: &str, nth: usize) {
    let id = format!("{contact}-{nth}");
    let event = json!({ "id": id, "contact_id": contact }).to_string();
    let request = client().post(server.hook(way.name)).header("idempotency-key", id).body(event);
    // A node that has not heard of its database for a moment says so; senders send again.
    eventually("it is accepted", PATIENCE, async || request.try_clone().unwrap().send().await.unwrap().status() == 202)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_two_nodes_share_the_budget_of_a_contact() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    limit(&nodes.place, AGAIN);
    nodes.place.sink.answer_with(|call| if call.event.starts_with("noisy") { 503 } else { 200 });
    let (first, second) = (nodes.start().await, nodes.start().await);
    for nth in 0..20 {
        send(if nth % 2 == 0 { &first } else { &second }, AGAIN, "noisy", nth).await;
        send(&second, AGAIN, &format!("calm{nth}"), 0).await;
    }
    nodes.drained().await;
    let calls = nodes.place.sink.calls();
    let of_noisy: Vec<_> = calls.iter().filter(|call| call.event.starts_with("noisy")).collect();
    let callers: BTreeSet<&str> = of_noisy.iter().map(|call| call.node.as_str()).collect();
    eprintln!("{} calls for the noisy contact, by nodes {callers:?}", of_noisy.len());
    assert_eq!(of_noisy.len(), 20 + 5);
    assert_eq!(calls.len() - of_noisy.len(), 20, "the others are not delayed and not repeated");
    let jobs = nodes.books().await.jobs().await;
    let dead = jobs.values().filter(|row| row.reason == Some(Reason::BudgetExhausted)).count();
    assert_eq!((dead, jobs.values().filter(|row| row.word == Word::Success).count()), (20, 20));
    nodes.verified();
}

fn token(data_dir: &Path) -> String {
    std::fs::read_to_string(data_dir.join(TOKEN_FILE)).unwrap().trim().to_string()
}

/// What a worker had begun when it was killed is tried again, and its entity pays for that, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_a_retry_after_a_lost_worker_is_paid_for() {
    let place = Place::new(&[AGAIN]).await;
    limit(&place, AGAIN);
    place.sink.pace(Pace::Held);
    let mut server = place.start().await;
    for nth in 0..3 {
        send(&server, AGAIN, "noisy", nth).await;
    }
    place.sink.called(3).await;
    server.kill9();
    place.sink.pace(Pace::Prompt);
    let server = place.start().await;
    place.drained().await;
    assert_eq!(place.sink.count(), 3 + 3);
    let metrics = client().get(format!("{}/metrics", server.admin)).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains(r#"clinch_budget_spent_total{budget="again-worker"} 3"#), "{metrics}");
    let url = format!("{}/api/v1/budgets/again-worker?entity=noisy", server.admin);
    let shown = client().get(url).bearer_auth(token(&place.data_dir)).send().await.unwrap();
    assert_eq!(shown.json::<serde_json::Value>().await.unwrap()["budget"]["left"], 2);
    server.stop().await;
    place.verified();
}
