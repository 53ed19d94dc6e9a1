//! What comes in: routes, sources, and the keys that recognise a delivery.

use super::{Found, Jobs, Kind, Owner, Pair, Said, times};
use crate::config::Workspace;
use crate::flow::{Flow, Route};
use crate::key::{KeyPart, KeyRule};
use crate::signature::presets::Retries;
use crate::source::{Proof, Source};
use crate::time::human;
use crate::worker::Worker;
use std::time::Duration;

pub(super) fn flows(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.flows {
        match pair.new.flow(&old.name) {
            Some(new) => flow(pair, old, new, found),
            None => gone(pair, old, found),
        }
    }
}

/// A playbook is a flow and a worker, and goes by its own word.
pub(super) fn subject(pair: Pair<'_>, kind: &str, name: &str) -> String {
    let is_playbook = pair.old.playbook(name).is_some() || pair.new.playbook(name).is_some();
    format!("{} {name}", if is_playbook { "playbook" } else { kind })
}

fn gone(pair: Pair<'_>, flow: &Flow, found: &mut Found<'_>) {
    let jobs = pair.jobs.of([flow.name.as_str()]);
    let (subject, owner) = (subject(pair, "flow", &flow.name), Owner::Flow(&flow.name));
    let stays = match jobs == Jobs::NONE {
        true => String::new(),
        false => format!(" {} on the version of then.", jobs.do_it("stays", "stay")),
    };
    for route in &flow.routes {
        let said = format!(
            "`{}` is gone: whoever still calls it is answered 404, and what he sends is lost.{stays}",
            route.scope()
        );
        let fix = "have the senders changed first; `clinch listen` shows who still comes";
        found.say(Said::risk(Kind::Way, &subject, owner, &[], said).from(route.scope()).fix(fix));
    }
    for from in &flow.subscriptions {
        let said = format!(
            "events of source `{}` no longer start it: they are answered, and nothing is done.{stays}",
            from.source
        );
        found.say(Said::risk(Kind::Way, &subject, owner, &[], said));
    }
}

fn flow(pair: Pair<'_>, old: &Flow, new: &Flow, found: &mut Found<'_>) {
    let (subject, owner) = (subject(pair, "flow", &old.name), Owner::Flow(&new.name));
    let jobs = pair.jobs.of([old.name.as_str()]);
    let same = |route: &&Route, others: &[Route]| others.iter().any(|other| other.scope() == route.scope());
    let lost: Vec<&Route> = old.routes.iter().filter(|route| !same(route, &new.routes)).collect();
    let come: Vec<&Route> = new.routes.iter().filter(|route| !same(route, &old.routes)).collect();
    if let ([from], [to]) = (&lost[..], &come[..]) {
        let said = format!(
            "`{}` becomes `{}`: whoever still calls the old one is answered 404; and keys belong to the path, so a delivery that \
             was seen there is taken for a new one here.",
            from.scope(),
            to.scope()
        );
        let fix = "keep the old route beside the new one until the sender has nothing left to send again";
        let moved = Said::risk(Kind::Way, &subject, owner, &["triggers"], said);
        found.say(moved.from(from.scope()).to(to.scope()).fix(fix));
    } else {
        for route in lost {
            let said = format!(
                "`{}` is gone: whoever still calls it is answered 404, and what he sends is lost.",
                route.scope()
            );
            let fix = "have the senders changed first; `clinch listen` shows who still comes";
            found.say(Said::risk(Kind::Way, &subject, owner, &["triggers"], said).from(route.scope()).fix(fix));
        }
    }
    for from in &old.subscriptions {
        if !new.subscriptions.iter().any(|known| known.source == from.source) && pair.new.source_named(&from.source) {
            let said = format!(
                "events of source `{}` no longer start it: they are answered, and nothing is done.",
                from.source
            );
            found.say(Said::risk(Kind::Way, &subject, owner, &["triggers"], said).from(from.source.clone()));
        }
    }
    for route in &old.routes {
        let Some(now) = new.routes.iter().find(|other| other.scope() == route.scope()) else { continue };
        let before = route.dedup.as_ref().map(|rule| Keys {
            rule: told(&rule.key),
            store: &rule.store,
            ttl: rule.ttl,
            required: rule.required,
        });
        let after = now.dedup.as_ref().map(|rule| Keys {
            rule: told(&rule.key),
            store: &rule.store,
            ttl: rule.ttl,
            required: rule.required,
        });
        let place = Spot { subject: &subject, owner, path: &["triggers", "0", "http"], below: "idempotency" };
        let tenants = (route.tenant.as_ref(), now.tenant.as_ref());
        keys(place, (before, after), tenants, jobs, tries_of(pair.old, old), None, found);
    }
}

/// Where the settings of keys are written, and whose they are.
struct Spot<'a> {
    subject: &'a str,
    owner: Owner<'a>,
    path: &'a [&'a str],
    below: &'a str,
}

struct Keys<'a> {
    rule: String,
    store: &'a str,
    ttl: Duration,
    required: bool,
}

