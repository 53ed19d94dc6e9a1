//! What scripts write to standard output and error. Jobs follow each other without a pause, so that a runner that is given jobs ahead writes a mark after
//! each: nobody's output is taken for another's. Nobody can guess the mark, also who has an event's body echoed.

use std::os::fd::AsFd;
use tokio::io::{AsyncRead, AsyncReadExt};

/// A script that writes more than this, output and errors together, is ended.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// What a script wrote during one run.
#[derive(Default)]
pub struct Said {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

/// One of the two.
pub struct Pipe<R> {
    from: R,
    /// Read, and of a job that is not answered.
    said: Vec<u8>,
    pub is_open: bool,
}

impl<R: AsyncRead + AsFd + Unpin> Pipe<R> {
    pub fn new(from: R) -> Pipe<R> {
        Pipe { from, said: Vec::new(), is_open: true }
    }

    pub fn len(&self) -> usize {
        self.said.len()
    }

    /// Waits for more.
    pub async fn read(&mut self) {
        self.is_open = matches!(self.from.read_buf(&mut self.said).await, Ok(1..));
    }

    /// What one run wrote, all of which is there: the mark, or all of it, is written before the answer.
    pub fn take(&mut self, mark: Option<&[u8]>) -> Vec<u8> {
        loop {
            if let Some(mark) = mark
                && let Some(said) = take_to(&mut self.said, mark)
            {
                return said;
            }
            if self.said.len() > OUTPUT_BYTES_MAX || !read_now(&self.from, &mut self.said) {
                return std::mem::take(&mut self.said);
            }
        }
    }
}

/// Adds what is there without waiting; whether anything was.
pub fn read_now(from: impl AsFd, into: &mut Vec<u8>) -> bool {
    let mut piece = [0; 8 << 10];
    match rustix::io::read(from, &mut piece) {
        Ok(length @ 1..) => {
            into.extend_from_slice(&piece[..length]);
            true
        }
        _ => false,
    }
}

/// What is before the mark, without which all stays as it is. What is behind it is the next one's.
fn take_to(said: &mut Vec<u8>, mark: &[u8]) -> Option<Vec<u8>> {
    if said == mark {
        said.clear();
        return Some(Vec::new());
    }
    let at = said.windows(mark.len()).position(|found| found == mark)?;
    let rest = said.split_off(at + mark.len());
    let mut taken = std::mem::replace(said, rest);
    taken.truncate(at);
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_what_is_behind_a_mark_is_of_the_next_job() {
        let check = |said: &str, taken: Option<&str>, left: &str| {
            let mut bytes = said.as_bytes().to_vec();
            let found = take_to(&mut bytes, b"MARK");
            assert_eq!(found.as_deref(), taken.map(str::as_bytes), "{said}");
            assert_eq!(bytes, left.as_bytes(), "{said}");
        };
        check("MARK", Some(""), "");
        check("oneMARKtwoMARK", Some("one"), "twoMARK");
        check("MARKtwo", Some(""), "two");
        check("oneMAR", None, "oneMAR");
        check("", None, "");
    }
}
