//! Encryption at rest: what can be read on disk, by whom, and what becomes of it when the key changes or the data must go.

use super::*;
use bytes::Bytes;
use clinch_core::call::{CallKey, CallTurn, Caller};
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::id::EventId;
use clinch_core::key::{Fingerprint, Pepper};
use clinch_core::seal::NotOpened;
use clinch_store::read::KeyUse;
use clinch_store::{Accepted, CallAsk, CallEnd, Called, ForgetAsk, Forgotten, NewEvent, Settlement};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const EMAIL: &str = "ada.lovelace@example.org";
const ALL: [&str; 3] = ["payload-of", "result-of", "error-of"];

const PAYLOAD: &str = "SELECT payload FROM event WHERE id = $1";
const SET_PAYLOAD: &str = "UPDATE event SET payload = $2 WHERE id = $1";

fn about(email: &str, key: &str) -> NewEvent {
    NewEvent { payload: Bytes::from(format!("payload-of {email}")), ..event(key) }
}

/// An event about somebody, whose job did one step and failed in another, and waits.
async fn lived(world: &World, email: &str, key: &str) -> Accepted {
    let accepted = world.accepted(about(email, key)).await;
    let lease = world.take(later(1)).await.lease;
    world.intends(lease, "post", Idempotency::None, later(1)).await;
    let receipt = Receipt { status: 201, body: Bytes::from(format!("result-of {email}")) };
    world.concludes(lease, "post", EffectState::Done(receipt), later(1)).await;
    let end = Settlement { error: Some(format!("error-of {email}")), ..failed(later(2), later(60)) };
    world.settles(lease, end).await;
    accepted
}

/// What is told of it: payload, result, error.
async fn told(world: &World, accepted: Accepted) -> [String; 3] {
    let story = world.story(accepted.job).await;
    let EffectState::Done(receipt) = &story.effects[0].state else { panic!("{:?}", story.effects) };
    let error = story.row.error.clone().expect("it failed");
    assert_eq!(story.attempts[0].error.as_ref(), Some(&error));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    [text(opened(&story.payload)), text(&receipt.body), error]
}

fn all_of(email: &str) -> [String; 3] {
    ALL.map(|part| format!("{part} {email}"))
}

async fn holds(world: &World, wanted: &[u8]) -> bool {
    world.bytes().await.windows(wanted.len()).any(|window| window == wanted)
}

async fn uses(world: &World) -> Vec<KeyUse> {
    let mut uses = world.key_uses().await.expect("counted");
    uses.retain(|of| of.places() > 0);
    uses
}

async fn reseal_all(world: &World, most: usize) -> u64 {
    let (mut after, mut places) = (None, 0);
    loop {
        let part = world.reseal(after, most).await.expect("sealed");
        assert_eq!(part.unreadable, 0);
        assert!(part.events <= most as u64);
        places += part.places;
        after = part.last;
        if after.is_none() {
            return places;
        }
    }
}

pub async fn p9_what_is_stored_cannot_be_read_without_the_key(world: World) {
    let accepted = lived(&world, EMAIL, "k").await;
    assert_eq!(told(&world, accepted).await, all_of(EMAIL));
    let world = world.after_a_stop().await;
    assert_eq!(told(&world, accepted).await, all_of(EMAIL));
    assert!(holds(&world, b"orders").await, "the search finds what is there");
    for part in ["lovelace", "payload-of", "result-of", "error-of"] {
        assert!(!holds(&world, part.as_bytes()).await, "{part}");
    }
    let of = &uses(&world).await[..];
    assert_eq!(of, [KeyUse { key: world.active_key(), payloads: 1, results: 1, errors: 1 }]);
    world.adds_up().await;
}

pub async fn k2_of_an_empty_answer_nothing_is_stored_and_it_is_told_as_it_was(world: World) {
    let accepted = world.accepted(about(EMAIL, "k")).await;
    let lease = world.take(later(1)).await.lease;
    world.intends(lease, "post", Idempotency::None, later(1)).await;
    let done = EffectState::Done(Receipt { status: 204, body: Bytes::new() });
    world.concludes(lease, "post", done.clone(), later(1)).await;
    world.settles(lease, failed(later(2), later(60))).await;
    let world = world.after_a_stop().await;
    assert_eq!(world.story(accepted.job).await.effects[0].state, done);
    // Nothing of it looks like something from before encryption.
    let of = &uses(&world).await[..];
    assert_eq!(of, [KeyUse { key: world.active_key(), payloads: 1, results: 0, errors: 1 }]);
    // And who goes on with the job has it.
    assert_eq!(world.take(later(61)).await.effects[0].state, done);
}

