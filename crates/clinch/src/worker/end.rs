//! How a step ends, and with it perhaps the attempt.

use crate::effects::Trace;
use crate::telemetry::Label;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Receipt};
use clinch_core::time::Timestamp;
use clinch_store::{Conclusion, Testimony};
use serde_json::Value;
use std::sync::Arc;

/// How an attempt ended, with what is still to be written of its last effect.
pub struct End {
    pub outcome: Outcome,
    /// The step in which it ended, for the metrics.
    pub step: Label,
    pub unwritten: Option<Unwritten>,
    /// How often it has failed before, where that is not how often the job has.
    pub failures: Option<u32>,
    /// From when on the retry policy counts, where that is not the job's first attempt.
    pub since: Option<Timestamp>,
    /// If this is the end of the job, what it has done may have to be undone.
    pub undo: bool,
}

/// What is still to be written of an effect.
pub struct Unwritten {
    pub conclusion: Conclusion,
    pub trace: Trace,
}

impl From<Conclusion> for Unwritten {
    /// Of something that this attempt did not send.
    fn from(conclusion: Conclusion) -> Unwritten {
        Unwritten { conclusion, trace: Trace::Nothing }
    }
}

impl Unwritten {
    /// What is worth keeping of it when the job is another's by now: what was learned, and not what would have followed from it.
    pub fn testimony(&self) -> Option<Testimony> {
        let Trace::Sent { status } = self.trace else { return None };
        let state = match &self.conclusion.state {
            EffectState::GivenUp(Reason::UnknownOutcome) => EffectState::Unknown,
            EffectState::GivenUp(_) => EffectState::NotDone,
            learned => learned.clone(),
        };
        Some(Testimony { conclusion: Conclusion { state, ..self.conclusion.clone() }, status })
    }
}

impl End {
    pub fn of(outcome: Outcome, step: impl Into<Label>) -> End {
        End { outcome, step: step.into(), unwritten: None, failures: None, since: None, undo: false }
    }

    pub fn refused(reason: Reason, error: String, step: impl Into<Label>) -> End {
        End::of(Outcome::Refused(Failure::new(reason, error)), step)
    }

    /// What is left out now may have been sent before: then a person is asked, and it is not passed over in silence.
    pub fn of_left_out<'e>(mut effects: impl Iterator<Item = &'e Effect>, now: Timestamp) -> Option<End> {
        let unclear = effects.find(|effect| effect.state.is_unclear())?;
        Some(End::ask(now, &unclear.name.as_str().into()))
    }

    /// Nobody but a person can say whether it was done.
    pub fn ask(now: Timestamp, step: &Arc<str>) -> End {
        let why = format!(
            "step `{step}` was sent before and its outcome is unknown; a person must say whether to send it again"
        );
        let unknown = Conclusion { name: step.clone(), state: EffectState::Unknown, at: now };
        End { unwritten: Some(unknown.into()), ..End::refused(Reason::UnknownOutcome, why, step) }
    }
}

/// What a step came to.
pub enum StepEnd {
    /// Its condition was false.
    LeftOut,
    /// Its branches are done, and their results are in the scope.
    Together,
    /// It only computed this.
    Computed(Value),
    /// An earlier attempt did it.
    DoneBefore(Receipt),
    /// It was done now, and that is still to be written.
    Done(Receipt, Unwritten),
    /// The attempt ends here.
    Over(End),
    /// Somebody else has the job now.
    TakenOver,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_a_late_answer_says_what_was_learned_and_not_that_it_was_given_up() {
        let told = |state, trace| {
            let conclusion = Conclusion { name: "post".into(), state, at: Timestamp::from_micros(0) };
            Unwritten { conclusion, trace }.testimony().map(|said| (said.conclusion.state, said.status))
        };
        let sent = |status| Trace::Sent { status };
        let refused = EffectState::GivenUp(Reason::RejectedByTarget);
        assert_eq!(told(refused.clone(), sent(Some(422))), Some((EffectState::NotDone, Some(422))));
        let lost = EffectState::GivenUp(Reason::UnknownOutcome);
        assert_eq!(told(lost, sent(None)), Some((EffectState::Unknown, None)));
        assert_eq!(told(EffectState::Unknown, sent(Some(502))), Some((EffectState::Unknown, Some(502))));
        assert_eq!(told(refused, Trace::Nothing), None);
    }
}
