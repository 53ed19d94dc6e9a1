//! What steps may not say, beyond what the dialect refuses.

use super::outputs::{items_of_nothing, unknown_steps};
use super::read::{ANYBODY, carrier, carriers, fields, host};
use super::secrets::tree_secrets;
use super::{acts, list, named, steps};
use crate::config::dialect::{ACTIONS, DETAILS};
use crate::config::nearest::nearest;
use crate::config::problem::{Code, Problem, Span, shown};
use crate::config::read::{Reader, Spot};
use crate::config::source::texts;
use crate::config::value;
use crate::config::yaml::{Key, Node};
use crate::dedup;
use crate::expr::Template;
use crate::integration::Integration;
use crate::message::Channel;
use crate::worker::BRANCHES_MAX;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is wrong with the steps of a worker, of which these have a name.
pub(in crate::config) fn broken(
    worker: Reader<'_>,
    names: &[Spot<String>],
    integrations: &[Arc<Integration>],
) -> Vec<Problem> {
    let mut found = unknown_steps(worker, names);
    found.extend(list(worker).flat_map(parted_wrongly));
    found.extend(list(worker).flat_map(repeated_wrongly));
    found.extend(items_of_nothing(worker));
    found.extend(named(worker).flat_map(misplaced_details));
    found.extend(named(worker).filter_map(nothing_to_undo));
    found.extend(named(worker).filter_map(nothing_to_rule_over));
    found.extend(named(worker).filter_map(|step| step.map("compensate")).flat_map(misplaced_details));
    found.extend(acts(worker).filter_map(given_to_a_script));
    found.extend(acts(worker).filter_map(no_script));
    found.extend(acts(worker).filter_map(|step| path_of_nobody(step, integrations)));
    found.extend(acts(worker).filter_map(|step| credentials_for_anybody(step, integrations)));
    found.extend(acts(worker).filter_map(|step| no_database(step, integrations)));
    found.extend(acts(worker).filter_map(|step| no_channel(step, integrations)));
    found.extend(acts(worker).filter_map(|step| no_carrier(step, integrations)));
    found.extend(acts(worker).flat_map(no_such_field));
    found.extend(steps(worker).flat_map(|step| undecidable(step, integrations)));
    found
}

/// Branches do not part again, and there are not too many of them.
fn parted_wrongly(step: Reader<'_>) -> Vec<Problem> {
    let inside = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
    let nested = inside.filter_map(|step| step.node.entry("parallel")).map(|(key, _)| {
        Problem::error(Code::EitherOr, key.span, "`parallel` is inside a branch of another")
            .label("parts again")
            .help("add its branches to the outer `parallel`, or make it a step after that one")
    });
    let count = step.maps("parallel").count();
    let many = step.node.entry("parallel").filter(|_| count > BRANCHES_MAX).map(|(key, _)| {
        Problem::error(Code::OutOfRange, key.span, format!("`parallel` has {count} branches"))
            .help(format!("write at most {BRANCHES_MAX}; more go into another step after this one"))
    });
    nested.chain(many).collect()
}

/// Items do not part, and only what leaves a line in the ledger can be paced: the rest is done anew in each attempt.
fn repeated_wrongly(step: Reader<'_>) -> Vec<Problem> {
    const LEDGERED: &[&str] = &["http", "uses", "sql", "send_template", "queue", "setnx"];
    let problem = |key: Span, said: &str, help: &str| Problem::error(Code::EitherOr, key, said).help(help);
    let mut found = Vec::new();
    let inside = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
    for (key, _) in inside.flat_map(|step| ["foreach", "rate_limit"].map(|name| step.node.entry(name))).flatten() {
        let said = format!("`{}` is inside a branch", key.text);
        found.push(problem(key.span, &said, "make it a step before or after the `parallel`"));
    }
    let foreach = step.node.entry("foreach");
    if let Some((key, _)) = foreach {
        for other in ["parallel", "compensate", "delay"].iter().filter_map(|name| step.node.entry(name)) {
            let said = format!("`foreach` does not go with `{}`", other.0.text);
            let said = problem(key.span, &said, "make two steps of it, or remove one of the two");
            found.push(said.also(other.0.span, "with this"));
        }
    }
    if let Some((key, _)) = step.node.entry("rate_limit") {
        if foreach.is_none() {
            let help = "add `foreach:`, or write `rate` below the integration in clinch.yml";
            found.push(problem(key.span, "`rate_limit` is for the runs of `foreach`", help));
        } else if !LEDGERED.iter().any(|action| step.has(action)) {
            let said = "`rate_limit` is for steps that do something outside or in a queue";
            found.push(problem(key.span, said, "remove it"));
        }
    }
    found
}

