//! What a step does.

use super::*;

pub(super) static HTTP_ACTION: Shape = Shape {
    name: "http_step",
    doc: "A request to a target.",
    fields: &[
        &[
            may("integration", Kind::Name, "The integration of `clinch.yml` that is called."),
            may("method", Kind::Choice(METHODS_OUT), "POST if not given."),
            must("url", Kind::UrlOrPath, "http://, https://, or a path of the integration; may have templates."),
            may("headers", Kind::Headers, "Names and values; values may have templates."),
            may("body_from", Kind::Expr, "`body` for the event's bytes, or an expression whose value is sent as JSON."),
            may("body", Kind::Body, "A text with templates, or a tree that is sent as JSON."),
            may("timeout", span(MILLISECOND), "How long the target may take; 30s if not given."),
            may(
                "propagate_trace",
                Kind::Bool,
                "Whether the target is told the trace, in `traceparent`; what the integration says if not given.",
            ),
        ],
        PROMISE,
    ],
    choices: &[Choose {
        keys: &["body_from", "body"],
        need: Need::Optional,
        none: "",
        two: "both are the body",
        help: "",
    }],
};

/// What a worker's step may be, besides a request.
pub(super) static KINDS: &[Field] = &[
    may("transform", Kind::Body, "A tree with templates, or a text; what it becomes is the output."),
    may("validate", Kind::Map(&VALIDATE), "Holds a value against a schema."),
    may("enrich", Kind::Map(&ENRICH), "Adds what is known of a phone number or an address."),
    may(
        "delay",
        Kind::Or(&Kind::Duration { min: MILLISECOND }, &Kind::Map(&DELAY)),
        "Waits so long, such as `2h`, or until a moment.",
    ),
    may("dedup_key", Kind::Map(&DEDUP_KEY), "Makes a key of fields of the event, and of a stretch of time."),
    may("setnx", Kind::Map(&SETNX), "Sets a key that is not set, for a while."),
    may("sql", Kind::Map(&SQL), "A statement for a database, run once."),
    may("send_template", Kind::Map(&SEND), "A message, as a template of the workspace writes it."),
    may("queue", Kind::Map(&REQUEUE), "A job for a queue, or a dead letter back into its own."),
    may("queue_pull", Kind::Map(&PULL), "Reads dead letters; they stay where they are."),
    may("policy", Kind::Map(&ASK), "Asks whether a policy would allow it, and counts nothing."),
    may("approval", Kind::Map(&APPROVAL), "Waits until people have approved it."),
];

/// What makes a step run again and again.
pub(super) const PER_ITEM: &[Field] = &[
    may("foreach", Kind::ListExpr, "Runs the step once for each of a list, which it reads as `item`; 1,000 at most."),
    may("rate_limit", Kind::Map(&RATE_LIMIT), "How fast the runs of `foreach` follow each other."),
];

pub(super) static REQUEUE: Shape = Shape {
    name: "requeue_step",
    doc: "A job for a queue. A dead letter that `queue_pull` read goes back into its queue as it is, under its old key.",
    fields: &[&[
        must("name", Kind::Name, "A queue of `queues.yml`."),
        may("body_from", Kind::Expr, "What the job carries; the event's body if not given."),
        may("key_from", Kind::Expr, "The key that recognises it; the step's own if not given."),
    ]],
    choices: &[],
};

pub(super) static PULL: Shape = Shape {
    name: "queue_pull_step",
    doc: "Reads dead letters, those that wait longest first. Those that only a person can decide about are left out.",
    fields: &[&[
        must("from", Kind::Name, "The dead letter queue, or the queue if its worker names none."),
        may("max_messages", Kind::Int { min: 1, max: PULL_MAX as i64 }, "At most so many; 10 if not given."),
    ]],
    choices: &[],
};

