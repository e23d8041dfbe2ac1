//! Destination of a Topic Filter, in the node's index and in a shard's own.

use mqtt::{QoS, RetainHandling, SubscriptionOptions};

use crate::peers::{NodeIndex, Wants};

/// One entry of a routing index.
///
/// **Invariant:** 16 bytes. A node with ten million filters holds as many of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub slot: u32,
    pub generation: u32,
    /// Subscription Identifier; 0 when there is none. In [`RouteKind::ShardGroups`]: approximate number of groups, 0
    /// for few.
    pub subscription_id: u32,
    /// Index of a worker or a shard, depending on `kind`.
    pub index: u16,
    pub options: Options,
    pub kind: RouteKind,
}

const _: () = assert!(size_of::<Route>() == 16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RouteKind {
    /// An action has selected the topic: its messages get their [`Origin`](crate::origin::Origin). It leads nowhere,
    /// and is the first of the routes of a topic.
    Origin,
    /// A connection of an ephemeral session on worker `index`: it receives all messages.
    Connection,
    /// The connection of a durable session on worker `index`: it receives only messages that are delivered at QoS 0,
    /// which no store keeps.
    ConnectionQos0,
    /// The same, of a session of a linked cluster.
    ConnectionLink,
    /// Shard `index` has durable sessions that want the filter at QoS 1 or 2. `slot` is 1 for those of linked clusters,
    /// see [`interest`](crate::interest).
    Shard,
    /// Shard `index` has shared groups of the filter. In `options`: whether all of them have one member over all linked
    /// clusters.
    ShardGroups,
    /// Node `index` of the cluster wants the filter; the byte of `options` is its [`Wants`].
    Node,
    /// Durable session `slot`, in a shard's own index.
    Session,
    /// Shared group `slot`, in a shard's own index. In `options`: whether it has one member over all linked clusters.
    Group,
}

impl Route {
    /// Makes the entry of a filter whose messages get their origin.
    pub(crate) fn of_origin() -> Self {
        let (options, kind) = (Options::default(), RouteKind::Origin);
        Self { slot: 0, generation: 0, subscription_id: 0, index: 0, options, kind }
    }

    /// Makes the one entry of a node for a filter.
    pub(crate) fn of_node(node: NodeIndex, wants: Wants) -> Self {
        let options = Options::from_byte(wants.bits());
        Self { slot: 0, generation: 0, subscription_id: 0, index: node.0, options, kind: RouteKind::Node }
    }

    /// Messages that the node wants.
    pub(crate) fn wants(&self) -> Wants {
        Wants::from_bits(self.options.byte())
    }
}

/// Subscription Options in the one byte of the SUBSCRIBE packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options(u8);

/// A bit that SUBSCRIBE leaves at 0 [MQTT-3.8.3-5]; shards know it too.
const BEHIND_MOUNTPOINT: u8 = shard::BEHIND_MOUNTPOINT;

/// The bit of No Local, which a shared subscription cannot have [MQTT-3.8.3-4].
const LINKED_GROUPS: u8 = 4;

impl Options {
    /// Decodes the output of [`Self::byte`].
    pub(crate) fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    pub(crate) fn byte(self) -> u8 {
        self.0
    }

    pub fn qos(self) -> QoS {
        QoS::from_bits(self.0 & 3).unwrap_or(QoS::ExactlyOnce)
    }

    pub fn no_local(self) -> bool {
        self.0 & 4 != 0
    }

    pub fn retain_as_published(self) -> bool {
        self.0 & 8 != 0
    }

    pub fn retain_handling(self) -> RetainHandling {
        match self.0 >> 4 & 3 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            _ => RetainHandling::DoNotSend,
        }
    }

    /// Returns whether the subscription is `#` behind a mountpoint. Its filter also matches the topic that the
    /// mountpoint is below, which is not the client's.
    pub(crate) fn is_behind_mountpoint(self) -> bool {
        self.0 & BEHIND_MOUNTPOINT != 0
    }

    #[must_use]
    pub(crate) fn behind_mountpoint(self) -> Self {
        Self(self.0 | BEHIND_MOUNTPOINT)
    }

    /// Copy of the options with this QoS.
    #[must_use]
    pub fn with_qos(self, qos: QoS) -> Self {
        Self(self.0 & !3 | qos as u8)
    }

    /// Copy of the options for a session of a linked cluster.
    #[must_use]
    pub(crate) fn of_link(self) -> Self {
        Self(self.0 | shard::OF_LINK)
    }

    /// Copy of the options for the route of groups that have one member over all linked clusters.
    #[must_use]
    pub(crate) fn of_linked_groups(self) -> Self {
        Self(self.0 | LINKED_GROUPS)
    }

    pub(crate) fn is_of_linked_groups(self) -> bool {
        self.0 & LINKED_GROUPS != 0
    }

    /// Options of one delivery for two subscriptions of a client: the higher QoS [MQTT-3.3.4-2]; RETAIN as published
    /// when one of them wants it.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let qos = self.qos().max(other.qos());
        Self(self.0 | other.0 & 8).with_qos(qos)
    }
}

impl From<SubscriptionOptions> for Options {
    fn from(options: SubscriptionOptions) -> Self {
        let mut byte = options.qos as u8 | (options.retain_handling as u8) << 4;
        if options.no_local {
            byte |= 4;
        }
        if options.retain_as_published {
            byte |= 8;
        }
        Self(byte)
    }
}

impl routing::Destination for Route {
    type Key = (RouteKind, u16, u32, u32);

    fn key(&self) -> Self::Key {
        (self.kind, self.index, self.slot, self.generation)
    }
}
