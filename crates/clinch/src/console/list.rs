//! The list of jobs, and the one search box: what names one thing opens it, words narrow the list, and what is not understood
//! shows nothing but the error.

use super::ask::{Refusal, part, query};
use super::door::{Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::{Found, Hit, Job, JobList, Scope};
use askama::Template;
use axum::extract::{Query, RawQuery};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use clinch_core::id::JobId;
use clinch_core::search::WORDS;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

/// What people look for most, as words.
const VIEWS: [(&str, &str); 6] = [
    ("All", ""),
    ("Needs me", "state:dead reason:unknown_outcome"),
    ("Retrying", "state:retrying"),
    ("Waiting", "state:waiting"),
    ("Running", "state:running"),
    ("Dead", "state:dead"),
];

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    frame: Frame,
    q: String,
    views: Vec<View>,
    words: Vec<Chip>,
    known: [&'static str; 13],
    jobs: Vec<Job>,
    scope: String,
    /// Things that are no jobs.
    hits: Vec<Hit>,
    notes: Vec<String>,
    /// What was not understood.
    wrong: Option<String>,
    older: Option<String>,
    is_first: bool,
    command: String,
    /// A plan for all that fit, where they can be replayed.
    plan: Option<String>,
    may_replay: bool,
    /// Of `wrong`, and of what was looked for and is not there.
    is_named: bool,
}

struct View {
    name: &'static str,
    href: String,
    is_here: bool,
}

/// A word of the question, and the question without it.
struct Chip {
    word: String,
    without: String,
}

pub async fn show(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", |text| text.trim());
    look_for(&visitor, text("q"), text("before")).await
}

async fn look_for(visitor: &Visitor, q: &str, before: &str) -> Result<Response, Refused> {
    let asked = match q {
        "" => all(visitor, before).await,
        _ => visitor.ask.get(format!("search{}", query(&[("q", q), ("before", before)]))).await,
    };
    let (found, wrong) = match asked {
        Ok(found) => (found, None),
        // A question that is not understood is answered on the page that it was asked on, with nothing.
        Err(refusal) if refusal.status() == StatusCode::BAD_REQUEST => (nothing(), Some(said(&refusal))),
        Err(refusal) => return Err(visitor.refused(refusal)),
    };
    if let Some(path) = &found.open {
        return Ok(see_other(&own(path)));
    }
    let status = if wrong.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let page = Page {
        frame: visitor.frame("Jobs", "jobs").await?,
        views: VIEWS.map(|(name, of)| View { name, href: at(of, ""), is_here: of == q }).into(),
        words: chips(q),
        known: WORDS,
        scope: scope(&found.jobs.scope, found.jobs.jobs.len()),
        hits: found.hits.into_iter().filter(|hit| hit.kind != "job").collect(),
        notes: found.notes,
        wrong,
        older: found.jobs.next_before.as_deref().map(|before| at(q, before)),
        is_first: before.is_empty(),
        command: command(q),
        plan: plan(q, &found.taken_for),
        may_replay: visitor.who.role.may(Permission::Replay),
        is_named: !q.is_empty() && found.taken_for != "query",
        jobs: found.jobs.jobs,
        q: q.into(),
    };
    Ok((status, frame::html(&page)).into_response())
}

async fn all(visitor: &Visitor, before: &str) -> Result<Found, Refusal> {
    let jobs: JobList = visitor.ask.get(format!("jobs{}", query(&[("before", before)]))).await?;
    Ok(Found { jobs, ..nothing() })
}

fn nothing() -> Found {
    Found {
        schema: String::new(),
        taken_for: "query".into(),
        open: None,
        hits: Vec::new(),
        jobs: JobList {
            schema: String::new(),
            jobs: Vec::new(),
            more: false,
            next_before: None,
            scope: Scope::default(),
        },
        notes: Vec::new(),
    }
}

/// Without the name of the parameter, which nobody sees here.
fn said(refusal: &Refusal) -> String {
    refusal.detail.strip_prefix("q: ").unwrap_or(&refusal.detail).into()
}

/// A path of ours, whatever is in the names.
fn own(path: &str) -> String {
    let parts: Vec<String> = path.trim_start_matches('/').split('/').map(part).collect();
    format!("/{}", parts.join("/"))
}

fn at(q: &str, before: &str) -> String {
    format!("/jobs{}", query(&[("q", q), ("before", before)]))
}

fn command(q: &str) -> String {
    match q {
        "" => "clinch jobs ls".into(),
        _ => format!("clinch find '{}'", q.replace('\'', r"'\''")),
    }
}

/// Dead letters that fit words can be planned by the same words.
fn plan(q: &str, taken_for: &str) -> Option<String> {
    let is_of_dead = chips(q).iter().any(|chip| chip.word == "state:dead" || chip.word.starts_with("reason:"));
    (taken_for == "query" && is_of_dead).then(|| format!("/replays/new{}", query(&[("q", q)])))
}

fn chips(q: &str) -> Vec<Chip> {
    let words = split(q);
    let without = |place: usize| {
        let others = words.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, word)| *word);
        at(&others.collect::<Vec<_>>().join(" "), "")
    };
    words.iter().enumerate().map(|(place, word)| Chip { word: word.to_string(), without: without(place) }).collect()
}

