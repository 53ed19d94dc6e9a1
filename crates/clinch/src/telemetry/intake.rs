//! How requests at the door end, in the words of metrics, console and command line.

/// How a request at the door ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntakeOutcome {
    Accepted,
    Duplicate,
    Conflict,
    InFlight,
    Malformed,
    TooLarge,
    StoreError,
    /// Nobody knows who sent it: no signature or token that fits.
    BadSignature,
    /// It was signed too long ago, or in the future.
    StaleTimestamp,
    /// It breaks its schema.
    Invalid,
    /// Too much came.
    RateLimited,
    /// No flow wants it.
    Ignored,
    /// A question of the sender, answered.
    Handshake,
    /// There is nothing at its path.
    UnknownSource,
}

impl IntakeOutcome {
    pub const ALL: [IntakeOutcome; 14] = [
        IntakeOutcome::Accepted,
        IntakeOutcome::Duplicate,
        IntakeOutcome::Conflict,
        IntakeOutcome::InFlight,
        IntakeOutcome::Malformed,
        IntakeOutcome::TooLarge,
        IntakeOutcome::StoreError,
        IntakeOutcome::BadSignature,
        IntakeOutcome::StaleTimestamp,
        IntakeOutcome::Invalid,
        IntakeOutcome::RateLimited,
        IntakeOutcome::Ignored,
        IntakeOutcome::Handshake,
        IntakeOutcome::UnknownSource,
    ];

    /// Those that a door turned away.
    pub const REJECTED: [IntakeOutcome; 9] = [
        IntakeOutcome::BadSignature,
        IntakeOutcome::StaleTimestamp,
        IntakeOutcome::Conflict,
        IntakeOutcome::Malformed,
        IntakeOutcome::Invalid,
        IntakeOutcome::TooLarge,
        IntakeOutcome::RateLimited,
        IntakeOutcome::InFlight,
        IntakeOutcome::StoreError,
    ];

    /// All that a door can say. What is at no door has no source.
    pub fn at_a_door() -> impl Iterator<Item = IntakeOutcome> {
        IntakeOutcome::ALL.into_iter().filter(|outcome| *outcome != IntakeOutcome::UnknownSource)
    }

    pub const fn word(self) -> &'static str {
        match self {
            IntakeOutcome::Accepted => "accepted",
            IntakeOutcome::Duplicate => "duplicate",
            IntakeOutcome::Conflict => "conflict",
            IntakeOutcome::InFlight => "in_flight",
            IntakeOutcome::Malformed => "malformed",
            IntakeOutcome::TooLarge => "too_large",
            IntakeOutcome::StoreError => "store_error",
            IntakeOutcome::BadSignature => "bad_signature",
            IntakeOutcome::StaleTimestamp => "stale_timestamp",
            IntakeOutcome::Invalid => "invalid",
            IntakeOutcome::RateLimited => "rate_limited",
            IntakeOutcome::Ignored => "ignored",
            IntakeOutcome::Handshake => "handshake",
            IntakeOutcome::UnknownSource => "unknown_source",
        }
    }
}

/// What a key store that installations share had to say, or could not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedOutcome {
    /// The key is ours: our own store decided.
    Ours,
    /// Another installation has accepted it.
    Theirs,
    /// Another installation was storing it, for longer than was waited.
    InFlight,
    Unavailable,
    /// An event is stored here, and the others could not be told.
    Untold,
}

impl SharedOutcome {
    pub const ALL: [SharedOutcome; 5] = [
        SharedOutcome::Ours,
        SharedOutcome::Theirs,
        SharedOutcome::InFlight,
        SharedOutcome::Unavailable,
        SharedOutcome::Untold,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            SharedOutcome::Ours => "ours",
            SharedOutcome::Theirs => "theirs",
            SharedOutcome::InFlight => "in_flight",
            SharedOutcome::Unavailable => "unavailable",
            SharedOutcome::Untold => "untold",
        }
    }
}
