//! Addresses of a server, each of them checked by the guard.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::endpoint::literal;
use crate::guard::{Guard, Refused};
use crate::names;

/// Resolver of one host. Connections are made to the addresses that it returns, so that a name that leads
/// elsewhere at its second resolution passes no check.
#[derive(Clone, Debug)]
pub struct Guarded(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    guard: Guard,
    /// `ureq` resolves for each request, also when it has a kept connection.
    recent: Mutex<Option<Recent>>,
}

#[derive(Debug)]
struct Recent {
    until: Instant,
    addresses: Vec<SocketAddr>,
}

impl Guarded {
    pub fn new(guard: Guard) -> Self {
        Self(Arc::new(Shared { guard, recent: Mutex::default() }))
    }

    /// Resolves the name again for the next request.
    pub fn forget(&self) {
        *sync::lock(&self.0.recent) = None;
    }

    fn recent(&self) -> Option<Vec<SocketAddr>> {
        let recent = sync::lock(&self.0.recent);
        recent.as_ref().filter(|recent| Instant::now() < recent.until).map(|recent| recent.addresses.clone())
    }
}

impl Resolver for Guarded {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut allowed = self.empty();
        if let Some(address) = uri.host().and_then(literal) {
            self.0.guard.check(address).map_err(refused)?;
            allowed.push(SocketAddr::new(address, port(uri)));
            return Ok(allowed);
        }
        if let Some(addresses) = self.recent() {
            addresses.into_iter().for_each(|address| allowed.push(address));
            return Ok(allowed);
        }
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let found = names::resolve(host, port(uri), *timeout.after);
        let found = found.map_err(|why| Error::Other(Box::new(why)))?;
        for address in check_all(self.0.guard, found.into_iter()).map_err(refused)? {
            allowed.push(address);
        }
        let until = Instant::now() + RECENT_MAX;
        *sync::lock(&self.0.recent) = Some(Recent { until, addresses: allowed.to_vec() });
        Ok(allowed)
    }
}

/// Returns the addresses that connectors may reach.
///
/// # Errors
/// There is none; the reason for the first one.
fn check_all(guard: Guard, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, Refused> {
    let (mut allowed, mut first) = (Vec::new(), None);
    for address in found {
        match guard.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(refused) => first = first.or(Some(refused)),
        }
    }
    match first {
        Some(refused) if allowed.is_empty() => Err(refused),
        _ => Ok(allowed),
    }
}

fn refused(refused: Refused) -> Error {
    Error::Other(Box::new(refused))
}

fn port(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
}

/// Time for which the addresses of a name are used again.
const RECENT_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_addresses_of_a_name_are_used() {
        let strict = Guard { allow_loopback: false, allow_private: false };
        let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().expect("an address")).collect()
        };
        let mixed = addresses(&["127.0.0.1:1", "93.184.216.34:1", "[fd00::1]:1"]);
        assert_eq!(check_all(strict, mixed.into_iter()), Ok(addresses(&["93.184.216.34:1"])));
        let none = addresses(&["169.254.169.254:1", "127.0.0.1:1"]);
        let first = none[0].ip();
        assert_eq!(check_all(strict, none.into_iter()), Err(Refused::LinkLocal(first)));
    }
}
