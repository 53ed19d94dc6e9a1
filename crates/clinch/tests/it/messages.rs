//! Messages from templates: by mail to a server that may say or do anything, to Slack, as text messages, as pushes, as webhooks.

use crate::process::{ONCE, Place, Provider, Way};
use crate::transport::Pair;
use crate::world::{NO_WORKER, OK, Reply, USUAL, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_core::key::IdempotencyKey;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const BODY: &str = r#"{"email":"ada@example.com","name":"<Ada> & Søn"}"#;
const TEXT: &str =
    "---\nsubject: Your cart, {{ body.name }}\n---\nHello {{ with.name }},\n.\n{{ body.name }} left it.\n";
const HTML: &str = "<p class=\"x\">Hello {{ body.name }}</p>\n";

/// What the server does instead of what a server does.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    Says(&'static str),
    /// Closes the connection.
    Leaves,
    /// Says one word that has no end.
    Drones,
    Nothing,
}

/// A mail as it came: whom it was for, and its text with every dot that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    pub to: String,
    pub text: String,
}

impl Mail {
    fn header(&self, name: &str) -> &str {
        let line = self.text.lines().find(|line| line.starts_with(&format!("{name}: ")));
        &line.unwrap_or_else(|| panic!("no {name} in {}", self.text))[name.len() + 2..]
    }
}

/// A mail server on a port of its own.
#[derive(Clone)]
pub struct Postbox {
    pub port: u16,
    desk: Arc<Desk>,
}

#[derive(Default)]
struct Desk {
    /// By the word of a command, `connect`, or `.` for the end of a mail.
    script: Mutex<HashMap<&'static str, VecDeque<Does>>>,
    /// Mails that it has, whatever it said of them.
    mails: watch::Sender<Vec<Mail>>,
    connections: watch::Sender<usize>,
}

impl Postbox {
    pub async fn start() -> Postbox {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let postbox = Postbox { port: listener.local_addr().unwrap().port(), desk: Arc::default() };
        let desk = postbox.desk.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                desk.connections.send_modify(|connections| *connections += 1);
                let desk = desk.clone();
                tokio::spawn(async move {
                    let _ = desk.serve(stream).await;
                });
            }
        });
        postbox
    }

    /// Once for each time that this is said to it, in order; then as servers do.
    pub fn script(&self, at: &'static str, does: &[Does]) {
        self.desk.script.lock().unwrap().insert(at, does.iter().copied().collect());
    }

    pub fn mails(&self) -> Vec<Mail> {
        self.desk.mails.borrow().clone()
    }

    fn connections(&self) -> usize {
        *self.desk.connections.borrow()
    }
}

impl Desk {
    async fn does(&self, at: &str, usual: &'static str, stream: &mut TcpStream) -> std::io::Result<&'static str> {
        let does = self.script.lock().unwrap().get_mut(at).and_then(VecDeque::pop_front);
        let said = match does.unwrap_or(Does::Says(usual)) {
            Does::Says(said) => said,
            Does::Leaves => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            Does::Drones => loop {
                stream.write_all(&[b'2'; 4096]).await?;
            },
            Does::Nothing => std::future::pending().await,
        };
        stream.write_all(format!("{said}\r\n").as_bytes()).await?;
        Ok(said)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut heard, mut to) = (Vec::new(), String::new());
        self.does("connect", "220 postbox ready", &mut stream).await?;
        loop {
            let line = until(&mut stream, &mut heard, b"\r\n").await?;
            let (word, rest) = line.split_once([' ', ':']).unwrap_or((&line, ""));
            match word {
                "EHLO" => self.does("EHLO", "250-postbox\r\n250-8BITMIME\r\n250 SIZE 1000000", &mut stream).await?,
                "RCPT" => {
                    to = rest.trim_start_matches("TO:<").trim_end_matches('>').to_string();
                    self.does("RCPT", "250 2.1.5 fine", &mut stream).await?
                }
                "DATA" if self.does("DATA", "354 go on", &mut stream).await?.starts_with("354") => {
                    let text = until(&mut stream, &mut heard, b"\r\n.\r\n").await?;
                    self.mails.send_modify(|mails| mails.push(Mail { to: to.clone(), text }));
                    self.does(".", "250 2.0.0 taken", &mut stream).await?
                }
                "DATA" => "",
                "MAIL" => self.does("MAIL", "250 2.1.0 fine", &mut stream).await?,
                "QUIT" => return self.does("QUIT", "221 bye", &mut stream).await.map(|_| ()),
                _ => self.does("other", "500 what", &mut stream).await?,
            };
        }
    }
}

