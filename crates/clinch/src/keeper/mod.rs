//! The night watch: what runs because time passed. A file per duty, each a small loop that ends at the stop.

pub mod expirer;
pub mod messenger;
pub mod pruner;
pub mod reaper;
pub mod replayer;
pub mod scheduler;
