//! `enrich: {phone: …}` a phone number as the whole world writes it.
//!
//! ```yaml
//! - name: phone
//!   enrich: {phone: {from: body.phone, country: DE, strict: valid}}
//! # steps.phone.output: {"e164": "+4930123456", "country": "DE", "possible": true, "valid": true}
//! ```
//!
//! With `strict: none` what is no number gives null, and the job goes on; else it is a dead letter.

use super::{Inward, bad_payload, missing};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::phone;
use clinch_core::worker::PhoneAction;
use serde_json::{Value, json};

impl Inward for PhoneAction {
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure> {
        let text = match self.from.value(scope.names()).map_err(missing)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        let read = phone::read(&text, self.country, self.strict)
            .map_err(|why| bad_payload(format!("`{}` will not do as a phone number: {why}", self.from.source())))?;
        Ok(read.map_or(Value::Null, |phone| {
            json!({"e164": phone.e164, "country": phone.country, "possible": phone.possible, "valid": phone.valid})
        }))
    }
}