/// Workers run these; the edge does not.
pub(super) const IN_WORKERS: &[Field] = &[
    may("http", Kind::Tree, "Not run yet at the edge."),
    may("transform", Kind::Tree, "Not run yet at the edge."),
    may("validate", Kind::Tree, "Not run yet at the edge."),
    may("enrich", Kind::Tree, "Not run yet at the edge."),
    may("delay", Kind::Tree, "Not run yet at the edge."),
    may("dedup_key", Kind::Tree, "Not run yet at the edge."),
    may("setnx", Kind::Tree, "Not run yet at the edge."),
    may("sql", Kind::Tree, "Not run yet at the edge."),
    may("send_template", Kind::Tree, "Not run yet at the edge."),
    may("policy", Kind::Tree, "Not run yet at the edge."),
    may("approval", Kind::Tree, "Not run yet at the edge."),
    may("parallel", Kind::Tree, "Not run yet at the edge."),
    may("compensate", Kind::Tree, "Not run yet at the edge."),
    may("queue_pull", Kind::Tree, "Not run yet at the edge."),
    may("foreach", Kind::Tree, "Not run yet at the edge."),
    may("rate_limit", Kind::Tree, "Not run yet at the edge."),
];

pub(super) static VALIDATE: Shape = Shape {
    name: "validate_step",
    doc: "Holds a value against a schema; what breaks it is a dead letter.",
    fields: &[&[
        must("schema", Kind::Name, "`NAME` of `schemas/NAME.json`."),
        may("from", Kind::Expr, "The value; `body` if not given."),
    ]],
    choices: &[],
};

pub(super) static ENRICH: Shape = Shape {
    name: "enrich_step",
    doc: "Adds what is known of a value.",
    fields: &[&[
        may("phone", Kind::Map(&PHONE), "A phone number, as the whole world writes it."),
        may("geoip", Kind::Map(&GEOIP), "Where an IP address is."),
    ]],
    choices: &[Choose {
        keys: &["phone", "geoip"],
        need: Need::Required,
        none: "this enriches nothing",
        two: "a step does one thing",
        help: "add `phone:` or `geoip:` and below it `from: body.…`",
    }],
};

pub(super) static PHONE: Shape = Shape {
    name: "phone",
    doc: "A phone number as the whole world writes it (E.164).",
    fields: &[&[
        must("from", Kind::Expr, "The number as somebody wrote it."),
        may("country", Kind::Country, "Where numbers without `+` are, such as `DE`."),
        may(
            "strict",
            Kind::Choice(STRICTNESS),
            "How sure it must be, else the job is a dead letter: `possible` (its length) if not given.",
        ),
    ]],
    choices: &[],
};

pub(super) static GEOIP: Shape = Shape {
    name: "geoip",
    doc: "What a MaxMind database says of an IP address; null if it does not know it.",
    fields: &[&[
        must("from", Kind::Expr, "The address."),
        must("database", Kind::File(".mmdb"), "The file, relative to the workspace."),
    ]],
    choices: &[],
};

pub(super) static DELAY: Shape = Shape {
    name: "delay",
    doc: "Waits, from when the step was first reached. It costs no attempt.",
    fields: &[&[
        may("for", span(MILLISECOND), "So long, such as `2h`."),
        may("until", Kind::Expr, "Until this moment: `2026-08-01T00:00:00Z`, or seconds since 1970."),
    ]],
    choices: &[Choose {
        keys: &["for", "until"],
        need: Need::Required,
        none: "this says no time",
        two: "both say how long",
        help: "add `for: 2h`",
    }],
};

pub(super) static DEDUP_KEY: Shape = Shape {
    name: "dedup_key_step",
    doc: "A key of fields of the event: the same fields, the same key.",
    fields: &[&[
        must("fields", Kind::List(&Kind::BodyField), "Fields of the body, such as `customer.id`, or `{{ … }}`."),
        may(
            "bucket_minutes",
            Kind::Int { min: 1, max: BUCKET_MINUTES_MAX as i64 },
            "Moments of one stretch of so many minutes are one.",
        ),
        may("time_field", Kind::Text, "With `bucket_minutes`: the field that is a moment; `timestamp` if not given."),
        may("normalise", Kind::Map(&NORMALISE), "Fields whose spelling does not matter."),
    ]],
    choices: &[],
};

