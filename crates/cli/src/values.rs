//! Parsers of values on command lines: amounts, names, ids, days, arguments.

use std::time::Duration;

pub use dayfly_command::values::{Level, duration, size};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::Failure;
use dayfly_protocol::id_pattern::IdPattern;
use serde_json::Value;

/// Parses an amount in the site's unit of account, such as `12.5`. Returns billionths.
pub fn amount(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no amount; write one such as 500 or 0.000004, with at most nine decimals");
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || part.len() > 9 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    format!("{whole}{part:0<9}").parse().map_err(|_| wrong())
}

/// Parses the cores of a worker, such as `2` or `0.5`.
pub fn cores(text: &str) -> Result<MilliCores, String> {
    let cores = text.parse::<MilliCores>().and_then(MilliCores::for_worker);
    cores.map_err(|error| error.to_string())
}

/// Parses the name of a tenant or a token, which must be valid in a path of the API without escapes.
pub fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if text.is_empty() || !text.chars().all(plain) {
        return Err(format!("`{text}` is no name; use a-z, A-Z, 0-9, `-`, `_`, `.` and `@`"));
    }
    Ok(text.to_owned())
}

/// Parses seconds, such as `90`, or a duration.
pub fn wait(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => duration(text),
    }
}

/// Parses an id, or the beginning or end of one, as tables show it.
pub fn id(text: &str) -> Result<IdPattern, String> {
    text.parse().map_err(|failure: Failure| failure.message)
}

/// Parses a day, such as `2026-11-21`. Returns its beginning in UTC, in milliseconds since the Unix epoch.
pub fn day(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no day; write one such as 2026-11-21");
    let mut parts = text.splitn(3, '-').map(str::parse::<u16>);
    let mut next = || parts.next().and_then(Result::ok).ok_or_else(wrong);
    let (year, month, day) = (next()?, next()?, next()?);
    let narrow = |number: u16| u8::try_from(number).map_err(|_| wrong());
    let month = time::Month::try_from(narrow(month)?).map_err(|_| wrong())?;
    let date = time::Date::from_calendar_date(year.into(), month, narrow(day)?).map_err(|_| wrong())?;
    u64::try_from(date.midnight().assume_utc().unix_timestamp() * 1000).map_err(|_| wrong())
}

/// Parses JSON. Other text becomes a string.
pub fn argument(text: &str) -> Result<Value, String> {
    Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

/// Parses a keyword argument, such as `dpi=300`.
pub fn keyword(text: &str) -> Result<(String, Value), String> {
    let wrong = || format!("`{text}` is no argument; write one such as dpi=300 or name=scan");
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(wrong)?;
    Ok((name.into(), argument(value)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use dayfly_protocol::ids::TaskId;

    use super::*;

    #[test]
    fn worker_owns_at_least_a_hundredth_core() {
        assert_eq!(cores("0.25"), Ok(MilliCores::new(250)));
        assert_eq!(cores("2"), Ok(MilliCores::from(2_u16)));
        for text in ["0", "0.009", "0.0625", "-1", "NaN", "1e18", "half", ""] {
            assert!(cores(text).unwrap_err().contains("cores"), "{text}");
        }
    }

    #[test]
    fn named_arguments_are_json_or_strings() {
        assert_eq!(keyword("dpi=300"), Ok(("dpi".into(), json!(300))));
        assert_eq!(keyword("name=a scan"), Ok(("name".into(), json!("a scan"))));
        assert_eq!(keyword("of={\"a\": [1]}"), Ok(("of".into(), json!({ "a": [1] }))));
        assert_eq!(keyword("sum=1=2"), Ok(("sum".into(), json!("1=2"))));
        assert!(keyword("dpi").is_err() && keyword("=300").is_err());
    }

    #[test]
    fn waits_are_durations_or_seconds() {
        assert_eq!(wait("90"), Ok(Duration::from_secs(90)));
        assert_eq!(wait("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "-1", "1.5", "99999999999"] {
            assert!(wait(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_whole_or_suffixes() {
        let whole = "019a51c3e0f07d2c9b64f1a85be3d207";
        let bytes = whole.parse::<TaskId>().expect("an id").0;
        for given in [whole, "019a51", "f1a85be3d207", "...f1a85be3d207"] {
            assert!(id(given).is_ok_and(|id| id.matches(&bytes)), "{given}");
        }
        for wrong in ["", "3d207", &format!("{whole}0"), &"g".repeat(32)] {
            assert!(
                id(wrong).is_err_and(|why| why.contains("hexadecimal digits")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn amounts_are_exact_to_the_billionth() {
        assert_eq!(amount("500"), Ok(500_000_000_000));
        assert_eq!(amount("0.000000001"), Ok(1));
        assert_eq!(amount(".5"), Ok(500_000_000));
        for wrong in ["", ".", "-1", "1e3", "0.0000000001", "1.2.3", "99999999999999"] {
            assert!(amount(wrong).is_err(), "{wrong}");
        }
        for billionths in [0, 1, 10, 999_999_999, 1_500_000_000, u64::MAX] {
            assert_eq!(amount(&crate::output::amount(billionths)), Ok(billionths));
        }
    }

    #[test]
    fn names_appear_unchanged_in_paths() {
        assert_eq!(name("astro.1@site_2-x"), Ok("astro.1@site_2-x".into()));
        for wrong in ["", "two words", "a/b", "a&b", "ä"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn days_begin_at_midnight_in_utc() {
        assert_eq!(day("1970-01-02"), Ok(86_400_000));
        assert_eq!(day("2024-02-29").map(crate::output::date), Ok("2024-02-29".into()));
        for wrong in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-30",
            "1969-12-31",
            "today",
            "2026-1-1-1",
        ] {
            assert!(day(wrong).is_err(), "{wrong}");
        }
    }
}
