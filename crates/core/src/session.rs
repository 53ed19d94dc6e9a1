//! A log-in: how long it lasts, when it is over, and how often somebody may try.

use crate::time::Timestamp;
use crate::user::Role;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// A session that is not used for so long is over.
pub const IDLE: Duration = Duration::from_secs(30 * 60);
/// And it is over after so long, used or not.
pub const LASTS: Duration = Duration::from_secs(12 * 3_600);
/// A link that logs somebody in is good for so long, and once.
pub const LINK_LASTS: Duration = Duration::from_secs(15 * 60);
/// That something is in use is written down no more often.
pub const NOTE_EVERY: Duration = Duration::from_secs(60);

/// Somebody who is logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// A user, or the admin.
    pub name: String,
    pub role: Role,
    pub made_at: Timestamp,
    pub seen_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Session {
    pub fn is_live(&self, now: Timestamp) -> bool {
        now < self.expires_at && now.since(self.seen_at) < IDLE
    }
}

/// Whether it is worth a write that something is used, which was last noted then.
pub fn wants_note(noted: Option<Timestamp>, now: Timestamp) -> bool {
    noted.is_none_or(|noted| now.since(noted) >= NOTE_EVERY)
}

/// Who has tried how often of late. Whoever tries too often waits; nobody is shut out for good.
#[derive(Debug)]
pub struct Tries<K> {
    /// So many at once.
    most: u32,
    /// And one more whenever so long has passed.
    every: Duration,
    keys_max: usize,
    /// Until when what was tried counts.
    until: HashMap<K, Timestamp>,
}

impl<K: Eq + Hash + Clone> Tries<K> {
    pub fn new(most: u32, every: Duration, keys_max: usize) -> Tries<K> {
        Tries { most, every, keys_max, until: HashMap::new() }
    }

    /// Counts a try, or says how long to wait for the next.
    pub fn take(&mut self, key: &K, now: Timestamp) -> Result<(), Duration> {
        let until = self.until.get(key).copied().unwrap_or(now).max(now) + self.every;
        let over = until.since(now + self.every * self.most);
        if !over.is_zero() {
            return Err(over);
        }
        if self.until.len() >= self.keys_max && !self.until.contains_key(key) {
            self.make_room(now);
        }
        self.until.insert(key.clone(), until);
        Ok(())
    }

    /// It was a good one.
    pub fn give_back(&mut self, key: &K) {
        if let Some(until) = self.until.get_mut(key) {
            *until = *until - self.every;
        }
    }

    /// Who has not tried for long is forgotten; if there is nobody, whoever has tried least of late.
    fn make_room(&mut self, now: Timestamp) {
        self.until.retain(|_, until| *until > now);
        if self.until.len() >= self.keys_max
            && let Some(least) = self.until.iter().min_by_key(|(_, until)| **until).map(|(key, _)| key.clone())
        {
            self.until.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn t_101_a_session_ends_when_it_is_idle_and_when_its_time_is_over() {
        let (made_at, expires_at) = (at(0), at(0) + LASTS);
        let session = |seen_at| Session { name: "maya".into(), role: Role::Viewer, made_at, seen_at, expires_at };
        assert!(session(at(0)).is_live(at(1799)));
        assert!(!session(at(0)).is_live(at(1800)));
        assert!(session(at(43_000)).is_live(at(43_199)));
        assert!(!session(at(43_199)).is_live(at(43_200)), "used or not");
        assert!(session(at(60)).is_live(at(0)), "another node's clock may be ahead");
    }

    #[test]
    fn k1_that_something_is_used_is_noted_once_a_minute() {
        assert!(wants_note(None, at(0)));
        assert!(!wants_note(Some(at(0)), at(59)));
        assert!(wants_note(Some(at(0)), at(60)));
    }

    #[test]
    fn k1_who_tries_too_often_waits_and_the_others_do_not() {
        let mut tries = Tries::new(3, Duration::from_secs(60), 100);
        for _ in 0..3 {
            assert_eq!(tries.take(&"maya", at(0)), Ok(()));
        }
        assert_eq!(tries.take(&"maya", at(0)), Err(Duration::from_secs(60)));
        assert_eq!(tries.take(&"maya", at(59)), Err(Duration::from_secs(1)), "a refused try costs nothing");
        assert_eq!(tries.take(&"ben", at(0)), Ok(()));
        assert_eq!(tries.take(&"maya", at(60)), Ok(()));
        assert!(tries.take(&"maya", at(60)).is_err());
        tries.give_back(&"maya");
        assert_eq!(tries.take(&"maya", at(60)), Ok(()));
    }

    #[test]
    fn k1_however_many_names_are_tried_only_so_many_are_remembered() {
        let mut tries = Tries::new(2, Duration::from_secs(60), 100);
        for _ in 0..2 {
            tries.take(&0, at(0)).expect("a try");
        }
        for other in 1..1_000 {
            tries.take(&other, at(0)).expect("a try");
        }
        assert_eq!(tries.until.len(), 100);
        assert!(tries.take(&0, at(0)).is_err(), "who has tried most is remembered longest");
    }
}
