//! Sources: who may come in, what of a request becomes an event, and that nothing else does. The real binary, with real
//! signatures.

use crate::process::{AGAIN, Place, Server};
use crate::world::Answer;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use clinch_core::death::Reason;
use clinch_core::job::Word;
use data_encoding::{BASE64, HEXLOWER};
use serde_json::{Value, json};
use std::process::Command;

const STRIPE: &str = "whsec_of_the_shop_that_pays";
pub const HUB: &str = "hub secret";
pub const STANDARD: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const ZOOM: &str = "zoom-secret-token";

/// Every source of these stories, and flows that take their events.
const SOURCES: &str = "
sources:
  pay: {verify: stripe, secret: '${secrets.STRIPE}'}
  hub: {verify: github, secret: '${secrets.HUB}', path: /hooks/hub}
  std: {verify: standardwebhooks, secret: '${secrets.STANDARD}'}
  chat: {verify: slack, secret: '${secrets.HUB}'}
  meet: {verify: zoom, secret: '${secrets.ZOOM}'}
  leads: {verify: meta, secret: '${secrets.HUB}', verify_token: '${secrets.ZOOM}'}
  mail: {verify: mandrill, secret: '${secrets.HUB}', public_url: 'https://hooks.example.com/in/mail'}
  woo: {verify: woocommerce, secret: '${secrets.HUB}'}
  crm: {verify: hubspot-v1, secret: '${secrets.HUB}'}
  grid: {verify: sendgrid, secret: '${secrets.SENDGRID}'}
  square: {verify: square, secret: '${secrets.SQUARE}', public_url: 'https://webhook.site/679a4f3a-dcfa-49ee-bac5-9d0edad886b9'}
  phone: {verify: twilio, secret: '12345'}
  any: {verify: none, cloudevents: {batches: true, origins: [events.example.com]}}
  own:
    verify: {header: X-Sig, signed: '{timestamp}.{body}', timestamp: 'header:X-Time', tolerance: 1m}
    secrets:
      - ${secrets.HUB}
      - {secret: '${secrets.ZOOM}', id: old, not_after: 2020-01-01T00:00:00Z}
";
const NAMES: &[&str] =
    &["pay", "hub", "std", "chat", "meet", "leads", "mail", "woo", "crm", "grid", "square", "phone", "any", "own"];
const SENDGRID: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==";
const SQUARE: &str = "Ibxx_5AKakO-3qeNVR61Dw";
const ENV: &[(&str, &str)] = &[
    ("STRIPE", STRIPE),
    ("HUB", HUB),
    ("STANDARD", STANDARD),
    ("ZOOM", ZOOM),
    ("SENDGRID", SENDGRID),
    ("SQUARE", SQUARE),
    ("TWILIO", "12345"),
];

/// A workspace with sources, and the server on it.
pub struct Edge {
    pub server: Server,
    pub place: Place,
    pub client: reqwest::Client,
}

impl Edge {
    async fn new() -> Edge {
        let sources = SOURCES.replace(
            "secret: '12345'",
            "secret: '${secrets.TWILIO}', public_url: 'https://mycompany.com/myapp.php?foo=1&bar=2'",
        );
        let triggers: Vec<String> = NAMES.iter().map(|name| format!("  - source: {name}\n")).collect();
        Edge::with(&[("clinch.yml", &sources), ("flows/edge.yml", &flow("edge", &triggers.concat()))]).await
    }

    pub async fn with(files: &[(&str, &str)]) -> Edge {
        let place = Place::new(&[AGAIN]).await;
        for (file, text) in files {
            place.write(file, text);
        }
        let server = place.start_with(ENV).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Edge { place, server, client }
    }

    pub async fn send(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.ask("POST", path, headers, body).await
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.server.intake)).body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.unwrap()).await
    }

    pub async fn admin(&self, path: &str) -> Answer {
        let token = std::fs::read_to_string(self.place.data_dir.join(clinch::api::auth::TOKEN_FILE)).unwrap();
        let request = self.client.get(format!("{}{path}", self.server.admin)).bearer_auth(token.trim());
        Answer::read(request.send().await.unwrap()).await
    }

    /// The story of a job, as the API tells it.
    pub async fn job(&self, job: &str) -> Value {
        self.admin(&format!("/api/v1/jobs/{job}")).await.json()
    }

    /// The event of an answer.
    pub async fn event(&self, answer: &Answer) -> Value {
        assert!((200..300).contains(&answer.status), "{answer:?}");
        self.job(answer.json()["job_id"].as_str().unwrap()).await["event"].clone()
    }

    pub async fn stored(&self) -> usize {
        self.admin("/api/v1/jobs?limit=100").await.json()["jobs"].as_array().unwrap().len()
    }

    pub async fn metric(&self, line: &str) -> u64 {
        let text =
            self.client.get(format!("{}/metrics", self.server.admin)).send().await.unwrap().text().await.unwrap();
        let found = text.lines().find_map(|told| told.strip_prefix(line));
        found.map_or(0, |value| value.trim().parse().unwrap())
    }
}

