//! Requests that send the parts of a message.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_comm::detached::{Detached, Turn};

use super::{Announcement, Layout, MAX_TAGS, Round};
use crate::communicator::{self, CommObject, Peer, send_tag};
use crate::error::{Error, Result, class};
use crate::handle::{Comm, Request};
use crate::point::Data;
use crate::request::{self, Active, make_persistent};
use crate::status::Completion;

/// Tags of the parts of one request.
struct Tags {
    first: u32,
}

/// Tags in use, by the first one, and where to look for the next.
struct TagsInUse {
    next: u32,
    ends: BTreeMap<u32, u32>,
}

static TAGS: Mutex<TagsInUse> = Mutex::new(TagsInUse {
    next: 0,
    ends: BTreeMap::new(),
});

fn tags() -> MutexGuard<'static, TagsInUse> {
    TAGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tags {
    /// Reserves tags that no other request of this process has.
    fn reserve(parts: usize) -> Result<Self> {
        let count = (parts as u32).max(1);
        let mut tags = tags();
        let mut first = tags.next;
        // Each round either ends or passes one of the ranges in use; one round more begins anew.
        for _ in 0..tags.ends.len() + 2 {
            if first + count > MAX_TAGS {
                first = 0;
            }
            match tags.ends.range(..first + count).next_back() {
                Some((_, end)) if *end > first => first = *end,
                _ => {
                    tags.ends.insert(first, first + count);
                    tags.next = first + count;
                    return Ok(Self { first });
                }
            }
        }
        Err(Error::new(class::OTHER, "there are too many partitioned requests"))
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        tags().ends.remove(&self.first);
    }
}

/// A request that sends.
struct Sender {
    layout: Layout,
    comm: Arc<CommObject>,
    /// `None` for `MPI_PROC_NULL`.
    to: Option<u32>,
    tags: Tags,
}

impl Sender {
    fn announcement(&self) -> Announcement {
        Announcement {
            first_tag: self.tags.first,
            parts: self.layout.parts,
            bytes: self.layout.bytes,
        }
    }

    /// Sends the announcement. It needs no receiver that waits.
    fn announce(&self, to: u32, tag: u32) -> Result<()> {
        let bytes = self.announcement().to_bytes();
        // SAFETY: the request that keeps the bytes is dropped when the operation has ended.
        let operation = unsafe {
            self.comm
                .parts()?
                .start_send(bytes.as_ptr(), bytes.len(), to, tag, false)
        }?;
        if operation.status().is_none() {
            request::make_orphan(
                None,
                Active::Message(request::Message {
                    operation,
                    comm: self.comm.clone(),
                    is_receive: false,
                    packed: Some(bytes.into()),
                    unpack: None,
                }),
            );
        }
        Ok(())
    }

    /// Starts the send of a part. Returns what must be kept until it is complete.
    fn send(&self, turn: &mut Turn<'_>, to: u32, part: usize) -> Result<(Detached, Option<Vec<u8>>)> {
        let Layout { of, count, bytes, .. } = &self.layout;
        let place = self.layout.place(part);
        let packed = (!of.dense).then(|| {
            let mut packed = vec![0; *bytes];
            of.pack(place, *count, &mut packed);
            packed
        });
        let start = match &packed {
            _ if *bytes == 0 => std::ptr::dangling(),
            Some(packed) => packed.as_ptr(),
            None => place.offset(of.true_lower).start().cast_const(),
        };
        let tag = self.announcement().tag(part);
        // SAFETY: the program leaves the part as it is until the operation is complete, and the round keeps a packed copy.
        let operation = unsafe { turn.start_send(self.comm.parts()?, start, *bytes, to, tag) }?;
        Ok((operation, packed))
    }
}

/// One run of a request that sends.
pub struct Sending {
    sender: Arc<Sender>,
    ready: Vec<bool>,
    /// Parts that are not ready.
    missing: usize,
    under_way: Vec<(Detached, Option<Vec<u8>>)>,
    failure: Option<Error>,
}

impl Sending {
    pub fn comm(&self) -> &CommObject {
        &self.sender.comm
    }

    fn new(sender: Arc<Sender>) -> Self {
        let missing = sender.layout.parts;
        Self {
            ready: vec![false; missing],
            missing,
            under_way: Vec::new(),
            failure: None,
            sender,
        }
    }

    /// Sends a part. The engine is `turn`'s.
    pub fn ready(&mut self, turn: &mut Turn<'_>, part: c_int) -> Result<()> {
        let at = self.sender.layout.check(part)?;
        if std::mem::replace(&mut self.ready[at], true) {
            return Err(Error::new(class::ARG, format!("partition {part} is ready already")));
        }
        self.missing -= 1;
        let Some(to) = self.sender.to else {
            return Ok(());
        };
        match self.sender.send(turn, to, at) {
            Ok((operation, packed)) => {
                if operation.status().is_none() {
                    self.under_way.push((operation, packed));
                }
                Ok(())
            }
            Err(error) => {
                self.failure.get_or_insert(error.clone());
                Err(error)
            }
        }
    }

    /// How the run has ended, if it has.
    pub fn poll(&mut self, turn: &mut Turn<'_>) -> Option<Completion> {
        let failure = &mut self.failure;
        self.under_way.retain(|(operation, _)| match turn.take(operation) {
            None => true,
            Some(outcome) => {
                if let Err(error) = outcome {
                    failure.get_or_insert(error.into());
                }
                false
            }
        });
        let ends = self.missing == 0 || self.failure.is_some();
        (ends && self.under_way.is_empty()).then(|| Completion {
            error: self.failure.take(),
            ..Completion::empty()
        })
    }
}

/// Makes a request that sends.
pub fn make(data: Data, parts: c_int, to: c_int, tag: c_int, comm: Comm) -> Result<Request> {
    let comm = communicator::get(comm)?;
    let layout = Layout::new(data, parts)?;
    let (peer, tag) = (comm.receiver(to)?, send_tag(tag)?);
    let to = match peer {
        Peer::Rank(to) => Some(to),
        Peer::Nobody => None,
    };
    let tags = Tags::reserve(layout.parts)?;
    let sender = Arc::new(Sender { layout, comm, to, tags });
    if let Some(to) = to {
        sender.announce(to, tag)?;
    }
    let start = move || Ok(Active::Parts(Round::Send(Sending::new(sender.clone()))));
    Ok(make_persistent(Box::new(start)))
}
