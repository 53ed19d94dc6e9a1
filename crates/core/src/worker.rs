//! A worker: the queue it consumes or the schedule it follows, its steps, and what it does when they fail.

use crate::approval::ApprovalAction;
use crate::dedup::DedupRule;
use crate::expr::{BadExpr, Expr, Template, Tree};
use crate::foreach::Each;
use crate::integration::{Integration, Promise};
use crate::message::Channel;
use crate::phone::{Country, Strictness};
use crate::retry::RetryPolicy;
use crate::saga;
use crate::schedule::Schedule;
use crate::scope::Scope;
use crate::script::ScriptAction;
use crate::time::{DURATION_MAX, Timestamp};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

pub const CONCURRENCY_DEFAULT: usize = 16;
pub const CONCURRENCY_MAX: usize = 10_000;
/// No step parts into more.
pub const BRANCHES_MAX: usize = 20;
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

impl Worker {
    /// The queue that its jobs are in.
    pub fn queue(&self) -> &str {
        match &self.trigger {
            Trigger::Queue(name) => name,
            Trigger::Schedule(schedule) => &schedule.queue,
        }
    }

    pub fn schedule(&self) -> Option<&Schedule> {
        match &self.trigger {
            Trigger::Queue(_) => None,
            Trigger::Schedule(schedule) => Some(schedule),
        }
    }

    /// What is done under this name of the ledger, and for which step.
    pub fn action_of(&self, effect: &str) -> Option<(&Action, &Step)> {
        let step = self.all_steps().find(|step| *step.name == *saga::step_of(effect))?;
        let action = if saga::is_undo(effect) { step.compensate.as_ref()? } else { &step.action };
        Some((action, step))
    }

    /// Every step, those inside branches too, as they are written.
    pub fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().flat_map(|step| {
            let inside = step.branches().iter().flat_map(|branch| &branch.steps);
            std::iter::once(step).chain(inside)
        })
    }

    /// Every action, those that undo others too.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.all_steps().flat_map(|step| std::iter::once(&step.action).chain(&step.compensate))
    }

    /// How long a job of it may live, if it fails as often and as late as it can.
    pub fn horizon(&self) -> Duration {
        let attempt_max = along(&self.steps, &Action::timeout);
        let undos = self.all_steps().filter_map(|step| step.compensate.as_ref());
        // One after the other, each with all attempts.
        let undoing = undos.map(|undo| self.retry.horizon(undo.timeout()));
        let horizon = self.retry.horizon(attempt_max).saturating_add(along(&self.steps, &Action::delay));
        undoing.fold(horizon, Duration::saturating_add)
    }

    /// The branch that a step of this name is inside of, if it is in one.
    pub fn branch_of(&self, step: &str) -> Option<&Branch> {
        let mut branches = self.steps.iter().flat_map(Step::branches);
        branches.find(|branch| branch.steps.iter().any(|own| *own.name == *step))
    }
}

/// The time of steps one after the other, and of branches the longest.
fn along(steps: &[Step], time: &dyn Fn(&Action) -> Duration) -> Duration {
    let times = steps.iter().map(|step| match &step.action {
        Action::Parallel(branches) => {
            branches.iter().map(|branch| along(&branch.steps, time)).max().unwrap_or_default()
        }
        action => time(action),
    });
    times.fold(Duration::ZERO, Duration::saturating_add)
}

#[derive(Clone, Debug, PartialEq)]
pub enum Trigger {
    Queue(String),
    Schedule(Box<Schedule>),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub name: Arc<str>,
    /// Runs only when this is true; without it, always.
    pub when: Option<Expr>,
    pub action: Action,
    /// Runs once for each of a list; without it, once.
    pub each: Option<Each>,
    /// Undoes it when the job ends for good after it was done: an action that does something outside.
    pub compensate: Option<Action>,
    /// The policies that it names. It may be under others too.
    pub policies: Vec<String>,
}

impl Step {
    pub fn branches(&self) -> &[Branch] {
        match &self.action {
            Action::Parallel(branches) => branches,
            _ => &[],
        }
    }
}

/// Steps that run in order, beside those of other branches. One step alone is a branch of its own name.
#[derive(Clone, Debug)]
pub struct Branch {
    pub name: Arc<str>,
    /// Runs only when this is true; without it, always.
    pub when: Option<Expr>,
    /// Never empty, and none of them parts again.
    pub steps: Vec<Step>,
}

