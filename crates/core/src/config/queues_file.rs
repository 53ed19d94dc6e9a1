//! `queues.yml`.

use super::dialect::QUEUES;
use super::problem::Report;
use super::read::{Reader, Spot};
use super::shape;
use super::value;
use super::yaml::Node;
use crate::flow::{QUEUE_RETENTION_DEFAULT, Queue, VISIBILITY_TIMEOUT_DEFAULT};

#[derive(Default)]
pub(super) struct QueuesFile {
    pub names: Vec<Spot<String>>,
    pub queues: Vec<Queue>,
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
        file.queues.extend(read_queue(queue));
    }
    file
}

fn read_queue(queue: Reader<'_>) -> Option<Queue> {
    Some(Queue {
        name: queue.must("name", value::name)?,
        visibility_timeout: queue.or("visibility_timeout", VISIBILITY_TIMEOUT_DEFAULT, value::duration)?,
        retention: queue.or("retention", QUEUE_RETENTION_DEFAULT, value::duration)?,
    })
}
