//! Alerts: what fires, what was, what is silenced, and whether people would hear it.

use super::controls::end;
use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::Moment;
use crate::alarms::Alarms;
use crate::house::House;
use crate::telemetry::{ByChannelOutcome, NoticeOutcome};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use clinch_core::alert::notice::Item;
use clinch_core::alert::{self, Alert, Name, RULES, Rule, Severity, Word};
use clinch_core::audit::Who;
use clinch_core::time::{Timestamp, human};
use clinch_store::{Act, AlertRow, Alerts, Record, SteerAsk, Steered};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// `clinch.alerts.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlertList {
    pub schema: String,
    /// What fires now, the most urgent first.
    pub alerts: Vec<AlertShow>,
    pub silences: Vec<SilenceShow>,
    pub channels: Vec<ChannelShow>,
}

/// `clinch.alerts.history/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlertHistory {
    pub schema: String,
    /// The newest first.
    pub alerts: Vec<AlertShow>,
}

/// `clinch.alerts.rules/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    pub schema: String,
    pub rules: Vec<RuleShow>,
}

/// One time that a rule was broken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlertShow {
    /// The rule, and the values of its labels.
    pub name: String,
    pub rule: String,
    /// firing, resolved
    pub status: String,
    /// critical, warning, info
    pub severity: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    pub summary: String,
    pub description: String,
    /// What to run first.
    pub command: String,
    pub runbook: String,
    /// Where the console shows what it is about.
    pub page: String,
    pub fired_at: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Moment>,
    /// From the first observation of it until somebody could know, if somebody can by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_seconds: Option<f64>,
    /// Somebody does not want to hear of it.
    pub silenced: bool,
    pub told: Vec<ToldShow>,
}

/// What a channel was told of it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToldShow {
    pub channel: String,
    /// firing, resolved
    pub status: String,
    /// taken, sent, dropped
    pub how: String,
    pub at: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceShow {
    /// A rule, or one alert of it.
    pub name: String,
    pub reason: String,
    pub actor: String,
    pub since: Moment,
    pub until: Option<Moment>,
}

/// Where people are told, and how that went on this node since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelShow {
    pub name: String,
    /// slack, email, webhook, pagerduty
    pub kind: String,
    pub severities: Vec<String>,
    pub sent: u64,
    /// Tries that failed.
    pub errors: u64,
    /// Notices that were given up.
    pub dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleShow {
    pub name: String,
    pub severity: String,
    pub summary: String,
    /// What is more than this is too much; of free bytes, less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// How long it must be so before it is said.
    pub for_seconds: u64,
    /// Whether clinch judges it; a Prometheus may judge it all the same.
    pub judged: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceAsk {
    /// A rule, or one alert of it, such as `ClinchCircuitOpen:crm`.
    pub name: String,
    /// A time, or how long from now.
    pub until: String,
    pub reason: String,
}

/// `clinch.alerts.silence/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilenceSet {
    pub schema: String,
    pub silence: SilenceShow,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnsilenceAsk {
    #[serde(default)]
    pub reason: String,
}

/// `clinch.alerts.unsilence/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Unsilenced {
    pub schema: String,
    pub name: String,
    /// False: it was not silenced.
    pub ended: bool,
}

/// `clinch.alerts.test/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChannelTested {
    pub schema: String,
    pub channel: String,
    pub sent: bool,
    /// Why it did not arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// As long as a silence may last: what nobody hears of for longer is forgotten.
const SILENCE_MAX: Duration = Duration::from_secs(30 * 86_400);

fn shown(row: &AlertRow, house: &House, now: Timestamp) -> Option<AlertShow> {
    let alert = Alert::from_json(&row.value)?;
    let word = if alert.is_firing() { Word::Firing } else { Word::Resolved };
    let item = Item::of(&alert, Word::Firing, "")?;
    let silenced = house.controls.get().silences(now).any(|silence| silence.is_about(&alert));
    let told = alert.told.iter().map(|(channel, told)| ToldShow {
        channel: channel.clone(),
        status: told.word.as_str().into(),
        how: told.how.word().into(),
        at: Moment(told.at),
    });
    Some(AlertShow {
        told: told.collect(),
        name: alert.name().to_string(),
        status: word.as_str().into(),
        severity: alert.severity.word().into(),
        labels: alert.labels.iter().cloned().collect(),
        value: alert.value,
        summary: item.summary.into(),
        description: item.description,
        command: item.command,
        runbook: item.runbook,
        page: item.console_url,
        fired_at: Moment(alert.fired_at),
        resolved_at: alert.resolved_at.map(Moment),
        signal_seconds: alert.signal_at.map(|at| at.since(alert.fault_at).as_secs_f64()),
        silenced,
        rule: alert.rule,
    })
}

/// What fires now, the most urgent first.
pub async fn firing(house: &House, now: Timestamp) -> Result<Vec<AlertShow>, Problem> {
    let rows = house.store.alerts(Alerts::Restless).await?;
    let mut firing: Vec<AlertShow> = rows.iter().filter_map(|row| shown(row, house, now)).collect();
    firing.retain(|alert| alert.status == Word::Firing.as_str());
    let place = |alert: &AlertShow| Severity::ALL.iter().position(|severity| severity.word() == alert.severity);
    firing.sort_by_key(|alert| (place(alert), alert.fired_at));
    Ok(firing)
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<AlertList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let now = house.clock.now();
    let workspace = house.versions.now();
    let channel = |channel: &alert::Channel| {
        let count =
            |outcome| house.metrics.notifications.get_or_create(&ByChannelOutcome::of(&channel.name, outcome)).get();
        ChannelShow {
            name: channel.name.clone(),
            kind: channel.kind.word().into(),
            severities: channel.severities.iter().map(|severity| severity.word().into()).collect(),
            sent: count(NoticeOutcome::Sent),
            errors: count(NoticeOutcome::Error),
            dropped: count(NoticeOutcome::Dropped),
        }
    };
    Ok(Json(AlertList {
        schema: "clinch.alerts.list/v1".into(),
        alerts: firing(&house, now).await?,
        silences: house.controls.get().silences(now).map(silence_shown).collect(),
        channels: workspace.settings.alerts.channels.iter().map(channel).collect(),
    }))
}

