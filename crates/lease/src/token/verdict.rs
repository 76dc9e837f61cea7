//! The node's signed verdict on a hello.

use dayfly_protocol::WIRE_VERSION;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::hello::{MAGIC, Verdict};
use dayfly_protocol::ids::{ChannelId, Incarnation, PublicKey};
use zerocopy::FromZeros;

use super::TokenError;
use crate::key::{SigningKey, verify};

/// Prefix of the bytes that a verdict signs. Without a manager, a node's key also signs tokens, and neither signature
/// may pass as the other.
const VERDICT_DOMAIN: &[u8; 16] = b"dayfly verdict 1";

/// Returns an accepting verdict signed by the node. `options` is a bit set of
/// [`mod@dayfly_protocol::hello::options`]. `executor_key` is zero for transports without TLS.
pub fn accept(
    channel: &ChannelId,
    incarnation: Incarnation,
    worker_pid: u32,
    options: u16,
    executor_key: PublicKey,
    node_key: &SigningKey,
) -> Verdict {
    let mut verdict = Verdict::new_zeroed();
    verdict.magic = MAGIC;
    verdict.version = WIRE_VERSION.into();
    verdict.incarnation = incarnation.0.into();
    verdict.worker_pid = worker_pid.into();
    verdict.options = options.into();
    verdict.executor_key = executor_key;
    verdict.signature = node_key.sign(&verdict_bytes(channel, &executor_key));
    verdict
}

/// Returns a refusing verdict. A text that is too long is cut at a character boundary.
pub fn refuse(failure: &Failure) -> Verdict {
    let mut verdict = Verdict::new_zeroed();
    verdict.magic = MAGIC;
    verdict.version = WIRE_VERSION.into();
    verdict.code = (failure.code as u16).into();
    let length = failure.message.floor_char_boundary_of(verdict.text.len());
    verdict.text[..length].copy_from_slice(&failure.message.as_bytes()[..length]);
    verdict.text_length = (length as u16).into();
    verdict
}

/// Checks a node's verdict.
///
/// # Errors
/// The node's refusal, or a violation if the verdict is malformed or its signature is invalid.
pub fn check_verdict(verdict: &Verdict, channel: &ChannelId, node_key: &PublicKey) -> Result<(), Failure> {
    if verdict.magic != MAGIC {
        return Err(TokenError::Malformed("verdict").into());
    }
    if verdict.code.get() != 0 {
        let code = Code::from_wire(verdict.code.get()).unwrap_or(Code::Internal);
        return Err(Failure::new(code, verdict.message()));
    }
    if verdict.version.get() != WIRE_VERSION {
        return Err(TokenError::Version {
            what: "verdict",
            theirs: verdict.version.get(),
        }
        .into());
    }
    if !verify(
        node_key,
        &verdict_bytes(channel, &verdict.executor_key),
        &verdict.signature,
    ) {
        return Err(TokenError::VerdictSignature.into());
    }
    Ok(())
}

fn verdict_bytes(channel: &ChannelId, executor_key: &PublicKey) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(VERDICT_DOMAIN);
    bytes[16..32].copy_from_slice(&channel.0);
    bytes[32..].copy_from_slice(&executor_key.0);
    bytes
}

trait FloorCharBoundary {
    fn floor_char_boundary_of(&self, most: usize) -> usize;
}

impl FloorCharBoundary for str {
    /// Returns the largest length up to `most` that splits no character. The standard library's method needs a newer
    /// compiler.
    fn floor_char_boundary_of(&self, most: usize) -> usize {
        (0..=most.min(self.len()))
            .rev()
            .find(|&at| self.is_char_boundary(at))
            .unwrap_or(0)
    }
}
