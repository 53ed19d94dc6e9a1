//! The door of Slack's buttons: who pressed one is recognised by Slack's signature and his user id, and his vote counts like any
//! other.

use super::answer::Answer;
use super::body;
use super::route::DoorMetrics;
use crate::house::House;
use crate::people::{People, decide as vote};
use crate::telemetry::IntakeOutcome;
use clinch_core::approval::ApprovalId;
use clinch_core::audit::{Record, Right};
use clinch_core::config::SlackButtons;
use clinch_core::signature::presets;
use clinch_core::signature::{self, Request, Scheme, Secret, Window};
use clinch_core::slack::{self, NotPressed, Pressed};
use clinch_store::{DecideAsk, Decided, StoreError};
use hyper::body::Incoming;
use std::sync::Arc;

/// Under this name it is counted.
const NAME: &str = "slack.actions";
const BODY_BYTES_MAX: usize = 256 << 10;
const REASON: &str = "pressed in Slack";

pub struct Buttons {
    settings: SlackButtons,
    scheme: Scheme,
    people: Arc<dyn People>,
    metrics: DoorMetrics,
}

impl Buttons {
    pub fn new(house: &House, settings: SlackButtons, people: Arc<dyn People>) -> Buttons {
        let scheme = (presets::find("slack").expect("it is one of them").scheme)();
        Buttons { settings, scheme, people, metrics: DoorMetrics::of(house, NAME, []) }
    }

    pub fn is_at(&self, path: &str) -> bool {
        path == SlackButtons::PATH
    }

    pub async fn answer(&self, house: &House, request: hyper::Request<Incoming>) -> Answer {
        let began = std::time::Instant::now();
        let (outcome, answer) = match self.take(house, request).await {
            Ok(said) => (IntakeOutcome::Accepted, Answer::said(&slack::answer(&said))),
            Err(refusal) => (refusal.outcome(), refusal),
        };
        self.metrics.count(outcome, began.elapsed(), None, || house.clock.now());
        answer
    }

    /// What the one who pressed is told.
    async fn take(&self, house: &House, request: hyper::Request<Incoming>) -> Result<String, Answer> {
        let (head, body) = request.into_parts();
        if head.method != hyper::Method::POST {
            return Err(Answer::wrong_method("POST"));
        }
        body::encoding(&head.headers, false)?;
        let body = body::read(body, &head.headers, BODY_BYTES_MAX).await?;
        let headers: Vec<(&str, &[u8])> =
            head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        self.verify(house, &Request { method: "POST", url: SlackButtons::PATH, headers: &headers, body: &body })?;
        let pressed = match slack::pressed(&body) {
            Ok(pressed) => pressed,
            // Slack tells of everything that is pressed in messages of the app, also of links.
            Err(NotPressed::NotOurs) => return Ok("Nothing was to be done.".into()),
            Err(error) => return Err(Answer::not_a_press(&error)),
        };
        let said = self.decide(house, &pressed).await.map_err(|error| Answer::unavailable(&error))?;
        self.reply(house, pressed, said.clone());
        Ok(said)
    }

    fn verify(&self, house: &House, request: &Request<'_>) -> Result<(), Answer> {
        let secret = house.secrets.current(&self.settings.signing_secret).map_err(|_| Answer::no_secret())?;
        let key = self.scheme.secret_format().read(&secret).map_err(|_| Answer::no_secret())?;
        let secrets = signature::Secrets::new(vec![Secret::new(NAME.to_string(), key)]);
        let secrets = secrets.map_err(|_| Answer::no_secret())?;
        let window = Window { now: house.clock.now(), tolerance: None };
        signature::verify(&self.scheme, request, &secrets, window).map(drop).map_err(|refusal| {
            tracing::warn!("a press of a button is not Slack's: {refusal}");
            Answer::unverified()
        })
    }

    async fn decide(&self, house: &House, pressed: &Pressed) -> Result<String, StoreError> {
        let Some(actor) = self.settings.person(&pressed.user) else {
            return Ok(format!(
                "You are not known here, so nothing was decided. Ask for a line `{}: NAME` below approvals, slack, users in clinch.yml.",
                pressed.user
            ));
        };
        let mut said = Vec::with_capacity(pressed.approvals.len());
        for approval in &pressed.approvals {
            let (actor, origin, at) = (actor.to_string(), "slack".into(), house.clock.now());
            // He is known by the workspace; if he is also a user, his role counts.
            let record = Record { actor, origin, right: Right::Named, reason: REASON.into(), at };
            let ask = DecideAsk { approval: approval.clone(), vote: pressed.vote, record };
            said.push(match vote(house, ask).await {
                Ok(decided) => told(approval, &decided),
                Err(StoreError::NotAllowed(why)) => format!("`{approval}`: {why}."),
                Err(error) => return Err(error),
            });
        }
        Ok(said.join("\n"))
    }

    /// Slack shows what it is answered to nobody: the one who pressed is told at an address of his own. Not waited for, because
    /// Slack does not wait.
    fn reply(&self, house: &House, pressed: Pressed, said: String) {
        let (people, house) = (self.people.clone(), house.clone());
        tokio::spawn(async move {
            let (Some(url), Some(first)) = (pressed.response_url, pressed.approvals.first()) else { return };
            let Ok(Some(row)) = house.store.approval(first).await else { return };
            let Some(place) = row.place else { return };
            tokio::select! {
                () = people.answer(&place, first.job, &url, &said) => {}
                () = house.stop.cancelled() => {}
            }
        });
    }
}

fn told(approval: &ApprovalId, decided: &Decided) -> String {
    match decided {
        Decided::Verdict(decision) => format!("`{approval}` is {}.", decision.verdict.word()),
        Decided::Counted(tally) => format!("`{approval}`: your vote counts; {tally}."),
        Decided::Before(tally) => format!("`{approval}`: you have said so before; {tally}."),
        Decided::Late(decision) => format!("`{approval}`: too late, {}.", decision.told()),
        Decided::NotAllowed(why) => format!("`{approval}`: {why}."),
        Decided::NotFound => format!("`{approval}` is not there; its retention may have ended."),
    }
}