async fn until(stream: &mut TcpStream, heard: &mut Vec<u8>, end: &[u8]) -> std::io::Result<String> {
    loop {
        if let Some(at) = heard.windows(end.len()).position(|window| window == end) {
            let text = String::from_utf8(heard[..at].to_vec()).unwrap();
            heard.drain(..at + end.len());
            return Ok(text);
        }
        if stream.read_buf(heard).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

pub fn settings(port: u16, more: &str) -> String {
    format!(
        "integrations:\n  mail:\n    smtp: smtp://127.0.0.1:{port}\n    tls: none\n    from: Shop <hello@shop.example>\n    breaker: none\n{more}"
    )
}

const STEP: &str = "  - name: remind
    send_template: {integration: mail, template: cart, to: '{{ body.email }}', with: {name: '{{ body.name }}'}, timeout: 5s}
";

fn files<'a>(settings: &'a str, worker: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("clinch.yml", settings),
        ("workers/charge.yml", worker),
        ("templates/cart.txt", TEXT),
        ("templates/cart.html", HTML),
    ]
}

async fn world(postbox: &Postbox, more: &str) -> World {
    World::new(&files(&settings(postbox.port, more), &worker_with_step(STEP))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_mail_says_what_its_templates_write_and_can_be_recognised_by_its_id() {
    let postbox = Postbox::start().await;
    let send =
        "  - name: tell\n    http: {url: http://TARGET/told, body_from: steps.remind.output, idempotency: natural}\n";
    let worker = worker_with_step(&format!("{STEP}{send}"));
    let world = World::new(&files(&settings(postbox.port, ""), &worker)).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let [mail] = &postbox.mails()[..] else { panic!("{:?}", postbox.mails()) };
    assert_eq!(mail.to, "ada@example.com");
    assert_eq!((mail.header("From"), mail.header("To")), ("Shop <hello@shop.example>", "ada@example.com"));
    let id = mail.header("Message-ID");
    let key = IdempotencyKey::of(story.row.id, "remind");
    assert!(id.starts_with(&format!("<{}-", key.as_str())) && id.ends_with("@shop.example>"), "{id}");
    assert!(mail.header("Subject").starts_with("=?utf-8?") || mail.header("Subject").contains("<Ada>"));
    assert!(mail.text.contains("multipart/alternative") && mail.text.contains("&lt;Ada&gt; &amp; "), "{}", mail.text);
    assert!(mail.text.contains("\r\n..\r\n"), "a dot alone is not the end of it: {}", mail.text);
    let told: Value = serde_json::from_str(&world.target.calls()[0].body).unwrap();
    assert_eq!(told, json!({"message_id": id, "reply": "250 2.0.0"}));
    assert!(matches!(&story.effects[0].state, EffectState::Done(receipt) if receipt.status == 250));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_message_is_taken_back_by_another_when_a_later_step_ends_the_job() {
    let postbox = Postbox::start().await;
    postbox.script(".", &[Does::Says("250 2.0.0 taken"), Does::Says("451 4.7.1 greylisted")]);
    let undo = "    compensate: {send_template: {integration: mail, template: sorry, to: '{{ body.email }}'}}\n";
    let ship = "  - name: ship\n    http: {url: http://TARGET/ship, body_from: body}\n";
    let (settings, worker) = (settings(postbox.port, ""), worker_with_step(&format!("{STEP}{undo}{ship}")));
    let sorry = "---\nsubject: Sorry\n---\nForget {{ steps.remind.output.message_id }}.\n";
    let world = World::new(&[&files(&settings, &worker)[..], &[("templates/sorry.txt", sorry)]].concat()).await;
    world.target.script("/ship", [Reply::Status(422)]);
    let dead = world.post_and_wait("a", BODY, Word::Dead).await;
    let error = dead.row.error.as_deref().unwrap();
    assert_eq!(error, "step `ship`: the target answered 422; undone: remind");
    let mails = postbox.mails();
    let [sent, refused, sorry] = &mails[..] else { panic!("{mails:?}") };
    assert_eq!((sorry.header("Subject"), &*sorry.to), ("Sorry", "ada@example.com"));
    assert!(sorry.text.replace("=\r\n", "").contains(sent.header("Message-ID").trim_end_matches('>')), "{sorry:?}");
    assert_eq!(sorry.header("Message-ID"), refused.header("Message-ID"), "tried again under the same id");
    assert_ne!(sorry.header("Message-ID"), sent.header("Message-ID"));
    let undone = dead.effects.iter().find(|effect| effect.name == "undo:remind").unwrap();
    assert!(matches!(&undone.state, EffectState::Done(receipt) if receipt.status == 250), "{undone:?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_a_mail_server_says_before_it_has_the_mail_is_tried_again_or_refused_and_nothing_was_sent() {
    for (at, said) in [
        ("connect", Does::Says("421 4.3.2 later, ada@example.com")),
        ("connect", Does::Leaves),
        ("connect", Does::Says("HTTP/1.1 400 Bad Request")),
        ("EHLO", Does::Leaves),
        ("EHLO", Does::Drones),
        ("MAIL", Does::Says("451 4.3.0 later")),
        ("RCPT", Does::Says("450 4.2.1 later")),
        ("DATA", Does::Says("452 4.3.1 full")),
        ("DATA", Does::Leaves),
        (".", Does::Says("451 4.7.1 greylisted")),
    ] {
        let postbox = Postbox::start().await;
        postbox.script(at, &[said]);
        let world = world(&postbox, "").await;
        let story = world.post_and_wait("a", BODY, Word::Success).await;
        let outcomes: Vec<&str> = story.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
        assert_eq!((outcomes, story.effects[0].sends), (vec!["failed", "success"], 2), "{at} {said:?}");
        let error = format!("{:?}", story.attempts);
        assert!(!error.contains("ada@"), "{error}");
    }
    for (at, said, told) in [
        ("RCPT", "550 5.1.1 <ada@example.com> is unknown", "it answered 550 5.1.1 to the recipient"),
        ("MAIL", "553 not from you", "it answered 553 to the sender"),
        (".", "554 5.7.1 spam of ada@example.com", "it answered 554 5.7.1 to the mail"),
    ] {
        let postbox = Postbox::start().await;
        postbox.script(at, &[Does::Says(said)]);
        let world = world(&postbox, "").await;
        let story = world.post_and_wait("a", BODY, Word::Dead).await;
        let error = story.row.error.unwrap();
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::RejectedByTarget), 1), "{error}");
        assert!(error.contains(told) && !error.contains("ada@"), "{error}");
        assert!(matches!(story.effects[0].state, EffectState::NotDone));
        assert_eq!(postbox.connections(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_p3_a_mail_whose_answer_is_lost_is_not_sent_again_unless_that_does_no_harm() {
    for lost in [Does::Leaves, Does::Says("no SMTP"), Does::Says("252 it will be seen to")] {
        let postbox = Postbox::start().await;
        postbox.script(".", &[lost]);
        let world = world(&postbox, "").await;
        let story = world.post_and_wait("a", BODY, Word::Dead).await;
        assert_eq!(story.row.reason, Some(Reason::UnknownOutcome), "{lost:?}");
        assert!(matches!(story.effects[0].state, EffectState::Unknown), "{lost:?}");
        assert_eq!((postbox.mails().len(), postbox.connections()), (1, 1), "{lost:?}");
        world.close_and_verify().await;
    }
    let postbox = Postbox::start().await;
    postbox.script(".", &[Does::Leaves]);
    let world = world(&postbox, "    idempotency: natural\n").await;
    world.post_and_wait("a", BODY, Word::Success).await;
    let mails = postbox.mails();
    assert_eq!(mails.len(), 2);
    assert_eq!(mails[0].header("Message-ID"), mails[1].header("Message-ID"), "whoever gets both can tell");
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_server_that_never_answers_is_waited_for_no_longer_than_the_step_allows() {
    for (at, word) in [("RCPT", Word::Success), (".", Word::Dead)] {
        let postbox = Postbox::start().await;
        postbox.script(at, &[Does::Nothing]);
        // Long enough for a mail that is answered, also where the machine is busy.
        let step = STEP.replace("timeout: 5s", "timeout: 4s");
        let world = World::new(&files(&settings(postbox.port, ""), &worker_with_step(&step))).await;
        let story = world.post_and_wait("a", BODY, word).await;
        let reason = (word == Word::Dead).then_some(Reason::UnknownOutcome);
        assert_eq!((story.row.reason, postbox.mails().len()), (reason, 1), "{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_p3_p9_a_crash_after_the_mail_was_handed_over_leaves_it_unknown_and_no_log_has_its_address() {
    let postbox = Postbox::start().await;
    let way = Way { name: "two", steps: &["remind"], concurrency: 1, ..ONCE };
    let place = Place::new(&[way]).await;
    place.write("clinch.yml", &settings(postbox.port, ""));
    place.write("templates/cart.txt", "---\nsubject: Hello\n---\nHello {{ body.id }}\n");
    let step = "send_template: {integration: mail, template: cart, to: 'kanary-{{ body.id }}@leak.example'}";
    let worker = format!("name: two\nconsumes: {{queue: two}}\nrun:\n  - name: remind\n    {step}\n");
    place.write("workers/two.yml", &worker);
    let provider = Provider::new(way);
    let mut server = place.start_with(&[("CLINCH_CRASH_AT", "after_data")]).await;
    provider.deliver(&server.intake).await;
    assert_eq!(server.exited().await.signal(), Some(6), "{}", server.said());
    let mut said = server.said();
    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    said += &server.said();
    server.stop().await;
    place.verified();
    let job = provider.acknowledged().into_values().next().unwrap();
    let story = place.books().await.story(job).await;
    assert_eq!((story.row.word, story.row.reason), (Word::Dead, Some(Reason::UnknownOutcome)));
    assert_eq!((story.effects[0].sends, postbox.connections()), (1, 1), "nobody is written to twice");
    assert!(!said.contains("leak.example") && !said.contains("kanary"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_is_no_address_or_would_be_another_header_is_a_dead_letter_and_nobody_is_called() {
    let postbox = Postbox::start().await;
    let world = world(&postbox, "").await;
    for (nth, body) in [
        json!({"email": "nobody at all", "name": "Ada"}),
        json!({"email": "", "name": "Ada"}),
        json!({"email": "ada@leak.example, bob@leak.example", "name": "Ada"}),
        json!({"email": "ada@leak.example\r\nBcc: kanary@leak.example", "name": "Ada"}),
        json!({"email": "ada@leak.example>\r\nRCPT TO:<kanary@leak.example", "name": "Ada"}),
        json!({"email": "ada@leak.example", "name": "Ada\r\nBcc: kanary@leak.example"}),
        json!({"email": "ada@leak.example", "name": "Ada\nX: kanary"}),
    ]
    .iter()
    .enumerate()
    {
        let story = world.post_and_wait(&format!("k{nth}"), &body.to_string(), Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::BadPayload), 1), "{body}");
        let error = story.row.error.unwrap();
        assert!(!error.contains("leak.example") && !error.contains("kanary"), "{error}");
    }
    let story = world.post_and_wait("gone", r#"{"email":"ada@example.com"}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::MissingData));
    assert!(story.row.error.unwrap().contains("body.name"));
    assert_eq!(postbox.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_job_keeps_the_template_that_it_was_accepted_with() {
    let postbox = Postbox::start().await;
    let (settings, worker) = (settings(postbox.port, ""), worker_with_step(STEP));
    let mut world = World::unopened(&[&USUAL[..], &files(&settings, &worker)].concat()).await;
    world.open(NO_WORKER).await;
    let job = world.post("a", BODY).await.job();
    world.close().await;
    world.write("templates/cart.txt", "---\nsubject: Another\n---\nquite another text\n");
    world.open(Roles::ALL).await;
    world.wait(job, Word::Success).await;
    world.post_and_wait("b", BODY, Word::Success).await;
    let texts: Vec<bool> = postbox.mails().iter().map(|mail| mail.text.contains("quite another text")).collect();
    assert_eq!(texts, [false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_no_mail_server_inside_is_called_unless_it_is_allowed() {
    let postbox = Postbox::start().await;
    let (settings, worker) = (settings(postbox.port, ""), worker_with_step(STEP));
    let world = World::listening("0.0.0.0:0", &files(&settings, &worker)).await;
    let story = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::EgressBlocked), "{:?}", story.row.error);
    assert_eq!(postbox.connections(), 0);
    let allowed = format!("{settings}egress: {{allow: [127.0.0.1]}}\n");
    let world = World::listening("0.0.0.0:0", &files(&allowed, &worker)).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(postbox.mails().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_a_mail_goes_in_clear_only_where_that_is_said_and_what_comes_before_tls_is_not_believed() {
    let postbox = Postbox::start().await;
    let settings = settings(postbox.port, "").replace("    tls: none\n", "");
    let world = World::new(&files(&settings, &worker_with_step(STEP))).await;
    let story = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::TargetDown));
    assert!(story.row.error.unwrap().contains("does not offer TLS"));
    let offers = Does::Says("250-postbox\r\n250 STARTTLS");
    postbox.script("EHLO", &[offers; 3]);
    postbox.script("other", &[Does::Says("220 go on\r\n250-forged\r\n250 AUTH PLAIN"); 3]);
    let story = world.post_and_wait("b", BODY, Word::Dead).await;
    let error = story.row.error.unwrap();
    assert!(error.contains("spoke before it was asked"), "{error}");
    assert_eq!(postbox.mails(), []);
}

/// One step that sends the template `note` with this integration.
async fn told(integration: &str, templates: &[(&str, &str)]) -> World {
    let settings = format!("integrations:\n  note:\n    base_url: http://TARGET\n    breaker: none\n{integration}");
    let step = "  - name: note\n    send_template: {integration: note, template: note, to: '{{ body.to }}', with: {who: '{{ body.name }}'}}\n";
    let worker = worker_with_step(step);
    World::new(&[&[("clinch.yml", settings.as_str()), ("workers/charge.yml", &worker)], templates].concat()).await
}

const NOTE: &str = r#"{"to":"+15550100","name":"Ada \"&\" =Bob"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn c8_slack_is_told_in_its_own_words_and_its_refusals_are_understood() {
    let world = told(
        "    message: slack\n    headers: {authorization: Bearer xoxb}\n",
        &[("templates/note.md", "*Hello* {{ with.who }}\n")],
    )
    .await;
    let yes = Reply::With { status: 200, headers: &[], body: r#"{"ok":true,"ts":"1.2"}"# };
    let busy = Reply::With { status: 200, headers: &[], body: r#"{"ok":false,"error":"ratelimited"}"# };
    let no = Reply::With { status: 200, headers: &[], body: r#"{"ok":false,"error":"channel_not_found"}"# };
    world.target.script("/api/chat.postMessage", [busy, yes, no]);
    world.post_and_wait("a", NOTE, Word::Success).await;
    let calls = world.target.calls();
    assert_eq!((calls.len(), calls[1].path.as_str()), (2, "/api/chat.postMessage"));
    let sent: Value = serde_json::from_str(&calls[1].body).unwrap();
    assert_eq!(sent, json!({"channel": "+15550100", "text": "*Hello* Ada \"&\" =Bob\n"}));
    assert_eq!(calls[1].headers["authorization"], "Bearer xoxb");
    let story = world.post_and_wait("b", NOTE, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::RejectedByTarget), 1));
    assert!(story.row.error.unwrap().contains("channel_not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_text_message_is_a_form_a_push_is_json_and_a_webhook_is_the_message_itself() {
    let text = ("templates/note.txt", "---\nsubject: News\n---\nHello {{ with.who }}");
    let sms = "    idempotency: header\n    message: {url: /sms, form: {To: '{{ message.to }}', From: '+15550199', Body: '{{ message.text }}'}}\n";
    let world = told(sms, &[text]).await;
    let story = world.post_and_wait("a", NOTE, Word::Success).await;
    let call = &world.target.calls()[0];
    assert_eq!(call.body, "To=%2B15550100&From=%2B15550199&Body=Hello+Ada+%22%26%22+%3DBob");
    assert_eq!(call.headers["content-type"], "application/x-www-form-urlencoded");
    assert_eq!(call.key(), IdempotencyKey::of(story.row.id, "note").as_str());

    let push = "    message: {url: /push, body: {message: {token: '{{ message.to }}', notification: {title: '{{ message.subject }}', body: '{{ message.text }}'}}}}\n";
    let world = told(push, &[text]).await;
    world.post_and_wait("a", NOTE, Word::Success).await;
    let sent: Value = serde_json::from_str(&world.target.calls()[0].body).unwrap();
    let notification = json!({"title": "News", "body": "Hello Ada \"&\" =Bob"});
    assert_eq!(sent, json!({"message": {"token": "+15550100", "notification": notification}}));

    let json = ("templates/note.json", r#"{"who": "{{ with.who }}", "lines": ["to {{ body.to }}", 7]}"#);
    let world = told("    message: {url: /hook}\n", &[json]).await;
    world.target.script("/hook", [Reply::Status(503), OK]);
    world.post_and_wait("a", NOTE, Word::Success).await;
    let call = &world.target.calls()[1];
    assert_eq!(call.body, r#"{"who":"Ada \"&\" =Bob","lines":["to +15550100",7]}"#);
    assert_eq!(call.headers["content-type"], "application/json");
}

/// A mail server of somebody else's making, which takes mails over TLS from whoever knows the password.
struct Others {
    child: Child,
    port: u16,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Others {
    fn start(pair: &Pair, how: &str) -> Others {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders");
        let python = directory.join("venv/bin/python");
        assert!(python.exists(), "the mail server is missing; scripts/test installs it");
        let mut child = Command::new(python)
            .arg("postbox.py")
            .args([&pair.cert, &pair.key])
            .arg(how)
            .current_dir(directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut read = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = read.next().unwrap().unwrap().parse().unwrap();
        let (say, lines) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || read.map_while(Result::ok).try_for_each(|line| say.send(line).ok()));
        Others { child, port, lines }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_a_mail_goes_over_tls_behind_a_password_and_is_understood_by_others() {
    for (how, scheme) in [("upgraded", "smtp"), ("implicit", "smtps")] {
        let way = Way { name: "two", steps: &["remind"], concurrency: 1, ..ONCE };
        let place = Place::new(&[way]).await;
        let pair = Pair::make(place.dir.path(), "mail");
        let mut others = Others::start(&pair, how);
        let settings = format!(
            "integrations:\n  mail:\n    smtp: {scheme}://shop:${{secrets.SMTP_PASSWORD}}@localhost:{}\n    from: Shöp <hello@shop.example>\n",
            others.port
        );
        place.write("clinch.yml", &settings);
        place.write("templates/cart.txt", "---\nsubject: Grüße, {{ body.id }}\n---\nHello {{ body.id }}\n.\nbye\n");
        place.write("templates/cart.html", "<p>{{ body.id }}</p>\n");
        let step = "send_template: {integration: mail, template: cart, to: 'Ada Byron <{{ body.id }}@example.com>'}";
        let worker = format!(
            "name: two\nconsumes: {{queue: two}}\nretry: {{base_delay: 10ms, max_attempts: 2}}\nrun:\n  - name: remind\n    {step}\n"
        );
        place.write("workers/two.yml", &worker);
        let provider = Provider::new(way);
        let trusted = [("SSL_CERT_FILE", pair.cert.to_str().unwrap()), ("SMTP_PASSWORD", "p@ss word")];
        let server = place.start_with(&trusted).await;
        provider.deliver(&server.intake).await;
        let line = tokio::time::timeout(Duration::from_secs(30), others.lines.recv()).await;
        let line = line.unwrap_or_else(|_| panic!("{how}: no mail came: {}", server.said())).unwrap();
        let mail: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&mail["from"], &mail["to"]), (&json!("hello@shop.example"), &json!(["two-0@example.com"])));
        assert_eq!(mail["headers"]["Subject"], "Grüße, two-0");
        assert_eq!(
            (&mail["headers"]["From"], &mail["headers"]["To"]),
            (&json!("Shöp <hello@shop.example>"), &json!("Ada Byron <two-0@example.com>"))
        );
        let parts = &mail["parts"];
        assert_eq!(parts["text/plain"].as_str().unwrap().lines().collect::<Vec<_>>(), ["Hello two-0", ".", "bye"]);
        assert_eq!(parts["text/html"].as_str().unwrap().trim_end(), "<p>two-0</p>");
        server.stop().await;
        // Whoever is not known to this machine, or does not know the password, gets nothing.
        for env in [&trusted[1..], &[trusted[0], ("SMTP_PASSWORD", "wrong")]] {
            let server = place.start_with(env).await;
            provider.deliver(&server.intake).await;
            place.drained().await;
            assert!(!server.said().contains("p@ss"), "{}", server.said());
            server.stop().await;
        }
        assert!(others.lines.try_recv().is_err(), "{how}: one mail and no other");
        place.verified();
    }
}
