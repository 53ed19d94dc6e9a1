//! A database that takes a moved store in, part by part. Until all of it is there nobody is served from it.

use super::link::Link;
use super::param::{self, Params};
use super::rows::{
    DEAD, DROPPED, NOOP, RUNNING, SUCCESS, WAITING, class_number, effect_number, effect_status, reason_number, text,
};
use super::{Fault, audit, migrate};
use crate::approval::{Place, spelt, vote_number};
use crate::moving::{AdmissionPart, ApprovalPart, CallPart, EventPart, Facts, JobPart, OncePart, Totals, VersionPart};
use crate::people::{UserRow, UserTokenRow};
use crate::read::{AuditRow, BudgetRow, ScheduleRow, TokenRow};
use crate::{Result, StoreError};
use clinch_core::approval::{Ballot, OnExpiry};
use clinch_core::control::Control;
use clinch_core::effect::{Effect, EffectState, LateAnswer};
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role};
use std::collections::BTreeMap;
use tokio_postgres::Client;

pub(crate) struct Target {
    client: Client,
    name: String,
    state: TargetState,
}

/// What is there when a move begins.
#[derive(Debug)]
pub(crate) struct TargetState {
    /// Its keys are hashed under the same secret: it is this store's, or was made just now.
    pub is_ours: bool,
    pub is_empty: bool,
    pub moving: Option<Moving>,
    pub moved: bool,
}

/// How far an earlier run has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// The state of the source that it was carrying.
    pub boot: i64,
    pub event: i64,
    pub audit: i64,
}

// Facts of a move: the boot of its source while it is under way, how far it has come, and when it was finished.
const MOVING: &str = "moving";
const MOVED_EVENT: &str = "moved_event";
const MOVED_AUDIT: &str = "moved_audit";
const MOVED: &str = "moved_at";

/// Everything that a move writes.
const TABLES: &str = "version, event, dedup, job, lane, queue_turn, attempt, effect, late_answer, delivery, handle, audit, tally, once, call, \
                      budget, schedule, admission, sender_token, person, person_token, session, login_link, control, approval, vote, replay_plan, replay_item, drop_ask, alert";

impl Target {
    /// Makes the store if there is none, with the same secret: keys must be found again.
    pub async fn open(url: &str, pepper: [u8; 32]) -> Result<Target> {
        let link = Link::parse(url)?;
        let found = migrate::migrate(&link, pepper).await?;
        let client = migrate::open(&link).await?;
        let state = state(&client, found.pepper == pepper).await.map_err(migrate::open_error)?;
        Ok(Target { client, name: link.name(), state })
    }

