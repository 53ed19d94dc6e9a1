//! Whose turn is next, as far as this node knows. Nodes tell each other now and then how far each queue has come: one that
//! only accepts would not know otherwise. What they do not know of each other costs fairness a little, and nothing else.

use super::pool::Line;
use super::{Fault, lock};
use clinch_core::lane::{Lane, Turns};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(super) struct Rota(Mutex<HashMap<Arc<str>, BTreeMap<i16, Known>>>);

#[derive(Default)]
struct Known {
    turns: Turns,
    /// How far the others were told that we are.
    told: u64,
}

/// Turns for jobs that are about to be written. They count when they are.
pub(super) struct Draft<'r> {
    rota: &'r Rota,
    next: HashMap<(Arc<str>, i16, Lane), u64>,
}

impl Draft<'_> {
    pub fn take(&mut self, queue: &Arc<str>, priority: i16, lane: Lane) -> u64 {
        let known = || self.rota.with(queue, priority, |known| known.turns.next(lane));
        let next = self.next.entry((queue.clone(), priority, lane)).or_insert_with(known);
        *next += 1;
        *next - 1
    }
}

impl Rota {
    pub fn draft(&self) -> Draft<'_> {
        Draft { rota: self, next: HashMap::new() }
    }

    /// A job with this turn was written.
    pub fn give(&self, queue: &Arc<str>, priority: i16, lane: Lane, turn: u64) {
        self.with(queue, priority, |known| known.turns.give(lane, turn));
    }

    /// A job with this turn was claimed.
    pub fn serve(&self, queue: &Arc<str>, priority: i16, turn: u64) {
        self.with(queue, priority, |known| known.turns.serve(turn));
    }

    fn with<T>(&self, queue: &Arc<str>, priority: i16, look: impl FnOnce(&mut Known) -> T) -> T {
        let mut queues = lock(&self.0);
        if !queues.contains_key(queue) {
            queues.insert(queue.clone(), BTreeMap::new());
        }
        let known = queues.get_mut(queue).expect("it was just put there");
        look(known.entry(priority).or_default())
    }

    /// Tells the others how far this node has come, and learns how far they have.
    pub async fn exchange(&self, line: &mut Line) -> Result<(), Fault> {
        let mut news: Vec<(Arc<str>, i16, u64)> = Vec::new();
        for (queue, priorities) in lock(&self.0).iter() {
            let untold = priorities.iter().filter(|(_, known)| known.turns.served() > known.told);
            news.extend(untold.map(|(priority, known)| (queue.clone(), *priority, known.turns.served())));
        }
        if !news.is_empty() {
            let queues: Vec<&str> = news.iter().map(|(queue, ..)| &**queue).collect();
            let priorities: Vec<i16> = news.iter().map(|(_, priority, _)| *priority).collect();
            let turns: Vec<i64> = news.iter().map(|(.., turn)| turn.cast_signed()).collect();
            line.query(
                "INSERT INTO queue_turn (queue, priority, turn)
                 SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS news (queue, priority, turn)
                 ORDER BY queue COLLATE \"C\", priority
                 ON CONFLICT (queue, priority) DO UPDATE SET turn = excluded.turn WHERE queue_turn.turn < excluded.turn",
                &[&queues, &priorities, &turns],
            )
            .await?;
            for (queue, priority, turn) in &news {
                self.with(queue, *priority, |known| known.told = *turn);
            }
        }
        for row in &line.query("SELECT queue, priority, turn FROM queue_turn", &[]).await? {
            let (queue, turn) = (Arc::from(row.try_get::<_, &str>(0)?), row.try_get::<_, i64>(2)?.cast_unsigned());
            self.with(&queue, row.try_get(1)?, |known| {
                known.turns.serve(turn);
                known.told = turn.max(known.told);
            });
        }
        Ok(())
    }
}
