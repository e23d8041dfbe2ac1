//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

mutation::mutations! {
    pub(crate) fn mutated;

    /// A publisher is answered before the other node has its message.
    ConfirmEarly,
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
    /// A lease is counted from the time at which the grant arrives.
    CountFromReceipt,
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
    /// A core grants leases to nodes that do not know the routes of shards that it knows.
    GrantWithoutShards,
    /// A core that restarts grants leases although other nodes know more routes of shards.
    GrantBeforeShards,
    /// Replicas of shards are placed on cores that are dead.
    PlaceOnDead,
    /// A shard is moved while another one is changing.
    MoveManyShards,
    /// A snapshot of the meta group lacks the placement of shards.
    ForgetPlacement,
    /// A core leads shards of clients whose nodes it does not reach, although another core reaches all nodes.
    LeadUnreached,
}
