//! The questions: what lists, pages, groups and figures say.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::{Change, Ending, Waits, Word};
use clinch_core::key::{Fingerprint, Pepper};
use clinch_core::subject::Handle;
use clinch_core::time::Timestamp;
use clinch_store::read::{Again, EventFilter, JobFilter, Within};
use clinch_store::{DropAsk, ForgetAsk, NewEvent, NewJob, Settlement, VersionId};
use std::time::Duration;

fn all() -> JobFilter {
    JobFilter { limit: 100, ..JobFilter::default() }
}

async fn list(world: &World, filter: JobFilter) -> Vec<JobId> {
    let page = world.jobs(filter).await.expect("read");
    page.rows.iter().map(|row| row.id).collect()
}

/// Walks the pages as a client does: each says where the next one begins.
async fn walk(world: &World, filter: JobFilter) -> Vec<Vec<JobId>> {
    let (mut pages, mut before): (Vec<Vec<JobId>>, _) = (Vec::new(), None);
    loop {
        let page = world.jobs(JobFilter { before, ..filter.clone() }).await.expect("read");
        pages.push(page.rows.iter().map(|row| row.id).collect());
        assert_eq!(page.more, page.next.is_some());
        before = page.next;
        if !page.more {
            return pages;
        }
        assert!(pages.len() < 100, "the walk comes to an end");
    }
}

fn of_flow(flow: &str, key: &str) -> NewEvent {
    NewEvent { jobs: vec![of(flow, "work")], ..event(key) }
}

fn of(flow: &str, queue: &str) -> NewJob {
    NewJob { flow: flow.into(), ..job(queue) }
}

/// One job in every state, in the order of `Word::ALL`.
async fn one_of_each(world: &World) -> Vec<(Word, JobId)> {
    let noop = world.accepted(event("noop")).await;
    let claim = world.take(later(0)).await;
    let (at, ending) = (later(1), Ending::Noop);
    world.settles(claim.lease, settlement(at, "noop", Change::Finished { at, ending })).await;
    let dead = world.dead("dead", later(0), Reason::AuthFailed).await;
    let dropped = world.dead("dropped", later(0), Reason::BadPayload).await;
    let wish = |who| DropAsk { job: dropped.job, record: by(who, "poison", later(0)) };
    world.ask_drop(wish("maya")).await.expect("asked");
    world.confirm_drop(wish("ben")).await.expect("dropped");
    let success = world.success(later(0)).await;
    let retrying = world.accepted(event("retrying")).await;
    let claim = world.take(later(0)).await;
    world.settles(claim.lease, failed(later(1), later(50))).await;
    let waiting = world.accepted(event("waiting")).await;
    let claim = world.take(later(0)).await;
    let put_off = Change::PutOff { run_at: later(50), waits: Waits::Circuit };
    world.settles(claim.lease, Settlement { charged: false, ..settlement(later(1), "put_off", put_off) }).await;
    let running = world.accepted(event("running")).await;
    world.take(later(0)).await;
    let queued = world.accepted(event("queued")).await;
    vec![
        (Word::Queued, queued.job),
        (Word::Running, running.job),
        (Word::Waiting, waiting.job),
        (Word::Retrying, retrying.job),
        (Word::Success, success.job),
        (Word::Noop, noop.job),
        (Word::Dead, dead.job),
        (Word::Dropped, dropped.job),
    ]
}

pub async fn a_list_shows_the_newest_first(world: World) {
    let mut jobs = Vec::new();
    for key in ["a", "b", "c"] {
        jobs.push(world.accepted(event(key)).await.job);
    }
    jobs.reverse();
    assert_eq!(list(&world, all()).await, jobs);
}

pub async fn a_list_is_filtered_by_state(world: World) {
    let jobs = one_of_each(&world).await;
    assert_eq!(jobs.len(), Word::ALL.len());
    for (word, job) in jobs {
        let filter = JobFilter { word: Some(word), ..all() };
        let page = world.jobs(filter).await.expect("read");
        let found: Vec<_> = page.rows.iter().map(|row| (row.id, row.word)).collect();
        assert_eq!((found, page.more), (vec![(job, word)], false));
    }
}

