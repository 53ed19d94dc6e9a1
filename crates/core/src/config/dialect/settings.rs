//! `clinch.yml`, but for those it calls and those it hears.

use super::*;

pub(in crate::config) static SETTINGS: Shape = Shape {
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
            may("alerts", Kind::Map(&ALERTS), "Who is told when something is wrong, and how much is too much."),
            may("slo", Kind::Map(&SLO), "How soon how many jobs are to end well; 95% within 30s if not given."),
            may("metrics", Kind::Map(&METRICS), "How finely is counted."),
            may("oidc", Kind::Map(&OIDC), "People log in to the console by a provider of identities, too."),
            may("tracing", Kind::Map(&TRACING), "Which collector is told of traces, and what of them."),
        ],
    ],
    choices: &[],
};

pub(super) static CONSOLE: Shape = Shape {
    name: "console",
    doc: "The console: by which names it may be called.",
    fields: &[&[may(
        "hosts",
        Kind::List(&Kind::Text),
        "Names that browsers call it by, with the port if there is one; its own address and localhost are known.",
    )]],
    choices: &[],
};

pub(super) static SLO: Shape = Shape {
    name: "slo",
    doc: "The objective of jobs, from acceptance to the end. A dead letter misses it.",
    fields: &[&[
        may("end_to_end", span(MILLISECOND), "A job that ends well within this time meets it; 30s if not given."),
        may("target", Kind::Share, "The share of jobs that is to meet it; 95% if not given."),
    ]],
    choices: &[],
};

pub(super) static OIDC: Shape = Shape {
    name: "oidc",
    doc: "A provider of identities (OpenID Connect) by which people log in, and who they are then. Its redirect URI is `/login/oidc/callback` of the console.",
    fields: &[&[
        must("issuer", Kind::Url, "The provider, exactly as its discovery document names it."),
        must("client_id", Kind::Text, "What clinch is called there."),
        may("client_secret", Kind::Secret, "Its secret there: `${secrets.NAME}`; none for a public client."),
        may(
            "url",
            Kind::Url,
            "Where browsers find the console, such as `https://clinch.example.com`; how they called it if not given.",
        ),
        may("scopes", Kind::List(&Kind::Text), "What is asked for besides `openid`; profile and email if not given."),
        may("domains", Kind::List(&Kind::Text), "Only people with a verified address of one of these are let in."),
        may("name", Kind::Text, "The claim that new users are called by; preferred_username if not given."),
        may(
            "roles",
            Kind::Map(&OIDC_ROLES),
            "Which role a claim gives. Without one, only those of `users` are let in.",
        ),
        may(
            "users",
            Kind::Renames,
            "Users that were added, by the subject or the verified address of who is one: `maya@example.com: maya`.",
        ),
    ]],
    choices: &[],
};

pub(super) static METRICS: Shape = Shape {
    name: "metrics",
    doc: "How finely is counted.",
    fields: &[&[may(
        "per_step",
        Kind::Bool,
        "Whether each step has metrics of its own: with many steps these are most of all series. True if not given.",
    )]],
    choices: &[],
};

pub(super) static OIDC_ROLES: Shape = Shape {
    name: "oidc_roles",
    doc: "Which role a claim gives.",
    fields: &[&[
        must("claim", Kind::Text, "The claim: a text or a list of them; `a.b` is `b` in `a`."),
        must("map", Kind::Renames, "Roles by what is in the claim: `ops: operator`. The first line that fits counts."),
    ]],
    choices: &[],
};

