//! Groups whose ranks are threads of the test.

use std::time::{Duration, Instant};

use dayfly_comm::{JoinOptions, Joined, join};
use dayfly_protocol::error::Failure;
use dayfly_rendezvous::server::{ServeOptions, Server};

use crate::common::{TIMEOUT, at, serve};

/// A rendezvous on the loopback interface.
pub fn server() -> Server {
    serve(ServeOptions::default())
}

/// Options of a group at this server.
pub fn options(server: &Server, name: &str, size: u32) -> JoinOptions {
    at(server.addresses()[0], name, size)
}

/// Joins a rank for each of the options, each on its own thread.
#[must_use]
pub fn join_all(options: &[JoinOptions]) -> Vec<Result<Joined, Failure>> {
    std::thread::scope(|scope| {
        let spawn = |options| scope.spawn(move || join(options));
        let threads: Vec<_> = options.iter().map(spawn).collect();
        let mut joined = Vec::new();
        for thread in threads {
            joined.push(thread.join().expect("a rank does not panic"));
        }
        joined
    })
}

/// All ranks of a group, in order.
pub fn world(options: &JoinOptions) -> Vec<Joined> {
    let joined = join_all(&vec![options.clone(); options.size as usize]);
    let mut ranks: Vec<Joined> = joined.into_iter().map(|joined| joined.expect("a rank joins")).collect();
    ranks.sort_by_key(|joined| joined.rank);
    ranks
}

/// Waits until `count` ranks are at the rendezvous.
pub fn wait_for_ranks(server: &Server, count: usize) {
    let begun = Instant::now();
    while server.counts().1 != count {
        assert!(
            begun.elapsed() < TIMEOUT,
            "{:?} instead of {count} ranks",
            server.counts()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
