//! A PostgreSQL database of somebody else. Statements have no names that outlive a transaction, so that a pooler may stand
//! in between.

use super::{Found, Ran, TABLE, Work, as_text};
use crate::postgres::link::Link;
use bytes::BytesMut;
use clinch_core::time::Timestamp;
use futures_util::TryStreamExt;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use tokio_postgres::error::{ErrorPosition, SqlState};
use tokio_postgres::types::{Format, FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Error, Row};

/// More connections than this are not kept.
const IDLE_MAX: usize = 16;
/// So many statements are remembered for a connection; there are as many as a workspace has, in all of its versions.
const DESCRIBED_MAX: usize = 1_000;
const CREATE: &str = "CREATE TABLE IF NOT EXISTS clinch_effects (key text PRIMARY KEY, effect text NOT NULL, \
                      created_at timestamptz NOT NULL DEFAULT now(), result json)";
/// Microseconds from 1970 to 2000, where PostgreSQL begins to count.
const EPOCH: i64 = 946_684_800_000_000;

pub(super) struct Target {
    link: Link,
    idle: Mutex<Vec<Session>>,
    has_table: AtomicBool,
}

/// A connection, and the statements whose types it knows.
struct Session {
    client: Client,
    described: HashSet<Arc<str>>,
}

/// What keeps a statement from being done.
enum Failed {
    /// Before any value was told.
    Described(Error),
    Database(Error),
    Column {
        name: String,
        kind: String,
    },
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Database(error)
    }
}

impl Target {
    pub fn parse(address: &str) -> crate::Result<Target> {
        Ok(Target { link: Link::parse(address)?, idle: Mutex::default(), has_table: AtomicBool::new(false) })
    }

    pub async fn run(&self, work: &Work, deadline: Instant, may_begin: &(dyn Fn() -> bool + Send + Sync)) -> Ran {
        let mut session = match tokio::time::timeout_at(deadline, self.session()).await {
            Ok(Ok(session)) => session,
            // Nobody may make the table, so it must be made for us.
            Ok(Err(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                return Ran::Invalid(format!("{}; have this table made: {CREATE}", told(&error)));
            }
            Ok(Err(error)) => return Ran::NotBegun(told(&error)),
            Err(_) => return Ran::NotBegun("no connection in time".into()),
        };
        if !may_begin() {
            self.keep(session);
            return Ran::TooLate;
        }
        let committing = AtomicBool::new(false);
        let done = tokio::time::timeout_at(deadline, self.attempt(&mut session, work, deadline, &committing)).await;
        let is_committing = committing.load(Ordering::Relaxed);
        // A connection on which something went wrong is closed, and what was begun on it is taken back.
        match done {
            Ok(Ok(value)) => {
                self.keep(session);
                Ran::Done(value)
            }
            Ok(Err(Failed::Column { name, kind })) => Ran::Invalid(format!(
                "column `{name}` is of type {kind}, which clinch does not read; write `{name}::text` in the statement"
            )),
            Ok(Err(Failed::Database(error))) if is_committing && error.as_db_error().is_none() => {
                Ran::Unknown { timed_out: false, why: told(&error) }
            }
            Ok(Err(Failed::Described(error))) => judge(&error, Values::Unknown),
            Ok(Err(Failed::Database(error))) => judge(&error, Values::Known),
            Err(_) if is_committing => {
                Ran::Unknown { timed_out: true, why: "the commit was not answered in time".into() }
            }
            Err(_) => Ran::Undone("it took longer than it may".into()),
        }
    }

    async fn session(&self) -> Result<Session, Error> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|session| !session.client.is_closed());
            idle.pop()
        };
        let session = match idle {
            Some(session) => session,
            None => {
                let (client, driver) = self.link.dial().await?;
                tokio::spawn(driver.run());
                Session { client, described: HashSet::new() }
            }
        };
        if !self.has_table.load(Ordering::Relaxed) {
            make_table(&session.client).await?;
            self.has_table.store(true, Ordering::Relaxed);
        }
        Ok(session)
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
    }

    async fn attempt(
        &self,
        session: &mut Session,
        work: &Work,
        deadline: Instant,
        committing: &AtomicBool,
    ) -> Result<Value, Failed> {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
        // The server gives up with us, and does not go on for nobody.
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = {left}; SET LOCAL idle_in_transaction_session_timeout = {left}"
        );
        let Session { client, described } = session;
        client.batch_execute(&begin).await?;
        let insert =
            format!("INSERT INTO {TABLE} (key, effect) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING RETURNING key");
        let is_new =
            !client.query_typed(&insert, &[(&work.key, Type::TEXT), (&work.effect, Type::TEXT)]).await?.is_empty();
        if !is_new {
            let select = format!("SELECT result::text FROM {TABLE} WHERE key = $1");
            let rows = client.query_typed(&select, &[(&work.key, Type::TEXT)]).await?;
            client.batch_execute("ROLLBACK").await?;
            let result: Option<&str> = rows.first().and_then(|row| row.try_get(0).ok());
            return Ok(result.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null));
        }
        describe(client, described, work).await?;
        let value = statement(client, work).await?;
        let update = format!("UPDATE {TABLE} SET result = $2::text::json WHERE key = $1");
        client.query_typed(&update, &[(&work.key, Type::TEXT), (&value.to_string(), Type::TEXT)]).await?;
        committing.store(true, Ordering::Relaxed);
        client.batch_execute("COMMIT").await?;
        Ok(value)
    }
}

