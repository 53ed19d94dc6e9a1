//! What clinch does: everything that touches the world. `app` builds the house and is the only file that knows every
//! room; the rooms (`intake`, `worker` and `proxy` with `effects`, `keeper`, `api`) meet in the store and in core's types.

pub mod api;
pub mod app;
pub mod budget;
pub mod chores;
pub mod cli;
pub mod clock;
pub mod console;
pub mod controls;
pub mod crash;
pub mod demo;
pub mod effects;
pub mod encryption;
pub mod firing;
pub mod geoip;
pub mod house;
pub mod inquiry;
pub mod intake;
pub mod keeper;
pub mod masking;
pub mod names;
pub mod passwords;
pub mod people;
pub mod placing;
pub mod proxy;
pub mod rejections;
pub mod runbook;
pub mod runtimes;
pub mod secrets;
pub mod senders;
pub mod server;
pub mod sessions;
pub mod tally;
pub mod telemetry;
pub mod worker;
pub mod workspace;
