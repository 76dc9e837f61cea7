//! Measures messages through a store beside direct ones in the same run, and compares both with the cost model.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::cost::{self, Measured, Prediction, Prices};
use dayfly_comm::store_route::pause;
use dayfly_comm::table::Table as Algorithms;
use dayfly_comm::{Channel, JoinOptions, Options, World, join};
use dayfly_rendezvous::server::{ServeOptions, Server};
use dayfly_storage::StoreUrl;
use serde::Serialize;

use super::{Op, Pace, Result, complete, failed, forked, measure, median};
use crate::error::Error;
use crate::table::Table;

/// Sizes of the messages from which the model's latency and bandwidth are computed.
const PROBES: [usize; 2] = [8, 16 << 20];
/// Fewer operations than for direct messages: each takes milliseconds, and may cost money.
const PACE: Pace = Pace {
    blocks: 3,
    bytes: 16 << 20,
    most_operations: 20,
    time: TIMEOUT,
};
/// Limit for connecting all ranks, and for one operation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The operation to measure.
    pub op: Op,
    /// Number of ranks.
    pub ranks: usize,
    /// The store.
    pub place: StoreUrl,
    /// Rounds. Each round measures both ways.
    pub rounds: usize,
    /// Bytes of each message, or of each rank's part.
    pub sizes: Vec<usize>,
    /// Prices, if the user named some.
    pub prices: Option<Prices>,
}

/// Times and costs of one way, for one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Way {
    /// Measured time in microseconds: the median over the rounds.
    pub us: f64,
    /// The model's time in microseconds.
    pub predicted_us: f64,
    /// Objects stored for one operation, according to the model.
    pub puts: f64,
    /// Reads of objects for one operation, according to the model.
    pub gets: f64,
    /// The model's price of one operation; `None` without prices.
    pub price: Option<f64>,
}

/// Both ways, for one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// Size in bytes.
    pub bytes: usize,
    /// Through the store.
    pub stored: Way,
    /// Directly, over TCP.
    pub direct: Way,
    /// The store's time over the direct time.
    pub ratio: f64,
}

/// The result of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The operation.
    pub op: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// `s3`, `redis` or `file`.
    pub transport: &'static str,
    /// The store's URL, without secrets.
    pub store: String,
    /// The store's measured parameters of the model.
    pub stored: Measured,
    /// TCP's measured parameters of the model.
    pub direct: Measured,
    /// Prices.
    pub prices: Option<Prices>,
    /// A row for each size.
    pub rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "{} of {} ranks through {}, microseconds, beside TCP in the same run",
            self.op, self.ranks, self.store
        );
        let columns = [
            "bytes",
            "stored",
            "predicted",
            "price",
            "direct",
            "predicted",
            "price",
            "ratio",
        ];
        let mut table = Table::new(&title, &columns);
        let way = |way: &Way| {
            let price = way.price.map_or("-".into(), |price| format!("{price:.3e}"));
            [format!("{:.1}", way.us), format!("{:.1}", way.predicted_us), price]
        };
        for row in &self.rows {
            let ([a, b, c], [d, e, g]) = (way(&row.stored), way(&row.direct));
            table.row([row.bytes.to_string(), a, b, c, d, e, g, format!("{:.1}", row.ratio)]);
        }
        writeln!(f, "{table}")?;
        for (name, known) in [("stored", self.stored), ("direct", self.direct)] {
            let (us, rate) = (known.latency_s * 1e6, known.bytes_per_s / 1e6);
            writeln!(
                f,
                "{name}: {us:.1} us for an empty message, {rate:.1} MB/s for a long one"
            )?;
        }
        Ok(())
    }
}

fn model(op: Op) -> cost::Operation {
    match op {
        Op::Pingpong => cost::Operation::Pingpong,
        Op::Bcast => cost::Operation::Bcast,
        Op::Allreduce => cost::Operation::Allreduce,
        Op::Alltoall => cost::Operation::Alltoall,
        Op::Allgather => cost::Operation::Allgather,
        Op::Barrier => cost::Operation::Barrier,
    }
}

/// A rendezvous in its own process, because this process must have one thread.
struct Meeting {
    address: String,
    /// Ends the rendezvous when it is dropped.
    ends: UnixStream,
    child: libc::pid_t,
}

