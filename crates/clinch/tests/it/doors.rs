//! The door of a source, case by case: senders with tokens, limits, and bodies of every kind. The real binary on real sockets.

use crate::cluster::rounds;
use crate::nodes::{Nodes, shared_postgres};
use crate::process::{AGAIN, PATIENCE, eventually};
use crate::sources::{Edge, HUB, STANDARD, flow, github, hex, mac, now};
use crate::world::Answer;
use clinch_core::payload::Payload;
use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The command line, on the server with this data directory.
fn clinch(data_dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(args).arg("--data-dir").arg(data_dir).env_remove("CLINCH_URL").env_remove("CLINCH_TOKEN");
    command.output().unwrap()
}

/// A new token, and its id.
fn token(data_dir: &Path, sender: &str, more: &[&str]) -> (String, String) {
    let made = clinch(data_dir, &[&["token", "new", "--sender", sender, "--json"], more].concat());
    assert!(made.status.success(), "{made:?}");
    let told: Value = serde_json::from_slice(&made.stdout).unwrap();
    (told["text"].as_str().unwrap().into(), told["token"]["id"].as_str().unwrap().into())
}

/// One source by the name of `door`, and a flow that takes its events.
async fn door(settings: &str) -> Edge {
    let sources = format!("sources:\n  door: {settings}\n");
    Edge::with(&[("clinch.yml", &sources), ("flows/edge.yml", &flow("edge", "  - source: door\n"))]).await
}

