//! What `verify` finds, whatever the engine.

/// The accounting of P5, and what is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// accepted = the sum of all that follow, by name.
    pub accepted: i64,
    pub parts: Vec<(&'static str, i64)>,
    pub events: i64,
    pub effects: Vec<(&'static str, i64)>,
    /// So many rows has the audit.
    pub audit_rows: u64,
    /// What does not add up; empty when all is well.
    pub problems: Vec<String>,
}
