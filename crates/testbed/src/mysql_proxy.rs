//! A wire to a MySQL or MariaDB server that loses the answer to a commit. It understands just enough of the protocol to see
//! a commit pass.

use crate::Fate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

type Rule = Arc<dyn Fn() -> Fate + Send + Sync>;

const QUERY: u8 = 3;

/// It ends with the runtime that it was started on.
pub struct MysqlProxy {
    pub port: u16,
}

impl MysqlProxy {
    /// `at_commits` is asked for every answer to `COMMIT`; `Hold` keeps it back for ever.
    pub async fn to(server_port: u16, at_commits: impl Fn() -> Fate + Send + Sync + 'static) -> MysqlProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rule: Rule = Arc::new(at_commits);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server_port, rule.clone()));
            }
        });
        MysqlProxy { port }
    }
}

async fn carry(client: TcpStream, server_port: u16, rule: Rule) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let committing = AtomicBool::new(false);
    // When one of them ends, all ends are dropped and both sides see the connection closed.
    tokio::select! {
        () = carry_questions(from_client, to_server, &committing) => {}
        () = carry_answers(from_server, to_client, &committing, &rule) => {}
    }
}

async fn carry_questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, committing: &AtomicBool) {
    let mut unread = Vec::new();
    while from.read_buf(&mut unread).await.is_ok_and(|bytes| bytes > 0) {
        let mut read = 0;
        // Three bytes of length and one that counts come before each packet.
        while let Some([low, middle, high, _]) = unread.get(read..read + 4) {
            let end = read + 4 + (usize::from(*low) | usize::from(*middle) << 8 | usize::from(*high) << 16);
            let Some(packet) = unread.get(read + 4..end) else { break };
            committing.store(packet.strip_prefix(&[QUERY]) == Some(b"COMMIT".as_slice()), Ordering::SeqCst);
            read = end;
        }
        if to.write_all(&unread[..read]).await.is_err() {
            return;
        }
        unread.drain(..read);
    }
}

/// A client asks one thing at a time: what comes after `COMMIT` is its answer.
async fn carry_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, committing: &AtomicBool, rule: &Rule) {
    let mut unread = Vec::new();
    while from.read_buf(&mut unread).await.is_ok_and(|bytes| bytes > 0) {
        match if committing.swap(false, Ordering::SeqCst) { rule() } else { Fate::Pass } {
            Fate::Pass => {}
            Fate::Cut => return,
            Fate::Hold => std::future::pending().await,
        }
        if to.write_all(&unread).await.is_err() {
            return;
        }
        unread.clear();
    }
}
