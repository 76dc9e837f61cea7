//! Renewals that change a lease, and the cores of hot workers that sleep.

mod common;

use std::time::{Duration, Instant};

use common::*;
use dayfly_lease::ledger::Resources;
use dayfly_protocol::api::{Grant, LeaseChange, Mode};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::transport;
use dayfly_protocol::node_api::{End, Request, Response};
use dayfly_protocol::slot::Status;

/// Length of every renewal, in milliseconds.
const RENEWED_MS: u64 = 50_000;

async fn renew(site: &Site, grant: &Grant, change: LeaseChange) -> Result<Grant, Failure> {
    let mut control = site.control(token(grant)).await?;
    let request = Request::Renew {
        duration_ms: RENEWED_MS,
        change,
    };
    match control.ask(request).await? {
        Response::Renewed(grant) => Ok(*grant),
        other => panic!("{other:?}"),
    }
}

fn to_workers(workers: u16) -> LeaseChange {
    LeaseChange {
        workers: Some(workers),
        ..LeaseChange::default()
    }
}

/// Opens a channel to a worker and loads a function.
async fn load(site: &Site, grant: &Grant, worker: u16, symbol: &str) -> (Channel, u16) {
    let hash = site.put_library(grant).await;
    let channel = site.channel(grant, worker).await.unwrap();
    channel.load(hash, symbol).await
}

/// Waits until the second call of a channel runs; the first one loaded its function.
async fn until_running(site: &Site, grant: &Grant, channel: &Channel) {
    let mut control = site.control(token(grant)).await.unwrap();
    let begun = Instant::now();
    let request = Request::ChannelStatus { channel: channel.id };
    loop {
        match control.ask(request.clone()).await.unwrap() {
            Response::ChannelStatus(status) if (status.started, status.finished) == (2, 1) => return,
            Response::ChannelStatus(_) => assert!(begun.elapsed() < LIMIT, "the call does not begin"),
            other => panic!("{other:?}"),
        }
    }
}

