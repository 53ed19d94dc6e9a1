//! The question in a request: its path and its query string. What is not known is refused, never ignored: a filter that
//! is misspelt would otherwise show everything.

use super::problem::Problem;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use clinch_core::id::JobId;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

#[derive(Debug)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn parse(raw: Option<&str>, allowed: &[&str]) -> Result<Query, Problem> {
        let mut found = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
            if !allowed.contains(&&*name) {
                let known = if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") };
                return Err(Problem::bad_query(format!("`{name}` cannot be asked here; what can: {known}.")));
            }
            if found.insert(name.to_string(), value.to_string()).is_some() {
                return Err(Problem::bad_query(format!("`{name}` was given twice.")));
            }
        }
        Ok(Query(found))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn get<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Problem> {
        let read = |text: &str| text.parse().map_err(|error| Problem::bad_query(format!("{name}: {error}.")));
        self.text(name).map(read).transpose()
    }

    /// A number of rows, within what a list may have.
    pub fn limit(&self, usual: usize) -> Result<usize, Problem> {
        let most = clinch_store::read::LIST_ROWS_MAX;
        match self.text("limit").map(str::parse) {
            None => Ok(usual),
            Some(Ok(limit)) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => Err(Problem::bad_query(format!("limit: write a number from 1 to {most}."))),
        }
    }
}

/// The id in the path.
pub struct Id<T>(pub T);

impl<T: FromStr<Err: Display>, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_query(error.body_text()))?;
        text.parse().map(Id).map_err(|error| Problem::bad_query(format!("{error}.")))
    }
}

/// A step of a job, by the two ids in the path.
pub struct StepOf(pub JobId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for StepOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, step)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_query(error.body_text()))?;
        let job = job.parse().map_err(|error| Problem::bad_query(format!("{error}.")))?;
        Ok(StepOf(job, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::job::Word;

    #[test]
    fn a_question_is_read_and_decoded() {
        let query = Query::parse(Some("state=dead&flow=a%20b&limit=7"), &["state", "flow", "limit"]).expect("fine");
        assert_eq!(query.get::<Word>("state").expect("a state"), Some(Word::Dead));
        assert_eq!(query.text("flow"), Some("a b"));
        assert_eq!(query.limit(50).expect("a number"), 7);
        assert!(Query::parse(None, &[]).expect("empty").text("x").is_none());
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_name() {
        let said = |raw: &str| format!("{:?}", Query::parse(Some(raw), &["state", "limit"]).expect_err("refused"));
        assert!(said("stat=dead").contains("`stat` cannot be asked here; what can: state, limit"));
        assert!(said("state=dead&state=dead").contains("twice"));
        let query = Query::parse(Some("state=Dead&limit=0"), &["state", "limit"]).expect("names are fine");
        assert!(format!("{:?}", query.get::<Word>("state").expect_err("no state")).contains("the states are queued"));
        assert!(query.limit(1).is_err());
    }
}
