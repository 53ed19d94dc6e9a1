//! resolve: a person's word on an effect that may or may not have happened. Both engines decide alike.

use crate::Record;
use clinch_core::effect::{Effect, EffectId, EffectState};
use clinch_core::job::Word;

/// What a person found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    Done,
    NotDone,
}

impl Resolution {
    const fn says(self, state: &EffectState) -> bool {
        matches!((self, state), (Resolution::Done, EffectState::Done(_)) | (Resolution::NotDone, EffectState::NotDone))
    }
}

#[derive(Clone, Debug)]
pub struct ResolveAsk {
    pub effect: EffectId,
    pub resolution: Resolution,
    /// How the person knows.
    pub proof: String,
    pub record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    Resolved(Standing),
    /// It is what the person says already; nothing was changed.
    Before(Standing),
    /// It is known to be something else; nothing was changed.
    NotUnknown {
        state: &'static str,
    },
    /// Its job has not ended: it decides by the rule of its integration.
    Unfinished {
        job: Word,
    },
    /// There is no such job, or it has no such effect.
    NotFound,
}

/// How the job stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub job: Word,
    /// Effects of it that are unknown still.
    pub unknown: usize,
}

/// May the effect be ruled on? `Err` is the answer to somebody for whom nothing is changed.
pub(crate) fn decide(ask: &ResolveAsk, effects: &[Effect], job: Word) -> Result<Standing, Resolved> {
    let unclear = |effect: &&Effect| effect.state.is_unclear();
    let Some(effect) = effects.iter().find(|effect| effect.name == ask.effect.step) else {
        return Err(Resolved::NotFound);
    };
    let standing = Standing { job, unknown: effects.iter().filter(unclear).count() };
    match (&effect.state, job) {
        (EffectState::Open, job) => Err(Resolved::Unfinished { job }),
        (state, Word::Dead | Word::Success | Word::Noop) if state.is_unclear() => {
            Ok(Standing { unknown: standing.unknown - 1, ..standing })
        }
        (state, job) if state.is_unclear() => Err(Resolved::Unfinished { job }),
        (state, _) if ask.resolution.says(state) => Err(Resolved::Before(standing)),
        (state, _) => Err(Resolved::NotUnknown { state: state.word() }),
    }
}
