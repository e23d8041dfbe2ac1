//! Toggles: which of two identities the next message of a Packet Identifier has.

use mqtt::PacketId;

/// One bit for each Packet Identifier, in pages of 64 that exist only where a bit is set.
///
/// A QoS 2 identifier that is released may be used for another message [MQTT-4.3.3-4]. With the bit flipped that
/// message has another identity, so that it is not taken for the previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toggles {
    /// Pages by number, each with at least one bit set.
    pages: Vec<(u16, u64)>,
}

impl Toggles {
    /// Makes toggles from the output of [`Self::pages`], in any order.
    pub fn of_pages(pages: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let mut pages: Vec<_> = pages.into_iter().filter(|(_, bits)| *bits != 0).collect();
        pages.sort_unstable_by_key(|(number, _)| *number);
        pages.dedup_by_key(|(number, _)| *number);
        Self { pages }
    }

    /// Numbers of pages and their bits: bit `b` of page `p` is that of Packet Identifier 64 p + b.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = (u16, u64)> {
        self.pages.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub fn get(&self, packet_id: PacketId) -> bool {
        let (number, bit) = position(packet_id);
        self.find(number).is_ok_and(|at| self.pages[at].1 & bit != 0)
    }

    pub fn flip(&mut self, packet_id: PacketId) {
        let (number, bit) = position(packet_id);
        match self.find(number) {
            Err(at) => self.pages.insert(at, (number, bit)),
            Ok(at) => {
                self.pages[at].1 ^= bit;
                if self.pages[at].1 == 0 {
                    self.pages.remove(at);
                }
            }
        }
    }

    fn find(&self, number: u16) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&number, |(number, _)| *number)
    }
}

fn position(packet_id: PacketId) -> (u16, u64) {
    (packet_id.get() / 64, 1 << (packet_id.get() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_has_the_value_of_its_last_flip() {
        let mut toggles = Toggles::default();
        let mut expected = std::collections::BTreeSet::new();
        let mut number = 1_u32;
        for _ in 0..5_000 {
            number = number * 75 % 65_537;
            let Some(id) = PacketId::new((number % 300) as u16) else { continue };
            toggles.flip(id);
            if !expected.remove(&id.get()) {
                expected.insert(id.get());
            }
        }
        let set = (1..=65_535).filter(|id| toggles.get(PacketId::new(*id).expect("not 0")));
        assert!(set.eq(expected.iter().copied()));
        assert_eq!(Toggles::of_pages(toggles.pages()), toggles);
        for id in expected {
            toggles.flip(PacketId::new(id).expect("not 0"));
        }
        assert!(toggles.is_empty(), "a page without a bit does not exist");
    }
}
