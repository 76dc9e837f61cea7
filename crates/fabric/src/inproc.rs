//! A channel with both ends in one process, with the layout of shared memory. For tests of code above a link.

use std::sync::Arc;

use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Geometry;

use crate::mapped::{self, MappedLink, Side};
use crate::memory::Mapping;
use crate::{LinkError, Transport};

/// Ends the channel of a pair, as a node would.
#[derive(Debug, Clone)]
pub struct Closer(Arc<Mapping>);

impl Closer {
    /// Ends the channel for both sides.
    pub fn close(&self, end: End) {
        mapped::close(&self.0, end);
    }
}

/// Returns the client's end, the worker's end and the closer of a new channel.
pub fn pair(geometry: Geometry) -> Result<(MappedLink, MappedLink, Closer), LinkError> {
    let memory = Arc::new(Mapping::anonymous(mapped::memory_bytes(geometry))?);
    let end = |side| MappedLink::new(memory.clone(), Transport::Inproc, geometry, side, false);
    Ok((end(Side::Client), end(Side::Worker), Closer(memory.clone())))
}
