//! `playbooks/*.yml`.

use super::dialect::PLAYBOOK;
use super::named_action;
use super::problem::Report;
use super::read::{Reader, Spot};
use super::shape;
use super::source;
use super::value;
use super::worker_file::{self, WorkerFile};
use super::yaml::Node;
use crate::flow::TypePattern;
use crate::integration::Integration;
use crate::playbook::{Playbook, queue_of};
use crate::worker::Trigger;
use std::sync::Arc;

/// What a playbook's file says besides its steps, as far as it can be read.
pub(super) struct PlaybookFile {
    pub name: Option<Spot<String>>,
    /// The types that start it, and where they are written.
    pub on: Option<Spot<Vec<TypePattern>>>,
}

impl PlaybookFile {
    pub fn playbook(&self) -> Option<Playbook> {
        Some(Playbook { name: self.name.as_ref()?.value.clone(), on: self.on.as_ref()?.value.clone() })
    }
}

pub(super) fn read(
    root: Node,
    integrations: &[Arc<Integration>],
    report: &mut Report<'_>,
) -> (PlaybookFile, WorkerFile) {
    let root = named_action::spelt_out(root, "steps", report);
    shape::check(&root, &PLAYBOOK, root.head(), report);
    let reader = Reader { node: &root, report };
    let file = PlaybookFile { name: reader.spot("name", value::name), on: reader.spot("on", source::patterns) };
    let consumes = file.name.clone().map(|name| Spot { value: queue_of(&name.value), ..name });
    let trigger = consumes.as_ref().map(|queue| Trigger::Queue(queue.value.clone()));
    let worker = worker_file::read_steps(&root, trigger, integrations, report);
    (file, WorkerFile { consumes, is_playbook: true, ..worker })
}
