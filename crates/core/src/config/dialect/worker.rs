//! `workers/*.yml` and `playbooks/*.yml`: how jobs are done.

use super::*;

pub(in crate::config) static PLAYBOOK: Shape = Shape {
    name: "playbook",
    doc: "`playbooks/*.yml`: the steps that are run for each event of some type, whichever source it is from.",
    fields: &[
        VERSION,
        &[
            must("name", Kind::Name, "Unique among the playbooks, flows and workers."),
            must("on", Kind::Patterns, "The types that start it: `shopify.cart.abandoned`, `shopify.*`, or a list."),
            may(
                "concurrency",
                Kind::Int { min: 1, max: CONCURRENCY_MAX as i64 },
                "How many jobs run at once; 16 if not given.",
            ),
            may("retry", Kind::Map(&RETRY), "How often and how soon a failed job is tried again."),
            must("steps", Kind::List(&Kind::Map(&WORKER_STEP)), "The steps, in order."),
        ],
    ],
    choices: &[],
};

pub(in crate::config) static WORKER: Shape = Shape {
    name: "worker",
    doc: "`workers/*.yml`: the steps that are run for each job of a queue, and what happens when they fail.",
    fields: &[
        VERSION,
        &[
            must("name", Kind::Name, "Unique among the workers."),
            may("consumes", Kind::Map(&CONSUMES), "The queue whose jobs it runs."),
            may("schedule", Kind::Map(&SCHEDULE), "When it runs by itself."),
            may(
                "concurrency",
                Kind::Int { min: 1, max: CONCURRENCY_MAX as i64 },
                "How many jobs run at once; 16 if not given.",
            ),
            may("retry", Kind::Map(&RETRY), "How often and how soon a failed job is tried again."),
            must("run", Kind::List(&Kind::Map(&WORKER_STEP)), "The steps, in order."),
        ],
    ],
    choices: &[Choose {
        keys: &["consumes", "schedule"],
        need: Need::Required,
        none: "nothing starts this worker",
        two: "a worker is started by a queue or by the clock",
        help: "add `consumes:` and below it `queue: NAME`",
    }],
};

pub(super) static CONSUMES: Shape = Shape {
    name: "consumer",
    doc: "The queue whose jobs it runs.",
    fields: &[&[must("queue", Kind::Name, "A queue of `queues.yml`.")]],
    choices: &[],
};

pub(super) static SCHEDULE: Shape = Shape {
    name: "schedule",
    doc: "When a worker runs by itself: once in all nodes together.",
    fields: &[&[
        must("cron", Kind::Cron, "A cron line, such as \"*/10 * * * *\"; with six fields the first is seconds."),
        may("time_zone", Kind::TimeZone, "Whose clock it follows, such as `Europe/Berlin`; UTC if not given."),
        may(
            "missed",
            Kind::Choice(MISSED),
            "Moments at which nobody could run it: `once` makes up for all of them with one run, `all` for each; once if not given.",
        ),
        may("overlap", Kind::Bool, "Whether it runs while an earlier run is not finished; false if not given."),
    ]],
    choices: &[],
};

pub(super) static RETRY: Shape = Shape {
    name: "retry_policy",
    doc: "How often and how soon a failed job is tried again, and where it goes after the last time.",
    fields: &[&[
        may("strategy", Kind::Choice(STRATEGIES), "How the pauses grow; exponential if not given."),
        may("base_delay", span(Duration::ZERO), "The first pause; 2s if not given."),
        may("base_ms", Kind::Int { min: 0, max: BASE_MS_MAX }, "The first pause in milliseconds."),
        may(
            "multiplier",
            Kind::Number { min: 1.0, max: MULTIPLIER_MAX },
            "Each pause is so many times the last; 2 if not given.",
        ),
        may(
            "jitter",
            Kind::Choice(JITTERS),
            "How pauses are spread, so that jobs do not march in step; full if not given.",
        ),
        may("max_delay", span(Duration::ZERO), "No pause is longer; 120s if not given."),
        may("max_attempts", Kind::Int { min: 1, max: ATTEMPTS_MAX }, "The first attempt included; 7 if not given."),
        may("max_elapsed", span(SECOND), "No retry starts later than this after the first attempt."),
        may("on_exhausted", Kind::Prefixed("dlq:"), "The dead letter queue, `dlq:NAME`."),
        may("budget", Kind::Map(&BUDGET), "How many retries one entity may cause, all its jobs together."),
        may(
            "budget_per_contact",
            Kind::Int { min: 1, max: UNITS_MAX as i64 },
            "How many retries one contact may cause in an hour.",
        ),
    ]],
    choices: &[
        Choose {
            keys: &["base_delay", "base_ms"],
            need: Need::Optional,
            none: "",
            two: "both are the first pause",
            help: "",
        },
        Choose {
            keys: &["budget", "budget_per_contact"],
            need: Need::Optional,
            none: "",
            two: "both are the budget",
            help: "",
        },
    ],
};

