//! What scripts write to standard output and error. Jobs follow each other without a pause, so that a runner that is given jobs ahead writes a mark after
//! each, at the head of a line: nobody's output is taken for another's. Nobody can guess the mark, also who has an event's body echoed.
//!
//! It is looked at from time to time, and not waited for: to be woken whenever something is written would take longer than many a run.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;

/// A script that writes more than this, output and errors together, is ended.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
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
    /// Read, and of a job that is not answered.
    said: Vec<u8>,
}

impl Pipe {
    /// With the end that is written to.
    pub fn new() -> std::io::Result<(Pipe, PipeWriter)> {
        let (from, to) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&from, true)?;
        Ok((Pipe { from, said: Vec::new() }, to))
    }

    /// Takes up what is there, until there are so many bytes.
    pub fn look(&mut self, bytes_max: usize) {
        // A piece that is not full was the last.
        while self.said.len() <= bytes_max && read_now(&self.from, &mut self.said) == PIECE_BYTES {}
    }

    /// How much the job wrote that comes next, as far as it is known.
    pub fn len(&self, mark: Option<&[u8]>) -> usize {
        mark.and_then(|mark| find(&self.said, mark)).map_or(self.said.len(), |(at, _)| at)
    }

    /// The rest of the line of the next mark, if all of it is there.
    pub fn behind(&self, mark: &[u8]) -> Option<&[u8]> {
        find(&self.said, mark).map(|(_, rest)| rest)
    }

    /// What was written up to the next mark, with whose line it goes; without one all that is there.
    pub fn take(&mut self, mark: Option<&[u8]>) -> Vec<u8> {
        let found =
            mark.and_then(|mark| find(&self.said, mark).map(|(at, rest)| (at, at + mark.len() + rest.len() + 1)));
        let Some((at, end)) = found else { return std::mem::take(&mut self.said) };
        let mut taken = self.said.split_off(end);
        std::mem::swap(&mut taken, &mut self.said);
        taken.truncate(at);
        taken
    }
}

/// Where the first mark is, and the rest of its line.
fn find<'a>(said: &'a [u8], mark: &[u8]) -> Option<(usize, &'a [u8])> {
    let at = said.windows(mark.len()).position(|found| found == mark)?;
    let line = &said[at + mark.len()..];
    let end = line.iter().position(|byte| *byte == b'\n')?;
    Some((at, &line[..end]))
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

    #[test]
    fn c7_what_is_behind_the_line_of_a_mark_is_of_the_next_job() {
        let check = |said: &str, behind: Option<&str>, taken: &str, left: &str| {
            let (mut pipe, mut to) = Pipe::new().expect("a pipe");
            to.write_all(said.as_bytes()).expect("there is room");
            pipe.look(OUTPUT_BYTES_MAX);
            assert_eq!(pipe.behind(b"MARK"), behind.map(str::as_bytes), "{said:?}");
            assert_eq!(pipe.take(Some(b"MARK")), taken.as_bytes(), "{said:?}");
            assert_eq!(pipe.said, left.as_bytes(), "{said:?}");
        };
        check("MARK\n", Some(""), "", "");
        check("oneMARK\ntwoMARK\n", Some(""), "one", "twoMARK\n");
        check("one\nMARK{}\ntwo", Some("{}"), "one\n", "two");
        check("oneMARK{", None, "oneMARK{", "");
        check("oneMAR", None, "oneMAR", "");
        check("", None, "", "");
    }

    #[test]
    fn p10_of_what_is_written_no_more_is_taken_up_than_may_be_written() {
        let (mut pipe, mut to) = Pipe::new().expect("a pipe");
        let writes = std::thread::spawn(move || to.write_all(&vec![b'x'; 2 * OUTPUT_BYTES_MAX]));
        while pipe.len(None) <= OUTPUT_BYTES_MAX {
            pipe.look(OUTPUT_BYTES_MAX);
        }
        assert!(pipe.len(None) <= OUTPUT_BYTES_MAX + PIECE_BYTES);
        drop(pipe);
        assert!(writes.join().expect("it ends").is_err(), "nobody reads the rest");
    }
}
