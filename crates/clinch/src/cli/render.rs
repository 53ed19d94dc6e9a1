//! What people and programs read: tables, JSON, and notes beside them.

use super::Failure;
use crate::api::shapes::Moment;
use crate::cli::Exit;
use crate::clock::{Clock, SystemClock};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use clinch_core::time::{Timestamp, human};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned columns with a header
    Table,
    /// One JSON document
    Json,
    /// One JSON value per line
    Jsonl,
    /// Tab-separated, no header, no colour
    Plain,
    /// Only ids, one per line
    Id,
}

impl Output {
    /// Without a terminal, a program reads.
    pub fn usual() -> Output {
        if std::io::stdout().is_terminal() { Output::Table } else { Output::Plain }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    pub fn apply(self) {
        match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

pub const DIM: Style = Style::new().dimmed();
pub const BOLD: Style = Style::new().bold();
/// What nobody should overlook.
pub const RED: Style = AnsiColor::Red.on_default().bold();

/// What was asked for: one line or many, on standard output.
pub fn data(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| match text.ends_with('\n') || text.is_empty() {
        true => out.flush(),
        false => out.write_all(b"\n").and_then(|()| out.flush()),
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::nobody_listens(),
        _ => Failure::new(Exit::Failed, "CL0531", format!("The output cannot be written: {error}")),
    })
}

/// Beside the data: what happened, or the next useful command.
pub fn note(text: &str) {
    complain(&format!("{DIM}{}{DIM:#}", clean(text)));
}

/// The next useful command, for people.
pub fn next(output: Output, command: &str) {
    if matches!(output, Output::Table | Output::Plain) {
        note(&format!("next: {command}"));
    }
}

/// On standard error. Who closed it does not want to know.
pub fn complain(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

pub fn json(output: Output, document: &Value) -> Result<(), Failure> {
    match output {
        Output::Jsonl => data(&document.to_string()),
        _ => data(&serde_json::to_string_pretty(document).expect("a JSON value is always JSON")),
    }
}

/// One thing: as JSON, as its id, or as people read it.
pub fn show(output: Output, document: &Value, id: &str, text: impl FnOnce() -> String) -> Result<(), Failure> {
    match output {
        Output::Json | Output::Jsonl => json(output, document),
        Output::Id => data(id),
        Output::Table | Output::Plain => data(&text()),
    }
}

/// A text from elsewhere, without characters that a terminal obeys.
pub fn clean(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| {
            if c == '\t' || c == '\n' {
                ' '
            } else if hidden(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// At most so many characters, the last one an ellipsis if something was left out.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

pub fn now() -> Timestamp {
    SystemClock::default().now()
}

pub fn age(at: Moment, now: Timestamp) -> String {
    human(now.since(at.0))
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 job`, `2 jobs`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number as u64), if number == 1 { "" } else { "s" })
}

pub fn state_style(state: &str) -> Style {
    let color = match state {
        "success" | "done" | "accepted" => AnsiColor::Green,
        "dead" | "conflict" => AnsiColor::Red,
        "waiting" | "retrying" | "unknown" | "open" | "given_up" => AnsiColor::Yellow,
        "running" | "replay" => AnsiColor::Cyan,
        _ => return Style::new(),
    };
    Style::new().fg_color(Some(color.into()))
}

pub fn state(word: &str) -> String {
    let style = state_style(word);
    format!("{style}{}{style:#}", clean(word))
}

/// A table's cell: how people read it, and how a program does.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    plain: String,
    style: Style,
}

impl Cell {
    pub fn text(text: impl AsRef<str>) -> Cell {
        let text = clean(text.as_ref());
        Cell { plain: text.clone(), text, style: Style::new() }
    }

    pub fn number(number: impl Into<u64>) -> Cell {
        let number = number.into();
        Cell { text: thousands(number), plain: number.to_string(), style: Style::new() }
    }

    pub fn state(word: &str) -> Cell {
        Cell { style: state_style(word), ..Cell::text(word) }
    }

    /// What nobody should overlook.
    pub fn alarm(text: impl AsRef<str>) -> Cell {
        Cell { style: RED, ..Cell::text(text) }
    }

    /// How long ago; for programs, when.
    pub fn age(at: Moment, now: Timestamp) -> Cell {
        Cell { text: age(at, now), plain: at.0.to_string(), style: Style::new() }
    }

    /// Shortened for people.
    pub fn short(text: impl AsRef<str>, most: usize) -> Cell {
        let cell = Cell::text(text);
        Cell { text: cut(&cell.text, most), ..cell }
    }
}

pub struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: &'static [&'static str]) -> Table {
        Table { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Prints the list in `document[items]`, of which this is the table.
    pub fn print(&self, output: Output, document: &Value, items: &str) -> Result<(), Failure> {
        match output {
            Output::Json => json(output, document),
            Output::Jsonl => {
                let items = document[items].as_array().map_or(&[][..], Vec::as_slice);
                items.iter().try_for_each(|item| data(&item.to_string()))
            }
            Output::Id => self.rows.iter().try_for_each(|row| data(&row[0].plain)),
            Output::Plain => data(&self.plain()),
            Output::Table if self.rows.is_empty() => Ok(()),
            Output::Table => data(&self.aligned()),
        }
    }

    fn plain(&self) -> String {
        self.rows
            .iter()
            .map(|row| row.iter().map(|cell| cell.plain.as_str()).collect::<Vec<_>>().join("\t") + "\n")
            .collect()
    }

    fn aligned(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].text.chars().count());
                cells.chain([self.columns[column].len()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: Vec<(String, usize, Style)>| {
            let mut text = String::new();
            for (column, (cell, width, style)) in cells.iter().enumerate() {
                text += &format!("{style}{cell}{style:#}");
                if column + 1 < cells.len() {
                    text += &" ".repeat(widths[column] - width + 2);
                }
            }
            text.trim_end().to_string() + "\n"
        };
        let header = self.columns.iter().map(|name| (name.to_string(), name.len(), BOLD)).collect();
        let mut text = line(header);
        for row in &self.rows {
            text += &line(row.iter().map(|cell| (cell.text.clone(), cell.text.chars().count(), cell.style)).collect());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", "STATE", "ERROR"]);
        table.row(vec![Cell::text("job_1"), Cell::state("dead"), Cell::short("it\tfailed\u{1b}[31m badly", 10)]);
        table.row(vec![Cell::text("job_22"), Cell::state("success"), Cell::text("")]);
        table
    }

    #[test]
    fn a_table_is_aligned_under_its_header() {
        let text = anstream::adapter::strip_str(&table().aligned()).to_string();
        assert_eq!(text, "ID      STATE    ERROR\njob_1   dead     it failed…\njob_22  success\n");
    }

    #[test]
    fn plain_rows_are_for_programs() {
        assert_eq!(table().plain(), "job_1\tdead\tit failed\u{fffd}[31m badly\njob_22\tsuccess\t\n");
    }

    #[test]
    fn numbers_are_told_in_groups() {
        let told: Vec<String> = [0, 999, 1_000, 1_234_567].map(thousands).into();
        assert_eq!(told, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((count(1, "error"), count(2, "error")), ("1 error".into(), "2 errors".into()));
    }
}
