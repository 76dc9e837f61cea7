//! Loans of memory: real calls in real control groups. On a machine where none can be made, these tests are skipped.

mod common;

use std::time::Duration;

use common::*;
use dayfly_harvest::Event;
use dayfly_harvest::record::Entry;
use dayfly_protocol::api::{Borrow, Grant, HarvestMode, LoanTerms};
use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Status;

const MIB: u64 = 1 << 20;
/// A call that takes little.
const SHORT: [u32; 3] = [30, 1, 0];
/// Calls after which a worker has a group, and its next call is measured: one that is not noticed, one before the worker
/// has a group, and one that runs as configured.
const PREPARED: usize = 3;
/// What a lease of these tests owns unless it says otherwise.
const OWNED: u64 = 64 * MIB;

async fn harvesting(mode: HarvestMode) -> Option<Site> {
    let site = Site::with(|options| {
        options.harvest = mode;
        options.harvest_log_bytes = 4 << 20;
    })
    .await;
    match site.handle.status().harvest.why {
        None => Some(site),
        Some(why) => {
            site.handle.shutdown().await;
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// A lease with a channel to its worker, the index of a function, and the worker's process.
struct Leased {
    grant: Grant,
    channel: Channel,
    index: u16,
    pid: u32,
}

impl Leased {
    async fn of(site: &Site, function: &str, memory_bytes: u64, borrow: Borrow) -> Self {
        let loans = LoanTerms { lend: true, borrow };
        let change = |request: &mut dayfly_protocol::api::LeaseRequest| {
            (request.memory_bytes, request.loans) = (memory_bytes, loans);
        };
        let grant = site.lease(change).await.unwrap();
        let hash = site.put_library(&grant).await;
        let (channel, index) = site.channel(&grant, 0).await.unwrap().load(hash, function).await;
        let pid = channel.verdict.worker_pid.get();
        Self {
            grant,
            channel,
            index,
            pid,
        }
    }

    /// Calls the function so many times. Each call ends well.
    async fn call(mut self, steps: [u32; 3], times: usize) -> Self {
        for _ in 0..times {
            let (channel, result) = self.channel.call(self.index, 0, &input(steps)).await;
            assert_eq!(result.unwrap().0, Status::Ok);
            self.channel = channel;
        }
        self
    }

    /// Begins a call. Returns whether it ended well.
    fn begin(self, steps: [u32; 3]) -> (ChannelOf, tokio::task::JoinHandle<bool>) {
        let of = ChannelOf {
            grant: self.grant,
            channel: self.channel.id,
            pid: self.pid,
        };
        let call = tokio::spawn(async move {
            let (_channel, result) = self.channel.call(self.index, 0, &input(steps)).await;
            result.is_ok_and(|(status, _)| status == Status::Ok)
        });
        (of, call)
    }
}

/// What remains of a lease whose channel is in a call.
struct ChannelOf {
    grant: Grant,
    channel: dayfly_protocol::ids::ChannelId,
    pid: u32,
}

/// Milliseconds, MiB that are then taken, and milliseconds for which they are held.
fn input(steps: [u32; 3]) -> Vec<u8> {
    steps.iter().flat_map(|step| step.to_le_bytes()).collect()
}

/// The limit of memory of a process's control group in bytes, if that is the group of one worker.
fn memory_limit(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        (controllers.split(',').any(|one| one == "memory") || controllers.is_empty()).then_some(path)
    })?;
    if !own.contains("worker-") {
        return None;
    }
    let files = [
        format!("/sys/fs/cgroup/memory{own}/memory.limit_in_bytes"),
        format!("/sys/fs/cgroup{own}/memory.max"),
    ];
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    Some(text.trim().parse().unwrap_or(u64::MAX))
}

/// The recorded events.
fn recorded(record: &std::path::Path) -> Vec<Event> {
    let text = std::fs::read_to_string(record).unwrap();
    let entries = text.lines().skip(1);
    entries
        .map(|line| serde_json::from_str::<Entry>(line).unwrap().event)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrower_holds_more_memory_than_it_owns() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let borrower = Leased::of(&site, "hold", OWNED, Borrow::CpuAndMemory).await;
    let borrower = borrower.call(SHORT, PREPARED).await;
    let pid = borrower.pid;
    until("it has what it owns", || memory_limit(pid) == Some(OWNED)).await;
    let (of, call) = borrower.begin([100, 400, 300]);
    until("it may have more", || {
        memory_limit(pid).is_some_and(|limit| limit > 400 * MIB)
    })
    .await;
    assert!(call.await.unwrap());
    until("the limit is what it owns", || memory_limit(pid) == Some(OWNED)).await;
    until("the loan is on the lease", || {
        let status = site.handle.status();
        let lease = status.leases.iter().find(|view| view.lease == of.grant.lease);
        lease.is_some_and(|view| view.loans.borrowed_mib_s > 20)
    })
    .await;
    assert!(is_alive(of.pid));
    site.handle.shutdown().await;
}

/// A lender that takes 600 MiB after so many milliseconds and ends well, and a borrower of it that is ended. Returns the
/// borrower's end, and the recorded events.
async fn growth(lender_ms: u32, borrower: [u32; 3]) -> Option<(End, Vec<Event>)> {
    let site = harvesting(HarvestMode::On).await?;
    let owner = Leased::of(&site, "grow", 900 * MIB, Borrow::Cpu).await;
    let other = Leased::of(&site, "hold", OWNED, Borrow::CpuAndMemory).await;
    // The profile of a function that takes little: the first call, the profiling window, and some more.
    let owner = owner.call(SHORT, 25).await;
    let other = other.call(SHORT, PREPARED).await;
    // It has its memory until the borrower is ended: what is free again is lent again.
    let (lends, lent) = owner.begin([lender_ms, 600, 3_000]);
    let (borrows, borrowed) = other.begin(borrower);
    // More than what no lease owns.
    until("the memory is lent", || {
        memory_limit(borrows.pid).is_some_and(|limit| limit > 300 * MIB)
    })
    .await;
    assert!(!borrowed.await.unwrap(), "the borrower is ended");
    let fate = site.fate(&borrows.grant, borrows.channel).await;
    assert_eq!(fate.started, fate.finished + 1);
    assert!(lent.await.unwrap(), "the lender has what it owns");
    assert!(is_alive(lends.pid));
    // Its limit was never touched.
    assert!(memory_limit(lends.pid).is_none_or(|limit| limit > 1 << 60));
    let record = site.dir.path().join("state/harvest.jsonl");
    let Site { dir: _dir, handle, .. } = site;
    handle.shutdown().await;
    Some((fate.end.unwrap(), recorded(&record)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_lender_gets_its_memory_back() {
    let Some((end, events)) = growth(1_200, [400, 300, 10_000]).await else {
        return;
    };
    assert_eq!(end, End::MemoryReturned);
    let reclaims = events.iter().filter(|event| matches!(event, Event::Reclaimed { .. }));
    assert!(reclaims.count() > 0, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_after_a_recall_names_the_recall() {
    let Some((end, events)) = growth(500, [1_500, 300, 10_000]).await else {
        return;
    };
    assert_eq!(end, End::MemoryReturned);
    let killed = events.iter().any(|event| matches!(event, Event::OutOfMemory { .. }));
    assert!(killed, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_is_free_again_ends_nobody() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let borrower = Leased::of(&site, "hold", OWNED, Borrow::CpuAndMemory).await;
    let borrower = borrower.call(SHORT, PREPARED).await;
    let (borrows, borrowed) = borrower.begin([3_000, 1, 0]);
    until("the memory is lent", || {
        memory_limit(borrows.pid).is_some_and(|limit| limit > 600 * MIB)
    })
    .await;
    // A call that begins owns it.
    let owner = Leased::of(&site, "grow", 900 * MIB, Borrow::Cpu).await;
    let owner = owner.call(SHORT, PREPARED).await;
    let (_, owned) = owner.begin([200, 800, 0]);
    let left = OWNED + 1..=124 * MIB;
    until("only what nobody owns is lent", || {
        memory_limit(borrows.pid).is_some_and(|limit| left.contains(&limit))
    })
    .await;
    assert!(owned.await.unwrap() && borrowed.await.unwrap());
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrower_beyond_its_loan_runs_out_of_memory() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let borrower = Leased::of(&site, "hold", OWNED, Borrow::CpuAndMemory).await;
    let borrower = borrower.call(SHORT, PREPARED).await;
    // More than the node has.
    let (borrows, call) = borrower.begin([50, 1_200, 1_000]);
    assert!(!call.await.unwrap());
    let fate = site.fate(&borrows.grant, borrows.channel).await;
    assert_eq!(fate.end, Some(End::OutOfMemory));
    until("no call is measured", || site.handle.status().harvest.calls == 0).await;
    let record = site.dir.path().join("state/harvest.jsonl");
    let Site { dir: _dir, handle, .. } = site;
    handle.shutdown().await;
    let events = recorded(&record);
    assert!(
        events.iter().any(|event| matches!(event, Event::OutOfMemory { .. })),
        "{events:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_borrowers_of_memory_have_limits() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let unlimited = |pid| memory_limit(pid).is_some_and(|limit| limit > 1 << 60);
    let other = Leased::of(&site, "grow", OWNED, Borrow::Cpu).await;
    let other = other.call([30, 100, 0], PREPARED).await;
    until("it has a group", || memory_limit(other.pid).is_some()).await;
    assert!(unlimited(other.pid));
    let borrower = Leased::of(&site, "hold", OWNED, Borrow::CpuAndMemory).await;
    let borrower = borrower.call(SHORT, PREPARED).await;
    let pid = borrower.pid;
    until("it has what it owns", || memory_limit(pid) == Some(OWNED)).await;
    // Nothing is stricter on a node that only watches.
    site.handle.switch_harvest(HarvestMode::Watch).unwrap();
    until("it has no limit", || unlimited(pid)).await;
    let borrower = borrower.call([30, 200, 0], 2).await;
    assert!(unlimited(borrower.pid));
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_keeps_borrowed_memory_is_replaced() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let borrower = Leased::of(&site, "keep", OWNED, Borrow::CpuAndMemory).await;
    let borrower = borrower.call(SHORT, PREPARED).await;
    let (grant, channel, pid) = (borrower.grant.clone(), borrower.channel.id, borrower.pid);
    let borrower = borrower.call([100, 200, 50], 1).await;
    assert_eq!(site.fate(&grant, channel).await.end, Some(End::MemoryReturned));
    until("its process is gone", || !is_alive(pid)).await;
    drop(borrower);
    let next = site.channel(&grant, 0).await.unwrap();
    assert_ne!(next.verdict.worker_pid.get(), pid);
    tokio::time::timeout(Duration::from_secs(20), site.handle.shutdown())
        .await
        .unwrap();
}
