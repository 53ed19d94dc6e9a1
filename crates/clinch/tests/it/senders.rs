//! Every preset through the real binary: what its provider sends is accepted once, and nothing that was tampered with is, nor
//! does it leave a trace that could keep the genuine one out. Where a provider has a library that signs or checks, or somebody
//! else has one, that library does it here (`tests/senders`).

use crate::nodes::{Nodes, shared_postgres};
use crate::process::{AGAIN, Place, Server, client};
use crate::world::Answer;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use clinch_core::signature::presets::{ALL, Preset, find};
use data_encoding::{BASE64, HEXLOWER};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Who vouches for the way that a preset is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// A library of the provider makes the signature.
    Signs(&'static str),
    /// A library of the provider accepts what was signed here, and refuses it with one bit flipped.
    Checks(&'static str),
    /// The provider (or the standard) has published a request with its signature: see the vectors in core.
    Published,
    /// A library of somebody else, who takes what this provider sends, does the same.
    Others(&'static str),
    /// Nobody but the description: there is no library that checks it and no published example.
    Described,
}

/// What is signed.
struct Ask<'a> {
    secret: &'a str,
    url: &'a str,
    at: i64,
    body: &'a str,
    id: &'a str,
}

type Headers = Vec<(String, String)>;

struct Sender {
    preset: &'static str,
    proof: Proof,
    /// What its source says besides `verify` and `secret`.
    more: &'static str,
    secret: String,
    other: String,
    /// The body; `n` is 1 somewhere in it, which can become 0 without any harm but to the signature.
    body: fn(at: i64) -> String,
    sign: fn(&Sender, &Ask<'_>) -> Headers,
    /// For SendGrid, who signs with a key that nobody else has: its own, and another one.
    pairs: Vec<EcdsaKeyPair>,
}

fn mac(algorithm: hmac::Algorithm, secret: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(algorithm, secret), text.as_bytes()).as_ref().to_vec()
}

fn hex(secret: &str, text: &str) -> String {
    HEXLOWER.encode(&mac(hmac::HMAC_SHA256, secret.as_bytes(), text))
}

fn base64(secret: &str, text: &str) -> String {
    BASE64.encode(&mac(hmac::HMAC_SHA256, secret.as_bytes(), text))
}

fn sha1(secret: &str, text: &str) -> Vec<u8> {
    mac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes(), text)
}

fn sha256(text: &str) -> Vec<u8> {
    digest(&SHA256, text.as_bytes()).as_ref().to_vec()
}

