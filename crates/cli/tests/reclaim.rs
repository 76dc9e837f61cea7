//! An owner can reclaim a node at any time, and tenants lose at most the running calls. Uses real processes.

use dayfly_protocol::api::{LeaseState, NodeState};
use std::time::{Duration, Instant};

use dayfly_client::{
    Channel, ChannelOptions, Client, Code, Form, FunctionIndex, Lease, LeaseOptions, Mode, Sandbox, WorkerIndex,
};
use dayfly_protocol::ids::NodeId;

mod support;

const LONG: Duration = Duration::from_secs(20);

struct Site {
    client: Client,
    node: NodeId,
}

impl Site {
    fn new() -> Self {
        let client = Client::embedded(Some(&support::dayfly())).unwrap();
        let node = client.nodes().unwrap()[0].address.id;
        Self { client, node }
    }

    fn lease(&self, workers: u16, change: impl FnOnce(&mut LeaseOptions)) -> Lease {
        let mut options = LeaseOptions::native(workers);
        options.mode = Mode::Warm;
        options.hot_for = Some(Duration::ZERO);
        change(&mut options);
        self.client.lease(options).unwrap()
    }

    fn state(&self) -> NodeState {
        self.client.nodes().unwrap()[0].state
    }
}

fn open(lease: &Lease, worker: u16, symbol: &str) -> (Channel, FunctionIndex) {
    let code = lease
        .put_code(&support::compile(include_str!("support/functions.c")))
        .unwrap();
    let options = ChannelOptions {
        spin: Some(Duration::ZERO),
        ..Default::default()
    };
    let mut channel = lease.channel(WorkerIndex(worker), &options).unwrap();
    let function = channel.load(code, &Form::Plain { symbol: symbol.into() }).unwrap();
    (channel, function)
}

fn code_of(channel: &mut Channel, function: FunctionIndex, input: &[u8]) -> Result<(), Code> {
    channel.call(function, input).map(drop).map_err(|error| error.code())
}

#[test]
fn reclaim_without_grace_empties_node_at_once() {
    for sandbox in [Sandbox::Process, Sandbox::Isolated] {
        let site = Site::new();
        let lease = site.lease(2, |options| options.sandbox = Some(sandbox));
        let (mut busy, endless) = open(&lease, 0, "loop");
        let (mut idle, echo) = open(&lease, 1, "echo");
        code_of(&mut idle, echo, b"x").unwrap();
        let pids = [busy.worker_pid(), idle.worker_pid()];
        let running = std::thread::spawn(move || code_of(&mut busy, endless, b""));
        std::thread::sleep(Duration::from_millis(50));
        let reclaimed = site.client.reclaim_node(site.node, Duration::ZERO).unwrap();
        assert_eq!((reclaimed.leases, reclaimed.node.leases), (1, 0));
        assert_eq!(reclaimed.node.state, NodeState::Reclaimed);
        assert!(reclaimed.empty_ms < 2000.0, "{}", reclaimed.empty_ms);
        for pid in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
        }
        assert_eq!(running.join().unwrap(), Err(Code::MaybeExecuted));
        assert_eq!(code_of(&mut idle, echo, b"x"), Err(Code::LeaseEnded));
        // The bill is recorded before the response.
        let leases: serde_json::Value = site.client.get("/v1/leases").unwrap();
        let record = &leases[0];
        assert_eq!(
            (&record["state"], &record["usage"]["failures"]),
            (&"revoked".into(), &1.into())
        );
    }
}

#[test]
fn running_calls_end_within_the_grace() {
    let site = Site::new();
    let lease = site.lease(2, |_| {});
    let (mut busy, nap) = open(&lease, 0, "sleep_ms");
    let (mut idle, echo) = open(&lease, 1, "echo");
    let running = std::thread::spawn(move || {
        let first = code_of(&mut busy, nap, &300u32.to_le_bytes());
        (first, code_of(&mut busy, nap, &300u32.to_le_bytes()))
    });
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let taken = std::thread::scope(|scope| {
        let reclaim = scope.spawn(|| site.client.reclaim_node(site.node, LONG).unwrap());
        // A client without a running call is notified long before the grace period ends.
        while code_of(&mut idle, echo, b"x") != Err(Code::LeaseEnded) {
            assert!(begun.elapsed() < LONG);
        }
        assert!(begun.elapsed() < Duration::from_millis(190), "{:?}", begun.elapsed());
        reclaim.join().unwrap()
    });
    assert_eq!(taken.leases, 1);
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    let (first, second) = running.join().unwrap();
    assert_eq!(first, Ok(()));
    // The call was late: it may have begun and been stopped, which its caller cannot determine.
    assert!(
        matches!(second, Err(Code::LeaseEnded | Code::MaybeExecuted)),
        "{second:?}"
    );
}

