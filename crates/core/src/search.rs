//! What people look for: words such as `flow:orders state:dead age>5m`, all of which must fit. One language for lists, for the
//! search box and for plans; and what a text without such words may name.

use crate::config::nearest::nearest;
use crate::death::Reason;
use crate::effect::EffectId;
use crate::id::{BadId, EventId, JobId, PlanId};
use crate::job::Word;
use crate::payload::TraceId;
use crate::time::{Timestamp, parse_duration};
use std::fmt;

/// A text that is longer is no question.
pub const TEXT_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub flow: Option<String>,
    pub queue: Option<String>,
    pub state: Option<Word>,
    pub source: Option<String>,
    pub reason: Option<Reason>,
    /// A partner that one of its steps calls.
    pub integration: Option<String>,
    /// A step that has begun.
    pub step: Option<String>,
    /// When they were accepted; of dead letters, when they died.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// The key that they were delivered under.
    pub key: Option<String>,
    /// One, or several with commas between them.
    pub jobs: Option<Vec<JobId>>,
    /// Accepted before, and after: `age>5m`, `age<5m`.
    pub older: Option<Timestamp>,
    pub younger: Option<Timestamp>,
    pub tries_min: Option<u32>,
    pub tries_max: Option<u32>,
}

/// Every word, as it is written.
pub const WORDS: [&str; 13] = [
    "flow:",
    "queue:",
    "state:",
    "source:",
    "reason:",
    "integration:",
    "step:",
    "key:",
    "job:",
    "since:",
    "until:",
    "age>",
    "try>=",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    #[error("nothing says which are meant; write at least one of {list}", list = words())]
    Empty,
    #[error("`{0}` is not a word to look by{hint}; the words are {list}", hint = hint(.0), list = words())]
    Unknown(String),
    #[error("`{0}` is there twice")]
    Twice(&'static str),
    #[error("`{0}` is followed by nothing")]
    NoValue(&'static str),
    #[error("a quote is opened and not closed")]
    OpenQuote,
    #[error("`{0}` is not a state{hint}; the states are {list}", hint = said(nearest(.0, states())), list = listed(states()))]
    State(String),
    #[error("`{0}` is not a reason{hint}; the reasons are {list}", hint = said(nearest(.0, reasons())), list = listed(reasons()))]
    Reason(String),
    #[error("`{0}` is not a time; write how long ago, such as 2h, or a moment such as 2026-08-01T00:00:00Z")]
    Time(String),
    #[error("`{0}` is not an age; write one such as age>5m or age<1h")]
    Age(String),
    #[error("`{0}` is not a number of attempts; write one such as try>=3")]
    Tries(String),
    #[error(transparent)]
    Job(#[from] BadId),
    #[error("{0}")]
    Elsewhere(&'static str),
}

fn words() -> String {
    WORDS.join(", ")
}

fn states() -> impl Iterator<Item = &'static str> {
    Word::ALL.into_iter().map(Word::as_str)
}

fn reasons() -> impl Iterator<Item = &'static str> {
    Reason::ALL.iter().map(|reason| reason.word())
}

fn listed(words: impl Iterator<Item = &'static str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// The word that was probably meant.
fn hint(written: &str) -> String {
    let bare = |word: &&'static str| word.trim_end_matches([':', '>', '=']);
    let meant = nearest(written, WORDS.iter().map(bare));
    said(WORDS.into_iter().find(|word| meant == Some(bare(word))))
}

fn said(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"))
}

/// The known name that was probably meant.
pub fn meant<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest(written, known)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What stands between a word and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Is,
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Query {
    /// What is not known is an error: a word that is misspelt would otherwise mean everything.
    pub fn parse(text: &str, now: Timestamp) -> Result<Query, BadQuery> {
        let mut query = Query::default();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let end = rest.find(|c: char| matches!(c, ':' | '<' | '>') || c.is_whitespace()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let (sign, after) = sign(after).ok_or_else(|| BadQuery::Unknown(short(word)))?;
            let (value, left) = value(after)?;
            query.take(word, sign, value, now)?;
            rest = left.trim_start();
        }
        if query == Query::default() { Err(BadQuery::Empty) } else { Ok(query) }
    }

    fn take(&mut self, word: &str, sign: Sign, value: &str, now: Timestamp) -> Result<(), BadQuery> {
        let text = |value: &str| Ok(value.to_string());
        let at = |value: &str| moment(value, now);
        match (word, sign) {
            ("flow", Sign::Is) => once("flow:", &mut self.flow, value, text),
            ("queue", Sign::Is) => once("queue:", &mut self.queue, value, text),
            ("source", Sign::Is) => once("source:", &mut self.source, value, text),
            ("integration", Sign::Is) => once("integration:", &mut self.integration, value, text),
            ("step", Sign::Is) => once("step:", &mut self.step, value, text),
            ("key", Sign::Is) => once("key:", &mut self.key, value, text),
            ("state", Sign::Is) => once("state:", &mut self.state, value, state),
            ("reason", Sign::Is) => {
                once("reason:", &mut self.reason, value, |text| text.parse().map_err(|_| BadQuery::Reason(short(text))))
            }
            ("since", Sign::Is) => once("since:", &mut self.since, value, at),
            ("until", Sign::Is) => once("until:", &mut self.until, value, at),
            ("job", Sign::Is) => once("job:", &mut self.jobs, value, jobs),
            ("age", Sign::Above | Sign::AtLeast) => once("age>", &mut self.older, value, |text| age(text, now)),
            ("age", Sign::Below | Sign::AtMost) => once("age<", &mut self.younger, value, |text| age(text, now)),
            ("try", Sign::AtLeast) => once("try>=", &mut self.tries_min, value, tries),
            ("try", Sign::Above) => once("try>", &mut self.tries_min, value, |text| Ok(tries(text)?.saturating_add(1))),
            ("try", Sign::AtMost) => once("try<=", &mut self.tries_max, value, tries),
            ("try", Sign::Below) => {
                let below = |text: &str| tries(text)?.checked_sub(1).ok_or_else(|| BadQuery::Tries(short(text)));
                once("try<", &mut self.tries_max, value, below)
            }
            ("age", Sign::Is) => Err(BadQuery::Age(short(value))),
            ("try", Sign::Is) => Err(BadQuery::Tries(short(value))),
            ("error", _) => Err(BadQuery::Elsewhere(
                "errors are encrypted and not searched; look by `reason:`, `step:` or `integration:`",
            )),
            _ if word.starts_with("payload.") => Err(BadQuery::Elsewhere(
                "payloads are encrypted and not searched; what `find_by` names is found by its bare value",
            )),
            _ => Err(BadQuery::Unknown(short(word))),
        }
    }
}

/// As it is kept: moments in place of how long ago, and nothing of a key, which may be anybody's address.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let words = [
            ("flow:", self.flow.clone()),
            ("queue:", self.queue.clone()),
            ("state:", self.state.map(|state| state.as_str().to_string())),
            ("source:", self.source.clone()),
            ("reason:", self.reason.map(|reason| reason.to_string())),
            ("integration:", self.integration.clone()),
            ("step:", self.step.clone()),
            ("since:", at(self.since)),
            ("until:", at(self.until)),
            ("key:", self.key.as_ref().map(|_| "•••".into())),
            ("job:", self.jobs.as_ref().map(|jobs| jobs.iter().map(JobId::to_string).collect::<Vec<_>>().join(","))),
            ("accepted before ", at(self.older)),
            ("accepted after ", at(self.younger)),
            ("try>=", self.tries_min.map(|tries| tries.to_string())),
            ("try<=", self.tries_max.map(|tries| tries.to_string())),
        ];
        let given = words.into_iter().filter_map(|(word, value)| Some(format!("{word}{}", value?)));
        f.write_str(&given.collect::<Vec<_>>().join(" "))
    }
}

