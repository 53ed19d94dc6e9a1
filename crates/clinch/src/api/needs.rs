//! What needs a person: in words, with what to run first and where the console shows it.

use super::alerts::AlertShow;
use super::problem::Problem;
use super::shapes::Moment;
use crate::house::House;
use crate::partners::{Outlook, Seen};
use crate::unresolved;
use clinch_core::breaker::Circuit;
use clinch_core::time::{Timestamp, human};
use clinch_store::read::{Counts, Health};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// So little room is worth saying.
const FREE_BYTES_LOW: u64 = 1 << 30;

/// Something that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Need {
    /// store, config, circuit, unknown_effects, dead_letters, approvals, budget
    pub kind: String,
    /// The integration or the budget that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    pub count: u64,
    pub said: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// What to run first.
    pub command: String,
    /// Where the console shows it.
    pub page: String,
}

impl Need {
    /// Whether an alert that fires says the same of the same.
    pub fn is_said_by(&self, alert: &AlertShow) -> bool {
        let is_about = |label: &str| self.about.is_none() || self.about.as_ref() == alert.labels.get(label);
        match self.kind.as_str() {
            "store" => matches!(alert.rule.as_str(), "ClinchStoreFailing" | "ClinchStoreAlmostFull"),
            "circuit" => alert.rule == "ClinchCircuitOpen" && is_about("integration"),
            "unknown_effects" => alert.rule == "ClinchEffectsUnknown" && is_about("integration"),
            "budget" => alert.rule == "ClinchBudgetExhausted" && is_about("budget"),
            _ => false,
        }
    }
}

/// The most urgent first.
pub async fn of(
    house: &House,
    partners: &dyn Outlook,
    counts: &Counts,
    health: &Health,
    now: Timestamp,
) -> Result<Vec<Need>, Problem> {
    let mut needs = Vec::new();
    needs.extend(store_need(health));
    needs.extend(house.reload.refused().map(|refused| Need {
        kind: "config".into(),
        about: None,
        count: 1,
        said: format!(
            "v{} stays live: the workspace that was read last cannot be: {}",
            house.versions.live().0,
            refused.said
        ),
        since: Some(Moment(refused.since)),
        command: "clinch check".into(),
        page: "/flows".into(),
    }));
    needs.extend(circuit_needs(partners, now));
    let unknown = unresolved::count(house).await?;
    needs.extend(unknown.into_iter().filter(|(_, effects)| *effects > 0).map(|(integration, effects)| {
        let count = u64::try_from(effects).unwrap_or_default();
        let said = format!("{} of unknown outcome: nobody knows whether they happened", noun(count, "effect"));
        let command = format!("clinch effects ls state:unknown integration:{integration}");
        let page = format!("/effects?state=unknown&integration={}", encoded(&integration));
        Need { kind: "unknown_effects".into(), about: Some(integration), count, said, since: None, command, page }
    }));
    let dead: u64 = counts.dead.iter().map(|(_, _, jobs)| jobs).sum();
    if dead > 0 {
        needs.push(Need {
            kind: "dead_letters".into(),
            about: None,
            count: dead,
            said: format!("{}: jobs that gave up", noun(dead, "dead letter")),
            since: counts.oldest_dead.iter().map(|(_, at)| Moment(*at)).min(),
            command: "clinch dlq groups".into(),
            page: "/dead".into(),
        });
    }
    let asked = house.store.approvals_waiting().await?;
    let approvals: u64 = asked.iter().map(|waiting| waiting.approvals).sum();
    if approvals > 0 {
        needs.push(Need {
            kind: "approvals".into(),
            about: None,
            count: approvals,
            said: format!("{} for somebody's word", noun_verb(approvals, "approval", "wait")),
            since: asked.iter().map(|waiting| Moment(waiting.oldest)).min(),
            command: "clinch approve ls".into(),
            page: "/approvals".into(),
        });
    }
    needs.extend(house.store.exhausted(now).await?.into_iter().filter(|(_, count)| *count > 0).map(
        |(budget, count)| Need {
            kind: "budget".into(),
            said: format!("the retry budget {budget} has nothing left for {}", noun_of(count, "entity", "entities")),
            command: format!("clinch budget ls {budget} --exhausted"),
            page: "/jobs?q=state:waiting".into(),
            about: Some(budget.to_string()),
            count,
            since: None,
        },
    ));
    Ok(needs)
}

fn store_need(health: &Health) -> Option<Need> {
    let is_full = health.free_bytes < FREE_BYTES_LOW && health.free_bytes > 0;
    let said = match (&health.unwell, &health.warning) {
        (Some(why), _) => format!("the store cannot write: {why}"),
        (None, Some(warning)) => warning.clone(),
        (None, None) if is_full => format!("the disk has room for {} MB", health.free_bytes >> 20),
        (None, None) => return None,
    };
    let command = if is_full { "df -h" } else { "clinch verify" };
    let (about, page) = (None, "/settings#store".into());
    Some(Need { kind: "store".into(), about, count: 1, said, since: None, command: command.into(), page })
}

fn circuit_needs(partners: &dyn Outlook, now: Timestamp) -> Vec<Need> {
    let told = |seen: Seen| {
        let circuit = seen.circuit.filter(|circuit| circuit.circuit != Circuit::Closed)?;
        let why = circuit.why.unwrap_or_else(|| "it is asked whether it is back".into());
        let name = seen.name.to_string();
        let again = circuit.probe_at.map(|at| format!("; it is asked again in {}", human(at.since(now))));
        Some(Need {
            kind: "circuit".into(),
            count: 1,
            said: format!("the circuit of {name} is open: {why}{}", again.unwrap_or_default()),
            since: circuit.since.map(Moment),
            command: format!("clinch integrations show {name}"),
            page: format!("/integrations/{}", encoded(&name)),
            about: Some(name),
        })
    };
    partners.partners(now, Duration::ZERO).into_iter().filter_map(told).collect()
}

fn encoded(name: &str) -> String {
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

fn noun(count: u64, one: &str) -> String {
    noun_of(count, one, &format!("{one}s"))
}

fn noun_of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `1 approval waits`, `2 approvals wait`.
fn noun_verb(count: u64, one: &str, verb: &str) -> String {
    format!("{} {verb}{}", noun(count, one), if count == 1 { "s" } else { "" })
}
