//! What scripts write to standard output and error. Jobs follow each other without a pause, so that a runner that is given jobs ahead writes a line after
//! each that begins with a mark: nobody's output is taken for another's. Nobody can guess the mark, also who has an event's body echoed.
//!
//! It is looked at from time to time, and not waited for: to be woken whenever something is written would take longer than many a run.

use memchr::memmem;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::sync::Arc;

/// A script that writes more than this, output and errors together, is ended.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// So much may be written until somebody looks.
const PIPE_BYTES: usize = 256 << 10;
/// It is read in pieces of so many bytes.
const PIECE_BYTES: usize = 8 << 10;

/// What a script wrote during one run.
#[derive(Default)]
pub struct Said {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

/// One of the two.
pub struct Pipe {
    from: PipeReader,
    mark: Option<Arc<str>>,
    /// Read, and of jobs that are not answered.
    said: Vec<u8>,
    /// Up to here there is no mark,
    searched: usize,
    /// and here there is one.
    found: Option<usize>,
}

impl Pipe {
    /// With the end that is written to.
    pub fn new(mark: Option<Arc<str>>) -> std::io::Result<(Pipe, PipeWriter)> {
        let (from, to) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&from, true)?;
        // If the system lets us; with less, who writes much waits more often.
        let _ = rustix::pipe::fcntl_setpipe_size(&from, PIPE_BYTES);
        Ok((Pipe { from, mark, said: Vec::new(), searched: 0, found: None }, to))
    }

    /// Takes up what is there, until there are so many bytes.
    pub fn look(&mut self, bytes_max: usize) {
        // A piece that is not full was the last.
        while self.said.len() <= bytes_max && read_now(&self.from, &mut self.said) == PIECE_BYTES {}
        self.search();
    }

    fn search(&mut self) {
        if let (None, Some(mark)) = (self.found, &self.mark) {
            self.found = memmem::find(&self.said[self.searched..], mark.as_bytes()).map(|at| self.searched + at);
            // The beginning of one may be there.
            self.searched = (self.said.len() + 1).saturating_sub(mark.len());
        }
    }

    /// How much the job wrote that comes next, as far as it is known.
    pub fn len(&self) -> usize {
        self.found.unwrap_or(self.said.len())
    }

    /// The rest of the line of the next mark, if all of it is there.
    pub fn behind(&self) -> Option<&[u8]> {
        let line = &self.said[self.found? + self.mark.as_ref()?.len()..];
        Some(&line[..memchr::memchr(b'\n', line)?])
    }

    /// What was written up to the next mark, with whose line it goes; without one all that is there.
    pub fn take(&mut self) -> Vec<u8> {
        let (at, line) = (self.len(), self.behind().map(<[u8]>::len));
        let end = line.zip(self.mark.as_ref()).map_or(self.said.len(), |(line, mark)| at + mark.len() + line + 1);
        let rest = self.said.split_off(end);
        let mut taken = std::mem::replace(&mut self.said, rest);
        (self.searched, self.found) = (0, None);
        self.search();
        taken.truncate(at);
        taken
    }

    /// All that is there.
    pub fn clear(&mut self) {
        self.said.clear();
        (self.searched, self.found) = (0, None);
    }
}

/// Adds a piece of what is there without waiting; how many bytes that were.
pub fn read_now(from: impl AsFd, into: &mut Vec<u8>) -> usize {
    let mut piece = [0; PIECE_BYTES];
    let length = rustix::io::read(from, &mut piece).unwrap_or(0);
    into.extend_from_slice(&piece[..length]);
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pipe() -> (Pipe, PipeWriter) {
        Pipe::new(Some("MARK".into())).expect("a pipe")
    }

    #[test]
    fn c7_what_is_behind_the_line_of_a_mark_is_of_the_next_job() {
        let check = |said: &str, behind: Option<&str>, taken: &str, left: &str| {
            // In pieces of every length, as it may come.
            for piece in 1..=said.len().max(1) {
                let (mut pipe, mut to) = pipe();
                for piece in said.as_bytes().chunks(piece) {
                    to.write_all(piece).expect("there is room");
                    pipe.look(OUTPUT_BYTES_MAX);
                }
                assert_eq!(pipe.behind(), behind.map(str::as_bytes), "{said:?}");
                assert_eq!(pipe.take(), taken.as_bytes(), "{said:?}");
                assert_eq!(pipe.said, left.as_bytes(), "{said:?}");
                assert_eq!(pipe.len(), left.find("MARK").unwrap_or(left.len()), "{said:?}");
            }
        };
        check("MARK\n", Some(""), "", "");
        check("oneMARK\ntwoMARK\n", Some(""), "one", "twoMARK\n");
        check("one\nMARK{}\ntwo", Some("{}"), "one\n", "two");
        check("oneMAMARK1\nMARK2\nMA", Some("1"), "oneMA", "MARK2\nMA");
        check("oneMAR", None, "oneMAR", "");
        check("", None, "", "");
    }

    #[test]
    fn p10_of_what_is_written_no_more_is_taken_up_than_may_be_written() {
        let (mut pipe, mut to) = pipe();
        let writes = std::thread::spawn(move || to.write_all(&vec![b'x'; 2 * OUTPUT_BYTES_MAX]));
        while pipe.len() <= OUTPUT_BYTES_MAX {
            pipe.look(OUTPUT_BYTES_MAX);
        }
        assert!(pipe.len() <= OUTPUT_BYTES_MAX + PIECE_BYTES);
        drop(pipe);
        assert!(writes.join().expect("it ends").is_err(), "nobody reads the rest");
    }
}
