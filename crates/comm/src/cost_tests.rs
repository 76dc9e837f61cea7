use proptest::prelude::*;

use super::*;

const DIRECT: Measured = Measured {
    latency_s: 20e-6,
    bytes_per_s: 1e9,
    look_s: None,
    stored: false,
};
const BUCKET: Measured = Measured {
    latency_s: 20e-3,
    bytes_per_s: 1e8,
    look_s: Some(4e-3),
    stored: true,
};
const PRICES: Prices = Prices {
    put: 5e-6,
    get: 4e-7,
    gb_month: 0.02,
    host_hour: 0.0,
    rank_hour: 0.1,
};

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        Just(Operation::Pingpong),
        Just(Operation::Bcast),
        Just(Operation::Allreduce),
        Just(Operation::Allgather),
        Just(Operation::Alltoall),
        Just(Operation::Barrier),
    ]
}

fn at(operation: Operation, ranks: u32, bytes: u64, channel: &Measured, prices: &Prices) -> Prediction {
    let table = if channel.stored {
        Table::stored()
    } else {
        Table::default()
    };
    predict(operation, ranks, bytes, &table, channel, prices)
}

proptest! {
    #[test]
    fn slower_or_dearer_channel_never_improves_an_operation(
        operation in operation(), ranks in 1u32..5000, bytes in 0u64..1 << 36, factor in 1.0f64..100.0,
    ) {
        let usual = at(operation, ranks, bytes, &BUCKET, &PRICES);
        prop_assert!(usual.seconds >= 0.0 && usual.price >= 0.0 && usual.gets >= usual.puts);
        let slower = Measured { latency_s: BUCKET.latency_s * factor, ..BUCKET };
        prop_assert!(at(operation, ranks, bytes, &slower, &PRICES).seconds >= usual.seconds);
        let narrower = Measured { bytes_per_s: BUCKET.bytes_per_s / factor, ..BUCKET };
        prop_assert!(at(operation, ranks, bytes, &narrower, &PRICES).price >= usual.price);
        for prices in [
            Prices { put: PRICES.put * factor, ..PRICES },
            Prices { get: PRICES.get * factor, ..PRICES },
            Prices { gb_month: PRICES.gb_month * factor, ..PRICES },
            Prices { host_hour: factor, ..PRICES },
            Prices { rank_hour: PRICES.rank_hour * factor, ..PRICES },
        ] {
            prop_assert!(at(operation, ranks, bytes, &BUCKET, &prices).price >= usual.price);
        }
    }

    #[test]
    fn more_bytes_never_take_less_time(operation in operation(), ranks in 2u32..200, bytes in 0u64..1 << 30) {
        let table = Table { bcast_scatter: usize::MAX, allgather_ring: usize::MAX, alltoall_pairwise: usize::MAX,
            allreduce_halving: usize::MAX, ..Table::default() };
        let take = |bytes| predict(operation, ranks, bytes, &table, &BUCKET, &PRICES);
        prop_assert!(take(bytes + 1).seconds >= take(bytes).seconds);
        prop_assert!(take(bytes + 1).puts >= take(bytes).puts);
    }

    #[test]
    fn chosen_channel_is_no_worse_than_others(
        found in prop::collection::vec((0.0f64..100.0, 0.0f64..100.0), 0..8), limit in 0u64..100,
    ) {
        let found: Vec<Prediction> =
            found.into_iter().map(|(seconds, price)| Prediction { seconds, puts: 0.0, gets: 0.0, price }).collect();
        let least = |of: fn(&Prediction) -> f64, among: &[Prediction]| among.iter().map(of).fold(f64::INFINITY, f64::min);
        match choose(&found, Aim::Time) {
            None => prop_assert!(found.is_empty()),
            Some(at) => prop_assert_eq!(found[at].seconds, least(|one| one.seconds, &found)),
        }
        if let Some(at) = choose(&found, Aim::Price) {
            prop_assert_eq!(found[at].price, least(|one| one.price, &found));
        }
        let limit = Duration::from_secs(limit);
        if let Some(at) = choose(&found, Aim::Within(limit)) {
            let fit: Vec<Prediction> = found.iter().copied().filter(|one| one.seconds <= limit.as_secs_f64()).collect();
            match fit.is_empty() {
                true => prop_assert_eq!(found[at].seconds, least(|one| one.seconds, &found)),
                false => prop_assert_eq!(found[at].price, least(|one| one.price, &fit)),
            }
        }
    }
}

#[test]
fn message_time_is_latency_plus_transfer() {
    let found = at(Operation::Pingpong, 2, 100_000_000, &BUCKET, &Prices::default());
    assert!((found.seconds - (2.0 * 0.020 + 2.0)).abs() < 1e-9);
    // 100 MB are 24 objects of 4 MiB.
    assert_eq!(found.puts, 48.0);
    assert_eq!(found.price, 0.0);
    let direct = at(Operation::Pingpong, 2, 0, &DIRECT, &PRICES);
    assert_eq!((direct.puts, direct.gets), (0.0, 0.0));
}

#[test]
fn tree_rounds_are_log2_of_ranks() {
    let rounds = |operation, ranks| at(operation, ranks, 8, &BUCKET, &PRICES).seconds / BUCKET.latency_s;
    for (ranks, steps) in [(2, 1.0), (3, 2.0), (8, 3.0), (64, 6.0)] {
        assert!((rounds(Operation::Barrier, ranks) - steps).abs() < 1e-6, "{ranks}");
        assert!((rounds(Operation::Bcast, ranks) - steps).abs() < 1e-3, "{ranks}");
    }
    assert_eq!(at(Operation::Bcast, 8, 8, &BUCKET, &PRICES).puts, 7.0);
}

#[test]
fn group_of_one_costs_nothing() {
    let found = at(Operation::Allreduce, 1, 1 << 20, &BUCKET, &PRICES);
    assert_eq!((found.seconds, found.puts, found.price), (0.0, 0.0, 0.0));
}

#[test]
fn waiting_ranks_add_to_the_cost() {
    let free = Prices {
        rank_hour: 10.0,
        ..Prices::default()
    };
    let both = [&DIRECT, &BUCKET].map(|channel| at(Operation::Allreduce, 64, 1 << 20, channel, &free));
    assert_eq!(choose(&both, Aim::Price), Some(0));
    // With a relay host that is paid by the hour and free ranks, requests may be cheaper.
    let host = Prices {
        host_hour: 1e6,
        ..Prices::default()
    };
    let direct = at(Operation::Allreduce, 64, 1 << 20, &DIRECT, &host);
    let bucket = at(
        Operation::Allreduce,
        64,
        1 << 20,
        &BUCKET,
        &Prices {
            rank_hour: 0.0,
            ..PRICES
        },
    );
    assert_eq!(choose(&[direct, bucket], Aim::Price), Some(1));
    assert_eq!(
        choose(&[direct, bucket], Aim::Within(Duration::from_millis(1))),
        Some(0)
    );
}