/// The action of a step that does nothing outside itself.
fn inward<'a>(step: Reader<'a>) -> Option<&'a Key> {
    let outward = ["http", "sql", "uses", "send_template"];
    let mut inward = ACTIONS.iter().filter(|name| !outward.contains(name)).chain(&["steps"]);
    inward.find_map(|name| step.node.entry(name)).map(|(action, _)| action)
}

/// Only what does something outside can be undone.
fn nothing_to_undo(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("compensate")?;
    let action = inward(step)?;
    let help = match action.text.as_str() {
        "parallel" | "steps" => "move it to the steps inside that it undoes",
        _ => "remove it",
    };
    let said = format!("`compensate` does not go with `{}`", action.text);
    let problem = Problem::error(Code::EitherOr, key.span, said).label("there is nothing to undo");
    Some(problem.also(action.span, "the action of this step").help(help))
}

/// Only what does something outside is under a policy.
fn nothing_to_rule_over(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("policies")?;
    let action = inward(step)?;
    let help = match action.text.as_str() {
        "parallel" | "steps" => "move it to the steps inside that are under it",
        _ => "remove it",
    };
    let said = format!("`policies` does not go with `{}`", action.text);
    let problem = Problem::error(Code::EitherOr, key.span, said).label("nothing is done outside");
    Some(problem.also(action.span, "the action of this step").help(help))
}

/// `with`, `env` and `script` say more about an action that is not there.
fn misplaced_details(step: Reader<'_>) -> Vec<Problem> {
    let mut others = ACTIONS.iter().filter(|name| !["uses", "run"].contains(name)).chain(&["steps"]);
    let Some((action, _)) = others.find_map(|name| step.node.entry(name)) else {
        return Vec::new();
    };
    let stray = DETAILS.iter().filter_map(|name| step.node.entry(name));
    let problem = |name: &str, span: Span| {
        let help = match action.text.as_str() {
            "http" => "write what is sent below `http:`, as `headers:` and `body:`".to_string(),
            "parallel" | "steps" => "move it to the step that it is for".to_string(),
            other => format!("remove it; what the step needs is written below `{other}:`"),
        };
        Problem::error(Code::EitherOr, span, format!("`{name}` does not go with `{}`", action.text))
            .label("belongs to `uses` or `run`")
            .also(action.span, "the action of this step")
            .help(help)
    };
    stray.map(|(key, _)| problem(&key.text, key.span)).collect()
}

/// A script is given the event, and what `env` says.
fn given_to_a_script(step: Reader<'_>) -> Option<Problem> {
    let (key, with) = step.node.entry("with").filter(|_| step.has("uses"))?;
    let problem =
        Problem::error(Code::EitherOr, key.span, "`with` does not go with `uses`").label("no script reads it");
    Some(problem.help(match with.get("script") {
        Some(_) => "move what is below it one level up: `script` stands beside `uses`",
        None => "write what the script needs below `env:`, as in `NAME: {{ body.name }}`",
    }))
}

/// A runtime alone does nothing.
fn no_script(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("uses").filter(|_| !step.has("script"))?;
    // One that is below `with` is a problem of its own.
    if step.map("with").is_some_and(|with| with.has("script")) {
        return None;
    }

    let problem = Problem::error(Code::MissingKey, key.span, "`uses` needs a `script`").label("runs nothing");
    Some(problem.help("add `script: |` and below it what is to be run"))
}

