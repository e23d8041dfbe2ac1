//! Application Message, sent or received.

use mqtt::{Packet, PacketId, PropertiesBuf, Property, Publish, QoS, Version};

/// Content of a PUBLISH or of a Will.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    /// Packet Identifier; 0 when there is none.
    pub packet_id: u16,
    pub properties: PropertiesBuf,
}

impl Message {
    pub fn new(topic: &str, payload: impl AsRef<[u8]>, qos: QoS) -> Message {
        Message {
            topic: topic.into(),
            payload: payload.as_ref().into(),
            qos,
            retain: false,
            dup: false,
            packet_id: 0,
            properties: PropertiesBuf::default(),
        }
    }

    pub fn retained(mut self) -> Message {
        self.retain = true;
        self
    }

    pub fn dup(mut self) -> Message {
        self.dup = true;
        self
    }

    pub fn packet_id(mut self, packet_id: u16) -> Message {
        self.packet_id = packet_id;
        self
    }

    pub fn with(mut self, property: Property<'_>) -> Message {
        assert!(self.properties.push(property));
        self
    }

    pub fn from_packet(publish: &Publish<'_>) -> Message {
        Message {
            topic: publish.topic.into(),
            payload: publish.payload.into(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            packet_id: publish.packet_id.map_or(0, PacketId::get),
            properties: publish.properties.iter().collect(),
        }
    }

    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        let publish = Publish {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: PacketId::new(self.packet_id),
            properties: self.properties.as_properties(),
            payload: &self.payload,
        };
        assert!(Packet::Publish(publish).encode(version, &mut bytes), "{self:?} can be encoded");
        bytes
    }

    /// Returns the payload as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("a payload of text")
    }

    /// Returns all User Properties in order.
    pub fn user_properties(&self) -> Vec<(String, String)> {
        let user = |property| match property {
            Property::UserProperty(name, value) => Some((name.to_owned(), value.to_owned())),
            _ => None,
        };
        self.properties.as_properties().iter().filter_map(user).collect()
    }

    /// Returns all Subscription Identifiers, sorted: their order has no meaning [MQTT-3.3.4-4].
    pub fn subscription_ids(&self) -> Vec<u32> {
        let id = |property| match property {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        };
        let mut ids: Vec<u32> = self.properties.as_properties().iter().filter_map(id).collect();
        ids.sort_unstable();
        ids
    }
}
