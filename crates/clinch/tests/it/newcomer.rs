//! A newcomer's path: from an empty directory, with nothing but the binary, everything works as it is printed.

use super::process::{PATIENCE, eventually};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Somebody with a shell, in a directory of his own.
struct Newcomer {
    at: PathBuf,
    home: tempfile::TempDir,
    servers: Vec<Child>,
}

impl Newcomer {
    fn new() -> Newcomer {
        let home = tempfile::tempdir().unwrap();
        Newcomer { at: home.path().to_path_buf(), home, servers: Vec::new() }
    }

    /// The line is given to a shell as it is. Ports are chosen by the environment: others may use the usual ones here.
    fn shell(&self, line: &str) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_clinch")).parent().unwrap();
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.at).env_clear();
        command.env("PATH", path).env("HOME", self.home.path()).env("TMPDIR", self.home.path());
        command.env("CLINCH_LISTEN", "127.0.0.1:0").env("CLINCH_ADMIN", "127.0.0.1:0");
        command
    }

    /// At a terminal, where he says yes when he is asked.
    fn agrees(&self, line: &str) -> Output {
        let mut command = self.shell("printf 'y\\n' | script -qec \"$LINE\" /dev/null");
        let output = command.env("LINE", line).output().unwrap();
        assert!(output.status.success(), "`{line}`: {}{}", text(&output.stdout), text(&output.stderr));
        output
    }

    fn run(&mut self, line: &str) -> Output {
        if let Some(directory) = line.strip_prefix("cd ") {
            self.at = self.at.join(directory);
            return self.shell("true").output().unwrap();
        }
        self.shell(line).output().unwrap()
    }

    /// Runs it and expects that it ends like this.
    fn runs(&mut self, line: &str, exit: i32) -> Output {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(exit), "`{line}`: {}{}", text(&output.stdout), text(&output.stderr));
        output
    }

    fn json(&mut self, line: &str, exit: i32) -> Value {
        let output = self.runs(line, exit);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("`{line}`: {}", text(&output.stdout)))
    }

    /// Starts a server and waits until it is ready.
    async fn serves(&mut self, line: &str) -> String {
        let log = self.home.path().join(format!("server-{}.log", self.servers.len()));
        let mut command = self.shell(&format!("exec {line}"));
        command.stderr(std::fs::File::create(&log).unwrap()).stdout(Stdio::null());
        self.servers.push(command.spawn().unwrap());
        let said = || std::fs::read_to_string(&log).unwrap();
        eventually("the server is ready", PATIENCE, async || said().lines().any(|line| line == "ready")).await;
        said()
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The commands that it says come next.
fn next(output: &Output) -> Vec<String> {
    text(&output.stderr).lines().filter_map(|line| line.strip_prefix("next: ")).map(String::from).collect()
}

/// The commands of a page, with the exit code that it says.
fn commands(page: &str) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    for block in page.split("```sh\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            let (command, comment) = line.split_once('#').unwrap_or((line, ""));
            let exit = comment.trim().strip_prefix("exit ").map_or(0, |code| code.parse().unwrap());
            found.push((command.trim().to_string(), exit));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_the_first_five_minutes_work_as_they_are_written_and_every_next_step_as_it_is_printed() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/start.md")).unwrap();
    let commands = commands(&page);
    assert!(commands.len() >= 10, "{commands:?}");
    let mut newcomer = Newcomer::new();
    let mut said = Vec::new();
    for (command, exit) in &commands {
        if command.starts_with("clinch serve") {
            said.push((command.clone(), newcomer.serves(command).await));
            continue;
        }
        let output = newcomer.runs(command, *exit);
        said.push((command.clone(), text(&output.stdout) + &text(&output.stderr)));
        // What `init` says comes next is on the page; all else that is said to come next is done at once.
        for step in next(&output).into_iter().filter(|step| !commands.iter().any(|(line, _)| line == step)) {
            let asks = step.contains("clinch apply");
            let output = if asks { newcomer.agrees(&step) } else { newcomer.runs(&step, 0) };
            said.push((step, text(&output.stdout) + &text(&output.stderr)));
        }
    }
    let said = |wanted: &str| {
        let found = said.iter().find(|(command, _)| command.starts_with(wanted));
        found.unwrap_or_else(|| panic!("nobody ran {wanted}: {said:?}")).1.clone()
    };
    assert!(said("clinch test").contains("8 tests: 8 ok, 0 failed"));
    assert!(said("clinch diff live ../next").contains("CL0204"), "{}", said("clinch diff live ../next"));
    // What `diff` says comes next is to try it on what came in, and then to apply it.
    let applied = said("clinch dry-run");
    assert!(applied.contains("3 events") && applied.contains("v2"), "{applied}");
    assert!(said("clinch serve --dev").contains("nobody outside is called"));
    assert!(said("clinch send contact-intake --fixture contact --key c-1 --wait").contains("success"));
    assert!(said("clinch send contact-intake --fixture contact --key c-1 --wait").contains("1 effect done"));
    assert!(said("clinch send contact-intake --fixture contact --key c-3").contains("auth_failed"));
    said("clinch replay apply");
    // After the replay nothing is dead: the first contact took one attempt though it was sent twice, the second three, the third two.
    let dead = newcomer.json("clinch dlq ls -o json", 0);
    assert_eq!(dead["jobs"].as_array().unwrap().len(), 0, "{dead}");
    let jobs = newcomer.json("clinch jobs ls -o json", 0);
    let states: Vec<&str> = jobs["jobs"].as_array().unwrap().iter().map(|job| job["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["success"; 3]);
    let attempts: Vec<u64> =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["attempts"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [2, 3, 1], "{jobs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_every_template_is_right_passes_its_own_tests_and_serves_its_first_event() {
    for template in ["contact-intake", "cart-recovery", "lead-router", "blank"] {
        let mut newcomer = Newcomer::new();
        let made = newcomer.runs(&format!("clinch init here --template {template}"), 0);
        let steps = next(&made);
        assert_eq!(steps.len(), 4, "{steps:?}");
        newcomer.runs(&steps[0], 0);
        let checked = newcomer.json("clinch check -o json", 0);
        assert_eq!((&checked["errors"], &checked["warnings"]), (&0.into(), &0.into()), "{template}: {checked}");
        let tested = newcomer.json(&format!("{} -o json", steps[1]), 0);
        assert_eq!(tested["failed"], 0, "{template}: {tested}");
        newcomer.serves(&steps[2]).await;
        let sent = newcomer.runs(&steps[3], 0);
        assert!(text(&sent.stdout).contains("success"), "{template}: {}", text(&sent.stdout));
        // Nothing of it is in the way of source control.
        let ignored = std::fs::read_to_string(newcomer.at.join(".gitignore")).unwrap();
        assert!(ignored.contains(".clinch") && newcomer.at.join(".clinch").is_dir());
    }
}

#[test]
fn j3_init_writes_over_nothing_that_is_there() {
    let mut newcomer = Newcomer::new();
    std::fs::create_dir(newcomer.at.join("mine")).unwrap();
    std::fs::write(newcomer.at.join("mine/notes.txt"), "keep").unwrap();
    std::fs::write(newcomer.at.join("mine/clinch.yml"), "mine").unwrap();
    let refused = newcomer.runs("clinch init mine", 5);
    assert!(text(&refused.stderr).contains("is not empty") && text(&refused.stdout).is_empty());
    assert_eq!(std::fs::read_to_string(newcomer.at.join("mine/clinch.yml")).unwrap(), "mine");
    assert!(!newcomer.at.join("mine/queues.yml").exists(), "nothing was written");
    let forced = newcomer.json("clinch init mine --force -o json", 0);
    assert_eq!(forced["template"], "contact-intake");
    assert_eq!(std::fs::read_to_string(newcomer.at.join("mine/notes.txt")).unwrap(), "keep");
    assert_ne!(std::fs::read_to_string(newcomer.at.join("mine/clinch.yml")).unwrap(), "mine");
    newcomer.runs("clinch init other --template nonsense", 2);
}

const LYING: &str = "
tests:
  - name: it says another thing than is so
    answers: {target: [500]}
    do:
      - {send: events, fixture: event, key: e-1, expect: {status: 200, state: success, attempts: 1}}
    calls:
      - {to: target, path: /elsewhere}
  - name: this one is so
    do: [{send: events, fixture: event, key: e-1, expect: {state: success}}]
";

#[test]
fn j4_a_test_that_is_not_so_fails_and_says_what_came_instead() {
    let mut newcomer = Newcomer::new();
    newcomer.runs("clinch init w --template blank", 0);
    newcomer.runs("cd w", 0);
    std::fs::write(newcomer.at.join("tests/lie.yml"), LYING).unwrap();
    let failed = newcomer.runs("clinch test tests/lie.yml --junit report.xml", 1);
    let told = text(&failed.stdout);
    for said in [
        "FAIL  it says another thing than is so  (tests/lie.yml:3)",
        "step 1: answer: expected status 200, got 202",
        "step 1: job of forward: expected 1 attempts, got 2",
        "call not expected: target POST /events -> 500",
        "calls target /elsewhere: expected 1, got 0",
        "ok    this one is so",
        "2 tests: 1 ok, 1 failed",
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    let report = std::fs::read_to_string(newcomer.at.join("report.xml")).unwrap();
    assert!(report.contains("tests=\"2\" failures=\"1\"") && report.contains("<failure message="), "{report}");
    let document = newcomer.json("clinch test tests/lie.yml -o json", 1);
    assert_eq!((&document["passed"], &document["failed"]), (&1.into(), &1.into()));
    newcomer.runs("clinch test --only 'nobody calls it that'", 3);
    std::fs::write(newcomer.at.join("tests/lie.yml"), "tests: [{name: x, do: [{sned: y}]}]").unwrap();
    let wrong = newcomer.runs("clinch test", 6);
    assert!(text(&wrong.stderr).contains("lie.yml:1:"), "{}", text(&wrong.stderr));
}

#[test]
fn j4_nobody_outside_is_called_by_a_test_whatever_address_is_written() {
    let mut newcomer = Newcomer::new();
    newcomer.runs("clinch init w --template blank", 0);
    newcomer.runs("cd w", 0);
    let worker = std::fs::read_to_string(newcomer.at.join("workers/events.yml")).unwrap();
    let away = worker.replace("{integration: target, url: /events,", "{url: 'https://198.51.100.7:8443/x',");
    assert_ne!(worker, away);
    std::fs::write(newcomer.at.join("workers/events.yml"), away).unwrap();
    let trial = "tests:\n  - name: x\n    do: [{send: events, fixture: event, key: k, expect: {state: success}}]\n    calls: [{to: '198.51.100.7:8443', path: /x}]\n";
    std::fs::write(newcomer.at.join("tests/events.yml"), trial).unwrap();
    newcomer.runs("clinch test", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn j4_stand_ins_are_there_in_dev_mode_alone_and_on_this_machine_alone() {
    let mut newcomer = Newcomer::new();
    newcomer.runs("clinch init w --template lead-router", 0);
    newcomer.runs("cd w", 0);
    let refused = newcomer.runs("CLINCH_LISTEN=0.0.0.0:0 clinch serve --dev", 6);
    assert!(text(&refused.stderr).contains("this machine alone"), "{}", text(&refused.stderr));
    // Without --dev the secrets must be there, and partners are called for real.
    let refused = newcomer.runs("clinch serve", 6);
    assert!(text(&refused.stderr).contains("FORM_SECRET"), "{}", text(&refused.stderr));
    let env = "FORM_SECRET=x CRM_URL=http://127.0.0.1:9 CRM_TOKEN=x ANALYTICS_URL=http://127.0.0.1:9";
    newcomer.serves(&format!("env {env} clinch serve --data-dir real")).await;
    let refused = newcomer.runs("clinch send leads --fixture lead --chaos crm=500 --data-dir real", 9);
    assert!(text(&refused.stderr).contains("CL0554"), "{}", text(&refused.stderr));
    // Who has the secret signs with it; who has not is refused.
    newcomer.runs("FORM_SECRET=x clinch send leads --fixture lead --data-dir real", 0);
    let unsigned = newcomer.runs("clinch send leads --fixture lead --data-dir real", 1);
    assert!(text(&unsigned.stderr).contains("FORM_SECRET is not set here"), "{}", text(&unsigned.stderr));

    newcomer.serves("clinch serve --dev --data-dir dev").await;
    newcomer.runs("clinch send leads --fixture lead --chaos nobody=500 --data-dir dev", 3);
    newcomer.runs("clinch send leads --fixture lead --bad-signature --data-dir dev", 1);
    newcomer
        .runs("clinch send leads --fixture lead --set submission_id=s-9 --chaos crm=500:1 --wait --data-dir dev", 0);
    let shown = newcomer.json("clinch jobs ls -o json --data-dir dev", 0);
    assert_eq!(shown["jobs"][0]["attempts"], 2, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_what_is_wrong_and_what_to_do_with_and_without_a_server() {
    use std::os::unix::fs::PermissionsExt;
    let mut newcomer = Newcomer::new();
    newcomer.runs("clinch init w --template blank", 0);
    newcomer.runs("cd w", 0);
    // Nothing runs, and a secret that is needed is not there.
    let told = newcomer.json("clinch doctor -o json", 1);
    let found = |told: &Value, area: &str, verdict: &str| {
        let findings = told["findings"].as_array().unwrap().iter();
        findings.filter(|one| one["area"] == area && one["verdict"] == verdict).count()
    };
    assert_eq!((found(&told, "secrets", "FAIL"), found(&told, "config", "ok")), (1, 1), "{told}");
    assert_eq!(found(&told, "store", "ok"), 1, "{told}");
    assert!(text(&newcomer.runs("clinch doctor secrets", 1).stdout).contains("fix: set TARGET_URL_FILE"));
    newcomer.runs("TARGET_URL=http://127.0.0.1:9 clinch doctor secrets", 0);
    newcomer.runs("clinch doctor nonsense", 2);

    newcomer.serves("clinch serve --dev").await;
    let told = newcomer.json("clinch doctor -o json --bundle ../report.tar.gz", 0);
    assert_eq!(told["server"]["engine"], "sqlite", "{told}");
    let token = std::fs::read_to_string(newcomer.at.join(".clinch/admin.token")).unwrap();
    let report = newcomer.runs("tar -xzOf ../report.tar.gz", 0);
    let report = text(&report.stdout);
    assert!(report.contains("clinch.doctor/v1") && report.contains("# TYPE"), "{report}");
    assert!(!report.contains(token.trim()), "the report has the token in it");
    // Others may look into the directory.
    std::fs::set_permissions(newcomer.at.join(".clinch"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let told = text(&newcomer.runs("clinch doctor permissions", 1).stdout);
    assert!(told.contains("fix: chmod 700"), "{told}");
    // A file that is wrong is no reason not to say what else there is.
    std::fs::write(newcomer.at.join("flows/events.yml"), "nonsense: [").unwrap();
    let told = newcomer.json("clinch doctor -o json", 1);
    assert_eq!((found(&told, "config", "FAIL"), found(&told, "store", "ok")), (1, 1), "{told}");
}

#[test]
fn j1_explain_knows_every_code_reason_and_exit() {
    let mut newcomer = Newcomer::new();
    let list = newcomer.json("clinch explain -o json", 0);
    let codes = list["codes"].as_array().unwrap().len();
    assert!(codes > 100, "{codes}");
    assert!(text(&newcomer.runs("clinch explain CL0116", 0).stdout).contains("forgotten before its job"));
    assert!(text(&newcomer.runs("clinch explain auth_failed", 0).stdout).contains("## Do this"));
    assert!(text(&newcomer.runs("clinch explain exit 7", 0).stdout).contains("does not answer"));
    assert!(text(&newcomer.runs("clinch explain CL9999", 3).stderr).contains("clinch explain lists them"));
    // What is printed can be explained as it is printed.
    let failed = text(&newcomer.runs("clinch check", 6).stderr);
    let explain = failed.lines().find_map(|line| line.split_once("explain: ")).unwrap().1.to_string();
    newcomer.runs(&explain, 0);
}
