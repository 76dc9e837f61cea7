//! The only test in its process, because it counts the process's resources.

mod common;

use std::collections::BTreeSet;

use common::*;
use dayfly_protocol::api::Mode;
use dayfly_protocol::hello::transport;
use rustix::process::{Pid, Signal};

fn descriptors() -> BTreeSet<String> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = open.filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        Some(format!("{} {}", entry.file_name().display(), target.display()))
    });
    // Leave out the descriptor of the listing itself.
    named.filter(|text| !text.contains("/proc/")).collect()
}

fn children() -> Vec<String> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().map(String::from).collect::<Vec<_>>())
        .collect()
}

fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("dayfly-"))
        .filter(|line| line.contains("memfd"))
        .count()
}

async fn a_life() {
    let site = Site::with(|options| options.own_process = true).await;
    let grant = site.lease(|request| request.workers = 2).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let stream = site.stream_channel(&grant, 1, transport::TLS).await.unwrap();
    // A process that leaves its worker's group outlives the worker, but must not outlive the sudden death of its
    // executor.
    let (channel, spawn) = channel.load(hash, "spawn").await;
    let (channel, result) = channel.call(spawn, 0, b"").await;
    let stray = u32::from_le_bytes(result.unwrap().1.try_into().unwrap());
    assert!(is_alive(stray));
    let executor = parent_of(channel.verdict.worker_pid.get());
    rustix::process::kill_process(Pid::from_raw(executor).unwrap(), Signal::KILL).unwrap();
    until("the end of what a worker left behind", || !is_alive(stray)).await;
    drop((channel, stream));
    let _half = connect(&site.socket());
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, spin) = channel.load(hash, "spin").await;
    let mut channel = channel;
    channel.post(spin, 0, b"");
    let other = site.lease(|request| request.mode = Mode::Hot).await.unwrap();
    let _other = site.channel(&other, 0).await.unwrap();
    let socket = site.socket();
    site.handle.shutdown().await;
    assert!(!socket.exists());
}

#[test]
fn shutdown_leaves_nothing_behind() {
    executor();
    library();
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap()
    };
    // The runtime keeps a pair of sockets for signals during the whole process.
    runtime().block_on(async {});
    let before = descriptors();
    runtime().block_on(a_life());
    assert_eq!(children(), Vec::<String>::new());
    assert_eq!(mapped(), 0);
    let left: Vec<_> = descriptors().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:#?}");
}
