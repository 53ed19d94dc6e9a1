//! Values that operators set over what the files say, while clinch runs. The files stay the truth: what is set is kept apart from
//! them, told wherever it differs, and taken back by saying nothing any more.

use crate::config::nearest::nearest;
use crate::config::{Files, Overrides, Problem, Workspace, load_with};
use crate::control::Control;
use crate::integration::Integration;
use crate::policy::Window;
use crate::time::{Timestamp, human};
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

pub(crate) const PREFIX: &str = "set/";
/// No value of a setting is longer.
pub const VALUE_CHARS_MAX: usize = 200;

/// A value that is set, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveValue {
    pub name: Arc<str>,
    /// As it would be written in the file.
    pub value: String,
    /// What counted by the file when it was set.
    pub file: String,
    pub reason: String,
    pub version: i64,
    pub since: Timestamp,
    pub actor: String,
    pub until: Option<Timestamp>,
}

/// What its control holds.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    value: String,
    file: String,
    reason: String,
}

impl LiveValue {
    /// The name of the control of a setting.
    pub fn control(name: &str) -> Arc<str> {
        format!("{PREFIX}{name}").into()
    }

    /// The value of its control.
    pub fn stored(value: &str, file: &str, reason: &str) -> String {
        let stored = Stored { value: value.into(), file: file.into(), reason: reason.into() };
        serde_json::to_string(&stored).expect("texts are JSON")
    }

    /// What such a control set, by its value.
    pub fn value_in(stored: &str) -> Option<String> {
        serde_json::from_str(stored).ok().map(|Stored { value, .. }| value)
    }

    pub(crate) fn read(name: &str, row: &Control) -> Option<LiveValue> {
        let Stored { value, file, reason } = serde_json::from_str(&row.value).ok()?;
        let Control { version, at: since, ref actor, until, .. } = *row;
        Some(LiveValue { name: name.into(), value, file, reason, version, since, actor: actor.clone(), until })
    }

    /// Whether it still counts.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// A value that is set, beside what the files say now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub set: LiveValue,
    /// What counts by the files; `None`: they have no such setting.
    pub file: Option<String>,
    /// Whether it counts though the files say something else.
    pub counts: bool,
    /// What whoever reads the list should know of it.
    pub note: Option<String>,
}

impl Beside {
    pub fn of(set: &LiveValue, workspace: &Workspace, refused: &[Refused]) -> Beside {
        let file = workspace.settable(&set.name).map(|settable| settable.by_file().to_string());
        let refused = refused.iter().find(|refused| refused.name == set.name);
        let note = match (refused, &file) {
            (Some(Refused { why, .. }), _) => Some(format!("it does not count: {why}")),
            (None, Some(file)) if *file == set.value => {
                Some(format!("the file says the same now: `clinch unset {}` changes nothing", set.name))
            }
            (None, Some(file)) if *file != set.file => {
                Some(format!("the file was changed since: it said {} when this was set", set.file))
            }
            (None, _) => None,
        };
        Beside { set: set.clone(), file, counts: refused.is_none(), note }
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { set, file, note, .. } = self;
        let file = file.as_deref().map_or_else(|| "nothing".into(), |file| file.to_string());
        write!(f, "{}: the file says {file}, live is {}, ", set.name, set.value)?;
        write!(f, "set by {} on {} ({})", set.actor, set.since, set.reason)?;
        set.until.map_or(Ok(()), |until| write!(f, " until {until}"))?;
        note.as_ref().map_or(Ok(()), |note| write!(f, "; {note}"))
    }
}

/// The workspace with what is set over it.
pub struct Live {
    pub workspace: Workspace,
    pub warnings: Vec<Problem>,
    /// What is set over it.
    pub over: Overrides,
    /// What the files do not bear, and why.
    pub refused: Vec<Refused>,
}

/// A value that does not count though it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub name: Arc<str>,
    pub why: String,
}

