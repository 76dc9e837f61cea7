//! Throughput of connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use dayfly_comm::PeerConnection;

const BLOCK: usize = 256 << 10;
const TOTAL: usize = 512 << 20;

/// Throughput from one end to the other, in MB/s.
pub fn rate(mut from: &TcpStream, mut to: &TcpStream) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![7; BLOCK];
            for _ in 0..TOTAL / BLOCK {
                from.write_all(&block).unwrap();
            }
        });
        let mut block = vec![0; BLOCK];
        let mut had = 0;
        while had < TOTAL {
            let count = to.read(&mut block).unwrap();
            assert_ne!(count, 0);
            had += count;
        }
    });
    TOTAL as f64 / begun.elapsed().as_secs_f64() / 1e6
}

/// The connection of a connection.
pub fn socket(connection: &Option<PeerConnection>) -> &TcpStream {
    match connection {
        Some(PeerConnection::Remote { socket, .. }) => socket,
        other => panic!("{other:?}"),
    }
}

/// Measures a plain and a relayed connection alternately. Returns the relay's shares of the throughput, sorted.
pub fn shares(plain: (&TcpStream, &TcpStream), relayed: (&TcpStream, &TcpStream)) -> Vec<f64> {
    let mut shares: Vec<f64> = (0..5)
        .map(|_| {
            let (direct, through) = (rate(plain.0, plain.1), rate(relayed.0, relayed.1));
            println!("plain {direct:.0} MB/s, relayed {through:.0} MB/s");
            through / direct
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    println!("the relay's share: {:.2}", shares[shares.len() / 2]);
    shares
}
