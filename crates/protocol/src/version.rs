//! The release and the wire version of each side of an HTTP request.

use crate::WIRE_VERSION;
use crate::error::{Code, Failure};

/// Header of requests and responses with release and wire version, such as `0.1.0/4`. A request without it, such as a
/// browser's, is not checked.
pub const VERSION_HEADER: &str = "dayfly-version";
/// Release of this program.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Longest release name that a message repeats.
const MAX_RELEASE_BYTES: usize = 32;

/// The value of [`VERSION_HEADER`] for this program.
pub fn own_version() -> String {
    format!("{RELEASE}/{WIRE_VERSION}")
}

/// Checks a peer's wire version. `theirs` is the header's value; `them` and `us` name the two sides in the message.
///
/// # Errors
/// `InvalidRequest` for a malformed header, `VersionMismatch` for another wire version.
pub fn check_version(theirs: &str, them: &str, us: &str) -> Result<(), Failure> {
    let Some((release, wire)) = parse(theirs) else {
        let text = format!(
            "{them} sent a malformed version in the header `{VERSION_HEADER}`; send one such as `{}`",
            own_version()
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    };
    if wire == WIRE_VERSION {
        return Ok(());
    }
    let text = format!(
        "{them} is Dayfly {release} (wire version {wire}), and {us} is Dayfly {RELEASE} (wire version {WIRE_VERSION}). \
         They are not compatible; install the same release on both (`dayfly version` shows it)"
    );
    Err(Failure::new(Code::VersionMismatch, text))
}

fn parse(text: &str) -> Option<(&str, u16)> {
    let (release, wire) = text.split_once('/')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    let is_name = (1..=MAX_RELEASE_BYTES).contains(&release.len()) && release.bytes().all(is_plain);
    is_name.then_some((release, wire.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_wire_version_is_refused_with_both_releases() {
        assert_eq!(check_version(&own_version(), "the node", "this manager"), Ok(()));
        // Releases may differ as long as the wire version is the same.
        assert_eq!(
            check_version(&format!("9.9.9/{WIRE_VERSION}"), "the node", "this manager"),
            Ok(())
        );
        let failure = check_version("9.9.9/99", "the node", "this manager").unwrap_err();
        assert_eq!(failure.code, Code::VersionMismatch);
        for told in ["the node is Dayfly 9.9.9", "99", "this manager is Dayfly", RELEASE] {
            assert!(failure.message.contains(told), "{failure}");
        }
    }

    #[test]
    fn malformed_version_is_refused() {
        for nonsense in [
            "",
            "1",
            "1/",
            "/3",
            "<b>/3",
            "1.0/70000",
            "\u{7}/3",
            &format!("{}/3", "9".repeat(33)),
        ] {
            let failure = check_version(nonsense, "the client", "this manager").unwrap_err();
            assert_eq!(failure.code, Code::InvalidRequest, "{nonsense}");
        }
    }
}
