//! Measures messages and collectives between ranks beside Open MPI's, in alternating rounds.

mod openmpi;
pub mod post;
pub mod stored;

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_comm::{Communicator, Datatype, LostRanks, Operation, Options, PeerConnection, Route};
use serde::Serialize;

use self::openmpi::{compile, openmpi, write};
use crate::error::Error;
use crate::proc;
use crate::table::Table;

type Result<T> = std::result::Result<T, Error>;

/// Blocks of operations for each size. The fastest one counts.
const BLOCKS: usize = 12;
/// Bytes moved in a block of at least two operations.
const BLOCK_BYTES: usize = 16 << 20;
/// Longest time of a block of at least two operations. Ranks that share a busy core take milliseconds for each.
const BLOCK_TIME: Duration = Duration::from_millis(50);

/// The operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Rank 0 sends to rank 1, which sends the same number of bytes back.
    Pingpong,
    /// MPI's operations of these names.
    Bcast,
    Allreduce,
    Alltoall,
    Allgather,
    Barrier,
}

impl Op {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::Bcast => "bcast",
            Self::Allreduce => "allreduce",
            Self::Alltoall => "alltoall",
            Self::Allgather => "allgather",
            Self::Barrier => "barrier",
        }
    }
}

/// A measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The operation to measure.
    pub op: Op,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether messages travel over TCP on the loopback instead of shared memory.
    pub tcp: bool,
    /// Rounds. Each round measures both sides.
    pub rounds: usize,
    /// Bytes of each message, or of each rank's part.
    pub sizes: Vec<usize>,
    /// Sizes at which our algorithms change.
    pub table: dayfly_comm::table::Table,
    /// Directory of the compiled MPI program.
    pub cache: PathBuf,
    /// Interpreter for ranks of mpi4py with NumPy arrays, on both sides; `None` for ranks in Rust, beside C.
    pub python: Option<PathBuf>,
}

/// Times of one operation of one size in microseconds: medians over the rounds. A ping-pong counts both directions.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Size in bytes.
    pub bytes: usize,
    /// Dayfly's time.
    pub us: f64,
    /// Open MPI's time.
    pub openmpi_us: f64,
    /// Dayfly's time over Open MPI's.
    pub ratio: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = match self.language {
            "python" => "mpi4py over Open MPI",
            _ => "Open MPI",
        };
        let title = format!(
            "{} of {} ranks over {}, microseconds, beside {peer} in the same run",
            self.op, self.ranks, self.transport
        );
        let mut table = Table::new(&title, &["bytes", "Dayfly", peer, "ratio"]);
        for row in &self.rows {
            let figures = [row.us, row.openmpi_us].map(|us| format!("{us:.2}"));
            let [us, openmpi_us] = figures;
            table.row([row.bytes.to_string(), us, openmpi_us, format!("{:.2}", row.ratio)]);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "ratio: geometric mean {:.2}, worst {:.2}",
            self.geometric_mean, self.worst
        )
    }
}

/// The result of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The operation.
    pub op: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// `shm` or `tcp`.
    pub transport: &'static str,
    /// `c` or `python`: the language of the ranks.
    pub language: &'static str,
    /// Geometric mean of the ratios.
    pub geometric_mean: f64,
    /// Largest ratio.
    pub worst: f64,
    /// A row for each size.
    pub rows: Vec<Row>,
}

impl Plan {
    /// Sizes from `least` to `most`, each `step` times the one before.
    pub fn sizes(op: Op, least: usize, most: usize, step: usize) -> Vec<usize> {
        let sizes = std::iter::successors(Some(least.max(1)), |size| size.checked_mul(step.max(2)));
        let sizes = sizes.take_while(|size| *size <= most);
        sizes.take(if op == Op::Barrier { 1 } else { usize::MAX }).collect()
    }

    fn most_operations(&self) -> usize {
        if self.tcp { 400 } else { 4000 }
    }

    fn pace(&self) -> Pace {
        Pace {
            blocks: BLOCKS,
            bytes: BLOCK_BYTES,
            most_operations: self.most_operations(),
            time: BLOCK_TIME,
        }
    }
}

