//! Retry budgets.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.budgets.list/v1`: who has used something of a retry budget.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetList {
    pub schema: String,
    pub budgets: Vec<Budget>,
    /// Whether there are more than are told.
    pub more: bool,
}

/// `clinch.budgets.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BudgetShow {
    pub schema: String,
    pub budget: Budget,
}

/// What one entity has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Budget {
    /// The worker's name.
    pub budget: String,
    /// A hash; nobody's name.
    pub entity: String,
    pub left: u32,
    /// Units of this window, and beyond its own of those that follow.
    pub spent: u32,
    /// What a person gave on top and is not used.
    pub granted: u32,
    pub max: u32,
    pub window: String,
    /// When the window began, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// When something is left again, if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_at: Option<Moment>,
    /// When all of it is there again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_at: Option<Moment>,
}

/// More for one entity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetGrant {
    /// Its name as the event says it, or `ent_…`.
    pub entity: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub units: u32,
    pub reason: String,
}
