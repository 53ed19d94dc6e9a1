//! The names that a step's expressions may use, put together only when some expression asks.

use crate::house::House;
use crate::names::{self, Subject};
use crate::tracer::Spans;
use clinch_core::config::Workspace;
use clinch_core::control::Controls;
use clinch_core::effect::Receipt;
use clinch_core::key::IdempotencyKey;
use clinch_core::payload::Payload;
use clinch_core::scope;
use clinch_core::source::{Content, Source};
use clinch_core::trace::Story;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub struct Scope<'a> {
    subject: Subject,
    payload: &'a Arc<Payload>,
    workspace: &'a Workspace,
    house: &'a House,
    names: Option<scope::Scope>,
    outputs: Vec<(String, Value)>,
    step: Option<Arc<str>>,
    item: Option<Value>,
    /// Over which the step goes; empty where it goes over none.
    channel: String,
    /// What operators had switched when the step began.
    controls: Arc<Controls>,
    /// What is told of the attempt, where somebody listens.
    pub spans: Option<Arc<Spans>>,
}

impl<'a> Scope<'a> {
    pub fn new(house: &'a House, subject: Subject, payload: &'a Arc<Payload>, workspace: &'a Workspace) -> Self {
        Scope {
            subject,
            payload,
            workspace,
            house,
            names: None,
            outputs: Vec::new(),
            step: None,
            channel: String::new(),
            item: None,
            controls: house.controls.get(),
            spans: None,
        }
    }

    /// For a branch: what it adds is not seen by others before they come together again.
    pub fn child(&self) -> Scope<'a> {
        Scope {
            names: self.names.clone(),
            outputs: self.outputs.clone(),
            step: self.step.clone(),
            channel: self.channel.clone(),
            item: self.item.clone(),
            controls: self.controls.clone(),
            spans: self.spans.clone(),
            ..*self
        }
    }

    /// Takes over what a branch has added.
    pub fn merge(&mut self, child: Scope<'a>, had: usize) {
        for (step, about) in child.outputs.into_iter().skip(had) {
            self.add(&step, about);
        }
    }

    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    pub fn payload(&self) -> &'a Payload {
        self.payload
    }

    /// Where the event stands in its trace.
    pub fn story(&self) -> Story<'a> {
        Story::of(self.subject.event, &self.payload.about)
    }

    /// What the event's bytes are, as far as is known.
    pub fn content_type(&self) -> &'a str {
        let is_raw = |source: &&Source| source.name == self.payload.about.source && source.content == Content::Raw;
        if !self.workspace.sources.iter().any(|source| is_raw(&source)) {
            return "application/json";
        }
        let said = self.payload.about.headers.iter().find(|(name, _)| name == "content-type");
        said.map_or("application/octet-stream", |(_, value)| value)
    }

    /// The result of a finished step, under `steps.NAME`.
    pub fn add_output(&mut self, step: &str, receipt: &Receipt) {
        self.add(step, json!({"status": receipt.status, "output": receipt.output()}));
    }

    /// What a step computed, under `steps.NAME`.
    pub fn add_computed(&mut self, step: &str, output: Value) {
        self.add(step, json!({ "output": output }));
    }

    fn add(&mut self, step: &str, about: Value) {
        let step = (step.to_string(), about);
        if let Some(Value::Object(steps)) = self.names.as_mut().and_then(|names| names.get_mut("steps")) {
            steps.insert(step.0.clone(), step.1.clone());
        }
        self.outputs.push(step);
    }

    /// What an earlier step put out.
    pub fn output(&self, step: &str) -> Option<&Value> {
        self.outputs.iter().find(|(name, _)| name == step).map(|(_, about)| &about["output"])
    }

    /// What the step is run for, as `item`.
    pub fn set_item(&mut self, item: Option<Value>) {
        if let Some(names) = &mut self.names {
            match &item {
                Some(item) => names.insert("item", item.clone()),
                None => names.remove("item"),
            };
        }
        self.item = item;
    }

    pub fn item(&self) -> Option<&Value> {
        self.item.as_ref()
    }

    /// The step that is run now, as `step.name` and `step.key`, under which its effect travels.
    pub fn begin(&mut self, step: &Arc<str>) {
        self.step = Some(step.clone());
        self.controls = self.house.controls.get();
        self.channel.clear();
        self.name_step();
    }

    /// Over which channel the step reaches people, as `step.channel`.
    pub fn goes_over(&mut self, channel: &str) {
        if self.channel != channel {
            channel.clone_into(&mut self.channel);
            self.name_step();
        }
    }

    fn name_step(&mut self) {
        if let (Some(names), Some(step)) = (&mut self.names, &self.step) {
            name_step(names, self.subject, step, &self.channel);
        }
    }

    pub fn house(&self) -> &'a House {
        self.house
    }

    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    pub fn workspace(&self) -> &'a Workspace {
        self.workspace
    }

    pub fn names(&mut self) -> &scope::Scope {
        let (subject, payload, workspace, outputs) = (self.subject, self.payload, self.workspace, &self.outputs);
        let (house, step, channel, item) = (self.house, &self.step, &self.channel, &self.item);
        self.names.get_or_insert_with(|| {
            let mut names = build(house, subject, payload, workspace, outputs);
            step.iter().for_each(|step| name_step(&mut names, subject, step, channel));
            item.iter().for_each(|item| names.insert("item", item.clone()));
            names
        })
    }
}

fn name_step(names: &mut scope::Scope, subject: Subject, step: &Arc<str>, channel: &str) {
    let (step, channel) = (step.clone(), channel.to_string());
    names.insert_with(
        "step",
        move || json!({"name": &*step, "key": IdempotencyKey::of(subject.job, &step).as_str(), "channel": channel}),
    );
}

fn build(
    house: &House,
    subject: Subject,
    payload: &Arc<Payload>,
    workspace: &Workspace,
    outputs: &[(String, Value)],
) -> scope::Scope {
    let secrets: Map<String, Value> = workspace
        .secrets
        .iter()
        .filter_map(|name| Some((name.clone(), Value::String(house.secrets.get(name)?))))
        .collect();
    let mut names = names::of_event(subject, payload);
    names.insert("job", json!({"id": subject.job.to_string(), "attempt": subject.attempts + 1}));
    names.insert("steps", Value::Object(outputs.iter().cloned().collect()));
    names.insert("secrets", Value::Object(secrets));
    names
}