/// Number and length of the blocks for each size.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Blocks of operations. The fastest one counts.
    blocks: usize,
    /// Bytes moved in a block of at least two operations.
    bytes: usize,
    /// Most operations in a block.
    most_operations: usize,
    /// Longest time of a block of at least two operations.
    time: Duration,
}

/// Blocks of memory that a rank sends or receives in one operation.
fn width(op: Op, ranks: usize) -> usize {
    match op {
        Op::Alltoall | Op::Allgather => ranks,
        _ => 1,
    }
}

/// Measures both sides in turns. The program must have one thread, because this forks the ranks.
pub fn run(plan: &Plan) -> Result<Report> {
    let program = match plan.python {
        Some(_) => write(&plan.cache, "ranks.py", include_str!("ranks.py"))?.0,
        None => compile(&plan.cache)?,
    };
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds.max(1) {
        own.push(match &plan.python {
            Some(python) => ours_in_python(plan, python, &program)?,
            None => ours(plan)?,
        });
        theirs.push(openmpi(plan, &program)?);
    }
    let row = |(at, bytes): (usize, &usize)| {
        let (us, openmpi_us) = (median(&own, at), median(&theirs, at));
        Row {
            bytes: *bytes,
            us,
            openmpi_us,
            ratio: us / openmpi_us,
        }
    };
    let rows: Vec<Row> = plan.sizes.iter().enumerate().map(row).collect();
    let logarithms: f64 = rows.iter().map(|row| row.ratio.ln()).sum();
    Ok(Report {
        op: plan.op.name(),
        ranks: plan.ranks,
        transport: if plan.tcp { "tcp" } else { "shm" },
        language: if plan.python.is_some() { "python" } else { "c" },
        geometric_mean: (logarithms / rows.len() as f64).exp(),
        worst: rows.iter().map(|row| row.ratio).fold(0.0, f64::max),
        rows,
    })
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Subject(what.to_string())
}

/// For each rank its connections.
fn connections(ranks: usize, tcp: bool) -> Result<Vec<Vec<Option<PeerConnection>>>> {
    let mut all: Vec<Vec<Option<PeerConnection>>> = (0..ranks).map(|_| (0..ranks).map(|_| None).collect()).collect();
    for pair in 0..ranks * ranks {
        let (low, high) = (pair / ranks, pair % ranks);
        if low < high {
            let (one, other) = if tcp {
                let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::os("listen"))?;
                let address = listener.local_addr().map_err(Error::os("listen"))?;
                let one = TcpStream::connect(address).map_err(Error::os("connect"))?;
                (remote(one), remote(listener.accept().map_err(Error::os("accept"))?.0))
            } else {
                let (one, other) = UnixStream::pair().map_err(Error::os("make a pair of sockets"))?;
                (PeerConnection::Local(one), PeerConnection::Local(other))
            };
            all[low][high] = Some(one);
            all[high][low] = Some(other);
        }
    }
    Ok(all)
}

fn remote(socket: TcpStream) -> PeerConnection {
    PeerConnection::Remote {
        socket,
        session: None,
        route: Route::Direct,
    }
}

