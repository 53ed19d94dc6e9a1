//! resolve: a person's word on an effect of unknown outcome, on record.

use super::rows::{self, DONE, NOT_DONE, text};
use super::{Fault, Shared, audit};
use crate::resolve::decide;
use crate::{Resolution, ResolveAsk, Resolved};

pub(super) async fn resolve(shared: &Shared, ask: &ResolveAsk) -> Result<Resolved, Fault> {
    let job = ask.effect.job.number().cast_signed();
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // Locked, so that nobody claims, revives or removes it meanwhile. A second time, if it was just on its way to where those
    // are that have ended, or back.
    for _ in 0..2 {
        if !line.query("SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE", &[&job]).await?.is_empty() {
            break;
        }
    }
    let rows = line.query(&format!("{} WHERE job.id = $1", rows::JOB_ROW), &[&job]).await?;
    let row = rows::job_rows(&rows, &shared.sealer)?.pop();
    let effects = rows::effects(&mut line, &[job]).await?.remove(&ask.effect.job).unwrap_or_default();
    let decided = match row {
        None => Err(Resolved::NotFound),
        Some(row) => decide(ask, &effects, row.word),
    };
    let answer = match decided {
        Err(answer) => answer,
        Ok(standing) => {
            let state = match ask.resolution {
                Resolution::Done => DONE,
                Resolution::NotDone => NOT_DONE,
            };
            // Later steps may need the answer, where one came after all.
            line.query(
                "INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence, status, body)
                 SELECT last.job, last.name, last.no + 1, last.class, $3::smallint, last.first_intended_at, $4::bigint,
                        last.sends, last.fence, late.status, late.body
                 FROM (SELECT * FROM effect WHERE job = $1 AND name = $2 ORDER BY no DESC LIMIT 1) AS last
                 LEFT JOIN LATERAL (
                     SELECT status, body FROM late_answer
                     WHERE job = $1 AND name = $2 AND state = 1 AND $3::smallint = 1 ORDER BY at DESC, fence DESC LIMIT 1
                 ) AS late ON true",
                &[&job, &text(&ask.effect.step), &state, &ask.record.at.as_micros()],
            )
            .await?;
            audit::append(&mut line, [&(ask.act(), ask.record.clone())]).await?;
            Resolved::Resolved(standing)
        }
    };
    line.commit().await?;
    Ok(answer)
}