fn sign(text: &str) -> Option<(Sign, &str)> {
    let signs = [(">=", Sign::AtLeast), ("<=", Sign::AtMost), (">", Sign::Above), ("<", Sign::Below), (":", Sign::Is)];
    signs.into_iter().find_map(|(written, sign)| Some((sign, text.strip_prefix(written)?)))
}

fn once<T>(
    word: &'static str,
    slot: &mut Option<T>,
    value: &str,
    read: impl FnOnce(&str) -> Result<T, BadQuery>,
) -> Result<(), BadQuery> {
    if value.is_empty() {
        return Err(BadQuery::NoValue(word));
    }
    match slot.replace(read(value)?) {
        None => Ok(()),
        Some(_) => Err(BadQuery::Twice(word)),
    }
}

/// Up to the next space, or in quotes; and what comes after it.
fn value(text: &str) -> Result<(&str, &str), BadQuery> {
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').ok_or(BadQuery::OpenQuote),
        None => Ok(text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))),
    }
}

fn jobs(text: &str) -> Result<Vec<JobId>, BadQuery> {
    text.split(',').map(|id| Ok(id.parse()?)).collect()
}

fn state(text: &str) -> Result<Word, BadQuery> {
    text.parse().map_err(|_| BadQuery::State(short(text)))
}

