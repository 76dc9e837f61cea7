//! Fleets: one queue over several nodes that are killed, taken back, full, and idle. Uses real processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dayfly_client::{
    AllowanceOptions, CallId, CallOptions, Client, Code, Fleet, FleetOptions, Form, FunctionId, Input, LeaseOptions,
    Mode, Outcome, OutputBuffer, WorkerIndex,
};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::NodeId;

mod support;

const LIMIT: Duration = Duration::from_secs(20);
const IDEMPOTENT: CallOptions = CallOptions {
    deadline_ms: 0,
    idempotent: true,
    worker: None,
    incarnation: None,
    notify: false,
    room: 0,
};

fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| support::compile(include_str!("support/functions.c")))
}

/// A process that is killed at the end of the test.
struct Daemon {
    child: Child,
    ready: serde_json::Value,
}

impl Daemon {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(support::dayfly());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DAYFLY_")) {
            command.env_remove(name);
        }
        command
            .env("HOME", home)
            .env_remove("XDG_STATE_HOME")
            .args(arguments)
            .arg("--json");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{arguments:?} is not ready: {line}"));
        Self { child, ready }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A manager with nodes of one core each.
struct Cluster {
    client: Client,
    nodes: Vec<Daemon>,
    manager: Daemon,
    home: tempfile::TempDir,
}

impl Cluster {
    /// Starts a node for each number of warm workers.
    fn start(workers: &[u16]) -> Self {
        let home = tempfile::tempdir().unwrap();
        // A node is lost after three missing heartbeats. A busy machine may delay those of a living node by a second.
        let manager = Daemon::start(
            home.path(),
            &["manager", "--listen", "127.0.0.1:0", "--heartbeat", "1s"],
        );
        let connection = home.path().join(".local/state/dayfly");
        let mut cluster = Self {
            client: Client::connect(Some(&connection)).unwrap(),
            nodes: Vec::new(),
            manager,
            home,
        };
        for workers in workers {
            cluster.add_node(*workers);
        }
        cluster
    }

    fn add_node(&mut self, workers: u16) {
        let number = self.nodes.len();
        let path = |name: &str| -> PathBuf { self.home.path().join(format!("{name}-{number}")) };
        let (join, state, workers) = (path("join"), path("node"), workers.to_string());
        let made = Command::new(support::dayfly())
            .env("HOME", self.home.path())
            .env_remove("XDG_STATE_HOME")
            .args(["manager", "join-token", "--output"])
            .arg(&join)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let arguments = [
            "node",
            "--join",
            join.to_str().unwrap(),
            "--state-dir",
            state.to_str().unwrap(),
            "--cores",
            "1",
            "--workers",
            &workers,
        ];
        self.nodes.push(Daemon::start(self.home.path(), &arguments));
    }

    fn node(&self, number: usize) -> NodeId {
        self.nodes[number].ready["node"].as_str().unwrap().parse().unwrap()
    }
}

fn options(min: u32, max: u32) -> FleetOptions {
    let mut options = FleetOptions::native(min, max);
    options.lease = LeaseOptions {
        mode: Mode::Warm,
        hot_for: Some(Duration::ZERO),
        ..LeaseOptions::native(4)
    };
    options
}

fn function(fleet: &Fleet, symbol: &str) -> FunctionId {
    let code = fleet.put_code(library()).unwrap();
    fleet.register(code, Form::Plain { symbol: symbol.into() }).unwrap()
}

/// Submits so many calls of `sleep_ms`.
fn submit(fleet: &Fleet, ms: u32, count: usize, options: CallOptions) -> Vec<CallId> {
    let sleep = function(fleet, "sleep_ms");
    let submit = |_| fleet.pool().submit(sleep, &ms.to_le_bytes()[..], options).unwrap();
    (0..count).map(submit).collect()
}

