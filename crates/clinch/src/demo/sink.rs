//! The demo's target: does what it is asked, fails some calls on purpose, and counts what really happened.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct Sink {
    pub address: SocketAddr,
    book: Arc<Book>,
}

#[derive(Default)]
struct Book {
    repaired: AtomicBool,
    /// Calls and effects by idempotency key.
    keys: Mutex<HashMap<String, (usize, usize)>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub calls: usize,
    /// Keys whose effect happened.
    pub effects: usize,
    /// Keys whose effect happened, but not at the first call.
    pub retried: usize,
    /// Effects beyond the first of a key.
    pub repeated: usize,
}

impl Sink {
    pub async fn start() -> std::io::Result<Sink> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let sink = Sink { address: listener.local_addr()?, book: Arc::default() };
        let router = Router::new().route("/effects", post(effect)).with_state(sink.book.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(sink)
    }

    pub fn repair(&self) {
        self.book.repaired.store(true, Ordering::Relaxed);
    }

    pub fn count(&self) -> Count {
        let keys = self.book.keys.lock().expect("nobody panics while holding the book");
        Count {
            calls: keys.values().map(|(calls, _)| calls).sum(),
            effects: keys.values().filter(|(_, effects)| *effects > 0).count(),
            retried: keys.values().filter(|(calls, effects)| *effects > 0 && calls > effects).count(),
            repeated: keys.values().map(|(_, effects)| effects.saturating_sub(1)).sum(),
        }
    }
}

/// Every tenth key fails at its first call; a broken plan is refused until the repair.
async fn effect(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_string();
    let user = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let user = user.as_ref();
    let number = user.and_then(|user| user["user"].as_u64()).unwrap_or(0);
    let broken = user.is_some_and(|user| user["plan"] == "broken") && !book.repaired.load(Ordering::Relaxed);
    let mut keys = book.keys.lock().expect("nobody panics while holding the book");
    let (calls, effects) = keys.entry(key).or_default();
    *calls += 1;
    if broken {
        return StatusCode::UNPROCESSABLE_ENTITY;
    }
    if *calls == 1 && number.is_multiple_of(10) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    *effects += 1;
    StatusCode::OK
}
