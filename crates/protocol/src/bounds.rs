//! Length limits of stored and displayed texts. Longer texts are refused before anything is written.

use crate::endpoints::EndpointSpec;
use crate::error::{Code, Failure};
use crate::functions::FunctionRegistration;
use crate::sharing::{MAX_MEMBERS, TEAM};
use crate::tasks::{Cancellation, MAX_NAME_BYTES, TaskDeletion};

/// Longest tag, idempotency key or image name.
pub const MAX_TAG_BYTES: usize = 256;
/// Longest description.
pub const MAX_DESCRIPTION_BYTES: usize = 16 << 10;
/// Longest source of a function. The source is for display only.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Longest error message of a function, a batch system or a site.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of a function's metadata, without its code. Most of it is the list of an environment's packages.
pub const MAX_FUNCTION_BYTES: usize = 2 << 20;

/// Refuses a text that is too long. `what` names it in the message.
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

/// Refuses a sharing list with too many names or with a name that is too long.
///
/// # Errors
/// As [`check`].
pub fn check_shared(shared_with: &[String]) -> Result<(), Failure> {
    if shared_with.len() > MAX_MEMBERS {
        let text = format!(
            "the sharing list has {} names; {MAX_MEMBERS} are allowed: use a team",
            shared_with.len()
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let most = TEAM.len() + MAX_NAME_BYTES;
    let mut each = shared_with.iter();
    each.try_for_each(|name| check("a name in the sharing list", name, most))
}

impl FunctionRegistration {
    /// Checks the lengths of its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check(
            "the function's name",
            self.name.as_deref().unwrap_or_default(),
            MAX_NAME_BYTES,
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
    /// Checks the lengths of its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the endpoint's description", &self.description, MAX_DESCRIPTION_BYTES)?;
        check("the provider's name", &self.provider, MAX_NAME_BYTES)?;
        check_shared(&self.shared_with)
    }
}

impl Cancellation {
    /// Checks the lengths of its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the tag", self.tag.as_deref().unwrap_or_default(), MAX_TAG_BYTES)?;
        check(
            "the endpoint's name",
            self.endpoint.as_deref().unwrap_or_default(),
            MAX_NAME_BYTES,
        )
    }
}

impl TaskDeletion {
    /// Checks the lengths of its texts.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check_texts(&self) -> Result<(), Failure> {
        check("the tag", self.tag.as_deref().unwrap_or_default(), MAX_TAG_BYTES)
    }
}
