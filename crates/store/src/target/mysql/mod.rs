//! A MySQL or MariaDB database of somebody else.

mod link;
mod statement;
mod value;

use super::{Found, Ran, TABLE, Work};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Params};
use serde_json::{Map, Value};
use statement::Statement;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// More connections than this are not kept.
const IDLE_MAX: usize = 16;
/// A connection that is not made by then is not made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A server that does not hear a goodbye by then is left without one.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Without transactions nothing would be run once. Keys are compared byte by byte.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS clinch_effects \
                      (`key` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, \
                      effect varchar(128) CHARACTER SET utf8mb4 NOT NULL, \
                      created_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, \
                      result mediumtext CHARACTER SET utf8mb4) ENGINE=InnoDB";

/// The numbers that servers give to errors.
mod code {
    pub const ACCESS_DENIED_TO_DATABASE: u16 = 1044;
    pub const DUPLICATE_KEY: u16 = 1062;
    pub const DENIED_ON_TABLE: u16 = 1142;
    pub const DEADLOCK: u16 = 1213;
    /// Of MariaDB and of MySQL.
    pub const TOO_LONG: [u16; 2] = [1969, 3024];
    /// Too many connections of a user, too much asked for in an hour, too many statements prepared: all of it passes.
    pub const TOO_MANY: [u16; 3] = [1203, 1226, 1461];
    /// Values that do not fit, of which servers say so without a SQLSTATE of their own.
    pub const UNFIT: [u16; 5] = [1265, 1364, 1366, 1411, 3819];
    /// Statements that cannot be prepared.
    pub const UNPREPARED: u16 = 1295;
}

pub(super) struct Target {
    opts: Opts,
    idle: Mutex<Vec<Session>>,
    has_table: AtomicBool,
}

/// What keeps a statement from being done.
enum Failed {
    Database(Error),
    Column(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Database(error)
    }
}

impl Target {
    pub fn parse(address: &str) -> Result<Target, String> {
        Ok(Target { opts: link::parse(address)?, idle: Mutex::default(), has_table: AtomicBool::new(false) })
    }

    pub async fn run(&self, work: &Work, deadline: Instant, may_begin: &(dyn Fn() -> bool + Send + Sync)) -> Ran {
        let statement = match Statement::read(&work.statement, work.params.len()) {
            Ok(statement) => statement,
            Err(why) => return Ran::Invalid(why),
        };
        let mut session = match tokio::time::timeout_at(deadline, self.session(deadline)).await {
            Ok(Ok(session)) => session,
            Ok(Err(why)) => return why,
            Err(_) => return Ran::NotBegun("no connection in time".into()),
        };
        if !may_begin() {
            self.keep(session);
            return Ran::TooLate;
        }
        let committing = AtomicBool::new(false);
        let done = tokio::time::timeout_at(deadline, attempt(&mut session.conn, work, &statement, &committing)).await;
        let is_committing = committing.load(Ordering::Relaxed);
        // A connection on which something went wrong is closed, and what was begun on it is taken back.
        if let Ok(Ok(value)) = done {
            self.keep(session);
            return Ran::Done(value);
        }
        session.close();
        match done {
            Ok(Ok(value)) => Ran::Done(value),
            Ok(Err(Failed::Column(name))) => Ran::Invalid(format!(
                "column `{name}` has bytes, which clinch does not read; write `hex({name})` in the statement"
            )),
            // A deadlock is what a cluster calls a commit that came too late. Other errors may come after the fact.
            Ok(Err(Failed::Database(error))) if is_committing && number(&error) != Some(code::DEADLOCK) => {
                Ran::Unknown { timed_out: false, why: told(&error) }
            }
            Ok(Err(Failed::Database(error))) => judge(&error),
            Err(_) if is_committing => {
                Ran::Unknown { timed_out: true, why: "the commit was not answered in time".into() }
            }
            Err(_) => Ran::Undone("it took longer than it may".into()),
        }
    }

    async fn session(&self, deadline: Instant) -> Result<Session, Ran> {
        // Servers close connections that nobody uses, and we find out when we do.
        while let Some(mut session) = self.kept() {
            if session.limit(deadline).await.is_ok() {
                return Ok(session);
            }
            session.close();
        }
        let not_begun = |error: Error| Ran::NotBegun(told(&error));
        let opened = tokio::time::timeout(CONNECT_MAX, Session::open(&self.opts)).await;
        let mut session = opened.map_err(|_| Ran::NotBegun("no connection in time".into()))?.map_err(not_begun)?;
        session.limit(deadline).await.map_err(not_begun)?;
        if !self.has_table.load(Ordering::Relaxed) {
            make_table(&mut session.conn).await?;
            self.has_table.store(true, Ordering::Relaxed);
        }
        Ok(session)
    }

