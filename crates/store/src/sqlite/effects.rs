//! The ledger as a list: what is unknown, and with whom.

use super::writer::{Shared, lock};
use super::{Readers, rows};
use crate::read::{EffectFilter, EffectPage, EffectRow, LIST_ROWS_MAX, SCAN_ROWS_MAX};
use crate::{Result, VersionId};
use clinch_core::effect::{Effect, EffectWord};
use rusqlite::{Connection, OptionalExtension, Row, params};

pub(super) async fn list(readers: &Readers, shared: &Shared, filter: EffectFilter) -> Result<EffectPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (mut found, older) = readers.ask(move |conn| select(conn, &filter, limit + 1)).await?;
    let more = older || found.len() > limit;
    found.truncate(limit);
    let memory = lock(&shared.memory);
    for row in &mut found {
        row.word = memory.get(row.job).map_or(row.word, |live| live.word());
    }
    Ok(EffectPage { rows: found, more })
}

/// Those of the newest jobs first; and whether older rows exist that were not looked at.
fn select(conn: &Connection, filter: &EffectFilter, rows_max: usize) -> rusqlite::Result<(Vec<EffectRow>, bool)> {
    let (job, step) = filter.before.as_ref().map_or((i64::MAX, ""), |id| (id.job.number().cast_signed(), &*id.step));
    // A number that is written out, so that what is unknown is found by its own index; and crossed joins, so that it leads.
    let state = filter.state.map_or_else(String::new, |word| format!(" AND effect.state = {}", number(word)));
    let (first, last) = match filter.job {
        Some(job) => (job.number().cast_signed(), job.number().cast_signed()),
        None => (floor(conn, job, filter.state)?, i64::MAX),
    };
    let sql = format!(
        "SELECT effect.job, effect.name, effect.class, effect.state, effect.first_intended_at, effect.changed_at,
                effect.sends, effect.status, flow.text, queue.text, job.version, job.state, job.failures,
                EXISTS (SELECT 1 FROM late_answer AS late
                        WHERE late.job = effect.job AND late.name = effect.name AND late.state = 1), event.trace
         FROM effect CROSS JOIN job ON job.id = effect.job
         CROSS JOIN name AS flow ON flow.id = job.flow CROSS JOIN name AS queue ON queue.id = job.queue
         CROSS JOIN event ON event.id = job.event
         WHERE (effect.job, effect.name) < (?1, ?2) AND effect.job >= ?3 AND effect.job <= ?4{state}
             AND (?5 IS NULL OR flow.text = ?5)
         ORDER BY effect.job DESC, effect.name DESC LIMIT ?6"
    );
    let found = conn
        .prepare_cached(&sql)?
        .query_map(params![job, step, first, last, filter.flow, rows_max as i64], effect_row)?
        .collect::<rusqlite::Result<_>>()?;
    Ok((found, filter.job.is_none() && first > 0))
}

/// The look back is bounded: so many effects, or so many that are unknown, which have an index. To count those of another state would be
/// to look at every effect, where there are few of them.
fn floor(conn: &Connection, before: i64, state: Option<EffectWord>) -> rusqlite::Result<i64> {
    let unknown =
        if state == Some(EffectWord::Unknown) { format!(" AND state = {}", rows::UNKNOWN) } else { String::new() };
    let sql = format!(
        "SELECT job FROM effect WHERE job <= ?1{unknown} ORDER BY job DESC, name DESC LIMIT 1 OFFSET {SCAN_ROWS_MAX}"
    );
    Ok(conn.prepare_cached(&sql)?.query_row([before], |row| row.get(0)).optional()?.unwrap_or(0))
}

fn number(word: EffectWord) -> i64 {
    match word {
        EffectWord::Open => rows::OPEN,
        EffectWord::Done => rows::DONE,
        EffectWord::NotDone => rows::NOT_DONE,
        EffectWord::Unknown => rows::UNKNOWN,
        EffectWord::GivenUp => rows::GIVEN_UP,
    }
}

fn effect_row(row: &Row<'_>) -> rusqlite::Result<EffectRow> {
    Ok(EffectRow {
        job: rows::job_id(row, 0)?,
        trace: rows::trace(row, 14)?,
        flow: rows::name(row, 8)?,
        queue: rows::name(row, 9)?,
        version: VersionId(row.get(10)?),
        word: rows::word(row.get(11)?, row.get(12)?),
        effect: Effect {
            name: row.get(1)?,
            class: rows::class(row.get(2)?),
            state: rows::effect_state(row.get(3)?, row.get(7)?, || Ok(None))?,
            first_intended_at: rows::time(row, 4)?,
            changed_at: rows::time(row, 5)?,
            sends: row.get(6)?,
        },
        late_done: row.get(13)?,
    })
}