/// At spaces that are not in quotes.
fn split(q: &str) -> Vec<&str> {
    let mut quoted = false;
    let words = q.split(|c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    words.filter(|word| !word.is_empty()).collect()
}

/// How far was looked, and how many fit.
fn scope(scope: &Scope, shown: usize) -> String {
    let matches = scope.matches.map_or_else(
        || format!("{shown} shown; "),
        |matches| format!("{}{} match; ", look::number(&matches), if scope.more_match { "+" } else { "" }),
    );
    let looked = format!("{matches}{} looked at", look::number(&scope.looked_at));
    match scope.back_to {
        Some(at) => format!("{looked}, back to {}; older ones were not", at.0),
        None => format!("{looked}, which are all"),
    }
}

/// The jobs that were ticked, as words for a plan.
pub async fn selected(visitor: Visitor, RawQuery(raw): RawQuery) -> Result<Response, Refused> {
    let fields = url::form_urlencoded::parse(raw.as_deref().unwrap_or_default().as_bytes());
    let ids: Vec<String> = fields
        .filter(|(name, _)| name == "job")
        .filter_map(|(_, id)| Some(id.parse::<JobId>().ok()?.to_string()))
        .collect();
    if ids.is_empty() {
        let detail = "Tick the jobs that are meant, then press the button again. Nothing was changed.".into();
        let title = "No job was chosen".into();
        return Err(visitor.refused(Refusal { status: 400, code: "CL0518".into(), title, detail }));
    }
    Ok(see_other(&format!("/replays/new{}", query(&[("q", &format!("job:{}", ids.join(",")))]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_each_word_of_a_question_can_be_taken_away() {
        let words = chips(r#"flow:a  key:"x y" state:dead"#);
        let told: Vec<(&str, &str)> = words.iter().map(|chip| (&*chip.word, &*chip.without)).collect();
        assert_eq!(
            told,
            [
                ("flow:a", "/jobs?q=key%3A%22x+y%22+state%3Adead"),
                (r#"key:"x y""#, "/jobs?q=flow%3Aa+state%3Adead"),
                ("state:dead", "/jobs?q=flow%3Aa+key%3A%22x+y%22"),
            ]
        );
        assert_eq!(chips("state:dead")[0].without, "/jobs");
    }

    #[test]
    fn i1_only_dead_letters_are_planned() {
        assert_eq!(plan("state:dead flow:a", "query").as_deref(), Some("/replays/new?q=state%3Adead+flow%3Aa"));
        assert_eq!(plan("state:retrying", "query"), None);
        assert_eq!(plan("state:dead", "text"), None);
    }

    #[test]
    fn i1_what_is_opened_is_always_here() {
        assert_eq!(own("/effects/job_1/a b[3]"), "/effects/job_1/a%20b%5B3%5D");
        assert_eq!(own("//evil.example/x"), "/evil.example/x");
    }
}
