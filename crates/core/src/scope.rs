//! The names that expressions may use, with their values.
//!
//! Most expressions read one name of many, and one name is read by many expressions. So a value is made, and made ready for them, when
//! the first one reads it, and not again before it changes.

use minijinja::value::{Object, Serde};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Secrets are in it only where a step may see them. A copy costs little, whatever is in it.
#[derive(Clone, Default)]
pub struct Scope(Arc<Names>);

#[derive(Clone, Default)]
struct Names(BTreeMap<String, Arc<Name>>);

#[derive(Clone)]
struct Name {
    value: OnceLock<Value>,
    /// Makes the value, where it is not there yet.
    make: Option<Make>,
    /// As expressions read it.
    ready: OnceLock<minijinja::Value>,
}

type Make = Arc<dyn Fn() -> Value + Send + Sync>;

impl Name {
    fn value(&self) -> &Value {
        self.value.get_or_init(|| self.make.as_ref().map_or(Value::Null, |make| make()))
    }
}

impl From<Value> for Name {
    fn from(value: Value) -> Name {
        Name { value: value.into(), make: None, ready: OnceLock::new() }
    }
}

impl Scope {
    pub fn new() -> Scope {
        Scope::default()
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.0.get(name).map(|name| name.value())
    }

    pub fn insert(&mut self, name: &str, value: Value) {
        self.put(name, value.into());
    }

    /// Its value is made when somebody reads it.
    pub fn insert_with(&mut self, name: &str, make: impl Fn() -> Value + Send + Sync + 'static) {
        self.put(name, Name { value: OnceLock::new(), make: Some(Arc::new(make)), ready: OnceLock::new() });
    }

    fn put(&mut self, name: &str, value: Name) {
        Arc::make_mut(&mut self.0).0.insert(name.to_string(), Arc::new(value));
    }

    pub fn remove(&mut self, name: &str) {
        Arc::make_mut(&mut self.0).0.remove(name);
    }

    /// To change a value that is there.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        let name = Arc::make_mut(Arc::make_mut(&mut self.0).0.get_mut(name)?);
        name.value();
        name.ready = OnceLock::new();
        name.value.get_mut()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.0.keys().map(String::as_str)
    }

    /// As expressions read it.
    pub(crate) fn ready(&self) -> minijinja::Value {
        minijinja::Value::from_dyn_object(self.0.clone())
    }
}

impl<N: Into<String>> FromIterator<(N, Value)> for Scope {
    fn from_iter<I: IntoIterator<Item = (N, Value)>>(names: I) -> Scope {
        let name = |(name, value): (N, Value)| (name.into(), Arc::new(Name::from(value)));
        Scope(Arc::new(Names(names.into_iter().map(name).collect())))
    }
}

impl Object for Names {
    fn get_value(self: &Arc<Self>, name: &minijinja::Value) -> Option<minijinja::Value> {
        let name = self.0.get(name.as_str()?)?;
        Some(name.ready.get_or_init(|| minijinja::Value::from(Serde(name.value()))).clone())
    }
}

/// The names only: values are somebody's data, or secrets.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Expr;
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn read(text: &str, scope: &Scope) -> Option<Value> {
        Expr::parse(text).expect("an expression").value(scope).ok()
    }

    #[test]
    fn c12_what_was_read_and_is_changed_is_read_anew_and_not_by_those_who_had_a_copy() {
        let mut scope = Scope::from_iter([("steps", json!({"a": 1}))]);
        assert_eq!(read("steps.a", &scope), Some(json!(1)));
        let before = scope.clone();
        scope.get_mut("steps").expect("it is there")["b"] = json!(2);
        scope.insert("item", json!("x"));
        assert_eq!((read("steps.b", &scope), read("item", &scope)), (Some(json!(2)), Some(json!("x"))));
        assert_eq!(
            (read("steps.a", &before), read("steps.b", &before), read("item", &before)),
            (Some(json!(1)), None, None)
        );
        scope.insert("item", json!("y"));
        assert_eq!(read("item", &scope), Some(json!("y")));
        scope.remove("item");
        assert_eq!((read("item", &scope), scope.get("item")), (None, None));
    }

    #[test]
    fn c12_a_value_is_made_for_the_first_who_reads_it() {
        let made = Arc::new(AtomicU32::new(0));
        let mut scope = Scope::new();
        let counted = made.clone();
        scope.insert_with("body", move || json!({"nth": counted.fetch_add(1, Ordering::SeqCst)}));
        assert_eq!((format!("{scope:?}").as_str(), made.load(Ordering::SeqCst)), (r#"{"body"}"#, 0));
        let copy = scope.clone();
        assert_eq!((read("body.nth", &scope), read("body.nth", &copy)), (Some(json!(0)), Some(json!(0))));
        scope.get_mut("body").expect("it is there")["more"] = json!(1);
        assert_eq!((read("body.nth + body.more", &scope), made.load(Ordering::SeqCst)), (Some(json!(1)), 1));
    }

    #[test]
    fn p9_what_is_written_of_it_tells_names_and_no_values() {
        let scope = Scope::from_iter([("secrets", json!({"TOKEN": "s3cret"})), ("body", json!("ada"))]);
        assert_eq!(format!("{scope:?}"), r#"{"body", "secrets"}"#);
        assert!(read("debug() ~ ''", &scope).is_none_or(|said| !said.to_string().contains("s3cret")));
    }
}
