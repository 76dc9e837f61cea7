//! Messages and collectives beside those of the Open MPI installed on the machine, in alternating rounds.
//!
//! `comm_bench --op pingpong|bcast|allreduce|alltoall|allgather|barrier --ranks N --transport shm|tcp [--json]
//! [--rounds N] [--step FACTOR] [--least BYTES] [--most BYTES] [--alone]`

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use mayfly_comm::road::{Lost, Road, Via};
use mayfly_comm::{Communicator, Datatype, Operation, Options};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCKS: usize = 12;
/// Bytes moved in a block, unless that were fewer than two operations.
const BLOCK_BYTES: usize = 16 << 20;

#[derive(Debug, Clone)]
struct Plan {
    op: String,
    ranks: usize,
    tcp: bool,
    json: bool,
    alone: bool,
    rounds: usize,
    sizes: Vec<usize>,
}

impl Plan {
    fn from_arguments() -> Result<Self> {
        let mut plan = Self {
            op: "pingpong".into(),
            ranks: 2,
            tcp: false,
            json: false,
            alone: false,
            rounds: 5,
            sizes: Vec::new(),
        };
        let (mut step, mut least, mut most) = (2usize, 8usize, 64usize << 20);
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} wants a value"));
            match name.as_str() {
                "--op" => plan.op = value()?,
                "--ranks" => plan.ranks = value()?.parse()?,
                "--transport" => plan.tcp = value()? == "tcp",
                "--rounds" => plan.rounds = value()?.parse()?,
                "--step" => step = value()?.parse()?,
                "--least" => least = value()?.parse()?,
                "--most" => most = value()?.parse()?,
                "--json" => plan.json = true,
                "--alone" => plan.alone = true,
                other => return Err(format!("no option {other}").into()),
            }
        }
        while least <= most {
            plan.sizes.push(least);
            least *= step.max(2);
        }
        if plan.op == "barrier" {
            plan.sizes.truncate(1);
        }
        Ok(plan)
    }

    fn most_operations(&self) -> usize {
        if self.tcp { 400 } else { 4000 }
    }

    /// Blocks of memory that a rank sends or receives in one operation.
    fn width(&self) -> usize {
        match self.op.as_str() {
            "alltoall" | "allgather" => self.ranks,
            _ => 1,
        }
    }
}

/// For each rank its roads.
fn roads(ranks: usize, tcp: bool) -> Result<Vec<Vec<Option<Road>>>> {
    let mut all: Vec<Vec<Option<Road>>> = (0..ranks).map(|_| (0..ranks).map(|_| None).collect()).collect();
    for pair in 0..ranks * ranks {
        let (low, high) = (pair / ranks, pair % ranks);
        if low < high {
            let (one, other) = if tcp {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let one = TcpStream::connect(listener.local_addr()?)?;
                (remote(one), remote(listener.accept()?.0))
            } else {
                let (one, other) = UnixStream::pair()?;
                (Road::Local(one), Road::Local(other))
            };
            all[low][high] = Some(one);
            all[high][low] = Some(other);
        }
    }
    Ok(all)
}

