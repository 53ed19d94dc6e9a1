//! Stories about the product, told through its real doors. One binary, so that it links once.
#![allow(clippy::unwrap_used)]

mod budgets;
mod canary;
mod cli;
mod cluster;
mod cluster_order;
mod config;
mod crash;
mod disk;
mod doors;
mod effects;
mod egress;
mod encryption;
mod fanout;
mod hostile;
mod intake;
mod integrations;
mod messages;
mod migrate;
mod nodes;
mod order;
mod outage;
mod partners_crash;
mod partners_hostile;
mod partners_lost;
mod places;
mod process;
mod proxy;
#[path = "../../../store/tests/it/redis_server.rs"]
mod redis_server;
mod replay;
mod retries;
mod sagas;
mod scripts;
mod secrets;
mod senders;
mod shared;
mod signatures;
mod sources;
mod sql;
mod steps;
mod surfaces;
mod tidy;
mod transport;
mod workers;
mod world;
