//! Output of a lease's workers.

use std::sync::Arc;
use std::time::Duration;

use dayfly_lease::SigningKey;
use dayfly_protocol::api::NodeAddress;
use dayfly_protocol::error::Code;
use dayfly_protocol::hello::Token;
use dayfly_protocol::node_api::{CallLoans, Printer, Request, Response, Stream};

use crate::Error;
use crate::keepalive::Keepalive;
use crate::node::{Control, unexpected};

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOutput {
    /// Standard output or standard error.
    pub stream: Stream,
    /// Bytes; a piece may end in the middle of a character.
    pub bytes: Vec<u8>,
    /// The call that printed, if the lease has [`LeaseOptions::output_by_call`](crate::LeaseOptions::output_by_call).
    pub by: Option<Printer>,
}

/// Reads the output of a lease's workers from the lease's beginning. Made by [`Lease::output`](crate::Lease::output).
/// It does not keep the lease alive, and can read for some minutes after the lease's end.
pub struct OutputReader {
    node: NodeAddress,
    token: Token,
    holder: SigningKey,
    /// Watches the node if it is on another host.
    watch: Option<Arc<Keepalive>>,
    /// A separate connection, because a request for output blocks it.
    control: Option<Control>,
    from: u64,
    missed: u64,
    over: bool,
    /// Number of the next measured call, if they are wanted.
    loans_from: Option<u64>,
    /// Measured calls that were read last.
    loans: Vec<CallLoans>,
}

impl OutputReader {
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
            loans_from: None,
            loans: Vec::new(),
        }
    }

    /// Also reads what measured calls lent and borrowed, for [`OutputReader::take_loans`].
    #[must_use]
    pub fn with_loans(mut self) -> Self {
        self.loans_from = Some(0);
        self
    }

    /// Takes what measured calls that have ended since the last call of this function owned, used, lent and borrowed.
    pub fn take_loans(&mut self) -> Vec<CallLoans> {
        std::mem::take(&mut self.loans)
    }

    /// Returns the output since the last call. Without output, waits for at most `wait` and at most some seconds; the
    /// result may then be empty.
    ///
    /// # Errors
    /// [`Code::LeaseEnded`] or [`Code::LeaseExpired`] when the lease ended some minutes ago; otherwise as
    /// [`Lease::renew`](crate::Lease::renew).
    pub fn next(&mut self, wait: Duration) -> Result<Vec<WorkerOutput>, Error> {
        let request = Request::Output {
            from: self.from,
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            loans_from: self.loans_from,
        };
        let asked = self.control()?.ask(&request);
        let (from, pieces) = match asked {
            Ok(Response::Output {
                from,
                pieces,
                over,
                loans,
            }) => {
                self.over = over;
                if let Some(from) = &mut self.loans_from {
                    *from = loans.next.max(*from);
                    self.loans.extend(loans.calls);
                }
                (from, pieces)
            }
            Ok(other) => return Err(unexpected("a request for output", &other)),
            Err(error) => {
                // The next call opens another connection.
                self.control = None;
                return Err(error);
            }
        };
        let read = |text: &str| {
            hex::decode(text).map_err(|error| {
                Error::new(
                    Code::ProtocolViolation,
                    format!("the node's output cannot be decoded: {error}"),
                )
            })
        };
        let mut output = Vec::with_capacity(pieces.len());
        let mut end = from;
        for piece in pieces {
            let bytes = read(&piece.bytes)?;
            end += bytes.len() as u64;
            output.push(WorkerOutput {
                stream: piece.stream,
                bytes,
                by: piece.by,
            });
        }
        self.missed += from.saturating_sub(self.from);
        self.from = end.max(self.from);
        Ok(output)
    }

    /// Bytes of output that the node dropped before they were read.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Whether the lease has ended and all output was read.
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
