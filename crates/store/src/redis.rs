//! Keys that several installations share: a Redis in front of their stores. Each installation's own store stays the truth
//! about what it accepted; here they only tell each other who has a key, and what its first delivery was answered.
//!
//! An entry is one text: `pending OWNER n` while an installation stores the event (n requests of it are at it), then
//! `done OWNER FINGERPRINT EVENT JOB STATUS RECEIVED_AT TRACE`. Its owner is an installation, not a process: whoever shares a
//! store shares its answers.

use crate::{Accepted, Held, Result, StoreError};
use clinch_core::key::{DedupKey, Fingerprint};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use data_encoding::HEXLOWER;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::Mutex;

/// An entry whose event was never reported stored is forgotten after this time: its installation is gone.
pub const PENDING_MAX: Duration = Duration::from_secs(30);
/// A connection is there within this time, or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// A connection that is silent for longer is given up: its other end may be gone without a word.
const SILENCE_MAX: Duration = Duration::from_secs(1);

pub struct SharedKeys {
    client: Client,
    line: Mutex<Line>,
    prefix: String,
    owner: String,
}

/// The connection that all calls share, and its number among all there were.
#[derive(Default)]
struct Line {
    open: Option<MultiplexedConnection>,
    number: u64,
}

/// Whose key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Ours, from now on or already: our own store knows the rest.
    Ours,
    /// Another installation is storing its event at this moment.
    Pending,
    /// Another installation has accepted it, and answered this.
    Done { fingerprint: Fingerprint, first: Accepted },
}

// A request of the same installation joins: its store lets one of them win.
static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local held = redis.call('GET', KEYS[1])
         if held then
             local n = string.match(held, '^pending ' .. ARGV[1] .. ' (%d+)$')
             if not n then return held end
             redis.call('SET', KEYS[1], 'pending ' .. ARGV[1] .. ' ' .. (n + 1), 'PX', ARGV[2])
             return held
         end
         redis.call('SET', KEYS[1], 'pending ' .. ARGV[1] .. ' 1', 'PX', ARGV[2])
         return false",
    )
});

// Never over another installation's entry: it may have answered a sender with it.
static KEEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local held = redis.call('GET', KEYS[1])
         if held and string.match(held, '^%a+ (%x+) ') ~= ARGV[1] then return 0 end
         redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
         return 1",
    )
});

// Other requests of the same installation may be storing the same event: the last one out frees the key.
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local held = redis.call('GET', KEYS[1])
         local n = held and string.match(held, '^pending ' .. ARGV[1] .. ' (%d+)$')
         if not n then return 0 end
         if tonumber(n) <= 1 then return redis.call('DEL', KEYS[1]) end
         redis.call('SET', KEYS[1], 'pending ' .. ARGV[1] .. ' ' .. (n - 1), 'KEEPTTL')
         return 0",
    )
});

impl SharedKeys {
    /// Does not connect yet. The owner is a word of hexadecimal digits that no other installation has.
    pub fn new(address: &str, prefix: &str, owner: &str) -> Result<SharedKeys> {
        // The address may have a password in it, so it is not repeated.
        let client = Client::open(address)
            .map_err(|error| StoreError::Open(format!("the address of the key store cannot be used: {error}")))?;
        Ok(SharedKeys { client, line: Mutex::default(), prefix: prefix.into(), owner: owner.into() })
    }

    /// Takes the key, or tells who has it. Only who may take it goes on to store the event.
    pub async fn claim(&self, key: &DedupKey) -> Result<Hold> {
        let held: Option<String> = self.run(&CLAIM, key, &[millis(PENDING_MAX)]).await?;
        held.map_or(Ok(Hold::Ours), |held| self.read(&held))
    }

    /// The event is stored: tells the others what its first delivery was answered. `Lost`: another installation has the key
    /// by now, and nothing was changed.
    pub async fn keep(
        &self,
        key: &DedupKey,
        fingerprint: &Fingerprint,
        first: &Accepted,
        ttl: Duration,
    ) -> Result<Held> {
        let fingerprint = HEXLOWER.encode(fingerprint.as_bytes());
        let Accepted { event, job, status, received_at, trace } = first;
        let at = received_at.as_micros();
        let done = format!("done {} {fingerprint} {event} {job} {status} {at} {trace}", self.owner);
        let kept: bool = self.run(&KEEP, key, &[done, millis(ttl)]).await?;
        Ok(if kept { Held::Held } else { Held::Lost })
    }

    /// Nothing was stored: the key is free again, unless others of this installation are still at it.
    pub async fn release(&self, key: &DedupKey) -> Result<()> {
        self.run(&RELEASE, key, &[]).await
    }

