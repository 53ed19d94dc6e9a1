//! What people and logs may see of data: core's masking with the rules of this process. Whatever an event, a partner or a
//! sender wrote goes through here before anybody reads it.

use clinch_core::mask::Rules;
use std::sync::LazyLock;

static RULES: LazyLock<Rules> = LazyLock::new(Rules::default);

pub fn rules() -> &'static Rules {
    &RULES
}