fn silence_shown(silence: &alert::Silence) -> SilenceShow {
    SilenceShow {
        name: silence.name.to_string(),
        reason: silence.reason.clone(),
        actor: silence.actor.clone(),
        since: Moment(silence.since),
        until: silence.until.map(Moment),
    }
}

pub async fn history(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<AlertHistory>, Problem> {
    let query = Query::parse(raw.as_deref(), &["limit"])?;
    let rows = house.store.alerts(Alerts::Newest(query.limit(50)?)).await?;
    let now = house.clock.now();
    let alerts = rows.iter().filter_map(|row| shown(row, &house, now)).collect();
    Ok(Json(AlertHistory { schema: "clinch.alerts.history/v1".into(), alerts }))
}

pub async fn rules(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<RuleList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let workspace = house.versions.now();
    let rules = RULES.iter().map(|rule| rule_shown(rule, &workspace.settings.alerts)).collect();
    Ok(Json(RuleList { schema: "clinch.alerts.rules/v1".into(), rules }))
}

/// A rule, as this workspace has it.
pub fn rule_shown(rule: &Rule, routes: &alert::Routes) -> RuleShow {
    RuleShow {
        name: rule.name.into(),
        severity: routes.severity(rule).word().into(),
        summary: rule.summary.into(),
        limit: rule.has_limit().then(|| rule.unit.told(routes.limit(rule))),
        for_seconds: routes.after(rule).as_secs(),
        judged: rule.judge.is_some() && !routes.off.contains(rule.name),
    }
}

pub async fn silence(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SilenceSet>, Problem> {
    let ask: SilenceAsk = read_body(body)?;
    let name: Name = ask.name.parse().map_err(|error| Problem::bad_body(format!("name: {error}.")))?;
    let now = house.clock.now();
    let until = end(&ask.until, now)?;
    if until > now + SILENCE_MAX {
        let most = human(SILENCE_MAX);
        return Err(Problem::bad_body(format!(
            "until: a silence lasts {most} at most; `off:` in clinch.yml has no end."
        )));
    }
    let reason = reason(&ask.reason, 1)?;
    let value = Some(alert::Silence::value(&reason));
    steer(&house, &name, value, Some(until), "alert.silence", who.record(reason, now)).await?;
    let controls = house.controls.get();
    let Some(silence) = controls.silences(now).find(|silence| silence.name == name) else {
        return Err(Problem::not_now(format!(
            "Somebody ended the silence of {name} at this moment; look at `clinch alerts ls`."
        )));
    };
    Ok(Json(SilenceSet { schema: "clinch.alerts.silence/v1".into(), silence: silence_shown(silence) }))
}

pub async fn unsilence(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<Name>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Unsilenced>, Problem> {
    let ask: UnsilenceAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    let ended = steer(&house, &name, None, None, "alert.unsilence", record).await?;
    Ok(Json(Unsilenced { schema: "clinch.alerts.unsilence/v1".into(), name: name.to_string(), ended }))
}

/// Whether it was silenced until now.
async fn steer(
    house: &House,
    name: &Name,
    value: Option<String>,
    until: Option<Timestamp>,
    action: &'static str,
    record: Record,
) -> Result<bool, Problem> {
    let at = record.at;
    let ask = SteerAsk { name: alert::Silence::control(name), value, until, expect: None, action, record };
    Ok(match house.controls.steer(&*house.store, ask).await? {
        Steered::Steered { before, .. } => before.is_some_and(|before| before.until.is_none_or(|until| at < until)),
        Steered::Conflict(there) => there.is_some(),
    })
}

pub async fn test(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Extension(alarms): Extension<Arc<dyn Alarms>>,
    Path(channel): Path<String>,
) -> Result<Json<ChannelTested>, Problem> {
    let workspace = house.versions.now();
    if workspace.settings.alerts.channel(&channel).is_none() {
        let known: Vec<&str> = workspace.settings.alerts.channels.iter().map(|known| known.name.as_str()).collect();
        let said = match known.is_empty() {
            true => "There is no channel: add one below `alerts: channels:` in clinch.yml.".to_string(),
            false => format!("There is no such channel; there are {}.", known.join(", ")),
        };
        return Err(Problem::not_found(said));
    }
    // Whoever sends something to people is on record.
    let act = Act {
        action: "alert.test",
        object: format!("channel:{channel}"),
        job: None,
        before: serde_json::Value::Null,
        after: serde_json::Value::Null,
    };
    house.store.note(act, who.record("", house.clock.now())).await?;
    let tested = alarms.test(&channel).await.unwrap_or_else(|| Err("it is not there any more".into()));
    let why = tested.err();
    Ok(Json(ChannelTested { schema: "clinch.alerts.test/v1".into(), channel, sent: why.is_none(), why }))
}
