//! A step that runs once for each of a list: what each run is called in the ledger, and how fast they follow each other.
//!
//! The third run of `requeue` is `requeue[2]`: it has a line of its own, so that what is done for one is never done again because of
//! another. Lists must not change between attempts: they are read from the event and from results, which do not.

use crate::expr::{BadExpr, Expr};
use crate::integration::Spread;
use crate::limit::Rate;
use crate::pace::Moments;
use crate::scope::Scope;
use crate::time::Timestamp;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// No list is longer.
pub const ITEMS_MAX: usize = 1_000;

/// For what a step runs again and again.
#[derive(Clone, Debug)]
pub struct Each {
    pub list: Expr,
    pub pace: Option<ItemPace>,
}

impl Each {
    pub fn items(&self, scope: &Scope) -> Result<Vec<Value>, BadExpr> {
        let source = self.list.source();
        match self.list.value(scope)? {
            Value::Array(items) if items.len() > ITEMS_MAX => {
                let count = items.len();
                Err(BadExpr(format!("`{source}` is a list of {count}; a step runs for at most {ITEMS_MAX}")))
            }
            Value::Array(items) => Ok(items),
            _ => Err(BadExpr(format!("`{source}` is not a list"))),
        }
    }
}

/// How fast the runs of a step follow each other, those of all its jobs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemPace {
    pub rate: Rate,
    pub jitter: Option<Spread>,
}

impl ItemPace {
    pub fn every(&self) -> Duration {
        Moments::new(&self.rate, self.jitter.map(Spread::width).unwrap_or_default()).every()
    }

    /// When the next may run, after one that ran at `last`. `dice` is uniform in [0, 1).
    pub fn next(&self, last: Timestamp, dice: f64) -> Timestamp {
        last + self.every() + self.jitter.map(|jitter| jitter.pick(dice)).unwrap_or_default()
    }
}

/// What a run is called in the ledger.
pub fn item_name(step: &str, index: usize) -> Arc<str> {
    format!("{step}[{index}]").into()
}

/// The step and the place of the item, if the line tells of one.
pub fn item_of(effect: &str) -> Option<(&str, usize)> {
    let (step, index) = effect.strip_suffix(']')?.rsplit_once('[')?;
    Some((step, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c8_each_item_has_a_line_of_its_own() {
        assert_eq!(&*item_name("requeue", 2), "requeue[2]");
        assert_eq!(item_of("requeue[2]"), Some(("requeue", 2)));
        for other in ["requeue", "requeue[]", "requeue[x]", "requeue]", "requeue@2"] {
            assert_eq!(item_of(other), None, "{other}");
        }
    }

    #[test]
    fn c8_a_list_is_a_list_and_bounded() {
        let each = Each { list: Expr::parse("body.items").expect("an expression"), pace: None };
        let items = |items: Value| each.items(&Scope::from_iter([("body", json!({ "items": items }))]));
        assert_eq!(items(json!([1, "b"])), Ok(vec![json!(1), json!("b")]));
        assert_eq!(items(json!([])), Ok(Vec::new()));
        for bad in [json!(null), json!("text"), json!({"a": 1}), json!(vec![0; ITEMS_MAX + 1])] {
            assert!(items(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn c10_items_are_evenly_apart_with_a_pause_by_the_dice() {
        let jitter = Spread { least: Duration::from_millis(200), most: Duration::from_millis(600) };
        let pace = ItemPace { rate: "5/min".parse().expect("a rate"), jitter: Some(jitter) };
        let last = Timestamp::from_micros(0);
        assert_eq!(pace.next(last, 0.0), last + pace.every() + jitter.least);
        assert_eq!(pace.next(last, 1.0), last + pace.every() + jitter.most);
        assert!(pace.every() >= Duration::from_secs(12) && pace.every() < Duration::from_secs(13));
    }
}
