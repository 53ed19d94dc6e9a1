//! accept: the event, its key and its jobs, together or not at all; many events in one statement.

use super::batch::Family;
use super::param::Param;
use super::pool::Line;
use super::rows::{self, READY, WAITING, text};
use super::turns::Draft;
use super::{Fault, Shared, audit, lock, revive};
use crate::{Acceptance, Accepted, DELIVERIES_KEPT_MAX, Dedup, NewEvent, NewJob, Result, ReviveAsk, StoreError};
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::id::{EventId, JobId};
use clinch_core::key::Fingerprint;
use clinch_core::time::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

/// Deliveries of known keys that another transaction got in the way of are tried again this often.
const CONFLICTS_MAX: u32 = 5;

pub(super) struct Accepts;

impl Family for Accepts {
    type Ask = NewEvent;
    type Answer = Acceptance;

    /// Deliveries of one key may share a batch: the first of them decides, before the database is asked.
    fn touches(_: &NewEvent) -> Option<u64> {
        None
    }

    fn bytes(event: &NewEvent) -> usize {
        event.payload.len()
    }

    async fn write(shared: &Shared, events: &[NewEvent]) -> std::result::Result<Vec<Result<Acceptance>>, Fault> {
        let mut answers: Vec<Option<Result<Acceptance>>> = Vec::new();
        answers.resize_with(events.len(), || None);
        let mut line = shared.hands.line().await?;
        for (place, accepted) in insert(shared, &mut line, events).await? {
            answers[place] = Some(Ok(Acceptance::Fresh(accepted)));
        }
        // What was inserted is committed. What becomes of the others changes nothing in that.
        let known: Vec<usize> = (0..events.len()).filter(|place| answers[*place].is_none()).collect();
        if !known.is_empty() {
            match again(shared, &mut line, events, &known).await {
                Ok(found) => {
                    for (place, answer) in found {
                        answers[place] = Some(Ok(answer));
                    }
                }
                Err(fault) => {
                    let error = shared.judge(&fault);
                    for place in known {
                        answers[place] = Some(Err(error.clone()));
                    }
                }
            }
        }
        let vanished = || StoreError::Unavailable("its key was being freed at this very moment; send it again".into());
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(vanished()))).collect())
    }
}

