//! What an operation takes over each channel, in time and money, and so which channel to choose: the model of FMI (Copik et al.,
//! "FMI: Fast and Cheap Message Passing for Serverless Functions", 2023) for the algorithms of [`Table`].
//!
//! A message of `n` bytes takes `latency + n / bandwidth`. An operation is so many messages one after the other, with so many bytes, and
//! so many messages of all ranks together. What passes a store is paid for by requests, by what lies there, and by the hour of whatever
//! serves it; and every rank is paid for while it waits, so that what is slow is dear, however cheap its requests are.
//!
//! Pure: no I/O, no clock. `dayfly bench comm` measures latency and bandwidth; prices are the user's to say.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stored::OBJECT_BYTES;
use crate::table::Table;

/// Seconds of a month, as stores count: 730 hours.
const MONTH_S: f64 = 730.0 * 3600.0;

/// What ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A message from one rank to another, and one back.
    Pingpong,
    /// The bytes of one rank to all.
    Bcast,
    /// The bytes of all ranks combined, to all.
    Allreduce,
    /// Each rank's bytes to all.
    Allgather,
    /// From each rank as many bytes for each.
    Alltoall,
    /// Nothing but waiting for each other.
    Barrier,
}

/// What things cost, in any one currency; 0 for what costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Storing one object.
    pub put: f64,
    /// Looking for one object, whether it is there or not.
    pub get: f64,
    /// What lies in the store: 10^9 bytes for a month.
    pub gb_month: f64,
    /// Whatever serves the channel, such as the host of a Redis server or of a relay, for an hour.
    pub host_hour: f64,
    /// One rank, for an hour.
    pub rank_hour: f64,
}

/// A way for bytes between ranks, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Of a message without bytes, in seconds.
    pub latency_s: f64,
    /// Of a long message.
    pub bytes_per_s: f64,
    /// The shortest pause between two looks for an object; none where nobody looks, as a channel that is not a store, or that tells by
    /// itself.
    pub look_s: Option<f64>,
    /// Whether objects are stored.
    pub stored: bool,
}

/// What an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// How long.
    pub seconds: f64,
    /// Objects that are stored.
    pub puts: f64,
    /// Times that one is looked for.
    pub gets: f64,
    /// What all of it costs.
    pub price: f64,
}

/// How an operation goes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Course {
    /// Messages one after the other.
    rounds: f64,
    /// Bytes of these.
    bytes: f64,
    /// Messages of all ranks.
    messages: f64,
    /// Bytes of all.
    moved: f64,
}

/// The course of an operation of so many ranks with so many bytes (of a message, or of each rank's part), by the algorithm that the table
/// chooses.
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
            // Halves of the scatter, then every part to everybody.
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

/// How often an object is looked for that comes after so long: at first as often as the store answers, then at a quarter of the time that
/// has passed.
fn looks(wait_s: f64, look_s: f64) -> f64 {
    let (mut at, mut count) = (0.0, 1.0);
    while at < wait_s {
        at += (at / 4.0).clamp(look_s, 1.0);
        count += 1.0;
    }
    count
}

/// What an operation takes over a channel.
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
    // An object lies there for as long as it takes to come across.
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

/// What a choice is to be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// The least time.
    Time,
    /// The least money; among equals the least time.
    Price,
    /// The least money of what takes no longer than this; the least time where nothing does.
    Within(Duration),
}

/// The place of the best of several channels' predictions; none of none.
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
