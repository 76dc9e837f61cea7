//! A worker: waits for a channel, serves it until it ends, and waits again.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dayfly_fabric::memory::Mapping;
use dayfly_fabric::{AnyLink, Link, LinkError, clock, descriptors};
use dayfly_protocol::executor::{
    FromExecutor, LoadFunction, MAX_PACKET_BYTES, MIN_LONG_CALL_US, ToExecutor, VISIBLE_GPUS,
};
use dayfly_protocol::hello::options;
use dayfly_protocol::ids::{FunctionIndex, WorkerIndex};
use dayfly_protocol::sizes::Sizes;
use dayfly_protocol::slot::Status;

use rustix::process::Pid;

use crate::attachment::open;
use crate::cores::CoreSlot;
use crate::meter::{Account, Activity, Meter, Orders, meters_length};
use crate::output_pipes::OutputPipes;
use crate::reaper::Reaper;
use crate::{Call, LoadError, Runtime, fork_guard};

/// Polls between two reads of the clock. An empty poll of shared memory takes about 1 ns, so the time that a worker
/// stays hot is exact to a microsecond.
const POLLS_PER_CHECK: u32 = 1024;
/// The same for a stream, whose empty polls are system calls.
const STREAM_POLLS_PER_CHECK: u32 = 16;
/// Longest sleep without a wake-up. The wake-up protocol does not need it; it covers a lost kernel notification of the
/// node's death.
const SLEEP_LIMIT: Duration = Duration::from_secs(60);

/// Longest sleep on a channel whose client was promised that the worker never sleeps, and so may not wake it: the lease
/// has changed since.
const PROMISED_SLEEP_LIMIT: Duration = Duration::from_millis(1);

/// Calls shorter than this do not claim a core, which takes about 2 us after a sleep.
const SHORT_CALL_US: u64 = 50;

struct Worker<'a, R: Runtime> {
    runtime: &'a mut R,
    index: WorkerIndex,
    meter: Meter,
    /// Accounts of the functions, by function number.
    accounts: Vec<Account>,
    /// Its claim on a core while it shares cores, if the node limits the calls on them.
    core_slot: Option<CoreSlot>,
    /// The node's orders, as last read, and the ticks that they let it poll.
    orders: u64,
    owns_cores: bool,
    stops: bool,
    poll_ticks: u64,
    /// Ticks of its last call, and the bound below which a call is short.
    last_call: u64,
    short_call: u64,
    /// The bound above which the next call is announced; the largest number if no call is.
    long_call: u64,
    /// The socket to its parent, which passes announcements on.
    parent: &'a OwnedFd,
    code_dir: PathBuf,
    max_output_bytes: u64,
    /// Set if output is attributed to calls.
    output_pipes: Option<OutputPipes>,
    reaper: Reaper,
}

/// Waits for a lease over `parent`, then serves channels that arrive the same way, until the parent is gone.
pub fn serve<R: Runtime>(runtime: &mut R, index: WorkerIndex, parent: &OwnedFd) {
    fork_guard::install();
    let mut packet = vec![0; MAX_PACKET_BYTES];
    let Some((message, files)) = receive(parent, &mut packet) else {
        return;
    };
    match Worker::of(runtime, index, parent, message, files) {
        Ok(mut worker) => worker.serve(&mut packet),
        Err(error) => eprintln!("dayfly worker {}: cannot begin: {error}", index.0),
    }
}

/// The next valid message; `None` when the parent is gone.
fn receive(parent: &OwnedFd, packet: &mut [u8]) -> Option<(ToExecutor, Vec<OwnedFd>)> {
    loop {
        let (length, files) = descriptors::receive(parent, packet).ok()?;
        if length == 0 {
            return None;
        }
        if let Ok(message) = serde_json::from_slice(&packet[..length]) {
            return Some((message, files));
        }
    }
}

