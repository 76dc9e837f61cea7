//! `dayfly bench fleet`: a call of a fleet of one lease beside the same call of that lease's own pool.

use std::fmt;
use std::time::Duration;

use dayfly_client::{
    CallOptions, Client, Fleet, FleetOptions, Form, FunctionId, Lease, LeaseOptions, Mode, Pool, PoolOptions,
};
use serde::Serialize;

use crate::alternate::{Block, Difference, Plan, alternate};
use crate::busy::{Noise, Watch};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::footer;
use crate::stats::{Samples, Summary, timed};
use crate::subject::{FUNCTIONS, failed, settle};
use crate::table::{Table, duration};

/// Options of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Measured calls of each kind.
    pub calls: usize,
    /// Bytes of the input and of the output.
    pub size: usize,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetReport {
    /// Calls of the pool of a lease with one hot worker.
    pub pool: Summary,
    /// Calls of a fleet with one such lease.
    pub fleet: Summary,
    /// What the fleet adds.
    pub difference: Difference,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

/// How long a fleet may take to have its worker.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Measures on the client's node. Both kinds of calls use the same cores, in turns.
pub fn run(client: &Client, mine: &[u32], options: Options) -> Result<FleetReport, Error> {
    settle()?;
    let watch = Watch::start(mine);
    let turns = |is_fleet| Turns {
        client,
        is_fleet,
        input: vec![7; options.size],
        now: None,
    };
    let result = alternate(&mut turns(false), &mut turns(true), Plan::of_calls(options.calls))?;
    Ok(FleetReport {
        pool: result.baseline(),
        fleet: result.subject(),
        difference: result.difference(),
        machine: Machine::this(),
        noise: watch.finish().judge(options.force)?,
    })
}

/// A pool or a fleet that leases its worker anew for each turn.
struct Turns<'a> {
    client: &'a Client,
    is_fleet: bool,
    input: Vec<u8>,
    now: Option<(Workers, FunctionId)>,
}

enum Workers {
    Pool { pool: Pool, _lease: Lease },
    Fleet(Fleet),
}

impl Workers {
    fn pool(&self) -> &Pool {
        match self {
            Self::Pool { pool, .. } => pool,
            Self::Fleet(fleet) => fleet.pool(),
        }
    }
}

fn terms() -> (LeaseOptions, PoolOptions) {
    let mut lease = LeaseOptions::native(1);
    lease.mode = Mode::Hot;
    let mut pool = PoolOptions::default();
    pool.channel.spin = None;
    (lease, pool)
}

impl Block for Turns<'_> {
    fn resume(&mut self) -> Result<(), Error> {
        let (lease, pool) = terms();
        let form = Form::Plain { symbol: "echo".into() };
        self.now = Some(match self.is_fleet {
            true => {
                let options = FleetOptions {
                    lease,
                    pool,
                    ..FleetOptions::native(1, 1)
                };
                let fleet = self.client.fleet(options).map_err(failed)?;
                let code = fleet.put_code(FUNCTIONS).map_err(failed)?;
                let echo = fleet.register(code, form).map_err(failed)?;
                if !fleet.wait_for_workers(1, START_LIMIT) {
                    return Err(failed("the fleet has no worker"));
                }
                (Workers::Fleet(fleet), echo)
            }
            false => {
                let lease = self.client.lease(lease).map_err(failed)?;
                let code = lease.put_code(FUNCTIONS).map_err(failed)?;
                let pool = lease.pool(pool).map_err(failed)?;
                let echo = pool.register(code, form).map_err(failed)?;
                (Workers::Pool { pool, _lease: lease }, echo)
            }
        });
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Error> {
        self.now = None;
        Ok(())
    }

    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        let Some((workers, echo)) = &self.now else {
            return Err(failed("no workers were leased"));
        };
        let pool = workers.pool();
        timed(calls, samples, || {
            let output = pool.call(*echo, &self.input, CallOptions::default());
            match output.map_err(|error| failed(error.failure))?.as_slice() == self.input {
                true => Ok(()),
                false => Err(failed("other bytes came back")),
            }
        })
    }
}

impl fmt::Display for FleetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(
            "a call of a hot worker, shm, by a queue in the client",
            &["", "min", "p50", "p99", "max"],
        );
        for (name, times) in [("pool of one lease", &self.pool), ("fleet of one lease", &self.fleet)] {
            let times = [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns].map(duration);
            table.row([name.to_owned()].into_iter().chain(times));
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "The fleet adds {:.0} ns p50, paired by turns.",
            self.difference.overhead_paired_p50_ns
        )?;
        footer(f, &self.machine, &self.noise)
    }
}
