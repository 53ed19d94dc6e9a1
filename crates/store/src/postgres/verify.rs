//! The accounting of P5 and the ledger's own rules, proved from the database alone.

use super::audit::{self, Walk};
use super::link::Link;
use super::migrate;
use super::param::{self, Params};
use super::pool::BEGIN_READING;
use crate::verify::Report;
use crate::{Result, StoreError};
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use tokio_postgres::{Client, Row};

/// Only reads; any number of nodes may be at work meanwhile.
pub async fn verify(url: &str, now: Timestamp) -> Result<Report> {
    let client = migrate::open(&Link::parse(url)?).await?;
    if !migrate::is_there(&client).await? {
        return Err(StoreError::Open("there is no store in this database".into()));
    }
    migrate::refuse_other(&client, &migrate::known(&client).await?).await?;
    report(&client, now).await.map_err(|error| StoreError::Damaged(super::Fault::from(error).to_string()))
}

async fn number(client: &Client, sql: &str) -> std::result::Result<i64, tokio_postgres::Error> {
    one(client, sql, &[]).await?.try_get(0)
}

/// A question that counts always has one answer.
async fn one(client: &Client, sql: &str, params: Params<'_>) -> std::result::Result<Row, tokio_postgres::Error> {
    Ok(param::ask(client, sql, params).await?.pop().expect("a count has one row"))
}

async fn report(client: &Client, now: Timestamp) -> std::result::Result<Report, tokio_postgres::Error> {
    // One snapshot: all figures are of one moment.
    client.batch_execute(&format!("{BEGIN_READING}; SET LOCAL jit = off")).await?;
    let tally = one(
        client,
        "SELECT coalesce(sum(accepted), 0)::bigint, coalesce(sum(created), 0)::bigint,
                    coalesce(sum(expired), 0)::bigint, coalesce(sum(events_expired), 0)::bigint FROM tally",
        &[],
    )
    .await?;
    let [accepted, created, expired, events_expired] = [0, 1, 2, 3].map(|column| tally.get::<_, i64>(column));
    let mut report = Report { accepted: created, events: accepted, ..Report::default() };
    let states = [
        ("queued", "state IN (0, 5) AND failures = 0"),
        ("running", "state = 4"),
        ("retrying", "state IN (0, 5) AND failures > 0"),
        ("success", "state = 1"),
        ("noop", "state = 2"),
        ("dead", "state = 3"),
        ("dropped", "state = 6"),
    ];
    for (word, condition) in states {
        report.parts.push((word, number(client, &format!("SELECT count(*) FROM job WHERE {condition}")).await?));
    }
    report.parts.push(("expired by retention", expired));
    for (word, state) in [("open", 0), ("done", 1), ("not done", 2), ("unknown", 3), ("given up", 4)] {
        let sql = format!("SELECT count(*) FROM ({LAST_LINES}) AS effect WHERE state = {state}");
        report.effects.push((word, number(client, &sql).await?));
    }

    let sum: i64 = report.parts.iter().map(|(_, jobs)| jobs).sum();
    if sum != report.accepted {
        report.problems.push(format!("{} jobs were accepted, but {sum} are accounted for", report.accepted));
    }
    // One whose jobs are all gone has been counted as expired, though its row may wait for the end of its span.
    let sql = "SELECT count(*) FROM event WHERE EXISTS (SELECT 1 FROM job WHERE job.id > event.id
                                                                        AND job.id <= event.id + event.jobs)";
    let events = number(client, sql).await? + events_expired;
    if events != report.events {
        report.problems.push(format!("{} events were accepted, but {events} are accounted for", report.events));
    }
    for (rule, sql) in RULES {
        let broken = param::ask(client, &format!("WITH last AS ({LAST_LINES}) {sql} LIMIT 1"), &[]).await?;
        if let Some(first) = broken.first() {
            let job = JobId::from_number(first.try_get::<_, i64>(0)?.cast_unsigned());
            report.problems.push(format!("{rule}, such as {job}"));
        }
    }
    let twice = one(
        client,
        "SELECT count(*) FROM (SELECT 1 FROM event WHERE key IS NOT NULL AND expires_at > $1
                                   GROUP BY key HAVING count(*) > 1) AS twice",
        &[&now.as_micros()],
    )
    .await?
    .try_get::<_, i64>(0)?;
    if twice > 0 {
        report.problems.push(format!("{twice} keys are held by more than one event"));
    }
    let unheld = one(
        client,
        "SELECT count(*) FROM event WHERE key IS NOT NULL AND expires_at > $1
             AND NOT EXISTS (SELECT 1 FROM dedup WHERE dedup.key = event.key AND dedup.event = event.id)",
        &[&now.as_micros()],
    )
    .await?
    .try_get::<_, i64>(0)?;
    if unheld > 0 {
        report.problems.push(format!("{unheld} keys are not held by the event that they were accepted with"));
    }
    let head = audit::head(&param::ask(client, audit::HEAD, &[]).await?)?;
    let mut walk = Walk::new(head, None);
    while let Some(after) = walk.goes_on_after() {
        walk.look(&param::ask(client, &audit::part(), &[&after]).await?)?;
    }
    report.audit_rows = head.count;
    report.problems.extend(walk.inspected().broken.map(|broken| broken.to_string()));
    client.batch_execute("COMMIT").await?;
    Ok(report)
}

