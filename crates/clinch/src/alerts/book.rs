//! The book of alerts: the rows of the store that are not at rest, as they were at the last look, and what we change of them.
//!
//! Each change says which version it changes, and of all nodes one is first; who is late looks again. While the store cannot
//! write the book goes on by itself, because that is when people must be told; it is written down when the store is back.

use super::{line, soon};
use crate::house::House;
use clinch_core::alert::notice::{ITEMS_MAX, Item};
use clinch_core::alert::{Alert, Channel, Episode, How, Name, Routes, Silence, Step, Told, Word, due, is_at_rest};
use clinch_core::time::Timestamp;
use clinch_store::{AlertRow, Alerts};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Who hears of the second hears nothing of the first: an integration that is cut off is blamed for its failures already, and an
/// objective that burns fast burns slowly too.
const INHIBITED: [(&str, &str); 2] =
    [("ClinchErrorRate", "ClinchCircuitOpen"), ("ClinchObjectiveBurningSlowly", "ClinchObjectiveBurning")];

/// Who has told something tries so often to write it down against those who write at the same moment.
const TELL_TRIES: usize = 5;

pub struct Book {
    house: House,
    episodes: Vec<Episode>,
    /// Those that the store does not know as they are here, by number; below zero are those that it does not know at all.
    unwritten: BTreeSet<i64>,
    /// What the store calls those that it did not know at first.
    known_as: BTreeMap<i64, i64>,
    next: i64,
}

/// An alert that somebody tells.
#[derive(Clone, Debug)]
pub struct Taken {
    pub no: i64,
    pub word: Word,
    pub item: Item,
}

/// What became of a notice.
#[derive(Clone, Debug)]
pub struct Report {
    pub channel: String,
    pub taken: Vec<(i64, Word, How)>,
}

impl Book {
    pub fn new(house: House) -> Book {
        Book { house, episodes: Vec::new(), unwritten: BTreeSet::new(), known_as: BTreeMap::new(), next: -1 }
    }

    pub fn episodes(&self) -> &[Episode] {
        &self.episodes
    }

    /// As it is now, once what we had to write is written.
    pub async fn load(&mut self) {
        for no in std::mem::take(&mut self.unwritten) {
            let Some(episode) = self.episodes.iter().find(|episode| episode.no == no) else { continue };
            let row = row(episode, None);
            let written = match no < 0 {
                true => soon(self.house.store.raise_alert(row)).await.map(|known| {
                    // Whoever tells it still knows it by the number that it had here.
                    self.known_as.extend(known.map(|known| (no, known)));
                }),
                false => soon(self.house.store.mark_alert(row)).await.map(drop),
            };
            if written.is_err() {
                self.unwritten.insert(no);
            }
        }
        if !self.unwritten.is_empty() {
            return;
        }
        match soon(self.house.store.alerts(Alerts::Restless)).await {
            Ok(rows) => self.episodes = rows.iter().filter_map(read).collect(),
            Err(error) => tracing::debug!("alerts are as they were: {error}"),
        }
    }

    /// What was decided at this look.
    pub async fn write(&mut self, step: Step, routes: &Routes, now: Timestamp) {
        match step {
            Step::Raise(alert) => self.raise(alert, routes, now).await,
            Step::See { name, value } => {
                let Some(episode) = self.open(&name) else { return };
                let alert = Alert { seen_at: now, value, ..episode.alert.clone() };
                self.change(episode.no, alert).await;
            }
            Step::Resolve { name } => {
                let Some(episode) = self.open(&name) else { return };
                let alert = Alert { resolved_at: Some(now), ..episode.alert.clone() };
                if self.change(episode.no, alert.clone()).await {
                    tracing::info!("it is over: {}", line(&alert));
                }
            }
        }
    }

    fn open(&self, name: &Name) -> Option<&Episode> {
        self.episodes.iter().find(|episode| episode.alert.is_firing() && episode.alert.name() == *name)
    }

    async fn raise(&mut self, mut alert: Alert, routes: &Routes, now: Timestamp) {
        // Where nobody is told, who looks can know it from now on.
        let is_told =
            |channel: &Channel| due(&alert, channel, self.is_silent(&alert, now), routes.repeat, now).is_some();
        let is_first_signal = !routes.channels.iter().any(is_told);
        if is_first_signal {
            alert.signal_at = Some(now);
        }
        let mut episode = Episode { no: self.next, version: 1, alert };
        match soon(self.house.store.raise_alert(row(&episode, None))).await {
            Ok(Some(no)) => episode.no = no,
            // Another node saw it too; the next look shows it.
            Ok(None) => return,
            Err(error) => {
                tracing::debug!("an alert is not written down yet: {error}");
                self.unwritten.insert(self.next);
                self.next -= 1;
            }
        }
        tracing::warn!("{}", line(&episode.alert));
        if is_first_signal {
            self.house.metrics.first_signal(now.since(episode.alert.fault_at));
        }
        self.episodes.push(episode);
    }

    /// Whether it is as we say now. If not, somebody else was faster.
    async fn change(&mut self, no: i64, alert: Alert) -> bool {
        self.change_until(no, alert, None).await
    }

