//! Lines to the database: a few, each used by one verb at a time, made when needed, and cut at the first doubt.
//!
//! A line may lead to a server or to PgBouncer in transaction mode. There a session lasts for one transaction: statements have
//! no names, settings are made in each transaction, and a statement of its own is sent with a `BEGIN` and a `COMMIT` around
//! it, in one go.

use super::Fault;
use super::link::Link;
use super::param::{self, Params};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Row, Statement};

/// The server is given this long to say that it gave up; then we do.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a transaction begins in which all that is read is of one moment. A table that is emptied is empty in the eyes of
/// whoever looks at an earlier moment, too: so none is, from before that moment on. It begins with the first question.
pub(super) const BEGIN_READING: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE job, lane, tally IN ACCESS SHARE MODE";

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
    /// A statement is given up after this time, and so is the wait for a line.
    deadline: Duration,
    settings: Vec<(&'static str, String)>,
    idle: Mutex<Vec<Session>>,
    places: Arc<Semaphore>,
}

struct Session {
    client: Client,
    statements: HashMap<Box<str>, Statement>,
}

impl Pool {
    /// `commit` is the level of durability that the server was found with: it stays, whatever is changed meanwhile.
    pub fn new(link: Link, usage: Use, places: usize, commit: &str, deadline: Duration) -> Arc<Pool> {
        let planner: &[(&str, &str)] = match usage {
            Use::Verbs => &[
                ("plan_cache_mode", "force_generic_plan"),
                ("enable_seqscan", "off"),
                ("enable_bitmapscan", "off"),
                ("enable_hashjoin", "off"),
                ("enable_mergejoin", "off"),
            ],
            Use::Questions => &[("default_transaction_read_only", "on")],
        };
        let mut settings = vec![
            ("synchronous_commit", commit.to_string()),
            ("statement_timeout", deadline.as_millis().to_string()),
            ("idle_in_transaction_session_timeout", (2 * deadline).as_millis().to_string()),
            ("jit", "off".to_string()),
        ];
        settings.extend(planner.iter().map(|(name, value)| (*name, (*value).to_string())));
        Arc::new(Pool { link, deadline, settings, idle: Mutex::default(), places: Arc::new(Semaphore::new(places)) })
    }

    pub async fn line(self: &Arc<Pool>) -> Result<Line, Fault> {
        let waiting = tokio::time::timeout(self.deadline, self.places.clone().acquire_owned());
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
        if !self.link.is_pooled {
            self.answered(client.batch_execute(&self.set("SET"))).await?;
        }
        Ok(Session { client, statements: HashMap::new() })
    }

    fn set(&self, verb: &str) -> String {
        let settings = self.settings.iter().map(|(name, value)| format!("{verb} {name} = {value}"));
        settings.collect::<Vec<_>>().join("; ")
    }

    /// How a transaction begins.
    fn begin(&self, begin: &str) -> String {
        if self.link.is_pooled { format!("{begin}; {}", self.set("SET LOCAL")) } else { begin.to_string() }
    }

    async fn answered<T>(&self, asking: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Fault> {
        Ok(tokio::time::timeout(self.deadline + LAST_WORDS, asking).await.map_err(|_| Fault::Silent)??)
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
        let (pool, session, before) = self.doubt();
        let rows = async {
            if pool.link.is_pooled {
                let asking = param::ask(&session.client, sql, params);
                return pool.in_transaction(before, &session.client, asking).await;
            }
            let statement = session.statement(sql, params).await?;
            session.client.query(&statement, &param::values(params)).await
        };
        let rows = pool.answered(rows).await?;
        self.state = before;
        Ok(rows)
    }

    /// Two statements, the second sent without waiting for the answer of the first.
    pub async fn query_both(
        &mut self,
        (first, first_params): (&str, Params<'_>),
        (second, second_params): (&str, Params<'_>),
    ) -> Result<(Vec<Row>, Vec<Row>), Fault> {
        let (pool, session, before) = self.doubt();
        let rows = async {
            if pool.link.is_pooled {
                let client = &session.client;
                let both = async {
                    tokio::try_join!(
                        biased;
                        param::ask(client, first, first_params),
                        param::ask(client, second, second_params)
                    )
                };
                return pool.in_transaction(before, client, both).await;
            }
            let first = session.statement(first, first_params).await?;
            let second = session.statement(second, second_params).await?;
            let (first_params, second_params) = (param::values(first_params), param::values(second_params));
            let client = &session.client;
            tokio::try_join!(biased; client.query(&first, &first_params), client.query(&second, &second_params))
        };
        let rows = pool.answered(rows).await?;
        self.state = before;
        Ok(rows)
    }

    /// Statements without parameters or answers.
    pub async fn run(&mut self, sql: &str) -> Result<(), Fault> {
        let (pool, session, before) = self.doubt();
        pool.answered(session.client.batch_execute(sql)).await?;
        self.state = before;
        Ok(())
    }

    pub async fn begin(&mut self) -> Result<(), Fault> {
        self.run(&self.pool.begin("BEGIN")).await?;
        self.state = State::InTransaction;
        Ok(())
    }

    /// All that is read until the commit is of one moment.
    pub async fn begin_reading(&mut self) -> Result<(), Fault> {
        self.run(&self.pool.begin(BEGIN_READING)).await?;
        self.state = State::InTransaction;
        Ok(())
    }

    pub async fn commit(&mut self) -> Result<(), Fault> {
        self.run("COMMIT").await?;
        self.state = State::Clean;
        Ok(())
    }

    /// From here until the answer is there, nobody knows what is going on.
    fn doubt(&mut self) -> (&Pool, &mut Session, State) {
        let before = std::mem::replace(&mut self.state, State::Doubtful);
        (&self.pool, self.session.as_mut().expect("a line has its session until it is dropped"), before)
    }
}

impl Pool {
    /// What is asked outside of a transaction gets one of its own. All three are on their way before the first is answered; if
    /// the second fails, the commit changes nothing.
    async fn in_transaction<T>(
        &self,
        state: State,
        client: &Client,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, tokio_postgres::Error> {
        if state == State::InTransaction {
            return asking.await;
        }
        let begin = self.begin("BEGIN");
        let (begin, commit) = (client.batch_execute(&begin), client.batch_execute("COMMIT"));
        let (_, answer, _) = tokio::try_join!(biased; begin, asking, commit)?;
        Ok(answer)
    }
}

impl Session {
    async fn statement(&mut self, sql: &str, params: Params<'_>) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare_typed(sql, &param::types(params)).await?;
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
