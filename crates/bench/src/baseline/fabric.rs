//! Raw remote writes over libfabric.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use dayfly_fabric::libfabric::ffi::{Endpoint, Entry, Library, Region, Target, Wait, is_from_peer};
use dayfly_fabric::{Choice, Transport};

use super::Baseline;
use super::peer::{Mapping, Peer, TIMEOUT};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};

/// A write of SIZE bytes with completion data into the peer's memory, and an equal one back.
pub struct FabricPing {
    peer: Peer,
    end: End,
    transport: Transport,
    spins: bool,
}

/// One side. Fields are dropped in this order.
struct End {
    region: Region,
    endpoint: Endpoint,
    memory: Mapping,
    size: usize,
    other: Target,
    pings: u32,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Os {
        what: "write over libfabric",
        source: std::io::Error::other(error.to_string()),
    }
}

impl End {
    /// Opens an endpoint and sends its address to the other side over `line`.
    fn open(choice: Choice, size: usize, spins: bool, mut line: UnixStream) -> Result<Self, Error> {
        let loopback = Some([127, 0, 0, 1].into());
        let provider = Library::get()
            .and_then(|library| library.provider(&choice.provider(), choice.domain().as_deref(), loopback))
            .map_err(failed)?;
        let wait = if spins { Wait::Never } else { Wait::Descriptor };
        let mut endpoint = Endpoint::open(provider, 64, wait, 1).map_err(failed)?;
        let memory = Mapping::new(2 * size)?;
        // SAFETY: the mapping is that long and outlives the region; nothing borrows its bytes.
        let region = unsafe { endpoint.register(memory.start(), 2 * size) }.map_err(failed)?;
        let name = endpoint.name().map_err(failed)?;
        let Target { address, key } = region.target();
        let mut card = vec![name.len() as u8];
        card.extend(name);
        card.extend(address.to_le_bytes());
        card.extend(key.to_le_bytes());
        line.write_all(&card).map_err(failed)?;
        line.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        let mut length = [0];
        line.read_exact(&mut length).map_err(failed)?;
        let mut theirs = vec![0; length[0] as usize + 16];
        line.read_exact(&mut theirs).map_err(failed)?;
        let (name, target) = theirs.split_at(length[0] as usize);
        endpoint.connect(name).map_err(failed)?;
        let number = |at: usize| u64::from_le_bytes(target[at..at + 8].try_into().unwrap_or_default());
        Ok(Self {
            region,
            endpoint,
            memory,
            size,
            other: Target {
                address: number(0),
                key: number(8),
            },
            pings: 0,
        })
    }

    /// Writes to the other side. Returns whether the provider accepted the write.
    #[inline(always)]
    fn write(&mut self) -> Result<bool, Error> {
        // SAFETY: the second half of the mapping is never written.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.start().add(self.size), self.size) };
        let to = self.other;
        if self.size <= self.endpoint.provider().largest_inject() {
            return self.endpoint.inject(bytes, to, 0).map_err(failed);
        }
        // SAFETY: the bytes never change, and none of the measured providers needs a context.
        unsafe {
            self.endpoint
                .write(bytes, Some(&self.region), to, 0, std::ptr::null_mut())
                .map_err(failed)
        }
    }

    /// Whether a write of the other side has arrived.
    #[inline(always)]
    fn landed(&mut self) -> Result<bool, Error> {
        let mut entries = [Entry::EMPTY; 1];
        if self.pings == 0 {
            let count = self.endpoint.read(&mut entries).map_err(failed)?;
            self.pings += entries[..count].iter().filter(|entry| is_from_peer(entry)).count() as u32;
        }
        let landed = self.pings > 0;
        self.pings -= u32::from(landed);
        Ok(landed)
    }

    /// Sleeps until there may be a completion, if the provider has a descriptor to wait on.
    fn sleep(&mut self) -> Result<(), Error> {
        let Some(queue) = self.endpoint.wait_descriptor().cloned() else {
            std::thread::sleep(Duration::from_micros(50));
            return Ok(());
        };
        if self.endpoint.may_sleep() {
            let mut waiting = libc::pollfd {
                fd: queue.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: waits on one open descriptor.
            unsafe { libc::poll(&mut waiting, 1, 1000) };
        }
        Ok(())
    }
}

impl FabricPing {
    /// Both sides poll their completion queues.
    pub fn spinning(choice: Choice, size: usize) -> Result<Self, Error> {
        Self::new(choice, size, true)
    }

    /// Both sides sleep while they wait, if the provider has a descriptor to wait on.
    pub fn blocking(choice: Choice, size: usize) -> Result<Self, Error> {
        Self::new(choice, size, false)
    }

    fn new(choice: Choice, size: usize, spins: bool) -> Result<Self, Error> {
        let size = size.max(1);
        let (own, other) = UnixStream::pair().map_err(failed)?;
        // Open the library after the fork on both sides, because it may start threads.
        let peer = Peer::fork(if spins { "fabric_spin" } else { "fabric_block" }, move |control| {
            let Ok(mut end) = End::open(choice, size, spins, other) else {
                return;
            };
            loop {
                match end.landed() {
                    Ok(true) => while matches!(end.write(), Ok(false)) {},
                    Ok(false) => {
                        control.rest();
                        if !spins && end.sleep().is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        })?;
        let end = End::open(choice, size, spins, own)?;
        let provider = end.endpoint.provider();
        let transport = Choice::new(&provider.name(), &provider.domain())
            .map_or(Transport::Libfabric(choice), Transport::Libfabric);
        Ok(Self {
            peer,
            end,
            transport,
            spins,
        })
    }

    /// Provider and domain.
    pub fn transport(&self) -> Transport {
        self.transport
    }
}

impl Block for FabricPing {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        let (peer, end, spins) = (&self.peer, &mut self.end, self.spins);
        timed(calls, samples, || {
            let mut empty = 0u32;
            let mut since = None;
            // Reading makes progress until the two sides are connected.
            while !end.write()? {
                end.landed()?;
            }
            while !end.landed()? {
                if !spins {
                    end.sleep()?;
                }
                empty = empty.wrapping_add(1);
                if empty.is_multiple_of(1 << 16) {
                    peer.check(*since.get_or_insert_with(std::time::Instant::now))?;
                }
            }
            Ok(())
        })
    }

    fn resume(&mut self) -> Result<(), Error> {
        self.peer.resume();
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Error> {
        self.peer.pause();
        Ok(())
    }
}

impl Baseline for FabricPing {
    fn name(&self) -> &'static str {
        if self.spins { "fabric_spin" } else { "fabric_block" }
    }

    fn about(&self) -> String {
        let how = if self.spins { "polling" } else { "sleeping" };
        format!(
            "{} bytes written with completion data and as many written back, raw over {}, both sides {how}",
            self.end.size, self.transport
        )
    }
}