pub async fn a_list_is_filtered_by_flow_queue_and_reason(world: World) {
    let orders = world.dead("a", later(0), Reason::AuthFailed).await.job;
    let other_reason = world.dead("b", later(0), Reason::Timeout).await.job;
    let bills = world.accepted(of_flow("bills", "c")).await.job;
    let elsewhere = NewEvent { jobs: vec![of("bills", "elsewhere")], ..event("d") };
    let elsewhere = world.accepted(elsewhere).await.job;
    let flow = |flow: &str| JobFilter { flow: Some(flow.into()), ..all() };
    assert_eq!(list(&world, flow("orders")).await, [other_reason, orders]);
    assert_eq!(list(&world, flow("bills")).await, [elsewhere, bills]);
    assert_eq!(list(&world, flow("nobody's")).await, []);
    let queue = JobFilter { queue: Some("elsewhere".into()), ..all() };
    assert_eq!(list(&world, queue).await, [elsewhere]);
    for word in [None, Some(Word::Dead)] {
        let filter = JobFilter { word, reason: Some(Reason::AuthFailed), ..all() };
        assert_eq!(list(&world, filter).await, [orders]);
    }
    let both = JobFilter { word: Some(Word::Queued), queue: Some("work".into()), ..flow("bills") };
    assert_eq!(list(&world, both).await, [bills]);
}

pub async fn i1_a_list_is_filtered_by_source_step_attempts_and_time(world: World) {
    let shop = NewEvent { source: "shop".into(), received_at: later(10), ..event("a") };
    let shop = world.accepted(shop).await.job;
    let claim = world.take(later(10)).await;
    world.intends(claim.lease, "send[0]", Idempotency::Natural, later(10)).await;
    world.settles(claim.lease, failed(later(11), later(50))).await;
    let dead = world.dead("b", later(20), Reason::Timeout).await.job;
    let other = world.accepted(NewEvent { received_at: later(30), ..event("c") }).await.job;
    let sources = JobFilter { source: Some("shop".into()), ..all() };
    assert_eq!(list(&world, sources.clone()).await, [shop]);
    assert_eq!(list(&world, JobFilter { word: Some(Word::Retrying), ..sources.clone() }).await, [shop]);
    assert_eq!(list(&world, JobFilter { word: Some(Word::Queued), ..sources }).await, []);
    for (steps, found) in [(vec!["send".into()], vec![shop]), (vec!["sen".into(), "post".into()], vec![])] {
        assert_eq!(list(&world, JobFilter { steps: Some(steps), ..all() }).await, found);
    }
    assert_eq!(list(&world, JobFilter { attempts_min: 1, ..all() }).await, [dead, shop]);
    assert_eq!(list(&world, JobFilter { attempts_max: Some(0), ..all() }).await, [other]);
    let accepted = |since, until| JobFilter { accepted: Within { since, until }, ..all() };
    assert_eq!(list(&world, accepted(Some(later(20)), None)).await, [other, dead]);
    assert_eq!(list(&world, accepted(Some(later(10)), Some(later(20)))).await, [shop]);
    let ended = |since, until| JobFilter { word: Some(Word::Dead), ended: Within { since, until }, ..all() };
    assert_eq!(list(&world, ended(Some(later(20)), Some(later(21)))).await, [dead]);
    assert_eq!(list(&world, ended(Some(later(21)), None)).await, []);
    let named = |jobs: &[JobId]| JobFilter { jobs: Some(jobs.to_vec()), ..all() };
    assert_eq!(list(&world, named(&[shop, dead])).await, [dead, shop]);
    assert_eq!(list(&world, JobFilter { word: Some(Word::Retrying), ..named(&[shop, dead]) }).await, [shop]);
    assert_eq!(list(&world, JobFilter { word: Some(Word::Running), ..named(&[shop, dead]) }).await, []);
    assert_eq!(list(&world, named(&[])).await, []);
}

pub async fn i1_a_list_counts_what_fits_and_tells_how_far_it_looked(world: World) {
    for nth in 0..7 {
        world.accepted(event(&format!("k{nth}"))).await;
    }
    world.dead("dead", later(0), Reason::Timeout).await;
    let check = async |filter: JobFilter, matches: u64, looked_at: u64| {
        let page = world.jobs(JobFilter { limit: 2, counts: true, ..filter }).await.expect("read");
        assert_eq!((page.matches, page.looked_at), (Some(matches), looked_at));
    };
    check(all(), 8, 2).await;
    check(JobFilter { flow: Some("orders".into()), ..all() }, 8, 8).await;
    check(JobFilter { word: Some(Word::Queued), ..all() }, 7, 7).await;
    check(JobFilter { word: Some(Word::Dead), reason: Some(Reason::Timeout), ..all() }, 1, 1).await;
    let uncounted = world.jobs(all()).await.expect("read");
    assert_eq!(uncounted.matches, None);
}

