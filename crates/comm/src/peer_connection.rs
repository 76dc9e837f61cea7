//! The authenticated connection between two ranks, which joining a group returns.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::Route;

/// An authenticated connection between two ranks of a group.
#[derive(Debug)]
pub enum PeerConnection {
    /// Both ranks are on one host: the socket can pass descriptors, and so shared memory.
    Local(UnixStream),
    /// A byte stream; through the TLS session if there is one, in clear over a trusted network.
    Remote {
        /// Connected; no bytes of the group's messages were read from it.
        socket: TcpStream,
        /// TLS session with the other rank, after its handshake.
        session: Option<Box<rustls::Connection>>,
        /// How the connection came about.
        route: Route,
    },
    /// A byte stream through a store. This process carries the bytes between the store and a local socket.
    Stored {
        /// The local socket.
        socket: UnixStream,
        /// TLS session with the other rank, after its handshake.
        session: Box<rustls::Connection>,
    },
    /// A byte stream to this host's [connector](crate::connector), which carries it to the other rank, since a sandbox
    /// has no network.
    Carried {
        /// To the connector, in clear.
        socket: UnixStream,
        /// How the bytes travel from there.
        route: Route,
        /// Whether the other rank is on this host.
        near: bool,
    },
}

impl PeerConnection {
    /// How its bytes travel.
    pub fn route(&self) -> Route {
        match self {
            Self::Local(_) => Route::Local,
            Self::Remote { route, .. } | Self::Carried { route, .. } => *route,
            Self::Stored { .. } => Route::Stored,
        }
    }
}