pub(super) static TRACING: Shape = Shape {
    name: "tracing",
    doc: "Which OpenTelemetry collector is told of traces, and what of them.",
    fields: &[&[
        may(
            "endpoint",
            Kind::Endpoint,
            "Where the collector is, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_ENDPOINT if not given, and without both nothing is sent.",
        ),
        may("protocol", Kind::Choice(&["http", "grpc"]), "OTLP over HTTP, or over gRPC; http if not given."),
        may("headers", Kind::SecretHeaders, "Sent to the collector; values may have secrets."),
        may("service", Kind::Name, "What the collector calls this installation; clinch if not given."),
        may(
            "sample",
            Kind::Number { min: 0.0, max: 1.0 },
            "Which share of traces is sent; 1 if not given. Attempts that fail are always sent.",
        ),
        may(
            "attributes",
            Kind::Attributes,
            "What attempts tell of the business: names, and templates that read the event.",
        ),
        may("personal", Kind::Attributes, "The same for what is somebody's own: a keyed hash is sent instead."),
    ]],
    choices: &[],
};

pub(super) static ALERTS: Shape = Shape {
    name: "alerts",
    doc: "Alerts, which clinch judges by itself: over which channels people are told, and what is too much.",
    fields: &[&[
        may("console", Kind::PublicUrl, "Where people find the console, for links; its own address if not given."),
        may("repeat", span(SECOND), "An alert that lasts is told again after so long; 4h if not given."),
        may("off", Kind::List(&Kind::Text), "Rules that are not judged, such as `ClinchQueueDeep`."),
        may("rules", Kind::Named(&ALERT_RULE), "What is said of rules, by their names (`clinch alerts rules`)."),
        may("channels", Kind::Named(&ALERT_CHANNEL), "Where people are told, by a name that routes say."),
        may(
            "routes",
            Kind::Map(&ALERT_ROUTES),
            "Which channels are told what; critical and warning to all if not given.",
        ),
    ]],
    choices: &[],
};

pub(super) static ALERT_RULE: Shape = Shape {
    name: "alert_rule",
    doc: "What is said of one rule.",
    fields: &[&[
        may(
            "limit",
            Kind::Tree,
            "What is more than this is too much: a number, `5%`, `10m`, `2GiB`, as the rule counts.",
        ),
        may("for", span(Duration::ZERO), "How long it must be so before it is said."),
        may("severity", Kind::Choice(SEVERITIES), "How bad it is; as the rule says if not given."),
    ]],
    choices: &[],
};

pub(super) static ALERT_CHANNEL: Shape = Shape {
    name: "alert_channel",
    doc: "Where people are told: one of `slack`, `integration`, `webhook`, `pagerduty`.",
    fields: &[&[
        may("slack", Kind::Secret, "The address of an incoming webhook of Slack: `${secrets.NAME}`."),
        may("integration", Kind::Name, "An integration with `smtp`, or with `message: slack`."),
        may(
            "to",
            Kind::Or(&Kind::Text, &Kind::List(&Kind::Text)),
            "With `integration`: the channel of Slack, or mail addresses, one or a list.",
        ),
        may("webhook", Kind::Url, "A URL that takes JSON; only secrets are computed in it."),
        may("secret", Kind::Secret, "What a webhook is signed with (Standard Webhooks, `whsec_…`): `${secrets.NAME}`."),
        may("pagerduty", Kind::Secret, "The routing key of PagerDuty, Events API v2: `${secrets.NAME}`."),
        may("url", Kind::PublicUrl, "Where PagerDuty takes events, if not at its usual address."),
    ]],
    choices: &[Choose {
        keys: &["slack", "integration", "webhook", "pagerduty"],
        need: Need::Required,
        none: "it does not say how people are told",
        two: "each is another channel",
        help: "write `slack: ${secrets.NAME}`, `integration: NAME`, `webhook: https://…` or `pagerduty: ${secrets.NAME}`",
    }],
};

pub(super) static ALERT_ROUTES: Shape = Shape {
    name: "alert_routes",
    doc: "Which channels are told of alerts of a severity. What is not named is told to nobody.",
    fields: &[&[
        may("critical", Kind::List(&Kind::Name), "What may wake a person."),
        may("warning", Kind::List(&Kind::Name), "What becomes a ticket."),
        may("info", Kind::List(&Kind::Name), "What is good to know."),
    ]],
    choices: &[],
};

