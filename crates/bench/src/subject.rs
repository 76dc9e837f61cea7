//! Invocations of a C function on a leased worker.

use std::time::Duration;

use dayfly_client::{
    Buffer, Channel, ChannelOptions, Client, Form, FunctionIndex, Geometry, Lease, LeaseOptions, Mode, Sandbox,
    Transport, WorkerIndex,
};

use crate::alternate::Block;
use crate::baseline::{Cores, pin};
use crate::error::Error;
use crate::stats::{Samples, timed};
use crate::tsc::Tsc;

/// The functions, compiled with this crate.
pub const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.so"));

/// Largest payload inside a slot.
const LARGEST_INLINE: usize = 32 << 10;

pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::Subject(error.to_string())
}

/// Opens a channel to a worker and loads one of the functions, in the papers' form.
pub(crate) fn open(lease: &Lease, worker: u16, symbol: &str) -> Result<(Channel, FunctionIndex), Error> {
    let code = lease.put_code(FUNCTIONS).map_err(failed)?;
    let mut channel = lease
        .channel(WorkerIndex(worker), &ChannelOptions::default())
        .map_err(failed)?;
    let form = Form::Plain { symbol: symbol.into() };
    let function = channel.load(code, &form).map_err(failed)?;
    Ok((channel, function))
}

/// Options of the invocations.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Transport.
    pub transport: Transport,
    /// Whether workers poll or sleep.
    pub hot: bool,
    /// Bytes of the input and of the output.
    pub size: usize,
    /// The papers' form of the function, or the checked one.
    pub plain: bool,
    /// Sandbox of the workers.
    pub sandbox: Sandbox,
}

/// A lease with its channels. The function is loaded on each.
pub struct Workers {
    lanes: Vec<Lane>,
    how: How,
    _lease: Lease,
}

struct Lane {
    channel: Channel,
    function: FunctionIndex,
    buffers: Option<(Buffer, Buffer)>,
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a worker of our own lease, whose process id its node told us.
    unsafe { libc::kill(pid as i32, signal) };
}

impl Workers {
    /// Leases workers and opens a channel to each.
    pub fn lease(client: &Client, workers: u16, how: How) -> Result<Self, Error> {
        let mut options = LeaseOptions::native(workers);
        options.mode = if how.hot { Mode::Hot } else { Mode::Warm };
        options.sandbox = Some(how.sandbox);
        if !how.hot {
            options.hot_for = Some(Duration::ZERO);
        }
        let lease = client.lease(options).map_err(failed)?;
        let code = lease.put_code(FUNCTIONS).map_err(failed)?;
        let inline = how.size.min(LARGEST_INLINE);
        let stride_bytes = (inline + 16).next_multiple_of(128).max(512) as u32;
        let options = ChannelOptions {
            transport: Some(how.transport),
            geometry: Geometry {
                stride_bytes,
                ..Geometry::DEFAULT
            },
            spin: if how.hot { None } else { Some(Duration::ZERO) },
        };
        let symbol = if how.plain { "echo" } else { "echo_checked" }.to_owned();
        let form = if how.plain {
            Form::Plain { symbol }
        } else {
            Form::Checked { symbol }
        };
        let mut lanes = Vec::new();
        for index in 0..workers {
            let mut channel = lease.channel(WorkerIndex(index), &options).map_err(failed)?;
            let function = channel.load(code, &form).map_err(failed)?;
            let buffers = if how.size > LARGEST_INLINE {
                let mut input = channel.allocate(how.size).map_err(failed)?;
                input.as_mut_slice().fill(7);
                Some((input, channel.allocate(how.size).map_err(failed)?))
            } else {
                None
            };
            lanes.push(Lane {
                channel,
                function,
                buffers,
            });
        }
        let workers = Self {
            lanes,
            how,
            _lease: lease,
        };
        if !how.hot {
            workers.pin_warm()?;
        }
        Ok(workers)
    }

