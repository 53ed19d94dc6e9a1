//! The alarm: looks at everything once a second, writes down what is wrong and what is over, and tells people.
//!
//! `look` reads, `core/alert` decides, `book` remembers, `channels` tell. Nothing here is waited for by anybody: what takes
//! long takes long here alone.

mod book;
mod channels;
mod look;
mod meter;

use crate::alarms::Alarms;
use crate::carrier::Carrier;
use crate::house::House;
use crate::partners::Outlook;
use crate::people::Soon;
use book::Book;
use channels::Channels;
use clinch_core::alert::notice::Notice;
use clinch_core::alert::{Alert, Found, Routes, Rule, Watch};
use clinch_core::time::Timestamp;
use look::Looker;
use std::sync::Arc;
use std::time::Duration;

/// How often everything is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// The store is waited for no longer than this.
const STORE_WAIT: Duration = Duration::from_secs(2);

pub struct Alarm {
    house: House,
    outlook: Arc<dyn Outlook>,
    carrier: Arc<dyn Carrier>,
    /// The console's own address.
    address: String,
}

impl Alarm {
    pub fn new(house: House, outlook: Arc<dyn Outlook>, carrier: Arc<dyn Carrier>, address: String) -> Alarm {
        Alarm { house, outlook, carrier, address }
    }

    fn routes(&self) -> Routes {
        self.house.versions.now().settings.alerts.clone()
    }

    /// Watches until the house is left.
    pub async fn watch(&self) {
        let house = &self.house;
        let mut looker = Looker::new(house.clone(), self.outlook.clone());
        let (mut watch, mut book) = (Watch::default(), Book::new(house.clone()));
        let mut channels = Channels::new(house.clone(), self.carrier.clone());
        let mut beat = tokio::time::interval(EVERY);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = house.stop.cancelled() => break,
                _ = beat.tick() => {}
            }
            let (routes, now) = (self.routes(), house.clock.now());
            let readings = looker.look(now).await;
            let found = found(&routes, &readings, now);
            book.load().await;
            for step in watch.step(&found, book.episodes(), &routes, now) {
                book.write(step, &routes, now).await;
            }
            self.tell(&mut book, &mut channels, &routes).await;
        }
        // What has been told by now is written down, so that it is not told again.
        for report in channels.reports() {
            book.told(&report, house.clock.now()).await;
        }
    }

    /// Writes down what was told, and hands the channels that are free what they are to tell next.
    async fn tell(&self, book: &mut Book, channels: &mut Channels, routes: &Routes) {
        let now = self.house.clock.now();
        for report in channels.reports() {
            book.told(&report, now).await;
        }
        for channel in routes.channels.iter().filter(|channel| channels.is_free(&channel.name, now)).collect::<Vec<_>>()
        {
            let taken = book.take(channel, routes.repeat, &self.console(), now).await;
            if !taken.is_empty() {
                channels.tell(channel, taken, &self.console(), now);
            }
        }
        book.lay_to_rest(&routes.channels, now).await;
    }
}

impl Alarms for Alarm {
    fn test<'a>(&'a self, channel: &'a str) -> Soon<'a, Option<Result<(), String>>> {
        Box::pin(async move {
            let routes = self.routes();
            let channel = routes.channel(channel)?;
            let notice = Notice::test(&channel.name, &self.console(), self.house.clock.now());
            Some(channels::try_once(&self.house, &*self.carrier, channel, &notice, &self.console()).await)
        })
    }

    fn console(&self) -> String {
        self.routes().console.unwrap_or_else(|| self.address.clone())
    }
}

/// What is wrong now, by every rule that is judged.
fn found(routes: &Routes, readings: &clinch_core::alert::Readings, now: Timestamp) -> Vec<(&'static Rule, Found)> {
    let judged = routes.judged().filter_map(|rule| Some((rule, rule.judge?)));
    judged
        .flat_map(|(rule, judge)| {
            let found = judge(readings, routes.limit(rule), now);
            found.into_iter().map(move |found| (rule, found))
        })
        .collect()
}

/// What the store says within a bounded time. An alarm does not wait for the one that it is about: what may or may not have been
/// written is read again later.
async fn soon<T>(answer: impl Future<Output = clinch_store::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(STORE_WAIT, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the store does not answer".into()),
    }
}

/// For the log: what people are told too.
fn line(alert: &Alert) -> String {
    let summary = Rule::find(&alert.rule).map_or("", |rule| rule.summary);
    format!("{}: {summary}", alert.name())
}
