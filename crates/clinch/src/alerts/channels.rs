//! The channels: each tells one notice at a time, on its own, with a few tries. What comes meanwhile waits in the book and is
//! told together; so a channel that hangs holds up nobody, and nothing piles up behind it.

use super::book::{Report, Taken};
use crate::carrier::{Carrier, NotCarried, Parcel};
use crate::house::House;
use crate::telemetry::NoticeOutcome;
use clinch_core::alert::notice::{Notice, signed};
use clinch_core::alert::{Channel, ChannelKind, How};
use clinch_core::config::address;
use clinch_core::signature::{Key, SecretFormat};
use clinch_core::time::Timestamp;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Notices that were told and are not yet written down. Each channel has one at a time, and there are no more channels.
const REPORTS_MAX: usize = 20;
/// A notice is tried so often, with a pause in between that doubles.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);
/// A notice that takes longer, with all its tries, is given up: who took it must say so before another takes it.
const NOTICE_MAX: Duration = Duration::from_secs(120);
/// After a notice a channel is left in peace for so long; what comes meanwhile is in one notice.
const PEACE: Duration = Duration::from_secs(5);

pub struct Channels {
    house: House,
    carrier: Arc<dyn Carrier>,
    /// Channels that tell something, and since when the others have told nothing.
    busy: BTreeMap<String, Option<Timestamp>>,
    done: (Sender<Report>, Receiver<Report>),
}

impl Channels {
    pub fn new(house: House, carrier: Arc<dyn Carrier>) -> Channels {
        Channels { house, carrier, busy: BTreeMap::new(), done: channel(REPORTS_MAX) }
    }

    /// Whether it may tell something now.
    pub fn is_free(&self, name: &str, now: Timestamp) -> bool {
        match self.busy.get(name) {
            None => true,
            Some(None) => false,
            Some(Some(since)) => now.since(*since) >= PEACE,
        }
    }

    /// What became of notices since the last time.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Ok(report) = self.done.1.try_recv() {
            self.busy.insert(report.channel.clone(), Some(self.house.clock.now()));
            reports.push(report);
        }
        reports
    }

    /// Tells it on its own.
    pub fn tell(&mut self, channel: &Channel, taken: Vec<Taken>, console: &str, now: Timestamp) {
        self.busy.insert(channel.name.clone(), None);
        let told: Vec<_> = taken.iter().map(|taken| (taken.no, taken.word)).collect();
        let notice = Notice::new(&channel.name, taken.into_iter().map(|taken| taken.item).collect(), now);
        let (house, carrier, done) = (self.house.clone(), self.carrier.clone(), self.done.0.clone());
        let (channel, console) = (channel.clone(), console.to_string());
        tokio::spawn(async move {
            let tell = tokio::time::timeout(NOTICE_MAX, tell(&house, &*carrier, &channel, &notice, &console));
            // Who leaves says nothing: another tells it again, rather than nobody.
            let how =
                tokio::select! { how = tell => how.unwrap_or(How::Dropped), () = house.stop.cancelled() => return };
            if how == How::Dropped {
                house.metrics.notice(&channel.name, NoticeOutcome::Dropped);
            }
            let _ = done.send(Report { channel: channel.name, how, taken: told }).await;
        });
    }
}

/// A few tries. What was handed over of it is not handed over again.
async fn tell(house: &House, carrier: &dyn Carrier, channel: &Channel, notice: &Notice, console: &str) -> How {
    let parcels = match parcels(house, channel, notice, console) {
        Ok(parcels) => parcels,
        Err(why) => {
            house.metrics.notice(&channel.name, NoticeOutcome::Error);
            tracing::warn!("channel `{}` cannot be told anything: {why}", channel.name);
            return How::Dropped;
        }
    };
    let mut parcels = parcels.iter();
    let mut parcel = parcels.next();
    let mut tried = 0;
    while let Some(now) = parcel {
        match carrier.carry(now).await {
            Ok(()) => (parcel, tried) = (parcels.next(), 0),
            Err(error) => {
                house.metrics.notice(&channel.name, NoticeOutcome::Error);
                tried += 1;
                let is_last = tried == TRIES || matches!(error, NotCarried::Never(_));
                let then = if is_last { "it is given up" } else { "it is tried again" };
                tracing::warn!("a notice could not be told by channel `{}`; {then}: {}", channel.name, error.why());
                if is_last {
                    return How::Dropped;
                }
                tokio::time::sleep(PAUSE * 2u32.pow(tried - 1)).await;
            }
        }
    }
    house.metrics.notice(&channel.name, NoticeOutcome::Sent);
    How::Sent
}

/// One try, for who wants to know whether it works.
pub async fn try_once(
    house: &House,
    carrier: &dyn Carrier,
    channel: &Channel,
    notice: &Notice,
    console: &str,
) -> Result<(), String> {
    for parcel in parcels(house, channel, notice, console)? {
        let carried = carrier.carry(&parcel).await;
        let outcome = if carried.is_ok() { NoticeOutcome::Sent } else { NoticeOutcome::Error };
        house.metrics.notice(&channel.name, outcome);
        carried.map_err(|error| error.why().to_string())?;
    }
    Ok(())
}

/// What the channel sends to say this, or why it cannot. Never repeats a secret.
fn parcels(house: &House, channel: &Channel, notice: &Notice, console: &str) -> Result<Vec<Parcel>, String> {
    let secret = |name: &str| house.secrets.get(name).ok_or_else(|| format!("the secret {name} is not set"));
    let post = |url: String, headers, body: String| Parcel::Post { url, headers, body };
    Ok(match &channel.kind {
        ChannelKind::SlackHook { url } => vec![post(secret(url)?, Vec::new(), notice.slack().to_string())],
        ChannelKind::Slack { integration, to } => {
            let mut body = notice.slack();
            body["channel"] = json!(to);
            vec![Parcel::Slack { integration: integration.clone(), body }]
        }
        ChannelKind::Mail { integration, to } => {
            let mail = |to: &clinch_core::message::Mailbox| Parcel::Mail {
                integration: integration.clone(),
                to: to.clone(),
                subject: format!("[clinch] {}", notice.subject()),
                text: notice.text(),
                id: notice.id.clone(),
            };
            to.iter().map(mail).collect()
        }
        ChannelKind::Webhook { url, secret: key } => {
            let url = address(url, |name| house.secrets.get(name)).map_err(|_| "its address cannot be filled in")?;
            let body = notice.json().to_string();
            let headers = match key {
                None => vec![("webhook-id", notice.id.clone())],
                Some(name) => {
                    let key = key_of(&secret(name)?).ok_or_else(|| format!("the secret {name} is not `whsec_…`"))?;
                    signed(&notice.id, notice.at, body.as_bytes(), &key).to_vec()
                }
            };
            vec![post(url, headers, body)]
        }
        ChannelKind::PagerDuty { key, url } => {
            let events = notice.pagerduty(&secret(key)?, console);
            events.iter().map(|event| post(url.clone(), Vec::new(), event.to_string())).collect()
        }
    })
}

fn key_of(secret: &str) -> Option<Vec<u8>> {
    match SecretFormat::StandardWebhooks.read(secret.trim()) {
        Ok(Key::Shared(key)) => Some(key),
        _ => None,
    }
}
