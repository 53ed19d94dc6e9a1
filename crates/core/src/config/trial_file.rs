//! `tests/*.yml`: trials of the workspace. No part of what is served, so no part of its version.

use super::dialect::{may, must};
use super::problem::{Code, Problem, Report, Severity, Span, position, shown};
use super::read::{Reader, word};
use super::shape::{self, Choose, Field, Kind, Need, Shape};
use super::value::{self, Read};
use super::yaml::{self, Node, Value};
use crate::death::Reason;
use crate::effect::EffectWord;
use crate::job::Word;
use crate::trial::{Act, Expect, Letter, LetterBody, Reply, Signature, TIMES_MAX, Trial, WantedCall, WantedJob, What};
use serde_json::Value as Json;
use std::time::Duration;

/// Instead of a status: the partner takes the call and does not answer.
const LOST: &str = "lost";
const STATES: &[&str] = &["queued", "running", "waiting", "retrying", "success", "noop", "dead", "dropped"];
const SIGNATURES: &[&str] = &["right", "wrong", "none"];
const STATUS: Kind = Kind::Int { min: 100, max: 599 };

pub(super) static TRIALS: Shape = Shape {
    name: "tests_file",
    doc: "A file in `tests/`: what is sent, how partners answer, and what must come of it.",
    fields: &[&[
        may("version", Kind::Int { min: 1, max: 1 }, "The version of the dialect: 1."),
        must("tests", Kind::List(&Kind::Map(&TRIAL)), "The tests, each in a store of its own."),
    ]],
    choices: &[],
};

static TRIAL: Shape = Shape {
    name: "test",
    doc: "One test: events go in, partners answer as it says, and what came of it is compared.",
    fields: &[&[
        must("name", Kind::Text, "What it shows, as a sentence."),
        may("now", Kind::Moment, "When it begins; the machine's time if not given."),
        may(
            "answers",
            Kind::Tree,
            "What partners answer, by integration: a list of statuses, of `lost`, or of maps with `status`, `body` and `headers`. After the last they answer 200.",
        ),
        must("do", Kind::List(&Kind::Map(&ACT)), "What is done, in this order; all jobs come to rest after each."),
        may(
            "calls",
            Kind::Or(&Kind::Choice(&["none"]), &Kind::List(&Kind::Map(&CALL))),
            "All calls to partners that must have been made, or `none`; not looked at if not given.",
        ),
    ]],
    choices: &[],
};

static ACT: Shape = Shape {
    name: "act",
    doc: "One thing that is done, and what must come of it.",
    fields: &[
        &[
            may("send", Kind::Text, "Sends an event to this flow, source or path."),
            may("replay", Kind::Text, "Replays every dead letter, for this reason."),
            may("approve", Kind::Text, "Approves what waits for a person, for this reason."),
            may("reject", Kind::Text, "Rejects it."),
            may("wait", Kind::Duration { min: Duration::from_secs(1) }, "Lets so much time go by."),
        ],
        LETTER,
        &[may("expect", Kind::Map(&EXPECT), "What must come of it.")],
    ],
    choices: &[Choose {
        keys: &["send", "replay", "approve", "reject", "wait"],
        need: Need::Required,
        none: "it does not say what is done",
        two: "one thing is done at a time",
        help: "add `send: NAME`, `replay: REASON`, `approve: REASON`, `reject: REASON` or `wait: 1h`",
    }],
};

const LETTER: &[Field] = &[
    may("fixture", Kind::Text, "With `send`: the body is `fixtures/NAME.json`, its headers `fixtures/NAME.headers`."),
    may("body", Kind::Tree, "With `send`: the body itself."),
    may(
        "set",
        Kind::Tree,
        "With `send`: fields of the body that are different, such as `contact.email: a@example.com`.",
    ),
    may("key", Kind::Text, "With `send`: the key, in the header that the flow or the provider has it in."),
    may("headers", Kind::Tree, "With `send`: more headers."),
    may(
        "times",
        Kind::Int { min: 1, max: TIMES_MAX as i64 },
        "With `send`: how often; 1. What is expected is of the last.",
    ),
    may(
        "signature",
        Kind::Choice(SIGNATURES),
        "With `send`: whether it is signed as its sender would; right if not given.",
    ),
];

static EXPECT: Shape = Shape {
    name: "expect",
    doc: "What must come of it. What is not written may be anything.",
    fields: &[
        &[
            may("status", STATUS, "The status of the answer."),
            may("replayed", Kind::Bool, "Whether the answer is the first one again."),
            may("body", Kind::Tree, "What the answer has at least."),
        ],
        JOB_FIELDS,
        &[may("jobs", Kind::Named(&JOB), "The jobs of the event, by the worker or playbook that runs them.")],
    ],
    choices: &[],
};