impl<'a, R: Runtime> Worker<'a, R> {
    fn of(
        runtime: &'a mut R,
        index: WorkerIndex,
        parent: &'a OwnedFd,
        message: ToExecutor,
        files: Vec<OwnedFd>,
    ) -> std::io::Result<Self> {
        let (
            ToExecutor::Assign {
                meters: meter_count,
                code_dir,
                max_output_bytes,
                worker_memory_bytes,
                gpus,
                gpus_per_worker,
                announces_calls,
                ..
            },
            [meters, rest @ ..],
        ) = (message, &files[..])
        else {
            return Err(std::io::ErrorKind::InvalidData.into());
        };
        if worker_memory_bytes > 0 {
            // Nothing bounds the workers together, so each has a permanent limit of its own.
            let limit = rustix::process::Rlimit {
                current: Some(worker_memory_bytes),
                maximum: Some(worker_memory_bytes),
            };
            rustix::process::setrlimit(rustix::process::Resource::Data, limit)?;
        }
        if let Some(gpus) = gpus {
            let (first, count) = (
                usize::from(index.0) * usize::from(gpus_per_worker),
                usize::from(gpus_per_worker),
            );
            let own = gpus.get(first..first + count).unwrap_or_default();
            runtime.set_variable(VISIBLE_GPUS, &own.join(","));
        }
        let core_slot = match rest.first() {
            // Worker numbers repeat between leases, but process ids are distinct and close together.
            Some(file) => Some(CoreSlot::new(file.try_clone()?, std::process::id())),
            None => None,
        };
        let long_call = match announces_calls {
            true => clock::ticks_of_us(MIN_LONG_CALL_US),
            false => u64::MAX,
        };
        let mut worker = Self {
            core_slot,
            orders: 0,
            owns_cores: false,
            stops: false,
            poll_ticks: 0,
            // Neither short nor long.
            last_call: long_call,
            long_call,
            parent,
            short_call: clock::ticks_of_us(SHORT_CALL_US),
            meter: Meter::new(Arc::new(Mapping::of(meters, meters_length(meter_count))?), index.0),
            accounts: Vec::new(),
            runtime,
            index,
            code_dir: code_dir.into(),
            max_output_bytes,
            output_pipes: None,
            reaper: Reaper::default(),
        };
        worker.follow_orders();
        Ok(worker)
    }

    /// Follows the node's orders, if they have changed.
    #[inline(always)]
    fn read_orders(&mut self) {
        if self.meter.orders_word() != self.orders {
            self.follow_orders();
        }
    }

    #[cold]
    fn follow_orders(&mut self) {
        self.orders = self.meter.orders_word();
        let orders = self.meter.orders();
        self.owns_cores = orders.owns_cores;
        self.stops = orders.stops;
        self.poll_ticks = match orders.poll_us {
            Orders::WITHOUT_END => u64::MAX,
            us => clock::ticks_of_us(us),
        };
        if self.owns_cores {
            // Others need the shared core.
            self.leave_core();
        }
    }

    fn serve(&mut self, packet: &mut [u8]) {
        loop {
            self.meter.set_activity(Activity::Asleep);
            let Some((message, files)) = receive(self.parent, packet) else {
                return;
            };
            let (channel, is_promised) = match &message {
                ToExecutor::Attach {
                    channel, options: set, ..
                } => (*channel, set & options::WORKER_NEVER_SLEEPS != 0),
                ToExecutor::RedirectOutput { .. } => {
                    self.output_pipes = OutputPipes::install(files);
                    continue;
                }
                _ => continue,
            };
            self.meter.attach();
            self.meter.set_awake();
            self.read_orders();
            match open(message, files) {
                Ok(mut link) => {
                    let served = self.serve_channel(&mut link, is_promised);
                    self.leave_core();
                    if let Err(error) = served
                        && !matches!(error, LinkError::Ended(_) | LinkError::PeerGone)
                    {
                        eprintln!("dayfly worker {}: channel {channel} ended: {error}", self.index.0);
                    }
                }
                Err(error) => eprintln!(
                    "dayfly worker {}: channel {channel} did not open: {error}",
                    self.index.0
                ),
            }
            let detached = FromExecutor::Detached {
                worker: self.index,
                channel,
            };
            let Ok(bytes) = serde_json::to_vec(&detached) else {
                return;
            };
            if descriptors::send(self.parent, &bytes, &[]).is_err() {
                return;
            }
        }
    }

