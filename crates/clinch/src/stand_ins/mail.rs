//! A mail server that keeps what it is given. It answers the text of a mail as it is told, or 250.

use super::Book;
use clinch_core::trial::SeenCall;
use serde_json::json;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const TAKEN: u16 = 250;
/// A line of a mail; clinch writes none that is longer.
const LINE_BYTES_MAX: usize = 1 << 20;

pub async fn serve(listener: TcpListener, name: String, book: Arc<Book>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (name, book) = (name.clone(), book.clone());
        // Who hangs up in the middle has said nothing.
        tokio::spawn(async move { talk(stream, name, book).await.ok() });
    }
}

async fn talk(stream: TcpStream, name: String, book: Arc<Book>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    say(&mut stream, "220 a stand-in of clinch").await?;
    let (mut from, mut to) = (String::new(), String::new());
    while let Some(line) = hear(&mut stream).await? {
        let word = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        let address =
            || line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(address, _)| address);
        match word.as_str() {
            "EHLO" | "HELO" => say(&mut stream, "250-stand-in\r\n250-8BITMIME\r\n250 SMTPUTF8").await?,
            "MAIL" => {
                from = address().to_string();
                say(&mut stream, "250 fine").await?;
            }
            "RCPT" => {
                to = address().to_string();
                say(&mut stream, "250 fine").await?;
            }
            "DATA" => {
                say(&mut stream, "354 go on").await?;
                let Some(mail) = mail(&mut stream).await? else { return Ok(()) };
                let header =
                    |name: &str| mail.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
                let text = mail.split_once("\r\n\r\n").map_or("", |(_, text)| text);
                let call = SeenCall {
                    to: name.clone(),
                    method: "MAIL".into(),
                    path: to.clone(),
                    body: json!({"from": from, "to": to, "subject": header("Subject:"), "text": text.trim_end()}),
                    key: Some(header("Message-ID:").to_string()),
                    status: None,
                };
                let Some((status, _, _)) = book.take(call, TAKEN) else { return Ok(()) };
                let status = if (200..300).contains(&status) { TAKEN } else { status };
                say(&mut stream, &format!("{status} as it was told")).await?;
            }
            "QUIT" => return say(&mut stream, "221 bye").await,
            _ => say(&mut stream, "250 fine").await?,
        }
    }
    Ok(())
}

async fn say(stream: &mut BufReader<TcpStream>, line: &str) -> std::io::Result<()> {
    stream.write_all(format!("{line}\r\n").as_bytes()).await?;
    stream.flush().await
}

async fn hear(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = stream.read_until(b'\n', &mut line).await?;
    if read == 0 || line.len() > LINE_BYTES_MAX {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_string()))
}

/// The lines up to the dot that ends them.
async fn mail(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let mut mail = String::new();
    while let Some(line) = hear(stream).await? {
        if line == "." {
            return Ok(Some(mail));
        }
        mail.push_str(line.strip_prefix('.').unwrap_or(&line));
        mail.push_str("\r\n");
    }
    Ok(None)
}