static JOB: Shape =
    Shape { name: "expected_job", doc: "What must come of a job.", fields: &[JOB_FIELDS], choices: &[] };

const JOB_FIELDS: &[Field] = &[
    may("state", Kind::Choice(STATES), "The state of each job of the event, when nothing moves any more."),
    may("reason", Kind::Name, "Why it is a dead letter or a noop."),
    may("attempts", Kind::Int { min: 0, max: 1_000_000 }, "How many attempts it took."),
    may(
        "effects",
        Kind::Renames,
        "What the ledger knows of its steps: `done`, `not_done`, `unknown`, `given_up`, `open`.",
    ),
];

static CALL: Shape = Shape {
    name: "expected_call",
    doc: "Calls to a partner that must have been made.",
    fields: &[&[
        must("to", Kind::Text, "The integration, or the host where a step names none."),
        may("method", Kind::Text, "PUT, POST …; MAIL for a mail."),
        may("path", Kind::Text, "The path with its query; of a mail, the recipient."),
        may("body", Kind::Tree, "What the body has at least; `*` stands for anything that is there."),
        may("times", Kind::Int { min: 0, max: 1_000_000 }, "How many of them; 1."),
        may("keys", Kind::Int { min: 0, max: 1_000_000 }, "Under how many different idempotency keys."),
    ]],
    choices: &[],
};

/// The trials of one file, or what is wrong with it.
pub fn trials(file: &str, text: &str) -> Result<Vec<Trial>, Vec<Problem>> {
    let mut report = Report::new(file, text);
    let Some(root) = yaml::parse(&mut report) else { return Err(report.problems) };
    shape::check(&root, &TRIALS, root.head(), &mut report);
    let mut flaws = Vec::new();
    let mut read = Vec::new();
    for map in (Reader { node: &root, report: &report }).maps("tests") {
        read.extend(trial(map, &mut flaws));
    }
    flaws.into_iter().for_each(|problem| report.add(problem));
    match report.problems.iter().any(|problem| problem.severity == Severity::Error) {
        true => Err(report.problems),
        false => Ok(read),
    }
}

fn trial(map: Reader<'_>, flaws: &mut Vec<Problem>) -> Option<Trial> {
    let (line, _) = position(map.report.text, map.node.head().start);
    Some(Trial {
        name: map.must("name", value::text)?.to_string(),
        line,
        at: map.may("now", value::moment)?,
        answers: entries(map.node.get("answers"), "answers", flaws)
            .iter()
            .map(|(key, node)| (key.text.clone(), replies(node, flaws)))
            .collect(),
        acts: map.maps("do").filter_map(|act| read_act(act, flaws)).collect(),
        calls: map.has("calls").then(|| map.maps("calls").filter_map(|call| wanted_call(call, flaws)).collect()),
    })
}

/// The entries of a map that its shape does not look into.
fn entries<'n>(node: Option<&'n Node>, name: &str, flaws: &mut Vec<Problem>) -> &'n [(yaml::Key, Node)] {
    let Some(node) = node else { return &[] };
    if !matches!(node.value, Value::Map(_)) {
        flaws.push(value::wrong_type(node, name, "a map"));
    }
    node.fields()
}

fn replies(node: &Node, flaws: &mut Vec<Problem>) -> Vec<Reply> {
    let one;
    let items = match &node.value {
        Value::List(items) => &items[..],
        _ => {
            one = [node.clone()];
            &one[..]
        }
    };
    items.iter().filter_map(|item| kept(reply(item), flaws)).collect()
}

fn kept<T>(read: Read<T>, flaws: &mut Vec<Problem>) -> Option<T> {
    read.map_err(|problem| flaws.push(*problem)).ok()
}

fn reply(node: &Node) -> Read<Reply> {
    if node.plain() == Some(LOST) {
        return Ok(Reply::Lost);
    }
    let status = |node: &Node| {
        let status = value::int(node, "status").ok().filter(|status| (100..=599).contains(status));
        let said = || value::wrong_type(node, "an answer", "a status from 100 to 599, `lost`, or a map with `status`");
        status.and_then(|status| u16::try_from(status).ok()).ok_or_else(|| Box::new(said()))
    };
    if node.text().is_some() {
        return Ok(Reply::status(status(node)?));
    }
    if let Some((key, _)) = node.fields().iter().find(|(key, _)| !["status", "body", "headers"].contains(&&*key.text)) {
        let said = format!("`{}` is not a key of an answer", shown(&key.text));
        return Err(Box::new(Problem::error(Code::UnknownKey, key.span, said).help("its keys: status, body, headers")));
    }
    let headers = node.get("headers").map_or(&[][..], Node::fields).iter();
    let headers =
        headers.map(|(key, node)| Ok((key.text.to_ascii_lowercase(), value::text(node, &key.text)?.to_string())));
    Ok(Reply::Answer {
        status: node.get("status").map_or(Ok(200), status)?,
        body: node.get("body").map(|body| value::json(body, "body")).transpose()?,
        headers: headers.collect::<Read<_>>()?,
    })
}

