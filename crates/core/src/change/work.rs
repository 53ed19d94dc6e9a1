//! What is done: queues, workers, their steps, and the keys of their effects.

use super::doors::subject;
use super::{Found, Jobs, Kind, Owner, Pair, Said, times};
use crate::approval::{self, OnExpiry};
use crate::config::Workspace;
use crate::expr::Expr;
use crate::flow::Queue;
use crate::integration::{Promise, WRAPPED_FOR_DEFAULT};
use crate::lane::Order;
use crate::time::human;
use crate::worker::{Action, Step, Worker};
use std::time::Duration;

pub(super) fn queues(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.queues {
        let (subject, path) = (format!("queue {}", old.name), ["queues", old.name.as_str()]);
        let jobs = pair.jobs_of(&old.name);
        let Some(new) = pair.new.queue(&old.name) else {
            let held = match jobs == Jobs::NONE {
                true => "no job is in it.".to_string(),
                false => format!("{} in it, to be run as the version of then says.", jobs.do_it("is left", "are left")),
            };
            let said = format!("queue `{}` is gone: {held}", old.name);
            let gone = match jobs == Jobs::NONE {
                true => Said::note(Kind::Queue, subject, Owner::Queues, &path, said),
                false => Said::risk(Kind::Queue, subject, Owner::Queues, &path, said)
                    .fix("take it away when it is empty: `clinch jobs ls` shows who is left"),
            };
            found.say(gone);
            continue;
        };
        queue(pair, old, new, jobs, found);
    }
}

fn queue(pair: Pair<'_>, old: &Queue, new: &Queue, jobs: Jobs, found: &mut Found<'_>) {
    let subject = || format!("queue {}", old.name);
    let path = |key: &'static str| ["queues", old.name.as_str(), key];
    let waiting = match jobs.unfinished {
        0 => String::new(),
        _ => format!(" {} in it.", jobs.in_flight().do_it("is", "are")),
    };
    let order = |queue: &Queue| matches!(queue.order, Order::Fifo { .. });
    match (order(old), order(new)) {
        (false, true) => {
            let said = format!(
                "jobs of a group run one at a time and in order, but only those that are accepted from now on: one may overtake those that \
                 are waiting.{waiting}"
            );
            let change =
                Said::risk(Kind::Order, subject(), Owner::Queues, &path("fifo"), said).from("false").to("true");
            found.say(change.fix("let the queue run empty first: `clinch pause` its flow, wait, apply, resume"));
        }
        (true, false) => {
            let said =
                format!("jobs of a group run side by side: a later one may be done before an earlier one.{waiting}");
            let change =
                Said::risk(Kind::Order, subject(), Owner::Queues, &path("fifo"), said).from("true").to("false");
            found.say(change.fix("make sure that no step depends on the order"));
        }
        (true, true) if old.group != new.group => {
            let said = format!(
                "jobs are put into other groups: one that is accepted from now on may overtake those that wait in the old one.{waiting}"
            );
            found.say(Said::risk(Kind::Order, subject(), Owner::Queues, &path("group_from"), said));
        }
        _ => {}
    }
    if new.retention < old.retention {
        let (was, now) = times(old.retention, new.retention);
        let holds_dead = pair.old.workers.iter().any(|worker| worker.dead_letters.as_deref() == Some(&old.name));
        let what = if holds_dead { "dead letters" } else { "finished jobs" };
        let said = format!(
            "{what} are removed after {now} instead of {was}: those that are older go at once, and cannot be brought back."
        );
        let fix = match holds_dead {
            true => "replay what is still to be done first: `clinch dlq groups`",
            false => "look at what you still need first: `clinch jobs ls`",
        };
        let change = Said::risk(Kind::Retention, subject(), Owner::Queues, &path("retention"), said);
        found.say(change.from(was).to(now).fix(fix));
    }
}

