//! The link of a channel that the node attaches to a worker.

use std::os::fd::OwnedFd;

use dayfly_fabric::{AnyLink, Choice, FabricLink, LinkError, StreamLink, shm, tls};
use dayfly_protocol::executor::ToExecutor;
use dayfly_protocol::hello::{options, transport};
use dayfly_protocol::slot::Geometry;

/// Opens the link of an `Attach` message with its descriptor.
pub fn open(message: ToExecutor, mut files: Vec<OwnedFd>) -> Result<AnyLink, LinkError> {
    let ToExecutor::Attach {
        transport: wanted,
        slots,
        stride_bytes,
        bulk_bytes,
        options: set,
        fabrics,
        executor_key_pkcs8,
        client_key,
        ..
    } = message
    else {
        return Err(LinkError::Malformed("not a channel"));
    };
    let geometry = Geometry {
        slots,
        stride_bytes,
        bulk_bytes,
    }
    .check()
    .map_err(|_| LinkError::Malformed("a geometry that no channel can have"))?;
    let Some(file) = files.pop() else {
        return Err(LinkError::Malformed("a channel without a descriptor"));
    };
    match wanted {
        transport::SHM => {
            let never_sleeps = set & options::CLIENT_NEVER_SLEEPS != 0;
            Ok(AnyLink::Mapped(shm::worker(file, geometry, never_sleeps)?))
        }
        transport::TCP => Ok(AnyLink::Stream(Box::new(StreamLink::tcp(file, geometry)?))),
        transport::TLS | transport::LIBFABRIC => {
            let (Some(pkcs8), Some(client)) = (executor_key_pkcs8, client_key) else {
                return Err(LinkError::Malformed("a TLS channel without keys"));
            };
            let identity = tls::Identity::from_pkcs8(pkcs8).map_err(|e| LinkError::Violation(e.to_string()))?;
            let session = tls::worker(&identity, &client).map_err(|e| LinkError::Violation(e.to_string()))?;
            if wanted == transport::TLS {
                return Ok(AnyLink::Stream(Box::new(StreamLink::tls(file, session, geometry)?)));
            }
            let offered: Vec<Choice> = fabrics.iter().filter_map(|name| name.parse().ok()).collect();
            let never_sleeps = set & options::WORKER_NEVER_SLEEPS != 0;
            let link = FabricLink::worker(file, session, geometry, &offered, never_sleeps)?;
            Ok(AnyLink::Fabric(Box::new(link)))
        }
        _ => Err(LinkError::Malformed("an unknown transport")),
    }
}
