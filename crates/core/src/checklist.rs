//! The idempotency audit: six questions to a workspace, answered for every step and every way in. What passes says what protects it,
//! what fails says what to write and where, and what only a person can know is called unknown.

use crate::config::{Place, Places, Workspace};
use crate::effect::{EffectClass, Idempotency};
use crate::flow::{Enqueue, Flow, OnConflict};
use crate::integration::{Integration, Promise, WRAPPED_FOR_DEFAULT};
use crate::key::{KeyPart, KeyRule};
use crate::message::Channel;
use crate::protection::advice;
use crate::signature::presets::{self, Preset, Retries};
use crate::source::{Proof, SameBody};
use crate::time::human;
use crate::trial::{Letter, Trial, What};
use crate::worker::{Action, Step, Worker};
use std::sync::Arc;
use std::time::Duration;

/// Where money moves, a key that is kept for less is worth a second thought.
const MONEY_TTL: Duration = Duration::from_secs(7 * 86_400);

/// The questions, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Effects,
    Keys,
    Windows,
    Conflicts,
    Jobs,
    Tests,
}

impl Stage {
    pub const ALL: [Stage; 6] =
        [Stage::Effects, Stage::Keys, Stage::Windows, Stage::Conflicts, Stage::Jobs, Stage::Tests];

    pub const fn word(self) -> &'static str {
        match self {
            Stage::Effects => "effects",
            Stage::Keys => "keys",
            Stage::Windows => "windows",
            Stage::Conflicts => "conflicts",
            Stage::Jobs => "jobs",
            Stage::Tests => "tests",
        }
    }

    pub const fn question(self) -> &'static str {
        match self {
            Stage::Effects => "What changes something outside, and how bad is twice?",
            Stage::Keys => "What is each delivery, and each effect, recognised by?",
            Stage::Windows => "Whose keys are they, and are they kept for as long as somebody tries again?",
            Stage::Conflicts => "What is answered when a key comes back with another body?",
            Stage::Jobs => "Does the same key hold behind the door: in jobs, lists, schedules, replays?",
            Stage::Tests => "Which tests deliver the same thing twice?",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    /// Only a person can know; the fix says how to write it down.
    Unknown,
}

impl Verdict {
    pub const ALL: [Verdict; 3] = [Verdict::Pass, Verdict::Fail, Verdict::Unknown];

    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Unknown => "unknown",
        }
    }
}

/// One line of the checklist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub stage: Stage,
    pub verdict: Verdict,
    /// The step, the way in or the flow that it is about.
    pub subject: String,
    pub said: String,
    pub place: Place,
    /// What to write there; nothing where it passes.
    pub fix: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checklist {
    pub items: Vec<Item>,
}

impl Checklist {
    /// `trials` are the tests of the workspace, each with its file.
    pub fn of(workspace: &Workspace, places: &Places, trials: &[(String, Trial)]) -> Checklist {
        let mut asked = Asked { workspace, places, items: Vec::new() };
        let ways = ways(workspace);
        for worker in &workspace.workers {
            for effect in effects(worker) {
                asked.effect(&effect);
            }
            asked.inside(worker);
        }
        for way in &ways {
            asked.way(way);
        }
        for flow in &workspace.flows {
            asked.flow(flow, &ways);
            asked.tests(flow, &ways, trials);
        }
        let mut items = asked.items;
        items.sort_by_key(|item| item.stage);
        Checklist { items }
    }

    pub fn count(&self, verdict: Verdict) -> usize {
        self.items.iter().filter(|item| item.verdict == verdict).count()
    }

    pub fn stage(&self, stage: Stage) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.stage == stage)
    }
}

/// Something that a step does outside, or undoes.
struct Effect<'a> {
    worker: &'a Worker,
    step: &'a Step,
    action: &'a Action,
    partner: &'a Arc<Integration>,
    promise: &'a Promise,
    is_undo: bool,
}

fn effects(worker: &Worker) -> impl Iterator<Item = Effect<'_>> {
    worker.all_steps().flat_map(move |step| {
        let undo = step.compensate.iter().map(|action| (action, true));
        std::iter::once((&step.action, false)).chain(undo).filter_map(move |(action, is_undo)| {
            let (partner, promise) = action.outward()?;
            Some(Effect { worker, step, action, partner, promise, is_undo })
        })
    })
}

