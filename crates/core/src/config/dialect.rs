//! The dialect as data: every file of a workspace, every key in it, what it takes and what it is for. What later
//! versions will run is here too, so that it loads today and is refused by name.

use super::shape::{Choose, Field, Kind, Need, Shape};
use crate::approval::NEED_MAX;
use crate::budget::UNITS_MAX;
use crate::dedup::BUCKET_MINUTES_MAX;
use crate::flow::{BODY_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN};
use crate::policy::CAP_MAX;
use crate::script::{MEMORY_MAX, MEMORY_MIN};
use crate::signature::settings::KNOWN;
use crate::worker::{CONCURRENCY_MAX, PULL_MAX};
use std::time::Duration;

const fn must(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, need: Need::Required, doc }
}

const fn may(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, need: Need::Optional, doc }
}

const fn span(min: Duration) -> Kind {
    Kind::Duration { min }
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

pub(super) const METHODS_IN: &[&str] = &["POST", "PUT", "PATCH"];
pub(super) const METHODS_OUT: &[&str] = &["POST", "GET", "PUT", "PATCH", "DELETE"];
pub(super) const STRATEGIES: &[&str] = &["exponential", "linear", "fixed"];
pub(super) const JITTERS: &[&str] = &["full", "equal", "none"];
pub(super) const IDEMPOTENCIES: &[&str] = &["header", "lookup", "natural", "none", "wrap"];
pub(super) const STRICTNESS: &[&str] = &["none", "possible", "valid"];
pub(super) const ON_UNKNOWN: &[&str] = &["ask", "retry"];
pub(super) const MISSED: &[&str] = &["once", "skip", "all"];
pub(super) const ON_EXPIRY: &[&str] = &["reject", "approve"];
pub(super) const ISOLATIONS: &[&str] = &["warm", "process"];
pub(super) const ATTEMPTS_MAX: i64 = 10_000;
const BASE_MS_MAX: i64 = 86_400_000;
/// 3650 days.
const TTL_SECONDS_MAX: i64 = 315_360_000;
const MULTIPLIER_MAX: f64 = 1_000.0;

const VERSION: &[Field] = &[may("version", Kind::Int { min: 1, max: 1 }, "The version of the dialect: 1.")];

pub(super) static SETTINGS: Shape = Shape {
    name: "settings_file",
    doc: "`clinch.yml`: the listeners, which flags of `clinch serve` win over, their certificates and bounds, encryption, shared key stores, and sources.",
    fields: &[
        VERSION,
        &[
            may("listen", Kind::Address, "Where deliveries come in; 127.0.0.1:7400 if not given."),
            may("admin", Kind::Address, "Console, API, metrics and health; 127.0.0.1:7401 if not given."),
            may("tls", Kind::Map(&TLS), "Deliveries come in over TLS, with this certificate."),
            may(
                "admin_tls",
                Kind::Map(&TLS),
                "Console, API, metrics and health are behind TLS, with this certificate.",
            ),
            may("connections", Kind::Map(&CONNECTIONS), "How many may be connected to each listener at once."),
            may(
                "encryption",
                Kind::Or(&Kind::Choice(&["none"]), &Kind::Map(&ENCRYPTION)),
                "The keys of the store, or `none`; with an embedded store, a key file that clinch makes if not given.",
            ),
            may("kv", Kind::Named(&KV), "Key stores that installations share, by the name after `kv:`."),
            may("masking", Kind::Map(&MASKING), "What people and logs do not get to see, besides the usual."),
            may("sources", Kind::Named(&SOURCE), "Who sends, by a name that flows say after `source:`."),
            may("egress", Kind::Map(&EGRESS), "Where steps may call, besides the open network."),
            may(
                "integrations",
                Kind::Named(&INTEGRATION),
                "Who is called, by a name that steps say after `integration:`.",
            ),
            may(
                "messaging",
                Kind::Renames,
                "Which integration carries a message that names none: by channel, such as `email: mail`.",
            ),
            may("safe_mode", Kind::Map(&SAFE_MODE), "What still leaves in safe mode, and what turns it on."),
            may("approvals", Kind::Map(&APPROVALS), "How people decide what waits for approval, besides API and CLI."),
            may("console", Kind::Map(&CONSOLE), "The pages for people, which are where the API is."),
        ],
    ],
    choices: &[],
};

static CONSOLE: Shape = Shape {
    name: "console",
    doc: "The console: by which names it may be called.",
    fields: &[&[may(
        "hosts",
        Kind::List(&Kind::Text),
        "Names that browsers call it by, with the port if there is one; its own address and localhost are known.",
    )]],
    choices: &[],
};

static SAFE_MODE: Shape = Shape {
    name: "safe_mode",
    doc: "What still leaves while safe mode is on, how what waited is let go, and what turns it on without a person.",
    fields: &[&[
        may(
            "hold",
            Kind::Bool,
            "Whether messages, and calls of integrations of class create or monetary, wait; true if not given.",
        ),
        may(
            "templates",
            Kind::Renames,
            "Templates, and the safer one that is used instead; such a message does not wait.",
        ),
        may("cap", Kind::Map(&SAFE_CAP), "How many messages one contact gets, of those that do not wait."),
        may("max_age", span(SECOND), "What has waited longer ends as a noop, reason too_old."),
        may("drain", Kind::Rate, "How fast what waited is let go; 20/s if not given."),
        may("trip", Kind::Map(&SAFE_TRIP), "What turns it on without a person."),
    ]],
    choices: &[],
};

static SAFE_CAP: Shape = Shape {
    name: "safe_cap",
    doc: "How many messages one contact gets while safe mode is on.",
    fields: &[&[
        must("max", Kind::Int { min: 1, max: 1_000_000 }, "So many."),
        must("per", span(SECOND), "In such a time."),
    ]],
    choices: &[],
};

static SAFE_TRIP: Shape = Shape {
    name: "safe_trip",
    doc: "What turns safe mode on without a person.",
    fields: &[&[
        may(
            "circuits",
            Kind::Or(&Kind::Choice(&["any"]), &Kind::List(&Kind::Name)),
            "The circuit of an integration opens: of `any`, or of those that are named.",
        ),
        may("errors", Kind::Map(&SAFE_ERRORS), "A share of the calls of an integration fails."),
        may(
            "scope",
            Kind::Choice(&["integration", "all"]),
            "For the integration alone, or for all; integration if not given.",
        ),
        may("for", span(SECOND), "It ends by itself after so long; if not given, when a person says so."),
    ]],
    choices: &[],
};

static SAFE_ERRORS: Shape = Shape {
    name: "safe_errors",
    doc: "When too many calls of an integration fail.",
    fields: &[&[
        may("percent", Kind::Int { min: 1, max: 100 }, "From this share on; 50 if not given."),
        may("window", span(SECOND), "Of the calls of so long; 5m if not given."),
        may("min_calls", Kind::Int { min: 1, max: 1_000_000 }, "With fewer nothing is concluded; 20 if not given."),
    ]],
    choices: &[],
};

static APPROVALS: Shape = Shape {
    name: "approvals",
    doc: "How people decide what waits for approval, besides API and command line.",
    fields: &[&[must("slack", Kind::Map(&SLACK_BUTTONS), "Buttons in Slack; its request URL is `/slack/actions`.")]],
    choices: &[],
};

static SLACK_BUTTONS: Shape = Shape {
    name: "slack_buttons",
    doc: "Who presses a button in Slack is recognised by the signing secret of the app and by the user's id.",
    fields: &[&[
        must("signing_secret", Kind::Secret, "The signing secret of the Slack app: `${secrets.NAME}`."),
        must("users", Kind::Renames, "Names of people, by the id of their Slack user: `U0123456789: maya`."),
    ]],
    choices: &[],
};

static MASKING: Shape = Shape {
    name: "masking",
    doc: "What is hidden in logs, errors, API and command line, besides what always is. What is stored is another matter.",
    fields: &[&[
        may("fields", Kind::List(&Kind::Text), "Names of fields that show nothing: `crm_id`, `*note*`."),
        may("pointers", Kind::List(&Kind::Pointer), "Places in a body that show nothing, with all below them."),
        may("addresses", Kind::Bool, "Whether IP addresses are hidden in free text too; false if not given."),
    ]],
    choices: &[],
};

static TLS: Shape = Shape {
    name: "tls",
    doc: "A certificate and its key, from files below the workspace or by a whole path; read again when they change.",
    fields: &[&[
        must("cert", Kind::Text, "The certificate and its chain, as PEM."),
        must("key", Kind::Text, "The private key, as PEM, which others may not read."),
    ]],
    choices: &[],
};

static CONNECTIONS: Shape = Shape {
    name: "connections",
    doc: "How many may be connected to each listener at once. Who finds no place is turned away and never waits.",
    fields: &[&[
        may("max", Kind::Int { min: 1, max: 1_000_000 }, "All together; 4096 if not given."),
        may(
            "per_address",
            Kind::Int { min: 1, max: 1_000_000 },
            "From one address; 64 if not given, and then this machine itself is not counted. Behind a proxy, which is one address, as much as `max`.",
        ),
    ]],
    choices: &[],
};

static ENCRYPTION: Shape = Shape {
    name: "encryption",
    doc: "What payloads, results and errors are encrypted with: 32 bytes in hex or base64 (`openssl rand -hex 32`).",
    fields: &[&[
        may("key", Kind::Secret, "Everything is written with it: `${secrets.NAME}`."),
        may("older", Kind::List(&Kind::Secret), "Keys that are only read with, each as `${secrets.NAME}`."),
        may("file", Kind::Text, "A key file that is not beside the store: one key per line, the first writes."),
    ]],
    choices: &[
        Choose {
            keys: &["key", "file"],
            need: Need::Required,
            none: "there is no key",
            two: "keys come from secrets or from a file",
            help: "write `key: ${secrets.NAME}`, or `encryption: none`",
        },
        Choose { keys: &["older", "file"], need: Need::Optional, none: "", two: "the file holds older keys", help: "" },
    ],
};

static KV: Shape = Shape {
    name: "key_store",
    doc: "A Redis in which several installations tell each other which keys they have seen.",
    fields: &[&[
        must("url", Kind::RedisUrl, "redis:// or rediss:// (TLS); a password is a secret: `${secrets.NAME}`."),
        may("pepper", Kind::Secret, "The secret that keys are hashed under, the same everywhere: `${secrets.NAME}`."),
        may("prefix", Kind::Name, "Its keys begin with `clinch:PREFIX:`; the store's name if not given."),
    ]],
    choices: &[],
};

static EGRESS: Shape = Shape {
    name: "egress",
    doc: "Where steps may call, besides the open network over TLS at port 443.",
    fields: &[&[may(
        "allow",
        Kind::List(&Kind::Place),
        "Hosts and networks that are inside, or are called without TLS or at another port.",
    )]],
    choices: &[],
};

static INTEGRATION: Shape = Shape {
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
            may("class", Kind::Choice(super::integration::CLASSES), "What its effects are; create if not given."),
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

static MESSAGE: Shape = Shape {
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
const PROMISE: &[Field] = &[
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

static LOOKUP: Shape = Shape {
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

static AUTH: Shape = Shape {
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

static BASIC: Shape = Shape {
    name: "basic_auth",
    doc: "A user and a password.",
    fields: &[&[
        must("user", Kind::Text, "The user; may be a secret."),
        must("password", Kind::Secret, "`${secrets.NAME}`."),
    ]],
    choices: &[],
};

static RATE_LIMIT: Shape = Shape {
    name: "rate_limit",
    doc: "How fast it may go.",
    fields: &[&[
        must("per_integration", Kind::Rate, "How many calls in what time, such as `5/min`."),
        may("jitter", Kind::Spread, "A pause before each call, such as `200-600ms`."),
    ]],
    choices: &[],
};

static BREAKER: Shape = Shape {
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

const FIND_BY: &str =
    "What an event is found by, besides its key: a customer's email, an order's number. Kept as a keyed hash of each.";

static SOURCE: Shape = Shape {
    name: "source",
    doc: "Who sends, how that is proven, and what of a request becomes an event.",
    fields: &[
        &[may("path", Kind::Path, "Begins with `/`, matched whole; `/in/NAME` if not given.")],
        EDGE,
        &[
            may(
                "body_max",
                Kind::Size { min: 1, max: BODY_BYTES_MAX },
                "The largest body; 1MiB if not given, 10MiB at most.",
            ),
            may("tenant_from", Kind::KeyPart, "Whose event it is: `header:NAME` or `body:/json/pointer`."),
            may("find_by", Kind::KeyRule, FIND_BY),
            may(
                "store",
                Kind::Prefixed("kv:"),
                "`kv:NAME`: the Redis of this name above; if there is none, the installation's own store.",
            ),
            may(
                "on_conflict",
                Kind::Choice(&["keep_first", "reject"]),
                "Same key, other body; keep_first if not given, and reject with `verify: none`.",
            ),
            may(
                "on_duplicate_of_dead",
                Kind::Choice(&["keep", "replay"]),
                "The first is a dead letter; keep if not given.",
            ),
        ],
    ],
    choices: EDGE_CHOICES,
};

/// What a route says when it is to know its sender.
pub(super) static EDGE: &[Field] = &[
    may(
        "verify",
        Kind::Or(&Kind::Verify, &Kind::Map(&HMAC)),
        "The sender's preset (`clinch presets ls`), `sender` for tokens of `clinch token new`, `none`, or the settings of an HMAC.",
    ),
    may("secret", Kind::Secret, "What the sender signs with: `${secrets.NAME}`."),
    may(
        "secrets",
        Kind::List(&Kind::Or(&Kind::Secret, &Kind::Map(&DATED_SECRET))),
        "Several, while one replaces another; 5 at most.",
    ),
    may("verify_token", Kind::Secret, "The word that Meta asks with before it delivers: `${secrets.NAME}`."),
    may("public_url", Kind::PublicUrl, "The address that the sender calls, where it signs it."),
    may("tolerance", span(SECOND), "How old or how far ahead a signature may be; the preset's if not given."),
    may("key_from", Kind::KeyRule, "What recognises an event; the preset's id if not given."),
    may("ttl", span(SECOND), "How long a key is remembered; 7d if not given, or as long as the sender tries."),
    may("ack", Kind::Int { min: 200, max: 299 }, "The status of a success; the preset's if not given."),
    may("type", Kind::Name, "The type of every event."),
    may("type_from", Kind::KeyPart, "Where the type is; where the preset looks if not given."),
    may("types", Kind::Renames, "The sender's words for types, and ours."),
    may(
        "schema",
        Kind::Or(&Kind::Name, &Kind::Renames),
        "`NAME` of `schemas/NAME.json`, or a map from types (`shopify.*`) to names.",
    ),
    may(
        "on_mismatch",
        Kind::Choice(&["reject", "dead_letter"]),
        "An event that breaks its schema; dead_letter if not given, and reject with `verify: none`.",
    ),
    may("keep", Kind::List(&Kind::Pointer), "The only fields that are stored."),
    may("drop", Kind::List(&Kind::Pointer), "Fields that are never stored."),
    may("hash", Kind::List(&Kind::Pointer), "Fields of which a keyed hash is stored."),
    may("headers", Kind::List(&Kind::Text), "The only headers that are stored; the usual ones if not given."),
    may("limits", Kind::Map(&LIMITS), "How much may come."),
    may(
        "content",
        Kind::Choice(&["json", "raw"]),
        "raw: any bytes, kept as they came; json if not given, or what the preset turns into JSON.",
    ),
    may(
        "accept_encoding",
        Kind::List(&Kind::Choice(&["gzip"])),
        "How bodies may be compressed, such as [gzip]; not at all if not given.",
    ),
    may(
        "same_body",
        Kind::Choice(&["count", "drop"]),
        "The same body under another id, where the sender does not sign the id: counted, or a duplicate; count if not given.",
    ),
    may("cloudevents", Kind::Map(&CLOUDEVENTS), "CloudEvents beyond single ones, which are always read."),
];

const EDGE_CHOICES: &[Choose] = &[
    Choose {
        keys: &["secret", "secrets"],
        need: Need::Optional,
        none: "",
        two: "both are what the sender signs with",
        help: "",
    },
    Choose { keys: &["type", "type_from"], need: Need::Optional, none: "", two: "both are the type", help: "" },
];

static HMAC: Shape = Shape {
    name: "hmac",
    doc: "How any other sender signs.",
    fields: &[&[
        must(KNOWN[0].0, Kind::Text, KNOWN[0].1),
        may(KNOWN[1].0, Kind::Text, KNOWN[1].1),
        may(KNOWN[2].0, Kind::Text, KNOWN[2].1),
        may(KNOWN[3].0, Kind::Text, KNOWN[3].1),
        may(KNOWN[4].0, Kind::Text, KNOWN[4].1),
        may(KNOWN[5].0, Kind::Text, KNOWN[5].1),
        may(KNOWN[6].0, Kind::Text, KNOWN[6].1),
        may(KNOWN[7].0, Kind::Text, KNOWN[7].1),
        may(KNOWN[8].0, Kind::Text, KNOWN[8].1),
        may(KNOWN[9].0, Kind::Text, KNOWN[9].1),
        may(KNOWN[10].0, Kind::Text, KNOWN[10].1),
    ]],
    choices: &[],
};

static DATED_SECRET: Shape = Shape {
    name: "dated_secret",
    doc: "A secret and when it counts.",
    fields: &[&[
        must("secret", Kind::Secret, "`${secrets.NAME}`."),
        may("id", Kind::Name, "What metrics call it; the name of the variable if not given."),
        may("not_before", Kind::Moment, "It counts from then on, such as 2026-08-01T00:00:00Z."),
        may("not_after", Kind::Moment, "It counts until then."),
    ]],
    choices: &[],
};

static LIMITS: Shape = Shape {
    name: "limits",
    doc: "How much may come.",
    fields: &[&[
        may("address", Kind::Rate, "From one address, before anything is verified, such as `100/s`."),
        may("sender", Kind::Rate, "From each sender, with `verify: sender`, counting only what was verified."),
        may("source", Kind::Rate, "From the source, counting only what was verified."),
        may("mode", Kind::Choice(&["reject", "defer"]), "429, or accepted to be run later; reject if not given."),
    ]],
    choices: &[],
};

static CLOUDEVENTS: Shape = Shape {
    name: "cloudevents",
    doc: "CloudEvents beyond single ones, which are always read.",
    fields: &[&[
        may("batches", Kind::Bool, "Whether one request may carry several; false if not given."),
        may("origins", Kind::List(&Kind::Text), "Who is told, when it asks with OPTIONS, that it may deliver."),
    ]],
    choices: &[],
};

pub(super) static QUEUES: Shape = Shape {
    name: "queues_file",
    doc: "`queues.yml`: the queues, dead letter queues among them.",
    fields: &[VERSION, &[must("queues", Kind::List(&Kind::Map(&QUEUE)), "The queues.")]],
    choices: &[],
};

static QUEUE: Shape = Shape {
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

const PRIORITIES: Kind = Kind::Int { min: PRIORITY_MIN as i64, max: PRIORITY_MAX as i64 };

/// Where a job stands among the others. A step's word wins over its queue's.
const PLACE: &[Field] = &[
    may(
        "group_from",
        Kind::KeyRule,
        "Whose job it is: `header:NAME`, `body:/json/pointer`, `{{ … }}` of the body, or a list.",
    ),
    may("priority", PRIORITIES, "The highest goes first, from -100 to 100; 0 if not given."),
    may("delay", span(Duration::ZERO), "How long a job waits before it may run; 0s if not given."),
];

pub(super) static POLICIES: Shape = Shape {
    name: "policies_file",
    doc: "`policies.yml`: what must be so before something is done to a contact that cannot be taken back.",
    fields: &[VERSION, &[must("policies", Kind::Named(&POLICY), "The policies, by a name of their own.")]],
    choices: &[],
};

static POLICY: Shape = Shape {
    name: "policy",
    doc: "What must be so before something is done to a contact that cannot be taken back.",
    fields: &[&[
        may("channels", Kind::List(&Kind::Name), "What goes over these channels is under it, such as [email, sms]."),
        may("integrations", Kind::List(&Kind::Name), "What goes to these integrations is under it."),
        may(
            "contact",
            Kind::Template,
            "Who is counted, such as \"{{ body.customer.id }}\"; needed with `frequency`. Only a hash of it is kept.",
        ),
        may(
            "consent",
            Kind::Or(&Kind::Expr, &Kind::Map(&CONSENT)),
            "True when the contact has agreed, such as `step.channel in body.consents`; or a question to a partner.",
        ),
        may(
            "time_zone",
            Kind::ZoneOfContact,
            "Where the contact is: `Europe/Berlin`, or a template that becomes such a name; UTC if not given.",
        ),
        may("frequency", Kind::List(&Kind::Map(&CAP)), "How many one contact may get in what time."),
        may("quiet_hours", Kind::Map(&QUIET), "When nobody is disturbed, in the time of the contact."),
    ]],
    choices: &[],
};

static CONSENT: Shape = Shape {
    name: "consent",
    doc: "A question to a partner who knows whether the contact has agreed.",
    fields: &[&[
        must("integration", Kind::Name, "The integration of `clinch.yml` that is asked."),
        may("method", Kind::Choice(METHODS_OUT), "GET if not given."),
        must("url", Kind::UrlOrPath, "http://, https://, or a path of the integration; may have templates."),
        may("headers", Kind::Headers, "Names and values; values may have templates."),
        may("timeout", span(MILLISECOND), "How long it may take; 30s if not given."),
        must("given", Kind::AnswerExpr, "True when `answer.status` and `answer.body` say that the contact has agreed."),
    ]],
    choices: &[],
};

static CAP: Shape = Shape {
    name: "cap",
    doc: "So many in such a time, of one contact.",
    fields: &[&[
        must("max", Kind::Int { min: 1, max: CAP_MAX as i64 }, "How many."),
        must("per", Kind::Window, "`day` for a day of the contact, or the last so long, such as `7d`."),
        may("channel", Kind::Name, "Only what goes over this channel; all together if not given."),
    ]],
    choices: &[],
};

static QUIET: Shape = Shape {
    name: "quiet_hours",
    doc: "When nobody is disturbed, in the time of the contact.",
    fields: &[&[
        must("from", Kind::Hour, "From then on, such as `\"21:00\"`."),
        must("to", Kind::Hour, "Until then, such as `\"08:00\"`; earlier than `from` means the next day."),
        may(
            "then",
            Kind::Choice(&["wait", "decline"]),
            "What becomes of a job: it waits until they are over, or ends without it; wait if not given.",
        ),
    ]],
    choices: &[],
};

pub(super) static FLOW: Shape = Shape {
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

static TRIGGER: Shape = Shape {
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

static HTTP_TRIGGER: Shape = Shape {
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

static DEDUP: Shape = Shape {
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

static RESPONSES: Shape = Shape {
    name: "answer",
    doc: "What the sender is answered.",
    fields: &[&[
        may("deduplicated_from", Kind::Choice(&["idempotency"]), "Duplicates get the first answer again."),
        may("success_from", Kind::Prefixed("step:"), "The step whose success is answered, `step:NAME`."),
        may("status", Kind::Int { min: 200, max: 299 }, "The status of a success; 202 if not given."),
    ]],
    choices: &[],
};

static FLOW_STEP: Shape = Shape {
    name: "flow_step",
    doc: "A step at the edge: put the delivery into a queue.",
    fields: &[STEP_NAME, &[may("queue", Kind::Map(&ENQUEUE), "The queue that gets a job.")], IN_WORKERS, SCRIPT, NAMED],
    choices: &[NAME_CHOICE, one_action("add `queue:` and below it `name: QUEUE`")],
};

static ENQUEUE: Shape = Shape {
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

pub(super) static PLAYBOOK: Shape = Shape {
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

pub(super) static WORKER: Shape = Shape {
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

static CONSUMES: Shape = Shape {
    name: "consumer",
    doc: "The queue whose jobs it runs.",
    fields: &[&[must("queue", Kind::Name, "A queue of `queues.yml`.")]],
    choices: &[],
};

static SCHEDULE: Shape = Shape {
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

static RETRY: Shape = Shape {
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

static BUDGET: Shape = Shape {
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

static WORKER_STEP: Shape = Shape {
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
const UNDER: &[Field] = &[may(
    "policies",
    Kind::List(&Kind::Name),
    "Policies of `policies.yml` that it is under, besides those of its channel and its integration.",
)];

const ONE_REQUEST: &str = "add `http:` and below it `url: https://…`";

static BRANCH: Shape = Shape {
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

static BRANCH_STEP: Shape = Shape {
    name: "branch_step",
    doc: "One thing that a branch does.",
    fields: INSIDE,
    choices: &[NAME_CHOICE, one_action(ONE_REQUEST)],
};

/// What a step inside a branch may have.
const INSIDE: &[&[Field]] = &[
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

const COMPENSATE: &[Field] =
    &[may("compensate", Kind::Map(&COMPENSATION), "Undoes it when the job ends for good after it was done.")];

static COMPENSATION: Shape = Shape {
    name: "compensation",
    doc: "What undoes a step: an action, spelt as that of a step. It may read the step's own output.",
    fields: &[
        &[
            may("http", Kind::Map(&HTTP_ACTION), "A request to a target."),
            may("sql", Kind::Map(&SQL), "A statement for a database, run once."),
        ],
        SCRIPT,
    ],
    choices: &[Choose {
        keys: &["http", "sql", "uses"],
        need: Need::Required,
        none: "this undoes nothing",
        two: "one thing undoes a step",
        help: ONE_REQUEST,
    }],
};

static HTTP_ACTION: Shape = Shape {
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
static KINDS: &[Field] = &[
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
const PER_ITEM: &[Field] = &[
    may("foreach", Kind::ListExpr, "Runs the step once for each of a list, which it reads as `item`; 1,000 at most."),
    may("rate_limit", Kind::Map(&RATE_LIMIT), "How fast the runs of `foreach` follow each other."),
];

static REQUEUE: Shape = Shape {
    name: "requeue_step",
    doc: "A job for a queue. A dead letter that `queue_pull` read goes back into its queue as it is, under its old key.",
    fields: &[&[
        must("name", Kind::Name, "A queue of `queues.yml`."),
        may("body_from", Kind::Expr, "What the job carries; the event's body if not given."),
        may("key_from", Kind::Expr, "The key that recognises it; the step's own if not given."),
    ]],
    choices: &[],
};

static PULL: Shape = Shape {
    name: "queue_pull_step",
    doc: "Reads dead letters, those that wait longest first. Those that only a person can decide about are left out.",
    fields: &[&[
        must("from", Kind::Name, "The dead letter queue, or the queue if its worker names none."),
        may("max_messages", Kind::Int { min: 1, max: PULL_MAX as i64 }, "At most so many; 10 if not given."),
    ]],
    choices: &[],
};

/// Workers run these; the edge does not.
const IN_WORKERS: &[Field] = &[
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

static VALIDATE: Shape = Shape {
    name: "validate_step",
    doc: "Holds a value against a schema; what breaks it is a dead letter.",
    fields: &[&[
        must("schema", Kind::Name, "`NAME` of `schemas/NAME.json`."),
        may("from", Kind::Expr, "The value; `body` if not given."),
    ]],
    choices: &[],
};

static ENRICH: Shape = Shape {
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

static PHONE: Shape = Shape {
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

static GEOIP: Shape = Shape {
    name: "geoip",
    doc: "What a MaxMind database says of an IP address; null if it does not know it.",
    fields: &[&[
        must("from", Kind::Expr, "The address."),
        must("database", Kind::File(".mmdb"), "The file, relative to the workspace."),
    ]],
    choices: &[],
};

static DELAY: Shape = Shape {
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

static DEDUP_KEY: Shape = Shape {
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

static NORMALISE: Shape = Shape {
    name: "normalise",
    doc: "Fields whose spelling does not matter.",
    fields: &[&[
        may("email", Kind::List(&Kind::Text), "Fields that are mail addresses: their case does not matter."),
        may("phone", Kind::List(&Kind::Text), "Fields that are phone numbers, as people write them."),
        may("country", Kind::Country, "Where numbers without `+` are, such as `DE`."),
    ]],
    choices: &[],
};

static SETNX: Shape = Shape {
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

static SQL: Shape = Shape {
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

static SEND: Shape = Shape {
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

static ASK: Shape = Shape {
    name: "policy_step",
    doc: "Asks whether a policy would allow it, and counts nothing. Its output: `allowed`, and if not `rule`, `fact` and `reason`.",
    fields: &[&[
        must("use", Kind::Name, "A policy of `policies.yml`."),
        may("channel", Kind::Name, "Over which channel it would go; none if not given."),
    ]],
    choices: &[],
};

static APPROVAL: Shape = Shape {
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

static APPROVAL_SLACK: Shape = Shape {
    name: "approval_channel",
    doc: "A channel of Slack where people are asked.",
    fields: &[&[
        must("integration", Kind::Name, "The integration of `clinch.yml` with `message: slack`."),
        must("channel", Kind::Text, "The channel, such as `C0123456789` or `#approvals`."),
    ]],
    choices: &[],
};

const STEP_NAME: &[Field] = &[
    may("name", Kind::Name, "Unique among the steps of its file."),
    may("id", Kind::Name, "The same as `name`."),
    may("if", Kind::Expr, "The step runs only when this is true; put it in quotes."),
];

/// Of these a step has exactly one.
pub(super) const ACTIONS: &[&str] = match OF_BRANCHES.split_last() {
    Some((_, actions)) => actions,
    None => &[],
};

/// Of these a branch has exactly one: an action, or steps.
const OF_BRANCHES: &[&str] = &[
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
pub(super) const NAMED_ACTIONS: &[(&str, &str)] = &[
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
pub(super) const MODIFIERS: &[&str] = &["foreach", "rate_limit"];

/// These say more about `uses` and `run`.
pub(super) const DETAILS: &[&str] = &["with", "env", "script", "on_unknown", "timeout", "memory", "isolation"];

/// A script and what it may do.
const SCRIPT: &[Field] = &[
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

const NAMED: &[Field] = &[
    may("run", Kind::NamedAction, "An action by its name, such as `store.setnx`: another spelling of `setnx:`."),
    may("with", Kind::Tree, "With `run`: what the action is given, as below its short form."),
];

const NAME_CHOICE: Choose = Choose {
    keys: &["name", "id"],
    need: Need::Required,
    none: "this step has no name",
    two: "both are the name of the step",
    help: "add `name: NAME`",
};

const fn one_action(help: &'static str) -> Choose {
    Choose { keys: ACTIONS, need: Need::Required, none: "this step does nothing", two: "a step does one thing", help }
}
