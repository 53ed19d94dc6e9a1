//! Ends approvals that nobody decided in time.

use crate::house::House;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(500);
const BATCH: usize = 200;

pub async fn run(house: House) {
    loop {
        let full = match house.store.expire_approvals(house.clock.now(), BATCH).await {
            Ok(expired) => {
                expired.iter().for_each(|row| house.metrics.decided(row));
                expired.len() == BATCH
            }
            Err(error) => {
                tracing::debug!("no approval was expired: {error}");
                false
            }
        };
        let pause = if full { Duration::ZERO } else { EVERY };
        tokio::select! { () = house.stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
    }
}