    /// What in its own settings lets it forget keys before their time. What it does not tell is not doubted.
    pub async fn doubts(&self) -> Result<Vec<&'static str>> {
        let (mut line, number) = self.connected().await?;
        let info: String = self.judged(number, redis::cmd("INFO").query_async(&mut line).await).await?;
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg("appendfsync");
        // Often not allowed; then only what INFO says is known.
        let config: Vec<String> = ask.query_async(&mut line).await.unwrap_or_default();
        Ok(doubts(&info, config.get(1).map(String::as_str)))
    }

    async fn run<T: FromRedisValue>(&self, script: &Script, key: &DedupKey, more: &[String]) -> Result<T> {
        let mut ask = script.key(format!("clinch:{}:{}", self.prefix, HEXLOWER.encode(key.as_bytes())));
        ask.arg(&self.owner).arg(more);
        let (mut line, number) = self.connected().await?;
        self.judged(number, ask.invoke_async(&mut line).await).await
    }

    fn read(&self, held: &str) -> Result<Hold> {
        read(held, &self.owner).ok_or_else(|| {
            StoreError::Damaged(format!(
                "an entry of `clinch:{}:` in Redis is not ours to read; delete it",
                self.prefix
            ))
        })
    }

    /// The connection, a new one if the last failed.
    async fn connected(&self) -> Result<(MultiplexedConnection, u64)> {
        let late = || StoreError::Unavailable(format!("Redis cannot be reached within {} s", CONNECT_MAX.as_secs()));
        tokio::time::timeout(CONNECT_MAX, self.connect()).await.map_err(|_| late())?.map_err(|error| away(&error))
    }

    async fn connect(&self) -> std::result::Result<(MultiplexedConnection, u64), RedisError> {
        let mut line = self.line.lock().await;
        if let Some(open) = &line.open {
            return Ok((open.clone(), line.number));
        }
        let how = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(Some(SILENCE_MAX));
        let open = self.client.get_multiplexed_async_connection_with_config(&how).await?;
        line.open = Some(open.clone());
        line.number += 1;
        Ok((open, line.number))
    }

    /// What fails is not tried again here: whoever sent the request will.
    async fn judged<T>(&self, number: u64, answer: std::result::Result<T, RedisError>) -> Result<T> {
        if answer.as_ref().is_err_and(is_of_the_line) {
            self.drop_line(number).await;
        }
        answer.map_err(|error| away(&error))
    }

    async fn drop_line(&self, number: u64) {
        let mut line = self.line.lock().await;
        if line.number == number {
            line.open = None;
        }
    }
}

fn away(error: &RedisError) -> StoreError {
    StoreError::Unavailable(format!("Redis cannot be asked: {error}"))
}

/// Another connection may do better: to the same server when it is back, or to the one that took its place.
fn is_of_the_line(error: &RedisError) -> bool {
    !matches!(error.kind(), ErrorKind::Server(kind) if kind != ServerErrorKind::ReadOnly)
}

/// For `PX`, which takes no nothing.
fn millis(span: Duration) -> String {
    span.as_millis().max(1).to_string()
}

fn read(held: &str, owner: &str) -> Option<Hold> {
    let words: Vec<&str> = held.split(' ').collect();
    match words.as_slice() {
        [_, of, ..] if *of == owner => Some(Hold::Ours),
        ["pending", _, _] => Some(Hold::Pending),
        ["done", _, fingerprint, event, job, status, received_at, trace] => Some(Hold::Done {
            fingerprint: Fingerprint::from_bytes(HEXLOWER.decode(fingerprint.as_bytes()).ok()?.try_into().ok()?),
            first: Accepted {
                event: event.parse().ok()?,
                job: job.parse().ok()?,
                status: status.parse().ok()?,
                received_at: Timestamp::from_micros(received_at.parse().ok()?),
                trace: TraceId::read(trace)?,
            },
        }),
        _ => None,
    }
}

fn doubts(info: &str, appendfsync: Option<&str>) -> Vec<&'static str> {
    let says = |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    let mut doubts = Vec::new();
    if says("aof_enabled") == Some("0") {
        doubts.push("appendonly is off: a restart of Redis forgets keys; set appendonly yes and appendfsync always");
    } else if appendfsync.is_some_and(|when| when != "always") {
        doubts.push("appendfsync is not always: a crash of its machine forgets the last keys; set appendfsync always");
    }
    let is_bounded = says("maxmemory").is_some_and(|bytes| bytes != "0");
    if is_bounded && says("maxmemory_policy").is_some_and(|policy| policy != "noeviction") {
        doubts.push("maxmemory-policy drops keys when memory is short; set maxmemory-policy noeviction");
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b7_an_entry_says_whose_it_is_and_what_was_answered() {
        let fingerprint = "07".repeat(32);
        let done = format!(
            "done a1 {fingerprint} evt_01HZX5T0N8W2A job_01HZX5T0N8W2B 202 1790000000000000 {}",
            "0a".repeat(16)
        );
        let Some(Hold::Done { fingerprint, first }) = read(&done, "b2") else { panic!("it was read otherwise") };
        assert_eq!(fingerprint, Fingerprint::from_bytes([7; 32]));
        assert_eq!((first.status, first.job.to_string().as_str()), (202, "job_01HZX5T0N8W2B"));
        assert_eq!(first.received_at.as_micros(), 1_790_000_000_000_000);
        assert_eq!(first.trace, TraceId::from_bytes([10; 16]));
        assert_eq!(read(&done, "a1"), Some(Hold::Ours));
        assert_eq!(read("pending a1 3", "a1"), Some(Hold::Ours));
        assert_eq!(read("pending a1 3", "b2"), Some(Hold::Pending));
        for not_ours in ["", "1", "OK", "pending", "done a1 07 evt_ job_ 202 1 0a", "done"] {
            assert_eq!(read(not_ours, "b2"), None, "{not_ours}");
        }
    }

    #[test]
    fn b7_a_redis_that_may_forget_is_doubted() {
        let info = |aof: u8, most: u64, policy: &str| {
            format!("# Persistence\r\naof_enabled:{aof}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n")
        };
        assert!(doubts(&info(1, 1 << 20, "noeviction"), Some("always")).is_empty());
        assert!(doubts(&info(1, 0, "allkeys-lru"), None).is_empty(), "without a bound nothing is dropped");
        assert!(doubts("", None).is_empty());
        for (info, appendfsync, said) in [
            (info(0, 0, "noeviction"), "everysec", "appendonly is off"),
            (info(1, 0, "noeviction"), "everysec", "appendfsync is not always"),
            (info(1, 1 << 20, "volatile-ttl"), "always", "maxmemory-policy"),
        ] {
            let doubts = doubts(&info, Some(appendfsync));
            assert!(doubts.len() == 1 && doubts[0].contains(said), "{doubts:?}");
        }
    }
}
