//! QoS 2 publishes of one session: the Packet Identifiers that were received and not released, and the number of
//! releases of each, modulo 2.

use mqtt::PacketId;

/// Received Packet Identifiers and their toggles.
///
/// **Invariant:** a page exists when one of its toggles is set, and pages are in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inbound {
    /// Received Packet Identifiers, in the order of their arrival.
    received: Vec<u16>,
    /// Number of releases of each identifier, modulo 2, in pages of 64.
    toggles: Vec<(u16, u64)>,
}

impl Inbound {
    pub fn is_empty(&self) -> bool {
        self.received.is_empty() && self.toggles.is_empty()
    }

    pub fn toggle(&self, id: PacketId) -> bool {
        let (page, bit) = (id.get() / 64, 1 << (id.get() % 64));
        let found = self.toggles.binary_search_by_key(&page, |(page, _)| *page);
        found.is_ok_and(|at| self.toggles[at].1 & bit != 0)
    }

    /// Records an identifier. Returns false when it was received already [MQTT-4.3.3-10].
    pub fn receive(&mut self, id: PacketId) -> bool {
        let new = !self.received.contains(&id.get());
        if new {
            self.received.push(id.get());
        }
        new
    }

    /// Removes an identifier and flips its toggle, so that the client may use it for another message
    /// [MQTT-4.3.3-11]. Returns false when it was not recorded.
    pub fn release(&mut self, id: PacketId) -> bool {
        let known = self.refuse(id);
        if known {
            self.flip(id);
        }
        known
    }

    /// Removes an identifier as if it had never been received. Returns false when it was not recorded.
    pub fn refuse(&mut self, id: PacketId) -> bool {
        let Some(at) = self.received.iter().position(|known| *known == id.get()) else { return false };
        self.received.remove(at);
        true
    }

    fn flip(&mut self, id: PacketId) {
        let (page, bit) = (id.get() / 64, 1 << (id.get() % 64));
        match self.toggles.binary_search_by_key(&page, |(page, _)| *page) {
            Ok(at) => {
                self.toggles[at].1 ^= bit;
                if self.toggles[at].1 == 0 {
                    self.toggles.remove(at);
                }
            }
            Err(at) => {
                self.toggles.reserve_exact(1);
                self.toggles.insert(at, (page, bit));
            }
        }
    }

    pub fn received(&self) -> impl Iterator<Item = PacketId> {
        self.received.iter().filter_map(|id| PacketId::new(*id))
    }

    pub fn toggles(&self) -> &[(u16, u64)] {
        &self.toggles
    }

    /// Restores the state from a checkpoint. `None` when it is contradictory.
    pub fn restore(received: Vec<u16>, toggles: Vec<(u16, u64)>) -> Option<Self> {
        let ordered = toggles.windows(2).all(|two| two[0].0 < two[1].0);
        let used = toggles.iter().all(|(page, bits)| *bits != 0 && *page < 1024);
        let mut sorted = received.clone();
        sorted.sort_unstable();
        let once = sorted.windows(2).all(|two| two[0] != two[1]) && sorted.first() != Some(&0);
        (ordered && used && once).then_some(Self { received, toggles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: u16) -> PacketId {
        PacketId::new(value).expect("not 0")
    }

    /// [MQTT-4.3.3-10] [MQTT-4.3.3-11]
    #[test]
    fn an_identifier_is_known_until_its_release_and_new_after_it() {
        let mut inbound = Inbound::default();
        assert!(inbound.receive(id(64)) && !inbound.receive(id(64)));
        assert!(!inbound.toggle(id(64)));
        assert!(inbound.release(id(64)) && !inbound.release(id(64)));
        assert!(inbound.toggle(id(64)) && !inbound.toggle(id(65)));
        assert!(inbound.receive(id(64)) && inbound.refuse(id(64)));
        assert!(inbound.toggle(id(64)), "refused is not released");
        assert!(inbound.receive(id(64)) && inbound.release(id(64)));
        assert!(
            !inbound.toggle(id(64)) && inbound.is_empty(),
            "back in its initial state, it uses no memory"
        );
    }
}
