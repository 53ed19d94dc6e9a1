//! A crash between a call and the record of its result: every class of partner is dealt with as it declared, as counted at
//! the sink. Each event that a crash finds under way is a round; `CLINCH_TEST_ROUNDS` asks for more of them.

use super::cluster::rounds;
use super::process::{AGAIN, ASKED, Books, Call, NATURAL, ONCE, Pace, Place, Provider, Server, Told, Way};
use clinch_core::death::Reason;
use clinch_core::job::Word;
use clinch_core::key::IdempotencyKey;
use rustix::process::Signal;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// So many events of each class are under way at each crash.
const AT_ONCE: usize = 16;
const WAYS: [Way; 4] = [AGAIN, ASKED, NATURAL, ONCE];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Crash {
    /// The intent is on disk and nothing was sent.
    AfterIntend,
    /// The partner has the call and has not answered: kill -9.
    BeforeAnswer,
    /// The answer is there and nobody has written it down.
    AfterSend,
}

/// Half of the calls that are never answered were not carried out either: the partner crashed as well, say.
fn is_carried_out(call: &Call) -> bool {
    call.event.bytes().map(u32::from).sum::<u32>().is_multiple_of(2)
}

async fn deliver(providers: &[Provider], server: &Server) {
    for _ in 0..AT_ONCE {
        for provider in providers {
            assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged, "{}", server.said());
        }
    }
}

/// A batch of each class is under way, and the process ends at the worst moment.
async fn crash(place: &Place, providers: &[Provider], at: Crash) {
    let before = place.sink.count();
    place.sink.pace(Pace::Held);
    let (mut server, signal) = match at {
        Crash::AfterIntend => {
            // All of them are there when the first is begun: so it is not alone.
            let accepting = place.start_with(&[("CLINCH_ROLES", "intake,keeper,admin")]).await;
            deliver(providers, &accepting).await;
            accepting.stop().await;
            (place.spawn(&[("CLINCH_CRASH_AT", "after_intend")]), Signal::ABORT)
        }
        Crash::BeforeAnswer => {
            let server = place.start().await;
            place.sink.answer_with(|call| if is_carried_out(call) { 200 } else { 0 });
            deliver(providers, &server).await;
            place.sink.called(before + AT_ONCE * WAYS.len()).await;
            server.signal(Signal::KILL);
            (server, Signal::KILL)
        }
        Crash::AfterSend => {
            let server = place.start_with(&[("CLINCH_CRASH_AT", "after_send")]).await;
            deliver(providers, &server).await;
            place.sink.called(before + AT_ONCE * WAYS.len()).await;
            place.sink.pace(Pace::Prompt);
            (server, Signal::ABORT)
        }
    };
    let status = server.exited().await;
    assert_eq!(status.signal(), Some(signal.as_raw()), "{at:?}: {}", server.said());
    place.sink.answer_with(|_| 200);
    place.sink.pace(Pace::Prompt);
    let server = place.start().await;
    place.drained().await;
    server.stop().await;
}

/// What the sink saw of one event, and what became of it.
struct Story<'a> {
    calls: &'a [Call],
    asked: usize,
    word: Word,
    reason: Option<Reason>,
    /// State and sends in the ledger.
    ledger: (&'static str, u32),
}

