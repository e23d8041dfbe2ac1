//! Settings of links to other clusters: `[[cluster_link]]`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use access::LinkQueue;
use bridges::BridgeProblem;
use definitions::{Problem, SecretsDirectory, check_name};
use mqtt::QoS;
use rustls::ClientConfig;
use settings::{ByteSize, HostPort, HostPorts, section};
use tls::{OptionStyle, TlsFiles};

use broker::settings::QueueFull;

use crate::cut::check_prefix;
use crate::filters::{Filters, Names};
use crate::token::SECRET_MIN;

section! {
    /// Link to another cluster of Meridian, or to a single node. Each cluster takes what it wants: the messages of the
    /// other one that clients here have subscribed to. Both clusters need an entry for each other.
    [cluster_link]
    pub struct LinkSettings {
        /// Name of the other cluster.
        pub name: String = "", at start;
        /// Run the link. While it does not run, this cluster takes nothing, and the other one is refused.
        pub enabled: bool = "true", at start;
        /// Addresses of the other cluster for MQTT clients, separated by commas. Empty: this cluster takes nothing, and
        /// the other one connects.
        pub address: Option<HostPorts> = "", at start;
        /// Name of this cluster at the other one. Nodes without a cluster may leave it out: it is the name of the node
        /// then. It is the same in all links.
        pub own_name: String = "", at start;
        /// Topic Filters that this cluster takes from the other one, one a line, as they are there. Empty: it takes
        /// nothing. Only messages that clients here have subscribed to are transferred.
        pub topics: Filters = "", at start;
        /// Text before the topics of the other cluster here, such as `north/`. It is empty or ends with `/`.
        pub prefix: String = "", at start;
        /// Further clusters whose messages this cluster takes through the other one, separated by commas. The messages
        /// of each cluster must come by one link only.
        pub origins: Names = "", at start;
        /// Topic Filters that the other cluster may take from this one, one a line, as they are here. Empty: it may
        /// take nothing. `#` does not include topics that begin with `$`.
        pub export: Filters = "#", at start;
        /// File with the secret of the link, the same at both clusters: `head -c 32 /dev/urandom | base64` makes one.
        /// Each node needs the file.
        pub secret_file: Option<PathBuf> = "", at start;
        /// Connect with TLS.
        pub tls: bool = "false", at start;
        /// Authorities (PEM) that verify the certificate of the other cluster. Unset: those of the system.
        pub tls_ca: Option<PathBuf> = "", at start;
        /// Certificate chain (PEM) of this cluster.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// Private key (PEM) of `tls_certificate`.
        pub tls_key: Option<PathBuf> = "", at start;
        /// Host name that the certificate of the other cluster must have. Unset: that of its address.
        pub tls_server_name: Option<String> = "", at start;
        /// Maximum QoS of messages that this cluster takes.
        pub qos: u8 = "2" in "0..=2", at start;
        /// Maximum number of unacknowledged messages that this cluster takes, if the other one allows as many.
        pub in_flight: u16 = "10000" in "1..=65535", at start;
        /// Keep Alive of the connection.
        pub keep_alive: Duration = "30s" in "1s..=65535s", at start;
        /// Pause after the first failed connection. It doubles with each further one.
        pub backoff_min: Duration = "1s" in "100ms..=1h", at start;
        /// Longest pause between two attempts to connect.
        pub backoff_max: Duration = "30s" in "100ms..=1d", at start;
        /// Maximum size of a packet that this cluster takes.
        pub packet_size_max: ByteSize = "1MiB" in "128KiB..=256MiB", at start;
        /// Maximum number of Topic Filters that this cluster subscribes to at the other one. Beyond it, broader ones
        /// stand for the largest groups of them. The other one refuses more than its `session.subscriptions_max`.
        pub filters_max: u32 = "50000" in "1..=10000000", at start;
        /// Maximum number of messages that wait here for the other cluster, for each of its sessions. Each takes about
        /// 100 bytes of memory on each node that has a replica of the session; its payload is on disk.
        pub queue_messages_max: u32 = "1000000" in "1..", at start;
        /// Maximum number of bytes that wait here for the other cluster, for each of its sessions.
        pub queue_bytes_max: ByteSize = "1GiB" in "1KiB..", at start;
        /// Maximum time that a message waits here for the other cluster; 0 is until it expires.
        pub queue_age_max: Duration = "0s", at start;
        /// Message that is dropped when the queue for the other cluster is full.
        pub queue_full: QueueFull = "drop_oldest", at start;
    }
}

/// Facts about this node that its links depend on.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Name of this node.
    pub node: String,
    /// True when the node belongs to a cluster.
    pub is_clustered: bool,
    /// Addresses at which this node listens.
    pub listens: Vec<HostPort>,
    pub secrets: SecretsDirectory,
}