fn headers<const N: usize>(pairs: [(&str, String); N]) -> Headers {
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn date(at: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(at).unwrap()
}

/// The fields of a form as Twilio and Mandrill sign them. Those of these stories have no `+`.
fn sorted_form(body: &str) -> String {
    let decoded = |text: &str| String::from_utf8(clinch_core::form::percent_decoded(text.as_bytes()).unwrap()).unwrap();
    let mut fields: Vec<_> = body.split('&').map(|field| field.split_once('=').unwrap()).collect();
    fields.sort_unstable();
    fields.into_iter().map(|(name, value)| format!("{name}{}", decoded(value))).collect()
}

const RFC9421: &str =
    "hmac-sha256:uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==";

/// One for each preset.
fn senders() -> Vec<Sender> {
    use Proof::{Checks, Described, Others, Published, Signs};
    let sender = |preset: &'static str, proof, body, sign| Sender {
        preset,
        proof,
        more: "",
        secret: format!("the-secret-of-{preset}"),
        other: format!("another-secret-of-{preset}"),
        body,
        sign,
        pairs: Vec::new(),
    };
    let pairs: Vec<EcdsaKeyPair> =
        (0..2).map(|_| EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap()).collect();
    let public = |pair: &EcdsaKeyPair| {
        let der = AsDer::<PublicKeyX509Der<'_>>::as_der(pair.public_key()).unwrap();
        BASE64.encode(der.as_ref())
    };
    let dated = |sender| Sender { more: "tolerance: 5m", ..sender };
    vec![
        sender(
            "calendly",
            Others("calendly"),
            |_| r#"{"event":"invitee.created","n":1}"#.into(),
            |_, ask| {
                let signature = hex(ask.secret, &format!("{}.{}", ask.at, ask.body));
                headers([("calendly-webhook-signature", format!("t={},v1={signature}", ask.at))])
            },
        ),
        sender(
            "github",
            Signs("github"),
            |_| r#"{"action":"opened","n":1}"#.into(),
            |_, ask| headers([("x-github-event", "issues".into()), ("x-github-delivery", ask.id.into())]),
        ),
        sender(
            "google-ads",
            Described,
            |_| r#"{"lead_id":"L1","google_key":"the-secret-of-google-ads","n":1}"#.into(),
            |_, _| Vec::new(),
        ),
        Sender {
            more: "verify: {header: X-Sig, signed: '{timestamp}.{body}', timestamp: 'header:X-Time', tolerance: 5m}",
            ..sender(
                "hmac",
                Published,
                |_| r#"{"n":1}"#.into(),
                |_, ask| {
                    let signature = hex(ask.secret, &format!("{}.{}", ask.at, ask.body));
                    headers([("x-sig", signature), ("x-time", ask.at.to_string()), ("idempotency-key", ask.id.into())])
                },
            )
        },
        sender("hubspot-v1", Published, hubspot, |_, ask| {
            let signature = HEXLOWER.encode(&sha256(&format!("{}{}", ask.secret, ask.body)));
            headers([("x-hubspot-signature", signature), ("x-hubspot-signature-version", "v1".into())])
        }),
        sender("hubspot-v2", Published, hubspot, |_, ask| {
            let signature = HEXLOWER.encode(&sha256(&format!("{}POST{}{}", ask.secret, ask.url, ask.body)));
            headers([("x-hubspot-signature", signature), ("x-hubspot-signature-version", "v2".into())])
        }),
        sender("hubspot-v3", Published, hubspot, |_, ask| {
            let at = ask.at * 1000;
            let signature = base64(ask.secret, &format!("POST{}{}{at}", ask.url, ask.body));
            headers([("x-hubspot-signature-v3", signature), ("x-hubspot-request-timestamp", at.to_string())])
        }),
        sender(
            "intercom",
            Others("intercom"),
            |_| r#"{"id":"notif_1","topic":"contact.created","n":1}"#.into(),
            |_, ask| headers([("x-hub-signature", format!("sha1={}", HEXLOWER.encode(&sha1(ask.secret, ask.body))))]),
        ),
        dated(sender(
            "klaviyo",
            Described,
            |_| r#"{"data":[{"external_id":"7","topic":"event:klaviyo.opened_email","n":1}]}"#.into(),
            |_, ask| {
                let at = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&date(ask.at)).unwrap();
                let signature = hex(ask.secret, &format!("{}{at}", ask.body));
                headers([("klaviyo-signature", signature), ("klaviyo-timestamp", at)])
            },
        )),
        sender(
            "linear",
            Checks("linear"),
            |at| format!(r#"{{"type":"Issue","action":"create","n":1,"webhookTimestamp":{}}}"#, at * 1000),
            |_, ask| headers([("linear-signature", hex(ask.secret, ask.body)), ("linear-delivery", ask.id.into())]),
        ),
        sender(
            "mandrill",
            Others("mandrill"),
            |_| "mandrill_events=%5B%7B%22event%22%3A%22open%22%2C%22_id%22%3A%22a%22%2C%22ts%22%3A1%7D%5D&n=1".into(),
            |_, ask| {
                let signed = format!("{}{}", ask.url, sorted_form(ask.body));
                headers([("x-mandrill-signature", BASE64.encode(&sha1(ask.secret, &signed))), FORM.into_header()])
            },
        ),
        Sender {
            more: "verify_token: '${secrets.SECRET_META}'",
            ..sender(
                "meta",
                Signs("meta"),
                |_| {
                    r#"{"object":"page","entry":[{"id":"1","time":2,"changes":[{"field":"leadgen","value":{"leadgen_id":"4","n":1}}]}]}"#.into()
                },
                |_, _| Vec::new(),
            )
        },
        sender(
            "paddle",
            Checks("paddle"),
            |_| r#"{"event_id":"evt_1","event_type":"x.y","n":1}"#.into(),
            |_, ask| {
                let signature = hex(ask.secret, &format!("{}:{}", ask.at, ask.body));
                headers([("paddle-signature", format!("ts={};h1={signature}", ask.at))])
            },
        ),
        Sender {
            secret: RFC9421.into(),
            other: "hmac-sha256:C2FVsBQIhrscChlQIMV+b5sSYspob7oD".into(),
            ..sender(
                "rfc9421",
                Published,
                |_| r#"{"type":"made","n":1}"#.into(),
                |_, ask| {
                    let key = BASE64.decode(ask.secret.trim_start_matches("hmac-sha256:").as_bytes()).unwrap();
                    let covered = format!(r#"("@method" "@target-uri" "content-digest");created={};keyid="k""#, ask.at);
                    let body = format!("sha-256=:{}:", BASE64.encode(&sha256(ask.body)));
                    let base = format!(
                        "\"@method\": POST\n\"@target-uri\": {}\n\"content-digest\": {body}\n\"@signature-params\": {covered}",
                        ask.url
                    );
                    let tag = BASE64.encode(&mac(hmac::HMAC_SHA256, &key, &base));
                    headers([
                        ("signature-input", format!("sig={covered}")),
                        ("signature", format!("sig=:{tag}:")),
                        ("content-digest", body),
                        ("idempotency-key", ask.id.into()),
                    ])
                },
            )
        },
        sender(
            "segment",
            Signs("segment"),
            |_| r#"{"messageId":"m-1","type":"track","n":1}"#.into(),
            |_, _| Vec::new(),
        ),
        dated(Sender {
            secret: public(&pairs[0]),
            other: public(&pairs[1]),
            pairs,
            ..sender(
                "sendgrid",
                Checks("sendgrid"),
                |_| "[{\"sg_event_id\":\"a\",\"event\":\"open\",\"n\":1}]\r\n".into(),
                |sender, ask| {
                    let pair = &sender.pairs[usize::from(ask.secret != sender.secret)];
                    let signed = format!("{}{}", ask.at, ask.body);
                    let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
                    headers([
                        ("x-twilio-email-event-webhook-signature", BASE64.encode(signature.as_ref())),
                        ("x-twilio-email-event-webhook-timestamp", ask.at.to_string()),
                    ])
                },
            )
        }),
        sender(
            "shopify",
            Checks("shopify"),
            |_| r#"{"id":820982911946154508,"n":1}"#.into(),
            |_, ask| {
                headers([
                    ("x-shopify-hmac-sha256", base64(ask.secret, ask.body)),
                    ("x-shopify-webhook-id", ask.id.into()),
                    ("x-shopify-topic", "orders/create".into()),
                    ("x-shopify-shop-domain", "shop.myshopify.com".into()),
                    ("x-shopify-api-version", "2025-01".into()),
                ])
            },
        ),
        sender(
            "slack",
            Published,
            |_| r#"{"event_id":"Ev1","event":{"type":"app_mention"},"n":1}"#.into(),
            |_, ask| {
                let signature = hex(ask.secret, &format!("v0:{}:{}", ask.at, ask.body));
                headers([
                    ("x-slack-signature", format!("v0={signature}")),
                    ("x-slack-request-timestamp", ask.at.to_string()),
                    ("content-type", "application/json".into()),
                ])
            },
        ),
        sender(
            "square",
            Published,
            |_| r#"{"event_id":"e-1","type":"payment.created","n":1}"#.into(),
            |_, ask| {
                headers([("x-square-hmacsha256-signature", base64(ask.secret, &format!("{}{}", ask.url, ask.body)))])
            },
        ),
        Sender {
            secret: "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".into(),
            other: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into(),
            ..sender(
                "standardwebhooks",
                Signs("standardwebhooks"),
                |_| r#"{"type":"invoice.paid","n":1}"#.into(),
                |_, _| Vec::new(),
            )
        },
        sender(
            "stripe",
            Signs("stripe"),
            |_| r#"{"id":"evt_1","type":"invoice.paid","n":1}"#.into(),
            |_, _| Vec::new(),
        ),
        dated(sender(
            "tiktok",
            Described,
            |_| r#"{"event":"video.publish","n":1}"#.into(),
            |_, ask| {
                let signature = hex(ask.secret, &format!("{}.{}", ask.at, ask.body));
                headers([("tiktok-signature", format!("t={},s={signature}", ask.at))])
            },
        )),
        sender(
            "twilio",
            Published,
            |_| "MessageSid=SM1&SmsStatus=received&From=%2B15550100&n=1".into(),
            |_, ask| {
                let signed = format!("{}{}", ask.url, sorted_form(ask.body));
                headers([
                    ("x-twilio-signature", BASE64.encode(&sha1(ask.secret, &signed))),
                    ("i-twilio-idempotency-token", ask.id.into()),
                    FORM.into_header(),
                ])
            },
        ),
        sender(
            "typeform",
            Others("typeform"),
            |_| r#"{"event_id":"L","event_type":"form_response","n":1}"#.into(),
            |_, ask| headers([("typeform-signature", format!("sha256={}", base64(ask.secret, ask.body)))]),
        ),
        sender(
            "woocommerce",
            Published,
            |_| r#"{"id":7,"n":1}"#.into(),
            |_, ask| {
                headers([
                    ("x-wc-webhook-signature", base64(ask.secret, ask.body)),
                    ("x-wc-webhook-topic", "order.created".into()),
                ])
            },
        ),
        dated(sender(
            "zendesk",
            Others("zendesk"),
            |_| r#"{"type":"zen:ticket.created","n":1}"#.into(),
            |_, ask| {
                let at = date(ask.at).to_string();
                headers([
                    ("x-zendesk-webhook-signature", base64(ask.secret, &format!("{at}{}", ask.body))),
                    ("x-zendesk-webhook-signature-timestamp", at),
                    ("x-zendesk-webhook-invocation-id", ask.id.into()),
                ])
            },
        )),
        sender(
            "zoom",
            Checks("zoom"),
            |_| r#"{"event":"meeting.started","n":1}"#.into(),
            |_, ask| {
                let signature = hex(ask.secret, &format!("v0:{}:{}", ask.at, ask.body));
                headers([("x-zm-signature", format!("v0={signature}")), ("x-zm-request-timestamp", ask.at.to_string())])
            },
        ),
    ]
}

fn hubspot(_: i64) -> String {
    r#"[{"eventId":1,"subscriptionId":2,"occurredAt":3,"subscriptionType":"deal.creation","n":1}]"#.into()
}

struct Form;
const FORM: Form = Form;

impl Form {
    fn into_header(self) -> (&'static str, String) {
        ("content-type", "application/x-www-form-urlencoded".into())
    }
}

/// The libraries, those of a language in a process of their own.
struct Libraries {
    node: Answering,
    python: Answering,
}

struct Answering {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Libraries {
    fn start() -> Libraries {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders");
        let are_there = ["node_modules", "alone", "venv"].iter().all(|name| directory.join(name).exists());
        assert!(are_there, "libraries are missing in {directory:?}; scripts/test installs them");
        let python = directory.join("venv/bin/python");
        Libraries {
            node: Answering::start(Path::new("node"), "senders.mjs", &directory),
            python: Answering::start(&python, "senders.py", &directory),
        }
    }

    fn ask(&mut self, question: &Value) -> Value {
        match question["library"].as_str() {
            Some("mandrill") => self.python.ask(question),
            _ => self.node.ask(question),
        }
    }
}

impl Answering {
    fn start(program: &Path, script: &str, directory: &Path) -> Answering {
        let mut child = Command::new(program)
            .arg(script)
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error}"));
        let (asks, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Answering { child, asks, answers }
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.asks, "{question}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{question}: {line:?}"))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sender {
    fn preset(&self) -> &'static Preset {
        find(self.preset).unwrap()
    }

    fn url(&self) -> String {
        format!("https://hooks.example.com/in/{}", self.preset)
    }

    fn variable(&self) -> String {
        format!("SECRET_{}", self.preset.to_uppercase().replace('-', "_"))
    }

    fn source(&self) -> String {
        let mut settings = format!("secret: '${{secrets.{}}}'", self.variable());
        if !self.more.contains("verify:") {
            settings += &format!(", verify: {}", self.preset);
        }
        if !self.more.is_empty() {
            settings += &format!(", {}", self.more);
        }
        if (self.preset().scheme)().needs_url() {
            settings += &format!(", public_url: '{}'", self.url());
        }
        format!("  {}: {{{settings}}}\n", self.preset)
    }

    /// How far from now it may be dated, if it is dated at all.
    fn tolerance(&self) -> Option<Duration> {
        (self.preset().scheme)().tolerance().or(self.more.contains("tolerance").then_some(Duration::from_secs(300)))
    }

    /// A request of this moment, signed with this secret.
    fn sent(&self, libraries: &mut Libraries, secret: &str, at: i64) -> (Headers, String) {
        let body = (self.body)(at);
        let (id, url) = (format!("delivery-{}", self.preset), self.url());
        let mut sent = (self.sign)(self, &Ask { secret, url: &url, at, body: &body, id: &id });
        if let Proof::Signs(library) = self.proof {
            let question = json!({"library": library, "secret": secret, "body": body, "at": at, "id": id});
            let told = libraries.ask(&question);
            let signed = told["headers"].as_object().unwrap_or_else(|| panic!("{library}: {told}"));
            sent.extend(signed.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string())));
        }
        (sent, body)
    }

    /// What the library, the provider's own or another, says to this request.
    fn checked(&self, libraries: &mut Libraries, headers: &Headers, body: &str) -> Option<bool> {
        let (Proof::Checks(library) | Proof::Others(library)) = self.proof else { return None };
        let sent: Value = headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
        let asked =
            json!({"library": library, "secret": self.secret, "url": self.url(), "body": body, "headers": sent});
        Some(libraries.ask(&asked)["valid"] == true)
    }
}

