//! Addresses of host names, with a time limit.
//!
//! The resolver of the system has none, and blocks its thread for as long as name servers do not answer. So each name
//! is resolved on a thread that may outlive its caller. The number of these threads is limited.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Maximum number of names that the process resolves at a time for connectors.
const LOOKUPS_MAX: usize = 32;
/// Maximum number of addresses of a name.
const ADDRESSES_MAX: usize = 16;

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// Returns the addresses of a host.
///
/// # Errors
/// The name has no address, or there is no answer in time.
pub fn resolve(host: &str, port: u16, within: Duration) -> Result<Vec<SocketAddr>, Unresolved> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let found = lookup(&LOOKUPS, within, move || {
        (name.as_str(), port).to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect::<Vec<_>>())
    })?;
    if found.is_empty() { Err(Unresolved::NoAddress) } else { Ok(found) }
}

/// Calls `find` on a thread of its own. `running` is the number of such threads.
fn lookup<T: Send + 'static>(
    running: &'static AtomicUsize,
    within: Duration,
    find: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Unresolved> {
    let slot = Slot::take(running).ok_or(Unresolved::TooMany)?;
    let (sender, receiver) = sync_channel(1);
    let run = move || {
        let found = find();
        drop(slot);
        // The caller may have left.
        let _ = sender.send(found);
    };
    // tidy: allow(thread): no part of the broker depends on it, and the caller notices when it ends.
    let spawned = std::thread::Builder::new().name("resolve".to_owned()).spawn(run);
    spawned.map_err(Unresolved::failed)?;
    match receiver.recv_timeout(within) {
        Ok(found) => found.map_err(Unresolved::failed),
        Err(_) => Err(Unresolved::Late(within)),
    }
}

/// One of the threads that may run at a time.
struct Slot(&'static AtomicUsize);

impl Slot {
    fn take(running: &'static AtomicUsize) -> Option<Self> {
        let one_more = |count| (count < LOOKUPS_MAX).then_some(count + 1);
        let taken = running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        taken.is_ok().then(|| Self(running))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Reason why a name has no known address.
#[derive(Clone, Debug)]
pub enum Unresolved {
    NoAddress,
    Failed(Arc<io::Error>),
    /// No answer came within this time.
    Late(Duration),
    /// Too many names are being resolved, because name servers do not answer.
    TooMany,
}

impl Unresolved {
    fn failed(error: io::Error) -> Self {
        if error.kind() == ErrorKind::NotFound { Self::NoAddress } else { Self::Failed(Arc::new(error)) }
    }
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the name has no address"),
            Self::Failed(error) => write!(f, "the name cannot be resolved: {error}"),
            Self::Late(within) => {
                write!(f, "the name was not resolved within {within:.1?}; check the name servers of the node")
            }
            Self::TooMany => write!(
                f,
                "the name cannot be resolved: {LOOKUPS_MAX} other names of connectors wait for name servers; check the \
                 name servers of the node"
            ),
        }
    }
}

impl std::error::Error for Unresolved {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn addresses_need_no_resolver() {
        for (host, address) in [("192.0.2.1", "192.0.2.1:7"), ("2001:db8::1", "[2001:db8::1]:7")] {
            let found = resolve(host, 7, Duration::ZERO).expect("an address");
            assert_eq!(found, [address.parse().expect("an address")]);
        }
        assert!(resolve("localhost", 7, Duration::from_secs(60)).is_ok_and(|found| !found.is_empty()));
    }

    #[test]
    fn name_servers_that_do_not_answer_cost_a_limited_time_and_a_limited_number_of_threads() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let mut answers = Vec::new();
        for _ in 0..LOOKUPS_MAX {
            let (answer, answered) = channel::<()>();
            answers.push(answer);
            let result = lookup(&RUNNING, Duration::ZERO, move || {
                let _ = answered.recv();
                Ok(())
            });
            assert!(matches!(result, Err(Unresolved::Late(_))), "{result:?}");
        }
        let more = || lookup(&RUNNING, Duration::from_secs(60), || Ok(()));
        assert!(matches!(more(), Err(Unresolved::TooMany)));
        drop(answers);
        while RUNNING.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert!(more().is_ok());
    }
}
