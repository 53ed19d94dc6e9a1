//! Dead letters, their replays and drops in the console.

use crate::console_browser::{Browser, between, check_says, values};
use crate::process::eventually;
use crate::replays::{TWO_STEPS, dead};
use crate::world::{OK, PATIENCE, Reply, World};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use serde_json::{Value, json};

const GROUP: &str = "/dead?flow=orders&reason=rejected_by_target";

async fn with_dead(jobs: usize) -> (World, Browser, Vec<JobId>) {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    let made = dead(&world, jobs).await;
    let browser = Browser::of(&world).await;
    (world, browser, made)
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_f2_a_group_is_read_planned_started_and_watched_to_its_end_without_a_script() {
    let (world, browser, jobs) = with_dead(6).await;
    let list = browser.page("/dead").await;
    check_says(
        &list,
        &["rejected_by_target", "6 jobs", "STILL FAILING", "the target answered 422", "Last replay: never"],
    );
    let group = browser.page(GROUP).await;
    check_says(
        &group,
        &["What to do", "Do this", "Why this group?", "All 6 were compared", &jobs[0].to_string(), "127.0.0.1"],
    );
    let told = world.admin("/api/v1/dead/shapes?flow=orders&reason=rejected_by_target").await.json();
    let shape = &told["shapes"][0];
    assert_eq!((&shape["step"], &shape["status"], &shape["jobs"]), (&json!("mail"), &json!(422), &json!(6)), "{told}");
    let (code, said) = world.clinch(&["dlq", "shapes", "--flow", "orders", "--reason", "rejected_by_target"]).await;
    assert!(code == 0 && said.contains("the target answered 422") && said.contains("mail"), "{said}");

    // A word that is not known is an error that stays beside what was typed.
    let query = between(&group, "href=\"/replays/new?q=", "\"");
    check_says(&browser.page(&format!("/replays/new?q={query}")).await, &["flow:orders reason:rejected_by_target"]);
    let bad = browser.post("/replays", &[("query", "flwo:orders")]).await;
    assert_eq!(bad.status, 400);
    check_says(&bad.body, &["role=\"alert\"", "flwo", "value=\"flwo:orders\"", "Nothing was planned"]);
    let which = [("query", "flow:orders reason:rejected_by_target")];
    browser.check_guarded("/replays", &which).await;
    assert_eq!(world.admin("/api/v1/replays").await.json()["plans"], json!([]), "nothing was planned");

    let made = browser.post("/replays", &which).await;
    let path = made.header("location").unwrap().split('?').next().unwrap().to_string();
    let plan = browser.page(&path).await;
    check_says(&plan, &["What will happen", "6 jobs", "invoice ×6", "Start replay of 6", "clinch replay apply"]);
    assert_eq!(world.job(jobs[0]).await.row.word, Word::Dead, "nothing runs yet");

    world.target.script("/mail", [OK]);
    let start = format!("{path}/start");
    let terms =
        [("rate", "100/s"), ("max", "6"), ("canary", "1"), ("stop_at", "20%"), ("at_once", "4"), ("config", "live")];
    assert_eq!(browser.post(&start, &terms).await.status, 400, "a reason is needed");
    let terms = [&[("reason", "the template was fixed")], terms.as_slice()].concat();
    browser.check_guarded(&start, &terms).await;
    assert_eq!(world.job(jobs[0]).await.row.word, Word::Dead, "nothing was started");
    let started = browser.follow(&start, &terms).await;
    check_says(&started, &["It was started.", "Progress", "the template was fixed"]);
    eventually("the plan ends", PATIENCE, async || browser.page(&path).await.contains("<b>6 of 6</b> ended")).await;
    eventually("it is done", PATIENCE, async || browser.page(&path).await.contains("</span> done</span>")).await;
    check_says(&browser.page(&format!("{path}?jobs=success")).await, &[&jobs[5].to_string()]);
    for job in &jobs {
        assert_eq!(world.job(*job).await.row.word, Word::Success);
    }
    assert_eq!(world.target.calls_at("/invoice").len(), 6, "what was done is not done again");

    // The second press is none.
    check_says(&browser.follow(&start, &terms).await, &["It was started before."]);
    assert_eq!(world.target.calls_at("/mail").len(), 12);
    check_says(&browser.page("/dead").await, &["No dead letters. That is good."]);
    check_says(&browser.page("/replays").await, &["flow:orders reason:rejected_by_target"]);

    // What dies after its replay is told so.
    world.target.script("/mail", [Reply::Status(422)]);
    world.post_and_wait("again", r#"{"order":8}"#, Word::Dead).await;
    check_says(&browser.page("/dead").await, &["FAILED AGAIN since its replay", "by admin"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_a_running_plan_is_paused_resumed_and_stopped_from_its_page() {
    let (world, browser, _) = with_dead(3).await;
    let made = browser.post("/replays", &[("query", "queue:orders")]).await;
    let path = made.header("location").unwrap().split('?').next().unwrap().to_string();
    let terms = [("rate", "1/h"), ("canary", "0"), ("stop_at", "never"), ("reason", "slowly")];
    browser.follow(&format!("{path}/start"), &terms).await;
    let turn = format!("{path}/turn");
    let why = ("reason", "look first");
    browser.check_guarded(&turn, &[("to", "stop"), why]).await;
    assert_eq!(browser.post(&turn, &[("to", "faster"), why]).await.status, 400);
    for (to, state) in [("pause", "paused"), ("resume", "running"), ("stop", "stopped")] {
        let page = browser.follow(&turn, &[("to", to), why]).await;
        check_says(&page, &[&format!("</span> {state}</span>")]);
    }
    check_says(&browser.page(&path).await, &["It was stopped: admin: look first"]);
    assert_eq!(browser.post(&turn, &[("to", "resume"), why]).await.status, 409);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f4_a_drop_is_asked_for_confirmed_by_a_second_person_and_taken_back() {
    let (world, browser, jobs) = with_dead(3).await;
    let maya = Browser::of_user(&world, "maya", "operator").await;
    let state = async |job: JobId| world.job(job).await.row.word;
    let (one, two) = (jobs[0].to_string(), jobs[1].to_string());

    // Who means it types how many.
    let review = browser.post("/dead/drop", &[("job", &one)]).await;
    check_says(&review.body, &["Request to drop 1 dead letter", "Type 1"]);
    assert_eq!(values(&review.body, "job"), [one.as_str()]);
    let why = ("reason", "poison, INC-482");
    assert_eq!(browser.post("/dead/drop/ask", &[("job", &one), why, ("count", "2")]).await.status, 400);
    browser.check_guarded("/dead/drop/ask", &[("job", &one), why, ("count", "1")]).await;
    let drops = |told: Value| told["drops"].as_array().unwrap().len();
    assert_eq!(drops(world.admin("/api/v1/dead/drops").await.json()), 0, "nothing was asked for");
    let page = browser.follow("/dead/drop/ask", &[("job", &one), why, ("count", "1")]).await;
    check_says(&page, &["A second person confirms it", &one, "somebody else, or you in"]);
    check_says(&browser.page("/dead").await, &["Drops <b class=\"count\">1</b>"]);

    // Not by who asked.
    let alone = browser.post("/dead/drop/confirm", &[("job", &one), why]).await;
    check_says(&alone.body, &["0 done, 1 refused", &one]);
    assert_eq!(state(jobs[0]).await, Word::Dead);
    // Of another's request one is the second person.
    maya.follow("/dead/drop/ask", &[("job", &two), why, ("count", "1")]).await;
    check_says(&browser.page("/dead/drops").await, &["you may confirm it", "maya"]);
    browser.check_guarded("/dead/drop/confirm", &[("job", &two), why]).await;
    assert_eq!(state(jobs[1]).await, Word::Dead);
    let page = browser.follow("/dead/drop/confirm", &[("job", &two), why]).await;
    check_says(&page, &["Dropped. They are kept for 30 days", &two]);
    assert_eq!(state(jobs[1]).await, Word::Dropped);

    check_says(&browser.follow("/dead/undrop", &[("job", &two), why]).await, &["They are dead letters again"]);
    assert_eq!(state(jobs[1]).await, Word::Dead);
    // And a request is withdrawn.
    browser.follow("/dead/undrop", &[("job", &one), why]).await;
    assert_eq!(drops(world.admin("/api/v1/dead/drops").await.json()), 0);
    world.close_and_verify().await;
}
