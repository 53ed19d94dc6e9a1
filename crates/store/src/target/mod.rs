//! Databases of others, in which steps run a statement once.
//!
//! In one transaction: our key goes into the table `clinch_effects` there, the statement is run, its result goes beside the
//! key. A key that is there already means that all of it was done, and its first result is the answer. So a statement may
//! be sent again whenever nobody knows what became of it.

mod mysql;
mod postgres;
mod sqlite;

use clinch_core::effect::RECEIPT_BYTES_MAX;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The table that clinch keeps in a target.
pub const TABLE: &str = "clinch_effects";

/// What is kept beside the rows of a result.
const FRAME_BYTES: usize = 128;

/// A statement that is to be run once.
#[derive(Clone, Debug)]
pub struct Work {
    /// Under which it is known in the target.
    pub key: String,
    /// The step's name, for people who look into the table.
    pub effect: String,
    pub statement: Arc<str>,
    pub params: Vec<Value>,
    pub timeout: Duration,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// It is committed, now or some time before; this is what it gave the first time.
    Done(Value),
    /// There was no connection.
    NotBegun(String),
    /// There was a connection, and it was too late to begin.
    TooLate,
    /// It failed and was taken back; it may work later.
    Undone(String),
    /// The database will not have it: a constraint, a value of another type.
    Refused(String),
    /// It cannot be run as it is written.
    Invalid(String),
    /// The commit was sent and its answer was lost.
    Unknown { timed_out: bool, why: String },
}

/// The targets of this process, by address.
pub struct Targets {
    /// What the paths of SQLite files begin at.
    root: PathBuf,
    known: Mutex<HashMap<String, Target>>,
}

#[derive(Clone)]
enum Target {
    Mysql(Arc<mysql::Target>),
    Postgres(Arc<postgres::Target>),
    Sqlite(Arc<sqlite::Target>),
}

impl Targets {
    pub fn new(root: &Path) -> Targets {
        Targets { root: root.to_path_buf(), known: Mutex::default() }
    }

    /// Runs the work unless it was run before. `may_begin` is asked when there is a connection and before anything is done.
    pub async fn run(&self, address: &str, work: Work, may_begin: &(dyn Fn() -> bool + Send + Sync)) -> Ran {
        let target = match self.of(address) {
            Ok(target) => target,
            Err(why) => return Ran::Invalid(why),
        };
        let deadline = Instant::now() + work.timeout;
        match target {
            Target::Mysql(target) => target.run(&work, deadline, may_begin).await,
            Target::Postgres(target) => target.run(&work, deadline, may_begin).await,
            Target::Sqlite(target) => target.run(work, deadline, may_begin).await,
        }
    }

    fn of(&self, address: &str) -> Result<Target, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = known.get(address) {
            return Ok(target.clone());
        }
        let target = if let Some(path) = address.strip_prefix("sqlite:") {
            Target::Sqlite(Arc::new(sqlite::Target::new(self.root.join(path))))
        } else if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            Target::Postgres(Arc::new(postgres::Target::parse(address).map_err(|error| error.to_string())?))
        } else if address.starts_with("mysql://") || address.starts_with("mariadb://") {
            Target::Mysql(Arc::new(mysql::Target::parse(address)?))
        } else {
            return Err("the address of its database is not known; write postgres://…, mysql://… or sqlite:FILE".into());
        };
        known.insert(address.to_string(), target.clone());
        Ok(target)
    }
}

/// The result of a statement: its rows as far as there is room for them, and how many there were or were changed.
#[derive(Default)]
struct Found {
    rows: Vec<Value>,
    bytes: usize,
    count: u64,
    truncated: bool,
}

impl Found {
    fn add(&mut self, row: Map<String, Value>) {
        let row = Value::Object(row);
        self.count += 1;
        self.bytes += row.to_string().len() + 1;
        self.truncated |= self.bytes + FRAME_BYTES > RECEIPT_BYTES_MAX;
        if !self.truncated {
            self.rows.push(row);
        }
    }

    fn value(self) -> Value {
        let mut value = json!({ "rows": self.rows, "count": self.count });
        if self.truncated {
            value["truncated"] = true.into();
        }
        value
    }
}

/// A list or a map is given as JSON; everything else as what it is.
fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_a_result_has_as_many_rows_as_there_is_room_for() {
        let mut found = Found::default();
        for nth in 0..100 {
            found.add(Map::from_iter([
                ("text".to_string(), Value::String("x".repeat(1_000))),
                ("n".into(), nth.into()),
            ]));
        }
        let value = found.value();
        assert!(value.to_string().len() <= RECEIPT_BYTES_MAX);
        assert_eq!((&value["count"], &value["truncated"]), (&json!(100), &json!(true)));
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(15));
    }
}
