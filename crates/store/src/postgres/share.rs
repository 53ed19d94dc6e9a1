//! share: the places of an integration, divided among the nodes that call it. A row goes with its node.

use super::{Fault, Shared, lock};
use crate::ShareAsk;
use clinch_core::portion::{self, ROUND, Share};

/// The first half of the lock of whoever divides the places of an integration.
const DIVIDER: i32 = 0x636c_6901;

pub(super) async fn share(shared: &Shared, ask: &ShareAsk) -> Result<Share, Fault> {
    let boot = lock(&shared.node).boot;
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // One at a time for each integration; a statement of its own, so that the next one sees what the last has written.
    line.query("SELECT pg_advisory_xact_lock($1, hashtext($2))", &[&DIVIDER, &&*ask.name]).await?;
    if !ask.stays {
        line.query("DELETE FROM place WHERE name = $1 AND node = $2", &[&&*ask.name, &boot]).await?;
        line.commit().await?;
        return Ok(Share { granted: 0, part: 0 });
    }
    let rows = line.query("SELECT node, held FROM place WHERE name = $1 ORDER BY node", &[&&*ask.name]).await?;
    let mut nodes: Vec<(i64, u32)> = Vec::with_capacity(rows.len() + 1);
    for row in &rows {
        nodes.push((row.try_get(0)?, u32::try_from(row.try_get::<_, i32>(1)?).unwrap_or(0)));
    }
    let before = nodes.iter().find(|(node, _)| *node == boot).map(|(_, held)| *held);
    if before.is_none() {
        nodes.push((boot, 0));
        nodes.sort();
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let round = shared.skew.to_database(ask.now).as_micros().cast_unsigned() / ROUND.as_micros() as u64;
    let place = count(nodes.iter().position(|(node, _)| *node == boot).unwrap_or(0));
    let part = portion::part(ask.max, count(nodes.len()), place, round);
    let others = nodes.iter().filter(|(node, _)| *node != boot).fold(0u32, |sum, (_, held)| sum.saturating_add(*held));
    let share = portion::share(ask.max, others, ask.held, part);
    let held = share.granted.max(ask.in_use);
    // Most of the time nothing is another than before, and nothing is written.
    if before != Some(held) {
        let sql = "INSERT INTO place (name, node, held) VALUES ($1, $2, $3)
                   ON CONFLICT (name, node) DO UPDATE SET held = excluded.held";
        line.query(sql, &[&&*ask.name, &boot, &i32::try_from(held).unwrap_or(i32::MAX)]).await?;
    }
    line.commit().await?;
    Ok(share)
}
