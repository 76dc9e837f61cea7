//! The part of [`Channel`] that opens it: the hello exchange, and one link for each transport.

use dayfly_fabric::{AnyLink, FabricLink, StreamLink, Transport, shm, tls};
use dayfly_lease::token;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::{options as hello_options, transport as wire_transport};
use dayfly_protocol::ids::{Incarnation, WorkerIndex};

use super::{Channel, ChannelOptions};
use crate::error::Error;
use crate::lease::Lease;
use crate::node;
use crate::open_request::OpenRequest;

impl Channel {
    /// Requests a channel from the lease's node and waits until it is open or `open_request` is cancelled.
    pub(crate) fn open(
        lease: &Lease,
        worker: WorkerIndex,
        options: &ChannelOptions,
        open_request: &OpenRequest,
    ) -> Result<Self, Error> {
        let geometry = options
            .geometry
            .check()
            .map_err(|error| Error::new(Code::InvalidRequest, error.to_string()))?;
        let inner = &lease.inner;
        let transport = options.transport.unwrap_or_else(|| node::best_transport(&inner.node));
        let wire = match transport {
            Transport::Shm => wire_transport::SHM,
            Transport::Tcp => wire_transport::TCP,
            Transport::Tls => wire_transport::TLS,
            Transport::Libfabric(_) => wire_transport::LIBFABRIC,
            Transport::Inproc => return Err(Error::new(Code::TransportRefused, "inproc reaches no other process")),
        };
        let set = if options.spin.is_none() {
            hello_options::CLIENT_NEVER_SLEEPS
        } else {
            0
        };
        let hello = token::Opening::Channel {
            worker,
            transport: wire,
            geometry,
            options: set,
        };
        let id = node::random_channel()?;
        let mut socket = node::connect(&inner.node, transport == Transport::Shm)?;
        open_request.send_over(&socket)?;
        let (verdict, file) = node::open(&inner.node, &mut socket, hello, &inner.token(), &inner.holder, id)?;
        let never_sleeps = u32::from(verdict.options.get()) & hello_options::WORKER_NEVER_SLEEPS != 0;
        let (link, control) = match transport {
            Transport::Shm => {
                let file = file.ok_or_else(|| {
                    Error::new(
                        Code::ProtocolViolation,
                        "the node accepted a shared-memory channel and sent no memory",
                    )
                })?;
                (
                    AnyLink::Mapped(shm::client(file, geometry, never_sleeps)?),
                    Some(socket.into_fd()),
                )
            }
            Transport::Tls | Transport::Libfabric(_) => {
                let identity = tls::Identity {
                    pkcs8: inner.holder.to_pkcs8(),
                    public: inner.holder.public(),
                };
                let session = tls::client(&identity, &verdict.executor_key)
                    .map_err(|error| Error::new(Code::Unauthorized, format!("TLS cannot be set up: {error}")))?;
                let (socket, spins) = (socket.into_fd(), options.spin.is_none());
                let link = match transport {
                    Transport::Libfabric(wanted) => {
                        AnyLink::Fabric(Box::new(FabricLink::client(socket, session, geometry, wanted, spins)?))
                    }
                    _ => AnyLink::Stream(Box::new(StreamLink::tls(socket, session, geometry)?)),
                };
                (link, None)
            }
            Transport::Tcp | Transport::Inproc => (
                AnyLink::Stream(Box::new(StreamLink::tcp(socket.into_fd(), geometry)?)),
                None,
            ),
        };
        let keepalive = inner.keepalive(transport == Transport::Shm)?;
        if let (Some(watch), Some(socket)) = (&keepalive, link.socket()) {
            watch.guard(socket);
        }
        open_request.complete()?;
        Ok(Self {
            link,
            lease: lease.clone(),
            id,
            worker,
            incarnation: Incarnation(verdict.incarnation.get()),
            worker_pid: verdict.worker_pid.get(),
            spin: options.spin,
            outstanding: 0,
            control,
            keepalive,
        })
    }
}
