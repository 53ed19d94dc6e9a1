//! A workspace: the files that say what clinch does, read and checked as a whole.

use crate::flow::{Flow, Queue};
use crate::worker::Worker;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// The files of a workspace as they were read: path relative to the workspace, and text. Sorted by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files(pub Vec<(String, String)>);

/// A checked workspace. It cannot be built otherwise than by `load`.
#[derive(Clone, Debug)]
pub struct Workspace {
    pub settings: Settings,
    pub queues: Vec<Queue>,
    pub flows: Vec<Flow>,
    pub workers: Vec<Worker>,
    /// The names of every secret that some step reads.
    pub secrets: BTreeSet<String>,
}

/// `clinch.yml`; flags of `serve` win over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub listen: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
}