async fn echo(channel: Channel, function: u16) -> Channel {
    let (channel, result) = channel.call(function, 0, b"again").await;
    assert_eq!(result.unwrap(), (Status::Ok, b"again".to_vec()));
    channel
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_with_more_workers_starts_them() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let (kept, function) = load(&site, &grant, 0, "echo").await;
    let renewed = renew(&site, &grant, to_workers(3)).await.unwrap();
    assert_eq!((renewed.workers, renewed.numbers.len()), (3, 0));
    assert_eq!(renewed.memory_bytes, 3 * grant.memory_bytes);
    for worker in 1..3 {
        let (channel, function) = load(&site, &renewed, worker, "echo").await;
        echo(channel, function).await;
    }
    echo(kept, function).await;
    let status = site.handle.status();
    assert_eq!((status.leases[0].workers, status.leases[0].pids.len()), (3, 3));
    assert_eq!(status.free.workers, 5_u16.into());
    assert_eq!(
        status.free.memory_bytes,
        status.capacity.memory_bytes - renewed.memory_bytes
    );
    site.handle.shutdown().await;
    assert!(status.leases[0].pids.iter().all(|pid| !is_alive(*pid)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_workers_are_given_back_first() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.workers = 3).await.unwrap();
    let idle = site.channel(&grant, 0).await.unwrap();
    let (mut busy, nap) = load(&site, &grant, 1, "nap").await;
    busy.post(nap, 0, &1_000_u32.to_le_bytes());
    let pids = site.handle.status().leases[0].pids.clone();
    until_running(&site, &grant, &busy).await;
    let renewed = renew(&site, &grant, to_workers(1)).await.unwrap();
    assert_eq!((renewed.workers, &renewed.numbers[..]), (1, &[1][..]));
    until("the ends of the others", || !is_alive(pids[0]) && !is_alive(pids[2])).await;
    assert_eq!(site.fate(&renewed, idle.id).await.end, Some(End::Retired));
    assert_eq!(site.channel(&renewed, 0).await.err().unwrap().code, Code::NotFound);
    let (busy, result) = blocking(move || {
        let result = busy.receive();
        (busy, result)
    })
    .await;
    assert_eq!(result.unwrap().0, Status::Ok);
    until("the return", || site.handle.status().free.workers == 7_u16.into()).await;
    // The numbers are used again, the lowest first.
    let renewed = renew(&site, &renewed, to_workers(2)).await.unwrap();
    assert_eq!((renewed.workers, renewed.numbers.len()), (2, 0));
    let (channel, function) = load(&site, &renewed, 0, "echo").await;
    echo(channel, function).await;
    drop(busy);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_worker_finishes_its_running_call() {
    let site = Site::with(|options| options.grace = LIMIT).await;
    let grant = site.lease(|request| request.workers = 2).await.unwrap();
    let mut channels = Vec::new();
    for worker in 0..2 {
        let (mut channel, nap) = load(&site, &grant, worker, "nap").await;
        channel.post(nap, 0, &1_000_u32.to_le_bytes());
        // It is in the ring of a worker that does not begin it.
        channel.post(nap, 0, &1_u32.to_le_bytes());
        channels.push(channel);
    }
    for channel in &channels {
        until_running(&site, &grant, channel).await;
    }
    let renewed = renew(&site, &grant, to_workers(1)).await.unwrap();
    let retired = 1 - usize::from(renewed.numbers.first().copied().unwrap_or(0));
    let mut channel = channels.remove(retired);
    let id = channel.id;
    let result = blocking(move || channel.receive()).await;
    assert_eq!(result.unwrap().0, Status::Ok, "the call that ran");
    let fate = site.fate(&renewed, id).await;
    assert_eq!(fate.end, Some(End::Retired));
    assert_eq!((fate.started, fate.finished), (2, 2), "loading, and the first call");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_during_the_start_is_followed() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.workers = 3).await.unwrap();
    // Its executor may not even have its assignment.
    let fewer = renew(&site, &grant, to_workers(1)).await.unwrap();
    assert_eq!(fewer.workers, 1);
    let more = renew(&site, &fewer, to_workers(2)).await.unwrap();
    let numbers = match more.numbers.is_empty() {
        true => vec![0, 1],
        // The others may not have returned their numbers.
        false => more.numbers.clone(),
    };
    for worker in numbers {
        let (channel, function) = load(&site, &more, worker, "echo").await;
        echo(channel, function).await;
    }
    until("the return of the others", || {
        site.handle.status().free.workers == 6_u16.into()
    })
    .await;
    assert_eq!(site.handle.status().leases[0].pids.len(), 2);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_dies_while_retiring_is_gone() {
    let site = Site::with(|options| options.grace = LIMIT).await;
    let grant = site.lease(|request| request.workers = 2).await.unwrap();
    let mut channels = Vec::new();
    for worker in 0..2 {
        let (mut channel, nap) = load(&site, &grant, worker, "nap").await;
        channel.post(nap, 0, &60_000_u32.to_le_bytes());
        channels.push(channel);
    }
    for channel in &channels {
        until_running(&site, &grant, channel).await;
    }
    let pids = site.handle.status().leases[0].pids.clone();
    let renewed = renew(&site, &grant, to_workers(1)).await.unwrap();
    let kept = renewed.numbers.first().copied().unwrap_or(0);
    let dying = 1 - usize::from(kept);
    let pid = rustix::process::Pid::from_raw(pids[dying] as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("the return of its place", || {
        site.handle.status().free.workers == 7_u16.into()
    })
    .await;
    assert_eq!(site.handle.status().leases[0].pids, [pids[usize::from(kept)]]);
    // Another worker takes its number.
    let renewed = renew(&site, &renewed, to_workers(2)).await.unwrap();
    let (channel, function) = load(&site, &renewed, dying as u16, "echo").await;
    echo(channel, function).await;
    // The other call would take the node's grace.
    let mut control = site.control(token(&renewed)).await.unwrap();
    assert_eq!(control.ask(Request::Release).await.unwrap(), Response::Done);
    drop(channels);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_growth_takes_all_that_is_free() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let other = site.lease(|request| request.workers = 2).await.unwrap();
    let at_least = |min_workers| LeaseChange {
        min_workers: Some(min_workers),
        ..to_workers(1_024)
    };
    let refused = renew(&site, &grant, at_least(7)).await.unwrap_err();
    assert_eq!(refused.code, Code::TooLarge, "{refused}");
    assert_eq!(renew(&site, &grant, at_least(3)).await.unwrap().workers, 6);
    for malformed in [at_least(0), at_least(1_025)] {
        let refused = renew(&site, &grant, malformed).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{refused}");
    }
    drop(other);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_change_leaves_the_lease_unchanged() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.duration_ms = 1_000_000).await.unwrap();
    let _channel = site.channel(&grant, 0).await.unwrap();
    let other = site.lease(|request| request.workers = 6).await.unwrap();
    let hot = LeaseChange {
        mode: Some(Mode::Hot),
        ..to_workers(2)
    };
    for (change, code) in [
        (to_workers(3), Code::NoCapacity),
        (to_workers(9), Code::TooLarge),
        (hot, Code::TooLarge),
        (to_workers(0), Code::InvalidRequest),
        (
            LeaseChange {
                poll_for_us: Some(10_001),
                ..LeaseChange::default()
            },
            Code::TooLarge,
        ),
    ] {
        let failure = renew(&site, &grant, change).await.unwrap_err();
        assert_eq!(failure.code, code, "{failure}");
    }
    let view = &site.handle.status().leases;
    let view = view.iter().find(|view| view.lease == grant.lease).unwrap();
    assert_eq!((view.workers, view.mode), (1, Mode::Warm));
    assert!(view.remaining_ms > RENEWED_MS, "nor is it renewed");
    let fewer = LeaseChange {
        min_workers: Some(2),
        ..to_workers(9)
    };
    assert_eq!(renew(&site, &grant, fewer).await.unwrap().workers, 2);
    drop(other);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_mode_moves_cores() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.mode = Mode::Hot).await.unwrap();
    let (channel, function) = load(&site, &grant, 0, "echo").await;
    let mode = |mode| LeaseChange {
        mode: Some(mode),
        ..LeaseChange::default()
    };
    let warm = renew(&site, &grant, mode(Mode::Warm)).await.unwrap();
    assert_eq!(warm.mode, Mode::Warm);
    assert_eq!(
        (site.handle.status().free.cores, site.handle.status().free.workers),
        (1, 7_u16.into())
    );
    let channel = echo(channel, function).await;
    let polled = site.usage().polling_us;
    let channel = echo(channel, function).await;
    assert_eq!(site.usage().polling_us, polled, "a warm worker sleeps");
    let hot = renew(&site, &warm, mode(Mode::Auto)).await.unwrap();
    assert_eq!(hot.mode, Mode::Hot);
    assert_eq!(
        (site.handle.status().free.cores, site.handle.status().free.workers),
        (0, 8_u16.into())
    );
    echo(channel, function).await;
    until("polling", || site.usage().polling_us > polled).await;
    site.handle.shutdown().await;
    drop(site.dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_worker_is_billed_from_its_addition() {
    let site = Site::start().await;
    let grant = site.lease(|_| {}).await.unwrap();
    let _channel = site.channel(&grant, 0).await.unwrap();
    until("some time", || site.usage().allocated_us > 400_000).await;
    let since = Instant::now();
    let before = site.usage().allocated_us;
    let renewed = renew(&site, &grant, to_workers(2)).await.unwrap();
    let added = site.usage().allocated_us - before;
    let passed_us = since.elapsed().as_micros() as u64;
    assert!(added <= 2 * passed_us + 4_000, "{added} us in {passed_us} us");
    until("double time", || {
        let added = site.usage().allocated_us - before;
        added as f64 > 1.5 * since.elapsed().as_micros() as f64
    })
    .await;
    renew(&site, &renewed, to_workers(1)).await.unwrap();
    until("the end", || site.handle.status().leases[0].pids.len() == 1).await;
    let (since, before) = (Instant::now(), site.usage().allocated_us);
    until("some more time", || since.elapsed() > Duration::from_millis(200)).await;
    let added = site.usage().allocated_us - before;
    assert!(added <= since.elapsed().as_micros() as u64 + 4_000, "{added} us");
    site.handle.shutdown().await;
}

/// A hot lease whose worker sleeps soon, and a channel on which it has run a call.
async fn sleepy(site: &Site) -> (Grant, Channel, u16) {
    let sleepy = site.lease(|request| {
        request.mode = Mode::Hot;
        request.hot_for_ms = 20;
    });
    let grant = sleepy.await.unwrap();
    let (channel, function) = load(site, &grant, 0, "echo").await;
    let channel = echo(channel, function).await;
    (grant, channel, function)
}

/// The cores that a lease owns now.
fn cores(site: &Site, grant: &Grant) -> usize {
    let status = site.handle.status();
    let view = status.leases.iter().find(|view| view.lease == grant.lease);
    view.unwrap().cores.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeping_hot_worker_lends_its_core() {
    let site = Site::start().await;
    let (grant, channel, function) = sleepy(&site).await;
    until("the loan", || site.handle.status().free.cores == 1).await;
    assert_eq!(cores(&site, &grant), 0);
    // It gets the core again when it is called.
    echo(channel, function).await;
    until("the return", || cores(&site, &grant) == 1).await;
    assert_eq!(site.handle.status().free.cores, 0);
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn woken_worker_shares_cores_until_one_is_free() {
    let site = Site::start().await;
    let (grant, channel, function) = sleepy(&site).await;
    until("the loan", || site.handle.status().free.cores == 1).await;
    let other = site.lease(|request| request.mode = Mode::Hot).await.unwrap();
    assert_eq!((cores(&site, &grant), cores(&site, &other)), (0, 1));
    // Calls run on the shared cores, and the worker does not poll.
    let mut channel = echo(channel, function).await;
    until("the refusal", || site.handle.status().free.cores == 0).await;
    for _ in 0..3 {
        channel = echo(channel, function).await;
    }
    assert_eq!((cores(&site, &grant), cores(&site, &other)), (0, 1));
    let mut control = site.control(token(&other)).await.unwrap();
    assert_eq!(control.ask(Request::Release).await.unwrap(), Response::Done);
    let begun = Instant::now();
    while cores(&site, &grant) == 0 {
        assert!(begun.elapsed() < LIMIT, "no core returned");
        channel = echo(channel, function).await;
    }
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_never_sleeps_keeps_its_core() {
    let site = Site::with(|options| {
        options.resources = Some(Resources {
            cores: vec![0, 1, 2],
            kept_cores: 1,
            memory_bytes: 1 << 30,
            workers: 8,
            gpus: Vec::new(),
        });
    })
    .await;
    let (sleeping, ..) = sleepy(&site).await;
    let awake = site.lease(|request| request.mode = Mode::Hot).await.unwrap();
    until("the loan", || cores(&site, &sleeping) == 0).await;
    assert_eq!((cores(&site, &awake), site.handle.status().free.cores), (1, 1));
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_worker_polls_for_its_time() {
    let site = Site::start().await;
    let grant = site.lease(|request| request.poll_for_us = 10_000).await.unwrap();
    let (channel, function) = load(&site, &grant, 0, "echo").await;
    let channel = echo(channel, function).await;
    until("the polling", || site.usage().polling_us >= 10_000).await;
    let sleeping = LeaseChange {
        poll_for_us: Some(0),
        ..LeaseChange::default()
    };
    let renewed = renew(&site, &grant, sleeping).await.unwrap();
    // The first call may still find it polling.
    let channel = echo(channel, function).await;
    let polled = site.usage().polling_us;
    echo(channel, function).await;
    assert_eq!(site.usage().polling_us, polled);
    let failure = site.lease(|request| request.poll_for_us = 10_001).await.unwrap_err();
    assert_eq!(failure.code, Code::TooLarge);
    assert!(
        site.knock(site.hello(token(&renewed), 7, transport::SHM))
            .await
            .is_err()
    );
    site.handle.shutdown().await;
}
