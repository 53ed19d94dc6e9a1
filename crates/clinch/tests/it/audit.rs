//! Who did what: people with tokens of their own, and a record that nobody changes unnoticed.

use crate::cli::{Said, ask, clinch_as};
use crate::world::{OK, Reply, World};
use clinch_core::job::Word;
use serde_json::{Value, json};

const BODY: &str = r#"{"order":7}"#;

/// The command line in the hands of whoever has this token.
async fn ask_as(world: &World, token: &str, arguments: &[&str]) -> Said {
    let (data_dir, token) = (world.data_dir(), token.to_string());
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let ask = move || clinch_as(&data_dir, &token, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// Gives somebody a token.
async fn add(world: &World, name: &str) -> String {
    let said = ask(world, &["users", "add", name, "--role", "operator", "--reason", "on call"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    said.out.trim().to_string()
}

async fn audit(world: &World, filter: &[&str]) -> Vec<Value> {
    let said = ask(world, &[&["audit", "ls", "--json"], filter].concat()).await;
    assert_eq!(said.code, 0, "{}", said.err);
    said.json()["audit"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_what_a_user_does_is_on_record_under_his_name_until_his_token_is_taken_away() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), OK]);
    let job = world.post_and_wait("k-1", BODY, Word::Dead).await.row.id.to_string();
    let maya = add(&world, "maya").await;
    assert!(maya.starts_with("clk_") && maya.len() == 47, "{maya}");
    assert_eq!(ask(&world, &["users", "ls", "-o", "id"]).await.out, "maya\n");

    let replayed = ask_as(&world, &maya, &["replay", &job, "--reason", "token rotated, INC-482", "--wait"]).await;
    assert_eq!(replayed.code, 0, "{}", replayed.err);
    let rows = audit(&world, &["--actor", "maya"]).await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let told = |name: &str| row[name].as_str().unwrap().to_string();
    assert_eq!(
        (told("action"), told("origin"), told("object")),
        ("job.replay".into(), "api 127.0.0.1".into(), job.clone())
    );
    assert_eq!((&row["job_id"], told("reason")), (&json!(job), "token rotated, INC-482".into()));
    let (before, after): (Value, Value) =
        (serde_json::from_str(&told("before")).unwrap(), serde_json::from_str(&told("after")).unwrap());
    assert_eq!((&before["state"], &before["reason"]), (&json!("dead"), &json!("auth_failed")));
    assert_eq!((&after["state"], &after["replays"]), (&json!("queued"), &json!(1)));
    let shown = ask(&world, &["jobs", "show", &job]).await;
    assert!(shown.out.contains("job.replay by maya: token rotated, INC-482"), "{}", shown.out);

    // Nobody is two people by his own hand.
    for arguments in [&["users", "add", "ben", "--role", "viewer"][..], &["users", "rm", "maya"]] {
        let refused = ask_as(&world, &maya, arguments).await;
        assert_eq!((refused.code, refused.out.as_str()), (4, ""), "{}", refused.err);
        assert!(refused.err.contains("CL0502") && refused.err.contains("`users`"), "{}", refused.err);
    }
    let again = ask(&world, &["users", "add", "maya", "--role", "operator"]).await;
    assert_eq!(again.code, 5, "{}", again.err);
    for name in ["admin", "clinch", "Maya"] {
        assert_eq!(ask(&world, &["users", "add", name, "--role", "operator"]).await.code, 2, "{name}");
    }

    assert_eq!(ask(&world, &["users", "rm", "maya", "--reason", "left"]).await.code, 0);
    assert_eq!(ask(&world, &["users", "rm", "maya"]).await.code, 3);
    let stranger = ask_as(&world, &maya, &["jobs", "ls"]).await;
    assert_eq!((stranger.code, stranger.out.as_str()), (4, ""), "{}", stranger.err);
    let told: Vec<_> = audit(&world, &["--action", "user.*"]).await;
    let told: Vec<_> = told.iter().map(|row| (row["action"].clone(), row["actor"].clone())).collect();
    assert_eq!(told, [(json!("user.remove"), json!("admin")), (json!("user.add"), json!("admin"))]);
    assert!(!format!("{:?}", audit(&world, &[]).await).contains(&maya), "the token is nowhere on record");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_the_audit_is_verified_exported_and_a_forged_row_is_named() {
    let world = World::new(&[]).await;
    for name in ["ada", "ben", "cleo", "dora"] {
        add(&world, name).await;
    }
    let verified = ask(&world, &["audit", "verify", "--json"]).await.json();
    // The first row says which workspace the server started with.
    assert_eq!((&verified["ok"], &verified["rows"]), (&json!(true), &json!(5)));
    let head = verified["head"].as_str().unwrap().to_string();
    add(&world, "eve").await;
    let noted = ask(&world, &["audit", "verify", "--head", &head]).await;
    assert_eq!(noted.code, 0, "{}", noted.err);
    assert!(noted.out.starts_with("ok: 6 rows"), "{}", noted.out);
    let other = ask(&world, &["audit", "verify", "--head", &"ab".repeat(32)]).await;
    assert_eq!(other.code, 1);
    assert!(other.err.contains("written anew"), "{}", other.err);
    assert_eq!(ask(&world, &["audit", "verify", "--head", "abc"]).await.code, 2);

    let lines = ask(&world, &["audit", "export"]).await.out;
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["no"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!((&rows[0]["action"], &rows[0]["actor"]), (&json!("config.activate"), &json!("clinch")));
    assert_eq!(rows[4]["hash"], head.as_str());
    let csv = ask(&world, &["audit", "export", "--format", "csv", "--action", "user.add"]).await.out;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0].split(',').next()), (6, Some("no")));
    assert!(lines[1].contains(",admin,api 127.0.0.1,user.add,user:ada,"), "{}", lines[1]);
    let page = ask(&world, &["audit", "ls", "--limit", "2", "--before", "5", "-o", "plain"]).await;
    assert!(page.out.starts_with("4\t") && page.err.contains("--before 3"), "{} {}", page.out, page.err);
    assert_eq!(audit(&world, &["--since", "1h", "--until", "1h"]).await, Vec::<Value>::new());
    assert_eq!(ask(&world, &["audit", "ls", "--since", "yesterday"]).await.code, 2);

    let file = rusqlite::Connection::open(world.data_dir().join("clinch.db")).unwrap();
    let refused = file.execute("UPDATE audit SET actor = 'eve' WHERE id = 3", []).unwrap_err().to_string();
    assert!(refused.contains("only added to"), "{refused}");
    file.execute_batch("DROP TRIGGER audit_is_not_changed; UPDATE audit SET actor = 'eve' WHERE id = 3").unwrap();
    drop(file);
    let broken = ask(&world, &["audit", "verify", "--json"]).await;
    assert_eq!(broken.code, 1);
    assert_eq!((&broken.json()["ok"], &broken.json()["row"]), (&json!(false), &json!(3)));
    assert!(broken.err.contains("CL0540") && broken.err.contains("row 3"), "{}", broken.err);
    let books = ask(&world, &["verify"]).await;
    assert_eq!(books.code, 1);
    assert!(books.out.contains("problem: row 3 of the audit"), "{}", books.out);
}
