//! The cost model of exchanges: whether the rows of a join meet by a broadcast or a shuffle, and how many ranks a stage has.
//!
//! A shuffle sends each row of both sides to the rank of its key. A broadcast sends the rows of one side to all ranks, and
//! each of them builds the whole hash table, by one thread. The cheaper of the two depends on the rows and the bytes of
//! both sides, the number of ranks and their cores, and the link between them.
//!
//! Pure: no I/O, no clock, no plans. What is known of rows comes from the statistics of files; it is an estimate as soon
//! as a filter or a join is between.

use std::fmt;

use dayfly_comm::Route;

/// Seconds of one core for a row that is hashed by its key, copied to its rank and read there. Of the paper's join, two
/// ranks take 0.88 seconds of cores and one process 0.59, and 9 million rows cross (docs/measurements).
const EXCHANGED_ROW_S: f64 = 32e-9;
/// Seconds of one core for a row that is put into a hash table, and found there: what one process takes for a row of that
/// join.
const BUILT_ROW_S: f64 = 66e-9;
/// Most bytes of a side that each rank gets: it counts against the memory of every rank, and the estimate may be too low.
pub const MAX_BROADCAST_BYTES: u64 = 8 << 20;
/// Most of the time of a shuffle that a broadcast may take, by estimate: near it, either may be the faster one, and the
/// shuffle needs less memory.
const MAX_BROADCAST_SHARE: f64 = 0.8;
/// Bytes of a value whose width is not known, such as a text.
const VALUE_BYTES: u64 = 16;

/// A number of bytes, as people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0 as f64, "B");
        for larger in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, larger);
        }
        match unit {
            "B" => write!(f, "{value} B"),
            _ => write!(f, "{value:.1} {unit}"),
        }
    }
}

/// What is known about rows before they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    known: Option<Amount>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amount {
    rows: u64,
    bytes: u64,
}

impl Estimate {
    /// Of rows with columns of these widths, `None` for one that differs. If either rows or bytes are known, the other
    /// one follows by the widths.
    pub fn new(rows: Option<u64>, bytes: Option<u64>, widths: impl Iterator<Item = Option<usize>>) -> Self {
        let width = widths.map(|width| width.map_or(VALUE_BYTES, |width| width as u64));
        let width = width.fold(0, u64::saturating_add).max(1);
        let known = match (rows, bytes) {
            (Some(rows), Some(bytes)) => Some(Amount { rows, bytes }),
            (Some(rows), None) => Some(Amount {
                rows,
                bytes: rows.saturating_mul(width),
            }),
            (None, Some(bytes)) => Some(Amount {
                rows: bytes.div_ceil(width),
                bytes,
            }),
            (None, None) => None,
        };
        Self { known }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known {
            Some(Amount { rows, bytes }) => write!(f, "about {rows} rows, {}", Size(bytes)),
            None => f.write_str("rows of unknown number"),
        }
    }
}

/// A link between ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    bytes_per_s: f64,
}

impl Link {
    /// The slowest one of these routes. All rows of an exchange are there when those of the slowest link are.
    pub fn slowest(routes: impl IntoIterator<Item = Route>) -> Self {
        let speeds = routes.into_iter().map(bytes_per_s);
        let slowest = speeds.fold(bytes_per_s(Route::Local), f64::min);
        Self { bytes_per_s: slowest }
    }
}

/// Bytes of batches that cross in a second. Within a host and through stores as measured (docs/measurements: batches
/// between ranks, and the time that 68 MiB through Redis added to a join); a network has 10 Gbit/s, and a relay half.
fn bytes_per_s(route: Route) -> f64 {
    match route {
        Route::Local => 2.7e9,
        Route::Direct | Route::Punched | Route::Fabric => 1.25e9,
        Route::Relay => 0.6e9,
        Route::Stored => 0.4e9,
    }
}

/// The ranks among which rows are exchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranks {
    /// Their number.
    pub count: u32,
    /// Cores of each.
    pub cores: usize,
    /// The link between them.
    pub link: Link,
}

/// How the rows of both sides of a join meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// The rows of the side that is kept in memory go to all ranks, and the others stay where they are.
    Broadcast,
    /// All rows go to the ranks of their keys.
    Shuffle,
}