/// A path alone is called only where an integration says what it belongs to.
fn path_of_nobody(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let http = step.map("http")?;
    let url = http.spot("url", value::url_or_path)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &url.value;
    let named = http.spot("integration", value::name);
    // An integration that is not there is a problem of its own.
    let has_base = named.is_some_and(|named| {
        integrations.iter().find(|known| *known.name == *named.value).is_none_or(|known| known.base_url.is_some())
    });
    (text.starts_with('/') && !has_base).then(|| {
        let problem = Problem::error(Code::BadUrl, url.span, format!("`{}` is a path of nobody", shown(text)));
        problem.help("write the whole URL, or `integration:` with one that has a `base_url`")
    })
}

/// Credentials, and an event that says who gets them.
fn credentials_for_anybody(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let http = step.map("http")?;
    let url = http.spot("url", value::url_or_path)?;
    let named = http.spot("integration", value::name)?;
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    let is_bare = known.base_url.is_none() && (known.auth.is_some() || !known.headers.is_empty());
    (is_bare && host(&url.value) == ANYBODY).then(|| {
        let said = format!("the event says who gets the credentials of integration `{}`", named.value);
        let problem = Problem::error(Code::BadUrl, url.span, said).label("anybody may be meant");
        problem.help("give the integration a `base_url` and write a path, or write the host out")
    })
}

/// An integration that is no database.
fn no_database(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let named = step.map("sql")?.spot("database", value::name)?;
    // An integration that is not there is a problem of its own.
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    known.url.is_none().then(|| {
        let said = format!("integration `{}` does not say where its database is", named.value);
        let help = format!("add `url: ${{secrets.NAME}}` below `{}:` in clinch.yml", named.value);
        Problem::error(Code::BadDatabase, named.span, said).label("has no `url`").help(help)
    })
}

/// An integration that no message can be sent to.
fn no_channel(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let named = step.map("send_template")?.spot("integration", value::name)?;
    // An integration that is not there is a problem of its own.
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    known.channel.is_none().then(|| {
        let said = format!("integration `{}` does not say how a message is sent to it", named.value);
        let help = format!("add `smtp:` and `from:`, or `message:`, below `{}:` in clinch.yml", named.value);
        Problem::error(Code::BadMailServer, named.span, said).label("has neither `smtp` nor `message`").help(help)
    })
}

/// A message that nobody carries, or that several could.
fn no_carrier(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let send = step.map("send_template").filter(Reader::is_sound)?;
    if send.has("integration") || carrier(send, integrations).is_some() {
        return None;
    }
    if let Some(channel) = send.spot("channel", value::name) {
        let known = integrations.iter().flat_map(|known| &known.carries).map(String::as_str);
        let said = format!("nobody carries messages of channel `{}`", channel.value);
        let problem = Problem::error(Code::UnknownIntegration, channel.span, said).label("unknown channel");
        let add = format!("add to clinch.yml, below `messaging:`: `{}: INTEGRATION`", channel.value);
        return Some(problem.meant(nearest(&channel.value, known), add));
    }
    let (key, _) = step.node.entry("send_template")?;
    let names: Vec<&str> = carriers(integrations).iter().map(|known| &*known.name).collect();
    let (said, help) = match names.as_slice() {
        [] => (
            "no integration can carry this message".to_string(),
            "add one to clinch.yml, below `integrations:`, with `smtp:` and `from:`, or with `message:`".to_string(),
        ),
        _ => (
            format!("several integrations can carry this message: {}", names.join(", ")),
            "write `integration: NAME`, or name one below `messaging:` of clinch.yml, as in `messaging: {email: NAME}`"
                .to_string(),
        ),
    };
    Some(Problem::error(Code::UnknownIntegration, key.span, said).label("who carries it?").help(help))
}

