//! The signature doctor and the list of presets, as people and scripts use them.

use clinch_core::signature::settings::KNOWN;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";
const AT: &str = "1531420618";
/// From Slack's documentation.
const BODY: &str = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F\
hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.\
803a0bc887a14d10d2c447fce8b6703c";
const SIGNATURE: &str = "X-Slack-Signature: v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";

struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {:?}; {}", self.out, self.err))
    }
}

/// The real binary, with `input` on its standard input.
fn clinch(arguments: &[&str], input: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(arguments).env("DOCTOR_SECRET", SECRET);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Who refuses its arguments may have ended before it was told anything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// The doctor about Slack's request; later arguments are added.
fn doctor(secret: &[&str], at: &str, body: &str, more: &[&str]) -> Said {
    let time = format!("x-slack-request-timestamp: {AT}");
    let mut arguments = vec!["verify-signature", "--preset", "slack", "--body", "-", "--at", at];
    arguments.extend(secret);
    arguments.extend(["--header", SIGNATURE, "--header", &time]);
    arguments.extend(more);
    clinch(&arguments, body)
}

#[test]
fn a3_the_doctor_accepts_the_request_of_the_documentation_wherever_its_secret_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let file = file.to_str().unwrap();
    for secret in [["--secret", SECRET], ["--secret-env", "DOCTOR_SECRET"], ["--secret-file", file]] {
        let said = doctor(&secret, AT, BODY, &[]);
        assert_eq!(said.code, 0, "{secret:?}: {}{}", said.out, said.err);
        assert!(said.out.contains("accepted with secret 1"), "{}", said.out);
    }
    let rotated = doctor(&["--secret", "other", "--secret", SECRET], AT, BODY, &["--json"]);
    assert_eq!((rotated.code, &rotated.json()["secret"]), (0, &Value::from("2")));
}

#[test]
fn a3_the_doctor_says_which_check_failed_and_what_to_look_at() {
    let check = |said: Said, reason: &str, parts: &[&str]| {
        assert_eq!(said.code, 1, "{}{}", said.out, said.err);
        let told = said.json();
        assert_eq!((&told["accepted"], &told["reason"]), (&Value::from(false), &Value::from(reason)), "{told}");
        for part in parts {
            assert!(said.err.contains(part), "no `{part}` in {}", said.err);
        }
    };
    let good = ["--secret", SECRET];
    let json = ["--json"];
    check(doctor(&good, "1531420919", BODY, &json), "timestamp_out_of_tolerance", &["5m1s old", "clock"]);
    check(doctor(&good, "1531420317", BODY, &json), "timestamp_out_of_tolerance", &["5m1s in the future"]);
    check(
        doctor(&["--secret", "other"], AT, BODY, &json),
        "signature_invalid",
        &["another secret", "sender's settings"],
    );
    check(doctor(&good, AT, &format!("{BODY}\n"), &json), "signature_invalid", &["if the body has no white space"]);
    check(doctor(&good, AT, BODY, &["--json", "-H", SIGNATURE]), "signature_malformed", &["sent more than once"]);
    let bare = ["verify-signature", "--preset", "slack", "--secret", SECRET, "--body", "-", "--json"];
    check(clinch(&bare, BODY), "signature_missing", &["x-slack-signature", "drops headers"]);
}

#[test]
fn a3_the_doctor_reads_any_hmac_sender_from_settings() {
    // HMAC-SHA256 under `s3cret` of `1700000000.{}`, from another implementation.
    let arguments = |tolerance: &'static str| {
        let settings =
            ["header=X-Sig", "encoding=base64", "signed={timestamp}.{body}", "timestamp=header:X-Time", tolerance];
        let mut arguments = vec!["verify-signature", "--preset", "hmac", "--secret", "s3cret", "--body", "-"];
        settings.into_iter().for_each(|setting| arguments.extend(["--set", setting]));
        arguments.extend([
            "-H",
            "X-Sig: l5JoFumPu0HMsWcyJf8povNTaQmZkOGxVhZR570Jfr8=",
            "-H",
            "X-Time: 1700000000",
            "--at",
            "1700000030",
        ]);
        arguments
    };
    assert_eq!(clinch(&arguments("tolerance=1m"), "{}").code, 0);
    assert_eq!(clinch(&arguments("tolerance=10s"), "{}").code, 1);
    let said = clinch(&arguments("algorithm=sha1"), "{}");
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("allow_sha1"), "{}", said.err);
}