/// What counts of each effect.
const LAST_LINES: &str = "SELECT DISTINCT ON (job, name) * FROM effect ORDER BY job DESC, name DESC, no DESC";

/// Each names rows that must not exist.
const RULES: &[(&str, &str)] = &[
    ("jobs are in no known state", "SELECT id FROM job WHERE state NOT IN (0, 1, 2, 3, 4, 5, 6)"),
    ("jobs are kept where they are not looked for", "SELECT id FROM job WHERE (state IN (1, 2, 3, 6)) <> (slot = 0)"),
    ("jobs are there twice", "SELECT job.id FROM job WHERE slot > 0 AND EXISTS (
         SELECT 1 FROM job AS other WHERE other.id = job.id AND other.slot <> job.slot)"),
    ("jobs keep no known order", "SELECT id FROM job WHERE ord NOT IN (0, 1, 2) OR (ord > 0) <> (pos IS NOT NULL)"),
    (
        "jobs have no place in their group",
        "SELECT job.id FROM job WHERE ord > 0 AND state IN (0, 4, 5) AND NOT EXISTS (
             SELECT 1 FROM lane WHERE lane.queue = job.queue AND lane.id = job.lane
                 AND (job.pos BETWEEN lane.head AND lane.last OR job.pos = ANY (lane.again)))",
    ),
    (
        "jobs run beside another of their group",
        "SELECT job.id FROM job WHERE ord > 0 AND state = 4 AND NOT EXISTS (
             SELECT 1 FROM lane WHERE lane.queue = job.queue AND lane.id = job.lane AND lane.running = job.id)",
    ),
    (
        "groups wait for a job that does not run",
        "SELECT running FROM lane WHERE running IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = running AND job.state = 4)",
    ),
    (
        "groups are blocked by a job that is no dead letter",
        "SELECT blocked FROM lane WHERE blocked IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = blocked AND job.state = 3 AND job.ord = 2)",
    ),
    (
        "groups stand open or closed for no reason",
        "SELECT coalesce((SELECT max(job.id) FROM job WHERE job.queue = lane.queue AND job.lane = lane.id AND ord > 0), 0)
         FROM lane WHERE open <> (running IS NULL AND blocked IS NULL AND (head <= last OR again <> '{}'))",
    ),
    (
        "groups have another number of jobs than they count",
        "SELECT coalesce((SELECT max(job.id) FROM job WHERE job.queue = lane.queue AND job.lane = lane.id AND ord > 0), 0)
         FROM lane WHERE last - head + 1 + cardinality(again) <> (blocked IS NOT NULL)::integer + (
             SELECT count(*) FROM job WHERE job.queue = lane.queue AND job.lane = lane.id AND ord > 0 AND state IN (0, 4, 5))",
    ),
    ("jobs run without a lease", "SELECT id FROM job WHERE (state = 4) <> (lease_until IS NOT NULL)"),
    ("jobs have no event", "SELECT id FROM job WHERE NOT EXISTS (SELECT 1 FROM event WHERE event.id = job.event)"),
    (
        "events have no job",
        "SELECT id FROM event WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id > event.id AND job.id <= event.id + event.jobs)
         AND NOT EXISTS (SELECT 1 FROM span WHERE span.first <= event.id AND event.id <= span.pruned_to)",
    ),
    ("ended jobs do not say when", "SELECT id FROM job WHERE state IN (1, 2, 3, 6) AND ended_at IS NULL"),
    ("dead letters do not say why", "SELECT id FROM job WHERE state IN (3, 6) AND reason IS NULL"),
    (
        "jobs have other attempts than they count",
        "SELECT id FROM job WHERE attempts <> (SELECT count(*) FROM attempt WHERE attempt.job = job.id)",
    ),
    (
        "jobs ended while an effect was open",
        "SELECT job.id FROM last JOIN job ON job.id = last.job WHERE last.state = 0 AND job.state IN (1, 2, 3, 6)",
    ),
    (
        "jobs ended well with an effect of unknown outcome",
        "SELECT job.id FROM last JOIN job ON job.id = last.job WHERE last.state = 3 AND job.state = 1
             AND last.name NOT LIKE 'undo:%' AND last.name NOT LIKE 'end:%'",
    ),
    (
        "late answers are of no effect",
        "SELECT job FROM late_answer AS late
         WHERE NOT EXISTS (SELECT 1 FROM effect WHERE effect.job = late.job AND effect.name = late.name)",
    ),
    (
        "late answers have no job",
        "SELECT job FROM late_answer WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = late_answer.job)",
    ),
    (
        "approvals have no job",
        "SELECT job FROM approval WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = approval.job)",
    ),
    (
        "decided approvals do not say by whom or when",
        "SELECT job FROM approval WHERE state <> 0 AND (decided_by IS NULL OR decided_at IS NULL)",
    ),
    ("late answers say nothing", "SELECT job FROM late_answer WHERE state NOT IN (1, 2, 3)"),
    (
        "effects have no job",
        "SELECT effect.job FROM effect WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = effect.job)
         AND NOT EXISTS (SELECT 1 FROM span WHERE span.first <= effect.job AND effect.job <= span.pruned_to)",
    ),
];
