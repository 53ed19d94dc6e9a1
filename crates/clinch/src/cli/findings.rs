//! Findings in files, as other programs read them: marks of GitHub, and SARIF for whoever collects such things.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Something about a place in a file.
#[derive(Clone, Debug)]
pub struct Finding {
    pub level: Level,
    pub code: String,
    /// What its code means, whatever the file.
    pub title: String,
    /// From here, as an editor would open it.
    pub path: Option<String>,
    /// Line and column, from 1, where it begins and where it ends.
    pub from: (usize, usize),
    pub to: (usize, usize),
    pub message: String,
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Error,
    Warning,
    Note,
}

impl Finding {
    fn text(&self) -> String {
        let fix = self.fix.as_ref().map_or_else(String::new, |fix| format!("\nfix: {fix}"));
        format!("{}{fix}", self.message)
    }
}

/// Lines that GitHub turns into marks in a pull request.
pub fn github(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let command = match finding.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "notice",
        };
        let (line, column) = finding.from;
        let place = finding.path.as_ref().map(|path| format!("file={},line={line},col={column},", property(path)));
        let (place, code) = (place.unwrap_or_default(), property(&finding.code));
        format!("::{command} {place}title={code}::{}\n", message(&finding.text()))
    };
    findings.iter().map(line).collect()
}

/// A log of SARIF 2.1.0 with one run.
pub fn sarif(findings: &[Finding]) -> Value {
    let rules: BTreeMap<&str, &str> =
        findings.iter().map(|finding| (finding.code.as_str(), finding.title.as_str())).collect();
    let index: BTreeMap<&str, usize> = rules.keys().enumerate().map(|(nth, code)| (*code, nth)).collect();
    let result = |finding: &Finding| {
        let level = match finding.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        let mut result = json!({
            "ruleId": finding.code,
            "ruleIndex": index.get(finding.code.as_str()),
            "level": level,
            "message": {"text": finding.text()},
        });
        if let Some(path) = &finding.path {
            let ((line, column), (end_line, end_column)) = (finding.from, finding.to);
            let region =
                json!({"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column});
            let location = json!({"artifactLocation": {"uri": uri(path)}, "region": region});
            result["locations"] = json!([{ "physicalLocation": location }]);
        }
        result
    };
    let rules: Vec<Value> =
        rules.iter().map(|(code, title)| json!({"id": code, "shortDescription": {"text": title}})).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "clinch", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

/// A path as a relative reference: what is no plain character of one is encoded.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let part = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.trim_start_matches("./").bytes().map(part).collect()
}

pub fn message(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

pub fn property(text: &str) -> String {
    message(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level, path: Option<&str>) -> Finding {
        Finding {
            level,
            code: "CL0121".into(),
            title: "a key that is not known at this place".into(),
            path: path.map(String::from),
            from: (3, 1),
            to: (3, 8),
            message: "unknown key `retires`: 100%".into(),
            fix: Some("write `retries: 5`".into()),
        }
    }

    #[test]
    fn j1_github_gets_a_mark_for_each_and_nothing_can_break_out_of_its_line() {
        let marks = github(&[finding(Level::Error, Some("workers/a,b:c.yml")), finding(Level::Note, None)]);
        let expected = "\
::error file=workers/a%2Cb%3Ac.yml,line=3,col=1,title=CL0121::unknown key `retires`: 100%25%0Afix: write `retries: 5`
::notice title=CL0121::unknown key `retires`: 100%25%0Afix: write `retries: 5`
";
        assert_eq!(marks, expected);
    }

    #[test]
    fn j1_sarif_has_a_rule_for_each_code_and_a_place_for_each_result() {
        let log = sarif(&[finding(Level::Warning, Some("./my workers/a.yml")), finding(Level::Note, None)]);
        let run = &log["runs"][0];
        assert_eq!(log["version"], "2.1.0");
        assert_eq!(run["tool"]["driver"]["rules"].as_array().expect("a list").len(), 1);
        let (first, second) = (&run["results"][0], &run["results"][1]);
        assert_eq!(
            (&first["ruleId"], &first["ruleIndex"], &first["level"]),
            (&json!("CL0121"), &json!(0), &json!("warning"))
        );
        let place = &first["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "my%20workers/a.yml");
        assert_eq!(place["region"], json!({"startLine": 3, "startColumn": 1, "endLine": 3, "endColumn": 8}));
        assert_eq!((&second["level"], &second["locations"]), (&json!("note"), &Value::Null));
    }
}
