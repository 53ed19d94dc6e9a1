//! Why a job is a dead letter: the fixed list that metrics, console and runbooks share.

use std::fmt;
use std::str::FromStr;

macro_rules! reasons {
    ($($variant:ident $word:literal $meaning:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($variant,)* }

        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            pub const fn word(self) -> &'static str {
                match self { $(Reason::$variant => $word,)* }
            }

            /// One sentence for the person who looks at the dead letter.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    AuthFailed "auth_failed" "the target refused our credentials (401 or 403)",
    RateLimited "rate_limited" "the target kept answering 429 until the attempts were spent",
    RejectedByTarget "rejected_by_target" "the target understood the request and refused it",
    TargetDown "target_down" "the target could not be reached, or kept answering 5xx",
    Timeout "timeout" "the target did not answer in time, until the attempts were spent",
    UnknownOutcome "unknown_outcome" "a request was sent and its answer was lost; sending again could repeat the effect",
    BadPayload "bad_payload" "the event is not what the steps need",
    MissingData "missing_data" "a value that a step needs is not there",
    ScriptError "script_error" "a script ended with an error",
    PolicyDenied "policy_denied" "a policy forbade the effect",
    ApprovalRejected "approval_rejected" "a person refused what waited for approval",
    ApprovalExpired "approval_expired" "nobody decided about it in time",
    BudgetExhausted "budget_exhausted" "the retry budget of its entity is spent",
    TooOld "too_old" "the job waited longer than it may",
    ConfigError "config_error" "the workspace does not say how to run this job",
    Internal "internal" "clinch itself failed; the log has more",
    Unreadable "unreadable" "what was stored of it was changed and does not open any more",
    Forgotten "forgotten" "its data was erased (clinch forget)",
    EgressBlocked "egress_blocked" "the target is a place that clinch may not call",
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a dead-letter reason")]
pub struct BadReason(pub String);

impl FromStr for Reason {
    type Err = BadReason;
    fn from_str(text: &str) -> Result<Self, BadReason> {
        Reason::ALL.iter().copied().find(|r| r.word() == text).ok_or_else(|| BadReason(text.to_string()))
    }
}
