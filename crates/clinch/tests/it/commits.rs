//! Commits: what a change of a workspace means from one to the next, as a real git tells them.

use crate::world::{FLOW, NO_WORKER, QUEUES, WORKER, World};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A repository in which the workspace is not at the top.
struct Repository {
    place: tempfile::TempDir,
}

const INSIDE: &str = "crm/workspace";

impl Repository {
    /// One commit, on the branch `main`.
    fn new() -> Repository {
        let repository = Repository { place: tempfile::tempdir().unwrap() };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        for (path, text) in [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", WORKER)] {
            repository.write(path, text);
        }
        repository.write("flows/notes.txt", "no file of a workspace");
        repository.commit("the first");
        repository
    }

    fn workspace(&self) -> PathBuf {
        self.place.path().join(INSIDE)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.workspace().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.replace("TARGET", "crm.example.com")).unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        for setting in ["user.name=Ada", "user.email=ada@example.com", "commit.gpgsign=false"] {
            command.args(["-c", setting]);
        }
        command.current_dir(self.place.path()).args(arguments).stdin(Stdio::null());
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let said = command.output().expect("git is installed");
        assert!(said.status.success(), "{arguments:?}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    }

    fn commit(&self, message: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
    }

    /// In its workspace, where no server runs.
    fn clinch(&self, arguments: &[&str]) -> (i32, String) {
        clinch(&self.workspace(), &self.place.path().join("data"), arguments)
    }
}

fn clinch(directory: &Path, data: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(arguments).current_dir(directory).env("CLINCH_DATA_DIR", data).env_remove("CLINCH_URL");
    let said = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (said.status.code().unwrap(), text(said.stdout) + &text(said.stderr))
}

const ATTEMPTS: &str = "retry.max_attempts  3 -> 2";
const TTL: &str = "CL0201 keys are forgotten after 4h instead of 2d";

#[test]
fn j2_commits_are_compared_with_each_other_and_with_the_files_of_now_without_a_server() {
    let repository = Repository::new();
    repository.git(&["tag", "v1.2"]);
    repository.write("workers/charge.yml", &WORKER.replace("max_attempts: 3", "max_attempts: 2"));
    repository.commit("fewer attempts");
    repository.git(&["branch", "v7"]);
    repository.write("flows/orders.yml", &FLOW.replace("ttl: 48h", "ttl: 4h"));

    let check = |arguments: &[&str], attempts: bool, ttl: bool| {
        let (code, said) = repository.clinch(&[&["diff"], arguments].concat());
        assert_eq!(code, 0, "{arguments:?}: {said}");
        assert_eq!((said.contains(ATTEMPTS), said.contains(TTL)), (attempts, ttl), "{arguments:?}: {said}");
        said
    };
    let said = check(&["main"], false, true);
    assert!(said.starts_with("git main ") && said.contains(")  ->  . ("), "{said}");
    check(&["HEAD~1"], true, true);
    check(&["HEAD"], false, true);
    check(&["v1.2", "."], true, true);
    let said = check(&["v1.2", "main"], true, false);
    assert!(said.contains("git v1.2 ") && said.contains("->  git main "), "{said}");
    let id = repository.git(&["rev-parse", "HEAD~1"]);
    check(&[id.trim(), "HEAD"], true, false);
    assert_eq!(repository.clinch(&["diff", "main", "HEAD", "--exit-code"]).0, 0);
    assert_eq!(repository.clinch(&["diff", "main", "--exit-code"]).0, 10);

    // From elsewhere the directory says which repository is meant.
    let (elsewhere, directory) = (tempfile::tempdir().unwrap(), repository.workspace().display().to_string());
    let (code, marks) = clinch(elsewhere.path(), elsewhere.path(), &["diff", "main", &directory, "--format", "github"]);
    assert_eq!(code, 0, "{marks}");
    assert!(marks.contains(&format!("::warning file={directory}/flows/orders.yml,line=")), "{marks}");
    let status = repository.git(&["status", "--porcelain"]);
    assert_eq!(status, format!(" M {INSIDE}/flows/orders.yml\n"), "nothing was written");

    // What can be a version is one, whatever git knows; and a directory is one.
    let (code, said) = repository.clinch(&["diff", "v7"]);
    assert!(code != 0 && said.contains("No server is running"), "{said}");
    std::fs::create_dir(repository.workspace().join("main")).unwrap();
    let (code, said) = repository.clinch(&["diff", "main", "."]);
    assert!(code == 6 && said.contains("There is no workspace in main"), "{said}");
}

#[test]
fn j2_what_is_no_commit_with_a_plain_workspace_is_refused_and_says_what_was_tried() {
    let repository = Repository::new();
    let refused = |arguments: &[&str], code: i32, said: &str| {
        let told = repository.clinch(&[&["diff"], arguments].concat());
        assert!(told.0 == code && told.1.contains(said), "{arguments:?}: {told:?}");
    };
    let tried = "`nowhere` is neither a version, nor `live`, nor a directory, nor a commit of git: git knows no such commit here";
    refused(&["nowhere"], 3, tried);
    refused(&["main..HEAD"], 3, "nor a commit of git");
    refused(&["main:crm"], 3, "nor a commit of git");
    refused(&["", "."], 3, "nor a commit of git");
    refused(&["--", "--output=stolen"], 3, "does not begin with `-`");
    assert!(!repository.workspace().join("stolen").exists());
    let outside = tempfile::tempdir().unwrap();
    let (code, said) = clinch(outside.path(), outside.path(), &["diff", "main"]);
    assert!(code == 3 && said.contains("not a git repository"), "{said}");

    // A commit from before the directory.
    let other = repository.place.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for (path, text) in [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", WORKER)] {
        std::fs::create_dir_all(other.join(path).parent().unwrap()).unwrap();
        std::fs::write(other.join(path), text.replace("TARGET", "crm.example.com")).unwrap();
    }
    refused(&["main", &other.display().to_string()], 3, "there is no directory `other` in it");

    // Files that were wrong are told as `check` tells them, where they were.
    repository.write("workers/charge.yml", &WORKER.replace("max_attempts", "max_attemps"));
    repository.commit("a slip");
    repository.write("workers/charge.yml", WORKER);
    refused(&["HEAD"], 6, "HEAD:crm/workspace/workers/charge.yml:5:");

    std::os::unix::fs::symlink("/etc/hostname", repository.workspace().join("flows/else.yml")).unwrap();
    repository.commit("a link");
    refused(&["HEAD", "HEAD~2"], 3, "`flows/else.yml` is a symbolic link there, which is not followed");
    std::fs::remove_file(repository.workspace().join("flows/else.yml")).unwrap();
    repository.write("templates/long.txt", &"x".repeat(33 << 20));
    repository.commit("too much");
    refused(&["HEAD", "HEAD~3"], 3, "its workspace is too large");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_a_commit_is_compared_with_what_is_live() {
    let repository = Repository::new();
    let world = World::with_roles(NO_WORKER, &[]).await;
    let live = clinch::workspace::read_files(&world.workspace_dir()).unwrap();
    for (path, text) in &live.0 {
        repository.write(path, text);
    }
    repository.commit("what is live");
    repository.write("workers/charge.yml", &live.0.iter().find(|(path, _)| path == "workers/charge.yml").unwrap().1);
    repository.write("flows/orders.yml", &FLOW.replace("ttl: 48h", "ttl: 4h"));
    repository.commit("shorter");
    let run = async |arguments: &'static [&'static str]| {
        let (directory, data) = (repository.workspace(), world.data_dir());
        tokio::task::spawn_blocking(move || clinch(&directory, &data, arguments)).await.unwrap()
    };
    let (code, said) = run(&["diff", "live", "HEAD"]).await;
    assert!(code == 0 && said.contains("live v1 (") && said.contains("->  git HEAD "), "{said}");
    assert!(said.contains(TTL) && said.contains("In flight: no job"), "{said}");
    let (code, said) = run(&["diff", "HEAD~1", "live", "--exit-code"]).await;
    assert!(code == 0 && said.contains("nothing is different"), "{said}");
    // Recorded events may be held against a commit, too.
    world.post("k-1", "{}").await;
    let (code, said) = run(&["dry-run", "--last", "5", "--against", "HEAD~1", "--exit-code"]).await;
    assert!(code == 0 && said.starts_with("git HEAD~1 ") && said.contains("1  same plan"), "{said}");
}
