//! Approvals: what people are asked, and the one verdict.

use super::world::*;
use clinch_core::approval::{ApprovalId, NotAllowed, OnExpiry, Rule, Tally, Verdict, Vote};
use clinch_core::job::{Change, Waits, Word};
use clinch_core::lane::{OnDead, Order};
use clinch_core::time::Timestamp;
use clinch_store::approval::{ApprovalFilter, Place, Undecided};
use clinch_store::{ApprovalAsk, Asked, Claim, DecideAsk, Decided, NewEvent, Settlement, TellAsk};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long people have, in these laws.
const EXPIRES: Duration = Duration::from_secs(100);

fn rule(of: &[&str], need: u32) -> Rule {
    let of = of.iter().map(|name| (*name).to_string()).collect();
    Rule { of, need, expires: EXPIRES, on_expiry: OnExpiry::Reject, remind: None }
}

fn ask(rule: Rule, at: Timestamp) -> ApprovalAsk {
    ApprovalAsk { step: "review".into(), flow: "signup".into(), rule, requester: None, place: None, at }
}

fn vote(id: &ApprovalId, actor: &str, vote: Vote, at: Timestamp) -> DecideAsk {
    let record = by(actor, &format!("{actor} says so"), at);
    DecideAsk { approval: id.clone(), vote, record }
}

fn waits(at: Timestamp, until: Timestamp) -> Settlement {
    let change = Change::PutOff { run_at: until, waits: Waits::Approval };
    Settlement { charged: false, ..settlement(at, "put_off", change) }
}

async fn votes(world: &World, id: &ApprovalId, actor: &str, word: Vote, at: Timestamp) -> Decided {
    world.decide(vote(id, actor, word, at)).await.expect("answered")
}

async fn asks(world: &World, claim: &Claim, ask: ApprovalAsk) -> Asked {
    world.ask_approval(claim.lease, ask).await.expect("answered").expect("the job is ours")
}

fn of(claim: &Claim) -> ApprovalId {
    ApprovalId { job: claim.lease.job, step: "review".into() }
}

/// A job that waits at an approval, from that second on.
async fn waiting(world: &World, event: NewEvent, asked: ApprovalAsk) -> ApprovalId {
    let at = asked.at;
    world.accepted(event).await;
    let claim = world.take(at).await;
    let Asked::Pending { expires_at } = asks(world, &claim, asked).await else { panic!("nobody has decided") };
    world.settles(claim.lease, waits(at, expires_at)).await;
    of(&claim)
}

async fn verdict(world: &World, id: &ApprovalId) -> Option<Verdict> {
    let row = world.approval(id).await.expect("read").expect("there");
    row.decision.map(|decision| decision.verdict)
}

async fn actions(world: &World, id: &ApprovalId) -> Vec<(String, String)> {
    let audit = world.story(id.job).await.audit;
    audit.into_iter().map(|row| (row.action, row.actor)).collect()
}

