//! One statement in a database of somebody else, which is done once however often it is sent.

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use bytes::Bytes;
use clinch_core::effect::{Idempotency, Receipt};
use clinch_core::key::Fingerprint;
use clinch_store::target::{Ran, Work};
use std::time::Duration;

#[derive(Debug)]
pub struct SqlCall {
    pub address: String,
    pub work: Work,
}

impl Act for SqlCall {
    fn timeout(&self) -> Duration {
        self.work.timeout
    }

    fn told(&self) -> (String, Fingerprint) {
        let Work { statement, params, .. } = &self.work;
        let parts = serde_json::json!([self.address, &**statement, params]).to_string();
        (format!("SQL {statement}"), Fingerprint::of("sql", parts.as_bytes()))
    }

    fn send<'a>(self: Box<Self>, tools: &'a Tools, _: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a> {
        Box::pin(async move {
            match tools.databases.run(&self.address, self.work, &|| may_begin().is_some()).await {
                Ran::Done(result) => {
                    let receipt = Receipt { status: 200, body: Bytes::from(result.to_string()) };
                    Sent::Answered { receipt, retry_after: None, is_whole: true }
                }
                Ran::NotBegun(why) => Sent::NotSent(why),
                Ran::TooLate => Sent::TooLate,
                Ran::Undone(why) => Sent::Undone(why),
                Ran::Refused(why) => Sent::Refused(why),
                Ran::Invalid(why) => Sent::Invalid(why),
                Ran::Unknown { timed_out, why } => Sent::NoAnswer { timed_out, why },
            }
        })
    }
}
