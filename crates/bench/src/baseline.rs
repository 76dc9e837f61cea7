//! Limits of the machine, measured without Dayfly's code.
//!
//! Each baseline has a real other process as its peer, pinned to another core than the caller, and makes its calls in
//! blocks ([`Block`]) so that it can be measured in turns with an invocation. Between blocks the peers sleep.

mod cache_line;
mod copy;
mod fabric;
mod futex;
mod peer;
mod ring;
mod spawn;
mod tcp;
mod tls;

pub use cache_line::CacheLine;
pub use copy::{Copy, CopyInPeer};
pub use fabric::FabricPing;
pub use futex::Futex;
pub use peer::{Cores, pin};
pub use ring::Ring;
pub use spawn::Spawn;
pub use tcp::{TcpEcho, TcpSink};
pub use tls::TlsEcho;

use dayfly_client::Transport;

use crate::alternate::Block;
use crate::error::Error;

/// A limit of the machine, measured in blocks.
pub trait Baseline: Block {
    /// Its name in reports, such as `cache_line`.
    fn name(&self) -> &str;
    /// Description of one call.
    fn about(&self) -> String;
}

/// The baseline with which an invocation over the given transport is compared.
///
/// Shared memory: spinning on a cache line when hot, futexes when warm, and a copy in the peer's process for payloads
/// of many cache lines. TCP and TLS: an echo over raw sockets, spinning when hot and blocking when warm. libfabric:
/// raw remote writes there and back.
pub fn matching(transport: Transport, hot: bool, size: usize) -> Result<Box<dyn Baseline>, Error> {
    Ok(match (transport, hot) {
        (Transport::Tcp, true) => Box::new(TcpEcho::spinning(size)?),
        (Transport::Tcp, false) => Box::new(TcpEcho::blocking(size)?),
        (Transport::Tls, true) => Box::new(TlsEcho::spinning(size)?),
        (Transport::Tls, false) => Box::new(TlsEcho::blocking(size)?),
        (Transport::Libfabric(choice), true) => Box::new(FabricPing::spinning(choice, size)?),
        (Transport::Libfabric(choice), false) => Box::new(FabricPing::blocking(choice, size)?),
        (_, false) => Box::new(Futex::new(size.min(CacheLine::LARGEST))?),
        (_, true) if size > CacheLine::LARGEST => Box::new(CopyInPeer::new(size)?),
        (_, true) => Box::new(CacheLine::bare()?),
    })
}
