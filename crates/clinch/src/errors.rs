//! What every code means that clinch prints: the page docs/errors.md, which is in the binary.

const PAGE: &str = include_str!("../../../docs/errors.md");

/// One part of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `CL0121`, `signature-invalid`, `exit 7`
    pub code: &'static str,
    /// Empty where the text says it all.
    pub title: &'static str,
    pub text: &'static str,
}

/// In the order of the page.
pub fn all() -> impl Iterator<Item = Entry> {
    PAGE.split("\n### ").skip(1).map(|part| {
        let (head, rest) = part.split_once('\n').unwrap_or((part, ""));
        let text = rest.split("\n## ").next().unwrap_or_default().trim();
        let (code, title) = head.split_once(": ").unwrap_or((head, ""));
        Entry { code, title, text }
    })
}

/// However it is written: `CL0121`, `cl0121`, `exit 7`, `urn:clinch:problem:not-found`.
pub fn find(code: &str) -> Option<Entry> {
    let code = code.trim().trim_start_matches("urn:clinch:problem:");
    all().find(|entry| entry.code.eq_ignore_ascii_case(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::change::Kind;
    use clinch_core::config::Code;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Every code that stands between quotes in the sources of a crate.
    fn written(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                written(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("errors.rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let quoted = text.split('"').filter(|part| part.len() == 6 && part.starts_with("CL"));
                found.extend(quoted.filter(|part| part[2..].bytes().all(|b| b.is_ascii_digit())).map(String::from));
            }
        }
    }

    #[test]
    fn j1_every_code_has_a_text_and_every_text_a_code() {
        let mut codes = BTreeSet::new();
        for of in ["../core/src", "../store/src", "src"] {
            written(&Path::new(env!("CARGO_MANIFEST_DIR")).join(of), &mut codes);
        }
        let told: BTreeSet<String> =
            all().map(|entry| entry.code.to_string()).filter(|code| code.starts_with("CL")).collect();
        let untold: Vec<&String> = codes.difference(&told).collect();
        assert!(untold.is_empty(), "write about {untold:?} in docs/errors.md");
        let unused: Vec<&String> = told.difference(&codes).collect();
        assert!(unused.is_empty(), "docs/errors.md has {unused:?}, which nobody prints");
    }

    #[test]
    fn j1_the_page_says_of_problems_with_files_what_check_says() {
        for code in Code::ALL {
            assert_eq!(find(&code.to_string()).map(|entry| entry.title), Some(code.title()), "{code}");
        }
        // A number means one thing: what `diff` says of a change has others.
        for kind in Kind::ALL {
            assert_eq!(find(kind.code()).map(|entry| entry.title), Some(kind.title()), "{}", kind.code());
        }
        let mut seen = BTreeSet::new();
        for entry in all() {
            assert!(seen.insert(entry.code), "{} is there twice", entry.code);
            assert!(!entry.text.is_empty() && !entry.text.contains("\n#"), "{}: {:?}", entry.code, entry.text);
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        assert_eq!(find("cl0121").map(|entry| entry.code), Some("CL0121"));
        assert_eq!(find("urn:clinch:problem:signature-invalid").map(|entry| entry.code), Some("signature-invalid"));
        assert_eq!(find("exit 7").map(|entry| entry.text), Some("The server does not answer."));
        assert_eq!(find("CL9999"), None);
    }
}
