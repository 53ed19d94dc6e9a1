//! Which event holds a key. New keys are in memory (and in their event's row, from which they are read back at start);
//! a full table of them is written out as one sorted run, which is never changed and is dropped whole when its keys have
//! expired. Random hashes thus never touch a big B-tree, and memory holds a small filter per run instead of every key.

use super::rows;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A run has this many keys.
pub(super) const RUN_KEYS: usize = 131_072;
/// Written out per commit while a run is being made.
const SEAL_KEYS_PER_COMMIT: usize = 512;
const FILTER_BITS_PER_KEY: usize = 12;
const BLOCK_WORDS: usize = 8;

/// The first half of a dedup key: enough to find its event, whose row has the whole key.
pub(super) type Prefix = [u8; 16];

pub(super) fn prefix(key: &[u8; 32]) -> Prefix {
    key[..16].try_into().expect("half of 32 bytes")
}

/// The prefix is the output of a keyed hash: its first bytes are as good as any hash of it.
#[derive(Default)]
pub(super) struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
    fn write_usize(&mut self, _: usize) {}
}

pub(super) type Table = HashMap<Prefix, u64, BuildHasherDefault<FirstBytes>>;

#[derive(Default)]
pub(super) struct Keys {
    recent: Table,
    recent_expires_at: i64,
    sealing: Option<Sealing>,
    /// Oldest first.
    pub runs: Vec<Run>,
    last_run: i64,
}

pub(super) struct Run {
    pub id: i64,
    pub first_event: u64,
    pub last_event: u64,
    pub expires_at: i64,
    filter: Filter,
}

struct Sealing {
    id: i64,
    table: Table,
    sorted: Vec<(Prefix, u64)>,
    written: usize,
    expires_at: i64,
}

/// What a commit, once it is on disk, adds to the run in the making.
pub(super) struct Sealed {
    written: usize,
    run: Option<Run>,
}

impl Keys {
    /// Reads the runs; a run that was not finished when the process ended is removed.
    pub fn load(conn: &Connection) -> rusqlite::Result<Keys> {
        let mut keys = Keys::default();
        let mut rows =
            conn.prepare("SELECT id, first_event, last_event, expires_at, filter FROM key_run ORDER BY id")?;
        let runs = rows.query_map([], |row| {
            Ok(Run {
                id: row.get(0)?,
                first_event: row.get::<_, i64>(1)?.cast_unsigned(),
                last_event: row.get::<_, i64>(2)?.cast_unsigned(),
                expires_at: row.get(3)?,
                filter: Filter::from_bytes(&row.get::<_, Vec<u8>>(4)?),
            })
        })?;
        keys.runs = runs.collect::<rusqlite::Result<_>>()?;
        let known = keys.runs.last().map_or(0, |run| run.id);
        let begun: i64 = conn.query_row("SELECT ifnull(max(run), 0) FROM key_entry", [], |row| row.get(0))?;
        if begun > known {
            conn.execute("DELETE FROM key_entry WHERE run > ?1", [known])?;
        }
        keys.last_run = known;
        // Not the last run's last event: runs that have expired are gone, and their events must not come back.
        let sealed = rows::fact(conn, "keys_sealed_to")?;
        let mut rows =
            conn.prepare("SELECT id, key, expires_at FROM event WHERE id > ?1 AND key IS NOT NULL ORDER BY id")?;
        let mut rows = rows.query([sealed])?;
        while let Some(row) = rows.next()? {
            let key = row.get_ref(1)?.as_blob()?;
            if let Some(prefix) = key.first_chunk::<16>() {
                keys.insert(*prefix, row.get::<_, i64>(0)?.cast_unsigned(), row.get(2)?);
            }
        }
        Ok(keys)
    }

    /// A key whose event is on disk.
    pub fn insert(&mut self, prefix: Prefix, event: u64, expires_at: i64) {
        self.recent.insert(prefix, event);
        self.recent_expires_at = self.recent_expires_at.max(expires_at);
    }

