//! P9: marked data is sent in every field, header, query and way to fail, and answered back by the target; then every byte
//! that people, logs and machines get to see is searched for the marks.

use crate::console_browser::Browser;
use crate::nodes::{Nodes, postgres};
use crate::process::{PATIENCE, Place, Server, client, eventually};
use crate::world::{Answer, files_below};
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const MAIL: &str = "kanary.mail@leak.example";
const PHONE: &str = "+4915199988877";
const CARD: &str = "4012888888881881";
const TOKEN: &str = "sk_live_kanary4eC39HqLyjWDarjt";
/// What we sign with and what we call others with. No shape betrays these: only who holds them knows what they are.
const INWARD: &str = "inward kanary words";
const OUTWARD: &str = "outward-kanary-words";

/// Pages that link to each other for ever would be a mistake.
const PAGES_MOST: usize = 1_000;

/// What must be nowhere, in whatever case.
const MARKS: [&str; 3] = ["kanary", "15199988877", "4012888888881881"];

/// What was seen, and where.
#[derive(Default)]
struct Sweep(Vec<(String, Vec<u8>)>);

impl Sweep {
    fn add(&mut self, place: impl Into<String>, seen: impl Into<Vec<u8>>) {
        self.0.push((place.into(), seen.into()));
    }

    fn add_answer(&mut self, place: impl Into<String>, answer: &Answer) {
        self.add(place, format!("{} {:?} {}", answer.status, answer.headers, answer.body));
    }

    /// A file, or all below a directory.
    fn add_files(&mut self, path: &Path) {
        let files = if path.is_dir() { files_below(path) } else { vec![path.to_path_buf()] };
        for file in files {
            // A file of a running database may go at any moment.
            self.add(file.display().to_string(), std::fs::read(&file).unwrap_or_default());
        }
    }

    fn check(self) {
        let mut hits = Vec::new();
        for (place, seen) in &self.0 {
            let seen = seen.to_ascii_lowercase();
            for mark in MARKS {
                if let Some(at) = seen.windows(mark.len()).position(|window| window == mark.as_bytes()) {
                    let around = &seen[at.saturating_sub(80)..seen.len().min(at + 60)];
                    hits.push(format!("{place}: …{}…", String::from_utf8_lossy(around)));
                }
            }
        }
        assert!(self.0.len() > 50, "only {} places were looked at", self.0.len());
        assert!(hits.is_empty(), "{} of {} places show a mark:\n{}", hits.len(), self.0.len(), hits.join("\n"));
    }
}

/// A target that repeats whatever it was sent, and adds what it knows; how it fails is in the path.
async fn parrot() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(repeat(stream));
        }
    });
    address
}

