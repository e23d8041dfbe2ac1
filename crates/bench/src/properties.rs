//! MQTT 5.0 properties and Wills of a command line or a scenario.

use crate::codec::{put_str, put_varint};
use serde::{Deserialize, Serialize};

/// Properties of every PUBLISH, or of a Will.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Properties {
    /// Payload Format Indicator: the payload is UTF-8.
    pub utf8: bool,
    /// Message Expiry Interval in seconds.
    pub expiry: Option<u32>,
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<String>,
    /// Topic Alias, in addition to the Topic Name in each message. Not for a Will.
    pub topic_alias: Option<u16>,
    pub user: Vec<(String, String)>,
}

/// Properties of CONNECT other than the Session Expiry Interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectProperties {
    /// Receive Maximum; 0: not sent.
    pub receive_maximum: u16,
    /// Largest packet that the clients accept, in bytes.
    pub packet_size_max: Option<u32>,
    /// Request Response Information.
    pub response_information: bool,
    /// True when Request Problem Information is 0.
    pub no_problem_information: bool,
    pub user: Vec<(String, String)>,
}

/// Message that the broker publishes for a client that disconnects without DISCONNECT.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Will {
    /// Topic, with placeholders.
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    /// Will Delay Interval in seconds, MQTT 5.0.
    pub delay: u32,
    pub properties: Properties,
}

/// Maximum size of a text or of binary data in a packet, in bytes.
const TEXT_MAX: usize = 65_535;
/// Maximum number of User Properties of one packet.
const USER_MAX: usize = 100;

impl Properties {
    pub fn is_empty(&self) -> bool {
        *self == Properties::default()
    }

    /// Checks the properties.
    ///
    /// # Errors
    /// A value that is not valid in a packet, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let texts = [
            ("the content type", &self.content_type),
            ("the response topic", &self.response_topic),
            ("the correlation data", &self.correlation_data),
        ];
        for (what, text) in texts {
            check_text(what, text.as_deref().unwrap_or_default())?;
        }
        if self.response_topic.as_ref().is_some_and(|topic| topic.is_empty() || topic.contains(['#', '+'])) {
            return Err("a response topic is a Topic Name: not empty, and without + and #".to_owned());
        }
        if self.topic_alias == Some(0) {
            return Err("a Topic Alias is 1 or more".to_owned());
        }
        check_user(&self.user)
    }

    /// The encoded properties, without their length.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![];
        if self.utf8 {
            b.extend_from_slice(&[0x01, 1]);
        }
        if let Some(seconds) = self.expiry {
            b.push(0x02);
            b.extend_from_slice(&seconds.to_be_bytes());
        }
        for (id, text) in
            [(0x03, &self.content_type), (0x08, &self.response_topic), (0x09, &self.correlation_data)]
        {
            if let Some(text) = text {
                b.push(id);
                put_str(&mut b, text.as_bytes());
            }
        }
        if let Some(alias) = self.topic_alias {
            b.push(0x23);
            b.extend_from_slice(&alias.to_be_bytes());
        }
        put_user(&mut b, &self.user);
        b
    }
}

impl ConnectProperties {
    pub fn is_empty(&self) -> bool {
        *self == ConnectProperties::default()
    }

    /// Checks the properties.
    ///
    /// # Errors
    /// A value that is not valid in a packet, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.packet_size_max == Some(0) {
            return Err("the largest packet has 1 byte or more".to_owned());
        }
        check_user(&self.user)
    }

    /// The encoded properties, without their length; the Receive Maximum is not included.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![];
        if let Some(bytes) = self.packet_size_max {
            b.push(0x27);
            b.extend_from_slice(&bytes.to_be_bytes());
        }
        if self.response_information {
            b.extend_from_slice(&[0x19, 1]);
        }
        if self.no_problem_information {
            b.extend_from_slice(&[0x17, 0]);
        }
        put_user(&mut b, &self.user);
        b
    }
}