impl Effect<'_> {
    fn subject(&self) -> String {
        let undo = if self.is_undo { " (undo)" } else { "" };
        format!("{}/{}{undo}", self.worker.name, self.step.name)
    }

    fn place(&self, places: &Places, key: &str) -> Place {
        match self.is_undo {
            true => places.undo(&self.worker.name, &self.step.name, key),
            false => places.step(&self.worker.name, &self.step.name, key),
        }
    }

    /// What it is by its nature, where that needs no declaration.
    fn class_by_nature(&self) -> Option<EffectClass> {
        match self.action {
            Action::Http(http) if matches!(http.method.as_str(), "GET" | "HEAD") => Some(EffectClass::Read),
            Action::Sql(sql) => {
                let first = sql.statement.trim_start().get(..6).unwrap_or_default();
                first.eq_ignore_ascii_case("select").then_some(EffectClass::Read)
            }
            Action::Send(_) => Some(EffectClass::Create),
            _ => None,
        }
    }

    fn class(&self) -> EffectClass {
        self.class_by_nature().unwrap_or(self.partner.class)
    }
}

/// A way in, with what it leads to.
struct Way<'a> {
    /// As people call it.
    subject: String,
    /// Of the source, or of the flow whose route it is.
    name: &'a str,
    path: &'a str,
    keys: Option<WayKeys<'a>>,
    has_tenant: bool,
    /// The provider, if it is one that is known.
    provider: Option<&'static Preset>,
    /// Several senders may have tokens for it, or nobody is asked who he is.
    is_shared: bool,
    flows: Vec<&'a Flow>,
}

struct WayKeys<'a> {
    /// `None`: the provider's own id.
    rule: Option<&'a KeyRule>,
    required: bool,
    ttl: Duration,
    on_conflict: OnConflict,
    /// Its id is not signed, and the same body under another counts as another event.
    is_forgeable: bool,
}

impl WayKeys<'_> {
    fn words(&self) -> String {
        match self.rule {
            None => "the provider's own id".into(),
            Some(KeyRule::One(part)) => format!("`{part}`"),
            Some(KeyRule::Tuple(parts)) => format!("a hash of {}", listed(parts)),
        }
    }

    /// The caller makes it up, and knows what it means.
    fn is_callers(&self) -> bool {
        matches!(self.rule, Some(KeyRule::One(KeyPart::Header(_))))
    }
}

fn listed(parts: &[KeyPart]) -> String {
    parts.iter().map(|part| format!("`{part}`")).collect::<Vec<_>>().join(", ")
}

fn ways(workspace: &Workspace) -> Vec<Way<'_>> {
    let mut ways = Vec::new();
    for flow in &workspace.flows {
        for route in &flow.routes {
            let keys = route.dedup.as_ref().map(|rule| WayKeys {
                rule: Some(&rule.key),
                required: rule.required,
                ttl: rule.ttl,
                on_conflict: rule.on_conflict,
                is_forgeable: false,
            });
            ways.push(Way {
                subject: route.scope(),
                name: &flow.name,
                path: &route.path,
                keys,
                has_tenant: route.tenant.is_some(),
                provider: None,
                is_shared: true,
                flows: vec![flow],
            });
        }
    }
    for source in &workspace.sources {
        let takes = |flow: &&Flow| flow.subscriptions.iter().any(|from| from.source == source.name);
        ways.push(Way {
            subject: format!("source {}", source.name),
            name: &source.name,
            path: &source.path,
            keys: Some(WayKeys {
                rule: source.keys.rule.as_ref(),
                required: source.keys.required,
                ttl: source.keys.ttl,
                on_conflict: source.keys.on_conflict,
                is_forgeable: source.same_body == Some(SameBody::Count)
                    && source.keys.rule.as_ref().is_none_or(has_header),
            }),
            has_tenant: source.tenant.is_some(),
            provider: (!source.preset.family.is_empty()).then_some(source.preset),
            is_shared: !matches!(source.proof, Some(Proof::Signature(_))),
            flows: workspace.flows.iter().filter(takes).collect(),
        });
    }
    ways
}

/// What is read from a body is signed with it.
fn has_header(rule: &KeyRule) -> bool {
    rule.parts().iter().any(|part| matches!(part, KeyPart::Header(_)))
}

/// The longest that a provider tries again, of all that are known here.
fn longest_known() -> Duration {
    let known = presets::ALL.iter().filter_map(|preset| match preset.retries {
        Retries::For(window) => Some(window),
        Retries::Never | Retries::Unknown => None,
    });
    known.max().unwrap_or_default()
}

