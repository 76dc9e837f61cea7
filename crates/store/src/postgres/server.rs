//! A PostgreSQL server for the tests of this process, with a database for each test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dayfly_protocol::ids::PublicKey;
use tokio_postgres::NoTls;

use super::{PostgresStore, PostgresTasks, SharedTasks};
use crate::StoreError;

/// A server. It stops and its directory is removed when its standard input closes, at the latest with this process.
pub struct Server {
    script: Child,
    responses: BufReader<std::process::ChildStdout>,
    /// Directory of its socket.
    pub directory: String,
}

impl Server {
    /// Starts a server, or returns the reason where PostgreSQL is not installed.
    pub fn start(arguments: &[&str]) -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
        let mut script = Command::new(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut responses = BufReader::new(script.stdout.take().ok_or("no output")?);
        let mut directory = String::new();
        responses.read_line(&mut directory).map_err(|error| error.to_string())?;
        if directory.is_empty() {
            let _ = script.wait();
            return Err("scripts/postgres printed the reason".into());
        }
        Ok(Self {
            script,
            responses,
            directory: directory.trim().into(),
        })
    }

    /// Sends the command `stop`, `kill` or `start` to the server's script.
    pub fn send(&mut self, what: &str) {
        let input = self.script.stdin.as_mut().unwrap();
        writeln!(input, "{what}").unwrap();
        let mut response = String::new();
        self.responses.read_line(&mut response).unwrap();
        assert_eq!(response.trim(), what);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}

/// A database for one test.
pub struct Database {
    /// URL for a manager.
    pub url: String,
}

/// Creates a database on the server that all tests of this process share. Prints a message and returns `None` where
/// there is no PostgreSQL.
pub fn database() -> Option<Database> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    match SERVER.get_or_init(|| Server::start(&[])) {
        Ok(server) => Some(Database::on(server)),
        Err(why) => {
            eprintln!("left out: {why}");
            None
        }
    }
}

impl Database {
    /// Creates a database.
    pub fn on(server: &Server) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = |name: &str| format!("postgresql://dayfly@/{name}?host={}", server.directory);
        let (to, command) = (url("postgres"), format!("CREATE DATABASE {name}"));
        // Use a separate thread: the tests' runtimes may be blocked by this call.
        let made = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(execute(&to, &command));
        });
        made.join().unwrap();
        Self { url: url(&name) }
    }

    /// Executes a statement directly.
    pub async fn execute(&self, command: &str) {
        execute(&self.url, command).await;
    }

    /// Opens a manager's store.
    pub async fn store(&self, manager: u8) -> PostgresStore {
        self.try_store(manager).await.unwrap()
    }

    /// Opens a manager's store, which may be refused.
    pub async fn try_store(&self, manager: u8) -> Result<PostgresStore, StoreError> {
        PostgresStore::open(&self.url, PublicKey([manager; 32])).await
    }

    /// Returns a manager's access to the tasks.
    pub fn shared_tasks(&self, manager: u8) -> SharedTasks {
        SharedTasks::new(&self.url, PublicKey([manager; 32])).unwrap()
    }

    /// Takes over the tasks for a manager.
    pub async fn tasks(&self, manager: u8) -> PostgresTasks {
        let shared = self.shared_tasks(manager);
        let taken = shared.take(None, Duration::ZERO).await.unwrap();
        taken.expect("nobody else has them")
    }
}

async fn execute(url: &str, command: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let serving = tokio::spawn(connection);
    client.batch_execute(command).await.unwrap();
    drop(client);
    serving.await.unwrap().unwrap();
}
