//! Tests of the program as a person or a script uses it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use dayfly_client::{Client, Form, Runtime};
use dayfly_protocol::functions::{FunctionRegistration, FunctionStatus, Resources};
use dayfly_protocol::tasks::{AcceptedTasks, TaskInput, TaskSubmission};
use serde_json::Value;

mod support;

const LIMIT: Duration = Duration::from_secs(20);
const AREA: &str = "#include <stdint.h>
uint32_t area(void *in, uint32_t size, void *out) {
    const uint32_t *sides = in;
    if (size != 8) return 0;
    *(uint32_t *)out = sides[0] * sides[1];
    return 4;
}";
const SIDES: &str = "hex:0600000007000000";
/// A valid id without a task.
const ID: &str = "019a51c3e0f07d2c9b64f1a85be3d207";

/// Returns a command of `dayfly` that ignores the tester's environment.
fn dayfly(home: &Path) -> Command {
    let mut command = Command::new(support::dayfly());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DAYFLY_") {
            command.env_remove(name);
        }
    }
    command
        .env("HOME", home)
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::null());
    command
}

fn run(home: &Path, arguments: &[&str]) -> Output {
    dayfly(home).args(arguments).output().unwrap()
}

fn json_of(home: &Path, arguments: &[&str]) -> Value {
    let output = dayfly(home).args(arguments).arg("--json").output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the error code and the exit status of a failing command.
fn error_of(home: &Path, arguments: &[&str]) -> (String, i32) {
    let output = dayfly(home).args(arguments).arg("--json").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{arguments:?}: {text}"));
    (
        error["error"]["code"].as_str().unwrap().to_owned(),
        output.status.code().unwrap(),
    )
}

/// A daemon that is stopped at the end of the test at the latest.
struct Daemon {
    child: Child,
    ready: Value,
}

impl Daemon {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut command = dayfly(home);
        command
            .args(arguments)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Ok(ready) = serde_json::from_str(&line) else {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("{arguments:?} is not ready: {text}");
        };
        Self { child, ready }
    }

    fn up(home: &Path) -> Self {
        Self::start(home, &["up", "--listen", "127.0.0.1:0"])
    }

    /// Sends SIGTERM, and returns the exit status.
    fn stop(&mut self) -> Option<i32> {
        signal(self.child.id(), "TERM");
        ended(&mut self.child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn ended(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: u32) -> bool {
    // A zombie process has no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn area(home: &Path) -> String {
    let path = home.join("area.so");
    std::fs::write(&path, support::compile(AREA)).unwrap();
    path.display().to_string()
}

#[test]
fn every_command_has_help() {
    let home = tempfile::tempdir().unwrap();
    let commands: &[&[&str]] = &[
        &[],
        &["up"],
        &["manager"],
        &["manager", "join-token"],
        &["node"],
        &["status"],
        &["top"],
        &["lease"],
        &["lease", "list"],
        &["lease", "create"],
        &["lease", "renew"],
        &["lease", "release"],
        &["lease", "revoke"],
        &["task", "run"],
        &["task", "list"],
        &["task", "show"],
        &["task", "result"],
        &["task", "cancel"],
        &["task", "counts"],
        &["function", "register"],
        &["function", "list"],
        &["function", "show"],
        &["endpoint", "list"],
        &["tenant", "list"],
        &["tenant", "set"],
        &["token", "list"],
        &["token", "create"],
        &["token", "revoke"],
        &["bill"],
        &["prices"],
        &["audit"],
        &["invoke"],
        &["bench"],
        &["version"],
        &["completions"],
    ];
    for command in commands {
        let output = run(home.path(), &[command, &["--help"][..]].concat());
        assert!(output.status.success(), "{command:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("Usage: dayfly") && text.contains("--json"),
            "{command:?}: {text}"
        );
        assert!(!text.contains('\x1b'), "no colours away from a terminal: {command:?}");
    }
}

#[test]
fn version_names_release_protocol_and_build() {
    let home = tempfile::tempdir().unwrap();
    let version = json_of(home.path(), &["version"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["wire_version"], u64::from(dayfly_protocol::WIRE_VERSION));
    assert!(version["build"]["target"].as_str().unwrap().contains("linux"));
}

#[test]
fn completions_are_made_for_each_shell() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(home.path(), &["completions", shell]);
        assert!(output.status.success());
        assert!(
            String::from_utf8(output.stdout).unwrap().contains("join-token"),
            "{shell}"
        );
    }
}

#[test]
fn wrong_usage_ends_with_status_2() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(
        error_of(home.path(), &["lease", "renew", "zz"]),
        ("invalid_request".into(), 2)
    );
    assert_eq!(
        error_of(home.path(), &["up", "--log", "a=b=c"]),
        ("invalid_request".into(), 2)
    );
    assert_eq!(
        error_of(home.path(), &["invoke", "/no/such.so", "f"]),
        ("invalid_request".into(), 2)
    );
    assert_eq!(
        error_of(home.path(), &["up", "--cores", "9999"]),
        ("invalid_request".into(), 2)
    );
    for arguments in [
        &["task", "show", "3d207"][..],
        &["task", "result", "no id"],
        &["task", "result", ID, "--wait", "soon"],
        &["task", "result", ID, "--raw"],
        &["task", "cancel", "zz"],
        &["task", "cancel"],
        &["task", "cancel", ID, "--tag", "both"],
        &["task", "list", "--limit", "0"],
        &["task", "list", "--state", "asleep"],
        &["task", "list", "--state", "done", "--failed"],
        &["task", "run"],
        &["task", "run", "f", "--keyword", "no value"],
        &["task", "run", "f", "--input", "-", "argument"],
        &["task", "run", "f", "--wait=soon"],
        &["task", "run", "f", "--raw"],
        &["function", "show", ""],
    ] {
        assert_eq!(
            error_of(home.path(), arguments),
            ("invalid_request".into(), 2),
            "{arguments:?}"
        );
    }
    let output = run(home.path(), &["task", "show", "3d207"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("32 hexadecimal digits"),
        "the message shows what an id looks like"
    );
    let output = run(home.path(), &["lease", "create", "--for", "ten"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("1h30m"),
        "the message shows how it is written"
    );
}

#[test]
fn status_without_manager_says_how_to_start_one() {
    let home = tempfile::tempdir().unwrap();
    let output = run(home.path(), &["status"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.starts_with("error [unreachable]: ") && text.contains("dayfly up"),
        "{text}"
    );
    assert_eq!(error_of(home.path(), &["top", "--once"]), ("unreachable".into(), 3));
}

/// Repeats a command until its output is as wanted.
fn until(home: &Path, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
    let limit = Instant::now() + LIMIT;
    loop {
        let printed = json_of(home, arguments);
        if wanted(&printed) {
            return printed;
        }
        assert!(Instant::now() < limit, "{arguments:?}: {printed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn tenants_leases_are_billed_and_end_at_budget() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let _up = Daemon::up(home);
    let prices = json_of(
        home,
        &["prices", "--price-allocation", "1000", "--price-computing", "0.5"],
    );
    assert_eq!(prices["computing_per_s"], 500_000_000);
    let tenant = json_of(
        home,
        &["tenant", "set", "astro", "--workers", "4", "--budget", "0.000001"],
    );
    assert_eq!(
        (&tenant["budget"], &tenant["quota"]["workers"]),
        (&1000.into(), &4.into())
    );
    let file = home.join("astro.json");
    let file = file.to_str().unwrap();
    let made = json_of(
        home,
        &["token", "create", "laptop", "--tenant", "astro", "--output", file],
    );
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let astro = |arguments: &[&'static str]| [&["--manager", file][..], arguments].concat();

    assert_eq!(
        error_of(home, &astro(&["lease", "create", "--workers", "5"])),
        ("quota_exceeded".into(), 4)
    );
    assert_eq!(
        error_of(home, &astro(&["tenant", "set", "astro", "--no-budget"])),
        ("forbidden".into(), 4)
    );
    let library = area(home);
    let called = json_of(home, &["--manager", file, "invoke", &library, "area", "--input", SIDES]);
    assert_eq!(called["output_bytes"], 4, "{called}");
    let bill = until(home, &astro(&["bill"]), |bill| bill[0]["total"].as_u64() > Some(1000));
    assert_eq!(
        (&bill[0]["tenant_name"], &bill[0]["usage"]["calls"]),
        (&"astro".into(), &2.into())
    );
    assert_eq!(
        error_of(home, &astro(&["lease", "create"])),
        ("quota_exceeded".into(), 4)
    );

    let tenants = json_of(home, &["tenant", "list"]);
    let spent = &tenants[0]["spent"];
    assert_eq!((&tenants[0]["name"], spent), (&"astro".into(), &bill[0]["total"]));
    let by_tenant = json_of(home, &["bill", "--by", "tenant"]);
    assert_eq!(
        (&by_tenant[0]["what"], &by_tenant[0]["total"]),
        (&"astro".into(), spent)
    );
    let csv = run(home, &["bill", "--by", "day", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    assert!(
        csv.starts_with("day,payer,") && csv.trim_end().ends_with(&spent.to_string()),
        "{csv}"
    );
    let table = run(home, &["bill"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("PAYS") && table.contains("in all"), "{table}");
    assert_eq!(json_of(home, &["bill", "--until", "2020-01-01"]), serde_json::json!([]));

    let id = made["token"]["id"].as_str().unwrap();
    assert_eq!(json_of(home, &["token", "list"])[0]["id"], id);
    json_of(home, &["token", "revoke", id]);
    assert_eq!(error_of(home, &astro(&["bill"])), ("unauthorized".into(), 4));
    let audit = json_of(home, &["audit"]);
    let actions: Vec<_> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["prices.set", "tenant.set", "token.create", "token.revoke"]);
}

#[test]
fn missing_bench_program_is_reported_with_remedy() {
    let home = tempfile::tempdir().unwrap();
    let lonely = home.path().join("dayfly");
    std::fs::hard_link(support::dayfly(), &lonely)
        .or_else(|_| std::fs::copy(support::dayfly(), &lonely).map(drop))
        .unwrap();
    let bench = |more: &[&str]| {
        let mut command = Command::new(&lonely);
        command
            .arg("bench")
            .args(more)
            .env("PATH", home.path())
            .output()
            .unwrap()
    };
    let refused = bench(&["reject"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{said}");
    assert!(said.starts_with("error [not_found]: `dayfly-bench`"), "{said}");
    assert!(said.contains("make build"), "{said}");
    let help = bench(&["reject", "--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--calls"));
}

#[test]
fn manager_grants_leases_on_many_simulated_nodes() {
    support::build_bench();
    let home = tempfile::tempdir().unwrap();
    let temporary = home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let output = dayfly(home.path())
        .env("TMPDIR", &temporary)
        .args([
            "bench",
            "control",
            "--nodes",
            "100",
            "--clients",
            "2",
            "--each",
            "300ms",
            "--force",
            "--json",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for figure in [
        "grants_per_s",
        "p99_ms",
        "heartbeat_cpu_percent",
        "heartbeats_per_s",
        "joined_s",
    ] {
        assert!(report[figure].is_number(), "{figure}: {report}");
    }
    assert!(report["grants"]["latency"]["samples"].as_u64() > Some(10), "{report}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn up_serves_calls_and_leaves_no_files() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let mut up = Daemon::up(home);
    let status = json_of(home, &["status"]);
    assert_eq!(status["nodes"][0]["address"]["id"], up.ready["node"]);
    assert_eq!(status["manager"]["url"], up.ready["manager"]);
    assert_eq!(status["manager"]["health"]["status"], "ok");

    let kept = home.join("lease.json");
    let created = json_of(
        home,
        &["lease", "create", "--for", "10m", "--output", kept.to_str().unwrap()],
    );
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let lease = created["grant"]["lease"].as_str().unwrap();
    let listed = json_of(home, &["lease", "list"]);
    assert_eq!(listed[0]["lease"], lease);
    assert_eq!(
        json_of(home, &["lease", "renew", lease, "--for", "1h"])["duration_ms"],
        3_600_000
    );

    let library = area(home);
    let kept = kept.to_str().unwrap();
    for _ in 0..2 {
        let output = run(home, &["invoke", "--lease", kept, &library, "area", "--input", SIDES]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hex:2a000000\n");
    }
    assert_eq!(json_of(home, &["lease", "list"])[0]["state"], "active", "it stays");
    assert_eq!(
        error_of(home, &["invoke", "--lease", &library, &library, "area"]).0,
        "invalid_request"
    );
    let output = run(home, &["invoke", &library, "area", "--input", SIDES]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hex:2a000000\n");
    let called = json_of(
        home,
        &[
            "invoke", &library, "area", "--input", SIDES, "--repeat", "20", "--mode", "warm",
        ],
    );
    assert_eq!(
        (&called["output_hex"], &called["transport"]),
        (&"2a000000".into(), &"shm".into())
    );
    assert!(called["latency_us"]["p50"].as_f64().unwrap() > 0.0);
    let called = json_of(
        home,
        &[
            "invoke",
            &library,
            "area",
            "--input",
            SIDES,
            "--workers",
            "2",
            "--repeat",
            "50",
            "--transport",
            "tcp",
        ],
    );
    assert_eq!(
        (&called["output_hex"], &called["transport"]),
        (&"2a000000".into(), &"tcp".into())
    );
    assert_eq!(
        error_of(home, &["invoke", &library, "volume"]),
        ("load_failed".into(), 1)
    );

    let top = json_of(home, &["top", "--once", "--interval", "200ms"]);
    assert_eq!(top["leases"][0]["lease"], lease);
    json_of(home, &["lease", "release", lease]);
    assert_eq!(json_of(home, &["lease", "list"]), Value::Array(vec![]));
    assert_eq!(error_of(home, &["lease", "create", "--workers", "1024"]).1, 4);

    let below = support::below(up.child.id());
    assert!(!below.is_empty(), "executors wait for leases");
    assert_eq!(up.stop(), Some(0));
    support::eventually("everything below it is gone", || {
        !below.iter().any(|pid| is_alive(*pid))
    });
    assert_eq!(
        run(home, &["status"]).status.code(),
        Some(3),
        "nobody finds a manager that ended"
    );
}

#[test]
fn lists_are_empty_without_tasks() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let _up = Daemon::up(home);
    assert_eq!(json_of(home, &["task", "list"]), Value::Array(vec![]));
    assert_eq!(json_of(home, &["task", "list", "--everybody"]), Value::Array(vec![]));
    assert_eq!(json_of(home, &["function", "list"]), Value::Array(vec![]));
    assert_eq!(json_of(home, &["task", "counts"])["queued"], 0);
    let endpoints = json_of(home, &["endpoint", "list"]);
    assert_eq!(
        (&endpoints[0]["name"], &endpoints[0]["state"]),
        (&"local".into(), &"up".into())
    );
    for (arguments, text) in [
        (["task", "list"], "No tasks.\n"),
        (["function", "list"], "No functions.\n"),
    ] {
        assert_eq!(String::from_utf8_lossy(&run(home, &arguments).stdout), text);
    }

    for arguments in [
        &["task", "show", ID][..],
        &["task", "result", ID, "--wait", "10m"],
        &["function", "show", "no/such function"],
    ] {
        assert_eq!(error_of(home, arguments), ("not_found".into(), 4), "{arguments:?}");
    }
    assert_eq!(json_of(home, &["task", "cancel", ID])["ended"], 0);
}

/// Registers a symbol of a library, and submits a task for it. Returns the ids of both.
fn submit(client: &Client, (library, symbol): (&str, &str), tag: &str, arguments: &[u8]) -> (String, String) {
    let registration = FunctionRegistration {
        image: None,
        name: Some(symbol.into()),
        description: String::new(),
        source: library.into(),
        form: Form::Plain { symbol: symbol.into() },
        runtime: Runtime::Native,
        code: support::compile(library).into(),
        resources: Resources::default(),
        repeatable: false,
        shared_with: Vec::new(),
    };
    let function: FunctionStatus = client.post("/v1/functions", &registration).unwrap();
    let submission = TaskSubmission {
        function: function.id,
        endpoint: None,
        tag: tag.into(),
        options: Default::default(),
        tasks: vec![TaskInput {
            arguments: arguments.to_vec().into(),
            ..TaskInput::default()
        }],
    };
    let accepted: AcceptedTasks = client.post("/v1/tasks", &submission).unwrap();
    (function.id.to_string(), accepted.tasks[0].to_string())
}

#[test]
fn durable_task_is_followed_to_its_outcome() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let up = Daemon::up(home);
    let client = Client::connect(Some(Path::new(up.ready["connection"].as_str().unwrap()))).unwrap();
    let (function, task) = submit(&client, (AREA, "area"), "two words & more", &[6, 0, 0, 0, 7, 0, 0, 0]);

    let output = run(home, &["task", "result", &task, "--wait", "20"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hex:2a000000\n");
    let raw = run(home, &["task", "result", &task, "--raw"]);
    assert_eq!((raw.status.code(), &raw.stdout[..]), (Some(0), &[42, 0, 0, 0][..]));
    assert_eq!(json_of(home, &["task", "result", &task])["answer"], "KgAAAA==");

    let shown = json_of(home, &["task", "show", &task]);
    assert_eq!((&shown["state"], &shown["name"]), (&"done".into(), &"area".into()));
    let text = String::from_utf8(run(home, &["task", "show", &task]).stdout).unwrap();
    assert!(
        text.contains("\n  queued      ") && text.contains("outcome     ok\n"),
        "{text}"
    );
    assert_eq!(
        json_of(home, &["task", "list", "--tag", "two words & more"])[0]["id"],
        *task
    );
    assert_eq!(json_of(home, &["task", "list", "--tag", "two"]), Value::Array(vec![]));
    let table = String::from_utf8(run(home, &["task", "list", "--limit", "1"]).stdout).unwrap();
    assert!(table.contains(&format!("...{}  area", &task[20..])), "{table}");
    assert!(!table.contains(&task), "{table}");
    assert_eq!(json_of(home, &["task", "counts"])["done"], 1);
    assert_eq!(json_of(home, &["endpoint", "list"])[0]["tasks"]["done"], 1);

    let by_name = json_of(home, &["function", "show", "area"]);
    assert_eq!((&by_name["id"], &by_name["version"]), (&(*function).into(), &1.into()));
    assert_eq!(json_of(home, &["function", "show", &function]), by_name);
    let source = run(home, &["function", "show", "area", "--source"]);
    assert_eq!(String::from_utf8_lossy(&source.stdout).trim_end(), AREA);
    let (later, _) = submit(&client, (&format!("{AREA}\nint bigger;"), "area"), "again", &[0; 8]);
    assert_ne!(later, function);
    let changes = String::from_utf8(run(home, &["function", "diff", "area"]).stdout).unwrap();
    assert!(
        changes.starts_with("--- area v1\n+++ area v2\n") && changes.ends_with("\n+int bigger;\n"),
        "{changes}"
    );
    assert_eq!(json_of(home, &["function", "diff", "area", "2", "2"])["diff"], "");
    for wrong in [&["area", "3"][..], &["volume"], &["area", "--owner", "x"]] {
        let words: Vec<&str> = ["function", "diff"].iter().chain(wrong).copied().collect();
        assert_eq!(error_of(home, &words), ("not_found".into(), 4), "{wrong:?}");
    }
    let table = String::from_utf8(run(home, &["function", "list"]).stdout).unwrap();
    assert!(table.contains(&function) && table.contains("native"), "{table}");
}

#[test]
fn result_of_failed_task_is_its_error() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let up = Daemon::up(home);
    let client = Client::connect(Some(Path::new(up.ready["connection"].as_str().unwrap()))).unwrap();
    let (_, task) = submit(&client, (AREA, "volume"), "fails", &[]);
    assert_eq!(
        error_of(home, &["task", "result", &task, "--wait", "20s"]),
        ("load_failed".into(), 1)
    );
    assert_eq!(json_of(home, &["task", "list"])[0]["error"]["code"], "load_failed");

    let rest = "#include <stdint.h>\n#include <unistd.h>\n
        uint32_t rest(void *in, uint32_t size, void *out) { for (;;) pause(); }";
    let (_, task) = submit(&client, (rest, "rest"), "rests", &[]);
    assert_eq!(error_of(home, &["task", "result", &task]), ("timed_out".into(), 3));
    assert_eq!(
        error_of(home, &["task", "result", &task, "--wait", "300ms"]),
        ("timed_out".into(), 3)
    );
    let cancelled = json_of(home, &["task", "cancel", "--tag", "rests"]);
    assert_eq!(
        cancelled["ended"].as_u64().unwrap() + cancelled["told"].as_u64().unwrap(),
        1
    );
    assert_eq!(
        error_of(home, &["task", "result", &task, "--wait", "20"]),
        ("cancelled".into(), 1)
    );
    assert_eq!(json_of(home, &["task", "cancel", &task])["told"], 0);
}

#[test]
fn invalid_function_is_refused_before_connecting() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let file = |name: &str, text: &[u8]| {
        let path = home.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let python = file("shapes.py", b"def area(a, b):\n    return a * b\n");
    let bytes = file("bytes.py", b"def area():\n    return '\xff'\n");
    let options = file("options.txt", b"--index-url https://example.org\nnumpy\n");
    let (area, volume, of_bytes) = (
        format!("{python}:area"),
        format!("{python}:volume"),
        format!("{bytes}:area"),
    );
    for (arguments, why) in [
        (&[][..], "required"),
        (&["/no/such.py:area"], "cannot be read"),
        (&[&python], "names no function"),
        (&[&volume], "defines no `volume`; it has area"),
        (&[&of_bytes], "byte 24 is none"),
        (
            &[&area, "--library", "area.so", "--symbol", "area"],
            "cannot be used with",
        ),
        (&[&area, "--command", "true"], "cannot be used with"),
        (&["--library", &python], "--symbol"),
        (&["--library", &python, "--symbol", "area"], "no shared library"),
        (&["--library", "/no/such.so", "--symbol", "area"], "cannot be read"),
        (&["--command", "echo {"], "--command"),
        (&["--command", " "], "--command is empty"),
        (&["--words", "--size 7"], "--image"),
        (&["--image", "tool", "--words", "'"], "a quote has no end"),
        (&["--image", "tool", "--require", "numpy"], "cannot be used with"),
        (&[&area, "--memory", "much"], "no size"),
        (&[&area, "--walltime", "60d"], "49 days"),
        (&[&area, "--placement", "anywhere"], "spread"),
        (&[&area, "--requirements", &options], "the option `--index-url"),
        (&[&area, "--requirements", "uv.lock"], "dayfly env lock"),
    ] {
        let output = run(home, &[&["function", "register"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && text.contains(why),
            "{arguments:?}: {text}"
        );
    }
    // Only the arguments' form is checked here.
    let arguments = ["function", "register", &area];
    assert_eq!(error_of(home, &arguments), ("unreachable".into(), 3));
}

#[test]
fn library_function_is_registered_and_run() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let _up = Daemon::up(home);
    let code = format!(
        "{AREA}
#include <stdio.h>
uint32_t speak(void *in, uint32_t size, void *out) {{ printf(\"%u bytes\\n\", size); return 0; }}"
    );
    let library = home.join("area.so");
    std::fs::write(&library, support::compile(&code)).unwrap();
    let library = library.to_str().unwrap();
    let register = |symbol: &str, more: &[&str]| {
        let words = ["function", "register", "--library", library, "--symbol", symbol];
        json_of(home, &[&words, more].concat())
    };
    let made = register("area", &["--description", "What two sides enclose.", "--memory", "64M"]);
    assert_eq!((&made["name"], &made["version"]), (&"area".into(), &1.into()));
    assert_eq!(made["resources"]["memory_bytes"], 64 << 20);
    assert_eq!(json_of(home, &["function", "show", "area"]), made);
    let again = register("area", &["--description", "Another."]);
    assert_eq!(again["version"], 2);
    let text = run(
        home,
        &["function", "register", "--library", library, "--symbol", "area"],
    );
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.starts_with("Function area\n  version     3\n  id          "),
        "{text}"
    );

    let sides = home.join("sides");
    std::fs::write(&sides, [6, 0, 0, 0, 7, 0, 0, 0]).unwrap();
    let sides = sides.to_str().unwrap();
    let output = run(
        home,
        &["task", "run", "area", "--input", sides, "--tag", "a b", "--wait"],
    );
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(0), &[42, 0, 0, 0][..])
    );
    let output = run(home, &["task", "run", "area", "--tag", "a b", "--priority", "-3"]);
    let task = String::from_utf8(output.stdout).unwrap();
    assert_eq!(json_of(home, &["task", "show", task.trim()])["priority"], -3);
    let output = run(home, &["task", "result", task.trim(), "--wait", "20"]);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(0), &b"\n"[..]),
        "no sides"
    );
    assert_eq!(
        error_of(home, &["task", "run", "area", "6", "7"]),
        ("invalid_request".into(), 2)
    );
    assert_eq!(error_of(home, &["task", "run", "volume"]), ("not_found".into(), 4));

    // Larger than what a task carries inline.
    let long = home.join("long");
    std::fs::write(&long, vec![0; 200_000]).unwrap();
    register("speak", &[]);
    let words = ["task", "run", "speak", "--input", long.to_str().unwrap(), "--follow"];
    let output = run(home, &words);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "200000 bytes\n");

    register("volume", &[]);
    let output = run(home, &["task", "run", "volume", "--tag", "a b", "--wait=20"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && text.starts_with("error [load_failed]: "),
        "{text}"
    );
    let listed = |words: &[&str]| {
        let listed = json_of(home, &[&["task", "list"], words].concat());
        let names = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed(&["--failed"]), ["volume"]);
    assert_eq!(listed(&["--state", "done"]), ["volume", "speak", "area", "area"]);
    assert_eq!(listed(&["--state", "queued"]), [""; 0]);
    assert_eq!(listed(&["--function", "area", "--endpoint", "local"]), ["area", "area"]);
    assert_eq!(
        error_of(home, &["task", "list", "--function", "length"]),
        ("not_found".into(), 4)
    );
    let counts = json_of(home, &["task", "counts", "--tag", "a b"]);
    assert_eq!((&counts["done"], &counts["failed"]), (&3.into(), &1.into()));
    assert_eq!(json_of(home, &["task", "counts", "--tag", "a"])["done"], 0);
}

#[test]
fn output_of_block_nodes_is_followed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let place = home.join(".local/state/dayfly/endpoints/here");
    std::fs::create_dir_all(place.join("blocks")).unwrap();
    std::fs::write(place.join("endpoint.toml"), "").unwrap();
    let write = |name: &str, text: &str| {
        let path = place.join("blocks").join(name);
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    write("here-1.0.log", "one\ntwo\n");
    write("here-10.0.log", "another's\n");
    let words = ["endpoint", "logs", "here", "--block", "here-1", "-n", "1", "--follow"];
    let mut command = dayfly(home);
    let mut child = command.args(words).stdout(Stdio::piped()).spawn().unwrap();
    let (send, lines) = std::sync::mpsc::channel();
    let printed = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        printed
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| send.send(line))
    });
    let next = || lines.recv_timeout(LIMIT).unwrap();
    assert!(next().ends_with("here-1.0.log <=="));
    assert_eq!(next(), "two");
    write("here-1.0.log", "three\n");
    assert_eq!(next(), "three");
    write("here-1.1.log", "four\n");
    assert!(next().ends_with("here-1.1.log <=="));
    assert_eq!(next(), "four");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(lines);
    let _ = reader.join().unwrap();
}

#[test]
fn unreleased_lease_ends_with_up() {
    let home = tempfile::tempdir().unwrap();
    let mut up = Daemon::up(home.path());
    let before = up.ready["connection"].clone();
    json_of(home.path(), &["lease", "create"]);
    assert_eq!(up.stop(), Some(0));
    let again = Daemon::up(home.path());
    assert_eq!(again.ready["connection"], before);
    assert_eq!(again.ready["node"], up.ready["node"], "a node stays who it is");
    assert_eq!(json_of(home.path(), &["lease", "list"]), Value::Array(vec![]));
}

#[test]
fn port_in_use_is_named() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(home.path(), &["up", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("error [address_in_use]") && text.contains(&address),
        "{text}"
    );
}

#[test]
fn second_daemon_on_state_directory_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let up = Daemon::up(home.path());
    let output = run(home.path(), &["up", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("error [address_in_use]") && text.contains(&up.child.id().to_string()),
        "{text}"
    );
    assert_eq!(
        run(home.path(), &["status"]).status.code(),
        Some(0),
        "the first one goes on"
    );
}

#[test]
fn uncreatable_state_directory_is_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("state");
    assert_eq!(
        error_of(home.path(), &["up", "--state-dir", inside.to_str().unwrap()]),
        ("store_failed".into(), 1)
    );
}

#[test]
fn embedded_manager_ends_with_its_parent() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("embedded");
    // The shell is the parent: it passes the daemon's output on, and sleeps until it is killed.
    let script = r#""$0" up --embedded --json --parent $$ --state-dir "$1" & sleep 1000 <&- >&- 2>&-"#;
    let program = dayfly(home.path());
    let mut parent = Command::new("sh");
    parent
        .args(["-c", script])
        .arg(program.get_program())
        .arg(&state)
        .env("HOME", home.path());
    let mut parent = parent.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let daemon = ready["pid"].as_u64().unwrap() as u32;
    let below = support::below(daemon);
    let sleeper: Vec<u32> = support::below(parent.id())
        .into_iter()
        .filter(|pid| *pid != daemon && !below.contains(pid))
        .collect();
    parent.kill().unwrap();
    parent.wait().unwrap();
    support::eventually("the daemon ended", || !is_alive(daemon));
    support::eventually("what was below it ended", || !below.iter().any(|pid| is_alive(*pid)));
    assert!(!state.exists());
    sleeper.into_iter().filter(|pid| is_alive(*pid)).for_each(support::kill);
}

#[test]
fn printed_output_is_shown_beside_the_result() {
    let home = tempfile::tempdir().unwrap();
    let code = "#include <stdint.h>\n#include <stdio.h>\n
        uint32_t speak(void *in, uint32_t size, void *out) {
            printf(\"%.*s\\n\", (int)size, (char *)in);
            fprintf(stderr, \"beside\");
            return 0;
        }";
    let library = home.path().join("speak.so");
    std::fs::write(&library, support::compile(code)).unwrap();
    let output = run(
        home.path(),
        &["invoke", library.to_str().unwrap(), "speak", "--input", "aloud"],
    );
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("aloud\n"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("beside"));
}

#[test]
fn too_long_socket_path_is_named() {
    let home = tempfile::tempdir().unwrap();
    let deep = home.path().join("x".repeat(110));
    let (code, status) = error_of(home.path(), &["node", "--state-dir", deep.to_str().unwrap()]);
    assert_eq!((code.as_str(), status), ("invalid_request", 2));
}

#[test]
fn only_the_starting_process_counts_as_parent() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(
        error_of(home.path(), &["up", "--embedded", "--parent", "1"]),
        ("invalid_request".into(), 2)
    );
}

#[test]
fn node_needs_its_join_token_once() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let mut manager = Daemon::start(home, &["manager", "--listen", "127.0.0.1:0"]);
    let join = home.join("join.json");
    let join = join.to_str().unwrap();
    json_of(home, &["manager", "join-token", "--output", join]);
    let state_of_node = || json_of(home, &["status"])["nodes"][0]["state"].clone();
    let mut node = Daemon::start(home, &["node", "--join", join]);
    assert_eq!((&node.ready["joined"], state_of_node()), (&true.into(), "up".into()));
    let library = area(home);
    let called = json_of(home, &["invoke", &library, "area", "--input", SIDES]);
    assert_eq!(called["output_hex"], "2a000000");
    assert_eq!(node.stop(), Some(0));
    assert_eq!(state_of_node(), "left");
    let mut again = Daemon::start(home, &["node"]);
    assert_eq!((&again.ready["joined"], state_of_node()), (&true.into(), "up".into()));
    assert_eq!(manager.stop(), Some(0));
    assert_eq!(again.stop(), Some(0));
    let alone = Daemon::start(home, &["node"]);
    assert_eq!(alone.ready["joined"], false, "it runs, and says that nobody answers");
}

#[test]
fn standalone_node_leases_without_manager() {
    let home = tempfile::tempdir().unwrap();
    let mut node = Daemon::start(home.path(), &["node"]);
    assert_eq!(node.ready["manager"], Value::Null);
    let allowance = node.ready["allowance"].as_str().unwrap();
    let client = Client::node(Path::new(allowance)).unwrap();
    let lease = client.lease(dayfly_client::LeaseOptions::native(1)).unwrap();
    assert_eq!(lease.workers(), 1);
    lease.release().unwrap();
    assert_eq!(node.stop(), Some(0));
}
