//! How a manager is found by programs of its own machine, beside its port.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The abstract name of the local socket on which a manager with this certificate authority and this port listens, too. Nobody
/// else's manager has it, wherever a connection file was copied to.
pub fn name(ca_pem: &str, port: u16) -> String {
    let mut hasher = Sha256::new();
    hasher.update(ca_pem.trim());
    hasher.update(port.to_be_bytes());
    hasher.finalize()[..16]
        .iter()
        .fold("dayfly-manager-".into(), |mut name, byte| {
            // Writing into a string does not fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_authority_and_one_port() {
        let one = name("authority\n", 7070);
        assert_eq!(one, name("authority", 7070));
        assert_eq!(one.len(), "dayfly-manager-".len() + 32);
        assert!(one != name("other", 7070) && one != name("authority", 7071));
    }
}
