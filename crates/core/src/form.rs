//! Form bodies (`application/x-www-form-urlencoded`). [`fields`] reads strictly: a body that two readers could read
//! differently must not pass a signature over what one of them read. [`raw_fields`] refuses nothing: whoever hides
//! fields has to find them in whatever came.

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

pub fn is_form(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// A field as it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawField<'a> {
    /// Name and value.
    pub raw: &'a [u8],
    pub raw_name: &'a [u8],
    raw_value: &'a [u8],
}

impl RawField<'_> {
    /// What most readers would read; what cannot be read stays as it is.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&decoded(self.raw_name, Plus::Space).0).into_owned()
    }

    pub fn value(&self) -> Vec<u8> {
        decoded(self.raw_value, Plus::Space).0
    }

    fn strictly(&self) -> Result<(String, String), BadForm> {
        let read = |raw: &[u8]| match decoded(raw, Plus::Space) {
            (_, Clean(false)) => Err(BadForm::Escape),
            (plain, Clean(true)) => String::from_utf8(plain).map_err(|_| BadForm::NotUtf8),
        };
        Ok((read(self.raw_name)?, read(self.raw_value)?))
    }
}

pub(crate) fn raw_fields(body: &[u8]) -> impl Iterator<Item = RawField<'_>> {
    body.split(|byte| *byte == b'&').filter(|raw| !raw.is_empty()).map(|raw| {
        let end = raw.iter().position(|byte| *byte == b'=').unwrap_or(raw.len());
        RawField { raw, raw_name: &raw[..end], raw_value: raw.get(end + 1..).unwrap_or_default() }
    })
}

/// The fields in the order in which they came.
pub fn fields(body: &[u8]) -> Result<Vec<(String, String)>, BadForm> {
    let fields: Vec<_> =
        raw_fields(body).take(FIELDS_MAX + 1).map(|field| field.strictly()).collect::<Result<_, _>>()?;
    if fields.len() > FIELDS_MAX { Err(BadForm::TooMany) } else { Ok(fields) }
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

/// `%41` is `A`; `None` when a `%` has no two hex digits behind it.
pub fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let (plain, Clean(clean)) = decoded(text, Plus::Plus);
    clean.then_some(plain)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Space,
    Plus,
}

/// Whether every `%` had two hex digits behind it.
struct Clean(bool);

/// The only reader of escapes. One that is none is copied as it stands, and said.
fn decoded(raw: &[u8], plus: Plus) -> (Vec<u8>, Clean) {
    let mut plain = Vec::with_capacity(raw.len());
    let mut clean = true;
    let mut at = 0;
    while let Some(byte) = raw.get(at) {
        let hex = |place: usize| raw.get(place).and_then(|digit| char::from(*digit).to_digit(16));
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push(u8::try_from(high * 16 + low).expect("two hex digits are one byte"));
                at += 2;
            }
            (b'+', _, _) if plus == Plus::Space => plain.push(b' '),
            (other, _, _) => {
                clean &= *other != b'%';
                plain.push(*other);
            }
        }
        at += 1;
    }
    (plain, Clean(clean))
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
        assert_eq!(percent_decoded(b"a+%2B"), Some(b"a++".to_vec()));
    }

    #[test]
    fn a5_a_form_is_read_as_browsers_write_it() {
        let check = |body: &str, expected: &[(&str, &str)]| {
            let seen: Vec<_> = raw_fields(body.as_bytes())
                .map(|field| (field.name(), String::from_utf8_lossy(&field.value()).into_owned()))
                .collect();
            let expected: Vec<_> = expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            assert_eq!(seen, expected, "{body}");
        };
        check("a=1&b=x+y&a=%C3%A9", &[("a", "1"), ("b", "x y"), ("a", "é")]);
        check("e%6Dail=ada%40example.com", &[("email", "ada@example.com")]);
        check("flag&&x=a=b&p=100%&q=%zz", &[("flag", ""), ("x", "a=b"), ("p", "100%"), ("q", "%zz")]);
        check("", &[]);
    }

    #[test]
    fn a5_a_form_is_known_by_its_content_type() {
        assert!(
            is_form("application/x-www-form-urlencoded") && is_form("Application/X-WWW-Form-Urlencoded; charset=x")
        );
        assert!(!is_form("application/json") && !is_form("multipart/form-data; boundary=x") && !is_form(""));
    }

    proptest! {
        #[test]
        fn reading_a_form_never_panics(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = fields(&body).map(to_json);
            raw_fields(&body).for_each(|field| drop((field.name(), field.value())));
        }
    }
}
