//! A SQLite file of somebody else.

use super::{Found, Ran, TABLE, Work};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, params};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// After so many steps of its machine a statement is asked whether it may go on.
const LOOK_EVERY: i32 = 1_000;

pub(super) struct Target {
    path: PathBuf,
    /// One writer at a time is all that SQLite bears.
    connection: Mutex<Option<Connection>>,
}

/// What keeps a statement from being done.
enum Failed {
    Sqlite(rusqlite::Error),
    Invalid(String),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Failed::Sqlite(error)
    }
}

impl Target {
    pub fn new(path: PathBuf) -> Target {
        Target { path, connection: Mutex::default() }
    }

    pub async fn run(
        self: Arc<Self>,
        work: Work,
        deadline: Instant,
        may_begin: &(dyn Fn() -> bool + Send + Sync),
    ) -> Ran {
        if !may_begin() {
            return Ran::TooLate;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let ran = tokio::task::spawn_blocking(move || self.run_here(&work, left));
        ran.await.unwrap_or_else(|_| Ran::Undone("it ended before it was done".into()))
    }

    fn run_here(&self, work: &Work, left: Duration) -> Ran {
        let mut kept = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut conn = match kept.take().map_or_else(|| self.open(), Ok) {
            Ok(conn) => conn,
            Err(error) => return Ran::NotBegun(told(&error)),
        };
        let mut committing = false;
        let done = attempt(&mut conn, work, left, &mut committing);
        match done {
            Ok(value) => {
                *kept = Some(conn);
                Ran::Done(value)
            }
            Err(Failed::Invalid(why)) => Ran::Invalid(why),
            Err(Failed::Sqlite(error)) => judge(&error, committing),
        }
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        // A file that is not there is a mistake, not a wish for an empty one.
        let conn = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")?;
        Ok(conn)
    }
}

fn attempt(conn: &mut Connection, work: &Work, left: Duration, committing: &mut bool) -> Result<Value, Failed> {
    let end = std::time::Instant::now() + left;
    conn.busy_timeout(left)?;
    conn.progress_handler(LOOK_EVERY, Some(move || std::time::Instant::now() >= end))?;
    conn.execute_batch("BEGIN IMMEDIATE")?;
    conn.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT PRIMARY KEY, effect TEXT NOT NULL,
            created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, result TEXT) WITHOUT ROWID"
    ))?;
    let select = format!("SELECT result FROM {TABLE} WHERE key = ?1");
    let past: Option<Option<String>> =
        conn.prepare_cached(&select)?.query_row([&work.key], |row| row.get(0)).optional()?;
    if let Some(result) = past {
        conn.execute_batch("ROLLBACK")?;
        return Ok(result.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null));
    }
    let value = statement(conn, work)?;
    let insert = format!("INSERT INTO {TABLE} (key, effect, result) VALUES (?1, ?2, ?3)");
    conn.prepare_cached(&insert)?.execute(params![work.key, work.effect, value.to_string()])?;
    *committing = true;
    conn.execute_batch("COMMIT")?;
    Ok(value)
}

fn statement(conn: &Connection, work: &Work) -> Result<Value, Failed> {
    let mut statement = conn.prepare(&work.statement)?;
    bind(&mut statement, &work.params)?;
    let names: Vec<String> = statement.column_names().map(str::to_string).collect();
    let mut found = Found::default();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let mut fields = Map::new();
        for (at, name) in names.iter().enumerate() {
            fields.insert(name.clone(), value(row.get_ref(at)?, name)?);
        }
        found.add(fields);
    }
    if names.is_empty() {
        found.count = conn.changes();
    }
    Ok(found.value())
}

/// `$2` is the second, wherever it stands first.
fn bind(statement: &mut Statement<'_>, given: &[Value]) -> Result<(), Failed> {
    let mut needed = 0;
    for index in 1..=statement.parameter_count() {
        let place = match statement.parameter_name(index) {
            None => index,
            Some(name) => name[1..].parse().map_err(|_| {
                Failed::Invalid(format!("`{name}` is not the place of a parameter; write `$1`, `$2` and so on"))
            })?,
        };
        needed = needed.max(place);
        if let Some(value) = place.checked_sub(1).and_then(|at| given.get(at)) {
            statement.raw_bind_parameter(index, sql(value))?;
        }
    }
    if needed != given.len() {
        let said = format!("its statement has {needed} parameters and {} are given", given.len());
        return Err(Failed::Invalid(format!("{said}; give as many `params` as it has `$n`")));
    }
    Ok(())
}

fn sql(value: &Value) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(match value {
        Value::Null => Sql::Null,
        Value::Bool(truth) => Sql::Integer(i64::from(*truth)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Sql::Integer(whole),
            (None, Some(real)) => Sql::Real(real),
            (None, None) => Sql::Null,
        },
        Value::String(text) => Sql::Text(text.clone()),
        other => Sql::Text(other.to_string()),
    })
}

fn value(value: ValueRef<'_>, name: &str) -> Result<Value, Failed> {
    let unreadable = || {
        Failed::Invalid(format!(
            "column `{name}` is not text, which clinch reads; write `hex({name})` in the statement"
        ))
    };
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => Value::String(String::from_utf8(text.to_vec()).map_err(|_| unreadable())?),
        ValueRef::Blob(_) => return Err(unreadable()),
    })
}

fn judge(error: &rusqlite::Error, committing: bool) -> Ran {
    let why = told(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => Ran::Refused(why),
        Some(ErrorCode::Unknown | ErrorCode::ApiMisuse | ErrorCode::ParameterOutOfRange) => Ran::Invalid(why),
        Some(ErrorCode::OperationInterrupted) => Ran::Undone("it took longer than it may".into()),
        Some(ErrorCode::SystemIoFailure) if committing => Ran::Unknown { timed_out: false, why },
        Some(_) => Ran::Undone(why),
        None => Ran::Invalid(why),
    }
}

/// SQLite's sentences name tables and columns, and no values.
fn told(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::MultipleStatement => "it is more than one statement".into(),
        rusqlite::Error::SqliteFailure(code, None) => code.to_string(),
        rusqlite::Error::SqlInputError { msg, .. } | rusqlite::Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    }
}
