//! Messages between ranks.

use std::ffi::c_void;

use dayfly_client::Error;
use dayfly_comm::Status;

use crate::group::{DFLY_NO_RANK, dfly_group};
use crate::handle::{get, give, put, put_required};
use crate::memory::Memory;
use crate::operation::datatype;
use crate::request::dfly_request;
use crate::status::{dfly_status, guard};

/// Matches any tag, in a receive.
pub const DFLY_ANY_TAG: u32 = 4294967295;

/// Envelope of a message that was received or probed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dfly_message {
    /// Rank that sent the message.
    pub source: u32,
    /// Tag of the message.
    pub tag: u32,
    /// Length in bytes.
    pub length: usize,
}

impl dfly_message {
    /// The envelope of a receive from DFLY_NO_RANK.
    pub(crate) const NONE: Self = Self {
        source: DFLY_NO_RANK,
        tag: DFLY_ANY_TAG,
        length: 0,
    };
}

impl From<Status> for dfly_message {
    fn from(status: Status) -> Self {
        Self {
            source: status.source,
            tag: status.tag,
            // The message fits into memory, so its length fits into a usize.
            length: status.length as usize,
        }
    }
}

/// Sends `count` elements to a rank and waits until `data` may be reused. For a large message, that is when the message
/// has been received. `data` may be NULL if `count` is 0.
///
/// # Safety
/// `group` is a group, `data` points to `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_send(
    group: *const dfly_group,
    data: *const c_void,
    count: usize,
    datatype: u32,
    to: u32,
    tag: u32,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { get(group) }?;
        let data = Memory::of(data, count, self::datatype(datatype)?, "the message")?;
        if to == DFLY_NO_RANK {
            return Ok(());
        }
        Ok(group.state.communicator.send(data.bytes(), to, tag).map_err(Error)?)
    })
}

/// Receives a message of at most `count` elements from one rank, or from any with DFLY_ANY_RANK, under one tag, or any
/// with DFLY_ANY_TAG. Messages of one rank under one tag arrive in the order of sending. `message` receives the
/// envelope and may be NULL. Errors: DFLY_TRUNCATED if the message is longer.
///
/// # Safety
/// `group` is a group, `into` has room for `count` elements, `message` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_recv(
    group: *const dfly_group,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    from: u32,
    tag: u32,
    message: *mut dfly_message,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { get(group) }?;
        let mut into = Memory::of(into, count, self::datatype(datatype)?, "the room for the message")?;
        let found = match from {
            DFLY_NO_RANK => dfly_message::NONE,
            from => group
                .state
                .communicator
                .recv(into.bytes_mut(), from, tag)
                .map_err(Error)?
                .into(),
        };
        // SAFETY: as the caller promises.
        unsafe { put(message, found) };
        Ok(())
    })
}

/// Sends one message and receives another at the same time, so that ranks can exchange messages in a cycle without a
/// deadlock. The two buffers may overlap: the outgoing message is then copied first. `message` receives the envelope
/// and may be NULL.
///
/// # Safety
/// `group` is a group, `data` points to `count` elements, `into` has room for `capacity` elements, `message` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_sendrecv(
    group: *const dfly_group,
    data: *const c_void,
    count: usize,
    to: u32,
    send_tag: u32,
    into: *mut c_void,
    capacity: usize,
    from: u32,
    receive_tag: u32,
    datatype: u32,
    message: *mut dfly_message,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let communicator = unsafe { &get(group)?.state.communicator };
        let datatype = self::datatype(datatype)?;
        let mut into = Memory::of(into, capacity, datatype, "the room for the message")?;
        let data = Memory::of(data, count, datatype, "the message")?.beside(&into);
        let found = match (to, from) {
            (DFLY_NO_RANK, DFLY_NO_RANK) => dfly_message::NONE,
            (DFLY_NO_RANK, from) => communicator
                .recv(into.bytes_mut(), from, receive_tag)
                .map_err(Error)?
                .into(),
            (to, DFLY_NO_RANK) => {
                communicator.send(data.bytes(), to, send_tag).map_err(Error)?;
                dfly_message::NONE
            }
            (to, from) => communicator
                .sendrecv(data.bytes(), to, send_tag, into.bytes_mut(), from, receive_tag)
                .map_err(Error)?
                .into(),
        };
        // SAFETY: as the caller promises.
        unsafe { put(message, found) };
        Ok(())
    })
}

/// Waits until a receive with this source and tag would find a message. Does not receive it. `message` receives the
/// envelope.
///
/// # Safety
/// `group` is a group, `message` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_probe(
    group: *const dfly_group,
    from: u32,
    tag: u32,
    message: *mut dfly_message,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let found = unsafe { get(group) }?
            .state
            .communicator
            .probe(from, tag)
            .map_err(Error)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { put_required(message, "the place for the message", found.into()) }?)
    })
}

/// As `dfly_group_probe`, but does not wait. `came` is set to whether a message is available. `message` receives its
/// envelope and may be NULL.
///
/// # Safety
/// `group` is a group, `message` NULL or writable, `came` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_iprobe(
    group: *const dfly_group,
    from: u32,
    tag: u32,
    message: *mut dfly_message,
    came: *mut bool,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { get(group) }?;
        let found = group.state.communicator.iprobe(from, tag).map_err(Error)?;
        // SAFETY: as the caller promises.
        unsafe {
            put_required(came, "the place for whether a message came", found.is_some())?;
            if let Some(found) = found {
                put(message, found.into());
            }
        }
        Ok(())
    })
}

/// Starts to send. `data` must stay unchanged until the request completes. `request` receives the request; free it with
/// `dfly_request_free`.
///
/// # Safety
/// `group` is a group, `data` points to `count` elements, `request` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_isend(
    group: *const dfly_group,
    data: *const c_void,
    count: usize,
    datatype: u32,
    to: u32,
    tag: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(request, || {
                let group = get(group)?;
                let data = Memory::of(data, count, self::datatype(datatype)?, "the message")?;
                match to {
                    DFLY_NO_RANK => Ok(dfly_request::over()),
                    to => dfly_request::start(group, data, |scope, data| scope.isend(data.bytes(), to, tag)),
                }
            })
        }?;
        Ok(())
    })
}

/// Starts to receive. The memory `into` must not be used until the request completes. `request` receives the request;
/// free it with `dfly_request_free`.
///
/// # Safety
/// `group` is a group, `into` has room for `count` elements, `request` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dfly_group_irecv(
    group: *const dfly_group,
    into: *mut c_void,
    count: usize,
    datatype: u32,
    from: u32,
    tag: u32,
    request: *mut *mut dfly_request,
) -> dfly_status {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            give(request, || {
                let group = get(group)?;
                let into = Memory::of(into, count, self::datatype(datatype)?, "the room for the message")?;
                match from {
                    DFLY_NO_RANK => Ok(dfly_request::over()),
                    from => dfly_request::start(group, into, |scope, into| scope.irecv(into.bytes_mut(), from, tag)),
                }
            })
        }?;
        Ok(())
    })
}