    /// The newest event under this prefix.
    pub fn find(&self, conn: &Connection, prefix: &Prefix) -> rusqlite::Result<Option<u64>> {
        if let Some(event) = self.recent.get(prefix) {
            return Ok(Some(*event));
        }
        if let Some(event) = self.sealing.as_ref().and_then(|sealing| sealing.table.get(prefix)) {
            return Ok(Some(*event));
        }
        let spot = Spot::of(prefix);
        for run in self.runs.iter().rev().filter(|run| run.filter.may_hold(spot)) {
            let mut entry = conn.prepare_cached("SELECT event FROM key_entry WHERE run = ?1 AND hash = ?2")?;
            let event: Option<i64> = entry.query_row(params![run.id, prefix], |row| row.get(0)).optional()?;
            if let Some(event) = event {
                return Ok(Some(event.cast_unsigned()));
            }
        }
        Ok(None)
    }

    /// Writes the next part of a run, if one is due. The caller reports back with `sealed` once it is on disk.
    pub fn seal(&mut self, conn: &Connection) -> rusqlite::Result<Option<Sealed>> {
        if self.sealing.is_none() {
            if self.recent.len() < RUN_KEYS {
                return Ok(None);
            }
            let table = std::mem::take(&mut self.recent);
            let mut sorted: Vec<(Prefix, u64)> = table.iter().map(|(prefix, event)| (*prefix, *event)).collect();
            sorted.sort_unstable();
            self.last_run += 1;
            let expires_at = std::mem::take(&mut self.recent_expires_at);
            self.sealing = Some(Sealing { id: self.last_run, table, sorted, written: 0, expires_at });
        }
        let Some(sealing) = &self.sealing else { return Ok(None) };
        let end = (sealing.written + SEAL_KEYS_PER_COMMIT).min(sealing.sorted.len());
        let mut entry = conn.prepare_cached("INSERT INTO key_entry (run, hash, event) VALUES (?1, ?2, ?3)")?;
        for (prefix, event) in &sealing.sorted[sealing.written..end] {
            entry.execute(params![sealing.id, prefix, event.cast_signed()])?;
        }
        let run = if end == sealing.sorted.len() { Some(sealing.finish(conn)?) } else { None };
        Ok(Some(Sealed { written: end, run }))
    }

    pub fn sealed(&mut self, sealed: Sealed) {
        if let Some(sealing) = &mut self.sealing {
            sealing.written = sealed.written;
        }
        if let Some(run) = sealed.run {
            self.runs.push(run);
            self.sealing = None;
        }
    }

    /// The lowest run whose entries still count; older ones are rubbish.
    pub fn first_kept(&self, forgotten: &[i64]) -> i64 {
        let kept = self.runs.iter().map(|run| run.id).find(|run| !forgotten.contains(run));
        kept.unwrap_or(self.last_run + i64::from(self.sealing.is_none()))
    }

    /// Forgets runs; their rows are removed by the caller, in small parts.
    pub fn forget(&mut self, run: i64) {
        self.runs.retain(|other| other.id != run);
    }
}

impl Sealing {
    fn finish(&self, conn: &Connection) -> rusqlite::Result<Run> {
        let mut filter = Filter::for_keys(self.sorted.len());
        for (prefix, _) in &self.sorted {
            filter.add(Spot::of(prefix));
        }
        let events = self.sorted.iter().map(|(_, event)| *event);
        let run = Run {
            id: self.id,
            first_event: events.clone().min().unwrap_or(0),
            last_event: events.max().unwrap_or(0),
            expires_at: self.expires_at,
            filter,
        };
        conn.prepare_cached(
            "INSERT INTO key_run (id, first_event, last_event, expires_at, filter) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            run.id,
            run.first_event.cast_signed(),
            run.last_event.cast_signed(),
            run.expires_at,
            run.filter.to_bytes()
        ])?;
        conn.prepare_cached("UPDATE fact SET value = ?1 WHERE name = 'keys_sealed_to'")?
            .execute([run.last_event.cast_signed()])?;
        Ok(run)
    }
}

/// A Bloom filter whose bits for one key lie in one cache line.
struct Filter {
    words: Vec<u64>,
}

