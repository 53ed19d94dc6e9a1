//! Secrets, read from the environment. They are shown to steps that name them and to nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub struct Secrets(BTreeMap<String, String>);

impl Secrets {
    /// Reads every name; says which are missing or empty.
    pub fn from_env<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Secrets, BTreeSet<String>> {
        let mut found = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for name in names {
            match read(name) {
                Some(value) => {
                    found.insert(name.to_string(), value);
                }
                None => {
                    missing.insert(name.to_string());
                }
            }
        }
        if missing.is_empty() { Ok(Secrets(found)) } else { Err(missing) }
    }

    /// A job that was accepted with an older workspace may name one that the live workspace no longer has.
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned().or_else(|| read(name))
    }
}

fn read(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} names)", self.0.len())
    }
}
