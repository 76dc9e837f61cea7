//! Measures posts between ranks beside `alltoall`, in alternating rounds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dayfly_comm::post::{Post, PostOptions};
use dayfly_comm::{Communicator, LostRanks, Options};
use serde::Serialize;

use super::{Op, Plan, Result, connections, failed, fitting, forked, measure, median, pin};
use crate::table::Table;

/// Messages to one rank that are on their way at a time.
const DEPTH: usize = 16;
/// Lane of the measured messages.
const LANE: u32 = 1;
/// Longest wait for one message.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Times of a size in the result of a round.
const COLUMNS: usize = 3;

/// Times for one size in microseconds: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Bytes of a message, or of the block that `alltoall` moves to each rank.
    pub bytes: usize,
    /// Time in which each rank sends one message to each other rank, while [`DEPTH`] are on their way.
    pub us: f64,
    /// Time of `alltoall`.
    pub alltoall_us: f64,
    /// Bandwidth of the post over that of `alltoall`.
    pub bandwidth_ratio: f64,
    /// Half of the time of a message there and back, with nothing else on its way.
    pub latency_us: f64,
}

/// The result of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Number of ranks.
    pub ranks: usize,
    /// `shm` or `tcp`.
    pub transport: &'static str,
    /// A row for each size.
    pub rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "post of {} ranks over {}, microseconds, beside alltoall in the same run",
            self.ranks, self.transport
        );
        let columns = ["bytes", "latency", "exchange", "alltoall", "bandwidth ratio"];
        let mut table = Table::new(&title, &columns);
        for row in &self.rows {
            let [latency, us, alltoall] = [row.latency_us, row.us, row.alltoall_us].map(|us| format!("{us:.2}"));
            table.row([
                row.bytes.to_string(),
                latency,
                us,
                alltoall,
                format!("{:.2}", row.bandwidth_ratio),
            ]);
        }
        writeln!(f, "{table}")
    }
}

/// Measures both in turns. The program must have one thread, because this forks the ranks.
pub fn run(plan: &Plan) -> Result<Report> {
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds.max(1) {
        rounds.push(round(plan)?);
    }
    let row = |(at, bytes): (usize, &usize)| {
        let [alltoall_us, us, latency_us] = [0, 1, 2].map(|column| median(&rounds, at * COLUMNS + column));
        Row {
            bytes: *bytes,
            us,
            alltoall_us,
            bandwidth_ratio: alltoall_us / us,
            latency_us,
        }
    };
    Ok(Report {
        ranks: plan.ranks,
        transport: if plan.tcp { "tcp" } else { "shm" },
        rows: plan.sizes.iter().enumerate().map(row).collect(),
    })
}

/// Runs each rank in its own process. Returns rank 0's times, [`COLUMNS`] for each size.
fn round(plan: &Plan) -> Result<Vec<f64>> {
    let mut connections = connections(plan.ranks, plan.tcp)?;
    let found = forked(plan.ranks, move |rank| {
        pin(rank);
        let own = std::mem::take(&mut connections[rank]);
        connections.clear();
        let options = Options {
            table: plan.table,
            ..Options::default()
        };
        let lost = Arc::new(LostRanks::default());
        let comm = Communicator::form(rank as u32, plan.ranks as u32, own, lost, options).map_err(failed)?;
        let mut times = Vec::new();
        for size in &plan.sizes {
            times.extend(measure(Op::Alltoall, &[*size], plan.pace(), &comm)?);
            let post = Post::open(&comm, PostOptions::default()).map_err(failed)?;
            times.push(best(plan, &comm, *size, |count| exchange(&post, *size, count))?);
            times.push(best(plan, &comm, *size, |count| pingpong(&post, *size, count))? / 2.0);
            comm.barrier().map_err(failed)?;
            post.close(Instant::now() + MAX_WAIT).map_err(failed)?;
        }
        Ok(times)
    })?;
    match found.len() == plan.sizes.len() * COLUMNS {
        true => Ok(found),
        false => Err(failed("a rank failed; its output above has the reason")),
    }
}

/// Microseconds of one operation in the fastest block, as [`measure`] has them.
fn best(plan: &Plan, comm: &Communicator, size: usize, run: impl Fn(usize) -> Result<()>) -> Result<f64> {
    let pace = plan.pace();
    let block = |count: usize| -> Result<f64> {
        comm.barrier().map_err(failed)?;
        let start = Instant::now();
        run(count)?;
        comm.barrier().map_err(failed)?;
        Ok(start.elapsed().as_secs_f64() / count as f64)
    };
    let most = (pace.bytes / (size + 1)).clamp(DEPTH, pace.most_operations);
    let count = super::agree(comm, fitting(pace.time, block(DEPTH)?, most).max(DEPTH))?;
    let mut best = f64::INFINITY;
    for _ in 0..pace.blocks {
        best = best.min(block(count)? * 1e6);
    }
    Ok(best)
}

/// Sends `count` messages to each other rank, and receives as many.
fn exchange(post: &Post, size: usize, count: usize) -> Result<()> {
    let block = Bytes::from(vec![1u8; size]);
    let others = || (0..post.size()).filter(|rank| *rank != post.rank());
    let (mut sent, mut received) = (0, 0);
    while received < count {
        while sent < count && sent < received + DEPTH {
            for to in others() {
                drop(post.send(to, LANE, vec![block.clone()]).map_err(failed)?);
            }
            sent += 1;
        }
        for _ in others() {
            post.receive(LANE, Instant::now() + MAX_WAIT).map_err(failed)?;
        }
        received += 1;
    }
    Ok(())
}

/// Sends a message there and back between ranks 0 and 1.
fn pingpong(post: &Post, size: usize, count: usize) -> Result<()> {
    let block = Bytes::from(vec![1u8; size]);
    for _ in 0..count {
        let send = || post.send(1 - post.rank(), LANE, vec![block.clone()]).map(drop);
        let receive = || post.receive(LANE, Instant::now() + MAX_WAIT).map(drop);
        match post.rank() {
            0 => send().and_then(|()| receive()),
            1 => receive().and_then(|()| send()),
            _ => Ok(()),
        }
        .map_err(failed)?;
    }
    Ok(())
}
