//! The tenant and the token behind a request for leases. A lease ends with the token with which it was granted or last
//! renewed.

use dayfly_protocol::api::Grant;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;
use dayfly_store::system::now_ms;

use crate::http::validity::ENDED;
use crate::token_registry::TokenHash;

/// A requester of leases.
#[derive(Debug, Clone, Copy)]
pub struct Principal {
    /// Who pays.
    pub tenant: TenantId,
    /// The token that the lease ends with. `None` for dispatchers in this process and for guests, whose tokens are not
    /// in the store.
    pub bearer: Option<TokenHash>,
    /// When the token expires.
    pub until_ms: u64,
}

impl Principal {
    /// Returns this length, cut so that the lease does not outlive the token.
    ///
    /// # Errors
    /// `Unauthorized` if the token has expired.
    pub fn bounded_ms(&self, duration_ms: u64) -> Result<u64, Failure> {
        match self.until_ms.saturating_sub(now_ms()) {
            0 => Err(Failure::new(Code::Unauthorized, ENDED)),
            left_ms => Ok(duration_ms.min(left_ms)),
        }
    }
}

/// Adds a notice to a grant that is shorter than the request.
pub fn with_notice(mut grant: Grant, asked_ms: u64) -> Grant {
    if grant.duration_ms < asked_ms {
        let text = format!(
            "the lease lasts {} s instead of {} s: it ends with the token that requested it",
            grant.duration_ms / 1000,
            asked_ms / 1000
        );
        grant.notice.get_or_insert(text);
    }
    grant
}
