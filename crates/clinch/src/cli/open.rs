//! `clinch open`: the console, at the right place, for whoever has a token.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Output};
use crate::api::me::LoginLink;
use clap::Args;
use serde_json::json;
use std::process::{Command, Stdio};

const PAGES: [&str; 13] = [
    "overview",
    "jobs",
    "events",
    "dead",
    "replays",
    "effects",
    "approvals",
    "integrations",
    "flows",
    "keys",
    "audit",
    "settings",
    "safe-mode",
];

/// Print a link that logs you in to the console: it works once, for 15 minutes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch open
  clinch open job_01HZX5T0N8W2A
  clinch open dead
  xdg-open \"$(clinch open)\"

You are logged in as whoever the token is of: the admin where CLINCH_TOKEN is not set and this is the server's machine. On a terminal
the browser is opened too.")]
pub struct Open {
    /// A job, an event, a replay plan, or a page
    #[arg(value_name = "ID|PAGE", default_value = "overview")]
    what: String,
}

impl Open {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let back = path(&self.what).ok_or_else(|| {
            Failure::new(Exit::Usage, "CL0545", format!("`{}` is neither an id nor a page", self.what))
                .fix(format!("the pages are {}", PAGES.join(", ")))
        })?;
        let client = Client::open(globals)?;
        let answer = client.post::<LoginLink>(&["login-links"], &json!({})).await?;
        let mut document = answer.document.clone();
        let mut url = client.page(&answer.told.path);
        if back != "/" {
            url += "&back=";
            url.extend(url::form_urlencoded::byte_serialize(back.as_bytes()));
        }
        document["url"] = json!(url);
        // The address is the data: it can be handed to a browser.
        render::show(globals.output(), &document, &url, || url.clone())?;
        render::note("it works once, for 15 minutes; whoever has it is logged in as you");
        if globals.output() == Output::Table && !show(&url) {
            render::note("no browser could be started; the address is above");
        }
        Ok(Exit::Done)
    }
}

/// Where the console shows it.
fn path(what: &str) -> Option<String> {
    let page = match what.split_once('_').map(|(kind, _)| kind) {
        Some("job") if what.contains('/') => "effects",
        Some("job") => "jobs",
        Some("evt") => "events",
        Some("rpl") => "replays",
        _ if what == PAGES[0] => return Some("/".into()),
        _ => return PAGES.contains(&what).then(|| format!("/{what}")),
    };
    Some(format!("/{page}/{what}"))
}

/// In the browser of whoever sits here.
fn show(url: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = || Stdio::null();
    Command::new(opener).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i3_an_id_or_a_page_has_its_place_in_the_console() {
        let check = |what: &str, place: Option<&str>| assert_eq!(path(what).as_deref(), place, "{what}");
        check("overview", Some("/"));
        check("dead", Some("/dead"));
        check("job_01", Some("/jobs/job_01"));
        check("job_01/charge", Some("/effects/job_01/charge"));
        check("evt_01", Some("/events/evt_01"));
        check("rpl_01", Some("/replays/rpl_01"));
        check("nonsense", None);
        check("http://elsewhere", None);
    }
}
