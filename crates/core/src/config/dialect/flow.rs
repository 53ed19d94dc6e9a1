//! `flows/*.yml`: what starts a job.

use super::*;

pub(in crate::config) static FLOW: Shape = Shape {
    name: "flow",
    doc: "`flows/*.yml`: a route, how its deliveries are told apart, and the queues they go to.",
    fields: &[
        VERSION,
        &[
            must("name", Kind::Name, "Unique among the flows."),
            must("triggers", Kind::List(&Kind::Map(&TRIGGER)), "What starts the flow."),
            must("steps", Kind::List(&Kind::Map(&FLOW_STEP)), "One job for each `queue` step."),
            may("responses", Kind::Map(&RESPONSES), "What the sender is answered."),
        ],
    ],
    choices: &[],
};

pub(super) static TRIGGER: Shape = Shape {
    name: "trigger",
    doc: "What starts a flow.",
    fields: &[&[
        may("http", Kind::Map(&HTTP_TRIGGER), "A request to a path."),
        may("source", Kind::Name, "Events of a source of `clinch.yml`."),
        may("on", Kind::Patterns, "With `source`: only these types, such as `shopify.order.created` or `shopify.*`."),
    ]],
    choices: &[
        Choose {
            keys: &["http", "source"],
            need: Need::Required,
            none: "this trigger starts nothing",
            two: "a trigger is a route or a source",
            help: "add `http:` and below it `path: /…`, or `source: NAME`",
        },
        Choose {
            keys: &["http", "on"],
            need: Need::Optional,
            none: "",
            two: "types are chosen among the events of a source",
            help: "",
        },
    ],
};

pub(super) static HTTP_TRIGGER: Shape = Shape {
    name: "http_trigger",
    doc: "A route: the requests that it takes. With any key of a source it is one, named after the flow.",
    fields: &[
        &[
            must("path", Kind::Path, "Begins with `/`, matched whole."),
            may("method", Kind::Choice(METHODS_IN), "POST if not given."),
            may(
                "body_max",
                Kind::Size { min: 1, max: BODY_BYTES_MAX },
                "The largest body; 1MiB if not given, 10MiB at most.",
            ),
            may("tenant_from", Kind::KeyPart, "Whose delivery it is: `header:NAME` or `body:/json/pointer`."),
            may("find_by", Kind::KeyRule, FIND_BY),
            may("idempotency", Kind::Map(&DEDUP), "How a delivery is recognised that was seen before."),
        ],
        EDGE,
    ],
    choices: &[
        EDGE_CHOICES[0],
        EDGE_CHOICES[1],
        Choose {
            keys: &["idempotency", "key_from"],
            need: Need::Optional,
            none: "",
            two: "both say what recognises an event",
            help: "",
        },
        Choose {
            keys: &["idempotency", "ttl"],
            need: Need::Optional,
            none: "",
            two: "both say how long a key is remembered",
            help: "",
        },
    ],
};

pub(super) static DEDUP: Shape = Shape {
    name: "idempotency_rule",
    doc: "How a delivery is recognised that was seen before.",
    fields: &[&[
        must(
            "key_from",
            Kind::KeyRule,
            "`header:NAME`, `body:/json/pointer`, `{{ … }}` of the body, or a list of these, hashed together.",
        ),
        may(
            "store",
            Kind::Prefixed("kv:"),
            "`kv:NAME`: the Redis of this name in `clinch.yml`; if there is none, the installation's own store.",
        ),
        must("ttl", span(SECOND), "How long a key is remembered, from acceptance on."),
        may("required", Kind::Bool, "Whether a delivery without a key is refused; true if not given."),
        may("on_conflict", Kind::Choice(&["reject", "keep_first"]), "Same key, other body; reject if not given."),
        may(
            "on_duplicate_of_dead",
            Kind::Choice(&["keep", "replay"]),
            "The first is a dead letter; keep if not given.",
        ),
    ]],
    choices: &[],
};

pub(super) static RESPONSES: Shape = Shape {
    name: "answer",
    doc: "What the sender is answered.",
    fields: &[&[
        may("deduplicated_from", Kind::Choice(&["idempotency"]), "Duplicates get the first answer again."),
        may("success_from", Kind::Prefixed("step:"), "The step whose success is answered, `step:NAME`."),
        may("status", Kind::Int { min: 200, max: 299 }, "The status of a success; 202 if not given."),
    ]],
    choices: &[],
};

pub(super) static FLOW_STEP: Shape = Shape {
    name: "flow_step",
    doc: "A step at the edge: put the delivery into a queue.",
    fields: &[STEP_NAME, &[may("queue", Kind::Map(&ENQUEUE), "The queue that gets a job.")], IN_WORKERS, SCRIPT, NAMED],
    choices: &[NAME_CHOICE, one_action("add `queue:` and below it `name: QUEUE`")],
};

pub(super) static ENQUEUE: Shape = Shape {
    name: "queue_step",
    doc: "The queue that gets a job.",
    fields: &[
        &[
            must("name", Kind::Name, "A queue of `queues.yml`."),
            may("body_from", Kind::Choice(&["request.body"]), "What the job carries; the request's body if not given."),
            may("key_from", Kind::KeyRule, "The key that travels with the job; the delivery's own if not given."),
        ],
        PLACE,
    ],
    choices: &[],
};