async fn repeat(mut stream: TcpStream) {
    let mut heard = vec![0; 64 * 1024];
    let mut length = 0;
    // Heads and bodies here come in one or two packets; the body is last and ends in a brace.
    while !heard[..length].ends_with(b"}") {
        match stream.read(&mut heard[length..]).await {
            Ok(0) | Err(_) => return,
            Ok(more) => length += more,
        }
    }
    let heard = String::from_utf8_lossy(&heard[..length]).into_owned();
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    let path = head.split(' ').nth(1).unwrap().trim_start_matches('/');
    let words = format!("the customer {MAIL} ({PHONE}) paid with {CARD}; your key {OUTWARD} and {TOKEN} are known");
    let (status, text) = match path.split('?').next().unwrap() {
        "ok" => ("200 OK", body.to_string()),
        "refuse-json" => ("422 No", json!({ "error": { "message": words, "sent": body } }).to_string()),
        "refuse-text" => ("422 No", format!("{words}\n{head}")),
        "fail" => ("500 No", format!("{words}\r\n{heard}")),
        "redirect" => ("302 There", words),
        "auth" => ("401 No", format!("<html><b>{words}</b></html>")),
        "slow-down" => ("429 No", words),
        "garbage" => (" not a status \u{1b}[31m", words),
        _ => return,
    };
    let reason = if status.starts_with(' ') { "" } else { MAIL };
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nlocation: http://{MAIL}/{CARD}\r\nretry-after: {CARD}\r\nset-cookie: t={TOKEN}\r\n\
         x-error: {MAIL} {OUTWARD}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// The ways in which a job ends at the parrot, and the ways in which it does not get there.
const WAYS: [&str; 12] = [
    "ok",
    "refuse-json",
    "refuse-text",
    "fail",
    "redirect",
    "auth",
    "slow-down",
    "garbage",
    "drop",
    "no-host",
    "bad-header",
    "missing",
];

fn workspace(place: &Place, target: std::net::SocketAddr, encryption: &str) {
    let sources = "
sources:
  any: {verify: none, key_from: 'header:idempotency-key', tenant_from: 'header:x-tenant', type_from: 'body:/type', on_conflict: keep_first, find_by: ['header:x-tenant', 'header:idempotency-key']}
  cloud: {verify: none}
  strict: {verify: none, key_from: 'body:/id', schema: order}
  late: {verify: github, secret: '${secrets.INWARD}', schema: order}
  pay: {verify: stripe, secret: '${secrets.INWARD}'}
  mail: {verify: mandrill, secret: '${secrets.INWARD}', public_url: 'https://hooks.example.com/in/mail'}
";
    place.write("clinch.yml", &[encryption, sources].concat());
    place.write(
        "schemas/order.json",
        r#"{"type":"object","properties":{"id":{"type":"string","maxLength":3}},"additionalProperties":false}"#,
    );
    place.write("queues.yml", "queues: [{name: parrot}]\n");
    place.write(
        "flows/edge.yml",
        "name: edge\ntriggers: [{source: any}, {source: cloud}, {source: strict}, {source: late}, {source: pay}, {source: mail}]\nsteps:\n  - {name: enqueue, queue: {name: parrot}}\n",
    );
    let step = |name: &str, when: &str, more: &str| {
        format!("  - name: {name}\n    if: \"{when}\"\n    http: {{body_from: body, timeout: 10s, {more}}}\n")
    };
    let steps = [
        step(
            "call",
            "body.way not in ['no-host', 'bad-header', 'missing']",
            &format!(
                "url: 'http://{target}/{{{{ body.way }}}}?mail={{{{ body.mail }}}}', headers: {{authorization: 'Bearer ${{secrets.OUTWARD}}', x-mail: '{{{{ body.mail }}}}'}}"
            ),
        ),
        step("no-host", "body.way == 'no-host'", "url: 'http://{{ body.mail }}.invalid/{{ body.card }}'"),
        step(
            "bad-header",
            "body.way == 'bad-header'",
            &format!("url: 'http://{target}/ok', headers: {{x-a: '{{{{ body.lines }}}}'}}"),
        ),
        step("missing", "body.way == 'missing'", &format!("url: 'http://{target}/ok?a={{{{ body.nested.nothing }}}}'")),
    ];
    place.write(
        "workers/parrot.yml",
        &format!("name: parrot\nconsumes: {{queue: parrot}}\nretry: {{strategy: fixed, base_delay: 1ms, jitter: none, max_attempts: 2, max_delay: 1ms}}\nrun:\n{}", steps.concat()),
    );
}

/// The marks in every place that an event has.
fn body(way: &str) -> Value {
    json!({
        "way": way, "id": MAIL, "type": MAIL, "mail": MAIL, "phone": PHONE, "card": CARD, "number": 4_012_888_888_881_881_u64,
        "token": TOKEN, "password": OUTWARD, "text": format!("call {PHONE} or {MAIL}, {CARD}, {TOKEN}"), MAIL: 1, TOKEN: 2,
        "lines": format!("{MAIL}\n{TOKEN}"), "list": [MAIL, [PHONE], { CARD: CARD }], "nested": { "deep": { "mail": MAIL } },
    })
}

struct House<'a> {
    client: reqwest::Client,
    server: &'a Server,
    data_dir: PathBuf,
    token: String,
    sweep: Sweep,
}

