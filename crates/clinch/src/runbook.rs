//! What to do, by the name of what happened: pages that are in the binary, because at night the way to the documentation may be
//! what is broken. A workspace may have its own in `runbooks/NAME.md`, which are shown instead.

use std::path::{Path, PathBuf};

/// No page is longer.
const PAGE_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 80;

macro_rules! runbooks {
    ($($name:literal)*) => {
        const ALL: &[(&str, &str)] = &[$(($name, include_str!(concat!("../runbooks/", $name, ".md"))),)*];
    };
}

runbooks! {
    "approval_expired" "approval_rejected" "auth_failed" "bad_payload" "budget_exhausted" "config_error" "egress_blocked" "forgotten"
    "internal" "missing_data" "policy_denied" "rate_limited" "rejected_by_target" "script_error" "target_down" "timeout" "too_old"
    "unknown_outcome" "unreadable"
    "ClinchApprovalsOverdue" "ClinchBadSignatures" "ClinchBudgetExhausted" "ClinchCircuitOpen" "ClinchConfigReloadFailed"
    "ClinchDeadLetterOld" "ClinchDeadLettersGrowing" "ClinchDedupMisses" "ClinchDown" "ClinchEffectsUnknown" "ClinchEndToEndSlow"
    "ClinchErrorRate" "ClinchIntakeFailing" "ClinchJobsOld" "ClinchKeyConflicts" "ClinchNotificationsFailing"
    "ClinchObjectiveBurning" "ClinchObjectiveBurningSlowly" "ClinchQueueDeep" "ClinchQueueStalled" "ClinchReplayRunning" "ClinchSafeModeLong" "ClinchSourceSilent" "ClinchStoreAlmostFull"
    "ClinchStoreFailing"
}

/// The text of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub text: String,
    /// The workspace's own.
    pub is_own: bool,
}

/// A page, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runbook {
    pub name: String,
    pub title: String,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub heading: String,
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
    pub text: String,
}

/// All pages: those of this workspace among them.
pub fn names(workspace: Option<&Path>) -> Vec<String> {
    let own = workspace.and_then(|directory| std::fs::read_dir(directory.join("runbooks")).ok());
    let own = own.into_iter().flatten().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_suffix(".md").filter(|name| is_name(name)).map(str::to_string)
    });
    let mut names: Vec<String> = ALL.iter().map(|(name, _)| name.to_string()).chain(own).collect();
    names.sort_by_key(|name| name.to_lowercase());
    names.dedup();
    names
}

/// A name leads nowhere but to a page.
fn is_name(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(fine)
}

/// The page of this name: the workspace's own if there is one.
pub fn page(workspace: Option<&Path>, name: &str) -> Option<Page> {
    if !is_name(name) {
        return None;
    }
    let own = workspace.and_then(|directory| read(&directory.join("runbooks").join(format!("{name}.md"))));
    let shipped = || ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_string());
    match own {
        Some(text) => Some(Page { text, is_own: true }),
        None => Some(Page { text: shipped()?, is_own: false }),
    }
}

fn read(path: &PathBuf) -> Option<String> {
    let size = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?.len();
    if size > PAGE_BYTES_MAX {
        tracing::warn!("{} is longer than a page may be; the one that clinch has is shown", path.display());
        return None;
    }
    std::fs::read_to_string(path).ok()
}

/// The page, taken apart.
pub fn read_page(name: &str, text: &str) -> Runbook {
    let mut page = Runbook { name: name.into(), title: name.into(), parts: Vec::new() };
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            page.title = title.into();
        } else if let Some(heading) = line.strip_prefix("## ") {
            page.parts.push(Part { heading: heading.into(), lines: Vec::new() });
        } else if !line.is_empty() {
            // A page of somebody else's may begin without a heading.
            if page.parts.is_empty() {
                page.parts.push(Part { heading: String::new(), lines: Vec::new() });
            }
            page.parts.last_mut().expect("there is one").lines.push(read_line(line));
        }
    }
    page
}

