//! What steps can do, one kind per file.

pub mod http;