fn remote(socket: TcpStream) -> Road {
    Road::Remote {
        socket,
        session: None,
        via: Via::Direct,
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

/// One operation.
fn operate(comm: &Communicator, op: &str, send: &mut [u8], receive: &mut [u8]) -> Result<()> {
    match op {
        "pingpong" if comm.rank() == 0 => {
            comm.send(send, 1, 1)?;
            comm.recv(receive, 1, 1)?;
        }
        "pingpong" if comm.rank() == 1 => {
            comm.recv(receive, 0, 1)?;
            comm.send(send, 0, 1)?;
        }
        "pingpong" => {}
        "bcast" => comm.bcast(send, 0)?,
        "allreduce" => comm.allreduce(send, receive, Datatype::F64, &Operation::Sum)?,
        "allgather" => comm.allgather(&send[..send.len() / comm.size() as usize], receive)?,
        "alltoall" => comm.alltoall(send, receive)?,
        "barrier" => comm.barrier()?,
        other => return Err(format!("no operation {other}").into()),
    }
    Ok(())
}

/// What one rank does; rank 0 returns microseconds for each size.
fn measure(plan: &Plan, comm: &Communicator) -> Result<Vec<f64>> {
    let largest = plan.sizes.last().copied().unwrap_or(8) * plan.width();
    let (mut send, mut receive) = (vec![1u8; largest], vec![0u8; largest]);
    // Touched, as Open MPI's buffers are.
    receive.fill(2);
    let mut results = Vec::new();
    for size in &plan.sizes {
        let length = size * plan.width();
        let count = (BLOCK_BYTES / (size + 1)).clamp(2, plan.most_operations());
        let mut best = f64::INFINITY;
        for block in 0..=BLOCKS {
            comm.barrier()?;
            let start = Instant::now();
            for _ in 0..if block == 0 { 1 + count / 8 } else { count } {
                operate(comm, &plan.op, &mut send[..length], &mut receive[..length])?;
            }
            comm.barrier()?;
            if block > 0 {
                best = best.min(start.elapsed().as_secs_f64() * 1e6 / count as f64);
            }
        }
        results.push(best);
    }
    Ok(results)
}

/// Runs all ranks in processes of their own, and returns what rank 0 found.
fn ours(plan: &Plan) -> Result<Vec<f64>> {
    let mut roads = roads(plan.ranks, plan.tcp)?;
    let (mut read, write) = UnixStream::pair()?;
    let mut children = Vec::new();
    for rank in 0..plan.ranks {
        // SAFETY: this program has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = std::mem::take(&mut roads[rank]);
            roads.clear();
            let outcome = run_rank(plan, rank, own, &write);
            if let Err(error) = &outcome {
                eprintln!("rank {rank}: {error}");
            }
            std::process::exit(outcome.is_err().into());
        }
        children.push(child);
    }
    drop((roads, write));
    let mut text = String::new();
    read.read_to_string(&mut text)?;
    for child in children {
        // SAFETY: a child of ours, waited for once.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    Ok(text
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?)
}

fn run_rank(plan: &Plan, rank: usize, roads: Vec<Option<Road>>, mut write: &UnixStream) -> Result<()> {
    pin(rank);
    let lost = Arc::new(Lost::default());
    let comm = Communicator::form(rank as u32, plan.ranks as u32, roads, lost, Options::default())?;
    let results = measure(plan, &comm)?;
    if rank == 0 {
        for us in results {
            writeln!(write, "{us}")?;
        }
    }
    Ok(())
}

/// Compiles the MPI program, unless that was done before.
fn compile() -> Result<PathBuf> {
    let source = include_str!("../bench/openmpi.c");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let folder = cache.unwrap_or_else(std::env::temp_dir).join("mayfly");
    std::fs::create_dir_all(&folder)?;
    let (file, program) = (folder.join("openmpi.c"), folder.join("openmpi"));
    if std::fs::read_to_string(&file).is_ok_and(|text| text == source) && program.exists() {
        return Ok(program);
    }
    std::fs::write(&file, source)?;
    let done = Command::new("mpicc")
        .arg("-O3")
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .status()?;
    if !done.success() {
        return Err("mpicc failed; install libopenmpi-dev".into());
    }
    Ok(program)
}

fn openmpi(plan: &Plan, program: &Path) -> Result<Vec<f64>> {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &plan.ranks.to_string()]);
    match plan.tcp {
        true => command.args(["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]),
        false => command.args(["--mca", "btl", "self,vader"]),
    };
    if plan.ranks <= std::thread::available_parallelism()?.get() {
        command.args(["--bind-to", "core"]);
    }
    command
        .arg(program)
        .arg(&plan.op)
        .arg(BLOCKS.to_string())
        .arg(plan.most_operations().to_string());
    command.args(plan.sizes.iter().map(ToString::to_string));
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    let us = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    Ok(us.map(str::parse).collect::<std::result::Result<_, _>>()?)
}

fn median(rounds: &[Vec<f64>], at: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().filter_map(|round| round.get(at).copied()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let plan = Plan::from_arguments()?;
    let program = if plan.alone { PathBuf::new() } else { compile()? };
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        own.push(ours(&plan)?);
        if !plan.alone {
            theirs.push(openmpi(&plan, &program)?);
        }
    }
    let mut rows = Vec::new();
    let (mut product, mut worst) = (0.0, 0.0f64);
    for (at, bytes) in plan.sizes.iter().enumerate() {
        let (us, openmpi_us) = (median(&own, at), median(&theirs, at));
        let ratio = us / openmpi_us;
        product += ratio.ln();
        worst = worst.max(ratio);
        match plan.json {
            true => rows.push(format!(
                "{{\"bytes\":{bytes},\"us\":{us:.4},\"openmpi_us\":{openmpi_us:.4},\"ratio\":{ratio:.4}}}"
            )),
            false => println!("{bytes:>10} {us:>12.3} {openmpi_us:>12.3} {ratio:>8.3}"),
        }
    }
    let mean = (product / plan.sizes.len() as f64).exp();
    match plan.json {
        true => println!(
            "{{\"op\":\"{}\",\"ranks\":{},\"transport\":\"{}\",\"geometric_mean\":{mean:.4},\"worst\":{worst:.4},\"rows\":[{}]}}",
            plan.op,
            plan.ranks,
            if plan.tcp { "tcp" } else { "shm" },
            rows.join(",")
        ),
        false => println!("geometric mean {mean:.3}, worst {worst:.3}"),
    }
    Ok(())
}
