//! The log of the database, which the writer alone writes: laid out while nobody waits, brought in when it is long, cut when something
//! was erased.

use super::writer::Shared;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// The log is brought into the database when it has this many pages.
const CHECKPOINT_PAGES: i32 = 4_000;
/// So long does it become by then, and with what comes while that is seen.
const BYTES: u64 = 34 << 20;
/// It is laid out in pieces: whoever comes meanwhile waits for one of them at most.
const PIECE_BYTES: usize = 1 << 20;
/// On a disk with less room nothing is laid out.
const ROOM_BYTES_MIN: u64 = 1 << 30;

/// To write where the file has room takes one write of the disk; to make it longer takes two, and its blocks have to be found. The
/// database does not mind what is behind its last page.
pub(super) struct Log {
    path: PathBuf,
    file: Option<File>,
    /// Many have been at work, and it is shorter than it will be.
    is_short: bool,
}

impl Log {
    pub fn of(conn: &Connection) -> Log {
        let path = conn.path().map(|path| format!("{path}-wal").into()).unwrap_or_default();
        Log { path, file: None, is_short: false }
    }

    /// Many are at work: it will be needed in its whole length.
    pub fn expect_more(&mut self) {
        self.is_short |= self.file.is_none();
    }

    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Makes it a piece longer. Where that does not work, it grows as it is written.
    pub fn lengthen(&mut self, conn: &Connection) {
        self.is_short = self.lay_out(conn).unwrap_or_default();
    }

    /// Whether there is more to do.
    fn lay_out(&mut self, conn: &Connection) -> Result<bool, Box<dyn std::error::Error>> {
        // Nobody else writes meanwhile, not even somebody with a tool of his own.
        let _held = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::options().write(true).open(&self.path)?),
        };
        let disk = rustix::fs::fstatvfs(&*file)?;
        let end = file.metadata()?.len();
        let piece = piece(end, disk.f_bavail.saturating_mul(disk.f_frsize));
        if piece == 0 {
            return Ok(false);
        }
        file.write_all_at(&vec![0; piece], end)?;
        // If this fails, so does the next commit, which says so.
        file.sync_data()?;
        Ok(true)
    }

    /// What was erased must be gone from it before somebody says so. A reader that is at work is waited for, up to the busy timeout;
    /// if it takes longer, the next commit tries again.
    pub fn cut(&mut self, shared: &Shared, conn: &Connection) -> rusqlite::Result<()> {
        if shared.is_log_cut() {
            return Ok(());
        }
        let busy: i64 = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy == 0 {
            shared.log_is_cut();
            self.is_short = self.file.is_some();
        }
        Ok(())
    }

    /// By hand, because SQLite's own checkpoint swallows a failed sync.
    pub fn bring_in(&self, shared: &Shared, conn: &Connection) -> rusqlite::Result<()> {
        if shared.log_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES {
            return Ok(());
        }
        shared.log_pages.store(0, Ordering::Relaxed);
        conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |_| Ok(()))
    }
}

/// How much is laid out next of a log that ends there, on a disk with so much room.
fn piece(end: u64, room: u64) -> usize {
    let left = usize::try_from(BYTES.saturating_sub(end)).unwrap_or(usize::MAX);
    if room < ROOM_BYTES_MIN { 0 } else { left.min(PIECE_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_laid_out_to_its_end_and_only_where_there_is_room() {
        assert_eq!(piece(0, ROOM_BYTES_MIN), PIECE_BYTES);
        assert_eq!(piece(BYTES - 5, ROOM_BYTES_MIN), 5);
        assert_eq!((piece(BYTES, u64::MAX), piece(u64::MAX, u64::MAX)), (0, 0));
        assert_eq!(piece(0, ROOM_BYTES_MIN - 1), 0);
    }
}
