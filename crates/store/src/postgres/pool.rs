//! Lines to the database: a few, each used by one verb at a time, made when needed, and cut at the first doubt.

use super::Fault;
use super::link::Link;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// The server gives up on a statement after this time, and we a little later.
const STATEMENT_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(12);
/// Who waits longer than this for a line gets none.
const LINE_WAIT_MAX: Duration = Duration::from_secs(10);

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What a line is for.
#[derive(Clone, Copy)]
pub(super) enum Use {
    /// Verbs: they know the rows they want. A plan that was made while a table was small must not scan it when it is big.
    Verbs,
    /// Questions: how best to answer them depends on what is there.
    Questions,
}

pub(super) struct Pool {
    link: Link,
    settings: String,
    idle: Mutex<Vec<Session>>,
    places: Arc<Semaphore>,
}

struct Session {
    client: Client,
    statements: HashMap<Box<str>, Statement>,
}

impl Pool {
    /// `commit` is the level of durability that the server was found with: it stays, whatever is changed meanwhile.
    pub fn new(link: Link, usage: Use, places: usize, commit: &str) -> Arc<Pool> {
        let planner = match usage {
            Use::Verbs => {
                "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;
                 SET enable_hashjoin = off; SET enable_mergejoin = off;"
            }
            Use::Questions => "SET default_transaction_read_only = on;",
        };
        let settings = format!(
            "SET synchronous_commit = {commit}; SET statement_timeout = {}; SET jit = off;
             SET idle_in_transaction_session_timeout = {}; {planner}",
            STATEMENT_MAX.as_millis(),
            2 * STATEMENT_MAX.as_millis(),
        );
        Arc::new(Pool { link, settings, idle: Mutex::default(), places: Arc::new(Semaphore::new(places)) })
    }

    pub async fn line(self: &Arc<Pool>) -> Result<Line, Fault> {
        let waiting = tokio::time::timeout(LINE_WAIT_MAX, self.places.clone().acquire_owned());
        let place = waiting.await.map_err(|_| Fault::Busy)?.expect("the places are never closed");
        let idle = {
            let mut idle = self.idle.lock().expect("nobody panics while holding the lines");
            idle.retain(|session| !session.client.is_closed());
            idle.pop()
        };
        let session = match idle {
            Some(session) => session,
            None => self.open().await?,
        };
        Ok(Line { pool: self.clone(), session: Some(session), state: State::Clean, _place: place })
    }

    async fn open(&self) -> Result<Session, Fault> {
        let (client, driver) = self.link.connect().await?;
        tokio::spawn(driver.run());
        let setting = client.batch_execute(&self.settings);
        tokio::time::timeout(ANSWER_MAX, setting).await.map_err(|_| Fault::Silent)??;
        Ok(Session { client, statements: HashMap::new() })
    }

    /// One question, one answer.
    pub async fn ask(self: &Arc<Pool>, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        self.line().await?.query(sql, params).await
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Clean,
    InTransaction,
    /// Something was asked and not answered well. Nobody knows what is still going on there.
    Doubtful,
}

/// One line in use. It goes back to the others only if nothing is open on it: a caller may go away at any moment.
pub(super) struct Line {
    pool: Arc<Pool>,
    session: Option<Session>,
    state: State,
    _place: OwnedSemaphorePermit,
}

impl Line {
    pub async fn query(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Fault> {
        let (session, before) = self.doubt();
        let rows = answered(async {
            let statement = session.statement(sql).await?;
            session.client.query(&statement, params).await
        });
        let rows = rows.await?;
        self.state = before;
        Ok(rows)
    }

    /// Two statements, the second sent without waiting for the answer of the first.
    pub async fn query_both(
        &mut self,
        (first, first_params): (&str, Params<'_>),
        (second, second_params): (&str, Params<'_>),
    ) -> Result<(Vec<Row>, Vec<Row>), Fault> {
        let (session, before) = self.doubt();
        let rows = answered(async {
            let first = session.statement(first).await?;
            let second = session.statement(second).await?;
            let client = &session.client;
            tokio::try_join!(client.query(&first, first_params), client.query(&second, second_params))
        });
        let rows = rows.await?;
        self.state = before;
        Ok(rows)
    }

    /// Statements without parameters or answers.
    pub async fn run(&mut self, sql: &str) -> Result<(), Fault> {
        let (session, before) = self.doubt();
        answered(session.client.batch_execute(sql)).await?;
        self.state = before;
        Ok(())
    }

    pub async fn begin(&mut self) -> Result<(), Fault> {
        self.run("BEGIN").await?;
        self.state = State::InTransaction;
        Ok(())
    }

    /// All that is read until the commit is of one moment.
    pub async fn begin_reading(&mut self) -> Result<(), Fault> {
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        self.state = State::InTransaction;
        Ok(())
    }

    pub async fn commit(&mut self) -> Result<(), Fault> {
        self.run("COMMIT").await?;
        self.state = State::Clean;
        Ok(())
    }

    /// From here until the answer is there, nobody knows what is going on.
    fn doubt(&mut self) -> (&mut Session, State) {
        let before = std::mem::replace(&mut self.state, State::Doubtful);
        (self.session.as_mut().expect("a line has its session until it is dropped"), before)
    }
}

async fn answered<T>(asking: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
    Ok(tokio::time::timeout(ANSWER_MAX, asking).await.map_err(|_| Fault::Silent)??)
}

impl Session {
    async fn statement(&mut self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let session = self.session.take().expect("it is dropped once");
        if self.state == State::Clean {
            self.pool.idle.lock().expect("nobody panics while holding the lines").push(session);
        }
    }
}
