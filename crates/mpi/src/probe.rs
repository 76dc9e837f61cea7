//! Probes: what has arrived, without or with taking it.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_comm::Communicator;
use dayfly_comm::detached::{Matched, Turn};
use dayfly_protocol::error::Failure;

use crate::communicator::{self, CommObject, Peer, receive_tag};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Count, Datatype, Message, Request, Table};
use crate::point::{Data, receive_matched};
use crate::pointer::{Buffer, Out};
use crate::realm::Wheel;
use crate::request::{Active, finish, make};
use crate::status::{Completion, StatusOut};

/// A message that a matching probe took.
struct MessageObject {
    message: Mutex<Option<Matched>>,
    comm: Arc<CommObject>,
}

static MESSAGES: Table<MessageObject> = Table::new(11);

/// Drops messages that were never received.
pub fn clear() {
    MESSAGES.clear();
}

fn completion(comm: &CommObject, status: dayfly_comm::Status) -> Completion {
    Completion {
        source: comm.peer_of_world(status.source),
        tag: status.tag as c_int,
        bytes: status.length,
        ..Completion::empty()
    }
}

/// Looks for a message until one is there, or once. `MPI_PROC_NULL` has an empty message always.
fn look<T>(
    from: c_int,
    tag: c_int,
    comm: &CommObject,
    waits: bool,
    find: impl Fn(&mut Turn<'_>, &Communicator, u32, u32) -> std::result::Result<Option<T>, Failure>,
) -> Result<Option<Option<T>>> {
    let (peer, tag) = (comm.sender(from)?, receive_tag(tag)?);
    let Peer::Rank(from) = peer else {
        return Ok(Some(None));
    };
    let (control, peers) = (comm.control()?, comm.peers()?);
    let mut wheel = Wheel::new(&control);
    if !waits {
        wheel.progress();
    }
    loop {
        let mut found = Ok(None);
        wheel.each(|turn| {
            if turn.drives(peers) {
                found = find(turn, peers, from, tag);
            }
        });
        match found? {
            Some(found) => return Ok(Some(Some(found))),
            None if !waits => return Ok(None),
            None => wheel.step("MPI_Probe")?,
        }
    }
}

fn probe(from: c_int, tag: c_int, comm: Comm, waits: bool) -> Result<Option<Completion>> {
    let object = communicator::get(comm)?;
    let found = look(from, tag, &object, waits, |turn, peers, from, tag| {
        turn.probe(peers, from, tag)
    })?;
    Ok(found.map(|found| found.map_or_else(Completion::nobody, |status| completion(&object, status))))
}

fn take(from: c_int, tag: c_int, comm: Comm, waits: bool) -> Result<Option<(Message, Completion)>> {
    let object = communicator::get(comm)?;
    let found = look(from, tag, &object, waits, |turn, peers, from, tag| {
        turn.take_message(peers, from, tag)
    })?;
    Ok(found.map(|found| {
        let Some(message) = found else {
            return (Message::NO_PROC, Completion::nobody());
        };
        let completion = completion(&object, message.status());
        let message = Mutex::new(Some(message));
        let handle = MESSAGES.insert(Arc::new(MessageObject {
            message,
            comm: object.clone(),
        }));
        (Message(handle), completion)
    }))
}

fn receive(data: Data, handle: Out<Message>) -> Result<Active> {
    let message = handle.get()?;
    if message == Message::NO_PROC {
        handle.set(Message::NULL);
        return Ok(Active::Over(Completion::nobody()));
    }
    data.check()?;
    let invalid = || Error::new(class::REQUEST, "the handle is no message");
    let object = MESSAGES.remove(message.0).ok_or_else(invalid)?;
    let taken = object.message.lock().unwrap_or_else(PoisonError::into_inner).take();
    handle.set(Message::NULL);
    receive_matched(data, taken.ok_or_else(invalid)?, object.comm.clone())
}

mpi! {
    fn MPI_Probe (from: c_int, tag: c_int, comm: Comm, status: StatusOut) [comm] {
        if let Some(found) = probe(from, tag, comm, true)? {
            status.set(&found);
        }
        Ok(())
    }

    fn MPI_Iprobe (from: c_int, tag: c_int, comm: Comm, flag: Out<c_int>, status: StatusOut) [comm] {
        let found = probe(from, tag, comm, false)?;
        flag.check()?.set(found.is_some().into());
        if let Some(found) = found {
            status.set(&found);
        }
        Ok(())
    }

    fn MPI_Mprobe (from: c_int, tag: c_int, comm: Comm, message: Out<Message>, status: StatusOut) [comm] {
        if let Some((handle, found)) = take(from, tag, comm, true)? {
            message.check()?.set(handle);
            status.set(&found);
        }
        Ok(())
    }

    fn MPI_Improbe (
        from: c_int, tag: c_int, comm: Comm, flag: Out<c_int>, message: Out<Message>, status: StatusOut
    ) [comm] {
        let found = take(from, tag, comm, false)?;
        flag.check()?.set(found.is_some().into());
        message.check()?.set(found.as_ref().map_or(Message::NULL, |(handle, _)| *handle));
        if let Some((_, found)) = found {
            status.set(&found);
        }
        Ok(())
    }

    fn MPI_Mrecv / MPI_Mrecv_c (
        buffer: Buffer, count: N, datatype: Datatype, message: Out<Message>, status: StatusOut
    ) [Comm::WORLD] {
        let data = Data { buffer, count: count as Count, datatype };
        status.set(&finish(receive(data, message)?, "MPI_Mrecv")?);
        Ok(())
    }

    fn MPI_Imrecv / MPI_Imrecv_c (
        buffer: Buffer, count: N, datatype: Datatype, message: Out<Message>, request: Out<Request>
    ) [Comm::WORLD] {
        let data = Data { buffer, count: count as Count, datatype };
        request.check()?.set(make(receive(data, message)?));
        Ok(())
    }
}