pub async fn g2_of_approve_reject_expire_and_cancel_at_once_one_wins_and_all_are_on_record(world: World) {
    let mut won = BTreeSet::new();
    for round in 0..24u64 {
        let began = later(1 + round * 1_000);
        let id = waiting(&world, event(&format!("k{round}")), ask(rule(&[], 1), began)).await;
        let end = began + EXPIRES;
        // Within the same millisecond: they click at the last moment, and then it is over.
        let last = Timestamp::from_micros(end.as_micros() - 1);
        let person = async |actor: &str, word| votes(&world, &id, actor, word, last).await;
        let expire = async || world.expire_approvals(end, 10).await.expect("expired");
        let (approved, rejected, cancelled, expired) = match round % 4 {
            0 => tokio::join!(
                person("ada", Vote::Approve),
                person("bob", Vote::Reject),
                person("eve", Vote::Cancel),
                expire()
            ),
            1 => {
                let (d, c, b, a) = tokio::join!(
                    expire(),
                    person("eve", Vote::Cancel),
                    person("bob", Vote::Reject),
                    person("ada", Vote::Approve)
                );
                (a, b, c, d)
            }
            2 => {
                let (b, d, a, c) = tokio::join!(
                    person("bob", Vote::Reject),
                    expire(),
                    person("ada", Vote::Approve),
                    person("eve", Vote::Cancel)
                );
                (a, b, c, d)
            }
            _ => {
                let (c, a, d, b) = tokio::join!(
                    person("eve", Vote::Cancel),
                    person("ada", Vote::Approve),
                    expire(),
                    person("bob", Vote::Reject)
                );
                (a, b, c, d)
            }
        };
        let decision = world.approval(&id).await.expect("read").expect("there").decision.expect("decided");
        won.insert(decision.verdict.word());
        // Whoever won knows it, and everybody else is told who did.
        let told = [(Verdict::Approved, approved), (Verdict::Rejected, rejected), (Verdict::Cancelled, cancelled)];
        for (verdict, told) in told {
            match verdict == decision.verdict {
                true => assert_eq!(told, Decided::Verdict(decision.clone())),
                false => assert_eq!(told, Decided::Late(decision.clone())),
            }
        }
        assert_eq!(expired.len(), usize::from(decision.verdict == Verdict::Expired), "{decision:?}");
        let on_record: BTreeSet<_> = actions(&world, &id).await.into_iter().collect();
        let mut expected: BTreeSet<_> = [("approval.ask", "clinch"), ("approval.approve", "ada")].into();
        expected.extend([("approval.reject", "bob"), ("approval.cancel", "eve")]);
        expected.extend((decision.verdict == Verdict::Expired).then_some(("approval.expire", "clinch")));
        let expected = expected.into_iter().map(|(action, actor)| (action.to_string(), actor.to_string()));
        assert_eq!(on_record, expected.collect());
        assert_eq!(world.story(id.job).await.audit.len(), on_record.len(), "each once");
        // And the job goes on at once, once.
        let claim = world.take(end).await;
        assert_eq!(claim.lease.job, id.job);
        let again = asks(&world, &claim, ask(rule(&[], 1), end)).await;
        assert_eq!(again, Asked::Decided { decision, on_expiry: OnExpiry::Reject });
        world.settles(claim.lease, finished(end)).await;
    }
    assert!(won.len() > 1, "whoever is asked first wins, and that was not always the same: {won:?}");
    world.adds_up().await;
}

pub async fn g2_people_are_asked_once_and_a_kill_forgets_neither_question_nor_votes(world: World) {
    let id = waiting(&world, event("k"), ask(rule(&["ada", "bob"], 2), later(1))).await;
    let counted = votes(&world, &id, "ada", Vote::Approve, later(5)).await;
    assert_eq!(counted, Decided::Counted(Tally { have: 1, need: 2 }));
    let survivor = world.after_a_kill().await;
    // Whether it still waits where it waited, or runs again from the beginning: the question stands, with its time.
    let claims = survivor.claims("work", 1, later(60)).await;
    for claim in &claims {
        let again = asks(&survivor, claim, ask(rule(&["eve"], 1), later(60))).await;
        assert_eq!(again, Asked::Pending { expires_at: later(1) + EXPIRES });
        survivor.settles(claim.lease, waits(later(60), later(1) + EXPIRES)).await;
    }
    let row = survivor.approval(&id).await.expect("read").expect("there");
    assert_eq!((row.asked_at, row.expires_at, row.need), (later(1), later(1) + EXPIRES, 2));
    assert_eq!((row.of.join(" "), row.tally().have, row.told), ("ada bob".into(), 1, 0));
    let Decided::Verdict(decision) = votes(&survivor, &id, "bob", Vote::Approve, later(61)).await else {
        panic!("two have approved")
    };
    assert_eq!((decision.verdict, &*decision.by, &*decision.reason), (Verdict::Approved, "bob", "bob says so"));
    assert_eq!(survivor.take(later(61)).await.lease.job, id.job);
    assert_eq!(actions(&survivor, &id).await.iter().filter(|(action, _)| action == "approval.ask").count(), 1);
}