    /// Warm workers float over the shared cores; a baseline's peer does not. Both sides are pinned alike.
    fn pin_warm(&self) -> Result<(), Error> {
        let core = Cores::pick()?.peer;
        for lane in &self.lanes {
            // SAFETY: an all-zero cpu_set_t is an empty set, and the core comes from the kernel.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(core, &mut set);
                libc::sched_setaffinity(lane.channel.worker_pid() as i32, size_of::<libc::cpu_set_t>(), &set);
            }
        }
        Ok(())
    }

    /// The transport, with provider and domain if it has them.
    pub fn transport(&self) -> Transport {
        self.lanes
            .first()
            .map_or(self.how.transport, |lane| lane.channel.transport())
    }

    /// Process ids of the workers.
    pub fn pids(&self) -> Vec<u32> {
        self.lanes.iter().map(|lane| lane.channel.worker_pid()).collect()
    }

    /// Returns invocations per second over all workers, with `depth` outstanding on each and `calls` in total.
    pub fn rate(&mut self, depth: usize, calls: usize) -> Result<f64, Error> {
        self.resume()?;
        let input = vec![7; self.how.size.min(LARGEST_INLINE)];
        let depth = depth.clamp(1, Geometry::DEFAULT.slots as usize);
        let (mut sent, mut received) = (0, 0);
        let from = Tsc::now();
        while received < calls {
            for lane in &mut self.lanes {
                while sent < calls && (lane.channel.outstanding() as usize) < depth {
                    lane.channel.submit(lane.function, &input, 0).map_err(failed)?;
                    sent += 1;
                }
                while let Some(completion) = lane.channel.poll().map_err(failed)? {
                    if completion.status != 0 {
                        return Err(failed(format!("an invocation ended with status {}", completion.status)));
                    }
                    std::hint::black_box(lane.channel.output().first());
                    lane.channel.done();
                    received += 1;
                }
            }
            if !self.how.hot
                && self
                    .lanes
                    .iter()
                    .all(|lane| lane.channel.outstanding() as usize == depth)
            {
                // Yield, because a warm worker may share this core.
                std::thread::yield_now();
            }
        }
        let rate = calls as f64 * 1e9 / Tsc::get().ns(Tsc::now() - from);
        self.pause()?;
        Ok(rate)
    }
}

impl Block for Workers {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        let size = self.how.size;
        let Some(lane) = self.lanes.first_mut() else {
            return Ok(());
        };
        match &mut lane.buffers {
            Some((input, output)) => timed(calls, samples, || {
                let length = lane
                    .channel
                    .call_into(lane.function, input, size, output, 0)
                    .map_err(failed)?;
                if length == size {
                    Ok(())
                } else {
                    Err(failed(format!("{length} bytes came back of {size}")))
                }
            }),
            None => {
                let input = vec![7; size];
                timed(calls, samples, || {
                    let reply = lane.channel.call(lane.function, &input).map_err(failed)?;
                    if reply.len() == size {
                        Ok(())
                    } else {
                        Err(failed(format!("{} bytes came back of {size}", reply.len())))
                    }
                })
            }
        }
    }

    /// Stops the workers, because a polling worker would take the core of the baseline's peer.
    fn pause(&mut self) -> Result<(), Error> {
        self.pids().into_iter().for_each(|pid| signal(pid, libc::SIGSTOP));
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Error> {
        self.pids().into_iter().for_each(|pid| signal(pid, libc::SIGCONT));
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.resume();
    }
}

/// Workers that are leased anew for each turn, so that two kinds of workers can use the same core in turns.
pub struct InTurns<'a> {
    client: &'a Client,
    how: How,
    now: Option<Workers>,
}

impl<'a> InTurns<'a> {
    /// Makes one without leasing.
    pub fn new(client: &'a Client, how: How) -> Self {
        Self { client, how, now: None }
    }
}

impl Block for InTurns<'_> {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        match &mut self.now {
            Some(workers) => workers.block(calls, samples),
            None => Err(failed("no workers were leased")),
        }
    }

    fn resume(&mut self) -> Result<(), Error> {
        self.now = Some(Workers::lease(self.client, 1, self.how)?);
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Error> {
        self.now = None;
        Ok(())
    }
}

/// Pins the calling thread to the client's core.
pub fn settle() -> Result<(), Error> {
    pin(Cores::pick()?.client)
}
