//! Shared memory between processes: one memory file per channel, which the node creates and gives only to the two ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Geometry;

use crate::mapped::{self, MappedLink, Side};
use crate::memory::{Mapping, check_sealed, sealed_memory};
use crate::{LinkError, Transport};

/// The node's handle of a channel's memory, with which it ends the channel.
#[derive(Debug)]
pub struct ChannelMemory {
    file: OwnedFd,
    first_page: Mapping,
}

impl ChannelMemory {
    /// Creates the memory of a channel.
    pub fn create(geometry: Geometry) -> std::io::Result<Self> {
        let file = sealed_memory("dayfly-channel", mapped::memory_bytes(geometry) as u64)?;
        let first_page = Mapping::of(&file, 4096)?;
        Ok(Self { file, first_page })
    }

    /// Returns the file to pass to both ends.
    pub fn file(&self) -> impl AsFd + '_ {
        &self.file
    }

    /// Ends the channel for both ends.
    pub fn close(&self, end: End) {
        mapped::close(&self.first_page, end);
    }
}

fn join(file: impl AsFd, geometry: Geometry, side: Side, peer_never_sleeps: bool) -> Result<MappedLink, LinkError> {
    let length = mapped::memory_bytes(geometry);
    check_sealed(&file, length as u64)?;
    let memory = Arc::new(Mapping::of(&file, length)?);
    Ok(MappedLink::new(
        memory,
        Transport::Shm,
        geometry,
        side,
        peer_never_sleeps,
    ))
}

/// Returns the client's end.
pub fn client(file: impl AsFd, geometry: Geometry, worker_never_sleeps: bool) -> Result<MappedLink, LinkError> {
    join(file, geometry, Side::Client, worker_never_sleeps)
}

/// Returns the worker's end.
pub fn worker(file: impl AsFd, geometry: Geometry, client_never_sleeps: bool) -> Result<MappedLink, LinkError> {
    join(file, geometry, Side::Worker, client_never_sleeps)
}