/// Waits for calls, and checks that each has one outcome.
fn outcomes(fleet: &Fleet, calls: &[CallId]) -> Vec<Outcome> {
    let wait = |call: &CallId| {
        let outcome = fleet.pool().wait(*call, Some(LIMIT));
        let again = fleet.pool().wait(*call, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(
            again.code(),
            Code::NotFound,
            "a second outcome: {outcome:?}, then {again}"
        );
        outcome
    };
    calls.iter().map(wait).collect()
}

fn all_succeed(fleet: &Fleet, calls: &[CallId]) {
    for outcome in outcomes(fleet, calls) {
        outcome.unwrap();
    }
}

#[test]
fn killed_node_under_load_loses_no_call() {
    let mut cluster = Cluster::start(&[2, 2]);
    let fleet = cluster.client.fleet(options(4, 4)).unwrap();
    let safe = submit(&fleet, 5, 200, IDEMPOTENT);
    let other = submit(&fleet, 5, 100, CallOptions::default());
    assert!(fleet.wait_for_workers(4, LIMIT));
    std::thread::sleep(Duration::from_millis(50));
    cluster.nodes[0].kill();
    all_succeed(&fleet, &safe);
    let late = submit(&fleet, 5, 40, CallOptions::default());
    let codes: Vec<_> = outcomes(&fleet, &other)
        .into_iter()
        .filter_map(|outcome| outcome.err().map(|error| error.code()))
        .collect();
    // Only calls that two workers ran at that moment may be lost, and they say so.
    assert!(codes.len() <= 2, "{codes:?}");
    assert!(codes.iter().all(|code| *code == Code::MaybeExecuted), "{codes:?}");
    all_succeed(&fleet, &late);
}

#[test]
fn calls_of_recalled_node_move_within_grace() {
    let cluster = Cluster::start(&[1, 1]);
    let fleet = cluster.client.fleet(options(2, 2)).unwrap();
    assert!(fleet.wait_for_workers(2, LIMIT));
    let long = submit(&fleet, 600, 2, CallOptions::default());
    let queued = submit(&fleet, 1, 20, CallOptions::default());
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let reclaim = scope.spawn(|| cluster.client.reclaim_node(cluster.node(0), LIMIT).unwrap());
        all_succeed(&fleet, &queued);
        all_succeed(&fleet, &long);
        reclaim.join().unwrap();
    });
    assert!(begun.elapsed() < LIMIT / 4, "{:?}", begun.elapsed());
    support::eventually("the lease of the recalled node is given back", || {
        fleet.status().nodes == [cluster.node(1)]
    });
    // The node comes back, and so does its worker.
    cluster.client.resume_node(cluster.node(0)).unwrap();
    assert!(fleet.wait_for_workers(2, LIMIT));
}

#[test]
fn full_cluster_grants_part_and_fleet_grows() {
    let cluster = Cluster::start(&[2, 2]);
    let other = LeaseOptions {
        mode: Mode::Warm,
        node: Some(cluster.node(0)),
        ..LeaseOptions::native(2)
    };
    let lease = cluster.client.lease(other).unwrap();
    let fleet = cluster.client.fleet(options(4, 4)).unwrap();
    assert!(fleet.wait_for_workers(2, LIMIT));
    all_succeed(&fleet, &submit(&fleet, 1, 20, CallOptions::default()));
    support::eventually("a refusal", || fleet.status().refusal.is_some());
    let status = fleet.status();
    assert_eq!(status.refusal.unwrap().code(), Code::NoCapacity);
    assert_eq!((status.workers, &status.nodes), (2, &vec![cluster.node(1)]));
    lease.release().unwrap();
    assert!(fleet.wait_for_workers(4, LIMIT));
    assert!(fleet.status().nodes.contains(&cluster.node(0)));
    fleet.close();
    let live = |lease: &dayfly_client::LeaseStatus| lease.state.is_live();
    assert_eq!(cluster.client.leases().unwrap().into_iter().filter(live).count(), 0);
}

#[test]
fn fleet_survives_nodes_that_come_and_go() {
    let mut cluster = Cluster::start(&[2, 2]);
    let fleet = cluster.client.fleet(options(0, 4)).unwrap();
    let calls = submit(&fleet, 4, 1200, IDEMPOTENT);
    let pause = Duration::from_millis(100);
    for round in 0..12 {
        let node = cluster.node(round % 2);
        cluster.client.reclaim_node(node, Duration::ZERO).unwrap();
        std::thread::sleep(pause);
        cluster.client.resume_node(node).unwrap();
        if round == 6 {
            cluster.add_node(1);
            cluster.nodes[0].kill();
            cluster.nodes.swap_remove(0);
        }
    }
    all_succeed(&fleet, &calls);
}

#[test]
fn idle_fleet_shrinks_and_wakes_again() {
    let cluster = Cluster::start(&[4]);
    let mut wanted = options(0, 4);
    wanted.lease.workers = 1;
    wanted.idle = Duration::from_millis(200);
    let fleet = cluster.client.fleet(wanted).unwrap();
    assert_eq!(fleet.status().workers, 0);
    let calls = submit(&fleet, 100, 40, CallOptions::default());
    assert!(fleet.wait_for_workers(4, LIMIT), "no growth: {:?}", fleet.status());
    all_succeed(&fleet, &calls);
    support::eventually("the fleet is empty", || fleet.status().nodes.is_empty());
    all_succeed(&fleet, &submit(&fleet, 1, 1, CallOptions::default()));
}

