//! The ledger as a list: what is unknown, and with whom.

use super::pool::{Line, Pool};
use super::{Fault, rows};
use crate::VersionId;
use crate::read::{EffectFilter, EffectPage, EffectRow, LIST_ROWS_MAX, SCAN_ROWS_MAX};
use clinch_core::effect::{Effect, EffectWord};
use clinch_core::job::Waits;
use std::sync::Arc;
use tokio_postgres::Row;

/// Those of the newest jobs first. Of the lines of an effect the last counts.
pub(super) async fn list(eyes: &Arc<Pool>, filter: &EffectFilter) -> Result<EffectPage, Fault> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (job, step) = filter.before.as_ref().map_or((i64::MAX, ""), |id| (id.job.number().cast_signed(), &*id.step));
    // A number that is written out, so that what is unknown is found by its own index.
    let state = filter.state.map_or_else(String::new, |word| format!(" AND effect.state = {}", number(word)));
    let mut line = eyes.line().await?;
    let (first, last) = match filter.job {
        Some(job) => (job.number().cast_signed(), job.number().cast_signed()),
        None => (floor(&mut line, job, filter.state).await?, i64::MAX),
    };
    let sql = format!(
        "SELECT effect.job, effect.name, effect.class, effect.state, effect.first_intended_at, effect.changed_at,
                effect.sends, effect.status, job.flow, job.queue, job.version, job.state, job.failures, job.waits,
                EXISTS (SELECT 1 FROM late_answer AS late
                        WHERE late.job = effect.job AND late.name = effect.name AND late.state = 1),
                (SELECT trace FROM event WHERE event.id = job.event)
         FROM effect JOIN job ON job.id = effect.job
         WHERE (effect.job, effect.name) < ($1, $2) AND effect.job >= $3 AND effect.job <= $4{state}
             AND ($5::text IS NULL OR job.flow = $5)
             AND NOT EXISTS (SELECT 1 FROM effect AS later
                             WHERE later.job = effect.job AND later.name = effect.name AND later.no > effect.no)
         ORDER BY effect.job DESC, effect.name DESC LIMIT $6"
    );
    let asked = line.query(&sql, &[&job, &step, &first, &last, &filter.flow, &(limit as i64 + 1)]).await?;
    let mut found = asked.iter().filter_map(|row| effect_row(row).transpose()).collect::<Result<Vec<_>, _>>()?;
    let more = found.len() > limit || (filter.job.is_none() && first > 0);
    found.truncate(limit);
    Ok(EffectPage { rows: found, more })
}

/// The look back is bounded: so many lines, or so many that are unknown, which have an index. To count those of another state would be to
/// look at every line, where there are few of them.
async fn floor(line: &mut Line, before: i64, state: Option<EffectWord>) -> Result<i64, Fault> {
    let unknown =
        if state == Some(EffectWord::Unknown) { format!(" AND state = {}", rows::UNKNOWN) } else { String::new() };
    let sql = format!("SELECT job FROM effect WHERE job <= $1{unknown} ORDER BY job DESC OFFSET $2 LIMIT 1");
    let rows = line.query(&sql, &[&before, &(SCAN_ROWS_MAX as i64)]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
}

fn number(word: EffectWord) -> i16 {
    match word {
        EffectWord::Open => rows::OPEN,
        EffectWord::Done => rows::DONE,
        EffectWord::NotDone => rows::NOT_DONE,
        EffectWord::Unknown => rows::UNKNOWN,
        EffectWord::GivenUp => rows::GIVEN_UP,
    }
}

/// `None`: its event went with its span while we looked, and so did it.
fn effect_row(row: &Row) -> Result<Option<EffectRow>, tokio_postgres::Error> {
    let Some(trace) = rows::maybe_trace(row, 15)? else { return Ok(None) };
    let waits = row.try_get::<_, Option<i16>>(13)?.and_then(Waits::from_number);
    Ok(Some(EffectRow {
        job: rows::job_id(row, 0)?,
        trace,
        flow: rows::name(row, 8)?,
        queue: rows::name(row, 9)?,
        version: VersionId(row.try_get(10)?),
        word: rows::word(row.try_get(11)?, rows::count(row, 12)?, waits),
        effect: Effect {
            name: row.try_get(1)?,
            class: rows::class(row.try_get(2)?),
            state: rows::effect_state(row.try_get(3)?, rows::status(row, 7)?, || Ok(None))?,
            first_intended_at: rows::time(row, 4)?,
            changed_at: rows::time(row, 5)?,
            sends: rows::count(row, 6)?,
        },
        late_done: row.try_get(14)?,
    }))
}
