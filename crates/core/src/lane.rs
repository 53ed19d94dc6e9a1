//! Lanes: whose job it is among those of a queue, whether the jobs of a lane keep their order, and whose turn is next.

use crate::key::Pepper;
use std::collections::HashMap;

/// Beyond this many lanes with jobs waiting in one queue, a lane that is not known yet counts as new with each job.
pub const LANES_MAX: usize = 100_000;
/// When there is no room, lanes that have nothing waiting are looked for again only after so many turns.
const SWEEP_EVERY: u64 = 1_000;

/// The jobs of a queue that belong together: of one group, of one tenant, or all of them. It is unreadable without the
/// pepper, for the name of a group may be that of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(u64);

impl Lane {
    /// All jobs of the queue.
    pub fn whole(pepper: &Pepper, queue: &str) -> Lane {
        Lane::hashed(pepper, &[queue])
    }

    pub fn tenant(pepper: &Pepper, queue: &str, tenant: &str) -> Lane {
        Lane::hashed(pepper, &[queue, tenant])
    }

    /// Groups of two tenants never meet.
    pub fn group(pepper: &Pepper, queue: &str, tenant: &str, group: &str) -> Lane {
        Lane::hashed(pepper, &[queue, tenant, group])
    }

    fn hashed(pepper: &Pepper, parts: &[&str]) -> Lane {
        let mac = pepper.mac("clinch lane 1", parts);
        Lane(u64::from_be_bytes(mac[..8].try_into().expect("a MAC is longer than that")))
    }

    pub const fn from_number(number: u64) -> Lane {
        Lane(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Whether the jobs of a lane keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They run side by side.
    Any,
    /// One at a time, in order of acceptance.
    Fifo { on_dead: OnDead },
}

/// What a dead letter means for those behind it in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// The next one passes.
    Continue,
    /// They wait until it has been replayed and ended well, or is gone.
    Block,
}

impl Order {
    /// How a store spells it.
    pub const fn number(self) -> i16 {
        match self {
            Order::Any => 0,
            Order::Fifo { on_dead: OnDead::Continue } => 1,
            Order::Fifo { on_dead: OnDead::Block } => 2,
        }
    }

    pub const fn from_number(number: i16) -> Order {
        match number {
            1 => Order::Fifo { on_dead: OnDead::Continue },
            2 => Order::Fifo { on_dead: OnDead::Block },
            _ => Order::Any,
        }
    }

    pub const fn is_fifo(self) -> bool {
        matches!(self, Order::Fifo { .. })
    }

    pub const fn blocks(self) -> bool {
        matches!(self, Order::Fifo { on_dead: OnDead::Block })
    }
}

/// Whose turn is next among the jobs that are due in one queue at one priority. Each lane takes every turn at most once, a
/// new one begins at the turn that is being served, and the lowest turn is served first: so the wait of a lane depends on
/// its own backlog and on how many lanes there are, not on the backlogs of the others. What nobody used is nobody's: a
/// lane that was away has no claim to make up for it.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The highest turn that was served.
    served: u64,
    /// The last turn of each lane that may have more waiting.
    last: HashMap<Lane, u64>,
    swept_at: Option<u64>,
}

impl Turns {
    pub const fn served(&self) -> u64 {
        self.served
    }

    /// The turn that the next job of this lane would have.
    pub fn next(&self, lane: Lane) -> u64 {
        match self.last.get(&lane) {
            Some(last) if *last >= self.served => last + 1,
            _ => self.served,
        }
    }

    /// A job of this lane has this turn.
    pub fn give(&mut self, lane: Lane, turn: u64) {
        if let Some(last) = self.last.get_mut(&lane) {
            *last = turn.max(*last);
        } else if self.last.len() < LANES_MAX || self.sweep() {
            self.last.insert(lane, turn);
        }
    }

    /// The turn of a job that came due now.
    pub fn take(&mut self, lane: Lane) -> u64 {
        if let Some(last) = self.last.get_mut(&lane) {
            *last = if *last >= self.served { *last + 1 } else { self.served };
            return *last;
        }
        self.give(lane, self.served);
        self.served
    }

    /// A job with this turn is being run, here or elsewhere.
    pub fn serve(&mut self, turn: u64) {
        self.served = turn.max(self.served);
    }

    /// Forgets the lanes that have nothing waiting; says whether there is room now.
    fn sweep(&mut self) -> bool {
        if self.swept_at.is_some_and(|at| self.served < at + SWEEP_EVERY) {
            return false;
        }
        self.swept_at = Some(self.served);
        let served = self.served;
        self.last.retain(|_, last| *last >= served);
        self.last.len() < LANES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashSet};

    fn lane(number: u64) -> Lane {
        Lane::from_number(number)
    }

    /// A queue in which jobs come due and are served, each named by its lane and its number.
    #[derive(Default)]
    struct Queue {
        turns: Turns,
        due: BTreeSet<(u64, u64, Lane)>,
        born: u64,
    }

    impl Queue {
        fn arrive(&mut self, of: u64) {
            self.born += 1;
            let turn = self.turns.take(lane(of));
            assert!(self.due.insert((turn, self.born, lane(of))));
        }

