//! One mail to its server, and the one thing that matters about it: was it handed over, and was that answered.
//!
//! Our own dialogue rather than a library's, because the ledger must know the moment from which the server may have the
//! mail, because the guard of outgoing calls must see every address, and because what a server says is read in bounds. Until the
//! text of the mail is written nothing was done, whatever the server said before.

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use super::connection::{NoConnection, aside, dial, encrypt};
use crate::rehearsal::Detour;
use crate::trust::tls_config;
use bytes::Bytes;
use clinch_core::death::Reason;
use clinch_core::effect::{Idempotency, Receipt};
use clinch_core::egress::Egress;
use clinch_core::key::Fingerprint;
use data_encoding::BASE64;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// Opening a connection takes at most this long, whatever the step allows. Some servers greet late, and mean it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What a server may say in one reply. The standard has 512 bytes in a line.
const REPLY_BYTES_MAX: usize = 16 << 10;

pub struct MailCall {
    pub server: Server,
    pub from: String,
    pub to: String,
    /// With its headers, in lines that end in CR LF.
    pub mail: Vec<u8>,
    pub message_id: String,
    pub timeout: Duration,
}

pub struct Server {
    pub host: String,
    pub port: u16,
    pub security: Security,
    /// User and password.
    pub login: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// TLS from the first byte.
    Tls,
    /// It goes on in TLS, or not at all.
    StartTls,
    Clear,
}

impl Server {
    /// `smtp://user:password@host:587`, or `smtps://`. Says nothing of what it was given.
    pub fn read(address: &str, clear: bool) -> Option<Server> {
        let url = url::Url::parse(address).ok()?;
        let (security, port) = match url.scheme() {
            "smtps" => (Security::Tls, 465),
            "smtp" if clear => (Security::Clear, 587),
            "smtp" => (Security::StartTls, 587),
            _ => return None,
        };
        let decoded = |text: &str| String::from_utf8(clinch_core::form::percent_decoded(text.as_bytes())?).ok();
        let login = match (url.username(), url.password()) {
            ("", _) => None,
            (user, password) => Some((decoded(user)?, decoded(password.unwrap_or_default())?)),
        };
        let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_string();
        (!host.is_empty()).then_some(Server { host, port: url.port().unwrap_or(port), security, login })
    }
}

impl Act for MailCall {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn told(&self) -> (String, Fingerprint) {
        let MailCall { server, from, to, mail, .. } = self;
        // The moment at which it was written is no difference.
        let lines = mail.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"Date:"));
        let place = format!("mail to {to} by {}:{}", server.host, server.port);
        let fingerprint = Fingerprint::of(&format!("{place} from {from}"), &lines.collect::<Vec<_>>().concat());
        (place, fingerprint)
    }

    fn send<'a>(self: Box<Self>, tools: &'a Tools, _: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a> {
        Box::pin(tools.mail.send(*self, may_begin))
    }
}

pub struct MailClient {
    tls: TlsConnector,
    egress: Arc<Egress>,
    detour: Option<Arc<Detour>>,
}

/// How far it got. From `Handed` on the server may have the mail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asking,
    Handed,
}

