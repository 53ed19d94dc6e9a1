//! Form bodies (`application/x-www-form-urlencoded`), read strictly: a body that two readers could read differently
//! must not pass a signature over what one of them read.

use serde_json::{Map, Value};

/// No provider sends a form with more fields.
const FIELDS_MAX: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadForm {
    #[error("the form has a `%` that no two hex digits follow")]
    Escape,
    #[error("the form has a value that is not UTF-8")]
    NotUtf8,
    #[error("the form has more than {FIELDS_MAX} fields")]
    TooMany,
}

/// The fields in the order in which they came.
pub fn fields(body: &[u8]) -> Result<Vec<(String, String)>, BadForm> {
    let mut fields = Vec::new();
    for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        if fields.len() == FIELDS_MAX {
            return Err(BadForm::TooMany);
        }
        let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(place) => (&pair[..place], &pair[place + 1..]),
            None => (pair, &[][..]),
        };
        fields.push((decoded(name)?, decoded(value)?));
    }
    Ok(fields)
}

/// The fields as a JSON object; a field that came several times is an array.
pub fn to_json(fields: Vec<(String, String)>) -> Value {
    let mut object = Map::new();
    for (name, text) in fields {
        match object.get_mut(&name) {
            None => {
                object.insert(name, Value::String(text));
            }
            Some(Value::Array(values)) => values.push(Value::String(text)),
            Some(first) => *first = Value::Array(vec![first.take(), Value::String(text)]),
        }
    }
    Value::Object(object)
}

fn decoded(text: &[u8]) -> Result<String, BadForm> {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    String::from_utf8(percent_decoded(&spaced).ok_or(BadForm::Escape)?).map_err(|_| BadForm::NotUtf8)
}

/// `%41` is `A`; `None` when a `%` has no two hex digits behind it.
pub fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|digit| char::from(*digit).to_digit(16));
                u8::try_from(digit()? * 16 + digit()?).expect("two hex digits are one byte")
            }
            plain => *plain,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_form_becomes_an_object_and_repeated_fields_an_array() {
        let read = fields(b"From=%2B1415&Body=h%C3%A9+you&empty=&bare&a=1&a=2&a=3&&").expect("a form");
        let object = to_json(read);
        assert_eq!(object, json!({"From": "+1415", "Body": "hé you", "empty": "", "bare": "", "a": ["1", "2", "3"]}));
    }

    #[test]
    fn a_form_that_two_readers_could_read_differently_is_refused() {
        for (body, error) in [("a=%", BadForm::Escape), ("a=%4", BadForm::Escape), ("a=%zz", BadForm::Escape)] {
            assert_eq!(fields(body.as_bytes()), Err(error), "{body}");
        }
        assert_eq!(fields(b"a=%ff"), Err(BadForm::NotUtf8));
        assert_eq!(fields(&b"a&".repeat(FIELDS_MAX + 1)), Err(BadForm::TooMany));
    }

    proptest! {
        #[test]
        fn reading_a_form_never_panics(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = fields(&body).map(to_json);
        }
    }
}
