//! Whose turn is next, as far as this node knows. Nodes tell each other now and then how far each queue has come: one that
//! only accepts would not know otherwise. What they do not know of each other costs fairness a little, and nothing else.

use super::pool::Line;
use super::{Fault, lock};
use clinch_core::lane::{Lane, Turns};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

#[derive(Default)]
pub(super) struct Rota(Mutex<HashMap<Arc<str>, BTreeMap<i16, Known>>>);

/// New jobs have turns from the highest that was served, as far as their node knows: the others know what was told some
/// exchanges ago.
const TOLD_AFTER: usize = 4;
/// A queue with more priorities than this is looked at whole below the highest ones.
const LEVELS_MAX: usize = 16;

/// No node is expected to have served so many turns more than another knows.
const AHEAD_MAX: u64 = 64;

#[derive(Default)]
struct Known {
    turns: Turns,
    /// What was served at each of the last exchanges, the oldest first.
    past: [u64; TOLD_AFTER],
    /// How far the others were told that we are.
    told: u64,
}

/// The priorities of a queue, from high to low, and the turn from which there are jobs at each, as far as is known.
/// Before each there may be others between it and the one above; and after the last, which is below any that there are.
pub(super) struct Levels {
    pub above: Vec<i32>,
    pub at: Vec<i32>,
    pub from: Vec<i64>,
    /// A lane that has nothing waiting begins before this one.
    pub upto: Vec<i64>,
}

impl Levels {
    fn new(known: impl Iterator<Item = (i16, Range<u64>)>) -> Levels {
        let mut levels = Levels { above: Vec::new(), at: Vec::new(), from: Vec::new(), upto: Vec::new() };
        let known = known.map(|(priority, turns)| (i32::from(priority), turns));
        let mut above = i32::from(i16::MAX) + 1;
        for (at, turns) in known.chain([(i32::from(i16::MIN) - 1, 0..0)]) {
            levels.above.push(above);
            levels.at.push(at);
            levels.from.push(turns.start.cast_signed());
            levels.upto.push(turns.end.cast_signed());
            above = at;
        }
        levels
    }

    /// Nothing is known.
    pub fn unknown() -> Levels {
        Levels::new(std::iter::empty())
    }
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

    /// Where to look.
    pub fn levels(&self, queue: &str) -> Levels {
        let queues = lock(&self.0);
        let known = queues.get(queue).into_iter().flat_map(|priorities| priorities.iter().rev());
        let turns = |known: &Known| known.past[0]..known.turns.served().saturating_add(AHEAD_MAX);
        Levels::new(known.take(LEVELS_MAX).map(|(priority, known)| (*priority, turns(known))))
    }

    /// There may be more jobs that have turns from this one on, however old it is.
    pub fn fell_behind(&self, queue: &Arc<str>, priority: i16, turn: u64) {
        self.with(queue, priority, |known| known.past = known.past.map(|past| past.min(turn)));
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
        self.age();
        Ok(())
    }

    fn age(&self) {
        for known in lock(&self.0).values_mut().flat_map(BTreeMap::values_mut) {
            known.past.rotate_left(1);
            known.past[TOLD_AFTER - 1] = known.turns.served();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_from(rota: &Rota) -> Vec<(i32, i64)> {
        let levels = rota.levels("work");
        assert_eq!(levels.above[0], 32_768, "nothing is above");
        assert_eq!(levels.above[1..], levels.at[..levels.at.len() - 1], "nothing is between");
        assert_eq!(levels.at.last(), Some(&-32_769), "nothing is below");
        levels.at.into_iter().zip(levels.from).rev().skip(1).rev().collect()
    }

    #[test]
    fn f42_a_look_begins_at_what_was_served_some_exchanges_ago() {
        let (rota, queue) = (Rota::default(), Arc::from("work"));
        assert_eq!(looks_from(&rota), []);
        for turn in 1..=6 {
            rota.serve(&queue, -7, turn * 10);
            rota.serve(&queue, 3, turn);
            rota.age();
        }
        assert_eq!(looks_from(&rota), [(3, 3), (-7, 30)], "the highest first");
        rota.fell_behind(&queue, -7, 15);
        assert_eq!(looks_from(&rota), [(3, 3), (-7, 15)]);
        (0..TOLD_AFTER).for_each(|_| rota.age());
        assert_eq!(looks_from(&rota), [(3, 6), (-7, 60)], "whoever fell behind is looked for only for some time");
    }

    #[test]
    fn f42_a_look_at_many_priorities_is_bounded_and_leaves_none_out() {
        let (rota, queue) = (Rota::default(), Arc::from("work"));
        (0..100).for_each(|priority| rota.serve(&queue, priority, 1));
        let levels = looks_from(&rota);
        assert_eq!((levels.len(), levels[0].0, levels[15].0), (16, 99, 84));
    }
}
