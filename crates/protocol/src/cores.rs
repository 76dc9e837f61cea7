//! Amounts of processor time, in thousandths of a core.

use std::fmt;
use std::iter::Sum;
use std::ops::Mul;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Most cores of an amount that is read.
pub const MAX_CORES: u32 = u32::MAX;
/// Least that a worker owns: the kernel enforces no less than 1 ms of each 100 ms.
pub const MIN_WORKER_CORES: MilliCores = MilliCores(10);
/// Thousandths of a core.
const PER_CORE: u64 = 1_000;

/// Thousandths of a core. As text and in messages, it is a number of cores with at most three decimals, such as `0.5`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliCores(u64);

/// Why a number of cores is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoresError {
    /// It is malformed, negative, too large, or has more than three decimals.
    #[error("`{0}` is not a number of cores: give 0 to {MAX_CORES} with at most three decimals, such as 2 or 0.5")]
    Malformed(String),
    /// A worker cannot own so little.
    #[error("{0} cores for a worker are too few: ask for at least {MIN_WORKER_CORES} cores")]
    TooFew(MilliCores),
}

impl CoresError {
    fn new(text: &str) -> Self {
        Self::Malformed(text.chars().take(40).collect())
    }
}

impl MilliCores {
    /// No core.
    pub const ZERO: Self = Self(0);
    /// One core.
    pub const ONE: Self = Self(PER_CORE);

    /// Returns this many thousandths.
    pub const fn new(thousandths: u64) -> Self {
        Self(thousandths)
    }

    /// Thousandths of a core.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Checks that a worker can own so many.
    ///
    /// # Errors
    /// [`CoresError::TooFew`] if the kernel cannot enforce it.
    pub fn for_worker(self) -> Result<Self, CoresError> {
        if self < MIN_WORKER_CORES {
            return Err(CoresError::TooFew(self));
        }
        Ok(self)
    }

    /// Thousandths of a core, for wire structs. Saturates.
    pub fn thousandths(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// Whether it has no fraction.
    pub const fn is_whole(self) -> bool {
        self.0.is_multiple_of(PER_CORE)
    }

    /// The number of cores, or `None` if it has a fraction or is above 65,535.
    pub fn as_whole(self) -> Option<u16> {
        u16::try_from(self.0 / PER_CORE).ok().filter(|_| self.is_whole())
    }

    /// The number of cores without its fraction. Saturates.
    pub fn whole_part(self) -> u32 {
        u32::try_from(self.0 / PER_CORE).unwrap_or(u32::MAX)
    }

    /// The number of cores that it needs. Saturates.
    pub fn rounded_up(self) -> u32 {
        u32::try_from(self.0.div_ceil(PER_CORE)).unwrap_or(u32::MAX)
    }

    /// Returns the sum. Saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference. Saturates at 0.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns how many times `one` fits. Everything fits any number of times into nothing.
    pub const fn holds(self, one: Self) -> u64 {
        match self.0.checked_div(one.0) {
            Some(times) => times,
            None => u64::MAX,
        }
    }

    /// The number of cores, for display.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / PER_CORE as f64
    }
}

impl From<u16> for MilliCores {
    fn from(cores: u16) -> Self {
        Self::from(u32::from(cores))
    }
}

impl From<u32> for MilliCores {
    fn from(cores: u32) -> Self {
        Self(u64::from(cores) * PER_CORE)
    }
}

/// Saturates.
impl Mul<u32> for MilliCores {
    type Output = Self;

    fn mul(self, times: u32) -> Self {
        Self(self.0.saturating_mul(times.into()))
    }
}

/// Saturates.
impl Sum for MilliCores {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Self::plus)
    }
}

impl TryFrom<f64> for MilliCores {
    type Error = CoresError;

    /// Accepts a sum of decimals that differs from a decimal only by the rounding of its type, such as 0.1 + 0.2.
    fn try_from(cores: f64) -> Result<Self, CoresError> {
        let refused = || CoresError::new(&cores.to_string());
        if !(0.0..=f64::from(MAX_CORES)).contains(&cores) {
            return Err(refused());
        }
        let found = Self((cores * PER_CORE as f64).round() as u64);
        let is_near = (cores - found.as_f64()).abs() <= 2.0 * f64::EPSILON * cores;
        if is_near { Ok(found) } else { Err(refused()) }
    }
}

impl FromStr for MilliCores {
    type Err = CoresError;

    fn from_str(text: &str) -> Result<Self, CoresError> {
        let refused = || CoresError::new(text);
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || fraction.len() > 3 {
            return Err(refused());
        }
        let whole: u32 = whole.parse().map_err(|_| refused())?;
        let fraction: u64 = format!("{fraction:0<3}").parse().map_err(|_| refused())?;
        let found = Self::from(whole).plus(Self(fraction));
        if found <= Self::from(MAX_CORES) {
            Ok(found)
        } else {
            Err(refused())
        }
    }
}

impl fmt::Display for MilliCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / PER_CORE, self.0 % PER_CORE);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for MilliCores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_whole() {
            serializer.serialize_u64(self.0 / PER_CORE)
        } else {
            serializer.serialize_f64(self.as_f64())
        }
    }
}

