//! Approvals: what a step asks people, their votes, and the one verdict. Both engines decide alike, by `clinch_core::approval`.

use crate::Record;
use clinch_core::approval::{
    ApprovalId, Ballot, Decision, NotAllowed, OnExpiry, Rule, Standing, Tally, Verdict, Vote, tally,
};
use clinch_core::audit::{Act, Who};
use clinch_core::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// A step wants something decided.
#[derive(Clone, Debug)]
pub struct ApprovalAsk {
    pub step: Arc<str>,
    pub flow: Arc<str>,
    pub rule: Rule,
    /// The person who started or replayed the job, if it was one.
    pub requester: Option<String>,
    /// Where people are told of it.
    pub place: Option<Place>,
    pub at: Timestamp,
}

/// A channel of an integration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub integration: String,
    pub channel: String,
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Until then it may be decided.
    Pending {
        expires_at: Timestamp,
    },
    Decided {
        decision: Decision,
        on_expiry: OnExpiry,
    },
}

/// Somebody's vote.
#[derive(Clone, Debug)]
pub struct DecideAsk {
    pub approval: ApprovalId,
    pub vote: Vote,
    pub record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// This vote was the last that was needed.
    Verdict(Decision),
    /// It counts, and more are needed.
    Counted(Tally),
    /// The same person has said the same before: nothing was changed.
    Before(Tally),
    /// Another verdict came first: this one.
    Late(Decision),
    NotAllowed(NotAllowed),
    NotFound,
}

impl DecideAsk {
    /// What came of the vote; `None` if there is nothing to put on record.
    pub(crate) fn act(&self, decided: &Decided) -> Option<(Act, Record)> {
        let action = match self.vote {
            Vote::Approve => "approval.approve",
            Vote::Reject => "approval.reject",
            Vote::Cancel => "approval.cancel",
        };
        Some((act(action, &self.approval, json!({ "state": decided.told()? })), self.record.clone()))
    }

    pub(crate) fn ballot(&self) -> Ballot {
        let Record { actor, reason, at, .. } = &self.record;
        Ballot { actor: actor.clone(), vote: self.vote, at: *at, reason: reason.clone() }
    }

    pub(crate) fn decision(&self, verdict: Verdict) -> Decision {
        let Record { actor, reason, at, .. } = &self.record;
        Decision { verdict, by: actor.clone(), reason: reason.clone(), at: *at }
    }
}

impl Decided {
    fn told(&self) -> Option<String> {
        Some(match self {
            Decided::Verdict(decision) => decision.verdict.word().to_string(),
            Decided::Counted(tally) => tally.to_string(),
            Decided::Late(decision) => format!("too late: {}", decision.told()),
            Decided::NotAllowed(why) => format!("not counted: {why}"),
            Decided::Before(_) | Decided::NotFound => return None,
        })
    }
}

impl ApprovalAsk {
    pub(crate) fn act(&self, approval: &ApprovalId) -> (Act, Record) {
        let until = (self.at + self.rule.expires).to_string();
        let after = json!({ "state": "pending", "need": self.rule.need, "of": self.rule.of, "until": until });
        (act("approval.ask", approval, after), Who::clinch("worker").record("a step waits for people", self.at))
    }
}

/// Nobody has decided it in time.
pub(crate) fn expiry(known: &ApprovalRow, decision: &Decision) -> (Act, Record) {
    let after = json!({ "state": "expired", "votes": known.tally().to_string() });
    (act("approval.expire", &known.id, after), Who::clinch("keeper").record(&*decision.reason, decision.at))
}

fn act(action: &'static str, approval: &ApprovalId, after: Value) -> Act {
    Act { action, object: approval.to_string(), job: Some(approval.job), before: Value::Null, after }
}

/// One approval, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRow {
    pub id: ApprovalId,
    pub flow: Arc<str>,
    pub of: Vec<String>,
    pub need: u32,
    pub on_expiry: OnExpiry,
    pub requester: Option<String>,
    pub place: Option<Place>,
    pub asked_at: Timestamp,
    pub expires_at: Timestamp,
    /// How often people were told of it.
    pub told: u32,
    pub ballots: Vec<Ballot>,
    /// `None`: it waits.
    pub decision: Option<Decision>,
}

impl ApprovalRow {
    pub fn tally(&self) -> Tally {
        tally(&self.ballots, self.need)
    }

    pub(crate) fn standing(&self) -> Standing<'_> {
        Standing {
            of: &self.of,
            need: self.need,
            requester: self.requester.as_deref(),
            expires_at: self.expires_at,
            ballots: &self.ballots,
            decision: self.decision.as_ref(),
        }
    }
}

/// `Some(None)`: those that wait.
#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    pub state: Option<Option<Verdict>>,
    pub flow: Option<String>,
    pub step: Option<String>,
    pub job: Option<clinch_core::id::JobId>,
    /// Only those after it in the list: the last of the page before.
    pub before: Option<ApprovalId>,
    pub limit: usize,
}

#[derive(Clone, Debug)]
pub struct ApprovalPage {
    pub rows: Vec<ApprovalRow>,
    pub more: bool,
}

/// Those of which people of one place are to be told now. Whoever takes them has until then to do it.
#[derive(Clone, Debug)]
pub struct TellAsk {
    pub now: Timestamp,
    pub until: Timestamp,
    /// Places that were told something already in this round.
    pub but: Vec<Place>,
    pub most: usize,
}

/// How many wait, and since when the oldest does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub flow: Arc<str>,
    pub approvals: u64,
    pub oldest: Timestamp,
}

/// How a store spells a vote that counts.
pub(crate) const fn vote_number(vote: Vote) -> i16 {
    match vote {
        Vote::Approve => 1,
        Vote::Reject => 2,
        Vote::Cancel => 3,
    }
}

pub(crate) const fn vote(number: i16) -> Vote {
    match number {
        2 => Vote::Reject,
        3 => Vote::Cancel,
        _ => Vote::Approve,
    }
}

pub(crate) fn names(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

pub(crate) fn spelt(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}