    fn kept(&self) -> Option<Session> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
    }
}

/// A connection, and whose it is: the limits have other names there.
struct Session {
    conn: Conn,
    is_mariadb: bool,
}

impl Session {
    async fn open(opts: &Opts) -> Result<Session, Error> {
        let mut conn = Conn::new(opts.clone()).await?;
        let version: Option<String> = conn.query_first("SELECT VERSION()").await?;
        Ok(Session { conn, is_mariadb: version.is_some_and(|version| version.contains("MariaDB")) })
    }

    /// The server gives up with us, and neither goes on nor waits for nobody.
    async fn limit(&mut self, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
        let seconds = left.div_ceil(1_000);
        let set = if self.is_mariadb {
            format!(
                "SET SESSION max_statement_time = {}.{:03}, innodb_lock_wait_timeout = {seconds}, idle_transaction_timeout = {seconds}",
                left / 1_000,
                left % 1_000
            )
        } else {
            format!(
                "SET SESSION max_execution_time = {left}, innodb_lock_wait_timeout = {seconds}, wait_timeout = {seconds}"
            )
        };
        self.conn.query_drop(set).await
    }

    /// Without waiting for what the server may still have to say.
    fn close(self) {
        tokio::spawn(tokio::time::timeout(CLOSE_MAX, self.conn.disconnect()));
    }
}

async fn attempt(
    conn: &mut Conn,
    work: &Work,
    statement: &Statement,
    committing: &AtomicBool,
) -> Result<Value, Failed> {
    conn.query_drop("START TRANSACTION").await?;
    let insert = format!("INSERT INTO {TABLE} (`key`, effect) VALUES (?, ?)");
    match conn.exec_drop(insert, (&work.key, &work.effect)).await {
        Err(error) if number(&error) == Some(code::DUPLICATE_KEY) => {
            // What is there now, not what was when the transaction began.
            let select = format!("SELECT result FROM {TABLE} WHERE `key` = ? LOCK IN SHARE MODE");
            let row: Option<(Option<String>,)> = conn.exec_first(select, (&work.key,)).await?;
            conn.query_drop("ROLLBACK").await?;
            let result = row.and_then(|(result,)| result);
            return Ok(result.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null));
        }
        inserted => inserted?,
    }
    let value = run(conn, work, statement).await?;
    let update = format!("UPDATE {TABLE} SET result = ? WHERE `key` = ?");
    conn.exec_drop(update, (value.to_string(), &work.key)).await?;
    committing.store(true, Ordering::Relaxed);
    conn.query_drop("COMMIT").await?;
    Ok(value)
}

async fn run(conn: &mut Conn, work: &Work, statement: &Statement) -> Result<Value, Failed> {
    let params: Vec<_> = statement.places.iter().map(|at| value::sql(&work.params[*at])).collect();
    let params = if params.is_empty() { Params::Empty } else { Params::Positional(params) };
    let mut result = conn.exec_iter(statement.text.as_str(), params).await?;
    let columns = result.columns();
    let mut found = Found::default();
    while let Some(row) = result.next().await? {
        let mut fields = Map::new();
        for (column, sql) in row.columns_ref().to_vec().iter().zip(row.unwrap()) {
            let name = column.name_str().into_owned();
            match value::read(column, sql) {
                Some(value) => fields.insert(name, value),
                None => return Err(Failed::Column(name)),
            };
        }
        found.add(fields);
    }
    let (changed, id) = (result.affected_rows(), result.last_insert_id());
    let has_columns = columns.is_some_and(|columns| !columns.is_empty());
    if has_columns {
        return Ok(found.value());
    }
    found.count = changed;
    let mut value = found.value();
    // MySQL has no RETURNING.
    if let Some(id) = id {
        value["last_insert_id"] = id.into();
    }
    Ok(value)
}