#[test]
fn revoked_lease_ends_alone() {
    let site = Site::new();
    let (lease, other) = (site.lease(2, |_| {}), site.lease(1, |_| {}));
    let (mut busy, nap) = open(&lease, 0, "sleep_ms");
    let (mut idle, echo) = open(&lease, 1, "echo");
    let (mut others, others_echo) = open(&other, 0, "echo");
    let running = std::thread::spawn(move || code_of(&mut busy, nap, &300u32.to_le_bytes()));
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    let revoked = std::thread::scope(|scope| {
        let revoke = scope.spawn(|| site.client.revoke(lease.grant().lease, LONG).unwrap());
        while code_of(&mut idle, echo, b"x") != Err(Code::LeaseEnded) {
            assert!(begun.elapsed() < Duration::from_millis(190), "{:?}", begun.elapsed());
        }
        revoke.join().unwrap()
    });
    assert_eq!(running.join().unwrap(), Ok(()));
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert_eq!(revoked.state, LeaseState::Revoked);
    // Two functions were loaded and called, so the bill is complete.
    assert!(
        revoked.usage.calls >= 4 && revoked.usage.computing_us > 250_000,
        "{:?}",
        revoked.usage
    );
    assert_eq!(code_of(&mut others, others_echo, b"x"), Ok(()));
    let again = site.lease(2, |_| {});
    let (mut busy, endless) = open(&again, 0, "loop");
    let running = std::thread::spawn(move || code_of(&mut busy, endless, b""));
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    site.client
        .revoke(again.grant().lease, Duration::from_millis(200))
        .unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    assert_eq!(running.join().unwrap(), Err(Code::MaybeExecuted));
}

#[test]
fn call_outliving_the_grace_is_ended() {
    let site = Site::new();
    let lease = site.lease(1, |_| {});
    let (mut busy, endless) = open(&lease, 0, "loop");
    let running = std::thread::spawn(move || code_of(&mut busy, endless, b""));
    std::thread::sleep(Duration::from_millis(50));
    let reclaimed = site.client.reclaim_node(site.node, Duration::from_millis(200)).unwrap();
    assert!((200.0..3000.0).contains(&reclaimed.empty_ms), "{}", reclaimed.empty_ms);
    assert_eq!(running.join().unwrap(), Err(Code::MaybeExecuted));
}

#[test]
fn reclaimed_node_grants_no_lease_until_returned() {
    let site = Site::new();
    site.client.reclaim_node(site.node, Duration::ZERO).unwrap();
    let refused = site.client.lease(LeaseOptions::native(1)).err().unwrap();
    assert_eq!(refused.code(), Code::NoCapacity);
    assert!(refused.to_string().contains("reclaimed by its owner"), "{refused}");
    assert_eq!(site.client.resume_node(site.node).unwrap().state, NodeState::Up);
    let lease = site.lease(1, |_| {});
    let (mut channel, echo) = open(&lease, 0, "echo");
    assert_eq!(code_of(&mut channel, echo, b"x"), Ok(()));
    assert_eq!(site.state(), NodeState::Up);
}

#[test]
fn waiting_request_is_granted_when_node_returns() {
    let site = Site::new();
    site.client.reclaim_node(site.node, Duration::ZERO).unwrap();
    let client = site.client.clone();
    let waiting = std::thread::spawn(move || {
        let mut options = LeaseOptions::native(1);
        options.wait = LONG;
        client.lease(options).map(|lease| lease.grant().lease)
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished());
    site.client.resume_node(site.node).unwrap();
    assert!(waiting.join().unwrap().is_ok());
}

#[test]
fn waiting_request_fails_at_its_limit() {
    let site = Site::new();
    site.client.reclaim_node(site.node, Duration::ZERO).unwrap();
    let begun = Instant::now();
    let mut options = LeaseOptions::native(1);
    options.wait = Duration::from_millis(300);
    assert_eq!(site.client.lease(options).err().unwrap().code(), Code::NoCapacity);
    assert!(begun.elapsed() >= Duration::from_millis(290));
}

#[test]
fn unknown_node_is_named() {
    let site = Site::new();
    let error = site.client.reclaim_node(NodeId([9; 16]), Duration::ZERO).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.to_string().contains(&NodeId([9; 16]).to_string()), "{error}");
}