impl House<'_> {
    /// A request with the marks in query and headers, besides what is in its body.
    async fn send(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let url = format!("{}{path}?email={MAIL}&token={TOKEN}&card={CARD}", self.server.intake);
        let mut request = self.client.post(url).body(body.to_string());
        for (name, value) in [
            ("user-agent", MAIL),
            ("referer", MAIL),
            ("cookie", TOKEN),
            ("x-forwarded-for", MAIL),
            ("authorization", TOKEN),
            ("x-request-id", PHONE),
            ("traceparent", TOKEN),
            (TOKEN, CARD),
        ] {
            request = request.header(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = Answer::read(request.send().await.unwrap()).await;
        self.sweep.add_answer(format!("the answer of {path} to {headers:?}"), &answer);
        answer
    }

    async fn api(&mut self, path: &str) -> Answer {
        let request = self.client.get(format!("{}{path}", self.server.admin)).bearer_auth(&self.token);
        let answer = Answer::read(request.send().await.unwrap()).await;
        self.sweep.add_answer(format!("GET {path}"), &answer);
        answer
    }

    async fn command(&mut self, path: &str, body: String) -> Answer {
        let request = self.client.post(format!("{}{path}", self.server.admin)).bearer_auth(&self.token).body(body);
        let answer = Answer::read(request.send().await.unwrap()).await;
        self.sweep.add_answer(format!("POST {path}"), &answer);
        answer
    }

    fn run(&mut self, arguments: &[&str]) -> String {
        let said = Command::new(env!("CARGO_BIN_EXE_clinch"))
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&said.stdout).into_owned();
        self.sweep.add(format!("clinch {}", arguments.join(" ")), [said.stdout, said.stderr].concat());
        out
    }

    async fn jobs(&mut self) -> Vec<Value> {
        self.api("/api/v1/jobs?limit=200").await.json()["jobs"].as_array().unwrap().clone()
    }
}

/// Everything that can be sent, in order and out of order.
async fn deliver_all(house: &mut House<'_>) {
    for way in WAYS {
        let key = format!("{MAIL} {way}");
        let headers = [("idempotency-key", format!("\"{key}\"")), ("x-tenant", PHONE.to_string())];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = house.send("/in/any", &headers, &body(way).to_string()).await;
        assert_eq!(answer.status, 202, "{way}: {answer:?}");
        house.send("/in/any", &headers, &body(way).to_string()).await;
        house.send("/in/any", &headers, &json!({ "way": way, "other": MAIL }).to_string()).await;
    }
    let long = format!("{MAIL}{}", "x".repeat(300));
    for (path, headers, body) in [
        ("/in/any", vec![("idempotency-key", "k")], format!(r#"{{"mail":"{MAIL}", "card": {CARD}, "#)),
        ("/in/any", vec![("idempotency-key", "k"), ("x-tenant", PHONE)], format!("{MAIL} is not JSON")),
        ("/in/any", vec![("idempotency-key", MAIL), ("idempotency-key", TOKEN)], "{}".into()),
        ("/in/any", vec![("idempotency-key", &long)], "{}".into()),
        ("/in/any", vec![("content-encoding", MAIL)], "{}".into()),
        ("/in/any", vec![("content-type", "application/cloudevents+kanary")], body("ok").to_string()),
        (
            "/in/any",
            vec![("ce-id", MAIL), ("ce-source", "%C0%A0kanary"), ("ce-type", MAIL), ("ce-specversion", TOKEN)],
            body("ok").to_string(),
        ),
        ("/in/strict", vec![], body("ok").to_string()),
        ("/in/strict", vec![], json!({ "id": [MAIL] }).to_string()),
        ("/in/pay", vec![], body("ok").to_string()),
        ("/in/pay", vec![("stripe-signature", MAIL)], body("ok").to_string()),
        ("/in/pay", vec![("stripe-signature", "t=4012888888881881,v1=kanary")], body("ok").to_string()),
        ("/in/pay", vec![("stripe-signature", TOKEN), ("stripe-signature", TOKEN)], body("ok").to_string()),
        ("/in/mail", vec![("x-mandrill-signature", TOKEN)], format!("mandrill_events={MAIL}&{TOKEN}={CARD}")),
        ("/nowhere/kanary.mail@leak.example", vec![], body("ok").to_string()),
    ] {
        let answer = house.send(path, &headers, &body).await;
        assert!(answer.status >= 400, "{path}: {answer:?}");
    }
    let cloud =
        [("ce-id", MAIL), ("ce-source", TOKEN), ("ce-type", MAIL), ("ce-specversion", "1.0"), ("ce-subject", PHONE)];
    assert_eq!(house.send("/in/cloud", &cloud, &body("auth").to_string()).await.status, 202);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, INWARD.as_bytes()), body("ok").to_string().as_bytes());
    let signature = format!("sha256={}", HEXLOWER.encode(tag.as_ref()));
    let late = [("x-hub-signature-256", signature.as_str()), ("x-github-delivery", MAIL), ("x-github-event", TOKEN)];
    assert_eq!(house.send("/in/late", &late, &body("ok").to_string()).await.status, 202);
}

