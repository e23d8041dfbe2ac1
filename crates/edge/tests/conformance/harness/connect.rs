//! Builder of CONNECT packets.

use mqtt::{PropertiesBuf, Property, Version, Will};

use super::Message;

/// Content of a CONNECT. Default: a new session that ends with the connection, and Keep Alive off.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: Version,
    pub bridge: bool,
    pub client_id: String,
    pub clean_start: bool,
    pub keep_alive: u16,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    pub will: Option<Message>,
    pub properties: PropertiesBuf,
}

impl Connect {
    pub fn new(version: Version, client_id: &str) -> Connect {
        Connect {
            version,
            bridge: false,
            client_id: client_id.into(),
            clean_start: true,
            keep_alive: 0,
            username: None,
            password: None,
            will: None,
            properties: PropertiesBuf::default(),
        }
    }

    /// Resumes or creates a session that outlives the connection.
    pub fn durable(self) -> Connect {
        match self.version {
            Version::V5 => self.resuming().expiry(3600),
            Version::V3_1 | Version::V3_1_1 => self.resuming(),
        }
    }

    /// Sets the bridge bit.
    pub fn bridge(mut self) -> Connect {
        self.bridge = true;
        self
    }

    /// Sets Clean Start to 0.
    pub fn resuming(mut self) -> Connect {
        self.clean_start = false;
        self
    }

    pub fn expiry(self, seconds: u32) -> Connect {
        self.with(Property::SessionExpiryInterval(seconds))
    }

    pub fn keep_alive(mut self, seconds: u16) -> Connect {
        self.keep_alive = seconds;
        self
    }

    pub fn username(mut self, username: &str) -> Connect {
        self.username = Some(username.into());
        self
    }

    pub fn password(mut self, password: &[u8]) -> Connect {
        self.password = Some(password.into());
        self
    }

    pub fn will(mut self, will: Message) -> Connect {
        self.will = Some(will);
        self
    }

    pub fn with(mut self, property: Property<'_>) -> Connect {
        assert!(self.properties.push(property));
        self
    }

    /// Returns the encoded packet.
    pub fn encode(&self) -> Vec<u8> {
        let will = self.will.as_ref().map(|will| Will {
            qos: will.qos,
            retain: will.retain,
            topic: &will.topic,
            payload: &will.payload,
            properties: will.properties.as_properties(),
        });
        let mut bytes = Vec::new();
        let connect = mqtt::Connect {
            version: self.version,
            bridge: self.bridge,
            clean_start: self.clean_start,
            keep_alive: self.keep_alive,
            client_id: &self.client_id,
            will,
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            properties: self.properties.as_properties(),
        };
        assert!(mqtt::Packet::Connect(connect).encode(self.version, &mut bytes), "{self:?} can be encoded");
        bytes
    }
}