/// Where a key's bits are: which block, and which of its 512 bits.
#[derive(Clone, Copy)]
struct Spot {
    block: u64,
    bits: u64,
}

impl Spot {
    fn of(prefix: &Prefix) -> Spot {
        let half = |at: usize| u64::from_le_bytes(prefix[at..at + 8].try_into().expect("eight bytes"));
        Spot { block: half(0), bits: half(8) }
    }

    fn probes(self) -> impl Iterator<Item = (usize, u64)> {
        (0..7).map(move |probe| {
            let bit = (self.bits >> (9 * probe)) as usize & 511;
            (bit / 64, 1u64 << (bit % 64))
        })
    }
}

impl Filter {
    fn for_keys(keys: usize) -> Filter {
        let blocks = (keys * FILTER_BITS_PER_KEY).div_ceil(BLOCK_WORDS * 64).max(1);
        Filter { words: vec![0; blocks * BLOCK_WORDS] }
    }

    fn block(&self, spot: Spot) -> usize {
        let blocks = (self.words.len() / BLOCK_WORDS) as u128;
        ((u128::from(spot.block) * blocks) >> 64) as usize * BLOCK_WORDS
    }

    fn add(&mut self, spot: Spot) {
        let block = self.block(spot);
        for (word, bit) in spot.probes() {
            self.words[block + word] |= bit;
        }
    }