pub(super) fn workers(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.workers {
        let Some(new) = pair.new.workers.iter().find(|new| new.name == old.name) else { continue };
        let at = At { pair, subject: subject(pair, "worker", &old.name), owner: Owner::Worker(&new.name), worker: old };
        retries(&at, old, new, found);
        if new.concurrency > old.concurrency {
            let said = format!(
                "up to {} jobs run at once instead of {}: whoever they call gets as much more at a time.",
                new.concurrency, old.concurrency
            );
            let change = Said::note(Kind::Pace, &at.subject, at.owner, &["concurrency"], said);
            found.say(change.from(old.concurrency.to_string()).to(new.concurrency.to_string()));
        }
        if let (Some(before), Some(after)) = (old.schedule(), new.schedule())
            && (before.cron.text() != after.cron.text() || before.zone != after.zone)
        {
            let said =
                "it runs at other times; the next run is by the new line, and nothing is made up for.".to_string();
            let change = Said::note(Kind::Schedule, &at.subject, at.owner, &["schedule"], said);
            found.say(change.from(before.cron.text()).to(after.cron.text()));
        }
        steps(&at, old, new, found);
    }
}

struct At<'a> {
    pair: Pair<'a>,
    subject: String,
    owner: Owner<'a>,
    worker: &'a Worker,
}

impl At<'_> {
    fn jobs(&self) -> Jobs {
        self.pair.jobs_of(self.worker.queue())
    }

    /// The list of steps is below another key in each kind of file.
    fn list(&self) -> &'static str {
        if self.pair.new.playbook(&self.worker.name).is_some() { "steps" } else { "run" }
    }
}

fn retries(at: &At<'_>, old: &Worker, new: &Worker, found: &mut Found<'_>) {
    let (before, after) = (old.horizon(), new.horizon());
    let (was, now) = times(before, after);
    let (from, to) = (old.retry.attempts_max, new.retry.attempts_max);
    if to < from {
        let said = format!(
            "a job that keeps failing is given up after {to} attempts instead of {from}, within {now} instead of {was}: an outage that is \
             longer makes dead letters."
        );
        let fix = format!("keep `max_attempts: {from}`, or lengthen `max_delay` so that the attempts reach as far");
        let change = Said::risk(Kind::Attempts, &at.subject, at.owner, &["retry", "max_attempts"], said);
        found.say(change.from(from.to_string()).to(to.to_string()).fix(fix));
    } else if after > before {
        let mut said = format!("a job that keeps failing is retried for {now} instead of {was}");
        let forgotten = new.all_steps().find_map(|step| {
            let (partner, promise) = step.action.outward()?;
            let honoured = honoured(promise)?;
            (after > honoured && before <= honoured).then_some((step, partner, honoured))
        });
        let short = short_keys(at.pair, old, after);
        let path = if to > from { ["retry", "max_attempts"] } else { ["retry", "max_delay"] };
        let change = match (forgotten, short) {
            (Some((step, partner, honoured)), _) => {
                said += &format!(
                    ": `{}` honours our key for {} only, and a retry of `{}` after that could do it twice.",
                    partner.name,
                    human(honoured),
                    step.name
                );
                Said::risk(Kind::Horizon, &at.subject, at.owner, &path, said)
                    .fix("let the job give up sooner (`max_elapsed`), or ask the partner for how long it knows a key")
            }
            (None, Some(ttl)) => {
                said += &format!(
                    ": deliveries that were accepted before are known for {} only, and a job of them that is replayed on the live version \
                     may outlive its key.",
                    human(ttl)
                );
                Said::risk(Kind::Horizon, &at.subject, at.owner, &path, said)
                    .fix("replay those on their own version, which is what happens if nothing is said")
            }
            (None, None) => Said::note(Kind::Horizon, &at.subject, at.owner, &path, said + "."),
        };
        found.say(change.from(format!("{from} attempts, {was}")).to(format!("{to} attempts, {now}")));
    }
    budget(at, old, new, found);
}

