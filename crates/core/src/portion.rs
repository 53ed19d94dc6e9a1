//! How the nodes divide the places of an integration that bears so many calls at once. Each has its part of them and uses it
//! without asking; who has more than its part gives back what it does not use, and nobody takes what another still has.

use crate::time::Timestamp;
use std::time::Duration;

/// What cannot be divided goes round: after so long another node has it.
pub const ROUND: Duration = Duration::from_secs(5);

/// The shortest time after which a place may be free, and where there is none at all.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_NONE: Duration = Duration::from_millis(500);
/// No call is taken to last longer, when it is guessed how soon a place is free.
const CALL_GUESS_MAX: Duration = Duration::from_secs(10);
/// Nobody who finds no place is sent away for longer: by then calls may be fast again.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// What the store says to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// So many calls it may make at once.
    pub granted: u32,
    /// So many are its part: what it has beyond that it gives back as its calls end.
    pub part: u32,
}

/// The part of the node that is the `place`-th of all that call the integration: as many as any other, or one more.
pub fn part(max: u32, nodes: u32, place: u32, round: u64) -> u32 {
    let nodes = nodes.max(1);
    let turn = (u64::from(place) + round) % u64::from(nodes);
    max / nodes + u32::from(turn < u64::from(max % nodes))
}

/// What a node gets that has `held` and knows of it; the `others` have so many together.
pub fn share(max: u32, others: u32, held: u32, part: u32) -> Share {
    Share { granted: held.max(part).min(max.saturating_sub(others)), part }
}

/// The places of one node: those that it may use and those that it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    granted: u32,
    part: u32,
    in_use: u32,
    /// As the store knows it.
    told: u32,
}

impl Places {
    /// A place, if there is one.
    pub fn take(&mut self) -> bool {
        let is_free = self.in_use < self.granted;
        self.in_use += u32::from(is_free);
        is_free
    }

    /// A call has ended. Whether the store has something to hear of it: others wait for what is not ours.
    pub fn give_back(&mut self) -> bool {
        self.in_use = self.in_use.saturating_sub(1);
        self.shrink();
        self.owes()
    }

    /// What the store is told: how many are kept, and how many calls are under way. From here on no more are used than that.
    pub fn tell(&mut self) -> (u32, u32) {
        self.shrink();
        self.told = self.granted.max(self.in_use);
        (self.granted, self.in_use)
    }

    /// The answer. Whether the store is to hear at once what is given back of it.
    pub fn hear(&mut self, share: Share) -> bool {
        (self.granted, self.part) = (share.granted, share.part);
        self.told = self.granted.max(self.in_use);
        self.shrink();
        self.owes()
    }

    /// Whether less is kept or used than the store knows of. Who uses more than it has, because there are fewer now, has nothing to
    /// give back before a call ends.
    fn owes(&self) -> bool {
        self.granted.max(self.in_use) < self.told
    }

    /// They count no more: the node was taken for dead, or leaves them to others. Calls that are under way go on.
    pub fn lose(&mut self) {
        *self = Places { in_use: self.in_use, ..Places::default() };
    }

    fn shrink(&mut self) {
        self.granted = self.granted.min(self.part.max(self.in_use));
    }

    pub fn granted(&self) -> u32 {
        self.granted
    }

    pub fn lacks(&self) -> bool {
        self.granted < self.part
    }

    pub fn are_idle(&self) -> bool {
        self.in_use == 0
    }
}

/// When a place may be free, by how long calls take.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    call: Duration,
    /// When the last of those would have a place that were sent away without one.
    queued_to: Timestamp,
}

impl Default for Guess {
    fn default() -> Self {
        Guess { call: PAUSE, queued_to: Timestamp::from_micros(0) }
    }
}

impl Guess {
    /// One after the other, as if each had a place: so that a backlog does not come back all at once. Where that would be too long,
    /// they begin again at the front.
    pub fn free_at(&mut self, granted: u32, now: Timestamp) -> Timestamp {
        let front = now + if granted == 0 { PAUSE_NONE } else { PAUSE };
        let apart = self.call / granted.max(1);
        let next = self.queued_to.max(front) + apart;
        self.queued_to = if next > now + AWAY_MAX { front + apart } else { next };
        self.queued_to
    }

    /// A call took so long.
    pub fn learn(&mut self, took: Duration) {
        self.call = (self.call * 7 + took.min(CALL_GUESS_MAX)) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_millis(millis)
    }

    #[test]
    fn e1_who_finds_no_place_comes_back_when_one_may_be_free_behind_those_before() {
        let mut guess = Guess::default();
        assert_eq!([guess.free_at(2, at(0)), guess.free_at(2, at(0))], [at(30), at(40)]);
        assert_eq!(guess.free_at(0, at(0)), at(520));
        (0..100).for_each(|_| guess.learn(Duration::from_secs(3_600)));
        let apart = guess.free_at(4, at(60_000)).since(at(60_020));
        assert!((2_400..=2_500).contains(&apart.as_millis()), "{apart:?}: no call is taken to last longer than 10 s");
    }

