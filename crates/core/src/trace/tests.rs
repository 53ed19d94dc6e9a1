use super::context::STATE_BYTES_MAX;
use super::*;
use crate::attempt::Failure;
use crate::death::Reason;
use crate::job::{Ending, Waits};
use proptest::prelude::*;

const GOOD: &str = "00-12345678901234567890123456789012-1234567890123456-01";

fn read(values: &[&str]) -> Option<Context> {
    Context::read(values.iter().map(|value| value.as_bytes()))
}

fn state(values: &[&str]) -> String {
    read_state(values.iter().map(|value| value.as_bytes()))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000)
}

fn story() -> Story<'static> {
    Story { trace: TraceId(7), event: EventId::from_number(10), within: None, state: "" }
}

const JOB: JobId = JobId::from_number(11);

#[test]
fn t114_a_traceparent_that_cannot_be_read_begins_a_new_trace() {
    let read_back = read(&[GOOD]).expect("it is one");
    assert_eq!(read_back.to_string(), GOOD);
    for bad in [
        "",
        "ff-12345678901234567890123456789012-1234567890123456-01",
        "00-00000000000000000000000000000000-1234567890123456-01",
        "00-12345678901234567890123456789012-0000000000000000-01",
        "00-1234567890123456789012345678901A-1234567890123456-01",
        "00-12345678901234567890123456789012-1234567890123456-1",
        "00-12345678901234567890123456789012-1234567890123456-01.",
        "00-12345678901234567890123456789012-1234567890123456-01-what-comes-later",
        "cc-12345678901234567890123456789012-1234567890123456-01.what-comes-later",
        "0-12345678901234567890123456789012-1234567890123456-001",
        ".0-12345678901234567890123456789012-1234567890123456-01",
        "00-1234567890123456789012345678901-12345678901234567-01",
        "+0-12345678901234567890123456789012-1234567890123456-01",
        "é0-1234567890123456789012345678901-1234567890123456-01",
    ] {
        assert_eq!(read(&[bad]), None, "{bad}");
    }
    assert_eq!(read(&[]), None);
    assert_eq!(read(&[GOOD, GOOD]), None, "two of them");
}

#[test]
fn t112_a_traceparent_of_a_later_version_is_understood_as_far_as_it_can_be() {
    for later in ["cc-12345678901234567890123456789012-1234567890123456-01", GOOD] {
        assert_eq!(read(&[later]), read(&[GOOD]), "{later}");
    }
    assert_eq!(read(&[&format!("cc{}-and-more", &GOOD[2..])]), read(&[GOOD]));
    for spaced in [" ", "\t", " \t "] {
        assert_eq!(read(&[&format!("{spaced}{GOOD}{spaced}")]), read(&[GOOD]));
    }
    let flags = |flags: &str| read(&[&format!("{}{flags}", &GOOD[..53])]).expect("it is one").flags;
    assert_eq!((flags("00"), flags("02"), flags("ff")), (0, RANDOM, SAMPLED | RANDOM));
}

