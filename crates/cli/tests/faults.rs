//! Every fault gives its caller a clear error, and leaks and loses nothing. Uses real processes.

use dayfly_protocol::api::LeaseState;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dayfly_client::{
    CallOptions, Channel, ChannelOptions, Client, Code, CodeHash, Form, FunctionIndex, Geometry, Lease, LeaseOptions,
    Mode, Pool, PoolOptions, Transport, WorkerIndex,
};

mod support;

const LIMIT: Duration = Duration::from_secs(20);

struct Site {
    client: Client,
    lease: Lease,
    code: CodeHash,
}

fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| support::compile(include_str!("support/functions.c")))
}

fn site(workers: u16, change: impl FnOnce(&mut LeaseOptions)) -> Site {
    let client = Client::embedded(Some(&support::dayfly())).unwrap();
    let mut options = LeaseOptions::native(workers);
    options.mode = Mode::Warm;
    options.hot_for = Some(Duration::ZERO);
    change(&mut options);
    let lease = client.lease(options).unwrap();
    let code = lease.put_code(library()).unwrap();
    Site { client, lease, code }
}

impl Site {
    fn channel(&self, transport: Transport) -> Channel {
        let options = ChannelOptions {
            transport: Some(transport),
            spin: Some(Duration::ZERO),
            ..Default::default()
        };
        self.lease.channel(WorkerIndex(0), &options).unwrap()
    }

    fn plain(&self, channel: &mut Channel, symbol: &str) -> FunctionIndex {
        channel.load(self.code, &Form::Plain { symbol: symbol.into() }).unwrap()
    }

    fn checked(&self, channel: &mut Channel, symbol: &str) -> FunctionIndex {
        channel
            .load(self.code, &Form::Checked { symbol: symbol.into() })
            .unwrap()
    }

    fn pool(&self) -> Pool {
        let channel = ChannelOptions {
            spin: Some(Duration::ZERO),
            ..Default::default()
        };
        self.lease
            .pool(PoolOptions {
                channel,
                ..Default::default()
            })
            .unwrap()
    }
}

fn failing(channel: &mut Channel, function: FunctionIndex, input: &[u8], deadline_ms: u32) -> (Code, String) {
    let error = match channel.call_within(function, input, deadline_ms) {
        Ok(_) => panic!("the call succeeded"),
        Err(error) => error,
    };
    (error.code(), error.failure.message)
}

const TRANSPORTS: [Transport; 3] = [Transport::Shm, Transport::Tcp, Transport::Tls];

#[test]
fn function_returns_over_every_transport() {
    let site = site(1, |_| {});
    for transport in TRANSPORTS {
        let mut channel = site.channel(transport);
        assert_eq!(channel.transport(), transport);
        let echo = site.plain(&mut channel, "echo");
        for size in [0, 1, 48, 64, 1000, 5000, 3 << 20] {
            let input: Vec<u8> = (0..size).map(|i| (i % 253) as u8).collect();
            assert_eq!(&*channel.call(echo, &input).unwrap(), &input[..]);
        }
    }
}

#[test]
fn unknown_symbol_and_index_are_refused() {
    let site = site(1, |_| {});
    let mut channel = site.channel(Transport::Shm);
    let error = channel
        .load(
            site.code,
            &Form::Plain {
                symbol: "nonsense".into(),
            },
        )
        .unwrap_err();
    assert_eq!(error.code(), Code::LoadFailed);
    assert!(error.to_string().contains("`nonsense`"), "{error}");
    let (code, _) = failing(&mut channel, FunctionIndex(999), b"", 0);
    assert_eq!(code, Code::UnknownFunction);
    let error = channel
        .load(CodeHash([9; 32]), &Form::Plain { symbol: "echo".into() })
        .unwrap_err();
    assert_eq!(error.code(), Code::LoadFailed);
    // The worker remains usable.
    let echo = site.plain(&mut channel, "echo");
    assert_eq!(&*channel.call(echo, b"still here").unwrap(), b"still here");
}

#[test]
fn worker_survives_misbehaving_functions() {
    let site = site(1, |_| {});
    for transport in TRANSPORTS {
        let mut channel = site.channel(transport);
        let garbage = site.plain(&mut channel, "garbage_length");
        let (code, text) = failing(&mut channel, garbage, b"", 0);
        assert_eq!(code, Code::OutputOverflow);
        assert!(text.contains("4294967295"), "{text}");
        let fails = site.checked(&mut channel, "fails");
        assert_eq!(
            failing(&mut channel, fails, b"", 0),
            (Code::FunctionError, "the matrix is singular".into())
        );
        let too_long = site.checked(&mut channel, "too_long");
        assert_eq!(failing(&mut channel, too_long, b"", 0).0, Code::OutputOverflow);
        let produce = site.checked(&mut channel, "produce");
        let reply = channel.call(produce, &(9u64 << 20).to_le_bytes()).unwrap();
        assert_eq!(reply.len(), 9 << 20);
        assert!(reply.iter().all(|byte| *byte == b'x'));
    }
}

