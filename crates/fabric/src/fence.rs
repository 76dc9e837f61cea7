//! Restricts a TCP connection to its peer, whichever process holds it.
//!
//! A process without a network may receive a connection of its host's network. The kernel does not prevent it from
//! disconnecting that socket (`connect` with no family) and connecting it to another address in that network. But a
//! socket's filter stays attached, and a locked filter cannot be removed. A filter that accepts only the peer's packets
//! therefore prevents any other connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const JUMP_UNLESS_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets from here on refer to the network header. Other offsets in a TCP socket's filter refer to the TCP header.
const NETWORK: u32 = 0xfff0_0000;

/// Returns a filter that accepts only packets from this address and port.
fn program(peer: SocketAddr) -> Vec<libc::sock_filter> {
    let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut wanted = vec![(LOAD_HALF, 0, u32::from(peer.port()))];
    match peer.ip().to_canonical() {
        IpAddr::V4(ip) => wanted.push((LOAD_WORD, NETWORK + 12, word(&ip.octets()))),
        IpAddr::V6(ip) => {
            let words = ip.octets();
            let words = words.chunks(4).map(word).zip((NETWORK + 8..).step_by(4));
            wanted.extend(words.map(|(value, at)| (LOAD_WORD, at, value)));
        }
    }
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let count = wanted.len();
    let checks = wanted.into_iter().enumerate().flat_map(|(at, (load, from, value))| {
        // Jump to the last step, past the other checks and the accepting step.
        let out = 2 * (count - at) - 1;
        [step(load, 0, from), step(JUMP_UNLESS_EQUAL, out as u8, value)]
    });
    checks.chain([step(RETURN, 0, u32::MAX), step(RETURN, 0, 0)]).collect()
}

/// Restricts a connected TCP socket, and every copy of it, to its peer permanently.
///
/// # Errors
/// When the kernel rejects the filter.
pub fn keep_to_peer(socket: impl AsFd, peer: SocketAddr) -> io::Result<()> {
    let steps = program(peer);
    let filter = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_ptr().cast_mut(),
    };
    let set = |option, value: *const libc::c_void, length: usize| {
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: the option's value is of this length; the kernel copies it, and the steps that it names.
        match unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, value, length as libc::socklen_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    set(libc::SO_ATTACH_FILTER, (&raw const filter).cast(), size_of_val(&filter))?;
    let yes: libc::c_int = 1;
    set(libc::SO_LOCK_FILTER, (&raw const yes).cast(), size_of_val(&yes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Disconnects a socket and connects it to another address.
    fn dial_anew(socket: &TcpStream, to: SocketAddr) {
        let raw = socket.as_raw_fd();
        let none = libc::sockaddr {
            sa_family: libc::AF_UNSPEC as libc::sa_family_t,
            sa_data: [0; 14],
        };
        // SAFETY: an address of this frame, of its own length.
        let disconnected = unsafe { libc::connect(raw, &raw const none, size_of_val(&none) as libc::socklen_t) };
        assert_eq!(disconnected, 0);
        socket.set_nonblocking(true).unwrap();
        let _ = rustix::net::connect(socket, &to);
    }

    #[test]
    fn fenced_socket_reaches_only_its_peer() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                continue;
            };
            let elsewhere = TcpListener::bind(host).unwrap();
            elsewhere.set_nonblocking(true).unwrap();
            let dial = |fenced: bool| {
                let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (mut peer, _) = listener.accept().unwrap();
                if fenced {
                    keep_to_peer(&ours, ours.peer_addr().unwrap()).unwrap();
                    let other = elsewhere.local_addr().unwrap();
                    assert!(keep_to_peer(&ours, other).is_err(), "it was turned to another peer");
                }
                let sent = vec![7; 1 << 20];
                let received = std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 20];
                    peer.read_exact(&mut bytes).unwrap();
                    peer.write_all(&bytes).unwrap();
                });
                ours.write_all(&sent).unwrap();
                let mut back = vec![0; 1 << 20];
                ours.read_exact(&mut back).unwrap();
                received.join().unwrap();
                assert_eq!(back, sent);
                dial_anew(&ours, elsewhere.local_addr().unwrap());
                ours
            };
            let fenced = dial(true);
            let open = dial(false);
            // The unrestricted connection has succeeded; the restricted one would have succeeded long before.
            let mut came = Vec::new();
            while came.is_empty() {
                came.extend(elsewhere.accept());
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            came.extend(elsewhere.accept());
            let from: Vec<SocketAddr> = came.iter().map(|(_, from)| *from).collect();
            assert_eq!(from, [open.local_addr().unwrap()]);
            drop(fenced);
        }
    }
}