impl Branch {
    /// One run of a step that runs for each of a list, under its own name.
    pub fn of_item(step: &Step, name: Arc<str>) -> Branch {
        let step = Step { name: name.clone(), each: None, ..step.clone() };
        Branch { name, when: None, steps: vec![step] }
    }
}

#[derive(Clone, Debug)]
pub enum Action {
    Http(Box<HttpAction>),
    Script(Box<ScriptAction>),
    Transform(Tree),
    Validate(ValidateAction),
    Phone(PhoneAction),
    Geoip(GeoipAction),
    Delay(DelayAction),
    DedupKey(Box<DedupRule>),
    Setnx(SetnxAction),
    Sql(Box<SqlAction>),
    Send(Box<SendAction>),
    Queue(Box<QueueAction>),
    Pull(PullAction),
    Policy(PolicyAction),
    Approval(Box<ApprovalAction>),
    /// 1 to `BRANCHES_MAX`, side by side.
    Parallel(Vec<Branch>),
}

impl Action {
    /// What it is called in a workspace.
    pub const fn word(&self) -> &'static str {
        match self {
            Action::Http(_) => "http",
            Action::Script(_) => "script",
            Action::Transform(_) => "transform",
            Action::Validate(_) => "validate",
            Action::Phone(_) => "phone",
            Action::Geoip(_) => "geoip",
            Action::Delay(_) => "delay",
            Action::DedupKey(_) => "dedup_key",
            Action::Setnx(_) => "setnx",
            Action::Sql(_) => "sql",
            Action::Send(_) => "send",
            Action::Queue(_) => "queue",
            Action::Pull(_) => "queue_pull",
            Action::Policy(_) => "policy",
            Action::Approval(_) => "approval",
            Action::Parallel(_) => "parallel",
        }
    }

    /// Whom it calls, and what is done about an answer that is lost; `None` if nothing leaves the house.
    pub fn outward(&self) -> Option<(&Arc<Integration>, &Promise)> {
        match self {
            Action::Http(http) => Some((&http.partner, &http.promise)),
            Action::Script(script) => Some((&script.partner, &script.promise)),
            Action::Sql(sql) => Some((&sql.partner, &sql.promise)),
            Action::Send(send) => Some((&send.partner, &send.promise)),
            Action::Transform(_)
            | Action::Validate(_)
            | Action::Phone(_)
            | Action::Geoip(_)
            | Action::Delay(_)
            | Action::DedupKey(_)
            | Action::Setnx(_)
            | Action::Queue(_)
            | Action::Pull(_)
            | Action::Policy(_)
            | Action::Approval(_)
            | Action::Parallel(_) => None,
        }
    }

    /// How long it may take.
    fn timeout(&self) -> Duration {
        match self {
            Action::Http(http) => http.timeout,
            Action::Script(script) => script.timeout,
            Action::Sql(sql) => sql.timeout,
            Action::Send(send) => send.timeout,
            Action::Transform(_) | Action::Validate(_) | Action::Phone(_) | Action::Geoip(_) => Duration::ZERO,
            Action::Delay(_) | Action::DedupKey(_) | Action::Setnx(_) | Action::Queue(_) | Action::Pull(_) => {
                Duration::ZERO
            }
            Action::Policy(_) | Action::Approval(_) | Action::Parallel(_) => Duration::ZERO,
        }
    }

    /// How long it makes a job wait, as far as it says so.
    fn delay(&self) -> Duration {
        match self {
            Action::Delay(DelayAction::For(pause)) => *pause,
            Action::Approval(approval) => approval.rule.expires,
            _ => Duration::ZERO,
        }
    }
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
    /// Whether the target is told the trace.
    pub propagate_trace: bool,
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
    Tree(Tree),
    Empty,
}

/// Holds a value against a schema of the workspace.
#[derive(Clone, Debug)]
pub struct ValidateAction {
    pub schema: String,
    pub from: Expr,
}

/// A phone number as the whole world writes it.
#[derive(Clone, Debug)]
pub struct PhoneAction {
    pub from: Expr,
    /// Where numbers without `+` are.
    pub country: Option<Country>,
    pub strict: Strictness,
}

