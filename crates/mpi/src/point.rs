//! Messages between two ranks.

use std::ffi::c_int;
use std::sync::Arc;

use crate::buffers::Owner;
use crate::communicator::{self, CommObject, Peer, receive_tag, send_tag};
use crate::datatype::{self, TypeObject, count_of};
use crate::error::{Error, Result, class};
use crate::face::mpi;
use crate::handle::{Comm, Count, Datatype, Request};
use crate::pointer::{Buffer, Out};
use crate::request::{self, Active, finish, make, make_persistent};
use crate::room::Room;
use crate::status::{Completion, StatusOut};

/// When a send is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Standard,
    /// When a receive has matched it.
    Synchronous,
    /// At once: its bytes are copied.
    Buffered,
    /// As a standard send of a copy of the bytes.
    Copied,
}

/// The memory of a message.
#[derive(Clone, Copy)]
pub struct Data {
    pub buffer: Buffer,
    pub count: Count,
    pub datatype: Datatype,
}

impl Data {
    /// Checks the datatype and the count.
    pub fn check(self) -> Result<(Arc<TypeObject>, usize)> {
        let of = datatype::get(self.datatype)?;
        if !of.committed.load(std::sync::atomic::Ordering::Acquire) {
            return Err(Error::new(class::TYPE, "the datatype is not committed"));
        }
        let count = count_of(self.count)?;
        if self.buffer.is_null() && of.dense && of.size * count > 0 && of.true_lower == 0 {
            return Err(Error::new(class::BUFFER, "the buffer is NULL"));
        }
        Ok((of, count))
    }
}

/// Starts a send.
pub fn send(data: Data, to: c_int, tag: c_int, comm: Comm, mode: Mode) -> Result<Active> {
    let handle = comm;
    let comm = communicator::get(comm)?;
    let (of, count) = data.check()?;
    let (peer, tag) = (comm.receiver(to)?, send_tag(tag)?);
    let Peer::Rank(to) = peer else {
        return Ok(Active::Over(Completion::empty()));
    };
    let length = of.bytes(count)?;
    let copies = !of.dense || matches!(mode, Mode::Buffered | Mode::Copied);
    let packed = match copies {
        true => {
            let mut packed = Room::new(length)?;
            of.pack(data.buffer, count, &mut packed);
            Some(packed)
        }
        false => None,
    };
    let start = match &packed {
        Some(packed) => packed.as_ptr(),
        None => data.buffer.offset(of.true_lower).start().cast_const(),
    };
    // SAFETY: the program keeps its buffer until the operation is complete, and the request keeps a packed copy.
    let operation = unsafe {
        let start = if length == 0 { std::ptr::dangling() } else { start };
        comm.peers()?
            .start_send(start, length, to, tag, mode == Mode::Synchronous)
    }?;
    if operation.status().is_some() {
        return Ok(Active::Over(Completion::empty()));
    }
    let active = Active::Message(request::Message {
        operation,
        comm,
        is_receive: false,
        packed,
        unpack: None,
    });
    if mode == Mode::Buffered {
        request::make_orphan(Some(Owner::of(handle)), active);
        return Ok(Active::Over(Completion::empty()));
    }
    Ok(active)
}

/// Where the bytes of a receive arrive: the memory itself, or room to unpack from.
fn room(data: Data, of: &Arc<TypeObject>, count: usize) -> Result<(*mut u8, usize, Option<Room>)> {
    let length = of.bytes(count)?;
    if of.dense {
        let start = data.buffer.offset(of.true_lower).start();
        return Ok((if length == 0 { std::ptr::dangling_mut() } else { start }, length, None));
    }
    let mut packed = Room::new(length)?;
    Ok((packed.as_mut_ptr(), length, Some(packed)))
}

