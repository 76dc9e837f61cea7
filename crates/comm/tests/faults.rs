//! Ranks that call different collectives, and ranks that die.

mod rank_process;
mod thread_group;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_comm::LostRanks;
use dayfly_comm::{Communicator, Datatype, Operation};
use dayfly_protocol::error::{Code, Failure};
use rank_process::{Rank, Start};
use thread_group::{Net, connections, group, options, pattern};

const NETS: [Net; 2] = [Net::Shm, Net::Tcp];

/// Asserts that all ranks get an error that names both calls, except ranks that had finished before.
fn expect_mismatch(size: u32, calls: [&str; 2], run: impl Fn(&Communicator) -> Result<(), Failure> + Sync) {
    for net in NETS {
        let outcomes = group(size, net, options(), |comm| {
            // A rank that had finished gets the error in the next collective.
            let first = run(&comm);
            let outcome = first.and_then(|()| comm.barrier());
            // No rank leaves before all have the error.
            let everybody: Vec<u32> = (0..comm.size()).filter(|rank| *rank != comm.rank()).collect();
            for other in &everybody {
                comm.send(&[], *other, 1).unwrap();
            }
            for other in &everybody {
                comm.recv(&mut [], *other, 1).unwrap();
            }
            outcome
        });
        for outcome in outcomes {
            let failure = outcome.unwrap_err();
            assert_eq!(failure.code, Code::Mismatch, "{failure}");
            for call in calls {
                assert!(failure.message.contains(call), "{net:?}: {failure}");
            }
        }
    }
}

#[test]
fn different_collectives_are_reported_with_both_calls() {
    expect_mismatch(
        2,
        ["rank 0 called barrier", "rank 1 called bcast of 8 bytes with root 0"],
        |comm| match comm.rank() {
            0 => comm.barrier(),
            _ => comm.bcast(&mut [0; 8], 0),
        },
    );
    expect_mismatch(
        4,
        ["called allreduce of 16 bytes with sum of i64", "rank 2 called barrier"],
        |comm| match comm.rank() {
            2 => comm.barrier(),
            _ => comm.allreduce(&[0; 16], &mut [0; 16], Datatype::I64, &Operation::Sum),
        },
    );
}

#[test]
fn different_roots_are_reported_without_any_send() {
    expect_mismatch(
        2,
        [
            "rank 0 called gather of 4 bytes with root 0",
            "rank 1 called gather of 4 bytes with root 1",
        ],
        |comm| comm.gather(&[0; 4], &mut [0; 8], comm.rank()),
    );
}

#[test]
fn different_lengths_types_or_operations_are_reported() {
    expect_mismatch(
        3,
        ["allgather of 8 bytes", "rank 1 called allgather of 16 bytes"],
        |comm| {
            let length = if comm.rank() == 1 { 16 } else { 8 };
            comm.allgather(&vec![0; length], &mut vec![0; 3 * length])
        },
    );
    expect_mismatch(2, ["with sum of i32", "with sum of f32"], |comm| {
        let datatype = if comm.rank() == 1 { Datatype::I32 } else { Datatype::F32 };
        comm.allreduce(&[0; 64], &mut [0; 64], datatype, &Operation::Sum)
    });
    expect_mismatch(2, ["with max of i64", "with min of i64"], |comm| {
        let operation = if comm.rank() == 1 {
            Operation::Max
        } else {
            Operation::Min
        };
        comm.reduce(&mut [0; 64], Datatype::I64, &operation, 0)
    });
    expect_mismatch(2, ["rank 0 called gatherv", "rank 1 called gatherv"], |comm| {
        let own = vec![0; if comm.rank() == 1 { 5 } else { 3 }];
        comm.gatherv(&own, &mut [0; 6], &[0..3, 3..6], 0)
    });
}