/// What a database of the workspace says of an address.
#[derive(Clone, Debug)]
pub struct GeoipAction {
    pub from: Expr,
    /// A file, relative to the workspace.
    pub database: String,
}

/// Waits, without an attempt being charged.
#[derive(Clone, Debug)]
pub enum DelayAction {
    /// From when it was first reached.
    For(Duration),
    Until(Expr),
}

impl DelayAction {
    /// When the step lets its job go on. `reached` is when it was reached first.
    pub fn until(&self, reached: Timestamp, scope: &Scope) -> Result<Timestamp, BadExpr> {
        let until = match self {
            DelayAction::For(pause) => return Ok(reached + *pause),
            DelayAction::Until(until) => until,
        };
        let moment = match until.value(scope)? {
            Value::String(text) => text.parse().ok().map(|at: jiff::Timestamp| at.as_microsecond()),
            Value::Number(seconds) => seconds.as_i64().and_then(|seconds| seconds.checked_mul(1_000_000)),
            _ => None,
        };
        let moment = moment.map(Timestamp::from_micros).filter(|moment| moment.since(reached) <= DURATION_MAX);
        moment.ok_or_else(|| {
            let source = until.source();
            BadExpr(format!(
                "`{source}` is not a moment within 3650d: a text such as 2026-08-01T00:00:00Z, or seconds since 1970"
            ))
        })
    }
}

/// Sets a key that is not set, for a while.
#[derive(Clone, Debug)]
pub struct SetnxAction {
    pub key: Template,
    pub ttl: Duration,
    /// Another job has set it: does this one end there, with nothing to do?
    pub stops: bool,
}

/// Puts a job into a queue, or a dead letter back into its own.
#[derive(Clone, Debug)]
pub struct QueueAction {
    pub queue: String,
    pub body: QueueBody,
    /// The key that recognises it; without one, the step's own.
    pub key: Option<Expr>,
}

#[derive(Clone, Debug)]
pub enum QueueBody {
    /// The event's body, byte for byte.
    Event,
    /// The value of an expression, as JSON.
    From(Expr),
}

/// Reads dead letters, those that wait longest first. They stay where they are.
#[derive(Clone, Debug)]
pub struct PullAction {
    /// A dead letter queue, or a queue whose dead letters are kept under its own name.
    pub from: String,
    pub most: usize,
}

pub const PULL_DEFAULT: usize = 10;
pub const PULL_MAX: usize = 500;

/// A statement for a database, which is run once.
#[derive(Clone, Debug)]
pub struct SqlAction {
    pub partner: Arc<Integration>,
    /// Where the database is.
    pub address: Template,
    pub statement: Arc<str>,
    pub params: Vec<Tree>,
    pub timeout: Duration,
    pub promise: Promise,
}

/// A message from a template of the workspace.
#[derive(Clone, Debug)]
pub struct SendAction {
    pub partner: Arc<Integration>,
    pub channel: Channel,
    pub template: String,
    pub to: Template,
    /// What the template reads as `with`.
    pub with: Tree,
    pub timeout: Duration,
    pub promise: Promise,
}

/// Asks whether a policy would allow it.
#[derive(Clone, Debug)]
pub struct PolicyAction {
    pub policy: String,
    /// Over which channel it would go.
    pub channel: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c8_a_delay_counts_from_when_it_was_reached_or_ends_at_a_moment() {
        let reached = Timestamp::from_micros(5_000_000);
        let scope = |due: Value| Scope::from_iter([("body", json!({ "due": due }))]);
        let pause = DelayAction::For(Duration::from_secs(60));
        assert_eq!(pause.until(reached, &Scope::new()), Ok(Timestamp::from_micros(65_000_000)));
        let moment = DelayAction::Until(Expr::parse("body.due").expect("an expression"));
        for (due, seconds) in [(json!(90), 90), (json!("1970-01-01T00:01:30Z"), 90), (json!(1), 1)] {
            assert_eq!(moment.until(reached, &scope(due)), Ok(Timestamp::from_micros(seconds * 1_000_000)));
        }
        for bad in [json!("soon"), json!(null), json!(i64::MAX), json!("9999-01-01T00:00:00Z"), json!([])] {
            let said = moment.until(reached, &scope(bad.clone())).expect_err("not a moment");
            assert!(said.0.contains("is not a moment"), "{bad}: {said}");
        }
    }
}
