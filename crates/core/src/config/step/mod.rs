//! A step, wherever one may be written: in a worker, in a playbook, and in a branch of either.

mod outputs;
mod read;
mod rules;
mod secrets;

pub(super) use read::{read_headers, read_step};
pub(super) use rules::broken;
pub(super) use secrets::secrets;

use super::read::Reader;

/// The steps of a worker, which are below `run`, or of a playbook.
pub(super) fn list<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    worker.maps(if worker.has("run") { "run" } else { "steps" })
}

/// Everything in a worker that has a name: its steps, the branches of these, and the steps in them.
pub(super) fn named<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    list(worker).flat_map(|step| {
        let branches = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
        std::iter::once(step).chain(branches)
    })
}

/// Every step, those inside branches too.
pub(super) fn steps<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    named(worker).filter(|named| !named.has("steps"))
}

/// Wherever it is said what to do: in every step, and in what undoes it.
pub(super) fn acts<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    steps(worker).flat_map(|step| std::iter::once(step).chain(step.map("compensate")))
}