fn read_line(line: &str) -> Line {
    let step = line.split_once(". ").filter(|(no, _)| no.parse::<u8>().is_ok()).map(|(_, rest)| rest);
    let spans = step.unwrap_or(line).split('`').enumerate();
    let spans = spans.map(|(place, text)| Span { is_code: place % 2 == 1, text: text.into() });
    Line { is_step: step.is_some(), spans: spans.filter(|span| !span.text.is_empty()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::alert::RULES;
    use clinch_core::death::Reason;
    use clinch_core::time::human;

    fn shipped(name: &str) -> Runbook {
        let page = page(None, name).unwrap_or_else(|| panic!("write runbooks/{name}.md"));
        read_page(name, &page.text)
    }

    #[test]
    fn i4_every_alert_and_every_reason_has_a_page_with_the_same_six_parts() {
        let reasons = Reason::ALL.iter().map(|reason| reason.word());
        for name in RULES.iter().map(|rule| rule.name).chain(reasons) {
            let page = shipped(name);
            let headings: Vec<&str> = page.parts.iter().map(|part| part.heading.as_str()).collect();
            let six = ["What it means", "Who is affected", "Look here", "Do this", "If that fails", "Afterwards"];
            assert_eq!(headings, six, "{name}");
            assert!(page.title != name && page.parts.iter().all(|part| !part.lines.is_empty()), "{name}");
        }
        assert_eq!(names(None).len(), RULES.len() + Reason::ALL.len(), "a page that nothing leads to");
    }

    #[test]
    fn i4_the_page_of_an_alert_begins_with_its_first_command() {
        for rule in RULES {
            let command: Vec<&str> = rule.command.split(' ').take(2).collect();
            let look = &shipped(rule.name).parts[2];
            let first = look.lines.iter().flat_map(|line| &line.spans).find(|span| span.is_code);
            let first = first.unwrap_or_else(|| panic!("{}: no command", rule.name));
            assert!(
                first.text.starts_with(&command.join(" ")),
                "{}: {} is not {}",
                rule.name,
                first.text,
                rule.command
            );
        }
    }

    #[test]
    fn i4_a_workspace_has_pages_of_its_own_and_no_name_leads_elsewhere() {
        let workspace = tempfile::tempdir().expect("a directory");
        let own = workspace.path().join("runbooks");
        std::fs::create_dir(&own).expect("made");
        std::fs::write(own.join("ClinchDown.md"), "# Ours\n\n## Do this\nCall Maya.\n").expect("written");
        std::fs::write(own.join("house-rules.md"), "Only text.\n").expect("written");
        std::fs::write(workspace.path().join("secret.md"), "no page").expect("written");
        let found = |name: &str| page(Some(workspace.path()), name);
        assert_eq!(found("ClinchDown").map(|page| (page.text.contains("Maya"), page.is_own)), Some((true, true)));
        assert_eq!(found("timeout").map(|page| page.is_own), Some(false));
        assert_eq!(read_page("house-rules", &found("house-rules").expect("it is there").text).parts.len(), 1);
        for bad in ["../secret", "", "a/b", "x.y", "nothing"] {
            assert_eq!(found(bad), None, "{bad}");
        }
        assert!(names(Some(workspace.path())).contains(&"house-rules".to_string()));
        std::fs::write(own.join("timeout.md"), "x".repeat(70_000)).expect("written");
        assert_eq!(found("timeout").map(|page| page.is_own), Some(false), "it is too long");
    }

    #[test]
    fn h4_the_pages_about_alerts_have_every_rule_as_it_is() {
        let (alerts, runbook) = (include_str!("../../../docs/alerts.md"), include_str!("../../../docs/runbook.md"));
        for rule in RULES {
            let limit = if rule.has_limit() { rule.unit.told(rule.limit) } else { "–".into() };
            let after = if rule.judge.is_some() { human(rule.after) } else { "–".into() };
            let (severity, lasts) = (rule.severity, human(rule.lasts));
            let row = format!("| `{}` | {severity} | {} | {limit} | {after} | {lasts} |", rule.name, rule.summary);
            assert!(alerts.contains(&row), "docs/alerts.md needs: {row}");
            assert!(runbook.contains(&format!("`{}`", rule.name)), "docs/runbook.md does not have {}", rule.name);
        }
        for reason in Reason::ALL {
            assert!(runbook.contains(&format!("`{reason}`")), "docs/runbook.md does not have {reason}");
        }
    }

    #[test]
    fn a_line_is_words_and_commands() {
        let line = read_line("2. Run `clinch dlq groups` now.");
        assert!(line.is_step);
        let told: Vec<(bool, &str)> = line.spans.iter().map(|span| (span.is_code, span.text.as_str())).collect();
        assert_eq!(told, [(false, "Run "), (true, "clinch dlq groups"), (false, " now.")]);
        assert!(!read_line("It is 3. of all").is_step);
    }
}
