//! The place of a job in its queue: whose it is among the others, in which order it runs, and when at the earliest.

use clinch_core::config::Workspace;
use clinch_core::flow::Enqueue;
use clinch_core::key::{self, KeyRule, NoKey, Pepper};
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::TENANT_DEFAULT;
use clinch_core::time::Timestamp;
use clinch_store::NewJob;
use std::sync::Arc;
use std::time::Duration;

/// One job of each delivery, and how its place is found.
pub struct JobRule {
    flow: Arc<str>,
    queue: Arc<str>,
    lane: LaneRule,
    order: Order,
    priority: i16,
    delay: Duration,
}

enum LaneRule {
    Fixed(Lane),
    Tenant,
    Group(KeyRule),
}

impl JobRule {
    /// What the step says wins over what its queue says.
    pub fn of(workspace: &Workspace, flow: &str, step: &Enqueue, has_tenants: bool, pepper: &Pepper) -> JobRule {
        let queue = workspace.queue(&step.queue);
        let order = queue.map_or(Order::Any, |queue| queue.order);
        let group = step.group.clone().or_else(|| queue.and_then(|queue| queue.group.clone()));
        let lane = match group {
            Some(rule) => LaneRule::Group(rule),
            None if order.is_fifo() => LaneRule::Fixed(Lane::whole(pepper, &step.queue)),
            None if !has_tenants => LaneRule::Fixed(Lane::tenant(pepper, &step.queue, TENANT_DEFAULT)),
            None => LaneRule::Tenant,
        };
        JobRule {
            flow: Arc::from(flow),
            queue: Arc::from(step.queue.as_str()),
            lane,
            order,
            priority: step.priority.or(queue.map(|queue| queue.priority)).unwrap_or_default(),
            delay: step.delay.or(queue.map(|queue| queue.delay)).unwrap_or_default(),
        }
    }

    /// Whether the body must be looked into to know whose job it is.
    pub fn reads_body(&self) -> bool {
        matches!(&self.lane, LaneRule::Group(rule) if rule.reads_body())
    }

    pub fn job(
        &self,
        pepper: &Pepper,
        tenant: &str,
        delivery: &dyn key::Delivery,
        received_at: Timestamp,
    ) -> Result<NewJob, NoKey> {
        Ok(NewJob {
            flow: self.flow.clone(),
            queue: self.queue.clone(),
            lane: self.lane(pepper, tenant, delivery)?,
            order: self.order,
            priority: self.priority,
            run_at: received_at + self.delay,
        })
    }

    /// Where order is promised, a delivery that does not say whose it is is refused; else it counts as the tenant's.
    fn lane(&self, pepper: &Pepper, tenant: &str, delivery: &dyn key::Delivery) -> Result<Lane, NoKey> {
        match &self.lane {
            LaneRule::Fixed(lane) => Ok(*lane),
            LaneRule::Tenant => Ok(Lane::tenant(pepper, &self.queue, tenant)),
            LaneRule::Group(rule) => match key::find(rule, delivery) {
                Ok(group) => Ok(Lane::group(pepper, &self.queue, tenant, &group)),
                Err(_) if !self.order.is_fifo() => Ok(Lane::tenant(pepper, &self.queue, tenant)),
                Err(refused) => Err(refused),
            },
        }
    }
}
