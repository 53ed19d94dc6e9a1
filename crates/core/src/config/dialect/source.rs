//! Those it hears.

use super::*;

pub(super) const FIND_BY: &str =
    "What an event is found by, besides its key: a customer's email, an order's number. Kept as a keyed hash of each.";

pub(super) static SOURCE: Shape = Shape {
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
            may("silence", span(SECOND), "It sends something at least so often; an alert tells when it does not."),
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
pub(in crate::config) static EDGE: &[Field] = &[
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
    may("trace", Kind::Map(&TRACE), "What is done with the trace that the sender is in."),
];

pub(super) const EDGE_CHOICES: &[Choose] = &[
    Choose {
        keys: &["secret", "secrets"],
        need: Need::Optional,
        none: "",
        two: "both are what the sender signs with",
        help: "",
    },
    Choose { keys: &["type", "type_from"], need: Need::Optional, none: "", two: "both are the type", help: "" },
];

pub(super) static TRACE: Shape = Shape {
    name: "trace",
    doc: "What is done with the trace that the sender is in.",
    fields: &[&[may(
        "incoming",
        Kind::Choice(&["link", "continue", "ignore"]),
        "link: the event has a trace of its own, linked to the sender's; continue: it is in the sender's, which needs `verify`; link if not given.",
    )]],
    choices: &[],
};

pub(super) static HMAC: Shape = Shape {
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

pub(super) static DATED_SECRET: Shape = Shape {
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

pub(super) static LIMITS: Shape = Shape {
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

pub(super) static CLOUDEVENTS: Shape = Shape {
    name: "cloudevents",
    doc: "CloudEvents beyond single ones, which are always read.",
    fields: &[&[
        may("batches", Kind::Bool, "Whether one request may carry several; false if not given."),
        may("origins", Kind::List(&Kind::Text), "Who is told, when it asks with OPTIONS, that it may deliver."),
    ]],
    choices: &[],
};
