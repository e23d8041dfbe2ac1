//! Expiry of the TLS files of listeners, links and the API: for metrics, and for an early warning in the log.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::WatchedFiles;
use tls::{Expiry, ExpiryKind};

use crate::cluster::Cluster;

/// Parts of the node that use TLS files and reload them. Cheap to clone.
#[derive(Clone)]
pub struct TlsFiles {
    pub listeners: edge::Certificates,
    /// Files of the HTTP API, if it uses TLS.
    pub https: Option<api::Certificates>,
    /// Files of links to other nodes, in a cluster.
    pub links: Option<Arc<Cluster>>,
    /// Figures about files that are used when they change.
    pub watched: Arc<Mutex<WatchedFiles>>,
}

impl TlsFiles {
    /// Expiry of every file, with the listener that it belongs to; `http` is the API, `cluster` the links.
    pub fn expiries(&self) -> Vec<(String, Expiry)> {
        let https = self.https.iter().flat_map(api::Certificates::expiries);
        let links = self.links.iter().flat_map(|links| links.expiries());
        let others = https.map(|expiry| ("http".to_owned(), expiry));
        let others = others.chain(links.map(|expiry| (CLUSTER.to_owned(), expiry)));
        self.listeners.expiries().into_iter().chain(others).collect()
    }

    /// Logs a warning for each file that has expired or will expire within a fortnight.
    pub fn warn(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        for (listener, expiry) in self.expiries() {
            let Some(days) = expiry.days_to_warn_of(now) else { continue };
            let (kind, file, over) = (expiry.kind.name(), expiry.file.display(), expiry.is_over(now));
            let what = match (expiry.kind, over) {
                (ExpiryKind::Server, true) if listener == CLUSTER => {
                    "the certificate has expired, and other nodes refuse it"
                }
                (ExpiryKind::Server, true) => {
                    "the certificate has expired, and clients that check it refuse to connect"
                }
                (ExpiryKind::Server, false) => "the certificate expires soon",
                (ExpiryKind::ClientCa, true) => "an authority for clients' certificates has expired",
                (ExpiryKind::ClientCa, false) => "an authority for clients' certificates expires soon",
                (ExpiryKind::ClientCrl, true) => {
                    "the list of revoked certificates is out of date, and still used"
                }
                (ExpiryKind::ClientCrl, false) => "the list of revoked certificates is out of date soon",
            };
            tracing::warn!(listener, kind, %file, days, "{what}: renew the file. It is used within seconds, or after a reload with \
                 node.watch_files = \"0s\"");
        }
    }

    /// Warns once a day until the process ends.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn warn_daily(self) -> std::io::Result<()> {
        let daily = move || {
            loop {
                // tidy: allow(thread-sleep): a thread of its own with nothing else to do.
                thread::sleep(DAY);
                self.warn();
            }
        };
        // tidy: allow(thread): a reload logs the same warnings.
        thread::Builder::new().name("certificates".to_owned()).stack_size(STACK).spawn(daily).map(drop)
    }
}

/// Name of the links' certificates, where other certificates have the name of a listener.
const CLUSTER: &str = "cluster";
const DAY: Duration = Duration::from_hours(24);
/// Stack size in bytes: the thread only writes lines of the log.
const STACK: usize = 256 * 1024;
