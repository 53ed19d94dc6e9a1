//! Workspaces to start from. Their files are in the binary.

/// A workspace, file by file.
pub struct Starter {
    pub name: &'static str,
    /// What it is, in a line.
    pub title: &'static str,
    /// Path, text, and what it is for.
    pub files: &'static [(&'static str, &'static str, &'static str)],
    /// The first event that is sent to it: the arguments of `clinch send`.
    pub first: &'static str,
}

macro_rules! starter {
    ($name:literal, $title:literal, $first:literal, $($path:literal: $about:literal,)+) => {
        Starter {
            name: $name,
            title: $title,
            files: &[
                $(($path, include_str!(concat!("../starters/", $name, "/", $path)), $about),)+
                (".gitignore", include_str!("../starters/gitignore"), "what does not belong into source control"),
            ],
            first: $first,
        }
    };
}

pub static ALL: &[Starter] = &[
    starter!(
        "contact-intake", "contacts over HTTP into a CRM, each once", "contact-intake --fixture contact --key c-1",
        "clinch.yml": "whom it calls",
        "flows/contact-intake.yml": "the door: path, key, answers",
        "workers/contact-upsert.yml": "the work, and how often it is tried",
        "queues.yml": "what is in between, and dead letters",
        "schemas/contact.v1.json": "what a contact looks like",
        "fixtures/contact.json": "a contact to send",
        "fixtures/answers/crm.json": "what the stand-in of the CRM answers",
        "tests/contact-intake.yml": "what must hold, failures included",
        ".env.example": "the secrets that the real partners need",
        "README.md": "how to go on",
    ),
    starter!(
        "cart-recovery", "abandoned carts into reminders and discounts by mail, with policies and people",
        "shop --fixture cart",
        "clinch.yml": "the shop, and whom it calls",
        "playbooks/cart-reminder.yml": "the reminder",
        "playbooks/cart-discount.yml": "the discount, and when a person decides",
        "policies.yml": "who may be written to, and how often",
        "queues.yml": "how long what is kept",
        "schemas/cart.v1.json": "what a cart looks like",
        "templates/cart_reminder.txt": "what the reminder says",
        "templates/cart_reminder_calm.txt": "what it says in safe mode",
        "templates/discount.txt": "what the discount says",
        "fixtures/cart.json": "a cart to send",
        "fixtures/cart.headers": "the headers that come with it",
        "fixtures/answers/codes.json": "what the stand-in of the codes answers",
        "tests/carts.yml": "what must hold, failures included",
        ".env.example": "the secrets that the real partners need",
        "README.md": "how to go on",
    ),
    starter!(
        "lead-router", "signed leads to a CRM and to analytics, side by side", "leads --fixture lead",
        "clinch.yml": "the form vendor, and whom it calls",
        "flows/leads.yml": "which leads go into which queue",
        "workers/router.yml": "the work, and how often it is tried",
        "queues.yml": "what is in between, in order, and dead letters",
        "schemas/lead.v1.json": "what a lead looks like",
        "fixtures/lead.json": "a lead to send",
        "fixtures/answers/crm.json": "what the stand-in of the CRM answers",
        "tests/leads.yml": "what must hold, failures included",
        ".env.example": "the secrets that the real partners need",
        "README.md": "how to go on",
    ),
    starter!(
        "blank", "one flow, one worker, one target", "events --fixture event --key e-1",
        "clinch.yml": "whom it calls",
        "flows/events.yml": "the door: path, key",
        "workers/events.yml": "the work, and how often it is tried",
        "queues.yml": "what is in between, and dead letters",
        "fixtures/event.json": "an event to send",
        "tests/events.yml": "what must hold, failures included",
        ".env.example": "the secrets that the real partners need",
        "README.md": "how to go on",
    ),
];

pub fn find(name: &str) -> Option<&'static Starter> {
    ALL.iter().find(|starter| starter.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::config::{self, Files};

    #[test]
    fn j3_every_starter_is_right_without_a_warning_and_has_what_a_workspace_needs() {
        for starter in ALL {
            let is_config = |path: &str| {
                let folders = ["flows/", "workers/", "playbooks/", "schemas/", "templates/"];
                folders.iter().any(|folder| path.starts_with(folder)) || (path.ends_with(".yml") && !path.contains('/'))
            };
            let files = starter.files.iter().filter(|(path, ..)| is_config(path));
            let files = Files(files.map(|(path, text, _)| (path.to_string(), text.to_string())).collect());
            let (_, warnings) =
                config::load(&files).unwrap_or_else(|problems| panic!("{}: {problems:#?}", starter.name));
            assert!(warnings.is_empty(), "{}: {warnings:#?}", starter.name);
            let has = |wanted: &str| starter.files.iter().any(|(path, ..)| path.starts_with(wanted));
            for wanted in ["clinch.yml", "queues.yml", "tests/", "fixtures/", ".env.example", ".gitignore", "README.md"]
            {
                assert!(has(wanted), "{} has no {wanted}", starter.name);
            }
            for (path, text, about) in starter.files {
                assert!(!about.is_empty());
                if path.ends_with(".yml") {
                    let up = if path.contains('/') { ".." } else { "." };
                    let line = format!("# yaml-language-server: $schema={up}/clinch.schema.json\n");
                    assert!(text.starts_with(&line), "{}/{path} does not begin with {line}", starter.name);
                }
                if path.starts_with("tests/") {
                    let trials = config::trials(path, text).unwrap_or_else(|problems| panic!("{path}: {problems:#?}"));
                    for word in ["transient", "does not end", "duplicate", "replay"] {
                        assert!(trials.iter().any(|trial| trial.name.contains(word)), "{path} has no test of {word}");
                    }
                }
            }
        }
    }
}
