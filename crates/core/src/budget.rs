//! A retry budget: how many retries one entity (a contact, a customer, an order) may cause in a window, all its jobs of a
//! worker together. So one that fails again and again does not take the turns of the others. First attempts never count.

use crate::death::Reason;
use crate::expr::Template;
use crate::job::{Change, Waits};
use crate::scope::Scope;
use crate::time::Timestamp;
use serde_json::Value;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

pub const UNITS_MAX: u32 = 1_000_000;
/// The window of a budget that does not say its own.
pub const WINDOW_DEFAULT: Duration = Duration::from_secs(3_600);
/// A retry that would have to wait for a later window than this is not made.
pub const WINDOWS_AHEAD_MAX: u32 = 100;

/// Where in a body the contact is looked for; the first that is there counts.
pub const CONTACT_POINTERS: &[&str] = &[
    "/contact_id",
    "/contact/id",
    "/customer_id",
    "/customer/id",
    "/email",
    "/contact/email",
    "/customer/email",
    "/phone",
];

#[derive(Clone, Debug, PartialEq)]
pub struct RetryBudget {
    /// The worker's.
    pub name: Arc<str>,
    pub per: Per,
    pub allowance: Allowance,
    pub on_exhausted: OnExhausted,
}

/// Whose budget it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Per {
    /// As this text names it.
    Said(Template),
    /// The contact that the event is about.
    Contact,
}

/// So many retries in such a window, which begins with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub units: NonZeroU32,
    pub window: Duration,
}

/// What becomes of a job when nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    Dead,
    /// It takes a unit of a later window, and waits for that.
    Wait,
}

impl RetryBudget {
    /// Who the event is about. Nobody: then no budget counts.
    pub fn entity(&self, names: &Scope) -> Option<String> {
        let text = match &self.per {
            Per::Said(template) => template.text(names).ok()?,
            Per::Contact => contact(names.get("body")?)?,
        };
        let text = text.trim();
        // What is there and says nothing is written as `null`.
        (!text.is_empty() && text != "null").then(|| text.to_string())
    }
}

fn contact(body: &Value) -> Option<String> {
    CONTACT_POINTERS.iter().find_map(|pointer| match body.pointer(pointer)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// What an entity has used of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// When the window began.
    pub since: Timestamp,
    /// Units of this window, and beyond its own of those that follow.
    pub spent: u32,
    /// What a person has given it on top, until the window ends.
    pub extra: u32,
}

/// The answer to who wants to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    Granted {
        left: u32,
    },
    /// Nothing was left: it is a unit of a window that begins then.
    Later {
        at: Timestamp,
    },
    /// Nothing is left before then, and nothing was taken.
    Exhausted {
        until: Timestamp,
    },
}

impl Account {
    pub const fn new(now: Timestamp) -> Account {
        Account { since: now, spent: 0, extra: 0 }
    }

    /// As it is at this moment: windows that have ended are left behind.
    pub fn at(self, now: Timestamp, allowance: Allowance) -> Account {
        let ended = now.since(self.since).as_micros() / allowance.window.as_micros().max(1);
        let ended = u32::try_from(ended).unwrap_or(u32::MAX);
        if ended == 0 {
            return self;
        }
        match self.spent.saturating_sub(allowance.units.get().saturating_mul(ended)) {
            0 => Account::new(now),
            spent => Account { since: self.since + allowance.window.saturating_mul(ended), spent, extra: 0 },
        }
    }

    /// How many retries it may still cause in this window.
    pub fn left(self, allowance: Allowance) -> u32 {
        allowance.units.get().saturating_sub(self.spent).saturating_add(self.extra)
    }

    /// When something is left again; `None` if it is now.
    pub fn free_at(self, allowance: Allowance) -> Option<Timestamp> {
        (self.left(allowance) == 0).then(|| self.begins(self.spent / allowance.units, allowance))
    }

    /// From then on it is as if nothing had ever been used.
    pub fn over_at(self, allowance: Allowance) -> Timestamp {
        self.begins(self.spent.div_ceil(allowance.units.get()).max(1), allowance)
    }

    fn begins(self, windows_ahead: u32, allowance: Allowance) -> Timestamp {
        self.since + allowance.window.saturating_mul(windows_ahead)
    }

