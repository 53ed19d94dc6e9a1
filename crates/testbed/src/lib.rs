//! What the tests of several crates stand on. Nothing of it is in the product.

#![allow(clippy::unwrap_used)]

mod guard;
mod mariadb;
mod mysql_proxy;
mod postgres;
mod proxy;

pub use mariadb::Mariadb;
pub use mysql_proxy::MysqlProxy;
pub use postgres::{Postgres, Stop};
pub use proxy::{Fate, Proxy};