#[test]
fn t112_a_tracestate_travels_whole_or_not_at_all() {
    let check = |values: &[&str], expected: &str| assert_eq!(state(values), expected, "{values:?}");
    check(&["foo=1,bar=2", "", "baz=3"], "foo=1,bar=2,baz=3");
    check(&["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3");
    check(&["\t foo=1 \t"], "foo=1");
    check(&["foo@=1,foo@@bar=2,t@v-_*/=3"], "foo@=1,foo@@bar=2,t@v-_*/=3");
    check(&["foo=1,foo=2"], "foo=1");
    for bad in ["foo =1", "FOO=1", "foo.bar=1", "@foo=1,bar=2", "foo=bar=baz", "foo=,bar=3", "foo", "=1", "é=1"] {
        check(&[bad], "");
        check(&["fine=1", bad], "");
    }
    let member = |nth: usize| format!("k{nth:02}=1");
    let members = |count: usize| (0..count).map(member).collect::<Vec<_>>().join(",");
    check(&[&members(32)], &members(32));
    check(&[&members(33)], "");
    let key = |length: usize| format!("{}=1", "z".repeat(length));
    check(&["foo=1", &key(256)], &format!("foo=1,{}", key(256)));
    check(&["foo=1", &key(257)], "");
    check(&[&format!("a={}", "v".repeat(257))], "");
}

#[test]
fn t112_of_a_tracestate_that_is_too_long_whole_members_are_left_out_the_long_ones_first() {
    let long = |key: &str| format!("{key}={}", "v".repeat(200));
    assert_eq!(state(&[&long("a"), "b=1", &long("c"), &long("d")]), format!("{},b=1,{}", long("a"), long("c")));
    let short = |nth: usize| format!("k{nth:02}={}", "v".repeat(36));
    let all: Vec<String> = (0..20).map(short).collect();
    assert_eq!(state(&[&all.join(",")]), all[..12].join(","));
}

proptest! {
    #[test]
    fn t114_whatever_is_sent_is_no_panic_and_what_is_read_is_written_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(context) = Context::read([&bytes[..]]) {
            prop_assert_eq!(Context::read([context.to_string().as_bytes()]), Some(context));
        }
        let state = read_state([&bytes[..]]);
        prop_assert_eq!(read_state([state.as_bytes()]), state);
    }

    #[test]
    fn t112_every_context_reads_back(trace in 1u128.., span in 1u64.., flags in 0u8..4) {
        let context = Context { trace: TraceId(trace), span: SpanId::of_number(span), flags };
        prop_assert_eq!(Context::read([context.to_string().as_bytes()]), Some(context));
    }

    #[test]
    fn t112_a_tracestate_never_grows_and_never_loses_half_a_member(members in proptest::collection::vec("[a-z][a-z0-9]{0,20}=[!-+.-<>-~]{1,200}", 0..40)) {
        let sent = members.join(",");
        let kept = state(&[&sent]);
        prop_assert!(kept.len() <= STATE_BYTES_MAX);
        prop_assert!(kept.split(',').all(|member| member.is_empty() || members.iter().any(|sent| sent == member)));
    }

    #[test]
    fn h2_a_larger_share_has_all_of_a_smaller_one(trace in 1u128.., one in 0.0f64..=1.0, two in 0.0f64..=1.0) {
        let (small, large) = (Share::of(one.min(two)), Share::of(one.max(two)));
        prop_assert!(!small.has(TraceId(trace)) || large.has(TraceId(trace)));
        prop_assert!(Share::ALL.has(TraceId(trace)) && !Share::of(0.0).has(TraceId(trace)));
    }

    #[test]
    fn t117_no_value_of_a_query_and_no_password_is_told(user in "[a-z]{4,8}", value in "[a-z0-9]{6,20}", name in "[a-z]{1,3}") {
        let told = redacted(&format!("https://{user}:{value}@host.example:8443/path/x?{name}={value}&flag{value}#{value}"), str::to_string);
        prop_assert!(!told.contains(&value) && !told.contains(&user), "{}", told);
        prop_assert_eq!(told, format!("https://REDACTED:REDACTED@host.example:8443/path/x?{name}=REDACTED&REDACTED"));
    }
}

#[test]
fn t117_what_signs_a_url_is_not_told() {
    let check = |url: &str, told: &str| assert_eq!(redacted(url, |path| path.replace("ada", "•")), told);
    check(
        "https://s3.example/o?sig=abc&X-Amz-Signature=def&access_token=ghi",
        "https://s3.example/o?sig=REDACTED&X-Amz-Signature=REDACTED&access_token=REDACTED",
    );
    check("http://ada:secret@crm.example/", "http://REDACTED:REDACTED@crm.example/");
    check("http://crm.example/leads", "http://crm.example/leads");
    check("http://crm.example/leads/ada?x=1", "http://crm.example/leads/•?x=REDACTED");
}

#[test]
fn h2_the_spans_of_an_event_have_ids_of_their_own_that_anybody_can_tell() {
    let one = story();
    let two = Story { event: EventId::from_number(12), ..one };
    let ids = |story: &Story<'_>| {
        vec![
            story.delivery(),
            story.creation(),
            story.attempt(JOB, 1),
            story.attempt(JOB, 2),
            story.effect(JOB, 1, "charge"),
            story.call(JOB, 1, "charge", true).span,
            story.effect(JOB, 2, "charge"),
            story.settling(story.attempt(JOB, 1)),
            story.run(JOB, Fence(1)),
            story.approval(JOB, "charge", at(1)),
        ]
    };
    assert_eq!(ids(&one), ids(&story()));
    let mut all: Vec<u64> = ids(&one).into_iter().chain([two.delivery(), two.creation()]).map(SpanId::number).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 12);
}