/// What is said of a field must be said of one that is there, and a stretch of time needs a moment.
fn no_such_field(step: Reader<'_>) -> Vec<Problem> {
    let Some(dedup) = step.map("dedup_key").filter(Reader::is_sound) else { return Vec::new() };
    let fields = fields(dedup, "fields");
    let mut found = Vec::new();
    if fields.len() > dedup::FIELDS_MAX
        && let Some((key, _)) = dedup.node.entry("fields")
    {
        let said = format!("a key has at most {} fields, not {}", dedup::FIELDS_MAX, fields.len());
        found.push(Problem::error(Code::OutOfRange, key.span, said));
    }
    let unknown = |name: &str, span: Span, problem: &str| {
        let problem = Problem::error(Code::BadChoice, span, format!("`{}` {problem}", shown(name)))
            .label("not a field of the key");
        match nearest(name, fields.iter().copied()) {
            Some(meant) => problem.help(format!("did you mean `{meant}`?")),
            None => problem.help("write one that is below `fields:`"),
        }
    };
    let normalised = dedup.map("normalise");
    let named = ["email", "phone"].into_iter().filter_map(|name| normalised?.node.get(name)).flat_map(Node::items);
    let named = named.filter_map(|node| Some((node.text()?, node.head()))).filter(|(name, _)| !fields.contains(name));
    found.extend(named.map(|(name, span)| unknown(name, span, "is to be normalised and is not one of the fields")));
    match (dedup.node.entry("bucket_minutes"), dedup.spot("time_field", value::text)) {
        (Some(_), Some(time)) if !fields.contains(&time.value) => {
            found.push(unknown(time.value, time.span, "is to be the moment and is not one of the fields"));
        }
        (Some((key, _)), None) if !fields.contains(&dedup::TIME_FIELD_DEFAULT) => {
            let said = "`bucket_minutes` needs a field that is a moment";
            let problem = Problem::error(Code::MissingKey, key.span, said).label("of which moment?");
            found.push(
                problem.help("add `timestamp` to `fields`, or say which of them it is: `time_field: created_at`"),
            );
        }
        (None, Some(time)) => {
            let said = "`time_field` goes with `bucket_minutes`";
            found.push(Problem::error(Code::EitherOr, time.span, said).help("add `bucket_minutes: 5`, or remove it"));
        }
        _ => {}
    }
    found
}

/// An approval that cannot be given, or of which nobody hears.
fn undecidable(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Vec<Problem> {
    let Some(approval) = step.map("approval") else { return Vec::new() };
    let mut found = Vec::new();
    if let (Some(of), Some(need)) = (approval.may("of", texts).flatten(), approval.spot("need", value::int)) {
        let people: BTreeSet<&String> = of.iter().collect();
        if i64::try_from(people.len()).is_ok_and(|people| people < need.value) {
            let said = format!("`need` is {}, but `of` names {} people", need.value, people.len());
            let problem = Problem::error(Code::OutOfRange, need.span, said).label("can never be approved");
            found.push(problem.help("name more people, or need fewer"));
        }
    }
    if let Some((key, _)) = approval.node.entry("remind").filter(|_| !approval.has("slack")) {
        let problem = Problem::error(Code::MissingKey, key.span, "`remind` needs `slack`").label("nobody is told");
        found.push(problem.help("add `slack: {integration: NAME, channel: CHANNEL}`, or remove `remind`"));
    }
    let (title, show) = (approval.spot("title", value::template), approval.spot("show", value::tree));
    let in_title = title.filter(|title| !title.value.secrets().is_empty()).map(|title| title.span);
    let in_show = show.filter(|show| {
        let mut secrets = BTreeSet::new();
        tree_secrets(&show.value, &mut secrets);
        !secrets.is_empty()
    });
    for span in in_title.into_iter().chain(in_show.map(|show| show.span)) {
        let problem =
            Problem::error(Code::BadExpression, span, "people would see a secret").label("is shown to people");
        found.push(problem.help("remove `secrets` from it"));
    }
    let named = approval.map("slack").and_then(|slack| slack.spot("integration", value::name));
    // An integration that is not there is a problem of its own.
    let known = named.and_then(|named| {
        let known = integrations.iter().find(|known| *known.name == *named.value)?;
        Some((named, known))
    });
    if let Some((named, _)) = known.filter(|(_, known)| !matches!(known.channel, Some(Channel::Slack))) {
        let said = format!("integration `{}` is not Slack", named.value);
        let help = format!("add `message: slack` below `{}:` in clinch.yml", named.value);
        found.push(Problem::error(Code::BadMailServer, named.span, said).label("has no `message: slack`").help(help));
    }
    found
}
