//! How many may be connected at once: all together, and from one address. Who finds no place is told so and never waits.

use clinch_core::config::ConnectionLimits;
use clinch_core::limit::neighbourhood;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// All together, if nothing else is said.
const ALL_MAX: usize = 4_096;
/// From one address, if nothing else is said.
const ADDRESS_MAX: usize = 64;

#[derive(Clone)]
pub struct Places(Arc<Room>);

struct Room {
    all_max: usize,
    /// `None`: what is usual, from which this machine itself is excepted.
    address_max: Option<usize>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Only those that have some.
    by_address: HashMap<IpAddr, usize>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    All,
    Address,
}

impl Full {
    pub const fn word(self) -> &'static str {
        match self {
            Full::All => "full",
            Full::Address => "address",
        }
    }

    pub const fn status_line(self) -> &'static str {
        match self {
            Full::All => "503 Service Unavailable",
            Full::Address => "429 Too Many Requests",
        }
    }
}

/// One connection's place; free again when it is dropped.
pub struct Place {
    room: Arc<Room>,
    address: Option<IpAddr>,
}

impl Places {
    pub fn new(limits: ConnectionLimits) -> Places {
        let all_max = limits.all.unwrap_or(ALL_MAX);
        Places(Arc::new(Room { all_max, address_max: limits.address, taken: Mutex::default() }))
    }

    pub fn take(&self, peer: IpAddr) -> Result<Place, Full> {
        let address = neighbourhood(peer);
        // Who is on this machine is a proxy or a tool of its owner; a limit that was written down counts for them too.
        let most = match self.0.address_max {
            None if address.is_loopback() => None,
            most => Some(most.unwrap_or(ADDRESS_MAX)),
        };
        let mut taken = self.0.taken.lock().expect("nobody panics while holding the places");
        if taken.all >= self.0.all_max {
            return Err(Full::All);
        }
        if let Some(most) = most {
            let of_address = taken.by_address.entry(address).or_default();
            if *of_address >= most {
                return Err(Full::Address);
            }
            *of_address += 1;
        }
        taken.all += 1;
        Ok(Place { room: self.0.clone(), address: most.map(|_| address) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock().expect("nobody panics while holding the places");
        taken.all -= 1;
        if let Some(address) = self.address
            && let Some(of_address) = taken.by_address.get_mut(&address)
        {
            *of_address -= 1;
            if *of_address == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(all: usize, address: Option<usize>) -> Places {
        Places::new(ConnectionLimits { all: Some(all), address })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn t074_an_address_has_its_places_and_takes_nobody_elses() {
        let places = places(10, Some(2));
        let held: Vec<Place> =
            ["192.0.2.1", "::ffff:192.0.2.1"].map(|text| places.take(ip(text)).expect("a place")).into();
        assert_eq!(places.take(ip("192.0.2.1")).err(), Some(Full::Address));
        assert!(places.take(ip("192.0.2.2")).is_ok());
        drop(held);
        assert!(places.take(ip("192.0.2.1")).is_ok());
        let v6 = ["2001:db8::1", "2001:db8::2"].map(|text| places.take(ip(text)).expect("a place"));
        assert_eq!(places.take(ip("2001:db8::3")).err(), Some(Full::Address), "a network of 64 bits is one neighbour");
        drop(v6);
        let taken = places.0.taken.lock().expect("free");
        assert_eq!((taken.all, taken.by_address.len()), (0, 0), "nothing is remembered of who is gone");
    }

    #[test]
    fn t074_all_together_have_a_bound_too() {
        let places = places(2, None);
        let _held = ["192.0.2.1", "192.0.2.2"].map(|text| places.take(ip(text)).expect("a place"));
        assert_eq!(places.take(ip("192.0.2.3")).err(), Some(Full::All));
    }

    #[test]
    fn this_machine_is_counted_only_where_a_limit_is_written_down() {
        let usual = places(1_000, None);
        let held: Vec<Place> = (0..500).filter_map(|_| usual.take(ip("127.0.0.1")).ok()).collect();
        assert_eq!(held.len(), 500);
        let other: Vec<Place> = (0..500).filter_map(|_| usual.take(ip("192.0.2.1")).ok()).collect();
        assert_eq!(other.len(), ADDRESS_MAX);
        let written = places(1_000, Some(3));
        let held: Vec<Place> = (0..500).filter_map(|_| written.take(ip("127.0.0.1")).ok()).collect();
        assert_eq!(held.len(), 3);
    }
}