// A key is won by being inserted into the newest bucket, or by taking it over from an event that it has expired for and whose
// jobs have all ended well; a dead letter has not. Such jobs never move again, so what this statement sees of them stays
// true; but it must see them, so an event that was stored after it began keeps its key. In older buckets it sees every key:
// see `bucket.rs` for why. There an event that is not seen is gone.
// The bucket is told how long it will be needed, an hour in advance, so that it is told once an hour.
// The keys are inserted in order: two nodes with the same keys wait for each other, and never in a circle.
// A node that was taken for dead accepts nothing: its number, and so its ids, may belong to another.
// Where the order is kept, the row of the lane gives the positions, and is locked from then on: the order of acceptance is
// that of the commits, whatever the clocks of the nodes say. Lanes are locked in order, after the keys.
// No two parts are joined: each picks the winners by a look into one small hash.
const INSERT: &str = "
    WITH here AS MATERIALIZED (
        SELECT EXISTS (SELECT 1 FROM node WHERE boot = $1) AS yes, (SELECT max(no) FROM bucket) AS bucket,
               (SELECT active FROM ring) AS slot
    ), asked AS MATERIALIZED (
        SELECT asked.* FROM unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::integer[])
            AS asked (id, received_at, key, expires_at, jobs)
        WHERE (SELECT yes FROM here)
    ), held AS MATERIALIZED (
        SELECT asked.id FROM asked JOIN dedup ON dedup.key = asked.key AND dedup.bucket < (SELECT bucket FROM here)
        WHERE EXISTS (SELECT 1 FROM event WHERE event.id = dedup.event)
          AND (dedup.expires_at > asked.received_at
               OR EXISTS (SELECT 1 FROM job WHERE job.id > dedup.event AND job.id <= dedup.event + dedup.jobs
                                              AND job.state NOT IN (1, 2)))
    ), won AS (
        INSERT INTO dedup (key, event, expires_at, jobs, bucket)
        SELECT key, id, expires_at, jobs, (SELECT bucket FROM here) FROM asked
        WHERE key IS NOT NULL AND (id IN (SELECT id FROM held)) IS NOT TRUE ORDER BY key
        ON CONFLICT (key, bucket) DO UPDATE SET event = excluded.event, expires_at = excluded.expires_at, jobs = excluded.jobs
        WHERE dedup.expires_at <= (SELECT received_at FROM asked WHERE asked.id = excluded.event)
          AND EXISTS (SELECT 1 FROM event WHERE event.id = dedup.event)
          AND NOT EXISTS (SELECT 1 FROM job WHERE job.id > dedup.event AND job.id <= dedup.event + dedup.jobs
                                              AND job.state NOT IN (1, 2))
        RETURNING event
    ), fresh AS MATERIALIZED (
        SELECT id, jobs FROM asked WHERE key IS NULL OR id IN (SELECT event FROM won)
    ), events AS (
        INSERT INTO event (id, received_at, key, expires_at, jobs, source, status, fingerprint, trace, payload)
        SELECT new.* FROM unnest($2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::integer[],
                                 $7::text[], $8::integer[], $9::bytea[], $10::bytea[], $11::bytea[])
            AS new (id, received_at, key, expires_at, jobs, source, status, fingerprint, trace, payload)
        WHERE (new.id IN (SELECT id FROM fresh)) IS TRUE
    ), born AS (
        INSERT INTO job (id, event, version, received_at, run_at, flow, queue, lane, ord, priority, turn, state, slot)
        SELECT new.*, (SELECT slot FROM here) FROM unnest($12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
                                 $17::text[], $18::text[], $19::bigint[], $20::smallint[], $21::smallint[],
                                 $22::bigint[], $23::smallint[])
            AS new (id, event, version, received_at, run_at, flow, queue, lane, ord, priority, turn, state)
        WHERE new.ord = 0 AND (new.event IN (SELECT id FROM fresh)) IS TRUE
    ), in_order AS MATERIALIZED (
        SELECT new.*, row_number() OVER of_lane AS nth, count(*) OVER (PARTITION BY new.queue, new.lane) AS jobs
        FROM unnest($12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
                    $17::text[], $18::text[], $19::bigint[], $20::smallint[], $21::smallint[])
            AS new (id, event, version, received_at, run_at, flow, queue, lane, ord, priority)
        WHERE $24 AND new.ord > 0 AND (new.event IN (SELECT id FROM fresh)) IS TRUE
        WINDOW of_lane AS (PARTITION BY new.queue, new.lane ORDER BY new.id)
    ), lined AS (
        INSERT INTO lane (queue, id, head, last, due_at, priority, open)
        SELECT queue, lane, 1, jobs, run_at, priority, true FROM in_order WHERE nth = 1 ORDER BY queue COLLATE \"C\", lane
        ON CONFLICT (queue, id) DO UPDATE SET
            last = lane.last + excluded.last,
            open = lane.running IS NULL AND lane.blocked IS NULL,
            due_at = CASE WHEN lane.head > lane.last AND lane.again = '{}' THEN excluded.due_at ELSE lane.due_at END,
            priority = CASE WHEN lane.head > lane.last AND lane.again = '{}' THEN excluded.priority ELSE lane.priority END
        RETURNING queue, id, last
    ), lasts AS MATERIALIZED (
        SELECT jsonb_object_agg(id || ' ' || queue, last) AS of_lane FROM lined
    ), born_in_order AS (
        INSERT INTO job (id, event, version, received_at, run_at, flow, queue, lane, ord, priority, turn, state, slot, pos)
        SELECT id, event, version, received_at, run_at, flow, queue, lane, ord, priority, 0, 5, (SELECT slot FROM here),
               ((SELECT of_lane FROM lasts) ->> (lane || ' ' || queue))::bigint - jobs + nth
        FROM in_order
    ), kept AS (
        UPDATE bucket SET until = (SELECT max(expires_at) FROM asked WHERE key IS NOT NULL) + 3600000000
        WHERE no = (SELECT bucket FROM here) AND until < (SELECT max(expires_at) FROM asked WHERE key IS NOT NULL)
    ), counted AS (
        INSERT INTO tally (accepted, created) SELECT count(*), sum(jobs) FROM fresh HAVING count(*) > 0
    )
    SELECT id, (id IN (SELECT id FROM fresh)) IS TRUE FROM asked";