#[test]
fn oversized_input_is_refused_before_sending() {
    let site = site(1, |_| {});
    for transport in TRANSPORTS {
        let geometry = Geometry {
            bulk_bytes: 1 << 20,
            ..Geometry::DEFAULT
        };
        let options = ChannelOptions {
            transport: Some(transport),
            geometry,
            spin: Some(Duration::ZERO),
        };
        let mut channel = site.lease.channel(WorkerIndex(0), &options).unwrap();
        let echo = site.plain(&mut channel, "echo");
        let (code, text) = failing(&mut channel, echo, &vec![0; 2 << 20], 0);
        assert!(
            matches!(code, Code::PayloadTooLarge | Code::OutOfMemory),
            "{code:?} {text}"
        );
        assert_eq!(&*channel.call(echo, b"fine").unwrap(), b"fine");
    }
}

#[test]
fn crash_exit_and_overrun_end_one_worker() {
    for transport in TRANSPORTS {
        let site = site(1, |_| {});
        let mut incarnation = 0;
        for (symbol, word) in [("crash", "SIGSEGV"), ("leave", "exit status 7"), ("overrun", "SIGSEGV")] {
            let mut channel = site.channel(transport);
            assert!(channel.incarnation().0 > incarnation);
            incarnation = channel.incarnation().0;
            let function = site.plain(&mut channel, symbol);
            let (code, text) = failing(&mut channel, function, b"", 0);
            assert_eq!(code, Code::MaybeExecuted, "{text}");
            assert!(text.contains(word), "{symbol}: {text}");
        }
        let mut channel = site.channel(transport);
        let echo = site.plain(&mut channel, "echo");
        assert_eq!(&*channel.call(echo, b"new").unwrap(), b"new");
    }
}

#[test]
fn endless_loop_ends_at_its_deadline() {
    let site = site(1, |_| {});
    let pool = site.pool();
    let endless = pool.register(site.code, Form::Plain { symbol: "loop".into() }).unwrap();
    let echo = pool.register(site.code, Form::Plain { symbol: "echo".into() }).unwrap();
    pool.call(echo, b"loaded", CallOptions::default()).unwrap();
    let since = Instant::now();
    let stuck = pool
        .submit(
            endless,
            &b""[..],
            CallOptions {
                deadline_ms: 200,
                ..Default::default()
            },
        )
        .unwrap();
    let behind: Vec<_> = (0..5u8)
        .map(|i| pool.submit(echo, vec![i], CallOptions::default()).unwrap())
        .collect();
    let error = pool.wait(stuck, Some(LIMIT)).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert!(since.elapsed() >= Duration::from_millis(200) && since.elapsed() < Duration::from_secs(5));
    for (i, call) in behind.into_iter().enumerate() {
        assert_eq!(pool.wait(call, Some(LIMIT)).unwrap().as_slice(), [i as u8]);
    }
}

#[test]
fn pool_closed_while_reopening_frees_the_worker() {
    let site = site(1, |_| {});
    for _ in 0..40 {
        let pool = site.pool();
        let crash = pool
            .register(site.code, Form::Plain { symbol: "crash".into() })
            .unwrap();
        let error = pool.call(crash, b"", CallOptions::default()).unwrap_err();
        assert_eq!(error.code(), Code::MaybeExecuted, "{error}");
        drop(pool);
        let mut channel = site.lease.channel(WorkerIndex(0), &ChannelOptions::default()).unwrap();
        let echo = site.plain(&mut channel, "echo");
        assert_eq!(&*channel.call(echo, b"mine").unwrap(), b"mine");
    }
}

#[test]
fn only_idempotent_call_is_retried() {
    let site = site(1, |_| {});
    let pool = site.pool();
    let slow = pool
        .register(
            site.code,
            Form::Plain {
                symbol: "announce".into(),
            },
        )
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (idempotent, expected) in [(true, None), (false, Some(Code::MaybeExecuted))] {
        let file = dir.path().join(idempotent.to_string());
        let options = CallOptions {
            idempotent,
            ..Default::default()
        };
        let input = [&300u32.to_le_bytes()[..], file.as_os_str().as_encoded_bytes()].concat();
        let call = pool.submit(slow, input, options).unwrap();
        // Killed from outside, like a kill by the kernel when memory is exhausted.
        let killer = std::thread::spawn(move || support::kill_who_announces(&file));
        let outcome = pool.wait(call, Some(LIMIT));
        killer.join().unwrap();
        match expected {
            None => assert_eq!(outcome.unwrap().as_slice(), 300u32.to_le_bytes()),
            Some(code) => assert_eq!(outcome.unwrap_err().code(), code),
        }
    }
}

