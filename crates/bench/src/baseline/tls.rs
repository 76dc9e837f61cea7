//! TLS 1.3 over raw TCP on the loopback.

use super::Baseline;
use super::peer::{Control, Peer};
use super::tcp::{Watchdog, pair};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig, ServerConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// An echo of SIZE bytes through rustls on both sides.
pub struct TlsEcho {
    peer: Peer,
    socket: TcpStream,
    tls: ClientConnection,
    buffer: Vec<u8>,
    spins: bool,
}

impl TlsEcho {
    /// Both sides spin on non-blocking sockets.
    pub fn spinning(size: usize) -> Result<Self, Error> {
        Self::new(size, true)
    }

    /// Both sides sleep in `read`.
    pub fn blocking(size: usize) -> Result<Self, Error> {
        Self::new(size, false)
    }

    /// The negotiated cipher: rustls' first choice.
    pub fn cipher(&self) -> String {
        self.tls
            .negotiated_cipher_suite()
            .map_or_else(|| "none".into(), |suite| format!("{:?}", suite.suite()))
    }

    fn new(size: usize, spins: bool) -> Result<Self, Error> {
        let size = size.max(1);
        let (server, client) = configs().map_err(|e| Error::Tls(e.to_string()))?;
        // The handshake blocks, so that it needs no own loop.
        let (mut socket, mut other) = pair(false)?;
        let peer = Peer::fork(if spins { "tls_spin" } else { "tls_block" }, |control: &Control| {
            // An error ends the process, which the client sees as the end of its connection.
            let _ = serve(&mut other, server, size, spins, control);
        })?;
        let name = ServerName::try_from("localhost").map_err(|e| Error::Tls(e.to_string()))?;
        let mut tls = ClientConnection::new(client, name).map_err(|e| Error::Tls(e.to_string()))?;
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).map_err(|e| Error::Tls(e.to_string()))?;
        }
        socket
            .set_nonblocking(spins)
            .map_err(Error::os("make a socket non-blocking"))?;
        Ok(TlsEcho {
            peer,
            socket,
            tls,
            buffer: vec![7; size],
            spins,
        })
    }
}

fn configs() -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), Box<dyn std::error::Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(server), Arc::new(client)))
}

fn serve(
    socket: &mut TcpStream,
    config: Arc<ServerConfig>,
    size: usize,
    spins: bool,
    control: &Control,
) -> std::io::Result<()> {
    let mut tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    tls.set_buffer_limit(None);
    while tls.is_handshaking() {
        tls.complete_io(socket)?;
    }
    // Send session tickets now, and not before the first response.
    while tls.wants_write() {
        tls.write_tls(socket)?;
    }
    socket.set_nonblocking(spins)?;
    let mut buffer = vec![1; size];
    loop {
        receive(socket, &mut tls, &mut buffer, || {
            control.rest();
            Ok(())
        })?;
        send(socket, &mut tls, &buffer)?;
    }
}

#[inline(always)]
fn send<D>(socket: &mut TcpStream, tls: &mut ConnectionCommon<D>, bytes: &[u8]) -> std::io::Result<()> {
    tls.writer().write_all(bytes)?;
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(_) => (),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => (),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[inline(always)]
fn receive<D>(
    socket: &mut TcpStream,
    tls: &mut ConnectionCommon<D>,
    bytes: &mut [u8],
    mut between: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match tls.reader().read(&mut bytes[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                done += n;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => (),
            Err(e) => return Err(e),
        }
        match tls.read_tls(socket) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                tls.process_new_packets().map_err(std::io::Error::other)?;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => between()?,
            Err(e) if e.kind() == ErrorKind::Interrupted => (),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Block for TlsEcho {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        let (peer, socket, tls) = (&self.peer, &mut self.socket, &mut self.tls);
        timed(calls, samples, || {
            let mut dog = Watchdog::default();
            let mut echo = || {
                send(socket, tls, &self.buffer)?;
                receive(socket, tls, &mut self.buffer, || {
                    dog.poll(peer).map_err(std::io::Error::other)
                })
            };
            echo().map_err(|e| Error::Tls(e.to_string()))
        })
    }
    fn resume(&mut self) -> Result<(), Error> {
        self.peer.resume();
        Ok(())
    }
    fn pause(&mut self) -> Result<(), Error> {
        self.peer.pause();
        Ok(())
    }
}

impl Baseline for TlsEcho {
    fn name(&self) -> &str {
        if self.spins { "tls_echo" } else { "tls_block" }
    }
    fn about(&self) -> String {
        let how = if self.spins {
            "spinning on non-blocking sockets"
        } else {
            "blocking"
        };
        format!(
            "a raw rustls echo on the loopback, {} B each way, both sides {how}",
            self.buffer.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alternate::{Plan, measure};

    #[test]
    fn echo_longer_than_a_record_is_whole() {
        let mut echo = TlsEcho::blocking(40_000).unwrap();
        assert_eq!(
            measure(
                &mut echo,
                Plan {
                    blocks: 1,
                    calls: 5,
                    warm_up: 1
                }
            )
            .unwrap()
            .len(),
            5
        );
        assert!(echo.cipher().starts_with("TLS13_"), "{}", echo.cipher());
    }
}