/// The same, with what events are found by.
static INSERT_FOUND: LazyLock<String> = LazyLock::new(|| {
    let (parts, answer) = INSERT.rsplit_once(")\n    SELECT").expect("it ends with its answer");
    format!(
        "{parts}), found_by AS (
        INSERT INTO handle (event, mark)
        SELECT new.* FROM unnest($25::bigint[], $26::bigint[]) AS new (event, mark)
        WHERE (new.event IN (SELECT id FROM fresh)) IS TRUE
    )
    SELECT{answer}"
    )
});

/// Stores the first delivery of each key, and every one without a key; tells which became events.
async fn insert(
    shared: &Shared,
    line: &mut Line,
    events: &[NewEvent],
) -> std::result::Result<Vec<(usize, Accepted)>, Fault> {
    let stored = store(shared, line, events).await?;
    stored.announce(shared);
    Ok(stored.accepted().collect())
}

/// The same, within the transaction of the caller, who lets others know after the commit.
pub(super) async fn store<'e>(
    shared: &Shared,
    line: &mut Line,
    events: &'e [NewEvent],
) -> std::result::Result<Stored<'e>, Fault> {
    let mut keys = HashSet::new();
    let firsts: Vec<(usize, &NewEvent)> = events
        .iter()
        .enumerate()
        .filter(|(_, event)| event.dedup.as_ref().is_none_or(|dedup| keys.insert(*dedup.key.as_bytes())))
        .collect();
    let spans = firsts.iter().map(|(_, event)| (event.received_at, event.jobs.len()));
    let (boot, ids) = lock(&shared.node).take_ids(spans);
    let (ids, new): (Vec<i64>, Vec<&NewEvent>) =
        ids.iter().zip(&firsts).map(|(id, (_, event))| (id.cast_signed(), *event)).unzip();
    let dedups = || new.iter().map(|event| event.dedup.as_ref());
    let received_at: Vec<i64> = new.iter().map(|event| event.received_at.as_micros()).collect();
    let keys: Vec<Option<&[u8]>> = dedups().map(|dedup| dedup.map(|dedup| &dedup.key.as_bytes()[..])).collect();
    let expires_at =
        |event: &NewEvent| event.received_at + event.dedup.as_ref().map_or(Duration::ZERO, |dedup| dedup.ttl);
    let expires_at: Vec<i64> = new.iter().map(|event| expires_at(event).as_micros()).collect();
    let jobs: Vec<i32> = new.iter().map(|event| i32::try_from(event.jobs.len()).unwrap_or(i32::MAX)).collect();
    let sources: Vec<Cow<'_, str>> = new.iter().map(|event| text(&event.source)).collect();
    let statuses: Vec<i32> = new.iter().map(|event| i32::from(event.status)).collect();
    let fingerprints: Vec<Option<&[u8]>> =
        dedups().map(|dedup| dedup.map(|dedup| &dedup.fingerprint.as_bytes()[..])).collect();
    let traces: Vec<[u8; 16]> = new.iter().map(|event| event.trace.to_bytes()).collect();
    let traces: Vec<&[u8]> = traces.iter().map(|trace| &trace[..]).collect();
    let sealed = |(id, event): (&i64, &&'_ NewEvent)| {
        shared.sealer.payload(EventId::from_number(id.cast_unsigned()), &event.payload).into_owned()
    };
    let payloads: Vec<Vec<u8>> = ids.iter().zip(&new).map(sealed).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();

    let born: Vec<Born<'_>> = ids.iter().zip(&new).flat_map(|(id, event)| Born::of(*id, event)).collect();
    let job_ids: Vec<i64> = born.iter().map(|job| job.id).collect();
    let job_events: Vec<i64> = born.iter().map(|job| job.event_id).collect();
    let versions: Vec<i64> = born.iter().map(|job| job.event.version.0).collect();
    let job_received_at: Vec<i64> = born.iter().map(|job| job.event.received_at.as_micros()).collect();
    let run_at: Vec<i64> = born.iter().map(|job| shared.skew.to_database(job.new.run_at).as_micros()).collect();
    let job_flows: Vec<Cow<'_, str>> = born.iter().map(|job| text(&job.new.flow)).collect();
    let queues: Vec<Cow<'_, str>> = born.iter().map(|job| text(&job.new.queue)).collect();
    let lanes: Vec<i64> = born.iter().map(|job| job.new.lane.number().cast_signed()).collect();
    let orders: Vec<i16> = born.iter().map(|job| job.new.order.number()).collect();
    let priorities: Vec<i16> = born.iter().map(|job| job.new.priority).collect();
    let mut draft = shared.rota.draft();
    let turns: Vec<i64> = born.iter().map(|job| job.turn(&mut draft).map_or(0, u64::cast_signed)).collect();
    let states: Vec<i16> = born.iter().map(|job| if job.is_due() { READY } else { WAITING }).collect();
    let any_in_order = orders.iter().any(|order| *order > 0);
    let found_by =
        ids.iter().zip(&new).flat_map(|(id, event)| event.handles.iter().map(|handle| (*id, handle.number())));
    let (handle_events, handles): (Vec<i64>, Vec<i64>) = found_by.unzip();
    // Where nothing is found by anything, the statement is as it was.
    let (insert, params) = if handles.is_empty() { (INSERT, 24) } else { (&**INSERT_FOUND, 26) };

    let all: [&(dyn Param + Sync); 26] = [
        &boot,
        &ids,
        &received_at,
        &keys,
        &expires_at,
        &jobs,
        &sources,
        &statuses,
        &fingerprints,
        &traces,
        &payloads,
        &job_ids,
        &job_events,
        &versions,
        &job_received_at,
        &run_at,
        &job_flows,
        &queues,
        &lanes,
        &orders,
        &priorities,
        &turns,
        &states,
        &any_in_order,
        &handle_events,
        &handles,
    ];
    let rows = line.query(insert, &all[..params]).await?;
    if rows.is_empty() {
        return Err(Fault::TakenForDead);
    }
    let mut fresh = HashSet::new();
    for row in &rows {
        if row.try_get(1)? {
            fresh.insert(row.try_get::<_, i64>(0)?);
        }
    }
    drop(born);
    Ok(Stored { firsts, ids, turns, fresh })
}

