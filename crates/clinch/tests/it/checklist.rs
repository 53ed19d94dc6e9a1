//! The idempotency audit, on workspaces that are as they should be and on some that are not.

use crate::cli::{Said, clinch};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn audit(directory: &Path, more: &[&str]) -> Said {
    let data_dir = tempfile::tempdir().unwrap();
    clinch(data_dir.path(), &[&["audit-idempotency", directory.to_str().unwrap()], more].concat())
}

fn bad(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/audit").join(name)
}

#[test]
fn j6_three_bad_workspaces_get_the_checklists_that_they_deserve() {
    for name in ["keyless", "forgetful", "careless"] {
        let said = audit(&bad(name), &[]);
        assert_eq!(said.code, 0, "{}", said.err);
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(format!("audit_{name}"), said.out));
        assert_eq!(audit(&bad(name), &["--exit-code"]).code, 10, "{name}");
    }
}

#[test]
fn j6_every_answer_that_is_no_pass_names_a_line_that_is_there_and_what_to_write() {
    for name in ["keyless", "forgetful", "careless"] {
        let document = audit(&bad(name), &["-o", "json"]).json();
        let stages = document["stages"].as_array().unwrap();
        assert_eq!(stages.len(), 6);
        let items: Vec<_> = stages.iter().flat_map(|stage| stage["items"].as_array().unwrap()).collect();
        let mut counted = [0; 3];
        for item in &items {
            let text = std::fs::read_to_string(bad(name).join(item["file"].as_str().unwrap())).unwrap();
            let line = usize::try_from(item["line"].as_u64().unwrap()).unwrap();
            assert!((1..=text.lines().count()).contains(&line), "{item}");
            let verdict = ["pass", "fail", "unknown"].iter().position(|word| item["verdict"] == *word).unwrap();
            assert_eq!(item["fix"].is_null(), verdict == 0, "{item}");
            counted[verdict] += 1;
        }
        assert!(counted.iter().all(|count| *count > 0), "{name}: {counted:?}");
        assert_eq!(
            [&document["pass"], &document["fail"], &document["unknown"]],
            counted.map(serde_json::Value::from).each_ref()
        );

        let marks = audit(&bad(name), &["--format", "github"]).out;
        assert_eq!(marks.lines().count(), counted[1] + counted[2], "{marks}");
        assert_eq!(marks.lines().filter(|mark| mark.starts_with("::error ")).count(), counted[1], "{marks}");
        let sarif = audit(&bad(name), &["--format", "sarif"]).json();
        assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), counted[1] + counted[2], "{sarif}");
    }
}

#[test]
fn j6_of_what_clinch_init_writes_nothing_fails() {
    for template in ["contact-intake", "cart-recovery", "lead-router", "blank"] {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("shop");
        let made = clinch(place.path(), &["init", "--template", template, directory.to_str().unwrap()]);
        assert_eq!(made.code, 0, "{}", made.err);
        let said = audit(&directory, &["--exit-code"]);
        assert_eq!(said.code, 0, "{template}: {}{}", said.out, said.err);
        assert!(said.out.contains(", 0 fail, "), "{template}: {}", said.out);
        assert!(said.out.contains("a duplicate gets the first answer again"), "{template}: {}", said.out);
    }
}

#[test]
fn j6_of_the_examples_nothing_fails_but_that_they_have_no_tests() {
    for name in ["contact-intake", "cart-recovery", "lead-router"] {
        let said = audit(&root().join("examples").join(name), &["-o", "json"]);
        assert_eq!(said.code, 0, "{}", said.err);
        for stage in said.json()["stages"].as_array().unwrap() {
            let items = stage["items"].as_array().unwrap();
            let failed: Vec<_> = items.iter().filter(|item| item["verdict"] == "fail").collect();
            assert!(failed.is_empty() || stage["stage"] == "tests", "{name}: {failed:#?}");
        }
    }
}

#[test]
fn j6_a_workspace_with_errors_is_not_audited() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("queues.yml"), "queues: 7\n").unwrap();
    let said = audit(directory.path(), &[]);
    assert_eq!((said.code, said.out.as_str()), (6, ""), "{}", said.err);
    assert!(said.err.contains("clinch check"), "{}", said.err);
}
