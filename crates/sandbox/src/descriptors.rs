//! Limits on open descriptors. Daemons raise their own limit; their children get the original one, since programs that
//! use `select` break above 1,024.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

static BEGAN_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit to its maximum. Returns the new limit.
pub fn raise() -> usize {
    let began = BEGAN_WITH.get_or_init(|| getrlimit(Resource::Nofile));
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
pub fn began_with() -> Option<Rlimit> {
    BEGAN_WITH.get().cloned()
}

/// The same as the C library's type.
pub(crate) fn began_with_raw() -> Option<libc::rlimit> {
    let limit = began_with()?;
    Some(libc::rlimit {
        rlim_cur: limit.current.unwrap_or(libc::RLIM_INFINITY),
        rlim_max: limit.maximum.unwrap_or(libc::RLIM_INFINITY),
    })
}