/// For how long a partner, or clinch in its place, knows a key; `None`: for ever, or there is none.
fn honoured(promise: &Promise) -> Option<Duration> {
    use crate::effect::Idempotency;
    match promise.idempotency {
        Idempotency::Header => promise.honoured_for,
        Idempotency::Wrap | Idempotency::Shared => Some(promise.honoured_for.unwrap_or(WRAPPED_FOR_DEFAULT)),
        Idempotency::Natural | Idempotency::Lookup | Idempotency::None => None,
    }
}

/// The shortest time for which deliveries of its old flows are known, where that is less than this.
fn short_keys(pair: Pair<'_>, worker: &Worker, horizon: Duration) -> Option<Duration> {
    let fills = pair.old.flows.iter().filter(|flow| flow.enqueue.iter().any(|step| step.queue == worker.queue()));
    let ttls = fills.flat_map(|flow| {
        let own = flow.routes.iter().filter_map(|route| route.dedup.as_ref().map(|rule| rule.ttl));
        let named = |name: &str| {
            pair.old
                .sources
                .iter()
                .filter(move |source| source.name == name)
                .map(|source| source.keys.ttl)
                .collect::<Vec<_>>()
        };
        own.chain(flow.subscriptions.iter().flat_map(move |from| named(&from.source)))
    });
    ttls.filter(|ttl| *ttl < horizon).min()
}

fn budget(at: &At<'_>, old: &Worker, new: &Worker, found: &mut Found<'_>) {
    let word = |worker: &Worker| {
        worker
            .retry
            .budget
            .as_ref()
            .map(|budget| format!("{} retries in {}", budget.allowance.units, human(budget.allowance.window)))
    };
    let (Some(before), after) = (&old.retry.budget, &new.retry.budget) else { return };
    let was = word(old).unwrap_or_default();
    let path = &["retry", "budget"];
    let Some(after) = after else {
        let said =
            "retries are no longer counted by entity: one that fails again and again takes the turns of the others.";
        return found.say(Said::risk(Kind::Cap, &at.subject, at.owner, path, said.into()).from(was).to("none"));
    };
    let now = word(new).unwrap_or_default();
    if before.per != after.per {
        let said = "retries are counted by somebody else: what was spent before counts for nobody.";
        return found.say(Said::risk(Kind::Cap, &at.subject, at.owner, path, said.into()).from(was).to(now));
    }
    let (fewer, longer) =
        (after.allowance.units < before.allowance.units, after.allowance.window > before.allowance.window);
    if fewer || longer {
        let said = format!(
            "one entity may cause {now} instead of {was}: its jobs beyond that become dead letters sooner, or wait."
        );
        let fix = "look at who has little left: `clinch budget ls`";
        found.say(Said::risk(Kind::Cap, &at.subject, at.owner, path, said).from(was).to(now).fix(fix));
    }
}

fn steps(at: &At<'_>, old: &Worker, new: &Worker, found: &mut Found<'_>) {
    let (before, after): (Vec<&Step>, Vec<&Step>) = (old.all_steps().collect(), new.all_steps().collect());
    let has = |steps: &[&Step], name: &str| steps.iter().any(|step| *step.name == *name);
    let gone: Vec<&Step> = before.iter().copied().filter(|step| !has(&after, &step.name)).collect();
    let mut come: Vec<&Step> = after.iter().copied().filter(|step| !has(&before, &step.name)).collect();
    for step in gone {
        let twin = come.iter().position(|other| is_twin(step, other));
        match twin.map(|nth| come.remove(nth)) {
            Some(other) => renamed(at, step, other, found),
            None => removed(at, step, new, found),
        }
    }
    for step in come.into_iter().filter(|step| acts(step)) {
        let said = format!(
            "step `{}` is new: jobs that are accepted from now on do it, and those that are replayed on the live version.",
            step.name
        );
        found.say(Said::note(Kind::StepOrder, &at.subject, at.owner, &[at.list(), &step.name], said));
    }
    order(at, &before, &after, found);
    for step in &before {
        if let Some(other) = after.iter().find(|other| other.name == step.name) {
            self::step(at, step, other, found);
        }
    }
}