    /// Its address, without a password.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn state(&self) -> &TargetState {
        &self.state
    }

    /// From the beginning: what an earlier run has left goes.
    pub async fn begin(
        &mut self,
        boot: i64,
        versions: &[VersionPart],
        (tokens, users, user_tokens): (Vec<TokenRow>, Vec<UserRow>, Vec<UserTokenRow>),
        controls: &[Control],
        secrets: &[(String, Vec<u8>)],
    ) -> Result<()> {
        let client = &self.client;
        together(client, async {
            for (name, value) in [(MOVING, boot), (MOVED_EVENT, 0), (MOVED_AUDIT, 0)] {
                set_fact(client, name, value).await?;
            }
            // After that: only while a store is moved in may an audit be emptied.
            client.batch_execute(&format!("TRUNCATE {TABLES}; UPDATE bucket SET until = 0")).await?;
            write(client, "DELETE FROM secret WHERE name <> 'pepper'", &[]).await?;
            for (name, value) in secrets {
                let keep = "INSERT INTO secret (name, value) VALUES ($1, $2)";
                write(client, keep, &[&&**name, &&value[..]]).await?;
            }
            for version in versions {
                write(
                    client,
                    "INSERT INTO version (id, at, hash, files) OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3, $4)",
                    &[&version.id.0, &version.at.as_micros(), &&version.hash[..], &text(&version.files)],
                )
                .await?;
            }
            // What was revoked or paused there is so here, and who had a token there has it here. Log-ins are not carried.
            insert_tokens(client, &tokens).await?;
            insert_users(client, &users).await?;
            insert_user_tokens(client, &user_tokens).await?;
            insert_controls(client, controls).await
        })
        .await
    }

    /// Events with all that hangs on them, and how far that is, in one transaction.
    pub async fn take(&mut self, events: &[EventPart]) -> Result<()> {
        let (client, Some(last)) = (&self.client, events.last()) else { return Ok(()) };
        together(client, async {
            insert_all(client, events).await?;
            set_fact(client, MOVED_EVENT, last.id.number().cast_signed()).await
        })
        .await
    }

    /// Rows as they are, with their hashes: the chain goes on here.
    pub async fn take_audit(&mut self, rows: &[AuditRow]) -> Result<()> {
        let (client, Some(last)) = (&self.client, rows.last()) else { return Ok(()) };
        together(client, async {
            write(client, audit::INSERT, &audit::Columns::of(rows).params()).await?;
            set_fact(client, MOVED_AUDIT, last.no.cast_signed()).await
        })
        .await
    }

    /// Rows of a table that has the same columns in both engines. What is there already stays.
    pub async fn take_rows(&mut self, table: &str, rows: &str) -> Result<()> {
        let client = &self.client;
        let sql = format!(
            "INSERT INTO {table} SELECT * FROM jsonb_populate_recordset(NULL::{table}, $1::text::jsonb) ON CONFLICT DO NOTHING"
        );
        together(client, write(client, &sql, &[&text(rows)])).await
    }

    pub async fn take_once(&mut self, parts: &[OncePart]) -> Result<()> {
        let client = &self.client;
        let keys: Vec<&[u8]> = parts.iter().map(|part| &part.key[..]).collect();
        let until: Vec<i64> = parts.iter().map(|part| part.until.as_micros()).collect();
        together(client, async {
            let sql =
                "INSERT INTO once (key, until) SELECT * FROM unnest($1::bytea[], $2::bigint[]) ON CONFLICT DO NOTHING";
            write(client, sql, &[&keys, &until]).await
        })
        .await
    }

    pub async fn take_calls(&mut self, parts: &[CallPart]) -> Result<()> {
        let client = &self.client;
        together(client, async {
            for part in parts {
                let sql = "INSERT INTO call (key, fingerprint, turn, fence, state, since, until, expires, answer)
                           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING";
                let (since, until, expires) =
                    (part.since.as_micros(), part.until.as_micros(), part.expires.as_micros());
                let (key, fingerprint) = (&part.key[..], &part.fingerprint[..]);
                write(
                    client,
                    sql,
                    &[
                        &key,
                        &fingerprint,
                        &part.turn,
                        &part.fence,
                        &part.state,
                        &since,
                        &until,
                        &expires,
                        &part.answer.as_deref(),
                    ],
                )
                .await?;
            }
            Ok(())
        })
        .await
    }

    pub async fn take_budgets(&mut self, rows: &[BudgetRow]) -> Result<()> {
        let client = &self.client;
        let micros =
            |of: fn(&BudgetRow) -> Option<Timestamp>| column(rows, |row| of(row).map_or(0, Timestamp::as_micros));
        together(client, async {
            write(
                client,
                "INSERT INTO budget (budget, entity, since, spent, extra, units, lasts, free_at, over_at)
                 SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::integer[], $5::integer[], $6::integer[],
                                      $7::bigint[], $8::bigint[], $9::bigint[]) ON CONFLICT DO NOTHING",
                &[
                    &column(rows, |row| &*row.budget),
                    &column(rows, |row| &row.entity.as_bytes()[..]),
                    &micros(|row| Some(row.account.since)),
                    &column(rows, |row| number(row.account.spent)),
                    &column(rows, |row| number(row.account.extra)),
                    &column(rows, |row| number(row.allowance.units.get())),
                    &column(rows, |row| i64::try_from(row.allowance.window.as_micros()).unwrap_or(i64::MAX)),
                    &micros(|row| row.account.free_at(row.allowance)),
                    &micros(|row| Some(row.account.over_at(row.allowance))),
                ],
            )
            .await
        })
        .await
    }

    pub async fn take_schedules(&mut self, rows: &[ScheduleRow]) -> Result<()> {
        let client = &self.client;
        together(client, async {
            write(
                client,
                "INSERT INTO schedule (name, last, job)
                 SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) ON CONFLICT DO NOTHING",
                &[
                    &column(rows, |row| &*row.name),
                    &column(rows, |row| row.last.as_micros()),
                    &column(rows, |row| row.job.map(|job| job.number().cast_signed())),
                ],
            )
            .await
        })
        .await
    }

    pub async fn take_admissions(&mut self, parts: &[AdmissionPart]) -> Result<()> {
        let client = &self.client;
        together(client, async {
            write(
                client,
                "INSERT INTO admission (job, step, contact, channel, at, until)
                 SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::text[], $5::bigint[], $6::bigint[])
                 ON CONFLICT DO NOTHING",
                &[
                    &column(parts, |part| part.job),
                    &column(parts, |part| &*part.step),
                    &column(parts, |part| &part.contact[..]),
                    &column(parts, |part| &*part.channel),
                    &column(parts, |part| part.at),
                    &column(parts, |part| part.until),
                ],
            )
            .await
        })
        .await
    }

    /// What is written once, after all the rest. Ids and fences that are given from now on are above all that were.
    pub async fn close_books(&mut self, facts: &Facts) -> Result<()> {
        let client = &self.client;
        together(client, async {
            client
                .batch_execute(
                    "DELETE FROM tally;
                     SELECT setval('fence', greatest((SELECT max(fence) FROM effect), 1));
                     SELECT setval(pg_get_serial_sequence('version', 'id'), greatest((SELECT max(id) FROM version), 1));
                     SELECT setval('control_version', greatest((SELECT max(version) FROM control), 1));
                     SELECT setval(pg_get_serial_sequence('alert', 'id'), greatest((SELECT max(id) FROM alert), 1));",
                )
                .await?;
            client.batch_execute(LINE_UP).await?;
            let Facts { last_id, accepted, created, expired, events_expired, live_version, live_chosen, audit } = facts;
            write(client, audit::SET_HEAD, &[&audit.count.cast_signed(), &&audit.hash.as_bytes()[..]]).await?;
            let tally = "INSERT INTO tally (accepted, created, expired, events_expired) VALUES ($1, $2, $3, $4)";
            write(client, tally, &[accepted, created, expired, events_expired]).await?;
            set_fact(client, "live_version", *live_version).await?;
            set_fact(client, "live_chosen", *live_chosen).await?;
            set_fact(client, "last_id", *last_id).await
        })
        .await?;
        // Plans for what has just come would be made as if there were nothing.
        client.batch_execute(&format!("ANALYZE {TABLES}")).await.map_err(away)
    }

    pub async fn totals(&self) -> Result<Totals> {
        let mut totals = Totals::new();
        for (kind, what) in [
            ("versions", "count(*) FROM version"),
            ("events", "count(*) FROM event"),
            ("keys", "count(DISTINCT key) FROM dedup"),
            ("jobs", "count(*) FROM job"),
            ("attempts", "count(*) FROM attempt"),
            ("effects", "count(DISTINCT (job, name)) FROM effect"),
            ("late answers", "count(*) FROM late_answer"),
            ("approvals", "count(*) FROM approval"),
            ("votes", "count(*) FROM vote"),
            ("deliveries", "count(*) FROM delivery"),
            ("handles", "count(*) FROM handle"),
            ("audit rows", "count(*) FROM audit"),
            ("set keys", "count(*) FROM once"),
            ("calls", "count(*) FROM call"),
            ("retry budgets", "count(*) FROM budget"),
            ("schedules", "count(*) FROM schedule"),
            ("counts of contacts", "count(*) FROM admission"),
            ("sender tokens", "count(*) FROM sender_token"),
            ("users", "count(*) FROM person"),
            ("user tokens", "count(*) FROM person_token"),
            ("controls", "count(*) FROM control"),
            ("replay plans", "count(*) FROM replay_plan"),
            ("jobs of replay plans", "count(*) FROM replay_item"),
            ("requests to drop", "count(*) FROM drop_ask"),
            ("alerts", "count(*) FROM alert"),
        ] {
            let found = one(&self.client, &format!("SELECT {what}"), &[]).await.map_err(away)?;
            totals.push((kind, found.unwrap_or(0)));
        }
        Ok(totals)
    }

    /// All of it is there: from here on it may be served from.
    pub async fn open_for_service(&mut self, at: Timestamp) -> Result<()> {
        let client = &self.client;
        together(client, async {
            let done = "DELETE FROM fact WHERE name IN ($1, $2, $3)";
            write(client, done, &[&MOVING, &MOVED_EVENT, &MOVED_AUDIT]).await?;
            set_fact(client, MOVED, at.as_micros()).await
        })
        .await
    }
}