fn read_act(map: Reader<'_>, flaws: &mut Vec<Problem>) -> Option<Act> {
    let reason = |name| map.must(name, value::text).map(str::to_string);
    let what = match map.must("send", value::text) {
        Some(to) => What::Send(letter(map, to, flaws)?),
        None => {
            for field in LETTER.iter().filter(|field| map.has(field.name)) {
                let said = format!("`{}` is for what is sent, and nothing is sent here", field.name);
                let at = map.node.entry(field.name).map_or(Span::default(), |(key, _)| key.span);
                flaws.push(Problem::error(Code::EitherOr, at, said).help(format!("remove `{}`", field.name)));
            }
            reason("replay").map(What::Replay).or_else(|| reason("approve").map(What::Approve)).or_else(|| {
                reason("reject").map(What::Reject).or_else(|| map.must("wait", value::duration).map(What::Wait))
            })?
        }
    };
    let expect = map.map("expect").map_or(Some(Expect::default()), |expect| read_expect(expect, flaws))?;
    Some(Act { what, expect })
}

fn letter(map: Reader<'_>, to: &str, flaws: &mut Vec<Problem>) -> Option<Letter> {
    let body = match (map.may("fixture", value::text)?, map.node.get("body")) {
        (Some(_), Some(body)) => {
            let said = "`fixture` and `body` exclude each other: a letter has one body";
            flaws.push(
                Problem::error(Code::EitherOr, body.head(), said).help("keep one of the two; `set` changes fields"),
            );
            return None;
        }
        (Some(fixture), None) => LetterBody::Fixture(fixture.to_string()),
        (None, body) => {
            LetterBody::Value(body.map_or(Some(Json::Null), |body| kept(value::json(body, "body"), flaws))?)
        }
    };
    let set = entries(map.node.get("set"), "set", flaws).iter();
    let set = set.map(|(key, node)| Some((key.text.clone(), kept(value::json(node, &key.text), flaws)?)));
    let set = set.collect::<Option<Vec<_>>>()?;
    let headers = entries(map.node.get("headers"), "headers", flaws).iter();
    let headers = headers.map(|(key, node)| {
        Some((key.text.to_ascii_lowercase(), kept(value::text(node, &key.text), flaws)?.to_string()))
    });
    let signatures = [("right", Signature::Right), ("wrong", Signature::Wrong), ("none", Signature::None)];
    Some(Letter {
        to: to.to_string(),
        body,
        set,
        key: map.may("key", value::text)?.map(str::to_string),
        headers: headers.collect::<Option<_>>()?,
        times: u32::try_from(map.or("times", 1, value::int)?).ok()?,
        signature: map.or("signature", Signature::Right, word(&signatures))?,
    })
}

fn read_expect(map: Reader<'_>, flaws: &mut Vec<Problem>) -> Option<Expect> {
    let jobs = map.node.get("jobs").map_or(&[][..], Node::fields).iter();
    let jobs =
        jobs.map(|(key, node)| Some((key.text.clone(), wanted_job(Reader { node, report: map.report }, flaws)?)));
    let jobs = jobs.collect::<Option<Vec<_>>>()?;
    Some(Expect {
        status: map.may("status", value::int)?.and_then(|status| u16::try_from(status).ok()),
        is_replayed: map.may("replayed", value::bool)?,
        body: map.node.get("body").and_then(|body| kept(value::json(body, "body"), flaws)),
        each: wanted_job(map, flaws)?,
        jobs,
    })
}

fn wanted_job(map: Reader<'_>, flaws: &mut Vec<Problem>) -> Option<WantedJob> {
    let reason = map.node.get("reason").filter(|node| !map.report.is_flawed(node.span));
    let reason = reason.map(|node| kept(read_reason(node), flaws));
    let effects = map.node.get("effects").map_or(&[][..], Node::fields).iter();
    let effects = effects.map(|(key, node)| {
        let written = value::text(node, &key.text).ok()?;
        let read: Result<EffectWord, _> = written.parse();
        let said = |error: &dyn std::fmt::Display| Problem::error(Code::BadChoice, node.head(), error.to_string());
        Some((key.text.clone(), read.map_err(|error| flaws.push(said(&error))).ok()?))
    });
    let effects = effects.collect::<Option<Vec<_>>>()?;
    Some(WantedJob {
        state: map.may("state", value::text)?.and_then(|state| state.parse::<Word>().ok()),
        reason: reason.flatten(),
        attempts: map.may("attempts", value::int)?.and_then(|attempts| u32::try_from(attempts).ok()),
        effects,
    })
}