    /// Serves a channel to its end. `is_promised` is whether its client counts on a worker that never sleeps.
    fn serve_channel(&mut self, link: &mut AnyLink, is_promised: bool) -> Result<(), LinkError> {
        let looks = match link {
            AnyLink::Mapped(_) => POLLS_PER_CHECK,
            AnyLink::Stream(_) | AnyLink::Fabric(_) => STREAM_POLLS_PER_CHECK,
        };
        let mut since = clock::ticks();
        let mut polls = 0;
        // Whether it only looks for calls between short sleeps.
        let mut naps = false;
        loop {
            match link.poll() {
                Ok(Some(meta)) => {
                    self.read_orders();
                    if self.stops {
                        // The node ends the channel, and its client sends the call elsewhere.
                        return Err(LinkError::PeerGone);
                    }
                    since = if self.may_run(meta.rejectable) {
                        self.run(link, meta, since)?
                    } else {
                        self.reject(link, since)?
                    };
                    polls = 0;
                    naps = false;
                }
                Ok(None) => {
                    polls += 1;
                    if polls >= looks || self.poll_ticks == 0 || naps {
                        polls = 0;
                        self.read_orders();
                        if naps || clock::ticks() - since >= self.poll_ticks {
                            since = self.sleep(link, since, is_promised)?;
                            naps = is_promised && !matches!(link, AnyLink::Stream(_));
                        }
                    }
                }
                Err(LinkError::Malformed(text)) => {
                    let mut call = Call::new(link, self.max_output_bytes, 0, since);
                    call.fail(text);
                    call.send(Status::MalformedRequest)?;
                }
                Err(error) => {
                    self.meter.polled(clock::ticks() - since);
                    return Err(error);
                }
            }
        }
    }

    fn sleep(&mut self, link: &mut AnyLink, since: u64, is_promised: bool) -> Result<u64, LinkError> {
        if self.poll_ticks > 0 {
            self.meter.polled(clock::ticks() - since);
        }
        self.leave_core();
        self.meter.set_activity(Activity::Asleep);
        let result = match (is_promised, &mut *link) {
            (false, link) | (true, link @ AnyLink::Stream(_)) => link.wait(SLEEP_LIMIT),
            // Its end of the fabric was opened without the means to block.
            (true, AnyLink::Fabric(_)) => {
                std::thread::sleep(PROMISED_SLEEP_LIMIT);
                Ok(())
            }
            (true, link) => link.wait(PROMISED_SLEEP_LIMIT),
        };
        self.meter.set_awake();
        self.read_orders();
        result.map(|()| clock::ticks())
    }

    /// Whether a call may run: on an own core, or on a shared one, which this claims. A call that must run does so in
    /// any case, and occupies a core only if it may be long.
    #[inline(always)]
    fn may_run(&mut self, rejectable: bool) -> bool {
        match &mut self.core_slot {
            _ if self.owns_cores => true,
            None => true,
            Some(_) if !rejectable && self.last_call < self.short_call => true,
            Some(slot) => slot.claim() || !rejectable,
        }
    }

    fn leave_core(&mut self) {
        if let Some(slot) = &mut self.core_slot {
            slot.release();
        }
    }

    #[cold]
    fn reject(&mut self, link: &mut AnyLink, since: u64) -> Result<u64, LinkError> {
        let mut call = Call::new(link, self.max_output_bytes, 0, since);
        call.fail("every core that warm workers share is busy; the call was not started");
        let sent = call.send(Status::Rejected);
        link.done();
        sent.map(|_| since)
    }

