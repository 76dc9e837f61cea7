//! The map from tenants to accounts of this machine.

use std::collections::BTreeMap;
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use serde::{Deserialize, Serialize};

use super::super::config::{length, of_length};

/// `[accounts]`: names of tenants and of accounts. `*` stands for any text in a tenant's name, and for the same text in
/// the account's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Map {
    /// Account of each tenant. An exact name takes precedence over patterns, and longer patterns over shorter ones.
    pub map: BTreeMap<String, String>,
    /// Minimum user id of an account.
    pub least_uid: u32,
    /// Idle time after which an account's daemon ends, until there is work for it.
    #[serde(deserialize_with = "length", serialize_with = "of_length")]
    pub idle: Duration,
}

impl Default for Map {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            least_uid: 1_000,
            idle: Duration::from_secs(600),
        }
    }
}

impl Map {
    /// Returns whether the map has no entry.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the minimum user id; never root's.
    pub fn least_uid(&self) -> u32 {
        self.least_uid.max(1)
    }

    /// Checks the map. The error is a message for people.
    pub fn check(&self) -> Result<(), String> {
        for (tenant, account) in &self.map {
            let stars = |text: &str| text.matches('*').count();
            if stars(tenant) > 1 || stars(account) > stars(tenant) {
                return Err(format!(
                    "accounts.map has {tenant:?} = {account:?}: one `*` at most, and in the account only where the tenant has one"
                ));
            }
            if account.is_empty() || account == "root" {
                return Err(format!(
                    "accounts.map has {tenant:?} = {account:?}: name an account, and not root"
                ));
            }
        }
        Ok(())
    }

    /// Returns the account of a tenant.
    pub fn account(&self, tenant: &str) -> Result<String, Failure> {
        let exact = self.map.get(tenant).filter(|_| !tenant.contains('*')).cloned();
        let by_pattern = || {
            let fits = self.map.iter().filter_map(|(pattern, account)| {
                let middle = middle(pattern, tenant)?;
                Some((pattern.len(), account.replace('*', middle)))
            });
            fits.max_by_key(|(length, _)| *length).map(|(_, account)| account)
        };
        let account = exact.or_else(by_pattern).filter(|account| is_plain(account));
        account.ok_or_else(|| {
            let text = format!("`{tenant}` has no account at this endpoint; ask its operator for one");
            Failure::new(Code::Forbidden, text)
        })
    }
}

/// Returns the text that the star of a pattern matches.
fn middle<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    let (before, after) = pattern.split_once('*')?;
    let middle = name.strip_prefix(before)?.strip_suffix(after)?;
    (!middle.is_empty()).then_some(middle)
}

/// Returns whether an account's name is safe as a program's argument, whatever the tenant's name contains.
fn is_plain(account: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = account.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && account != "root" && account.len() <= 64 && account.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> Map {
        let entries = entries
            .iter()
            .map(|(tenant, account)| ((*tenant).into(), (*account).into()));
        Map {
            map: entries.collect(),
            ..Map::default()
        }
    }

    #[test]
    fn names_precede_patterns_and_longer_patterns_shorter() {
        let map = map(&[
            ("alice", "al"),
            ("*@example.org", "*"),
            ("*@physics.example.org", "phy-*"),
            ("*", "guest"),
        ]);
        assert_eq!(map.check(), Ok(()));
        for (tenant, account) in [
            ("alice", "al"),
            ("bob@example.org", "bob"),
            ("carol@physics.example.org", "phy-carol"),
            ("dave", "guest"),
        ] {
            assert_eq!(map.account(tenant).as_deref(), Ok(account));
        }
    }

    #[test]
    fn root_and_invalid_names_are_refused() {
        let everybody = map(&[("*@example.org", "*")]);
        for tenant in [
            "root@example.org",
            "-rf@example.org",
            "a/b@example.org",
            "a b@example.org",
            "@example.org",
            "eve@example.com",
            "*@example.org",
            "0@example.org",
        ] {
            let refused = everybody.account(tenant).expect_err(tenant);
            assert_eq!(refused.code, Code::Forbidden);
        }
        for wrong in [("a", "root"), ("a", ""), ("a*b*", "c"), ("a", "b*")] {
            assert!(map(&[wrong]).check().is_err(), "{wrong:?}");
        }
        assert_eq!(
            Map {
                least_uid: 0,
                ..Map::default()
            }
            .least_uid(),
            1
        );
    }
}
