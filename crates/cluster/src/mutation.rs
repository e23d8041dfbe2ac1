//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A publisher is answered before the other node has its message.
    ConfirmEarly = 1,
    /// SUBACK leaves before cores have said that others know.
    SubackEarly,
    /// A node acknowledges without a lease.
    AlwaysFresh,
    /// A peer that has begun anew is not asked for its routes again.
    ForgetHello,
    /// A message of another node goes on to further ones.
    Relay,
    /// What is for one member of a group goes to its node twice.
    GiveTwice,
    /// Nodes that meet do not tell each other what they have retained.
    ForgetCopies,
    /// A peer is told briefly, whether it can read that or not.
    AlwaysBrief,
    /// A core that begins anew does not wait for what it had granted.
    ForgetGrants,
    /// A core that begins anew grants before it has heard what others were told that it knows.
    GrantUninformed,
    /// A core lets acknowledge whom it knows to be suspected.
    GrantSuspects,
    /// A node is declared dead as soon as it is suspected, whatever it was granted.
    DeclareDeadAtOnce,
    /// What the clients of a node that is suspected wanted goes before its death is agreed upon.
    PurgeSuspects,
    /// A node that learns that it was declared dead keeps its clients.
    KeepClients,
    /// A node that learns that it was declared dead does not begin anew.
    StayDead,
    /// A core founds a cluster although others that it was told of may do so, too.
    FoundAlone,
    /// Cores that were removed count when there has to be a majority.
    CountRemoved,
    /// Cores come and go several at a time.
    ManyCoresAtOnce,
    /// A life joins that is older than one that has joined before.
    OldIncarnationsJoin,
    /// What is for a later life of a peer than its link is about is lost with that.
    SendToDead,
    /// The log is opened to what some cores do not understand.
    AdoptUnread,
    /// What the sessions of a node want that has begun anew is forgotten before it has told all of it.
    ForgetEarly,
    /// What a peer had no room for is not copied to it again.
    IgnoreCopyRequests,
    /// Nobody speaks for nodes that do not reach each other.
    ForgetRelays,
    /// What nodes know of a life of a node that was removed is taken for what they know of the next one, which has a smaller number.
    RememberIncarnations,
    /// While a core is away, what it said is asked of one other only.
    AskOneCore,
    /// What is known of a replicant that is away is told by the core that it was attached to only.
    ForgetAway,
    /// A replicant hears from a core that is dead for the others.
    StayAttached,
    /// A core that begins anew waits no longer for nodes that are there than for those that are not.
    GrantInTime,
    /// What a dead node had retained and told some others only, the rest do not hear.
    ForgetLegacy,
    /// Where cores go, those that are dead keep their votes.
    CountOnDead,
    /// All clocks are taken to run at the same speed.
    NoMargin,
    /// A core that was suspected and leads is suspected as long as it does.
    StaySuspect,
    /// A node that is cut off acknowledges what nobody but itself has.
    SettleCutOff,
    /// What another node wants is not routed where `routing.shapes_max` is reached.
    RefuseShapes,
    /// A publisher is answered although what a durable session was to have is lost with its node.
    SettleForgotten,
    /// What a core has granted to a node is forgotten as soon as the node is no member.
    ForgetRemoved,
    /// What the previous incarnation of a node sent is confirmed to the next.
    ConfirmToNext,
}

impl Mutation {
    /// All of them.
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

/// The one that is put in, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// How often the place of each was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Puts one in, for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// How often the process has reached the place where this one can be put in.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Whether this one is put in.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Never in a product build.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