/// Parts of a key that are other values each time the same thing is sent.
fn changing(rule: &KeyRule) -> Option<&KeyPart> {
    const IN_HEADERS: &[&str] = &["date", "timestamp", "request-id", "attempt", "retry", "nonce", "signature", "trace"];
    const IN_BODIES: &[&str] = &["sent_at", "delivered_at", "received_at", "attempt", "retry", "nonce", "request_id"];
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.to_ascii_lowercase().contains(word));
    rule.parts().iter().find(|part| match part {
        KeyPart::Header(name) => has(name, IN_HEADERS),
        KeyPart::Body(pointer) => has(pointer.rsplit('/').next().unwrap_or_default(), IN_BODIES),
        KeyPart::Computed(_) => false,
    })
}

/// Where a test sends the same thing more than once and looks at what came of it.
fn sent_twice(trial: &Trial) -> Option<&str> {
    let sent = trial.acts.iter().filter_map(|act| match &act.what {
        What::Send(letter) => Some(letter),
        What::Replay(_) | What::Approve(_) | What::Reject(_) | What::Wait(_) => None,
    });
    let sent: Vec<&Letter> = sent.collect();
    let is_again = |nth: usize| sent[nth].times > 1 || sent[..nth].iter().any(|before| is_same(before, sent[nth]));
    let looks = trial.calls.is_some() || trial.acts.iter().any(|act| act.expect.is_replayed == Some(true));
    (0..sent.len()).find(|nth| looks && is_again(*nth)).map(|nth| sent[nth].to.as_str())
}

fn is_same(one: &Letter, other: &Letter) -> bool {
    let told = |letter: &Letter| Letter { times: 1, ..letter.clone() };
    told(one) == told(other)
}

struct Asked<'a> {
    workspace: &'a Workspace,
    places: &'a Places,
    items: Vec<Item>,
}

