//! An approval: a step that waits for people. Who may decide, what a vote comes to, and what a verdict means for the job.
//! Exactly one verdict wins; whoever comes later is told which.

use crate::attempt::Failure;
use crate::death::Reason;
use crate::expr::{Template, Tree};
use crate::id::{BadId, JobId};
use crate::integration::Integration;
use crate::time::Timestamp;
use crate::user;
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub const EXPIRES_DEFAULT: Duration = Duration::from_secs(24 * 3600);
/// No approval needs more people.
pub const NEED_MAX: u32 = 20;
/// No more people are named by one step.
pub const VOTERS_MAX: usize = 100;

/// What a step asks people.
#[derive(Clone, Debug)]
pub struct ApprovalAction {
    pub rule: Rule,
    /// One line that says what is to be decided.
    pub title: Template,
    /// What people should see of the event to decide it.
    pub show: Tree,
    pub slack: Option<SlackChannel>,
}

/// Where people are asked.
#[derive(Clone, Debug)]
pub struct SlackChannel {
    pub partner: Arc<Integration>,
    pub channel: String,
}

/// Who may decide, how many must agree, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Empty: anybody who may use the API.
    pub of: Vec<String>,
    /// So many different people must approve. One is enough to reject.
    pub need: u32,
    pub expires: Duration,
    pub on_expiry: OnExpiry,
    /// So long before it expires people are reminded.
    pub remind: Option<Duration>,
}

/// What it means that nobody decided in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpiry {
    #[default]
    Reject,
    Approve,
}

/// One approval: a step of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApprovalId {
    pub job: JobId,
    pub step: String,
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.step)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadApprovalId {
    #[error("an approval is named by its job and its step, such as job_01HZX5T0N8W2A/review")]
    NoStep,
    #[error(transparent)]
    Job(#[from] BadId),
}

impl FromStr for ApprovalId {
    type Err = BadApprovalId;

    fn from_str(text: &str) -> Result<ApprovalId, BadApprovalId> {
        let (job, step) = text.split_once('/').filter(|(_, step)| !step.is_empty()).ok_or(BadApprovalId::NoStep)?;
        Ok(ApprovalId { job: job.parse()?, step: step.to_string() })
    }
}

/// What a person says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    Approve,
    Reject,
    /// It need not be decided any more: whoever asked, or an operator, takes it back.
    Cancel,
}

impl Vote {
    pub const fn word(self) -> &'static str {
        match self {
            Vote::Approve => "approve",
            Vote::Reject => "reject",
            Vote::Cancel => "cancel",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Approved,
    Rejected,
    Expired,
    Cancelled,
}

impl Verdict {
    pub const ALL: [Verdict; 4] = [Verdict::Approved, Verdict::Rejected, Verdict::Expired, Verdict::Cancelled];

    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Approved => "approved",
            Verdict::Rejected => "rejected",
            Verdict::Expired => "expired",
            Verdict::Cancelled => "cancelled",
        }
    }

    /// How a store spells it; 0 is what is not decided.
    pub const fn number(self) -> i16 {
        match self {
            Verdict::Approved => 1,
            Verdict::Rejected => 2,
            Verdict::Expired => 3,
            Verdict::Cancelled => 4,
        }
    }

    pub fn from_number(number: i16) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| verdict.number() == number)
    }
}

/// The word for one that is not decided.
pub const PENDING: &str = "pending";

/// The verdict that won.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}

impl Decision {
    /// Nobody decided in time.
    pub fn expired(at: Timestamp) -> Decision {
        let (by, reason) = (user::CLINCH.to_string(), "nobody decided in time".to_string());
        Decision { verdict: Verdict::Expired, by, reason, at }
    }

    /// The output of the step; or why the job ends without what it was to do.
    pub fn outcome(&self, on_expiry: OnExpiry) -> Result<Value, Failure> {
        let output = json!({ "approved": true, "by": self.by, "at": self.at.to_string(), "reason": self.reason });
        match (self.verdict, on_expiry) {
            (Verdict::Approved, _) | (Verdict::Expired, OnExpiry::Approve) => Ok(output),
            (Verdict::Expired, OnExpiry::Reject) => Err(Failure::new(Reason::ApprovalExpired, self.told())),
            (Verdict::Rejected | Verdict::Cancelled, _) => Err(Failure::new(Reason::ApprovalRejected, self.told())),
        }
    }