pub async fn g2_only_who_is_asked_counts_once_and_never_for_an_own_request(world: World) {
    let asked = ApprovalAsk { requester: Some("rita".into()), ..ask(rule(&["ada", "bob", "rita"], 2), later(1)) };
    let id = waiting(&world, event("k"), asked).await;
    let one = Tally { have: 1, need: 2 };
    assert_eq!(votes(&world, &id, "eve", Vote::Approve, later(2)).await, Decided::NotAllowed(NotAllowed::NotAsked));
    assert_eq!(votes(&world, &id, "rita", Vote::Approve, later(2)).await, Decided::NotAllowed(NotAllowed::OwnRequest));
    assert_eq!(votes(&world, &id, "ada", Vote::Approve, later(3)).await, Decided::Counted(one));
    assert_eq!(votes(&world, &id, "ada", Vote::Approve, later(4)).await, Decided::Before(one));
    assert_eq!(votes(&world, &id, "ada", Vote::Reject, later(5)).await, Decided::NotAllowed(NotAllowed::VotedBefore));
    assert_eq!(verdict(&world, &id).await, None);
    assert!(world.claims("work", 1, later(6)).await.is_empty(), "it still waits");
    assert!(matches!(votes(&world, &id, "bob", Vote::Reject, later(7)).await, Decided::Verdict(_)));
    assert_eq!(verdict(&world, &id).await, Some(Verdict::Rejected));
    // Also what did not count is on record; what was said twice is there once.
    assert_eq!(actions(&world, &id).await.len(), 6);
    let nobody = ApprovalId { step: "other".into(), ..id };
    assert_eq!(votes(&world, &nobody, "ada", Vote::Approve, later(8)).await, Decided::NotFound);
}

