//! The hands: take due jobs, run their steps, settle them.

mod attempt;
mod crew;
mod end;
mod fanout;
mod lease;
mod lookup;
mod pool;
mod saga;
mod scope;
mod share;
mod steps;
mod wrap;

pub use crew::run;
