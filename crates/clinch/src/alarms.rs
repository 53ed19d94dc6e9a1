//! Whether people would hear an alarm: who can try a channel is handed to who is asked to. The rooms do not meet.

use crate::people::Soon;

pub trait Alarms: Send + Sync {
    /// Sends a test over this channel, and says why it did not arrive. `None`: there is no such channel.
    fn test<'a>(&'a self, channel: &'a str) -> Soon<'a, Option<Result<(), String>>>;

    /// Where links of notices lead.
    fn console(&self) -> String;
}