    /// Of a window that begins after `latest` nothing is taken: nobody could use it.
    pub fn spend(
        self,
        now: Timestamp,
        allowance: Allowance,
        on_exhausted: OnExhausted,
        latest: Option<Timestamp>,
    ) -> (Account, Spent) {
        let account = self.at(now, allowance);
        let taken = Account { spent: account.spent.saturating_add(1), ..account };
        if account.spent < allowance.units.get() {
            return (taken, Spent::Granted { left: taken.left(allowance) });
        }
        if account.extra > 0 {
            let taken = Account { extra: account.extra - 1, ..account };
            return (taken, Spent::Granted { left: taken.left(allowance) });
        }
        let windows_ahead = account.spent / allowance.units;
        let at = account.begins(windows_ahead, allowance);
        let is_useful = windows_ahead <= WINDOWS_AHEAD_MAX && latest.is_none_or(|latest| at <= latest);
        match on_exhausted {
            OnExhausted::Wait if is_useful => (taken, Spent::Later { at }),
            OnExhausted::Wait | OnExhausted::Dead => (account, Spent::Exhausted { until: at }),
        }
    }

    /// A person gives it more, until the window ends; without one, it begins now.
    pub fn grant(self, now: Timestamp, allowance: Allowance, units: u32) -> Account {
        let account = self.at(now, allowance);
        Account { extra: account.extra.saturating_add(units).min(UNITS_MAX), ..account }
    }
}