    /// What won, for whoever comes late and for the job that ends by it.
    pub fn told(&self) -> String {
        let Decision { verdict, by, reason, at } = self;
        match verdict {
            Verdict::Expired => format!("it expired at {at}: {reason}"),
            _ => format!("it was {} by {by} at {at}: {reason}", verdict.word()),
        }
    }
}

/// One person's vote that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    pub actor: String,
    pub vote: Vote,
    pub at: Timestamp,
    pub reason: String,
}

/// All that counts when somebody votes.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub of: &'a [String],
    pub need: u32,
    /// Who started or replayed the job, where that was a person.
    pub requester: Option<&'a str>,
    pub expires_at: Timestamp,
    pub ballots: &'a [Ballot],
    pub decision: Option<&'a Decision>,
}

/// So many have approved of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub have: u32,
    pub need: u32,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} have approved", self.have, self.need)
    }
}

/// Why a vote does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    #[error("it is not for you to decide: the step names others under `of`")]
    NotAsked,
    #[error("it is your own request: somebody else must decide, or cancel it")]
    OwnRequest,
    #[error("you have approved it already, and one person has one vote; cancel it if it must not happen")]
    VotedBefore,
}

/// What a vote comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    Decides(Verdict),
    /// It counts, and more are needed.
    Counts(Tally),
    /// The same person has said the same: nothing changes.
    Before(Tally),
    /// Its time is over, and nobody has written that down yet.
    Overdue,
    Late(Decision),
    NotAllowed(NotAllowed),
}

pub fn rule(standing: Standing<'_>, actor: &str, vote: Vote, at: Timestamp) -> Ruling {
    if let Some(decision) = standing.decision {
        return Ruling::Late(decision.clone());
    }
    if at >= standing.expires_at {
        return Ruling::Overdue;
    }
    // Whoever may operate the installation may stop what waits in it.
    if vote == Vote::Cancel {
        return Ruling::Decides(Verdict::Cancelled);
    }
    if standing.requester == Some(actor) {
        return Ruling::NotAllowed(NotAllowed::OwnRequest);
    }
    if !standing.of.is_empty() && !standing.of.iter().any(|name| name == actor) {
        return Ruling::NotAllowed(NotAllowed::NotAsked);
    }
    let tally = tally(standing.ballots, standing.need);
    let before = standing.ballots.iter().find(|ballot| ballot.actor == actor);
    match (before, vote) {
        (Some(before), vote) if before.vote == vote => Ruling::Before(tally),
        (Some(_), _) => Ruling::NotAllowed(NotAllowed::VotedBefore),
        (None, Vote::Reject) => Ruling::Decides(Verdict::Rejected),
        (None, _) if tally.have + 1 >= standing.need => Ruling::Decides(Verdict::Approved),
        (None, _) => Ruling::Counts(Tally { have: tally.have + 1, ..tally }),
    }
}

pub fn tally(ballots: &[Ballot], need: u32) -> Tally {
    let have = ballots.iter().filter(|ballot| ballot.vote == Vote::Approve).count();
    Tally { have: u32::try_from(have).unwrap_or(u32::MAX), need }
}

/// What people are shown of an approval. Whatever is in it may be seen by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    pub title: String,
    pub facts: Vec<(String, String)>,
}

impl Card {
    pub const TITLE_CHARS_MAX: usize = 200;
    pub const FACTS_MAX: usize = 10;
    const FACT_CHARS_MAX: usize = 300;

    /// `shown` hides of a named value what nobody is to see.
    pub fn of(title: &str, show: &Value, shown: impl Fn(&str, &str) -> String) -> Card {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let fact =
            |name: &str, value: &Value| (name.to_string(), cut(&shown(name, &text(value)), Card::FACT_CHARS_MAX));
        let facts = match show {
            Value::Object(fields) => {
                fields.iter().take(Card::FACTS_MAX).map(|(name, value)| fact(name, value)).collect()
            }
            Value::Null => Vec::new(),
            other => vec![fact("about", other)],
        };
        Card { title: cut(&shown("title", title), Card::TITLE_CHARS_MAX), facts }
    }
}

