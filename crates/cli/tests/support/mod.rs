//! Real binaries, compiled functions, and queries of processes.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use dayfly_client::Client;

/// Returns the path of this build's `dayfly`. Also builds the executor beside it, which `cargo test -p dayfly-cli`
/// alone would not do.
pub fn dayfly() -> PathBuf {
    static EXECUTOR: Once = Once::new();
    EXECUTOR.call_once(|| build("dayfly-executor"));
    PathBuf::from(env!("CARGO_BIN_EXE_dayfly"))
}

/// Builds `dayfly-bench` beside `dayfly`, which starts it.
pub fn build_bench() {
    static BENCH: Once = Once::new();
    BENCH.call_once(|| build("dayfly-bench"));
}

/// Builds the program with the name of its package. Selects `dayfly-cli` too, so that dependencies keep the features of
/// the existing build.
fn build(name: &str) {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "-p", "dayfly-cli", "-p", name, "--bin", name]);
    if Path::new(env!("CARGO_BIN_EXE_dayfly"))
        .components()
        .any(|part| part.as_os_str() == "release")
    {
        command.arg("--release");
    }
    assert!(command.status().unwrap().success(), "{name} did not build");
}

/// Compiles C source to a shared library.
pub fn compile(source: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (c, so) = (dir.path().join("functions.c"), dir.path().join("functions.so"));
    std::fs::write(&c, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(compiler)
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&so)
        .arg(&c)
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(so).unwrap()
}

/// Waits for a condition, and panics at a time limit.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns all descendants of `pid`.
pub fn below(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            found.push(child);
            found.extend(below(child));
        }
    }
    found
}

fn argument_of(pid: u32, name: &str) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut parts = line
        .split(|byte| *byte == 0)
        .map(|part| String::from_utf8_lossy(part).into_owned());
    parts.find(|part| part == name)?;
    parts.next()
}

/// Returns the process of this client's embedded manager: the child process whose connection file has the client's
/// address.
pub fn embedded_pid(client: &Client) -> u32 {
    let url = client.describe();
    below(std::process::id())
        .into_iter()
        .find(|pid| {
            let state = argument_of(*pid, "--state-dir").unwrap_or_default();
            let text = std::fs::read_to_string(Path::new(&state).join("connection.json")).unwrap_or_default();
            let connection: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            connection["manager"]
                .as_str()
                .is_some_and(|manager| url.ends_with(manager.trim_end_matches('/')))
        })
        .expect("the embedded manager runs")
}

/// Kills the embedded manager and node at once, like a power failure.
pub fn kill_tree_root_of(client: &Client) {
    kill(embedded_pid(client));
}

pub fn kill(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Kills the process that writes its id into the file, as soon as it has done so.
pub fn kill_who_announces(file: &Path) {
    let mut text = String::new();
    eventually("the function runs", || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.ends_with('\n')
    });
    kill(text.trim().parse().unwrap());
}
