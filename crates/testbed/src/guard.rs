//! What keeps the servers of a test: in a directory of their own, gone when the test is.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A shell that does what it is told as the servers' user. Its input ends with the tests, however they end; then it stops
/// what runs and removes the directory.
const GUARD: &str = r#"
trap '' INT TERM HUP
dir=$(mktemp -d -t clinch-server.XXXXXX) || exit 1
cd "$dir"
echo "$dir"
while read -r command; do
    if (eval "$command") >"$dir/said" 2>&1 </dev/null; then echo ok; else echo failed; fi
done
exec >/dev/null 2>&1
for running in */postmaster.pid */pgbouncer.pid */mariadb.pid; do
    [ -e "$running" ] || continue
    server=$(head -n 1 "$running") && kill -QUIT "$server" && while kill -0 "$server"; do sleep 0.05; done
done
# Those whose first process was killed may still be writing.
for again in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$dir" && break; sleep 0.5; done
"#;

pub struct Guard {
    pub directory: PathBuf,
    _child: Child,
    wire: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Guard {
    /// `user` is who the package of the servers made for them: they refuse to run as root.
    pub fn start(user: &str, binaries: &Path) -> Guard {
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        command.args(["-c", GUARD]).env("BIN", binaries).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (told, mut said) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut directory = String::new();
        said.read_line(&mut directory).unwrap();
        assert!(!directory.is_empty(), "there is no directory for the servers");
        Guard { directory: directory.trim().into(), _child: child, wire: Mutex::new((told, said)) }
    }

    /// Whether it worked, and what was said.
    pub fn tries(&self, command: &str) -> Result<String, String> {
        let command = command.replace('\n', " ");
        let mut wire = self.wire.lock().unwrap();
        writeln!(wire.0, "{command}").unwrap();
        let mut answer = String::new();
        wire.1.read_line(&mut answer).unwrap();
        let said = std::fs::read_to_string(self.directory.join("said")).unwrap_or_default();
        if answer.trim() == "ok" { Ok(said) } else { Err(said) }
    }

    pub fn does(&self, command: &str) -> String {
        self.tries(command).unwrap_or_else(|said| panic!("{command}: {said}"))
    }
}

/// A port that nobody has and that nobody here was told before. It is below those that the kernel gives to whoever calls out or
/// does not mind: it is still free when the server has made its files, and when it comes back after a stop.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const PORTS: u32 = 12_000;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth = std::process::id().wrapping_mul(7_919).wrapping_add(TOLD.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = FIRST + u16::try_from(nth).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
