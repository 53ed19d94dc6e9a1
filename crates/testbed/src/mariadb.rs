//! MariaDB servers of a test: in a directory of their own, on free ports, gone when the test is.

use crate::guard::{Guard, free_port};
use std::path::{Path, PathBuf};

/// One that signed the server's, and one that did not.
const CERTIFICATES: [&str; 5] = [
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.pem",
    "openssl req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
    "echo subjectAltName=IP:127.0.0.1 > extensions",
    "openssl x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions -out server.pem",
];

/// A server. Each of its verbs returns when it is done, and blocks its thread until then.
pub struct Mariadb {
    guard: Guard,
    port: u16,
}

impl Mariadb {
    pub fn start() -> Mariadb {
        let binaries = Path::new("/usr/sbin");
        assert!(binaries.join("mariadbd").exists(), "MariaDB 10.5 or newer; install it");
        let server = Mariadb { guard: Guard::start("mysql", binaries), port: free_port() };
        let options = r#"--no-defaults --datadir="$PWD/data" --innodb-log-file-size=16M"#;
        server.guard.does(&format!(
            "mariadb-install-db {options} --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve"
        ));
        CERTIFICATES.iter().for_each(|command| drop(server.guard.does(command)));
        server.guard.does(&format!(
            r#""$BIN/mariadbd" {options} --ssl-cert="$PWD/server.pem" --ssl-key="$PWD/server.key" --socket="$PWD/socket" --pid-file="$PWD/data/mariadb.pid" --bind-address=127.0.0.1
               --port={port} --skip-name-resolve --max-connections=300 > server.log 2>&1 </dev/null &"#,
            port = server.port
        ));
        server.guard.does(
            r#"for again in $(seq 600); do mariadb-admin --no-defaults --socket="$PWD/socket" -u root ping && exit 0;
               sleep 0.1; done; tail -n 20 server.log; exit 1"#,
        );
        let user = "'clinch'@'127.0.0.1'";
        server.query(&format!("GRANT ALL ON *.* TO {user} IDENTIFIED BY '' WITH GRANT OPTION"));
        server
    }

    pub fn create_database(&self, name: &str) {
        self.query(&format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"));
    }

    /// As root, through the socket in its directory. For one statement now and then.
    fn query(&self, sql: &str) {
        let sql = sql.replace('\'', r"'\''");
        self.guard.does(&format!(r#"mariadb --no-defaults --socket="$PWD/socket" -u root -e '{sql}'"#));
    }

    /// `ca.pem`, whose holder vouches for it, and `stranger.pem`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.guard.directory.join(name)
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}