pub async fn g2_of_many_who_approve_at_once_no_vote_is_lost(world: World) {
    let id = waiting(&world, event("k"), ask(rule(&[], 8), later(1))).await;
    let names: Vec<String> = (0..8).map(|nth| format!("p{nth}")).collect();
    let all = names.iter().map(|name| votes(&world, &id, name, Vote::Approve, later(2)));
    let told = futures_util::future::join_all(all).await;
    assert_eq!(told.iter().filter(|told| matches!(told, Decided::Verdict(_))).count(), 1, "{told:?}");
    let mut have: Vec<u32> = told
        .iter()
        .filter_map(|told| if let Decided::Counted(tally) = told { Some(tally.have) } else { None })
        .collect();
    have.sort_unstable();
    assert_eq!(have, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(verdict(&world, &id).await, Some(Verdict::Approved));
}

pub async fn g2_a_verdict_that_comes_before_the_job_begins_to_wait_is_not_slept_through(world: World) {
    world.accepted(event("k")).await;
    let claim = world.take(later(1)).await;
    asks(&world, &claim, ask(rule(&[], 1), later(1))).await;
    // Decided while the attempt still holds the job.
    assert!(matches!(votes(&world, &of(&claim), "ada", Vote::Approve, later(2)).await, Decided::Verdict(_)));
    world.settles(claim.lease, waits(later(2), later(1) + EXPIRES)).await;
    let again = world.take(later(3)).await;
    assert_eq!(again.lease.job, claim.lease.job);
    // What waits for something else afterwards is left to wait.
    let limit = Change::PutOff { run_at: later(50), waits: Waits::Limit };
    world.settles(again.lease, Settlement { charged: false, ..settlement(later(3), "put_off", limit) }).await;
    assert!(world.claims("work", 1, later(49)).await.is_empty());
    let last = world.take(later(50)).await;
    // And a wait of its own, for another verdict, is not cut short by the old one.
    let second = ApprovalAsk { step: "second".into(), ..ask(rule(&[], 1), later(50)) };
    assert!(matches!(asks(&world, &last, second).await, Asked::Pending { .. }));
    world.settles(last.lease, waits(later(50), later(50) + EXPIRES)).await;
    assert!(world.claims("work", 1, later(60)).await.is_empty());
    world.adds_up().await;
}

pub async fn g2_a_verdict_wakes_a_job_that_keeps_its_place_in_its_lane(world: World) {
    let fifo = |key: &str| {
        let mut event = event(key);
        event.jobs[0].order = Order::Fifo { on_dead: OnDead::Continue };
        event
    };
    let id = waiting(&world, fifo("1"), ask(rule(&[], 1), later(1))).await;
    let second = world.accepted(fifo("2")).await.job;
    assert!(world.claims("work", 5, later(2)).await.is_empty());
    assert_eq!(
        (world.story(id.job).await.row.word, world.story(id.job).await.row.waits),
        (Word::Waiting, Some(Waits::Approval))
    );
    votes(&world, &id, "ada", Vote::Approve, later(3)).await;
    let claim = world.take(later(3)).await;
    assert_eq!(claim.lease.job, id.job);
    world.settles(claim.lease, finished(later(4))).await;
    assert_eq!(world.take(later(5)).await.lease.job, second);
    world.adds_up().await;
}

pub async fn g2_what_nobody_decides_in_time_expires_and_a_later_vote_is_told_so(world: World) {
    let early = waiting(&world, event("1"), ask(rule(&[], 2), later(1))).await;
    let late = waiting(&world, event("2"), ask(rule(&[], 1), later(50))).await;
    let own = waiting(&world, event("3"), ask(Rule { on_expiry: OnExpiry::Approve, ..rule(&[], 1) }, later(50))).await;
    votes(&world, &early, "ada", Vote::Approve, later(2)).await;
    assert!(world.expire_approvals(later(100), 10).await.expect("none is over").is_empty());
    let over = world.expire_approvals(later(101), 10).await.expect("expired");
    assert_eq!(over.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), std::slice::from_ref(&early));
    assert!(world.expire_approvals(later(101), 10).await.expect("once").is_empty());
    assert_eq!(world.take(later(101)).await.lease.job, early.job);
    let Decided::Late(won) = votes(&world, &early, "bob", Vote::Approve, later(102)).await else { panic!("too late") };
    assert_eq!((won.verdict, &*won.by, won.at), (Verdict::Expired, "clinch", later(101)));
    // Over is over, also if nobody has written it down yet: a vote does not count then.
    assert!(matches!(votes(&world, &late, "ada", Vote::Approve, later(150)).await, Decided::Late(_)));
    assert_eq!(verdict(&world, &late).await, Some(Verdict::Expired));
    assert_eq!(world.take(later(150)).await.lease.job, late.job);
    // Nor does the job have to wait for whoever looks after the time.
    let claim = world.take(later(150)).await;
    let asked = asks(&world, &claim, ask(rule(&[], 1), later(150))).await;
    let Asked::Decided { decision, on_expiry: OnExpiry::Approve } = asked else { panic!("it is over: {asked:?}") };
    assert_eq!((claim.lease.job, decision.verdict), (own.job, Verdict::Expired));
}

pub async fn g2_who_lost_the_lease_asks_nobody(world: World) {
    world.accepted(event("k")).await;
    let sleeper = world.take(later(1)).await;
    let lost = world.lapse(later(1_000), 10, later(1_060)).await.expect("lapsed").pop().expect("its lease is over");
    let asked = world.ask_approval(sleeper.lease, ask(rule(&[], 1), later(1_001))).await.expect("answered");
    assert_eq!((asked, world.approval(&of(&sleeper)).await.expect("read")), (None, None));
    assert!(matches!(asks(&world, &lost, ask(rule(&[], 1), later(1_001))).await, Asked::Pending { .. }));
}