/// How long the jobs of a flow may be tried.
fn tries_of(workspace: &Workspace, flow: &Flow) -> Duration {
    let workers = flow.enqueue.iter().filter_map(|step| workspace.worker_for(&step.queue));
    workers.map(Worker::horizon).max().unwrap_or_default()
}

fn keys(
    spot: Spot<'_>,
    (old, new): (Option<Keys<'_>>, Option<Keys<'_>>),
    tenants: (Option<&KeyPart>, Option<&KeyPart>),
    jobs: Jobs,
    tries: Duration,
    sender: Option<(&str, Duration)>,
    found: &mut Found<'_>,
) {
    let Spot { subject, owner, path, below } = spot;
    let held = match jobs.unfinished {
        0 => String::new(),
        _ => format!(" {} accepted under the old one.", jobs.in_flight().do_it("was", "were")),
    };
    let later = "change it when the sender has nothing left to send again, or keep the old one";
    let (was, now) = tenants;
    if was != now {
        let word = |part: Option<&KeyPart>| part.map_or_else(|| "nobody".into(), KeyPart::to_string);
        let said = format!(
            "keys belong to the tenant, which is read from {} instead of {}: a delivery that was seen before passes once more.{held}",
            word(now),
            word(was)
        );
        let (was, now) = (word(was), word(now));
        let own: Vec<&str> = path.iter().copied().chain(["tenant_from"]).collect();
        found.say(Said::risk(Kind::KeyScope, subject, owner, &own, said).from(was).to(now).fix(later));
    }
    let at = |rest: &[&'static str]| -> Vec<String> {
        let own = (!below.is_empty()).then_some(below);
        path.iter().copied().chain(own).chain(rest.iter().copied()).map(str::to_string).collect()
    };
    let mut say = |kind, rest: &[&'static str], sentence: String, (was, now): (String, String), fix: &str| {
        let path = at(rest);
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        found.say(Said::risk(kind, subject, owner, &path, sentence).from(was).to(now).fix(fix));
    };
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (Some(old), None) => {
            let said = "deliveries are not recognised any more: whatever the sender repeats is done again.".into();
            return say(Kind::KeyRule, &[], said, (old.rule, "nothing".into()), "leave `idempotency:` in place");
        }
        _ => return,
    };
    if old.rule != new.rule {
        let said = format!(
            "deliveries are recognised by {} instead of {}: one that was seen under its old key passes once more, as a new one.{held}",
            new.rule, old.rule
        );
        say(Kind::KeyRule, &["key_from"], said, (old.rule, new.rule), later);
    }
    if old.store != new.store {
        let said = format!(
            "keys are remembered in `kv:{}` instead of `kv:{}`, which knows none of the old ones: deliveries that were seen before pass \
             once more.",
            new.store, old.store
        );
        say(Kind::KeyScope, &["store"], said, (old.store.into(), new.store.into()), later);
    }
    if old.required && !new.required {
        let said = "a delivery without a key is accepted and never recognised: whatever is sent twice without one is done twice.";
        say(Kind::KeyRule, &["required"], said.into(), ("true".into(), "false".into()), "leave `required: true`");
    }
    if new.ttl < old.ttl {
        let (was, now) = times(old.ttl, new.ttl);
        let mut said = format!(
            "keys are forgotten after {now} instead of {was}: a delivery that is repeated later than that is done again"
        );
        match sender {
            Some((title, tries)) if new.ttl < tries => {
                said += &format!(", and {title} tries for {}", human(tries));
            }
            _ if new.ttl < tries => {
                said += &format!(", and jobs that are accepted until then may retry for {}", human(tries));
            }
            _ => {}
        }
        let fix = format!("keep `ttl: {was}`, or make sure that the sender gives up within {now}");
        say(Kind::KeyTtl, &["ttl"], said + ".", (was, now), &fix);
    }
}

fn told(rule: &KeyRule) -> String {
    let parts: Vec<String> = rule.parts().iter().map(|part| format!("`{part}`")).collect();
    parts.join(" + ")
}

pub(super) fn sources(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.sources {
        // A flow's own are told with its routes.
        let is_own = |workspace: &Workspace| workspace.flow(&old.name).is_some() && !is_declared(workspace, old);
        let others: Vec<&Source> = pair.new.sources.iter().filter(|new| new.name == old.name).collect();
        let new = others.iter().find(|new| new.path == old.path).or(others.first());
        let owner = if is_own(pair.old) { Owner::Flow(&old.name) } else { Owner::Settings };
        let (subject, base): (String, Vec<&str>) = match owner {
            Owner::Settings => (format!("source {}", old.name), vec!["sources", &old.name]),
            _ => (subject(pair, "flow", &old.name), vec!["triggers", "0", "http"]),
        };
        match new {
            Some(new) => source(pair, old, new, (&subject, owner, &base), found),
            None => {
                let said = format!(
                    "`{} {}` is gone: whoever still sends to it is answered 404, and what he sends is lost.",
                    old.method.word(),
                    old.path
                );
                let fix = "have the sender changed first; `clinch listen` shows who still comes";
                found.say(Said::risk(Kind::Way, &subject, owner, &base, said).from(old.path.clone()).fix(fix));
            }
        }
    }
}

