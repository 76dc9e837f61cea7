//! The network of one channel, fitted from round trips as in LogP with a time for each byte (LogGP).

use super::Key;
use super::samples::Ring;

/// Longest duration that is believed, in seconds: a day.
pub const MAX_SECONDS: f64 = 86_400.0;
/// Round trips that are kept for each class of sizes.
const KEPT: usize = 8;
/// Round trips after which a channel is known: the first ones load the function.
const MIN_ROUND_TRIPS: usize = 4;
/// With one size only, time is put down to its bytes from here on, and to the latency below.
const MIN_BULK_BYTES: u64 = 64 << 10;

/// The class of a size: its number of binary digits.
pub fn class(bytes: u64) -> u8 {
    (u64::BITS - bytes.leading_zeros()) as u8
}

/// A call that had its channel to itself.
#[derive(Debug, Clone, Copy)]
pub struct RoundTrip {
    /// Input and output.
    pub bytes: u64,
    /// From the beginning of the submission to the output.
    pub seconds: f64,
    /// How long the function ran, if that is known.
    pub run: Option<f64>,
    /// The function and size.
    pub key: Key,
    /// If not, the call may have ended earlier.
    pub is_exact: bool,
}

/// Parameters of a channel, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LogGp {
    /// `L`: the way of a small message, one direction.
    pub latency: f64,
    /// `o`: the program's work for sending or receiving a message.
    pub overhead: f64,
    /// `g`: the least time between two calls.
    pub gap: f64,
    /// `G`: the time for a byte.
    pub per_byte: f64,
}

impl LogGp {
    /// Time of `bytes` bytes.
    pub fn transfer(&self, bytes: u64) -> f64 {
        bytes as f64 * self.per_byte
    }
}

/// Round trips of a channel, and the parameters that fit them.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// The last round trips of each class of sizes.
    round_trips: Vec<(u8, Vec<RoundTrip>)>,
    /// Recorded round trips.
    recorded: usize,
    overhead: Ring,
    gap: Ring,
}

impl Network {
    pub fn record(&mut self, round_trip: RoundTrip) {
        let class = class(round_trip.bytes);
        let place = match self.round_trips.iter().position(|(known, _)| *known == class) {
            Some(place) => place,
            None => {
                self.round_trips.push((class, Vec::new()));
                self.round_trips.len() - 1
            }
        };
        let kept = &mut self.round_trips[place].1;
        if kept.len() < KEPT {
            kept.push(round_trip);
        } else {
            kept.remove(0);
            kept.push(round_trip);
        }
        self.recorded = self.recorded.saturating_add(1);
    }

    pub fn record_overhead(&mut self, seconds: f64) {
        self.overhead.push(seconds);
    }

    pub fn record_gap(&mut self, seconds: f64) {
        self.gap.push(seconds);
    }

    /// Whether so few round trips were recorded that they may all have been cold starts.
    pub fn is_new(&self) -> bool {
        self.recorded < MIN_ROUND_TRIPS
    }

    /// Fits the parameters. `run_of` returns how long a function runs; round trips of unknown ones are left out.
    /// `None` before anything can be fitted.
    pub fn fit(&self, run_of: impl Fn(&Key) -> Option<f64>) -> Option<LogGp> {
        let mut points: Vec<(f64, f64)> = Vec::with_capacity(self.round_trips.len());
        for (_, kept) in &self.round_trips {
            points.extend(smallest(kept, &run_of));
        }
        points.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let (per_byte, fixed) = line(&points)?;
        // The first call after a pause may have to wake a thread. That is part of its round trip, and not of each call.
        let overhead = self.overhead.min().unwrap_or(0.0).min(fixed / 2.0);
        Some(LogGp {
            latency: (fixed / 2.0 - overhead).max(0.0),
            overhead,
            gap: self.gap.min().unwrap_or(0.0),
            per_byte,
        })
    }
}

/// The size and the smallest time on the way of some round trips. An inexact end is only a bound: half of it is
/// assumed, so that a channel that is always in time gets more calls.
fn smallest(kept: &[RoundTrip], run_of: &impl Fn(&Key) -> Option<f64>) -> Option<(f64, f64)> {
    let mut best: Option<(f64, f64)> = None;
    let mut bound = None::<(f64, f64)>;
    for trip in kept {
        let Some(run) = trip.run.or_else(|| run_of(&trip.key)) else {
            continue;
        };
        let on_the_way = (trip.seconds - run).max(0.0);
        let place = if trip.is_exact { &mut best } else { &mut bound };
        if place.is_none_or(|(_, known)| on_the_way < known) {
            *place = Some((trip.bytes as f64, on_the_way));
        }
    }
    match (best, bound) {
        (Some(best), Some(bound)) if bound.1 < best.1 => Some(bound),
        (Some(best), _) => Some(best),
        (None, Some((bytes, seconds))) => Some((bytes, seconds / 2.0)),
        (None, None) => None,
    }
}

/// Slope and intercept through points that are sorted by size. Neither is negative.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (first, last) = (points.first()?, points.last()?);
    if last.0 <= first.0 {
        let fastest = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let is_bulk = first.0 >= MIN_BULK_BYTES as f64;
        return Some(if is_bulk {
            (fastest / first.0, 0.0)
        } else {
            (0.0, fastest)
        });
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (bytes, time) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - bytes) * (point.1 - time)).sum();
    let variance: f64 = points.iter().map(|point| (point.0 - bytes).powi(2)).sum();
    let slope = (covariance / variance).max(0.0);
    // The smallest size shows the latency; the mean of large ones would hide it.
    let intercept = (first.1 - slope * first.0).max(0.0);
    (slope.is_finite() && intercept.is_finite()).then_some((slope, intercept))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trip(bytes: u64, seconds: f64, run: f64) -> RoundTrip {
        RoundTrip {
            bytes,
            seconds,
            run: Some(run),
            key: (0, class(bytes)),
            is_exact: true,
        }
    }

    #[test]
    fn fit_recovers_the_parameters() {
        let mut network = Network::default();
        let (latency, overhead, per_byte) = (20e-6, 2e-6, 1e-9);
        for round in 0..20 {
            for bytes in [16, 4096, 100_000, 1_000_000] {
                let noise = f64::from(round % 5) * 3e-6;
                let seconds = 2.0 * (latency + overhead) + bytes as f64 * per_byte + 1e-3 + noise;
                network.record(trip(bytes, seconds, 1e-3));
                network.record_overhead(overhead + noise / 10.0);
            }
        }
        network.record_gap(5e-6);
        let fit = network.fit(|_| None).unwrap();
        assert!((fit.per_byte / per_byte - 1.0).abs() < 0.05, "{fit:?}");
        assert!((fit.latency / latency - 1.0).abs() < 0.1, "{fit:?}");
        assert!((fit.overhead / overhead - 1.0).abs() < 0.5, "{fit:?}");
        assert_eq!(fit.gap, 5e-6);
        assert!(network.round_trips.iter().all(|(_, kept)| kept.len() <= KEPT));
    }

    #[test]
    fn one_size_gives_a_usable_fit() {
        let mut network = Network::default();
        assert_eq!(network.fit(|_| None), None);
        network.record(trip(8, 50e-6, 10e-6));
        let small = network.fit(|_| None).unwrap();
        assert_eq!((small.per_byte, small.latency), (0.0, 20e-6));
        let mut network = Network::default();
        network.record(trip(1 << 20, 1.048576e-3, 0.0));
        let large = network.fit(|_| None).unwrap();
        assert!((large.per_byte - 1e-9).abs() < 1e-15 && large.latency == 0.0);
    }
}
