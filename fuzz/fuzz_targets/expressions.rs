//! Expressions and templates of a workspace, with whatever an event puts into them: bounded, and never a panic.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::expr::{Expr, OUTPUT_BYTES_MAX, Template, Tree};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

#[derive(Arbitrary, Debug)]
struct Written<'a> {
    text: &'a str,
    body: &'a [u8],
}

fuzz_target!(|written: Written<'_>| {
    let body: Value = serde_json::from_slice(written.body).unwrap_or_default();
    let Value::Object(scope) = json!({ "body": body, "key": "k", "secrets": { "A": "s" } }) else { return };
    if let Ok(expr) = Expr::parse(written.text) {
        expr.roots();
        // The same again, or the same error: nothing is left to chance.
        assert_eq!(expr.value(&scope), expr.value(&scope));
        let _ = expr.holds(&scope);
    }
    if let Ok(template) = Template::parse(written.text) {
        template.secrets();
        if let Ok(text) = template.text(&scope) {
            assert!(text.len() <= OUTPUT_BYTES_MAX);
        }
    }
    if let Ok(tree) = Tree::text(written.text) {
        let _ = tree.value(&scope);
    }
});