/// Everything that can be asked, rightly and wrongly.
async fn ask_all(house: &mut House<'_>) {
    let jobs = house.jobs().await;
    let text = |job: &Value, name: &str| job[name].as_str().unwrap().to_string();
    for job in &jobs {
        let (job, event) = (text(job, "id"), text(job, "event_id"));
        house.api(&format!("/api/v1/jobs/{job}")).await;
        house.api(&format!("/api/v1/events/{event}")).await;
        house.run(&["jobs", "show", &job, "-o", "table"]);
        house.run(&["dlq", "show", &job, "--json"]);
    }
    let effects = house.api("/api/v1/effects?limit=200").await.json()["effects"].as_array().unwrap().clone();
    assert!(!effects.is_empty());
    for effect in effects.iter().map(|effect| text(effect, "id")) {
        house.api(&format!("/api/v1/effects/{effect}")).await;
        house.run(&["effects", "show", &effect, "-o", "table"]);
        house.run(&["effects", "verify", &effect]);
    }
    let mail = "kanary.mail%40leak.example";
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/api/v1/overview",
        "/api/v1/dead?limit=200",
        "/api/v1/dead/groups",
        "/api/v1/latency?window=15m",
        "/api/v1/audit",
        "/api/v1/users",
        &format!("/api/v1/audit?actor={mail}"),
        &format!("/api/v1/audit?since={mail}"),
        &format!("/api/v1/audit/verify?head={mail}"),
        "/api/v1/sources/any/rejections",
        "/api/v1/sources/strict/rejections",
        "/api/v1/sources/pay/rejections",
        "/api/v1/sources/mail/rejections",
        &format!("/api/v1/keys?key={mail}%20ok&tenant=%2B4915199988877"),
        &format!("/api/v1/keys?key={mail}&tenant={mail}"),
        &format!("/api/v1/keys?key=k&flow={mail}"),
        &format!("/api/v1/keys?{mail}=k"),
        &format!("/api/v1/effects?state={mail}"),
        &format!("/api/v1/effects?before={mail}"),
        &format!("/api/v1/effects/{mail}/{mail}"),
        &format!("/api/v1/jobs?state={mail}"),
        &format!("/api/v1/jobs?reason={mail}"),
        &format!("/api/v1/jobs?before={mail}"),
        &format!("/api/v1/jobs?limit={mail}"),
        &format!("/api/v1/jobs/{mail}"),
        &format!("/api/v1/latency?window={mail}"),
        &format!("/api/v1/sources/{mail}/rejections"),
        &format!("/api/{mail}"),
        "/api/v1/overview?window=1h",
        "/api/v1/integrations",
        "/api/v1/flows",
        "/api/v1/about",
        "/api/v1/sources",
        &format!("/api/v1/overview?window={mail}"),
        &format!("/api/v1/integrations/{mail}"),
        &format!("/api/v1/integrations?window={mail}"),
        &format!("/api/v1/flows/{mail}"),
        &format!("/api/v1/flows/{mail}?version={mail}"),
        &format!("/api/v1/flows/{mail}/diff?from={mail}&to={mail}"),
        &format!("/api/v1/stream?only={mail}"),
        &format!("/api/v1/stream?{mail}=dead"),
        &format!("/{mail}"),
    ] {
        house.api(path).await;
    }
    let stranger = house.client.get(format!("{}/api/v1/jobs", house.server.admin)).bearer_auth(TOKEN);
    let stranger = Answer::read(stranger.send().await.unwrap()).await;
    assert_eq!(stranger.status, 401);
    house.sweep.add_answer("a stranger", &stranger);

    let dead = jobs.iter().find(|job| job["state"] == "dead" && job["reason"] == "auth_failed").unwrap();
    let dead = text(dead, "id");
    let replay = format!("/api/v1/jobs/{dead}/replay");
    for ask in
        [MAIL.to_string(), json!({ TOKEN: 1 }).to_string(), json!({ "reason": "x", "unknown": MAIL }).to_string()]
    {
        assert_eq!(house.command(&replay, ask).await.status, 400);
    }
    let why = format!("{MAIL} called from {PHONE} about {CARD}");
    house.run(&["replay", &dead, "--reason", &why, "--wait=20s"]);
    house.api("/api/v1/audit").await;
    house.api(&format!("/api/v1/jobs/{dead}")).await;
    house.run(&["jobs", "show", &dead]);
    for arguments in [
        &["jobs", "ls", "-o", "table"][..],
        &["jobs", "ls", "--json"],
        &["dlq", "ls"],
        &["dlq", "groups"],
        &["dlq", "tail", "-n", "50"],
        &["dlq", "tail", "-o", "jsonl"],
        &["audit", "ls", "-o", "table"],
        &["audit", "export"],
        &["audit", "export", "--format", "csv"],
        &["audit", "verify"],
        &["latency", "--window", "15m"],
        &["presets", "ls"],
        &["top"],
        &["top", "--json"],
        &["integrations", "ls"],
        &["flows", "ls"],
        &["about"],
        &["open", MAIL],
        &["jobs", "show", MAIL],
        &["verify-signature", "--last-rejected", "--source", "any"],
        &["verify-signature", "--last-rejected", "--source", "pay"],
        &["verify-signature", "--last-rejected", "--source", "mail", "--json"],
        &["verify-signature", "--last-rejected", "--source", "strict"],
    ] {
        let said = house.run(arguments);
        assert!(!said.is_empty() || arguments.contains(&MAIL), "{arguments:?}");
    }
    let key = format!("{MAIL} ok");
    house.run(&["key", "show", &key, "--tenant", PHONE]);
    house.run(&["key", "show", MAIL]);
    house.run(&["find", PHONE]);
    house.run(&["find", &format!("flow:{MAIL}")]);
    house.run(&["events", "ls", "--json"]);
    ask_by_the_document(house, &dead).await;
}

