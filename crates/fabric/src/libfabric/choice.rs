//! A provider and domain of libfabric, as the user requests it and as it is shown.

use dayfly_protocol::fabric::{NAME_BYTES, name, text};

/// A provider and one of its domains, such as `verbs/mlx5_0`. Either may be left open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Choice {
    provider: [u8; NAME_BYTES],
    domain: [u8; NAME_BYTES],
}

/// A text is not a valid choice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a libfabric provider: write PROVIDER or PROVIDER/DOMAIN, such as tcp or verbs/mlx5_0, each of at most 32 bytes"
)]
pub struct ChoiceError(String);

impl Choice {
    /// The first provider that the node offers.
    pub const ANY: Self = Self {
        provider: [0; NAME_BYTES],
        domain: [0; NAME_BYTES],
    };

    /// Returns this provider and domain, or `None` if a name is too long.
    pub fn new(provider: &str, domain: &str) -> Option<Self> {
        Some(Self {
            provider: name(provider)?,
            domain: name(domain)?,
        })
    }

    /// Whether no provider is named.
    pub fn is_any(&self) -> bool {
        self.provider[0] == 0
    }

    /// Name of the provider; empty for any.
    pub fn provider(&self) -> String {
        text(&self.provider)
    }

    /// Name of the domain, if one was given.
    pub fn domain(&self) -> Option<String> {
        Some(text(&self.domain)).filter(|domain| !domain.is_empty())
    }
}

impl std::str::FromStr for Choice {
    type Err = ChoiceError;

    fn from_str(written: &str) -> Result<Self, ChoiceError> {
        let (provider, domain) = written.split_once('/').unwrap_or((written, ""));
        let printable = written.chars().all(|c| c.is_ascii_graphic());
        let complete = !provider.is_empty() && (written.len() == provider.len() || !domain.is_empty());
        Self::new(provider, domain)
            .filter(|_| printable && complete)
            .ok_or_else(|| ChoiceError(written.into()))
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.provider())?;
        match self.domain() {
            Some(domain) => write!(f, "/{domain}"),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_is_displayed_as_it_is_parsed() {
        for written in ["tcp", "tcp;ofi_rxm", "verbs/mlx5_0", "cxi/cxi0"] {
            assert_eq!(written.parse::<Choice>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn malformed_choice_is_refused_with_an_example() {
        for written in ["", "/lo", "tcp/", "t cp", &"x".repeat(40), "tcp\n"] {
            let error = written.parse::<Choice>().unwrap_err();
            assert!(error.to_string().contains("verbs/mlx5_0"), "{error}");
        }
    }
}