#[test]
fn a3_a_slip_of_the_pen_in_a_preset_is_understood_and_a_secret_is_needed() {
    for arguments in [
        &["presets", "show", "shopfy"][..],
        &["verify-signature", "--preset", "shopfy", "--secret", "s", "--body", "-"],
    ] {
        let said = clinch(arguments, "");
        assert_eq!((said.code, said.out.as_str()), (3, ""), "{}", said.err);
        assert!(said.err.contains("did you mean `shopify`?"), "{}", said.err);
    }
    assert_eq!(clinch(&["verify-signature", "--preset", "stripe", "--body", "-"], "").code, 2);
    let missing = clinch(&["verify-signature", "--preset", "stripe", "--secret-env", "NOT_THERE", "--body", "-"], "");
    assert_eq!(missing.code, 2, "{}", missing.err);
}

#[test]
fn t040_the_doctor_shows_neither_a_secret_nor_a_signature() {
    let standard = ["verify-signature", "--preset", "standardwebhooks", "--secret", "hunter2hunter2", "--body", "-"];
    for said in [
        doctor(&["--secret", SECRET], "1", "x", &[]),
        doctor(&["--secret", SECRET], AT, BODY, &["--json"]),
        clinch(&standard, "{}"),
    ] {
        for hidden in [SECRET, "a2114d57", "hunter2"] {
            assert!(!said.out.contains(hidden) && !said.err.contains(hidden), "{}{}", said.out, said.err);
        }
    }
}

#[test]
fn a3_presets_are_listed_for_people_and_for_programs() {
    let plain = clinch(&["presets", "ls", "-o", "id"], "");
    let names: Vec<&str> = plain.out.lines().collect();
    assert!(names.len() >= 25 && names.contains(&"standardwebhooks") && names.contains(&"hubspot-v3"), "{names:?}");
    let shown = clinch(&["presets", "show", "google-ads"], "");
    assert!(shown.out.contains("lead.created") && shown.out.contains("/google_key"), "{}", shown.out);
    let told = clinch(&["presets", "show", "zoom", "--json"], "").json();
    assert_eq!((&told["ack"], &told["handshake_is_signed"]), (&Value::from(200), &Value::from(true)));
}

#[test]
fn a3_the_table_of_presets_in_the_documentation_is_the_one_in_the_code() {
    let told = clinch(&["presets", "ls", "--json"], "").json();
    let row = |preset: &Value| {
        let text = |name: &str| preset[name].as_str().unwrap_or("-").to_string();
        let id = text("id") + if preset["id_is_signed"] == true { "" } else { " (not signed)" };
        let cells = [
            format!("`{}`", text("name")),
            text("title"),
            format!("`{}`", text("signature")),
            text("tolerance"),
            id,
            preset["ack"].to_string(),
            text("retries"),
            text("handshake"),
        ];
        format!("| {} |\n", cells.join(" | "))
    };
    let rows: String = told["presets"].as_array().unwrap().iter().map(row).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md");
    let page = std::fs::read_to_string(page).unwrap();
    let settings: String = KNOWN.iter().map(|(name, meaning)| format!("| `{name}` | {meaning} |\n")).collect();
    assert!(page.contains(&settings), "put these rows into docs/sources.md:\n{settings}");
    assert!(page.contains(&rows), "put these rows into docs/sources.md:\n{rows}");
}
