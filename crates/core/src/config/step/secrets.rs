//! The secrets that steps read.

use crate::config::value::Names;
use crate::expr::{Template, Tree};
use crate::message::{Channel, MessageBody};
use crate::worker::{
    Action, DelayAction, GeoipAction, HttpAction, HttpBody, PhoneAction, QueueBody, ValidateAction, Worker,
};
use std::collections::BTreeSet;

/// Those of all steps of a worker.
pub(in crate::config) fn secrets(worker: &Worker) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for step in worker.all_steps() {
        let of_branches = step.branches().iter().filter_map(|branch| branch.when.as_ref());
        let lists = step.each.iter().map(|each| &each.list);
        found.extend(step.when.iter().chain(of_branches).chain(lists).flat_map(|expr| Names::of_expr(expr).secrets));
        std::iter::once(&step.action).chain(&step.compensate).for_each(|action| action_secrets(action, &mut found));
    }
    found
}

fn action_secrets(action: &Action, found: &mut BTreeSet<String>) {
    match action {
        Action::Script(script) => found.extend(script.secrets.iter().cloned()),
        Action::Http(http) => http_secrets(http, found),
        Action::Transform(tree) => tree_secrets(tree, found),
        Action::Validate(ValidateAction { from, .. })
        | Action::Phone(PhoneAction { from, .. })
        | Action::Geoip(GeoipAction { from, .. })
        | Action::Delay(DelayAction::Until(from)) => found.extend(Names::of_expr(from).secrets),
        Action::Sql(sql) => sql.params.iter().for_each(|param| tree_secrets(param, found)),
        Action::Send(send) => {
            found.extend(send.to.secrets());
            tree_secrets(&send.with, found);
            if let Channel::Request(request) = &send.channel
                && let MessageBody::Tree(tree) = &request.body
            {
                tree_secrets(tree, found);
            }
        }
        Action::DedupKey(rule) => {
            found.extend(rule.fields.iter().flat_map(|field| Names::of_expr(&field.value).secrets))
        }
        Action::Setnx(setnx) => found.extend(setnx.key.secrets()),
        Action::Queue(queue) => {
            let body = match &queue.body {
                QueueBody::From(from) => Some(from),
                QueueBody::Event => None,
            };
            found.extend(body.into_iter().chain(&queue.key).flat_map(|expr| Names::of_expr(expr).secrets));
        }
        // People see what an approval reads, so it reads none.
        Action::Approval(_)
        | Action::Delay(DelayAction::For(_))
        | Action::Pull(_)
        | Action::Policy(_)
        | Action::Parallel(_) => {}
    }
}

fn http_secrets(http: &HttpAction, found: &mut BTreeSet<String>) {
    found.extend(http.url.secrets());
    found.extend(http.headers.iter().flat_map(|(_, value)| value.secrets()));
    found.extend(http.promise.wrap_key.iter().flat_map(Template::secrets));
    found.extend(http.promise.lookup.iter().flat_map(|lookup| {
        lookup.url.secrets().into_iter().chain(lookup.headers.iter().flat_map(|(_, value)| value.secrets()))
    }));
    match &http.body {
        HttpBody::From(expr) => found.extend(Names::of_expr(expr).secrets),
        HttpBody::Text(text) => found.extend(text.secrets()),
        HttpBody::Tree(tree) => tree_secrets(tree, found),
        HttpBody::Event | HttpBody::Empty => {}
    }
}

pub(super) fn tree_secrets(tree: &Tree, found: &mut BTreeSet<String>) {
    match tree {
        Tree::Value(_) => {}
        Tree::Expr(expr) => found.extend(Names::of_expr(expr).secrets),
        Tree::Text(text) => found.extend(text.secrets()),
        Tree::List(items) => items.iter().for_each(|item| tree_secrets(item, found)),
        Tree::Map(fields) => fields.iter().for_each(|(_, item)| tree_secrets(item, found)),
    }
}
