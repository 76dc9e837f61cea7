//! The in-memory twin of shared memory: both ends in one process. For tests of everything above a link.

use std::sync::Arc;

use dayfly_protocol::node_api::End;
use dayfly_protocol::slot::Geometry;

use crate::mapped::{self, MappedLink, Side};
use crate::memory::Mapping;
use crate::{LinkError, Transport};

/// Ends the pair's channel, as a node would.
#[derive(Debug, Clone)]
pub struct Closer(Arc<Mapping>);

impl Closer {
    /// Ends it for both sides.
    pub fn close(&self, end: End) {
        mapped::close(&self.0, end);
    }
}

/// Both ends of a channel: client, worker, and what ends it.
pub fn pair(geometry: Geometry) -> Result<(MappedLink, MappedLink, Closer), LinkError> {
    let memory = Arc::new(Mapping::anonymous(mapped::memory_bytes(geometry))?);
    let end = |side| MappedLink::new(memory.clone(), Transport::Inproc, geometry, side, false);
    Ok((end(Side::Client), end(Side::Worker), Closer(memory.clone())))
}
