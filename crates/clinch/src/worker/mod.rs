//! The hands: take due jobs, run their steps, settle them.

mod attempt;
mod carrier;
mod crew;
mod end;
mod fanout;
mod foreach;
mod forecast;
mod hands;
mod lease;
mod lookup;
mod people;
mod pool;
mod record;
mod replayed;
mod saga;
mod scope;
mod share;
mod steps;
mod wrap;

pub use hands::Hands;