    async fn change_until(&mut self, no: i64, alert: Alert, rest: Option<Timestamp>) -> bool {
        let Some(at) = self.episodes.iter().position(|episode| episode.no == no) else { return false };
        let changed = Episode { alert, ..self.episodes[at].clone() };
        let is_unwritten = self.unwritten.contains(&no);
        let marked = match is_unwritten {
            true => Ok(true),
            false => soon(self.house.store.mark_alert(row(&changed, rest))).await,
        };
        match marked {
            Ok(true) => {
                let version = if is_unwritten { changed.version } else { changed.version + 1 };
                self.episodes[at] = Episode { version, ..changed };
                true
            }
            Ok(false) => {
                // It is read again at the next look.
                self.episodes.remove(at);
                false
            }
            Err(error) => {
                tracing::debug!("an alert is not written down yet: {error}");
                self.unwritten.insert(no);
                self.episodes[at] = changed;
                true
            }
        }
    }

    /// What this channel is to be told now, and nobody else tells it.
    pub async fn take(&mut self, channel: &Channel, repeat: Duration, console: &str, now: Timestamp) -> Vec<Taken> {
        let word = |alert: &Alert| due(alert, channel, self.is_silent(alert, now), repeat, now);
        let wanted: Vec<(i64, Word)> = self
            .episodes
            .iter()
            .filter_map(|episode| Some((episode.no, word(&episode.alert)?)))
            .take(ITEMS_MAX)
            .collect();
        let mut taken = Vec::new();
        for (no, word) in wanted {
            let Some(episode) = self.episodes.iter().find(|episode| episode.no == no) else { continue };
            let mut alert = episode.alert.clone();
            let told = Told::after(alert.told.get(&channel.name), word, How::Taken, now);
            alert.told.insert(channel.name.clone(), told);
            let item = Item::of(&alert, word, console);
            if let (true, Some(item)) = (self.change(no, alert).await, item) {
                taken.push(Taken { no, word, item });
            }
        }
        taken.sort_by_key(|taken| (taken.word, taken.item.severity));
        taken
    }

    /// Somebody does not want to hear that it fires, or hears of the cause already.
    fn is_silent(&self, alert: &Alert, now: Timestamp) -> bool {
        let controls = self.house.controls.get();
        let by_person = controls.silences(now).any(|silence: &Silence| silence.is_about(alert));
        let is_cause = |episode: &Episode, cause: &str| {
            episode.alert.is_firing() && episode.alert.rule == cause && episode.alert.labels == alert.labels
        };
        let mut causes = INHIBITED.iter().filter(|(rule, _)| *rule == alert.rule);
        by_person || causes.any(|(_, cause)| self.episodes.iter().any(|episode| is_cause(episode, cause)))
    }

    /// A channel has told it, or has given up. Another node may have changed the alert since; then it is read again, so that
    /// nobody is told twice.
    pub async fn told(&mut self, report: &Report, now: Timestamp) {
        for (no, word, how) in &report.taken {
            for _ in 0..TELL_TRIES {
                if self.told_one(*no, (*word, *how), &report.channel, now).await {
                    break;
                }
                self.load().await;
            }
        }
    }

    async fn told_one(&mut self, no: i64, (word, how): (Word, How), channel: &str, now: Timestamp) -> bool {
        let no = self.known_as.get(&no).copied().unwrap_or(no);
        let Some(episode) = self.episodes.iter().find(|episode| episode.no == no) else { return false };
        let mut alert = episode.alert.clone();
        let told = Told::after(alert.told.get(channel), word, how, now);
        alert.told.insert(channel.to_string(), told);
        let is_first = how == How::Sent && word == Word::Firing && alert.signal_at.is_none();
        if is_first {
            alert.signal_at = Some(now);
        }
        let took = now.since(alert.fault_at);
        let is_written = self.change(no, alert).await;
        if is_written && is_first {
            self.house.metrics.first_signal(took);
        }
        is_written
    }

    /// What is over and of which nobody will hear more.
    pub async fn lay_to_rest(&mut self, channels: &[Channel], now: Timestamp) {
        let is_over =
            |episode: &&Episode| !self.unwritten.contains(&episode.no) && is_at_rest(&episode.alert, channels, now);
        let over: Vec<(i64, Alert)> =
            self.episodes.iter().filter(is_over).map(|episode| (episode.no, episode.alert.clone())).collect();
        for (no, alert) in over {
            self.change_until(no, alert, Some(now)).await;
            self.known_as.retain(|_, known| *known != no);
        }
    }
}

fn row(episode: &Episode, rest_at: Option<Timestamp>) -> AlertRow {
    let alert = &episode.alert;
    AlertRow {
        id: episode.no,
        name: alert.name().to_string().into(),
        version: episode.version,
        value: alert.to_json(),
        began_at: alert.fired_at,
        ended_at: alert.resolved_at,
        rest_at,
    }
}

fn read(row: &AlertRow) -> Option<Episode> {
    Some(Episode { no: row.id, version: row.version, alert: Alert::from_json(&row.value)? })
}