/// Made if it is not there: whoever may not make tables can have it made.
async fn make_table(client: &Client) -> Result<(), Error> {
    let there = client.query_typed("SELECT to_regclass($1) IS NOT NULL", &[(&TABLE, Type::TEXT)]).await?;
    if there.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(());
    }
    match client.batch_execute(CREATE).await {
        // Two made it at once.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(()),
        made => made,
    }
}

/// The library asks for types that it does not know on the same connection, and would wait behind the rows for ever. So it
/// asks before there are any, once for each connection.
async fn describe(client: &Client, described: &mut HashSet<Arc<str>>, work: &Work) -> Result<(), Failed> {
    if described.contains(&work.statement) {
        return Ok(());
    }
    let types = vec![Type::UNKNOWN; work.params.len()];
    client.prepare_typed(&work.statement, &types).await.map_err(Failed::Described)?;
    if described.len() == DESCRIBED_MAX {
        described.clear();
    }
    described.insert(work.statement.clone());
    Ok(())
}

async fn statement(client: &Client, work: &Work) -> Result<Value, Failed> {
    let params = work.params.iter().map(|value| (Text(as_text(value)), Type::UNKNOWN));
    let mut rows = pin!(client.query_typed_raw(&work.statement, params).await?);
    let mut found = Found::default();
    while let Some(row) = rows.try_next().await? {
        found.add(read(&row)?);
    }
    if let Some(changed) = rows.rows_affected() {
        found.count = changed;
    }
    Ok(found.value())
}

/// A value as text, of whatever type the statement has at its place.
#[derive(Debug)]
struct Text(Option<String>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(text) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// The bytes of a column.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn read(row: &Row) -> Result<Map<String, Value>, Failed> {
    let mut fields = Map::new();
    for (at, column) in row.columns().iter().enumerate() {
        let value = match row.try_get::<_, Option<Raw<'_>>>(at)? {
            None => Value::Null,
            Some(Raw(bytes)) => value(column.type_(), bytes).ok_or_else(|| Failed::Column {
                name: column.name().to_string(),
                kind: column.type_().name().to_string(),
            })?,
        };
        fields.insert(column.name().to_string(), value);
    }
    Ok(fields)
}

