//! `queues.yml`.

use super::*;

pub(in crate::config) static QUEUES: Shape = Shape {
    name: "queues_file",
    doc: "`queues.yml`: the queues, dead letter queues among them.",
    fields: &[VERSION, &[must("queues", Kind::List(&Kind::Map(&QUEUE)), "The queues.")]],
    choices: &[],
};

pub(super) static QUEUE: Shape = Shape {
    name: "queue",
    doc: "A queue: in which order its jobs run, and how long it remembers.",
    fields: &[
        &[
            must("name", Kind::Name, "Unique among the queues."),
            may(
                "visibility_timeout",
                span(SECOND),
                "A claim ends this long after its last heartbeat; 60s if not given.",
            ),
            may("retention", span(SECOND), "How long finished (or dead) jobs are kept; 4d if not given."),
            may("fifo", Kind::Bool, "Jobs of a group run one at a time, in order of acceptance; false if not given."),
            may(
                "on_dead",
                Kind::Choice(&["continue", "block"]),
                "With `fifo`: whether the group goes on after a dead letter; continue if not given.",
            ),
        ],
        PLACE,
    ],
    choices: &[],
};

pub(super) const PRIORITIES: Kind = Kind::Int { min: PRIORITY_MIN as i64, max: PRIORITY_MAX as i64 };

/// Where a job stands among the others. A step's word wins over its queue's.
pub(super) const PLACE: &[Field] = &[
    may(
        "group_from",
        Kind::KeyRule,
        "Whose job it is: `header:NAME`, `body:/json/pointer`, `{{ … }}` of the body, or a list.",
    ),
    may("priority", PRIORITIES, "The highest goes first, from -100 to 100; 0 if not given."),
    may("delay", span(Duration::ZERO), "How long a job waits before it may run; 0s if not given."),
];