// Where the order is kept, jobs stand in their lane in order of acceptance. Who has left it was before the head; who stands
// before the head all the same is a dead letter that lives again. A dead letter that nobody passes has not left.
const LINE_UP: &str = "
    UPDATE job SET pos = lined.pos
    FROM (SELECT id, row_number() OVER (PARTITION BY queue, lane ORDER BY id) AS pos FROM job WHERE ord > 0) AS lined
    WHERE job.id = lined.id;

    DELETE FROM lane;
    WITH blocking AS (
        SELECT queue, lane, min(id) AS job FROM job WHERE ord = 2 AND state = 3 GROUP BY queue, lane
    ), standing AS MATERIALIZED (
        SELECT job.id, job.queue, job.lane, job.pos, job.state, blocking.job AS blocked,
               (job.state IN (0, 4, 5) OR job.id = blocking.job) IS TRUE AS stands
        FROM job LEFT JOIN blocking USING (queue, lane) WHERE job.ord > 0
    ), heads AS MATERIALIZED (
        SELECT queue, lane, max(pos) AS last, coalesce(max(pos) FILTER (WHERE NOT stands), 0) + 1 AS head,
               min(id) FILTER (WHERE state = 4) AS running, min(blocked) AS blocked
        FROM standing GROUP BY queue, lane
    ), lined AS (
        SELECT heads.queue, heads.lane, heads.head, heads.last, heads.running, heads.blocked,
               coalesce(array_agg(standing.pos ORDER BY standing.pos) FILTER (WHERE standing.pos < heads.head), '{}') AS again
        FROM heads LEFT JOIN standing
            ON standing.queue = heads.queue AND standing.lane = heads.lane AND standing.stands
        GROUP BY heads.queue, heads.lane, heads.head, heads.last, heads.running, heads.blocked
    )
    INSERT INTO lane (queue, id, head, last, running, blocked, again, due_at, priority, open)
    SELECT lined.queue, lined.lane, lined.head, lined.last, lined.running, lined.blocked, lined.again,
           coalesce(first.run_at, 0), coalesce(first.priority, 0),
           lined.running IS NULL AND lined.blocked IS NULL AND (lined.head <= lined.last OR lined.again <> '{}')
    FROM lined LEFT JOIN job AS first ON first.queue = lined.queue AND first.lane = lined.lane AND first.ord > 0
                                     AND first.pos = coalesce(lined.again[1], lined.head)";

