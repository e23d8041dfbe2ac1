//! Topic Aliases of one connection, in both directions.

use std::sync::Arc;

use mqtt::ReasonCode;

/// Aliases that the client has set. It is empty until the first is set, so an idle connection needs no memory for it.
#[derive(Debug, Default)]
pub struct InboundAliases {
    topics: Vec<Option<Arc<str>>>,
    bytes: usize,
}

impl InboundAliases {
    /// Sets or replaces an alias [MQTT-3.3.2-7]. Error 0x94 when it is 0 or above `maximum` [MQTT-3.3.2-8]
    /// [MQTT-3.3.2-9]; 0x97 when the topics of all aliases have more than `bytes_max` bytes.
    pub fn set(&mut self, alias: u16, topic: &str, maximum: u16, bytes_max: usize) -> Result<(), ReasonCode> {
        if alias == 0 || alias > maximum {
            return Err(ReasonCode::TopicAliasInvalid);
        }
        let at = usize::from(alias) - 1;
        let before = self.topics.get(at).and_then(Option::as_ref).map_or(0, |topic| topic.len());
        let bytes = self.bytes - before + topic.len();
        if bytes > bytes_max {
            return Err(ReasonCode::QuotaExceeded);
        }
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        self.topics[at] = Some(Arc::from(topic));
        self.bytes = bytes;
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Bytes of the topics of all aliases.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The topic of an alias. Error 0x94 when the alias is out of range, 0x82 when it was never set.
    pub fn resolve(&self, alias: u16, maximum: u16) -> Result<Arc<str>, ReasonCode> {
        if alias == 0 || alias > maximum {
            return Err(ReasonCode::TopicAliasInvalid);
        }
        let topic = self.topics.get(usize::from(alias) - 1).and_then(Option::as_ref);
        topic.cloned().ok_or(ReasonCode::ProtocolError)
    }
}

/// Aliases that the broker sets towards the client. The first topics get one, until the maximum is reached.
#[derive(Debug)]
pub struct OutboundAliases {
    topics: Vec<Box<str>>,
    maximum: u16,
}

/// Form of a topic in a PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicAlias {
    /// The topic in full; no alias is available.
    None,
    /// The topic in full, together with its alias from now on.
    Introduce(u16),
    /// The alias alone.
    Use(u16),
}

impl OutboundAliases {
    /// Makes aliases for a client. `maximum` is the client's Topic Alias Maximum, bounded by the broker's own limit
    /// [MQTT-3.1.2-26].
    pub fn new(maximum: u16) -> Self {
        Self { topics: Vec::new(), maximum }
    }

    /// Form of `topic` in the next packet.
    pub fn name(&mut self, topic: &str) -> TopicAlias {
        if let Some(at) = self.topics.iter().position(|known| **known == *topic) {
            return TopicAlias::Use(at as u16 + 1);
        }
        if self.topics.len() >= usize::from(self.maximum) {
            return TopicAlias::None;
        }
        self.topics.push(topic.into());
        TopicAlias::Introduce(self.topics.len() as u16)
    }

    /// Forgets the alias that was introduced last, because the packet that was to introduce it is not sent.
    pub fn undo_introduce(&mut self) {
        self.topics.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_aliases_are_set_replaced_and_bounded() {
        let mut aliases = InboundAliases::default();
        assert_eq!(aliases.resolve(1, 2), Err(ReasonCode::ProtocolError));
        aliases.set(1, "a", 2, 9).expect("in range");
        assert_eq!(aliases.resolve(1, 2).as_deref(), Ok("a"));
        aliases.set(1, "b", 2, 9).expect("in range");
        assert_eq!(aliases.resolve(1, 2).as_deref(), Ok("b"));
        assert_eq!(aliases.set(3, "c", 2, 9), Err(ReasonCode::TopicAliasInvalid));
        assert_eq!(aliases.set(0, "c", 2, 9), Err(ReasonCode::TopicAliasInvalid));
        assert_eq!(aliases.resolve(3, 2), Err(ReasonCode::TopicAliasInvalid));
    }

    #[test]
    fn the_bytes_of_all_inbound_alias_topics_are_bounded() {
        let mut aliases = InboundAliases::default();
        aliases.set(1, "four", 3, 9).expect("room");
        aliases.set(2, "fives", 3, 9).expect("room");
        assert_eq!(aliases.set(3, "x", 3, 9), Err(ReasonCode::QuotaExceeded));
        aliases.set(2, "x", 3, 9).expect("a replaced one frees its bytes");
        aliases.set(3, "four", 3, 9).expect("room");
        assert_eq!(aliases.bytes(), 9);
    }

    #[test]
    fn outbound_aliases_go_to_the_first_topics() {
        let mut aliases = OutboundAliases::new(1);
        assert_eq!(aliases.name("a"), TopicAlias::Introduce(1));
        assert_eq!(aliases.name("a"), TopicAlias::Use(1));
        assert_eq!(aliases.name("b"), TopicAlias::None);
    }
}