impl Asked<'_> {
    fn pass(&mut self, stage: Stage, subject: &str, place: Place, said: impl Into<String>) {
        self.items.push(Item {
            stage,
            verdict: Verdict::Pass,
            subject: subject.into(),
            said: said.into(),
            place,
            fix: None,
        });
    }

    fn doubt(
        &mut self,
        (stage, verdict): (Stage, Verdict),
        subject: &str,
        place: Place,
        said: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let (subject, said, fix) = (subject.into(), said.into(), Some(fix.into()));
        self.items.push(Item { stage, verdict, subject, said, place, fix });
    }

    fn effect(&mut self, effect: &Effect<'_>) {
        self.class(effect);
        if effect.class() != EffectClass::Read {
            self.protection(effect);
            self.honoured(effect);
        }
    }

    fn class(&mut self, effect: &Effect<'_>) {
        let (subject, class) = (effect.subject(), effect.class());
        let partner = &*effect.partner.name;
        let place = effect.place(self.places, "integration");
        let stage = Stage::Effects;
        let twice = match class {
            EffectClass::Read => "it changes nothing",
            EffectClass::Create => "twice makes two of them",
            EffectClass::State => "twice is late, or out of order",
            EffectClass::Monetary => "twice costs money",
        };
        let unknown = (stage, Verdict::Unknown);
        if effect.class_by_nature().is_some() || self.places.integration_says(partner, "class") {
            return self.pass(stage, &subject, place, format!("{partner}: {}: {twice}", class.word()));
        }
        match self.places.integration(partner, "class") {
            Some(place) => {
                let said = format!("`{partner}` does not say what its effects are; they are taken as create");
                let fix = format!("write `class: create`, `state`, `monetary` or `read` below `{partner}:`");
                self.doubt(unknown, &subject, place, said, fix);
            }
            None if matches!(effect.action, Action::Script(_)) => {
                let said = "what a script does cannot be seen from here; it is taken as create";
                let fix = "let what acts be an `http:` or `sql:` step of its own; or read the script, and leave this as it is";
                self.doubt(unknown, &subject, place, said, fix);
            }
            None => {
                let said =
                    format!("nothing is said of `{partner}`, which is called by its address; it is taken as create");
                let fix = format!(
                    "name it in clinch.yml, below `integrations:`, with `base_url: https://{partner}` and its `class:`, and write \
                     `integration: NAME` here"
                );
                self.doubt(unknown, &subject, place, said, fix);
            }
        }
    }

    /// What an effect is recognised by when it is sent again.
    fn protection(&mut self, effect: &Effect<'_>) {
        let (subject, partner) = (effect.subject(), &*effect.partner.name);
        let place = effect.place(self.places, "idempotency");
        let stage = Stage::Keys;
        match (effect.promise.idempotency, effect.action) {
            (Idempotency::Header, Action::Script(script)) if !script.text.contains("IDEMPOTENCY_KEY") => {
                let said =
                    "it runs again after a lost answer, and never reads IDEMPOTENCY_KEY: the target cannot know it";
                let fix = "hand IDEMPOTENCY_KEY on to the target, or write `on_unknown: ask`";
                let place = effect.place(self.places, "on_unknown");
                self.doubt((stage, Verdict::Fail), &subject, place, said, fix);
            }
            (Idempotency::Header, Action::Script(_)) => {
                self.pass(
                    stage,
                    &subject,
                    place,
                    "its script is given IDEMPOTENCY_KEY, the same on every try and replay",
                );
            }
            (Idempotency::Header, _) => {
                let said = format!(
                    "`{}` carries our key to {partner}, the same on every try and replay",
                    effect.partner.key_header
                );
                self.pass(stage, &subject, place, said);
            }
            (Idempotency::Natural, Action::Sql(_)) => {
                let said = "a row in the target, written in the same transaction, says that it was done";
                self.pass(stage, &subject, place, said);
            }
            (Idempotency::Natural, Action::Http(http))
                if http.method == "POST" && effect.partner.class.is_irreversible() =>
            {
                let said = format!("`natural`, and a POST that creates: does {partner} make one of two?");
                let fix = "if it does, say `class: state` of the integration; if not, write `idempotency: header` or `lookup:`";
                self.doubt((stage, Verdict::Unknown), &subject, place, said, fix);
            }
            (Idempotency::Natural, _) => {
                self.pass(stage, &subject, place, "twice is once, says the workspace (`natural`)")
            }
            (Idempotency::Lookup, _) => {
                self.pass(stage, &subject, place, format!("{partner} is asked first whether it was done (`lookup`)"));
            }
            (Idempotency::Wrap | Idempotency::Shared, _) => {
                let said = "clinch remembers what was done under the key; an answer that is lost waits for a person";
                self.pass(stage, &subject, place, said);
            }
            (Idempotency::None, Action::Send(send)) if matches!(send.channel, Channel::Mail(_)) => {
                let said =
                    "mail servers know no keys: a mail whose answer is lost waits for a person, and is not sent again";
                let fix =
                    "nothing can be written; keep each mail in a step of its own, and look at `clinch effects ls`";
                self.doubt((stage, Verdict::Unknown), &subject, place, said, fix);
            }
            (Idempotency::None, action) => {
                let said = format!("nothing protects it: when an answer of {partner} is lost, a person must find out");
                self.doubt((stage, Verdict::Fail), &subject, place, said, advice(action));
            }
        }
    }

    /// Whether the partner, or clinch for it, remembers a key for as long as it is tried.
    fn honoured(&mut self, effect: &Effect<'_>) {
        let promise = effect.promise;
        let honoured = match promise.idempotency {
            Idempotency::Header if !matches!(effect.action, Action::Script(_)) => promise.honoured_for,
            Idempotency::Wrap => Some(promise.honoured_for.unwrap_or(WRAPPED_FOR_DEFAULT)),
            _ => return,
        };
        let (subject, partner) = (effect.subject(), &*effect.partner.name);
        let here = || effect.place(self.places, "honoured_for");
        let place = self.places.integration(partner, "honoured_for").unwrap_or_else(here);
        let horizon = effect.worker.horizon();
        let (stage, tries) = (Stage::Windows, human(horizon));
        match honoured {
            None => {
                let said = format!("how long {partner} honours a key is not said; it is taken as for ever");
                let fix = "write `honoured_for: 24h`, or what its documentation says: after that a lost answer waits for a person";
                self.doubt((stage, Verdict::Unknown), &subject, place, said, fix);
            }
            Some(kept) if kept < horizon => {
                let said = format!("{partner} honours a key for {}, and the step is tried for {tries}", human(kept));
                let fix = format!(
                    "let `{}` give up sooner (`retry: {{max_attempts: …}}`), or ask instead of sending again (`lookup:`)",
                    effect.worker.name
                );
                self.doubt((stage, Verdict::Fail), &subject, place, said, fix);
            }
            Some(kept) => {
                let said = format!("{partner} honours a key for {}; the step is tried for {tries}", human(kept));
                self.pass(stage, &subject, place, said);
            }
        }
    }

    fn way(&mut self, way: &Way<'_>) {
        let at = |places: &Places, key: &str| places.way(way.name, way.path, key);
        let Some(keys) = &way.keys else {
            let said = "deliveries have no key: each is a new event, and does all of its work again";
            let fix = "add `idempotency: {key_from: header:Idempotency-Key, ttl: 48h}` below `http:`";
            let place = at(self.places, "http");
            return self.doubt((Stage::Keys, Verdict::Fail), &way.subject, place, said, fix);
        };
        self.way_key(way, keys, at(self.places, if keys.required { "key_from" } else { "required" }));
        self.way_window(way, keys, at(self.places, "ttl"));
        self.way_scope(way, at(self.places, "tenant"));
        self.way_conflict(way, keys, at(self.places, "on_conflict"));
    }

    fn way_key(&mut self, way: &Way<'_>, keys: &WayKeys<'_>, place: Place) {
        let stage = Stage::Keys;
        if let Some(part) = keys.rule.and_then(changing) {
            let said = format!("`{part}` is another one each time: what is sent again is not recognised");
            let fix = "take what stays the same: the sender's id of the event, or of the thing that it is about";
            return self.doubt((stage, Verdict::Fail), &way.subject, place, said, fix);
        }
        if !keys.required {
            let said =
                format!("without {} a delivery is accepted, and not recognised when it comes again", keys.words());
            let fix = "write `required: true`, or leave `required` out";
            return self.doubt((stage, Verdict::Fail), &way.subject, place, said, fix);
        }
        if keys.is_forgeable {
            let said = format!("{} is not signed: who captured a delivery can send it under another", keys.words());
            let fix = "write `same_body: drop`, if the same body is never two events";
            return self.doubt((stage, Verdict::Unknown), &way.subject, place, said, fix);
        }
        self.pass(stage, &way.subject, place, format!("recognised by {}", keys.words()));
    }

    fn way_window(&mut self, way: &Way<'_>, keys: &WayKeys<'_>, place: Place) {
        let (stage, kept) = (Stage::Windows, human(keys.ttl));
        let tried = way.flows.iter().flat_map(|flow| &flow.enqueue).filter_map(|step| self.tried(step));
        if let Some((horizon, worker)) = tried.max_by_key(|(horizon, _)| *horizon) {
            let (name, tries) = (worker.name.clone(), human(horizon));
            match keys.ttl >= horizon {
                true => {
                    let said = format!("keys are kept for {kept}; `{name}` tries for {tries}");
                    self.pass(stage, &way.subject, place.clone(), said);
                }
                false => {
                    let said = format!("keys are forgotten after {kept}, and `{name}` tries for {tries}");
                    let fix = format!("write a `ttl` of at least {tries}");
                    self.doubt((stage, Verdict::Fail), &way.subject, place.clone(), said, fix);
                }
            }
        }
        self.sender_window(way, keys, place.clone());
        if keys.ttl < MONEY_TTL && self.moves_money(way) {
            let said = format!("money moves behind it, and keys are forgotten after {kept}");
            let fix = format!(
                "write `ttl: {}` or longer, unless nobody sends it again by hand after {kept}",
                human(MONEY_TTL)
            );
            self.doubt((stage, Verdict::Unknown), &way.subject, place, said, fix);
        }
    }

    /// How long a job of this step may live, and who runs it.
    fn tried(&self, step: &Enqueue) -> Option<(Duration, &Worker)> {
        let worker = self.workspace.worker_for(&step.queue)?;
        let usual = self.workspace.queue(&step.queue).map_or(Duration::ZERO, |queue| queue.delay);
        Some((worker.horizon().saturating_add(step.delay.unwrap_or(usual)), worker))
    }

    fn moves_money(&self, way: &Way<'_>) -> bool {
        let steps = way.flows.iter().flat_map(|flow| &flow.enqueue);
        let mut workers = steps.filter_map(|step| self.workspace.worker_for(&step.queue));
        workers.any(|worker| effects(worker).any(|effect| effect.class() == EffectClass::Monetary))
    }

    fn sender_window(&mut self, way: &Way<'_>, keys: &WayKeys<'_>, place: Place) {
        let (stage, kept) = (Stage::Windows, human(keys.ttl));
        match way.provider.map(|provider| (provider.title, provider.retries)) {
            Some((title, Retries::For(window))) if window > keys.ttl => {
                let said = format!("{title} tries again for {}, and keys are forgotten after {kept}", human(window));
                let fix = format!("write a `ttl` of more than {}", human(window));
                self.doubt((stage, Verdict::Fail), &way.subject, place, said, fix);
            }
            Some((title, Retries::For(window))) => {
                let said = format!("{title} tries again for {}; keys are kept for {kept}", human(window));
                self.pass(stage, &way.subject, place, said);
            }
            Some((title, Retries::Never)) => {
                self.pass(stage, &way.subject, place, format!("{title} does not try again by itself"));
            }
            Some((_, Retries::Unknown)) | None if keys.ttl > longest_known() => {
                let said = format!("keys are kept for {kept}: longer than any provider that is known here tries");
                self.pass(stage, &way.subject, place, said);
            }
            Some((_, Retries::Unknown)) | None => {
                let said = format!("keys are forgotten after {kept}; how long the sender tries is not known here");
                let fix = format!(
                    "ask who sends; a `ttl` of more than {} is longer than any provider that is known here tries",
                    human(longest_known())
                );
                self.doubt((stage, Verdict::Unknown), &way.subject, place, said, fix);
            }
        }
    }

    fn way_scope(&mut self, way: &Way<'_>, place: Place) {
        let stage = Stage::Windows;
        if way.has_tenant {
            return self.pass(stage, &way.subject, place, "keys of two tenants never meet");
        }
        if !way.is_shared {
            return self.pass(stage, &way.subject, place, "one sender, who signs: its keys are its own");
        }
        let said = "the keys of all who send here meet: one of them could take another's";
        let fix = "write `tenant_from: header:NAME` or `body:/pointer`, if more than one customer sends here";
        self.doubt((stage, Verdict::Unknown), &way.subject, place, said, fix);
    }

    fn way_conflict(&mut self, way: &Way<'_>, keys: &WayKeys<'_>, place: Place) {
        let stage = Stage::Conflicts;
        match (keys.on_conflict, way.provider) {
            (OnConflict::Reject, Some(provider)) => {
                let said = format!("{} is refused (422) when a body changes, and only tries again", provider.title);
                let fix = "write `on_conflict: keep_first`";
                self.doubt((stage, Verdict::Fail), &way.subject, place, said, fix);
            }
            (OnConflict::KeepFirst, None) if keys.is_callers() => {
                let said = "a caller who uses a key twice for two things gets the first answer, and is not told";
                let fix = "write `on_conflict: reject`, or leave it out";
                self.doubt((stage, Verdict::Fail), &way.subject, place, said, fix);
            }
            (OnConflict::Reject, None) => {
                self.pass(
                    stage,
                    &way.subject,
                    place,
                    "another body under a key is refused (422); the same body gets the first answer",
                );
            }
            (OnConflict::KeepFirst, _) => {
                self.pass(stage, &way.subject, place, "the first stays, is answered again, and the other is counted");
            }
        }
    }

    /// What recognises work that is not begun by a delivery: lists, jobs of jobs, keys of steps, schedules.
    fn inside(&mut self, worker: &Worker) {
        let stage = Stage::Jobs;
        if let Some(schedule) = worker.schedule() {
            let place = self.places.worker(&worker.name, "schedule");
            let beside = if schedule.overlaps { "runs may overlap" } else { "no two runs at once" };
            self.pass(stage, &worker.name, place, format!("each moment is one run, on all nodes together; {beside}"));
        }
        let horizon = worker.horizon();
        for step in worker.all_steps() {
            let subject = format!("{}/{}", worker.name, step.name);
            let place = |places: &Places, key: &str| places.step(&worker.name, &step.name, key);
            if step.each.is_some() {
                let said =
                    "each of the list has a line of its own in the ledger: what is done for one is not done again";
                self.pass(stage, &subject, place(self.places, "foreach"), said);
            }
            match &step.action {
                Action::Queue(queue) => {
                    let key = queue
                        .key
                        .as_ref()
                        .map_or_else(|| "the step's own key".into(), |key| format!("`{}`", key.source()));
                    let said = format!("puts a job into `{}` once, recognised by {key}", queue.queue);
                    self.pass(stage, &subject, place(self.places, "queue"), said);
                }
                Action::Setnx(set) if set.ttl < horizon => {
                    let said = format!(
                        "its key is free again after {}, and a job is tried for {}: another could begin beside it",
                        human(set.ttl),
                        human(horizon)
                    );
                    let fix = format!("write a `ttl` of at least {}", human(horizon));
                    self.doubt((stage, Verdict::Fail), &subject, place(self.places, "ttl"), said, fix);
                }
                Action::Setnx(set) => {
                    let said = format!("one job for each `{}` in {}", written(&set.key), human(set.ttl));
                    self.pass(stage, &subject, place(self.places, "ttl"), said);
                }
                _ => {}
            }
        }
    }

    /// Whether jobs go on under the key that let their event in.
    fn flow(&mut self, flow: &Flow, ways: &[Way<'_>]) {
        let stage = Stage::Jobs;
        let own = |way: &&Way<'_>| way.flows.iter().any(|known| known.name == flow.name);
        // Where no door has a key there is none to carry; that was said.
        if !ways.iter().filter(own).any(|way| way.keys.is_some()) {
            return;
        }
        let doors: Vec<&KeyRule> = ways.iter().filter(own).filter_map(|way| way.keys.as_ref()?.rule).collect();
        for step in &flow.enqueue {
            let place = self.places.flow(&flow.name);
            let subject = format!("{}/{}", flow.name, step.step);
            match &step.key {
                Some(key) if !doors.contains(&key) => {
                    let said = format!(
                        "jobs in `{}` carry {} and not the key of the door: one here may be two there",
                        step.queue,
                        listed(key.parts())
                    );
                    let fix = "leave the key of the step out, or write the same `key_from` at the trigger";
                    self.doubt((stage, Verdict::Unknown), &subject, place, said, fix);
                }
                _ => {
                    let said = format!("jobs in `{}` carry the key of the door; tries and replays keep it", step.queue);
                    self.pass(stage, &subject, place, said);
                }
            }
        }
    }

    fn tests(&mut self, flow: &Flow, ways: &[Way<'_>], trials: &[(String, Trial)]) {
        let own: Vec<&Way<'_>> =
            ways.iter().filter(|way| way.flows.iter().any(|known| known.name == flow.name)).collect();
        if own.is_empty() {
            return;
        }
        let leads = |to: &str| to == flow.name || own.iter().any(|way| to == way.name || to == way.path);
        let stage = Stage::Tests;
        if let Some((file, trial)) = trials.iter().find(|(_, trial)| sent_twice(trial).is_some_and(leads)) {
            let place = Place { file: file.clone(), line: trial.line };
            return self.pass(stage, &flow.name, place, format!("\"{}\"", trial.name));
        }
        let to = own[0].name;
        let said = "no test sends the same event twice";
        let fix = format!(
            "add to tests/{0}.yml, below `tests:`:\n  - name: a duplicate does no work\n    do:\n      - {{send: {to}, fixture: NAME, key: k-1}}\n      - {{send: {to}, fixture: NAME, key: k-1, expect: {{replayed: true}}}}",
            flow.name
        );
        self.doubt((stage, Verdict::Fail), &flow.name, self.places.flow(&flow.name), said, fix);
    }
}

fn written(template: &crate::expr::Template) -> &str {
    let (crate::expr::Template::Plain(text) | crate::expr::Template::Mixed(text)) = template;
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Files, load, trials};

    const FLOW: &str = "name: orders\ntriggers:\n  - http:\n      path: /orders\n      verify: none\n      idempotency: {key_from: KEY, ttl: TTL}\nsteps:\n  - name: enqueue\n    queue: {name: orders}\n";
    const WORKER: &str = "name: charge\nconsumes: {queue: orders}\nrun:\n  - name: charge\n    http: {integration: pay, url: /charges, body_from: body}\n";
    const SETTINGS: &str = "integrations:\n  pay: {base_url: 'https://pay.example.com', CLASS, idempotency: PROMISE}\n";

    fn checklist(changes: &[(&str, &str)], trials: &[(String, Trial)]) -> Checklist {
        let usual =
            [("KEY", "header:Idempotency-Key"), ("TTL", "7d"), ("CLASS", "class: create"), ("PROMISE", "header")];
        let written = |text: &str| {
            changes.iter().chain(&usual).fold(text.to_string(), |text, (word, value)| text.replace(word, value))
        };
        let files = Files(vec![
            ("clinch.yml".into(), written(SETTINGS)),
            ("flows/orders.yml".into(), written(FLOW)),
            ("queues.yml".into(), "queues:\n  - name: orders\n".into()),
            ("workers/charge.yml".into(), written(WORKER)),
        ]);
        match load(&files) {
            Ok((workspace, _)) => Checklist::of(&workspace, &Places::of(&files), trials),
            Err(problems) => panic!("{problems:#?}"),
        }
    }

    /// The item of this stage about this subject that is not a pass, and its line.
    fn check(changes: &[(&str, &str)], stage: Stage, verdict: Verdict, said: &str, place: &str) {
        let checklist = checklist(changes, &[]);
        let found = checklist.stage(stage).find(|item| item.verdict == verdict && item.said.contains(said));
        let item = found.unwrap_or_else(|| panic!("{said}: {checklist:#?}"));
        assert_eq!(format!("{}:{}", item.place.file, item.place.line), place, "{said}");
        assert_eq!(item.fix.is_none(), verdict == Verdict::Pass, "{said}");
    }

    #[test]
    fn j6_what_protects_an_effect_passes_and_what_does_not_fails_at_its_line() {
        use Verdict::*;
        check(&[], Stage::Keys, Pass, "`Idempotency-Key` carries our key to pay", "workers/charge.yml:4");
        check(&[("PROMISE", "none")], Stage::Keys, Fail, "nothing protects it", "workers/charge.yml:4");
        check(&[("PROMISE", "natural")], Stage::Keys, Unknown, "does pay make one of two?", "workers/charge.yml:4");
        let state = [("PROMISE", "natural"), ("CLASS", "class: state")];
        check(&state, Stage::Keys, Pass, "twice is once", "workers/charge.yml:4");
        check(
            &[("CLASS", "timeout: 5s")],
            Stage::Effects,
            Unknown,
            "does not say what its effects are",
            "clinch.yml:2",
        );
        check(&[("CLASS", "class: read")], Stage::Effects, Pass, "it changes nothing", "workers/charge.yml:5");
        let read = checklist(&[("CLASS", "class: read"), ("PROMISE", "none")], &[]);
        assert!(read.stage(Stage::Keys).all(|item| item.verdict == Pass), "what only reads needs no key: {read:#?}");
    }

    #[test]
    fn j6_keys_are_held_against_those_who_try_again() {
        use Verdict::*;
        let (flow, windows) = ("flows/orders.yml:6", Stage::Windows);
        check(&[], windows, Pass, "keys are kept for 7d; `charge` tries for", flow);
        check(&[("TTL", "2h")], windows, Unknown, "how long the sender tries is not known", flow);
        check(&[], windows, Pass, "longer than any provider that is known here", flow);
        let money = [("TTL", "6d"), ("CLASS", "class: monetary")];
        check(&money, windows, Unknown, "money moves behind it", flow);
        check(&[], windows, Unknown, "how long pay honours a key is not said", "clinch.yml:2");
        check(&[("CLASS", "honoured_for: 30s")], windows, Fail, "pay honours a key for 30s, and", "clinch.yml:2");
        check(&[("CLASS", "honoured_for: 1d")], windows, Pass, "pay honours a key for 1d;", "clinch.yml:2");
    }

    #[test]
    fn j6_a_key_that_changes_with_each_delivery_is_none() {
        for key in ["header:X-Request-Id", "header:Date", "'body:/sent_at'", "['body:/id', 'body:/meta/attempt']"] {
            check(&[("KEY", key)], Stage::Keys, Verdict::Fail, "is another one each time", "flows/orders.yml:6");
        }
        for key in ["'body:/id'", "header:X-Order", "['body:/id', 'body:/created_at']"] {
            check(&[("KEY", key)], Stage::Keys, Verdict::Pass, "recognised by", "flows/orders.yml:6");
        }
    }

    #[test]
    fn j6_a_test_counts_that_sends_the_same_thing_twice_and_looks_at_what_came_of_it() {
        let verdict = |acts: &str, calls: &str| {
            let text = format!("version: 1\ntests:\n  - name: twice is once\n    do:\n{acts}{calls}");
            let trials = trials("tests/orders.yml", &text).unwrap_or_else(|problems| panic!("{problems:#?}"));
            let trials: Vec<_> = trials.into_iter().map(|trial| ("tests/orders.yml".to_string(), trial)).collect();
            let checklist = checklist(&[], &trials);
            checklist.stage(Stage::Tests).map(|item| (item.verdict, item.place.line)).collect::<Vec<_>>()
        };
        let (passed, failed) = (vec![(Verdict::Pass, 3)], vec![(Verdict::Fail, 1)]);
        let send =
            |to: &str, key: &str, more: &str| format!("      - {{send: {to}, body: {{id: 1}}, key: {key}{more}}}\n");
        let (one, calls) = (send("orders", "k-1", ""), "    calls: none\n");
        assert_eq!(verdict(&(one.clone() + &one), calls), passed);
        assert_eq!(verdict(&(one.clone() + &send("orders", "k-1", ", expect: {replayed: true}")), ""), passed);
        assert_eq!(verdict(&send("/orders", "k-1", ", times: 5"), calls), passed);
        assert_eq!(verdict(&one, calls), failed, "once");
        assert_eq!(verdict(&(one.clone() + &one), ""), failed, "and nobody looks");
        assert_eq!(verdict(&(one + &send("orders", "k-2", "")), calls), failed, "two keys");
        assert_eq!(verdict(&(send("others", "k", "").repeat(2)), calls), failed, "another flow");
    }
}