/// An exchange, and why. Its text is the reason.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The exchange.
    pub exchange: Exchange,
    reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Reason {
    OneRank,
    Unknown,
    TooLarge(u64),
    Times { broadcast_s: f64, shuffle_s: f64 },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |f: &mut fmt::Formatter<'_>, own: f64, name, other: f64| {
            write!(f, "{:.1} ms by estimate, and {name} {:.1} ms", own * 1e3, other * 1e3)
        };
        match (self.reason, self.exchange) {
            (Reason::OneRank, _) => f.write_str("one rank has all rows"),
            (Reason::Unknown, _) => f.write_str("the number of rows is not known"),
            (Reason::TooLarge(bytes), _) => {
                write!(
                    f,
                    "{} are too many for a broadcast, of at most {}",
                    Size(bytes),
                    Size(MAX_BROADCAST_BYTES)
                )
            }
            (Reason::Times { broadcast_s, shuffle_s }, Exchange::Broadcast) => {
                times(f, broadcast_s, "a shuffle of both sides", shuffle_s)
            }
            (Reason::Times { broadcast_s, shuffle_s }, Exchange::Shuffle) => {
                times(f, shuffle_s, "a broadcast", broadcast_s)
            }
        }
    }
}

/// Chooses how the rows of a join meet. `build` is the side whose rows are kept in memory.
pub fn choose(build: Estimate, probe: Estimate, ranks: Ranks) -> Choice {
    let shuffle = |reason| Choice {
        exchange: Exchange::Shuffle,
        reason,
    };
    if ranks.count < 2 {
        return shuffle(Reason::OneRank);
    }
    let Some(build) = build.known else {
        return shuffle(Reason::Unknown);
    };
    if build.bytes > MAX_BROADCAST_BYTES {
        return shuffle(Reason::TooLarge(build.bytes));
    }
    let Some(probe) = probe.known else {
        return shuffle(Reason::Unknown);
    };
    let (broadcast_s, shuffle_s) = (broadcast_s(build, ranks), shuffle_s(build, probe, ranks));
    let is_cheaper = broadcast_s <= MAX_BROADCAST_SHARE * shuffle_s;
    Choice {
        exchange: if is_cheaper {
            Exchange::Broadcast
        } else {
            Exchange::Shuffle
        },
        reason: Reason::Times { broadcast_s, shuffle_s },
    }
}

/// Seconds until each rank has the table of all rows: those of the other ranks cross, and one thread builds it.
fn broadcast_s(build: Amount, ranks: Ranks) -> f64 {
    let count = f64::from(ranks.count);
    let crossing = build.bytes as f64 * (count - 1.0) / count;
    crossing / ranks.link.bytes_per_s + build.rows as f64 * BUILT_ROW_S
}

/// Seconds until each rank has the rows of its keys, and the table of one side: all cores exchange and build.
fn shuffle_s(build: Amount, probe: Amount, ranks: Ranks) -> f64 {
    let (count, cores) = (f64::from(ranks.count), ranks.cores.max(1) as f64);
    let of_rank = (build.bytes as f64 + probe.bytes as f64) / count;
    let crossing = of_rank * (count - 1.0) / count;
    let rows = build.rows as f64 + probe.rows as f64;
    let computing = rows * EXCHANGED_ROW_S + build.rows as f64 * BUILT_ROW_S;
    crossing / ranks.link.bytes_per_s + computing / (count * cores)
}

/// Number of ranks that read so many bytes: as many as have a share of them, but at least one, and not more than `most`.
pub fn ranks_for(bytes: u64, share: u64, most: usize) -> usize {
    let ranks = bytes.div_ceil(share.max(1));
    usize::try_from(ranks).unwrap_or(usize::MAX).min(most).max(1)
}

/// The share of `all` that `part` of `whole` is; all of it if the whole is nothing.
pub fn share_of(all: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return all;
    }
    let share = u128::from(all) * u128::from(part.min(whole)) / u128::from(whole);
    u64::try_from(share).unwrap_or(all)
}

#[cfg(test)]
mod tests;
