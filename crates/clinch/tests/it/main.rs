//! Stories about the product, told through its real doors. One binary, so that it links once.
#![allow(clippy::unwrap_used)]

mod cli;
mod config;
mod crash;
mod disk;
mod hostile;
mod intake;
mod process;
mod replay;
mod retries;
mod signatures;
mod surfaces;
mod tidy;
mod workers;
mod world;