pub async fn k2_without_encryption_it_is_stored_as_it_came(world: World) {
    let world = world.emptied(None).await;
    let accepted = lived(&world, EMAIL, "k").await;
    assert_eq!(told(&world, accepted).await, all_of(EMAIL));
    for part in ALL {
        assert!(holds(&world, format!("{part} {EMAIL}").as_bytes()).await, "{part}");
    }
    assert_eq!(world.active_key(), None);
}

pub async fn t103_what_is_copied_to_another_event_does_not_open(world: World) {
    let (one, two) = (world.accepted(about(EMAIL, "one")).await, world.accepted(event("two")).await);
    let stolen = world.engine().look(PAYLOAD, one.event.number()).await;
    world.engine().meddle(SET_PAYLOAD, two.event.number(), &stolen).await;
    assert_eq!(world.story(two.job).await.payload, Err(NotOpened::Tampered));
    assert_eq!(world.story(one.job).await.payload, Ok(Bytes::from(format!("payload-of {EMAIL}"))));
    world.claims("work", 2, later(1)).await;
    // Nor does a result in another step or job, or an error in another attempt.
    let (one, two) = (lived(&world, EMAIL, "three").await, lived(&world, "other@example.org", "four").await);
    for (look, meddle) in [
        (
            "SELECT body FROM effect WHERE job = $1 AND body IS NOT NULL",
            "UPDATE effect SET body = $2 WHERE job = $1 AND body IS NOT NULL",
        ),
        ("SELECT error FROM attempt WHERE job = $1", "UPDATE attempt SET error = $2 WHERE job = $1"),
    ] {
        let stolen = world.engine().look(look, one.job.number()).await;
        world.engine().meddle(meddle, two.job.number(), &stolen).await;
    }
    let story = world.story(two.job).await;
    assert!(!format!("{story:?}").contains("lovelace"), "{story:?}");
    assert!(story.row.error.expect("told").contains("belongs to another row"));
    // The worker that claims it is told, and does not go on without the answer.
    let claims = world.claims("work", 10, later(61)).await;
    let of = |accepted: Accepted| &claims.iter().find(|claim| claim.lease.job == accepted.job).expect("due").payload;
    assert_eq!((of(two), of(one).is_ok()), (&Err(NotOpened::Tampered), true));
}

pub async fn t104_what_was_changed_does_not_open_and_says_so(world: World) {
    let accepted = lived(&world, EMAIL, "k").await;
    let number = accepted.event.number();
    let sealed = world.engine().look(PAYLOAD, number).await;
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        world.engine().meddle(SET_PAYLOAD, number, &changed).await;
        let why = world.story(accepted.job).await.payload.expect_err("it was changed");
        match at {
            // It is not taken for a thing from before encryption, either.
            0..3 => assert_eq!(why, NotOpened::Tampered),
            3 => assert!(matches!(why, NotOpened::UnknownVersion(_)), "{why}"),
            4..8 => assert!(matches!(why, NotOpened::UnknownKey(_)), "{why}"),
            _ => assert_eq!(why, NotOpened::Tampered),
        }
    }
    let claim = world.take(later(60)).await;
    assert_eq!(claim.payload, Err(NotOpened::Tampered));
    world.settles(claim.lease, buried(later(61), clinch_core::death::Reason::Unreadable)).await;
    assert_eq!(world.story(accepted.job).await.row.reason, Some(clinch_core::death::Reason::Unreadable));
    world.adds_up().await;
}

pub async fn t104_what_was_put_there_unsealed_does_not_open(world: World) {
    let accepted = world.accepted(event("k")).await;
    world.engine().meddle(SET_PAYLOAD, accepted.event.number(), b"forged").await;
    assert_eq!(world.story(accepted.job).await.payload, Err(NotOpened::Tampered));
    let world = world.after_a_stop().await;
    assert_eq!(world.story(accepted.job).await.payload, Err(NotOpened::Tampered));
}