fn away(error: tokio_postgres::Error) -> StoreError {
    StoreError::Unavailable(format!("{}; run it again and it goes on from here", Fault::from(error)))
}

type Sql<T> = std::result::Result<T, tokio_postgres::Error>;

/// One transaction. After a fault the connection is not used again, and what was begun on it ends with it.
async fn together(client: &Client, writing: impl Future<Output = Sql<()>>) -> Result<()> {
    migrate::begin(client).await.map_err(away)?;
    writing.await.map_err(away)?;
    client.batch_execute("COMMIT").await.map_err(away)
}

async fn write(client: &Client, sql: &str, params: Params<'_>) -> Sql<()> {
    param::ask(client, sql, params).await.map(drop)
}

/// The number that a question has for an answer.
async fn one(client: &Client, sql: &str, params: Params<'_>) -> Sql<Option<i64>> {
    param::ask(client, sql, params).await?.first().map(|row| row.try_get(0)).transpose()
}

async fn fact(client: &Client, name: &str) -> Sql<Option<i64>> {
    one(client, "SELECT value FROM fact WHERE name = $1", &[&name]).await
}

async fn set_fact(client: &Client, name: &str, value: i64) -> Sql<()> {
    let set = "INSERT INTO fact (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    write(client, set, &[&name, &value]).await
}

