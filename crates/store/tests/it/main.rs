//! What every engine of the store must keep, and what each of them keeps besides.

mod laws;
mod partitions;
mod pgbouncer;
mod places;
mod postgres;
mod redis;
mod redis_server;
mod servers;
mod sqlite;
