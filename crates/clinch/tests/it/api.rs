//! The API as machines meet it: its document holds for every answer, and a command under a key is carried out once.

use crate::world::{Answer, FLOW, Reply, World};
use clinch_core::job::Word;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const BODY: &str = r#"{"order":7,"email":"ada@example.com"}"#;

/// What Schemathesis may take, at most.
const ASKING_MAX: Duration = Duration::from_secs(900);

#[tokio::test(flavor = "multi_thread")]
async fn i1_schemathesis_finds_no_server_error_and_no_answer_that_breaks_the_document() {
    let refunds = FLOW.replace("name: orders\ntriggers", "name: refunds\ntriggers");
    let world = World::new(&[("flows/refunds.yml", &refunds.replace("/hooks/orders", "/hooks/refunds"))]).await;
    world.post_and_wait("good", BODY, Word::Success).await;
    world.post("good", BODY).await;
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("bad", BODY, Word::Dead).await;
    let asked = world.schemathesis();
    let asked = tokio::time::timeout(ASKING_MAX, asked).await.expect("it comes to an end").unwrap();
    let said = String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{said}");
    assert!(said.contains("Test cases:") && !said.contains(" 0 generated"), "{said}");
    world.close_and_verify().await;
}

impl World {
    /// Asks what the document allows and what it does not, from a fixed seed.
    fn schemathesis(&self) -> impl Future<Output = std::io::Result<std::process::Output>> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders/venv/bin/schemathesis");
        assert!(program.exists(), "schemathesis is missing; scripts/test installs it");
        let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
        Command::new(program)
            .args(["run", &self.admin_url("/api/v1/openapi.json"), "--no-color", "--seed", "7", "--max-examples", "10"])
            .args(["--checks", checks, "--phases", "examples,coverage,fuzzing", "--generation-database", "none"])
            // A stream has no end that could be waited for.
            .args(["--exclude-path", "/api/v1/stream"])
            .args(["--workers", "1", "--no-shrink", "--header", &format!("Authorization: Bearer {}", self.token())])
            .current_dir(self.data_dir())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
    }

    /// A command under a key.
    async fn once(&self, key: &str, path: &str, ask: Value) -> Answer {
        let request = self.request(reqwest::Method::POST, path).header("idempotency-key", key).body(ask.to_string());
        Answer::read(request.send().await.unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_the_document_is_served_and_printed() {
    let world = World::new(&[]).await;
    let served = world.admin("/api/v1/openapi.json").await.json();
    assert_eq!(served["openapi"], "3.1.0");
    let (exit, printed) = world.clinch(&["openapi"]).await;
    assert_eq!(exit, 0);
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), served);
    world.admin_as(None, "/api/v1/openapi.json").await.check_problem(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_command_under_a_key_is_carried_out_once_and_answered_alike() {
    let world = World::new(&[]).await;
    let ask = json!({"scope": "queue:orders", "reason": "a look"});
    let first = world.once("k-1", "/api/v1/pauses", ask.clone()).await;
    assert_eq!((first.status, first.is_replayed()), (200, false), "{}", first.body);
    let again = world.once("k-1", "/api/v1/pauses", ask.clone()).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (200, true, &first.body));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    let record = world.admin("/api/v1/audit?action=pause.*").await.json();
    assert_eq!(record["audit"].as_array().unwrap().len(), 1, "it is on record once: {record}");
    // Another command, or the same to another place, is not the same.
    let other = json!({"scope": "queue:orders", "reason": "another"});
    world.once("k-1", "/api/v1/pauses", other).await.check_problem(422, "key-reused");
    world.once("k-1", "/api/v1/safe-mode", ask.clone()).await.check_problem(422, "key-reused");
    assert!(!world.once("k-2", "/api/v1/pauses", ask).await.is_replayed());
    // What was refused claims no key.
    let job = "/api/v1/jobs/job_01HZX5T0N8W2A/replay";
    for _ in 0..2 {
        world.once("k-3", job, json!({"reason": "x"})).await.check_problem(404, "not-found");
    }
    world.once("k-3", job, json!({"reason": "other"})).await.check_problem(404, "not-found");
    world.once("a,b", job, json!({"reason": "x"})).await.check_problem(400, "bad-query");
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_of_many_commands_at_once_under_one_key_one_is_carried_out() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(422)]);
    let job = world.post_and_wait("a", BODY, Word::Dead).await.row.id;
    let path = format!("/api/v1/jobs/{job}/replay");
    let asked = (0..20).map(|_| world.once("k", &path, json!({"reason": "all at once"})));
    for answer in futures_util::future::join_all(asked).await {
        match answer.status {
            200 => assert_eq!(answer.json()["replayed"], true, "{}", answer.body),
            _ => drop(answer.check_problem(409, "key-in-use")),
        }
    }
    let story = world.wait(job, Word::Dead).await;
    assert_eq!(story.row.replays, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_secret_is_told_once_also_under_a_key() {
    let world = World::new(&[]).await;
    let ask = json!({"name": "maya", "role": "viewer"});
    let made = world.once("k", "/api/v1/users", ask.clone()).await;
    assert_eq!(made.status, 200, "{}", made.body);
    world.once("k", "/api/v1/users", ask).await.check_problem(409, "key-in-use");
    assert_eq!(world.admin("/api/v1/users").await.json()["users"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_the_command_line_may_be_run_again_under_its_request_id() {
    let world = World::new(&[]).await;
    let run = async |id: &str| world.clinch(&["pause", "queue:orders", "--reason", "a look", "--request-id", id]).await;
    let (exit, first) = run("deploy-7").await;
    assert_eq!(exit, 0, "{first}");
    assert_eq!(run("deploy-7").await.0, 0);
    let record = async || world.admin("/api/v1/audit?action=pause.*").await.json()["audit"].as_array().unwrap().len();
    assert_eq!(record().await, 1);
    assert_eq!(run("deploy-8").await.0, 0);
    assert_eq!(record().await, 2);
    assert_eq!(run("two words").await.0, 2);
}