/// Starts a receive.
pub fn receive(data: Data, from: c_int, tag: c_int, comm: Comm) -> Result<Active> {
    let comm = communicator::get(comm)?;
    let (of, count) = data.check()?;
    let (peer, tag) = (comm.sender(from)?, receive_tag(tag)?);
    let Peer::Rank(from) = peer else {
        return Ok(Active::Over(Completion::nobody()));
    };
    let (start, length, packed) = room(data, &of, count)?;
    // SAFETY: as for `send`.
    let operation = unsafe { comm.peers()?.start_receive(start, length, from, tag) }?;
    Ok(received(operation, comm, packed, of, data, count))
}

/// Starts the receive of a message that a matching probe took.
pub fn receive_matched(data: Data, message: dayfly_comm::detached::Matched, comm: Arc<CommObject>) -> Result<Active> {
    let (of, count) = data.check()?;
    let (start, length, packed) = room(data, &of, count)?;
    // SAFETY: as for `send`.
    let operation = unsafe { comm.peers()?.start_matched(message, start, length) }?;
    Ok(received(operation, comm, packed, of, data, count))
}

fn received(
    operation: dayfly_comm::detached::Detached,
    comm: Arc<CommObject>,
    packed: Option<Room>,
    of: Arc<TypeObject>,
    data: Data,
    count: usize,
) -> Active {
    if let (Some(status), None) = (operation.status(), &packed) {
        return Active::Over(Completion {
            source: comm.peer_of_world(status.source),
            tag: status.tag as c_int,
            bytes: status.length,
            ..Completion::empty()
        });
    }
    let unpack = packed.is_some().then_some((of, data.buffer, count));
    Active::Message(request::Message {
        operation,
        comm,
        is_receive: true,
        packed,
        unpack,
    })
}