pub async fn g2_people_are_told_place_by_place_and_reminded_once(world: World) {
    let place = |channel: &str| Place { integration: "chat".into(), channel: channel.into() };
    let remind = Rule { remind: Some(Duration::from_secs(30)), ..rule(&[], 1) };
    let mut ids = Vec::new();
    for (key, channel) in [("1", Some("#a")), ("2", Some("#a")), ("3", Some("#b")), ("4", None)] {
        let asked = ApprovalAsk { place: channel.map(place), ..ask(remind.clone(), later(1)) };
        ids.push(waiting(&world, event(key), asked).await);
    }
    let tell = |now: u64, but: &[&str]| TellAsk {
        now: later(now),
        until: later(now + 10),
        but: but.iter().map(|channel| place(channel)).collect(),
        most: 20,
    };
    let told = async |ask| -> Vec<ApprovalId> {
        let rows = world.tell_approvals(ask).await.expect("answered");
        rows.into_iter().map(|row| row.id).collect()
    };
    assert_eq!(told(tell(2, &["#b"])).await, ids[..2], "all of one place together");
    assert_eq!(told(tell(2, &["#a"])).await, ids[2..3]);
    assert!(told(tell(2, &[])).await.is_empty(), "somebody tells them");
    world.told_approvals(&ids[..2], later(3)).await.expect("noted");
    assert_eq!(told(tell(12, &[])).await, ids[2..3], "who took it did not say that he told it");
    world.told_approvals(&ids[2..3], later(13)).await.expect("noted");
    assert!(told(tell(70, &[])).await.is_empty());
    votes(&world, &ids[0], "ada", Vote::Approve, later(70)).await;
    assert_eq!(
        told(tell(71, &["#b"])).await,
        ids[1..2],
        "30 s before the end, and what is decided is nobody's business"
    );
    world.told_approvals(&ids[1..2], later(71)).await.expect("noted");
    assert!(told(tell(95, &["#b"])).await.is_empty(), "once");
}

pub async fn g2_approvals_are_listed_counted_and_go_with_their_job(world: World) {
    let mut ids = Vec::new();
    for nth in 0..5u64 {
        ids.push(waiting(&world, event(&format!("k{nth}")), ask(rule(&[], 1), later(1 + nth))).await);
    }
    ids.reverse();
    votes(&world, &ids[0], "ada", Vote::Reject, later(10)).await;
    let list = async |filter: ApprovalFilter| {
        let page = world.approvals(filter).await.expect("read");
        (page.rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), page.more)
    };
    let all = ApprovalFilter { limit: 100, ..ApprovalFilter::default() };
    assert_eq!(list(all.clone()).await, (ids.clone(), false), "the newest first");
    let pending = ApprovalFilter { state: Some(None), limit: 2, ..all.clone() };
    assert_eq!(list(pending.clone()).await, (ids[1..3].to_vec(), true));
    assert_eq!(list(ApprovalFilter { before: Some(ids[2].clone()), ..pending }).await, (ids[3..].to_vec(), false));
    let rejected = ApprovalFilter { state: Some(Some(Verdict::Rejected)), ..all.clone() };
    assert_eq!(list(rejected).await.0, ids[..1]);
    assert!(list(ApprovalFilter { flow: Some("other".into()), ..all.clone() }).await.0.is_empty());
    assert!(list(ApprovalFilter { step: Some("other".into()), ..all.clone() }).await.0.is_empty());
    assert_eq!(list(ApprovalFilter { job: Some(ids[3].job), ..all.clone() }).await.0, ids[3..4]);
    let waiting = world.approvals_waiting().await.expect("counted");
    assert_eq!(waiting, [Undecided { flow: "signup".into(), approvals: 4, oldest: later(1) }]);

    let claim = world.take(later(11)).await;
    world.settles(claim.lease, finished(later(11))).await;
    world.prunes(later(10_000_000)).await;
    assert_eq!(list(all).await.0, ids[1..]);
    assert_eq!(votes(&world, &ids[0], "bob", Vote::Approve, later(12)).await, Decided::NotFound);
    world.adds_up().await;
}
