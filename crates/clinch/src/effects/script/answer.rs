//! What a runner says: a line of JSON at a time.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;
use std::time::Duration;

#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has come as far as the script.
    Begun,
    /// This job has not begun, will not begin, and is for others.
    Late(u64),
    Ended(Ended),
}

/// A job has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub no: u64,
    pub took: Duration,
    /// What it returned, if anything, or an error.
    pub result: Result<Option<String>, String>,
    /// In this process no other begins.
    pub spoiled: bool,
}

#[derive(serde::Deserialize)]
struct Line {
    #[serde(default)]
    begun: bool,
    late: Option<u64>,
    no: Option<u64>,
    #[serde(default)]
    micros: u64,
    returned: Option<Text>,
    error: Option<Text>,
    #[serde(default)]
    spoiled: bool,
}

/// The next one, if all of it has come.
pub fn next(unread: &mut Vec<u8>) -> Option<Result<Answer, String>> {
    let end = unread.iter().position(|byte| *byte == b'\n')?;
    let answer = read(&unread[..end]);
    unread.drain(..=end);
    Some(answer)
}

pub fn read(line: &[u8]) -> Result<Answer, String> {
    match serde_json::from_slice(line) {
        Ok(Line { begun: true, .. }) => Ok(Answer::Begun),
        Ok(Line { late: Some(job), .. }) => Ok(Answer::Late(job)),
        Ok(Line { no: Some(no), micros, returned, error, spoiled, .. }) => {
            let result = error.map_or(Ok(returned.map(|Text(text)| text)), |Text(why)| Err(why));
            Ok(Answer::Ended(Ended { no, took: Duration::from_micros(micros), result, spoiled }))
        }
        Ok(_) | Err(_) => Err("its answer cannot be read".to_string()),
    }
}

/// What a script says. Texts of scripts may have half of a character, as where one was cut in two; it is replaced.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        // As a string it would be refused with all that is said beside it.
        from.deserialize_bytes(Lossy)
    }
}

struct Lossy;

impl Visitor<'_> for Lossy {
    type Value = Text;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a text")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, answer: Answer) {
        let mut unread = format!("{line}\nmore").into_bytes();
        assert_eq!(next(&mut unread), Some(Ok(answer)), "{line}");
        assert_eq!(unread, b"more");
        assert_eq!(next(&mut unread), None, "not all of it has come");
    }

    fn ended(result: Result<Option<&str>, &str>, spoiled: bool) -> Answer {
        let result = result.map(|returned| returned.map(String::from)).map_err(String::from);
        Answer::Ended(Ended { no: 7, took: Duration::from_micros(30), result, spoiled })
    }

    #[test]
    fn c7_half_of_a_character_in_an_answer_is_replaced() {
        check(
            r#"{"no": 7, "micros": 30, "returned": "{\"a\":\"\u00fc\ud83d\ude00\"}"}"#,
            ended(Ok(Some(r#"{"a":"ü😀"}"#)), false),
        );
        check(
            r#"{"no": 7, "micros": 30, "returned": "\"x\ud83d"}"#,
            ended(Ok(Some("\"x\u{fffd}\u{fffd}\u{fffd}")), false),
        );
        check(r#"{"no": 7, "micros": 30, "error": "\udce9!"}"#, ended(Err("\u{fffd}\u{fffd}\u{fffd}!"), false));
    }

    #[test]
    fn c7_a_runner_says_what_became_of_a_job() {
        check(r#"{"no": 7, "micros": 30}"#, ended(Ok(None), false));
        check(r#"{"no": 7, "micros": 30, "returned": null}"#, ended(Ok(None), false));
        check(r#"{"begun": true}"#, Answer::Begun);
        check(r#"{"late": 7}"#, Answer::Late(7));
        check(r#"{"no": 7, "micros": 30, "error": "no", "spoiled": true}"#, ended(Err("no"), true));
        check(r#"{"no": 7, "micros": 30, "returned": "1", "spoiled": true}"#, ended(Ok(Some("1")), true));
        for line in [r#"{"no": 7, "error": 7}"#, r#"{"returned": "1"}"#, "{}", ""] {
            assert!(read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