/// Sends the contents of a buffer and receives into it.
fn replace(
    data: Data,
    to: c_int,
    send_tag: c_int,
    from: c_int,
    receive_tag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Result<()> {
    let sending = send(data, to, send_tag, comm, Mode::Copied)?;
    let receiving = or_abandon(receive(data, from, receive_tag, comm), sending)?;
    finish_both(receiving, "MPI_Sendrecv_replace", status)
}

/// The second of two operations, and the first one; if the second did not start, the first is given up.
fn or_abandon(second: Result<Active>, first: Active) -> Result<(Active, Active)> {
    match second {
        Ok(second) => Ok((second, first)),
        Err(error) => {
            request::abandon(first);
            Err(error)
        }
    }
}

/// Waits for a receive and a send, also if one of them fails.
fn finish_both((receiving, sending): (Active, Active), what: &'static str, status: StatusOut) -> Result<()> {
    let (received, sent) = (finish(receiving, what), finish(sending, what));
    status.set(&received?);
    sent.map(|_| ())
}

macro_rules! sends {
    ($($blocking:ident $blocking_c:ident $start:ident $start_c:ident $init:ident $init_c:ident $mode:ident $what:literal)*) => { mpi! { $(
        fn $blocking / $blocking_c (buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int, comm: Comm) [comm] {
            let data = Data { buffer, count: count as Count, datatype };
            finish(send(data, to, tag, comm, Mode::$mode)?, $what).map(|_| ())
        }

        fn $start / $start_c (
            buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int, comm: Comm, request: Out<Request>
        ) [comm] {
            let data = Data { buffer, count: count as Count, datatype };
            request.check()?.set(make(send(data, to, tag, comm, Mode::$mode)?));
            Ok(())
        }

        fn $init / $init_c (
            buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int, comm: Comm, request: Out<Request>
        ) [comm] {
            let data = Data { buffer, count: count as Count, datatype };
            let object = communicator::get(comm)?;
            object.receiver(to)?;
            send_tag(tag)?;
            data.check()?;
            let start = move || send(data, to, tag, comm, Mode::$mode);
            request.check()?.set(make_persistent(Box::new(start)));
            Ok(())
        }
    )* } };
}

sends! {
    MPI_Send MPI_Send_c MPI_Isend MPI_Isend_c MPI_Send_init MPI_Send_init_c Standard "MPI_Send"
    MPI_Ssend MPI_Ssend_c MPI_Issend MPI_Issend_c MPI_Ssend_init MPI_Ssend_init_c Synchronous "MPI_Ssend"
    MPI_Bsend MPI_Bsend_c MPI_Ibsend MPI_Ibsend_c MPI_Bsend_init MPI_Bsend_init_c Buffered "MPI_Bsend"
    MPI_Rsend MPI_Rsend_c MPI_Irsend MPI_Irsend_c MPI_Rsend_init MPI_Rsend_init_c Standard "MPI_Rsend"
}

mpi! {
    fn MPI_Recv / MPI_Recv_c (
        buffer: Buffer, count: N, datatype: Datatype, from: c_int, tag: c_int, comm: Comm, status: StatusOut
    ) [comm] {
        let data = Data { buffer, count: count as Count, datatype };
        let active = receive(data, from, tag, comm)?;
        match finish(active, "MPI_Recv") {
            Ok(completion) => {
                status.set(&completion);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn MPI_Irecv / MPI_Irecv_c (
        buffer: Buffer, count: N, datatype: Datatype, from: c_int, tag: c_int, comm: Comm, request: Out<Request>
    ) [comm] {
        let data = Data { buffer, count: count as Count, datatype };
        request.check()?.set(make(receive(data, from, tag, comm)?));
        Ok(())
    }

    fn MPI_Recv_init / MPI_Recv_init_c (
        buffer: Buffer, count: N, datatype: Datatype, from: c_int, tag: c_int, comm: Comm, request: Out<Request>
    ) [comm] {
        let data = Data { buffer, count: count as Count, datatype };
        let object = communicator::get(comm)?;
        object.sender(from)?;
        receive_tag(tag)?;
        data.check()?;
        let start = move || receive(data, from, tag, comm);
        request.check()?.set(make_persistent(Box::new(start)));
        Ok(())
    }

    fn MPI_Sendrecv / MPI_Sendrecv_c (
        buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int,
        into: Buffer, room: N, of: Datatype, from: c_int, receive_tag: c_int, comm: Comm, status: StatusOut
    ) [comm] {
        let sent = Data { buffer, count: count as Count, datatype };
        let received = Data { buffer: into, count: room as Count, datatype: of };
        let receiving = receive(received, from, receive_tag, comm)?;
        let (sending, receiving) = or_abandon(send(sent, to, tag, comm, Mode::Standard), receiving)?;
        finish_both((receiving, sending), "MPI_Sendrecv", status)
    }

    fn MPI_Sendrecv_replace / MPI_Sendrecv_replace_c (
        buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int, from: c_int, receive_tag: c_int,
        comm: Comm, status: StatusOut
    ) [comm] {
        replace(Data { buffer, count: count as Count, datatype }, to, tag, from, receive_tag, comm, status)
    }

    fn MPI_Isendrecv / MPI_Isendrecv_c (
        buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int,
        into: Buffer, room: N, of: Datatype, from: c_int, receive_tag: c_int, comm: Comm, request: Out<Request>
    ) [comm] {
        request.check()?;
        let received = receive(Data { buffer: into, count: room as Count, datatype: of }, from, receive_tag, comm)?;
        let sent = send(Data { buffer, count: count as Count, datatype }, to, tag, comm, Mode::Standard);
        let (sent, received) = or_abandon(sent, received)?;
        request.set(make(Active::Both(Box::new((received, sent)))));
        Ok(())
    }

    fn MPI_Isendrecv_replace / MPI_Isendrecv_replace_c (
        buffer: Buffer, count: N, datatype: Datatype, to: c_int, tag: c_int, from: c_int, receive_tag: c_int,
        comm: Comm, request: Out<Request>
    ) [comm] {
        let data = Data { buffer, count: count as Count, datatype };
        request.check()?;
        let sent = send(data, to, tag, comm, Mode::Copied)?;
        let both = or_abandon(receive(data, from, receive_tag, comm), sent)?;
        request.set(make(Active::Both(Box::new(both))));
        Ok(())
    }
}
