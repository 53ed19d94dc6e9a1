//! The hands: take due jobs, run their steps, settle them.

mod attempt;
mod crew;
mod end;
mod lease;
mod lookup;
mod pool;
mod scope;
mod share;
mod steps;
mod wrap;

pub use crew::run;