/// Whether something happens that should not happen twice.
fn acts(step: &Step) -> bool {
    step.action.outward().is_some() || matches!(step.action, Action::Queue(_) | Action::Setnx(_))
}

fn is_twin(one: &Step, other: &Step) -> bool {
    let partner = |step: &Step| step.action.outward().map(|(partner, _)| partner.name.clone());
    std::mem::discriminant(&one.action) == std::mem::discriminant(&other.action)
        && partner(one) == partner(other)
        && one.each.is_some() == other.each.is_some()
}

fn held(jobs: Jobs) -> String {
    match jobs == Jobs::NONE {
        true => String::new(),
        false => format!(" {} accepted with the old one.", jobs.do_it("was", "were")),
    }
}

fn renamed(at: &At<'_>, old: &Step, new: &Step, found: &mut Found<'_>) {
    let path = [at.list(), &*new.name];
    let change = match acts(old) {
        true => {
            let said = format!(
                "step `{}` is called `{}` now, and its effect key changes with its name: a job that has done it and is replayed on the live \
                 version does it again.{}",
                old.name,
                new.name,
                held(at.jobs())
            );
            Said::risk(Kind::EffectKey, &at.subject, at.owner, &path, said).fix(
                "keep the name; or replay older jobs on their own version, which is what happens if nothing is said",
            )
        }
        false => {
            let said = format!("step `{}` is called `{}` now.", old.name, new.name);
            Said::note(Kind::StepOrder, &at.subject, at.owner, &path, said)
        }
    };
    found.say(change.from(&*old.name).to(&*new.name));
    found.covers(at.owner, &[at.list(), &old.name]);
    step(at, &Step { name: new.name.clone(), ..old.clone() }, new, found);
}

fn removed(at: &At<'_>, step: &Step, new: &Worker, found: &mut Found<'_>) {
    let path = [at.list(), &*step.name];
    if let Action::Approval(_) = &step.action {
        let after: Vec<String> =
            new.all_steps().filter(|step| acts(step)).map(|step| format!("`{}`", step.name)).collect();
        let said = format!(
            "nobody is asked any more: {} {} without an approval.",
            after.join(", "),
            if after.len() == 1 { "runs" } else { "run" }
        );
        let change = Said::risk(Kind::Approval, &at.subject, at.owner, &path, said).from(&*step.name);
        return found
            .say(change.fix("make sure that whoever decided so far knows; what waits for them now still waits"));
    }
    let jobs = at.jobs();
    let kept = match jobs.unfinished {
        0 => String::new(),
        _ => format!(" {} it.", jobs.in_flight().do_it("still does", "still do")),
    };
    if step.action.outward().is_some() || !step.branches().is_empty() {
        let said = format!("step `{}` is gone: jobs that are accepted from now on do not do it.{kept}", step.name);
        return found.say(Said::note(Kind::StepOrder, &at.subject, at.owner, &path, said).from(&*step.name));
    }
    if let Action::Setnx(_) | Action::DedupKey(_) | Action::Policy(_) | Action::Validate(_) = &step.action {
        let said = format!("step `{}` is gone: what it kept from happening, happens.{kept}", step.name);
        found.say(Said::risk(Kind::StepOrder, &at.subject, at.owner, &path, said).from(&*step.name));
    }
}

