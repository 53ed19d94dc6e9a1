//! How the places of a worker are shared: where jobs belong to different tenants or groups, one of them never takes all places.
//! So whoever comes beside a large backlog finds a place free, and does not wait until one of the others ends.

use crate::lane::Lane;
use std::collections::HashMap;

/// One part in so many is kept free of the lane that has most; of fewer places, none.
const SPARE_PART: usize = 8;

/// Who has how many places.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Without it nobody is counted.
    most_of_one: Option<usize>,
    taken: HashMap<Lane, usize>,
}

/// How many jobs may be claimed at once, and of which lane none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub most: usize,
    pub but: Option<Lane>,
}

impl Shares {
    /// Of so many places that are shared.
    pub fn new(shared: usize) -> Shares {
        let spare = shared / SPARE_PART;
        Shares { most_of_one: (spare > 0).then(|| shared - spare), taken: HashMap::new() }
    }

    /// What may be claimed into so many free places. At most one lane has its whole share: it is more than half.
    pub fn room(&self, free: usize) -> Room {
        let Some(most_of_one) = self.most_of_one else { return Room { most: free, but: None } };
        match self.taken.iter().max_by_key(|(_, places)| **places) {
            Some((lane, places)) if *places >= most_of_one => Room { most: free, but: Some(*lane) },
            Some((_, places)) => Room { most: free.min(most_of_one - places), but: None },
            None => Room { most: free.min(most_of_one), but: None },
        }
    }

    /// A job of this lane has a place; says whether that is counted, and must be given back.
    pub fn take(&mut self, lane: Lane) -> bool {
        if self.most_of_one.is_some() {
            *self.taken.entry(lane).or_default() += 1;
        }
        self.most_of_one.is_some()
    }

    pub fn give_back(&mut self, lane: Lane) {
        if let Some(places) = self.taken.get_mut(&lane) {
            *places -= 1;
            if *places == 0 {
                self.taken.remove(&lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(number: u64) -> Lane {
        Lane::from_number(number)
    }

    #[test]
    fn f49_one_lane_never_takes_the_last_places_and_the_others_may() {
        let mut shares = Shares::new(32);
        assert_eq!(shares.room(32), Room { most: 28, but: None });
        (0..28).for_each(|_| assert!(shares.take(lane(1))));
        assert_eq!(shares.room(4), Room { most: 4, but: Some(lane(1)) });
        (0..3).for_each(|_| assert!(shares.take(lane(2))));
        assert_eq!(shares.room(1), Room { most: 1, but: Some(lane(1)) });
        shares.give_back(lane(1));
        assert_eq!(shares.room(2), Room { most: 1, but: None });
    }

    #[test]
    fn places_that_belong_to_one_are_not_shared_nor_are_very_few() {
        for places in [0, 7] {
            let mut shares = Shares::new(places);
            assert!(!shares.take(lane(1)));
            assert_eq!(shares.room(5), Room { most: 5, but: None });
        }
    }
}