pub(super) static SAFE_MODE: Shape = Shape {
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

pub(super) static SAFE_CAP: Shape = Shape {
    name: "safe_cap",
    doc: "How many messages one contact gets while safe mode is on.",
    fields: &[&[
        must("max", Kind::Int { min: 1, max: 1_000_000 }, "So many."),
        must("per", span(SECOND), "In such a time."),
    ]],
    choices: &[],
};

pub(super) static SAFE_TRIP: Shape = Shape {
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

pub(super) static SAFE_ERRORS: Shape = Shape {
    name: "safe_errors",
    doc: "When too many calls of an integration fail.",
    fields: &[&[
        may("percent", Kind::Int { min: 1, max: 100 }, "From this share on; 50 if not given."),
        may("window", span(SECOND), "Of the calls of so long; 5m if not given."),
        may("min_calls", Kind::Int { min: 1, max: 1_000_000 }, "With fewer nothing is concluded; 20 if not given."),
    ]],
    choices: &[],
};

pub(super) static APPROVALS: Shape = Shape {
    name: "approvals",
    doc: "How people decide what waits for approval, besides API and command line.",
    fields: &[&[must("slack", Kind::Map(&SLACK_BUTTONS), "Buttons in Slack; its request URL is `/slack/actions`.")]],
    choices: &[],
};

pub(super) static SLACK_BUTTONS: Shape = Shape {
    name: "slack_buttons",
    doc: "Who presses a button in Slack is recognised by the signing secret of the app and by the user's id.",
    fields: &[&[
        must("signing_secret", Kind::Secret, "The signing secret of the Slack app: `${secrets.NAME}`."),
        must("users", Kind::Renames, "Names of people, by the id of their Slack user: `U0123456789: maya`."),
    ]],
    choices: &[],
};

pub(super) static MASKING: Shape = Shape {
    name: "masking",
    doc: "What is hidden in logs, errors, API and command line, besides what always is. What is stored is another matter.",
    fields: &[&[
        may("fields", Kind::List(&Kind::Text), "Names of fields that show nothing: `crm_id`, `*note*`."),
        may("pointers", Kind::List(&Kind::Pointer), "Places in a body that show nothing, with all below them."),
        may("addresses", Kind::Bool, "Whether IP addresses are hidden in free text too; false if not given."),
    ]],
    choices: &[],
};

pub(super) static TLS: Shape = Shape {
    name: "tls",
    doc: "A certificate and its key, from files below the workspace or by a whole path; read again when they change.",
    fields: &[&[
        must("cert", Kind::Text, "The certificate and its chain, as PEM."),
        must("key", Kind::Text, "The private key, as PEM, which others may not read."),
    ]],
    choices: &[],
};

pub(super) static CONNECTIONS: Shape = Shape {
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

pub(super) static ENCRYPTION: Shape = Shape {
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

pub(super) static KV: Shape = Shape {
    name: "key_store",
    doc: "A Redis in which several installations tell each other which keys they have seen.",
    fields: &[&[
        must("url", Kind::RedisUrl, "redis:// or rediss:// (TLS); a password is a secret: `${secrets.NAME}`."),
        may("pepper", Kind::Secret, "The secret that keys are hashed under, the same everywhere: `${secrets.NAME}`."),
        may("prefix", Kind::Name, "Its keys begin with `clinch:PREFIX:`; the store's name if not given."),
    ]],
    choices: &[],
};

pub(super) static EGRESS: Shape = Shape {
    name: "egress",
    doc: "Where steps may call, besides the open network over TLS at port 443.",
    fields: &[&[may(
        "allow",
        Kind::List(&Kind::Place),
        "Hosts and networks that are inside, or are called without TLS or at another port.",
    )]],
    choices: &[],
};
