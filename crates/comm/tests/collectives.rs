//! Compares every collective with a result that one process computes from all inputs.

mod thread_group;

use dayfly_comm::{Datatype, Operation, Options};
use proptest::prelude::*;
use thread_group::{Net, group, options, pattern};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn net() -> impl Strategy<Value = Net> {
    prop_oneof![Just(Net::Shm), Just(Net::Tcp)]
}

/// Lengths around the sizes at which an algorithm changes.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..200, 2 => 200usize..9000, 1 => 30_000usize..70_000, 1 => 100_000usize..800_000]
}

/// Host of each rank; most ranks have neighbours on their host, as schedulers place them.
fn hosts() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        1 => Just(Vec::new()),
        2 => prop::collection::vec(0u32..4, 9),
        2 => (1u32..5).prop_map(|each| (0..9).map(|rank| rank / each).collect()),
    ]
}

fn on(hosts: &[u32]) -> Options {
    let lowest = |host| (0..).zip(hosts).find(|(_, of)| *of == host).map_or(0, |(rank, _)| rank);
    Options {
        hosts: hosts.iter().map(lowest).collect(),
        ..options()
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn equal_blocks_arrive_at_their_places(
        size in 1u32..=9, hosts in hosts(), net in net(), length in length(), root in 0u32..9, seed: u64,
    ) {
        let root = root % size;
        let all: Vec<Vec<u8>> = (0..size).map(|rank| pattern(seed ^ u64::from(rank), length)).collect();
        let joined = all.concat();
        let wide: Vec<Vec<u8>> = (0..size).map(|rank| pattern(!seed ^ u64::from(rank), length * size as usize)).collect();
        group(size, net, on(&hosts), |comm| {
            let rank = comm.rank() as usize;
            comm.barrier().unwrap();

            let mut buffer = if comm.rank() == root { all[rank].clone() } else { vec![0; length] };
            comm.bcast(&mut buffer, root).unwrap();
            assert_eq!(buffer, all[root as usize]);

            let mut gathered = vec![0; if comm.rank() == root { joined.len() } else { 0 }];
            comm.gather(&all[rank], &mut gathered, root).unwrap();
            assert!(comm.rank() != root || gathered == joined);

            let mut mine = vec![0; length];
            let from: &[u8] = if comm.rank() == root { &joined } else { &[] };
            comm.scatter(from, &mut mine, root).unwrap();
            assert_eq!(mine, all[rank]);

            let mut everything = vec![0; joined.len()];
            comm.allgather(&all[rank], &mut everything).unwrap();
            assert_eq!(everything, joined);

            let mut turned = vec![0; wide[rank].len()];
            comm.alltoall(&wide[rank], &mut turned).unwrap();
            let expected: Vec<u8> = wide.iter().flat_map(|from| from[rank * length..(rank + 1) * length].to_vec()).collect();
            assert_eq!(turned, expected);
        });
    }

    #[test]
    fn unequal_blocks_arrive_at_their_places(
        net in net(),
        lengths in prop::collection::vec(0usize..3000, 1..9),
        scale in prop_oneof![3 => Just(1usize), 1 => Just(40)],
        root in 0u32..9,
        seed: u64,
    ) {
        let size = lengths.len() as u32;
        let root = root % size;
        let lengths: Vec<usize> = lengths.iter().map(|length| length * scale).collect();
        // With gaps between the blocks.
        let ranges: Vec<_> = lengths.iter().scan(0, |at, length| {
            let start = *at;
            *at += length + 3;
            Some(start..start + length)
        }).collect();
        let end = ranges.last().map_or(0, |range| range.end);
        let all: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(length, rank)| pattern(seed ^ rank, *length)).collect();
        let mut joined = vec![0; end];
        for (range, bytes) in ranges.iter().zip(&all) {
            joined[range.clone()].copy_from_slice(bytes);
        }
        group(size, net, options(), |comm| {
            let rank = comm.rank() as usize;
            let at_root = comm.rank() == root;

            let mut gathered = vec![0; if at_root { end } else { 0 }];
            comm.gatherv(&all[rank], &mut gathered, if at_root { &ranges } else { &[] }, root).unwrap();
            assert!(!at_root || gathered == joined);

            let mut mine = vec![0; lengths[rank]];
            comm.scatterv(if at_root { &joined } else { &[] }, if at_root { &ranges } else { &[] }, &mut mine, root).unwrap();
            assert_eq!(mine, all[rank]);

            let mut everything = vec![0; end];
            comm.allgatherv(&all[rank], &mut everything, &ranges).unwrap();
            assert_eq!(everything, joined);

            // Rank i sends rank j the first lengths[i].min(lengths[j]) bytes of its own.
            let sent: Vec<_> = lengths.iter().map(|other| 0..lengths[rank].min(*other)).collect();
            let mut at = 0;
            let received: Vec<_> = sent.iter().map(|range| { let start = at; at += range.end; start..at }).collect();
            let mut turned = vec![0; at];
            comm.alltoallv(&all[rank], &sent, &mut turned, &received).unwrap();
            let expected: Vec<u8> = all.iter().zip(&sent).flat_map(|(from, range)| from[range.clone()].to_vec()).collect();
            assert_eq!(turned, expected);
        });
    }

    #[test]
    fn reductions_match_a_single_process(
        size in 1u32..=9,
        hosts in hosts(),
        net in net(),
        length in length(),
        root in 0u32..9,
        seed: u64,
        operation in 0usize..11,
        datatype in 0usize..10,
    ) {
        let root = root % size;
        // The last operation composes affine functions, which is associative and not commutative.
        let affine = |left: &[u8], right: &mut [u8], _: Datatype| {
            for (left, right) in left.chunks_exact(2).zip(right.chunks_exact_mut(2)) {
                (right[0], right[1]) =
                    (left[0].wrapping_mul(right[0]), left[1].wrapping_mul(right[0]).wrapping_add(right[1]));
            }
        };
        let operation = [
            Operation::Sum, Operation::Product, Operation::Min, Operation::Max, Operation::LogicalAnd, Operation::LogicalOr,
            Operation::LogicalXor, Operation::BitAnd, Operation::BitOr, Operation::BitXor, Operation::user(affine, false),
        ][operation].clone();
        let datatype = match operation {
            Operation::User { .. } => Datatype::U16,
            _ => [Datatype::I8, Datatype::I16, Datatype::I32, Datatype::I64, Datatype::U8, Datatype::U16, Datatype::U32,
                Datatype::U64, Datatype::I32, Datatype::U64][datatype],
        };
        let element = datatype.bytes();
        let length = length / element * element;
        let all: Vec<Vec<u8>> = (0..size).map(|rank| pattern(seed ^ u64::from(rank), length)).collect();
        let mut partial: Vec<Vec<u8>> = vec![all[0].clone()];
        for next in &all[1..] {
            let mut result = next.clone();
            operation.combine(partial.last().unwrap(), &mut result, datatype);
            partial.push(result);
        }
        let total = partial.last().unwrap().clone();
        let elements = length / element;
        let counts: Vec<usize> = (0..size as usize)
            .map(|rank| ((rank + 1) * elements / size as usize - rank * elements / size as usize) * element)
            .collect();
        group(size, net, on(&hosts), |comm| {
            let rank = comm.rank() as usize;

            let mut buffer = all[rank].clone();
            comm.reduce(&mut buffer, datatype, &operation, root).unwrap();
            assert!(comm.rank() != root || buffer == total);

            let mut result = vec![0; length];
            comm.allreduce(&all[rank], &mut result, datatype, &operation).unwrap();
            assert_eq!(result, total);

            let mut mine = vec![0; counts[rank]];
            comm.reduce_scatter(&all[rank], &mut mine, &counts, datatype, &operation).unwrap();
            let start: usize = counts[..rank].iter().sum();
            assert_eq!(mine, total[start..start + counts[rank]]);

            let mut buffer = all[rank].clone();
            comm.scan(&mut buffer, datatype, &operation).unwrap();
            assert_eq!(buffer, partial[rank]);

            let mut before = vec![7; length];
            comm.exscan(&all[rank], &mut before, datatype, &operation).unwrap();
            assert!(if rank == 0 { before.iter().all(|byte| *byte == 7) } else { before == partial[rank - 1] });
        });
    }
}