fn read_reason(node: &Node) -> Read<Reason> {
    let written = value::text(node, "reason")?;
    written.parse().map_err(|_| {
        let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        let said = format!("`{}` is not a reason", shown(written));
        Box::new(Problem::error(Code::BadChoice, node.head(), said).note(format!("the reasons: {}", known.join(", "))))
    })
}

fn wanted_call(map: Reader<'_>, flaws: &mut Vec<Problem>) -> Option<WantedCall> {
    let text = |name| map.may(name, value::text).map(|text| text.map(str::to_string));
    let number = |number: i64| u32::try_from(number).ok();
    Some(WantedCall {
        to: map.must("to", value::text)?.to_string(),
        method: text("method")?,
        path: text("path")?,
        body: map.node.get("body").and_then(|body| kept(value::json(body, "body"), flaws)),
        times: number(map.or("times", 1, value::int)?)?,
        keys: map.may("keys", value::int)?.and_then(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "\
version: 1
tests:
  - name: a partner that fails is called again
    now: 2026-05-04T12:00:00Z
    answers:
      crm: [500, lost, {status: 201, body: {id: c-1}, headers: {Retry-After: '2'}}]
    do:
      - send: contacts
        fixture: contact
        set: {contact.email: a@example.com, n: 3}
        key: k-1
        times: 2
        signature: wrong
        expect: {status: 202, replayed: false, state: success, attempts: 3, effects: {upsert: done}}
      - replay: repaired
        expect: {jobs: {upsert: {state: dead, reason: auth_failed}}}
    calls:
      - {to: crm, method: PUT, path: /contacts, body: {n: 3, id: '*'}, times: 3, keys: 1}
  - name: nothing is called
    do: [{send: contacts, body: {a: 1}}]
    calls: none
";

    #[test]
    fn j4_a_file_of_tests_is_read() {
        let trials = trials("tests/a.yml", FILE).expect("it is right");
        let [first, second] = &trials[..] else { panic!("two") };
        assert_eq!((first.line, first.at.map(|at| at.to_string())), (3, Some("2026-05-04T12:00:00.000Z".into())));
        let (name, answers) = &first.answers[0];
        assert_eq!((name.as_str(), answers[0].clone(), answers[1].clone()), ("crm", Reply::status(500), Reply::Lost));
        let headers = vec![("retry-after".to_string(), "2".to_string())];
        assert_eq!(answers[2], Reply::Answer { status: 201, body: Some(json!({"id": "c-1"})), headers });
        let What::Send(letter) = &first.acts[0].what else { panic!("a letter") };
        assert_eq!(letter.set, [("contact.email".into(), json!("a@example.com")), ("n".into(), json!(3))]);
        assert_eq!((letter.times, letter.signature, letter.key.as_deref()), (2, Signature::Wrong, Some("k-1")));
        assert_eq!(first.acts[0].expect.each.effects, [("upsert".to_string(), EffectWord::Done)]);
        assert_eq!(first.acts[1].expect.jobs[0].1.reason, Some(Reason::AuthFailed));
        assert_eq!(first.calls.as_ref().expect("calls")[0].keys, Some(1));
        assert_eq!(second.calls, Some(Vec::new()));
    }

    #[test]
    fn j4_what_is_wrong_with_a_test_is_told_with_its_place() {
        let check = |yaml: &str, code: &str, said: &str| {
            let text = format!("tests:\n  - name: x\n{yaml}");
            let problems = trials("tests/a.yml", &text).expect_err(yaml);
            let told: Vec<String> = problems.iter().map(|p| format!("{} {}", p.code, p.message)).collect();
            assert!(told.iter().any(|told| told.starts_with(code) && told.contains(said)), "{yaml}: {told:?}");
        };
        check("    do: [{sned: a}]", "CL0121", "`sned` is not a key");
        check("    do: [{send: a, replay: b}]", "CL0126", "exclude each other");
        check("    do: [{replay: b, fixture: c}]", "CL0126", "`fixture` is for what is sent");
        check("    do: [{send: a, fixture: b, body: {}}]", "CL0126", "one body");
        check("    do: [{send: a}]\n    answers: {crm: [9]}", "CL0123", "a status from 100 to 599");
        check("    do: [{send: a}]\n    answers: {crm: [{sttus: 500}]}", "CL0121", "not a key of an answer");
        check("    do: [{send: a, expect: {reason: tired}}]", "CL0125", "`tired` is not a reason");
        check("    do: [{send: a, expect: {state: died}}]", "CL0125", "died");
        check("    do: [{send: a, expect: {effects: {x: finished}}}]", "CL0125", "finished");
    }
}
