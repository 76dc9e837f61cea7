//! Computes when a timer is due.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Year};
use dayfly_protocol::error::{Code, Failure};

/// Most missed times that are counted.
const MAX_MISSED: u64 = 1_000;

/// A timer that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The last of its times that has passed, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Earlier times that passed unnoticed, at most 1,000.
    pub missed: u64,
}

/// Times in cron syntax, in a time zone. When clocks are set forward, a skipped time comes an hour later. When they are
/// set back, a repeated time counts once, unless the timer is hourly or more frequent.
#[derive(Debug, Clone)]
pub struct Timer {
    cron: Cron,
    zone: Tz,
}

impl Timer {
    /// Parses a timer: minute, hour, day of month, month, day of week, optionally seconds before them; and the name of
    /// a time zone.
    ///
    /// # Errors
    /// `InvalidRequest` when the syntax is wrong, or no time comes after `now_ms`.
    pub fn parse(cron: &str, zone: &str, now_ms: u64) -> Result<Self, Failure> {
        let wrong = |text: String| Failure::new(Code::InvalidRequest, text);
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let timer = Self {
            cron: parser.parse(cron).map_err(|error| {
                wrong(format!(
                    "`{cron:.80}` is not in cron syntax ({error}); give minute, hour, day of month, month and day of week, such as \
                     `30 6 * * 1-5`"
                ))
            })?,
            zone: zone.parse().map_err(|_| {
                wrong(format!("there is no time zone `{zone:.80}`; name one such as `Europe/Berlin`, or `UTC`"))
            })?,
        };
        match timer.next(now_ms) {
            Some(_) => Ok(timer),
            None => Err(wrong(format!("`{cron:.80}` never comes; give a day that there is"))),
        }
    }

    /// The first time after `after_ms`, in milliseconds since the Unix epoch.
    pub fn next(&self, after_ms: u64) -> Option<u64> {
        let after = self.at(after_ms)?;
        let found = self.cron.find_next_occurrence(&after, false).ok()?;
        u64::try_from(found.timestamp_millis()).ok()
    }

    /// The times that passed after `since_ms` and up to `now_ms`; `None` if there are none.
    pub fn due(&self, since_ms: u64, now_ms: u64) -> Option<Due> {
        let passed = |after_ms: u64| self.next(after_ms).filter(|at_ms| *at_ms <= now_ms);
        let mut due = Due {
            at_ms: passed(since_ms)?,
            missed: 0,
        };
        while let Some(at_ms) = passed(due.at_ms) {
            due.missed += 1;
            due.at_ms = at_ms;
            if due.missed == MAX_MISSED {
                let last = self.cron.find_previous_occurrence(&self.at(now_ms)?, true).ok();
                due.at_ms = last.and_then(|last| u64::try_from(last.timestamp_millis()).ok())?;
                break;
            }
        }
        Some(due)
    }

    fn at(&self, ms: u64) -> Option<DateTime<Tz>> {
        let utc = DateTime::<Utc>::from_timestamp_millis(i64::try_from(ms).ok()?)?;
        Some(utc.with_timezone(&self.zone))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(text: &str) -> u64 {
        let time: DateTime<Utc> = text.parse().unwrap();
        u64::try_from(time.timestamp_millis()).unwrap()
    }

    fn timer(cron: &str, zone: &str) -> Timer {
        Timer::parse(cron, zone, ms("2026-01-01T00:00:00Z")).unwrap()
    }

    #[test]
    fn timer_follows_its_time_zone() {
        let workdays = timer("30 6 * * 1-5", "Europe/Berlin");
        // A Friday in winter, then Monday.
        let friday = ms("2026-01-09T05:30:00Z");
        assert_eq!(workdays.next(friday - 1), Some(friday));
        assert_eq!(workdays.next(friday), Some(ms("2026-01-12T05:30:00Z")));
        // In summer the zone is two hours ahead of UTC.
        assert_eq!(
            workdays.next(ms("2026-07-06T00:00:00Z")),
            Some(ms("2026-07-06T04:30:00Z"))
        );
        assert_eq!(timer("*/10 * * * * *", "UTC").next(1), Some(10_000));
    }

    #[test]
    fn clock_changes_keep_one_time_per_day() {
        let nightly = timer("30 2 * * *", "Europe/Berlin");
        for (from, to) in [
            ("2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
            ("2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
        ] {
            let (mut at, mut count) = (ms(from), 0);
            while let Some(next) = nightly.next(at).filter(|next| *next < ms(to)) {
                (at, count) = (next, count + 1);
            }
            assert_eq!(count, 2, "{from}");
        }
    }

    #[test]
    fn passed_times_are_one_due_and_rest_missed() {
        let hourly = timer("0 * * * *", "UTC");
        let since = ms("2026-01-01T10:00:00Z");
        let (none, one) = (ms("2026-01-01T10:59:59Z"), ms("2026-01-01T11:00:00Z"));
        assert_eq!(hourly.due(since, none), None);
        assert_eq!(hourly.due(since, one), Some(Due { at_ms: one, missed: 0 }));
        let later = Due {
            at_ms: ms("2026-01-02T09:00:00Z"),
            missed: 22,
        };
        assert_eq!(hourly.due(since, ms("2026-01-02T09:59:00Z")), Some(later));
        // Many missed seconds are not counted one by one.
        let far = ms("2036-01-01T00:00:00Z") + 400;
        let each_second = timer("* * * * * *", "UTC").due(since, far);
        assert_eq!(
            each_second,
            Some(Due {
                at_ms: far - 400,
                missed: MAX_MISSED
            })
        );
        // After the clock was set back, nothing is due.
        assert_eq!(hourly.due(one, since), None);
    }

    #[test]
    fn invalid_timer_is_refused_with_an_example() {
        for (cron, zone, word) in [
            ("every day", "UTC", "cron syntax"),
            ("61 * * * *", "UTC", "cron syntax"),
            ("", "UTC", "cron syntax"),
            ("* * * * *", "Mars/Olympus", "time zone"),
            ("0 0 30 2 *", "UTC", "never"),
        ] {
            let failure = Timer::parse(cron, zone, 0).unwrap_err();
            assert_eq!(failure.code, Code::InvalidRequest);
            assert!(failure.message.contains(word), "{cron} {zone}: {}", failure.message);
        }
    }

    proptest! {
        #[test]
        fn any_timer_is_refused_or_has_ordered_times(
            cron in "[0-9*/,LW#?A-Z@ -]{0,24}", since in 0_u64..5_000_000_000_000, length in 0_u64..100_000_000_000,
        ) {
            let Ok(timer) = Timer::parse(&cron, "America/New_York", since) else { return Ok(()) };
            let next = timer.next(since);
            prop_assert!(next.is_none_or(|next| next > since));
            if let Some(due) = timer.due(since, since + length) {
                prop_assert!(due.at_ms > since && due.at_ms <= since + length);
                prop_assert!(timer.due(due.at_ms, since + length).is_none());
            } else {
                prop_assert!(next.is_none_or(|next| next > since + length));
            }
        }
    }
}
