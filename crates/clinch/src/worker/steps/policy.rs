//! `policy:` asks whether a policy would allow it, and counts nothing. And the facts of an event for the policies over a step.
//!
//! ```yaml
//! - name: may
//!   policy: {use: marketing, channel: email}
//! - name: remind
//!   if: "steps.may.output.allowed"
//!   send_template: {integration: mail, template: cart, to: "{{ body.email }}"}
//! ```

use super::http::{question, text};
use super::{bad_payload, missing};
use crate::effects::policy::{self, Agreed, Asker, Inquiry, Over, Policies, Said};
use crate::effects::{Gate, Wait};
use crate::house::House;
use crate::worker::scope::Scope;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::death::Reason;
use clinch_core::effect::Effect;
use clinch_core::expr::BadExpr;
use clinch_core::job::Waits;
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::policy::{Consent, Policy, Refusal, Rule, Tally, contact, time_zone};
use clinch_core::saga;
use clinch_core::worker::{PolicyAction, Step};
use clinch_store::Claim;
use serde_json::{Value, json};
use std::sync::Arc;

/// The policies over a step, with their facts. What undoes a step is under none: it must not be kept from it.
pub fn over(
    step: &Step,
    channel: &str,
    past: Option<&Effect>,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> Result<Policies, Failure> {
    if saga::is_undo(&step.name) {
        return Ok(Policies::default());
    }
    let workspace = scope.workspace();
    let over = workspace.policies_over(step).map(|policy| facts(policy, channel, payload, scope));
    let over = over.collect::<Result<Vec<_>, _>>()?;
    Ok(Policies { over, may_be_sent: past.is_some_and(|past| past.state.is_unclear()) })
}

/// What the event says that the policy wants to know.
fn facts(policy: &Arc<Policy>, channel: &str, payload: &Payload, scope: &mut Scope<'_>) -> Result<Over, Failure> {
    let unsaid = |error: BadExpr| missing(BadExpr(format!("policy `{}`: {error}", policy.name)));
    let zone = text(&policy.time_zone, scope).map_err(unsaid)?;
    let zone = time_zone(&zone).ok_or_else(|| {
        bad_payload(format!("policy `{}`: its `time_zone` is not one such as Europe/Berlin", policy.name))
    })?;
    let consent = match &policy.consent {
        None => None,
        Some(Consent::Said(expr)) => {
            let given = expr.holds(scope.names()).map_err(unsaid)?;
            Some(Agreed::Said(given, format!("`{}` is {given}", expr.source())))
        }
        Some(Consent::Asked(asked)) => {
            let (partner, lookup) = (asked.partner.clone(), asked.lookup.clone());
            let question =
                question(&lookup, &partner, asked.timeout, partner.propagate_trace, scope).map_err(unsaid)?;
            Some(Agreed::Ask(Box::new(Inquiry { partner, question, lookup, names: scope.names().clone() })))
        }
    };
    let caps = policy.caps_for(channel);
    let tally = match policy.contact.as_ref().filter(|_| !caps.is_empty()) {
        None => None,
        Some(written) => {
            let written = text(written, scope).map_err(unsaid)?;
            let nobody = || BadExpr("its `contact` is empty, and whom to count is not known".into());
            let name = contact(&written).ok_or_else(|| unsaid(nobody()))?;
            let pepper = Pepper::new(scope.house().store.pepper());
            // A budget may have the same name, and counts other things.
            let realm = format!("policy:{}", policy.name);
            let contact = EntityKey::of(&pepper, &payload.about.tenant, &realm, &name);
            Some(Tally { contact, channel: channel.into(), zone: zone.clone(), caps })
        }
    };
    Ok(Over { policy: policy.clone(), zone, consent, tally })
}

/// Whether the contact has agreed, as far as that is said without asking a partner. A policy that asks for nothing is agreed to.
pub fn consent(action: &PolicyAction, payload: &Payload, scope: &mut Scope<'_>) -> Result<Option<bool>, Failure> {
    let channel = action.channel.as_deref().unwrap_or_default();
    scope.goes_over(channel);
    let Some(policy) = scope.workspace().policy(&action.policy).cloned() else {
        return Err(Failure::new(Reason::ConfigError, format!("there is no policy `{}`", action.policy)));
    };
    Ok(match facts(&policy, channel, payload, scope)?.consent {
        None => Some(true),
        Some(Agreed::Said(given, _)) => Some(given),
        Some(Agreed::Ask(_)) => None,
    })
}

/// The output of the step, or how the attempt ends because nobody could say.
pub async fn ask(
    house: &House,
    gate: &Gate,
    claim: &Claim,
    (step, action): (&Step, &PolicyAction),
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Result<Value, Outcome>> {
    let channel = action.channel.as_deref().unwrap_or_default();
    scope.goes_over(channel);
    let Some(policy) = scope.workspace().policy(&action.policy).cloned() else {
        let why = format!("there is no policy `{}`", action.policy);
        return Ok(Err(Outcome::Refused(Failure::new(Reason::ConfigError, why))));
    };
    let facts = match facts(&policy, channel, payload, scope) {
        Ok(facts) => facts,
        Err(failure) => return Ok(Err(Outcome::Refused(failure))),
    };
    let asker = Asker { job: claim.lease.job, step: &step.name, spans: scope.spans.as_deref() };
    Ok(match policy::ask(gate, house, asker, facts).await? {
        Said::Allowed => Ok(json!({ "allowed": true })),
        Said::Refused(refusal) => Ok(told(&refusal)),
        Said::Wait(Wait { until, waits: Waits::QuietHours }) => {
            let fact = policy.quiet.map(|quiet| quiet.to_string()).unwrap_or_default();
            let mut output = told(&Refusal { policy: policy.name.clone(), rule: Rule::QuietHours, fact });
            output["until"] = until.to_string().into();
            Ok(output)
        }
        Said::Wait(Wait { until, waits }) => Err(Outcome::PutOff { until, waits }),
        Said::Failed(outcome) => Err(outcome),
    })
}

fn told(refusal: &Refusal) -> Value {
    let Refusal { policy, rule, fact } = refusal;
    json!({"allowed": false, "policy": &**policy, "rule": rule.word(), "fact": fact, "reason": rule.reason()})
}