async fn send_as(edge: &Edge, token: &str, key: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    edge.send("/in/door", &[("authorization", &bearer), ("idempotency-key", key)], r#"{"id":"1"}"#).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_a_sender_comes_in_with_its_token_until_that_ends() {
    let edge = door("{verify: sender}").await;
    let data_dir = edge.place.data_dir.clone();
    let (shop, id) = token(&data_dir, "shop-eu", &["--expires", "90d", "--reason", "the new shop"]);
    let answer = send_as(&edge, &shop, "k-1").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let event = edge.event(&answer).await;
    assert_eq!((&event["sender"], &event["source"]), (&json!("shop-eu"), &json!("door")));
    assert!(send_as(&edge, &shop, "k-1").await.is_replayed());

    // T-039: whatever is wrong, it is answered in one way.
    let (brief, _) = token(&data_dir, "brief", &["--expires", "1ms"]);
    let other = if &shop[10..11] == "A" { "B" } else { "A" };
    let forged = format!("{}{other}{}", &shop[..10], &shop[11..]);
    let refused = [
        ("token_missing", vec![]),
        ("token_missing", vec![("authorization", "Basic abc".to_string())]),
        ("token_malformed", vec![("authorization", "Bearer nonsense".to_string())]),
        ("token_forged", vec![("authorization", format!("Bearer {forged}"))]),
        ("token_expired", vec![("authorization", format!("Bearer {brief}"))]),
        (
            "token_missing",
            vec![("authorization", format!("Bearer {shop}")), ("authorization", format!("Bearer {shop}"))],
        ),
    ];
    let mut bodies = std::collections::BTreeSet::new();
    for (reason, headers) in &refused {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = edge.send("/in/door", &headers, "{}").await;
        answer.check_problem(401, "signature-invalid");
        bodies.insert(answer.body);
        let last = edge.admin("/api/v1/sources/door/rejections").await.json()["rejections"][0].clone();
        assert_eq!(last["reason"], *reason, "{last}");
    }
    assert_eq!(bodies.len(), 1, "nobody learns why: {bodies:?}");
    assert_eq!(edge.stored().await, 1);
    assert_eq!(edge.metric("clinch_intake_verified_total{source=\"door\",secret=\"shop-eu\"}").await, 2);

    let listed = clinch(&data_dir, &["token", "ls"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains(&id) && listed.contains("shop-eu\tlive") && listed.contains("brief\texpired"), "{listed}");
    let revoked = clinch(&data_dir, &["token", "revoke", &id, "--reason", "it leaked"]);
    assert!(revoked.status.success(), "{revoked:?}");
    send_as(&edge, &shop, "k-2").await.check_problem(401, "signature-invalid");
    let again = clinch(&data_dir, &["token", "revoke", &id, "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["revoked"], false);
    assert_eq!(clinch(&data_dir, &["token", "revoke", "tok_0000000000000000"]).status.code(), Some(3));
    assert_eq!(clinch(&data_dir, &["token", "new", "--sender", "a b"]).status.code(), Some(2));
    let audit = edge.admin("/api/v1/audit").await.json()["audit"].clone();
    assert_eq!((&audit[0]["action"], &audit[0]["reason"]), (&json!("token.revoke"), &json!("it leaked")));
    assert_eq!(audit[2]["object"], id);
    assert!(audit[2]["after"].as_str().unwrap().contains("shop-eu"), "{audit}");

    // T-040: a token is nowhere but in the hands of its sender.
    let said = edge.server.said() + &listed + &edge.admin("/api/v1/tokens").await.body;
    assert!(!said.contains(&shop[8..]), "{said}");
    edge.server.stop().await;
    for entry in std::fs::read_dir(&data_dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(shop.len()).any(|window| window == shop.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_any_node_knows_a_token_and_soon_that_it_was_revoked() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    nodes.place.write("clinch.yml", "sources:\n  door: {verify: sender}\n");
    nodes.place.write("flows/edge.yml", &flow("edge", "  - source: door\n"));
    let (one, two) = (nodes.start().await, nodes.start().await);
    let admin = |server: &crate::process::Server| ["--url".to_string(), server.admin.clone()];
    let data_dir = |server: &crate::process::Server| {
        let dirs = std::fs::read_dir(nodes.place.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let card = |dir: &Path| std::fs::read_to_string(dir.join("server.json")).unwrap_or_default();
        dirs.into_iter().find(|dir| card(dir).contains(&server.admin)).unwrap()
    };
    let url = admin(&one);
    let (text, id) = token(&data_dir(&one), "shop", &[&url[0], &url[1]]);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let status = async |server: &crate::process::Server| {
        let request = client.post(format!("{}/in/door", server.intake)).bearer_auth(&text).body("{}");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!((status(&one).await, status(&two).await), (202, 202), "no node has to be told of a token");
    let revoked = clinch(&data_dir(&two), &["token", "revoke", &id]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert_eq!(status(&two).await, 401, "where it is revoked it ends at once");
    eventually("the other node refuses it too", PATIENCE, async || status(&one).await == 401).await;
    nodes.drained().await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t080_t081_each_sender_has_a_quota_that_nobody_else_uses_up() {
    let edge = door("{verify: sender, limits: {sender: 5/h, source: 100/h}}").await;
    let (one, _) = token(&edge.place.data_dir, "one", &[]);
    let (two, _) = token(&edge.place.data_dir, "two", &[]);
    for nth in 0..50 {
        send_as(&edge, "cls_nonsense", &format!("bad-{nth}")).await.check_problem(401, "signature-invalid");
    }
    for nth in 0..5 {
        let answer = send_as(&edge, &one, &format!("one-{nth}")).await;
        assert_eq!(answer.status, 202);
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""sender";q=5;w=3600, "source";q=100;w=3600"#));
        let left = format!(r#""sender";r={};t="#, 4 - nth);
        assert!(answer.header("ratelimit").unwrap().starts_with(&left), "{answer:?}");
    }
    let refused = send_as(&edge, &one, "one-5").await;
    let problem = refused.check_problem(429, "quota-exceeded");
    assert_eq!(problem["violated-policies"], json!(["sender"]));
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let left = refused.header("ratelimit").unwrap();
    let reset: u64 = left.rsplit_once("t=").unwrap().1.parse().unwrap();
    assert!(left.starts_with(r#""sender";r=0;t="#) && retry_after >= reset, "{left}, {retry_after}");
    assert_eq!(send_as(&edge, &two, "two-0").await.status, 202, "another sender has its own");
    // T-057: what was refused claimed no key.
    assert!(!send_as(&edge, &two, "one-5").await.is_replayed());
    // Who is not known is told nothing of what could be borne.
    assert_eq!(send_as(&edge, "cls_nonsense", "x").await.header("ratelimit-policy"), None);
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_where_senders_are_deferred_each_waits_for_its_own_turn() {
    let edge = door("{verify: sender, limits: {sender: 2/h, mode: defer}}").await;
    let (one, _) = token(&edge.place.data_dir, "one", &[]);
    let (two, _) = token(&edge.place.data_dir, "two", &[]);
    for nth in 0..4 {
        assert_eq!(send_as(&edge, &one, &format!("one-{nth}")).await.status, 202, "nothing is lost");
    }
    let prompt = send_as(&edge, &two, "two-0").await;
    let job = prompt.json()["job_id"].as_str().unwrap().to_string();
    eventually("the other sender is not held up", PATIENCE, async || edge.job(&job).await["job"]["state"] == "success")
        .await;
    let jobs = edge.admin("/api/v1/jobs?state=queued").await.json();
    let due: std::collections::BTreeSet<&str> =
        jobs["jobs"].as_array().unwrap().iter().filter_map(|job| job["due_at"].as_str()).collect();
    assert_eq!(due.len(), 2, "each waits for a turn of its own: {jobs}");
    edge.server.stop().await;
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// Bytes with these headers, signed as GitHub signs.
async fn send_bytes(edge: &Edge, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let signature = format!("sha256={}", data_encoding::HEXLOWER.encode(hmac(body).as_ref()));
    let mut request = edge.client.post(format!("{}/in/door", edge.server.intake)).body(body.to_vec());
    for (name, value) in headers.iter().chain(&[("x-hub-signature-256", &*signature), ("x-sig", &*signature)]) {
        request = request.header(*name, *value);
    }
    Answer::read(request.send().await.unwrap()).await
}

fn hmac(body: &[u8]) -> aws_lc_rs::hmac::Tag {
    aws_lc_rs::hmac::sign(&aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, HUB.as_bytes()), body)
}

const ANY: &str = "verify: {header: X-Sig, prefix: 'sha256='}, secret: '${secrets.HUB}'";

#[tokio::test(flavor = "multi_thread")]
async fn t031_bytes_that_are_no_text_are_kept_as_they_came_where_the_source_says_raw() {
    let edge = door(&format!("{{{ANY}, content: raw}}")).await;
    let body = b"\xff\xfe\x00 {not json";
    let headers = [("content-type", "application/x-thing"), ("idempotency-key", "k-1")];
    let answer = send_bytes(&edge, &headers, body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert!(send_bytes(&edge, &headers, body).await.is_replayed());
    let job = answer.json()["job_id"].as_str().unwrap().to_string();
    let told = edge.job(&job).await;
    assert_eq!((&told["body"]["bytes"], &told["body"]["json"]), (&json!(body.len()), &json!(false)), "{told}");
    edge.send("/in/door", &[("x-sig", "sha256=00")], "x").await.check_problem(401, "signature-invalid");
    edge.place.drained().await;
    assert_eq!(edge.place.sink.count(), 1, "it is sent on as it is");
    edge.server.stop().await;
    let story = edge.place.books().await.story(job.parse().unwrap()).await;
    let kept = Payload::decode(story.payload.as_ref().unwrap()).unwrap();
    assert_eq!(&kept.body[..], body);
    assert!(kept.about.headers.iter().any(|(name, value)| name == "content-type" && value == "application/x-thing"));
    // A source that takes JSON refuses the same bytes, behind the same signature.
    let strict = door(&format!("{{{ANY}}}")).await;
    send_bytes(&strict, &headers, body).await.check_problem(400, "malformed");
    strict.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t035_t076_a_gzip_is_signed_as_it_came_and_opened_only_as_far_as_a_body_may_go() {
    let edge = door(&format!("{{{ANY}, accept_encoding: [gzip], body_max: 4MiB}}")).await;
    let wrapped = [("content-encoding", "gzip")];
    let body = gzip(br#"{"id":"packed"}"#);
    let answer = send_bytes(&edge, &wrapped, &body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    edge.place.drained().await;
    assert_eq!(edge.place.sink.calls()[0].event, "packed");
    // Ten mebibytes in ten kibibytes, and 64 in 64.
    let (bomb, huge) = (gzip(&vec![b' '; 10 << 20]), gzip(&vec![b' '; 64 << 20]));
    assert!(bomb.len() < 20 << 10 && huge.len() < 128 << 10, "{} {}", bomb.len(), huge.len());
    // As large, and nothing in it: what the server needs to read it is not what it needs to open it.
    for _ in 0..40 {
        send_bytes(&edge, &[], &vec![b'x'; huge.len()]).await.check_problem(400, "malformed");
    }
    let before = edge.server.kibibytes();
    for _ in 0..20 {
        send_bytes(&edge, &wrapped, &bomb).await.check_problem(413, "too-large");
        send_bytes(&edge, &wrapped, &huge).await.check_problem(413, "too-large");
    }
    let now = edge.server.kibibytes();
    eprintln!("memory: {before} KiB before, {now} KiB now");
    // An allocator keeps some of what it was given back; a bomb that goes off takes twice as much.
    assert!(now < before + 32 * 1024, "memory grew from {before} KiB to {now} KiB");
    let nested = gzip(&gzip(b"{}"));
    send_bytes(&edge, &[("content-encoding", "gzip, gzip")], &nested).await.check_problem(415, "unsupported-encoding");
    send_bytes(&edge, &wrapped, &nested).await.check_problem(400, "malformed");
    send_bytes(&edge, &[("content-encoding", "br")], b"x").await.check_problem(415, "unsupported-encoding");
    send_bytes(&edge, &wrapped, &body[..body.len() - 1]).await.check_problem(400, "malformed");
    // Whoever may not come in has nothing unpacked.
    let request = edge.client.post(format!("{}/in/door", edge.server.intake)).header("content-encoding", "gzip");
    let answer = Answer::read(request.header("x-sig", "sha256=00").body(bomb).send().await.unwrap()).await;
    answer.check_problem(401, "signature-invalid");
    assert_eq!(edge.stored().await, 1);
    edge.server.stop().await;

    let plain = door(&format!("{{{ANY}}}")).await;
    send_bytes(&plain, &wrapped, &body).await.check_problem(415, "unsupported-encoding");
    plain.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t038_a_body_must_have_the_digest_that_its_sender_states() {
    let edge = door(&format!("{{{ANY}}}")).await;
    let body = br#"{"hello": "world"}"#;
    let stated = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
    let check = async |digest: &str, key: &str, status: u16| {
        let answer = send_bytes(&edge, &[("content-digest", digest), ("idempotency-key", key)], body).await;
        assert_eq!(answer.status, status, "{digest}: {answer:?}");
    };
    check(stated, "a", 202).await;
    check("md5=:AAAA:", "b", 202).await;
    check(&stated.replace("X48E", "X48F"), "c", 400).await;
    check("sha-256=nonsense", "d", 400).await;
    // A flow's own route looks at it too.
    let own = async |digest: &str| {
        let headers = [("content-digest", digest), ("idempotency-key", "e")];
        edge.send("/hooks/again", &headers, std::str::from_utf8(body).unwrap()).await
    };
    own(&stated.replace("X48E", "X48F")).await.check_problem(400, "digest-invalid");
    assert_eq!(own(stated).await.status, 202);
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t056_a_captured_body_under_another_delivery_id_is_counted_or_dropped() {
    for (policy, again_is_event) in [("", true), (", same_body: count", true), (", same_body: drop", false)] {
        let edge = door(&format!("{{verify: github, secret: '${{secrets.HUB}}'{policy}}}")).await;
        let body = r#"{"action":"opened","id":"captured"}"#;
        let send = async |delivery: &str| {
            let signature = github(body);
            let headers =
                [("x-hub-signature-256", &*signature), ("x-github-event", "issues"), ("x-github-delivery", delivery)];
            edge.send("/in/door", &headers, body).await
        };
        assert_eq!(send("d-1").await.status, 202);
        assert!(send("d-1").await.is_replayed(), "GitHub's own redelivery is a duplicate");
        let captured = send("d-2").await;
        assert_eq!((captured.status, captured.is_replayed()), (202, !again_is_event), "{policy}");
        let counted = edge.metric("clinch_intake_same_body_total{source=\"door\"}").await;
        assert_eq!(counted, u64::from(again_is_event), "{policy}");
        assert_eq!(edge.server.said().contains("same_body: drop"), again_is_event, "{policy}");
        edge.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t028_a_lead_is_proven_by_its_key_which_is_never_stored() {
    let edge = door("{verify: google-ads, secret: '${secrets.HUB}'}").await;
    let lead = |key: &str| json!({"lead_id": "l-1", "google_key": key, "user_column_data": []}).to_string();
    edge.send("/in/door", &[], &lead("another")).await.check_problem(401, "signature-invalid");
    let answer = edge.send("/in/door", &[], &lead(HUB)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let job = answer.json()["job_id"].as_str().unwrap().to_string();
    edge.server.stop().await;
    let story = edge.place.books().await.story(job.parse().unwrap()).await;
    let kept = Payload::decode(story.payload.as_ref().unwrap()).unwrap();
    let body = String::from_utf8(kept.body.to_vec()).unwrap();
    assert!(body.contains("l-1") && !body.contains(HUB) && !body.contains("google_key"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn t029_t030_t033_t034_what_could_be_misread_is_refused_at_the_door() {
    let edge = door("{verify: standardwebhooks, secret: '${secrets.STANDARD}'}").await;
    let key = BASE64.decode(STANDARD.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
    let send = async |id: &str, at: &str, signed: &str, body: &str| {
        let signature = format!("v1,{}", BASE64.encode(mac(&key, &format!("{id}.{at}.{signed}")).as_ref()));
        let headers = [("webhook-id", id), ("webhook-timestamp", at), ("webhook-signature", &*signature)];
        edge.send("/in/door", &headers, body).await
    };
    let at = now().to_string();
    for bad in ["-9223372036854775808", "99999999999999999999", "1e9", "+1", "", "0x10"] {
        send("msg_1", bad, "{}", "{}").await.check_problem(401, "signature-invalid");
    }
    send("msg.1", &at, "{}", "{}").await.check_problem(401, "signature-invalid");
    send("msg_1", &at, r#"{"a":1}"#, "{\n  \"a\": 1\n}").await.check_problem(401, "signature-invalid");
    let latin = [("webhook-id", "msg_1"), ("webhook-timestamp", &*at), ("webhook-signature", "v1,\u{e9}\u{e9}")];
    edge.send("/in/door", &latin, "{}").await.check_problem(401, "signature-invalid");
    assert_eq!(edge.stored().await, 0);
    assert_eq!(send("msg_1", &at, "{}", "{}").await.status, 202);
    assert!(!edge.server.said().contains("panicked"));
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t077_strange_json_is_refused_or_kept_as_it_came() {
    let edge = door(&format!("{{{ANY}}}")).await;
    let keys: String = (0..40_000).map(|nth| format!(r#""k{nth}":{nth},"#)).collect();
    let wide = format!("{{{keys}\"id\":\"wide\"}}");
    let deep = "[".repeat(10_000);
    send_bytes(&edge, &[], deep.as_bytes()).await.check_problem(400, "malformed");
    send_bytes(&edge, &[], (deep.clone() + &"]".repeat(10_000)).as_bytes()).await.check_problem(400, "malformed");
    for body in [wide.as_str(), r#"{"id":"big","n":1e400}"#, r#"{"id":"twice","id":"twice","n":90071992547409931234}"#]
    {
        let answer = send_bytes(&edge, &[], body.as_bytes()).await;
        // Where it is not taken it is refused in words; where it is, not a byte is changed.
        if answer.status != 202 {
            answer.check_problem(400, "malformed");
            continue;
        }
        let job = answer.json()["job_id"].as_str().unwrap().to_string();
        assert_eq!(edge.job(&job).await["body"]["bytes"], body.len());
    }
    assert!(!edge.server.said().contains("panicked"));
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t090_a_body_that_names_a_file_is_data_whatever_it_is_called() {
    let edge = door("{verify: none, key_from: 'header:Idempotency-Key'}").await;
    let body = r#"{"id":"1","files":{"x":{"filepath":"/etc/passwd","originalFilename":"x"}}}"#;
    let kinds =
        ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"];
    for (kind, key) in kinds.into_iter().zip(["a", "b", "c", "d"]) {
        let answer = edge.send("/in/door", &[("content-type", kind), ("idempotency-key", key)], body).await;
        assert_eq!(answer.status, 202, "{kind}: {answer:?}");
        let job = answer.json()["job_id"].as_str().unwrap().to_string();
        assert_eq!(edge.job(&job).await["body"]["bytes"], body.len(), "{kind}");
    }
    edge.place.drained().await;
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t091_t092_t093_a_path_has_one_spelling_and_every_other_is_nothing() {
    let edge = door("{verify: github, secret: '${secrets.HUB}'}").await;
    let address = edge.server.intake.trim_start_matches("http://").parse().unwrap();
    // Sent as they are: a client of good manners would tidy them up.
    let ask = async |method: &str, path: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}");
        crate::world::raw(address, head.as_bytes()).await
    };
    let spellings = [
        "/in/door/",
        "/in//door",
        "//in/door",
        "/In/door",
        "/IN/DOOR",
        "/in/%64oor",
        "/in%2Fdoor",
        "/in/door%2F",
        "/in/door;x=1",
        "/in/./door",
        "/in/x/../door",
        "/in/door%00",
        "/in/door%20",
        "/in/door..;/",
        "/admin/..%2F..%2Fetc%2Fpasswd",
        "/..%252f..%252fetc/passwd",
        "/api/v1/jobs",
        "/metrics",
        "/",
        "/in/doo",
        "/in/doors",
    ];
    for path in spellings {
        for method in ["POST", "GET"] {
            ask(method, path).await.check_problem(404, "not-found");
        }
    }
    // T-092: by every method the verifier stands before the event.
    for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
        let answer = ask(method, "/in/door").await;
        answer.check_problem(405, "method-not-allowed");
        assert_eq!(answer.header("allow"), Some("POST"), "{method}");
    }
    assert_eq!(ask("HEAD", "/in/door").await.status, 405);
    ask("POST", "/in/door?x=1").await.check_problem(401, "signature-invalid");
    assert_eq!(edge.stored().await, 0);
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t094_t095_t097_every_admin_route_needs_the_token_the_method_and_a_plain_question() {
    let edge = door("{verify: sender}").await;
    let routes = [
        ("GET", "/api/v1/overview"),
        ("GET", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs/job_01HZX5T0N8W2A"),
        ("POST", "/api/v1/jobs/job_01HZX5T0N8W2A/replay"),
        ("GET", "/api/v1/events/evt_01HZX5T0N8W2A"),
        ("GET", "/api/v1/dead"),
        ("GET", "/api/v1/dead/groups"),
        ("GET", "/api/v1/keys?key=k"),
        ("GET", "/api/v1/latency"),
        ("GET", "/api/v1/audit"),
        ("GET", "/api/v1/audit/verify"),
        ("GET", "/api/v1/users"),
        ("POST", "/api/v1/users"),
        ("POST", "/api/v1/users/maya/remove"),
        ("GET", "/api/v1/sources/door/rejections"),
        ("GET", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens/tok_0000000000000000/revoke"),
    ];
    let (sender, _) = token(&edge.place.data_dir, "shop", &[]);
    let ask = async |method: &str, path: &str, token: Option<&str>| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = edge.client.request(method, format!("{}{path}", edge.server.admin));
        let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
        Answer::read(request.send().await.unwrap()).await
    };
    let admin = std::fs::read_to_string(edge.place.data_dir.join(clinch::api::auth::TOKEN_FILE)).unwrap();
    let admin = admin.trim();
    for (method, path) in routes {
        for token in [None, Some("clk_wrong"), Some(sender.as_str())] {
            let answer = ask(method, path, token).await;
            assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        }
        for other in ["PUT", "DELETE", "TRACE"] {
            let answer = ask(other, path, Some(admin)).await;
            assert_eq!(answer.status, 405, "{other} {path}: {answer:?}");
            assert!(answer.header("allow").is_some_and(|allow| allow.contains(method)), "{other} {path}: {answer:?}");
            assert!(!answer.body.contains("PATH") && !answer.body.contains(HUB), "{answer:?}");
        }
    }
    let hostile = ["'", "\"", "';DROP TABLE job;--", "1 OR 1=1", "%00", "\\", "$1", "{{7*7}}", "../../x"];
    for word in hostile {
        let word: String = url::form_urlencoded::byte_serialize(word.as_bytes()).collect();
        for path in [
            format!("/api/v1/jobs?flow={word}"),
            format!("/api/v1/jobs?queue={word}"),
            format!("/api/v1/audit?actor={word}"),
            format!("/api/v1/audit?action={word}"),
            format!("/api/v1/audit?object={word}"),
            format!("/api/v1/audit?since={word}"),
            format!("/api/v1/audit/verify?head={word}"),
            format!("/api/v1/jobs?state={word}"),
            format!("/api/v1/jobs?before={word}"),
            format!("/api/v1/jobs/{word}"),
            format!("/api/v1/events/{word}"),
            format!("/api/v1/dead?reason={word}"),
            format!("/api/v1/keys?key={word}&tenant={word}"),
            format!("/api/v1/latency?window={word}"),
            format!("/api/v1/sources/{word}/rejections"),
        ] {
            let answer = ask("GET", &path, Some(admin)).await;
            assert!([200, 400, 404].contains(&answer.status), "{path}: {answer:?}");
        }
    }
    assert_eq!(ask("GET", "/readyz", None).await.status, 200, "nothing was harmed");
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t075_a_source_has_the_largest_body_that_it_says() {
    let edge = door(&format!("{{{ANY}, body_max: 1KiB}}")).await;
    let body = |bytes: usize| format!(r#"{{"id":"{}"}}"#, "x".repeat(bytes - 9));
    assert_eq!(send_bytes(&edge, &[], body(1024).as_bytes()).await.status, 202);
    send_bytes(&edge, &[], body(1025).as_bytes()).await.check_problem(413, "too-large");
    let signature = format!("sha256={}", hex(HUB, "x"));
    let address = edge.server.intake.trim_start_matches("http://").parse().unwrap();
    let pieces = "400\r\n".to_string() + &"x".repeat(0x400) + "\r\n";
    let head = format!("POST /in/door HTTP/1.1\r\nHost: x\r\nX-Sig: {signature}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let answer = crate::world::raw(address, (head + &pieces.repeat(3)).as_bytes()).await;
    answer.check_problem(413, "too-large");
    assert_eq!(edge.stored().await, 1);
    edge.server.stop().await;
}

/// A sender without manners, from an address of its own: half a head, or a body that drips. Cut off, it comes again. It counts
/// how often it came.
async fn is_slow(nth: usize, to: SocketAddr, came: Arc<AtomicUsize>, done: CancellationToken) {
    let beginning: &[u8] = match nth % 2 {
        0 => b"POST /in/door HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        _ => b"POST /in/door HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    };
    while !done.is_cancelled() {
        let drips = async {
            let mut stream = crate::transport::connect_from(&format!("127.0.1.{}", 1 + nth % 32), to).await;
            stream.write_all(beginning).await?;
            came.fetch_add(1, Ordering::Relaxed);
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                stream.write_all(b"y").await?;
            }
        };
        let cut: Option<std::io::Result<()>> = done.run_until_cancelled(drips).await;
        assert!(cut.is_none_or(|cut| cut.is_err()));
    }
}

/// `CLINCH_TEST_ROUNDS=10` is the full size: 2,000 slow connections and 10,000 bad signatures, and as many bad tokens.
#[tokio::test(flavor = "multi_thread")]
async fn t074_t081_slow_connections_and_bad_signatures_cost_a_good_sender_nothing() {
    let (slow, bad) = (200 * rounds(), 1_000 * rounds());
    let sources = "connections: {per_address: 64}\nsources:\n  door: {verify: sender, limits: {sender: 10000/31d}}\n  hub: {verify: github, secret: '${secrets.HUB}', limits: {source: 10/31d}}\n";
    let triggers = "  - source: door\n  - source: hub\n";
    let edge = Edge::with(&[("clinch.yml", sources), ("flows/edge.yml", &flow("edge", triggers))]).await;
    let (good, _) = token(&edge.place.data_dir, "good", &[]);
    let to: SocketAddr = edge.server.intake.trim_start_matches("http://").parse().unwrap();
    let done = CancellationToken::new();
    let (mut strangers, came) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for nth in 0..slow {
        strangers.spawn(is_slow(nth, to, came.clone(), done.clone()));
    }
    // They are cut off after some seconds, and do not find out at once: all of them came, and most are there.
    eventually("the slow ones are in", PATIENCE, async || {
        let there = edge.metric("clinch_connections{listener=\"intake\"}").await as usize;
        there >= slow / 2 && came.load(Ordering::Relaxed) >= slow
    })
    .await;
    let forgers = async {
        let client = reqwest::Client::builder().no_proxy().local_address(Some([127, 0, 0, 3].into())).build().unwrap();
        let forge = async |nth: usize| {
            let request = client.post(format!("{}/in/door", edge.server.intake)).bearer_auth(format!("cls_{nth}"));
            assert_eq!(request.body("{}").send().await.unwrap().status(), 401);
            let request =
                client.post(format!("{}/in/hub", edge.server.intake)).header("x-hub-signature-256", github(""));
            let request = request.header("x-github-delivery", nth).header("x-github-event", "push");
            assert_eq!(request.body("{}").send().await.unwrap().status(), 401);
            // Both sides share this machine: a flood that takes all of it would only tell who is scheduled first.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        stream::iter(0..bad).for_each_concurrent(32, forge).await;
        done.cancel();
    };
    let posts = async {
        let mut took = Vec::new();
        while !done.is_cancelled() || took.len() < 100 {
            let began = Instant::now();
            let answer = send_as(&edge, &good, &format!("good-{}", took.len())).await;
            took.push(began.elapsed());
            assert_eq!(answer.status, 202, "{answer:?}");
            let left = format!(r#""sender";r={};"#, 10_000 - took.len());
            assert!(answer.header("ratelimit").unwrap().starts_with(&left), "the quota is its own: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        took
    };
    let (mut took, ()) = tokio::join!(posts, forgers);
    while let Some(ended) = strangers.join_next().await {
        ended.unwrap();
    }
    took.sort();
    eprintln!("{} posts, p50 {:?}, p99 {:?}", took.len(), took[took.len() / 2], took[took.len() * 99 / 100]);
    for (source, reason) in [("door", "token_malformed"), ("hub", "signature_invalid")] {
        let counted = format!("clinch_intake_rejected_total{{source=\"{source}\",reason=\"{reason}\"}}");
        assert_eq!(edge.metric(&counted).await as usize, bad);
    }
    let headers = [("x-hub-signature-256", &*github("{}")), ("x-github-event", "push"), ("x-github-delivery", "d-1")];
    let answer = edge.send("/in/hub", &headers, "{}").await;
    assert!(
        answer.header("ratelimit").unwrap().starts_with(r#""source";r=9;"#),
        "the real one is the first: {answer:?}"
    );
    assert_eq!(edge.metric("clinch_connections_refused_total{listener=\"intake\",reason=\"full\"}").await, 0);
    edge.place.drained().await;
    edge.server.stop().await;
}
