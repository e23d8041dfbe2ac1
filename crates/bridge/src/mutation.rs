//! Faults put into the product on purpose: the simulation must notice each of them.

mutation::mutations! {
    pub(crate) fn mutated;

    /// A PUBREL of a message whose PUBLISH was on an earlier connection is not passed on.
    ForgetPubRel,
    /// Each connection uses other Packet Identifiers towards the remote broker.
    NewIdentifiers,
    /// A message is acknowledged when it was forwarded, not when the other broker has acknowledged it.
    AcknowledgeEarly,
    /// A refusal that may pass is passed on to the sender, which ends the message.
    EndRefused,
    /// The remote session is discarded at each connection.
    CleanStart,
    /// Identifiers that an earlier session left open are not released.
    SkipSweep,
    /// The local broker is not limited to what the remote broker accepts.
    IgnoreReceiveMaximum,
    /// Another broker at another address is taken for the same one.
    IgnoreAddress,
    /// Messages beyond the Receive Maximum of the local broker are not held.
    HoldNothing,
    /// Messages of every origin are taken from the remote broker.
    IgnoreOrigin,
    /// A new relay takes the subscriptions of the remote session for those that are wanted.
    SkipList,
    /// Subscriptions that the remote session has and that are not wanted remain.
    KeepStale,
    /// A subscription without an answer at the end of a connection counts as made.
    TrustUnanswered,
    /// A filter that changes while its request has no answer gets no second request.
    ForgetChange,
    /// Subscriptions that are not wanted end before the remote broker has listed all.
    EndDuringList,
    /// The subscriptions of a remote session that was lost are not made again.
    IgnoreLostSession,
}
