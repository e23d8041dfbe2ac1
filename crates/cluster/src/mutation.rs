//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A publisher is answered before the other node has its message.
    ConfirmEarly = 1,
    /// A SUBACK leaves before cores have reported that others know the subscription.
    SubackEarly,
    /// A node acknowledges without a lease.
    AlwaysFresh,
    /// A peer that has restarted is not asked for its routes again.
    ForgetHello,
    /// A node forwards a message of another node to further nodes.
    Relay,
    /// A message for one member of a group is sent to its node twice.
    GiveTwice,
    /// Nodes that meet do not exchange their retained messages.
    ForgetCopies,
    /// A peer gets brief reports even if it cannot read them.
    AlwaysBrief,
    /// A core that restarts does not wait until its earlier grants expire.
    ForgetGrants,
    /// A core that restarts grants leases before it knows the routes that it has confirmed to other nodes.
    GrantUninformed,
    /// A core grants leases to nodes that it knows to be suspected.
    GrantSuspects,
    /// A node is declared dead as soon as it is suspected, even if grants to it may hold.
    DeclareDeadAtOnce,
    /// The routes of a suspect node are dropped before the meta group has declared it dead.
    PurgeSuspects,
    /// A node that learns that it was declared dead keeps its clients.
    KeepClients,
    /// A node that learns that it was declared dead does not start a new incarnation.
    StayDead,
    /// A core founds a cluster although others that it knows of may do so, too.
    FoundAlone,
    /// Removed cores count for a majority.
    CountRemoved,
    /// Several cores are added and removed at a time.
    ManyCoresAtOnce,
    /// An incarnation joins that is older than one that has joined before.
    OldIncarnationsJoin,
    /// Messages for a later incarnation of a peer than that of the link are lost when the link's incarnation is over.
    SendToDead,
    /// A feature is adopted that some cores lack.
    AdoptUnread,
    /// The routes of a restarted node's sessions are dropped before the node has reported all of them.
    ForgetEarly,
    /// Messages that a peer had no room for are not copied to it again.
    IgnoreCopyRequests,
    /// No core relays between nodes that do not reach each other.
    ForgetRelays,
    /// The nodes' positions in an incarnation of a removed node are kept for its next one, which has a smaller number.
    RememberIncarnations,
    /// Changes of a core that is down are requested from one other core only.
    AskOneCore,
    /// The routes of an unreachable replicant are passed on only by the core that it was attached to.
    ForgetAway,
    /// A replicant stays attached to a core that the others have declared dead.
    StayAttached,
    /// A core that restarts waits no longer for reachable nodes than for unreachable ones.
    GrantInTime,
    /// Retained messages of a dead node that only some others received do not reach the rest.
    ForgetLegacy,
    /// Dead cores keep their votes when cores are removed.
    CountOnDead,
    /// All clocks are assumed to run at the same speed.
    NoMargin,
    /// A core that was suspected and leads stays suspected as long as it leads.
    StaySuspect,
    /// A node that is cut off acknowledges messages that no other node has.
    SettleCutOff,
    /// Filters of other nodes are not routed once `routing.shapes_max` is reached.
    RefuseShapes,
    /// A publisher is answered although a message for a durable session is lost with its node.
    SettleForgotten,
    /// A core forgets its grants to a node as soon as the node is no member.
    ForgetRemoved,
    /// Messages of a node's previous incarnation are confirmed to the next one.
    ConfirmToNext,
}

impl Mutation {
    /// All faults.
    pub const ALL: [Self; 38] = [
        Self::ConfirmEarly,
        Self::SubackEarly,
        Self::AlwaysFresh,
        Self::ForgetHello,
        Self::Relay,
        Self::GiveTwice,
        Self::ForgetCopies,
        Self::AlwaysBrief,
        Self::ForgetGrants,
        Self::GrantUninformed,
        Self::GrantSuspects,
        Self::DeclareDeadAtOnce,
        Self::PurgeSuspects,
        Self::KeepClients,
        Self::StayDead,
        Self::FoundAlone,
        Self::CountRemoved,
        Self::ManyCoresAtOnce,
        Self::OldIncarnationsJoin,
        Self::SendToDead,
        Self::AdoptUnread,
        Self::ForgetEarly,
        Self::IgnoreCopyRequests,
        Self::ForgetRelays,
        Self::RememberIncarnations,
        Self::AskOneCore,
        Self::ForgetAway,
        Self::StayAttached,
        Self::GrantInTime,
        Self::ForgetLegacy,
        Self::CountOnDead,
        Self::NoMargin,
        Self::StaySuspect,
        Self::SettleCutOff,
        Self::RefuseShapes,
        Self::SettleForgotten,
        Self::ForgetRemoved,
        Self::ConfirmToNext,
    ];
}

/// Fault that is active, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// Number of times that the code of each fault was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Activates a fault for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// Returns how often the process has reached the code of this fault.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Returns whether this fault is active.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Returns false: product builds have no faults.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