/// What was stored, and is to be made known as soon as it is committed.
pub(super) struct Stored<'e> {
    firsts: Vec<(usize, &'e NewEvent)>,
    ids: Vec<i64>,
    turns: Vec<i64>,
    fresh: HashSet<i64>,
}

impl Stored<'_> {
    /// Those that became events, each with its place among those that were given.
    pub fn accepted(&self) -> impl Iterator<Item = (usize, Accepted)> {
        let new = self.ids.iter().zip(&self.firsts).filter(|(number, _)| self.fresh.contains(number));
        new.map(|(number, (place, event))| {
            let number = number.cast_unsigned();
            let accepted = Accepted {
                event: EventId::from_number(number),
                job: JobId::from_number(number + 1),
                status: event.status,
                received_at: event.received_at,
                trace: event.trace,
            };
            (*place, accepted)
        })
    }

    pub fn announce(&self, shared: &Shared) {
        let born = self.ids.iter().zip(&self.firsts).flat_map(|(id, (_, event))| Born::of(*id, event));
        let born = born.zip(&self.turns).filter(|(job, _)| self.fresh.contains(&job.event_id));
        for (job, turn) in born {
            let (event, new) = (job.event, job.new);
            if job.is_due() {
                shared.rota.give(&new.queue, new.priority, new.lane, turn.cast_unsigned());
            }
            lock(&shared.versions).count(event.version, 1);
            shared.wake.ready(&new.queue, new.run_at);
            if new.order.is_fifo() {
                shared.wake.keeps_order(&new.queue);
            } else if new.run_at > event.received_at {
                shared.wake.later(&new.queue, new.run_at);
            }
        }
    }
}

