//! The dialect as data: every file of a workspace, every key in it, what it takes and what it is for. What later
//! versions will run is here too, so that it loads today and is refused by name.

mod action;
mod flow;
mod integration;
mod policy;
mod queue;
mod settings;
mod source;
mod worker;

use crate::approval::NEED_MAX;
use crate::budget::UNITS_MAX;
use crate::config::shape::{Choose, Field, Kind, Need, Shape};
use crate::dedup::BUCKET_MINUTES_MAX;
use crate::flow::{BODY_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN};
use crate::policy::CAP_MAX;
use crate::script::{MEMORY_MAX, MEMORY_MIN};
use crate::signature::settings::KNOWN;
use crate::worker::{CONCURRENCY_MAX, PULL_MAX};
use std::time::Duration;

pub(in crate::config) use action::*;
pub(in crate::config) use flow::*;
use integration::*;
pub(in crate::config) use policy::*;
pub(in crate::config) use queue::*;
pub(in crate::config) use settings::*;
pub(in crate::config) use source::*;
pub(in crate::config) use worker::*;

pub(in crate::config) const fn must(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, need: Need::Required, doc }
}

pub(in crate::config) const fn may(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, need: Need::Optional, doc }
}

const fn span(min: Duration) -> Kind {
    Kind::Duration { min }
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

pub(in crate::config) const METHODS_IN: &[&str] = &["POST", "PUT", "PATCH"];
pub(in crate::config) const METHODS_OUT: &[&str] = &["POST", "GET", "PUT", "PATCH", "DELETE"];
pub(in crate::config) const STRATEGIES: &[&str] = &["exponential", "linear", "fixed"];
pub(in crate::config) const JITTERS: &[&str] = &["full", "equal", "none"];
pub(in crate::config) const IDEMPOTENCIES: &[&str] = &["header", "lookup", "natural", "none", "wrap"];
pub(in crate::config) const STRICTNESS: &[&str] = &["none", "possible", "valid"];
pub(in crate::config) const ON_UNKNOWN: &[&str] = &["ask", "retry"];
pub(in crate::config) const MISSED: &[&str] = &["once", "skip", "all"];
pub(in crate::config) const ON_EXPIRY: &[&str] = &["reject", "approve"];
pub(in crate::config) const SEVERITIES: &[&str] = &["critical", "warning", "info"];
pub(in crate::config) const ISOLATIONS: &[&str] = &["warm", "process"];
pub(in crate::config) const ATTEMPTS_MAX: i64 = 10_000;
const BASE_MS_MAX: i64 = 86_400_000;
/// 3650 days.
const TTL_SECONDS_MAX: i64 = 315_360_000;
const MULTIPLIER_MAX: f64 = 1_000.0;

const VERSION: &[Field] = &[may("version", Kind::Int { min: 1, max: 1 }, "The version of the dialect: 1.")];
