//! What people and logs may see of data: core's masking with the rules of the live workspace. Whatever an event, a partner
//! or a sender wrote goes through here before anybody reads it.

use clinch_core::mask::Rules;
use std::sync::{Arc, LazyLock, RwLock};

/// One for the process, because logs are.
static RULES: LazyLock<RwLock<Arc<Rules>>> = LazyLock::new(RwLock::default);

pub fn rules() -> Arc<Rules> {
    RULES.read().expect("nobody panics while holding the rules").clone()
}

/// From here on these count.
pub fn follow(rules: &Rules) {
    *RULES.write().expect("nobody panics while holding the rules") = Arc::new(rules.clone());
}