/// One job of an event.
struct Born<'e> {
    id: i64,
    event_id: i64,
    event: &'e NewEvent,
    new: &'e NewJob,
}

impl<'e> Born<'e> {
    fn of(event_id: i64, event: &'e NewEvent) -> impl Iterator<Item = Born<'e>> {
        (1..).zip(&event.jobs).map(move |(nth, new)| Born { id: event_id + nth, event_id, event, new })
    }

    /// Whether it can be claimed as soon as it is there. Where the order is kept, its lane says when.
    fn is_due(&self) -> bool {
        !self.new.order.is_fifo() && self.new.run_at <= self.event.received_at
    }

    fn turn(&self, draft: &mut Draft<'_>) -> Option<u64> {
        self.is_due().then(|| draft.take(&self.new.queue, self.new.priority, self.new.lane))
    }
}

/// The first delivery of a key.
struct First {
    accepted: Accepted,
    fingerprint: Fingerprint,
    jobs: u64,
}

/// Later deliveries: put on record, answered like the first, and nothing else.
async fn again(
    shared: &Shared,
    line: &mut Line,
    events: &[NewEvent],
    known: &[usize],
) -> std::result::Result<Vec<(usize, Acceptance)>, Fault> {
    let mut conflicts = 0;
    loop {
        match again_once(shared, line, events, known).await {
            Err(fault) if fault.is_conflict() && conflicts < CONFLICTS_MAX => {
                conflicts += 1;
                *line = shared.hands.line().await?;
            }
            answer => return answer,
        }
    }
}

async fn again_once(
    shared: &Shared,
    line: &mut Line,
    events: &[NewEvent],
    known: &[usize],
) -> std::result::Result<Vec<(usize, Acceptance)>, Fault> {
    let deliveries: Vec<(usize, &NewEvent, &Dedup)> =
        known.iter().filter_map(|place| Some((*place, &events[*place], events[*place].dedup.as_ref()?))).collect();
    line.begin().await?;
    let holders = holders(line, &deliveries).await?;
    let mut answers = Vec::with_capacity(deliveries.len());
    let mut records: BTreeMap<i64, Vec<(Timestamp, bool)>> = BTreeMap::new();
    let mut revivals: Vec<(&NewEvent, &First)> = Vec::new();
    for (place, event, dedup) in &deliveries {
        let Some(first) = holders.get(dedup.key.as_bytes()) else { continue };
        let conflict = first.fingerprint != dedup.fingerprint;
        let number = first.accepted.event.number().cast_signed();
        records.entry(number).or_default().push((event.received_at, conflict));
        if conflict && dedup.on_conflict == OnConflict::Reject {
            answers.push((*place, Acceptance::Conflict(first.accepted)));
            continue;
        }
        let answer = if conflict { Acceptance::Kept } else { Acceptance::Duplicate };
        answers.push((*place, answer(first.accepted)));
        if dedup.on_duplicate_of_dead == OnDuplicateOfDead::Replay {
            revivals.push((event, first));
        }
    }
    record(line, &records).await?;
    let mut revived = Vec::new();
    for (event, first) in revivals {
        for job in 1..=first.jobs {
            let job = JobId::from_number(first.accepted.event.number() + job);
            let (_, again) = revive::revive(shared, line, &ReviveAsk::of_sender(job, event.received_at)).await?;
            revived.extend(again);
        }
    }
    audit::append(line, revived.iter().map(|again| &again.acted)).await?;
    line.commit().await?;
    for again in &revived {
        shared.lives_again(again);
    }
    Ok(answers)
}

/// Who holds these keys. They stay theirs until the commit, and whoever else puts deliveries on record waits until then.
async fn holders(
    line: &mut Line,
    deliveries: &[(usize, &NewEvent, &Dedup)],
) -> std::result::Result<HashMap<[u8; 32], First>, Fault> {
    let keys: Vec<&[u8]> = deliveries.iter().map(|(_, _, dedup)| &dedup.key.as_bytes()[..]).collect();
    let rows = line
        .query(
            "SELECT dedup.key, dedup.event, event.received_at, event.status, event.fingerprint, dedup.jobs,
                    event.trace
             FROM dedup JOIN event ON event.id = dedup.event
             WHERE dedup.key = ANY($1) ORDER BY dedup.key, dedup.bucket FOR NO KEY UPDATE OF dedup",
            &[&keys],
        )
        .await?;
    let bytes =
        |bytes: Option<&[u8]>| -> [u8; 32] { bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default() };
    let mut holders = HashMap::new();
    // The newest bucket comes last.
    for row in &rows {
        let event = rows::event_id(row, 1)?;
        let accepted = Accepted {
            event,
            job: JobId::from_number(event.number() + 1),
            status: u16::try_from(row.try_get::<_, i32>(3)?).unwrap_or_default(),
            received_at: rows::time(row, 2)?,
            trace: rows::trace(row, 6)?,
        };
        let first = First {
            accepted,
            fingerprint: Fingerprint::from_bytes(bytes(row.try_get(4)?)),
            jobs: u64::from(rows::count(row, 5)?),
        };
        holders.insert(bytes(Some(row.try_get(0)?)), first);
    }
    Ok(holders)
}

/// One row for each delivery; when there are enough of an event, the last row counts the rest.
async fn record(line: &mut Line, records: &BTreeMap<i64, Vec<(Timestamp, bool)>>) -> std::result::Result<(), Fault> {
    let known: Vec<i64> = records.keys().copied().collect();
    // A statement of its own: it must see what those wrote who held the keys until now.
    let rows =
        line.query("SELECT event, max(no) FROM delivery WHERE event = ANY($1) GROUP BY event", &[&known]).await?;
    let mut kept: HashMap<i64, i32> = HashMap::new();
    for row in &rows {
        kept.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let most = i32::try_from(DELIVERIES_KEPT_MAX).unwrap_or(i32::MAX);
    let mut made: BTreeMap<(i64, i32), (i64, i16, i64)> = BTreeMap::new();
    for (event, deliveries) in records {
        let mut no = kept.get(event).copied().unwrap_or(0);
        for (at, conflict) in deliveries {
            no = (no + 1).min(most);
            let row = made.entry((*event, no)).or_insert((0, i16::from(*conflict), 0));
            *row = (at.as_micros(), row.1, row.2 + 1);
        }
    }
    let events: Vec<i64> = made.keys().map(|(event, _)| *event).collect();
    let numbers: Vec<i32> = made.keys().map(|(_, no)| *no).collect();
    let at: Vec<i64> = made.values().map(|(at, ..)| *at).collect();
    let kinds: Vec<i16> = made.values().map(|(_, kind, _)| *kind).collect();
    let times: Vec<i64> = made.values().map(|(.., times)| *times).collect();
    line.query(
        "INSERT INTO delivery (event, no, at, kind, times)
         SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::smallint[], $5::bigint[])
         ON CONFLICT (event, no) DO UPDATE SET times = delivery.times + excluded.times, at = excluded.at",
        &[&events, &numbers, &at, &kinds, &times],
    )
    .await?;
    Ok(())
}