/// The same with one bit another.
fn flipped(preset: &str, body: &str) -> String {
    if preset == "google-ads" {
        // Nothing of it is signed but the key itself.
        return body.replace("the-secret", "the-secrdt");
    }
    let at = body.rfind("n\":1").map(|at| at + 3).or(body.rfind("n=1").map(|at| at + 2)).unwrap();
    let mut bytes = body.as_bytes().to_vec();
    bytes[at] ^= 1;
    String::from_utf8(bytes).unwrap()
}

struct Doors {
    client: reqwest::Client,
    server: Server,
    token: String,
}

impl Doors {
    fn new(server: Server, data_dir: &Path) -> Doors {
        let token = std::fs::read_to_string(data_dir.join(clinch::api::auth::TOKEN_FILE)).unwrap();
        Doors { client: client(), server, token: token.trim().to_string() }
    }

    async fn post(&self, path: &str, headers: &Headers, body: &str) -> Answer {
        let mut request = self.client.post(format!("{}{path}", self.server.intake)).body(body.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        Answer::read(request.send().await.unwrap()).await
    }

    async fn stored(&self) -> usize {
        let request = self.client.get(format!("{}/api/v1/jobs?limit=200", self.server.admin)).bearer_auth(&self.token);
        Answer::read(request.send().await.unwrap()).await.json()["jobs"].as_array().unwrap().len()
    }

    /// All that must be refused is refused and leaves nothing; then the genuine one is accepted, and known again.
    async fn story(&self, sender: &Sender, libraries: &mut Libraries) {
        let (name, path) = (sender.preset, format!("/in/{}", sender.preset));
        let before = self.stored().await;
        let now = || jiff::Timestamp::now().as_second();
        let refused = async |what: &str, headers: &Headers, body: &str| {
            let answer = self.post(&path, headers, body).await;
            assert_eq!(answer.status, 401, "{name}, {what}: {answer:?}");
            answer.check_problem(401, "signature-invalid");
        };
        let (good, body) = sender.sent(libraries, &sender.secret, now());
        let bent = flipped(name, &body);
        refused("one bit flipped", &good, &bent).await;
        assert_ne!(sender.checked(libraries, &good, &bent), Some(true), "{name}: its library minds a flipped bit too");
        let (other, other_body) = sender.sent(libraries, &sender.other, now());
        let other_body = if name == "google-ads" { other_body.replace(&sender.secret, "other") } else { other_body };
        refused("another secret", &other, &other_body).await;
        if let Some(tolerance) = sender.tolerance() {
            let off = i64::try_from(tolerance.as_secs()).unwrap() + 30;
            for (what, at) in [("stale", now() - off), ("from the future", now() + off)] {
                let (dated, body) = sender.sent(libraries, &sender.secret, at);
                refused(what, &dated, &body).await;
            }
        }
        let read = (sender.preset().scheme)().headers();
        let signed = match name {
            "hmac" => Some("x-sig"),
            _ => good.iter().map(|(name, _)| name.as_str()).find(|name| read.iter().any(|read| read == name)),
        };
        if let Some(signed) = signed {
            let again = good.iter().find(|(name, _)| name == signed).unwrap().clone();
            refused("a header twice", &[&good[..], &[again]].concat(), &body).await;
        }
        assert_eq!(self.stored().await, before, "{name}: what was refused is not stored");

        // Signed anew: those refusals took their time, and Paddle allows 5 seconds. On a busy machine they may be over before it is
        // there: then it is signed once more.
        let is_stale = |at: i64| {
            sender.tolerance().is_some_and(|tolerance| now() - at >= i64::try_from(tolerance.as_secs()).unwrap())
        };
        let (mut at, good, body, answer) = loop {
            let at = now();
            let (good, body) = sender.sent(libraries, &sender.secret, at);
            let checked = sender.checked(libraries, &good, &body);
            if checked == Some(false) && is_stale(at) {
                continue;
            }
            assert_ne!(checked, Some(false), "{name}: its library accepts what is sent");
            let answer = self.post(&path, &good, &body).await;
            if answer.status != 401 || !is_stale(at) {
                break (at, good, body, answer);
            }
        };
        assert_eq!((answer.status, answer.is_replayed()), (sender.preset().ack, false), "{name}: {answer:?}");
        let mut again = self.post(&path, &good, &body).await;
        while again.status == 401 && is_stale(at) {
            at = now();
            let (good, body) = sender.sent(libraries, &sender.secret, at);
            again = self.post(&path, &good, &body).await;
        }
        assert_eq!((again.is_replayed(), &again.body), (true, &answer.body), "{name}: it is known by its key");
        assert_eq!(self.stored().await, before + 1, "{name}: once");
    }
}

fn write(place: &Place, senders: &[Sender]) {
    let sources: String = senders.iter().map(Sender::source).collect();
    place.write("clinch.yml", &format!("sources:\n{sources}"));
    let triggers: String = senders.iter().map(|sender| format!("  - source: {}\n", sender.preset)).collect();
    place.write(
        "flows/edge.yml",
        &format!("name: edge\ntriggers:\n{triggers}steps:\n  - name: enqueue\n    queue: {{name: again}}\n"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t001_t002_t032_t055_every_preset_takes_its_sender_once_and_nothing_that_was_tampered_with() {
    let senders = senders();
    let names: Vec<&str> = senders.iter().map(|sender| sender.preset).collect();
    assert_eq!(names, ALL.map(|preset| preset.name), "each preset has a sender");
    let place = Place::new(&[AGAIN]).await;
    write(&place, &senders);
    let variables: Vec<(String, &str)> = senders.iter().map(|sender| (sender.variable(), &*sender.secret)).collect();
    let env: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let doors = Doors::new(place.start_with(&env).await, &place.data_dir);
    let mut libraries = Libraries::start();
    for sender in &senders {
        doors.story(sender, &mut libraries).await;
    }
    let said = doors.server.said();
    for sender in &senders {
        assert!(!said.contains(&*sender.secret) && !said.contains(&*sender.other), "{}", sender.preset);
    }
    doors.server.stop().await;
    assert_eq!(place.report().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn t001_t002_presets_do_the_same_on_postgres() {
    let few = ["stripe", "standardwebhooks", "sendgrid", "twilio", "hubspot-v3"];
    let senders: Vec<Sender> = senders().into_iter().filter(|sender| few.contains(&sender.preset)).collect();
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    write(&nodes.place, &senders);
    let variables: Vec<(String, &str)> = senders.iter().map(|sender| (sender.variable(), &*sender.secret)).collect();
    let env: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut server = nodes.place.launch(&nodes.place.data_dir, &["--store", &nodes.url], &env);
    server.opened().await;
    let doors = Doors::new(server, &nodes.place.data_dir);
    let mut libraries = Libraries::start();
    for sender in &senders {
        doors.story(sender, &mut libraries).await;
    }
    doors.server.stop().await;
    assert_eq!(nodes.report().await.problems, Vec::<String>::new());
}

#[test]
fn a3_the_documentation_says_who_vouches_for_each_preset() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md");
    let page = std::fs::read_to_string(page).unwrap();
    let told = |wanted: &dyn Fn(Proof) -> bool| {
        let names: BTreeSet<&str> =
            senders().iter().filter(|sender| wanted(sender.proof)).map(|sender| sender.preset).collect();
        names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    for (how, names) in [
        ("signed by the provider's library", told(&|proof| matches!(proof, Proof::Signs(_)))),
        ("checked by the provider's library", told(&|proof| matches!(proof, Proof::Checks(_)))),
        ("a published example", told(&|proof| proof == Proof::Published)),
        ("checked by somebody else's library", told(&|proof| matches!(proof, Proof::Others(_)))),
        ("the description alone", told(&|proof| proof == Proof::Described)),
    ] {
        let row = format!("| {how} | {names} |\n");
        assert!(page.contains(&row), "put this row into docs/sources.md:\n{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t119_what_the_cloudevents_library_sends_is_one_event_in_either_mode() {
    let place = Place::new(&[AGAIN]).await;
    place.write("clinch.yml", "sources:\n  any: {verify: none}\n");
    place.write(
        "flows/edge.yml",
        "name: edge\ntriggers:\n  - source: any\nsteps:\n  - name: enqueue\n    queue: {name: again}\n",
    );
    let doors = Doors::new(place.start().await, &place.data_dir);
    let mut libraries = Libraries::start();
    let event =
        |id: &str, source: &str| json!({"id": id, "source": source, "type": "com.example.made", "data": {"n": 1}});
    let asked = json!({"library": "cloudevents", "events": [event("1", "/shop"), event("1", "/other")]});
    let requests = libraries.ask(&asked)["requests"].as_array().unwrap().clone();
    let sent = |request: &Value| -> (Headers, String) {
        let headers = request["headers"].as_object().unwrap().iter();
        let headers = headers.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string()));
        (headers.collect(), request["body"].as_str().unwrap().to_string())
    };
    let mut firsts = Vec::new();
    for modes in requests.chunks(2) {
        let (binary, structured) = (sent(&modes[0]), sent(&modes[1]));
        let first = doors.post("/in/any", &binary.0, &binary.1).await;
        assert_eq!((first.status, first.is_replayed()), (202, false), "{first:?}");
        let second = doors.post("/in/any", &structured.0, &structured.1).await;
        assert_eq!((second.status, second.is_replayed(), &second.body), (202, true, &first.body), "wrapped otherwise");
        firsts.push(first.body);
    }
    assert_ne!(firsts[0], firsts[1], "an id is unique within its source");
    let batch = headers([("content-type", "application/cloudevents-batch+json".into())]);
    doors.post("/in/any", &batch, "[]").await.check_problem(415, "cloudevent-invalid");
    let (mut plain, body) = sent(&requests[0]);
    plain.retain(|(name, _)| name != "ce-source");
    let plain = doors.post("/in/any", &plain, &body).await;
    assert_eq!((plain.status, plain.is_replayed()), (202, false), "without its source it is a plain request");
    assert_eq!(doors.stored().await, 3);
    doors.server.stop().await;
}