/// Sets all that can be set. Where the files have changed and do not bear one, the others still count: the older first, because
/// the younger was set beside them. `None`: the files cannot be read even alone.
pub fn over<'v>(files: &Files, values: impl IntoIterator<Item = &'v LiveValue>) -> Option<Live> {
    let mut values: Vec<&LiveValue> = values.into_iter().collect();
    values.sort_by_key(|value| value.version);
    let all: Overrides = values.iter().map(|value| (value.name.clone(), value.value.clone())).collect();
    let unknown = |workspace: &Workspace, over: &Overrides| -> Vec<Refused> {
        let unknown = over.keys().filter(|name| workspace.settable(name).is_none());
        unknown.map(|name| Refused { name: name.clone(), why: Unknown::of(name, workspace).to_string() }).collect()
    };
    if let Ok((workspace, warnings)) = load_with(files, &all) {
        let refused = unknown(&workspace, &all);
        return Some(Live { workspace, warnings, over: all, refused });
    }
    let (mut over, mut refused) = (Overrides::new(), Vec::new());
    let (mut workspace, mut warnings) = load_with(files, &over).ok()?;
    for value in values {
        let more = with(&over, &value.name, Some(&value.value));
        match load_with(files, &more) {
            Ok(read) => ((workspace, warnings), over) = (read, more),
            Err(problems) => refused.push(Refused { name: value.name.clone(), why: told(&problems) }),
        }
    }
    refused.extend(unknown(&workspace, &over));
    Some(Live { workspace, warnings, over, refused })
}

/// The same, but for one value.
pub fn with(over: &Overrides, name: &Arc<str>, value: Option<&str>) -> Overrides {
    let mut changed = over.clone();
    match value {
        Some(value) => changed.insert(name.clone(), value.into()),
        None => changed.remove(name),
    };
    changed
}

/// What is wrong, in the words of the files: the first of it, with what to write instead.
pub fn told(problems: &[Problem]) -> String {
    let Some(problem) = problems.iter().find(|problem| problem.is_error()) else { return String::new() };
    let help = problem.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
    format!("{}{help}", problem.message)
}

/// Nothing of this name can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    name: String,
    meant: Option<String>,
}

impl Unknown {
    pub fn of(name: &str, workspace: &Workspace) -> Unknown {
        let known = || workspace.settable.iter().map(|settable| &*settable.name);
        // The retries of a queue or a flow are those of whoever works for it.
        let of_worker = workspace.workers.iter().find_map(|worker| {
            let (owner, rest) = name.split_once(".retry.")?;
            let (kind, of) = owner.split_once('.')?;
            let enqueues = || workspace.flow(of)?.enqueue.iter().find(|step| step.queue == worker.queue());
            let is_its = match kind {
                "queue" => worker.queue() == of,
                "flow" => enqueues().is_some(),
                "worker" | "playbook" => worker.name == of,
                _ => false,
            };
            let meant = is_its.then(|| format!("{}.retry.{rest}", owner_of(worker, workspace)))?;
            known().find(|known| *known == meant)
        });
        let meant = of_worker.or_else(|| nearest(name, known())).map(str::to_string);
        Unknown { name: name.chars().take(VALUE_CHARS_MAX).collect(), meant }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no setting `{}`", self.name)?;
        match &self.meant {
            Some(meant) => write!(f, "; did you mean `{meant}`?"),
            None => f.write_str("; `clinch set` lists what can be set"),
        }
    }
}

fn owner_of(worker: &Worker, workspace: &Workspace) -> String {
    let kind = if workspace.playbook(&worker.name).is_some() { "playbook" } else { "worker" };
    format!("{kind}.{}", worker.name)
}

/// What follows from a setting as it is in this workspace, in a sentence.
pub fn meaning(workspace: &Workspace, name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("safe_mode.") {
        return of_safe_mode(workspace, rest);
    }
    let (kind, rest) = name.split_once('.')?;
    // What follows the name of somebody.
    let after = |owner: &str| rest.strip_prefix(owner)?.strip_prefix('.');
    match kind {
        "worker" | "playbook" => workspace.workers.iter().find_map(|worker| {
            let rest = after(&worker.name)?.strip_prefix("retry.")?;
            Some(of_retry(worker, rest))
        }),
        "integration" => workspace.integrations.iter().find_map(|known| of_partner(known, after(&known.name)?)),
        "policy" => workspace.policies.iter().find_map(|policy| {
            let nth = after(&policy.name)?.strip_prefix("frequency.")?.strip_suffix(".max")?;
            let cap = policy.caps.get(nth.parse::<usize>().ok()?)?;
            let per = match cap.per {
                Window::Day => "a day".into(),
                Window::Last(span) => human(span),
            };
            Some(format!("a contact gets at most {} in {per}", cap.max))
        }),
        _ => None,
    }
}

