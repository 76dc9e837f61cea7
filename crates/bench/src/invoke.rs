//! `dayfly bench invoke`: invocations beside the raw limit of the machine, in turns, in one run.

use dayfly_client::{Client, Sandbox, Transport};

use crate::alternate::{Plan, alternate};
use crate::baseline::{Baseline, Copy, CopyInPeer, TcpEcho, matching};
use crate::busy::Watch;
use crate::error::Error;
use crate::picture::Series;
use crate::report::{InvokeReport, Named, Setting};
use crate::subject::{How, InTurns, Workers, settle};

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Options of the invocations.
    pub how: How,
    /// Outstanding invocations of each worker when the rate is measured.
    pub depth: u32,
    /// Number of workers.
    pub workers: u16,
    /// Measured invocations; 0 for a number that takes one or two seconds.
    pub calls: usize,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// Returns the number of calls that take about a second.
fn calls_for(how: &How) -> usize {
    let spinning_shm = how.hot && how.transport == Transport::Shm;
    match how.size {
        0..=4096 if spinning_shm => 2_000_000,
        0..=4096 if how.hot => 100_000,
        0..=4096 => 20_000,
        4097..=65_536 => 50_000,
        _ => 4_000,
    }
}

/// Returns the baseline of a setting. Small hot messages over shared memory are compared with round trips of a cache
/// line; large ones with a `memcpy` of as many bytes, which reads and writes as much as the function.
fn baseline(how: &How) -> Result<Box<dyn Baseline>, Error> {
    if how.transport == Transport::Shm && how.hot && how.size > 4096 {
        return Ok(Box::new(Copy::new(how.size)));
    }
    matching(how.transport, how.hot, how.size)
}

/// Measures. Returns the report and the two distributions for a chart.
pub fn run(client: &Client, mine: &[u32], options: &Options) -> Result<(InvokeReport, [Series; 2]), Error> {
    settle()?;
    let how = options.how;
    // Make the baseline first: it forks, which a process with open libfabric must not do.
    let mut baseline = baseline(&how)?;
    let mut workers = Workers::lease(client, options.workers, how)?;
    let calls = if options.calls > 0 {
        options.calls
    } else {
        calls_for(&how)
    };
    let watched: Vec<u32> = mine.iter().copied().chain(workers.pids()).collect();
    let watch = Watch::start(&watched);
    let result = alternate(&mut *baseline, &mut workers, Plan::of_calls(calls))?;
    let many = if options.depth > 1 {
        calls.max(1000) * options.workers as usize
    } else {
        calls
    };
    let rate = workers.rate(options.depth as usize, many)?;
    let noise = watch.finish().judge(options.force)?;
    let named = |baseline: &dyn Baseline, latency| Named {
        name: baseline.name().to_owned(),
        about: baseline.about(),
        latency,
        per_s: None,
        bytes_per_s: None,
        share: None,
    };
    let setting = Setting {
        transport: workers.transport().to_string(),
        mode: if how.hot { "hot" } else { "warm" }.into(),
        language: "c".into(),
        size: how.size as u64,
        depth: options.depth,
        workers: options.workers.into(),
        sandbox: how.sandbox.name().into(),
    };
    let title = format!("{} {}", setting.mode, setting.transport);
    let series = [
        Series::invocation(&title, &title, &result.subject),
        Series::baseline(baseline.name(), &title, &result.baseline),
    ];
    let mut report = InvokeReport::new(
        setting,
        result.subject(),
        named(&*baseline, result.baseline()),
        result.difference(),
        rate,
        noise,
    );
    if how.transport == Transport::Shm && how.hot && how.size > 4096 {
        let mut peer = CopyInPeer::new(how.size)?;
        workers_stop_for(&mut workers, || {
            let samples = crate::alternate::measure(&mut peer, Plan::of_calls(calls))?;
            report.others.push(named(&peer, samples.summary()));
            Ok(())
        })?;
    }
    if how.transport == Transport::Tcp && how.hot && how.size as u64 >= InvokeReport::LARGE {
        // The raw echo sends the buffer that it received, but a function reads one buffer and writes another.
        let mut copying = TcpEcho::copying(how.size)?;
        let beside = alternate(&mut copying, &mut workers, Plan::of_calls(calls / 2))?;
        let (raw, ours) = (beside.baseline(), beside.subject());
        report.others.push(Named {
            share: Some((raw.p50_ns / ours.p50_ns * 1000.0).round() / 1000.0),
            bytes_per_s: Some(TcpEcho::bandwidth(how.size, raw.p50_ns).round()),
            ..named(&copying, raw)
        });
    }
    if how.sandbox != Sandbox::Process {
        // They would use the same core.
        drop(workers);
        let process = How {
            sandbox: Sandbox::Process,
            ..how
        };
        let beside = alternate(
            &mut InTurns::new(client, process),
            &mut InTurns::new(client, how),
            Plan::of_calls(calls / 4),
        )?;
        report.sandbox_adds_p50_ns = Some(beside.difference().overhead_paired_p50_ns);
        report.others.push(Named {
            name: "process".into(),
            about: "the same invocation of a worker in sandbox process, leased in turns with an isolated one".into(),
            latency: beside.baseline(),
            per_s: None,
            bytes_per_s: None,
            share: None,
        });
    }
    Ok((report, series))
}

fn workers_stop_for(workers: &mut Workers, measure: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    use crate::alternate::Block;
    workers.pause()?;
    let result = measure();
    workers.resume()?;
    result
}
