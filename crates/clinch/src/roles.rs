//! What a process does.

use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    pub intake: bool,
    pub worker: bool,
    pub keeper: bool,
    pub admin: bool,
}

impl Roles {
    pub const ALL: Roles = Roles { intake: true, worker: true, keeper: true, admin: true };
}

impl FromStr for Roles {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut roles = Roles { intake: false, worker: false, keeper: false, admin: false };
        for word in text.split(',').map(str::trim) {
            match word {
                "intake" => roles.intake = true,
                "worker" => roles.worker = true,
                "keeper" => roles.keeper = true,
                "admin" => roles.admin = true,
                _ => {
                    return Err(format!("`{word}` is not a role; the roles are intake, worker, keeper, admin"));
                }
            }
        }
        Ok(roles)
    }
}