fn order(at: &At<'_>, before: &[&Step], after: &[&Step], found: &mut Found<'_>) {
    let common = |steps: &[&Step], others: &[&Step]| -> Vec<String> {
        let both = steps.iter().filter(|step| others.iter().any(|other| other.name == step.name));
        both.filter(|step| acts(step)).map(|step| step.name.to_string()).collect()
    };
    let (was, now) = (common(before, after), common(after, before));
    if was == now {
        return;
    }
    let Some((one, other)) = was.iter().zip(&now).find(|(one, other)| one != other) else { return };
    let said = format!(
        "`{other}` is done before `{one}`: a job that is replayed on the live version keeps what it has done and does the rest in the new \
         order, so `{other}` may come after `{one}` for some and before it for others.{}",
        held(at.jobs())
    );
    let change = Said::risk(Kind::StepOrder, &at.subject, at.owner, &[at.list()], said);
    found.say(change.from(was.join(", ")).to(now.join(", ")).fix("make sure that neither needs the other to be done"));
}

fn step(at: &At<'_>, old: &Step, new: &Step, found: &mut Found<'_>) {
    let name = &*new.name;
    let path = |key: &'static str| [at.list(), name, key];
    let condition = |step: &Step| step.when.as_ref().map(Expr::source).map(str::to_string);
    match (condition(old), condition(new)) {
        (Some(was), None) => {
            let said = format!("step `{name}` runs for every event, and not only where `{was}`.");
            found.say(Said::risk(Kind::Condition, &at.subject, at.owner, &path("if"), said).from(was).to("always"));
        }
        (was, Some(now)) if was.as_ref() != Some(&now) => {
            let said = format!("step `{name}` runs only where `{now}`.");
            let was = was.unwrap_or_else(|| "always".into());
            found.say(Said::note(Kind::Condition, &at.subject, at.owner, &path("if"), said).from(was).to(now));
        }
        _ => {}
    }
    if old.compensate.is_some() && new.compensate.is_none() {
        let said = format!("what `{name}` did is not undone any more when its job gives up later.");
        found.say(Said::risk(Kind::Undo, &at.subject, at.owner, &path("compensate"), said));
    }
    policies(at, old, new, found);
    match (&old.action, &new.action) {
        (Action::Approval(before), Action::Approval(after)) => approval(at, name, &before.rule, &after.rule, found),
        (Action::Setnx(before), Action::Setnx(after)) => {
            let (was, now) = (before.key.written(), after.key.written());
            if was != now {
                let said =
                    format!("`{name}` sets another key: what was set under the old one keeps nobody from anything.");
                let change = Said::risk(Kind::KeyRule, &at.subject, at.owner, &path("setnx"), said);
                found.say(change.from(was).to(now).fix("keep the key until what it keeps apart is over"));
            } else if after.ttl < before.ttl {
                let (was, now) = times(before.ttl, after.ttl);
                let said = format!(
                    "the key of `{name}` is set for {now} instead of {was}: what comes later than that is done again."
                );
                found.say(Said::risk(Kind::KeyTtl, &at.subject, at.owner, &path("setnx"), said).from(was).to(now));
            }
        }
        (Action::DedupKey(before), Action::DedupKey(after)) if before != after => {
            let said = format!(
                "`{name}` makes another key of an event: what was set or sent under the old one is not recognised."
            );
            let change = Said::risk(Kind::KeyRule, &at.subject, at.owner, &path("dedup_key"), said);
            found.say(change.fix("keep the fields and their order until what the key keeps apart is over"));
        }
        (before, after) => outward(at, name, before, after, found),
    }
}

fn policies(at: &At<'_>, old: &Step, new: &Step, found: &mut Found<'_>) {
    let names = |workspace: &Workspace, step: &Step| -> Vec<String> {
        workspace.policies_over(step).map(|policy| policy.name.to_string()).collect()
    };
    let (before, after) = (names(at.pair.old, old), names(at.pair.new, new));
    // One that is gone altogether is told with the policies.
    let lost: Vec<String> = before
        .iter()
        .filter(|name| !after.contains(name) && at.pair.new.policy(name).is_some())
        .map(|name| format!("`{name}`"))
        .collect();
    if !lost.is_empty() {
        let said = format!(
            "`{}` is no longer under policy {}: nothing of it is asked before it is done.",
            new.name,
            lost.join(", ")
        );
        let path = [at.list(), &*new.name, "policy"];
        found.say(
            Said::risk(Kind::Policy, &at.subject, at.owner, &path, said).from(before.join(", ")).to(after.join(", ")),
        );
    }
}