#[test]
fn fleet_under_allowance_needs_no_manager() {
    let mut cluster = Cluster::start(&[2, 2]);
    let allowed = cluster.client.allowance(&AllowanceOptions::workers(4)).unwrap();
    let mut wanted = options(0, 4);
    wanted.lease.duration = Duration::from_secs(600);
    let fleet = allowed.fleet(wanted).unwrap();
    cluster.manager.kill();
    let calls = submit(&fleet, 20, 200, CallOptions::default());
    assert!(fleet.wait_for_workers(4, LIMIT), "{:?}", fleet.status());
    all_succeed(&fleet, &calls);
    let used: std::collections::HashSet<_> = fleet.status().nodes.into_iter().collect();
    assert_eq!(used.len(), 2, "{:?}", fleet.status());
}

#[test]
fn large_input_moves_to_another_node() {
    let mut cluster = Cluster::start(&[1, 1]);
    let fleet = cluster.client.fleet(options(2, 2)).unwrap();
    assert!(fleet.wait_for_workers(2, LIMIT));
    let echo = function(&fleet, "echo");
    let input = vec![7; 1 << 20];
    let calls: Vec<_> = (0..60)
        .map(|_| {
            let (mut buffer, _) = fleet.pool().allocate(input.len()).unwrap();
            buffer.as_mut_slice()[..input.len()].copy_from_slice(&input);
            let input = Input::Buffer(buffer, input.len());
            fleet.pool().submit(echo, input, IDEMPOTENT).unwrap()
        })
        .collect();
    cluster.nodes[1].kill();
    for outcome in outcomes(&fleet, &calls) {
        assert_eq!(outcome.unwrap().as_slice(), input);
    }
}

#[test]
fn output_buffers_move_to_another_node() {
    let mut cluster = Cluster::start(&[1, 1]);
    let fleet = cluster.client.fleet(options(2, 2)).unwrap();
    assert!(fleet.wait_for_workers(2, LIMIT));
    let echo = function(&fleet, "echo");
    let input = vec![7; 1 << 20];
    let mut returned = Vec::new();
    let calls: Vec<_> = (0..60)
        .map(|_| {
            let (mut from, _) = fleet.pool().allocate(input.len()).unwrap();
            from.as_mut_slice().copy_from_slice(&input);
            let (into, place) = OutputBuffer::new(fleet.pool().allocate(input.len()).unwrap().0);
            returned.push(place);
            let input = Input::Shared(from.into(), input.len());
            fleet.pool().submit_into(echo, input, into, IDEMPOTENT).unwrap()
        })
        .collect();
    cluster.nodes[1].kill();
    for (outcome, place) in outcomes(&fleet, &calls).into_iter().zip(&returned) {
        assert!(place.take().is_none(), "the outcome has the buffer");
        drop(outcome.unwrap());
        assert_eq!(place.take().unwrap().as_slice(), input);
    }
    let refused = fleet.pool().allocate_for(WorkerIndex(0), 1).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidRequest);
}

#[test]
fn impossible_terms_end_waiting_calls() {
    let cluster = Cluster::start(&[2]);
    let mut wanted = options(0, 2);
    wanted.lease.mode = Mode::Hot;
    wanted.lease.cores_per_worker = MilliCores::new(64_000);
    let fleet = cluster.client.fleet(wanted).unwrap();
    let calls = submit(&fleet, 1, 3, CallOptions::default());
    for outcome in outcomes(&fleet, &calls) {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), Code::TooLarge, "{error}");
    }
    let named = CallOptions {
        worker: Some(WorkerIndex(0)),
        ..CallOptions::default()
    };
    let refused = fleet.pool().submit(function(&fleet, "echo"), &b"x"[..], named);
    assert_eq!(refused.unwrap_err().code(), Code::InvalidRequest);
}

#[test]
fn full_cluster_ends_calls_after_their_wait() {
    let cluster = Cluster::start(&[1]);
    let other = LeaseOptions {
        mode: Mode::Warm,
        ..LeaseOptions::native(1)
    };
    let _lease = cluster.client.lease(other).unwrap();
    let mut wanted = options(0, 2);
    wanted.wait = Duration::from_millis(300);
    let fleet = cluster.client.fleet(wanted).unwrap();
    let begun = Instant::now();
    let [outcome] = &outcomes(&fleet, &submit(&fleet, 1, 1, CallOptions::default()))[..] else {
        panic!("one call has one outcome");
    };
    assert_eq!(outcome.as_ref().unwrap_err().code(), Code::NoCapacity);
    assert!(begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < LIMIT / 2);
}