/// `None` for a type that is not read.
fn value(kind: &Type, bytes: &[u8]) -> Option<Value> {
    if let Kind::Domain(inner) = kind.kind() {
        return value(inner, bytes);
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(match *kind {
        Type::BOOL => Value::Bool(bytes == [1]),
        Type::INT2 => i16::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::INT4 => i32::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::INT8 => i64::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::FLOAT4 => f64::from(f32::from_be_bytes(bytes.try_into().ok()?)).into(),
        Type::FLOAT8 => f64::from_be_bytes(bytes.try_into().ok()?).into(),
        Type::NUMERIC => Value::String(numeric(bytes)?),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => Value::String(text(bytes)?),
        Type::JSON => serde_json::from_slice(bytes).ok()?,
        // A version comes first.
        Type::JSONB => serde_json::from_slice(bytes.get(1..)?).ok()?,
        Type::UUID => Value::String(uuid(bytes)?),
        Type::TIMESTAMPTZ => {
            let micros = i64::from_be_bytes(bytes.try_into().ok()?).checked_add(EPOCH)?;
            Value::String(Timestamp::from_micros(micros).to_string())
        }
        Type::DATE => {
            let days = i64::from(i32::from_be_bytes(bytes.try_into().ok()?));
            let at = Timestamp::from_micros(days.checked_mul(86_400_000_000)?.checked_add(EPOCH)?).to_string();
            Value::String(at.split('T').next()?.to_string())
        }
        _ if matches!(kind.kind(), Kind::Enum(_)) => Value::String(text(bytes)?),
        _ => return None,
    })
}

fn uuid(bytes: &[u8]) -> Option<String> {
    let hex = data_encoding::HEXLOWER.encode(bytes);
    (bytes.len() == 16).then(|| [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// An exact number as it is written: digits in groups of four, the first of which stands for so many groups before the point.
fn numeric(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u16::from_be_bytes(bytes.get(2 * at..2 * at + 2)?.try_into().ok()?));
    let (groups, weight, sign, scale) = (word(0)?, word(1)?.cast_signed(), word(2)?, usize::from(word(3)?));
    if sign & 0xc000 == 0xc000 {
        return Some(if sign == 0xc000 { "NaN" } else { "Infinity" }.to_string());
    }
    let group = |place: i32| match usize::try_from(i32::from(weight) - place) {
        Ok(at) if at < usize::from(groups) => word(4 + at),
        _ => Some(0),
    };
    let mut written = String::new();
    for place in (0..=i32::from(weight).max(0)).rev() {
        written += &format!("{:04}", group(place)?);
    }
    let whole = written.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let mut fraction = String::new();
    let mut place = -1;
    while fraction.len() < scale {
        fraction += &format!("{:04}", group(place)?);
        place -= 1;
    }
    fraction.truncate(scale);
    let point = if scale > 0 { "." } else { "" };
    Some(format!("{}{whole}{point}{fraction}", if sign == 0x4000 { "-" } else { "" }))
}

/// Whether the server had the values of the event when it refused.
#[derive(Clone, Copy, PartialEq)]
enum Values {
    Known,
    Unknown,
}

/// What a refusal means. Messages and details of the server repeat values of the event; codes and names do not.
fn judge(error: &Error, values: Values) -> Ran {
    let Some(database) = error.as_db_error() else { return Ran::Undone(told(error)) };
    let code = database.code().code();
    // A place in the statement is told of what stands there. Without one, the same codes come from a value that is taken for a
    // name or an expression (`$1::regclass`, `to_tsquery($1)`). A right or an index that is missing is a table's, unless a
    // function says so.
    let is_of_statement = values == Values::Unknown
        || matches!(database.position(), Some(ErrorPosition::Original(_)))
        || (matches!(code, "42501" | "42P10") && database.where_().is_none());
    match (code, &code[..2]) {
        // Our own parameters do not fit the statement.
        ("08P01" | "42P18", _) => Ran::Invalid(format!("{}; give as many `params` as it has `$n`", told(error))),
        // A pooler gave us a connection on which another has the same name for a statement of his.
        ("42P05", _) => Ran::Undone(told(error)),
        // A statement that cannot be understood names tables and columns, and no values.
        (_, "42" | "0A" | "3D" | "3F") if is_of_statement => {
            Ran::Invalid(format!("{}: {}", told(error), database.message()))
        }
        (_, "22" | "23" | "42" | "44" | "0A" | "3D" | "3F" | "P0") => Ran::Refused(told(error)),
        _ => Ran::Undone(told(error)),
    }
}

fn told(error: &Error) -> String {
    let Some(database) = error.as_db_error() else {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        return format!("{error}{cause}");
    };
    let mut said = format!("SQLSTATE {}", database.code().code());
    let names = [("constraint", database.constraint()), ("table", database.table()), ("column", database.column())];
    for (what, name) in names {
        if let Some(name) = name {
            said += &format!(", {what} {name}");
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_exact_numbers_are_written_as_they_are() {
        let check = |words: &[u16], written: &str| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            assert_eq!(numeric(&bytes).as_deref(), Some(written));
        };
        check(&[0, 0, 0, 0], "0");
        check(&[0, 0, 0, 2], "0.00");
        check(&[2, 1, 0, 0, 1, 2345], "12345");
        check(&[1, 1, 0x4000, 0, 5], "-50000");
        check(&[2, 0, 0, 2, 19, 9900], "19.99");
        check(&[1, 0xffff, 0, 6, 12], "0.001200");
        check(&[0, 0, 0xc000, 0], "NaN");
        assert_eq!(numeric(&[0, 1]), None);
    }
}
