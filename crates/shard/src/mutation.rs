//! Mutations: faults that are built into the product on purpose. The simulator must notice each of them (`cargo
//! xtask sim --mutations`).

mutation::mutations! {
    pub fn mutated;

    /// A session is resumed although a new one was requested.
    IgnoreCleanStart,
    /// Sessions end too early.
    EarlyExpiry,
    /// The record of received QoS 2 messages is lost.
    ForgetIdentities,
    /// Deliveries in flight at the loss of a connection are not sent first.
    SkipPinned,
    /// Checkpoints have no retained messages.
    DropRetained,
    /// A replica confirms a received state whose messages it does not have.
    DropBodies,
    /// A replica reads messages that only other nodes have.
    ReadEarly,
    /// A leader acknowledges messages that no other replica has.
    AcknowledgeAlone,
    /// A replica serves clients when it leads, although its state may lack what was committed before.
    SkipBarrier,
    /// Messages that the disk of the leader cannot return are skipped, although other replicas have them.
    SkipUnreadable,
    /// Retained messages are read from a replica that may lack the last ones.
    ReadStale,
    /// The next leader of a shard does not get the requests that are not answered.
    ForgetUnanswered,
    /// The next leader of a shard does not learn of the connections that it has to serve.
    ForgetConnections,
    /// The leader of a shard does not look who owns an ephemeral session.
    ForgetOwners,
    /// A Claim does not begin another epoch of its session.
    KeepEpoch,
    /// A Release of another connection ends the session of its present owner.
    ReleaseOther,
    /// The earlier owner of a Client Identifier is not closed when another node claims it.
    SkipRevoke,
    /// The Session Expiry Interval of DISCONNECT is ignored.
    IgnoreLastExpiry,
    /// A client is served as soon as it has CONNACK, although its Claim is not answered.
    ServeEarly,
    /// A node without a lease goes on with its clients although it should leave them alone.
    ServeFrozen,
    /// A reactor reads the clock at the beginning of a turn only.
    KeepTurnTime,
    /// A QoS 2 exchange ends although shards may still know its message.
    ReleaseKnown,
    /// Workers go on in an incarnation of their node that is over for the others.
    KeepIncarnation,
    /// A node without a replica of a shard skips a change of its routes when the shard has another leader.
    SkipRouteChanges,
    /// The time of a shard follows the clock of its leader.
    FollowOwnClock,
    /// Shared groups do not know which shards have durable sessions.
    ForgetGroups,
    /// Clients that were connected when the process crashed have no Will.
    ForgetWills,
    /// The Wills of ephemeral sessions are dropped when their node is over.
    ForgetEphemeralWills,
    /// A published Will is due again after a restart.
    RepeatWills,
    /// Messages read from the disk are confused with each other.
    WrongBody,
    /// A client is served although another connection has its Client Identifier.
    NoTakeover,
    /// A message is acknowledged before it is durable.
    AcknowledgeEarly,
    /// Packet Identifiers are reused too early.
    ReusePacketId,
    /// A start skips the last durable batch.
    ForgetLastBatch,
    /// A batch is applied twice.
    ApplyTwice,
    /// A node serves clients before all of its workers have put the subscriptions of their sessions into the index.
    ServeBeforeRecall,
    /// The session's queue is never read again after a failed read.
    StandStill,
    /// The needed messages of a segment to be freed are not kept, except the first.
    KeepFirst,
    /// A Will is published although its client has lost the right to publish it.
    PublishDeniedWills,
    /// Clients are closed for silence before their received bytes are read.
    JudgeUnread,
    /// The retained messages of a subscription do not continue after a reconnect.
    ForgetWalks,
    /// A release of a Packet Identifier that comes again flips its toggle again.
    FlipAgain,
    /// An acknowledgement that comes again is applied to the delivery that has the Packet Identifier now.
    FinishAgain,
    /// A Claim that comes again takes the session from its present owner.
    TakeBack,
    /// A publish that comes again is queued again.
    ForgetProducers,
    /// A replica that begins with a checkpoint does not know which commands of connections were applied.
    ForgetNumbers,
}
