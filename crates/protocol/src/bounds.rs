//! How long texts may be that are kept and shown: what is longer is refused before anything of it is written.

use crate::error::{Code, Failure};
use crate::tasks::{Cancellation, EndpointSpec, Forgetting, FunctionRegistration, MOST_MEMBERS, MOST_NAME_BYTES, TEAM};

/// The longest tag, idempotency key or name of an image.
pub const MAX_TAG_BYTES: usize = 256;
/// The longest description.
pub const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
/// The longest source of a function, which is for people.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// The longest message of an error, of a batch system or of a site.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of all that is said of a function, its code left out; most of it is the list of an environment's packages.
pub const MAX_FUNCTION_BYTES: usize = 2 << 20;

/// Refuses a text that is too long.
///
/// # Errors
/// `InvalidRequest`, with both lengths and without the text.
pub fn check(what: &str, text: &str, max_bytes: usize) -> Result<(), Failure> {
    if text.len() <= max_bytes {
        return Ok(());
    }
    let text = format!("{what} has {} bytes; {max_bytes} are allowed", text.len());
    Err(Failure::new(Code::InvalidRequest, text))
}

/// Refuses too many names, or too long ones, of those that something is shared with.
///
/// # Errors
/// As [`check`].
pub fn check_shared(shared_with: &[String]) -> Result<(), Failure> {
    if shared_with.len() > MOST_MEMBERS {
        let text = format!(
            "it is shared with {} names; {MOST_MEMBERS} are allowed: make a team of them",
            shared_with.len()
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let most = TEAM.len() + MOST_NAME_BYTES;
    let mut each = shared_with.iter();
    each.try_for_each(|name| check("a name that it is shared with", name, most))
}

impl FunctionRegistration {
    /// Checks its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check(
            "the function's name",
            self.name.as_deref().unwrap_or_default(),
            MOST_NAME_BYTES,
        )?;
        check("the function's description", &self.description, MAX_DESCRIPTION_BYTES)?;
        check("the function's source", &self.source, MAX_SOURCE_BYTES)?;
        check(
            "the image's name",
            self.image.as_deref().unwrap_or_default(),
            MAX_TAG_BYTES,
        )?;
        check_shared(&self.shared_with)
    }
}

impl EndpointSpec {
    /// Checks its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the endpoint's description", &self.description, MAX_DESCRIPTION_BYTES)?;
        check("the provider's name", &self.provider, MOST_NAME_BYTES)?;
        check_shared(&self.shared_with)
    }
}

impl Cancellation {
    /// Checks its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the tag", self.tag.as_deref().unwrap_or_default(), MAX_TAG_BYTES)?;
        check(
            "the endpoint's name",
            self.endpoint.as_deref().unwrap_or_default(),
            MOST_NAME_BYTES,
        )
    }
}

impl Forgetting {
    /// Checks its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the tag", self.tag.as_deref().unwrap_or_default(), MAX_TAG_BYTES)
    }
}
