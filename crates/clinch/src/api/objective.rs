//! The objective, as this node's jobs meet it, and what else tells how well the whole does.

use crate::house::House;
use crate::minutes::Totals;
use clinch_core::protection::Protection;
use clinch_core::slo::{self, Burn};
use clinch_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

const DAY: Duration = Duration::from_secs(86_400);

/// How soon how many jobs are to end well, and how fast what may miss it is spent. Of this node, since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Objective {
    /// From acceptance to the end.
    pub end_to_end_seconds: f64,
    /// The share of jobs, 0 to 1.
    pub target: f64,
    /// no; slowly: within days nothing is left that may be missed; fast: within hours
    pub burning: String,
    pub windows: Vec<BurnNow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BurnNow {
    /// 5m, 30m, 1h, 6h
    pub window: String,
    /// Jobs that ended in it for the first time.
    pub jobs: u64,
    /// Those of them that were late, or became dead letters.
    pub missed: u64,
    /// 1 spends exactly what may be missed. Nothing where nothing ended.
    pub rate: Option<f64>,
}

/// North stars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stars {
    /// Steps that act outside, and those of them that a rule protects when their answer is lost.
    pub steps: usize,
    pub protected: usize,
    /// Jobs that became dead letters on this node in the last 24 hours.
    pub dead_in_day: u64,
    /// Dead letters that ended well there by a replay, no longer than 24 hours after they died.
    pub replayed_in_day: u64,
}

impl From<&Burn> for BurnNow {
    fn from(burn: &Burn) -> BurnNow {
        let Burn { window, counted, rate } = *burn;
        BurnNow { window: window.word.into(), jobs: counted.jobs, missed: counted.missed, rate }
    }
}

pub fn of(house: &House, now: Timestamp) -> (Objective, Stars) {
    let workspace = house.versions.now();
    let (slo, totals) = (workspace.settings.slo, Totals::of(&house.metrics, &workspace));
    let burns = house.minutes.burns((now, totals), &slo);
    let day = house.minutes.window((now, totals), DAY, 1);
    let day = day.first().map_or_else(Totals::default, |part| part.counted);
    let protection = Protection::of(&workspace);
    let objective = Objective {
        end_to_end_seconds: slo.end_to_end.as_secs_f64(),
        target: slo.target.ratio(),
        burning: slo::burning(&slo, &burns).word().into(),
        windows: burns.iter().map(BurnNow::from).collect(),
    };
    let stars = Stars {
        steps: protection.steps,
        protected: protection.protected(),
        dead_in_day: day.dead,
        replayed_in_day: day.replayed_in_day,
    };
    (objective, stars)
}
