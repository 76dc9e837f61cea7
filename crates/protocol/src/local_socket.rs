//! The local socket on which programs of the same host find a manager, in addition to its port.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Returns the abstract name of the local socket of the manager with this certificate authority and port. The name
/// contains a hash of both, so a connection file that was copied elsewhere never leads to another manager.
pub fn name(ca_pem: &str, port: u16) -> String {
    let mut hasher = Sha256::new();
    hasher.update(ca_pem.trim());
    hasher.update(port.to_be_bytes());
    hasher.finalize()[..16]
        .iter()
        .fold("dayfly-manager-".into(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_name_differs_by_authority_and_port() {
        let one = name("authority\n", 7070);
        assert_eq!(one, name("authority", 7070));
        assert_eq!(one.len(), "dayfly-manager-".len() + 32);
        assert!(one != name("other", 7070) && one != name("authority", 7071));
    }
}
