//! Secrets in files: who may read them, what happens when they change, and that nobody else sees them.

use crate::process::{AGAIN, PATIENCE, Place, Server, client, eventually};
use crate::world::Answer;
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FIRST: &str = "the first secret of the hub";
const SECOND: &str = "the second secret of the hub";

async fn place() -> Place {
    let place = Place::new(&[AGAIN]).await;
    place.write("clinch.yml", "sources:\n  hub: {verify: github, secret: '${secrets.HUB}'}\n");
    place.write(
        "flows/edge.yml",
        "name: edge\ntriggers:\n  - source: hub\nsteps:\n  - name: enqueue\n    queue: {name: again}\n",
    );
    place
}

/// Written aside and renamed, as tools do it.
fn write(path: &Path, text: &str, mode: u32) {
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).unwrap();
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::rename(aside, path).unwrap();
}

/// A delivery with a key of its own, signed with this secret.
async fn send(server: &Server, secret: &str, key: &str) -> Answer {
    let body = format!(r#"{{"id":"{key}"}}"#);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body.as_bytes());
    let request = client()
        .post(format!("{}/in/hub", server.intake))
        .header("x-hub-signature-256", format!("sha256={}", HEXLOWER.encode(tag.as_ref())))
        .header("x-github-delivery", key)
        .header("x-github-event", "push")
        .body(body);
    Answer::read(request.send().await.unwrap()).await
}

/// Tells the server to read its secrets again, and waits until it has.
async fn hang_up(server: &Server) {
    let told = |server: &Server| server.said().matches("secrets were read again").count();
    let before = told(server);
    server.signal(Signal::HUP);
    eventually("secrets are read again", PATIENCE, async || told(server) > before).await;
}

/// It answers like this, as soon as its doors have taken what was read.
async fn becomes(server: &Server, secret: &str, key: &str, status: u16) -> Answer {
    let mut last = None;
    eventually("the doors take what was read", PATIENCE, async || {
        let answer = send(server, secret, key).await;
        let is_so = answer.status == status;
        last = Some(answer);
        is_so
    })
    .await;
    last.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn t111_a_secret_in_a_file_that_others_can_read_or_that_is_missing_keeps_the_server_from_starting() {
    let place = place().await;
    let file = place.dir.path().join("hub.secret");
    let path = file.to_str().unwrap();
    let refused = async |env: &[(&str, &str)], why: &str| {
        let mut server = place.spawn(env);
        assert_eq!(server.exited().await.code(), Some(6), "{}", server.said());
        let said = server.said();
        assert!(said.contains("HUB (source `hub`)") && said.contains(why), "{said}");
        assert!(!said.contains(FIRST), "{said}");
        assert!(!place.data_dir.exists(), "a start that fails leaves no data behind");
    };
    refused(&[("HUB_FILE", path)], "No such file").await;
    write(&file, FIRST, 0o644);
    refused(&[("HUB_FILE", path)], "(mode 0644)").await;
    write(&file, "\n", 0o600);
    refused(&[("HUB_FILE", path)], "is empty").await;
    write(&file, FIRST, 0o600);
    refused(&[("HUB_FILE", path), ("HUB", FIRST)], "keep one of them").await;
    let server = place.start_with(&[("HUB_FILE", path)]).await;
    assert_eq!(send(&server, FIRST, "k-1").await.status, 202);
    let said = server.said();
    assert!(said.contains("secrets  1 from the environment"), "NODE is one, HUB is not: {said}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t111_a_credential_of_systemd_is_a_secret() {
    let place = place().await;
    let directory: PathBuf = place.dir.path().join("credentials");
    std::fs::create_dir(&directory).unwrap();
    write(&directory.join("HUB"), &format!("{FIRST}\n"), 0o440);
    let server = place.start_with(&[("CREDENTIALS_DIRECTORY", directory.to_str().unwrap())]).await;
    assert_eq!(send(&server, FIRST, "k-1").await.status, 202);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t006_t013_a_new_secret_counts_without_a_restart_and_one_that_is_gone_lets_nobody_in() {
    let place = place().await;
    let file = place.dir.path().join("hub.secret");
    write(&file, FIRST, 0o600);
    let server = place.start_with(&[("HUB_FILE", file.to_str().unwrap()), ("CLINCH_LOG", "debug")]).await;
    assert_eq!(send(&server, FIRST, "k-1").await.status, 202);

    write(&file, SECOND, 0o600);
    assert_eq!(send(&server, FIRST, "k-2").await.status, 202, "nothing changes before it is told");
    hang_up(&server).await;
    becomes(&server, SECOND, "k-3", 202).await;
    send(&server, FIRST, "k-4").await.check_problem(401, "signature-invalid");

    std::fs::remove_file(&file).unwrap();
    hang_up(&server).await;
    let shut = becomes(&server, SECOND, "k-5", 503).await;
    let problem = shut.check_problem(503, "verification-unavailable");
    assert!(shut.header("retry-after").is_some() && !problem.to_string().contains("hub.secret"), "{problem}");
    send(&server, FIRST, "k-6").await.check_problem(503, "verification-unavailable");
    let unsigned = client().post(format!("{}/in/hub", server.intake)).body("{}").send().await.unwrap();
    assert_eq!(unsigned.status(), 503, "who does not sign is not let in either");

    write(&file, SECOND, 0o644);
    hang_up(&server).await;
    send(&server, SECOND, "k-5").await.check_problem(503, "verification-unavailable");
    write(&file, FIRST, 0o400);
    hang_up(&server).await;
    let back = becomes(&server, FIRST, "k-5", 202).await;
    assert!(!back.is_replayed(), "what was answered 503 claimed no key");
    place.drained().await;
    assert_eq!(place.sink.count(), 4, "k-1, k-2, k-3 and k-5");

    // T-110: nothing of it is in the log, nor will it be in a core dump.
    let said = server.said();
    assert!(said.contains("secret HUB: ") && said.contains("answer 503"), "{said}");
    assert!(!said.contains(FIRST) && !said.contains(SECOND), "{said}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let core: Vec<&str> =
        limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap().split_whitespace().collect();
    assert_eq!(core[..2], ["0", "0"]);
    server.stop().await;
    assert_eq!(place.report().problems, Vec::<String>::new());
}
