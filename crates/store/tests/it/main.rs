//! What every engine of the store must keep, and what each of them keeps besides.

mod laws;
mod partitions;
mod postgres;
mod redis;
mod redis_server;
mod sqlite;