async fn state(client: &Client, is_ours: bool) -> Sql<TargetState> {
    let moving = match fact(client, MOVING).await? {
        None => None,
        Some(boot) => {
            let event = fact(client, MOVED_EVENT).await?.unwrap_or(0);
            Some(Moving { boot, event, audit: fact(client, MOVED_AUDIT).await?.unwrap_or(0) })
        }
    };
    let used = "SELECT 1::bigint WHERE EXISTS (SELECT 1 FROM version) OR EXISTS (SELECT 1 FROM tally)
                                    OR EXISTS (SELECT 1 FROM node)";
    let is_empty = one(client, used, &[]).await?.is_none();
    Ok(TargetState { is_ours, is_empty, moving, moved: fact(client, MOVED).await?.is_some() })
}

pub(super) async fn is_half_moved(client: &Client) -> Sql<bool> {
    Ok(fact(client, MOVING).await?.is_some())
}

async fn insert_all(client: &Client, events: &[EventPart]) -> Sql<()> {
    insert_events(client, events).await?;
    insert_keys(client, events).await?;
    let jobs: Vec<(&EventPart, &JobPart)> =
        events.iter().flat_map(|event| event.jobs.iter().map(move |job| (event, job))).collect();
    insert_jobs(client, &jobs).await?;
    insert_attempts(client, &jobs).await?;
    insert_effects(client, &jobs).await?;
    insert_late(client, &jobs).await?;
    insert_approvals(client, &jobs).await?;
    insert_deliveries(client, events).await?;
    insert_handles(client, events).await
}

/// One column of many rows.
fn column<'r, R, T>(rows: &'r [R], of: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

async fn insert_events(client: &Client, events: &[EventPart]) -> Sql<()> {
    let traces = column(events, |event| event.trace.to_bytes());
    write(
        client,
        "INSERT INTO event (id, received_at, expires_at, status, jobs, source, key, fingerprint, trace, payload)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::text[],
                              $7::bytea[], $8::bytea[], $9::bytea[], $10::bytea[])",
        &[
            &column(events, |event| event.id.number().cast_signed()),
            &column(events, |event| event.received_at.as_micros()),
            &column(events, |event| event.expires_at.as_micros()),
            &column(events, |event| i32::from(event.status)),
            &column(events, |event| number(event.jobs_born)),
            &column(events, |event| text(&event.source)),
            &column(events, |event| event.key.as_ref().map(|key| &key.as_bytes()[..])),
            &column(events, |event| event.fingerprint.as_ref().map(|fingerprint| &fingerprint.as_bytes()[..])),
            &column(&traces, |trace| &trace[..]),
            &column(events, |event| &event.payload[..]),
        ],
    )
    .await
}

/// The newest event of a key holds it: the others had expired when it came.
async fn insert_keys(client: &Client, events: &[EventPart]) -> Sql<()> {
    let holders: BTreeMap<&[u8; 32], &EventPart> =
        events.iter().filter_map(|event| Some((event.key.as_ref()?.as_bytes(), event))).collect();
    let holders: Vec<(&[u8; 32], &EventPart)> = holders.into_iter().collect();
    let expires_at = column(&holders, |(_, event)| event.expires_at.as_micros());
    write(
        client,
        "INSERT INTO dedup (key, event, expires_at, jobs, bucket)
         SELECT new.*, (SELECT max(no) FROM bucket)
         FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::integer[]) AS new
         ON CONFLICT (key, bucket) DO UPDATE SET event = excluded.event, expires_at = excluded.expires_at,
                                                 jobs = excluded.jobs",
        &[
            &column(&holders, |(key, _)| &key[..]),
            &column(&holders, |(_, event)| event.id.number().cast_signed()),
            &expires_at,
            &column(&holders, |(_, event)| number(event.jobs_born)),
        ],
    )
    .await?;
    let needed = "UPDATE bucket SET until = greatest(until, $1) WHERE no = (SELECT max(no) FROM bucket)";
    match expires_at.iter().max() {
        None => Ok(()),
        Some(until) => write(client, needed, &[until]).await,
    }
}

