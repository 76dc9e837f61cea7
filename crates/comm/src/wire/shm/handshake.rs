//! How two ranks of a host set up shared memory: each sends one packet over their Unix stream, the lower rank with the
//! memory.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use dayfly_fabric::memory::{Mapping, check_sealed, sealed_memory};
use dayfly_protocol::error::{Code, Failure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{BOARDS, MEMORY_BYTES, Ring, ShmTransport, at};
use crate::wire::cross_memory::CrossMemory;

/// "dayfly" and the version of the memory layout.
const MAGIC: u64 = u64::from_le_bytes(*b"dayfly\x01\x00");

#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Packet {
    magic: u64,
    memory_bytes: u64,
    rank: u32,
    /// Whether this rank may sleep while it waits.
    sleeps: u32,
    /// Address and value in this process's memory, for the probe.
    probe_address: u64,
    probe_value: u64,
}

/// A transport whose own packet is sent.
#[derive(Debug)]
pub struct ShmHandshake {
    rank: u32,
    peer: u32,
    socket: UnixStream,
    memory: Option<OwnedFd>,
    probe: Box<u64>,
}

fn failed(peer: u32, what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::Unreachable,
        format!("sharing memory with rank {peer} failed: {what}: {error}"),
    )
}

impl ShmHandshake {
    /// Sends this side's packet, without waiting for the other's.
    pub fn send(rank: u32, peer: u32, socket: UnixStream, sleeps: bool) -> Result<Self, Failure> {
        let probe = Box::new(RandomState::new().hash_one(rank));
        let memory = match rank < peer {
            true => Some(sealed_memory("dayfly-comm", MEMORY_BYTES as u64).map_err(|e| failed(peer, "making it", e))?),
            false => None,
        };
        let packet = Packet {
            magic: MAGIC,
            memory_bytes: MEMORY_BYTES as u64,
            rank,
            sleeps: sleeps.into(),
            probe_address: std::ptr::from_ref::<u64>(&probe) as u64,
            probe_value: *probe,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let own = UCred {
            pid: rustix::process::getpid(),
            uid: rustix::process::getuid(),
            gid: rustix::process::getgid(),
        };
        let descriptors = memory.as_ref().map(|memory| [memory.as_fd()]);
        let mut fits = control.push(SendAncillaryMessage::ScmCredentials(own));
        if let Some(descriptors) = &descriptors {
            fits &= control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let sent = rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(packet.as_bytes())],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(sent) if fits && sent == size_of::<Packet>() => Ok(Self {
                rank,
                peer,
                socket,
                memory,
                probe,
            }),
            Ok(sent) => Err(failed(peer, "greeting it", format!("only {sent} bytes were taken"))),
            Err(error) => Err(failed(peer, "greeting it", error)),
        }
    }

    /// Waits for the other side's packet, and returns the transport. Returns an error after `until`.
    pub fn finish(self, until: Instant) -> Result<ShmTransport, Failure> {
        let peer = self.peer;
        let (packet, process, received) = self.receive(until)?;
        if packet.magic != MAGIC || packet.memory_bytes != MEMORY_BYTES as u64 || packet.rank != peer {
            let found = format!(
                "rank {}, {:#x}, {} bytes",
                packet.rank, packet.magic, packet.memory_bytes
            );
            return Err(Failure::new(
                Code::VersionMismatch,
                format!("rank {peer} greets as another version or rank ({found}); use the same Dayfly in all ranks"),
            ));
        }
        let memory = match (self.memory, received) {
            (Some(own), _) => own,
            (None, Some(received)) => {
                check_sealed(&received, MEMORY_BYTES as u64).map_err(|e| failed(peer, "checking it", e))?;
                received
            }
            (None, None) => return Err(failed(peer, "receiving it", "no descriptor came")),
        };
        let memory = Mapping::of(&memory, MEMORY_BYTES).map_err(|e| failed(peer, "mapping it", e))?;
        let (outgoing, incoming) = match self.rank < peer {
            true => (0, at::END),
            false => (at::END, 0),
        };
        Ok(ShmTransport {
            peer,
            memory,
            doorbell: self.socket,
            cross_memory: process
                .and_then(|process| CrossMemory::probe(process, packet.probe_address, packet.probe_value)),
            outgoing: Ring::new(outgoing),
            incoming: Ring::new(incoming),
            outbox: VecDeque::new(),
            incoming_copies: VecDeque::new(),
            outgoing_copies: VecDeque::new(),
            offered: 0,
            boards: [false; BOARDS],
            _probe: self.probe,
            peer_never_sleeps: packet.sleeps == 0,
            holds_doorbell: false,
            is_doorbell_due: false,
            copied_in_silence: 0,
        })
    }

    /// The other side's packet, its process id from the kernel, and the memory if it sent some.
    fn receive(&self, until: Instant) -> Result<(Packet, Option<libc::pid_t>, Option<OwnedFd>), Failure> {
        let peer = self.peer;
        let socket = &self.socket;
        rustix::net::sockopt::set_socket_passcred(socket, true).map_err(|e| failed(peer, "asking who it is", e))?;
        let mut packet = Packet::default();
        let (mut filled, mut process, mut memory) = (0, None, None);
        while filled < size_of::<Packet>() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::new(
                    Code::TimedOut,
                    format!("rank {peer} of this host has not answered in time while memory was to be shared"),
                ));
            }
            socket
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .map_err(|e| failed(peer, "setting a limit", e))?;
            let target = &mut packet.as_mut_bytes()[filled..];
            match receive_with(socket, target, &mut process, &mut memory) {
                Ok(count @ 1..) => filled += count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                    return Err(failed(peer, "waiting for its greeting", error));
                }
                Ok(_) | Err(_) => {
                    return Err(Failure::new(
                        Code::RankLost,
                        format!("rank {peer} closed its connection before memory was shared"),
                    ));
                }
            }
        }
        Ok((packet, process, memory))
    }
}

/// Receives bytes with their ancillary data: the sender's process id, if it is visible here, and a descriptor. Written
/// by hand, since a process of another sandbox has id 0 here, which the type of rustix cannot hold.
fn receive_with(
    socket: &UnixStream,
    target: &mut [u8],
    process: &mut Option<libc::pid_t>,
    memory: &mut Option<OwnedFd>,
) -> std::io::Result<usize> {
    // Room for both and more, with the alignment of the headers.
    let mut space = [0u64; 32];
    let mut part = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space);
    // SAFETY: the message points to memory of this frame, with the right lengths.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let Ok(received) = usize::try_from(received) else {
        return Err(std::io::Error::last_os_error());
    };
    // SAFETY: the kernel filled in the headers, and the macros stay within `space`. The data is read unaligned. Each
    // descriptor was made for this process and is taken over once.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(found) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            let length = found.cmsg_len.saturating_sub(data.offset_from(header.cast()) as usize);
            match (found.cmsg_level, found.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                    let who = data.cast::<libc::ucred>().read_unaligned();
                    *process = (who.pid > 0).then_some(who.pid);
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for at in 0..length / size_of::<RawFd>() {
                        let descriptor = OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned());
                        // Any further descriptor is closed.
                        memory.get_or_insert(descriptor);
                    }
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(received)
}
