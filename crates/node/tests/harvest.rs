//! Harvesting on a node: real calls in real control groups. On a machine where none can be made, these tests check that
//! the node says so.

mod common;

use std::time::Duration;

use common::*;
use dayfly_harvest::record::{Entry, Header};
use dayfly_harvest::{Engine, Event, Options as ProfileOptions, Profiles};
use dayfly_protocol::api::{Borrow, Grant, HarvestMode, LoanTerms, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::CodeHash;
use dayfly_protocol::slot::Status;

async fn watching() -> Option<Site> {
    harvesting(HarvestMode::Watch).await
}

async fn harvesting(mode: HarvestMode) -> Option<Site> {
    let site = Site::with(|options| {
        options.harvest = mode;
        options.harvest_log_bytes = 1 << 20;
    })
    .await;
    let status = site.handle.status().harvest;
    assert_eq!(status.mode, mode);
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

/// A channel to the worker of a new lease that has the library, and the library's hash.
async fn worker(site: &Site, mode: Mode) -> (Grant, CodeHash, Channel) {
    let grant = site.lease(|request| request.mode = mode).await.unwrap();
    let hash = site.put_library(&grant).await;
    let channel = site.channel(&grant, 0).await.unwrap();
    (grant, hash, channel)
}

/// Calls a function so many times. Each call ends well.
async fn call(mut channel: Channel, index: u16, input: &[u8], times: usize) -> Channel {
    for _ in 0..times {
        let (next, result) = channel.call(index, 0, input).await;
        assert_eq!(result.unwrap().0, Status::Ok);
        channel = next;
    }
    channel
}

/// Calls a function that takes milliseconds so many times.
async fn call_for(site: &Site, function: &str, ms: u32, times: usize, mode: Mode) {
    let (_grant, hash, channel) = worker(site, mode).await;
    let (channel, index) = channel.load(hash, function).await;
    call(channel, index, &ms.to_le_bytes(), times).await;
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
    let (_grant, hash, channel) = worker(&site, Mode::Warm).await;
    let (channel, nap) = channel.load(hash, "nap").await;
    let channel = call(channel, nap, &60u32.to_le_bytes(), 1).await;
    let (channel, spin) = channel.load(hash, "spin").await;
    // Beyond its deadline.
    let (_, result) = channel.call(spin, 500, b"").await;
    assert!(result.is_err(), "{result:?}");
    let status = || site.handle.status().harvest;
    until("no call is measured", || status().calls == 0).await;
    assert_eq!(status().samples, 0, "nothing is learnt from a killed call");
    site.handle.shutdown().await;
}

/// The limit of processor time of a process's control group, in thousandths of a core.
fn cpu_limit(pid: u32) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        (controllers.split(',').any(|one| one == "cpu") || controllers.is_empty()).then_some(path)
    })?;
    let file = |name: &str| {
        let places = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"];
        places
            .iter()
            .find_map(|place| std::fs::read_to_string(format!("{place}{own}/{name}")).ok())
    };
    if let Some(both) = file("cpu.max") {
        let (quota, period) = both.trim().split_once(' ')?;
        return Some(quota.parse::<u64>().ok()? * 1000 / period.parse::<u64>().ok()?);
    }
    let number = |name| file(name)?.trim().parse::<u64>().ok();
    Some(number("cpu.cfs_quota_us")? * 1000 / number("cpu.cfs_period_us")?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrower_is_raised_and_lowered_again() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let (_grant, hash, channel) = worker(&site, Mode::Warm).await;
    let pid = channel.verdict.worker_pid.get();
    let (mut channel, index) = channel.load(hash, "burn_two").await;
    let mut limits = std::collections::BTreeSet::new();
    for round in 0..4 {
        let (next, result) = {
            let ms = 400u32.to_le_bytes();
            let call = channel.call(index, 0, &ms);
            let mut call = std::pin::pin!(call);
            loop {
                tokio::select! {
                    ended = &mut call => break ended,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {
                        if round > 0 {
                            limits.extend(cpu_limit(pid));
                        }
                    }
                }
            }
        };
        assert_eq!(result.unwrap().0, Status::Ok);
        channel = next;
    }
    // It owns one of two cores, and the other one has no owner.
    assert!(limits.iter().any(|limit| (1_500..=2_000).contains(limit)), "{limits:?}");
    until("the limit is what it owns", || cpu_limit(pid) == Some(1_000)).await;
    let status = || site.handle.status().harvest;
    until("the loan is counted", || status().core_ms.borrowed > 100).await;
    site.handle.shutdown().await;
}