/// Whoever waits waits to be given its turn, also if it is due: whose turn is next is found out when it is claimed.
/// What was running when its process ended comes as running under a lease that is over, so that it is settled as lost and not
/// silently run again.
async fn insert_jobs(client: &Client, jobs: &[(&EventPart, &JobPart)]) -> Sql<()> {
    let state = |word: Word| match word {
        Word::Success => SUCCESS,
        Word::Noop => NOOP,
        Word::Dead => DEAD,
        Word::Dropped => DROPPED,
        Word::Running => RUNNING,
        Word::Queued | Word::Waiting | Word::Retrying => WAITING,
    };
    write(
        client,
        "INSERT INTO job (id, event, version, received_at, run_at, fence, lease_until, first_attempt_at, ended_at,
                          failures, attempts, replays, state, reason, flow, queue, lane, ord, priority, turn, slot)
         SELECT *, 0, CASE WHEN new.state IN (1, 2, 3, 6) THEN 0 ELSE (SELECT active FROM ring) END FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                                 $7::bigint[], $8::bigint[], $9::bigint[], $10::integer[], $11::integer[],
                                 $12::integer[], $13::smallint[], $14::smallint[], $15::text[], $16::text[],
                                 $17::bigint[], $18::smallint[], $19::smallint[])
             AS new (id, event, version, received_at, run_at, fence, lease_until, first_attempt_at, ended_at, failures,
                     attempts, replays, state, reason, flow, queue, lane, ord, priority)",
        &[
            &column(jobs, |(_, job)| job.id.number().cast_signed()),
            &column(jobs, |(event, _)| event.id.number().cast_signed()),
            &column(jobs, |(_, job)| job.version.0),
            &column(jobs, |(event, _)| event.received_at.as_micros()),
            &column(jobs, |(_, job)| job.run_at.as_micros()),
            &column(jobs, |(_, job)| job.fence.cast_signed()),
            &column(jobs, |(_, job)| (job.word == Word::Running).then_some(0i64)),
            &column(jobs, |(_, job)| job.first_attempt_at.map(Timestamp::as_micros)),
            &column(jobs, |(_, job)| job.ended_at.map(Timestamp::as_micros)),
            &column(jobs, |(_, job)| number(job.failures)),
            &column(jobs, |(_, job)| number(job.attempts_made)),
            &column(jobs, |(_, job)| number(job.replays)),
            &column(jobs, |(_, job)| state(job.word)),
            &column(jobs, |(_, job)| job.reason.map(reason_number)),
            &column(jobs, |(_, job)| text(&job.flow)),
            &column(jobs, |(_, job)| text(&job.queue)),
            &column(jobs, |(_, job)| job.lane.number().cast_signed()),
            &column(jobs, |(_, job)| job.order.number()),
            &column(jobs, |(_, job)| job.priority),
        ],
    )
    .await
}

async fn insert_attempts(client: &Client, jobs: &[(&EventPart, &JobPart)]) -> Sql<()> {
    let rows: Vec<_> = jobs.iter().flat_map(|(_, job)| job.attempts.iter().map(|attempt| (job.id, attempt))).collect();
    write(
        client,
        "INSERT INTO attempt (job, no, started_at, ended_at, reason, outcome, error)
         SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::smallint[], $6::text[],
                              $7::bytea[])",
        &[
            &column(&rows, |(job, _)| job.number().cast_signed()),
            &column(&rows, |(_, attempt)| number(attempt.row.no)),
            &column(&rows, |(_, attempt)| attempt.row.started_at.as_micros()),
            &column(&rows, |(_, attempt)| attempt.row.ended_at.as_micros()),
            &column(&rows, |(_, attempt)| attempt.row.reason.map(reason_number)),
            &column(&rows, |(_, attempt)| text(&attempt.row.outcome)),
            &column(&rows, |(_, attempt)| attempt.error.as_deref()),
        ],
    )
    .await
}

fn answer(state: &EffectState) -> Option<&[u8]> {
    let EffectState::Done(receipt) = state else { return None };
    receipt.kept().map(|body| &body[..])
}

