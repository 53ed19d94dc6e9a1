//! A trial of a workspace: what is sent, how partners answer, and what must have come of it. The files below `tests/` are made of
//! these; somebody else carries them out and tells what was seen.

use crate::death::Reason;
use crate::effect::EffectWord;
use crate::job::Word;
use crate::time::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// What stands for any value that is there.
pub const ANYTHING: &str = "*";
/// No trial sends one event more often.
pub const TIMES_MAX: u32 = 1_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub name: String,
    /// Where it is written.
    pub line: usize,
    /// When it begins, if not now.
    pub at: Option<Timestamp>,
    /// What partners answer, one after the other; after the last, they do what they are asked.
    pub answers: Vec<(String, Vec<Reply>)>,
    pub acts: Vec<Act>,
    /// All calls that may be made; `None`: any.
    pub calls: Option<Vec<WantedCall>>,
}

/// What a partner does with a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Answer {
        status: u16,
        body: Option<Value>,
        headers: Vec<(String, String)>,
    },
    /// It takes the call and never answers.
    Lost,
}

impl Reply {
    pub fn status(status: u16) -> Reply {
        Reply::Answer { status, body: None, headers: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    pub what: What,
    pub expect: Expect,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Send(Letter),
    /// The dead letters are replayed, for this reason.
    Replay(String),
    /// Whatever waits for a person is approved or rejected, for this reason.
    Approve(String),
    Reject(String),
    /// Time goes by.
    Wait(Duration),
}

/// An event as its sender sends it.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    /// A flow, a source, or a path of the intake.
    pub to: String,
    pub body: LetterBody,
    /// Fields of the body that are other than in the fixture.
    pub set: Vec<(String, Value)>,
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
    pub times: u32,
    pub signature: Signature,
}

#[derive(Clone, Debug, PartialEq)]
pub enum LetterBody {
    /// The file `fixtures/NAME.json`, with the headers in `fixtures/NAME.headers`.
    Fixture(String),
    Value(Value),
    /// Bytes, as they are.
    Raw(Vec<u8>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signature {
    #[default]
    Right,
    Wrong,
    None,
}

/// What must have come of an act. What is not said may be anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expect {
    pub status: Option<u16>,
    pub is_replayed: Option<bool>,
    /// The answer has at least this.
    pub body: Option<Value>,
    /// Of every job of the event.
    pub each: WantedJob,
    /// Of the jobs of these workers and playbooks.
    pub jobs: Vec<(String, WantedJob)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WantedJob {
    pub state: Option<Word>,
    pub reason: Option<Reason>,
    pub attempts: Option<u32>,
    pub effects: Vec<(String, EffectWord)>,
}

/// Calls that must have been made.
#[derive(Clone, Debug, PartialEq)]
pub struct WantedCall {
    pub to: String,
    pub method: Option<String>,
    pub path: Option<String>,
    /// The body has at least this.
    pub body: Option<Value>,
    pub times: u32,
    /// Under so many different keys.
    pub keys: Option<u32>,
}

/// What came of an act.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenAct {
    /// The answer, if something was sent.
    pub answer: Option<SeenAnswer>,
    pub jobs: Vec<SeenJob>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SeenAnswer {
    pub status: u16,
    pub is_replayed: bool,
    pub body: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SeenJob {
    /// The worker or playbook that runs it.
    pub worker: String,
    pub state: Word,
    pub reason: Option<Reason>,
    pub attempts: u32,
    pub effects: Vec<(String, EffectWord)>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SeenCall {
    pub to: String,
    pub method: String,
    pub path: String,
    pub body: Value,
    /// What it would be recognised by.
    pub key: Option<String>,
    /// What it was answered; `None` when it was not.
    pub status: Option<u16>,
}

impl Expect {
    /// What is not as it was expected, one sentence each.
    pub fn differences(&self, seen: &SeenAct) -> Vec<String> {
        let mut found = Vec::new();
        match &seen.answer {
            Some(answer) => self.of_answer(answer, &mut found),
            None if self.status.is_some() || self.is_replayed.is_some() || self.body.is_some() => {
                found.push("nothing was sent, so there is no answer to look at".into());
            }
            None => {}
        }
        if seen.jobs.is_empty() && self.each != WantedJob::default() {
            found.push("expected a job; nothing became one".into());
        }
        for job in &seen.jobs {
            self.each.of(job, &mut found);
        }
        for (name, wanted) in &self.jobs {
            match seen.jobs.iter().find(|job| job.worker == *name) {
                Some(job) => wanted.of(job, &mut found),
                None => {
                    let there: Vec<&str> = seen.jobs.iter().map(|job| job.worker.as_str()).collect();
                    found.push(format!("expected a job of `{name}`; the jobs are of: {}", list(&there)));
                }
            }
        }
        found
    }

    fn of_answer(&self, answer: &SeenAnswer, found: &mut Vec<String>) {
        if let Some(status) = self.status.filter(|status| *status != answer.status) {
            found.push(format!("answer: expected status {status}, got {}: {}", answer.status, answer.body));
        }
        match self.is_replayed {
            Some(true) if !answer.is_replayed => {
                found.push("answer: expected the first one again, got a new one".into())
            }
            Some(false) if answer.is_replayed => {
                found.push("answer: expected a new one, got the first one again".into())
            }
            _ => {}
        }
        if let Some(body) = &self.body {
            beyond(body, &answer.body, "answer.body", found);
        }
    }
}

impl WantedJob {
    fn of(&self, job: &SeenJob, found: &mut Vec<String>) {
        let worker = &job.worker;
        let why = job.error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
        if let Some(state) = self.state.filter(|state| *state != job.state) {
            let reason = job.reason.map_or_else(String::new, |reason| format!(", reason {}", reason.word()));
            found.push(format!(
                "job of {worker}: expected {}, got {}{reason}{why}",
                state.as_str(),
                job.state.as_str()
            ));
        }
        if let Some(reason) = self.reason.filter(|reason| Some(*reason) != job.reason) {
            let got = job.reason.map_or("none", Reason::word);
            found.push(format!("job of {worker}: expected reason {}, got {got}{why}", reason.word()));
        }
        if let Some(attempts) = self.attempts.filter(|attempts| *attempts != job.attempts) {
            found.push(format!("job of {worker}: expected {attempts} attempts, got {}{why}", job.attempts));
        }
        for (step, wanted) in &self.effects {
            match job.effects.iter().find(|(name, _)| name == step) {
                Some((_, got)) if got == wanted => {}
                Some((_, got)) => {
                    found.push(format!("effect {worker}/{step}: expected {}, got {}", wanted.as_str(), got.as_str()))
                }
                None => {
                    let there: Vec<&str> = job.effects.iter().map(|(name, _)| name.as_str()).collect();
                    found.push(format!(
                        "effect {worker}/{step}: expected {}, and there is none; there are: {}",
                        wanted.as_str(),
                        list(&there)
                    ));
                }
            }
        }
    }
}

/// Each call is held against the first rule that it fits; what fits none should not have been made.
pub fn call_differences(wanted: &[WantedCall], seen: &[SeenCall]) -> Vec<String> {
    let mut found = Vec::new();
    let mut fitting: Vec<Vec<&SeenCall>> = vec![Vec::new(); wanted.len()];
    for call in seen {
        match wanted.iter().position(|rule| rule.fits(call)) {
            Some(place) => fitting[place].push(call),
            None => {
                let status = call.status.map_or_else(|| "no answer".into(), |status| status.to_string());
                let near = wanted.iter().find(|rule| rule.to == call.to && rule.is_there(call));
                found.push(format!("call not expected: {call} -> {status}, body {}", call.body));
                if let Some(body) = near.and_then(|rule| rule.body.as_ref()) {
                    beyond(body, &call.body, "  its body", &mut found);
                }
            }
        }
    }
    for (rule, calls) in wanted.iter().zip(&fitting) {
        if calls.len() != rule.times as usize {
            found.push(format!("calls {rule}: expected {}, got {}", rule.times, calls.len()));
        }
        let mut keys: Vec<&str> = calls.iter().filter_map(|call| call.key.as_deref()).collect();
        keys.sort_unstable();
        keys.dedup();
        if let Some(wanted) = rule.keys.filter(|wanted| *wanted as usize != keys.len()) {
            found.push(format!("calls {rule}: expected {wanted} different keys, got {}", keys.len()));
        }
    }
    found
}

impl WantedCall {
    fn fits(&self, call: &SeenCall) -> bool {
        let has_body = self.body.as_ref().is_none_or(|body| {
            let mut missing = Vec::new();
            beyond(body, &call.body, "", &mut missing);
            missing.is_empty()
        });
        self.to == call.to && self.is_there(call) && has_body
    }

    fn is_there(&self, call: &SeenCall) -> bool {
        self.method.as_ref().is_none_or(|method| *method == call.method)
            && self.path.as_ref().is_none_or(|path| *path == call.path)
    }
}

impl std::fmt::Display for WantedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [Some(self.to.as_str()), self.method.as_deref(), self.path.as_deref()];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl std::fmt::Display for SeenCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.to, self.method, self.path)
    }
}

/// Where `got` lacks something of `wanted`. Maps may have more; lists are compared item by item.
fn beyond(wanted: &Value, got: &Value, place: &str, found: &mut Vec<String>) {
    match (wanted, got) {
        (Value::String(any), _) if any == ANYTHING => {}
        (Value::Object(wanted), Value::Object(got)) => {
            for (name, wanted) in wanted {
                match got.get(name) {
                    Some(got) => beyond(wanted, got, &format!("{place}.{name}"), found),
                    None => found.push(format!("{place}.{name}: expected {wanted}, and it is not there")),
                }
            }
        }
        (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
            for (place_in_list, (wanted, got)) in wanted.iter().zip(got).enumerate() {
                beyond(wanted, got, &format!("{place}[{place_in_list}]"), found);
            }
        }
        (wanted, got) if wanted == got => {}
        (wanted, got) => found.push(format!("{place}: expected {wanted}, got {got}")),
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Writes a value into a body at `a.b.0.c`, making maps where there are none; `false` where a list or a plain value is in the way.
pub fn set_field(body: &mut Value, path: &str, value: Value) -> bool {
    let mut place = body;
    for name in path.split('.') {
        if place.is_null() {
            *place = Value::Object(serde_json::Map::new());
        }
        place = match place {
            Value::Object(map) => map.entry(name).or_insert(Value::Null),
            Value::Array(items) => match name.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                Some(item) => item,
                None => return false,
            },
            _ => return false,
        };
    }
    *place = value;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(to: &str, path: &str, body: Value, key: &str) -> SeenCall {
        let (method, key) = ("POST".into(), Some(key.into()));
        SeenCall { to: to.into(), method, path: path.into(), body, key, status: Some(200) }
    }

    fn wanted(to: &str, path: &str, times: u32) -> WantedCall {
        WantedCall { to: to.into(), method: None, path: Some(path.into()), body: None, times, keys: None }
    }

    #[test]
    fn j4_calls_that_were_made_are_held_against_those_that_were_expected() {
        let seen = [call("crm", "/leads", json!({"email": "a", "n": 1}), "k"), call("crm", "/leads", json!({}), "k")];
        assert_eq!(call_differences(&[WantedCall { keys: Some(1), ..wanted("crm", "/leads", 2) }], &seen), [""; 0]);
        let found = call_differences(&[WantedCall { keys: Some(2), ..wanted("crm", "/leads", 1) }], &seen);
        assert_eq!(
            found,
            ["calls crm /leads: expected 1, got 2", "calls crm /leads: expected 2 different keys, got 1"]
        );
        let found = call_differences(&[wanted("mail", "/send", 1)], &seen[1..]);
        assert_eq!(
            found,
            ["call not expected: crm POST /leads -> 200, body {}", "calls mail /send: expected 1, got 0"]
        );
    }

    #[test]
    fn j4_a_body_must_have_what_is_written_and_may_have_more() {
        let rule = WantedCall { body: Some(json!({"email": "a", "tags": ["x"], "id": "*"})), ..wanted("crm", "/l", 1) };
        let fits = json!({"email": "a", "tags": ["x"], "id": 7, "more": true});
        assert_eq!(call_differences(std::slice::from_ref(&rule), &[call("crm", "/l", fits, "k")]), [""; 0]);
        let found = call_differences(&[rule], &[call("crm", "/l", json!({"email": "b", "tags": []}), "k")]);
        assert_eq!(found[1], "  its body.email: expected \"a\", got \"b\"");
        assert_eq!(found[2], "  its body.tags: expected [\"x\"], got []");
        assert_eq!(found[3], "  its body.id: expected \"*\", and it is not there");
    }

    #[test]
    fn j4_what_became_of_an_event_is_told_where_it_is_another_thing_than_expected() {
        let job = SeenJob {
            worker: "router".into(),
            state: Word::Dead,
            reason: Some(Reason::AuthFailed),
            attempts: 1,
            effects: vec![("crm".into(), EffectWord::NotDone)],
            error: Some("it answered 401".into()),
        };
        let answer = SeenAnswer { status: 202, is_replayed: false, body: json!({"status": "accepted"}) };
        let seen = SeenAct { answer: Some(answer), jobs: vec![job] };
        let each = WantedJob {
            state: Some(Word::Success),
            reason: None,
            attempts: Some(3),
            effects: vec![("crm".into(), EffectWord::Done)],
        };
        let expect = Expect {
            status: Some(202),
            is_replayed: Some(true),
            body: Some(json!({"status": "x"})),
            each,
            jobs: vec![],
        };
        assert_eq!(
            expect.differences(&seen),
            [
                "answer: expected the first one again, got a new one",
                "answer.body.status: expected \"x\", got \"accepted\"",
                "job of router: expected success, got dead, reason auth_failed (it answered 401)",
                "job of router: expected 3 attempts, got 1 (it answered 401)",
                "effect router/crm: expected done, got not_done",
            ]
        );
        let nothing = Expect { each: WantedJob { attempts: Some(1), ..WantedJob::default() }, ..Expect::default() };
        assert_eq!(nothing.differences(&SeenAct::default()), ["expected a job; nothing became one"]);
        assert_eq!(Expect::default().differences(&seen), [""; 0]);
    }

    #[test]
    fn a_field_is_written_where_its_path_leads() {
        let mut body = json!({"a": {"list": [{"b": 1}]}, "text": "x"});
        assert!(set_field(&mut body, "a.list.0.b", json!(2)));
        assert!(set_field(&mut body, "new.deep", json!("y")));
        assert_eq!(body, json!({"a": {"list": [{"b": 2}]}, "text": "x", "new": {"deep": "y"}}));
        for bad in ["a.list.7.b", "text.more"] {
            assert!(!set_field(&mut body, bad, json!(1)), "{bad}");
        }
    }
}
