//! Predicts time and price of an operation over each channel, and chooses a channel: the model of FMI (Copik et al.,
//! "FMI: Fast and Cheap Message Passing for Serverless Functions", 2023) for the algorithms of [`Table`].
//!
//! A message of `n` bytes takes `latency + n / bandwidth`. An operation has a number of consecutive messages with their
//! bytes, and a number of messages of all ranks together. A store costs requests, stored bytes, and the hours of its
//! host. Every rank costs money while it waits, so a slow channel is expensive even if its requests are cheap.
//!
//! Pure: no I/O, no clock. `dayfly bench comm` measures latency and bandwidth; the user supplies the prices.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store_route::OBJECT_BYTES;
use crate::table::Table;

/// Seconds of a month, as stores bill it: 730 hours.
const MONTH_S: f64 = 730.0 * 3600.0;

/// An operation to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A message to another rank, and one back.
    Pingpong,
    /// The bytes of one rank to all.
    Bcast,
    /// The bytes of all ranks combined, to all.
    Allreduce,
    /// Each rank's bytes to all.
    Allgather,
    /// Equally many bytes from each rank to each rank.
    Alltoall,
    /// Synchronization only.
    Barrier,
}

/// Prices in one currency; 0 for what is free.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Storing one object.
    pub put: f64,
    /// Looking for one object, whether it exists or not.
    pub get: f64,
    /// Storage of 10^9 bytes for a month.
    pub gb_month: f64,
    /// The host of the channel, such as a Redis server or a relay, for an hour.
    pub host_hour: f64,
    /// One rank, for an hour.
    pub rank_hour: f64,
}

/// A measured channel between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Time of an empty message, in seconds.
    pub latency_s: f64,
    /// Bandwidth of a long message, in bytes per second.
    pub bytes_per_s: f64,
    /// Shortest pause between two looks for an object, in seconds; `None` for a channel without polling.
    pub look_s: Option<f64>,
    /// Whether messages are stored as objects.
    pub stored: bool,
}

/// Prediction for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// Duration in seconds.
    pub seconds: f64,
    /// Stored objects.
    pub puts: f64,
    /// Looks for objects.
    pub gets: f64,
    /// Total price.
    pub price: f64,
}

/// Messages and bytes of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Course {
    /// Consecutive messages.
    rounds: f64,
    /// Bytes of the consecutive messages.
    bytes: f64,
    /// Messages of all ranks.
    messages: f64,
    /// Bytes of all messages.
    moved: f64,
}

/// Messages and bytes of an operation, for the algorithm that the table chooses. `bytes` is the length of a message, or
/// of each rank's part.
fn course(operation: Operation, ranks: u32, bytes: u64, table: &Table) -> Course {
    let (n, size) = (f64::from(ranks.max(1)), bytes as f64);
    let steps = n.log2().ceil();
    let is = |least: usize| bytes >= least as u64;
    let all = |rounds: f64, bytes: f64| Course {
        rounds,
        bytes,
        messages: n * rounds,
        moved: n * bytes,
    };
    match operation {
        _ if ranks < 2 => all(0.0, 0.0),
        Operation::Pingpong => Course {
            rounds: 2.0,
            bytes: 2.0 * size,
            messages: 2.0,
            moved: 2.0 * size,
        },
        Operation::Bcast if ranks > 2 && is(table.bcast_scatter) => Course {
            rounds: steps + n - 1.0,
            bytes: 2.0 * size * (n - 1.0) / n,
            messages: n - 1.0 + n * (n - 1.0),
            // Halves of the scatter, then every part to every rank.
            moved: size * steps / 2.0 + size * (n - 1.0),
        },
        Operation::Bcast => Course {
            rounds: steps,
            bytes: steps * size,
            messages: n - 1.0,
            moved: (n - 1.0) * size,
        },
        Operation::Allreduce if is(table.allreduce_halving) => all(2.0 * steps, 2.0 * size * (n - 1.0) / n),
        Operation::Allreduce => all(steps, steps * size),
        Operation::Allgather if bytes.saturating_mul(u64::from(ranks)) >= table.allgather_ring as u64 => {
            all(n - 1.0, (n - 1.0) * size)
        }
        Operation::Allgather => all(steps, (n - 1.0) * size),
        Operation::Alltoall if is(table.alltoall_pairwise) => all(n - 1.0, (n - 1.0) * size),
        Operation::Alltoall => all(steps, steps * size * n / 2.0),
        Operation::Barrier => all(steps, 0.0),
    }
}

/// Number of looks for an object that arrives after `wait_s` seconds: at first `look_s` apart, later a quarter of the
/// time that has passed.
fn looks(wait_s: f64, look_s: f64) -> f64 {
    let (mut at, mut count) = (0.0, 1.0);
    while at < wait_s {
        at += (at / 4.0).clamp(look_s, 1.0);
        count += 1.0;
    }
    count
}

/// Time and price of an operation over a channel.
pub fn predict(
    operation: Operation,
    ranks: u32,
    bytes: u64,
    table: &Table,
    channel: &Measured,
    prices: &Prices,
) -> Prediction {
    let Course {
        rounds,
        bytes,
        messages,
        moved,
    } = course(operation, ranks, bytes, table);
    let seconds = rounds * channel.latency_s + bytes / channel.bytes_per_s;
    let (mut puts, mut gets) = (0.0, 0.0);
    if channel.stored && messages > 0.0 {
        // A long message is several objects.
        puts = messages * (moved / messages / OBJECT_BYTES as f64).ceil().max(1.0);
        let wait = channel.latency_s + moved / puts / channel.bytes_per_s;
        gets = puts * channel.look_s.map_or(1.0, |look| looks(wait, look.max(1e-4)));
    }
    // An object is stored for the time of its transfer.
    let lies = if channel.stored {
        moved / 1e9 * channel.latency_s / MONTH_S
    } else {
        0.0
    };
    let price = puts * prices.put
        + gets * prices.get
        + lies * prices.gb_month
        + seconds / 3600.0 * (prices.host_hour + f64::from(ranks) * prices.rank_hour);
    Prediction {
        seconds,
        puts,
        gets,
        price,
    }
}

/// Aim of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// The least time.
    Time,
    /// The lowest price; among equals the least time.
    Price,
    /// The lowest price among those within this time; the least time if there are none.
    Within(Duration),
}

/// Index of the best prediction; `None` without predictions.
pub fn choose(predictions: &[Prediction], aim: Aim) -> Option<usize> {
    let by = |key: fn(&Prediction) -> [f64; 2], candidates: &mut dyn Iterator<Item = usize>| {
        candidates.min_by(|one, other| {
            let (one, other) = (key(&predictions[*one]), key(&predictions[*other]));
            one[0].total_cmp(&other[0]).then(one[1].total_cmp(&other[1]))
        })
    };
    let time: fn(&Prediction) -> [f64; 2] = |found| [found.seconds, found.price];
    let price: fn(&Prediction) -> [f64; 2] = |found| [found.price, found.seconds];
    let all = 0..predictions.len();
    match aim {
        Aim::Time => by(time, &mut all.into_iter()),
        Aim::Price => by(price, &mut all.into_iter()),
        Aim::Within(limit) => {
            let fits = |at: &usize| predictions[*at].seconds <= limit.as_secs_f64();
            by(price, &mut all.clone().filter(fits)).or_else(|| by(time, &mut all.into_iter()))
        }
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