#[test]
fn invalid_arguments_fail_before_sending() {
    group(2, Net::Shm, options(), |comm| {
        let codes = [
            comm.bcast(&mut [0; 8], 2),
            comm.send(&[], 2, 0),
            comm.recv(&mut [], 7, 0).map(|_| ()),
            comm.allgather(&[0; 8], &mut [0; 15]),
            comm.allreduce(&[0; 7], &mut [0; 7], Datatype::F64, &Operation::Sum),
            comm.allreduce(&[0; 8], &mut [0; 8], Datatype::F64, &Operation::BitAnd),
            comm.gatherv(&[], &mut [], &[], comm.rank()),
        ];
        for outcome in codes {
            assert_eq!(outcome.unwrap_err().code, Code::InvalidRequest);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn left_rank_fails_only_operations_needing_it() {
    for net in NETS {
        group(3, net, options(), |comm| {
            if comm.rank() == 0 {
                comm.send(b"last", 1, 0).unwrap();
                return;
            }
            let mut into = [0; 4];
            if comm.rank() == 1 {
                comm.recv(&mut into, 0, 0).unwrap();
                assert_eq!(&into, b"last");
                let failure = comm.recv(&mut into, 0, 0).unwrap_err();
                assert_eq!(failure.code, Code::RankLost);
                assert!(failure.message.contains("rank 0 has left"), "{failure}");
                comm.send(b"here", 2, 0).unwrap();
            } else {
                comm.recv(&mut into, 1, 0).unwrap();
            }
        });
    }
}

const OPERATIONS: [&str; 11] = [
    "barrier",
    "bcast",
    "gather",
    "scatter",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "reduce_scatter",
    "scan",
    "exscan",
];

/// One operation over some hundred kibibytes, so that transfers are in flight when a rank dies.
fn operate(comm: &Communicator, operation: &str, bytes: usize) -> Result<(), Failure> {
    let size = comm.size() as usize;
    let (one, mut other) = (pattern(1, bytes), vec![0; bytes]);
    let (wide, mut other_wide) = (vec![1; bytes * size], vec![0; bytes * size]);
    let (datatype, sum) = (Datatype::U64, &Operation::Sum);
    match operation {
        "barrier" => comm.barrier(),
        "bcast" => comm.bcast(&mut other, 0),
        "gather" => comm.gather(&one, &mut other_wide, 0),
        "scatter" => comm.scatter(&wide, &mut other, 0),
        "allgather" => comm.allgather(&one, &mut other_wide),
        "alltoall" => comm.alltoall(&wide, &mut other_wide),
        "reduce" => comm.reduce(&mut other, datatype, sum, 0),
        "allreduce" => comm.allreduce(&one, &mut other, datatype, sum),
        "reduce_scatter" => comm.reduce_scatter_block(&wide, &mut other, datatype, sum),
        "scan" => comm.scan(&mut other, datatype, sum),
        "exscan" => comm.exscan(&one, &mut other, datatype, sum),
        // Nobody sends it.
        "iprobe" => comm.iprobe((comm.rank() + 1) % comm.size(), 0).map(|_| ()),
        _ => {
            let (next, previous) = (
                (comm.rank() + 1) % comm.size(),
                (comm.rank() + comm.size() - 1) % comm.size(),
            );
            comm.sendrecv(&one, next, 0, &mut other, previous, 0).map(|_| ())
        }
    }
}

/// Not a test of its own: the program of each process of a group. Repeats an operation until it fails, reports the
/// code, continues without the lost ranks, and lives until it is ended.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn rank_in_child_process() {
    let Some(Start {
        words,
        rank,
        connections,
    }) = Start::from_environment()
    else {
        return;
    };
    let (operation, bytes): (&str, usize) = (&words[0], words[1].parse().unwrap());
    let size = connections.len() as u32;
    let comm = Communicator::form(rank, size, connections, Arc::new(LostRanks::default()), options()).unwrap();
    let mut count = 0;
    let failure = loop {
        if let Err(failure) = operate(&comm, operation, bytes) {
            break failure;
        }
        count += 1;
        if count == 5 {
            eprintln!("running");
        }
    };
    eprintln!("{} {}", failure.code.name(), failure.message);
    match comm
        .shrink()
        .and_then(|rest| operate(&rest, "allreduce", 800).map(|()| rest.size()))
    {
        Ok(left) => eprintln!("{left} left"),
        Err(failure) => eprintln!("{failure}"),
    }
    let _ = std::io::stdin().read(&mut [0]);
}

/// Kills a rank while all are busy: the others are informed within seconds on the busiest machine, and continue without
/// it.
fn kill_one(net: Net, size: u32, operation: &str, bytes: usize, victim: usize) {
    let words = format!("{operation} {bytes}");
    let what = format!("{net:?} {operation}");
    let mut ranks = Rank::start_group("rank_in_child_process", &words, connections(size, net), &what);
    ranks[victim].kill();
    let killed = Instant::now();
    for (number, rank) in Rank::others(&mut ranks, victim) {
        let line = rank.line();
        assert!(
            line.starts_with("rank_lost") && line.contains(&format!("rank {victim} ")),
            "{what}, rank {number}: {line}"
        );
    }
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    Rank::assert_left(&mut ranks, victim, &what);
}

#[test]
fn rank_killed_in_collective_is_named_and_shrunk() {
    for (number, operation) in OPERATIONS.iter().enumerate() {
        kill_one(Net::Shm, 4, operation, [64, 400_000][number % 2], number % 4);
        kill_one(Net::Shm, 4, operation, [400_000, 64][number % 2], (number + 1) % 4);
        kill_one(Net::Tcp, 4, operation, [400_000, 8000][number % 2], (number + 2) % 4);
    }
}

#[test]
fn rank_killed_during_messages_is_named() {
    for net in NETS {
        for bytes in [64, 50_000, 3 << 20] {
            kill_one(net, 2, "sendrecv", bytes, 1);
        }
    }
}

#[test]
fn killed_rank_is_named_to_polling_ranks() {
    for net in NETS {
        kill_one(net, 2, "iprobe", 64, 1);
    }
}
