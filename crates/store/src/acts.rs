//! What verbs say of themselves in the audit. Both engines say it alike.

use crate::read::{BudgetRow, JobRow};
use crate::replay::InPlan;
use crate::{
    Accepted, FireAsk, ForgetAsk, Forgotten, GrantAsk, Resolution, ResolveAsk, ReviveAsk, SteerAsk, UnknownRuling,
    VersionId,
};
use clinch_core::audit::{Act, Who};
use clinch_core::control::Control;
use clinch_core::sender::{Sender, TokenId};
use clinch_core::time::Timestamp;
use serde_json::{Value, json};

impl ReviveAsk {
    /// A sender that delivers again may make a dead letter live again, where its flow says so.
    pub(crate) fn of_sender(job: clinch_core::id::JobId, at: Timestamp) -> ReviveAsk {
        let record = Who::clinch("intake").record("the sender delivered it again (on_duplicate_of_dead: replay)", at);
        ReviveAsk { job, record, version: None, unknown: None }
    }

    /// `dead` is how it was.
    pub(crate) fn act(&self, dead: &JobRow, version: VersionId, by_plan: Option<&InPlan>) -> Act {
        let mut after = json!({ "state": "queued", "replays": dead.replays + 1, "version": version.0 });
        if let Some(ruling) = self.unknown {
            after["unknown_effects"] = match ruling {
                UnknownRuling::Resend => json!("sent again"),
                UnknownRuling::Skip => json!("taken as done"),
            };
        }
        if let Some(by) = by_plan {
            after["plan"] = json!(by.plan.to_string());
        }
        let reason = dead.reason.map(|reason| reason.to_string());
        Act {
            action: "job.replay",
            object: self.job.to_string(),
            job: Some(self.job),
            before: json!({ "state": "dead", "reason": reason, "replays": dead.replays, "version": dead.version.0 }),
            after,
        }
    }
}

impl ResolveAsk {
    pub(crate) fn act(&self) -> Act {
        let state = match self.resolution {
            Resolution::Done => "done",
            Resolution::NotDone => "not done",
        };
        Act {
            action: "effect.resolve",
            object: self.effect.to_string(),
            job: Some(self.effect.job),
            before: json!({ "state": "unknown" }),
            after: json!({ "state": state, "proof": self.proof }),
        }
    }
}

impl SteerAsk {
    /// `version` is what it has from now on.
    pub(crate) fn act(&self, before: Option<&Control>, version: i64) -> Act {
        let told = |value: &str, until: Option<Timestamp>, version: i64| {
            let value: Value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            json!({ "value": value, "until": until.map(|until| until.to_string()), "version": version })
        };
        // The rest of its name says what kind of control it is, and so does the action.
        let object = self.name.split_once('/').map_or(&*self.name, |(_, object)| object);
        Act {
            action: self.action,
            object: object.into(),
            job: None,
            before: before.map_or(Value::Null, |before| told(&before.value, before.until, before.version)),
            after: self.value.as_deref().map_or(Value::Null, |value| told(value, self.until, version)),
        }
    }
}

impl GrantAsk {
    pub(crate) fn act(&self, before: &BudgetRow, after: &BudgetRow) -> Act {
        let left = |row: &BudgetRow| json!({ "left": row.account.left(row.allowance), "granted": row.account.extra });
        Act {
            action: "budget.grant",
            object: format!("budget:{}/{}", self.budget, self.entity),
            job: None,
            before: left(before),
            after: left(after),
        }
    }
}

impl FireAsk {
    /// A person wanted this run.
    pub(crate) fn act(&self, run: &Accepted) -> Act {
        Act {
            action: "schedule.run",
            object: format!("schedule:{}", self.schedule),
            job: Some(run.job),
            before: Value::Null,
            after: json!({ "job": run.job.to_string() }),
        }
    }
}

impl ForgetAsk {
    pub(crate) fn act(&self, erased: &Forgotten) -> Act {
        Act {
            action: "data.forget",
            object: self.subject.clone(),
            job: None,
            before: Value::Null,
            after: json!({
                "events_erased": erased.events, "unfinished_jobs": erased.unfinished, "answers_erased": erased.answers,
            }),
        }
    }
}

pub(crate) fn issue(token: &Sender) -> Act {
    Act {
        action: "token.issue",
        object: token.token.to_string(),
        job: None,
        before: Value::Null,
        after: json!({ "sender": token.name.as_str(), "expires_at": token.expires_at.map(|at| at.to_string()) }),
    }
}

pub(crate) fn revoke(token: TokenId, sender: &str) -> Act {
    Act {
        action: "token.revoke",
        object: token.to_string(),
        job: None,
        before: json!({ "sender": sender, "state": "live" }),
        after: json!({ "sender": sender, "state": "revoked" }),
    }
}
