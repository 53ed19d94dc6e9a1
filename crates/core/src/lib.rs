//! What clinch decides. Nothing here reads a clock, rolls dice, waits, or touches disk or network: values come in,
//! values go out.
//!
//! Reading order: `time` and `id` (small nouns), `key` (who is this delivery), `lane` (who its job waits behind), `flow` and
//! `worker` (what a workspace says), `job` (the only state machine), `attempt` (what an outcome means), `retry` and `budget`,
//! `effect` (the ledger's nouns), `integration`, `breaker`, `pace` and `portion` (the partners that are called), `answers` (what they
//! said of contacts), `message` (what they are told), `approval` and `slack` (what people decide, and where they are asked), `control`
//! (what operators switch), `live` (what they set over the files), `safe_mode` (what still leaves when care is asked for), `script`
//! (what other languages do), `term` (how long a lease is surely ours), `expr` and `scope` (templates, and the names they use), `dedup`
//! (keys of fields), `playbook` (what an event starts), `config` (YAML in, a checked workspace out).
//!
//! At the edge: `source` (what becomes an event), `signature` and `sender` (who sent this), `form` and `cloudevents` (how an event is
//! wrapped), `limit` (how much), `schema` (what it must look like), `minimise` (what of it is kept), `mask` (what people see of it),
//! `seal` (what of it can be read on disk), `subject` (whose it is), `trace` (what collectors are told).
//!
//! For people: `alert` (what they should know now), `user` (who may ask), `oidc` (who vouches for them) and `audit` (who did what),
//! `search` (what they look for), `replay` (dead letters that come back by plan), `drop` (those that do not).

pub mod alert;
pub mod answers;
pub mod approval;
pub mod attempt;
pub mod audit;
pub mod breaker;
pub mod budget;
pub mod call;
pub mod change;
pub mod checklist;
pub mod cloudevents;
pub mod config;
pub mod control;
pub mod dead;
pub mod death;
pub mod dedup;
pub mod diff;
pub mod drop;
pub mod effect;
pub mod egress;
pub mod expr;
pub mod fanout;
pub mod flow;
pub mod foreach;
pub mod form;
pub mod gap;
pub mod id;
pub mod integration;
pub mod job;
pub mod key;
pub mod lane;
pub mod limit;
pub mod live;
pub mod mask;
pub mod message;
pub mod minimise;
mod missing;
pub mod oidc;
pub mod pace;
pub mod payload;
pub mod phone;
pub mod playbook;
pub mod pointer;
pub mod policy;
pub mod portion;
pub mod protection;
mod raw;
pub mod replay;
pub mod retry;
pub mod safe_mode;
pub mod saga;
pub mod schedule;
pub mod schema;
pub mod scope;
pub mod script;
pub mod seal;
pub mod search;
pub mod sender;
pub mod session;
pub mod share;
pub mod signature;
pub mod slack;
pub mod slo;
pub mod source;
pub mod subject;
pub mod term;
pub mod time;
pub mod trace;
pub mod trial;
pub mod user;
pub mod worker;