fn approval(at: &At<'_>, name: &str, old: &approval::Rule, new: &approval::Rule, found: &mut Found<'_>) {
    let path = |key: &'static str| [at.list(), name, "approval", key];
    if new.need < old.need {
        let people = if new.need == 1 { "person" } else { "people" };
        let said = format!("{} {people} must approve `{name}` instead of {}.", new.need, old.need);
        let change = Said::risk(Kind::Approval, &at.subject, at.owner, &path("need"), said);
        found.say(change.from(old.need.to_string()).to(new.need.to_string()));
    }
    if (old.on_expiry, new.on_expiry) == (OnExpiry::Reject, OnExpiry::Approve) {
        let said = format!(
            "that nobody decides `{name}` in {} means that it is done, and no longer that it is not.",
            human(new.expires)
        );
        let change = Said::risk(Kind::Approval, &at.subject, at.owner, &path("on_expiry"), said);
        found.say(change.from("reject").to("approve"));
    }
    let widened = !old.of.is_empty() && (new.of.is_empty() || new.of.iter().any(|name| !old.of.contains(name)));
    if widened {
        let word = |of: &[String]| if of.is_empty() { "anybody".to_string() } else { of.join(", ") };
        let said = format!("{} may decide `{name}`, where {} did.", word(&new.of), word(&old.of));
        let change = Said::risk(Kind::Approval, &at.subject, at.owner, &path("of"), said);
        found.say(change.from(word(&old.of)).to(word(&new.of)));
    }
}

fn outward(at: &At<'_>, name: &str, before: &Action, after: &Action, found: &mut Found<'_>) {
    let (Some((was, old)), Some((now, new))) = (before.outward(), after.outward()) else { return };
    let own = [at.list(), name];
    if was.name != now.name {
        let said = format!(
            "`{name}` calls `{}` instead of `{}`, which knows nothing of what was sent to the other: a job whose answer was lost and that is \
             replayed on the live version may do it in both.{}",
            now.name,
            was.name,
            held(at.jobs())
        );
        let change = Said::risk(Kind::Integration, &at.subject, at.owner, &own, said);
        found.say(change.from(&*was.name).to(&*now.name).fix("replay older jobs on their own version"));
        return;
    }
    let text = |promise: &Promise| promise.wrap_key.as_ref().map(|key| key.written().to_string());
    let (from, to) = (text(old), text(new));
    if from != to {
        let said = format!(
            "what `{name}` did is remembered under another key: what was done under the old one is done again.{}",
            held(at.jobs())
        );
        let change = Said::risk(Kind::EffectKey, &at.subject, at.owner, &own, said)
            .fix("keep the old key; or apply it when nothing of this flow is left to be sent again");
        let word = |key: Option<String>| key.unwrap_or_else(|| "the key of the event".into());
        found.say(change.from(word(from)).to(word(to)));
    }
    // What its integration says is told there.
    let of_partner = |workspace: &Workspace, name: &str| {
        workspace.integration(name).map(|partner| (partner.promise.idempotency, partner.promise.honoured_for))
    };
    let same_as_partner = of_partner(at.pair.old, &was.name) == Some((old.idempotency, old.honoured_for))
        && of_partner(at.pair.new, &now.name) == Some((new.idempotency, new.honoured_for));
    if !same_as_partner {
        let place = (at.subject.as_str(), at.owner, &own[..], name);
        super::partners::promise(place, old, new, found);
    }
}
