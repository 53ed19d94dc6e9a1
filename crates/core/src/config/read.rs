//! Reading a checked tree. What was found wrong reads as nothing, silently, because it is in the report already; so no
//! problem is told twice and none is concluded from another.

use super::problem::{Report, Span};
use super::value::{self, Read};
use super::yaml::Node;

/// A value and its place, for what is said about it later.
#[derive(Clone, Debug)]
pub(super) struct Spot<T> {
    pub value: T,
    pub file: String,
    pub span: Span,
}

/// One map of the tree.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub node: &'a Node,
    pub report: &'a Report<'a>,
}

impl<'a> Reader<'a> {
    /// Nothing wrong with this map's own keys?
    pub fn is_sound(&self) -> bool {
        !self.report.is_flawed(self.node.span)
    }

    pub fn has(&self, name: &str) -> bool {
        self.node.get(name).is_some()
    }

    pub fn must<T>(&self, name: &str, how: impl FnOnce(&'a Node, &str) -> Read<T>) -> Option<T> {
        let node = self.node.get(name).filter(|node| !self.report.is_flawed(node.span))?;
        how(node, name).ok()
    }

    /// The outer `None` says that what is written is wrong, the inner that nothing is.
    pub fn may<T>(&self, name: &str, how: impl FnOnce(&'a Node, &str) -> Read<T>) -> Option<Option<T>> {
        if self.has(name) { self.must(name, how).map(Some) } else { Some(None) }
    }

    pub fn or<T>(&self, name: &str, default: T, how: impl FnOnce(&'a Node, &str) -> Read<T>) -> Option<T> {
        self.may(name, how).map(|value| value.unwrap_or(default))
    }

    pub fn spot<T>(&self, name: &str, how: impl FnOnce(&'a Node, &str) -> Read<T>) -> Option<Spot<T>> {
        let value = self.must(name, how)?;
        let span = self.node.get(name)?.head();
        Some(Spot { value, file: self.report.file.to_string(), span })
    }

    pub fn map(&self, name: &str) -> Option<Reader<'a>> {
        self.node.get(name).filter(|node| !node.is_null()).map(|node| Reader { node, report: self.report })
    }

    /// The maps of a list.
    pub fn maps(&self, name: &str) -> impl Iterator<Item = Reader<'a>> + Clone + use<'a> {
        let report = self.report;
        self.node.get(name).map_or(&[][..], Node::items).iter().map(move |node| Reader { node, report })
    }

    /// The name of a step, under either of its keys.
    pub fn step_name(&self) -> Option<Spot<String>> {
        self.spot("name", value::name).or_else(|| self.spot("id", value::name))
    }
}

/// A word of a choice, as what it stands for.
pub(super) fn word<T: Copy>(words: &[(&str, T)]) -> impl FnOnce(&Node, &str) -> Read<T> {
    move |node, name| {
        let written = value::text(node, name)?;
        let found = words.iter().find(|(word, _)| *word == written).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| Box::new(value::wrong_type(node, name, "a known word")))
    }
}
