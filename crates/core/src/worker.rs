//! A worker: the queue it consumes, its steps, and what it does when they fail.

use crate::expr::{Expr, Template};
use crate::integration::{Integration, Promise};
use crate::retry::RetryPolicy;
use crate::script::ScriptAction;
use std::sync::Arc;
use std::time::Duration;

pub const CONCURRENCY_DEFAULT: usize = 16;
pub const CONCURRENCY_MAX: usize = 10_000;
pub const STEP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Worker {
    pub name: String,
    pub trigger: Trigger,
    /// How many jobs run at once.
    pub concurrency: usize,
    pub retry: RetryPolicy,
    /// The dead letter queue's name, after `dlq:`; without one, dead letters are kept under the queue's own name.
    pub dead_letters: Option<String>,
    /// Never empty.
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Trigger {
    Queue(String),
    /// A cron line; not run by this version.
    Schedule(String),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub name: Arc<str>,
    /// Runs only when this is true; without it, always.
    pub when: Option<Expr>,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Http(Box<HttpAction>),
    Script(Box<ScriptAction>),
    /// Written in the dialect, not run by this version: `serve` refuses it by this name.
    NotYet(&'static str),
}

#[derive(Clone, Debug)]
pub struct HttpAction {
    /// Who is called: an integration, or whoever is at the url.
    pub partner: Arc<Integration>,
    pub method: String,
    /// Begins with `/` where it is a path of the integration.
    pub url: Template,
    pub headers: Vec<(String, Template)>,
    pub body: HttpBody,
    pub timeout: Duration,
    pub promise: Promise,
}

#[derive(Clone, Debug)]
pub enum HttpBody {
    /// The event's body, byte for byte.
    Event,
    /// The value of an expression, as JSON.
    From(Expr),
    /// Text with templates in it.
    Text(Template),
    /// A tree of values with templates in its strings, as JSON.
    Tree(crate::expr::Tree),
    Empty,
}
