//! A workspace as places and values: what is written, where, whatever it means. For what compares two of them.

use super::problem::{Report, Span};
use super::yaml::{self, Node, Value};
use super::{FileKind, Files};

/// A value that is written in a file, by the keys that lead to it. An item of a list goes by its own name, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub path: Vec<String>,
    pub text: String,
    /// The key, or the item, that it stands behind.
    pub span: Span,
}

/// What one file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet<'f> {
    pub file: &'f str,
    pub text: &'f str,
    /// `None`: it is no YAML, such as a template.
    pub leaves: Option<Vec<Leaf>>,
}

impl<'f> Sheet<'f> {
    fn of(file: &'f str, text: &'f str) -> Sheet<'f> {
        let is_yaml = !matches!(FileKind::of(file), None | Some(FileKind::Schema | FileKind::Template));
        let leaves = is_yaml.then(|| {
            let mut leaves = Vec::new();
            if let Some(root) = yaml::parse(&mut Report::new(file, text)) {
                walk(&root, &mut Vec::new(), root.head(), &mut leaves);
            }
            leaves
        });
        Sheet { file, text, leaves }
    }

    pub fn leaves(&self) -> &[Leaf] {
        self.leaves.as_deref().unwrap_or_default()
    }

    /// What it says of itself below this key.
    pub fn says(&self, key: &str) -> Option<&str> {
        self.leaves().iter().find(|leaf| leaf.path == [key]).map(|leaf| leaf.text.as_str())
    }

    /// The value that is nearest to this path: its own, the first below it, or the first beside it. And how far it goes.
    pub fn nearest(&self, path: &[impl AsRef<str>]) -> Option<(usize, &Leaf)> {
        let shared = |leaf: &Leaf| leaf.path.iter().zip(path).take_while(|(one, other)| *one == other.as_ref()).count();
        // The first of those that share most.
        let mut best: Option<(usize, &Leaf)> = None;
        for leaf in self.leaves() {
            let depth = shared(leaf);
            if best.is_none_or(|(most, _)| depth > most) {
                best = Some((depth, leaf));
            }
        }
        best
    }
}

/// What each file says, in the order of the files.
pub fn sheets(files: &Files) -> Vec<Sheet<'_>> {
    files.0.iter().map(|(file, text)| Sheet::of(file, text)).collect()
}

fn walk(node: &Node, path: &mut Vec<String>, at: Span, leaves: &mut Vec<Leaf>) {
    let mut leaf = |text: String, path: &[String]| leaves.push(Leaf { path: path.to_vec(), text, span: at });
    match &node.value {
        Value::Scalar { text, .. } => leaf(text.clone(), path),
        Value::Map(fields) if fields.is_empty() => leaf("{}".into(), path),
        Value::Map(fields) => {
            for (key, value) in fields {
                path.push(key.text.clone());
                walk(value, path, key.span, leaves);
                path.pop();
            }
        }
        // A list of texts is read at a glance.
        Value::List(items) if items.iter().all(|item| matches!(item.value, Value::Scalar { .. })) => {
            let texts: Vec<&str> = items.iter().map(|item| item.text().unwrap_or("null")).collect();
            leaf(format!("[{}]", texts.join(", ")), path);
        }
        Value::List(items) => {
            for (nth, item) in items.iter().enumerate() {
                let name = ["name", "id"].into_iter().find_map(|key| item.get(key)?.text());
                path.push(name.map_or_else(|| nth.to_string(), str::to_string));
                walk(item, path, item.head(), leaves);
                path.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j2_a_file_is_places_and_values() {
        let text = "name: w\nretry: {max_attempts: 3}\nrun:\n  - name: a\n    http: {url: /x}\n  - delay: {for: 1s}\non: [p, q]\n";
        let files = Files(vec![("workers/w.yml".into(), text.into()), ("templates/t.txt".into(), "name: x".into())]);
        let sheets = sheets(&files);
        let told: Vec<String> =
            sheets[0].leaves().iter().map(|leaf| format!("{} = {}", leaf.path.join("."), leaf.text)).collect();
        assert_eq!(
            told,
            [
                "name = w",
                "retry.max_attempts = 3",
                "run.a.name = a",
                "run.a.http.url = /x",
                "run.1.delay.for = 1s",
                "on = [p, q]"
            ]
        );
        assert_eq!((sheets[0].says("name"), sheets[1].says("name"), &sheets[1].leaves), (Some("w"), None, &None));
        let near = |path: &[&str]| sheets[0].nearest(path).map(|(depth, leaf)| (depth, leaf.path.join(".")));
        assert_eq!(near(&["retry", "max_attempts"]), Some((2, "retry.max_attempts".into())));
        assert_eq!(near(&["retry", "max_delay"]), Some((1, "retry.max_attempts".into())));
        assert_eq!(near(&["run", "a", "if"]), Some((2, "run.a.name".into())));
    }
}
