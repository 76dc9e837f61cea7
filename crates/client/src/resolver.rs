//! Name resolution with a cache.
//!
//! `ureq` resolves a name for each request and starts a thread to bound the time, which costs as much as the rest of a
//! request on one host. Addresses need no resolution, and resolved names are cached.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Lifetime of a resolved name.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// Resolves one manager's name and caches the addresses.
#[derive(Debug, Default)]
pub struct CachingResolver {
    known: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl CachingResolver {
    fn filled(&self, addresses: &[SocketAddr]) -> ResolvedSocketAddrs {
        let mut resolved = self.empty();
        for address in addresses {
            resolved.push(*address);
        }
        resolved
    }
}

impl Resolver for CachingResolver {
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