fn age(text: &str, now: Timestamp) -> Result<Timestamp, BadQuery> {
    parse_duration(text).map(|age| now - age).map_err(|_| BadQuery::Age(short(text)))
}

fn tries(text: &str) -> Result<u32, BadQuery> {
    text.parse().map_err(|_| BadQuery::Tries(short(text)))
}

/// How long ago, or when.
pub fn moment(text: &str, now: Timestamp) -> Result<Timestamp, BadQuery> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(now - ago);
    }
    let at: jiff::Timestamp = text.parse().map_err(|_| BadQuery::Time(short(text)))?;
    Ok(Timestamp::from_micros(at.as_microsecond()))
}

/// How a text is taken that somebody puts into the one search box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    Job(JobId),
    Event(EventId),
    Plan(PlanId),
    /// A step of a job: an effect, or what people were asked.
    Step(EffectId),
    Trace(TraceId),
    Query(Box<Query>),
    /// No word to look by is in it: a key, a provider's id, somebody's address.
    Bare(String),
}

impl Text {
    /// What looks like a word to look by is one, and wrong if it is not known: never a text of which nothing is found.
    pub fn read(text: &str, now: Timestamp) -> Result<Text, BadQuery> {
        let text = text.trim();
        if let Ok(id) = text.parse() {
            return Ok(Text::Job(id));
        }
        if let Ok(id) = text.parse() {
            return Ok(Text::Event(id));
        }
        if let Ok(id) = text.parse() {
            return Ok(Text::Plan(id));
        }
        if let Ok(id) = text.parse() {
            return Ok(Text::Step(id));
        }
        if let Some(trace) = TraceId::read(text) {
            return Ok(Text::Trace(trace));
        }
        match Query::parse(text, now) {
            Ok(query) => Ok(Text::Query(Box::new(query))),
            // A key may well have a colon in it: `stripe:evt_1`; and a phone number spaces.
            Err(error) if text.is_empty() || is_a_word(text) => Err(error),
            Err(error) if text.contains(SIGNS) && text.contains(char::is_whitespace) => Err(error),
            Err(_) => Ok(Text::Bare(text.to_string())),
        }
    }
}

/// What stands after a word, or could be meant to.
const SIGNS: [char; 5] = [':', '<', '>', '=', '~'];

