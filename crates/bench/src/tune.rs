//! Measures the sizes at which a collective should change its algorithm: both algorithms at each size, in turns.

use std::fmt;

use dayfly_comm::table::{BRUCK_RANKS, Table as Algorithms};
use serde::Serialize;

use crate::comm::{Op, Plan, median, ours};
use crate::error::Error;
use crate::table::Table;

/// A threshold in [`Algorithms`] that can be measured.
struct Place {
    name: &'static str,
    op: Op,
    /// Smallest number of ranks with two algorithms.
    least_ranks: usize,
    /// Bytes that the threshold counts for a message of one byte. Some thresholds count the bytes of all ranks.
    scale: fn(usize) -> usize,
    of: fn(&mut Algorithms) -> &mut usize,
}

const PLACES: [Place; 4] = [
    Place {
        name: "bcast_scatter",
        op: Op::Bcast,
        least_ranks: 3,
        scale: |_| 1,
        of: |table| &mut table.bcast_scatter,
    },
    Place {
        name: "allgather_ring",
        op: Op::Allgather,
        least_ranks: 3,
        scale: |ranks| ranks,
        of: |table| &mut table.allgather_ring,
    },
    Place {
        name: "alltoall_pairwise",
        op: Op::Alltoall,
        least_ranks: BRUCK_RANKS,
        scale: |_| 1,
        of: |table| &mut table.alltoall_pairwise,
    },
    Place {
        name: "allreduce_halving",
        op: Op::Allreduce,
        least_ranks: 2,
        scale: |_| 1,
        of: |table| &mut table.allreduce_halving,
    },
];

/// A measured threshold.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// Its name in the table.
    pub name: &'static str,
    /// The default threshold in bytes.
    pub usual: usize,
    /// The best threshold on this machine in bytes.
    pub bytes: usize,
    /// Time with the best threshold over time with the default one: geometric mean over all sizes.
    pub ratio: f64,
    /// For each size in bytes, microseconds with the algorithm for short messages and with that for long ones.
    pub rows: Vec<(usize, f64, f64)>,
}

/// The result of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Number of ranks.
    pub ranks: usize,
    /// `shm` or `tcp`.
    pub transport: &'static str,
    /// The thresholds that matter for this number of ranks.
    pub found: Vec<Found>,
    /// The table with the best thresholds.
    pub table: Algorithms,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("Algorithms of {} ranks over {}", self.ranks, self.transport);
        let mut table = Table::new(
            &title,
            &["where they change", "usual, bytes", "here, bytes", "time, of the usual"],
        );
        for found in &self.found {
            let figures = [
                found.usual.to_string(),
                found.bytes.to_string(),
                format!("{:.2}", found.ratio),
            ];
            table.row(std::iter::once(found.name.to_owned()).chain(figures));
        }
        write!(f, "{table}")
    }
}

/// Measures every threshold that matters for the plan's ranks. Ignores the plan's operation and table.
pub fn run(plan: &Plan) -> Result<Report, Error> {
    let mut table = Algorithms::default();
    let mut found = Vec::new();
    for place in PLACES.iter().filter(|place| plan.ranks >= place.least_ranks) {
        let (mut short, mut long) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds.max(1) {
            for (times, at) in [(&mut short, usize::MAX), (&mut long, 0)] {
                let mut forced = Algorithms::default();
                *(place.of)(&mut forced) = at;
                times.push(ours(&Plan {
                    op: place.op,
                    table: forced,
                    ..plan.clone()
                })?);
            }
        }
        let scale = (place.scale)(plan.ranks);
        let row = |(at, size): (usize, &usize)| (size * scale, median(&short, at), median(&long, at));
        let rows: Vec<_> = plan.sizes.iter().enumerate().map(row).collect();
        let usual = *(place.of)(&mut Algorithms::default());
        let bytes = crossing(&rows);
        *(place.of)(&mut table) = bytes;
        found.push(Found {
            name: place.name,
            usual,
            bytes,
            ratio: ((total(&rows, bytes) - total(&rows, usual)) / rows.len().max(1) as f64).exp(),
            rows,
        });
    }
    Ok(Report {
        ranks: plan.ranks,
        transport: if plan.tcp { "tcp" } else { "shm" },
        found,
        table,
    })
}

/// Sum of the logarithms of all times, with the algorithm for long messages from `from` bytes on.
fn total(rows: &[(usize, f64, f64)], from: usize) -> f64 {
    let time = |(bytes, short, long): &(usize, f64, f64)| if *bytes < from { short.ln() } else { long.ln() };
    rows.iter().map(time).sum()
}

/// Returns the threshold with the least total time over all sizes, so that one noisy size does not decide.
fn crossing(rows: &[(usize, f64, f64)]) -> usize {
    let beyond = rows.last().map_or(0, |(bytes, ..)| bytes + 1);
    let places = rows.iter().map(|(bytes, ..)| *bytes).chain([beyond]);
    let best = places.min_by(|one, other| total(rows, *one).total_cmp(&total(rows, *other)));
    match best {
        // Above every measured size.
        Some(bytes) if bytes == beyond => usize::MAX,
        Some(bytes) if rows.first().is_some_and(|(first, ..)| *first == bytes) => 0,
        best => best.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_minimizes_total_time() {
        assert_eq!(
            crossing(&[(8, 1.0, 2.0), (16, 2.0, 2.5), (32, 4.0, 3.0), (64, 8.0, 5.0)]),
            32
        );
        // One disturbed size.
        let disturbed = [
            (8, 1.0, 2.0),
            (16, 2.6, 2.5),
            (32, 2.0, 3.0),
            (64, 8.0, 5.0),
            (128, 16.0, 9.0),
        ];
        assert_eq!(crossing(&disturbed), 64);
    }

    #[test]
    fn always_slower_algorithm_is_never_used() {
        assert_eq!(crossing(&[(8, 1.0, 2.0), (16, 1.0, 2.0)]), usize::MAX);
        assert_eq!(crossing(&[(8, 2.0, 1.0), (16, 2.0, 1.0)]), 0);
        assert_eq!(crossing(&[]), usize::MAX);
    }
}
