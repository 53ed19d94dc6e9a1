//! The audit: who did what, from where and why; whether that record is whole; and a copy of it.

use super::ask::{Ask, query};
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::{Audit, AuditList, AuditVerified};
use askama::Template;
use axum::body::Body;
use axum::extract::Query;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use clinch_core::time::{Timestamp, parse_duration};
use futures_util::stream;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

const SINCE: [(&str, &str); 5] =
    [("1h", "1 hour"), ("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"), ("all", "the beginning")];

/// What is looked for. Without a word it is the last day.
struct Asked {
    actor: String,
    action: String,
    object: String,
    since: String,
}

impl Asked {
    fn of(asked: &BTreeMap<String, String>) -> Asked {
        let text = |name: &str| asked.get(name).map(|text| text.trim().to_string()).unwrap_or_default();
        let since = Some(text("since")).filter(|since| SINCE.iter().any(|(known, _)| known == since));
        Asked {
            actor: text("actor"),
            action: text("action"),
            object: text("object"),
            since: since.unwrap_or_else(|| "24h".into()),
        }
    }

    /// As the API is asked.
    fn query(&self, now: Timestamp, more: &[(&str, &str)]) -> String {
        let since = parse_duration(&self.since).map(|ago| (now - ago).to_string()).unwrap_or_default();
        let own = [("actor", &*self.actor), ("action", &*self.action), ("object", &*self.object), ("since", &since)];
        query(&[&own, more].concat())
    }

    /// As a link of this page.
    fn link(&self, more: &[(&str, &str)]) -> String {
        let own =
            [("actor", &*self.actor), ("action", &*self.action), ("object", &*self.object), ("since", &*self.since)];
        query(&[&own, more].concat())
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Page {
    frame: Frame,
    asked: Asked,
    told: AuditList,
    older: Option<String>,
    /// How the whole record was found, if that was asked for.
    verified: Option<AuditVerified>,
    verify: String,
    export: String,
    command: String,
}

pub async fn list(visitor: Visitor, Query(fields): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let asked = Asked::of(&fields);
    let before = fields.get("before").map_or("", String::as_str);
    let told: AuditList = visitor.get(format!("audit{}", asked.query(visitor.now, &[("before", before)]))).await?;
    let verified = match fields.contains_key("verify") {
        true => Some(visitor.get("audit/verify").await?),
        false => None,
    };
    let last = told.audit.last().filter(|_| told.more).map(|row| row.no.to_string());
    let page = Page {
        frame: visitor.frame("Audit", "audit").await?,
        older: last.map(|last| asked.link(&[("before", &last)])),
        verify: asked.link(&[("verify", "1")]),
        export: asked.link(&[]),
        command: command(&asked),
        asked,
        told,
        verified,
    };
    Ok(frame::html(&page))
}

fn command(asked: &Asked) -> String {
    let part = |flag: &str, text: &str| if text.is_empty() { String::new() } else { format!(" --{flag} '{text}'") };
    let since = if asked.since == "all" { String::new() } else { format!(" --since {}", asked.since) };
    let (actor, action) = (part("actor", &asked.actor), part("action", &asked.action));
    format!("clinch audit ls{actor}{action}{}{since}", part("object", &asked.object))
}

/// A page of rows as they are, the oldest first.
#[derive(Deserialize)]
struct Rows {
    audit: Vec<Value>,
    more: bool,
}

/// One JSON value per line, the oldest first, asked for page by page.
pub async fn export(visitor: Visitor, Query(fields): Query<BTreeMap<String, String>>) -> Response {
    let (asked, now) = (Asked::of(&fields), visitor.now);
    let pages = stream::unfold(Some((visitor.ask, asked, 0)), move |state| async move {
        let (ask, asked, after): (Ask, Asked, u64) = state?;
        let number = after.to_string();
        let path = format!("audit{}", asked.query(now, &[("after", &number), ("limit", "500")]));
        match ask.get::<Rows>(path).await {
            Ok(rows) => {
                let text: String = rows.audit.iter().map(|row| format!("{row}\n")).collect();
                let last = rows.audit.last().and_then(|row| row["no"].as_u64()).filter(|_| rows.more);
                Some((Ok(text), last.map(|last| (ask, asked, last))))
            }
            // Half an export must not look like a whole one: the connection breaks.
            Err(refusal) => Some((Err(std::io::Error::other(refusal.detail)), None)),
        }
    });
    let said = [
        (CONTENT_TYPE, "application/jsonl; charset=utf-8"),
        (CONTENT_DISPOSITION, "attachment; filename=\"clinch-audit.jsonl\""),
    ];
    (said, Body::from_stream(pages)).into_response()
}

/// What changed, for people.
fn change(row: &Audit) -> String {
    row.change()
}
