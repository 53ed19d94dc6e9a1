//! What became of a notice of alerts.

use super::label::ByChannelOutcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeOutcome {
    Sent,
    /// One try failed.
    Error,
    /// Nobody tries any more.
    Dropped,
}

impl NoticeOutcome {
    pub const ALL: [NoticeOutcome; 3] = [NoticeOutcome::Sent, NoticeOutcome::Error, NoticeOutcome::Dropped];

    pub const fn word(self) -> &'static str {
        match self {
            NoticeOutcome::Sent => "sent",
            NoticeOutcome::Error => "error",
            NoticeOutcome::Dropped => "dropped",
        }
    }
}

impl ByChannelOutcome {
    pub fn of(channel: &String, outcome: NoticeOutcome) -> ByChannelOutcome {
        ByChannelOutcome { channel: channel.into(), outcome: outcome.word().into() }
    }
}