impl Story<'_> {
    fn made(&self) -> usize {
        self.calls.iter().filter(|call| call.is_made).count()
    }

    /// By the rule of its class. Whether the crash found it under way.
    fn check(&self, way: Way, at: Crash, event: &str) -> bool {
        let Story { calls, asked, word, reason, ledger } = self;
        let about = format!("{event} {at:?}: {calls:?}, asked {asked} times, {word:?} {reason:?}, {ledger:?}");
        assert!(calls.iter().all(|call| call.effect == calls[0].effect), "one key for all calls: {about}");
        let is_sent = at != Crash::AfterIntend;
        let was_under_way = is_sent || ledger.1 > 1 || *asked > 0 || ledger.0 == "unknown";
        if !was_under_way {
            assert_eq!((calls.len(), *word, *ledger), (1, Word::Success, ("done", 1)), "as if nothing was: {about}");
            return false;
        }
        let sent_before = usize::from(is_sent);
        if way.idempotency == "none" {
            assert_eq!((*word, *reason), (Word::Dead, Some(Reason::UnknownOutcome)), "{about}");
            assert_eq!((calls.len(), *ledger), (sent_before, ("unknown", 1)), "nothing is sent again: {about}");
            return true;
        }
        assert_eq!((*word, ledger.0), (Word::Success, "done"), "{about}");
        if way.idempotency == "lookup" {
            let is_made_before = is_sent && calls[0].is_made;
            assert_eq!((self.made(), *asked), (1, 1), "asked, and made once: {about}");
            assert_eq!(calls.len(), sent_before + usize::from(!is_made_before), "only what is missing: {about}");
        } else {
            assert_eq!((calls.len(), ledger.1), (sent_before + 1, 2), "one more call: {about}");
        }
        true
    }
}

async fn check(
    place: &Place,
    books: &Books,
    way: Way,
    provider: &Provider,
    crashes: &BTreeMap<String, Crash>,
) -> Rounds {
    let mut calls: HashMap<String, Vec<Call>> = HashMap::new();
    for call in place.sink.calls() {
        calls.entry(call.event.clone()).or_default().push(call);
    }
    let asked = place.sink.asked();
    let mut rounds = Rounds::new();
    let acknowledged = provider.acknowledged();
    assert_eq!(acknowledged.len(), provider.made());
    for (event, job) in acknowledged {
        let story = books.story(job).await;
        let key = IdempotencyKey::of(job, "charge");
        let effect = &story.effects[0];
        let told = Story {
            calls: calls.get(&event).map_or(&[], Vec::as_slice),
            asked: asked.iter().filter(|asked| **asked == key.as_str()).count(),
            word: story.row.word,
            reason: story.row.reason,
            ledger: (effect.state.word(), effect.sends),
        };
        let at = crashes[&event];
        if told.check(way, at, &event) {
            *rounds.entry(at).or_default() += 1;
        }
    }
    rounds
}

type Rounds = BTreeMap<Crash, usize>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_f18_p3_a_crash_between_call_and_record_is_dealt_with_as_the_partner_declared() {
    let place = Place::new(&WAYS).await;
    let providers = WAYS.map(Provider::new);
    let mut crashes: [BTreeMap<String, Crash>; 4] = Default::default();
    for _ in 0..rounds().div_ceil(2 * AT_ONCE) {
        for at in [Crash::AfterIntend, Crash::BeforeAnswer, Crash::AfterSend] {
            crash(&place, &providers, at).await;
            for (provider, crashes) in providers.iter().zip(&mut crashes) {
                for event in provider.acknowledged().into_keys() {
                    crashes.entry(event).or_insert(at);
                }
            }
        }
    }
    place.verified();
    // The parked ones are there for people to see.
    let server = place.start().await;
    let out = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(["dlq", "ls", "--reason", "unknown_outcome", "--limit", "1000", "--json", "--data-dir"])
        .arg(&place.data_dir)
        .output()
        .unwrap();
    let parked = String::from_utf8_lossy(&out.stdout).into_owned();
    server.stop().await;

    let books = place.books().await;
    let mut begun = 0;
    for ((way, provider), crashes) in WAYS.into_iter().zip(&providers).zip(&crashes) {
        let found = check(&place, &books, way, provider, crashes).await;
        eprintln!("{}: {} events, of which the crash found {found:?}", way.idempotency, provider.made());
        let sent: usize = [Crash::BeforeAnswer, Crash::AfterSend].iter().map(|at| found[at]).sum();
        assert!(sent >= rounds(), "{found:?}");
        begun += found.get(&Crash::AfterIntend).copied().unwrap_or_default();
        if way.idempotency == "none" {
            let dead = found.values().sum::<usize>();
            assert_eq!(
                parked.matches("unknown_outcome").count(),
                dead,
                "{parked}{}",
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }
    assert!(begun > 0, "no crash came right after an intent");
}