    fn may_hold(&self, spot: Spot) -> bool {
        let block = self.block(spot);
        spot.probes().all(|(word, bit)| self.words[block + word] & bit != 0)
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Bytes that are no filter become one that holds everything: slower, never wrong.
    fn from_bytes(bytes: &[u8]) -> Filter {
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        if words.is_empty() || !words.len().is_multiple_of(BLOCK_WORDS) {
            return Filter { words: vec![u64::MAX; BLOCK_WORDS] };
        }
        Filter { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(n: u64) -> Prefix {
        let mix = |x: u64| (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut prefix = [0; 16];
        prefix[..8].copy_from_slice(&mix(mix(n + 1)).to_le_bytes());
        prefix[8..].copy_from_slice(&mix(mix(mix(n + 77))).to_le_bytes());
        prefix
    }

    #[test]
    fn a_filter_never_denies_a_key_and_seldom_claims_another() {
        let mut filter = Filter::for_keys(10_000);
        for n in 0..10_000 {
            filter.add(Spot::of(&spread(n)));
        }
        let filter = Filter::from_bytes(&filter.to_bytes());
        assert!((0..10_000).all(|n| filter.may_hold(Spot::of(&spread(n)))));
        let wrong = (10_000..30_000).filter(|n| filter.may_hold(Spot::of(&spread(*n)))).count();
        assert!(wrong < 600, "{wrong} of 20000");
    }

    /// A file with the tables, and keys as a store has them.
    struct Kept {
        conn: Connection,
        keys: Keys,
        next_event: u64,
    }

    impl Kept {
        fn new() -> Kept {
            let conn = Connection::open_in_memory().expect("opened");
            conn.execute_batch(crate::sqlite::MIGRATIONS[0]).expect("made");
            let fact = "INSERT INTO fact (name, value) VALUES ('keys_sealed_to', 0)";
            conn.execute_batch(fact).expect("made");
            let keys = Keys::load(&conn).expect("loaded");
            Kept { conn, keys, next_event: 1 }
        }

        /// The nth key is given to a new event.
        fn give(&mut self, nth: u64, expires_at: i64) -> u64 {
            let event = self.next_event;
            self.next_event += 2;
            let mut key = [0; 32];
            key[..16].copy_from_slice(&spread(nth));
            self.conn
                .prepare_cached(
                    "INSERT INTO event (id, source, received_at, key, expires_at, status, jobs, trace, payload)
                     VALUES (?1, 1, 0, ?2, ?3, 202, 1, zeroblob(16), x'')",
                )
                .and_then(|mut row| row.execute(params![event.cast_signed(), key, expires_at]))
                .expect("inserted");
            self.keys.insert(spread(nth), event, expires_at);
            event
        }

        fn give_all(&mut self, keys: std::ops::Range<u64>, expires_at: i64) {
            self.conn.execute_batch("BEGIN").expect("begun");
            for nth in keys {
                self.give(nth, expires_at);
            }
            self.conn.execute_batch("COMMIT").expect("committed");
        }

        /// One commit; `true` when it had something to write out.
        fn commit(&mut self) -> bool {
            let sealed = self.keys.seal(&self.conn).expect("written");
            let wrote = sealed.is_some();
            if let Some(sealed) = sealed {
                self.keys.sealed(sealed);
            }
            wrote
        }

        fn seal_all(&mut self) {
            self.conn.execute_batch("BEGIN").expect("begun");
            while self.commit() {}
            self.conn.execute_batch("COMMIT").expect("committed");
        }

        fn start_again(&mut self) {
            self.keys = Keys::load(&self.conn).expect("loaded");
        }

        fn event_of(&self, nth: u64) -> Option<u64> {
            self.keys.find(&self.conn, &spread(nth)).expect("read")
        }

        fn holds_all(&self, mut keys: std::ops::Range<u64>) -> bool {
            keys.all(|nth| self.event_of(nth) == Some(1 + 2 * nth))
        }
    }

    const RUN: u64 = RUN_KEYS as u64;

    #[test]
    fn p2_keys_are_found_while_and_after_they_are_written_out_and_after_a_kill_in_between() {
        let mut kept = Kept::new();
        kept.give_all(0..RUN, 100);
        for _ in 0..10 {
            assert!(kept.commit());
        }
        assert!(kept.keys.runs.is_empty() && kept.keys.recent.is_empty(), "half way");
        kept.give_all(RUN..RUN + 500, 100);
        assert!(kept.holds_all(0..RUN + 500));
        kept.start_again();
        assert!(kept.holds_all(0..RUN + 500));
        kept.seal_all();
        kept.give_all(RUN + 500..2 * RUN + 600, 200);
        kept.seal_all();
        for _ in 0..2 {
            assert_eq!(kept.keys.runs.len(), 2);
            assert!(kept.keys.recent.is_empty(), "memory holds no key that a run holds");
            assert!(kept.holds_all(0..2 * RUN + 600));
            assert_eq!(kept.event_of(9 * RUN), None);
            kept.start_again();
        }
        assert_eq!(kept.keys.runs[0].expires_at, 100);
        assert_eq!(kept.keys.runs[1].expires_at, 200);
    }

    #[test]
    fn p2_a_key_that_was_used_again_belongs_to_the_newest_event() {
        let mut kept = Kept::new();
        kept.give_all(0..RUN, 100);
        kept.seal_all();
        let second = kept.give(7, 200);
        assert_eq!(kept.event_of(7), Some(second));
        kept.start_again();
        assert_eq!(kept.event_of(7), Some(second));
        kept.give_all(RUN..2 * RUN, 200);
        kept.seal_all();
        assert_eq!(kept.keys.runs.len(), 2);
        assert_eq!(kept.event_of(7), Some(second), "the newer run is asked first");
        let third = kept.give(7, 300);
        assert_eq!(kept.event_of(7), Some(third));
    }

    #[test]
    fn a_forgotten_run_is_not_read_back_from_its_events() {
        let mut kept = Kept::new();
        kept.give_all(0..RUN, 100);
        kept.seal_all();
        let run = kept.keys.runs[0].id;
        kept.conn.execute("DELETE FROM key_run", []).expect("deleted");
        kept.keys.forget(run);
        let fresh = kept.give(RUN, 200);
        for _ in 0..2 {
            assert_eq!((kept.event_of(7), kept.event_of(RUN)), (None, Some(fresh)));
            assert_eq!(kept.keys.recent.len(), 1);
            kept.start_again();
        }
        let left: i64 = kept.conn.query_row("SELECT count(*) FROM key_entry", [], |row| row.get(0)).expect("counted");
        assert_eq!(left, 0, "a start removes what no run owns");
    }
}
