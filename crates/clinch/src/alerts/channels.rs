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
            let mut handed = Vec::new();
            let tell =
                tokio::time::timeout(NOTICE_MAX, tell(&house, &*carrier, &channel, &notice, &console, &mut handed));
            // Who leaves says nothing: another tells it again, rather than nobody.
            let is_whole =
                tokio::select! { whole = tell => whole.unwrap_or(false), () = house.stop.cancelled() => return };
            let outcome = if is_whole { NoticeOutcome::Sent } else { NoticeOutcome::Dropped };
            house.metrics.notice(&channel.name, outcome);
            let is_told = |nth: usize| match channel.kind {
                ChannelKind::PagerDuty { .. } => handed.get(nth) == Some(&true),
                _ => handed.contains(&true),
            };
            let how = |nth: usize| if is_told(nth) { How::Sent } else { How::Dropped };
            let taken = told.into_iter().enumerate().map(|(nth, (no, word))| (no, word, how(nth))).collect();
            let _ = done.send(Report { channel: channel.name, taken }).await;
        });
    }
}

/// Whether all of it was handed over; `handed` is what of it was: PagerDuty gets an event for each alert, a mail goes to each address.
async fn tell(
    house: &House,
    carrier: &dyn Carrier,
    channel: &Channel,
    notice: &Notice,
    console: &str,
    handed: &mut Vec<bool>,
) -> bool {
    let parcels = match parcels(house, channel, notice, console) {
        Ok(parcels) => parcels,
        Err(why) => {
            house.metrics.notice(&channel.name, NoticeOutcome::Error);
            tracing::warn!("channel `{}` cannot be told anything: {why}", channel.name);
            return false;
        }
    };
    hand_over(carrier, &parcels, handed, &|error, is_last| {
        house.metrics.notice(&channel.name, NoticeOutcome::Error);
        let then = if is_last { "it is given up" } else { "it is tried again" };
        tracing::warn!("a notice could not be told by channel `{}`; {then}: {}", channel.name, error.why());
    })
    .await;
    !handed.contains(&false)
}

/// Called for each try that failed, with whether it was the last.
type Missed<'a> = &'a (dyn Fn(&NotCarried, bool) + Send + Sync);

/// A few tries for each. What was handed over is not handed over again, and who cannot be reached keeps it from nobody else.
async fn hand_over(carrier: &dyn Carrier, parcels: &[Parcel], handed: &mut Vec<bool>, missed: Missed<'_>) {
    let mut tries = TRIES;
    for parcel in parcels {
        let carried = carry(carrier, parcel, tries, missed).await;
        // After one that was tried in vain the others get one try: all of it has to end in time.
        if let Err(NotCarried::Later(_)) = carried {
            tries = 1;
        }
        handed.push(carried.is_ok());
    }
}

async fn carry(carrier: &dyn Carrier, parcel: &Parcel, tries: u32, missed: Missed<'_>) -> Result<(), NotCarried> {
    let mut tried = 0;
    loop {
        let Err(error) = carrier.carry(parcel).await else { return Ok(()) };
        tried += 1;
        let is_last = tried >= tries || matches!(error, NotCarried::Never(_));
        missed(&error, is_last);
        if is_last {
            return Err(error);
        }
        tokio::time::sleep(PAUSE * 2u32.pow(tried - 1)).await;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::Soon;
    use std::sync::Mutex;

    /// Takes what is not for `nobody`, and keeps the addresses.
    #[derive(Default)]
    struct Postman(Mutex<Vec<String>>);

    impl Carrier for Postman {
        fn carry<'a>(&'a self, parcel: &'a Parcel) -> Soon<'a, Result<(), NotCarried>> {
            let Parcel::Post { url, .. } = parcel else { panic!("{parcel:?}") };
            self.0.lock().expect("nobody panicked").push(url.clone());
            let carried = if url == "nobody" { Err(NotCarried::Never("it answered 550".into())) } else { Ok(()) };
            Box::pin(std::future::ready(carried))
        }
    }

    #[tokio::test]
    async fn h4_who_cannot_be_told_keeps_a_notice_from_nobody_else() {
        let parcel = |url: &str| Parcel::Post { url: url.into(), headers: Vec::new(), body: String::new() };
        let (postman, mut handed) = (Postman::default(), Vec::new());
        let parcels = ["ada", "nobody", "bob"].map(parcel);
        hand_over(&postman, &parcels, &mut handed, &|_, is_last| assert!(is_last)).await;
        assert_eq!(handed, [true, false, true]);
        assert_eq!(*postman.0.lock().expect("nobody panicked"), ["ada", "nobody", "bob"], "each once");
    }
}
