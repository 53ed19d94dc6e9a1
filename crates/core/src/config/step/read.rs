//! What a step says, as far as it can be read.

use crate::approval::{ApprovalAction, EXPIRES_DEFAULT, OnExpiry, Rule, SlackChannel};
use crate::config::integration;
use crate::config::read::{Reader, word};
use crate::config::source::texts;
use crate::config::value;
use crate::config::yaml::{Node, Value};
use crate::dedup::{self, DedupRule, Reading};
use crate::effect::Idempotency;
use crate::expr::{Expr, Template, Tree};
use crate::foreach::{Each, ItemPace};
use crate::integration::{Integration, Promise};
use crate::phone::Strictness;
use crate::script::{Isolation, MEMORY_DEFAULT, ScriptAction, fingerprint};
use crate::worker::{
    Action, Branch, DelayAction, GeoipAction, HttpAction, HttpBody, PULL_DEFAULT, PhoneAction, PolicyAction,
    PullAction, QueueAction, QueueBody, STEP_TIMEOUT_DEFAULT, SendAction, SetnxAction, SqlAction, Step, ValidateAction,
};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub(in crate::config) fn read_step(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Step> {
    let action = read_action(step, integrations)?;
    let compensate = match step.map("compensate") {
        Some(undo) => Some(read_action(undo, integrations)?),
        None => None,
    };
    let over = step.node.get("policies").map_or(&[][..], Node::items).iter();
    let read = Step {
        name: step.step_name()?.value.into(),
        when: step.may("if", value::expr)?,
        action,
        each: read_each(step)?,
        compensate,
        policies: over.map(|policy| value::name(policy, "policies").ok()).collect::<Option<_>>()?,
    };
    step.is_sound().then_some(read)
}

fn read_each(step: Reader<'_>) -> Option<Option<Each>> {
    let Some(list) = step.may("foreach", value::list)? else { return Some(None) };
    let Some(limit) = step.map("rate_limit") else { return Some(Some(Each { list, pace: None })) };
    let pace = ItemPace {
        rate: limit.must("per_integration", value::rate)?,
        jitter: limit.may("jitter", integration::spread)?,
    };
    limit.is_sound().then_some(Some(Each { list, pace: Some(pace) }))
}

fn read_branch(branch: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Branch> {
    let name: Arc<str> = branch.step_name()?.value.into();
    if !branch.has("steps") {
        return Some(Branch { name, when: None, steps: vec![read_step(branch, integrations)?] });
    }
    let steps = branch.maps("steps").map(|step| read_step(step, integrations)).collect::<Option<Vec<_>>>()?;
    branch.is_sound().then_some(Branch { name, when: branch.may("if", value::expr)?, steps })
}

fn read_action(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Action> {
    if step.has("parallel") {
        let branches = step.maps("parallel").map(|branch| read_branch(branch, integrations));
        return branches.collect::<Option<Vec<_>>>().map(Action::Parallel);
    }
    if step.has("uses") {
        return Some(Action::Script(Box::new(read_script(step)?)));
    }
    if let Some(http) = step.map("http") {
        return Some(Action::Http(Box::new(read_http(http, integrations)?)));
    }
    if step.has("transform") {
        return Some(Action::Transform(step.must("transform", value::tree)?));
    }
    if let Some(validate) = step.map("validate") {
        let body = Expr::parse("body").expect("it is an expression");
        let (schema, from) = (validate.must("schema", value::name)?, validate.or("from", body, value::expr)?);
        return validate.is_sound().then_some(Action::Validate(ValidateAction { schema, from }));
    }
    if let Some(enrich) = step.map("enrich") {
        return read_enrich(enrich).filter(|_| enrich.is_sound());
    }
    if let Some(dedup) = step.map("dedup_key") {
        return Some(Action::DedupKey(Box::new(read_dedup_key(dedup)?)));
    }
    if let Some(setnx) = step.map("setnx") {
        let stops = [("continue", false), ("stop", true)];
        let read = SetnxAction {
            key: setnx.must("key", value::template)?,
            ttl: match setnx.may("ttl_seconds", value::int)? {
                Some(seconds) => Duration::from_secs(u64::try_from(seconds).ok()?),
                None => setnx.must("ttl", value::duration)?,
            },
            stops: setnx.or("on_exists", false, word(&stops))?,
        };
        return setnx.is_sound().then_some(Action::Setnx(read));
    }
    if let Some(sql) = step.map("sql") {
        return Some(Action::Sql(Box::new(read_sql(sql, integrations)?)));
    }
    if let Some(send) = step.map("send_template") {
        return Some(Action::Send(Box::new(read_send(send, integrations)?)));
    }
    if let Some(queue) = step.map("queue") {
        return read_queue(queue).map(|read| Action::Queue(Box::new(read)));
    }
    if let Some(pull) = step.map("queue_pull") {
        let most = pull.or("max_messages", PULL_DEFAULT as i64, value::int)?;
        let read = PullAction { from: pull.must("from", value::name)?, most: usize::try_from(most).ok()? };
        return pull.is_sound().then_some(Action::Pull(read));
    }
    if let Some(ask) = step.map("policy") {
        let read = PolicyAction { policy: ask.must("use", value::name)?, channel: ask.may("channel", value::name)? };
        return ask.is_sound().then_some(Action::Policy(read));
    }
    if let Some(approval) = step.map("approval") {
        return Some(Action::Approval(Box::new(read_approval(approval, integrations)?)));
    }
    read_delay(step).map(Action::Delay)
}

fn read_http(http: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<HttpAction> {
    let url = http.must("url", value::url_or_path)?;
    let partner = match http.may("integration", value::name)? {
        Some(name) => integrations.iter().find(|known| *known.name == *name)?.clone(),
        None => Arc::new(Integration::unsaid(host(&url))),
    };
    let method = http.or("method", "POST", value::text)?;
    let read = HttpAction {
        method: method.to_string(),
        url,
        headers: http.map("headers").map_or(Some(Vec::new()), read_headers)?,
        body: read_body(http)?,
        timeout: http.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        promise: partner.promise.with(integration::read_promise(http)?),
        propagate_trace: http.or("propagate_trace", partner.propagate_trace, value::bool)?,
        partner,
    };
    http.is_sound().then_some(read)
}

pub(in crate::config) fn read_headers(headers: Reader<'_>) -> Option<Vec<(String, Template)>> {
    let fields = headers.node.fields().iter();
    fields.map(|(key, _)| Some((key.text.clone(), headers.must(&key.text, value::header_value)?))).collect()
}

fn read_body(http: Reader<'_>) -> Option<HttpBody> {
    if let Some(from) = http.may("body_from", value::expr)? {
        return Some(match from.source() {
            "body" | "request.body" => HttpBody::Event,
            _ => HttpBody::From(from),
        });
    }
    let Some(body) = http.node.get("body") else {
        return Some(HttpBody::Empty);
    };
    Some(match &body.value {
        Value::Scalar { .. } => HttpBody::Text(http.must("body", value::template)?),
        _ => HttpBody::Tree(value::tree(body, "body").ok()?),
    })
}

/// A host that is only known when an event is here.
pub(super) const ANYBODY: &str = "other";

/// What an integration is called that nobody named.
pub(super) fn host(url: &Template) -> &str {
    let (Template::Plain(text) | Template::Mixed(text)) = url;
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let host = &rest[..rest.find(['/', '?', '#', ':']).unwrap_or(rest.len())];
    if host.is_empty() || host.contains('{') { ANYBODY } else { host }
}

fn read_sql(sql: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<SqlAction> {
    let name = sql.must("database", value::name)?;
    let partner = integrations.iter().find(|known| *known.name == *name)?.clone();
    let params = sql.node.get("params").map_or(&[][..], Node::items).iter();
    let read = SqlAction {
        address: partner.url.clone()?,
        statement: sql.must("statement", value::statement)?.into(),
        params: params.map(|param| value::tree(param, "params").ok()).collect::<Option<_>>()?,
        timeout: sql.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        // The table in the target sees to it that what is sent twice is done once.
        promise: Promise { idempotency: Idempotency::Natural, ..Promise::default() },
        partner,
    };
    sql.is_sound().then_some(read)
}

fn read_send(send: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<SendAction> {
    let partner = carrier(send, integrations)?.clone();
    let read = SendAction {
        channel: partner.channel.clone()?,
        template: send.must("template", value::name)?,
        to: send.must("to", value::template)?,
        with: send.or("with", Tree::Map(Vec::new()), value::tree)?,
        timeout: send.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        promise: partner.promise.clone(),
        partner,
    };
    send.is_sound().then_some(read)
}

/// Who carries a message: who is named, who is there for its channel, or the only one who can.
pub(super) fn carrier<'i>(send: Reader<'_>, integrations: &'i [Arc<Integration>]) -> Option<&'i Arc<Integration>> {
    if let Some(name) = send.may("integration", value::name)? {
        return integrations.iter().find(|known| *known.name == *name);
    }
    if let Some(channel) = send.may("channel", value::name)? {
        return integrations.iter().find(|known| known.carries.contains(&channel));
    }
    match carriers(integrations).as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

/// Those that `messaging` names, or else all that a message can be sent to.
pub(super) fn carriers(integrations: &[Arc<Integration>]) -> Vec<&Arc<Integration>> {
    let chosen: Vec<_> = integrations.iter().filter(|known| !known.carries.is_empty()).collect();
    if chosen.is_empty() { integrations.iter().filter(|known| known.channel.is_some()).collect() } else { chosen }
}

fn read_script(step: Reader<'_>) -> Option<ScriptAction> {
    let runtime = step.must("uses", value::runtime)?;
    let answers = [("ask", Idempotency::None), ("retry", Idempotency::Header)];
    let isolations = [("warm", Isolation::Warm), ("process", Isolation::Process)];
    let env = step.map("env").map_or(&[][..], |env| env.node.fields());
    let env = env.iter().map(|(key, value)| Some((key.text.clone(), value::template(value, &key.text).ok()?)));
    let env: Vec<(String, Template)> = env.collect::<Option<_>>()?;
    let text = step.must("script", value::text)?;
    let memory_bytes_max = step.or("memory", MEMORY_DEFAULT, value::size)?;
    Some(ScriptAction {
        runtime,
        text: text.into(),
        secrets: env.iter().flat_map(|(_, value)| value.secrets()).collect(),
        fingerprint: fingerprint(runtime, text, &env, memory_bytes_max),
        env,
        timeout: step.or("timeout", STEP_TIMEOUT_DEFAULT, value::duration)?,
        memory_bytes_max,
        isolation: step.or("isolation", Isolation::Warm, word(&isolations))?,
        // No integration can have such a name.
        partner: Arc::new(Integration::unsaid(&format!("script:{}", runtime.language.word()))),
        promise: Promise {
            idempotency: step.or("on_unknown", Idempotency::None, word(&answers))?,
            ..Promise::default()
        },
    })
}

fn read_queue(queue: Reader<'_>) -> Option<QueueAction> {
    let body = match queue.may("body_from", value::expr)? {
        Some(from) if !["body", "request.body"].contains(&from.source()) => QueueBody::From(from),
        _ => QueueBody::Event,
    };
    let read = QueueAction { queue: queue.must("name", value::name)?, body, key: queue.may("key_from", value::expr)? };
    queue.is_sound().then_some(read)
}

fn read_approval(approval: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<ApprovalAction> {
    let slack = match approval.map("slack") {
        None => None,
        Some(slack) => {
            let name = slack.must("integration", value::name)?;
            let partner = integrations.iter().find(|known| *known.name == *name)?.clone();
            Some(SlackChannel { partner, channel: slack.must("channel", value::text)?.to_string() })
        }
    };
    let ends = [("reject", OnExpiry::Reject), ("approve", OnExpiry::Approve)];
    let read = ApprovalAction {
        rule: Rule {
            of: approval.or("of", Vec::new(), texts)?,
            need: u32::try_from(approval.or("need", 1, value::int)?).ok()?,
            expires: approval.or("expires", EXPIRES_DEFAULT, value::duration)?,
            on_expiry: approval.or("on_expiry", OnExpiry::Reject, word(&ends))?,
            remind: approval.may("remind", value::duration)?,
        },
        title: approval.must("title", value::template)?,
        show: approval.or("show", Tree::Map(Vec::new()), value::tree)?,
        slack,
    };
    approval.is_sound().then_some(read)
}

fn read_enrich(enrich: Reader<'_>) -> Option<Action> {
    let strictness = [("none", Strictness::None), ("possible", Strictness::Possible), ("valid", Strictness::Valid)];
    if let Some(phone) = enrich.map("phone") {
        let read = PhoneAction {
            from: phone.must("from", value::expr)?,
            country: phone.may("country", value::country)?,
            strict: phone.or("strict", Strictness::default(), word(&strictness))?,
        };
        return phone.is_sound().then_some(Action::Phone(read));
    }
    let geoip = enrich.map("geoip")?;
    let database = geoip.must("database", |node, name| value::file(node, name, ".mmdb"))?;
    let read = GeoipAction { from: geoip.must("from", value::expr)?, database };
    geoip.is_sound().then_some(Action::Geoip(read))
}

fn read_delay(step: Reader<'_>) -> Option<DelayAction> {
    if step.node.get("delay")?.text().is_some() {
        return Some(DelayAction::For(step.must("delay", value::duration)?));
    }
    let delay = step.map("delay")?;
    let read = match delay.may("for", value::duration)? {
        Some(pause) => DelayAction::For(pause),
        None => DelayAction::Until(delay.must("until", value::expr)?),
    };
    delay.is_sound().then_some(read)
}

fn read_dedup_key(dedup: Reader<'_>) -> Option<DedupRule> {
    let listed = |name: &str| dedup.map("normalise").map_or(Vec::new(), |map| fields(map, name));
    let (emails, phones) = (listed("email"), listed("phone"));
    let country = match dedup.map("normalise") {
        Some(map) => map.may("country", value::country)?,
        None => None,
    };
    let minutes = match dedup.may("bucket_minutes", value::int)? {
        Some(minutes) => Some(NonZeroU32::new(u32::try_from(minutes).ok()?)?),
        None => None,
    };
    let time_field = dedup.or("time_field", dedup::TIME_FIELD_DEFAULT, value::text)?;
    let fields = dedup.node.get("fields").map_or(&[][..], Node::items).iter().map(|node| {
        let name = node.text()?.to_string();
        let reading = match minutes {
            Some(bucket_minutes) if name == time_field => Reading::Time { bucket_minutes },
            _ if emails.contains(&name.as_str()) => Reading::Email,
            _ if phones.contains(&name.as_str()) => Reading::Phone(country),
            _ => Reading::AsItIs,
        };
        Some(dedup::Field { value: value::body_field(node, "fields").ok()?, name, reading })
    });
    let fields = fields.collect::<Option<Vec<_>>>()?;
    dedup.is_sound().then_some(DedupRule { owner: String::new(), fields })
}

pub(super) fn fields<'n>(map: Reader<'n>, name: &str) -> Vec<&'n str> {
    map.node.get(name).map_or(&[][..], Node::items).iter().filter_map(Node::text).collect()
}