pub async fn t106_a_wrong_key_is_refused(world: World) {
    let accepted = lived(&world, EMAIL, "k").await;
    let known = world.active_key().expect("encrypted").to_string();
    for wrong in [keys(OTHER_KEY), None] {
        let (why, engine) = world.after_a_kill().await.refused(wrong).await;
        assert!(why.contains(&known) && !why.contains("0001"), "{why}");
        assert_eq!(told(&World::new(engine).await, accepted).await, all_of(EMAIL), "nothing was changed");
    }
}

pub async fn t106_an_older_key_still_reads(world: World) {
    let old = lived(&world, EMAIL, "old").await;
    let world = world.restarted(Some(ring(OTHER_KEY, &[KEY]))).await;
    let new = lived(&world, EMAIL, "new").await;
    assert_eq!((told(&world, old).await, told(&world, new).await), (all_of(EMAIL), all_of(EMAIL)));
    assert_eq!(uses(&world).await.len(), 2);
    // As long as something is under it, nobody starts without it.
    assert_eq!(world.retire_keys().await.expect("looked"), []);
    let (why, engine) = world.refused(keys(OTHER_KEY)).await;
    let missing = ring(KEY, &[]).active().to_string();
    assert!(why.contains(&missing), "{why}");
    drop(engine);
}

pub async fn t106_a_key_is_changed_under_load_and_all_is_sealed_again(world: World) {
    let mut accepted = Vec::new();
    for nth in 0..12 {
        accepted.push(lived(&world, &format!("{nth}@example.org"), &format!("before {nth}")).await);
    }
    let world = Arc::new(world);
    let over = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (world, over) = (world.clone(), over.clone());
        async move {
            let mut accepted = Vec::new();
            while !over.load(Ordering::Relaxed) || accepted.len() < 20 {
                let nth = 12 + accepted.len();
                let job = vec![job("load")];
                let event = NewEvent { jobs: job, ..about(&format!("{nth}@example.org"), &format!("during {nth}")) };
                accepted.push(world.accepted(event).await);
            }
            accepted
        }
    });
    let (old, new) = (ring(KEY, &[]).active(), ring(OTHER_KEY, &[]).active());
    world.use_keys(ring(OTHER_KEY, &[KEY])).await.expect("taken up");
    assert_eq!(world.active_key(), Some(new));
    let places = reseal_all(&world, 5).await;
    assert!(places >= 36, "{places}");
    over.store(true, Ordering::Relaxed);
    let during = load.await.expect("accepted");
    // What was being written when the key changed is caught by a second walk; there is nothing else for it to do.
    reseal_all(&world, 1_000).await;
    assert_eq!(reseal_all(&world, 1_000).await, 0);
    let of = uses(&world).await;
    assert_eq!(of.iter().map(|of| of.key).collect::<Vec<_>>(), [Some(new)]);
    assert_eq!(of[0].payloads as usize, accepted.len() + during.len());
    assert_eq!(world.retire_keys().await.expect("retired"), [old]);
    let world = Arc::into_inner(world).expect("nobody else has it");
    let world = world.restarted(keys(OTHER_KEY)).await;
    for (nth, accepted) in accepted.iter().enumerate() {
        assert_eq!(told(&world, *accepted).await, all_of(&format!("{nth}@example.org")));
    }
    for (nth, accepted) in (12..).zip(&during) {
        let payload = world.story(accepted.job).await.payload;
        assert_eq!(payload, Ok(Bytes::from(format!("payload-of {nth}@example.org"))));
    }
    world.adds_up().await;
}

pub async fn k2_what_was_written_before_encryption_is_read_and_sealed_by_a_rotation(world: World) {
    let world = world.emptied(None).await;
    let before = lived(&world, EMAIL, "before").await;
    let world = world.restarted(keys(KEY)).await;
    assert_eq!(told(&world, before).await, all_of(EMAIL));
    let after = lived(&world, EMAIL, "after").await;
    assert_eq!(uses(&world).await.iter().map(|of| (of.key, of.places())).collect::<Vec<_>>().len(), 2);
    assert_eq!(reseal_all(&world, 1).await, 3);
    assert_eq!(world.retire_keys().await.expect("looked"), []);
    assert_eq!(uses(&world).await, [KeyUse { key: world.active_key(), payloads: 2, results: 2, errors: 2 }]);
    assert_eq!((told(&world, before).await, told(&world, after).await), (all_of(EMAIL), all_of(EMAIL)));
    // From now on nothing unsealed is believed.
    world.engine().meddle(SET_PAYLOAD, before.event.number(), b"forged").await;
    assert_eq!(world.story(before.job).await.payload, Err(NotOpened::Tampered));
}