        fn serve(&mut self) -> Option<Lane> {
            let (turn, _, lane) = self.due.pop_first()?;
            self.turns.serve(turn);
            Some(lane)
        }
    }

    #[test]
    fn p7_f49_a_newcomer_is_served_next_whatever_the_backlog_of_another() {
        let mut queue = Queue::default();
        (0..100_000).for_each(|_| queue.arrive(1));
        (0..500).for_each(|_| assert_eq!(queue.serve(), Some(lane(1))));
        queue.arrive(2);
        queue.arrive(2);
        let next: Vec<_> = (0..4).filter_map(|_| queue.serve()).collect();
        assert_eq!(next, [lane(2), lane(1), lane(2), lane(1)]);
    }

    #[test]
    fn what_nobody_used_is_nobodys() {
        let mut queue = Queue::default();
        (0..1_000).for_each(|_| queue.arrive(1));
        while queue.serve().is_some() {}
        // The first lane had a thousand turns, the second none: both begin where the queue is.
        queue.arrive(1);
        queue.arrive(2);
        queue.arrive(2);
        queue.arrive(1);
        let served: Vec<_> = (0..4).filter_map(|_| queue.serve()).collect();
        assert_eq!(served, [lane(2), lane(1), lane(2), lane(1)]);
    }

    #[test]
    fn the_lanes_that_are_remembered_are_bounded_and_the_rest_goes_on() {
        let mut turns = Turns::default();
        for number in 0..LANES_MAX as u64 + 10 {
            assert_eq!(turns.take(lane(number)), 0);
        }
        assert_eq!(turns.last.len(), LANES_MAX);
        turns.serve(SWEEP_EVERY);
        assert_eq!(turns.take(lane(u64::MAX)), SWEEP_EVERY);
        assert_eq!(turns.last.len(), 1, "those with nothing waiting are forgotten");
    }

    #[test]
    fn lanes_of_queues_tenants_and_groups_differ() {
        let pepper = Pepper::new(&[7; 32]);
        let lanes = [
            Lane::whole(&pepper, "a"),
            Lane::whole(&pepper, "b"),
            Lane::tenant(&pepper, "a", ""),
            Lane::tenant(&pepper, "a", "x"),
            Lane::tenant(&pepper, "ax", ""),
            Lane::group(&pepper, "a", "x", ""),
            Lane::group(&pepper, "a", "x", "y"),
            Lane::group(&pepper, "a", "xy", ""),
            Lane::group(&Pepper::new(&[8; 32]), "a", "x", "y"),
        ];
        assert_eq!(lanes.iter().collect::<HashSet<_>>().len(), lanes.len());
        assert_eq!(Lane::group(&pepper, "a", "x", "y"), Lane::group(&pepper, "a", "x", "y"));
    }

    #[test]
    fn an_order_reads_back_as_it_was_spelt() {
        for number in 0..3 {
            assert_eq!(Order::from_number(number).number(), number);
        }
    }

    proptest! {
        /// Of two lanes that have jobs waiting all the while, neither is served more than once more often than the other.
        #[test]
        fn p7_lanes_with_a_backlog_are_served_equally(moves in prop::collection::vec((0u64..4, any::<bool>()), 1..400)) {
            let mut queue = Queue::default();
            let mut waiting = [0i64; 4];
            // How often each was served since all of a pair were last seen waiting.
            let mut ahead = [[0i64; 4]; 4];
            for (of, arrives) in moves {
                if arrives {
                    queue.arrive(of);
                    waiting[of as usize] += 1;
                } else if let Some(served) = queue.serve() {
                    let at = served.number() as usize;
                    waiting[at] -= 1;
                    for other in (0..4).filter(|other| *other != at) {
                        ahead[at][other] += 1;
                        ahead[other][at] -= 1;
                    }
                }
                for one in 0..4 {
                    for other in 0..4 {
                        if waiting[one] == 0 || waiting[other] == 0 {
                            ahead[one][other] = 0;
                        }
                        prop_assert!(ahead[one][other] <= 2, "{:?}", ahead);
                    }
                }
            }
        }

        /// Jobs of one lane are served in the order in which they came due, and none is left out.
        #[test]
        fn a_lane_keeps_its_own_order_and_work_is_never_withheld(moves in prop::collection::vec((0u64..5, any::<bool>()), 1..400)) {
            let mut queue = Queue::default();
            let mut last = [0u64; 5];
            let mut serve = |queue: &mut Queue| {
                let Some((turn, born, lane)) = queue.due.pop_first() else { return queue.due.is_empty() };
                queue.turns.serve(turn);
                let before = std::mem::replace(&mut last[lane.number() as usize], born);
                before < born
            };
            for (of, arrives) in moves {
                if arrives { queue.arrive(of) } else { prop_assert!(serve(&mut queue)) }
            }
            let left = queue.due.len();
            for _ in 0..left { prop_assert!(serve(&mut queue)) }
            prop_assert!(queue.due.is_empty());
        }
    }
}
