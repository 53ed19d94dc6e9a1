//! Bars over time: an SVG that is drawn here, and the same as a table for those who would rather read it.

use super::look;
use crate::api::shapes::Moment;
use askama::Template;
use clinch_core::time::{Timestamp, human};
use std::time::Duration;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 120.0;

/// What is counted, and how much of it in all.
pub struct Series {
    pub name: &'static str,
    pub sum: u64,
}

#[derive(Template)]
#[template(path = "chart.html")]
pub struct Chart {
    /// The id of its element on the page.
    id: &'static str,
    title: &'static str,
    series: Vec<Series>,
    bars: Vec<Bar>,
    most: u64,
    /// How long ago it begins.
    span: String,
    rows: Vec<Row>,
}

/// A rectangle of a series.
struct Bar {
    series: usize,
    x: String,
    y: String,
    width: String,
    height: String,
}

struct Row {
    since: String,
    counts: Vec<u64>,
}

impl Chart {
    /// `parts` begin at a time and have a count for each of the names; the last ends now.
    pub fn new<const N: usize>(
        (id, title): (&'static str, &'static str),
        names: [&'static str; N],
        parts: &[(Timestamp, [u64; N])],
        now: Timestamp,
    ) -> Chart {
        let most = parts.iter().map(|(_, counts)| counts.iter().sum()).max().unwrap_or(0);
        let width = WIDTH / parts.len().max(1) as f64;
        let mut bars = Vec::new();
        for (place, (_, counts)) in parts.iter().enumerate() {
            let mut top = HEIGHT;
            for (series, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                // What is there is never invisible.
                let height = (*count as f64 / most as f64 * (HEIGHT - 4.0)).max(1.5);
                top -= height;
                let number = |value: f64| format!("{value:.1}");
                let (x, width) = (place as f64 * width + width * 0.1, width * 0.8);
                bars.push(Bar { series, x: number(x), y: number(top), width: number(width), height: number(height) });
            }
        }
        let sum = |series: usize| parts.iter().map(|(_, counts)| counts[series]).sum();
        let series = names.into_iter().enumerate().map(|(nth, name)| Series { name, sum: sum(nth) }).collect();
        let row = |(since, counts): &(Timestamp, [u64; N])| Row { since: since.to_string(), counts: counts.to_vec() };
        // An empty part of a day is not worth a line.
        let rows = parts.iter().rev().filter(|(_, counts)| counts.iter().any(|count| *count > 0)).map(row).collect();
        let span = parts.first().map_or_else(String::new, |(since, _)| human(now.since(*since)));
        Chart { id, title, series, bars, most, span, rows }
    }
}

/// The states that something was in during the last hour: pieces of a line, and the same in words.
pub struct Track {
    pub pieces: Vec<Piece>,
}

pub struct Piece {
    pub state: String,
    pub since: Moment,
    pub x: String,
    pub width: String,
}

const TRACK: Duration = Duration::from_secs(3_600);

impl Track {
    /// `turns` are changes of state, the oldest first, from closed on. Nothing where there were none.
    pub fn new(turns: &[(Timestamp, &str)], now: Timestamp) -> Option<Track> {
        let start = now - TRACK;
        let recent: Vec<_> = turns.iter().filter(|(at, _)| *at > start).collect();
        if recent.is_empty() {
            return None;
        }
        let before = turns.iter().rev().find(|(at, _)| *at <= start).map_or("closed", |(_, state)| *state);
        let begins: Vec<(Timestamp, &str)> =
            std::iter::once((start, before)).chain(recent.iter().map(|(at, state)| (*at, *state))).collect();
        let ends = begins.iter().skip(1).map(|(at, _)| *at).chain([now]);
        let share = |span: Duration| span.as_secs_f64() / TRACK.as_secs_f64() * WIDTH;
        let piece = |((since, state), end): (&(Timestamp, &str), Timestamp)| Piece {
            state: (*state).into(),
            since: Moment(*since),
            x: format!("{:.1}", share(since.since(start))),
            width: format!("{:.1}", share(end.since(*since)).max(1.0)),
        };
        Some(Track { pieces: begins.iter().zip(ends).map(piece).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e3_a_track_shows_the_states_of_the_last_hour() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let ago = |minutes: u64| now - Duration::from_secs(60 * minutes);
        assert!(Track::new(&[(ago(90), "open"), (ago(80), "closed")], now).is_none());
        let track = Track::new(&[(ago(90), "open"), (ago(30), "half_open"), (ago(15), "closed")], now).expect("turns");
        let pieces: Vec<_> = track.pieces.iter().map(|piece| (piece.state.as_str(), piece.x.as_str())).collect();
        assert_eq!(pieces, [("open", "0.0"), ("half_open", "320.0"), ("closed", "480.0")]);
        assert_eq!(track.pieces[2].width, "160.0");
    }

    #[test]
    fn i1_a_chart_is_drawn_here_and_can_be_read_as_a_table() {
        let start = Timestamp::from_micros(1_790_000_000_000_000);
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let parts = [(at(0), [4, 0]), (at(1), [0, 0]), (at(2), [1, 1])];
        let text = Chart::new(("door", "Requests"), ["accepted", "rejected"], &parts, at(3)).render().expect("HTML");
        assert_eq!(text.matches("<rect").count(), 3, "one for what was accepted, two in the last part: {text}");
        assert_eq!(text.matches("<tr>").count(), 3, "a head, and two parts in which something happened: {text}");
        assert!(text.contains("Requests of the last 3m: 5 accepted, 1 rejected"), "{text}");
        assert!(!text.contains("style="), "{text}");
    }
}