/// Secret of a link. It never shows in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl LinkSettings {
    /// Returns the name of this cluster at the other one.
    ///
    /// # Errors
    /// There is none, or it is not a name.
    pub fn own<'a>(&'a self, own: &'a Own) -> Result<&'a str, Problem> {
        let name = match (self.own_name.as_str(), own.is_clustered) {
            ("", true) => {
                let why = "a node of a cluster needs the name of the cluster for its links; write one, such as north";
                return Err(Problem::new("own_name", why));
            }
            ("", false) => &own.node,
            (name, _) => name,
        };
        let is_default = self.own_name.is_empty();
        check_name(name).map_err(|problem| {
            let hint = if is_default { ": it is the name of this node; set own_name" } else { "" };
            Problem::new("own_name", format!("{}{hint}", problem.why))
        })?;
        Ok(name)
    }

    /// Checks what can be checked without files and without other links.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), Problem> {
        check_name(&self.name)?;
        check_prefix(&self.prefix).map_err(|why| Problem::new("prefix", why))?;
        if self.takes_nothing() && !self.origins.is_empty() {
            return Err(Problem::new(
                "origins",
                "the link takes nothing; set topics and address, or remove it",
            ));
        }
        if !self.topics.is_empty() && self.addresses().next().is_none() {
            let why = "the other cluster has no address, so nothing can be taken; write HOST:PORT, or remove topics";
            return Err(Problem::new("address", why));
        }
        if self.origins.iter().any(|origin| origin == self.name) {
            let why =
                format!("\"{}\" is the other cluster, whose messages always come; leave it out", self.name);
            return Err(Problem::new("origins", why));
        }
        if self.secret_file.is_none() {
            return Err(Problem::new("secret_file", format!("a link needs a secret; {MAKE_SECRET}")));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(Problem::new(
                "tls_key",
                "tls_certificate and tls_key belong together; set both or none",
            ));
        }
        if !self.tls && (self.tls_ca.is_some() || self.tls_certificate.is_some()) {
            return Err(Problem::new("tls", "there are settings of TLS and it is off; set tls = true"));
        }
        if self.backoff_min > self.backoff_max {
            return Err(Problem::new("backoff_min", "it is longer than backoff_max"));
        }
        Ok(())
    }

    /// Addresses of the other cluster.
    pub fn addresses(&self) -> impl Iterator<Item = &HostPort> {
        self.address.iter().flat_map(|addresses| &addresses.0)
    }

    /// Returns whether this cluster takes nothing from the other one.
    pub fn takes_nothing(&self) -> bool {
        self.topics.is_empty() || self.addresses().next().is_none()
    }

    /// Clusters whose messages this cluster takes by this link: the other one first. None when it takes nothing.
    pub fn taken_origins(&self) -> impl Iterator<Item = &str> {
        let all = std::iter::once(self.name.as_str()).chain(self.origins.iter());
        all.filter(|_| !self.takes_nothing())
    }

    /// Reads the secret.
    ///
    /// # Errors
    /// The file cannot be read, or is too short.
    pub fn secret(&self) -> Result<Secret, Problem> {
        let problem = |why: String| Problem::new("secret_file", why);
        let path =
            self.secret_file.as_ref().ok_or_else(|| problem(format!("it is missing; {MAKE_SECRET}")))?;
        let bytes = settings::secret_bytes(path, SECRET_FILE_MAX)
            .map_err(|why| problem(format!("{why}; each node needs the file. {MAKE_SECRET}")))?;
        let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let secret = &bytes[..end];
        if secret.len() < SECRET_MIN {
            let size = secret.len();
            let why =
                format!("{}: {size} bytes, at least {SECRET_MIN} are needed; {MAKE_SECRET}", path.display());
            return Err(problem(why));
        }
        Ok(Secret(secret.into()))
    }

    /// Reads the files of TLS; `None` without TLS.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BridgeProblem> {
        if !self.tls {
            return Ok(None);
        }
        let files = TlsFiles {
            ca: self.tls_ca.as_deref(),
            certificate: self.tls_certificate.as_deref(),
            key: self.tls_key.as_deref(),
        };
        let config = files.config(OptionStyle::Bridge);
        config.map(Some).map_err(|(setting, why)| BridgeProblem { setting, why })
    }

    pub fn qos_max(&self) -> QoS {
        match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        }
    }

    /// Limits of the messages that wait here for the other cluster.
    pub fn queue(&self) -> LinkQueue {
        let age_max_ms = match self.queue_age_max.as_millis() {
            0 => u64::MAX,
            ms => u64::try_from(ms).unwrap_or(u64::MAX),
        };
        LinkQueue {
            messages_max: self.queue_messages_max,
            bytes_max: self.queue_bytes_max.bytes(),
            age_max_ms,
            drop_newest: self.queue_full == QueueFull::DropNewest,
        }
    }
}

/// Maximum size of the file with a secret.
const SECRET_FILE_MAX: u64 = 4096;

const MAKE_SECRET: &str = "make one with `head -c 32 /dev/urandom | base64 > link.secret`, and give it to the nodes of both clusters";
