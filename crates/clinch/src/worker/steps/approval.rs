//! `approval:` the job waits until people have decided, and ends with nothing done if they will not have it.
//!
//! ```yaml
//! - name: review
//!   if: "body.discount > 20"
//!   approval:
//!     title: "Discount of {{ body.discount }} % for cart {{ body.cart }}"
//!     show: {total: "{{ body.total }}"}
//!     of: [maya, omar]
//!     expires: 4h
//! ```
//!
//! The question, its votes and the verdict are rows of the store. A job that waits costs no attempt and holds no place; the
//! verdict wakes it.

use super::missing;
use crate::masking::rules;
use crate::worker::scope::Scope;
use clinch_core::approval::{ApprovalAction, Card};
use clinch_core::attempt::Failure;
use clinch_core::time::Timestamp;
use clinch_store::approval::Place;
use clinch_store::{ApprovalAsk, Claim};
use std::sync::Arc;

/// What people are shown, without what nobody is to see.
pub fn card(action: &ApprovalAction, scope: &mut Scope<'_>) -> Result<Card, Failure> {
    let title = action.title.text(scope.names()).map_err(missing)?;
    let show = action.show.value(scope.names()).map_err(missing)?;
    let rules = rules();
    Ok(Card::of(&title, &show, |name, value| rules.field(name, value)))
}

/// What people are asked. A question that cannot be put is told before anybody waits for an answer.
pub fn ask(
    action: &ApprovalAction,
    step: &Arc<str>,
    claim: &Claim,
    requester: Option<String>,
    scope: &mut Scope<'_>,
    now: Timestamp,
) -> Result<ApprovalAsk, Failure> {
    card(action, scope)?;
    Ok(ApprovalAsk {
        step: step.clone(),
        flow: claim.flow.clone(),
        rule: action.rule.clone(),
        requester,
        place: action
            .slack
            .as_ref()
            .map(|slack| Place { integration: slack.partner.name.to_string(), channel: slack.channel.clone() }),
        at: now,
    })
}
