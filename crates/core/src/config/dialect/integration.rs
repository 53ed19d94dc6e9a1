//! Those it calls.

use super::*;

pub(super) static INTEGRATION: Shape = Shape {
    name: "integration",
    doc: "Who is called: where it is, how much it bears, and what it does with a call that it has seen.",
    fields: &[
        &[
            may(
                "url",
                Kind::DatabaseUrl,
                "Where a database is, for `sql:` steps: `${secrets.NAME}`, postgres://, mysql:// or sqlite:.",
            ),
            may("base_url", Kind::Url, "What a `url` that begins with `/` is appended to."),
            may(
                "smtp",
                Kind::MailUrl,
                "A mail server: `smtp://user:${secrets.NAME}@host:587`, or `smtps://` for TLS from the first byte.",
            ),
            may(
                "tls",
                Kind::Choice(&["required", "none"]),
                "Whether `smtp://` must go on in TLS; required if not given.",
            ),
            may("from", Kind::Mailbox, "Whom mails are from, such as `Shop <hello@example.com>`."),
            may(
                "message",
                Kind::Or(&Kind::Choice(&["slack"]), &Kind::Map(&MESSAGE)),
                "How a message is sent to it: `slack`, or the request that it is put into.",
            ),
            may(
                "channel",
                Kind::Name,
                "The way over which it reaches people, for policies; email with `smtp`, slack with `message: slack`, webhook with another `message`, if not given.",
            ),
            may("auth", Kind::Map(&AUTH), "How clinch proves who it is."),
            may("headers", Kind::Headers, "Sent with every call; values may have templates."),
            may("key_header", Kind::Text, "The header that our key travels in; Idempotency-Key if not given."),
            may("timeout", span(MILLISECOND), "How long it may take; 30s if not given."),
            may(
                "concurrency",
                Kind::Int { min: 1, max: crate::integration::CONCURRENCY_MAX as i64 },
                "How many calls at once, on all nodes together.",
            ),
            may("rate", Kind::Rate, "How many calls in what time, on all nodes together, such as `100/10s`."),
            may("jitter", Kind::Spread, "A pause before each call, such as `200-600ms`."),
            may("rate_limit", Kind::Map(&RATE_LIMIT), "`rate` and `jitter` in the words of a step."),
            may(
                "breaker",
                Kind::Or(&Kind::Choice(&["none"]), &Kind::Map(&BREAKER)),
                "When it is left alone; when half of 20 calls in 30s fail if not given.",
            ),
            may(
                "retry_on",
                Kind::Statuses,
                "The answers after which a call is tried again; 408, 425, 429 and 500-599 if not given.",
            ),
            may(
                "class",
                Kind::Choice(crate::config::integration::CLASSES),
                "What its effects are; create if not given.",
            ),
            may(
                "propagate_trace",
                Kind::Bool,
                "Whether `http:` steps, and what it is asked, tell it their trace, in `traceparent`; false if not given.",
            ),
        ],
        PROMISE,
    ],
    choices: &[
        Choose { keys: &["rate", "rate_limit"], need: Need::Optional, none: "", two: "both are the rate", help: "" },
        Choose { keys: &["jitter", "rate_limit"], need: Need::Optional, none: "", two: "both are the pause", help: "" },
        Choose {
            keys: &["smtp", "message"],
            need: Need::Optional,
            none: "",
            two: "both say how messages go",
            help: "",
        },
    ],
};

pub(super) static MESSAGE: Shape = Shape {
    name: "message",
    doc: "The request that a message is put into: `message.to`, `.subject`, `.text`, `.html` and `.json`.",
    fields: &[&[
        must("url", Kind::UrlOrPath, "http://, https://, or a path of the integration; may have templates."),
        may("form", Kind::MessageBody, "Sent as a form: names, and texts with templates."),
        may("body", Kind::MessageBody, "Sent as JSON: a tree with templates; the message itself if not given."),
    ]],
    choices: &[Choose { keys: &["form", "body"], need: Need::Optional, none: "", two: "both are the body", help: "" }],
};

/// What a partner does with a call that it has seen. A step's word wins over its integration's.
pub(super) const PROMISE: &[Field] = &[
    may(
        "idempotency",
        Kind::Choice(IDEMPOTENCIES),
        "What the target does with a request it has seen; none if not given.",
    ),
    may(
        "honoured_for",
        span(SECOND),
        "How long the target honours our key; for ever if not given. With `idempotency: wrap`, how long clinch remembers; 24h.",
    ),
    may("lookup", Kind::Map(&LOOKUP), "How to ask whether it was done."),
    may(
        "wrap_key",
        Kind::Template,
        "With `idempotency: wrap`: one call is made for each of these, whichever job comes first; the event's key if not given.",
    ),
];

pub(super) static LOOKUP: Shape = Shape {
    name: "lookup",
    doc: "A question to the target, for when an answer was lost.",
    fields: &[&[
        may("method", Kind::Choice(METHODS_OUT), "GET if not given."),
        must("url", Kind::UrlOrPath, "http://, https://, or a path of the integration; may have templates."),
        may("headers", Kind::Headers, "Names and values; values may have templates."),
        must("done", Kind::AnswerExpr, "True when `answer.status` and `answer.body` say that it was done."),
    ]],
    choices: &[],
};

pub(super) static AUTH: Shape = Shape {
    name: "auth",
    doc: "How clinch proves who it is.",
    fields: &[&[
        may("bearer", Kind::Secret, "A token: `${secrets.NAME}`."),
        may("basic", Kind::Map(&BASIC), "A user and a password."),
    ]],
    choices: &[Choose {
        keys: &["bearer", "basic"],
        need: Need::Required,
        none: "this says nothing",
        two: "both prove who clinch is",
        help: "add `bearer: ${secrets.NAME}`; another header goes below `headers:`",
    }],
};

pub(super) static BASIC: Shape = Shape {
    name: "basic_auth",
    doc: "A user and a password.",
    fields: &[&[
        must("user", Kind::Text, "The user; may be a secret."),
        must("password", Kind::Secret, "`${secrets.NAME}`."),
    ]],
    choices: &[],
};

pub(super) static RATE_LIMIT: Shape = Shape {
    name: "rate_limit",
    doc: "How fast it may go.",
    fields: &[&[
        must("per_integration", Kind::Rate, "How many calls in what time, such as `5/min`."),
        may("jitter", Kind::Spread, "A pause before each call, such as `200-600ms`."),
    ]],
    choices: &[],
};

pub(super) static BREAKER: Shape = Shape {
    name: "breaker",
    doc: "When a partner is left alone, and for how long.",
    fields: &[&[
        may("errors_percent", Kind::Int { min: 1, max: 100 }, "From this share of failed calls on; 50 if not given."),
        may("window", span(SECOND), "Of the calls of so long; 30s if not given."),
        may("min_calls", Kind::Int { min: 1, max: 1_000_000 }, "With fewer nothing is concluded; 20 if not given."),
        may("open_for", span(SECOND), "How long it is left alone before a probe; 30s if not given."),
        may("probes", Kind::Int { min: 1, max: 1_000 }, "How many probes in a row must succeed; 3 if not given."),
    ]],
    choices: &[],
};
