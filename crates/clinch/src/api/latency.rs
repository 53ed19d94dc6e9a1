//! How long jobs take: percentiles, and how many fall into each bucket. Counted from every job of the window, so the
//! figures are exact; or from the newest `most` of them, for who wants them at once.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Attempts, Bucket, Latency, Moment, Percentile, Stage};
use crate::house::House;
use axum::Json;
use axum::extract::{RawQuery, State};
use clinch_core::time::parse_duration;
use clinch_store::read::LATENCY_JOBS_MAX;
use std::time::Duration;

const WINDOW_DEFAULT: Duration = Duration::from_secs(15 * 60);
const PERCENTILES_MAX: usize = 10;
const BUCKET_SECONDS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<Latency>, Problem> {
    let query = Query::parse(raw.as_deref(), &["window", "percentile", "most"])?;
    let window = match query.text("window") {
        None => WINDOW_DEFAULT,
        Some(text) => parse_duration(text).map_err(|error| Problem::bad_query(format!("window: {error}.")))?,
    };
    let asked = percentiles(query.text("percentile").unwrap_or("95"))?;
    let since = house.clock.now() - window;
    let most = match query.get::<usize>("most")? {
        None => LATENCY_JOBS_MAX,
        Some(most @ 1..=LATENCY_JOBS_MAX) => most,
        Some(_) => return Err(Problem::bad_query(format!("most: write a number from 1 to {LATENCY_JOBS_MAX}."))),
    };
    let found = house.store.latencies(since, most).await?;
    Ok(Json(Latency {
        schema: "clinch.latency/v1".into(),
        window_seconds: window.as_secs_f64(),
        since: Moment(since),
        jobs: found.end_to_end.len(),
        cut: found.cut,
        stages: vec![
            stage("end_to_end", &found.end_to_end, &asked),
            stage("wait", &found.wait, &asked),
            stage("run", &found.run, &asked),
        ],
        attempts: attempts(&found.attempts),
    }))
}

fn percentiles(text: &str) -> Result<Vec<f64>, Problem> {
    let read = |part: &str| part.trim().parse().ok().filter(|p: &f64| *p > 0.0 && *p <= 100.0);
    let asked: Option<Vec<f64>> = text.split(',').map(read).collect();
    asked.filter(|asked| asked.len() <= PERCENTILES_MAX).ok_or_else(|| {
        Problem::bad_query(format!("percentile: write up to {PERCENTILES_MAX} numbers above 0, to 100: 95,99.9."))
    })
}

fn stage(name: &str, ascending: &[Duration], asked: &[f64]) -> Stage {
    let at = |percentile| nearest_rank(ascending, percentile).map(|span| span.as_secs_f64());
    Stage {
        stage: name.into(),
        p50: at(50.0),
        p95: at(95.0),
        p99: at(99.0),
        max: at(100.0),
        percentiles: asked.iter().map(|&percentile| Percentile { percentile, seconds: at(percentile) }).collect(),
        buckets: buckets(ascending),
    }
}

fn attempts(ascending: &[u32]) -> Attempts {
    let at = |percentile| nearest_rank(ascending, percentile);
    Attempts { p50: at(50.0), p95: at(95.0), p99: at(99.0), max: at(100.0) }
}

/// The smallest value that this share of all does not exceed.
pub fn nearest_rank<T: Copy>(ascending: &[T], percentile: f64) -> Option<T> {
    let rank = (percentile / 100.0 * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.clamp(1, ascending.len().max(1)) - 1).copied()
}

fn buckets(ascending: &[Duration]) -> Vec<Bucket> {
    let mut below = 0;
    let mut buckets: Vec<Bucket> = BUCKET_SECONDS
        .iter()
        .map(|&le| {
            let up_to = ascending.partition_point(|span| span.as_secs_f64() <= le);
            let jobs = up_to - below;
            below = up_to;
            Bucket { le: Some(le), jobs }
        })
        .collect();
    buckets.push(Bucket { le: None, jobs: ascending.len() - below });
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn a_percentile_is_the_smallest_value_that_so_many_do_not_exceed() {
        let hundred: Vec<Duration> = (1..=100).map(Duration::from_secs).collect();
        let check = |percentile, seconds| {
            assert_eq!(nearest_rank(&hundred, percentile), Some(Duration::from_secs(seconds)), "p{percentile}");
        };
        check(50.0, 50);
        check(95.0, 95);
        check(99.5, 100);
        check(100.0, 100);
        check(0.001, 1);
        assert_eq!(nearest_rank(&millis(&[7]), 99.0), Some(Duration::from_millis(7)));
        assert_eq!(nearest_rank::<Duration>(&[], 99.0), None);
    }

    #[test]
    fn h1_attempts_have_percentiles_too() {
        let told = attempts(&[1, 1, 1, 2, 9]);
        assert_eq!((told.p50, told.p95, told.max), (Some(1), Some(9), Some(9)));
        assert_eq!(attempts(&[]), Attempts::default());
    }

    #[test]
    fn every_job_is_in_one_bucket() {
        let found = buckets(&millis(&[1, 10, 11, 2_500, 2_501, 90_000]));
        let count = |le: Option<f64>| found.iter().find(|bucket| bucket.le == le).expect("there").jobs;
        assert_eq!((count(Some(0.01)), count(Some(0.05)), count(Some(2.5)), count(Some(5.0))), (2, 1, 1, 1));
        assert_eq!(count(None), 1);
        assert_eq!(found.iter().map(|bucket| bucket.jobs).sum::<usize>(), 6);
    }

    #[test]
    fn percentiles_are_read_as_a_list() {
        assert_eq!(percentiles("95, 99.9").expect("two"), [95.0, 99.9]);
        for bad in ["", "0", "101", "p95", "NaN", "95,,99"] {
            assert!(percentiles(bad).is_err(), "{bad}");
        }
    }
}