#[test]
fn t113_what_a_sender_says_is_heard_only_where_its_trace_is_continued() {
    let headers =
        |parent: &str| vec![(TRACEPARENT.into(), parent.to_string().into()), (TRACESTATE.into(), "a=1".into())];
    let about = |trace: u128, parent: &str| About {
        source: "".into(),
        source_event_id: "".into(),
        kind: "".into(),
        tenant: "".into(),
        sender: "".into(),
        schema_version: 1,
        mismatch: "".into(),
        trace: TraceId(trace),
        job_keys: Vec::new(),
        headers: headers(parent),
    };
    let (linked, within) = (about(7, GOOD), about(0x12345678901234567890123456789012, GOOD));
    let linked = Story::of(EventId::from_number(1), &linked);
    assert_eq!((linked.within, linked.state), (None, ""));
    assert!(!linked.is_kept(Share::of(0.0)), "the sender's flag says nothing");
    let story = Story::of(EventId::from_number(1), &within);
    assert_eq!((story.within, story.state), (read(&[GOOD]), "a=1"));
    assert!(story.is_kept(Share::of(0.0)), "the sender decides");
    assert_eq!(story.call(JOB, 1, "s", true).flags, SAMPLED);
    assert_eq!(linked.call(JOB, 1, "s", false).flags, RANDOM);
}

fn request(status: u16) -> Request {
    Request {
        method: "POST",
        route: Some("/in/crm".into()),
        scheme: "http",
        protocol: "1.1",
        client: "127.0.0.1".into(),
        agent: None,
        status,
        began: at(1),
        ended: at(2),
    }
}

#[test]
fn t115_what_a_sender_does_wrong_is_no_failure_of_the_server() {
    let refused = |status| delivery(request(status), Came::Alone(TraceId(9), SpanId::of_number(3)), None);
    let told = refused(401);
    assert_eq!((told.error, &*told.name, told.parent), (None, "POST /in/crm", None));
    assert!(told.attributes.iter().all(|(name, _)| name != "error.type"));
    assert_eq!(refused(503).error.as_deref(), Some("503"));
}

#[test]
fn t113_a_delivery_is_linked_to_its_sender_or_within_its_trace() {
    let remote = read(&[GOOD]);
    let linked = delivery(request(202), Came::Fresh(story()), remote);
    assert_eq!((linked.parent, &linked.links[..]), (None, &[remote.expect("one")][..]));
    let within = Story { trace: remote.expect("one").trace, within: remote, ..story() };
    let continued = delivery(request(202), Came::Fresh(within), remote);
    assert_eq!((continued.parent, continued.links.len()), (remote.map(|sender| sender.span), 0));
    let again = delivery(request(202), Came::Again(story(), SpanId::of_number(5)), remote);
    assert_eq!((again.parent, again.links.len()), (Some(story().creation()), 2));
}

fn tried(no: u32, outcome: &Outcome, change: Change) -> [Span; 2] {
    tried_with(no, outcome, change, Vec::new()).try_into().expect("an attempt and its end")
}

fn tried_with(no: u32, outcome: &Outcome, change: Change, done: Vec<Span>) -> Vec<Span> {
    let tried = Tried {
        job: JOB,
        no,
        fence: Fence(9),
        replays: 0,
        queue: "orders",
        flow: "shop",
        outcome,
        change,
        began: at(1),
        ended: at(2),
        settled: at(3),
        business: Vec::new(),
    };
    attempt(&story(), tried, done)
}

