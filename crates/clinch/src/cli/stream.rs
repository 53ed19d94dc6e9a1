//! Server-sent events, read one by one.

use super::client::not_reachable;
use super::exit::Failure;
use std::time::Duration;
use url::Url;

/// A server that lives says something at least this often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub struct Events {
    response: reqwest::Response,
    base: Url,
    read: String,
    /// What is not a whole text yet.
    rest: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub data: String,
}

impl Events {
    pub fn new(response: reqwest::Response, base: Url) -> Events {
        Events { response, base, read: String::new(), rest: Vec::new() }
    }

    /// `None`: the server has ended it, or said nothing for too long.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = take(&mut self.read) {
                return Ok(Some(event));
            }
            let chunk = match tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| not_reachable(&self.base, &error))?,
                Err(_) => return Ok(None),
            };
            let Some(chunk) = chunk else { return Ok(None) };
            self.rest.extend_from_slice(&chunk);
            let whole = match std::str::from_utf8(&self.rest) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            let whole: Vec<u8> = self.rest.drain(..whole).collect();
            self.read.push_str(&String::from_utf8_lossy(&whole));
        }
    }
}

/// The first event of the text, if it is there to its end. Comments keep a connection alive and say nothing.
fn take(read: &mut String) -> Option<Event> {
    while let Some(end) = read.find("\n\n") {
        let block: String = read.drain(..end + 2).collect();
        let part =
            |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_string());
        if let (Some(name), Some(data)) = (part("event:"), part("data:")) {
            return Some(Event { name, data });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_events_are_read_one_by_one_however_they_come() {
        let mut read = ":\n\nevent: overview\ndata: {\"queued\":1}\n\nevent: happen".to_string();
        let event = |name: &str, data: &str| Some(Event { name: name.into(), data: data.into() });
        assert_eq!(take(&mut read), event("overview", "{\"queued\":1}"));
        assert_eq!(take(&mut read), None);
        read.push_str("ing\ndata: {}\n\n");
        assert_eq!(take(&mut read), event("happening", "{}"));
        assert_eq!((take(&mut read), read.as_str()), (None, ""));
    }
}
