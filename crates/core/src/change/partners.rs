//! Those who are called, what must be so before they are, and what counts for the whole workspace.

use super::{Found, Jobs, Kind, Owner, Pair, Said, at_next_start, times};
use crate::effect::Idempotency;
use crate::expr::Template;
use crate::integration::{Integration, Promise};
use crate::limit::Rate;
use crate::policy::{Cap, Policy};
use crate::worker::Worker;

pub(super) fn integrations(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.integrations {
        let path = ["integrations", &*old.name];
        let subject = format!("integration {}", old.name);
        let Some(new) = pair.new.integration(&old.name) else {
            let calls = |worker: &&Worker| {
                let mut partners = worker.actions().filter_map(|action| action.outward());
                partners.any(|(partner, _)| partner.name == old.name)
            };
            let queues: Vec<&str> = pair.old.workers.iter().filter(calls).map(Worker::queue).collect();
            let jobs = queues.iter().map(|queue| pair.jobs_of(queue)).fold(Jobs::NONE, |sum, jobs| Jobs {
                unfinished: sum.unfinished + jobs.unfinished,
                dead: sum.dead + jobs.dead,
            });
            let change = match jobs == Jobs::NONE {
                true => {
                    let said = format!("integration `{}` is gone; no job in flight calls it.", old.name);
                    Said::note(Kind::Integration, subject, Owner::Settings, &path, said)
                }
                false => {
                    let said = format!(
                        "integration `{}` is gone, but {} it, as the version of then says: without its secrets that fails.",
                        old.name,
                        jobs.do_it("still calls", "still call")
                    );
                    Said::risk(Kind::Integration, subject, Owner::Settings, &path, said).fix(
                        "leave its secrets where they are until those are done: `clinch jobs ls` shows who is left",
                    )
                }
            };
            found.say(change);
            continue;
        };
        integration(old, new, &subject, found);
    }
}

fn text(template: Option<&Template>) -> Option<&str> {
    template.map(Template::written)
}

fn integration(old: &Integration, new: &Integration, subject: &str, found: &mut Found<'_>) {
    let name = &*old.name;
    let path = |key: &'static str| ["integrations", name, key];
    for (key, was, now) in [
        ("base_url", text(old.base_url.as_ref()), text(new.base_url.as_ref())),
        ("url", text(old.url.as_ref()), text(new.url.as_ref())),
    ] {
        if let (Some(was), Some(now)) = (was, now)
            && was != now
        {
            let said = format!(
                "`{name}` is somewhere else: what was sent to the old place under our keys is not known at the new one, so a job whose answer \
                 was lost may do it twice."
            );
            let change = Said::risk(Kind::Integration, subject, Owner::Settings, &path(key), said).from(was).to(now);
            found.say(change.fix("apply it when no effect with it is unknown: `clinch effects ls state:unknown`"));
        }
    }
    promise((subject, Owner::Settings, &["integrations", name], name), &old.promise, &new.promise, found);
    if !old.key_header.eq_ignore_ascii_case(&new.key_header) {
        let said = format!(
            "our key travels in `{}` instead of `{}`: a target that looks into the old one takes a call that is sent again for a new one.",
            new.key_header, old.key_header
        );
        let change = Said::risk(Kind::Promise, subject, Owner::Settings, &path("key_header"), said);
        found.say(change.from(&old.key_header).to(&new.key_header));
    }
    let rate = |rate: &Rate| f64::from(rate.count().get()) / rate.window().as_secs_f64();
    let word = |rate: Option<&Rate>| rate.map_or_else(|| "as fast as jobs come".into(), Rate::to_string);
    let faster = match (&old.rate, &new.rate) {
        (Some(_), None) => true,
        (Some(was), Some(now)) => rate(now) > rate(was),
        (None, _) => false,
    };
    if faster {
        let (was, now) = (word(old.rate.as_ref()), word(new.rate.as_ref()));
        let said =
            format!("`{name}` is called at {now} instead of {was}: what it does not bear it refuses, and jobs fail.");
        let fix = "make sure that the partner bears it, or raise it while it runs and look: `clinch set`";
        found.say(Said::risk(Kind::Pace, subject, Owner::Settings, &path("rate"), said).from(was).to(now).fix(fix));
    }
    let wider = old.concurrency.is_some_and(|was| new.concurrency.is_none_or(|now| now > was));
    if wider {
        let word = |calls: Option<usize>| calls.map_or_else(|| "any number of".to_string(), |calls| calls.to_string());
        let (was, now) = (word(old.concurrency), word(new.concurrency));
        let said = format!(
            "`{name}` gets {now} calls at once instead of {was}: what it does not bear it refuses, and jobs fail."
        );
        let fix = "make sure that the partner bears it, or raise it while it runs and look: `clinch set`";
        found.say(
            Said::risk(Kind::Pace, subject, Owner::Settings, &path("concurrency"), said).from(was).to(now).fix(fix),
        );
    }
    if old.breaker.is_some() && new.breaker.is_none() {
        let said = format!("`{name}` is called however it fares: jobs spend their attempts on an outage.");
        found.say(Said::risk(Kind::Pace, subject, Owner::Settings, &path("breaker"), said).to("none"));
    }
}