#[test]
fn t116_an_attempt_is_a_child_of_the_creation_and_linked_to_it_and_to_the_one_before() {
    let failed = Outcome::Failed(Failure::new(Reason::Timeout, "slow"));
    let [third, settling] = tried(3, &failed, Change::Retried { run_at: at(9) });
    let links: Vec<SpanId> = third.links.iter().map(|link| link.span).collect();
    assert_eq!(third.parent, Some(story().creation()));
    assert_eq!(links, [story().creation(), story().attempt(JOB, 2)]);
    assert_eq!((third.error.as_deref(), &*third.name), (Some("timeout"), "process orders"));
    assert_eq!((settling.parent, &*settling.name), (Some(third.context.span), "nack orders"));
    let [first, settling] =
        tried(1, &Outcome::Succeeded(Ending::Success), Change::Finished { at: at(2), ending: Ending::Success });
    assert_eq!((first.links.len(), first.error, &*settling.name), (1, None, "ack orders"));
}

#[test]
fn h3_a_wait_is_a_moment_of_its_attempt_and_no_failure() {
    let waits = Outcome::PutOff { until: at(60), waits: Waits::Approval };
    let [span, _] = tried(1, &waits, Change::PutOff { run_at: at(60), waits: Waits::Approval });
    assert_eq!((span.error, span.moments[0].name), (None, "clinch.waits"));
    assert_eq!(span.moments[0].attributes[0].1, Value::from("approval"));
    // The attempt is not over: it goes on under its number, and what was done belongs to the run that did it.
    assert_eq!(span.context.span, story().run(JOB, Fence(9)));
    let done = approval(&story(), JOB, "s", "approved", (at(1), at(2)));
    let effect = Span { parent: Some(story().attempt(JOB, 1)), ..done.clone() };
    let change = Change::PutOff { run_at: at(60), waits: Waits::Approval };
    let all = tried_with(1, &waits, change, vec![effect, done]);
    assert_eq!((all[0].parent, all[1].parent), (Some(span.context.span), Some(story().creation())));
}

#[test]
fn h2_an_event_is_created_by_what_it_came_of() {
    let by = |by| creation(&story(), by, "orders", 1, (at(1), at(2)));
    let first = |trace| Context { trace: TraceId(trace), span: SpanId::of_number(5), flags: SAMPLED };
    assert_eq!(by(By::Delivery).parent, Some(story().delivery()));
    assert_eq!(
        (by(By::Schedule).parent, by(By::Attempt(SpanId::of_number(8))).parent),
        (None, Some(SpanId::of_number(8)))
    );
    let other = by(By::With(first(8)));
    assert_eq!((other.parent, &other.links[..]), (None, &[first(8)][..]), "in a trace of its own");
    assert_eq!(by(By::With(first(7))).parent, Some(SpanId::of_number(5)), "in the same");
}

