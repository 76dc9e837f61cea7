//! Whose group is which: each tenant has a prefix for the names of its groups.
//!
//! Ranks meet by a secret of their group and know nothing of tenants. So the manager gives each tenant a prefix that
//! others cannot guess, with the address at which ranks meet, and shows a tenant the groups whose names begin with it.
//! The prefix decides what a list shows, and nothing else.

use std::collections::HashMap;

use dayfly_lease::SigningKey;
use dayfly_protocol::ids::TenantId;
use ring::hmac::{HMAC_SHA256, Key, sign};

/// Prefix of the signed bytes, so that no other signature of the manager yields the same key.
const LABEL: &[u8] = b"dayfly group prefixes 1\0";
/// Characters of a prefix: 64 bits in hexadecimal, and a hyphen.
const LENGTH: usize = 17;

/// The prefixes at one manager.
pub struct GroupPrefixes(Key);

impl GroupPrefixes {
    /// Returns the prefixes at the manager with this key. They are the same after a restart.
    pub fn of(manager: &SigningKey) -> Self {
        Self(Key::new(HMAC_SHA256, &manager.sign(LABEL)))
    }

    /// Returns a tenant's prefix.
    pub fn prefix(&self, tenant: TenantId) -> String {
        format!("{}-", hex::encode(&sign(&self.0, &tenant.0).as_ref()[..8]))
    }

    /// Returns names of tenants by their prefixes.
    pub fn names(&self, tenants: impl IntoIterator<Item = (TenantId, String)>) -> HashMap<String, String> {
        let tenants = tenants.into_iter();
        tenants.map(|(tenant, name)| (self.prefix(tenant), name)).collect()
    }
}

/// Splits a group's name after what may be a prefix.
pub fn split(name: &str) -> (&str, &str) {
    name.split_at_checked(LENGTH).unwrap_or(("", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_and_manager_decide_the_prefix() {
        let prefixes = [[1; 32], [2; 32]].map(|seed| GroupPrefixes::of(&SigningKey::from_seed(seed)));
        let [here, there] = &prefixes;
        let (ours, theirs) = (TenantId([1; 16]), TenantId([2; 16]));
        assert_eq!(
            here.prefix(ours),
            GroupPrefixes::of(&SigningKey::from_seed([1; 32])).prefix(ours)
        );
        assert_ne!(here.prefix(ours), here.prefix(theirs));
        assert_ne!(here.prefix(ours), there.prefix(ours));
        let name = format!("{}run-a", here.prefix(ours));
        let (prefix, rest) = split(&name);
        let names = here.names([(ours, "astro".into()), (theirs, "bio".into())]);
        assert_eq!((names[prefix].as_str(), rest), ("astro", "run-a"));
    }

    #[test]
    fn short_and_foreign_names_have_no_prefix() {
        for name in [
            "",
            "a",
            "sixteen letters-",
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert_eq!(split(name), ("", name));
        }
    }
}