    #[inline(always)]
    fn run(&mut self, link: &mut AnyLink, meta: dayfly_fabric::Meta, since: u64) -> Result<u64, LinkError> {
        let start = clock::ticks();
        // An unknown function is charged to none, as is loading, which is number 0.
        let account = match meta.function {
            0 => Account::NONE,
            index => self.accounts.get(usize::from(index) - 1).copied().unwrap_or_default(),
        };
        let follows_long = self.last_call > self.long_call;
        if self.long_call != u64::MAX {
            self.note_sizes(link, meta);
        }
        self.meter.begin(account, meta.sequence, meta.deadline_ms, start);
        if follows_long {
            self.announce();
        }
        let mut call = Call::new(link, self.max_output_bytes, meta.deadline_ms, start);
        let status = match meta.function {
            index if index == FunctionIndex::LOAD.0 => self.load(&mut call),
            index => self.runtime.invoke(index - 1, &mut call),
        };
        if let Some(output_pipes) = &self.output_pipes {
            self.runtime.flush();
            if output_pipes.restore() {
                // Output that could not be written before still belongs to this call.
                self.runtime.flush();
            }
            output_pipes.wait_until_read();
            self.reaper.after_call();
        }
        let sent = call.send(status);
        let end = clock::ticks();
        // Waiting without polling is sleep, which is free.
        let polling = if self.poll_ticks > 0 { start - since } else { 0 };
        self.last_call = end - start;
        self.meter
            .finish(account, meta.sequence, status != Status::Ok, end - start, polling);
        link.done();
        if self.last_call > self.long_call {
            self.announce();
        }
        sent.map(|_| end)
    }

    /// Records the sizes of a call that is about to begin: the node needs them if the call turns out to be long.
    #[inline(never)]
    fn note_sizes(&mut self, link: &mut AnyLink, meta: dayfly_fabric::Meta) {
        let input = &link.current().input;
        let sizes = match meta.function.checked_sub(1) {
            Some(function) => self.runtime.sizes(function, input),
            None => Sizes::default(),
        };
        self.meter.announce(meta.sequence, input.len() as u64, &sizes);
    }

    /// Wakes the node, which reads the meter. Without it, the node notices the change at its next reading.
    #[cold]
    fn announce(&self) {
        use rustix::net::{SendFlags, send};
        let changed = FromExecutor::CallChanged { worker: self.index };
        if let Ok(bytes) = serde_json::to_vec(&changed) {
            let _ = send(self.parent, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    fn load(&mut self, call: &mut Call<'_>) -> Status {
        let loaded = serde_json::from_slice::<LoadFunction>(call.input())
            .map_err(|error| LoadError::Failed(format!("the request to load a function is malformed: {error}")))
            .and_then(|function| {
                let code = self.code_dir.join(function.hash.to_string());
                if !code.exists() {
                    return Err(format!("the node has no code {}; send it first", function.hash).into());
                }
                let number = self.runtime.load(&code, &function)?;
                let known = self.accounts.len().max(usize::from(number) + 1);
                self.accounts.resize(known, Account::NONE);
                self.accounts[usize::from(number)] = self.meter.account(&function.label());
                Ok(number)
            })
            .and_then(|number| {
                number
                    .checked_add(1)
                    .ok_or_else(|| "too many functions in one worker".into())
            });
        match loaded {
            Ok(index) if call.put(&index.to_le_bytes()).is_ok() => Status::Ok,
            Ok(_) => Status::OutOfMemory,
            Err(error) => {
                call.fail(error.text());
                error.status()
            }
        }
    }
}

/// Makes the process a worker: it dies with its parent, leads its own process group, and is the subreaper of everything
/// that it starts, including daemons, so that all of them can be ended together.
pub fn become_subreaper(parent: Pid) {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // The parent may have died before. Without it, the worker would serve its channel forever.
    if rustix::process::getppid() != Some(parent) {
        // SAFETY: ends only this worker, without its parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Restricts a single-threaded process, or this one, to some cores. An empty list changes nothing.
pub fn pin(process: Option<Pid>, cores: &[u16]) {
    if cores.is_empty() {
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    for core in cores {
        set.set(*core as usize);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(process, &set) {
        eprintln!("dayfly executor: a process cannot be pinned to cores {cores:?}: {error}");
    }
}

/// The descriptor that the node left open at this number.
pub fn borrow(raw: i32) -> BorrowedFd<'static> {
    // SAFETY: the node starts an executor with its control socket there, and nothing in this process closes it.
    unsafe { BorrowedFd::borrow_raw(raw) }
}
