//! Calls over libfabric from client to worker, and refused clients. Uses real processes and libfabric's software
//! providers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dayfly_client::{
    CallOptions, Channel, ChannelOptions, Client, Code, CodeHash, Error, Form, FunctionIndex, Lease, LeaseOptions,
    Mode, PoolOptions, Sandbox, Transport, WorkerIndex,
};
use dayfly_fabric::libfabric::ffi::Library;

mod support;

const LIMIT: Duration = Duration::from_secs(20);
const PROVIDERS: [&str; 2] = ["libfabric:tcp", "libfabric:shm"];

/// `dayfly up` with a separate state directory.
struct Site {
    process: Child,
    client: Client,
    _home: tempfile::TempDir,
}

impl Site {
    /// Starts `dayfly up` with these additional options. Returns `None` without libfabric.
    fn up(options: &[&str]) -> Option<Self> {
        if let Err(error) = Library::get() {
            eprintln!("left out: {error}");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let mut process = Command::new(support::dayfly())
            .args(["up", "--listen", "127.0.0.1:0", "--json", "--state-dir"])
            .arg(home.path().join("state"))
            .args(options)
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.as_mut().unwrap())
            .read_line(&mut ready)
            .unwrap();
        let client = Client::connect(Some(&home.path().join("state/connection.json"))).unwrap();
        Some(Self {
            process,
            client,
            _home: home,
        })
    }