/// One line, not too long.
fn cut(text: &str, chars_max: usize) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// When people are told of it again, after they were asked.
pub fn remind_at(rule: &Rule, asked_at: Timestamp) -> Option<Timestamp> {
    let before = rule.remind.filter(|remind| *remind < rule.expires)?;
    Some(asked_at + (rule.expires - before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const END: Timestamp = Timestamp::from_micros(1_000);

    fn ballot(actor: &str, vote: Vote) -> Ballot {
        Ballot { actor: actor.into(), vote, at: Timestamp::from_micros(1), reason: String::new() }
    }

    fn check(of: &[&str], need: u32, ballots: &[Ballot], (actor, vote): (&str, Vote), expected: Ruling) {
        let of: Vec<String> = of.iter().map(|name| (*name).to_string()).collect();
        let standing = Standing { of: &of, need, requester: Some("rita"), expires_at: END, ballots, decision: None };
        assert_eq!(rule(standing, actor, vote, Timestamp::from_micros(999)), expected, "{actor} {vote:?}");
    }

    #[test]
    fn g2_so_many_of_those_who_are_asked_must_approve_and_one_may_reject() {
        let all = ["maya", "omar", "ines"];
        check(&all, 2, &[], ("maya", Vote::Approve), Ruling::Counts(Tally { have: 1, need: 2 }));
        let one = [ballot("maya", Vote::Approve)];
        check(&all, 2, &one, ("omar", Vote::Approve), Ruling::Decides(Verdict::Approved));
        check(&all, 2, &one, ("omar", Vote::Reject), Ruling::Decides(Verdict::Rejected));
        check(&all, 2, &one, ("eve", Vote::Approve), Ruling::NotAllowed(NotAllowed::NotAsked));
        check(&[], 1, &[], ("eve", Vote::Approve), Ruling::Decides(Verdict::Approved));
    }

    #[test]
    fn g2_one_person_has_one_vote_and_none_on_an_own_request() {
        let one = [ballot("maya", Vote::Approve)];
        check(&[], 2, &one, ("maya", Vote::Approve), Ruling::Before(Tally { have: 1, need: 2 }));
        check(&[], 2, &one, ("maya", Vote::Reject), Ruling::NotAllowed(NotAllowed::VotedBefore));
        check(&[], 1, &[], ("rita", Vote::Approve), Ruling::NotAllowed(NotAllowed::OwnRequest));
        check(&["rita"], 1, &[], ("rita", Vote::Reject), Ruling::NotAllowed(NotAllowed::OwnRequest));
        check(&["maya"], 1, &[], ("rita", Vote::Cancel), Ruling::Decides(Verdict::Cancelled));
    }

    #[test]
    fn g2_what_is_decided_or_over_is_not_decided_again() {
        let won = Decision { verdict: Verdict::Rejected, by: "omar".into(), reason: "no".into(), at: END };
        let standing =
            Standing { of: &[], need: 1, requester: None, expires_at: END, ballots: &[], decision: Some(&won) };
        for vote in [Vote::Approve, Vote::Reject, Vote::Cancel] {
            assert_eq!(rule(standing, "maya", vote, Timestamp::from_micros(5)), Ruling::Late(won.clone()));
            assert_eq!(rule(Standing { decision: None, ..standing }, "maya", vote, END), Ruling::Overdue);
        }
    }

    #[test]
    fn g2_a_verdict_lets_the_job_go_on_or_says_why_not() {
        let decision = |verdict| Decision { verdict, by: "maya".into(), reason: "too much".into(), at: END };
        let reason = |verdict, on| decision(verdict).outcome(on).map_err(|failure| failure.reason).map(|_| ());
        assert_eq!(reason(Verdict::Approved, OnExpiry::Reject), Ok(()));
        assert_eq!(reason(Verdict::Rejected, OnExpiry::Approve), Err(Reason::ApprovalRejected));
        assert_eq!(reason(Verdict::Cancelled, OnExpiry::Approve), Err(Reason::ApprovalRejected));
        assert_eq!(reason(Verdict::Expired, OnExpiry::Reject), Err(Reason::ApprovalExpired));
        assert_eq!(reason(Verdict::Expired, OnExpiry::Approve), Ok(()));
        let output = decision(Verdict::Approved).outcome(OnExpiry::Reject).expect("approved");
        assert_eq!(
            (&output["approved"], &output["by"], &output["reason"]),
            (&json!(true), &json!("maya"), &json!("too much"))
        );
    }

    #[test]
    fn g2_people_are_reminded_so_long_before_the_end() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let asked = Timestamp::from_micros(0);
        let rule = |remind| Rule { of: vec![], need: 1, expires: hours(4), on_expiry: OnExpiry::Reject, remind };
        assert_eq!(remind_at(&rule(Some(hours(1))), asked), Some(asked + hours(3)));
        assert_eq!(remind_at(&rule(Some(hours(4))), asked), None);
        assert_eq!(remind_at(&rule(None), asked), None);
    }

    #[test]
    fn g2_an_approval_is_named_by_its_job_and_its_step() {
        let id = ApprovalId { job: JobId::from_number(7), step: "review[3]".into() };
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("job_01HZX5T0N8W2A".parse::<ApprovalId>(), Err(BadApprovalId::NoStep));
        assert!(matches!("evt_1/x".parse::<ApprovalId>(), Err(BadApprovalId::Job(_))));
    }

    #[test]
    fn g2_a_card_shows_what_the_step_says_in_few_short_lines() {
        let show = json!({"amount": 40, "cart": {"id": "c-1"}, "note": format!("a\nb {}", "x".repeat(400))});
        let card = Card::of("Discount  of\n40 %", &show, |_, value| value.replace("c-1", "•••"));
        assert_eq!(card.title, "Discount of 40 %");
        assert_eq!(card.facts[..2], [("amount".into(), "40".into()), ("cart".into(), r#"{"id":"•••"}"#.into())]);
        assert!(card.facts[2].1.starts_with("a b xxx") && card.facts[2].1.chars().count() == 301);
        assert_eq!(Card::of("t", &json!("x"), |_, value| value.into()).facts, [("about".into(), "x".into())]);
        assert_eq!(Card::of("t", &json!({}), |_, value| value.into()).facts, []);
    }

    proptest! {
        /// Whoever votes, in whatever order: approved means that so many different people who may have approved, and that
        /// nobody rejected before.
        #[test]
        fn g2_no_order_of_votes_decides_without_enough_people(
            votes in proptest::collection::vec((0usize..5, prop_oneof![Just(Vote::Approve), Just(Vote::Reject)]), 0..20),
            need in 1u32..4,
        ) {
            let names = ["maya", "omar", "ines", "rita", "eve"];
            let of: Vec<String> = names[..4].iter().map(|name| (*name).to_string()).collect();
            let mut ballots: Vec<Ballot> = Vec::new();
            for (who, vote) in votes {
                let standing = Standing { of: &of, need, requester: Some("rita"), expires_at: END, ballots: &ballots, decision: None };
                match rule(standing, names[who], vote, Timestamp::from_micros(1)) {
                    Ruling::Counts(tally) => {
                        ballots.push(ballot(names[who], vote));
                        prop_assert!(tally.have < need && tally.have as usize == ballots.len());
                    }
                    Ruling::Decides(Verdict::Approved) => {
                        ballots.push(ballot(names[who], vote));
                        let mut voters: Vec<&str> = ballots.iter().map(|ballot| ballot.actor.as_str()).collect();
                        voters.sort_unstable();
                        voters.dedup();
                        prop_assert!(voters.len() as u32 == need && !voters.contains(&"rita") && !voters.contains(&"eve"));
                        break;
                    }
                    Ruling::Decides(verdict) => {
                        prop_assert_eq!((verdict, vote), (Verdict::Rejected, Vote::Reject));
                        break;
                    }
                    Ruling::Before(_) | Ruling::NotAllowed(_) => {}
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
