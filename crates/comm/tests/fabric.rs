//! Ranks that exchange over libfabric's software providers, and ranks that cannot.

mod thread_group;

use std::time::Duration;

use dayfly_comm::{Communicator, Datatype, Operation, Options};
use dayfly_fabric::libfabric::Choice;
use dayfly_fabric::libfabric::ffi::Library;
use thread_group::{Net, group, options, pattern};

/// Why libfabric is missing here; `None` if it is present.
fn absent() -> Option<String> {
    Library::get().err().map(|error| error.to_string())
}

fn over(fabric: &str, spin: Option<Duration>) -> Options {
    Options {
        fabric: Some(fabric.parse::<Choice>().unwrap()),
        spin,
        ..options()
    }
}

fn work(comm: &Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    for length in [0, 1, 5_000, 70_000, 3_000_000] {
        let (own, mut came) = (pattern(u64::from(rank), length), vec![0; length]);
        comm.sendrecv(&own, next, 5, &mut came, before, 5).unwrap();
        assert!(
            came == pattern(u64::from(before), length),
            "{length} bytes from rank {before}"
        );
    }
    for count in [1, 300, 100_000] {
        let own: Vec<u8> = (0..count)
            .flat_map(|at| f64::from(rank * 7 + at % 13).to_ne_bytes())
            .collect();
        let mut sum = vec![0; own.len()];
        comm.allreduce(&own, &mut sum, Datatype::F64, &Operation::Sum).unwrap();
        for (at, found) in (0..count).zip(sum.chunks(8)) {
            let expected: u32 = (0..size).map(|rank| rank * 7 + at % 13).sum();
            assert_eq!(f64::from_ne_bytes(found.try_into().unwrap()), f64::from(expected));
        }
    }
    let own: Vec<u8> = (0..size)
        .flat_map(|to| pattern(u64::from(rank * 100 + to), 40_000))
        .collect();
    let mut came = vec![0; own.len()];
    comm.alltoall(&own, &mut came).unwrap();
    for (from, part) in (0..size).zip(came.chunks(40_000)) {
        assert!(part == pattern(u64::from(from * 100 + rank), 40_000));
    }
    comm.barrier().unwrap();
}

#[test]
fn libfabric_carries_messages_polling_and_sleeping() {
    if let Some(why) = absent() {
        return eprintln!("left out: {why}");
    }
    for spin in [None, Some(Duration::ZERO)] {
        group(3, Net::Tcp, over("tcp", spin), |comm| {
            for peer in (0..3).filter(|peer| *peer != comm.rank()) {
                assert!(comm.fabric(peer).is_some());
            }
            work(&comm);
        });
    }
}

#[test]
fn ranks_without_the_fabric_keep_their_connection() {
    for (net, fabric) in [(Net::Tcp, "no-such-provider"), (Net::Shm, "tcp")] {
        group(3, net, over(fabric, None), |comm| {
            assert!((0..3).all(|peer| comm.fabric(peer).is_none()));
            work(&comm);
        });
    }
}

#[test]
fn early_leaver_is_lost_to_ranks_needing_it() {
    if let Some(why) = absent() {
        return eprintln!("left out: {why}");
    }
    group(2, Net::Tcp, over("tcp", Some(Duration::from_millis(1))), |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 0 {
            let failure = comm.recv(&mut [0; 8], 1, 9).unwrap_err();
            assert_eq!(failure.code, dayfly_protocol::error::Code::RankLost, "{failure}");
        }
    });
}
