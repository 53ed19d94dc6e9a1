//! The ids that a node gives.

use clinch_core::id::EventId;
use clinch_core::time::Timestamp;

/// Ids carry milliseconds above these bits, the number of the node below, and a counter in the lowest.
const MILLISECOND_BITS: u32 = 20;
const COUNTER_BITS: u32 = 12;
const ROOM: u64 = 1 << COUNTER_BITS;
const ROOM_OWNERS: u64 = 1 << (MILLISECOND_BITS - COUNTER_BITS);

/// No two nodes that live have the same number, so the ids of two nodes never meet, whatever their clocks say: in each
/// millisecond a node has a room of its own. The ids of one node grow. A new one begins above every id that is stored, so
/// that they also grow from one life of a node to the next. And should a node that was taken for dead come back while
/// another has its number: it is refused before it writes, and the primary key is there if that came too late.
pub(super) struct Ids {
    pub number: u64,
    pub last: u64,
}

impl Ids {
    /// The id of an event; those of its jobs follow it.
    pub fn take(&mut self, at: Timestamp, jobs: u64) -> u64 {
        let now = EventId::first_at(at).number() + (self.number << COUNTER_BITS);
        let mut id = now.max(self.last + 1);
        let is_ours = (id >> COUNTER_BITS) & (ROOM_OWNERS - 1) == self.number;
        if !is_ours || id % ROOM + jobs >= ROOM {
            id = (((id >> MILLISECOND_BITS) + 1) << MILLISECOND_BITS) + (self.number << COUNTER_BITS);
        }
        self.last = id + jobs;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const AT: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    #[test]
    fn the_ids_of_all_nodes_grow_and_never_meet_whatever_their_clocks_say() {
        let mut seen = HashSet::new();
        for number in [0, 1, 2, 127, 254, 255] {
            // Each begins above an id of another, and has a clock of its own that goes back once.
            let mut ids = Ids { number, last: EventId::first_at(AT).number() + 77 * (number + 1) };
            let mut last = ids.last;
            for turn in 0..6_000u64 {
                let clock = if turn == 3_000 { -2_000_000 } else { i64::try_from(number).expect("small") * 500 };
                let jobs = turn % 4 + 1;
                let event = ids.take(Timestamp::from_micros(AT.as_micros() + clock), jobs);
                assert!(event > last, "node {number}, turn {turn}");
                last = event + jobs;
                for id in event..=last {
                    assert_eq!((id >> COUNTER_BITS) & 255, number, "it stays in its room");
                    assert!(seen.insert(id), "node {number}, turn {turn}");
                }
            }
        }
    }

    #[test]
    fn an_id_tells_when_it_was_given() {
        let mut ids = Ids { number: 200, last: 0 };
        assert_eq!(EventId::from_number(ids.take(AT, 3)).given_at(), AT);
    }
}