fn forget(events: &[EventId]) -> ForgetAsk {
    ForgetAsk {
        events: events.to_vec(),
        answers: Vec::new(),
        subject: "h_0123".into(),
        record: by("alice", "asked for by letter", later(70)),
    }
}

pub async fn t108_what_is_forgotten_is_gone_and_the_books_stay(world: World) {
    let (gone, stays) = (lived(&world, EMAIL, "gone").await, lived(&world, "other@example.org", "stays").await);
    let sealed = world.engine().look(PAYLOAD, gone.event.number()).await;
    let mut contents = world.contents(None, 10).await.expect("read");
    contents.retain(|of| {
        let all = std::iter::once(&of.payload).chain(&of.others);
        all.filter(|kept| String::from_utf8_lossy(opened(kept)).contains(EMAIL)).count() == 3
    });
    assert_eq!(contents.iter().map(|of| of.event).collect::<Vec<_>>(), [gone.event]);
    let erased = world.forget(forget(&[gone.event])).await.expect("erased");
    assert_eq!(erased, Forgotten { events: 1, unfinished: 1, running: 0, answers: 0 });
    assert_eq!(
        world.forget(forget(&[gone.event])).await.expect("asked"),
        Forgotten::default(),
        "nothing is left of it"
    );

    let story = world.story(gone.job).await;
    assert_eq!(story.payload, Err(NotOpened::Forgotten));
    assert!(!format!("{story:?}").contains("lovelace"), "{story:?}");
    assert_eq!((story.attempts.len(), story.effects.len(), story.row.failures), (1, 1, 1));
    assert!(matches!(&story.effects[0].state, EffectState::Done(receipt) if receipt.status == 201));
    assert_eq!(told(&world, stays).await, all_of("other@example.org"));
    assert_eq!(world.duplicate(event("gone")).await.event, gone.event, "its key is known all the same");
    let audit = world.record().await;
    let row = audit.iter().find(|row| row.action == "data.forget").expect("on record");
    assert_eq!((&*row.actor, &*row.reason), ("alice", "asked for by letter"));
    assert_eq!(row.object, "h_0123");
    assert!(row.after.as_deref().expect("told").contains("\"events_erased\":1"), "{row:?}");
    assert_eq!(audit.iter().filter(|row| row.action == "data.forget").count(), 1);
    world.adds_up().await;
    let world = world.after_a_stop().await;
    assert_eq!(world.story(gone.job).await.payload, Err(NotOpened::Forgotten));
    assert_eq!(world.engine().look(PAYLOAD, gone.event.number()).await.len(), 4);
    assert_ne!(sealed.len(), 4);
    world.adds_up().await;
}

pub async fn t108_a_job_whose_data_is_forgotten_is_claimed_without_it(world: World) {
    let waiting = world.accepted(about(EMAIL, "waiting")).await;
    let erased = world.forget(forget(&[waiting.event])).await.expect("erased");
    assert_eq!(erased, Forgotten { events: 1, unfinished: 1, running: 0, answers: 0 });
    let claim = world.take(later(80)).await;
    assert_eq!((claim.lease.job, claim.payload), (waiting.job, Err(NotOpened::Forgotten)));
    let erased = world.forget(forget(&[waiting.event])).await.expect("asked");
    assert_eq!(erased, Forgotten::default());
    // One that runs is told of: it has the data in hand.
    let running = world.accepted(about(EMAIL, "running")).await;
    let lease = world.take(later(80)).await.lease;
    let erased = world.forget(forget(&[running.event])).await.expect("erased");
    assert_eq!(erased, Forgotten { events: 1, unfinished: 1, running: 1, answers: 0 });
    // What it writes down afterwards is found and goes as well.
    world.settles(lease, Settlement { error: Some(EMAIL.into()), ..failed(later(81), later(90)) }).await;
    let erased = world.forget(forget(&[running.event])).await.expect("erased");
    assert_eq!(erased, Forgotten { events: 1, unfinished: 1, running: 0, answers: 0 });
    assert!(!format!("{:?}", world.story(running.job).await).contains("lovelace"));
}

