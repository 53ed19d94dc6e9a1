//! Labels: values that name something of the workspace, or a word of a fixed list. Never anything of an event.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use std::fmt::{Debug, Write};
use std::hash::Hash;
use std::sync::Arc;

/// A label's value. Made for every job, hence without copying.
#[derive(Clone, Debug)]
pub enum Label {
    Word(&'static str),
    Name(Arc<str>),
}

impl Label {
    pub fn as_str(&self) -> &str {
        match self {
            Label::Word(word) => word,
            Label::Name(name) => name,
        }
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Label) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl Hash for Label {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&'static str> for Label {
    fn from(word: &'static str) -> Self {
        Label::Word(word)
    }
}

impl From<&Arc<str>> for Label {
    fn from(name: &Arc<str>) -> Self {
        Label::Name(name.clone())
    }
}

impl From<&String> for Label {
    fn from(name: &String) -> Self {
        Label::Name(Arc::from(name.as_str()))
    }
}

impl EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.as_str())
    }
}

/// The labels of a metric, in order.
pub trait Labels: Clone + Eq + Hash + Debug + EncodeLabelSet + Send + Sync + 'static {
    const NAMES: &'static [&'static str];

    /// One value for each name.
    fn with(values: Vec<Label>) -> Self;
}

macro_rules! labels {
    ($($name:ident { $($field:ident),* })*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name { $(pub $field: Label),* }

        impl Labels for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            fn with(values: Vec<Label>) -> Self {
                let mut values = values.into_iter();
                $name { $($field: values.next().expect("one for each name")),* }
            }
        }
    )*};
}

labels! {
    BySource { source }
    BySourceOutcome { source, outcome }
    BySourceReason { source, reason }
    BySourceSecret { source, secret }
    ByLayerFlow { layer, flow }
    ByFlow { flow }
    ByFlowState { flow, state }
    ByFlowOutcome { flow, outcome }
    ByFlowReason { flow, reason }
    ByFlowResult { flow, result }
    ByFlowStepOutcome { flow, step, outcome }
    ByFlowStepKindOutcome { flow, step, kind, outcome }
    ByFlowStepReason { flow, step, reason }
    ByFlowHow { flow, how }
    ByFlowWhy { flow, why }
    ByFlowDecision { flow, decision }
    ByStoreOutcome { store, outcome }
    ByBudget { budget }
    ByPolicyRule { policy, rule }
    ByIntegration { integration }
    ByIntegrationOutcome { integration, outcome }
    ByIntegrationState { integration, state }
    ByIntegrationTo { integration, to }
    ByIntegrationClass { integration, code_class }
    ByRuntimeOutcome { runtime, outcome }
    ByRuntimeWhy { runtime, why }
    ByProtection { protected }
    ByKind { kind }
    ByScope { scope }
    ByState { state }
    ByWindow { window }
    ByListener { listener }
    ByOutcome { outcome }
    ByListenerReason { listener, reason }
    ByAction { action }
    ByActionVia { action, via }
    ByChannelOutcome { channel, outcome }
    BySignal { signal }
    Build { version, revision, rustc }
    Config { version, hash }
}
