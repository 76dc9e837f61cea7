//! Calls over every transport, and their fates when something dies.

mod common;

use std::time::{Duration, Instant};

use common::*;
use dayfly_fabric::{Link, LinkError};
use dayfly_protocol::api::Mode;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::{options, transport};
use dayfly_protocol::node_api::{End, Request, Response};
use dayfly_protocol::slot::Status;

fn ended(result: Result<(Status, Vec<u8>), LinkError>) -> End {
    match result {
        Err(LinkError::Ended(end)) => end,
        other => panic!("the channel should have ended, but: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn library_function_is_called_over_shared_memory() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 1);
    assert_eq!(channel.verdict.options.get(), 0);
    let (mut channel, echo) = channel.load(hash, "echo").await;
    for round in 0..100u8 {
        let (next, result) = channel.call(echo, 0, &[round; 40]).await;
        assert_eq!(result.unwrap(), (Status::Ok, vec![round; 40]));
        channel = next;
    }
    // A response is sent before its call is metered.
    until("the meter of the last call", || site.usage().calls == 101).await;
    let usage = site.usage();
    assert_eq!(usage.failures, 0);
    assert!(usage.computing_us <= usage.allocated_us);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_worker_is_pinned_and_never_sleeps() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.mode = Mode::Auto).await.unwrap();
    assert_eq!(grant.mode, Mode::Hot);
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(u32::from(channel.verdict.options.get()), options::WORKER_NEVER_SLEEPS);
    let worker = channel.verdict.worker_pid.get();
    let only_core = || {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let allowed = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"))
            .unwrap();
        allowed.split_whitespace().last() == Some("1")
    };
    // It pins itself as soon as it runs.
    until("the pinning", only_core).await;
    let hash = site.put_library(&grant).await;
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"hot").await;
    assert_eq!(result.unwrap().1, b"hot");
    site.handle.shutdown().await;
}

async fn calls_over_a_stream(transport: u8) {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.stream_channel(&grant, 0, transport).await.unwrap();
    let (channel, echo) = channel.load(hash, "echo").await;
    let (channel, result) = channel.call(echo, 0, &[7; 500]).await;
    assert_eq!(result.unwrap(), (Status::Ok, vec![7; 500]));
    // The control connection reports a crash; the stream only ends.
    let (channel, crash) = channel.load(hash, "crash").await;
    let id = channel.id;
    let (_, result) = channel.call(crash, 0, b"").await;
    assert!(matches!(result, Err(LinkError::PeerGone)), "{result:?}");
    let fate = site.fate(&grant, id).await;
    assert_eq!((fate.started, fate.finished), (4, 3));
    assert_eq!(fate.end, Some(End::Signalled { signal: 11 }));
    // The client's disconnection frees the worker.
    let channel = site.stream_channel(&grant, 0, transport).await.unwrap();
    let id = channel.id;
    drop(channel);
    assert_eq!(site.fate(&grant, id).await.end, Some(End::ClientGone));
    let channel = site.stream_channel(&grant, 0, transport).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 2);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn function_is_called_over_tcp() {
    calls_over_a_stream(transport::TCP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn function_is_called_over_tls() {
    calls_over_a_stream(transport::TLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_leaves_later_calls_not_executed() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, echo) = channel.load(hash, "echo").await;
    let (mut channel, crash) = channel.load(hash, "crash").await;
    channel.post(echo, 0, b"before");
    let running = channel.post(crash, 0, b"");
    channel.post(echo, 0, b"behind");
    let id = channel.id;
    let (before, end) = blocking(move || (channel.receive().unwrap().1, ended(channel.receive()))).await;
    assert_eq!((&before[..], end), (&b"before"[..], End::Signalled { signal: 11 }));
    let fate = site.fate(&grant, id).await;
    assert_eq!((fate.started, fate.finished), (running, running - 1));
    assert_eq!(fate.end, Some(End::Signalled { signal: 11 }));
    // The worker was replaced, and its incarnation shows it.
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 2);
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"again").await;
    assert_eq!(result.unwrap().1, b"again");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exiting_function_reports_its_exit_status() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, leave) = channel.load(hash, "leave").await;
    let (_, result) = channel.call(leave, 0, b"").await;
    assert_eq!(ended(result), End::Exited { status: 7 });
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_past_deadline_is_ended_and_billed() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, spin) = channel.load(hash, "spin").await;
    let begun = Instant::now();
    let (_, result) = channel.call(spin, 50, b"").await;
    assert_eq!(ended(result), End::Deadline);
    assert!(begun.elapsed() >= Duration::from_millis(50));
    let usage = site.usage();
    assert!(usage.computing_us >= 50_000, "{usage:?}");
    assert_eq!((usage.calls, usage.failures), (2, 1));
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_a_running_call_affects_no_other() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (mut channel, spin) = channel.load(hash, "spin").await;
    let sequence = channel.post(spin, 0, b"");
    let id = channel.id;
    let mut control = site.control(token(&grant)).await.unwrap();
    // Not the running one.
    let other = Request::Cancel {
        channel: id,
        sequence: sequence + 1,
    };
    assert_eq!(control.ask(other).await.unwrap(), Response::Done);
    loop {
        let Response::ChannelStatus(fate) = control.ask(Request::ChannelStatus { channel: id }).await.unwrap() else {
            panic!("a fate was due");
        };
        assert_eq!(fate.end, None);
        if fate.started == sequence {
            break;
        }
    }
    let this = Request::Cancel { channel: id, sequence };
    assert_eq!(control.ask(this).await.unwrap(), Response::Done);
    assert_eq!(blocking(move || ended(channel.receive())).await, End::Cancelled);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_executor_is_replaced_and_its_processes_end() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.workers = 2).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let other = site.channel(&grant, 1).await.unwrap();
    let worker = channel.verdict.worker_pid.get();
    let (channel, spin) = channel.load(hash, "spin").await;
    let executor = parent_of(worker);
    let mut channel = channel;
    let running = channel.post(spin, 0, b"");
    let id = channel.id;
    until("the call's start", || site.usage().computing_us > 10_000).await;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(executor).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let mut both = other;
    let ends = blocking(move || (ended(channel.receive()), ended(both.receive()))).await;
    assert_eq!(ends, (End::ExecutorDied, End::ExecutorDied));
    let fate = site.fate(&grant, id).await;
    assert_eq!((fate.started, fate.finished), (running, running - 1));
    until("the end of the worker", || !is_alive(worker)).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 2);
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"alive").await;
    assert_eq!(result.unwrap().1, b"alive");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_serves_next_client_after_client_is_killed() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let busy = site.channel(&grant, 0).await.err().unwrap();
    assert_eq!(busy.code, Code::WorkerBusy);
    let (mut channel, nap) = channel.load(hash, "nap").await;
    channel.post(nap, 0, &200u32.to_le_bytes());
    drop(channel);
    let channel = site.channel(&grant, 0).await.unwrap();
    assert_eq!(channel.verdict.incarnation.get(), 1);
    let (channel, echo) = channel.load(hash, "echo").await;
    let (_channel, result) = channel.call(echo, 0, b"next").await;
    assert_eq!(result.unwrap().1, b"next");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_running_at_expiry_ends_after_grace() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.duration_ms = 500).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let opened = Instant::now();
    let (mut channel, spin) = channel.load(hash, "spin").await;
    let running = channel.post(spin, 0, b"");
    let id = channel.id;
    assert_eq!(blocking(move || ended(channel.receive())).await, End::Expired);
    assert!(opened.elapsed() >= Duration::from_millis(690), "{:?}", opened.elapsed());
    let fate = site.fate(&grant, id).await;
    assert_eq!((fate.started, fate.finished), (running, running - 1));
    until("the capacity's return", || site.handle.status().leases.is_empty()).await;
    assert_eq!(site.channel(&grant, 0).await.err().unwrap().code, Code::LeaseExpired);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_carries_seventy_thousand_calls() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (mut channel, echo) = channel.load(hash, "echo").await;
    let slots = u32::from(GEOMETRY.slots);
    blocking(move || {
        for round in 0..70_000 / slots {
            for n in 0..slots {
                channel.post(echo, 0, &(round * slots + n).to_le_bytes());
            }
            for n in 0..slots {
                let expected = (round * slots + n).to_le_bytes().to_vec();
                assert_eq!(channel.receive().unwrap(), (Status::Ok, expected));
            }
        }
    })
    .await;
    until("the meter of the last call", || site.usage().calls == 70_001).await;
    site.handle.shutdown().await;
}