pub async fn t108_what_is_forgotten_is_not_sealed_again(world: World) {
    let gone = lived(&world, EMAIL, "gone").await;
    world.forget(forget(&[gone.event])).await.expect("erased");
    world.use_keys(ring(OTHER_KEY, &[KEY])).await.expect("taken up");
    assert_eq!(reseal_all(&world, 10).await, 0);
    assert_eq!(uses(&world).await, []);
    assert_eq!(world.retire_keys().await.expect("retired"), [ring(KEY, &[]).active()]);
    assert_eq!(world.story(gone.job).await.payload, Err(NotOpened::Forgotten));
}

fn call_key(nth: usize) -> CallKey {
    CallKey::of(&Pepper::new(&PEPPER), &["somebody"], &nth.to_string())
}

async fn begins(world: &World, nth: usize, turn: u64) -> Called {
    let caller = Caller { fingerprint: Fingerprint::of("POST /", b"{}"), turn: CallTurn::alone(turn), resends: false };
    let ask = CallAsk { key: call_key(nth), caller, at: later(0), until: later(30), expires: later(3_600) };
    world.begin_call(ask).await.expect("answered")
}

/// So many calls whose answers are about somebody.
async fn called(world: &World, calls: usize) {
    for nth in 0..calls {
        assert_eq!(begins(world, nth, 1).await, Called::Ours);
        let answer = Bytes::from(format!("answer-of {EMAIL}"));
        world.end_call(call_key(nth), CallTurn::alone(1), CallEnd::Done(answer)).await.expect("kept");
    }
}

async fn check_kept(world: &World, calls: usize) {
    for nth in 0..calls {
        assert_eq!(begins(world, nth, 2).await, Called::Before(Ok(Bytes::from(format!("answer-of {EMAIL}")))));
    }
}

pub async fn t106_answers_of_calls_are_under_a_key_and_sealed_again(world: World) {
    called(&world, 5).await;
    let of = |key| KeyUse { key, payloads: 0, results: 5, errors: 0 };
    assert_eq!(uses(&world).await, [of(world.active_key())]);
    world.use_keys(ring(OTHER_KEY, &[KEY])).await.expect("taken up");
    assert_eq!(world.retire_keys().await.expect("looked"), [], "answers are under it");
    assert_eq!(reseal_all(&world, 2).await, 5);
    assert_eq!(reseal_all(&world, 2).await, 0);
    assert_eq!(uses(&world).await, [of(world.active_key())]);
    assert_eq!(world.retire_keys().await.expect("retired"), [ring(KEY, &[]).active()]);
    check_kept(&world.restarted(keys(OTHER_KEY)).await, 5).await;
}

pub async fn k2_answers_from_before_encryption_are_read_and_sealed_by_a_rotation(world: World) {
    let world = world.emptied(None).await;
    called(&world, 1).await;
    let world = world.restarted(keys(KEY)).await;
    check_kept(&world, 1).await;
    assert_eq!(reseal_all(&world, 10).await, 1);
    assert_eq!(world.retire_keys().await.expect("looked"), []);
    check_kept(&world, 1).await;
    assert_eq!(uses(&world).await, [KeyUse { key: world.active_key(), payloads: 0, results: 1, errors: 0 }]);
}

pub async fn t108_an_answer_is_forgotten_and_its_call_stays_made(world: World) {
    called(&world, 3).await;
    let mut found = world.answers(None, 2).await.expect("read");
    found.extend(world.answers(found.last().map(|(key, _)| *key), 2).await.expect("read"));
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(_, kept)| String::from_utf8_lossy(opened(kept)).contains(EMAIL)));
    let ask = ForgetAsk { answers: vec![call_key(0), call_key(2)], ..forget(&[]) };
    let erased = world.forget(ask.clone()).await.expect("erased");
    assert_eq!(erased, Forgotten { answers: 2, ..Forgotten::default() });
    assert_eq!(world.forget(ask).await.expect("asked"), Forgotten::default(), "nothing is left of it");
    for (nth, is_kept) in [(0, false), (1, true), (2, false)] {
        let Called::Before(kept) = begins(&world, nth, 2).await else { panic!("it was made") };
        assert_eq!(kept.err(), (!is_kept).then_some(NotOpened::Forgotten));
    }
    let audit = world.record().await;
    assert_eq!(audit.iter().filter(|row| row.action == "data.forget").count(), 1);
    world.use_keys(ring(OTHER_KEY, &[KEY])).await.expect("taken up");
    assert_eq!(reseal_all(&world, 10).await, 1);
}
