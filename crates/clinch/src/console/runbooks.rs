//! Runbooks, next to what they are about.

use super::ask::Refusal;
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::runbook::{self, Runbook};
use askama::Template;
use axum::extract::Path;
use axum::response::Response;

#[derive(Template)]
#[template(path = "runbook.html")]
struct Page {
    frame: Frame,
    page: Runbook,
}

pub async fn show(visitor: Visitor, Path(name): Path<String>) -> Result<Response, Refused> {
    let Some(page) = runbook::find(&name) else {
        let detail = "There is no such runbook; dead letters link to theirs.".into();
        let title = "It is not there".into();
        return Err(visitor.refused(Refusal { status: 404, code: "CL0505".into(), title, detail }));
    };
    Ok(frame::html(&Page { frame: visitor.frame(page.title, "dead").await?, page }))
}