/// What is done about an answer that is lost.
pub(super) fn promise(
    (subject, owner, base, name): (&str, Owner<'_>, &[&str], &str),
    old: &Promise,
    new: &Promise,
    found: &mut Found<'_>,
) {
    let path = |key: &'static str| -> Vec<&str> { base.iter().copied().chain([key]).collect() };
    let (was, now) = (old.idempotency, new.idempotency);
    if was != now {
        let follows = match now {
            Idempotency::None => {
                "an effect whose answer is lost is not sent again by itself: its job waits for a person".to_string()
            }
            Idempotency::Header => format!(
                "an effect whose answer is lost is sent again under the same key: if `{name}` does not honour it, it is done twice"
            ),
            Idempotency::Natural => {
                "an effect whose answer is lost is simply done again: if twice is not once there, it is done twice"
                    .to_string()
            }
            Idempotency::Lookup => {
                format!("an effect whose answer is lost is asked for: `{name}` must be able to say whether it was done")
            }
            Idempotency::Wrap | Idempotency::Shared => {
                "clinch remembers what was done, from now on: what was done before is not known under its key"
                    .to_string()
            }
        };
        let said = format!("`{name}` is `{}` instead of `{}`: {follows}.", now.word(), was.word());
        let change =
            Said::risk(Kind::Promise, subject, owner, &path("idempotency"), said).from(was.word()).to(now.word());
        found.say(change.fix("make sure that it is so at the partner; jobs in flight keep the old promise"));
    } else if let Some(after) = new.honoured_for
        && old.honoured_for.is_none_or(|before| after < before)
    {
        let before = old.honoured_for.map_or_else(|| "for ever".to_string(), crate::time::human);
        let (_, now) = times(after, after);
        let said = format!(
            "our key at `{name}` is honoured for {now} instead of {before}: an effect that is unknown for longer waits for a person."
        );
        let change = Said::risk(Kind::Promise, subject, owner, &path("honoured_for"), said);
        found.say(change.from(before).to(now));
    }
}

pub(super) fn policies(pair: Pair<'_>, found: &mut Found<'_>) {
    for old in &pair.old.policies {
        let path = ["policies", &*old.name];
        let subject = format!("policy {}", old.name);
        match pair.new.policy(&old.name) {
            Some(new) => policy(old, new, &subject, found),
            None => {
                let asked = [
                    ("whether a contact has agreed", old.consent.is_some()),
                    ("how much it has had", !old.caps.is_empty()),
                    ("what time it is there", old.quiet.is_some()),
                ];
                let asked: Vec<&str> = asked.into_iter().filter(|(_, is)| *is).map(|(what, _)| what).collect();
                let said = format!("policy `{}` is gone: nobody asks {}.", old.name, asked.join(" or "));
                found.say(Said::risk(Kind::Policy, subject, Owner::Policies, &path, said));
            }
        }
    }
}

fn policy(old: &Policy, new: &Policy, subject: &str, found: &mut Found<'_>) {
    let path = |key: &'static str| ["policies", &*old.name, key];
    if old.consent.is_some() && new.consent.is_none() {
        let said = "nobody asks whether a contact has agreed: those who have not are written to.".to_string();
        found.say(Said::risk(Kind::Policy, subject, Owner::Policies, &path("consent"), said));
    }
    if old.quiet.is_some() && new.quiet.is_none() {
        let said = "contacts are disturbed at any hour.".to_string();
        found.say(Said::risk(Kind::Policy, subject, Owner::Policies, &path("quiet_hours"), said));
    }
    let twin = |cap: &Cap| new.caps.iter().find(|other| other.per == cap.per && other.channel == cap.channel);
    for cap in &old.caps {
        match twin(cap) {
            Some(other) if other.max < cap.max => {
                let said = format!(
                    "a contact gets {other} instead of {cap}: what is beyond ends as a noop and is not sent later."
                );
                let change = Said::risk(Kind::Cap, subject, Owner::Policies, &path("frequency"), said);
                found.say(change.from(cap.max.to_string()).to(other.max.to_string()));
            }
            Some(other) if other.max > cap.max => {
                let said = format!("a contact gets {other} instead of {cap}.");
                let change = Said::risk(Kind::Policy, subject, Owner::Policies, &path("frequency"), said);
                found.say(change.from(cap.max.to_string()).to(other.max.to_string()));
            }
            Some(_) => {}
            None => {
                let said = format!("that a contact gets {cap} counts no longer.");
                found.say(
                    Said::risk(Kind::Policy, subject, Owner::Policies, &path("frequency"), said).from(cap.to_string()),
                );
            }
        }
    }
}

pub(super) fn settings(pair: Pair<'_>, found: &mut Found<'_>) {
    let (old, new) = (&pair.old.settings, &pair.new.settings);
    let subject = "clinch.yml";
    for key in at_next_start(old, new) {
        let said = format!("`{key}` is read when a process starts: it takes effect at the next start.");
        let fix = "restart the nodes one after the other";
        found.say(Said::note(Kind::NextStart, subject, Owner::Settings, &[key], said).fix(fix));
    }
    let wider: Vec<String> =
        new.egress.iter().filter(|place| !old.egress.contains(place)).map(|place| format!("`{place}`")).collect();
    if !wider.is_empty() {
        let said = format!("steps may call {} inside the network.", wider.join(", "));
        found.say(Said::risk(Kind::Reach, subject, Owner::Settings, &["egress"], said));
    }
    masking(found);
}

/// By what is written: rules do not tell what they were made of.
fn masking(found: &mut Found<'_>) {
    for (key, what) in [("fields", "fields called"), ("pointers", "what is at")] {
        let written = |found: &Found<'_>, is_new: bool| -> Vec<String> {
            let sheet = Owner::Settings.sheet(if is_new { &found.new } else { &found.old });
            let leaf = sheet.and_then(|sheet| sheet.leaves().iter().find(|leaf| leaf.path == ["masking", key]));
            let list = leaf.map(|leaf| leaf.text.trim_matches(['[', ']']).to_string()).unwrap_or_default();
            list.split(", ").filter(|item| !item.is_empty()).map(str::to_string).collect()
        };
        let (before, after) = (written(found, false), written(found, true));
        let lost: Vec<String> =
            before.iter().filter(|item| !after.contains(item)).map(|item| format!("`{item}`")).collect();
        if !lost.is_empty() {
            let said = format!(
                "{what} {} are shown again, in pages, answers and logs: personal data may become visible, also of events that are stored.",
                lost.join(", ")
            );
            let fix = "leave the rule in place unless you know that nothing personal is there";
            let path = ["masking", key];
            let change = Said::risk(Kind::Masking, "clinch.yml", Owner::Settings, &path, said);
            found.say(change.from(before.join(", ")).to(after.join(", ")).fix(fix));
        }
    }
}