    #[test]
    fn e1_who_finds_no_place_comes_back_in_bounded_time_however_slow_the_calls_were() {
        let mut slow = Guess::default();
        (0..100).for_each(|_| slow.learn(Duration::from_secs(10)));
        for granted in [0, 1, 4] {
            let mut guess = slow;
            let back: Vec<_> = (0..10_000).map(|_| guess.free_at(granted, at(0))).collect();
            assert!(back.iter().all(|back| (at(0)..=at(60_000)).contains(back)), "{granted}");
            assert!(back.iter().filter(|again| **again == back[0]).count() <= 10_000 / 5, "{granted}: not all at once");
        }
    }

    fn parts(max: u32, nodes: u32, round: u64) -> Vec<u32> {
        (0..nodes).map(|place| part(max, nodes, place, round)).collect()
    }

    #[test]
    fn e1_parts_differ_by_one_at_most_and_what_is_left_over_goes_round() {
        assert_eq!(parts(4, 2, 0), [2, 2]);
        assert_eq!([0, 1, 2].map(|round| parts(4, 3, round)), [[2, 1, 1], [1, 1, 2], [1, 2, 1]]);
        assert_eq!([0, 1].map(|round| parts(1, 2, round)), [[1, 0], [0, 1]]);
        assert_eq!(part(7, 0, 0, 0), 7);
    }

    #[test]
    fn e1_who_has_more_than_its_part_gives_it_back_as_its_calls_end() {
        let mut places = Places::default();
        assert!(!places.take(), "nothing is granted yet");
        assert!(!places.hear(Share { granted: 4, part: 4 }));
        for _ in 0..4 {
            assert!(places.take());
        }
        assert!(!places.take());
        // Another came: two of the four are its, when they are free.
        assert!(!places.hear(Share { granted: 4, part: 2 }));
        assert!(places.give_back(), "the store is told at once");
        assert_eq!((places.tell(), places.take()), ((3, 3), false));
        assert!(places.give_back() && !places.take());
        assert_eq!(places.tell(), (2, 2));
        assert!(!places.give_back() && places.take());
    }

    #[test]
    fn e1_calls_under_way_count_after_the_places_were_lost() {
        let mut places = Places::default();
        places.hear(Share { granted: 2, part: 2 });
        assert!(places.take() && places.take());
        places.lose();
        assert!(!places.take());
        assert_eq!((places.tell(), places.are_idle()), ((0, 2), false));
    }

    #[test]
    fn c4_when_there_are_fewer_places_calls_under_way_end_before_another_begins() {
        let mut places = Places::default();
        places.hear(Share { granted: 3, part: 3 });
        assert!(places.take() && places.take() && places.take());
        places.lose();
        assert_eq!(places.tell(), (0, 3));
        assert!(!places.hear(Share { granted: 1, part: 1 }), "nothing is given back yet");
        assert!(!places.take());
        assert!(places.give_back() && !places.take() && places.give_back() && !places.take());
        assert_eq!(places.tell(), (1, 1));
        places.give_back();
        assert!(places.take());
    }

    proptest! {
        /// Nodes come, go, call and tell the store in any order: never more calls at once than the integration bears.
        #[test]
        fn e1_never_more_calls_than_places(
            max in 1u32..8, moves in prop::collection::vec((0usize..4, 0u8..6), 1..300),
        ) {
            // What each node knows, and what the store knows of it.
            let mut nodes = [Places::default(); 4];
            let mut rows: [Option<u32>; 4] = [None; 4];
            for (step, (node, what)) in moves.into_iter().enumerate() {
                match what {
                    0 | 1 => {
                        let before: u32 = nodes.iter().map(|places| places.in_use).sum();
                        if nodes[node].take() {
                            prop_assert!(before < max, "{nodes:?}");
                        }
                    }
                    2 => drop((nodes[node].in_use > 0).then(|| nodes[node].give_back())),
                    3 | 4 => {
                        let (held, in_use) = nodes[node].tell();
                        rows[node].get_or_insert(0);
                        let users: Vec<usize> = (0..4).filter(|user| rows[*user].is_some()).collect();
                        let place = users.iter().position(|user| *user == node).expect("it has a row");
                        let part = part(max, users.len() as u32, place as u32, step as u64 / 20);
                        let others = (0..4).filter(|other| *other != node).filter_map(|other| rows[other]).sum();
                        let share = share(max, others, held, part);
                        rows[node] = Some(share.granted.max(in_use));
                        nodes[node].hear(share);
                    }
                    _ if nodes[node].are_idle() => {
                        nodes[node].lose();
                        rows[node] = None;
                    }
                    _ => {}
                }
                prop_assert!(nodes.iter().map(|places| places.granted).sum::<u32>() <= max, "{nodes:?} {rows:?}");
            }
        }

        /// Whoever calls the integration gets its part soon, if the calls of the others end.
        #[test]
        fn e1_every_node_comes_to_its_part(max in 1u32..8, nodes in 1u32..5) {
            let mut rows = vec![0u32; nodes as usize];
            rows[0] = max;
            for _ in 0..2 {
                for node in 0..nodes as usize {
                    let mine = part(max, nodes, node as u32, 0);
                    let others = rows.iter().sum::<u32>() - rows[node];
                    rows[node] = share(max, others, rows[node].min(mine), mine).granted;
                }
            }
            prop_assert_eq!(rows, parts(max, nodes, 0));
        }
    }
}
