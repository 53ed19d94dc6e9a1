//! The hands: take due jobs, run their steps, settle them.

mod attempt;
mod crew;
mod end;
mod fanout;
mod foreach;
mod hands;
mod lease;
mod lookup;
mod people;
mod pool;
mod record;
mod saga;
mod scope;
mod share;
mod steps;
mod wrap;

pub use hands::Hands;
