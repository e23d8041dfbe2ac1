use std::fmt;

/// What a peer did that no peer does: its connection is to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// The first bytes are no handshake of this protocol.
    NotALink,
    /// They are TLS, which this node does not speak with others.
    SpeaksTls,
    /// They are a handshake of this protocol and no TLS, which this node speaks with others.
    SpeaksNoTls,
    /// A message of the handshake is longer than any can be, or its text is not UTF-8, or bytes are left over.
    BadHandshake { what: &'static str },
    /// The peer does not know the secret of the cluster.
    WrongSecret,
    /// The peer refused this node.
    RefusedBy { reason: Refusal },
    /// This node refuses the peer; the bytes that say so are in the output.
    Refuses { reason: Refusal },
    /// A record of a kind or lane that there is not.
    UnknownRecord { kind: u8, lane: u8 },
    /// A record whose length cannot be.
    BadLength { kind: u8, length: u32 },
    /// A frame on a channel that does not carry its lane, or before it was said where to go on.
    UnexpectedRecord { kind: u8, lane: u8 },
    /// A frame with another number than the next one.
    OutOfSequence { lane: u8, expected: u32, found: u32 },
    /// More than was granted.
    CreditExceeded { lane: u8, limit: u64 },
    /// An acknowledgement of what was never sent.
    AcknowledgedUnsent { lane: u8, sent: u64, found: u64 },
    /// The peer goes on where this node has never been, or no longer is.
    CannotResume { lane: u8, from: u64, to: u64, found: u64 },
}

/// Why two nodes do not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No protocol version that both know.
    Version,
    /// They belong to different clusters.
    Cluster,
    /// The proof does not fit the cluster's secret.
    Secret,
    /// The name is this node's own.
    OwnName,
    /// The number of a channel is beyond their count.
    Channel,
    /// The name is none of those that the node knows.
    Unknown,
    /// Another process that goes by this name is connected, and alive.
    Taken,
    /// Of the two it is the other that dials.
    Direction,
    /// Who has dialed finds another node there.
    Elsewhere,
    /// Who has dialed wants nothing of it any more, or dials again at once: nobody has to do anything.
    Withdrawn,
    /// Who has dialed speaks TLS: what it gets is no TLS, and it sees of what it is the beginning ([`is_handshake`](crate::is_handshake)).
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

/// What to do when one of two nodes has TLS.
const TLS_ON_ONE: &str =
    "set cluster.tls_certificate, cluster.tls_key and cluster.tls_ca on both, or on neither";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "the two know no version of the protocol in common: upgrade the older node",
            Self::Cluster => "the two belong to different clusters: check cluster.id on both, and the addresses",
            Self::Secret => "the cluster's secret is not the same on both: check the secret's file",
            Self::OwnName => "both have the same name: give each node a name of its own",
            Self::Channel => "the number of the connection is beyond their count",
            Self::Unknown => "the name is none of the nodes that it was told of: add it to the list of peers there",
            Self::Taken => {
                "another process with this name is connected and alive: give each node a name of its own, or stop one of the two; after a \
                 restart this passes within seconds"
            },
            Self::Direction => "of these two nodes the other one dials: their names say so, and both should know",
            Self::Elsewhere => "another node was to be where it has dialed: check the addresses of both",
            Self::Withdrawn => "it has given up this connection",
            Self::NoTls => TLS_ON_ONE,
        })
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALink => f.write_str("what is there is no Meridian node's cluster port: check the address and its port"),
            Self::SpeaksTls => write!(f, "the other side speaks with TLS, and this node without: {TLS_ON_ONE}"),
            Self::SpeaksNoTls => write!(f, "the other side speaks without TLS, and this node with: {TLS_ON_ONE}"),
            Self::BadHandshake { what } => write!(f, "a handshake with {what}"),
            Self::WrongSecret => f.write_str("the peer does not know the cluster's secret: check that the secret's file is the same on both"),
            Self::RefusedBy { reason } => write!(f, "the peer refuses this node: {reason}"),
            Self::Refuses { reason } => write!(f, "this node refuses the peer: {reason}"),
            Self::UnknownRecord { kind, lane } => {
                write!(f, "a record of the unknown kind {kind} or lane {lane}")
            }
            Self::BadLength { kind, length } => write!(f, "a record of kind {kind} with {length} bytes"),
            Self::UnexpectedRecord { kind, lane } => {
                write!(f, "a record of kind {kind} on lane {lane}, where none belongs")
            }
            Self::OutOfSequence { lane, expected, found } => {
                write!(f, "frame {found} on lane {lane} where {expected} is next")
            }
            Self::CreditExceeded { lane, limit } => {
                write!(f, "a frame on lane {lane} beyond the granted {limit} bytes")
            }
            Self::AcknowledgedUnsent { lane, sent, found } => {
                write!(f, "an acknowledgement of {found} on lane {lane}, of which {sent} were sent")
            }
            Self::CannotResume { lane, from, to, found } => {
                write!(f, "lane {lane} cannot go on at {found}: this node has {from} to {to}")
            }
        }
    }
}

impl std::error::Error for PeerError {}

/// Why a frame was not taken for a lane. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its class has no room: so many bytes wait.
    Full { bytes: u64 },
    /// It is longer than frames may be.
    TooLarge { length: usize },
    /// Lanes that do not outlive a connection take nothing while there is none.
    Down,
}