/// Made if it is not there: whoever may not make tables can have it made.
async fn make_table(conn: &mut Conn) -> Result<(), Ran> {
    let not_begun = |error: Error| Ran::NotBegun(told(&error));
    let select = "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";
    let engine: Option<(Option<String>,)> = conn.exec_first(select, (TABLE,)).await.map_err(not_begun)?;
    match engine.map(|(engine,)| engine.unwrap_or_default()) {
        Some(engine) if engine == "InnoDB" => Ok(()),
        Some(engine) => Err(Ran::Invalid(format!(
            "the table {TABLE} is kept by {engine}, which cannot take anything back; write `ALTER TABLE {TABLE} ENGINE=InnoDB`"
        ))),
        None => conn.query_drop(CREATE).await.map_err(|error| match number(&error) {
            Some(code::DENIED_ON_TABLE | code::ACCESS_DENIED_TO_DATABASE) => {
                Ran::Invalid(format!("{}; have this table made: {CREATE}", told(&error)))
            }
            _ => not_begun(error),
        }),
    }
}

fn number(error: &Error) -> Option<u16> {
    if let Error::Server(server) = error { Some(server.code) } else { None }
}

/// What a refusal means.
fn judge(error: &Error) -> Ran {
    let Error::Server(server) = error else { return Ran::Undone(told(error)) };
    let class = server.state.get(..2).unwrap_or_default();
    match (server.code, class) {
        (number, _) if code::TOO_LONG.contains(&number) => Ran::Undone("it took longer than it may".into()),
        (number, _) if code::TOO_MANY.contains(&number) => Ran::Undone(told(error)),
        (number, _) if code::UNFIT.contains(&number) => Ran::Refused(told(error)),
        (_, "22" | "23" | "44" | "45") => Ran::Refused(told(error)),
        // A statement that cannot be understood names tables and columns, and no values.
        (code::UNPREPARED, _) | (_, "21" | "42" | "0A" | "3D") => {
            Ran::Invalid(format!("{}: {}", told(error), server.message))
        }
        _ => Ran::Undone(told(error)),
    }
}

/// Messages of the server repeat values of the event; numbers and names do not.
fn told(error: &Error) -> String {
    let Error::Server(server) = error else { return error.to_string() };
    let mut said = format!("error {}, SQLSTATE {}", server.code, server.state);
    if let Some(name) = named(server.code, &server.message) {
        said += &format!(", {name}");
    }
    said
}

/// What a message says about names. Where it repeats a value, the names come after it.
fn named(code: u16, message: &str) -> Option<&str> {
    match code {
        // Who may not come in, or into which database; a column without a value, keys of other tables, checks.
        1044 | 1045 | 1049 | 1048 | 1364 | 1451 | 1452 | 3819 | 4025 => Some(message),
        1062 | 1586 => message.rfind("for key ").map(|at| &message[at..]),
        1264 | 1265 | 1292 | 1366 | 1406 => message.rfind("for column ").map(|at| &message[at..]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mysql_async::ServerError;

    fn error(code: u16, state: &str, message: &str) -> Error {
        Error::Server(ServerError { code, state: state.into(), message: message.into() })
    }

    #[test]
    fn c8_errors_of_mysql_are_told_by_number_and_name_and_never_by_value() {
        let twice = error(1062, "23000", "Duplicate entry 'ada for key 'x'' for key 'email'");
        assert_eq!(told(&twice), "error 1062, SQLSTATE 23000, for key 'email'");
        let unfit = error(1366, "22007", "Incorrect integer value: 'ada' for column `crm`.`contacts`.`age` at row 1");
        assert_eq!(told(&unfit), "error 1366, SQLSTATE 22007, for column `crm`.`contacts`.`age` at row 1");
        assert_eq!(told(&error(1690, "22003", "BIGINT value is out of range in 'ada'")), "error 1690, SQLSTATE 22003");
    }

    #[test]
    fn c8_errors_of_mysql_that_pass_are_told_from_those_that_stay() {
        let passes = |code, state| matches!(judge(&error(code, state, "")), Ran::Undone(_));
        // Deadlock, lock wait, too many connections, the server goes down, read only for the moment.
        for (code, state) in [(1213, "40001"), (1205, "HY000"), (1203, "42000"), (1053, "08S01"), (1290, "HY000")] {
            assert!(passes(code, state), "{code}");
        }
        assert!(matches!(judge(&error(1364, "HY000", "")), Ran::Refused(_)));
        assert!(matches!(judge(&error(1644, "45000", "")), Ran::Refused(_)));
        assert!(matches!(judge(&error(1064, "42000", "")), Ran::Invalid(_)));
        assert!(matches!(judge(&error(1136, "21S01", "")), Ran::Invalid(_)));
    }
}