pub async fn i1_events_are_listed_with_how_often_they_came_again(world: World) {
    let first = world.accepted(NewEvent { source: "shop".into(), ..event("a") }).await.event;
    let second = world.accepted(event("b")).await.event;
    let third = world.accepted(NewEvent { dedup: None, received_at: later(5), ..event("c") }).await.event;
    for _ in 0..2 {
        world.duplicate(event("a")).await;
    }
    let mut other = event("b");
    other.dedup.as_mut().expect("a key").fingerprint = Fingerprint::of("POST", b"another body");
    world.accept(other).await.expect("answered");
    let all = EventFilter { limit: 100, ..EventFilter::default() };
    let list = async |filter: EventFilter| {
        let page = world.events(filter).await.expect("read");
        let rows = page.rows.iter().map(|row| (row.id, row.duplicates, row.conflicts)).collect::<Vec<_>>();
        (rows, page.next)
    };
    let rows = [(third, 0, 0), (second, 0, 1), (first, 2, 0)];
    assert_eq!(list(all.clone()).await, (rows.to_vec(), None));
    assert_eq!(list(EventFilter { limit: 2, ..all.clone() }).await, (rows[..2].to_vec(), Some(second)));
    assert_eq!(list(EventFilter { before: Some(second), ..all.clone() }).await, (rows[2..].to_vec(), None));
    let again = |again| EventFilter { again: Some(again), ..all.clone() };
    assert_eq!(list(again(Again::Duplicate)).await.0, rows[2..]);
    assert_eq!(list(again(Again::Conflict)).await.0, rows[1..2]);
    assert_eq!(list(EventFilter { source: Some("shop".into()), ..all.clone() }).await.0, rows[2..]);
    let accepted = Within { since: Some(later(5)), until: None };
    assert_eq!(list(EventFilter { accepted, ..all.clone() }).await.0, rows[..1]);
    let told = world.events(all).await.expect("read").rows;
    assert_eq!((told[0].key_until.is_some(), told[2].key_until.is_some(), told[2].jobs), (false, true, 1));
}

pub async fn i1_an_event_is_found_by_what_was_said_of_it_until_it_is_gone(world: World) {
    let handle = |text: &str| Handle::of(&Pepper::new(&PEPPER), text).expect("a value");
    let of = |key: &str, texts: &[&str], at: u64| NewEvent {
        handles: texts.iter().map(|text| handle(text)).collect(),
        received_at: later(at),
        ..event(key)
    };
    let first = world.accepted(of("a", &["ada@example.org", "order 7"], 0)).await.event;
    let second = world.accepted(of("b", &["ada@example.org"], 1)).await.event;
    world.accepted(event("c")).await;
    world.duplicate(of("a", &["eve@example.org"], 2)).await;
    let found = async |text: &str| world.found_by(handle(text), 10).await.expect("read");
    assert_eq!(found("Ada@example.org").await, [second, first], "the newest first");
    assert_eq!(found("order 7").await, [first]);
    assert_eq!(found("eve@example.org").await, [], "a duplicate is not an event");
    assert_eq!(world.found_by(handle("ada@example.org"), 1).await.expect("read"), [second]);
    let ask = ForgetAsk {
        events: vec![second],
        answers: Vec::new(),
        subject: "h_1".into(),
        record: by("maya", "asked for", later(3)),
    };
    assert_eq!(world.forget(ask).await.expect("forgotten").events, 1);
    assert_eq!(found("ada@example.org").await, [first], "what was forgotten is not found");
    for _ in 0..3 {
        world.finish(later(4)).await;
    }
    let mut pruned = 0;
    while pruned < 3 {
        let part = world.prunes(later(5) + 400 * KEY_TTL).await;
        assert!(part.events > 0 || !part.finished, "all are over");
        pruned += part.events;
    }
    assert_eq!(found("order 7").await, []);
}

pub async fn pages_show_every_job_once(world: World) {
    let mut jobs = Vec::new();
    for nth in 0..23 {
        jobs.push(world.accepted(event(&format!("k{nth}"))).await.job);
    }
    jobs.reverse();
    let pages = walk(&world, JobFilter { limit: 5, ..all() }).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5, 5, 3]);
    assert_eq!(pages.concat(), jobs);
    // A page that holds exactly the rest is the last.
    let exact = walk(&world, JobFilter { limit: 23, ..all() }).await;
    assert_eq!(exact.len(), 1);
}

