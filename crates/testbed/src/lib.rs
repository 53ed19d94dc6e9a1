//! What the tests of several crates stand on. Nothing of it is in the product.

#![allow(clippy::unwrap_used)]

mod postgres;
mod proxy;

pub use postgres::{Postgres, Stop};
pub use proxy::{Fate, Proxy};