/// Why the dialogue ended early.
enum Broken {
    Blocked(String),
    /// The connection failed, or what was said was not SMTP.
    Lost(String),
    /// The server said no.
    Said(Reply, &'static str),
    /// The server cannot carry it.
    Unable(&'static str),
    /// The server does not know who we are.
    Unknown(Reply),
    TooLate,
}

impl From<NoConnection> for Broken {
    fn from(no: NoConnection) -> Self {
        match no {
            NoConnection::Failed(why) => Broken::Lost(why),
            NoConnection::Blocked(why) => Broken::Blocked(why.to_string()),
        }
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Broken::Lost(error.to_string())
    }
}

impl MailClient {
    /// With a detour, nobody outside is called.
    pub fn new(egress: Arc<Egress>, detour: Option<Arc<Detour>>) -> Result<MailClient, String> {
        Ok(MailClient { tls: TlsConnector::from(Arc::new(tls_config()?)), egress, detour })
    }

    pub async fn send(&self, call: MailCall, may_begin: MayBegin<'_>) -> Sent {
        let deadline = Instant::now() + call.timeout;
        let mut stage = Stage::Asking;
        let ended = tokio::time::timeout_at(deadline, self.deliver(&call, may_begin, &mut stage, deadline)).await;
        let handed = stage == Stage::Handed;
        match ended {
            Ok(Ok(reply)) => {
                let output = serde_json::json!({ "message_id": call.message_id, "reply": reply.codes() });
                let receipt = Receipt { status: reply.code, body: Bytes::from(output.to_string()) };
                Sent::Answered { receipt, is_whole: true, retry_after: None }
            }
            Ok(Err(Broken::Blocked(why))) => Sent::Blocked(why),
            Ok(Err(Broken::TooLate)) => Sent::TooLate,
            Ok(Err(Broken::Unable(why))) => Sent::Refused(why.into()),
            Ok(Err(Broken::Unknown(reply))) => {
                let why = format!("the mail server refused our credentials ({})", reply.codes());
                Sent::Failed { reason: Reason::AuthFailed, why }
            }
            Ok(Err(Broken::Said(reply, to))) if reply.is_final() => {
                Sent::Refused(format!("it answered {} to {to}", reply.codes()))
            }
            // It took the mail and does not say no: whether it will be delivered is not known.
            Ok(Err(Broken::Said(reply, to))) if handed && reply.code < 400 => {
                let why = format!("the mail server answered {} to {to}", reply.codes());
                Sent::NoAnswer { timed_out: false, why }
            }
            Ok(Err(Broken::Said(reply, to))) => {
                let why = format!("the mail server answered {} to {to}", reply.codes());
                if handed { Sent::Undone(why) } else { Sent::NotSent(why) }
            }
            Ok(Err(Broken::Lost(why))) if handed => Sent::NoAnswer { timed_out: false, why },
            Ok(Err(Broken::Lost(why))) => Sent::NotSent(why),
            Err(_) if handed => Sent::NoAnswer { timed_out: true, why: "no answer in time".into() },
            Err(_) => Sent::NotSent("the mail server did not answer in time".into()),
        }
    }

    /// Everything in order: connect, greet, encrypt, log in, say whom it is from and for, hand it over.
    async fn deliver(
        &self,
        call: &MailCall,
        may_begin: MayBegin<'_>,
        stage: &mut Stage,
        deadline: Instant,
    ) -> Result<Reply, Broken> {
        let Server { host, port, .. } = &call.server;
        // A stand-in is on this machine, and gets no password.
        let (security, login) = match self.detour {
            Some(_) => (&Security::Clear, &None),
            None => (&call.server.security, &call.server.login),
        };
        let connected = tokio::time::timeout_at(deadline.min(Instant::now() + CONNECT_TIMEOUT), async {
            let stream = match &self.detour {
                Some(detour) => {
                    let nobody = || NoConnection::Failed("nobody stands in for this mail server".into());
                    aside(detour.mail_at(host).ok_or_else(nobody)?).await?
                }
                None => {
                    let is_secret = *security != Security::Clear;
                    self.egress.check_mail_host(is_secret, host, *port).map_err(NoConnection::Blocked)?;
                    dial(&self.egress, host, *port).await?
                }
            };
            Ok::<_, NoConnection>(match security {
                Security::Tls => Talk::new(Box::new(encrypt(&self.tls, host, stream).await?)),
                Security::StartTls | Security::Clear => Talk::new(Box::new(stream)),
            })
        });
        let mut talk = connected.await.map_err(|_| Broken::Lost("no connection in time".into()))??;
        talk.reply().await?.expect(220, "our connection")?;
        let domain = call.from.rsplit_once('@').map(|(_, domain)| domain).filter(|domain| domain.is_ascii());
        let hello = format!("EHLO {}", domain.unwrap_or("localhost"));
        let mut abilities = talk.ask(&hello).await?.expect(250, "EHLO")?;
        if *security == Security::StartTls {
            if !abilities.has("STARTTLS") {
                return Err(Broken::Lost("the mail server does not offer TLS, and `tls: none` is not said".into()));
            }
            talk.ask("STARTTLS").await?.expect(220, "STARTTLS")?;
            talk = Talk::new(Box::new(encrypt(&self.tls, host, talk.into_silent()?).await?));
            abilities = talk.ask(&hello).await?.expect(250, "EHLO")?;
        }
        if let Some((user, password)) = login {
            log_in(&mut talk, &abilities, user, password).await?;
        }
        let plain = call.from.is_ascii() && call.to.is_ascii();
        if !plain && !abilities.has("SMTPUTF8") {
            return Err(Broken::Unable("an address has letters that this mail server does not know"));
        }
        let wide = if plain { "" } else { " SMTPUTF8" };
        talk.ask(&format!("MAIL FROM:<{}>{wide}", call.from)).await?.expect(250, "the sender")?;
        talk.ask(&format!("RCPT TO:<{}>", call.to)).await?.expect(250, "the recipient")?;
        talk.ask("DATA").await?.expect(354, "DATA")?;
        if may_begin().is_none() {
            return Err(Broken::TooLate);
        }
        *stage = Stage::Handed;
        talk.write(&stuffed(&call.mail)).await?;
        crate::crash::point("after_data");
        let reply = talk.reply().await?.expect(250, "the mail")?;
        // It has the mail; whether it hears our farewell does not matter.
        let _ = talk.write(b"QUIT\r\n").await;
        Ok(reply)
    }
}

async fn log_in(talk: &mut Talk, abilities: &Reply, user: &str, password: &str) -> Result<(), Broken> {
    let known = |reply: Reply| match reply.code {
        235 => Ok(()),
        400..=499 => Err(Broken::Said(reply, "AUTH")),
        _ => Err(Broken::Unknown(reply)),
    };
    if abilities.has_word("AUTH", "PLAIN") {
        let proof = BASE64.encode(format!("\0{user}\0{password}").as_bytes());
        return known(talk.ask(&format!("AUTH PLAIN {proof}")).await?);
    }
    if !abilities.has_word("AUTH", "LOGIN") {
        return Err(Broken::Lost("the mail server takes neither AUTH PLAIN nor AUTH LOGIN".into()));
    }
    talk.ask("AUTH LOGIN").await?.expect(334, "AUTH")?;
    talk.ask(&BASE64.encode(user.as_bytes())).await?.expect(334, "AUTH")?;
    known(talk.ask(&BASE64.encode(password.as_bytes())).await?)
}

/// A line that begins with a dot gets another, and a dot alone ends the mail. Every line ends in CR LF: servers do not agree
/// on what half of it means, and a value could end the mail and begin another.
fn stuffed(mail: &[u8]) -> Vec<u8> {
    let mut stuffed = Vec::with_capacity(mail.len() + 64);
    let mut before = b'\n';
    for byte in mail.iter().copied() {
        match byte {
            b'\n' if before == b'\r' => {}
            b'\r' | b'\n' => stuffed.extend_from_slice(b"\r\n"),
            b'.' if matches!(before, b'\r' | b'\n') => stuffed.extend_from_slice(b".."),
            other => stuffed.push(other),
        }
        before = byte;
    }
    if !stuffed.ends_with(b"\r\n") {
        stuffed.extend_from_slice(b"\r\n");
    }
    stuffed.extend_from_slice(b".\r\n");
    stuffed
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

struct Talk {
    stream: Box<dyn Stream>,
    /// What came and was not looked at.
    heard: Vec<u8>,
}

impl Talk {
    fn new(stream: Box<dyn Stream>) -> Talk {
        Talk { stream, heard: Vec::new() }
    }

    /// The connection, if the server has said nothing more: what comes before TLS and is read after it could be anybody's.
    fn into_silent(self) -> Result<Box<dyn Stream>, Broken> {
        match self.heard.is_empty() {
            true => Ok(self.stream),
            false => Err(Broken::Lost("the mail server spoke before it was asked".into())),
        }
    }

    async fn ask(&mut self, line: &str) -> Result<Reply, Broken> {
        self.write(format!("{line}\r\n").as_bytes()).await?;
        self.reply().await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    async fn reply(&mut self) -> Result<Reply, Broken> {
        loop {
            if let Some((reply, length)) = Reply::read(&self.heard)? {
                self.heard.drain(..length);
                return Ok(reply);
            }
            if self.heard.len() >= REPLY_BYTES_MAX {
                return Err(Broken::Lost("the mail server says too much".into()));
            }
            let mut more = [0; 1024];
            match self.stream.read(&mut more).await? {
                0 => return Err(Broken::Lost("the mail server closed the connection".into())),
                length => self.heard.extend_from_slice(&more[..length]),
            }
        }
    }
}

/// What a server said: a number, and lines.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    code: u16,
    lines: Vec<String>,
}

impl Reply {
    /// The first reply in what was heard and its length; `None` while its end has not come.
    fn read(heard: &[u8]) -> Result<Option<(Reply, usize)>, Broken> {
        let bad = || Broken::Lost("the mail server does not speak SMTP".into());
        let (mut lines, mut length, mut first) = (Vec::new(), 0, None);
        for line in heard.split_inclusive(|byte| *byte == b'\n') {
            if !line.ends_with(b"\n") {
                return Ok(None);
            }
            length += line.len();
            let line = line.trim_ascii_end();
            let code = line.get(..3).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
            let code: u16 = code.filter(|code| (200..=599).contains(code)).ok_or_else(bad)?;
            if *first.get_or_insert(code) != code {
                return Err(bad());
            }
            lines.push(String::from_utf8_lossy(line.get(4..).unwrap_or_default()).into_owned());
            match line.get(3) {
                Some(b'-') => {}
                Some(b' ') | None => return Ok(Some((Reply { code, lines }, length))),
                Some(_) => return Err(bad()),
            }
        }
        Ok(None)
    }

    /// Itself, if it is what was hoped for.
    fn expect(self, code: u16, to: &'static str) -> Result<Reply, Broken> {
        let is_so = self.code == code || (code == 250 && self.code == 251);
        if is_so { Ok(self) } else { Err(Broken::Said(self, to)) }
    }

    /// The server will not have it, now or later.
    fn is_final(&self) -> bool {
        self.code >= 500
    }

    /// The number and the standard's own finer one. The words are left out: they repeat addresses.
    fn codes(&self) -> String {
        let is_fine = |word: &&str| {
            let mut parts = word.split('.');
            let digits = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            parts.by_ref().all(digits) && word.split('.').count() == 3
        };
        match self.lines.first().and_then(|line| line.split(' ').next()).filter(is_fine) {
            Some(fine) => format!("{} {fine}", self.code),
            None => self.code.to_string(),
        }
    }

    /// The server says of itself that it can do this.
    fn has(&self, ability: &str) -> bool {
        self.of(ability).is_some()
    }

    fn has_word(&self, ability: &str, word: &str) -> bool {
        self.of(ability).is_some_and(|mut words| words.any(|known| known.eq_ignore_ascii_case(word)))
    }

    fn of(&self, ability: &str) -> Option<std::str::SplitWhitespace<'_>> {
        self.lines.iter().find_map(|line| {
            let mut words = line.split_whitespace();
            words.next().filter(|name| name.eq_ignore_ascii_case(ability)).map(|_| words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_a_reply_is_read_when_its_last_line_is_there() {
        let check = |heard: &str, code: u16, lines: &[&str], length: usize| {
            let Ok(Some((reply, read))) = Reply::read(heard.as_bytes()) else { panic!("{heard:?}") };
            assert_eq!((reply.code, read), (code, length), "{heard:?}");
            assert_eq!(reply.lines, lines, "{heard:?}");
        };
        check("220 mx ready\r\n", 220, &["mx ready"], 14);
        check(
            "250-mx\r\n250-AUTH PLAIN LOGIN\r\n250 STARTTLS\r\nrest",
            250,
            &["mx", "AUTH PLAIN LOGIN", "STARTTLS"],
            44,
        );
        check("354\r\n", 354, &[""], 5);
        for unfinished in ["", "25", "250-mx\r\n", "250-mx\r\n250 do"] {
            assert!(matches!(Reply::read(unfinished.as_bytes()), Ok(None)), "{unfinished:?}");
        }
        for garbage in ["HTTP/1.1 400\r\n", "250-a\r\n550 b\r\n", "999 x\r\n", "2é0\r\n", "250_x\r\n"] {
            assert!(Reply::read(garbage.as_bytes()).is_err(), "{garbage:?}");
        }
    }

    #[test]
    fn p9_what_is_told_of_a_reply_has_no_words_of_the_server() {
        let codes = |line: &str| Reply { code: 550, lines: vec![line.into()] }.codes();
        assert_eq!(codes("5.1.1 <ada@example.com> is unknown"), "550 5.1.1");
        assert_eq!(codes("<ada@example.com> is unknown"), "550");
        assert_eq!(codes("1.2.3.4 is not welcome"), "550");
    }

    #[test]
    fn c8_no_line_of_a_mail_can_end_it() {
        assert_eq!(stuffed(b"a\r\n.\r\n..b\r\n"), b"a\r\n..\r\n...b\r\n.\r\n");
        assert_eq!(stuffed(b"a"), b"a\r\n.\r\n");
        assert_eq!(stuffed(b".a"), b"..a\r\n.\r\n");
        assert_eq!(stuffed(b"a\n.\nb\r.\rc\n.\r\n"), b"a\r\n..\r\nb\r\n..\r\nc\r\n..\r\n.\r\n");
        assert_eq!(stuffed(b"a\r\r\n\n"), b"a\r\n\r\n\r\n.\r\n");
    }

    #[test]
    fn c8_the_address_of_a_mail_server_says_how_it_is_spoken_to() {
        let read = |address: &str| Server::read(address, false).expect(address);
        let server = read("smtp://shop:p%40ss%2Fw@mail.example.com");
        assert_eq!((server.host.as_str(), server.port, server.security), ("mail.example.com", 587, Security::StartTls));
        assert_eq!(server.login, Some(("shop".into(), "p@ss/w".into())));
        let server = read("smtps://[::1]:2465");
        assert_eq!((server.host.as_str(), server.port, server.security), ("::1", 2465, Security::Tls));
        assert_eq!(server.login, None);
        assert_eq!(Server::read("smtp://relay:25", true).expect("a server").security, Security::Clear);
        assert!(Server::read("http://mail.example.com", false).is_none());
    }
}
