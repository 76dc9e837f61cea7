//! Parsers of values on command lines: durations, sizes and sandbox levels.

use std::time::Duration;

use clap::ValueEnum;
use dayfly_protocol::api::Sandbox;

/// Parses a duration, such as `90s`, `10m`, `1h30m`, `500ms` or `2d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write one such as 500ms, 90s, 10m, 1h30m or 2d");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit_ms: u64 = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = number
            .checked_mul(unit_ms)
            .map(Duration::from_millis)
            .ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    Ok(total)
}

/// Parses a size in bytes, such as `4096`, `512M`, `2G` or `1GiB`. Units are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write one such as 512M, 2G or 1GiB");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = text[digits..].trim().to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Isolation of workers from their host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Processes of the node's own user, for trusted code
    Process,
    /// Namespaces, no privileges, a system call filter and limits, for untrusted code
    Isolated,
    /// As `isolated`, with an image in place of the host's programs and libraries
    Container,
}

impl From<Level> for Sandbox {
    fn from(level: Level) -> Self {
        match level {
            Level::Process => Sandbox::Process,
            Level::Isolated => Sandbox::Isolated,
            Level::Container => Sandbox::Container,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        for wrong in [
            "",
            "10",
            "m",
            "1x",
            "-1s",
            "1.5h",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2 GiB"), Ok(2 << 30));
        assert_eq!(size("1kb"), Ok(1024));
        for wrong in ["", "G", "1X", "-1", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
