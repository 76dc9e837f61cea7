//! Limits on open descriptors. Daemons raise their own limit; their children get the original one, since programs that
//! use `select` break above 1,024.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

static ORIGINAL_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit to its maximum. Returns the new limit.
pub fn raise_limit() -> usize {
    let began = ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit {
        current: began.maximum,
        maximum: began.maximum,
    };
    // If the change is refused, the limit stays.
    let _ = setrlimit(Resource::Nofile, raised);
    let most = getrlimit(Resource::Nofile).current;
    most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// The limit that this process began with; `None` unless it was raised.
pub fn original_limit() -> Option<Rlimit> {
    ORIGINAL_LIMIT.get().cloned()
}

/// The same as the C library's type.
pub(crate) fn original_limit_raw() -> Option<libc::rlimit> {
    let limit = original_limit()?;
    Some(libc::rlimit {
        rlim_cur: limit.current.unwrap_or(libc::RLIM_INFINITY),
        rlim_max: limit.maximum.unwrap_or(libc::RLIM_INFINITY),
    })
}
