//! Random bytes from the operating system.

use dayfly_protocol::error::Code;

use crate::Error;

/// Fills `bytes` with random bytes.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::new(Code::Internal, format!("no random numbers: {error}")))
}
