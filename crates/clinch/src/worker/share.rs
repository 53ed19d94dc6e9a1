//! How the places of a queue are shared: where jobs belong to different tenants or groups, one of them never takes all places.
//! So whoever comes beside a large backlog finds a place free, and does not wait until one of the others ends.

use clinch_core::lane::Lane;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// One part in so many is kept free of the lane that has most; of fewer places, none.
const SPARE_PART: usize = 8;

/// Who has how many places. Without a bound nobody is counted.
pub struct Shares {
    most_of_one: Option<usize>,
    taken: Mutex<HashMap<Lane, usize>>,
    freed: Notify,
}

/// How many jobs may be claimed at once, and of which lane none.
#[derive(Debug, PartialEq, Eq)]
pub struct Room {
    pub most: usize,
    pub but: Option<Lane>,
}

impl Shares {
    /// Of so many places that are shared.
    pub fn new(shared: usize) -> Shares {
        let spare = shared / SPARE_PART;
        let most_of_one = (spare > 0).then(|| shared - spare);
        Shares { most_of_one, taken: Mutex::default(), freed: Notify::new() }
    }

    /// What may be claimed into so many free places. At most one lane has its whole share: it is more than half.
    pub fn room(&self, free: usize) -> Room {
        let Some(most_of_one) = self.most_of_one else { return Room { most: free, but: None } };
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let busiest = taken.iter().max_by_key(|(_, places)| **places);
        match busiest {
            Some((lane, places)) if *places >= most_of_one => Room { most: free, but: Some(*lane) },
            Some((_, places)) => Room { most: free.min(most_of_one - places), but: None },
            None => Room { most: free.min(most_of_one), but: None },
        }
    }

    pub fn take(shares: &Arc<Shares>, lane: Lane) -> Option<Share> {
        shares.most_of_one?;
        *shares.taken.lock().unwrap_or_else(PoisonError::into_inner).entry(lane).or_default() += 1;
        Some(Share { lane, shares: shares.clone() })
    }

    /// Until somebody gives a place back.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

/// A place that a lane has.
pub struct Share {
    lane: Lane,
    shares: Arc<Shares>,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = taken.get_mut(&self.lane) {
            *places -= 1;
            if *places == 0 {
                taken.remove(&self.lane);
            }
        }
        drop(taken);
        self.shares.freed.notify_one();
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
        let shares = Arc::new(Shares::new(32));
        assert_eq!(shares.room(32), Room { most: 28, but: None });
        let mut crowd: Vec<_> = (0..28).map(|_| Shares::take(&shares, lane(1))).collect();
        assert_eq!(shares.room(4), Room { most: 4, but: Some(lane(1)) });
        crowd.extend((0..3).map(|_| Shares::take(&shares, lane(2))));
        assert_eq!(shares.room(1), Room { most: 1, but: Some(lane(1)) });
        crowd.remove(0);
        assert_eq!(shares.room(2), Room { most: 1, but: None });
    }

    #[test]
    fn places_that_belong_to_one_are_not_shared_nor_are_very_few() {
        for places in [0, 7] {
            let shares = Arc::new(Shares::new(places));
            assert!(Shares::take(&shares, lane(1)).is_none());
            assert_eq!(shares.room(5), Room { most: 5, but: None });
        }
    }
}
