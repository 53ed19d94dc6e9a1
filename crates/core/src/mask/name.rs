//! Names of fields that hold what must not be shown.

/// How much of a field's value may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing.
    Secret,
    /// What its shape allows, such as the ends of a phone number.
    Shaped,
}

/// `x` is a name, `*x*` any name with x in it; likewise `x*` and `*x`. Case and the signs between words do not count:
/// `firstname` is also `first_name` and `First-Name`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    open_start: bool,
    open_end: bool,
    core: String,
}

impl Pattern {
    fn new(text: &str) -> Option<Pattern> {
        let text = text.trim();
        let (open_start, rest) = text.strip_prefix('*').map_or((false, text), |rest| (true, rest));
        let (open_end, rest) = rest.strip_suffix('*').map_or((false, rest), |rest| (true, rest));
        let core = plain(rest);
        (!core.is_empty() && !rest.contains('*')).then_some(Pattern { open_start, open_end, core })
    }

    fn matches(&self, name: &str) -> bool {
        match (self.open_start, self.open_end) {
            (false, false) => name == self.core,
            (true, false) => name.ends_with(&self.core),
            (false, true) => name.starts_with(&self.core),
            (true, true) => name.contains(&self.core),
        }
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

const SECRET: &str = "*password* *passwd* *passphrase* *secret* *token* *authorization* *apikey* *privatekey* *accesskey* \
    *credential* *signature* *cookie* *sessionid* *cvv* *cvc* auth pass pwd pin otp sig hmac googlekey";
const SHAPED: &str = "*email* *phone* *mobile* *cardnumber* *creditcard* *debitcard* *iban* *ipaddress* *forwardedfor* \
    mail card pan tel fax msisdn whatsapp ip clientip remoteip remoteaddr forwarded";
const PERSONAL: &str = "*firstname* *lastname* *surname* *fullname* *familyname* *givenname* *middlename* *maidenname* \
    *displayname* *username* *nickname* *address* *street* *postalcode* *postcode* *zipcode* *birth* *passport* *taxid* \
    *accountnumber* dob login zip ssn latitude longitude";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names(Vec<(Pattern, Class)>);

impl Names {
    pub fn none() -> Self {
        Names(Vec::new())
    }

    pub fn usual() -> Self {
        let list = |names: &'static str, class| {
            names.split_whitespace().filter_map(Pattern::new).map(move |pattern| (pattern, class))
        };
        // In this order: an `email_token` is a token first, an `email_address` an e-mail.
        let lists = list(SECRET, Class::Secret).chain(list(SHAPED, Class::Shaped)).chain(list(PERSONAL, Class::Secret));
        Names(lists.collect())
    }

    /// False when the text is no pattern.
    pub fn add(&mut self, text: &str) -> bool {
        let pattern = Pattern::new(text);
        let fine = pattern.is_some();
        // First, so that what somebody wrote wins over what is usual.
        self.0.splice(0..0, pattern.map(|pattern| (pattern, Class::Secret)));
        fine
    }

    pub fn class(&self, name: &str) -> Option<Class> {
        if self.0.is_empty() || name.is_empty() {
            return None;
        }
        let name = plain(name);
        self.0.iter().find(|(pattern, _)| pattern.matches(&name)).map(|(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h6_a_field_is_known_by_its_name_however_it_is_spelled() {
        let names = Names::usual();
        let check = |name: &str, class: Option<Class>| assert_eq!(names.class(name), class, "{name}");
        for secret in ["password", "newPassword", "access_token", "X-Api-Key", "client-secret", "Authorization"] {
            check(secret, Some(Class::Secret));
        }
        for personal in [
            "first_name",
            "FirstName",
            "billing.last_name",
            "user[street]",
            "date_of_birth",
            "set-cookie",
            "email_token",
        ] {
            check(personal, Some(Class::Secret));
        }
        for shaped in ["email", "E-Mail", "customer_email_2", "phone_number", "card", "client_ip", "email-address"] {
            check(shaped, Some(Class::Shaped));
        }
        for open in ["id", "name", "plan", "description", "zipper", "shipping", "class_name", "created_at", "", "__"] {
            check(open, None);
        }
    }

    #[test]
    fn h6_names_of_ones_own_are_added() {
        let mut names = Names::usual();
        assert!(names.add("plan") && names.add("crm_*") && names.add("*-note"));
        for hidden in ["plan", "crm_id", "inner_note", "Plan"] {
            assert_eq!(names.class(hidden), Some(Class::Secret), "{hidden}");
        }
        assert_eq!(names.class("plans"), None);
        for bad in ["", "*", "**", "a*b", "_"] {
            assert!(!names.add(bad), "{bad}");
        }
    }
}