    fn lease(&self, workers: u16, change: impl FnOnce(&mut LeaseOptions)) -> (Lease, CodeHash) {
        static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| support::compile(include_str!("support/functions.c")));
        let mut options = LeaseOptions::native(workers);
        options.mode = Mode::Warm;
        change(&mut options);
        let lease = self.client.lease(options).unwrap();
        let code = lease.put_code(library).unwrap();
        (lease, code)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let until = Instant::now() + LIMIT;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn open(lease: &Lease, transport: &str) -> Result<Channel, Error> {
    let options = ChannelOptions {
        transport: Some(transport.parse().unwrap()),
        ..Default::default()
    };
    lease.channel(WorkerIndex(0), &options)
}

fn plain(channel: &mut Channel, code: CodeHash, symbol: &str) -> FunctionIndex {
    channel.load(code, &Form::Plain { symbol: symbol.into() }).unwrap()
}

fn refusal(lease: &Lease, transport: &str) -> String {
    let error = open(lease, transport).err().expect("a refusal");
    assert_eq!(error.code(), Code::TransportRefused, "{error}");
    error.to_string()
}

#[test]
fn function_returns_over_each_fabric_provider() {
    let Some(site) = Site::up(&["--fabric", "tcp,shm"]) else {
        return;
    };
    let (lease, code) = site.lease(1, |_| {});
    for transport in PROVIDERS {
        let mut channel = open(&lease, transport).unwrap();
        let Transport::Libfabric(choice) = channel.transport() else {
            panic!("{}", channel.transport())
        };
        assert!(choice.domain().is_some(), "{choice}");
        let echo = plain(&mut channel, code, "echo");
        for size in [0, 1, 48, 64, 1000, 5000, 3 << 20] {
            let input: Vec<u8> = (0..size).map(|i| (i % 253) as u8).collect();
            assert_eq!(&*channel.call(echo, &input).unwrap(), &input[..]);
        }
        let mut input = channel.allocate(1 << 20).unwrap();
        input.as_mut_slice().fill(9);
        let mut output = channel.allocate(1 << 20).unwrap();
        for _ in 0..3 {
            output.as_mut_slice().fill(1);
            let length = channel.call_into(echo, &input, 1 << 20, &mut output, 0).unwrap();
            assert!(length == 1 << 20 && output.as_slice() == input.as_slice());
        }
    }
}

#[test]
fn channel_recovers_after_crash_and_deadline() {
    let Some(site) = Site::up(&["--fabric", "tcp,shm"]) else {
        return;
    };
    let (lease, code) = site.lease(1, |_| {});
    for transport in PROVIDERS {
        for (symbol, limit_ms, expected) in [("crash", 0, Code::MaybeExecuted), ("loop", 100, Code::DeadlineExceeded)] {
            let mut channel = open(&lease, transport).unwrap();
            let function = plain(&mut channel, code, symbol);
            let since = Instant::now();
            let error = channel.call_within(function, b"", limit_ms).err().expect("an error");
            assert_eq!(error.code(), expected, "{symbol} over {transport}: {error}");
            assert!(symbol != "crash" || error.to_string().contains("SIGSEGV"), "{error}");
            assert!(since.elapsed() < LIMIT / 2);
        }
        let mut channel = open(&lease, transport).unwrap();
        let echo = plain(&mut channel, code, "echo");
        assert_eq!(&*channel.call(echo, b"new").unwrap(), b"new");
    }
}

#[test]
fn pool_over_libfabric_retries_dead_workers_calls() {
    let Some(site) = Site::up(&["--fabric", "tcp"]) else {
        return;
    };
    let (lease, code) = site.lease(2, |_| {});
    let mut options = PoolOptions::default();
    options.channel.transport = Some("libfabric".parse().unwrap());
    let pool = lease.pool(options).unwrap();
    assert!(matches!(pool.transport(), Transport::Libfabric(_)));
    let form = |symbol: &str| Form::Plain { symbol: symbol.into() };
    let (echo, crash) = (
        pool.register(code, form("echo")).unwrap(),
        pool.register(code, form("crash")).unwrap(),
    );
    for round in 0..3u8 {
        let calls: Vec<_> = (0..100u8)
            .map(|i| pool.submit(echo, vec![i, round], CallOptions::default()).unwrap())
            .collect();
        for (i, call) in calls.into_iter().enumerate() {
            assert_eq!(pool.wait(call, Some(LIMIT)).unwrap().as_slice(), [i as u8, round]);
        }
        let error = pool.call(crash, b"", CallOptions::default()).unwrap_err();
        assert_eq!(error.code(), Code::MaybeExecuted, "{error}");
    }
    let large = vec![7; 2 << 20];
    assert_eq!(
        pool.call(echo, &large, CallOptions::default()).unwrap().as_slice(),
        &large[..]
    );
}

#[test]
fn node_offers_only_named_fabrics() {
    let Some(site) = Site::up(&[]) else { return };
    let (lease, _) = site.lease(1, |_| {});
    let text = refusal(&lease, "libfabric:tcp");
    assert!(text.contains("--fabric"), "{text}");
    drop(site);
    let Some(site) = Site::up(&["--fabric", "shm"]) else {
        return;
    };
    let (lease, code) = site.lease(1, |_| {});
    let text = refusal(&lease, "libfabric:tcp");
    assert!(text.contains("`tcp`") && text.contains("shm"), "{text}");
    let text = refusal(&lease, "libfabric:telegraph");
    assert!(text.contains("`telegraph`"), "{text}");
    // Refused clients do not keep the worker occupied.
    let mut channel = open(&lease, "libfabric").unwrap();
    let echo = plain(&mut channel, code, "echo");
    assert_eq!(&*channel.call(echo, b"fine").unwrap(), b"fine");
}

#[test]
fn isolated_workers_need_host_network_for_fabric() {
    let Some(site) = Site::up(&["--fabric", "tcp,shm", "--share-network"]) else {
        return;
    };
    let (lease, _) = site.lease(1, |options| options.sandbox = Some(Sandbox::Isolated));
    let text = refusal(&lease, "libfabric:tcp");
    assert!(text.contains("no network"), "{text}");
    let (lease, code) = site.lease(1, |options| {
        options.sandbox = Some(Sandbox::Isolated);
        options.network = true;
    });
    let mut channel = open(&lease, "libfabric:tcp").unwrap();
    let echo = plain(&mut channel, code, "echo");
    for size in [10, 100_000, 3 << 20] {
        let input = vec![3; size];
        assert_eq!(&*channel.call(echo, &input).unwrap(), &input[..]);
    }
    drop(channel);
    // Its memory is not the host's, so shared memory cannot work. The client gets an error within the limit for
    // opening.
    let since = Instant::now();
    let text = refusal(&lease, "libfabric:shm");
    assert!(text.contains("libfabric"), "{text}");
    assert!(since.elapsed() < LIMIT, "{:?}", since.elapsed());
    let mut channel = open(&lease, "libfabric:tcp").unwrap();
    let echo = plain(&mut channel, code, "echo");
    assert_eq!(&*channel.call(echo, b"again").unwrap(), b"again");
}

#[test]
fn idle_warm_worker_sleeps_until_a_call() {
    let Some(site) = Site::up(&["--fabric", "tcp"]) else {
        return;
    };
    let (lease, code) = site.lease(1, |options| options.hot_for = Some(Duration::ZERO));
    let mut channel = open(&lease, "libfabric:tcp").unwrap();
    let echo = plain(&mut channel, code, "echo");
    for _ in 0..3 {
        assert_eq!(&*channel.call(echo, b"hello").unwrap(), b"hello");
        let ticks = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        let before = ticks(channel.worker_pid());
        std::thread::sleep(Duration::from_millis(500));
        let spent = ticks(channel.worker_pid()) - before;
        assert!(spent <= 1, "{spent} ticks of the kernel's clock in half a second");
    }
}
