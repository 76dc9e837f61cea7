//! Groups of threads, for tests.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use dayfly_comm::{Communicator, Options};
use dayfly_comm::{LostRanks, PeerConnection, Route};

/// How the ranks of a test reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    Shm,
    Tcp,
}

pub fn options() -> Options {
    Options {
        deadline: Duration::from_secs(30),
        ..Options::default()
    }
}

fn pair(net: Net) -> (PeerConnection, PeerConnection) {
    match net {
        Net::Shm => {
            let (one, other) = UnixStream::pair().unwrap();
            (PeerConnection::Local(one), PeerConnection::Local(other))
        }
        Net::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (clear(one), clear(listener.accept().unwrap().0))
        }
    }
}

fn clear(socket: TcpStream) -> PeerConnection {
    PeerConnection::Remote {
        socket,
        session: None,
        route: Route::Direct,
    }
}

pub type Roads = Vec<Option<PeerConnection>>;

/// The connections of each rank.
pub fn connections(size: u32, net: Net) -> Vec<Roads> {
    connections_by(size, |_, _| pair(net))
}

pub fn connections_by(size: u32, pair: impl Fn(u32, u32) -> (PeerConnection, PeerConnection)) -> Vec<Roads> {
    let mut all: Vec<Roads> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for low in 0..size {
        for high in low + 1..size {
            let (one, other) = pair(low, high);
            all[low as usize][high as usize] = Some(one);
            all[high as usize][low as usize] = Some(other);
        }
    }
    all
}

/// Runs a function on all ranks of a group, each on its own thread, and returns the results by rank.
pub fn group<T: Send>(size: u32, net: Net, options: Options, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    over(connections(size, net), options, run)
}

pub fn over<T: Send>(connections: Vec<Roads>, options: Options, run: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let size = connections.len() as u32;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(connections)
            .map(|(rank, connections)| {
                let (run, options) = (&run, options.clone());
                scope.spawn(move || {
                    let lost = Arc::new(LostRanks::default());
                    run(Communicator::form(rank, size, connections, lost, options).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Bytes that depend on the sender and the receiver.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
