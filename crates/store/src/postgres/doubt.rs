//! Claims whose end was not heard of.

use super::{Fault, Shared, lock, node};
use std::time::{Duration, Instant};

/// A claim whose answer was lost is looked for during this time: the server may still be at it.
const UNHEARD_MAX: Duration = Duration::from_secs(15);

/// A claim under way. If its end is not heard of, for whatever reason, what it may have taken is looked for: nobody would
/// run it, and nobody else could before the lease is over.
pub(super) struct Doubt<'s> {
    shared: &'s Shared,
    claim: Option<Unheard>,
}

/// What such jobs can be recognised by.
pub(super) struct Unheard {
    boot: i64,
    until: i64,
    queue: Option<String>,
    since: Instant,
}

impl<'s> Doubt<'s> {
    pub fn begin(shared: &'s Shared, boot: i64, until: i64, queue: Option<&str>) -> Doubt<'s> {
        let queue = queue.map(str::to_string);
        Doubt { shared, claim: Some(Unheard { boot, until, queue, since: Instant::now() }) }
    }

    pub fn end(mut self) {
        self.claim = None;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            lock(&self.shared.unheard).push(Unheard { since: Instant::now(), ..claim });
        }
    }
}

/// Gives back what was claimed by this node without its knowing.
pub(super) async fn resolve_doubts(shared: &Shared) -> Result<(), Fault> {
    let claims: Vec<(i64, i64, Option<String>)> = {
        let mut unheard = lock(&shared.unheard);
        unheard.retain(|claim| claim.since.elapsed() < UNHEARD_MAX);
        unheard.iter().map(|claim| (claim.boot, claim.until, claim.queue.clone())).collect()
    };
    for (boot, until, queue) in claims {
        let mut line = shared.hands.line().await?;
        line.begin().await?;
        let sql =
            "SELECT id, queue FROM job WHERE slot BETWEEN 1 AND 3 AND state = 4 AND node = $1 AND lease_until = $2
                   AND queue = coalesce($3, queue) ORDER BY id FOR NO KEY UPDATE";
        let rows = line.query(sql, &[&boot, &until, &queue]).await?;
        let queues = node::give_back(&mut line, &rows).await?;
        line.commit().await?;
        if !queues.is_empty() {
            tracing::info!("{} jobs were claimed without an answer; they are given back", queues.len());
        }
        node::wake_all(shared, &queues);
    }
    Ok(())
}