pub fn flow(name: &str, triggers: &str) -> String {
    format!("name: {name}\ntriggers:\n{triggers}steps:\n  - name: enqueue\n    queue: {{name: again}}\n")
}

pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

pub fn mac(secret: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes())
}

pub fn hex(secret: &str, text: &str) -> String {
    HEXLOWER.encode(mac(secret.as_bytes(), text).as_ref())
}

pub fn stripe(secret: &str, at: i64, body: &str) -> String {
    format!("t={at},v1={}", hex(secret, &format!("{at}.{body}")))
}

pub fn github(body: &str) -> String {
    format!("sha256={}", hex(HUB, body))
}

fn slack(at: i64, body: &str) -> [(&'static str, String); 2] {
    let signature = format!("v0={}", hex(HUB, &format!("v0:{at}:{body}")));
    [("x-slack-signature", signature), ("x-slack-request-timestamp", at.to_string())]
}

fn borrowed<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// HubSpot's first version: no HMAC, and no timestamp.
fn hubspot(body: &str) -> [(&'static str, String); 2] {
    let signature = HEXLOWER.encode(digest(&SHA256, format!("{HUB}{body}").as_bytes()).as_ref());
    [("x-hubspot-signature", signature), ("x-hubspot-signature-version", "v1".into())]
}

const PAID: &str = r#"{"id":"evt_1","type":"invoice.paid","pending_webhooks":2}"#;

#[tokio::test(flavor = "multi_thread")]
async fn t001_t046_signed_requests_are_accepted_and_answered_as_their_providers_want_it() {
    let edge = Edge::new().await;
    let check = async |answer: Answer, status: u16, source: &str, id: &str, kind: &str| {
        assert_eq!(answer.status, status, "{source}: {answer:?}");
        let event = edge.event(&answer).await;
        let told = (event["source"].as_str(), event["source_event_id"].as_str(), event["type"].as_str());
        assert_eq!(told, (Some(source), Some(id), Some(kind)));
    };
    let signature = stripe(STRIPE, now(), PAID);
    let answer = edge.send("/in/pay", &[("stripe-signature", &signature)], PAID).await;
    check(answer, 202, "pay", "evt_1", "stripe.invoice.paid").await;

    let body = r#"{"action":"opened"}"#;
    let headers = [("x-hub-signature-256", &*github(body)), ("x-github-event", "issues"), ("x-github-delivery", "d-1")];
    check(edge.send("/hooks/hub", &headers, body).await, 202, "hub", "d-1", "github.issues.opened").await;

    let (body, at) = (r#"{"type":"user.created"}"#, now().to_string());
    let key = BASE64.decode(STANDARD.strip_prefix("whsec_").unwrap().as_bytes()).unwrap();
    let signature = format!("v1,{}", BASE64.encode(mac(&key, &format!("msg_1.{at}.{body}")).as_ref()));
    let headers = [("webhook-id", "msg_1"), ("webhook-timestamp", &*at), ("webhook-signature", &*signature)];
    check(edge.send("/in/std", &headers, body).await, 202, "std", "msg_1", "user.created").await;

    // A form, which becomes JSON; its token is the provider's secret and is never stored.
    let body = "token=xyzz0&command=%2Fdeploy&trigger_id=t-1&text=now+please";
    let signed = slack(now(), body);
    let headers = [&borrowed(&signed)[..], &[("content-type", "application/x-www-form-urlencoded")]].concat();
    let answer = edge.send("/in/chat", &headers, body).await;
    let job = edge.job(answer.json()["job_id"].as_str().unwrap()).await;
    assert!(job["body"]["json"] == true && !job.to_string().contains("token"), "{job}");
    check(answer, 200, "chat", "t-1", "slack.deploy").await;

    // From the libraries of SendGrid, Square and Twilio.
    let body = "[{\"email\":\"hello@world.com\",\"event\":\"dropped\",\"reason\":\"Bounced Address\",\"sg_event_id\":\"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA\",\"sg_message_id\":\"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0\",\"smtp-id\":\"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>\",\"timestamp\":1600112492}]\r\n";
    let headers = [
        (
            "x-twilio-email-event-webhook-signature",
            "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM=",
        ),
        ("x-twilio-email-event-webhook-timestamp", "1600112502"),
    ];
    // To whoever looks, an id like this one is as good as a token.
    let id = "ZHJv•••";
    check(edge.send("/in/grid", &headers, body).await, 202, "grid", id, "sendgrid.email.dropped").await;
    let body = r#"{"merchant_id":"MLEFBHHSJGVHD","type":"webhooks.test_notification","event_id":"ac3ac95b-f97d-458c-a6e6-18981597e05f","created_at":"2022-07-13T20:30:59.037339943Z","data":{"type":"webhooks","id":"bc368e64-01aa-407e-b46e-3231809b1129"}}"#;
    let headers = [
        ("x-square-hmacsha256-signature", "GF4YkrJgGBDZ9NIYbNXBnMzqb2HoL4RW/S6vkZ9/2N4="),
        ("x-forwarded-host", "evil.example"),
    ];
    let id = "ac3ac95b-f97d-458c-a6e6-18981597e05f";
    check(edge.send("/in/square", &headers, body).await, 202, "square", id, "square.webhooks.test_notification").await;
    let body = "Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE";
    let answer =
        edge.send("/in/phone?foo=1&bar=2", &[("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")], body).await;
    assert_eq!(answer.status, 200, "{answer:?}");

    let (at, body) = (now().to_string(), r#"{"event":"it.happened"}"#);
    let signature = hex(HUB, &format!("{at}.{body}"));
    let headers = [("x-time", &*at), ("x-sig", &*signature), ("idempotency-key", "k-1")];
    check(edge.send("/in/own", &headers, body).await, 202, "own", "k-1", "it.happened").await;
    assert_eq!(edge.metric("clinch_intake_verified_total{source=\"own\",secret=\"HUB\"}").await, 1);
    edge.server.stop().await;
    assert_eq!(edge.place.report().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn t002_t032_t039_t055_what_is_not_proven_is_refused_in_one_way_and_claims_nothing() {
    let edge = Edge::new().await;
    let good = stripe(STRIPE, now(), PAID);
    let flipped = PAID.replace("evt_1", "evt_0");
    let stale = stripe(STRIPE, now() - 302, PAID);
    let ahead = stripe(STRIPE, now() + 330, PAID);
    let other = stripe("another secret", now(), PAID);
    let latin = "t=1,v1=\u{e9}";
    let cases = [
        ("no header", vec![], PAID, "signature_missing"),
        ("a flipped bit", vec![("stripe-signature", &*good)], &flipped, "signature_invalid"),
        ("another secret", vec![("stripe-signature", &other)], PAID, "signature_invalid"),
        ("stale", vec![("stripe-signature", &stale)], PAID, "timestamp_out_of_tolerance"),
        ("from the future", vec![("stripe-signature", &ahead)], PAID, "timestamp_out_of_tolerance"),
        ("twice", vec![("stripe-signature", &good), ("stripe-signature", &other)], PAID, "signature_malformed"),
        ("unreadable", vec![("stripe-signature", latin)], PAID, "signature_malformed"),
    ];
    let mut answers = Vec::new();
    for (case, headers, body, reason) in cases {
        let answer = edge.send("/in/pay", &headers, body).await;
        answer.check_problem(401, "signature-invalid");
        answers.push(answer.body);
        let last = edge.admin("/api/v1/sources/pay/rejections").await.json()["rejections"][0].clone();
        assert_eq!(last["reason"], reason, "{case}: {last}");
        assert!(!last.to_string().contains("v1="), "names of headers only: {last}");
    }
    assert!(answers.iter().all(|body| *body == answers[0]), "nobody learns why: {answers:?}");
    assert_eq!(edge.stored().await, 0);
    assert_eq!(edge.metric("clinch_intake_rejected_total{source=\"pay\",reason=\"signature_invalid\"}").await, 2);
    assert_eq!(edge.metric("clinch_intake_requests_total{source=\"pay\",outcome=\"bad_signature\"}").await, 5);
    assert_eq!(edge.metric("clinch_intake_requests_total{source=\"pay\",outcome=\"stale_timestamp\"}").await, 2);

    let answer = edge.send("/in/pay", &[("stripe-signature", &good)], PAID).await;
    assert_eq!((answer.status, answer.is_replayed()), (202, false), "no key was claimed: {answer:?}");
    let again = PAID.replace(r#""pending_webhooks":2"#, r#""pending_webhooks":1"#);
    let answer = edge.send("/in/pay", &[("stripe-signature", &stripe(STRIPE, now(), &again))], &again).await;
    assert_eq!((answer.status, answer.is_replayed()), (202, true), "T-063: the first stays: {answer:?}");
    assert_eq!(edge.stored().await, 1);

    // T-040: the log has the cause and neither signature nor secret.
    let said = edge.server.said();
    assert!(said.contains("a request to source `pay` was refused"), "{said}");
    for secret in [STRIPE, &good[20..], HUB] {
        assert!(!said.contains(secret), "{said}");
    }
    // A secret whose time is over counts no more.
    let (at, body) = (now().to_string(), "{}");
    let signature = hex(ZOOM, &format!("{at}.{body}"));
    edge.send("/in/own", &[("x-time", &at), ("x-sig", &signature)], body).await.check_problem(401, "signature-invalid");
    // The doctor asks the server.
    let told = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(["verify-signature", "--last-rejected", "--source", "own", "--data-dir"])
        .arg(&edge.place.data_dir)
        .env_remove("CLINCH_URL")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.code() == Some(1) && err.contains("no live secret matches"), "{told:?}");
    assert!(edge.admin("/api/v1/sources/nobody/rejections").await.status == 404);
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t025_t041_t042_t043_t044_t045_questions_are_answered_and_never_stored() {
    let edge = Edge::new().await;
    // Meta asks with its verify token.
    let asked = format!("/in/leads?hub.mode=subscribe&hub.verify_token={ZOOM}&hub.challenge=1158201444");
    let answer = edge.ask("GET", &asked, &[], "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "1158201444"));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(edge.ask("GET", &asked.replace(ZOOM, "wrong"), &[], "").await.status, 403);
    // Slack and Zoom ask behind a signature only.
    let body = r#"{"type":"url_verification","challenge":"3eZbrw1aB10FEMAGAZd4FyFQ"}"#;
    let json = ("content-type", "application/json");
    let signed = slack(now(), body);
    let answer = edge.send("/in/chat", &[&borrowed(&signed)[..], &[json]].concat(), body).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "3eZbrw1aB10FEMAGAZd4FyFQ"));
    edge.send("/in/chat", &[json], body).await.check_problem(401, "signature-invalid");
    let (at, body) = (now(), r#"{"event":"endpoint.url_validation","payload":{"plainToken":"abc123"}}"#);
    let signature = format!("v0={}", hex(ZOOM, &format!("v0:{at}:{body}")));
    let headers = [("x-zm-signature", &*signature), ("x-zm-request-timestamp", &*at.to_string())];
    let answer = edge.send("/in/meet", &headers, body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"plainToken": "abc123", "encryptedToken": hex(ZOOM, "abc123")}))
    );
    // Mandrill looks before it has a key; its POST stays closed.
    assert_eq!(edge.ask("HEAD", "/in/mail", &[], "").await.status, 200);
    edge.send("/in/mail", &[], "mandrill_events=%5B%5D").await.check_problem(401, "signature-invalid");
    assert_eq!(edge.send("/in/woo", &[], "webhook_id=5").await.status, 200);
    edge.send("/in/woo", &[], r#"{"id":5}"#).await.check_problem(401, "signature-invalid");
    // CloudEvents: only who is allowed is told so.
    let origin = |name: &'static str| [("webhook-request-origin", name)];
    let answer = edge.ask("OPTIONS", "/in/any", &origin("events.example.com"), "").await;
    assert_eq!((answer.status, answer.header("webhook-allowed-origin")), (200, Some("events.example.com")));
    let answer = edge.ask("OPTIONS", "/in/any", &origin("evil.example"), "").await;
    assert_eq!((answer.status, answer.header("webhook-allowed-origin")), (405, None));
    edge.ask("GET", "/in/pay", &[], "").await.check_problem(405, "method-not-allowed");
    assert_eq!(edge.stored().await, 0);
    assert_eq!(edge.metric("clinch_intake_requests_total{source=\"leads\",outcome=\"handshake\"}").await, 2);
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t062_each_event_of_a_batch_has_a_key_of_its_own_and_a_second_try_stores_what_is_missing() {
    let edge = Edge::new().await;
    let item = |id: u32| format!(r#"{{"eventId":{id},"subscriptionType":"deal.creation","id":"{id}"}}"#);
    let send = async |ids: &[u32]| {
        let body = format!("[{}]", ids.iter().map(|id| item(*id)).collect::<Vec<_>>().join(", "));
        edge.send("/in/crm", &borrowed(&hubspot(&body)), &body).await
    };
    let first = send(&[1, 2]).await;
    assert_eq!((first.status, first.is_replayed()), (202, false), "{first:?}");
    let events = |answer: &Answer| answer.json()["events"].as_array().unwrap().clone();
    assert_eq!(events(&first).len(), 2);
    let second = send(&[2, 3]).await;
    assert_eq!((second.status, second.is_replayed()), (202, false));
    assert_eq!(events(&second)[0], events(&first)[1], "it is known by its own key, in whatever company it comes");
    let third = send(&[1, 2]).await;
    assert_eq!((events(&third), third.is_replayed()), (events(&first), true));
    assert_eq!(edge.stored().await, 3);
    edge.place.drained().await;
    let mut called: Vec<String> = edge.place.sink.calls().into_iter().map(|call| call.event).collect();
    called.sort();
    assert_eq!(called, ["1", "2", "3"], "each effect happens once");
    assert_eq!(send(&[]).await.json(), json!({"status": "ignored"}), "an empty list is nothing to store");
    edge.server.stop().await;
    assert_eq!(edge.place.report().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a6_cloudevents_are_read_in_every_mode() {
    let edge = Edge::new().await;
    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/shop"),
        ("ce-type", "com.example.made"),
        ("content-type", "application/json"),
    ];
    let one = edge.send("/in/any", &binary, r#"{"n":1}"#).await;
    let event = edge.event(&one).await;
    assert_eq!((&event["source_event_id"], &event["type"]), (&json!("1"), &json!("com.example.made")));
    let structured = [("content-type", "application/cloudevents+json; charset=utf-8")];
    let envelope = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"com.example.made","data":{"n":1}}"#;
    let same = edge.send("/in/any", &structured, envelope).await;
    assert_eq!(
        (same.status, same.is_replayed(), &same.body),
        (202, true, &one.body),
        "the same event, wrapped otherwise"
    );
    let batch = [("content-type", "application/cloudevents-batch+json")];
    let other = envelope.replace(r#""/shop""#, r#""/other""#);
    let answer = edge.send("/in/any", &batch, &format!("[{envelope},{other}]")).await;
    assert_eq!(answer.json()["events"].as_array().unwrap().len(), 2, "{answer:?}");
    assert_eq!(edge.stored().await, 2, "an id is unique within its source");
    let third = envelope.replace(r#""id":"1""#, r#""id":"3""#);
    let bad = edge.send("/in/any", &batch, &format!(r#"[{third},{{"specversion":"1.0"}}]"#)).await;
    bad.check_problem(400, "cloudevent-invalid");
    assert_eq!(edge.stored().await, 2, "of a request with one bad event nothing is stored");
    assert!(!edge.send("/in/any", &structured, &third).await.is_replayed(), "and no key claimed");
    let avro = [("content-type", "application/cloudevents+goldfinch")];
    let problem = edge.send("/in/any", &avro, "{}").await.check_problem(415, "cloudevent-invalid");
    assert!(!problem.to_string().contains("goldfinch"), "what was sent is not repeated: {problem}");
    let (at, body) = (now().to_string(), format!("[{envelope}]"));
    let signature = hex(HUB, &format!("{at}.{body}"));
    let headers = [&[("x-time", &*at), ("x-sig", &*signature)][..], &batch].concat();
    edge.send("/in/own", &headers, &body).await.check_problem(415, "cloudevent-invalid");
    edge.server.stop().await;
}

const ORDER: &str = r#"{"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "plan": {"enum": ["free", "pro"]}}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a7_an_event_that_breaks_its_schema_is_refused_or_a_dead_letter_by_choice_of_the_source() {
    let settings = "sources:\n  caller: {verify: none, key_from: 'body:/id', schema: order.v2}\n  hub: {verify: github, secret: '${secrets.HUB}', schema: {github.*: order.v2}}\n";
    let triggers = "  - source: caller\n  - source: hub\n";
    let edge = Edge::with(&[
        ("clinch.yml", settings),
        ("flows/edge.yml", &flow("edge", triggers)),
        ("schemas/order.v2.json", ORDER),
    ])
    .await;
    let answer = edge.send("/in/caller", &[], r#"{"id":"1","plan":"goldfinch-plan"}"#).await;
    let problem = answer.check_problem(422, "schema-invalid");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("/plan breaks enum") && !detail.contains("goldfinch"), "{detail}");
    assert_eq!(edge.stored().await, 0);
    let answer = edge.send("/in/caller", &[], r#"{"id":"1","plan":"pro"}"#).await;
    assert_eq!((answer.status, answer.is_replayed()), (202, false), "the refusal claimed no key: {answer:?}");
    assert_eq!(edge.event(&answer).await["schema_version"], 2);

    let body = r#"{"id":"2","plan":"goldfinch-plan"}"#;
    let headers = [("x-hub-signature-256", &*github(body)), ("x-github-event", "push"), ("x-github-delivery", "d-1")];
    let answer = edge.send("/in/hub", &headers, body).await;
    assert_eq!(answer.status, 202, "a provider would only send it again: {answer:?}");
    let job = answer.json()["job_id"].as_str().unwrap().to_string();
    crate::process::eventually("it is a dead letter", crate::process::PATIENCE, async || {
        edge.job(&job).await["job"]["state"] == "dead"
    })
    .await;
    let told = edge.job(&job).await;
    assert_eq!(told["job"]["reason"], "bad_payload");
    let error = told["job"]["error"].as_str().unwrap();
    assert!(error.contains("schema `order.v2`: /plan breaks enum") && !error.contains("goldfinch"), "{error}");
    assert!(edge.place.sink.calls().iter().all(|call| call.event != "2"), "nothing was done for it");
    // A person who replays it has seen why.
    let replayed = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(["replay", &job, "--reason", "the plan is new", "--wait=20s", "--data-dir"])
        .arg(&edge.place.data_dir)
        .output()
        .unwrap();
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(edge.place.sink.calls().iter().filter(|call| call.event == "2").count(), 1);
    edge.server.stop().await;
    let books = edge.place.books().await;
    let row = &books.jobs().await[&job.parse().unwrap()];
    assert_eq!((row.word, row.reason), (Word::Success, None::<Reason>));
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_p9_what_is_dropped_or_hashed_is_in_no_file_and_in_no_answer() {
    // Nothing is encrypted, so that what is dropped is gone and not only unreadable.
    let settings = "encryption: none\nsources:\n  shop:\n    verify: none\n    key_from: body:/customer/email\n    tenant_from: body:/shop\n    drop: [/customer/note, /shop]\n    hash: [/customer/email, /phone]\n    headers: [x-request-id]\n";
    let edge = Edge::with(&[("clinch.yml", settings), ("flows/edge.yml", &flow("edge", "  - source: shop\n"))]).await;
    let body = r#"{"id":"kept-7","shop":"goldfinch-shop","customer":{"email":"goldfinch-ada@example.com","note":"goldfinch-note"},"phone":"+15550goldfinch"}"#;
    let headers =
        [("x-request-id", "r-1"), ("user-agent", "goldfinch-agent"), ("authorization", "Bearer goldfinch-token")];
    let answer = edge.send("/in/shop", &headers, body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert!(edge.send("/in/shop", &headers, body).await.is_replayed(), "it is known by what is not kept");
    let other = body.replace("goldfinch-note", "goldfinch-other");
    edge.send("/in/shop", &headers, &other).await.check_problem(422, "idempotency-key-reused");
    let told = edge.job(answer.json()["job_id"].as_str().unwrap()).await;
    assert!(told["event"]["source_event_id"].as_str().unwrap().starts_with("h_"), "{told}");
    edge.place.drained().await;
    assert_eq!(edge.place.sink.calls().len(), 1);
    let metrics = edge.client.get(format!("{}/metrics", edge.server.admin)).send().await.unwrap().text().await.unwrap();
    for seen in [told.to_string(), metrics, edge.server.said()] {
        assert!(!seen.contains("goldfinch"), "{seen}");
    }
    let scan = |when: &str| {
        let mut kept = false;
        for entry in std::fs::read_dir(&edge.place.data_dir).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let holds = |word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
            assert!(!holds(b"goldfinch"), "{when}: {} has what was to be dropped", path.display());
            kept |= holds(b"kept-7");
        }
        assert!(kept, "{when}: what is kept can be found");
    };
    scan("while it runs, with its log of changes");
    edge.server.stop().await;
    scan("afterwards");
}

#[tokio::test(flavor = "multi_thread")]
async fn t006_without_a_usable_secret_nothing_is_started() {
    let place = Place::new(&[AGAIN]).await;
    place.write("clinch.yml", "sources:\n  std: {verify: standardwebhooks, secret: '${secrets.STD_SECRET}'}\n");
    place.write("flows/edge.yml", &flow("edge", "  - source: std\n"));
    for (value, why) in [
        (None, "STD_SECRET (source `std`)"),
        (Some(""), "STD_SECRET (source `std`)"),
        (Some("   "), "source `std`: STD_SECRET: the secret is empty"),
        (Some("whsec_"), "source `std`: STD_SECRET: the secret is empty"),
        (Some("whsec_c2hvcnQ="), "source `std`: STD_SECRET: the secret holds 5 bytes"),
    ] {
        let env: Vec<(&str, &str)> = value.map(|value| ("STD_SECRET", value)).into_iter().collect();
        let mut server = place.spawn(&env);
        let status = server.exited().await;
        assert_eq!(status.code(), Some(6), "{value:?}: {}", server.said());
        let said = server.said();
        assert!(said.contains(why) && !said.contains("c2hvcnQ"), "{value:?}: {said}");
        assert!(!place.data_dir.exists(), "a start that fails leaves no data behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a6_each_flow_takes_the_types_it_names_and_one_event_may_be_for_several() {
    let settings = "sources:\n  hub: {verify: github, secret: '${secrets.HUB}', types: {star.created: liked}}\n";
    let edge = Edge::with(&[
        ("clinch.yml", settings),
        ("flows/one.yml", &flow("one", "  - source: hub\n    on: github.issues.opened\n")),
        ("flows/two.yml", &flow("two", "  - source: hub\n    on: ['github.issues.*', liked]\n")),
    ])
    .await;
    let send = async |delivery: &str, kind: &str, action: &str| {
        let body = format!(r#"{{"action":"{action}","id":"{delivery}"}}"#);
        let headers =
            [("x-hub-signature-256", &*github(&body)), ("x-github-event", kind), ("x-github-delivery", delivery)];
        edge.send("/in/hub", &headers, &body).await
    };
    let flows = async |answer: &Answer| {
        let event = answer.json()["event_id"].as_str().unwrap().to_string();
        let jobs = edge.admin(&format!("/api/v1/events/{event}")).await.json()["jobs"].as_array().unwrap().clone();
        jobs.iter().map(|job| job["flow"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(flows(&send("1", "issues", "opened").await).await, ["one", "two"]);
    assert_eq!(flows(&send("2", "issues", "closed").await).await, ["two"]);
    let liked = send("3", "star", "created").await;
    assert_eq!(flows(&liked).await, ["two"]);
    assert_eq!(edge.event(&liked).await["type"], "liked");
    let ignored = send("4", "push", "").await;
    assert_eq!((ignored.status, ignored.json()), (202, json!({"status": "ignored"})));
    assert_eq!(edge.metric("clinch_intake_requests_total{source=\"hub\",outcome=\"ignored\"}").await, 1);
    assert_eq!(edge.stored().await, 4);
    edge.place.drained().await;
    let calls = edge.place.sink.calls();
    assert_eq!(calls.iter().filter(|call| call.event == "1").count(), 2, "one job each");
    // B9: a key of a source has its history too.
    let told = edge.admin("/api/v1/keys?key=1").await.json();
    assert_eq!((&told["found"][0]["route"], &told["found"][0]["flow"]), (&json!("source hub"), &json!("hub")));
    edge.server.stop().await;
    assert_eq!(edge.place.report().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn t080_t081_a_limit_refuses_or_defers_and_bad_signatures_use_up_nothing() {
    let limited = |name: &str, limits: &str| {
        format!("  {name}: {{verify: github, secret: '${{secrets.HUB}}', limits: {{{limits}}}}}\n")
    };
    let settings = [
        "sources:\n",
        &limited("strict", "source: 5/h"),
        &limited("patient", "source: 5/h, mode: defer"),
        &limited("narrow", "address: 3/h"),
    ]
    .concat();
    let triggers = "  - source: strict\n  - source: patient\n  - source: narrow\n";
    let edge = Edge::with(&[("clinch.yml", &settings), ("flows/edge.yml", &flow("edge", triggers))]).await;
    let send = async |source: &str, nth: usize, good: bool| {
        let body = format!(r#"{{"id":"{source}-{nth}"}}"#);
        let signature = if good { github(&body) } else { github("another") };
        let delivery = format!("d-{nth}");
        let headers =
            [("x-hub-signature-256", &*signature), ("x-github-event", "push"), ("x-github-delivery", &*delivery)];
        edge.send(&format!("/in/{source}"), &headers, &body).await
    };
    for nth in 0..50 {
        send("strict", nth, false).await.check_problem(401, "signature-invalid");
    }
    for nth in 0..5 {
        assert_eq!(send("strict", nth, true).await.status, 202, "the quota is untouched");
    }
    let refused = send("strict", 5, true).await;
    refused.check_problem(429, "quota-exceeded");
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(refused.header("ratelimit-policy"), Some("\"source\";q=5;w=3600"));
    let left = refused.header("ratelimit").unwrap();
    let reset: u64 = left.rsplit_once("t=").unwrap().1.parse().unwrap();
    assert!(left.starts_with("\"source\";r=0;") && retry_after >= reset, "{left}, {retry_after}");

    for nth in 0..20 {
        assert_eq!(send("patient", nth, true).await.status, 202, "nothing is lost");
    }
    let jobs = edge.admin("/api/v1/jobs?limit=100").await.json();
    let jobs = jobs["jobs"].as_array().unwrap();
    let due: std::collections::BTreeSet<&str> = jobs.iter().filter_map(|job| job["due_at"].as_str()).collect();
    assert!(due.len() >= 15, "each waits for a turn of its own: {due:?}");

    for nth in 0..3 {
        send("narrow", nth, false).await.check_problem(401, "signature-invalid");
    }
    let refused = send("narrow", 3, true).await;
    refused.check_problem(429, "quota-exceeded");
    assert_eq!(
        (refused.header("ratelimit"), refused.header("ratelimit-policy")),
        (None, None),
        "a stranger learns no limit"
    );
    edge.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h6_f1_what_the_workspace_masks_is_hidden_in_api_and_command_line() {
    let settings =
        "masking: {fields: [crm_id, '*budget*'], pointers: [/deal/stage]}\nsources:\n  any: {verify: none}\n";
    let edge = Edge::with(&[("clinch.yml", settings), ("flows/edge.yml", &flow("edge", "  - source: any\n"))]).await;
    edge.place.sink.answer_with(|_| 422);
    let body =
        r#"{"crm_id":70707,"yearlyBudget":80808,"deal":{"stage":90909,"size":60606},"note":"call ada@example.com"}"#;
    let answer = edge.send("/in/any", &[("idempotency-key", "k-1")], body).await;
    edge.place.drained().await;
    let job = answer.json()["job_id"].as_str().unwrap().to_string();
    let shown = clinch(&edge.place, &["dlq", "show", &job, "--color", "always"]);
    for (seen, lines) in [(edge.job(&job).await["body"].to_string(), "lines"), (shown, "body, ")] {
        assert!(seen.contains(lines) && seen.contains("60606"), "what nobody hides is shown: {seen}");
        for hidden in ["70707", "80808", "90909", "ada@", "call"] {
            assert!(!seen.contains(hidden), "{hidden}: {seen}");
        }
    }
    edge.server.stop().await;
}

fn clinch(place: &Place, arguments: &[&str]) -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(arguments)
        .arg("--data-dir")
        .arg(&place.data_dir)
        .output()
        .unwrap();
    assert!(said.status.success(), "{arguments:?}: {said:?}");
    String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_a_door_without_verification_is_shown_in_red_and_in_words() {
    const RED: &str = "\u{1b}[1m\u{1b}[31m";
    let edge = Edge::new().await;
    let told = edge.admin("/api/v1/sources").await.json();
    let open: Vec<&str> = told["sources"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|source| source["verify"] == "none")
        .map(|source| source["path"].as_str().unwrap())
        .collect();
    assert_eq!(open, ["/hooks/again", "/in/any"]);
    let row = |name: &str| told["sources"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    assert_eq!((&row("own")["verify"], &row("own")["secrets"]), (&json!("hmac"), &json!(2)));
    let plain = clinch(&edge.place, &["sources", "ls"]);
    assert!(plain.contains("any\tnone\t0\tPOST\t/in/any\n") && !plain.contains('\u{1b}'), "{plain}");
    assert!(plain.contains("anybody may send to 2 paths"), "{plain}");
    let red = clinch(&edge.place, &["sources", "ls", "-o", "table", "--color", "always"]);
    assert!(red.contains(&format!("{RED}none")), "{red:?}");
    let workspace = edge.place.dir.path().join("workspace");
    let check = ["check", workspace.to_str().unwrap(), "-o", "table", "--color", "always"];
    let checked = clinch(&edge.place, &check);
    let doors = "to /hooks/again (flow again), /in/any (source any)";
    assert!(checked.contains(&format!("{RED}anybody may send")) && checked.contains(doors), "{checked:?}");
    let said = edge.server.said();
    assert!(
        said.contains("-> source any (anybody may send)") && !said.contains('\u{1b}'),
        "no terminal, no colour: {said}"
    );
    assert!(said.contains("-> flow again (anybody may send)") && said.contains("-> source pay (stripe)"), "{said}");
    edge.server.stop().await;
}
