//! Where the ranks of a sandbox may meet others.

use dayfly_lease::rendezvous::is_vouched;
use dayfly_protocol::api::{MAX_RANKS, RendezvousAddress};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::PublicKey;
use serde::{Deserialize, Serialize};

use crate::invitation::Invitation;

/// A node's configuration of its connector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectorConfig {
    /// Keys of the site's managers. Ranks may meet at each rendezvous that one of them vouches for.
    pub managers: Vec<PublicKey>,
    /// Further rendezvous that the node's owner permits.
    pub permitted: Vec<RendezvousAddress>,
    /// Most groups at a time; 0 if the node's owner permits none.
    pub max_groups: u32,
    /// The user id to switch to, if the node is root.
    pub user: Option<u32>,
}

impl ConnectorConfig {
    /// Checks that a rank may join this group.
    ///
    /// # Errors
    /// [`Code::Forbidden`] when the rendezvous is not one of the site's, or the group exchanges through a store or
    /// libfabric; [`Code::TooLarge`] when the group is too large.
    pub fn check(&self, invitation: &Invitation) -> Result<(), Failure> {
        if invitation.size > u32::from(MAX_RANKS) {
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "the group has {} ranks, and ranks in a sandbox without a network can join one of at most {MAX_RANKS}; make it smaller",
                    invitation.size
                ),
            ));
        }
        let beyond = [
            ("a store", invitation.store.is_some()),
            ("libfabric", invitation.fabric.is_some()),
        ];
        if let Some((what, _)) = beyond.into_iter().find(|(_, wanted)| *wanted) {
            let text = format!(
                "a rank without a network cannot exchange through {what}, because its node does not connect there for it: ask for the host's \
                 network (`network=True` of a lease, `--network` of `dayfly run`), or leave it out"
            );
            return Err(Failure::new(Code::Forbidden, text));
        }
        let named = invitation.key.map(|key| RendezvousAddress {
            address: invitation.rendezvous.clone(),
            key,
            voucher: invitation.voucher.clone().unwrap_or_default(),
        });
        let allowed = |named: &RendezvousAddress| {
            let is_named = |place: &RendezvousAddress| place.address == named.address && place.key == named.key;
            self.permitted.iter().any(is_named) || self.managers.iter().any(|manager| is_vouched(named, manager))
        };
        if named.as_ref().is_some_and(allowed) {
            return Ok(());
        }
        Err(Failure::new(
            Code::Forbidden,
            format!(
                "ranks in a sandbox without a network meet at their manager's rendezvous only, and no manager of this site vouches \
                 for {:?}; use its response to `GET /v1/rendezvous`, with the voucher, as dayfly.run does, or have the node's \
                 owner allow this one (`dayfly node --rendezvous`)",
                invitation.rendezvous.chars().take(100).collect::<String>()
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dayfly_lease::SigningKey;
    use dayfly_lease::rendezvous::vouch;

    fn invitation(address: &str, key: PublicKey, voucher: Option<String>) -> Invitation {
        let text = serde_json::json!({
            "rendezvous": address, "key": key, "name": "n", "secret": "00".repeat(16), "size": 2, "voucher": voucher,
        });
        Invitation::from_json(&text.to_string()).unwrap()
    }

    #[test]
    fn only_vouched_or_permitted_rendezvous_are_accepted() {
        let (ours, other) = (SigningKey::from_seed([1; 32]), SigningKey::from_seed([2; 32]));
        let (key, named) = (PublicKey([3; 32]), PublicKey([4; 32]));
        let config = ConnectorConfig {
            managers: vec![ours.public()],
            permitted: vec![RendezvousAddress {
                address: "b:1".into(),
                key: named,
                voucher: String::new(),
            }],
            max_groups: 1,
            user: None,
        };
        let good = vouch(&ours, "a:1", &key);
        let check = |address, key, voucher: Option<&str>| {
            config
                .check(&invitation(address, key, voucher.map(str::to_owned)))
                .is_ok()
        };
        assert!(check("a:1", key, Some(&good)));
        assert!(check("b:1", named, None));
        assert!(!check("a:1", key, None), "without a word for it");
        assert!(!check("a:2", key, Some(&good)), "another address");
        assert!(!check("a:1", named, Some(&good)), "another key");
        assert!(!check("b:1", key, None), "another key at a named place");
        assert!(
            !check("a:1", key, Some(&vouch(&other, "a:1", &key))),
            "another site's manager"
        );
        let mut keyless = invitation("a:1", key, Some(good));
        keyless.key = None;
        let failure = config.check(&keyless).unwrap_err();
        assert_eq!(failure.code, Code::Forbidden);
        assert!(failure.message.contains("--rendezvous"), "{failure}");
    }

    #[test]
    fn store_libfabric_or_oversized_group_is_refused() {
        let key = PublicKey([3; 32]);
        let config = ConnectorConfig {
            managers: Vec::new(),
            permitted: vec![RendezvousAddress {
                address: "a:1".into(),
                key,
                voucher: String::new(),
            }],
            max_groups: 1,
            user: None,
        };
        let good = invitation("a:1", key, None);
        config.check(&good).unwrap();
        let stored = Invitation {
            store: Some("s3://bucket".into()),
            ..good.clone()
        };
        let failure = config.check(&stored).unwrap_err();
        assert_eq!(failure.code, Code::Forbidden);
        assert!(failure.message.contains("store"), "{failure}");
        let fabric = Invitation {
            fabric: Some("verbs".into()),
            ..good.clone()
        };
        assert_eq!(config.check(&fabric).unwrap_err().code, Code::Forbidden);
        let large = Invitation {
            size: u32::from(MAX_RANKS) + 1,
            ..good
        };
        assert_eq!(config.check(&large).unwrap_err().code, Code::TooLarge);
    }
}