/// What becomes of a retry that is due at `run_at`, after its entity was asked.
pub fn rule(run_at: Timestamp, spent: Spent, now: Timestamp) -> Change {
    match spent {
        Spent::Granted { .. } => Change::Retried { run_at },
        Spent::Later { at } => Change::PutOff { run_at: at.max(run_at), waits: Waits::Budget },
        Spent::Exhausted { .. } => Change::Buried { at: now, reason: Reason::BudgetExhausted },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn allowance(units: u32) -> Allowance {
        Allowance { units: NonZeroU32::new(units).expect("not zero"), window: HOUR }
    }

    fn entity(per: Per, body: Value) -> Option<String> {
        let budget = RetryBudget { name: "w".into(), per, allowance: allowance(5), on_exhausted: OnExhausted::Dead };
        budget.entity(&Scope::from_iter([("body", body)]))
    }

    #[test]
    fn c5_a_contact_is_the_first_field_that_is_there() {
        let check = |body: Value, found: Option<&str>| assert_eq!(entity(Per::Contact, body).as_deref(), found);
        check(json!({"email": "a@x.io", "contact_id": 42, "phone": "1"}), Some("42"));
        check(json!({"customer": {"id": "c-1", "email": "a@x.io"}}), Some("c-1"));
        check(json!({"contact_id": "", "customer": {"email": " a@x.io "}}), Some("a@x.io"));
        check(json!({"contact_id": null, "order": 7}), None);
        check(json!([1]), None);
    }

    #[test]
    fn c5_who_is_not_named_has_no_budget() {
        let per = || Per::Said(Template::parse("{{ body.email }}").expect("a template"));
        assert_eq!(entity(per(), json!({"email": "a@x.io"})).as_deref(), Some("a@x.io"));
        for nobody in [json!({}), json!({"email": null}), json!({"email": " "}), Value::Null] {
            assert_eq!(entity(per(), nobody), None);
        }
    }

    #[test]
    fn c5_a_window_begins_with_the_first_unit_and_refills_when_it_ends() {
        let of = allowance(2);
        let (account, spent) = Account::new(at(0)).spend(at(0), of, OnExhausted::Dead, None);
        assert_eq!(spent, Spent::Granted { left: 1 });
        let (account, spent) = account.spend(at(3_000), of, OnExhausted::Dead, None);
        assert_eq!(spent, Spent::Granted { left: 0 });
        let (account, spent) = account.spend(at(3_599), of, OnExhausted::Dead, None);
        assert_eq!(spent, Spent::Exhausted { until: at(3_600) });
        assert_eq!((account.free_at(of), account.over_at(of)), (Some(at(3_600)), at(3_600)));
        let (account, spent) = account.spend(at(5_000), of, OnExhausted::Dead, None);
        assert_eq!((spent, account.since), (Spent::Granted { left: 1 }, at(5_000)));
        // A clock that goes back gives nothing.
        assert_eq!(account.at(at(0), of), account);
    }

    #[test]
    fn c5_who_waits_takes_units_of_later_windows_in_turn() {
        let of = allowance(2);
        let (mut account, mut starts) = (Account::new(at(0)), Vec::new());
        for _ in 0..6 {
            let (next, spent) = account.spend(at(0), of, OnExhausted::Wait, None);
            account = next;
            starts.push(if let Spent::Later { at } = spent { at } else { at(0) });
        }
        assert_eq!(starts, [at(0), at(0), at(3_600), at(3_600), at(7_200), at(7_200)]);
        // What was taken ahead is not there when its window comes.
        let (_, spent) = account.spend(at(3_700), of, OnExhausted::Dead, None);
        assert_eq!(spent, Spent::Exhausted { until: at(10_800) });
        assert_eq!(account.at(at(10_800), of).left(of), 2);
        let far = Account { spent: 2 * (WINDOWS_AHEAD_MAX + 1), ..Account::new(at(0)) };
        assert!(matches!(far.spend(at(0), of, OnExhausted::Wait, None).1, Spent::Exhausted { .. }));
    }

    #[test]
    fn c5_what_a_person_grants_is_used_last_and_ends_with_the_window() {
        let of = allowance(1);
        let granted = Account::new(at(0)).spend(at(0), of, OnExhausted::Dead, None).0.grant(at(10), of, 2);
        assert_eq!((granted.left(of), granted.free_at(of)), (2, None));
        let (after, spent) = granted.spend(at(20), of, OnExhausted::Dead, None);
        assert_eq!((spent, after.left(of)), (Spent::Granted { left: 1 }, 1));
        assert_eq!(after.at(at(3_600), of).left(of), 1);
    }

    #[test]
    fn c5_a_retry_without_a_unit_is_a_dead_letter_or_waits() {
        let check = |spent, change| assert_eq!(rule(at(5), spent, at(0)), change);
        let dead = Change::Buried { at: at(0), reason: Reason::BudgetExhausted };
        check(Spent::Granted { left: 0 }, Change::Retried { run_at: at(5) });
        check(Spent::Exhausted { until: at(60) }, dead);
        let waits = |run_at| Change::PutOff { run_at, waits: Waits::Budget };
        check(Spent::Later { at: at(60) }, waits(at(60)));
        check(Spent::Later { at: at(1) }, waits(at(5)));
    }

    #[test]
    fn c5_nothing_is_taken_of_a_window_that_begins_too_late() {
        let of = allowance(2);
        let check = |spent, latest, expected: Spent| {
            let before = Account { spent, ..Account::new(at(0)) };
            let (after, told) = before.spend(at(60), of, OnExhausted::Wait, latest);
            assert_eq!(told, expected, "{spent} are spent");
            let is_taken = !matches!(expected, Spent::Exhausted { .. });
            assert_eq!(after, Account { spent: spent + u32::from(is_taken), ..before }, "{spent} were spent");
        };
        // The window that runs is never too late.
        check(1, Some(at(59)), Spent::Granted { left: 0 });
        check(2, Some(at(3_600)), Spent::Later { at: at(3_600) });
        check(2, Some(at(3_599)), Spent::Exhausted { until: at(3_600) });
        check(4, Some(at(7_199)), Spent::Exhausted { until: at(7_200) });
        check(4, None, Spent::Later { at: at(7_200) });
    }

    proptest! {
        /// However retries come, in no window does an entity start more than it may.
        #[test]
        fn c5_no_window_has_more_than_the_budget(
            pauses in prop::collection::vec(0u64..2_000, 1..200), units in 1u32..6, waits: bool,
        ) {
            let (of, on_exhausted) = (allowance(units), if waits { OnExhausted::Wait } else { OnExhausted::Dead });
            let (mut account, mut now) = (Account::new(at(0)), 0);
            let mut granted: Vec<(Timestamp, u32)> = Vec::new();
            for pause in pauses {
                now += pause;
                let (next, spent) = account.spend(at(now), of, on_exhausted, None);
                account = next;
                let window = match spent {
                    Spent::Granted { .. } => account.since,
                    Spent::Later { at } => at,
                    Spent::Exhausted { until } => {
                        prop_assert!(until > at(now));
                        continue;
                    }
                };
                match granted.iter_mut().find(|(since, _)| *since == window) {
                    Some((_, times)) => *times += 1,
                    None => granted.push((window, 1)),
                }
            }
            granted.sort();
            prop_assert!(granted.iter().all(|(_, times)| *times <= units), "{granted:?}");
            prop_assert!(granted.windows(2).all(|pair| pair[1].0.since(pair[0].0) >= HOUR), "{granted:?}");
        }
    }
}