pub(super) static NORMALISE: Shape = Shape {
    name: "normalise",
    doc: "Fields whose spelling does not matter.",
    fields: &[&[
        may("email", Kind::List(&Kind::Text), "Fields that are mail addresses: their case does not matter."),
        may("phone", Kind::List(&Kind::Text), "Fields that are phone numbers, as people write them."),
        may("country", Kind::Country, "Where numbers without `+` are, such as `DE`."),
    ]],
    choices: &[],
};

pub(super) static SETNX: Shape = Shape {
    name: "setnx_step",
    doc: "Sets a key that is not set, for a while; says whether it did.",
    fields: &[&[
        must("key", Kind::Template, "What is set, such as \"cart-{{ body.customer }}\"."),
        may("ttl", span(SECOND), "How long it stays set."),
        may("ttl_seconds", Kind::Int { min: 1, max: TTL_SECONDS_MAX }, "The same in seconds."),
        may("on_exists", Kind::Choice(&["continue", "stop"]), "Another job has set it; continue if not given."),
    ]],
    choices: &[Choose {
        keys: &["ttl", "ttl_seconds"],
        need: Need::Required,
        none: "nothing says how long the key stays set",
        two: "both say how long",
        help: "add `ttl: 48h`",
    }],
};

pub(super) static SQL: Shape = Shape {
    name: "sql_step",
    doc: "A statement for a database, which is run once.",
    fields: &[&[
        must("database", Kind::Name, "The integration of `clinch.yml` with its `url`."),
        must("statement", Kind::Statement, "One statement; values are `$1`, `$2` and so on."),
        may("params", Kind::List(&Kind::Body), "The values, in this order; a list or a map is given as JSON."),
        may("timeout", span(MILLISECOND), "How long it may take; 30s if not given."),
    ]],
    choices: &[],
};

pub(super) static SEND: Shape = Shape {
    name: "send_step",
    doc: "A message, as a template of the workspace writes it.",
    fields: &[&[
        may(
            "integration",
            Kind::Name,
            "The integration that carries it, with `smtp` or `message`; if not given, that of `messaging`, or the only one.",
        ),
        may("channel", Kind::Name, "The name below `messaging` of `clinch.yml` whose integration carries it."),
        must("template", Kind::Name, "`NAME` of `templates/NAME.txt`, `.md`, `.html` or `.json`."),
        must("to", Kind::Template, "Whom it is for: a mail address, a channel, a phone number, a token."),
        may("with", Kind::Body, "What the template reads as `with`, besides the names of every step."),
        may("timeout", span(MILLISECOND), "How long it may take; 30s if not given."),
    ]],
    choices: &[Choose {
        keys: &["integration", "channel"],
        need: Need::Optional,
        none: "",
        two: "both say who carries it",
        help: "",
    }],
};

pub(super) static ASK: Shape = Shape {
    name: "policy_step",
    doc: "Asks whether a policy would allow it, and counts nothing. Its output: `allowed`, and if not `rule`, `fact` and `reason`.",
    fields: &[&[
        must("use", Kind::Name, "A policy of `policies.yml`."),
        may("channel", Kind::Name, "Over which channel it would go; none if not given."),
    ]],
    choices: &[],
};

pub(super) static APPROVAL: Shape = Shape {
    name: "approval_step",
    doc: "Waits until people have approved it; what is rejected or expires ends the job with nothing done.",
    fields: &[&[
        must("title", Kind::Template, "One line that says what is to be decided; may have templates."),
        may("show", Kind::Body, "What people see of the event to decide it."),
        may("of", Kind::List(&Kind::Text), "Who may decide, by name; anybody with access if not given."),
        may(
            "need",
            Kind::Int { min: 1, max: NEED_MAX as i64 },
            "So many different people must approve; 1 if not given. One is enough to reject.",
        ),
        may("expires", span(MILLISECOND), "How long it may be decided; 24h if not given."),
        may("on_expiry", Kind::Choice(ON_EXPIRY), "What it means that nobody decided in time; reject if not given."),
        may("remind", span(MILLISECOND), "So long before it expires the channel is told again."),
        may("slack", Kind::Map(&APPROVAL_SLACK), "The channel where people are asked, with buttons."),
    ]],
    choices: &[],
};

