//! Where things are written: the lines to point to when something is said of a workspace that was read already.

use super::problem::{Report, position};
use super::yaml::{self, Node};
use super::{FileKind, Files};

/// The files of a workspace as trees that know their places.
pub struct Places {
    files: Vec<File>,
}

struct File {
    path: String,
    text: String,
    kind: FileKind,
    root: Node,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: String,
    pub line: usize,
}

impl Places {
    /// What cannot be read has no places; it was told when the workspace was read.
    pub fn of(files: &Files) -> Places {
        let read = |(path, text): &(String, String)| {
            let kind = FileKind::of(path).filter(|kind| !matches!(kind, FileKind::Schema | FileKind::Template))?;
            let root = yaml::parse(&mut Report::new(path, text))?;
            Some(File { path: path.clone(), text: text.clone(), kind, root })
        };
        Places { files: files.0.iter().filter_map(read).collect() }
    }

    fn of_kind(&self, kind: FileKind) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.kind == kind)
    }

    fn settings(&self) -> Option<&File> {
        self.of_kind(FileKind::Settings).next()
    }

    /// A flow or a playbook.
    pub fn flow(&self, name: &str) -> Place {
        let mut known = self.of_kind(FileKind::Flow).chain(self.of_kind(FileKind::Playbook));
        known.find(|file| file.is_called(name)).map_or_else(nowhere, File::head)
    }

    /// A worker or a playbook.
    pub fn worker(&self, name: &str, key: &str) -> Place {
        self.worker_file(name).map_or_else(nowhere, |file| file.at(&file.root, key))
    }

    fn worker_file(&self, name: &str) -> Option<&File> {
        let mut known = self.of_kind(FileKind::Worker).chain(self.of_kind(FileKind::Playbook));
        known.find(|file| file.is_called(name))
    }

    /// A key of a step; the step where it has none.
    pub fn step(&self, worker: &str, step: &str, key: &str) -> Place {
        let Some(file) = self.worker_file(worker) else { return nowhere() };
        named(&file.root, step).map_or_else(|| file.head(), |node| file.at(node, key))
    }

    /// The same of what undoes a step.
    pub fn undo(&self, worker: &str, step: &str, key: &str) -> Place {
        let undo = self.worker_file(worker).and_then(|file| Some((file, named(&file.root, step)?.get(UNDO)?)));
        undo.map_or_else(|| self.step(worker, step, UNDO), |(file, node)| file.at(node, key))
    }

    /// A key of an integration; `None` where nobody named it in `clinch.yml`.
    pub fn integration(&self, name: &str, key: &str) -> Option<Place> {
        let file = self.settings()?;
        let (_, node) = file.root.get("integrations")?.entry(name)?;
        Some(file.at(node, key))
    }

    /// Whether an integration says this of itself.
    pub fn integration_says(&self, name: &str, key: &str) -> bool {
        let integrations = self.settings().and_then(|file| file.root.get("integrations"));
        integrations.and_then(|all| all.get(name)).is_some_and(|one| one.get(key).is_some())
    }

    /// A key of a way in: a source of `clinch.yml` of this name, or the trigger of a flow with this path.
    pub fn way(&self, name: &str, path: &str, key: &str) -> Place {
        if let Some(file) = self.settings()
            && let Some((_, node)) = file.root.get("sources").and_then(|all| all.entry(name))
        {
            return file.at(node, key);
        }
        let triggers = self.of_kind(FileKind::Flow).flat_map(|file| {
            let all = file.root.get("triggers").map_or(&[][..], Node::items).iter();
            all.filter_map(move |trigger| Some((file, trigger.get("http")?)))
        });
        let is_it = |node: &Node| node.get("path").and_then(Node::text) == Some(path);
        let mut triggers = triggers.filter(|(_, node)| is_it(node));
        triggers.next().map_or_else(|| self.flow(name), |(file, node)| file.at(node, key))
    }
}

/// What is below it is another action.
const UNDO: &str = "compensate";

fn nowhere() -> Place {
    Place { file: "clinch.yml".into(), line: 1 }
}

impl File {
    fn is_called(&self, name: &str) -> bool {
        self.root.get("name").and_then(Node::text) == Some(name)
    }

    fn head(&self) -> Place {
        self.line(self.root.head().start)
    }

    fn line(&self, start: usize) -> Place {
        Place { file: self.path.clone(), line: position(&self.text, start).0 }
    }

    /// The first key of this name at the node or below it; the node itself if there is none.
    fn at(&self, node: &Node, key: &str) -> Place {
        self.line(found(node, key).unwrap_or(node.head().start))
    }
}

fn found(node: &Node, key: &str) -> Option<usize> {
    let own = node.fields().iter().find(|(known, _)| known.text == key).map(|(known, _)| known.span.start);
    let fields = node.fields().iter().filter(|(known, _)| known.text != UNDO).map(|(_, value)| value);
    let below = || fields.chain(node.items()).find_map(|inner| found(inner, key));
    own.or_else(below)
}

/// The step of this name, in whatever branch it is.
fn named<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let is_it = |item: &Node| ["name", "id"].iter().any(|key| item.get(key).and_then(Node::text) == Some(name));
    if let Some(item) = node.items().iter().find(|item| is_it(item)) {
        return Some(item);
    }
    node.fields().iter().map(|(_, value)| value).chain(node.items()).find_map(|inner| named(inner, name))
}
