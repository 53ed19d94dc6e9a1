//! A look at a body that shows its shape and none of its texts.

use super::shapes::Preview;
use serde_json::Value;

const LINES_MAX: usize = 10;
const LINE_CHARS_MAX: usize = 160;

pub fn preview(body: &[u8]) -> Preview {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return Preview { bytes: body.len(), json: false, lines: Vec::new(), cut: false };
    };
    let text = serde_json::to_string_pretty(&masked(value)).expect("a JSON value is always JSON");
    let lines = text.lines().take(LINES_MAX).map(|line| line.chars().take(LINE_CHARS_MAX).collect()).collect();
    Preview { bytes: body.len(), json: true, lines, cut: text.lines().count() > LINES_MAX }
}

/// Texts keep their first character, so that one can be told from another; numbers, booleans and null stay.
fn masked(value: Value) -> Value {
    match value {
        Value::String(text) => {
            Value::String(text.chars().next().map_or_else(String::new, |first| format!("{first}***")))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(masked).collect()),
        Value::Object(fields) => Value::Object(fields.into_iter().map(|(name, value)| (name, masked(value))).collect()),
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_a_preview_shows_the_shape_and_no_text() {
        let seen = preview(
            r#"{"email":"ada@example.com","n":9007199254740993,"empty":"","list":["é!",null,true]}"#.as_bytes(),
        );
        let text = seen.lines.join("\n");
        assert!(text.contains(r#""email": "a***""#), "{text}");
        assert!(text.contains(r#""n": 9007199254740993"#) && text.contains(r#""empty": """#), "{text}");
        assert!(text.contains("é***") && !text.contains("example"), "{text}");
        assert!(seen.json && !seen.cut);
    }

    #[test]
    fn a_preview_is_short() {
        let long: Vec<u32> = (0..100).collect();
        let seen = preview(serde_json::to_string(&long).expect("JSON").as_bytes());
        assert_eq!((seen.lines.len(), seen.cut), (LINES_MAX, true));
        assert_eq!(preview(b"not json").lines.len(), 0);
    }
}
