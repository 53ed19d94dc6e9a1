//! `policies.yml`.

use super::*;

pub(in crate::config) static POLICIES: Shape = Shape {
    name: "policies_file",
    doc: "`policies.yml`: what must be so before something is done to a contact that cannot be taken back.",
    fields: &[VERSION, &[must("policies", Kind::Named(&POLICY), "The policies, by a name of their own.")]],
    choices: &[],
};

pub(super) static POLICY: Shape = Shape {
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

pub(super) static CONSENT: Shape = Shape {
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

pub(super) static CAP: Shape = Shape {
    name: "cap",
    doc: "So many in such a time, of one contact.",
    fields: &[&[
        must("max", Kind::Int { min: 1, max: CAP_MAX as i64 }, "How many."),
        must("per", Kind::Window, "`day` for a day of the contact, or the last so long, such as `7d`."),
        may("channel", Kind::Name, "Only what goes over this channel; all together if not given."),
    ]],
    choices: &[],
};

pub(super) static QUIET: Shape = Shape {
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