/// Every operation that the API has, with marks in every place of the question. What would seal or erase the store is left out.
async fn ask_by_the_document(house: &mut House<'_>, job: &str) {
    let document = house.api("/api/v1/openapi.json").await.json();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let real =
                path.replace("{id}", job).replace("{job}", job).replace("{step}", "post").replace("{name}", "any");
            let marked = ["{id}", "{job}", "{step}", "{name}", "{scope}"];
            let marked =
                marked.into_iter().fold(path.clone(), |path, name| path.replace(name, "kanary.mail%40leak.example"));
            if method == "get" {
                house.api(&real).await;
                for name in operation["parameters"].as_array().unwrap().iter().filter(|of| of["in"] == "query") {
                    for mark in ["kanary.mail%40leak.example", "%2B4915199988877", CARD, TOKEN] {
                        house.api(&format!("{marked}?{}={mark}", name["name"].as_str().unwrap())).await;
                        house.api(&format!("{real}?{}={mark}", name["name"].as_str().unwrap())).await;
                    }
                }
            } else if method == "post" && !path.ends_with("/rotate") && !path.ends_with("/forget") {
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
                let schema = schema.as_str().and_then(|to| document.pointer(to.trim_start_matches('#')));
                let fields = schema.and_then(|schema| schema["properties"].as_object());
                let all: serde_json::Map<String, Value> =
                    fields.into_iter().flatten().map(|(name, field)| (name.clone(), marked_value(field))).collect();
                let reason =
                    all.iter().filter(|(name, _)| *name == "reason").map(|(name, value)| (name.clone(), value.clone()));
                for body in [json!(reason.collect::<serde_json::Map<_, _>>()), json!(all)] {
                    house.command(&marked, body.to_string()).await;
                    house.command(&real, body.to_string()).await;
                }
            }
        }
    }
}

