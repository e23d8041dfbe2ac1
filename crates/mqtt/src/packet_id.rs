//! Packet Identifier.

use std::fmt;
use std::num::NonZeroU16;

/// Identifies an unacknowledged packet of one Session and direction. Never 0 [MQTT-2.2.1-3].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// Creates a Packet Identifier; `None` for 0 [MQTT-2.2.1-3].
    #[inline]
    pub const fn new(value: u16) -> Option<PacketId> {
        match NonZeroU16::new(value) {
            Some(value) => Some(PacketId(value)),
            None => None,
        }
    }

    /// Value from 1 to 65,535.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

const _: () = assert!(size_of::<Option<PacketId>>() == 2);

impl fmt::Debug for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketId({})", self.0)
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
    #[test]
    fn zero_is_not_a_packet_identifier() {
        assert_eq!(PacketId::new(0), None);
        assert_eq!(PacketId::new(1).map(PacketId::get), Some(1));
        assert_eq!(PacketId::new(u16::MAX).map(PacketId::get), Some(u16::MAX));
    }
}