fn pin(rank: usize) {
    // SAFETY: an all-zero set is empty; core numbers are below its size.
    unsafe {
        let cores = usize::try_from(libc::sysconf(libc::_SC_NPROCESSORS_ONLN)).unwrap_or(1);
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(rank % cores.min(libc::CPU_SETSIZE as usize), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Executes one operation.
fn operate(comm: &Communicator, op: Op, send: &mut [u8], receive: &mut [u8]) -> Result<()> {
    let done = match (op, comm.rank()) {
        (Op::Pingpong, 0) => comm.send(send, 1, 1).and_then(|()| comm.recv(receive, 1, 1).map(drop)),
        (Op::Pingpong, 1) => comm.recv(receive, 0, 1).and_then(|_| comm.send(send, 0, 1)),
        (Op::Pingpong, _) => Ok(()),
        (Op::Bcast, _) => comm.bcast(send, 0),
        (Op::Allreduce, _) => comm.allreduce(send, receive, Datatype::F64, &Operation::Sum),
        (Op::Allgather, _) => comm.allgather(&send[..send.len() / comm.size() as usize], receive),
        (Op::Alltoall, _) => comm.alltoall(send, receive),
        (Op::Barrier, _) => comm.barrier(),
    };
    done.map_err(failed)
}

/// Runs one rank. Returns the microseconds of an operation for each size; only rank 0's are used.
fn measure(op: Op, sizes: &[usize], pace: Pace, comm: &Communicator) -> Result<Vec<f64>> {
    let width = width(op, comm.size() as usize);
    let largest = sizes.last().copied().unwrap_or(8) * width;
    let (mut send, mut receive) = (vec![1u8; largest], vec![0u8; largest]);
    // Touch its pages, like those of Open MPI's buffers.
    receive.fill(2);
    let mut results = Vec::new();
    for size in sizes {
        let length = size * width;
        let mut block = |count: usize| -> Result<f64> {
            comm.barrier().map_err(failed)?;
            let start = Instant::now();
            for _ in 0..count {
                operate(comm, op, &mut send[..length], &mut receive[..length])?;
            }
            comm.barrier().map_err(failed)?;
            Ok(start.elapsed().as_secs_f64() / count as f64)
        };
        let most = (pace.bytes / (size + 1)).clamp(2, pace.most_operations);
        let count = agree(comm, fitting(pace.time, block(1 + most / 64)?, most))?;
        block(1 + count / 8)?;
        let mut best = f64::INFINITY;
        for _ in 0..pace.blocks {
            best = best.min(block(count)? * 1e6);
        }
        results.push(best);
    }
    Ok(results)
}

/// Number of operations of `seconds` each that fit into a block: at least 2, and at most `most`.
fn fitting(time: Duration, seconds: f64, most: usize) -> usize {
    ((time.as_secs_f64() / seconds) as usize).clamp(2, most)
}

/// Returns rank 0's value on all ranks.
fn agree(comm: &Communicator, value: usize) -> Result<usize> {
    let mut bytes = value.to_le_bytes();
    comm.bcast(&mut bytes, 0).map_err(failed)?;
    Ok(usize::from_le_bytes(bytes))
}

/// Runs each rank in its own process. Returns rank 0's times.
pub(crate) fn ours(plan: &Plan) -> Result<Vec<f64>> {
    let mut connections = connections(plan.ranks, plan.tcp)?;
    // Moved, so that the parent's copies close too: a rank must notice that its peers have ended.
    let found = forked(plan.ranks, move |rank| {
        pin(rank);
        let own = std::mem::take(&mut connections[rank]);
        connections.clear();
        let lost = Arc::new(LostRanks::default());
        let options = Options {
            table: plan.table,
            ..Options::default()
        };
        let comm = Communicator::form(rank as u32, plan.ranks as u32, own, lost, options).map_err(failed)?;
        measure(plan.op, &plan.sizes, plan.pace(), &comm)
    })?;
    complete(found, plan.sizes.len())
}

/// Runs `work` in `count` processes. Returns the result of the first one.
fn forked(count: usize, mut work: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<Vec<f64>> {
    let (mut read, mut write) = UnixStream::pair().map_err(Error::os("make a pair of sockets"))?;
    let parent = std::process::id();
    let mut children = Vec::new();
    for rank in 0..count {
        // SAFETY: this program has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            proc::die_with(parent);
            let outcome = work(rank).and_then(|found| {
                let lines: String = found.iter().filter(|_| rank == 0).map(|us| format!("{us}\n")).collect();
                write.write_all(lines.as_bytes()).map_err(Error::os("send the result"))
            });
            if let Err(error) = &outcome {
                eprintln!("rank {rank}: {error}");
            }
            std::process::exit(outcome.is_err().into());
        }
        children.push(child);
    }
    drop((work, write));
    let mut text = String::new();
    read.read_to_string(&mut text)
        .map_err(Error::os("read the ranks' results"))?;
    for child in children {
        // SAFETY: waits once for a child of this process.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

/// Runs each rank in its own interpreter, which inherits its sockets.
fn ours_in_python(plan: &Plan, python: &Path, program: &Path) -> Result<Vec<f64>> {
    let mut children = Vec::new();
    for (rank, connections) in connections(plan.ranks, plan.tcp)?.into_iter().enumerate() {
        let socket = |connection: &Option<PeerConnection>| match connection {
            Some(PeerConnection::Local(socket) | PeerConnection::Carried { socket, .. }) => socket.as_raw_fd(),
            Some(PeerConnection::Remote { socket, .. }) => socket.as_raw_fd(),
            Some(PeerConnection::Stored { socket, .. }) => socket.as_raw_fd(),
            None => -1,
        };
        let sockets: Vec<RawFd> = connections.iter().map(socket).collect();
        let words: Vec<String> = sockets.iter().map(ToString::to_string).collect();
        let transport = if plan.tcp { "tcp" } else { "shm" };
        let mut command = Command::new(python);
        command.arg(program).arg("dayfly").args(arguments(plan));
        command.env("DAYFLY_BENCH_RANK", format!("{transport} {rank} {}", words.join(" ")));
        command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
        let parent = std::process::id();
        let inherit = move || {
            proc::die_with(parent);
            for socket in sockets.iter().filter(|socket| **socket >= 0) {
                // SAFETY: a system call on a descriptor of this process.
                unsafe { libc::fcntl(*socket, libc::F_SETFD, 0) };
            }
            Ok(())
        };
        // SAFETY: makes system calls only.
        unsafe { command.pre_exec(inherit) };
        children.push(command.spawn().map_err(Error::os("start Python"))?);
        // Only the rank keeps them open, so that the others notice its end.
        drop(connections);
    }
    let mut results = Vec::new();
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().map_err(Error::os("wait for Python"))?;
        if number == 0 {
            results = output.stdout;
        }
    }
    second_words(&String::from_utf8_lossy(&results), plan)
}

/// Arguments of the MPI program and of the Python program.
fn arguments(plan: &Plan) -> Vec<String> {
    let mut arguments = vec![
        plan.op.name().into(),
        BLOCKS.to_string(),
        plan.most_operations().to_string(),
        BLOCK_TIME.as_millis().to_string(),
    ];
    arguments.extend(plan.sizes.iter().map(ToString::to_string));
    arguments
}

/// Parses the second number of each line. There is one line for each size.
fn second_words(text: &str, plan: &Plan) -> Result<Vec<f64>> {
    numbers(text.lines().filter_map(|line| line.split_whitespace().nth(1)), plan)
}

/// Parses one number for each size.
fn numbers<'a>(words: impl Iterator<Item = &'a str>, plan: &Plan) -> Result<Vec<f64>> {
    complete(words.filter_map(|word| word.parse().ok()).collect(), plan.sizes.len())
}

/// Checks that there is one number for each size.
fn complete(found: Vec<f64>, sizes: usize) -> Result<Vec<f64>> {
    match found.len() == sizes {
        true => Ok(found),
        false => Err(failed("a rank failed; its output above has the reason")),
    }
}

pub(crate) fn median(rounds: &[Vec<f64>], at: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.get(at).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_steps() {
        assert_eq!(Plan::sizes(Op::Bcast, 8, 100, 2), [8, 16, 32, 64]);
        assert_eq!(Plan::sizes(Op::Bcast, 8, 8, 1), [8]);
        assert_eq!(Plan::sizes(Op::Barrier, 8, 100, 2), [8]);
    }

    #[test]
    fn slow_operations_make_blocks_of_fewer() {
        let fitting = |seconds| fitting(Duration::from_millis(50), seconds, 4000);
        assert_eq!(
            [fitting(1e-6), fitting(1e-3), fitting(1.0), fitting(0.0)],
            [4000, 50, 2, 4000]
        );
    }

    #[test]
    fn median_of_the_rounds_counts() {
        assert_eq!(median(&[vec![9.0], vec![1.0], vec![3.0]], 0), 3.0);
        assert!(median(&[], 0).is_nan());
    }
}