pub(super) static APPROVAL_SLACK: Shape = Shape {
    name: "approval_channel",
    doc: "A channel of Slack where people are asked.",
    fields: &[&[
        must("integration", Kind::Name, "The integration of `clinch.yml` with `message: slack`."),
        must("channel", Kind::Text, "The channel, such as `C0123456789` or `#approvals`."),
    ]],
    choices: &[],
};

pub(super) const STEP_NAME: &[Field] = &[
    may("name", Kind::Name, "Unique among the steps of its file."),
    may("id", Kind::Name, "The same as `name`."),
    may("if", Kind::Expr, "The step runs only when this is true; put it in quotes."),
];

/// Of these a step has exactly one.
pub(in crate::config) const ACTIONS: &[&str] = match OF_BRANCHES.split_last() {
    Some((_, actions)) => actions,
    None => &[],
};

/// Of these a branch has exactly one: an action, or steps.
pub(super) const OF_BRANCHES: &[&str] = &[
    "http",
    "queue",
    "uses",
    "run",
    "sql",
    "queue_pull",
    "dedup_key",
    "setnx",
    "send_template",
    "validate",
    "enrich",
    "transform",
    "delay",
    "policy",
    "approval",
    "parallel",
    "steps",
];

/// What may stand after `run:`, each with the short form that it is another spelling of. What it is given is below `with:`.
pub(in crate::config) const NAMED_ACTIONS: &[(&str, &str)] = &[
    ("utils.compute_dedup_key", "dedup_key"),
    ("store.setnx", "setnx"),
    ("messaging.send_template", "send_template"),
    ("http", "http"),
    ("sql", "sql"),
    ("transform", "transform"),
    ("validate", "validate"),
    ("enrich", "enrich"),
    ("delay", "delay"),
];

/// These go with an action and change what it does.
pub(in crate::config) const MODIFIERS: &[&str] = &["foreach", "rate_limit"];

/// These say more about `uses` and `run`.
pub(in crate::config) const DETAILS: &[&str] =
    &["with", "env", "script", "on_unknown", "timeout", "memory", "isolation"];

/// A script and what it may do.
pub(super) const SCRIPT: &[Field] = &[
    may("uses", Kind::Runtime, "The runtime of a script: `node:18` (18 or newer), `python:3`, `bash`."),
    may("script", Kind::Text, "What the runtime runs; `import`s are relative to the workspace."),
    may("env", Kind::Env, "More for its environment; values may have templates and secrets."),
    may(
        "on_unknown",
        Kind::Choice(ON_UNKNOWN),
        "When it is not known whether it was done: ask a person, or retry with the same key; ask if not given.",
    ),
    may("timeout", span(MILLISECOND), "How long it may take; 30s if not given."),
    may(
        "memory",
        Kind::Size { min: MEMORY_MIN, max: MEMORY_MAX },
        "What its process may hold in memory; 512MiB if not given.",
    ),
    may(
        "isolation",
        Kind::Choice(ISOLATIONS),
        "`process` for a process of its own; otherwise one process runs many jobs, one after the other.",
    ),
];

pub(super) const NAMED: &[Field] = &[
    may("run", Kind::NamedAction, "An action by its name, such as `store.setnx`: another spelling of `setnx:`."),
    may("with", Kind::Tree, "With `run`: what the action is given, as below its short form."),
];

pub(super) const NAME_CHOICE: Choose = Choose {
    keys: &["name", "id"],
    need: Need::Required,
    none: "this step has no name",
    two: "both are the name of the step",
    help: "add `name: NAME`",
};

pub(super) const fn one_action(help: &'static str) -> Choose {
    Choose { keys: ACTIONS, need: Need::Required, none: "this step does nothing", two: "a step does one thing", help }
}
