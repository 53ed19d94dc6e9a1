//! `queues.yml`.

use super::dialect::QUEUES;
use super::problem::{Code, Problem, Report};
use super::read::{Reader, Spot, word};
use super::shape;
use super::value;
use super::yaml::Node;
use crate::flow::{QUEUE_RETENTION_DEFAULT, Queue, VISIBILITY_TIMEOUT_DEFAULT};
use crate::lane::{OnDead, Order};
use std::time::Duration;

#[derive(Default)]
pub(super) struct QueuesFile {
    pub names: Vec<Spot<String>>,
    pub queues: Vec<Queue>,
    /// Where each queue says that it keeps its order, with its name.
    pub fifo: Vec<Spot<String>>,
    /// A queue is there whose name cannot be read: no other name can be called unknown.
    pub has_nameless: bool,
}

pub(super) fn read(root: &Node, report: &mut Report<'_>) -> QueuesFile {
    shape::check(root, &QUEUES, root.head(), report);
    let reader = Reader { node: root, report };
    let mut file = QueuesFile { has_nameless: !reader.is_sound(), ..QueuesFile::default() };
    if reader.node.get("queues").is_some_and(|queues| report.is_flawed(queues.span)) {
        file.has_nameless = true;
    }
    for queue in reader.maps("queues") {
        match queue.spot("name", value::name) {
            Some(name) => file.names.push(name),
            None => file.has_nameless = true,
        }
        file.fifo.extend(read_fifo(queue));
        file.queues.extend(read_queue(queue));
    }
    let lone = reader.maps("queues").filter_map(lone_on_dead).collect::<Vec<_>>();
    lone.into_iter().for_each(|problem| report.add(problem));
    file
}

fn read_fifo(queue: Reader<'_>) -> Option<Spot<String>> {
    let fifo = queue.spot("fifo", value::bool).filter(|fifo| fifo.value)?;
    Some(Spot { value: queue.must("name", value::name)?, file: fifo.file, span: fifo.span })
}

/// A dead letter holds nobody up where nobody waits for another.
fn lone_on_dead(queue: Reader<'_>) -> Option<Problem> {
    let (key, _) = queue.node.entry("on_dead")?;
    if queue.or("fifo", false, value::bool)? {
        return None;
    }
    let said = "`on_dead` is for queues that keep their order, and this one does not";
    let problem = Problem::error(Code::EitherOr, key.span, said).label("without `fifo: true`");
    Some(problem.help("add `fifo: true`, or remove `on_dead`"))
}

fn read_queue(queue: Reader<'_>) -> Option<Queue> {
    Some(Queue {
        name: queue.must("name", value::name)?,
        visibility_timeout: queue.or("visibility_timeout", VISIBILITY_TIMEOUT_DEFAULT, value::duration)?,
        retention: queue.or("retention", QUEUE_RETENTION_DEFAULT, value::duration)?,
        order: read_order(queue)?,
        group: queue.may("group_from", value::key_rule)?,
        priority: queue.or("priority", 0, value::priority)?,
        delay: queue.or("delay", Duration::ZERO, value::duration)?,
    })
}

fn read_order(queue: Reader<'_>) -> Option<Order> {
    let rules = [("continue", OnDead::Continue), ("block", OnDead::Block)];
    let on_dead = queue.or("on_dead", OnDead::Continue, word(&rules))?;
    Some(if queue.or("fifo", false, value::bool)? { Order::Fifo { on_dead } } else { Order::Any })
}
