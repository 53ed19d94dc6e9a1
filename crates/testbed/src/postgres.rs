//! PostgreSQL servers of a test: in a directory of their own, on free ports, gone when the test is.

use crate::guard::{Guard, free_port};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of the newest version that is installed.
fn binaries() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CLINCH_POSTGRES_BIN") {
        return Some(named.into());
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.filter_map(|version| Some(version.ok()?.path())).max_by_key(|path| number(path))?;
    Some(newest.join("bin")).filter(|binaries| binaries.join("postgres").exists())
}

/// How a server ends.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Sessions are ended, everything is written out.
    Fast,
    /// At once; the next start recovers.
    Immediate,
    /// Its first process is killed; the others find out by themselves.
    Kill9,
}

/// A server. Each of its verbs returns when it is done, and blocks its thread until then.
pub struct Postgres {
    guard: Arc<Guard>,
    /// Its directory among those of the guard.
    name: &'static str,
    port: u16,
}

impl Postgres {
    pub fn start() -> Postgres {
        Postgres::start_after(|_| {})
    }

    /// `prepare` finds the data of the server, before it runs.
    pub fn start_after(prepare: impl FnOnce(&Postgres)) -> Postgres {
        let binaries =
            binaries().expect("PostgreSQL 15 or newer; install it, or name its directory in CLINCH_POSTGRES_BIN");
        let server = Postgres { guard: Arc::new(Guard::start("postgres", &binaries)), name: "data", port: free_port() };
        server.guard.does(r#""$BIN/initdb" -D data -U clinch -A trust -E UTF8 --locale=C --no-sync"#);
        server.set("listen_addresses = '127.0.0.1'");
        server.set(&format!("unix_socket_directories = '{}'", server.guard.directory.display()));
        server.set("max_connections = 300");
        server.set("autovacuum_naptime = 5");
        server.set("max_wal_size = '512MB'");
        server.set("log_min_messages = error");
        prepare(&server);
        server.start_again();
        server
    }

    /// Runs a line of shell as the user of the server, in the directory that its data is in.
    pub fn does(&self, command: &str) -> String {
        self.guard.does(command)
    }

    pub fn set(&self, setting: &str) {
        self.guard.does(&format!(r#"echo "{setting}" >> {}/postgresql.conf"#, self.name));
    }

    /// On the same port and data.
    pub fn start_again(&self) {
        let start = format!(
            r#""$BIN/pg_ctl" -D {name} -l {name}.log -o "-p {port}" -s -w -t 60 start"#,
            name = self.name,
            port = self.port
        );
        // After a kill of the first process the others hold on to the memory for a moment.
        for _ in 0..100 {
            if self.guard.tries(&start).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("it does not start: {}", self.guard.does(&format!("tail -n 20 {}.log", self.name)));
    }

    pub fn stop(&self, how: Stop) {
        let name = self.name;
        match how {
            Stop::Fast => self.guard.does(&format!(r#""$BIN/pg_ctl" -D {name} -s -w -t 60 -m fast stop"#)),
            Stop::Immediate => self.guard.does(&format!(r#""$BIN/pg_ctl" -D {name} -s -w -t 60 -m immediate stop"#)),
            Stop::Kill9 => self.guard.does(&format!("kill -9 $(head -n 1 {name}/postmaster.pid)")),
        };
    }

    /// What is committed in a database at this moment, written into another one that is empty.
    pub fn copy(&self, from: &str, to: &str) {
        let at = format!("-h 127.0.0.1 -p {} -U clinch", self.port);
        self.guard.does(&format!(
            r#""$BIN/pg_dump" {at} -f copy.sql {from} && "$BIN/psql" -qX -v ON_ERROR_STOP=1 {at} -f copy.sql {to}"#
        ));
    }

    /// Another server that follows this one.
    pub fn with_standby(&self) -> Postgres {
        let standby = Postgres { guard: self.guard.clone(), name: "standby", port: free_port() };
        self.guard.does(&format!(
            r#""$BIN/pg_basebackup" -h 127.0.0.1 -p {} -U clinch -D standby -R -X stream -c fast --no-sync"#,
            self.port
        ));
        standby.start_again();
        standby
    }

    /// Another server that follows this one, and that this one waits for at every commit.
    pub fn with_synchronous_standby(&self) -> Postgres {
        let standby = self.with_standby();
        // Not before the copy was made: the standby, once it is promoted, has nobody to wait for.
        self.query("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.query("postgres", "SELECT pg_reload_conf()");
        while self.query("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1" {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        standby
    }

    /// A PgBouncer in transaction mode in front of it; tells where the socket of port 6432 is.
    pub fn with_pgbouncer(&self) -> PathBuf {
        let (directory, port) = (self.guard.directory.display(), self.port);
        let pooler = self.guard.directory.join("pooler");
        let settings = format!(
            r"[databases]\n* = host={directory} port={port}\n[pgbouncer]\npool_mode = transaction\nlisten_addr =\n
             listen_port = 6432\nunix_socket_dir = {pooler}\nauth_type = trust\nauth_file = {pooler}/users\n
             logfile = {pooler}/log\npidfile = {pooler}/pgbouncer.pid\nmax_client_conn = 1000\n
             default_pool_size = 6\nserver_idle_timeout = 2\n",
            pooler = pooler.display(),
        );
        self.does("mkdir pooler");
        self.does(r#"printf '"clinch" ""\n' > pooler/users"#);
        self.does(&format!("printf '{settings}' > pooler/pgbouncer.ini"));
        self.does("PATH=$PATH:/usr/sbin pgbouncer -q -d pooler/pgbouncer.ini");
        self.does("until [ -S pooler/.s.PGSQL.6432 ]; do sleep 0.05; done");
        pooler
    }

    /// Makes a standby the one that is written to.
    pub fn promote(&self) {
        self.guard.does(&format!(r#""$BIN/pg_ctl" -D {} -s -w -t 60 promote"#, self.name));
    }

    pub fn create_database(&self, name: &str) {
        self.query("postgres", &format!("CREATE DATABASE {name}"));
    }

    /// What `psql` prints, bare. For one statement now and then.
    fn query(&self, database: &str, sql: &str) -> String {
        let (directory, port) = (self.guard.directory.display(), self.port);
        let sql = sql.replace('\'', r"'\''");
        let psql = format!(r#""$BIN/psql" -h {directory} -p {port} -U clinch -d {database} -AtX -v ON_ERROR_STOP=1"#);
        self.guard.does(&format!("{psql} -c '{sql}'")).trim().to_string()
    }

    /// Through a socket in its directory.
    pub fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?user=clinch&host={}&port={}", self.guard.directory.display(), self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its files are.
    pub fn data(&self) -> PathBuf {
        self.guard.directory.join(self.name)
    }
}
