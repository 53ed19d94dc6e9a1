//! People who decide: what they are shown, and how they are told. Who can tell them is handed to who must: the rooms do not
//! meet.

use crate::house::House;
use crate::tracer::trace_of;
use clinch_core::approval::{ApprovalId, Card};
use clinch_core::id::JobId;
use clinch_store::approval::Place;
use clinch_store::{ApprovalRow, DecideAsk, Decided};
use std::pin::Pin;

pub type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub trait People: Send + Sync {
    /// What is to be decided, put together from the event.
    fn card<'a>(&'a self, approval: &'a ApprovalId) -> Soon<'a, clinch_store::Result<Card>>;

    /// One message about all of these, in the place that they are asked in; or why it could not be sent.
    fn tell<'a>(
        &'a self,
        place: &'a Place,
        approvals: &'a [ApprovalRow],
    ) -> Soon<'a, clinch_store::Result<Result<(), String>>>;

    /// What somebody is answered who pressed a button there, as far as he can be reached.
    fn answer<'a>(&'a self, place: &'a Place, job: JobId, url: &'a str, text: &'a str) -> Soon<'a, ()>;
}

/// Somebody's vote, counted where it decides.
pub async fn decide(house: &House, ask: DecideAsk) -> clinch_store::Result<Decided> {
    let approval = ask.approval.clone();
    let decided = house.store.decide(ask).await?;
    if let Decided::Verdict(decision) = &decided {
        let trace = trace_of(house, approval.job).await;
        tracing::info!(job.id = %approval.job, trace.id = trace, "{approval} is {} by {}", decision.verdict.word(), decision.by);
        if let Some(row) = house.store.approval(&approval).await? {
            house.metrics.decided(&row);
        }
    }
    Ok(decided)
}
