//! Buckets: the partitions of the keys. A unique index reaches no further than its partition, so it takes care that a key is
//! still won once:
//!
//! - A statement writes its keys into the bucket that is the newest in its snapshot. Two that run at the same time and write
//!   into the same bucket meet in its index.
//! - A bucket is sealed under a lock that waits for everybody who writes into it, together with the birth of the next one. So
//!   who sees the next bucket sees every key of those before it; and who does not see it yet, because it began earlier, is
//!   refused by the seal and begins again.
//!
//! No clock has a part in this. When a bucket is sealed is a question of convenience.

use super::pool::Line;
use super::{Fault, rows};
use clinch_core::time::Timestamp;
use std::time::Duration;

/// The name of the constraint that keeps everything out.
pub(super) const SEALED: &str = "sealed";
/// A key is looked for in each bucket: there should be about this many, however long keys live.
const BUCKETS: i64 = 4;

pub(super) struct Bucket {
    no: i32,
    pub since: Timestamp,
    /// All its keys have expired then.
    pub until: Timestamp,
    sealed_at: Option<Timestamp>,
}

/// The oldest first; the last one is the one that is written into.
pub(super) async fn all(line: &mut Line) -> Result<Vec<Bucket>, Fault> {
    let rows = line.query("SELECT no, since, until, sealed_at FROM bucket ORDER BY no", &[]).await?;
    let bucket = |row: &tokio_postgres::Row| -> Result<Bucket, Fault> {
        Ok(Bucket {
            no: row.try_get(0)?,
            since: rows::time(row, 1)?,
            until: rows::time(row, 2)?,
            sealed_at: rows::maybe_time(row, 3)?,
        })
    };
    rows.iter().map(bucket).collect()
}

/// How long a bucket takes new keys: a span, or longer where keys live for many spans.
fn length(buckets: &[Bucket], span: Duration) -> Duration {
    let lives = buckets.iter().filter_map(|bucket| Some(bucket.until.as_micros() - bucket.sealed_at?.as_micros()));
    let longest = u64::try_from(lives.max().unwrap_or(0) / BUCKETS).unwrap_or(0);
    span.max(Duration::from_micros(longest))
}

/// Begins a new bucket if the present one is old enough. Within the transaction of the caller.
pub(super) async fn turn(line: &mut Line, now: Timestamp, span: Duration) -> Result<(), Fault> {
    let buckets = all(line).await?;
    let Some(present) = buckets.last() else { return Ok(()) };
    if present.since + length(&buckets, span) > now {
        return Ok(());
    }
    let (no, next, at) = (present.no, present.no + 1, now.as_micros());
    let is_used = line.query("SELECT 1 FROM dedup WHERE bucket = $1 LIMIT 1", &[&no]).await?;
    if is_used.is_empty() {
        line.query("UPDATE bucket SET since = $2 WHERE no = $1", &[&no, &at]).await?;
        return Ok(());
    }
    // The next one first: the lock that everybody waits for is held for the shortest time.
    line.run(&format!(
        "CREATE TABLE dedup_{next} (LIKE dedup INCLUDING ALL);
         ALTER TABLE dedup ATTACH PARTITION dedup_{next} FOR VALUES IN ({next});
         ALTER TABLE dedup_{no} ADD CONSTRAINT {SEALED} CHECK (false) NOT VALID"
    ))
    .await?;
    line.query("UPDATE bucket SET sealed_at = $2 WHERE no = $1", &[&no, &at]).await?;
    line.query("INSERT INTO bucket (no, since) VALUES ($1, $2)", &[&next, &at]).await?;
    tracing::debug!("keys go into bucket {next} from now on");
    Ok(())
}

// A key whose event is not over is carried into the newest bucket: it holds however old it is. Which ones these are is asked of
// the jobs, for there are few of them. The set only shrinks: a job that ended well stays so, and a sealed bucket gets no
// new keys. What was received after all keys of the bucket had expired has none of them.
fn carry() -> String {
    // One part per state, so that each is answered from its own index.
    let of = |state: i16| format!("SELECT event FROM job WHERE state = {state} AND received_at <= $2");
    let live = rows::NOT_OVER.map(of).join(" UNION ");
    format!(
        "INSERT INTO dedup (key, event, expires_at, jobs, bucket)
         SELECT old.key, old.event, old.expires_at, old.jobs, (SELECT max(no) FROM bucket)
         FROM ({live}) AS live
         JOIN event ON event.id = live.event
         JOIN dedup AS old ON old.bucket = $1 AND old.key = event.key AND old.event = event.id
         ORDER BY old.key
         ON CONFLICT (key, bucket) DO NOTHING"
    )
}

/// Drops the oldest bucket if all its keys have expired; tells how many keys went, as far as the server knows. Within the
/// transaction of the caller.
pub(super) async fn drop_expired(line: &mut Line, now: Timestamp) -> Result<Option<u64>, Fault> {
    let buckets = all(line).await?;
    let Some(old) = buckets.first().filter(|bucket| bucket.sealed_at.is_some() && bucket.until <= now) else {
        return Ok(None);
    };
    line.query(&carry(), &[&old.no, &old.until.as_micros()]).await?;
    let sql = "UPDATE bucket SET until = greatest(until, $1) WHERE sealed_at IS NULL";
    line.query(sql, &[&old.until.as_micros()]).await?;
    let table = format!("dedup_{}", old.no);
    let known = line.query("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($1)", &[&table]).await?;
    let keys = known.first().map(|row| row.try_get::<_, i64>(0)).transpose()?.unwrap_or(0);
    line.run(&format!("DROP TABLE {table}")).await?;
    line.query("DELETE FROM bucket WHERE no = $1", &[&old.no]).await?;
    tracing::debug!("bucket {} of keys was dropped", old.no);
    Ok(Some(u64::try_from(keys).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_few_buckets_however_long_keys_live() {
        let day = Duration::from_secs(86_400);
        let at = |days: u32| Timestamp::from_micros(0) + days * day;
        let sealed = |until| Bucket { no: 1, since: at(0), until: at(until), sealed_at: Some(at(1)) };
        assert_eq!(length(&[], day), day);
        assert_eq!(length(&[sealed(2)], day), day);
        assert_eq!(length(&[sealed(2), sealed(41)], day), 10 * day);
        let open = Bucket { sealed_at: None, ..sealed(99) };
        assert_eq!(length(&[open], day), day, "its end is not known yet");
    }
}
