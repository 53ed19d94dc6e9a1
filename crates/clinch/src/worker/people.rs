//! What people are shown of an approval, and the messages to Slack: through the gate, like everything that leaves.

use super::lookup::remember;
use super::scope::Scope;
use super::steps::{approval, message};
use crate::effects::{Gate, HttpCall, Sent, SlackCall, Wait};
use crate::house::House;
use bytes::Bytes;
use clinch_core::approval::{ApprovalId, Card};
use clinch_core::config::Workspace;
use clinch_core::id::JobId;
use clinch_core::integration::Integration;
use clinch_core::message::Channel;
use clinch_core::payload::Payload;
use clinch_core::slack::{self, Item};
use clinch_core::worker::Action;
use clinch_store::ApprovalRow;
use clinch_store::approval::Place;
use clinch_store::read::JobStory;
use http::{HeaderMap, HeaderValue, Method, Uri};
use std::sync::Arc;
use std::time::Duration;

/// Slack is given this long, or less if the integration says so.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Where Slack takes answers to those who pressed a button.
const HOOKS: &str = "hooks.slack.com";

/// A job whose event can be read, with the workspace that it runs.
struct Told {
    story: JobStory,
    payload: Arc<Payload>,
    workspace: Arc<Workspace>,
}

impl Told {
    /// The outer error is the store's; the inner says why nothing can be told of it.
    async fn of(house: &House, job: JobId) -> clinch_store::Result<Result<Told, String>> {
        let Some(story) = house.store.job(job).await? else { return Ok(Err("its job is gone".into())) };
        let Some(workspace) = house.versions.get(story.row.version, &*house.store).await? else {
            return Ok(Err("the workspace that it runs is not there any more".into()));
        };
        let payload = match &story.payload {
            Ok(stored) => Payload::decode(stored).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_string()),
        };
        Ok(payload.map(|payload| Told { story, payload: Arc::new(payload), workspace }))
    }

    fn scope<'a>(&'a self, house: &'a House) -> Scope<'a> {
        Scope::new(house, (&self.story.row).into(), &self.payload, &self.workspace)
    }

    fn card(&self, house: &House, step: &str) -> Result<Card, String> {
        let worker = self.workspace.worker_for(&self.story.row.queue).ok_or("there is no worker for it any more")?;
        let Some((Action::Approval(action), asked)) = worker.action_of(step) else {
            return Err(format!("worker `{}` has no approval `{step}`", worker.name));
        };
        let mut scope = self.scope(house);
        for before in worker.all_steps().take_while(|known| known.name != asked.name) {
            remember(before, &self.story.effects, &mut scope);
        }
        scope.begin(&step.into());
        approval::card(action, &mut scope).map_err(|failure| failure.error)
    }
}

fn unshown(why: &str) -> Card {
    Card { title: format!("(what it is about cannot be shown: {why})"), facts: Vec::new() }
}

pub async fn card(house: &House, id: &ApprovalId) -> clinch_store::Result<Card> {
    let told = Told::of(house, id.job).await?;
    Ok(told.and_then(|told| told.card(house, &id.step)).unwrap_or_else(|why| unshown(&why)))
}

/// One message for all of them.
pub async fn tell(
    house: &House,
    gate: &Gate,
    place: &Place,
    approvals: &[ApprovalRow],
) -> clinch_store::Result<Result<(), String>> {
    let Some(partner) = partner(house, place) else {
        return Ok(Err(format!("integration `{}` is not in the workspace, or is not Slack", place.integration)));
    };
    let (mut items, mut last) = (Vec::with_capacity(approvals.len()), None);
    for row in approvals {
        let told = Told::of(house, row.id.job).await?;
        let card = match &told {
            Ok(told) => told.card(house, &row.id.step),
            Err(why) => Err(why.clone()),
        };
        items.push(Item {
            id: row.id.clone(),
            card: card.unwrap_or_else(|why| unshown(&why)),
            tally: row.tally(),
            expires_at: row.expires_at,
            is_reminder: row.told > 0,
        });
        last = told.ok().or(last);
    }
    // Credentials are templates, and templates are read beside some event.
    let Some(last) = last else { return Ok(Err("nothing of these events can be read".into())) };
    let body = slack::message(&place.channel, &items);
    let timeout = partner.timeout.unwrap_or(TIMEOUT).min(TIMEOUT);
    let call = match message::to_slack(&partner, &body, timeout, &mut last.scope(house)) {
        Ok(call) => call,
        Err(error) => return Ok(Err(error.0)),
    };
    Ok(match gate.ask(last.story.row.id, &partner, Box::new(SlackCall(call)), None).await? {
        Ok(Sent::Answered { receipt, .. }) if (200..300).contains(&receipt.status) => Ok(()),
        Ok(Sent::Answered { receipt, .. }) => Err(format!("Slack answered {}", receipt.status)),
        Ok(
            Sent::Failed { why, .. }
            | Sent::Broken { why, .. }
            | Sent::Refused(why)
            | Sent::NotSent(why)
            | Sent::Blocked(why),
        ) => Err(why),
        Ok(_) => Err("no answer came".into()),
        Err(Wait { until, waits }) => Err(format!("it is not called before {until} ({})", waits.word())),
    })
}

fn partner(house: &House, place: &Place) -> Option<Arc<Integration>> {
    let workspace = house.versions.workspace();
    let mut known = workspace.integrations.iter();
    known.find(|known| *known.name == *place.integration && matches!(known.channel, Some(Channel::Slack))).cloned()
}

/// Without our credentials, and only to where Slack, or whoever stands in for it, takes such answers.
pub async fn answer(house: &House, gate: &Gate, place: &Place, job: JobId, url: &str, text: &str) {
    let (Some(partner), Ok(uri)) = (partner(house, place), url.parse::<Uri>()) else { return };
    if !is_slacks(&uri, &partner) {
        return tracing::warn!("somebody who pressed a button is not answered: its address is not one of Slack's");
    }
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = Bytes::from(slack::answer(text).to_string());
    let call = HttpCall { method: Method::POST, uri, headers, body, timeout: TIMEOUT, key: None };
    match gate.ask(job, &partner, Box::new(call), None).await {
        Ok(Ok(Sent::Answered { receipt, .. })) if (200..300).contains(&receipt.status) => {}
        _ => tracing::info!("somebody who pressed a button could not be answered"),
    }
}

fn is_slacks(uri: &Uri, partner: &Integration) -> bool {
    let base = partner.base_url.as_ref().and_then(|base| match base {
        clinch_core::expr::Template::Plain(base) => base.parse::<Uri>().ok(),
        clinch_core::expr::Template::Mixed(_) => None,
    });
    let is_home = |home: Uri| (home.scheme(), home.authority()) == (uri.scheme(), uri.authority());
    uri.scheme_str() == Some("https") && uri.authority().is_some_and(|authority| authority.as_str() == HOOKS)
        || base.is_some_and(is_home)
}
