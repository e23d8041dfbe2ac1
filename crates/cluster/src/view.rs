//! What an operator sees of a node's part in the cluster.

use link::{Class, ClassCounters};

use crate::config::{NodeInfo, Role};
use crate::meta::State;
use crate::router::Counters;

/// As of one moment. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct View {
    pub own: NodeInfo,
    pub incarnation: u64,
    /// The core that this replicant hears from.
    pub attached: Option<Box<str>>,
    /// Whether a majority of cores lets this node acknowledge messages of QoS 1 and 2, or nobody has to.
    pub is_fresh: bool,
    /// For how long that majority lets it, when none says it again; `None`: this node needs nobody's word.
    pub fresh_for: Option<u64>,
    /// Cores by whose word this node may acknowledge, this one aside, and for how long; nodes that may by this core's.
    pub granted_by: Vec<(Box<str>, u64)>,
    pub grants: Vec<(Box<str>, u64)>,
    /// By how much this node's clock is ahead of those of most nodes, milliseconds; `None` while it agrees with them.
    pub clock_off: Option<i64>,
    pub subacks_waiting: SubacksWaiting,
    pub counters: Counters,
    /// Filters and shared groups of other nodes that this node's index has no room for: it acknowledges nothing while there are any.
    pub unrouted: u64,
    /// Connections of others that were closed because too many handshakes went on.
    pub unauthenticated_closed: u64,
    /// This node first, then the others by name.
    pub routes: Vec<Routes>,
    /// By name.
    pub links: Vec<Link>,
    /// Who was met or sought and is not joined, by address.
    pub not_joined: Vec<NotJoined>,
    /// Where the cores agree on the members.
    pub membership: Option<Membership>,
}

/// Number of SUBACKs that wait until others know of the subscription, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubacksWaiting {
    pub core: u64,
    pub region: u64,
    pub cluster: u64,
}

/// Somebody who was met or sought and is not joined.
#[derive(Clone, Debug)]
pub struct NotJoined {
    /// Where it is dialed, or the host that it comes from.
    pub address: Box<str>,
    /// As it says, proved or not.
    pub name: Option<Box<str>>,
    /// What was wrong last, with what to do.
    pub reason: Box<str>,
    /// How long ago that was, and how often something was.
    pub since: u64,
    pub count: u64,
}

/// What the cores agree on, as far as this node knows.
#[derive(Clone, Debug)]
pub struct Membership {
    /// No majority of cores was heard lately: all of it is as it was last known.
    pub is_stale: bool,
    /// The number of the cluster; 0: there is none yet.
    pub founded: u128,
    /// Of the last change that this node knows of.
    pub index: u64,
    /// Why this node does not take part yet.
    pub waits_for: Option<String>,
    /// By name, this node among them when it belongs to the cluster.
    pub members: Vec<MemberView>,
    /// On a core.
    pub replica: Option<Replica>,
}

#[derive(Clone, Debug)]
pub struct MemberView {
    pub info: NodeInfo,
    pub incarnation: u64,
    pub state: State,
    /// It wants to be a member no more.
    pub leaves: bool,
    /// As far as this core knows: whether it has a vote, and whether it leads.
    pub votes: bool,
    pub leads: bool,
}

/// This core's replica of the meta group.
#[derive(Clone, Debug)]
pub struct Replica {
    pub part: consensus::Role,
    pub term: u64,
    /// The node that leads.
    pub leader: Option<Box<str>>,
    /// The core that hands on what the two say to each other, where they are not linked.
    pub leader_via: Option<Box<str>>,
    /// Entries in its log, and those that its state has.
    pub last: u64,
    pub applied: u64,
    /// A majority of the voters has been heard lately: of a leader that they answer, of any other that it has one.
    pub has_quorum: bool,
    pub voters: u64,
    pub learners: u64,
    /// Why it has stopped.
    pub failure: Option<String>,
}

/// The routes of one node, as far as this one knows them.
#[derive(Clone, Debug)]
pub struct Routes {
    pub node: Box<str>,
    pub role: Role,
    pub incarnation: u64,
    /// Changes of that life that were heard of.
    pub position: u64,
    pub filters: u64,
    /// Deletions that are remembered.
    pub tombstones: u64,
    pub bytes: u64,
    /// A hash over all filters and what is wanted of them: two nodes that know the same have the same.
    pub digest: u64,
    /// Nobody hears of it at present.
    pub is_suspect: bool,
}

/// The link to one other node.
#[derive(Clone, Debug)]
pub struct Link {
    pub peer: NodeInfo,
    pub is_up: bool,
    /// The cores agree that the peer is dead, and nothing is heard of it.
    pub is_dead: bool,
    /// For how long it has been so.
    pub since: u64,
    pub is_dialed: bool,
    /// Connections that carry frames, and how many there are to be.
    pub connections: (u64, u64),
    pub version: u16,
    pub features: u64,
    /// Microseconds; `None` while the link is not up.
    pub round_trip: Option<u64>,
    /// By how much the peer's clock is ahead of this node's, milliseconds, as it said last.
    pub clock_ahead: Option<i64>,
    /// That is too much, and not because this node's clock is wrong.
    pub clock_differs: bool,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Connections that were made, silences that ended one, and times that the peer had forgotten the link.
    pub attached: u64,
    pub silent: u64,
    pub restarts: u64,
    /// Bytes that came and are not dealt with.
    pub unconsumed: u64,
    /// Messages whose publishers wait for the peer.
    pub unconfirmed: u64,
    pub classes: Vec<ClassView>,
    /// What went wrong last, and how long ago.
    pub last_error: Option<(u64, Box<str>)>,
}

/// One class of lanes of a link.
#[derive(Clone, Debug)]
pub struct ClassView {
    pub class: Class,
    pub counters: ClassCounters,
    pub waiting_bytes: u64,
    pub waiting_frames: u64,
    pub oldest: u64,
}
