//! Jobs, events, effects and keys in the console, asked for as a browser without a script does.

use crate::console_browser::Browser;
use crate::world::{Answer, OK, Reply, World, check_absent, worker_with_step};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::key::IdempotencyKey;
use serde_json::json;

#[track_caller]
fn check(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
}

fn to(answer: &Answer) -> &str {
    assert_eq!(answer.status, 303, "{answer:?}");
    answer.header("location").unwrap()
}

const LOOKUP: &str =
    "    lookup: {url: \"/charges?key={{ step.key }}\", done: \"answer.status == 200 and answer.body.total > 0\"}\n";

/// A step that calls the integration `crm`, of which this is said.
async fn world(said: &str) -> World {
    let clinch = format!("integrations:\n  crm:\n    base_url: http://TARGET\n{said}");
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await
}

/// A dead letter of which nobody knows whether the target did it.
async fn unknown(world: &World, key: &str) -> JobId {
    world.target.script("/charge", [Reply::Drop]);
    world.post_and_wait(key, r#"{"order":7}"#, Word::Dead).await.row.id
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_job_tells_what_is_wrong_what_was_done_and_what_a_replay_would_do() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), Reply::Status(500)]);
    let job = world.post_and_wait("k-1", r#"{"order":7,"email":"ada@example.com"}"#, Word::Dead).await.row.id;
    world.post("k-1", r#"{"order":7,"email":"ada@example.com"}"#).await;
    world.post("k-1", r#"{"order":8}"#).await;
    let browser = Browser::of(&world).await;
    let page = browser.page(&format!("/jobs/{job}")).await;
    let key = IdempotencyKey::of(job, "charge");
    check(
        &page,
        &[
            "<span aria-hidden=\"true\">!</span> dead</span>",
            "auth_failed</a>: ",
            "href=\"/runbooks/auth_failed\"",
            "<svg class=\"chart timeline\"",
            "Show as table",
            "id=\"attempt-1\"",
            ": in its queue</td>",
            key.as_str(),
            "refused, or never sent",
            "<td data-label=\"If replayed\">runs</td>",
            "&#34;email&#34;: ",
            "conflict: another body, the first stays",
            "duplicate: the same body, nothing repeated",
            "href=\"/keys?k=k-1\"",
            "curl -X POST &#34;$CLINCH_INTAKE&#34;&#39;/hooks/orders&#39;",
            "idempotency-key: k-1",
            &format!("data-copy=\"clinch jobs show {job}\""),
            "Nobody has touched it",
        ],
    );
    assert!(!page.contains("ada@example.com"), "{page}");

    let told = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
    assert_eq!(told["effects"][0]["if_replayed"], "runs");
    assert_eq!((&told["failures_max"], &told["entrance"]["path"]), (&json!(3), &json!("/hooks/orders")));
    let (code, said) = world.clinch(&["jobs", "show", &job.to_string(), "--curl"]).await;
    assert_eq!(code, 0, "{said}");
    check(&said, &["curl -X POST \"$CLINCH_INTAKE\"'/hooks/orders'", "idempotency-key: k-1"]);
    assert!(!said.contains("ada@example.com"), "{said}");
    let gone = browser.get("/jobs/job_01HZX5T0N8W2A").await;
    assert_eq!(gone.status, 404);
    check(&gone.body, &["its retention may have ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_dead_letter_is_replayed_from_its_page_with_a_reason_and_not_from_elsewhere() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), OK]);
    let job = world.post_and_wait("k", r#"{"order":7}"#, Word::Dead).await.row.id;
    let (path, replay) = (format!("/jobs/{job}"), format!("/jobs/{job}/replay"));
    let browser = Browser::of(&world).await;
    let without = browser.send(&replay, &[("reason", "token rotated")], true).await;
    assert_eq!(without.status, 403, "a form of another log-in");
    let nameless = browser.post(&replay, &[("reason", " ")]).await;
    assert_eq!(nameless.status, 400, "{nameless:?}");
    assert_eq!(world.job(job).await.row.word, Word::Dead);
    let done = browser.post(&replay, &[("reason", "token rotated"), ("config", "original")]).await;
    assert_eq!(to(&done), format!("{path}?done=replayed"));
    let story = world.wait(job, Word::Success).await;
    assert_eq!(story.audit[0].reason, "token rotated");
    let page = browser.page(&format!("{path}?done=replayed")).await;
    check(&page, &["It runs again.", "a dead letter until admin replayed it", "answered 200", "skipped, it is done"]);
    assert!(!page.contains("Run it again"), "{page}");
    let again = browser.post(&replay, &[("reason", "again")]).await;
    assert_eq!(to(&again), format!("{path}?done=not-dead"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_p3_what_may_happen_twice_is_sent_again_only_by_who_types_its_name() {
    let world = world("    idempotency: none\n").await;
    let job = unknown(&world, "k").await;
    let (path, replay) = (format!("/jobs/{job}"), format!("/jobs/{job}/replay"));
    let browser = Browser::of(&world).await;
    check(
        &browser.page(&path).await,
        &["asks you first", "Send it again; it may happen twice", "type <code>charge</code>"],
    );
    let undecided = browser.post(&replay, &[("reason", "INC-482")]).await;
    assert_eq!(undecided.status, 409, "{undecided:?}");
    let ruling = |confirm| [("reason", "INC-482"), ("unknown", "resend"), ("confirm", confirm)];
    for wrong in ["", "Charge", "1"] {
        let refused = browser.post(&replay, &ruling(wrong)).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        check(&refused.body, &["type `charge` to send it again"]);
    }
    assert_eq!((world.job(job).await.row.word, world.target.calls_at("/charge").len()), (Word::Dead, 1));
    world.target.script("/charge", [OK]);
    assert_eq!(to(&browser.post(&replay, &ruling("charge")).await), format!("{path}?done=replayed"));
    world.wait(job, Word::Success).await;
    assert_eq!(world.target.calls_at("/charge").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_who_only_looks_is_offered_nothing_and_can_do_nothing() {
    let world = world("    idempotency: none\n").await;
    let job = unknown(&world, "k").await;
    let (path, effect) = (format!("/jobs/{job}"), format!("/effects/{job}/charge"));
    let browser = Browser::of_user(&world, "vera", "viewer").await;
    for (page, offered) in
        [(&*path, "/replay\""), (&*path, "Resolve "), (&*effect, "/verify\""), ("/jobs", "name=\"job\"")]
    {
        assert!(!browser.page(page).await.contains(offered), "{offered} on {page}");
    }
    let word = [("outcome", "done"), ("proof", "seen"), ("reason", "x"), ("confirm", "charge"), ("unknown", "skip")];
    for act in [format!("{path}/replay"), format!("{effect}/resolve"), format!("{effect}/verify")] {
        assert_eq!(browser.post(&act, &word).await.status, 403, "{act}");
    }
    assert_eq!((world.job(job).await.row.word, world.job(job).await.audit.len()), (Word::Dead, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_d2_an_unknown_effect_is_found_verified_and_resolved() {
    let world = world(&format!("    idempotency: lookup\n{LOOKUP}")).await;
    let down = [Reply::Status(503)];
    world.target.script("/charges", down);
    let job = unknown(&world, "k").await;
    let path = format!("/effects/{job}/charge");
    let browser = Browser::of(&world).await;
    check(&browser.page("/effects").await, &[&path, "crm", "unknown", "clinch effects ls state:unknown"]);
    check(&browser.page("/effects?state=done").await, &["No effect is like this"]);
    assert_eq!(browser.get("/effects?state=lost").await.status, 400);
    let found = Reply::With { status: 200, headers: &[], body: r#"{"total":1}"# };
    world.target.script("/charges", [found]);
    let verified = browser.post(&format!("{path}/verify"), &[]).await;
    assert_eq!(verified.status, 200, "{verified:?}");
    check(&verified.body, &["The partner says: it was done", "answered 200", "Nothing was changed"]);
    check(&browser.page(&path).await, &["asks the partner", "Give your word"]);

    let word = |confirm| [("outcome", "done"), ("proof", "payment 77"), ("reason", "INC-482"), ("confirm", confirm)];
    let refused = browser.post(&format!("{path}/resolve"), &word("chrage")).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(world.job(job).await.audit, []);
    let done = browser.post(&format!("{path}/resolve"), &word("charge")).await;
    assert_eq!(to(&done), format!("{path}?done=resolved"));
    let page = browser.page(&path).await;
    check(&page, &["<bdi>admin: payment 77</bdi>", "skipped, it is done", "INC-482"]);
    assert!(!page.contains("Give your word"), "{page}");
    check(&browser.page("/effects").await, &["No effect is unknown. That is good"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b9_a_key_tells_how_often_it_came_and_what_was_done() {
    let world = World::new(&[]).await;
    let job = world.post_and_wait("k-1", r#"{"order":7}"#, Word::Success).await.row.id;
    for body in [r#"{"order":7}"#, r#"{"order":7}"#, r#"{"order":8}"#] {
        world.post("k-1", body).await;
    }
    let browser = Browser::of(&world).await;
    check(&browser.page("/keys").await, &["Paste a key as the sender wrote it"]);
    let page = browser.page("/keys?k=k-1").await;
    check(
        &page,
        &[
            "<strong>4 times</strong>: 2 duplicates stopped, 1 conflict",
            "POST /hooks/orders",
            IdempotencyKey::of(job, "charge").as_str(),
            "clinch key show &#39;k-1&#39;",
            &format!("href=\"/jobs/{job}\""),
        ],
    );
    let missing = browser.get("/keys?k=k-2").await;
    assert_eq!(missing.status, 404);
    check(&missing.body, &["The key is not held by tenant", "href=\"/find?q=k-2\""]);
    assert_eq!(to(&browser.get(&format!("/keys?k={job}")).await), format!("/jobs/{job}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_the_search_box_opens_what_names_one_thing_and_lists_what_fits_words() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), OK]);
    let dead = world.post_and_wait("k-dead", r#"{"order":7}"#, Word::Dead).await;
    let good = world.post_and_wait("k-good", r#"{"order":8}"#, Word::Success).await.row.id;
    let (event, dead) = (dead.row.event, dead.row.id);
    let browser = Browser::of(&world).await;
    for q in [dead.to_string(), "k-dead".into(), event.to_string(), "orders:k-dead".into()] {
        assert_eq!(to(&browser.get(&format!("/find?q={q}")).await), format!("/jobs/{dead}"), "{q}");
    }
    assert_eq!(to(&browser.get(&format!("/find?q={dead}/charge")).await), format!("/effects/{dead}/charge"));

    let all = browser.page("/jobs").await;
    check(&all, &[&format!("href=\"/jobs/{dead}\""), &format!("href=\"/jobs/{good}\""), "2 looked at, which are all"]);
    let page = browser.page("/find?q=state:dead+flow:orders").await;
    check(
        &page,
        &[
            &format!("href=\"/jobs/{dead}\""),
            "1 match; ",
            "href=\"/jobs?q=flow%3Aorders\" title=\"Without it\">state:dead",
        ],
    );
    assert!(!page.contains(&good.to_string()), "{page}");
    check(&page, &["/replays/new?q=state%3Adead+flow%3Aorders", "aria-label=\"Views\""]);
    check(&browser.page("/jobs?q=state:dead+flow:ordrs").await, &["Did you mean `orders`?", "Take a word away above"]);

    let wrong = browser.get("/find?q=sate:dead").await;
    assert_eq!(wrong.status, 400);
    check(&wrong.body, &["role=\"alert\" id=\"wrong\"", "did you mean `state:`?"]);
    assert!(!wrong.body.contains(&dead.to_string()) && !wrong.body.contains("<tbody"), "{}", wrong.body);
    check(
        &browser.page("/find?q=nobody").await,
        &["No job is named by this", "Payloads are encrypted and not searched"],
    );

    let chosen = browser.get(&format!("/jobs/selected?job={dead}&job={good}&job=nothing")).await;
    assert_eq!(to(&chosen), format!("/replays/new?q=job%3A{dead}%2C{good}"));
    assert_eq!(browser.get("/jobs/selected").await.status, 400);
    let ask = json!({"query": format!("job:{dead},{good}"), "reason": "INC-482"});
    let planned = world.command("/api/v1/replays", ask).await.json();
    assert_eq!(planned["plan"]["jobs"], 1, "only a dead letter is replayed: {planned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_long_list_goes_on_where_the_page_before_ended() {
    let world = World::new(&[]).await;
    let mut jobs = Vec::new();
    for nth in 0..53 {
        jobs.push(world.post_and_wait(&format!("k-{nth}"), r#"{"order":7}"#, Word::Success).await.row.id.to_string());
    }
    let browser = Browser::of(&world).await;
    for first in ["/jobs", "/jobs?q=flow%3Aorders"] {
        let page = browser.page(first).await;
        let shown = |page: &str| jobs.iter().filter(|job| page.contains(&format!("<tr id=\"{job}\""))).count();
        assert_eq!(shown(&page), 50);
        let next = page.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&#38;", "&");
        let second = browser.page(&next).await;
        assert_eq!(shown(&second), 3, "{next}");
        check(&second, &["which are all", ">Newest</a>"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_events_tell_what_came_again_and_what_was_refused() {
    let flow = crate::world::FLOW.replace("steps:", "  - source: shop\nsteps:");
    let shop = "sources:\n  shop: {verify: sender, path: /in/shop}\n";
    let world = World::new(&[("flows/orders.yml", &flow), ("clinch.yml", shop)]).await;
    let story = world.post_and_wait("k-1", r#"{"order":7}"#, Word::Success).await;
    world.post("k-1", r#"{"order":7}"#).await;
    world.post("k-1", r#"{"order":8}"#).await;
    world.post_and_wait("k-2", r#"{"order":9}"#, Word::Success).await;
    let (event, job) = (story.row.event, story.row.id);
    let browser = Browser::of(&world).await;
    check(&browser.page("/events").await, &[&format!("<tr id=\"{event}\""), "2 shown; 2 looked at, which are all"]);
    let again = browser.page("/events?again=conflict&source=orders").await;
    check(
        &again,
        &[
            &format!("<tr id=\"{event}\""),
            "1 shown",
            "clinch events ls --source &#39;orders&#39; --again &#39;conflict&#39;",
        ],
    );
    assert_eq!(browser.get("/events?since=soon").await.status, 400);
    let page = browser.page(&format!("/events/{event}")).await;
    check(
        &page,
        &[
            &format!("href=\"/jobs/{job}\""),
            "1 time with the same body",
            "1 time with another body",
            "conflict</span>: another body",
        ],
    );
    assert_eq!(browser.get("/events/evt_01HZX5T0N8W29").await.status, 404);

    check(&browser.page("/events?source=shop").await, &["Nothing was refused since this node started. That is good."]);
    assert_eq!(world.deliver("/in/shop", &[], "{}").await.status, 401);
    let page = browser.page("/events?source=shop").await;
    check(&page, &["Refused at shop", "`Authorization: Bearer`", "clinch sources rejections shop"]);
    let (code, said) = world.clinch(&["sources", "rejections", "shop", "-o", "table"]).await;
    assert_eq!(code, 0, "{said}");
    check(&said, &["`Authorization: Bearer`"]);
}

/// What would do something, if it were not text.
const HOSTILE: [&str; 5] = [
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "\"><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u{202e}gnp.exe",
];

#[track_caller]
fn check_inert(place: &str, page: &str) {
    for raw in
        ["<img src=x", "<img/src=x", "<svg onload", "<svg/onload", "<script>alert", "href=\"javascript:", "\u{202e}"]
    {
        assert!(!page.contains(raw), "{raw:?} is alive in {place}\n{page}");
    }
    assert!(page.len() < 400_000, "{place} has {} bytes", page.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn t_098_whatever_was_sent_said_or_asked_is_text_on_every_page() {
    let flow = crate::world::FLOW.replace("path: /hooks/orders", "path: /hooks/orders\n      body_max: 8MiB");
    let world = World::new(&[("flows/orders.yml", &flow)]).await;
    let answer = Reply::With { status: 422, headers: &[], body: "<img src=x onerror=alert(1)>\u{202e}" };
    world.target.script("/charge", [answer]);
    let huge = "<img src=x onerror=alert(1)>".repeat((5 << 20) / 28);
    let bodies: Vec<String> = HOSTILE
        .iter()
        .map(|text| json!({*text: text, "note": format!("{text} {text}")}).to_string())
        .chain([json!({"note": huge}).to_string(), json!(HOSTILE.concat()).to_string()])
        .collect();
    let browser = Browser::of(&world).await;
    for (nth, body) in bodies.iter().enumerate() {
        // A key has no spaces and no quotes.
        let hostile = HOSTILE.get(nth).filter(|text| text.is_ascii() && !text.contains('"'));
        let key = hostile.map_or_else(|| format!("k-{nth}"), |text| text.replace(' ', "/"));
        let story = world.post_and_wait(&key, body, Word::Dead).await;
        let (job, event) = (story.row.id, story.row.event);
        let reason = HOSTILE[nth % HOSTILE.len()];
        to(&browser.post(&format!("/jobs/{job}/replay"), &[("reason", reason)]).await);
        world.wait_until(job, "replayed", |story| story.row.replays == 1 && story.row.word == Word::Dead).await;
        let key = url::form_urlencoded::byte_serialize(key.as_bytes()).collect::<String>();
        for path in [
            format!("/jobs/{job}"),
            format!("/events/{event}"),
            format!("/effects/{job}/charge"),
            format!("/keys?k={key}"),
        ] {
            check_inert(&path, &browser.page(&path).await);
        }
    }
    let hostile =
        Reply::With { status: 200, headers: &[], body: r#"{"<img src=x onerror=alert(1)>":"<svg onload=alert(1)>"}"# };
    world.target.script("/charge", [hostile]);
    let job = world.post_and_wait("answered", "{}", Word::Success).await.row.id;
    let page = browser.page(&format!("/effects/{job}/charge")).await;
    check(&page, &["&#60;img src=x onerror=alert(1)&#62;"]);
    check_inert("the answer", &page);
    let long = "x".repeat(5 << 20);
    let refused = browser.post(&format!("/jobs/{job}/replay"), &[("reason", &long)]).await;
    assert_eq!(refused.status, 413);
    for path in ["/jobs", "/events", "/effects?state=", "/jobs?q=state:dead"] {
        check_inert(path, &browser.page(path).await);
    }
    for text in HOSTILE {
        let text = url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        for path in [
            "/find?q=",
            "/jobs?q=flow:",
            "/keys?k=",
            "/events?since=",
            "/events?source=",
            "/effects?flow=",
            "/jobs/",
            "/effects/x/",
        ] {
            let answer = browser.get(&format!("{path}{text}")).await;
            assert!(answer.status < 500, "{path}{text}: {answer:?}");
            check_inert(path, &answer.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_what_is_masked_is_on_no_page() {
    const MAIL: &str = "kanary.mail@leak.example";
    let world = World::new(&[]).await;
    world
        .target
        .script("/charge", [Reply::With { status: 422, headers: &[], body: "kanary.mail@leak.example is known" }]);
    let body = json!({"email": MAIL, "note": format!("call {MAIL}"), "card": "4012888888881881"}).to_string();
    let story = world.post_and_wait(MAIL, &body, Word::Dead).await;
    let (job, event) = (story.row.id, story.row.event);
    let browser = Browser::of(&world).await;
    let reason = format!("{MAIL} called");
    browser.post(&format!("/jobs/{job}/replay"), &[("reason", &reason)]).await;
    world.wait_until(job, "replayed", |story| story.row.replays == 1 && story.row.word == Word::Dead).await;
    let mut seen = Vec::new();
    for path in ["/jobs", "/events", "/effects?state=", "/jobs?q=state:dead", "/"] {
        seen.push(browser.get(path).await);
    }
    for path in [format!("/jobs/{job}"), format!("/events/{event}"), format!("/effects/{job}/charge")] {
        let answer = browser.get(&path).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        seen.push(answer);
    }
    check_absent("kanary", &seen);
    check_absent("4012888888881881", &seen);
    // Who looks it up has typed it; what else is on that page is masked.
    let page = browser.page(&format!("/keys?k={MAIL}")).await;
    assert_eq!(page.matches("kanary").count(), 2, "in the box and in the command: {page}");
}