/// Whether it is one of `clinch.yml`: then its events go to flows that name it.
fn is_declared(workspace: &Workspace, source: &Source) -> bool {
    !workspace.flows.iter().any(|flow| flow.name == source.name)
}

fn source(
    pair: Pair<'_>,
    old: &Source,
    new: &Source,
    (subject, owner, base): (&str, Owner<'_>, &[&str]),
    found: &mut Found<'_>,
) {
    let below = |key: &'static str| -> Vec<&str> { base.iter().copied().chain([key]).collect() };
    if (old.method, &old.path) != (new.method, &new.path) {
        let way = |source: &Source| format!("{} {}", source.method.word(), source.path);
        let said =
            format!("`{}` becomes `{}`: whoever still sends to the old one is answered 404.", way(old), way(new));
        let fix = "change the address at the sender in the same moment, or keep a second source for the old path";
        found.say(Said::risk(Kind::Way, subject, owner, &below("path"), said).from(way(old)).to(way(new)).fix(fix));
    }
    proof(old, new, (subject, owner, base), found);
    let takers = |flow: &&Flow| flow.subscriptions.iter().any(|from| from.source == old.name);
    let jobs = pair.jobs.of(pair.old.flows.iter().filter(takers).map(|flow| flow.name.as_str()));
    let tries = pair.old.flows.iter().filter(takers).map(|flow| tries_of(pair.old, flow)).max().unwrap_or_default();
    let rule = |source: &Source| {
        source.keys.rule.as_ref().map_or_else(|| format!("the id of preset `{}`", source.preset.name), told)
    };
    let keys_of = |source: &'_ Source| (rule(source), source.keys.ttl, source.keys.required);
    let (before, after) = (keys_of(old), keys_of(new));
    let sender = match new.preset.retries {
        Retries::For(tries) => Some((new.preset.title, tries)),
        Retries::Never | Retries::Unknown => None,
    };
    let spot = Spot { subject, owner, path: base, below: if owner == Owner::Settings { "" } else { "idempotency" } };
    let both = (
        Some(Keys { rule: before.0, store: &old.keys.store, ttl: before.1, required: before.2 }),
        Some(Keys { rule: after.0, store: &new.keys.store, ttl: after.1, required: after.2 }),
    );
    keys(spot, both, (old.tenant.as_ref(), new.tenant.as_ref()), jobs, tries, sender, found);
    if format!("{:?}", old.minimise) != format!("{:?}", new.minimise) {
        let said =
            "other parts of a delivery are written down from now on; what is stored already stays as it is.".into();
        found.say(
            Said::risk(Kind::Masking, subject, owner, &below("keep"), said)
                .fix("look at its `keep`, `drop` and `hash` line by line: `clinch diff --lines`"),
        );
    }
}

fn proof(old: &Source, new: &Source, (subject, owner, base): (&str, Owner<'_>, &[&str]), found: &mut Found<'_>) {
    let names = |source: &Source| -> Vec<String> {
        source
            .signature()
            .map_or_else(Vec::new, |rule| rule.secrets.iter().map(|secret| secret.variable.clone()).collect())
    };
    let word = |source: &Source| match &source.proof {
        None => "nothing".to_string(),
        Some(Proof::Sender) => "a token of ours".to_string(),
        Some(Proof::Signature(_)) => format!("a signature ({})", source.preset.name),
    };
    let below = |key: &'static str| -> Vec<&str> { base.iter().copied().chain([key]).collect() };
    let (was, now) = (word(old), word(new));
    if new.proof.is_none() && old.proof.is_some() {
        let said = "anybody may send: nothing proves any more who a delivery is from.".to_string();
        let fix = "leave `verify:` in place";
        return found.say(Said::risk(Kind::Proof, subject, owner, &below("verify"), said).from(was).to(now).fix(fix));
    }
    if was != now {
        let said =
            format!("a sender is recognised by {now} instead of {was}: whatever comes as before is refused with 401.");
        let fix = "change the sender in the same moment";
        return found.say(Said::risk(Kind::Proof, subject, owner, &below("verify"), said).from(was).to(now).fix(fix));
    }
    let (before, after) = (names(old), names(new));
    let lost: Vec<&str> = before.iter().filter(|name| !after.contains(name)).map(String::as_str).collect();
    if !lost.is_empty() {
        let said = format!(
            "what is signed with the secret {} is refused with 401 from now on: deliveries that the sender repeats, too.",
            lost.join(", ")
        );
        let fix = "keep the old secret beside the new one (`secrets:`) until the sender has changed";
        let change = Said::risk(Kind::Proof, subject, owner, &below("secret"), said);
        return found.say(change.from(before.join(", ")).to(after.join(", ")).fix(fix));
    }
    if before != after {
        let said = "one more secret proves a sender.".to_string();
        let change = Said::note(Kind::Proof, subject, owner, &below("secret"), said);
        found.say(change.from(before.join(", ")).to(after.join(", ")));
    }
}
