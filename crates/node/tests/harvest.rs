//! Harvesting on a node: real calls in real control groups. On a machine where none can be made, these tests check that
//! the node says so.

mod common;

use std::time::Duration;

use common::*;
use dayfly_harvest::{Action, Engine, Event, Options as ProfileOptions, Profiles, Rules};
use dayfly_protocol::api::{HarvestMode, Mode};
use dayfly_protocol::slot::Status;
use serde::Deserialize;

async fn watching() -> Option<Site> {
    let site = Site::with(|options| {
        options.harvest = HarvestMode::Watch;
        options.harvest_log_bytes = 1 << 20;
    })
    .await;
    let status = site.handle.status().harvest;
    assert_eq!(status.mode, HarvestMode::Watch);
    match status.why {
        None => Some(site),
        Some(why) => {
            assert!(why.ends_with('.') && why.contains("control groups"), "{why}");
            site.handle.shutdown().await;
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Calls a function that takes milliseconds so many times.
async fn call_for(site: &Site, function: &str, ms: u32, times: usize, mode: Mode) {
    let grant = site.lease(|request| request.mode = mode).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (mut channel, index) = channel.load(hash, function).await;
    for _ in 0..times {
        let (next, result) = channel.call(index, 0, &ms.to_le_bytes()).await;
        assert_eq!(result.unwrap().0, Status::Ok);
        channel = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_calls_are_measured_from_the_second_on() {
    let Some(site) = watching().await else { return };
    call_for(&site, "burn", 150, 5, Mode::Warm).await;
    let status = || site.handle.status().harvest;
    until("the last call is learnt from", || status().samples >= 3).await;
    let status = status();
    assert!((3..=4).contains(&status.samples), "{status:?}");
    assert_eq!(status.functions, 1, "{status:?}");
    // Four calls of 150 ms on one core that is owned, and shared with whatever else this machine does.
    assert!((300..2_000).contains(&status.core_ms.owned), "{status:?}");
    assert!(status.core_ms.used > 100, "{status:?}");
    assert!(status.core_ms.used < status.core_ms.owned * 3 / 2, "{status:?}");
    assert_eq!(status.core_ms.borrowed, 0, "{status:?}");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_long_calls_own_more_than_they_use() {
    let Some(site) = watching().await else { return };
    call_for(&site, "nap", 120, 4, Mode::Warm).await;
    let status = || site.handle.status().harvest;
    until("the last call is learnt from", || status().samples >= 2).await;
    let status = status();
    assert!(status.core_ms.owned > 150, "{status:?}");
    assert!(status.core_ms.used * 5 < status.core_ms.owned, "{status:?}");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_and_hot_calls_are_left_alone() {
    let Some(site) = watching().await else { return };
    call_for(&site, "echo", 0, 200, Mode::Warm).await;
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        call_for(&site, "burn", 60, 4, Mode::Hot).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let status = site.handle.status().harvest;
    assert_eq!(
        (status.samples, status.functions, status.core_ms.owned),
        (0, 0, 0),
        "{status:?}"
    );
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_worker_ends_its_measurement() {
    let Some(site) = watching().await else { return };
    let grant = site.lease(|request| request.mode = Mode::Warm).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    let (channel, nap) = channel.load(hash, "nap").await;
    let (channel, result) = channel.call(nap, 0, &60u32.to_le_bytes()).await;
    assert_eq!(result.unwrap().0, Status::Ok);
    let (channel, spin) = channel.load(hash, "spin").await;
    // Beyond its deadline.
    let (_, result) = channel.call(spin, 500, b"").await;
    assert!(result.is_err(), "{result:?}");
    let status = || site.handle.status().harvest;
    until("no call is measured", || status().calls == 0).await;
    assert_eq!(status().samples, 0, "nothing is learnt from a killed call");
    site.handle.shutdown().await;
}

#[derive(Deserialize)]
struct Header {
    rules: Rules,
}

#[derive(Deserialize)]
struct Line {
    now_us: u64,
    event: Event,
    actions: Vec<Action>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_events_lead_to_the_same_actions() {
    let Some(site) = watching().await else { return };
    call_for(&site, "burn", 50, 6, Mode::Warm).await;
    until("a call is learnt from", || site.handle.status().harvest.samples >= 2).await;
    let path = site.dir.path().join("state/harvest.jsonl");
    let Site { dir: _dir, handle, .. } = site;
    handle.shutdown().await;
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
    let mut engine = Engine::new(header.rules, Box::new(Profiles::new(ProfileOptions::default())));
    let mut begins = 0;
    for line in lines {
        let line: Line = serde_json::from_str(line).unwrap();
        begins += usize::from(matches!(line.event, Event::Begin(_)));
        assert_eq!(engine.handle(line.now_us, &line.event), line.actions);
    }
    assert!(begins >= 2, "{text}");
}