impl Meeting {
    fn start() -> Result<Self> {
        let (near, mut far) = UnixStream::pair().map_err(Error::os("make a pair of sockets"))?;
        // SAFETY: this program has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(near);
            let served = Server::start(ServeOptions::default());
            let told = served.as_ref().map(|server| server.addresses()[0].to_string());
            let _ = far.write_all(told.unwrap_or_else(|failure| failure.message.clone()).as_bytes());
            let _ = far.shutdown(std::net::Shutdown::Write);
            let _ = far.read(&mut [0]);
            drop(served);
            std::process::exit(0);
        }
        drop(far);
        let mut address = String::new();
        (&near)
            .read_to_string(&mut address)
            .map_err(Error::os("start a rendezvous"))?;
        Ok(Self {
            address,
            ends: near,
            child,
        })
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = self.ends.shutdown(std::net::Shutdown::Both);
        // SAFETY: waits once for a child of this process.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}

/// Runs one round over one channel. Returns microseconds for each size.
fn round(meeting: &Meeting, plan: &Plan, op: Op, ranks: usize, sizes: &[usize], channel: Channel) -> Result<Vec<f64>> {
    let found = forked(ranks, |rank| {
        let options = JoinOptions {
            rank: Some(rank as u32),
            store: (channel == Channel::Stored).then(|| plan.place.clone()),
            channel,
            // Use the loopback instead of shared memory, which hosts do not share.
            routes: RouteOptions {
                local: false,
                ..RouteOptions::default()
            },
            patience: TIMEOUT,
            ..JoinOptions::new(
                &meeting.address,
                "bench",
                b"nobody else is there".to_vec(),
                ranks as u32,
            )
        };
        let joined = join(&options).map_err(failed)?;
        let options = Options {
            deadline: TIMEOUT,
            ..Options::of(channel)
        };
        let world = World::form(joined, options).map_err(failed)?;
        measure(op, sizes, PACE, &world.communicator)
    })?;
    complete(found, sizes.len())
}

/// Computes latency and bandwidth from round trips of a short and a long message.
fn measured(probes: &[Vec<f64>], look_s: Option<f64>, stored: bool) -> Measured {
    let one_way = |at| median(probes, at) / 2e6;
    let latency_s = one_way(0);
    Measured {
        latency_s,
        bytes_per_s: PROBES[1] as f64 / (one_way(1) - latency_s).max(1e-9),
        look_s,
        stored,
    }
}

/// Measures both ways in turns. The program must have one thread, because this forks the ranks.
pub fn run(plan: &Plan) -> Result<Report> {
    let meeting = Meeting::start()?;
    let channels = [Channel::Stored, Channel::Direct];
    let (mut probes, mut rounds) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..plan.rounds.max(1) {
        for (at, channel) in channels.into_iter().enumerate() {
            probes[at].push(round(&meeting, plan, Op::Pingpong, 2, &PROBES, channel)?);
            rounds[at].push(round(&meeting, plan, plan.op, plan.ranks, &plan.sizes, channel)?);
        }
    }
    let look_s = pause(plan.place.kind()).map(|pause| pause.as_secs_f64());
    let (stored, direct) = (measured(&probes[0], look_s, true), measured(&probes[1], None, false));
    let prices = plan.prices.unwrap_or_default();
    let way = |us: f64, bytes: usize, known: &Measured, table: Algorithms| {
        let Prediction {
            seconds,
            puts,
            gets,
            price,
        } = cost::predict(model(plan.op), plan.ranks as u32, bytes as u64, &table, known, &prices);
        Way {
            us,
            predicted_us: seconds * 1e6,
            puts,
            gets,
            price: plan.prices.map(|_| price),
        }
    };
    let row = |(at, bytes): (usize, &usize)| {
        let [through, beside] = [median(&rounds[0], at), median(&rounds[1], at)];
        Row {
            bytes: *bytes,
            stored: way(through, *bytes, &stored, Algorithms::stored()),
            direct: way(beside, *bytes, &direct, Algorithms::default()),
            ratio: through / beside,
        }
    };
    Ok(Report {
        op: plan.op.name(),
        ranks: plan.ranks,
        transport: plan.place.kind().name(),
        store: plan.place.to_string(),
        stored,
        direct,
        prices: plan.prices,
        rows: plan.sizes.iter().enumerate().map(row).collect(),
    })
}
