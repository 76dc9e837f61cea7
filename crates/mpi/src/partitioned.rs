//! Partitioned messages: the threads of a program hand over the parts of one message one by one.
//!
//! The requests of two ranks match in the order in which they were made. The sender announces each of its requests once,
//! under the program's tag: how many parts it has, of how many bytes, and under which tags they come. Each part then is a
//! message of its own, which the receiver takes into its place. So both sides may divide the message differently. All
//! these messages are apart from those that the program sends otherwise (`CommObject::parts`).

mod receiver;
mod sender;

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use dayfly_comm::detached::Turn;

use crate::communicator::CommObject;
use crate::datatype::TypeObject;
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Count, Datatype, Info, Request};
use crate::info;
use crate::point::Data;
use crate::pointer::{Buffer, In, Out};
use crate::request::{self, Active, with_active};
use crate::status::Completion;

pub use receiver::{Receiver, clear, serve};
pub use sender::Sending;

/// Set in the tags of parts. Announcements have the tags of the program.
const OF_PARTS: u32 = 1 << 31;
/// Number of tags of parts. With one more, the greatest would be `ANY_TAG`.
const MAX_TAGS: u32 = OF_PARTS - 1;
/// Parts of one message. The receiver posts a receive for each.
const MAX_PARTS: usize = 1 << 20;

/// The memory of a message and its division.
struct Layout {
    buffer: Buffer,
    of: Arc<TypeObject>,
    /// Elements of a part.
    count: usize,
    parts: usize,
    /// Bytes of a part.
    bytes: usize,
}

impl Layout {
    fn new(data: Data, parts: c_int) -> Result<Self> {
        let parts = usize::try_from(parts).ok().filter(|parts| *parts <= MAX_PARTS);
        let parts = parts.ok_or_else(|| {
            Error::new(
                class::ARG,
                format!("a message has between 0 and {MAX_PARTS} partitions"),
            )
        })?;
        let (of, count) = data.check()?;
        let bytes = of.bytes(count)?;
        of.bytes(count.saturating_mul(parts))?;
        Ok(Self {
            buffer: data.buffer,
            of,
            count,
            parts,
            bytes,
        })
    }

    /// Where a part begins.
    fn place(&self, part: usize) -> Buffer {
        self.buffer.offset((part * self.count) as isize * self.of.extent)
    }

    /// Bytes of the whole message.
    fn length(&self) -> usize {
        self.bytes * self.parts
    }

    fn check(&self, part: c_int) -> Result<usize> {
        let found = usize::try_from(part).ok().filter(|part| *part < self.parts);
        found.ok_or_else(|| no_part(part, self.parts))
    }
}

fn no_part(part: c_int, parts: usize) -> Error {
    Error::new(
        class::ARG,
        format!("there is no partition {part} in a message of {parts}"),
    )
}

/// What a sender announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Announcement {
    first_tag: u32,
    parts: usize,
    bytes: usize,
}

const ANNOUNCEMENT_BYTES: usize = 24;

impl Announcement {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.first_tag.into(), self.parts as u64, self.bytes as u64];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// The announcement in a message of another rank; `None` if it makes no sense.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [first, parts, bytes] = *bytes.as_chunks::<8>().0 else {
            return None;
        };
        let [first, parts, bytes] = [first, parts, bytes].map(u64::from_ne_bytes);
        let found = Self {
            first_tag: u32::try_from(first).ok()?,
            parts: usize::try_from(parts).ok().filter(|parts| *parts <= MAX_PARTS)?,
            bytes: usize::try_from(bytes).ok()?,
        };
        found.bytes.checked_mul(found.parts)?;
        (found.first_tag.checked_add(found.parts as u32)? <= MAX_TAGS).then_some(found)
    }

    fn tag(&self, part: usize) -> u32 {
        OF_PARTS | (self.first_tag + part as u32)
    }

    /// The sender's parts that a receiver's part consists of.
    fn parts_of(&self, part: usize, own: &Layout) -> Range<usize> {
        let (one, all) = match self.bytes > 0 && own.bytes > 0 {
            true => (own.bytes, self.bytes),
            // Without bytes, both sides divide the same nothing.
            false => (self.parts, own.parts),
        };
        let range = part * one / all..((part + 1) * one).div_ceil(all).min(self.parts);
        match range.is_empty() {
            // A part beyond the sender's bytes is there when all the others are.
            true => 0..self.parts,
            false => range,
        }
    }
}

/// One run of a partitioned request.
pub enum Round {
    Send(Sending),
    Receive(Arc<Receiver>),
}

impl Round {
    /// The communicator of its messages.
    pub fn comm(&self) -> &CommObject {
        match self {
            Self::Send(sending) => sending.comm(),
            Self::Receive(receiver) => receiver.comm(),
        }
    }

    /// How it has ended, if it has. The engine is `turn`'s.
    pub fn poll(&mut self, turn: &mut Turn<'_>) -> Option<Completion> {
        match self {
            Self::Send(sending) => sending.poll(turn),
            Self::Receive(receiver) => receiver.poll(turn),
        }
    }
}

/// Hands over parts of a send that is under way.
fn make_ready(handle: Request, parts: impl Iterator<Item = c_int>) -> Result<()> {
    with_active(handle, |turn, active| match active {
        Some(Active::Parts(Round::Send(sending))) => {
            let mut parts = parts;
            parts.try_for_each(|part| sending.ready(turn, part))
        }
        _ => Err(Error::new(
            class::REQUEST,
            "the request is no partitioned send, or was not started",
        )),
    })
}

fn has_arrived(handle: Request, part: c_int) -> Result<bool> {
    with_active(handle, |turn, active| match active {
        Some(Active::Parts(Round::Receive(receiver))) => {
            turn.progress();
            request::serve(turn);
            receiver.has_arrived(turn, part)
        }
        // A run that has ended has all its parts.
        Some(Active::Over(_)) | None => Ok(true),
        Some(_) => Err(Error::new(class::REQUEST, "the request is no partitioned receive")),
    })
}

mpi! {
    fn MPI_Psend_init (
        buffer: Buffer, parts: c_int, count: Count, datatype: Datatype, to: c_int, tag: c_int, comm: Comm, given: Info,
        request: Out<Request>
    ) [comm] {
        info::optional(given)?;
        request.check()?.set(sender::make(Data { buffer, count, datatype }, parts, to, tag, comm)?);
        Ok(())
    }

    fn MPI_Precv_init (
        buffer: Buffer, parts: c_int, count: Count, datatype: Datatype, from: c_int, tag: c_int, comm: Comm, given: Info,
        request: Out<Request>
    ) [comm] {
        info::optional(given)?;
        request.check()?.set(receiver::make(Data { buffer, count, datatype }, parts, from, tag, comm)?);
        Ok(())
    }

    fn MPI_Pready (part: c_int, request: Request) [Comm::WORLD] {
        make_ready(request, std::iter::once(part))
    }

    fn MPI_Pready_range (first: c_int, last: c_int, request: Request) [Comm::WORLD] {
        make_ready(request, first..=last)
    }

    fn MPI_Pready_list (count: c_int, parts: In<c_int>, request: Request) [Comm::WORLD] {
        let count = usize::try_from(count).map_err(|_| Error::new(class::COUNT, "the number of partitions is negative"))?;
        make_ready(request, parts.slice(count)?.iter().copied())
    }

    fn MPI_Parrived (request: Request, part: c_int, flag: Out<c_int>) [Comm::WORLD] {
        flag.check()?.set(has_arrived(request, part)?.into());
        Ok(())
    }
}
