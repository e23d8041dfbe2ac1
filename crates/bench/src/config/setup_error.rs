//! Reasons why a run could not start, and their texts.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Reason why a run could not start.
#[derive(Debug)]
pub enum SetupError {
    NotLoopback(SocketAddr),
    NoAddress(String),
    UnequalPairs {
        pubs: usize,
        subs: usize,
    },
    NoSuchQos(u8),
    TooManyFiles {
        needed: u64,
        limit: u64,
    },
    TopicTooLong {
        bytes: usize,
    },
    NoMessageHeader {
        size: usize,
        header: usize,
    },
    TooManyStreams {
        streams: usize,
        limit: usize,
    },
    NoPrefix(String),
    NotTwoEnds(usize),
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    NoSuchProcess(u32),
    NoFigures {
        url: String,
        why: String,
    },
    NoListener {
        address: SocketAddr,
        error: std::io::Error,
    },
    /// Clients that depend on each other cannot be divided among processes.
    Indivisible,
    /// Another process of this run could not start. Holds its reason.
    Elsewhere(String),
    Tls(tls::TlsError),
    /// A topic, User Name or payload with unknown placeholders.
    Template(String),
    /// Properties or a Will that are not valid in a packet.
    Properties(String),
    /// An agent that is invalid or not reachable.
    Agent(String),
    /// An invalid scenario.
    Scenario(String),
}

impl SetupError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> SetupError {
        SetupError::File {
            path: path.to_owned(),
            error: std::io::Error::new(error.kind(), error.to_string()),
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SetupError::NotLoopback(a) => write!(f, "{a} is not a loopback address (see --allow-remote)"),
            SetupError::NoAddress(host) => {
                write!(f, "no address for {host}: check the name, and that it resolves here")
            }
            SetupError::UnequalPairs { pubs, subs } => {
                write!(f, "one-to-one needs as many subscribers as publishers, not {pubs} and {subs}")
            }
            SetupError::NoSuchQos(qos) => write!(f, "QoS is 0, 1 or 2, not {qos}"),
            SetupError::TooManyFiles { needed, limit } => {
                write!(
                    f,
                    "{needed} descriptors needed, the limit is {limit}: raise it (`ulimit -Hn {needed}` as root, \
                     LimitNOFILE={needed} in a systemd unit) or ask for fewer clients"
                )
            }
            SetupError::TopicTooLong { bytes } => {
                write!(f, "a topic of {bytes} bytes; MQTT's maximum is 65535")
            }
            SetupError::TooManyStreams { streams, limit } => write!(
                f,
                "{streams} pairs of a publisher's topic and a subscriber, the limit is {limit}: \
                 ask for fewer clients, or for --topology dealt"
            ),
            SetupError::NotTwoEnds(hosts) => {
                write!(f, "expected one host or two, found {hosts}: the publisher's and the subscriber's")
            }
            SetupError::NoPrefix(prefix) => {
                write!(
                    f,
                    "`{prefix}` is not a prefix of a topic: --prefix is 1 to 1000 characters \
                         without + and #"
                )
            }
            SetupError::File { path, error } => write!(f, "{}: {error}", path.display()),
            SetupError::NoSuchProcess(pid) => {
                write!(f, "there is no process {pid} on this machine: check --broker-pid")
            }
            SetupError::NoFigures { url, why } => write!(f, "no figures from {url}: {why}"),
            SetupError::NoListener { address, error } => {
                write!(
                    f,
                    "figures cannot be served on {address}: {error}; use another address for --prometheus"
                )
            }
            SetupError::Indivisible => f.write_str(
                "with pubsub, several processes need %i in the topic: each process can check \
                     only messages of its own clients",
            ),
            SetupError::Elsewhere(text) => f.write_str(text),
            SetupError::Tls(error) => write!(f, "{error}"),
            SetupError::Template(text)
            | SetupError::Agent(text)
            | SetupError::Scenario(text)
            | SetupError::Properties(text) => f.write_str(text),
            SetupError::NoMessageHeader { size, header } => {
                write!(
                    f,
                    "a payload of {size} bytes has no room for {header} bytes of headers: use -s {header} or more"
                )
            }
        }
    }
}

impl std::error::Error for SetupError {}