fn of_retry(worker: &Worker, rest: &str) -> String {
    let retry = &worker.retry;
    match &retry.budget {
        Some(budget) if rest.starts_with("budget") => {
            let (units, window) = (budget.allowance.units, human(budget.allowance.window));
            format!("one entity may cause at most {units} retries in {window}")
        }
        None if rest.starts_with("budget") => "retries are not counted by entity".into(),
        _ => {
            let horizon = human(worker.horizon());
            format!("a job that keeps failing is given up after {} attempts, within {horizon}", retry.attempts_max)
        }
    }
}

fn of_partner(partner: &Integration, rest: &str) -> Option<String> {
    Some(match rest {
        "concurrency" => match partner.concurrency {
            Some(calls) => format!("at most {calls} calls at once, on all nodes together"),
            None => "any number of calls at once".into(),
        },
        "rate" | "rate_limit.per_integration" => match partner.rate {
            Some(rate) => {
                format!("at most {} calls in {}, on all nodes together", rate.count(), human(rate.window()))
            }
            None => "calls as fast as jobs come".into(),
        },
        _ => {
            let rule = partner.breaker?;
            format!(
                "left alone for {} when {}% of at least {} calls in {} fail; back after {} good probes",
                human(rule.open_for),
                rule.errors_percent,
                rule.calls_min,
                human(rule.window),
                rule.probes,
            )
        }
    })
}

