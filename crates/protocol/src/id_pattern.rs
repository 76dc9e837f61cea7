//! Ids as users write them: in full, or only their beginning or end.
//!
//! Ids begin with the time, so ids of one batch share their beginning; therefore lists show the end. Managers resolve
//! an abbreviation among the ids that the caller may see.

use std::fmt;
use std::str::FromStr;

use crate::error::{Code, Failure};
use crate::ids::TaskId;

/// Digits of a full id.
pub const DIGITS: usize = 32;
/// Fewest digits of an abbreviation.
pub const MIN_DIGITS: usize = 6;
/// Digits at the end of an id that lists show.
pub const LISTED_DIGITS: usize = 12;
/// Most candidates that an error lists.
pub const MAX_CANDIDATES: usize = 8;

/// An id in full or abbreviated: [`MIN_DIGITS`] to [`DIGITS`] hexadecimal digits in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdPattern {
    digits: String,
    value: u128,
}

/// Returns the end of an id as lists show it: `...7409644e0db7`.
pub fn abbreviate(id: &impl fmt::Display) -> String {
    let digits = id.to_string();
    let end = digits.len().saturating_sub(LISTED_DIGITS);
    format!("...{}", digits.get(end..).unwrap_or(&digits))
}

impl IdPattern {
    /// The digits as given.
    pub fn digits(&self) -> &str {
        &self.digits
    }

    fn bits(&self) -> u32 {
        4 * self.digits.len() as u32
    }

    /// Returns the id if all its digits are given.
    pub fn full_id<T: FromStr>(&self) -> Option<T> {
        (self.digits.len() == DIGITS)
            .then(|| self.digits.parse().ok())
            .flatten()
    }

    /// Whether `id` begins or ends with these digits.
    pub fn matches(&self, id: &[u8; 16]) -> bool {
        let id = u128::from_be_bytes(*id);
        let rest = u128::BITS - self.bits();
        id >> rest == self.value || id << rest >> rest == self.value
    }

    /// Returns the smallest and the greatest id that begin with these digits.
    pub fn range(&self) -> ([u8; 16], [u8; 16]) {
        let low = self.value << (u128::BITS - self.bits());
        let high = low | u128::MAX.checked_shr(self.bits()).unwrap_or(0);
        (low.to_be_bytes(), high.to_be_bytes())
    }

    /// Returns the only id in `found`. `what` names the kind of id in messages.
    ///
    /// # Errors
    /// `NotFound` if `found` is empty, `Ambiguous` if it contains several ids.
    pub fn resolve<T: Copy + Ord + fmt::Display>(&self, mut found: Vec<T>, what: &str) -> Result<T, Failure> {
        found.sort_unstable();
        found.dedup();
        match found[..] {
            [one] => Ok(one),
            [] => {
                let text = format!("there is no {what} of yours whose id begins or ends with {self}");
                Err(Failure::new(Code::NotFound, text))
            }
            _ => {
                let shown: Vec<String> = found.iter().take(MAX_CANDIDATES).map(T::to_string).collect();
                let more = if found.len() > MAX_CANDIDATES { ", ..." } else { "" };
                let text = format!(
                    "the ids of several {what}s begin or end with {self}: {}{more}; give more digits",
                    shown.join(", ")
                );
                Err(Failure::new(Code::Ambiguous, text))
            }
        }
    }
}

impl From<TaskId> for IdPattern {
    fn from(id: TaskId) -> Self {
        Self {
            digits: id.to_string(),
            value: u128::from_be_bytes(id.0),
        }
    }
}

impl FromStr for IdPattern {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let digits = text.trim().trim_matches('.').to_ascii_lowercase();
        let is_id =
            (MIN_DIGITS..=DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id && let Ok(value) = u128::from_str_radix(&digits, 16) {
            return Ok(Self { digits, value });
        }
        let text = crate::text::line(text, 80);
        Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "`{text}` is not an id: give its {DIGITS} hexadecimal digits, or {MIN_DIGITS} or more of its beginning or end"
            ),
        ))
    }
}

impl fmt::Display for IdPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_full_id_beginning_and_end() {
        let id = TaskId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xdb]);
        assert_eq!(abbreviate(&id), "...0a0b0c0d0edb");
        for text in ["000102", "...0c0D0eDB", &id.to_string()] {
            let given: IdPattern = text.parse().expect("an id");
            assert!(given.matches(&id.0), "{text}");
            assert_eq!(given.full_id::<TaskId>().is_some(), text.len() == DIGITS);
        }
        let other: IdPattern = "0c0d0eda".parse().expect("an id");
        assert!(!other.matches(&id.0));
        for text in ["", "00010", "xyzxyz", &"0".repeat(33)] {
            assert_eq!(text.parse::<IdPattern>().expect_err("no id").code, Code::InvalidRequest);
        }
        let (low, high) = "0001023".parse::<IdPattern>().expect("an id").range();
        assert_eq!((low[3], high[3], high[15]), (0x30, 0x3f, 0xff));
    }

    #[test]
    fn ambiguous_id_lists_its_candidates() {
        let given: IdPattern = "07070707".parse().expect("an id");
        let [one, other] = [TaskId([7; 16]), TaskId([6; 16])];
        assert_eq!(given.resolve(vec![one, one], "task"), Ok(one));
        assert_eq!(
            given.resolve(Vec::<TaskId>::new(), "task").expect_err("none").code,
            Code::NotFound
        );
        let failure = given.resolve(vec![one, other], "task").expect_err("two");
        assert_eq!(failure.code, Code::Ambiguous);
        assert!(failure.message.contains(&one.to_string()) && failure.message.contains(&other.to_string()));
    }
}