impl<'de> Deserialize<'de> for MilliCores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cores;

        impl de::Visitor<'_> for Cores {
            type Value = MilliCores;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of cores with at most three decimals")
            }

            fn visit_u64<E: de::Error>(self, cores: u64) -> Result<MilliCores, E> {
                let whole = u32::try_from(cores).map_err(|_| E::custom(CoresError::new(&cores.to_string())))?;
                Ok(MilliCores::from(whole))
            }

            fn visit_i64<E: de::Error>(self, cores: i64) -> Result<MilliCores, E> {
                match u64::try_from(cores) {
                    Ok(cores) => self.visit_u64(cores),
                    Err(_) => Err(E::custom(CoresError::new(&cores.to_string()))),
                }
            }

            fn visit_f64<E: de::Error>(self, cores: f64) -> Result<MilliCores, E> {
                MilliCores::try_from(cores).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Cores)
    }
}

impl utoipa::PartialSchema for MilliCores {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::Number)
            .minimum(Some(0.0))
            .maximum(Some(f64::from(MAX_CORES)))
            .multiple_of(Some(0.001))
            .description(Some("Cores, with at most three decimals."))
            .into()
    }
}

impl utoipa::ToSchema for MilliCores {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_has_no_more_decimals_than_needed() {
        for (thousandths, text) in [(0, "0"), (10, "0.01"), (500, "0.5"), (1_000, "1"), (12_345, "12.345")] {
            assert_eq!(MilliCores::new(thousandths).to_string(), text);
            assert_eq!(text.parse(), Ok(MilliCores::new(thousandths)));
        }
        assert_eq!("2.50".parse(), Ok(MilliCores::new(2_500)));
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in [
            "",
            ".",
            ".5",
            "1.",
            "-1",
            "+1",
            "0.0001",
            "1.2.3",
            "1e18",
            "NaN",
            "inf",
            " 1",
            "0,5",
            "4294967295.001",
            "99999999999999999999",
        ] {
            let error = text.parse::<MilliCores>().unwrap_err().to_string();
            assert!(error.contains("cores") && error.contains("three decimals"), "{error}");
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for number in [
            -0.5,
            -1e-300,
            0.0001,
            1.0 / 3.0,
            0.50000001,
            1e18,
            f64::NAN,
            f64::INFINITY,
            f64::MIN_POSITIVE,
        ] {
            assert!(MilliCores::try_from(number).is_err(), "{number}");
        }
        assert_eq!(MilliCores::try_from(0.1 + 0.2), Ok(MilliCores::new(300)));
    }

    #[test]
    fn impossible_values_in_messages_are_refused() {
        for json in [
            "-1",
            "0.0001",
            "1e18",
            "4294967296",
            "\"0.5\"",
            "null",
            "[1]",
            "{}",
            "true",
        ] {
            assert!(serde_json::from_str::<MilliCores>(json).is_err(), "{json}");
        }
        let nan = rmp_serde::to_vec(&f64::NAN).unwrap();
        assert!(rmp_serde::from_slice::<MilliCores>(&nan).is_err());
    }

    #[test]
    fn whole_cores_have_no_fraction() {
        assert_eq!(MilliCores::new(2_000).as_whole(), Some(2));
        assert_eq!(MilliCores::new(2_001).as_whole(), None);
        assert_eq!(MilliCores::from(u32::MAX).as_whole(), None);
        assert_eq!(serde_json::to_string(&MilliCores::ONE).unwrap(), "1");
        assert_eq!(serde_json::to_string(&MilliCores::new(500)).unwrap(), "0.5");
    }

    #[test]
    fn workers_are_counted_by_what_they_own() {
        let half = MilliCores::new(500);
        assert_eq!(MilliCores::from(2_u16).holds(half), 4);
        assert_eq!(MilliCores::new(1_999).holds(half), 3);
        assert_eq!(MilliCores::ONE.holds(MilliCores::ZERO), u64::MAX);
        assert_eq!(MilliCores::new(u64::MAX).plus(half) * 3, MilliCores::new(u64::MAX));
    }

    proptest! {
        #[test]
        fn amount_survives_every_form(thousandths in 0..=u64::from(MAX_CORES) * PER_CORE) {
            let amount = MilliCores::new(thousandths);
            prop_assert_eq!(amount.to_string().parse(), Ok(amount));
            let json = serde_json::to_string(&amount).unwrap();
            prop_assert_eq!(serde_json::from_str::<MilliCores>(&json).unwrap(), amount);
            let packed = rmp_serde::to_vec(&amount).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<MilliCores>(&packed).unwrap(), amount);
        }

        #[test]
        fn any_number_is_read_or_refused(number: f64, text: String) {
            if let Ok(amount) = MilliCores::try_from(number) {
                prop_assert!((amount.as_f64() - number).abs() <= number * 1e-15);
            }
            if let Ok(amount) = text.parse::<MilliCores>() {
                prop_assert!(amount <= MilliCores::from(MAX_CORES));
            }
        }
    }
}