pub(super) static BUDGET: Shape = Shape {
    name: "retry_budget",
    doc: "How many retries one entity may cause in a window, all its jobs of this worker together.",
    fields: &[&[
        must("per", Kind::EventTemplate, "Whose budget it is, such as \"{{ body.email }}\"."),
        must("max", Kind::Int { min: 1, max: UNITS_MAX as i64 }, "How many retries; first attempts do not count."),
        may("window", span(SECOND), "In what time, from the first retry on; 1h if not given."),
        may(
            "on_exhausted",
            Kind::Choice(&["dead", "wait"]),
            "What becomes of a job when nothing is left: a dead letter, or it waits for a later window; dead if not given.",
        ),
    ]],
    choices: &[],
};

pub(super) static WORKER_STEP: Shape = Shape {
    name: "step",
    doc: "One thing that a worker does.",
    fields: &[
        STEP_NAME,
        &[
            may("http", Kind::Map(&HTTP_ACTION), "A request to a target."),
            may("parallel", Kind::List(&Kind::Map(&BRANCH)), "Branches that run side by side; 20 at most."),
        ],
        COMPENSATE,
        UNDER,
        KINDS,
        PER_ITEM,
        SCRIPT,
        NAMED,
    ],
    choices: &[NAME_CHOICE, one_action(ONE_REQUEST)],
};

/// Which policies a step is under.
pub(super) const UNDER: &[Field] = &[may(
    "policies",
    Kind::List(&Kind::Name),
    "Policies of `policies.yml` that it is under, besides those of its channel and its integration.",
)];

pub(super) const ONE_REQUEST: &str = "add `http:` and below it `url: https://…`";

pub(super) static BRANCH: Shape = Shape {
    name: "branch",
    doc: "What runs beside other branches: one step, or steps of its own in order.",
    fields: &[
        INSIDE[0],
        INSIDE[1],
        &[may("steps", Kind::List(&Kind::Map(&BRANCH_STEP)), "Its steps, in order.")],
        INSIDE[2],
        INSIDE[3],
        INSIDE[4],
        INSIDE[5],
        INSIDE[6],
    ],
    choices: &[
        NAME_CHOICE,
        Choose {
            keys: OF_BRANCHES,
            none: "this branch does nothing",
            two: "a branch does one thing",
            ..one_action(ONE_REQUEST)
        },
    ],
};

pub(super) static BRANCH_STEP: Shape = Shape {
    name: "branch_step",
    doc: "One thing that a branch does.",
    fields: INSIDE,
    choices: &[NAME_CHOICE, one_action(ONE_REQUEST)],
};

/// What a step inside a branch may have.
pub(super) const INSIDE: &[&[Field]] = &[
    STEP_NAME,
    &[
        may("http", Kind::Map(&HTTP_ACTION), "A request to a target."),
        may("parallel", Kind::Tree, "Not inside a branch."),
        may("foreach", Kind::Tree, "Not inside a branch."),
        may("rate_limit", Kind::Tree, "Not inside a branch."),
    ],
    KINDS,
    SCRIPT,
    NAMED,
    COMPENSATE,
    UNDER,
];

pub(super) const COMPENSATE: &[Field] =
    &[may("compensate", Kind::Map(&COMPENSATION), "Undoes it when the job ends for good after it was done.")];

pub(super) static COMPENSATION: Shape = Shape {
    name: "compensation",
    doc: "What undoes a step: an action, spelt as that of a step. It may read the step's own output.",
    fields: &[
        &[
            may("http", Kind::Map(&HTTP_ACTION), "A request to a target."),
            may("sql", Kind::Map(&SQL), "A statement for a database, run once."),
            may("send_template", Kind::Map(&SEND), "A message, as a template of the workspace writes it."),
        ],
        SCRIPT,
    ],
    choices: &[Choose {
        keys: &["http", "sql", "send_template", "uses"],
        need: Need::Required,
        none: "this undoes nothing",
        two: "one thing undoes a step",
        help: ONE_REQUEST,
    }],
};
