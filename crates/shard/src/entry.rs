//! One message in one session's queue.

use mqtt::QoS;

use crate::ids::MessageKey;

/// Entry of a queue.
///
/// **Invariant:** 16 bytes. Rare fields, such as an expiry, are in [`Bodies`](crate::bodies::Bodies).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: MessageKey,
    /// Size of the message in units of 8 bytes, and the flags below.
    packed: u32,
    /// Number of its [`EntryDetails`](crate::bodies::EntryDetails) plus 1; 0 without one.
    pub details: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// Progress of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The delivery may be dropped and may expire.
    Waiting = 0,
    /// The delivery may have been sent: it is neither dropped nor does it expire.
    Pinned = 1,
    /// PUBREC was received: the message is no longer needed, the Packet Identifier is.
    Received = 2,
    /// The delivery is finished and keeps its slot among unfinished ones.
    Finished = 3,
}

const UNIT: u64 = 8;
const SIZE_BITS: u32 = 26;
const PHASE: u32 = 0b11 << SIZE_BITS;
const QOS2: u32 = 1 << (SIZE_BITS + 2);
const RETAIN: u32 = 1 << (SIZE_BITS + 3);
const SHARED: u32 = 1 << (SIZE_BITS + 4);

/// Returns the size of a message as queues count it: its size in the log, filled up to 8 bytes.
pub(crate) fn message_size(encoded: usize) -> u64 {
    (encoded as u64).next_multiple_of(UNIT)
}

impl Entry {
    /// Creates an entry. `size` is a [`message_size`]. `shared`: other entries may refer to the same message.
    pub fn new(key: MessageKey, size: u64, qos: QoS, retain: bool, shared: bool) -> Self {
        assert!(size / UNIT < 1 << SIZE_BITS, "a packet has at most 256 MiB");
        let mut packed = (size / UNIT) as u32;
        if qos == QoS::ExactlyOnce {
            packed |= QOS2;
        }
        if retain {
            packed |= RETAIN;
        }
        if shared {
            packed |= SHARED;
        }
        Self { key, packed, details: 0 }
    }

    /// Creates the placeholder of a delivery that was dropped before it was opened.
    pub fn finished() -> Self {
        Self { key: MessageKey::from_u64(0), packed: PHASE, details: 0 }
    }

    pub fn size(&self) -> u64 {
        u64::from(self.packed & ((1 << SIZE_BITS) - 1)) * UNIT
    }

    pub fn qos(&self) -> QoS {
        if self.packed & QOS2 != 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce }
    }

    pub fn retain(&self) -> bool {
        self.packed & RETAIN != 0
    }

    pub fn is_shared(&self) -> bool {
        self.packed & SHARED != 0
    }

    pub fn phase(&self) -> Phase {
        match (self.packed & PHASE) >> SIZE_BITS {
            0 => Phase::Waiting,
            1 => Phase::Pinned,
            2 => Phase::Received,
            _ => Phase::Finished,
        }
    }

    pub fn set_phase(&mut self, phase: Phase) {
        self.packed = self.packed & !PHASE | (phase as u32) << SIZE_BITS;
    }

    /// Moves the entry to another copy of the same message.
    pub fn move_to(&mut self, key: MessageKey, shared: bool) {
        self.key = key;
        self.packed = self.packed & !SHARED | if shared { SHARED } else { 0 };
    }

    /// Returns whether the message will still be read.
    pub fn needs_body(&self) -> bool {
        matches!(self.phase(), Phase::Waiting | Phase::Pinned)
    }

    /// Returns all fields except key and details, for the checkpoint.
    pub fn packed(&self) -> u32 {
        self.packed
    }

    /// Restores an entry; `None` for a value that [`Self::packed`] does not return.
    pub fn unpack(key: MessageKey, packed: u32) -> Option<Self> {
        let known = packed & !(PHASE | QOS2 | RETAIN | SHARED) < 1 << SIZE_BITS;
        known.then_some(Self { key, packed, details: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_its_fields() {
        let key = MessageKey::new(3, 16);
        let largest = message_size((256 << 20) + 200);
        let mut entry = Entry::new(key, largest, QoS::ExactlyOnce, true, false);
        for phase in [Phase::Pinned, Phase::Received, Phase::Finished, Phase::Waiting] {
            entry.set_phase(phase);
            assert_eq!((entry.phase(), entry.size(), entry.qos()), (phase, largest, QoS::ExactlyOnce));
            assert!(entry.retain() && !entry.is_shared());
            assert_eq!(Entry::unpack(key, entry.packed()), Some(entry));
        }
        entry.move_to(MessageKey::new(4, 8), true);
        assert!(entry.is_shared() && entry.key == MessageKey::new(4, 8));
        assert_eq!(Entry::unpack(key, 1 << 31), None);
    }
}