pub async fn pages_of_dead_letters_show_every_one_once_in_whatever_order_they_died(world: World) {
    for nth in 0..9 {
        world.accepted(event(&format!("k{nth}"))).await;
    }
    let claims = world.claims("work", 9, later(0)).await;
    // The oldest dies last, and some in the middle before either end.
    for (nth, died) in [5, 0, 8, 3, 7, 1, 6, 2, 4].into_iter().zip(1..) {
        let claim: &clinch_store::Claim = &claims[nth];
        world.settles(claim.lease, buried(later(died), Reason::Timeout)).await;
    }
    let mut jobs: Vec<_> = claims.iter().map(|claim| claim.lease.job).collect();
    jobs.reverse();
    let filter = JobFilter { word: Some(Word::Dead), limit: 2, ..all() };
    assert_eq!(walk(&world, filter).await.concat(), jobs);
}

pub async fn a_page_is_not_cut_short_by_jobs_that_run(world: World) {
    for nth in 0..12 {
        world.accepted(event(&format!("k{nth}"))).await;
    }
    let claims = world.claims("work", 12, later(0)).await;
    let jobs: Vec<_> = claims.iter().map(|claim| claim.lease.job).collect();
    // Oldest to newest: four queued, four retrying, four running.
    for claim in &claims[..4] {
        let end = clinch_store::Settlement {
            charged: false,
            ..settlement(later(1), "interrupted", Change::HandedBack { run_at: later(1) })
        };
        world.settles(claim.lease, end).await;
    }
    for claim in &claims[4..8] {
        world.settles(claim.lease, failed(later(1), later(2))).await;
    }
    for (word, among) in [(Word::Queued, 0..4), (Word::Retrying, 4..8), (Word::Running, 8..12)] {
        let filter = JobFilter { word: Some(word), limit: 3, ..all() };
        let pages = walk(&world, filter).await;
        let mut expected = jobs[among].to_vec();
        expected.reverse();
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1], "{word:?}");
        assert_eq!(pages.concat(), expected, "{word:?}");
    }
}

pub async fn dead_letters_are_grouped_by_flow_and_reason(world: World) {
    world.dead("a", later(1), Reason::AuthFailed).await;
    let newest = world.dead("b", later(5), Reason::AuthFailed).await;
    world.dead("c", later(3), Reason::Timeout).await;
    world.accepted(of_flow("bills", "d")).await;
    world.bury(later(9), Reason::AuthFailed).await;
    world.accepted(event("alive")).await;
    let groups = world.dead_groups().await.expect("read");
    let mut found: Vec<_> = groups.iter().map(|g| (&*g.flow, g.reason, g.jobs)).collect();
    assert_eq!(found[0], ("orders", Reason::AuthFailed, 2), "the biggest first");
    assert_eq!((groups[0].first_at, groups[0].last_at), (later(1), later(5)));
    assert_eq!(groups[0].example, newest.job);
    found.sort_unstable();
    let rest = [("bills", Reason::AuthFailed, 1), ("orders", Reason::AuthFailed, 2), ("orders", Reason::Timeout, 1)];
    assert_eq!(found, rest);
}

pub async fn latencies_are_those_of_the_window(world: World) {
    // Received at 0, 100 and 200; each waits a while and runs for a second.
    let run = async |key: &str, received: u64, ended: u64| {
        let event = NewEvent { received_at: later(received), ..event(key) };
        world.accepted(event).await;
        world.finish(later(ended)).await;
    };
    run("a", 0, 50).await;
    run("b", 100, 105).await;
    run("c", 200, 203).await;
    world.accepted(event("unfinished")).await;
    let seconds = |spans: &[Duration]| spans.iter().map(Duration::as_secs).collect::<Vec<_>>();
    let found = world.latencies(later(100), 1_000).await.expect("read");
    assert_eq!(seconds(&found.wait), [2, 4]);
    assert_eq!(seconds(&found.run), [1, 1]);
    assert_eq!(seconds(&found.end_to_end), [3, 5]);
    assert!(!found.cut);
    assert_eq!(world.latencies(later(0), 1_000).await.expect("read").end_to_end.len(), 3);
    let newest = world.latencies(later(0), 2).await.expect("read");
    assert_eq!((newest.end_to_end.len(), newest.cut), (2, true));
    assert!(world.latencies(later(300), 1_000).await.expect("read").wait.is_empty());
}

pub async fn a_key_leads_to_its_event(world: World) {
    let accepted = world.accepted(event("k")).await;
    for world in [world.after_a_kill().await, world] {
        assert_eq!(world.key(key("k")).await.expect("read"), Some(accepted.event));
        assert_eq!(world.key(key("other")).await.expect("read"), None);
    }
}

