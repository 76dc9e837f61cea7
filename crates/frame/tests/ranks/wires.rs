//! Connections between ranks that a test can cut, as the end of a rank's process does: all at once, and for good.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, RwLock};

use dayfly_comm::{PeerConnection, Route};

use crate::thread_group::{Roads, connections_by};

/// Bytes that a wire carries at a time.
const CARRIED_BYTES: usize = 64 << 10;

/// The connections of a group. Each goes through a thread for each direction.
pub struct Wires {
    wires: Vec<Arc<Wire>>,
    cut: Arc<RwLock<BTreeSet<u32>>>,
}

struct Wire {
    ranks: [u32; 2],
    /// The ends opposite to those of the ranks.
    ends: [TcpStream; 2],
}

impl Wires {
    /// Connects the ranks of a group. Returns the connections of each rank.
    pub fn between(size: u32) -> (Arc<Self>, Vec<Roads>) {
        let wires = Mutex::new(Vec::new());
        let roads = connections_by(size, |low, high| {
            let [(one, near), (other, far)] = [(); 2].map(|()| pair());
            let (ranks, ends) = ([low, high], [near, far]);
            wires.lock().unwrap().push(Arc::new(Wire { ranks, ends }));
            (connection(one), connection(other))
        });
        let (wires, cut) = (wires.into_inner().unwrap(), Arc::default());
        let carry = |wire: &Arc<Wire>, from: usize| {
            let (wire, cut) = (Arc::clone(wire), Arc::clone(&cut));
            std::thread::spawn(move || wire.carry(from, &cut));
        };
        for wire in &wires {
            carry(wire, 0);
            carry(wire, 1);
        }
        (Arc::new(Self { wires, cut }), roads)
    }

    /// Cuts a rank off from all others. Nobody learns of it before nothing passes any more.
    pub fn cut(&self, rank: u32) {
        self.cut.write().unwrap().insert(rank);
        for wire in self.wires.iter().filter(|wire| wire.ranks.contains(&rank)) {
            wire.end();
        }
    }

    /// Ends all connections, and so their threads.
    pub fn end(&self) {
        self.wires.iter().for_each(|wire| wire.end());
    }
}

impl Wire {
    fn carry(&self, from: usize, cut: &RwLock<BTreeSet<u32>>) {
        let (mut from, mut to) = (&self.ends[from], &self.ends[1 - from]);
        let mut bytes = vec![0; CARRIED_BYTES];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let cut = cut.read().unwrap();
            let is_cut = self.ranks.iter().any(|rank| cut.contains(rank));
            if is_cut || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // It has ended already if it was cut.
        let _ = to.shutdown(Shutdown::Write);
    }

    fn end(&self) {
        for end in &self.ends {
            // Fails if the other side has ended it before.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    other.set_nodelay(true).unwrap();
    (one, other)
}

fn connection(socket: TcpStream) -> PeerConnection {
    PeerConnection::Remote {
        socket,
        session: None,
        route: Route::Direct,
    }
}
