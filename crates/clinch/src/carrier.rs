//! Who carries notices outside. Alerts are handed who can, and never meet `effects`.

use crate::people::Soon;
use clinch_core::message::Mailbox;
use serde_json::Value;
use std::time::Duration;

/// One try to hand a parcel over takes no longer.
pub const CARRY_MAX: Duration = Duration::from_secs(10);

/// One request or one mail.
#[derive(Clone, Debug)]
pub enum Parcel {
    Post {
        url: String,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// By an integration with `message: slack`.
    Slack {
        integration: String,
        body: Value,
    },
    /// By an integration with `smtp`.
    Mail {
        integration: String,
        to: Mailbox,
        subject: String,
        text: String,
        id: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCarried {
    /// It may go well another time.
    Later(String),
    /// It will not, until somebody changes something.
    Never(String),
}

impl NotCarried {
    pub fn why(&self) -> &str {
        match self {
            NotCarried::Later(why) | NotCarried::Never(why) => why,
        }
    }
}

pub trait Carrier: Send + Sync {
    /// Hands it over, once. Neither safe mode, pauses nor limits of an integration hold it back: they are for jobs.
    fn carry<'a>(&'a self, parcel: &'a Parcel) -> Soon<'a, Result<(), NotCarried>>;
}