/// Duration and number of the calls. One that begins before the other worker has left the core shares it.
const NAP_MS: u32 = 200;
const NAPS: u32 = 5;

/// A site whose warm workers share one core, and two channels to workers of one lease, with long calls running on the
/// first.
async fn one_core_that_is_taken(site: &Site) -> (Channel, Channel, u16) {
    let grant = site.lease(|request| request.workers = 2).await.unwrap();
    let hash = site.put_library(&grant).await;
    let (mut first, nap) = site.channel(&grant, 0).await.unwrap().load(hash, "nap").await;
    let (second, echo) = site.channel(&grant, 1).await.unwrap().load(hash, "echo").await;
    for _ in 0..NAPS {
        first.post(nap, 0, &NAP_MS.to_ne_bytes());
    }
    (first, second, echo)
}

fn one_core(options: &mut dayfly_node::Options) {
    options.resources.as_mut().unwrap().cores = vec![0];
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_call_without_free_core_is_rejected() {
    let site = Site::with(one_core).await;
    let (first, mut second, echo) = one_core_that_is_taken(&site).await;
    second.link.set_rejectable(true);
    let begun = Instant::now();
    loop {
        // The first call may not have woken its worker yet.
        let (next, result) = second.call(echo, 0, b"x").await;
        second = next;
        match result.unwrap() {
            (Status::Rejected, text) => {
                assert!(String::from_utf8_lossy(&text).contains("every core"));
                break;
            }
            (status, _) => assert_eq!(status, Status::Ok),
        }
        assert!(begun.elapsed() < LIMIT, "nothing was rejected");
    }
    second.link.set_rejectable(false);
    let (mut second, result) = second.call(echo, 0, b"x").await;
    assert_eq!(result.unwrap(), (Status::Ok, b"x".to_vec()), "it shares the core");
    // Rejected calls do not count, and are free.
    let results = blocking({
        let mut first = first;
        move || (0..NAPS).map(|_| first.receive().unwrap().0).collect::<Vec<_>>()
    });
    assert!(results.await.iter().all(|status| *status == Status::Ok));
    second.link.set_rejectable(true);
    let begun = Instant::now();
    loop {
        let (next, result) = second.call(echo, 0, b"y").await;
        second = next;
        if result.unwrap().0 == Status::Ok {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "the core did not become free");
    }
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlimited_site_rejects_no_warm_call() {
    let site = Site::with(|options| {
        one_core(options);
        options.calls_per_core = 0;
    })
    .await;
    let (_first, mut second, echo) = one_core_that_is_taken(&site).await;
    second.link.set_rejectable(true);
    for _ in 0..20 {
        let (next, result) = second.call(echo, 0, b"x").await;
        second = next;
        assert_eq!(result.unwrap().0, Status::Ok);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    site.handle.shutdown().await;
}
