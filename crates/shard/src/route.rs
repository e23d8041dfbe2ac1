//! Destinations of a Topic Filter in a shard's own index.

use mqtt::QoS;

/// A session's subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub slot: u32,
    /// Subscription Identifier; 0 is none.
    pub id: u32,
    pub options: Options,
}

const _: () = assert!(size_of::<Route>() == 12);

/// Bit of Subscription Options that SUBSCRIBE leaves at 0. It marks the subscription `#` of a client with a
/// mountpoint, which it does not see. Its filter also matches the topic that is the parent of the mountpoint, which
/// is not the client's.
pub const BEHIND_MOUNTPOINT: u8 = 0x40;

/// Bit of Subscription Options that SUBSCRIBE leaves at 0. It marks the subscriptions of a session of a linked cluster.
pub const OF_LINK: u8 = 0x80;

/// Subscription Options in the one byte of the SUBSCRIBE packet, with [`BEHIND_MOUNTPOINT`] and [`OF_LINK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options(pub u8);

impl Options {
    pub fn qos(self) -> QoS {
        QoS::from_bits(self.0 & 3).unwrap_or(QoS::ExactlyOnce)
    }

    pub fn no_local(self) -> bool {
        self.0 & 4 != 0
    }

    pub fn retain_as_published(self) -> bool {
        self.0 & 8 != 0
    }

    pub fn is_behind_mountpoint(self) -> bool {
        self.0 & BEHIND_MOUNTPOINT != 0
    }

    pub fn is_of_link(self) -> bool {
        self.0 & OF_LINK != 0
    }

    /// Merges the options of two subscriptions of a client for one delivery: the higher QoS [MQTT-3.3.4-2]; RETAIN
    /// as published when one of them has it.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let qos = self.qos().max(other.qos());
        Self((self.0 | other.0 & 8) & !3 | qos as u8)
    }
}

impl routing::Destination for Route {
    type Key = u32;

    fn key(&self) -> u32 {
        self.slot
    }
}
