//! A manager's voucher for a rendezvous server.
//!
//! A node joins groups for ranks that have no network, but only at a server that a trusted manager vouches for. The
//! voucher is a signature that travels with the address, so the node checks it without a request.

use dayfly_protocol::api::RendezvousAddress;
use dayfly_protocol::ids::PublicKey;

use crate::key::{SigningKey, verify};

/// Prefix of the signed bytes, so that no other signature of a manager can pass as a voucher.
const LABEL: &[u8] = b"dayfly rendezvous 1\0";

fn signed(address: &str, key: &PublicKey) -> Vec<u8> {
    [LABEL, &key.0, address.as_bytes()].concat()
}

/// Returns the manager's voucher in hexadecimal.
pub fn vouch(manager: &SigningKey, address: &str, key: &PublicKey) -> String {
    hex::encode(manager.sign(&signed(address, key)))
}

/// Whether the manager with this key signed the voucher.
pub fn is_vouched(place: &RendezvousAddress, manager: &PublicKey) -> bool {
    let mut signature = [0; 64];
    hex::decode_to_slice(&place.voucher, &mut signature).is_ok()
        && verify(manager, &signed(&place.address, &place.key), &signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voucher_is_valid_for_one_address_and_key() {
        let manager = SigningKey::from_seed([5; 32]);
        let key = PublicKey([6; 32]);
        let place = RendezvousAddress {
            address: "head:7070".into(),
            key,
            voucher: vouch(&manager, "head:7070", &key),
        };
        assert!(is_vouched(&place, &manager.public()));
        assert!(!is_vouched(&place, &SigningKey::from_seed([7; 32]).public()));
        for changed in [
            RendezvousAddress {
                address: "tail:7070".into(),
                ..place.clone()
            },
            RendezvousAddress {
                key: PublicKey([7; 32]),
                ..place.clone()
            },
            RendezvousAddress {
                voucher: String::new(),
                ..place.clone()
            },
            RendezvousAddress {
                voucher: "zz".into(),
                ..place
            },
        ] {
            assert!(!is_vouched(&changed, &manager.public()));
        }
    }
}