/// Every page of the console that a link leads to, beginning with the overview.
async fn follow_every_link(house: &mut House<'_>) {
    let at = house.server.admin.trim_start_matches("http://").parse().unwrap();
    let browser = Browser::at(at, "admin", &house.token).await;
    let mut to_read = vec!["/".to_string(), format!("/jobs/{MAIL}"), format!("/effects/{MAIL}/{TOKEN}")];
    let mut read = BTreeSet::new();
    while let Some(path) = to_read.pop() {
        if !read.insert(path.clone()) {
            continue;
        }
        let page = browser.get(&path).await;
        for link in page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let link = link.split('#').next().unwrap().replace("&amp;", "&").replace("&#38;", "&");
            if link.starts_with('/') && !link.starts_with("/static/") {
                to_read.push(link);
            }
        }
        house.sweep.add_answer(format!("the page {path}"), &page);
        assert!(read.len() < PAGES_MOST, "links lead on without an end: {read:#?}");
    }
    for page in [
        "jobs",
        "events",
        "effects",
        "dead",
        "replays",
        "approvals",
        "integrations",
        "flows",
        "keys",
        "audit",
        "settings",
        "runbooks",
    ] {
        assert!(read.iter().any(|path| path.starts_with(&format!("/{page}"))), "no link leads to {page}: {read:#?}");
    }
}

/// A value of about the right kind that has a mark in it.
fn marked_value(field: &Value) -> Value {
    match field["type"].as_str() {
        Some("integer") => json!(1),
        Some("boolean") => json!(false),
        Some("array") => json!([MAIL, PHONE]),
        _ => json!(format!("{MAIL} {CARD}")),
    }
}

async fn ended(house: &mut House<'_>) {
    let states = ["queued", "running", "retrying"];
    eventually("every job ends", PATIENCE, async || {
        house.jobs().await.iter().all(|job| !states.contains(&job["state"].as_str().unwrap()))
    })
    .await;
    let dead = house.jobs().await.iter().filter(|job| job["state"] == "dead").count();
    assert_eq!(dead, WAYS.len() + 1, "every way but one ends badly, and so do a CloudEvent and what breaks its schema");
}

/// Lives through all of it, and looks at everything but the store.
async fn story(server: &Server, data_dir: &Path) -> Sweep {
    let token = std::fs::read_to_string(data_dir.join(clinch::api::auth::TOKEN_FILE)).unwrap();
    let mut house = House {
        client: client(),
        server,
        data_dir: data_dir.to_path_buf(),
        token: token.trim().to_string(),
        sweep: Sweep::default(),
    };
    deliver_all(&mut house).await;
    ended(&mut house).await;
    ask_all(&mut house).await;
    follow_every_link(&mut house).await;
    house.sweep
}

/// The key of the store is made up, and nothing that the sweep looks for.
const SEAL: &str = "9f1c3a5b7d2e4f60718293a4b5c6d7e8f90112233445566778899aabbccddeef";

const ENV: [(&str, &str); 5] =
    [("SEAL", SEAL), ("INWARD", INWARD), ("OUTWARD", OUTWARD), ("CLINCH_LOG", "debug"), ("RUST_BACKTRACE", "1")];

#[tokio::test(flavor = "multi_thread")]
async fn t109_p9_no_mark_is_shown_anywhere() {
    let place = Place::new(&[]).await;
    workspace(&place, parrot().await, "");
    let server = place.start_with(&ENV).await;
    let mut sweep = story(&server, &place.data_dir).await;
    let log = server.said();
    assert!(log.contains("was refused") && log.contains("422") && log.contains(" DEBUG "), "the log has it all: {log}");
    sweep.add("the log", log);
    let verified = Command::new(env!("CARGO_BIN_EXE_clinch")).arg("verify").arg(&place.data_dir).output().unwrap();
    sweep.add("clinch verify", [verified.stdout, verified.stderr].concat());
    // The store with its log of changes, and the key that it makes.
    sweep.add_files(&place.data_dir);
    server.stop().await;
    sweep.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn t109_p9_no_mark_is_shown_anywhere_on_postgres() {
    let postgres = postgres();
    let nodes = Nodes::on(&postgres, &[]).await;
    workspace(&nodes.place, parrot().await, "encryption: {key: '${secrets.SEAL}'}");
    let args = ["--store", &nodes.url, "--log", "json"];
    let mut server = nodes.place.launch(&nodes.place.data_dir, &args, &ENV);
    server.opened().await;
    let mut sweep = story(&server, &nodes.place.data_dir).await;
    sweep.add("the log", server.said());
    sweep.add_files(&nodes.place.data_dir.join("server.json"));
    // With pg_wal.
    sweep.add_files(&postgres.data());
    server.stop().await;
    sweep.check();
}
