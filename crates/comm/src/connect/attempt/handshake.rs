//! The TLS handshake of an attempt. It reads no byte beyond the handshake's records: later bytes belong to the group.

use std::io::{self, Read};

use rustls::Connection;

use super::broken;
use crate::connect::socket::Socket;

/// Passes one record at a time to TLS.
#[derive(Default)]
pub struct Records {
    header: [u8; 5],
    had: usize,
    body: usize,
}

struct OneRecord<'a>(&'a Socket, &'a mut Records);

impl Read for OneRecord<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (mut socket, records) = (self.0, &mut *self.1);
        let left = if records.had < 5 { 5 - records.had } else { records.body };
        let most = left.min(into.len());
        let count = socket.read(&mut into[..most])?;
        if records.had < 5 {
            records.header[records.had..records.had + count].copy_from_slice(&into[..count]);
            records.had += count;
            records.body = usize::from(u16::from_be_bytes([records.header[3], records.header[4]]));
        } else {
            records.body -= count;
        }
        if records.had == 5 && records.body == 0 {
            records.had = 0;
        }
        Ok(count)
    }
}

/// Advances a TLS handshake. Returns whether it is complete and all of it was sent.
pub fn secure(mut socket: &Socket, session: &mut Connection, records: &mut Records) -> Result<bool, String> {
    loop {
        while session.wants_write() {
            match session.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        if !session.is_handshaking() {
            return Ok(true);
        }
        match session.read_tls(&mut OneRecord(socket, records)) {
            Ok(0) => return Err("closed by the other end in TLS".into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        }
        session
            .process_new_packets()
            .map_err(|error| format!("the other end does not have the key of its card: {error}"))?;
    }
}