/// Processor time of a process so far, in milliseconds.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may contain anything, the 12th and 13th field are user and system time.
    let mut times = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11);
    let mut ticks = || times.next().unwrap().parse::<u64>().unwrap();
    (ticks() + ticks()) * 1_000 / rustix::param::clock_ticks_per_second()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_halves_share_two_cores() {
    let site = Site::with(|options| {
        options.harvest = HarvestMode::Watch;
        let resources = options.resources.as_mut().unwrap();
        (resources.kept_cores, resources.workers) = (2, 2);
    })
    .await;
    let can_limit = site.handle.status().harvest.why.is_none();
    let half = |request: &mut dayfly_protocol::api::LeaseRequest| {
        request.mode = Mode::Warm;
        request.cores_per_worker = MilliCores::new(500);
    };
    let mut workers = Vec::new();
    for _ in 0..4 {
        let grant = site.lease(half).await.unwrap();
        let hash = site.put_library(&grant).await;
        workers.push(site.channel(&grant, 0).await.unwrap().load(hash, "burn").await);
    }
    let refused = site.lease(half).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    assert!(
        refused.message.contains("0.5 places of warm workers of which 0 of 2"),
        "{refused}"
    );
    // All of them compute at once, and none is rejected for lack of a core.
    let calls = workers.into_iter().map(|(channel, index)| async move {
        let pid = channel.verdict.worker_pid.get();
        (call(channel, index, &200u32.to_le_bytes(), 1).await, index, pid)
    });
    let mut workers = futures_util::future::join_all(calls).await;
    if can_limit {
        for (_, _, pid) in &workers {
            until("a worker is held to half a core", || cpu_limit(*pid) == Some(500)).await;
        }
        // One alone would have a whole core.
        let (channel, index, pid) = workers.pop().unwrap();
        let before = cpu_ms(pid);
        call(channel, index, &1_000u32.to_le_bytes(), 1).await;
        let used = cpu_ms(pid) - before;
        assert!((100..=620).contains(&used), "{used} ms");
        eprintln!("a worker of half a core used {used} ms in a second");
    }
    site.handle.shutdown().await;
}

#[tokio::test]
async fn node_refuses_impossible_fractions() {
    let site = Site::start().await;
    let asked = |mode, thousandths| {
        let site = &site;
        async move {
            let refused = site.lease(|request| {
                request.mode = mode;
                request.cores_per_worker = MilliCores::new(thousandths);
            });
            refused.await.unwrap_err()
        }
    };
    for thousandths in [0, 9] {
        let refused = asked(Mode::Warm, thousandths).await;
        assert_eq!(refused.code, Code::InvalidRequest);
        assert!(refused.message.contains("at least 0.01 cores"), "{refused}");
    }
    let refused = asked(Mode::Hot, 500).await;
    assert_eq!(refused.code, Code::InvalidRequest);
    assert!(
        refused.message.contains("ask for whole cores, or for mode warm"),
        "{refused}"
    );
    assert_eq!(asked(Mode::Warm, 8_001).await.code, Code::TooLarge);
    site.handle.shutdown().await;
}

