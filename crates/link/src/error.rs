use std::fmt;

/// Protocol violation or refusal of a peer: its connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The first bytes are no handshake of this protocol.
    NotALink,
    /// The peer speaks TLS, and this node does not use TLS between nodes.
    SpeaksTls,
    /// The peer sends a handshake without TLS, and this node uses TLS between nodes.
    SpeaksNoTls,
    /// A handshake message is longer than the maximum, its text is not UTF-8, or bytes are left over.
    BadHandshake { what: &'static str },
    /// The peer does not know the secret of the cluster.
    WrongSecret,
    /// The peer refused this node.
    RefusedBy { reason: Refusal },
    /// This node refuses the peer; the bytes that say so are in the output.
    Refuses { reason: Refusal },
    /// A record with an unknown kind or lane.
    UnknownRecord { kind: u8, lane: u8 },
    /// A record with an invalid length.
    BadLength { kind: u8, length: u32 },
    /// A frame on a channel that does not carry its lane, or before the resume points.
    UnexpectedRecord { kind: u8, lane: u8 },
    /// A frame whose number is not the next one.
    OutOfSequence { lane: u8, expected: u32, found: u32 },
    /// A frame beyond the granted credit.
    CreditExceeded { lane: u8, limit: u64 },
    /// An acknowledgement of a frame that was never sent.
    AcknowledgedUnsent { lane: u8, sent: u64, found: u64 },
    /// The peer resumes at a number that this node has not reached or no longer holds.
    CannotResume { lane: u8, from: u64, to: u64, found: u64 },
}

/// Reason why two nodes do not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The two have no protocol version in common.
    Version,
    /// The two belong to different clusters.
    Cluster,
    /// The proof does not match the cluster's secret.
    Secret,
    /// The name is this node's own.
    OwnName,
    /// The channel number is not below the number of channels.
    Channel,
    /// The name is not among the peers of the node.
    Unknown,
    /// Another process with this name is connected and alive.
    Taken,
    /// The other one of the two nodes must dial.
    Direction,
    /// The dialer finds another node at the address.
    Elsewhere,
    /// The dialer gives the connection up, or dials again at once. No action is needed.
    Withdrawn,
    /// The dialer speaks TLS and receives bytes without TLS. It recognizes the beginning of a handshake in them
    /// ([`is_handshake`](crate::is_handshake)).
    NoTls,
}

impl Refusal {
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Cluster => 2,
            Self::Secret => 3,
            Self::OwnName => 4,
            Self::Channel => 5,
            Self::Unknown => 6,
            Self::Taken => 7,
            Self::Direction => 8,
            Self::Elsewhere => 9,
            Self::Withdrawn => 10,
            Self::NoTls => 11,
        }
    }

    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Version,
            Self::Cluster,
            Self::Secret,
            Self::OwnName,
            Self::Channel,
            Self::Unknown,
            Self::Taken,
            Self::Direction,
            Self::Elsewhere,
            Self::Withdrawn,
            Self::NoTls,
        ];
        all.into_iter().find(|refusal| refusal.byte() == byte)
    }
}

/// Advice for two nodes when only one has TLS.
const TLS_ON_ONE: &str =
    "set cluster.tls_certificate, cluster.tls_key and cluster.tls_ca on both, or on neither";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "the two nodes have no protocol version in common: upgrade the older node",
            Self::Cluster => "the two belong to different clusters: check cluster.id on both, and the addresses",
            Self::Secret => "the cluster's secret is not the same on both: check the secret's file",
            Self::OwnName => "both nodes have the same name: give each node a name of its own",
            Self::Channel => "the channel number is not below the number of channels",
            Self::Unknown => "the refusing node has no peer with this name",
            Self::Taken => {
                "another process with this name is connected and alive: give each node a name of its own, or stop one of the two; after a \
                 restart this passes within seconds"
            },
            Self::Direction => "the other one of these two nodes must dial, as their names determine",
            Self::Elsewhere => "another node answers at the dialed address: check the addresses of both",
            Self::Withdrawn => "the dialer has given up this connection",
            Self::NoTls => TLS_ON_ONE,
        })
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALink => f.write_str("there is no Meridian node's cluster port there: check the address and its port"),
            Self::SpeaksTls => write!(f, "the other node uses TLS between nodes, and this node does not: {TLS_ON_ONE}"),
            Self::SpeaksNoTls => write!(f, "the other node uses no TLS between nodes, and this node does: {TLS_ON_ONE}"),
            Self::BadHandshake { what } => write!(f, "invalid handshake: {what}"),
            Self::WrongSecret => f.write_str("the peer does not know the cluster's secret: check that the secret's file is the same on both"),
            Self::RefusedBy { reason } => write!(f, "the peer refuses this node: {reason}"),
            Self::Refuses { reason } => write!(f, "this node refuses the peer: {reason}"),
            Self::UnknownRecord { kind, lane } => {
                write!(f, "record with unknown kind {kind} or lane {lane}")
            }
            Self::BadLength { kind, length } => write!(f, "record of kind {kind} with invalid length {length}"),
            Self::UnexpectedRecord { kind, lane } => {
                write!(f, "unexpected record of kind {kind} on lane {lane}")
            }
            Self::OutOfSequence { lane, expected, found } => {
                write!(f, "frame {found} on lane {lane}, expected {expected}")
            }
            Self::CreditExceeded { lane, limit } => {
                write!(f, "frame on lane {lane} beyond the granted {limit} bytes")
            }
            Self::AcknowledgedUnsent { lane, sent, found } => {
                write!(f, "acknowledgement of {found} on lane {lane}, but only {sent} were sent")
            }
            Self::CannotResume { lane, from, to, found } => {
                write!(f, "lane {lane} cannot resume at {found}: this node has {from} to {to}")
            }
        }
    }
}

impl std::error::Error for PeerError {}

/// Reason why a frame was not accepted for a lane. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The class has no room: `bytes` bytes wait already.
    Full { bytes: u64 },
    /// The frame is longer than [`FRAME_MAX`](crate::FRAME_MAX).
    TooLarge { length: usize },
    /// The lane does not outlive a connection, and there is none.
    Down,
    /// The peer's version has no such lane, or is not known yet.
    Unsupported,
}
