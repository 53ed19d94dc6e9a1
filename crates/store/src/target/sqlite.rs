//! A SQLite file of somebody else.

use super::{Found, Ran, TABLE, Work};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, ffi, params};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// After so many steps of its machine a statement is asked whether it may go on.
const LOOK_EVERY: i32 = 1_000;

pub(super) struct Target {
    path: PathBuf,
    /// One writer at a time is all that SQLite bears.
    connection: Arc<Mutex<Option<Connection>>>,
}

/// What keeps a statement from being done.
enum Failed {
    Sqlite(rusqlite::Error),
    /// While the statement was run.
    Running(rusqlite::Error),
    Invalid(String),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Failed::Sqlite(error)
    }
}

impl Target {
    pub fn new(path: PathBuf) -> Target {
        Target { path, connection: Arc::default() }
    }

    pub async fn run(
        self: Arc<Self>,
        work: Work,
        deadline: Instant,
        may_begin: &(dyn Fn() -> bool + Send + Sync),
    ) -> Ran {
        let Ok(mut kept) = tokio::time::timeout_at(deadline, self.connection.clone().lock_owned()).await else {
            return Ran::NotBegun("no connection in time".into());
        };
        if !may_begin() {
            return Ran::TooLate;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let ran = tokio::task::spawn_blocking(move || self.run_here(&mut kept, &work, left));
        ran.await.unwrap_or_else(|_| Ran::Undone("it ended before it was done".into()))
    }

    fn run_here(&self, kept: &mut Option<Connection>, work: &Work, left: Duration) -> Ran {
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
            Err(Failed::Running(error)) => judge_running(&error),
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
    while let Some(row) = rows.next().map_err(Failed::Running)? {
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

/// What stops a statement that could be understood is a value, or has to do with the file.
fn judge_running(error: &rusqlite::Error) -> Ran {
    let rusqlite::Error::SqliteFailure(code, message) = error else { return judge(error, false) };
    match (code.code, message) {
        (ErrorCode::ConstraintViolation, Some(message)) if names_no_values(code.extended_code) => {
            Ran::Refused(message.clone())
        }
        (ErrorCode::Unknown, _) => Ran::Refused(code.to_string()),
        _ => judge(&rusqlite::Error::SqliteFailure(*code, None), false),
    }
}

/// A trigger, a function or a module says what it likes, and these repeat values; a table says what it is made of.
const fn names_no_values(code: i32) -> bool {
    matches!(
        code,
        ffi::SQLITE_CONSTRAINT_UNIQUE
            | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
            | ffi::SQLITE_CONSTRAINT_ROWID
            | ffi::SQLITE_CONSTRAINT_NOTNULL
            | ffi::SQLITE_CONSTRAINT_CHECK
            | ffi::SQLITE_CONSTRAINT_FOREIGNKEY
    )
}

/// SQLite's sentences name tables and columns, and no values, as long as none was looked at.
fn told(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::MultipleStatement => "it is more than one statement".into(),
        rusqlite::Error::SqliteFailure(code, None) => code.to_string(),
        rusqlite::Error::SqlInputError { msg, .. } | rusqlite::Error::SqliteFailure(_, Some(msg)) => msg.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn target(folder: &tempfile::TempDir, tables: &str) -> Arc<Target> {
        let path = folder.path().join("crm.db");
        Connection::open(&path).expect("opened").execute_batch(tables).expect("made");
        Arc::new(Target::new(path))
    }

    fn work(statement: &str, params: &[&str], timeout: Duration) -> Work {
        let params = params.iter().map(|param| Value::from(*param)).collect();
        Work { key: "k".into(), effect: "step".into(), statement: statement.into(), params, timeout }
    }

    #[tokio::test]
    async fn c8_who_waits_for_the_connection_waits_no_longer_than_his_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = target(&folder, "CREATE TABLE contacts (email TEXT)");
        let _held = target.connection.clone().lock_owned().await;
        let work = work("INSERT INTO contacts VALUES ($1)", &["ada"], Duration::from_millis(10));
        let deadline = Instant::now() + work.timeout;
        let ran = target.clone().run(work, deadline, &|| panic!("it is not asked whether it may begin")).await;
        assert_eq!(ran, Ran::NotBegun("no connection in time".into()));
    }

    #[tokio::test]
    async fn p11_it_is_asked_whether_it_may_begin_when_there_is_a_connection() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = target(&folder, "CREATE TABLE contacts (email TEXT)");
        let held = target.connection.clone().lock_owned().await;
        let has_lease = AtomicBool::new(true);
        let work = work("INSERT INTO contacts VALUES ($1)", &["ada"], Duration::from_secs(60));
        let deadline = Instant::now() + work.timeout;
        let may_begin = || has_lease.load(Ordering::Relaxed);
        let lose = async {
            has_lease.store(false, Ordering::Relaxed);
            drop(held);
        };
        let (ran, ()) = tokio::join!(target.run(work, deadline, &may_begin), lose);
        assert_eq!(ran, Ran::TooLate);
    }

    #[tokio::test]
    async fn p9_what_sqlite_says_while_it_runs_a_statement_is_told_only_if_it_has_no_values() {
        let folder = tempfile::tempdir().expect("a folder");
        let tables =
            "CREATE TABLE contacts (id INTEGER PRIMARY KEY, email TEXT UNIQUE NOT NULL, age INTEGER CHECK (age > 0));
            INSERT INTO contacts VALUES (1, 'ada', 36);
            CREATE TRIGGER kept BEFORE DELETE ON contacts BEGIN SELECT RAISE(ABORT, 'ada is kept'); END;";
        let target = target(&folder, tables);
        let check = async |statement: &str, params: &[&str], expected: Ran| {
            let work = work(statement, params, Duration::from_secs(60));
            let deadline = Instant::now() + work.timeout;
            assert_eq!(target.clone().run(work, deadline, &|| true).await, expected, "{statement}");
        };
        let refused = |why: &str| Ran::Refused(why.into());
        check("SELECT json_extract('{}', $1)", &["ada"], refused("Error code 1: SQL logic error")).await;
        check("DELETE FROM contacts WHERE email = $1", &["ada"], refused("Error code 1811: constraint failed")).await;
        let insert = "INSERT INTO contacts (email, age) VALUES ($1, $2)";
        check(insert, &["ada", "1"], refused("UNIQUE constraint failed: contacts.email")).await;
        check(insert, &["bob", "-1"], refused("CHECK constraint failed: age > 0")).await;
        let misspelt = Ran::Invalid("no such column: mail".into());
        check("SELECT mail FROM contacts WHERE email = $1", &["ada"], misspelt).await;
    }
}
