//! Helpers of group tests.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use dayfly_comm::{JoinOptions, Joined};
use dayfly_comm::{PeerConnection, Route};
use dayfly_rendezvous::server::{ServeOptions, Server};

/// A secret for tests.
pub const SECRET: &[u8] = b"a secret that only tests have";
/// Longest wait of a test.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A rendezvous with a heartbeat of a second.
pub fn serve(options: ServeOptions) -> Server {
    let heartbeat = Duration::from_secs(1);
    Server::start(ServeOptions { heartbeat, ..options }).expect("a server starts")
}

/// Options of a group at this address.
pub fn at(server: SocketAddr, name: &str, size: u32) -> JoinOptions {
    JoinOptions {
        patience: TIMEOUT,
        ..JoinOptions::new(server.to_string(), name, SECRET, size)
    }
}

/// How the bytes of each pair travel, by the lower rank. Asserts that both ends agree.
pub fn routes(ranks: &[Joined]) -> Vec<((u32, u32), Route)> {
    let mut routes = Vec::new();
    for low in ranks {
        for high in ranks.iter().filter(|high| high.rank > low.rank) {
            let route =
                |from: &Joined, to: &Joined| from.connections[to.rank as usize].as_ref().map(PeerConnection::route);
            let there = route(low, high).expect("a connection there");
            assert_eq!(Some(there), route(high, low), "ranks {} and {}", low.rank, high.rank);
            routes.push(((low.rank, high.rank), there));
        }
    }
    routes
}

/// Sends distinct bytes over every connection, in both directions.
pub fn exchange(ranks: &mut [Joined]) {
    for joined in ranks.iter_mut() {
        assert!(joined.connections[joined.rank as usize].is_none());
        for (connection, to) in joined.connections.iter_mut().zip(0u32..) {
            if let Some(connection) = connection {
                send(connection, &message(joined.rank, to));
            }
        }
    }
    for joined in ranks.iter_mut() {
        for (connection, from) in joined.connections.iter_mut().zip(0u32..) {
            if let Some(connection) = connection {
                assert_eq!(
                    receive(connection),
                    message(from, joined.rank),
                    "rank {} from {from}",
                    joined.rank
                );
            }
        }
    }
}

const MESSAGE: usize = 3000;

fn message(from: u32, to: u32) -> Vec<u8> {
    (0..MESSAGE as u32)
        .map(|at| (from * 31 + to * 17 + at * 7) as u8)
        .collect()
}

pub fn send(connection: &mut PeerConnection, bytes: &[u8]) {
    let sent = match connection {
        PeerConnection::Local(socket) | PeerConnection::Carried { socket, .. } => socket.write_all(bytes),
        PeerConnection::Remote {
            socket, session: None, ..
        } => socket.write_all(bytes),
        PeerConnection::Remote {
            socket,
            session: Some(session),
            ..
        } => session.writer().write_all(bytes).and_then(|()| {
            while session.wants_write() {
                session.write_tls(socket)?;
            }
            Ok(())
        }),
        PeerConnection::Stored { socket, session } => session.writer().write_all(bytes).and_then(|()| {
            while session.wants_write() {
                session.write_tls(socket)?;
            }
            Ok(())
        }),
    };
    sent.expect("a connection takes bytes");
}

/// Receives one message.
pub fn receive(connection: &mut PeerConnection) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE];
    let received = match connection {
        PeerConnection::Local(socket) | PeerConnection::Carried { socket, .. } => {
            socket.set_read_timeout(Some(TIMEOUT)).expect("a limit");
            socket.read_exact(&mut bytes)
        }
        PeerConnection::Remote { socket, session, .. } => {
            socket.set_read_timeout(Some(TIMEOUT)).expect("a limit");
            match session {
                None => socket.read_exact(&mut bytes),
                Some(session) => rustls_read(socket, session, &mut bytes),
            }
        }
        PeerConnection::Stored { socket, session } => {
            socket.set_read_timeout(Some(TIMEOUT)).expect("a limit");
            rustls_read(socket, session, &mut bytes)
        }
    };
    received.expect("bytes come");
    bytes
}

fn rustls_read(socket: &mut impl Read, session: &mut rustls::Connection, bytes: &mut [u8]) -> std::io::Result<()> {
    let mut had = 0;
    while had < bytes.len() {
        match session.reader().read(&mut bytes[had..]) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => had += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if session.read_tls(socket)? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                session.process_new_packets().map_err(std::io::Error::other)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