impl Will {
    /// Checks the Will.
    ///
    /// # Errors
    /// A value that is not valid in CONNECT, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.topic.is_empty() || self.topic.contains(['#', '+']) {
            return Err(format!(
                "{:?} is not a topic for a Will: not empty, and without + and #",
                self.topic
            ));
        }
        check_text("the topic of a Will", &self.topic)?;
        if self.payload.len() > TEXT_MAX {
            return Err(format!("the message of a Will has {TEXT_MAX} bytes at most"));
        }
        if self.qos > 2 {
            return Err(format!("there is no QoS {}", self.qos));
        }
        self.properties.check()
    }

    /// Returns whether the Will uses a feature of MQTT 5.0.
    pub fn needs_5(&self) -> bool {
        self.delay > 0 || !self.properties.is_empty()
    }

    /// The encoded properties of the Will in CONNECT, without their length.
    pub fn encode_properties(&self) -> Vec<u8> {
        let mut b = vec![];
        if self.delay > 0 {
            b.push(0x18);
            b.extend_from_slice(&self.delay.to_be_bytes());
        }
        b.extend_from_slice(&self.properties.encode());
        b
    }
}

/// Parses `name: value`, the notation of a User Property or a header on a command line.
///
/// # Errors
/// A text without a colon, or without a name.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write it as \"NAME: VALUE\"".to_owned()),
    }
}

/// Appends properties with their length.
pub fn put(b: &mut Vec<u8>, properties: &[u8]) {
    put_varint(b, properties.len());
    b.extend_from_slice(properties);
}

fn put_user(b: &mut Vec<u8>, user: &[(String, String)]) {
    for (name, value) in user {
        b.push(0x26);
        put_str(b, name.as_bytes());
        put_str(b, value.as_bytes());
    }
}

fn check_user(user: &[(String, String)]) -> Result<(), String> {
    if user.len() > USER_MAX {
        return Err(format!("{} User Properties: {USER_MAX} at most", user.len()));
    }
    for (name, value) in user {
        check_text("a User Property", name)?;
        check_text("a User Property", value)?;
    }
    Ok(())
}

fn check_text(what: &str, text: &str) -> Result<(), String> {
    if text.len() > TEXT_MAX { Err(format!("{what} has {TEXT_MAX} bytes at most")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Properties {
        Properties {
            utf8: true,
            expiry: Some(258),
            content_type: Some("t".to_owned()),
            response_topic: Some("r".to_owned()),
            correlation_data: Some("c".to_owned()),
            topic_alias: Some(3),
            user: vec![("k".to_owned(), "v".to_owned()), ("k".to_owned(), String::new())],
        }
    }

    #[test]
    fn properties_are_encoded_as_specified() {
        assert_eq!(
            all().encode(),
            [
                &[1, 1, 2, 0, 0, 1, 2, 3, 0, 1, b't', 8, 0, 1, b'r', 9, 0, 1, b'c', 0x23, 0, 3][..],
                &[0x26, 0, 1, b'k', 0, 1, b'v', 0x26, 0, 1, b'k', 0, 0]
            ]
            .concat()
        );
        assert!(Properties::default().encode().is_empty());
        let connect = ConnectProperties {
            packet_size_max: Some(9),
            response_information: true,
            no_problem_information: true,
            ..ConnectProperties::default()
        };
        assert_eq!(connect.encode(), [0x27, 0, 0, 0, 9, 0x19, 1, 0x17, 0]);
        let will =
            Will { delay: 5, properties: Properties { utf8: true, ..Properties::default() }, ..will() };
        assert_eq!(will.encode_properties(), [0x18, 0, 0, 0, 5, 1, 1]);
        assert!(will.needs_5() && !self::will().needs_5());
    }

    fn will() -> Will {
        Will { topic: "w".to_owned(), payload: b"gone".to_vec(), ..Will::default() }
    }

    #[test]
    fn properties_that_are_invalid_in_a_packet_are_refused() {
        assert_eq!((all().check(), will().check()), (Ok(()), Ok(())));
        let long = || Some("x".repeat(65_536));
        for properties in [
            Properties { content_type: long(), ..all() },
            Properties { response_topic: Some("a/#".to_owned()), ..all() },
            Properties { topic_alias: Some(0), ..all() },
            Properties { user: vec![(String::new(), "x".repeat(65_536))], ..all() },
            Properties { user: vec![(String::new(), String::new()); 101], ..all() },
        ] {
            assert!(properties.check().is_err(), "{properties:?}");
        }
        for will in [
            Will { topic: "a/+".to_owned(), ..will() },
            Will { topic: String::new(), ..will() },
            Will { payload: vec![0; 65_536], ..will() },
            Will { qos: 3, ..will() },
        ] {
            assert!(will.check().is_err(), "{will:?}");
        }
    }

    #[test]
    fn a_pair_has_a_name_and_a_value() {
        assert_eq!(pair("a: b:c "), Ok(("a".to_owned(), "b:c".to_owned())));
        assert_eq!(pair("a:"), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair(": b").is_err());
    }
}
