//! The benchmark's own managers, which have no other leases.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use dayfly_client::{Client, Transport};
use dayfly_command::beside;
use dayfly_protocol::api::Connection;
use dayfly_protocol::error::{Code, Failure};

/// Starts an embedded manager and node. Returns a client and the ids of their processes.
pub fn own_manager(pool: usize) -> Result<(Client, Vec<u32>), Failure> {
    // SAFETY: this process has one thread so far.
    unsafe { std::env::set_var("DAYFLY_WARM_POOL", pool.to_string()) };
    let client = Client::embedded(Some(&beside("dayfly"))).map_err(|error| error.0)?;
    Ok((client, children()))
}

/// Makes the benchmark's node offer the fabric to measure.
pub fn offer(transport: Transport) {
    if let Transport::Libfabric(choice) = transport {
        // SAFETY: this process has one thread so far.
        unsafe { std::env::set_var("DAYFLY_FABRIC", choice.to_string()) };
    }
}

/// Returns the descendants of this process.
fn children() -> Vec<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A manager without nodes, in its own process and directory. Both end with this value.
pub struct BareManager {
    pub child: Child,
    dir: PathBuf,
    pub connection: Connection,
}

impl BareManager {
    pub fn start(store: Option<&str>) -> Result<Self, Failure> {
        let wrong = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(Code::Internal, format!("the measured manager {what}: {error}"))
        };
        let dir = std::env::temp_dir().join(format!("dayfly-bench-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| wrong("has no directory", &error))?;
        let mut child = Command::new(beside("dayfly"))
            .args([
                "manager",
                "--listen",
                "127.0.0.1:0",
                "--heartbeat",
                "1s",
                "--json",
                "--log",
                "error",
            ])
            .arg("--state-dir")
            .arg(&dir)
            .args(store.iter().flat_map(|store| ["--store", store]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| wrong("does not start", &error))?;
        let mut ready = String::new();
        if let Some(out) = &mut child.stdout {
            // Its first line, or none if it ends; its error is on standard error.
            let _ = BufReader::new(out).read_line(&mut ready);
        }
        let mut manager = Self {
            child,
            connection: Connection {
                manager: String::new(),
                ca_pem: String::new(),
                token: String::new(),
                others: Vec::new(),
            },
            dir,
        };
        let file = std::fs::read(manager.dir.join("connection.json")).map_err(|error| wrong("is not ready", &error))?;
        manager.connection = serde_json::from_slice(&file).map_err(|error| wrong("makes no sense", &error))?;
        Ok(manager)
    }
}

impl Drop for BareManager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
