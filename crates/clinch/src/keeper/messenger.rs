//! Tells people in Slack what they are asked, and reminds them once: one message for each channel and round, however many jobs
//! wait.
//!
//! What was taken to be told and not confirmed is taken again later: a message may come twice, but none is forgotten.

use crate::house::House;
use crate::people::People;
use clinch_core::slack::ITEMS_MAX;
use clinch_store::TellAsk;
use std::sync::Arc;
use std::time::Duration;

/// Whoever asks within this time is in the same message.
const EVERY: Duration = Duration::from_secs(2);
/// Who took approvals has this long to tell people: a little longer than Slack is given. Then they are taken again.
const LEASE: Duration = Duration::from_secs(12);

pub async fn run(house: House, people: Arc<dyn People>) {
    loop {
        if let Err(error) = round(&house, &*people).await {
            tracing::debug!("nobody was told of approvals: {error}");
        }
        tokio::select! { () = house.stop.cancelled() => return, () = tokio::time::sleep(EVERY) => {} }
    }
}

async fn round(house: &House, people: &dyn People) -> clinch_store::Result<()> {
    let mut but = Vec::new();
    while !house.stop.is_cancelled() {
        let now = house.clock.now();
        let ask = TellAsk { now, until: now + LEASE, but: but.clone(), most: ITEMS_MAX };
        let due = house.store.tell_approvals(ask).await?;
        let Some(place) = due.first().and_then(|row| row.place.clone()) else { return Ok(()) };
        match people.tell(&place, &due).await? {
            Ok(()) => {
                let ids: Vec<_> = due.iter().map(|row| row.id.clone()).collect();
                house.insist(|| house.store.told_approvals(&ids, house.clock.now())).await?;
            }
            Err(why) => {
                let (integration, approvals) = (&place.integration, due.len());
                tracing::warn!(
                    "{approvals} approvals could not be told of by `{integration}`; it is tried again: {why}"
                );
            }
        }
        but.push(place);
    }
    Ok(())
}
