//! A real Redis that a test starts: on loopback, in a directory of its own, ended with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing that is waited for takes this long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Redis {
    port: u16,
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Redis {
    /// One that remembers everything.
    pub fn start() -> Redis {
        let mut redis = Redis { port: 0, dir: tempfile::tempdir().expect("made"), server: None };
        // A port that is free may be another's by the time that it is bound; then it is another port.
        let starts = (0..5).any(|_| {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
            redis.port = free.expect("free").port();
            redis.has_started(&["--appendonly", "yes", "--appendfsync", "always"])
        });
        assert!(starts, "Redis does not start");
        redis
    }

    /// Starts it again, where it was, with these settings.
    pub fn start_with(&mut self, settings: &[&str]) {
        assert!(self.has_started(settings), "Redis does not start again");
    }

    fn has_started(&mut self, settings: &[&str]) -> bool {
        self.kill();
        let server = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", "", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .args(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server can be started; install it");
        self.server = Some(server);
        let deadline = Instant::now() + PATIENCE;
        while self.try_ask("PING").is_none_or(|said| said != "PONG") {
            if self.server.as_mut().is_some_and(|server| server.try_wait().expect("asked").is_some()) {
                self.server = None;
                return false;
            }
            assert!(Instant::now() < deadline, "Redis starts and does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// At once, as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().expect("killed");
            server.wait().expect("ended");
        }
    }

    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("it runs").id()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// One command, and its answer as text.
    pub fn ask(&self, command: &str) -> String {
        self.try_ask(command).unwrap_or_else(|| panic!("Redis does not answer {command}"))
    }

    /// The only key there is.
    pub fn only_key(&self) -> String {
        assert_eq!(self.ask("DBSIZE"), "1");
        self.ask("RANDOMKEY")
    }

    fn try_ask(&self, command: &str) -> Option<String> {
        let mut line = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        line.set_read_timeout(Some(PATIENCE)).ok()?;
        line.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        let mut line = BufReader::new(line);
        let mut said = String::new();
        line.read_line(&mut said).ok()?;
        let said = said.trim_end();
        match said.split_at_checked(1)? {
            ("$", "-1") => Some(String::new()),
            ("$", length) => {
                let mut text = vec![0; length.parse().ok()?];
                line.read_exact(&mut text).ok()?;
                String::from_utf8(text).ok()
            }
            ("+" | ":", word) => Some(word.to_string()),
            // It may be loading its memory.
            _ => None,
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // It may have ended by itself.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
