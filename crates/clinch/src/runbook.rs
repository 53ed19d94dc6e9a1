//! What to do, by the name of what happened: pages that are in the binary, because at night the way to the documentation may be
//! what is broken.

use clinch_core::death::Reason;

macro_rules! runbooks {
    ($($name:literal)*) => {
        const ALL: &[(&str, &str)] = &[$(($name, include_str!(concat!("../runbooks/", $name, ".md"))),)*];
    };
}

runbooks! {
    "approval_expired" "approval_rejected" "auth_failed" "bad_payload" "budget_exhausted" "config_error" "egress_blocked" "forgotten"
    "internal" "missing_data" "policy_denied" "rate_limited" "rejected_by_target" "script_error" "target_down" "timeout" "too_old"
    "unknown_outcome" "unreadable"
}

/// A page, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runbook {
    pub name: &'static str,
    pub title: &'static str,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub heading: &'static str,
    pub lines: Vec<Line>,
}

impl Part {
    pub fn is_list(&self) -> bool {
        self.lines.iter().all(|line| line.is_step)
    }
}

/// A sentence of a page, or a step of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub is_step: bool,
    pub spans: Vec<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub is_code: bool,
    pub text: &'static str,
}

pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The text of a page.
pub fn text(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The page for dead letters of this reason.
pub fn of_reason(reason: Reason) -> &'static str {
    text(reason.word()).expect("every reason has a page, as the test says")
}

/// The page, taken apart.
pub fn find(name: &str) -> Option<Runbook> {
    let (name, text) = ALL.iter().find(|(known, _)| *known == name)?;
    let mut page = Runbook { name, title: "", parts: Vec::new() };
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            page.title = title;
        } else if let Some(heading) = line.strip_prefix("## ") {
            page.parts.push(Part { heading, lines: Vec::new() });
        } else if let (Some(part), false) = (page.parts.last_mut(), line.is_empty()) {
            part.lines.push(read_line(line));
        }
    }
    Some(page)
}

fn read_line(line: &'static str) -> Line {
    let step = line.split_once(". ").filter(|(no, _)| no.parse::<u8>().is_ok()).map(|(_, rest)| rest);
    let spans = step.unwrap_or(line).split('`').enumerate();
    let spans = spans.map(|(place, text)| Span { is_code: place % 2 == 1, text }).filter(|span| !span.text.is_empty());
    Line { is_step: step.is_some(), spans: spans.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i4_every_reason_has_a_page_with_the_same_six_parts() {
        for reason in Reason::ALL {
            let page = find(reason.word()).unwrap_or_else(|| panic!("write runbooks/{reason}.md"));
            let headings: Vec<&str> = page.parts.iter().map(|part| part.heading).collect();
            let six = ["What it means", "Who is affected", "Look here", "Do this", "If that fails", "Afterwards"];
            assert_eq!(headings, six, "{reason}");
            assert!(!page.title.is_empty() && page.parts.iter().all(|part| !part.lines.is_empty()), "{reason}");
            assert!(of_reason(*reason).starts_with("# "));
        }
    }

    #[test]
    fn a_line_is_words_and_commands() {
        let line = read_line("2. Run `clinch dlq groups` now.");
        assert!(line.is_step);
        let told: Vec<(bool, &str)> = line.spans.iter().map(|span| (span.is_code, span.text)).collect();
        assert_eq!(told, [(false, "Run "), (true, "clinch dlq groups"), (false, " now.")]);
        assert!(!read_line("It is 3. of all").is_step);
    }
}