fn called(answer: Result<u16, &'static str>) -> Called<'static> {
    let (began, ended) = (at(1), at(2));
    Called { method: "POST", url: String::new(), server: "h", port: 1, answer, before: 0, began, ended }
}

#[test]
fn t115_an_answer_of_400_and_more_is_a_failure_of_the_call() {
    let done = Done {
        step: "charge",
        key: "k",
        integration: "crm",
        outcome: "not_done",
        error: Some("rejected_by_target"),
        began: at(1),
        ended: at(2),
    };
    let of = |answer| call(&story(), (JOB, 1), "charge", called(answer));
    assert_eq!(of(Ok(404)).error.as_deref(), Some("404"));
    assert_eq!(of(Ok(200)).error, None);
    assert_eq!(of(Err("timeout")).error.as_deref(), Some("timeout"));
    let (effect, call) = (effect(&story(), (JOB, 1), &done), of(Ok(200)));
    assert_eq!(effect.parent, Some(story().attempt(JOB, 1)));
    assert_eq!(call.parent, Some(effect.context.span));
    assert_eq!(call.context, story().call(JOB, 1, "charge", true), "as the partner was told");
}

#[test]
fn h2_a_question_is_a_child_of_the_attempt_in_which_it_is_asked_and_like_the_call_of_an_effect() {
    let span = SpanId::of_number(5);
    let ask = |no, question: Question, answer| {
        let asked = Asked { span, job: JOB, no, step: "charge", integration: "crm", question };
        super::question(&story(), &asked, called(answer))
    };
    let lookup = ask(Some(2), Question::Lookup, Ok(200));
    assert_eq!((lookup.parent, lookup.kind), (Some(story().attempt(JOB, 2)), Kind::Client));
    assert_eq!(lookup.context, story().question(span, true), "as the partner was told");
    assert_eq!(ask(None, Question::Lookup, Ok(200)).parent, Some(story().creation()), "a person is in no attempt");
    let word = |span: &Span| span.attributes.iter().find(|(name, _)| name == "clinch.question").map(|of| of.1.clone());
    assert_eq!(word(&lookup), Some("lookup".into()));
    assert_eq!(word(&ask(Some(1), Question::Consent, Ok(200))), Some("consent".into()));
    assert_eq!(ask(Some(1), Question::Consent, Ok(404)).error.as_deref(), Some("404"));
    assert_eq!(ask(Some(1), Question::Consent, Err("effect_timeout")).error.as_deref(), Some("effect_timeout"));
    // The run of an attempt that goes on later is the parent of what was asked in it.
    let waits = Outcome::PutOff { until: at(60), waits: Waits::Circuit };
    let change = Change::PutOff { run_at: at(60), waits: Waits::Circuit };
    let all = tried_with(2, &waits, change, vec![lookup]);
    assert_eq!(all[0].parent, Some(story().run(JOB, Fence(9))));
}

fn claimed(traces: &[u128], share: Share) -> Option<Span> {
    let stories = traces.iter().map(|trace| Story { trace: TraceId(*trace), ..story() });
    claim((TraceId(99), SpanId::of_number(5)), "orders", traces.len(), stories, share, (at(1), at(2)))
}

#[test]
fn h2_a_claim_is_a_root_of_its_own_with_a_link_to_each_creation() {
    let told = claimed(&[7, 8], Share::ALL).expect("they are recorded");
    assert_eq!((told.context.trace, told.parent, told.kind), (TraceId(99), None, Kind::Client));
    assert_eq!((&*told.name, told.context.is_sampled(), told.error), ("receive orders", true, None));
    let creation = |trace| Story { trace: TraceId(trace), ..story() }.creation();
    let links: Vec<(u128, SpanId)> = told.links.iter().map(|link| (link.trace.0, link.span)).collect();
    assert_eq!(links, [(7, creation(7)), (8, creation(8))]);
    assert!(told.links.iter().all(|link| link.is_sampled()));
    let expected: Attributes = vec![
        ("messaging.system".into(), "clinch".into()),
        ("messaging.operation.name".into(), "receive".into()),
        ("messaging.operation.type".into(), "receive".into()),
        ("messaging.destination.name".into(), "orders".into()),
        ("messaging.batch.message_count".into(), 2usize.into()),
    ];
    assert_eq!(told.attributes, expected);
}

#[test]
fn h2_a_claim_is_told_of_traces_that_are_recorded_alone() {
    let (in_it, out) = (1u128, u128::from(u64::MAX));
    let half = Share::of(0.5);
    assert!(half.has(TraceId(in_it)) && !half.has(TraceId(out)));
    assert_eq!(claimed(&[out, out], half), None);
    assert_eq!(claimed(&[], Share::ALL), None, "who finds nothing has nothing to tell");
    let some = claimed(&[out, in_it, out], half).expect("one is recorded");
    assert_eq!(some.links.iter().map(|link| link.trace.0).collect::<Vec<_>>(), [in_it]);
    assert_eq!(some.attributes.last().map(|of| &of.1), Some(&Value::from(3usize)), "it took all of them");
    // Of the trace of a sender the sender decides.
    let sender = |flags| Story {
        within: Some(Context { trace: TraceId(out), span: SpanId::of_number(1), flags }),
        trace: TraceId(out),
        ..story()
    };
    let own = (TraceId(99), SpanId::of_number(5));
    let of = |flags| claim(own, "orders", 1, [sender(flags)], Share::of(0.0), (at(1), at(2)));
    assert!(of(SAMPLED).is_some() && of(0).is_none());
}

#[test]
fn h2_a_claim_has_so_many_links_and_no_more() {
    let many: Vec<u128> = (1..=CLAIM_LINKS_MAX as u128 + 50).collect();
    let told = claimed(&many, Share::ALL).expect("they are recorded");
    assert_eq!(told.links.len(), CLAIM_LINKS_MAX);
    assert_eq!(told.attributes.last().map(|of| &of.1), Some(&Value::from(many.len())));
}