fn of_safe_mode(workspace: &Workspace, rest: &str) -> Option<String> {
    let rule = &workspace.settings.safe_mode;
    Some(match rest {
        "hold" if rule.hold => "in safe mode, what cannot be taken back waits".into(),
        "hold" => "in safe mode, nothing waits".into(),
        "drain" => {
            format!("what waited is let go at {} in {}", rule.drain.count(), human(rule.drain.window()))
        }
        "max_age" => match rule.max_age {
            Some(age) => format!("what has waited longer than {} is not done any more", human(age)),
            None => "what waited is done however old it is".into(),
        },
        _ => {
            let cap = rule.cap?;
            format!("in safe mode, a contact gets at most {} messages in {}", cap.units, human(cap.window))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;
    use proptest::prelude::*;

    const FILES: &[(&str, &str)] = &[
        (
            "clinch.yml",
            "integrations:\n  crm: {base_url: 'http://crm', rate: 5/min, breaker: {probes: 2}}\n  \
             mail: {base_url: 'http://mail', rate_limit: {per_integration: 1/s}, breaker: none, channel: sms}\n\
             safe_mode: {cap: {max: 1, per: 1d}, drain: 5/s}\n",
        ),
        ("queues.yml", "queues:\n  - name: orders\n"),
        (
            "flows/orders.yml",
            "version: 1\nname: orders\ntriggers:\n  - http: {path: /h, idempotency: {key_from: 'header:K', ttl: 48h}}\n\
             steps:\n  - name: enqueue\n    queue: {name: orders}\n",
        ),
        (
            "workers/charge.yml",
            "version: 1\nname: charge\nconsumes: {queue: orders}\nretry: {base_ms: 500, max_delay: 1h}\nrun:\n  \
             - name: charge\n    http: {integration: mail, url: /c, body_from: body}\n",
        ),
        (
            "playbooks/cart.yml",
            "name: cart\non: shop.cart\nretry: {budget: {per: '{{ body.id }}', max: 5}}\nsteps:\n  - id: charge\n    \
             http: {integration: crm, url: /c, body_from: body}\n",
        ),
        (
            "policies.yml",
            "policies:\n  ads: {channels: [sms], contact: '{{ body.id }}', frequency: [{max: 2, per: day}, {max: 5, per: 7d}]}\n",
        ),
    ];

    fn files() -> Files {
        Files(FILES.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
    }

    fn workspace(over: &[(&str, &str)]) -> Result<Workspace, String> {
        let over: Overrides = over.iter().map(|(name, value)| (Arc::from(*name), value.to_string())).collect();
        load_with(&files(), &over).map(|(workspace, _)| workspace).map_err(|problems| told(&problems))
    }

    fn value(name: &str, value: &str, version: i64) -> LiveValue {
        let stored = LiveValue::stored(value, "1", "why");
        let (since, actor) = (Timestamp::from_micros(0), "ada".to_string());
        let row = Control { name: LiveValue::control(name), value: stored, version, at: since, actor, until: None };
        LiveValue::read(name, &row).expect("it was just written")
    }

    #[test]
    fn c4_what_can_be_set_is_named_as_the_files_spell_it_and_says_what_it_is() {
        let workspace = workspace(&[]).expect("sound");
        let told: Vec<(&str, &str)> = workspace.settable.iter().map(|known| (&*known.name, known.by_file())).collect();
        for known in [
            ("worker.charge.retry.max_attempts", "7"),
            ("worker.charge.retry.base_ms", "500"),
            ("worker.charge.retry.max_delay", "1h"),
            ("worker.charge.retry.max_elapsed", "none"),
            ("worker.charge.retry.budget_per_contact", "none"),
            ("playbook.cart.retry.base_delay", "2s"),
            ("playbook.cart.retry.budget.max", "5"),
            ("playbook.cart.retry.budget.window", "1h"),
            ("integration.crm.rate", "5/min"),
            ("integration.crm.concurrency", "none"),
            ("integration.crm.breaker.probes", "2"),
            ("integration.crm.breaker.errors_percent", "50"),
            ("integration.mail.rate_limit.per_integration", "1/s"),
            ("policy.ads.frequency.0.max", "2"),
            ("policy.ads.frequency.1.max", "5"),
            ("safe_mode.hold", "true"),
            ("safe_mode.drain", "5/s"),
            ("safe_mode.max_age", "none"),
            ("safe_mode.cap.max", "1"),
        ] {
            assert!(told.contains(&known), "{known:?} is not in {told:#?}");
        }
        for absent in
            ["integration.mail.breaker.probes", "worker.charge.retry.base_delay", "worker.cart.retry.max_delay"]
        {
            assert_eq!(workspace.settable(absent), None, "{absent}");
        }
        for known in &workspace.settable {
            assert!(!known.doc.is_empty() && meaning(&workspace, &known.name).is_some(), "{known:?}");
        }
    }

    #[test]
    fn c4_what_is_set_is_what_the_workspace_then_says() {
        let set = |name: &str, value: &str| workspace(&[(name, value)]).expect(name);
        let retry = |workspace: &Workspace, queue: &str| workspace.worker_for(queue).expect("a worker").retry.clone();
        assert_eq!(retry(&set("worker.charge.retry.max_attempts", "3"), "orders").attempts_max.get(), 3);
        assert_eq!(retry(&set("worker.charge.retry.base_ms", "9"), "orders").base.as_millis(), 9);
        let budget = retry(&set("playbook.cart.retry.budget.window", "2h"), "playbook.cart").budget.expect("a budget");
        assert_eq!((budget.allowance.units.get(), budget.allowance.window.as_secs()), (5, 7_200));
        let limited = set("integration.mail.rate_limit.per_integration", "9/s");
        let rate = limited.integration("mail").and_then(|mail| mail.rate).expect("a rate");
        assert_eq!(rate.count().get(), 9);
        // Steps call whom the workspace knows.
        let partner = limited.partner_of("orders", "charge").expect("a partner");
        assert_eq!(partner.rate, Some(rate));
        let breaker = set("integration.crm.breaker.calls", "1").integration("crm").and_then(|crm| crm.breaker);
        assert_eq!(breaker.map(|rule| rule.probes), Some(2), "what nothing is called is passed over");
        assert_eq!(set("policy.ads.frequency.1.max", "9").policies[0].caps[1].max.get(), 9);
        assert!(!set("safe_mode.hold", "false").settings.safe_mode.hold);
        let both = set("safe_mode.cap.max", "4");
        assert_eq!(both.settings.safe_mode.cap.map(|cap| cap.units.get()), Some(4));
        let known = both.settable("safe_mode.cap.max").expect("it can be set");
        assert_eq!((known.file.as_deref(), known.live.as_deref()), (Some("1"), Some("4")));
    }

    #[test]
    fn c4_a_value_is_refused_in_the_words_of_the_file() {
        let refused = |name: &str, value: &str| workspace(&[(name, value)]).expect_err(name);
        for (name, value, said) in [
            ("worker.charge.retry.max_attempts", "0", "`max_attempts` is too small; write 1 to 10000"),
            ("worker.charge.retry.max_attempts", "{x: 1}", "`max_attempts`"),
            ("worker.charge.retry.max_delay", "5", "5"),
            ("integration.crm.rate", "0/s", "lets nothing pass"),
            ("policy.ads.frequency.0.max", "-1", "`max` is too small"),
            ("safe_mode.hold", "maybe", "`hold`"),
            ("safe_mode.drain", "", "`drain`"),
            // Alone it is fine; but keys are remembered for 48h, and a job may live longer.
            ("worker.charge.retry.max_attempts", "100", "keys are forgotten after 2d"),
        ] {
            let why = refused(name, value);
            assert!(why.contains(said), "{name}={value}: {why}");
        }
    }

    #[test]
    fn c4_what_the_files_do_not_bear_is_left_out_and_the_rest_counts() {
        let (delay, attempts) = ("worker.charge.retry.max_delay", "worker.charge.retry.max_attempts");
        // The second makes a job live too long only beside the first.
        let values = [
            value("integration.gone.rate", "1/s", 1),
            value(attempts, "60", 3),
            value(delay, "6h", 4),
            value("integration.crm.rate", "9/s", 5),
        ];
        let live = over(&files(), &values).expect("the files are sound");
        let refused: Vec<&str> = live.refused.iter().map(|refused| &*refused.name).collect();
        assert_eq!(refused, [delay, "integration.gone.rate"], "{:?}", live.refused);
        assert_eq!(live.workspace.integration("crm").and_then(|crm| crm.rate).map(|rate| rate.count().get()), Some(9));
        let beside = Beside::of(&values[2], &live.workspace, &live.refused);
        assert!(!beside.counts && beside.to_string().contains("it does not count: keys are forgotten"), "{beside}");
    }

    #[test]
    fn c4_it_is_told_when_the_file_follows_or_moves() {
        let workspace = workspace(&[]).expect("sound");
        let note = |value: &LiveValue| Beside::of(value, &workspace, &[]).note.unwrap_or_default();
        let name = "playbook.cart.retry.budget.max";
        assert!(note(&value(name, "5", 1)).contains("says the same now"));
        assert!(note(&value(name, "9", 1)).contains("it said 1 when this was set"));
        assert_eq!(note(&LiveValue { file: "5".into(), ..value(name, "9", 1) }), "");
        let said = Beside::of(&value(name, "9", 1), &workspace, &[]).to_string();
        assert!(
            said.starts_with("playbook.cart.retry.budget.max: the file says 5, live is 9, set by ada on 1970"),
            "{said}"
        );
    }

    #[test]
    fn c4_a_name_that_nothing_has_leads_to_the_one_that_was_meant() {
        let workspace = workspace(&[]).expect("sound");
        let check = |name: &str, meant: &str| {
            let said = Unknown::of(name, &workspace).to_string();
            assert!(said.contains(meant), "{name}: {said}");
        };
        check("worker.charge.retry.max_atempts", "did you mean `worker.charge.retry.max_attempts`?");
        check("queue.orders.retry.max_attempts", "did you mean `worker.charge.retry.max_attempts`?");
        check("queue.playbook.cart.retry.max_delay", "did you mean `playbook.cart.retry.max_delay`?");
        check("worker.cart.retry.max_delay", "did you mean `playbook.cart.retry.max_delay`?");
        check("weather", "`clinch set` lists what can be set");
    }

    proptest! {
        /// Whatever is written, it is read as the file would read it, or refused; and nothing else changes.
        #[test]
        fn c4_no_text_breaks_the_reader_or_changes_anything_else(nth in 0usize..40, text in "[\\PC]{0,12}|[0-9]{1,12}[smhd]?") {
            let plain = workspace(&[]).expect("sound");
            let known = &plain.settable[nth % plain.settable.len()];
            if let Ok(changed) = workspace(&[(&known.name, &text)]) {
                prop_assert_eq!(changed.settable.len(), plain.settable.len());
                for (before, after) in plain.settable.iter().zip(&changed.settable) {
                    prop_assert_eq!((&before.name, &before.file), (&after.name, &after.file));
                    prop_assert_eq!(after.live.as_deref(), (before.name == known.name).then_some(text.as_str()));
                }
            }
        }
    }

    #[test]
    fn c4_the_files_alone_set_nothing() {
        let (workspace, _) = load(&files()).expect("sound");
        assert!(workspace.settable.iter().all(|known| known.live.is_none()));
    }
}
