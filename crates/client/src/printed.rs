//! What a lease's workers print.

use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::SigningKey;
use dayfly_protocol::api::NodeAddress;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::node_api::{Printer, Request, Response, Stream};

use crate::Error;
use crate::keepalive::Keepalive;
use crate::node::{Control, unexpected};

/// Something that was printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    /// Where: standard output or error.
    pub stream: Stream,
    /// What. Pieces end anywhere.
    pub bytes: Vec<u8>,
    /// By which call, where the lease has that told ([`LeaseOptions::output_by_call`](crate::LeaseOptions::output_by_call)).
    pub by: Option<Printer>,
}

/// Reads what a lease's workers print, from the lease's beginning. Made by [`Lease::printed`](crate::Lease::printed); it keeps no
/// lease alive, and reads on for some minutes after one is over.
pub struct Reader {
    node: NodeAddress,
    token: Token,
    holder: SigningKey,
    /// Who watches over the node, if it is on another host.
    watch: Option<Arc<Keepalive>>,
    /// A connection of its own: others do not wait until something is printed.
    control: Option<Control>,
    from: u64,
    missed: u64,
    over: bool,
}

impl Reader {
    pub(crate) fn new(node: NodeAddress, token: Token, holder: SigningKey, watch: Option<Arc<Keepalive>>) -> Self {
        Self {
            node,
            token,
            holder,
            watch,
            control: None,
            from: 0,
            missed: 0,
            over: false,
        }
    }

    /// What was printed since the last call. If that is nothing, waits for something, no longer than this and no longer than some
    /// seconds; nothing then.
    ///
    /// # Errors
    /// [`Code::LeaseEnded`] or [`Code::LeaseExpired`] when the lease was over long ago; as [`Lease::renew`](crate::Lease::renew).
    pub fn next(&mut self, wait: Duration) -> Result<Vec<Printed>, Error> {
        let request = Request::Output {
            from: self.from,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
        };
        let asked = self.control()?.ask(&request);
        let (from, pieces) = match asked {
            Ok(Response::Output { from, pieces, over }) => {
                self.over = over;
                (from, pieces)
            }
            Ok(other) => return Err(unexpected("what was printed", &other)),
            Err(error) => {
                // The next call tries over a new one.
                self.control = None;
                return Err(error);
            }
        };
        let read = |text: &str| {
            hex::decode(text).map_err(|error| {
                Error::new(
                    Code::ProtocolViolation,
                    format!("the node's output makes no sense: {error}"),
                )
            })
        };
        let mut printed = Vec::with_capacity(pieces.len());
        let mut end = from;
        for piece in pieces {
            let bytes = read(&piece.bytes)?;
            end += bytes.len() as u64;
            printed.push(Printed {
                stream: piece.stream,
                bytes,
                by: piece.by,
            });
        }
        self.missed += from.saturating_sub(self.from);
        self.from = end.max(self.from);
        Ok(printed)
    }

    /// Bytes that the node did not keep until they were read.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Whether the lease is over, and all was read.
    pub fn is_over(&self) -> bool {
        self.over
    }

    fn control(&mut self) -> Result<&mut Control, Error> {
        let control = match self.control.take() {
            Some(open) => open,
            None => {
                let fresh = Control::open(&self.node, &self.token, &self.holder)?;
                if let Some(watch) = &self.watch {
                    watch.guard(fresh.end());
                }
                fresh
            }
        };
        Ok(self.control.insert(control))
    }
}