/// Whether it begins with a word to look by, or with what could be meant for one.
fn is_a_word(text: &str) -> bool {
    let Some(end) = text.find(SIGNS) else { return false };
    let bare = WORDS.iter().map(|word| word.trim_end_matches([':', '>', '=']));
    nearest(&text[..end], bare.chain(["error"])).is_some() || text.starts_with("payload.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    #[test]
    fn f2_a_query_is_read_word_by_word() {
        let query = Query::parse("flow:orders reason:auth_failed  since:2h key:\"a b:c\"", NOW).expect("fine");
        let asked = Query {
            flow: Some("orders".into()),
            reason: Some(Reason::AuthFailed),
            since: Some(NOW - Duration::from_secs(7_200)),
            key: Some("a b:c".into()),
            ..Query::default()
        };
        assert_eq!(query, asked);
        assert_eq!(
            query.to_string(),
            format!("flow:orders reason:auth_failed since:{} key:•••", NOW - Duration::from_secs(7_200))
        );
        let until = Query::parse("until:2026-08-01T00:00:00Z", NOW).expect("fine").until.expect("told");
        assert_eq!(until.to_string(), "2026-08-01T00:00:00.000Z");
    }

    #[test]
    fn i1_age_and_attempts_are_compared() {
        let query = Query::parse("age>5m age<1h try>=3 try<9 state:retrying step:crm", NOW).expect("fine");
        assert_eq!(query.older, Some(NOW - Duration::from_secs(300)));
        assert_eq!(query.younger, Some(NOW - Duration::from_secs(3_600)));
        assert_eq!((query.tries_min, query.tries_max), (Some(3), Some(8)));
        assert_eq!((query.state, query.step.as_deref()), (Some(Word::Retrying), Some("crm")));
        assert_eq!(Query::parse("try>3 try<=4", NOW).expect("fine").tries_min, Some(4));
        for bad in ["try<0", "try:3", "try>=x", "age:5m", "age>x", "age>", "flow>x"] {
            assert!(Query::parse(bad, NOW).is_err(), "{bad}");
        }
    }

    #[test]
    fn f2_an_unknown_word_is_an_error_that_names_the_nearest_and_never_everything() {
        let refused = |text: &str| Query::parse(text, NOW).expect_err(text);
        assert_eq!(refused("flwo:orders"), BadQuery::Unknown("flwo".into()));
        assert_eq!(refused("flow:orders everything"), BadQuery::Unknown("everything".into()));
        assert_eq!(refused("*"), BadQuery::Unknown("*".into()));
        assert_eq!(refused("  "), BadQuery::Empty);
        assert_eq!(refused("flow: reason:timeout"), BadQuery::NoValue("flow:"));
        assert_eq!(refused("flow:a flow:b"), BadQuery::Twice("flow:"));
        assert_eq!(refused("reason:auth"), BadQuery::Reason("auth".into()));
        assert_eq!(refused("since:yesterday"), BadQuery::Time("yesterday".into()));
        assert_eq!(refused("key:\"a"), BadQuery::OpenQuote);
        assert!(matches!(refused("job:7"), BadQuery::Job(_)));
        assert!(matches!(refused("job:job_01HZX5T0N8W2A,"), BadQuery::Job(_)));
        let said = |text: &str| refused(text).to_string();
        assert!(said("flwo:x").contains("did you mean `flow:`?"), "{}", said("flwo:x"));
        assert!(said("tyr>3").contains("did you mean `try>=`?"), "{}", said("tyr>3"));
        assert!(said("state:retriyng").contains("did you mean `retrying`?"));
        assert!(said("reason:auth").contains("auth_failed"));
        assert!(said("error~\"429\"").contains("`error~\"429\"` is not a word"));
        assert!(said("payload.plan:pro").contains("find_by"));
    }

    #[test]
    fn i1_a_pasted_text_is_taken_for_what_it_is() {
        let read = |text: &str| Text::read(text, NOW).expect(text);
        assert!(matches!(read(" job_01HZX5T0N8W2A "), Text::Job(_)));
        assert!(matches!(read("evt_01HZX5T0N8W2A"), Text::Event(_)));
        assert!(matches!(read("rpl_01HZX5T0N8W2A"), Text::Plan(_)));
        assert!(matches!(read("job_01HZX5T0N8W2A/charge"), Text::Step(_)));
        assert!(matches!(read("0af7651916cd43dd8448eb211c80319c"), Text::Trace(_)));
        assert!(matches!(read("flow:orders"), Text::Query(_)));
        for bare in ["ada@example.org", "evt_1Qw8Zx2eZvKYlo2C", "stripe:evt_1Qw8", "+49 30 1234567", "k-1", "a=b"] {
            assert_eq!(read(bare), Text::Bare(bare.into()));
        }
        for wrong in ["", "flwo:orders", "flow:orders ada@example.org", "state:daed", "error:x", "error~\"429\""] {
            assert!(Text::read(wrong, NOW).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn f2_no_text_is_a_query_that_means_everything(text in "\\PC{0,40}") {
            if let Ok(query) = Query::parse(&text, NOW) {
                prop_assert_ne!(query, Query::default());
            }
            let _ = Text::read(&text, NOW);
        }
    }
}
