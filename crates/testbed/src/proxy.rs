//! A wire to a PostgreSQL server that can be cut at the worst moment, or go dead without a word. It understands just enough
//! of the protocol to know which statement an answer belongs to, and whether it tells of a commit.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of the answer that tells of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// The connection is closed instead.
    Cut,
    /// It is held back, and so is all that comes after it on any connection, until the wire is told to go on.
    Hold,
}

type Rule = Arc<dyn Fn(&str) -> Fate + Send + Sync>;

/// It ends with the runtime that it was started on.
pub struct Proxy {
    pub port: u16,
    wire: Arc<Wire>,
}

struct Wire {
    server_port: u16,
    held: watch::Sender<bool>,
    /// Raised to cut every connection there is.
    cuts: watch::Sender<u64>,
    rule: Mutex<Option<Rule>>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Arc::new(Wire {
            server_port,
            held: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            rule: Mutex::default(),
        });
        let proxy = Proxy { port, wire: wire.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(wire.clone(), client));
            }
        });
        proxy
    }

    /// Asked for every answer that tells of a commit, with the statement that it is the answer to.
    pub fn at_commits(&self, rule: impl Fn(&str) -> Fate + Send + Sync + 'static) {
        *self.wire.rule.lock().unwrap() = Some(Arc::new(rule));
    }

    pub fn let_all_pass(&self) {
        *self.wire.rule.lock().unwrap() = None;
    }

    /// No byte passes in either direction, and nobody is told.
    pub fn hold(&self) {
        self.wire.held.send_replace(true);
    }

    pub fn go_on(&self) {
        self.wire.held.send_replace(false);
    }

    /// Until some answer was held back.
    pub async fn is_held(&self) {
        let _ = self.wire.held.subscribe().wait_for(|held| *held).await;
    }

    pub fn cut_all(&self) {
        self.wire.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Wire {
    async fn passable(&self) {
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    fn fate(&self, sql: &str) -> Fate {
        let rule = self.rule.lock().unwrap().clone();
        rule.map_or(Fate::Pass, |rule| rule(sql))
    }
}

/// What was asked on one connection and is not answered yet, in order.
type Asked = Arc<Mutex<VecDeque<String>>>;

async fn carry(wire: Arc<Wire>, client: TcpStream) {
    let mut cuts = wire.cuts.subscribe();
    cuts.mark_unchanged();
    wire.passable().await;
    let Ok(server) = TcpStream::connect(("127.0.0.1", wire.server_port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The greeting is answered like a question.
    let asked: Asked = Arc::new(Mutex::new(VecDeque::from([String::new()])));
    // When one of them ends, all ends are dropped and both sides see the connection closed.
    tokio::select! {
        () = carry_questions(&wire, from_client, to_server, &asked) => {}
        () = carry_answers(&wire, from_server, to_client, &asked) => {}
        _ = cuts.changed() => {}
    }
}

async fn carry_questions(wire: &Wire, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: &Asked) {
    let mut unread = Vec::new();
    let mut read = 0;
    let mut is_greeting = true;
    let mut statements: HashMap<Vec<u8>, String> = HashMap::new();
    let mut present = String::new();
    while from.read_buf(&mut unread).await.is_ok_and(|bytes| bytes > 0) {
        loop {
            // The greeting has no letter before its length.
            let letter = usize::from(!is_greeting);
            let Some(length) = message_length(&unread[read..], letter) else { break };
            let (kind, body) = (unread[read], &unread[read + letter + 4..read + length]);
            read += length;
            if std::mem::take(&mut is_greeting) {
                continue;
            }
            match kind {
                b'P' => {
                    let (name, rest) = c_string(body);
                    statements.insert(name.to_vec(), String::from_utf8_lossy(c_string(rest).0).into_owned());
                }
                b'B' => {
                    let statement = c_string(c_string(body).1).0;
                    present += statements.get(statement).map_or("", String::as_str);
                }
                b'Q' => asked.lock().unwrap().push_back(String::from_utf8_lossy(c_string(body).0).into_owned()),
                b'S' => asked.lock().unwrap().push_back(std::mem::take(&mut present)),
                _ => {}
            }
        }
        wire.passable().await;
        if to.write_all(&unread[..read]).await.is_err() {
            return;
        }
        unread.drain(..read);
        read = 0;
    }
}

async fn carry_answers(wire: &Wire, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: &Asked) {
    let mut unread = Vec::new();
    while from.read_buf(&mut unread).await.is_ok_and(|bytes| bytes > 0) {
        let mut read = 0;
        while let Some(length) = message_length(&unread[read..], 1) {
            let (kind, status) = (unread[read], unread[read + length - 1]);
            if kind == b'Z' {
                let sql = asked.lock().unwrap().pop_front().unwrap_or_default();
                // Outside of any transaction: what was asked is committed, if it was not refused.
                let is_commit = status == b'I' && !sql.is_empty();
                match if is_commit { wire.fate(&sql) } else { Fate::Pass } {
                    Fate::Pass => {}
                    Fate::Cut => return,
                    Fate::Hold => {
                        wire.held.send_replace(true);
                    }
                }
            }
            read += length;
        }
        wire.passable().await;
        if to.write_all(&unread[..read]).await.is_err() {
            return;
        }
        unread.drain(..read);
    }
}

/// Of the whole message that the bytes begin with, if all of it is there.
fn message_length(bytes: &[u8], letter: usize) -> Option<usize> {
    let length = u32::from_be_bytes(bytes.get(letter..letter + 4)?.try_into().unwrap());
    let length = letter + usize::try_from(length).unwrap();
    (bytes.len() >= length).then_some(length)
}

fn c_string(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}
