//! A playbook: what is done when an event of some type comes, whichever source it is from.
//!
//! It runs as a worker of a queue of its own, filled by a flow of its own: so whatever is true of jobs, queues and flows is
//! true of it.

use crate::flow::{
    AnswerRule, Enqueue, Flow, QUEUE_RETENTION_DEFAULT, Queue, Subscription, TypePattern, VISIBILITY_TIMEOUT_DEFAULT,
};
use crate::lane::Order;
use crate::source::Source;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Playbook {
    /// Its flow and its worker have this name too.
    pub name: String,
    /// The types of events that start it. Never empty.
    pub on: Vec<TypePattern>,
}

/// The queue of a playbook. It is there without being declared; `queues.yml` may give it settings.
pub fn queue_of(name: &str) -> String {
    format!("playbook.{name}")
}

impl Playbook {
    pub fn may_take(&self, source: &Source) -> bool {
        self.on.iter().any(|pattern| source.may_send(pattern))
    }

    /// What puts its jobs into its queue: one for each event that it takes.
    pub fn flow(&self, sources: &[Source]) -> Flow {
        let from = |source: &Source| Subscription { source: source.name.clone(), on: self.on.clone() };
        let mut subscriptions: Vec<Subscription> =
            sources.iter().filter(|source| self.may_take(source)).map(from).collect();
        // A flow may have several routes, which are sources of one name.
        subscriptions.dedup();
        Flow {
            name: self.name.clone(),
            routes: Vec::new(),
            subscriptions,
            enqueue: vec![Enqueue {
                step: self.name.clone(),
                queue: queue_of(&self.name),
                key: None,
                group: None,
                priority: None,
                delay: None,
            }],
            // The source says what is answered.
            answer: AnswerRule { status: 202 },
        }
    }

    /// Its queue, where nobody has declared it.
    pub fn queue(&self) -> Queue {
        Queue {
            name: queue_of(&self.name),
            visibility_timeout: VISIBILITY_TIMEOUT_DEFAULT,
            retention: QUEUE_RETENTION_DEFAULT,
            order: Order::Any,
            group: None,
            priority: 0,
            delay: Duration::ZERO,
        }
    }
}