async fn insert_effects(client: &Client, jobs: &[(&EventPart, &JobPart)]) -> Sql<()> {
    let rows: Vec<(&JobPart, &Effect)> =
        jobs.iter().flat_map(|(_, job)| job.effects.iter().map(|effect| (*job, effect))).collect();
    write(
        client,
        "INSERT INTO effect (job, first_intended_at, changed_at, fence, sends, status, class, state, name, body, no)
         SELECT *, 1 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::integer[],
                              $7::smallint[], $8::smallint[], $9::text[], $10::bytea[])",
        &[
            &column(&rows, |(job, _)| job.id.number().cast_signed()),
            &column(&rows, |(_, effect)| effect.first_intended_at.as_micros()),
            &column(&rows, |(_, effect)| effect.changed_at.as_micros()),
            &column(&rows, |(job, _)| job.fence.cast_signed()),
            &column(&rows, |(_, effect)| number(effect.sends)),
            &column(&rows, |(_, effect)| effect_status(&effect.state)),
            &column(&rows, |(_, effect)| class_number(effect.class)),
            &column(&rows, |(_, effect)| effect_number(&effect.state)),
            &column(&rows, |(_, effect)| text(&effect.name)),
            &column(&rows, |(_, effect)| answer(&effect.state)),
        ],
    )
    .await
}

async fn insert_late(client: &Client, jobs: &[(&EventPart, &JobPart)]) -> Sql<()> {
    let rows: Vec<(JobId, &LateAnswer)> =
        jobs.iter().flat_map(|(_, job)| job.late.iter().map(|late| (job.id, late))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    write(
        client,
        "INSERT INTO late_answer (job, fence, at, status, state, name, body)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::smallint[], $6::text[],
                              $7::bytea[])",
        &[
            &column(&rows, |(job, _)| job.number().cast_signed()),
            &column(&rows, |(_, late)| late.fence.0.cast_signed()),
            &column(&rows, |(_, late)| late.at.as_micros()),
            &column(&rows, |(_, late)| late.status.map(i32::from)),
            &column(&rows, |(_, late)| effect_number(&late.state)),
            &column(&rows, |(_, late)| text(&late.step)),
            &column(&rows, |(_, late)| answer(&late.state)),
        ],
    )
    .await
}

async fn insert_approvals(client: &Client, jobs: &[(&EventPart, &JobPart)]) -> Sql<()> {
    let rows: Vec<&ApprovalPart> = jobs.iter().flat_map(|(_, job)| &job.approvals).collect();
    if rows.is_empty() {
        return Ok(());
    }
    fn place(part: &ApprovalPart) -> Option<&Place> {
        part.row.place.as_ref()
    }
    let decided = |part: &&ApprovalPart| part.row.decision.clone();
    write(
        client,
        "INSERT INTO approval (job, step, flow, state, voters, need, on_expiry, requester, asked_at, expires_at, remind_at,
                               integration, channel, tell_at, told, decided_at, decided_by, reason)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::integer[], $7::smallint[],
                              $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::bigint[],
                              $15::integer[], $16::bigint[], $17::text[], $18::text[])",
        &[
            &column(&rows, |part| part.row.id.job.number().cast_signed()),
            &column(&rows, |part| text(&part.row.id.step)),
            &column(&rows, |part| text(&part.row.flow)),
            &column(&rows, |part| part.row.decision.as_ref().map_or(0, |decision| decision.verdict.number())),
            &column(&rows, |part| spelt(&part.row.of)),
            &column(&rows, |part| number(part.row.need)),
            &column(&rows, |part| i16::from(part.row.on_expiry == OnExpiry::Approve)),
            &column(&rows, |part| part.row.requester.as_deref().map(text)),
            &column(&rows, |part| part.row.asked_at.as_micros()),
            &column(&rows, |part| part.row.expires_at.as_micros()),
            &column(&rows, |part| part.remind_at.map(Timestamp::as_micros)),
            &column(&rows, |part| place(part).map(|place| text(&place.integration))),
            &column(&rows, |part| place(part).map(|place| text(&place.channel))),
            &column(&rows, |part| part.tell_at.map(Timestamp::as_micros)),
            &column(&rows, |part| number(part.row.told)),
            &column(&rows, |part| decided(part).map(|decision| decision.at.as_micros())),
            &column(&rows, |part| decided(part).map(|decision| decision.by)),
            &column(&rows, |part| decided(part).map(|decision| decision.reason)),
        ],
    )
    .await?;
    let votes: Vec<(&ApprovalPart, &Ballot)> =
        rows.iter().flat_map(|part| part.row.ballots.iter().map(move |ballot| (*part, ballot))).collect();
    write(
        client,
        "INSERT INTO vote (job, step, actor, vote, at, reason)
         SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::smallint[], $5::bigint[], $6::text[])",
        &[
            &column(&votes, |(part, _)| part.row.id.job.number().cast_signed()),
            &column(&votes, |(part, _)| text(&part.row.id.step)),
            &column(&votes, |(_, ballot)| text(&ballot.actor)),
            &column(&votes, |(_, ballot)| vote_number(ballot.vote)),
            &column(&votes, |(_, ballot)| ballot.at.as_micros()),
            &column(&votes, |(_, ballot)| text(&ballot.reason)),
        ],
    )
    .await
}

