//! A path into a JSON body, as rules write it: a JSON pointer (RFC 6901) in which `*` stands for every item or field.

use std::fmt;
use std::str::FromStr;

pub const SEGMENTS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A field of this name, or the item with this number.
    Name(String),
    /// Every item of a list, every field of an object.
    Any,
}

impl Segment {
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Segment::Name(own) => own == name,
            Segment::Any => true,
        }
    }
}

impl Pointer {
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// True when everything that `other` names lies at or below what this one names.
    pub fn covers(&self, other: &Pointer) -> bool {
        self.0.len() <= other.0.len()
            && self.0.iter().zip(&other.0).all(|(mine, theirs)| *mine == Segment::Any || mine == theirs)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPointer {
    #[error("`{0}` is not a path into a body; begin with a slash, such as `/customer/email` or `/items/*/id`")]
    NoSlash(String),
    #[error("`{0}` has a part without a name; write `/customer/email`, without a slash at the end")]
    EmptyPart(String),
    #[error("`{0}` has a `~` that stands for nothing; write `~0` for a tilde and `~1` for a slash inside a name")]
    Tilde(String),
    #[error("`{0}` is deeper than {SEGMENTS_MAX} parts")]
    TooDeep(String),
}

impl FromStr for Pointer {
    type Err = BadPointer;
    fn from_str(text: &str) -> Result<Self, BadPointer> {
        let said = || text.chars().take(80).collect::<String>();
        let path = text.strip_prefix('/').ok_or_else(|| BadPointer::NoSlash(said()))?;
        let mut segments = Vec::new();
        for part in path.split('/') {
            segments.push(match part {
                "" => return Err(BadPointer::EmptyPart(said())),
                "*" => Segment::Any,
                name => Segment::Name(unescaped(name).ok_or_else(|| BadPointer::Tilde(said()))?),
            });
        }
        if segments.len() > SEGMENTS_MAX {
            return Err(BadPointer::TooDeep(said()));
        }
        Ok(Pointer(segments))
    }
}

fn unescaped(part: &str) -> Option<String> {
    let mut name = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        name.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(name)
}

/// A name as one part of a pointer.
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.0 {
            match segment {
                Segment::Name(name) => write!(f, "/{}", escaped(name))?,
                Segment::Any => f.write_str("/*")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pointer(text: &str) -> Pointer {
        text.parse().expect("a pointer")
    }

    #[test]
    fn a5_a_bad_pointer_is_refused_with_what_to_write() {
        let check = |text: &str, hint: &str| {
            let said = text.parse::<Pointer>().expect_err(text).to_string();
            assert!(said.contains(hint), "{text}: {said}");
        };
        check("", "begin with a slash");
        check("email", "begin with a slash");
        check("/", "without a name");
        check("/a//b", "without a name");
        check("/a/", "without a name");
        check("/a~2", "~1");
        check("/a~", "~0");
        check(&"/a".repeat(SEGMENTS_MAX + 1), "deeper");
    }

    #[test]
    fn a5_a_pointer_covers_what_lies_below_it() {
        let check = |outer: &str, inner: &str, covers: bool| {
            assert_eq!(pointer(outer).covers(&pointer(inner)), covers, "{outer} {inner}");
        };
        check("/a", "/a", true);
        check("/a", "/a/b", true);
        check("/a/b", "/a", false);
        check("/a/*", "/a/0/b", true);
        check("/a/0", "/a/*", false);
    }

    proptest! {
        #[test]
        fn a5_a_pointer_is_spelled_as_it_was_read(names in proptest::collection::vec("[a-z~/*]{2,4}", 1..6)) {
            let text: String = names.iter().map(|name| format!("/{}", escaped(name))).collect();
            prop_assert_eq!(pointer(&text).to_string(), text);
        }
    }
}