#[test]
fn running_and_queued_calls_can_be_cancelled() {
    let site = site(1, |_| {});
    let pool = site.pool();
    let endless = pool.register(site.code, Form::Plain { symbol: "loop".into() }).unwrap();
    let first = pool.submit(endless, &b""[..], CallOptions::default()).unwrap();
    assert_eq!(
        pool.wait(first, Some(Duration::from_millis(200))).unwrap_err().code(),
        Code::TimedOut
    );
    let queued: Vec<_> = (0..100)
        .map(|_| pool.submit(endless, &b""[..], CallOptions::default()).unwrap())
        .collect();
    for call in &queued {
        if pool.cancel(*call) {
            assert_eq!(pool.wait(*call, Some(LIMIT)).unwrap_err().code(), Code::Cancelled);
        }
    }
    pool.kill(first).unwrap();
    assert_eq!(pool.wait(first, Some(LIMIT)).unwrap_err().code(), Code::Cancelled);
}

#[test]
fn lease_expiring_during_call_is_reported() {
    let site = site(1, |options| options.duration = Duration::from_millis(500));
    let mut channel = site.channel(Transport::Shm);
    let endless = site.plain(&mut channel, "loop");
    let (code, text) = failing(&mut channel, endless, b"", 0);
    assert!(
        matches!(code, Code::MaybeExecuted | Code::LeaseExpired),
        "{code:?} {text}"
    );
    assert!(text.contains("expired"), "{text}");
    support::eventually("the lease is over", || {
        site.client
            .leases()
            .unwrap()
            .iter()
            .all(|lease| lease.state == LeaseState::Expired)
    });
}

#[test]
fn renewed_lease_outlives_its_first_term() {
    let site = site(1, |options| options.duration = Duration::from_millis(700));
    let mut channel = site.channel(Transport::Shm);
    let slow = site.plain(&mut channel, "sleep_ms");
    site.lease.renew(Duration::from_secs(600)).unwrap();
    assert_eq!(
        &*channel.call(slow, &1500u32.to_le_bytes()).unwrap(),
        1500u32.to_le_bytes()
    );
}

#[test]
fn last_core_goes_to_one_client() {
    let site = site(1, |_| {});
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let client = site.client.clone();
            std::thread::spawn(move || {
                let mut options = LeaseOptions::native(1);
                options.mode = Mode::Hot;
                client.lease(options)
            })
        })
        .collect();
    let results: Vec<_> = racers.into_iter().map(|racer| racer.join().unwrap()).collect();
    let hot_cores = std::thread::available_parallelism().unwrap().get() - 1;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), hot_cores.min(8));
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert_eq!(error.code(), Code::NoCapacity, "{error}");
    }
    drop(results);
    let mut options = LeaseOptions::native(1);
    options.mode = Mode::Hot;
    site.client.lease(options).expect("the core came back with its lease");
}

#[test]
fn seventy_thousand_calls_get_their_own_results() {
    let site = site(1, |options| options.hot_for = Some(Duration::from_millis(5)));
    let mut channel = site.channel(Transport::Shm);
    let count = site.plain(&mut channel, "count");
    let total = 70_000u32;
    let (mut sent, mut received) = (0, 0);
    while received < total {
        while sent < total && channel.outstanding() < 32 {
            channel.submit(count, b"", 0).unwrap();
            sent += 1;
        }
        channel.wait(LIMIT).unwrap();
        received += 1;
        assert_eq!(channel.output(), received.to_le_bytes());
        channel.done();
    }
}

#[test]
fn dead_embedded_manager_is_an_error() {
    let site = site(1, |_| {});
    let mut channel = site.channel(Transport::Shm);
    let endless = site.plain(&mut channel, "loop");
    let waiting = std::thread::spawn(move || failing(&mut channel, endless, b"", 0));
    support::kill_tree_root_of(&site.client);
    let (code, text) = waiting.join().unwrap();
    assert!(
        matches!(code, Code::MaybeExecuted | Code::Unreachable),
        "{code:?} {text}"
    );
    assert_eq!(
        site.client.lease(LeaseOptions::native(1)).err().unwrap().code(),
        Code::Unreachable
    );
}

#[test]
fn embedded_managers_processes_end_with_its_client() {
    let site = site(2, |_| {});
    let pool = site.pool();
    let echo = pool.register(site.code, Form::Plain { symbol: "echo".into() }).unwrap();
    pool.call(echo, b"x", CallOptions::default()).unwrap();
    let pids: Vec<u32> = support::below(support::embedded_pid(&site.client));
    assert!(pids.len() >= 3, "an executor and two workers: {pids:?}");
    drop(pool);
    drop(site);
    support::eventually("every process has ended", || {
        pids.iter().all(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    });
}