async fn insert_deliveries(client: &Client, events: &[EventPart]) -> Sql<()> {
    let rows: Vec<_> = events
        .iter()
        .flat_map(|event| (1i32..).zip(&event.deliveries).map(|(no, delivery)| (event.id, no, delivery)))
        .collect();
    write(
        client,
        "INSERT INTO delivery (event, no, at, times, kind)
         SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::smallint[])",
        &[
            &column(&rows, |(event, ..)| event.number().cast_signed()),
            &column(&rows, |(_, no, _)| *no),
            &column(&rows, |(.., delivery)| delivery.at.as_micros()),
            &column(&rows, |(.., delivery)| delivery.times.cast_signed()),
            &column(&rows, |(.., delivery)| i16::from(delivery.conflict)),
        ],
    )
    .await
}

async fn insert_handles(client: &Client, events: &[EventPart]) -> Sql<()> {
    let rows: Vec<(EventId, i64)> =
        events.iter().flat_map(|event| event.handles.iter().map(|handle| (event.id, *handle))).collect();
    write(
        client,
        "INSERT INTO handle (event, mark) SELECT * FROM unnest($1::bigint[], $2::bigint[])",
        &[&column(&rows, |(event, _)| event.number().cast_signed()), &column(&rows, |(_, mark)| *mark)],
    )
    .await
}

async fn insert_tokens(client: &Client, tokens: &[TokenRow]) -> Sql<()> {
    write(
        client,
        "INSERT INTO sender_token (id, sender, issued_at, expires_at, revoked_at)
         SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])",
        &[
            &column(tokens, |token| token.sender.token.to_string()),
            &column(tokens, |token| token.sender.name.as_str()),
            &column(tokens, |token| token.sender.issued_at.as_micros()),
            &column(tokens, |token| token.sender.expires_at.map(Timestamp::as_micros)),
            &column(tokens, |token| token.revoked_at.map(Timestamp::as_micros)),
        ],
    )
    .await
}

async fn insert_controls(client: &Client, controls: &[Control]) -> Sql<()> {
    write(
        client,
        "INSERT INTO control (name, value, version, at, actor, until)
         SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])",
        &[
            &column(controls, |control| &*control.name),
            &column(controls, |control| text(&control.value)),
            &column(controls, |control| control.version),
            &column(controls, |control| control.at.as_micros()),
            &column(controls, |control| text(&control.actor)),
            &column(controls, |control| control.until.map(Timestamp::as_micros)),
        ],
    )
    .await
}

async fn insert_users(client: &Client, users: &[UserRow]) -> Sql<()> {
    write(
        client,
        "INSERT INTO person (name, added_at, role, password, identity)
         SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bytea[])",
        &[
            &column(users, |user| user.name.as_str()),
            &column(users, |user| user.added_at.as_micros()),
            &column(users, |user| user.role.word()),
            &column(users, |user| user.password.as_ref().map(PasswordHash::as_str)),
            &column(users, |user| user.identity.as_ref().map(|identity| &identity.as_bytes()[..])),
        ],
    )
    .await
}

async fn insert_user_tokens(client: &Client, tokens: &[UserTokenRow]) -> Sql<()> {
    write(
        client,
        "INSERT INTO person_token (digest, id, person, made_at, expires_at, used_at, role, source)
         SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[],
                              $8::text[])",
        &[
            &column(tokens, |token| &token.digest.as_bytes()[..]),
            &column(tokens, |token| token.id.to_string()),
            &column(tokens, |token| token.user.as_str()),
            &column(tokens, |token| token.made_at.as_micros()),
            &column(tokens, |token| token.expires_at.map(Timestamp::as_micros)),
            &column(tokens, |token| token.used_at.map(Timestamp::as_micros)),
            &column(tokens, |token| token.role.map(Role::word)),
            &column(tokens, |token| token.source.as_deref()),
        ],
    )
    .await
}
