//! Where a manager's name leads.
//!
//! `ureq` looks a name up for each request, and starts a thread to do so in time, which costs as much as the rest of a request
//! on one host. An address needs no looking up, and a name that was looked up is good for a while.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// How long a name is taken to lead where it did.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// Looks one manager's name up, seldom.
#[derive(Debug, Default)]
pub struct Remembering {
    known: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Remembering {
    fn filled(&self, addresses: &[SocketAddr]) -> ResolvedSocketAddrs {
        let mut resolved = self.empty();
        for address in addresses {
            resolved.push(*address);
        }
        resolved
    }
}

impl Resolver for Remembering {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let (Ok(ip), Some(port)) = (host.parse::<IpAddr>(), uri.port_u16()) {
            return Ok(self.filled(&[SocketAddr::new(ip, port)]));
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, addresses)) = known.filter(|(at, _)| at.elapsed() < GOOD_FOR) {
            return Ok(self.filled(&addresses));
        }
        let resolved = DefaultResolver::default().resolve(uri, config, timeout)?;
        let addresses = resolved.iter().copied().collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), addresses));
        Ok(resolved)
    }
}
