//! When calls arrive within a window, if only their number is known.

use dayfly_harvest::random::Random;

/// Microseconds in which the calls of one burst arrive: a second. The Azure set has counts a minute only; in the arrivals
/// of a language model's service, which are exact, 98 % follow the one before within a second.
const BURST_US: u64 = 1_000_000;

/// What starts a function, as far as it decides when its calls arrive.
///
/// The bursts are those of the Azure slice with ten functions for sixty minutes: mean calls in minutes that have any, by
/// trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A timer or an orchestration: evenly spaced, the first at the begin, together with those of other functions. In
    /// the slice, 139 calls in 139 minutes.
    Timer,
    /// A queue: 20 calls in 5 minutes.
    Queue,
    /// An event: 54 calls in 44 minutes.
    Event,
    /// A request: 55 calls in 23 minutes.
    Http,
}

impl Trigger {
    /// The trigger of an Azure trace. Others count as requests, and `others` as timers: in the slice it is as regular.
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "timer" | "orchestration" | "others" => Self::Timer,
            "queue" | "storage" => Self::Queue,
            "event" => Self::Event,
            _ => Self::Http,
        }
    }

    /// Mean calls of one burst.
    fn burst(self) -> f64 {
        match self {
            Self::Timer => 1.0,
            Self::Queue => 20.0 / 5.0,
            Self::Event => 54.0 / 44.0,
            Self::Http => 55.0 / 23.0,
        }
    }

    /// Calls `arrive` for each of `count` calls with a time from 0 to below `window_us`.
    pub(crate) fn arrivals(self, count: u64, window_us: u64, random: &mut Random, mut arrive: impl FnMut(u64)) {
        if self == Self::Timer {
            (0..count)
                .for_each(|number| arrive((u128::from(window_us) * u128::from(number) / u128::from(count)) as u64));
            return;
        }
        let mut left = count;
        while left > 0 {
            let burst = random.geometric(self.burst()).min(left);
            let begin = random.below(window_us);
            arrive(begin);
            for _ in 1..burst {
                arrive(
                    begin
                        .saturating_add(random.below(BURST_US))
                        .min(window_us.saturating_sub(1)),
                );
            }
            left -= burst;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn times(trigger: Trigger, count: u64) -> Vec<u64> {
        let mut times = Vec::new();
        trigger.arrivals(count, MINUTE, &mut Random::new(3), |time| times.push(time));
        times.sort_unstable();
        times
    }

    #[test]
    fn timers_are_evenly_spaced_from_the_begin() {
        assert_eq!(times(Trigger::Timer, 3), [0, MINUTE / 3, 2 * MINUTE / 3]);
        assert!(times(Trigger::Timer, 0).is_empty());
    }

    #[test]
    fn queues_burst_more_than_events() {
        let close = |trigger| {
            let times = times(trigger, 1000);
            assert_eq!(times.len(), 1000);
            assert!(times.iter().all(|&time| time < MINUTE));
            // The number of seconds in which nothing arrives.
            (0..60)
                .filter(|second| !times.iter().any(|time| time / 1_000_000 == *second))
                .count()
        };
        let gaps = |trigger: Trigger| {
            let times = times(trigger, 60);
            times.windows(2).filter(|pair| pair[1] - pair[0] > 2_000_000).count()
        };
        assert!(close(Trigger::Queue) >= close(Trigger::Event));
        assert!(gaps(Trigger::Queue) > 0);
    }
}