pub async fn the_story_of_a_job_tells_everything(world: World) {
    let accepted = world.accepted(NewEvent { status: 200, version: VersionId(3), ..event("k") }).await;
    world.duplicate(event("k")).await;
    let claim = world.take(later(1)).await;
    world.settles(claim.lease, failed(later(2), later(9))).await;
    let story = world.story(accepted.job).await;
    let row = &story.row;
    assert_eq!((row.id, row.event), (accepted.job, accepted.event));
    assert_eq!((&*row.flow, &*row.queue, row.version), ("orders", "work", VersionId(3)));
    assert_eq!((row.word, row.received_at, row.run_at), (Word::Retrying, later(0), Some(later(9))));
    assert_eq!((story.answer_status, story.key_until), (200, Some(later(0) + KEY_TTL)));
    assert_eq!((story.attempts.len(), story.deliveries.len()), (1, 1));
    assert_eq!(story.attempts[0].reason, Some(Reason::TargetDown));
    assert_eq!(story.attempts[0].error.as_deref(), Some("the target answered 503"));
}

async fn counted(world: &World) -> (Vec<(Word, u64)>, Vec<(Reason, u64)>, Option<Timestamp>) {
    let counts = world.counts().await.expect("read");
    let mut live: Vec<_> = counts.live.iter().map(|(_, word, jobs)| (*word, *jobs)).collect();
    live.retain(|(_, jobs)| *jobs > 0);
    live.sort_unstable();
    let mut dead: Vec<_> = counts.dead.iter().map(|(_, reason, jobs)| (*reason, *jobs)).collect();
    dead.retain(|(_, jobs)| *jobs > 0);
    dead.sort_unstable();
    let oldest_dead = counts.oldest_dead.first().map(|(_, at)| *at);
    (live, dead, oldest_dead)
}

pub async fn jobs_are_counted_by_flow_and_state(world: World) {
    one_of_each(&world).await;
    let live = vec![(Word::Queued, 1), (Word::Running, 1), (Word::Waiting, 1), (Word::Retrying, 1)];
    let dead = vec![(Reason::AuthFailed, 1)];
    assert_eq!(counted(&world).await, (live, dead, Some(later(0))));
    let counts = world.counts().await.expect("read");
    let mut oldest: Vec<_> = counts.oldest.iter().map(|(flow, word, at)| (&**flow, word.as_str(), *at)).collect();
    oldest.sort();
    assert_eq!(oldest, ["queued", "retrying", "running", "waiting"].map(|word| ("orders", word, later(0))));
    let waiting: Vec<_> = counts.waiting.iter().map(|known| (&*known.flow, known.waits, known.jobs)).collect();
    assert_eq!(waiting, [("orders", Waits::Circuit, 1)]);
    assert!(counts.waiting[0].oldest.is_some());
}

pub async fn counts_are_the_same_after_a_stop(world: World) {
    let revived = world.dead("revived", later(0), Reason::Timeout).await;
    one_of_each(&world).await;
    world.revives(revived.job, later(21)).await;
    let world = world.after_a_stop().await;
    // What ran without having begun anything is ready again; who waited may have forgotten it, and asks again.
    let (live, dead, oldest) = counted(&world).await;
    let retrying: u64 = live.iter().filter(|(word, _)| *word == Word::Retrying).map(|(_, jobs)| jobs).sum();
    let ready: u64 = live.iter().map(|(_, jobs)| jobs).sum::<u64>() - retrying;
    assert!(live.iter().all(|(word, _)| *word != Word::Running), "{live:?}");
    assert_eq!((ready, retrying), (4, 1));
    assert_eq!((dead, oldest), (vec![(Reason::AuthFailed, 1)], Some(later(0))));
}

pub async fn versions_of_unfinished_jobs_are_known(world: World) {
    for (key, version) in [("a", 1), ("b", 2), ("c", 3), ("d", 3)] {
        let event = NewEvent { version: VersionId(version), ..event(key) };
        world.accepted(event).await;
    }
    world.finish(later(1)).await;
    world.bury(later(1), Reason::Timeout).await;
    assert_eq!(world.live_versions(), [VersionId(3)]);
    let flow = event("any").jobs[0].flow.clone();
    assert_eq!(world.unfinished().await.expect("read"), [(flow.clone(), VersionId(3), 2)]);
    let world = world.after_a_stop().await;
    assert_eq!(world.live_versions(), [VersionId(3)]);
    assert_eq!(world.unfinished().await.expect("read"), [(flow, VersionId(3), 2)]);
}

pub async fn what_is_not_there_is_not_found(world: World) {
    assert!(world.job(JobId::from_number(7)).await.expect("read").is_none());
    assert!(world.jobs_of(EventId::from_number(7)).await.expect("read").is_empty());
    assert_eq!(list(&world, all()).await, []);
    assert!(world.record().await.is_empty());
    assert_eq!(world.next_due("work"), None);
    world.adds_up().await;
}