/// What a call of two threads borrows on a node with a free core, in core milliseconds, if its lease has these terms.
/// `None` where nothing can be measured.
async fn borrowed_under(loans: LoanTerms, change: impl FnOnce(&mut dayfly_node::Options)) -> Option<u64> {
    let site = Site::with(|options| {
        options.harvest = HarvestMode::On;
        options.harvest_log_bytes = 1 << 20;
        change(options);
    })
    .await;
    let can_measure = site.handle.status().harvest.why.is_none();
    if can_measure {
        let leased = site.lease(|request| request.loans = loans).await.unwrap();
        let hash = site.put_library(&leased).await;
        let (channel, index) = site.channel(&leased, 0).await.unwrap().load(hash, "burn_two").await;
        call(channel, index, &150u32.to_le_bytes(), 4).await;
        let status = || site.handle.status().harvest;
        until("the last call is learnt from", || status().samples >= 2).await;
    }
    let borrowed = site.handle.status().harvest.core_ms.borrowed;
    let record = site.dir.path().join("state/harvest.jsonl");
    site.handle.shutdown().await;
    let record = std::fs::read_to_string(record).unwrap_or_default();
    let begins = record
        .lines()
        .skip(1)
        .filter_map(|line| serde_json::from_str::<Entry>(line).ok());
    for begin in begins.filter_map(|entry| match entry.event {
        Event::Begin(begin) => Some(begin),
        _ => None,
    }) {
        assert_eq!(begin.lends, loans.lend, "{begin:?}");
        assert!(begin.borrows_cpu <= loans.borrow.has_cpu(), "{begin:?}");
        assert!(begin.borrows_memory <= loans.borrow.has_memory(), "{begin:?}");
    }
    can_measure.then_some(borrowed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_borrows_only_what_its_lease_allows() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let terms = |lend, borrow| LoanTerms { lend, borrow };
    let Some(borrowed) = borrowed_under(terms(false, Borrow::Cpu), |_| {}).await else {
        return;
    };
    assert!(borrowed > 0);
    assert_eq!(borrowed_under(terms(true, Borrow::None), |_| {}).await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn site_forbids_what_a_lease_wants_to_borrow() {
    let forbid = |options: &mut dayfly_node::Options| options.harvest_borrow = Borrow::None;
    let loans = LoanTerms {
        lend: true,
        borrow: Borrow::CpuAndMemory,
    };
    assert!(matches!(borrowed_under(loans, forbid).await, None | Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursting_lender_gets_its_core_back() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let lent = site.lease(|request| request.mode = Mode::Warm).await.unwrap();
    let borrowing = site.lease(|request| request.mode = Mode::Warm).await.unwrap();
    let hash = site.put_library(&lent).await;
    site.put_library(&borrowing).await;
    let (lender, lends) = site.channel(&lent, 0).await.unwrap().load(hash, "nap_burn").await;
    let (borrower, burns) = site.channel(&borrowing, 0).await.unwrap().load(hash, "burn_two").await;
    let pid = borrower.verdict.worker_pid.get();
    let input = |nap: u32, burn: u32| [nap.to_le_bytes(), burn.to_le_bytes()].concat();
    // The profile of a function that only waits: the first call, the profiling window, and some more.
    let lender = call(lender, lends, &input(40, 0), 25).await;
    // A call before it has a group, and one that runs as configured.
    let borrower = call(borrower, burns, &60u32.to_le_bytes(), 2).await;
    let burst = tokio::spawn(async move { lender.call(lends, 0, &input(500, 1_500)).await.1 });
    let long = tokio::spawn(async move { borrower.call(burns, 0, &1_900u32.to_le_bytes()).await.1 });
    // Both own one of two cores. The lender does not use its own yet.
    let begun = std::time::Instant::now();
    until("the core is lent", || cpu_limit(pid).is_some_and(|limit| limit > 1_500)).await;
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_millis(500).saturating_sub(begun.elapsed())).await;
    until("the core is taken back", || cpu_limit(pid) == Some(1_000)).await;
    // In the middle of its burst, with room for a busy machine.
    assert!(begun.elapsed() < Duration::from_millis(1_500), "{:?}", begun.elapsed());
    assert_eq!(burst.await.unwrap().unwrap().0, Status::Ok);
    assert_eq!(long.await.unwrap().unwrap().0, Status::Ok);
    let loans_of = |grant: &Grant| {
        let status = site.handle.status();
        let view = status.leases.iter().find(|view| view.lease == grant.lease);
        view.map(|view| (view.loans, view.usage)).unwrap()
    };
    until("the loan is on both leases", || {
        loans_of(&lent).0.lent_core_us > 0 && loans_of(&borrowing).0.borrowed_core_us > 0
    })
    .await;
    let (loans, usage) = loans_of(&lent);
    // 25 calls and the burst. What it waited is no computing time, and is less than the burst. It lent most of the nap.
    assert!((50_000..2_000_000).contains(&loans.lent_core_us), "{loans:?}");
    assert!(loans.waited_us < 1_500_000, "{loans:?}");
    let computed = 25 * 40_000 + 1_900_000 - loans.waited_us;
    assert!(usage.computing_us >= computed, "{usage:?} {loans:?}");
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_borrower_leaves_no_loan() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let (grant, hash, channel) = worker(&site, Mode::Warm).await;
    let (channel, index) = channel.load(hash, "burn_two").await;
    let channel = call(channel, index, &100u32.to_le_bytes(), 1).await;
    let (_, result) = channel.call(index, 400, &5_000u32.to_le_bytes()).await;
    assert!(result.is_err(), "{result:?}");
    until("no call is measured", || site.handle.status().harvest.calls == 0).await;
    // The next worker has no group until its first long call has ended, and no limit of the former one.
    let channel = site.channel(&grant, 0).await.unwrap();
    let pid = channel.verdict.worker_pid.get();
    let (channel, index) = channel.load(hash, "burn_two").await;
    let _channel = call(channel, index, &100u32.to_le_bytes(), 1).await;
    until("the limit is what it owns", || cpu_limit(pid) == Some(1_000)).await;
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vanished_group_ends_only_the_measurement() {
    let Some(site) = harvesting(HarvestMode::On).await else {
        return;
    };
    let (_grant, hash, channel) = worker(&site, Mode::Warm).await;
    let pid = channel.verdict.worker_pid.get();
    let (mut channel, index) = channel.load(hash, "nap").await;
    let status = || site.handle.status().harvest;
    for round in 0..4 {
        let call = tokio::spawn(async move { channel.call(index, 0, &600u32.to_le_bytes()).await });
        if round == 1 {
            until("the call is measured", || status().calls == 1).await;
            let Some(group) = version_1_group(pid) else { return };
            std::fs::write("/sys/fs/cgroup/cpu/cgroup.procs", pid.to_string()).unwrap();
            std::fs::remove_dir(group).unwrap();
            until("the measurement ends", || status().calls == 0).await;
        }
        let (next, result) = call.await.unwrap();
        assert_eq!(result.unwrap().0, Status::Ok);
        channel = next;
    }
    until("a later call is measured", || status().samples >= 1).await;
    until("it has a group again", || version_1_group(pid).is_some()).await;
    site.handle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_node_is_switched_on_and_off() {
    let Some(site) = harvesting(HarvestMode::Off).await else {
        return;
    };
    let (_grant, hash, channel) = worker(&site, Mode::Warm).await;
    let pid = channel.verdict.worker_pid.get();
    let (mut channel, index) = channel.load(hash, "burn_two").await;
    let status = || site.handle.status().harvest;
    for mode in [HarvestMode::Off, HarvestMode::On, HarvestMode::Watch, HarvestMode::Off] {
        site.handle.switch_harvest(mode).unwrap();
        assert_eq!(status().mode, mode);
        if status().why.is_some() {
            break;
        }
        let before = status().samples;
        channel = call(channel, index, &80u32.to_le_bytes(), 3).await;
        if mode == HarvestMode::Off {
            until("it is back in its group", || cpu_limit(pid) != Some(1_000)).await;
            assert_eq!((status().samples, status().calls), (before, 0));
        } else {
            until("calls are learnt from", || status().samples >= before + 2).await;
            until("it has what it owns", || cpu_limit(pid) == Some(1_000)).await;
        }
    }
    site.handle.shutdown().await;
}

/// The group of a worker among those of version 1 that limit processor time.
fn version_1_group(pid: u32) -> Option<std::path::PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| line.split_once(":cpu:"))?.1;
    let group = std::path::PathBuf::from(format!("/sys/fs/cgroup/cpu{own}"));
    (own.contains("worker-") && group.is_dir()).then_some(group)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_events_lead_to_the_same_actions() {
    let Some(site) = watching().await else { return };
    // Enough for a training.
    call_for(&site, "burn", 30, 26, Mode::Warm).await;
    until("calls are learnt from", || site.handle.status().harvest.samples >= 22).await;
    let path = site.dir.path().join("state/harvest.jsonl");
    let Site { dir: _dir, handle, .. } = site;
    handle.shutdown().await;
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
    let options = ProfileOptions {
        trains: header.trains,
        ..ProfileOptions::default()
    };
    let mut engine = Engine::new(header.rules, Box::new(Profiles::new(options)));
    let (mut begins, mut trainings) = (0, 0);
    for line in lines {
        let line: Entry = serde_json::from_str(line).unwrap();
        begins += usize::from(matches!(line.event, Event::Begin(_)));
        trainings += usize::from(matches!(line.event, Event::TrainingBegun { .. }));
        assert_eq!(engine.handle(line.now_us, &line.event), line.actions);
    }
    assert!(begins >= 22 && trainings == 1, "{text}");
}
