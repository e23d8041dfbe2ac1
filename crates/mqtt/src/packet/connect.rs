//! CONNECT (3.1).

use std::fmt;

use super::will::Will;
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::frame::remaining_length;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::qos::QoS;
use crate::reader::Reader;
use crate::version::Version;

/// A client's request for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    pub version: Version,
    /// True when the client is a bridge to another broker. It sets bit 7 of the Protocol Version, as mosquitto
    /// does. No specification defines this.
    pub bridge: bool,
    /// Clean Start; in 3.x Clean Session.
    pub clean_start: bool,
    /// Keep Alive in seconds; 0 turns it off.
    pub keep_alive: u16,
    /// Client Identifier. May be empty (3.1.3.1); the server decides whether it assigns one.
    pub client_id: &'a str,
    pub will: Option<Will<'a>>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub properties: Properties<'a>,
}

impl<'a> Connect<'a> {
    /// Returns the seconds that the Session outlives the connection; `u32::MAX` is forever. In 3.x the Clean
    /// Session bit stands for two fields of 5.0: such a Session ends with its connection, any other never ends
    /// [MQTT3-3.1.2-4] [MQTT3-3.1.2-6].
    pub fn session_expiry(&self) -> u32 {
        match self.version {
            Version::V5 => self.properties.session_expiry_interval().unwrap_or(0),
            Version::V3_1 | Version::V3_1_1 => {
                if self.clean_start {
                    0
                } else {
                    u32::MAX
                }
            }
        }
    }

    /// Returns the maximum number of unacknowledged QoS 1 and 2 PUBLISH packets that the client accepts; `None`
    /// when it names no limit, which in 5.0 means 65,535 (3.1.2.11.3).
    pub fn receive_maximum(&self) -> Option<u16> {
        self.properties.receive_maximum()
    }

    /// Returns the size in bytes of the largest packet that the client accepts; `u32::MAX` when it names no limit
    /// [MQTT-3.1.2-24].
    pub fn maximum_packet_size(&self) -> u32 {
        self.properties.maximum_packet_size().unwrap_or(u32::MAX)
    }

    /// Returns the highest Topic Alias that the client accepts; 0 for none [MQTT-3.1.2-26] [MQTT-3.1.2-27].
    pub fn topic_alias_maximum(&self) -> u16 {
        self.properties.topic_alias_maximum().unwrap_or(0)
    }

    pub(crate) fn decode(mut reader: Reader<'a>) -> Result<Connect<'a>, DecodeError> {
        let (version, bridge) = protocol(&mut reader)?;
        let flags = Flags::read(version, reader.u8()?)?;
        let keep_alive = reader.u16()?;
        let properties = Properties::read(&mut reader, version, Scope::Connect)?;
        // The order of the payload is that of the specification [MQTT-3.1.3-1] [MQTT3-3.1.3-1].
        let client_id = reader.string()?;
        let will = match flags.will {
            Some((qos, retain)) => Some(Will::decode(version, qos, retain, &mut reader)?),
            None => None,
        };
        // In 3.1 the Remaining Length overrules these two flags, for clients that are older than the flags.
        let overruled = |reader: &Reader<'_>| version == Version::V3_1 && reader.is_empty();
        let username = match flags.username && !overruled(&reader) {
            true => Some(reader.string()?),
            false => None,
        };
        let password = match flags.password && !overruled(&reader) {
            true => Some(reader.binary()?),
            false => None,
        };
        reader.finish()?;
        Ok(Connect {
            version,
            bridge,
            clean_start: flags.clean_start,
            keep_alive,
            client_id,
            will,
            username,
            password,
            properties,
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let version = self.version;
        // [MQTT3-3.1.2-22]
        if version != Version::V5 && self.password.is_some() && self.username.is_none() {
            return false;
        }
        let will_flags = match &self.will {
            Some(will) => 1 << 2 | (will.qos as u8) << 3 | u8::from(will.retain) << 5,
            None => 0,
        };
        let flags = u8::from(self.clean_start) << 1
            | will_flags
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.username.is_some()) << 7;
        let mut encoder = Encoder::new(out, PacketType::Connect.first_byte());
        encoder
            .string(version.protocol_name())
            .u8(version as u8 | if self.bridge { BRIDGE } else { 0 })
            .u8(flags)
            .u16(self.keep_alive)
            .properties(version, self.properties)
            .string(self.client_id);
        if let Some(will) = &self.will {
            will.encode(version, &mut encoder);
        }
        if let Some(username) = self.username {
            encoder.string(username);
        }
        if let Some(password) = self.password {
            encoder.binary(password);
        }
        encoder.finish()
    }
}

impl fmt::Debug for Connect<'_> {
    /// Formats the packet without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
            .field("bridge", &self.bridge)
            .field("clean_start", &self.clean_start)
            .field("keep_alive", &self.keep_alive)
            .field("client_id", &self.client_id)
            .field("will", &self.will)
            .field("username", &self.username)
            .field("password", &self.password.map(|_| "(hidden)"))
            .field("properties", &self.properties)
            .finish()
    }
}

/// Returns the version that a complete or partial CONNECT claims, even when the rest is invalid; `None` if it is
/// unknown or not supported. A server uses it to choose the form of its refusal.
pub fn connect_version(packet: &[u8]) -> Option<Version> {
    if PacketType::of(*packet.first()?)? != PacketType::Connect {
        return None;
    }
    let (_, header) = remaining_length(packet).ok()??;
    protocol(&mut Reader::new(packet.get(header..)?)).ok().map(|(version, _)| version)
}

/// Bit of the Protocol Version that a bridge sets.
const BRIDGE: u8 = 0x80;

/// Reads Protocol Name and Protocol Version, and whether the client is a bridge [MQTT-3.1.2-1] [MQTT-3.1.2-2]
/// [MQTT3-3.1.2-1] [MQTT3-3.1.2-2].
fn protocol(reader: &mut Reader<'_>) -> Result<(Version, bool), DecodeError> {
    let name = reader.binary()?;
    let named = match name {
        b"MQTT" => [Some(Version::V3_1_1), Some(Version::V5)],
        b"MQIsdp" => [Some(Version::V3_1), None],
        _ => return Err(DecodeError::UnsupportedProtocolName),
    };
    let level = reader.u8()?;
    named
        .into_iter()
        .flatten()
        .find(|&version| version as u8 == level & !BRIDGE)
        .map(|version| (version, level & BRIDGE != 0))
        .ok_or(DecodeError::UnsupportedProtocolVersion { level })
}

/// Connect Flags (3.1.2.3).
struct Flags {
    clean_start: bool,
    will: Option<(QoS, bool)>,
    username: bool,
    password: bool,
}

impl Flags {
    fn read(version: Version, flags: u8) -> Result<Flags, DecodeError> {
        let bit = |n: u8| flags & 1 << n != 0;
        // [MQTT-3.1.2-3] [MQTT3-3.1.2-3]; 3.1 reserves the bit without a required value.
        if bit(0) && version != Version::V3_1 {
            return Err(DecodeError::ConnectFlagReserved);
        }
        let will = if bit(2) {
            // [MQTT-3.1.2-12] [MQTT3-3.1.2-14]
            let qos = QoS::from_bits(flags >> 3 & 0b11).ok_or(DecodeError::QoSReserved)?;
            Some((qos, bit(5)))
        } else {
            // [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-13] [MQTT3-3.1.2-15]; 3.1 ignores the bits.
            if flags & 0b0011_1000 != 0 && version != Version::V3_1 {
                return Err(DecodeError::WillFlagsWithoutWill);
            }
            None
        };
        let (username, password) = (bit(7), bit(6));
        // [MQTT3-3.1.2-22]; 5.0 allows a password alone (3.1.2.9).
        if password && !username && version != Version::V5 {
            return Err(DecodeError::PasswordWithoutUserName);
        }
        Ok(Flags { clean_start: bit(1), will, username, password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, refuses_every_prefix, same};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::id::PropertyId;
    use crate::properties::property::Property;
    use crate::{ReasonCode, Version::*};

    const MQTT: &[u8] = b"\0\x04MQTT";
    const ID: &[u8] = b"\0\x01c";

    fn bare(version: Version) -> Connect<'static> {
        Connect {
            version,
            bridge: false,
            clean_start: true,
            keep_alive: 60,
            client_id: "c",
            will: None,
            username: None,
            password: None,
            properties: Properties::default(),
        }
    }

    /// Builds a CONNECT with these Connect Flags and payload, and no properties.
    fn connect(version: Version, flags: u8, payload: &[&[u8]]) -> Vec<u8> {
        let (name, no_properties): (&[u8], &[u8]) = match version {
            V3_1 => (b"\0\x06MQIsdp", &[]),
            V3_1_1 => (MQTT, &[]),
            V5 => (MQTT, &[0]),
        };
        packet(0x10, &[name, &[version as u8, flags, 0, 60], no_properties, &payload.concat()])
    }

    #[test]
    fn the_smallest_connect_is_accepted() {
        for version in Version::ALL {
            let bytes = connect(version, 0b10, &[ID]);
            // A CONNECT carries its own version.
            for ignored in Version::ALL {
                same(ignored, &bytes, Packet::Connect(bare(version)));
            }
            refuses_every_prefix(version, &bytes);
            let stays = Connect { clean_start: false, client_id: "", keep_alive: 60, ..bare(version) };
            same(version, &connect(version, 0, &[b"\0\0"]), Packet::Connect(stays));
        }
    }

    /// [MQTT-3.1.3-1] [MQTT3-3.1.3-1]
    #[test]
    fn a_connect_with_all_fields_is_accepted() {
        let properties = PropertiesBuf::from_iter([
            Property::SessionExpiryInterval(0x0102_0304),
            Property::ReceiveMaximum(5),
            Property::MaximumPacketSize(1000),
            Property::TopicAliasMaximum(6),
            Property::RequestResponseInformation(1),
            Property::RequestProblemInformation(0),
            Property::UserProperty("n", "v"),
            Property::AuthenticationMethod("m"),
            Property::AuthenticationData(&[1, 2]),
        ]);
        let will_properties =
            PropertiesBuf::from_iter([Property::WillDelayInterval(10), Property::ContentType("text")]);
        let will = Will {
            qos: QoS::ExactlyOnce,
            retain: true,
            topic: "w/t",
            payload: b"\0gone",
            properties: will_properties.as_properties(),
        };
        let full = Connect {
            version: V5,
            bridge: false,
            clean_start: false,
            keep_alive: 0xFFFF,
            client_id: "c",
            will: Some(will),
            username: Some("user"),
            password: Some(b"\0pass"),
            properties: properties.as_properties(),
        };
        let payload = b"\0\x03w/t\0\x05\0gone\0\x04user\0\x05\0pass";
        let bytes = packet(
            0x10,
            &[
                MQTT,
                &[5, 0b1111_0100, 0xFF, 0xFF],
                &block(&[
                    &[0x11, 1, 2, 3, 4, 0x21, 0, 5, 0x27, 0, 0, 0x03, 0xE8, 0x22, 0, 6, 0x19, 1, 0x17, 0],
                    b"\x26\0\x01n\0\x01v\x15\0\x01m\x16\0\x02\x01\x02",
                ]),
                ID,
                &block(&[b"\x18\0\0\0\x0A\x03\0\x04text"]),
                payload,
            ],
        );
        same(V5, &bytes, Packet::Connect(full));
        refuses_every_prefix(V5, &bytes);
        assert_eq!(full.session_expiry(), 0x0102_0304);
        assert_eq!(full.receive_maximum(), Some(5));
        assert_eq!(full.maximum_packet_size(), 1000);
        assert_eq!(full.topic_alias_maximum(), 6);

        // An older version has the same fields without properties.
        let older = Connect {
            version: V3_1_1,
            will: Some(Will { properties: Properties::default(), ..will }),
            properties: Properties::default(),
            ..full
        };
        let bytes = packet(0x10, &[MQTT, &[4, 0b1111_0100, 0xFF, 0xFF], ID, payload]);
        same(V5, &bytes, Packet::Connect(older));
        let mut out = Vec::new();
        assert!(Packet::Connect(Connect { version: V3_1_1, ..full }).encode(V5, &mut out));
        assert_eq!(out, bytes);
    }

    /// [MQTT3-3.1.2-4] [MQTT3-3.1.2-6] and the defaults of 3.1.2.11.
    #[test]
    fn a_connect_without_properties_has_the_defaults() {
        for version in Version::ALL {
            let stays = Connect { clean_start: false, ..bare(version) };
            assert_eq!(bare(version).session_expiry(), 0);
            assert_eq!(stays.session_expiry(), if version == V5 { 0 } else { u32::MAX });
            assert_eq!(stays.receive_maximum(), None);
            assert_eq!(stays.maximum_packet_size(), u32::MAX);
            assert_eq!(stays.topic_alias_maximum(), 0);
        }
    }

    #[test]
    fn a_bridge_sets_bit_7_of_the_protocol_version() {
        for version in Version::ALL {
            let bridge = Connect { bridge: true, ..bare(version) };
            let mut bytes = Vec::new();
            assert!(Packet::Connect(bridge).encode(version, &mut bytes));
            assert_eq!(bytes[4 + version.protocol_name().len()], version as u8 | 0x80);
            reads(version, &bytes, Packet::Connect(bridge));
            assert_eq!(connect_version(&bytes), Some(version));
        }
    }

    #[test]
    fn protocol_name_and_version_are_checked() {
        let with = |name: &[u8], level| packet(0x10, &[name, &[level, 2, 0, 0], &[0], ID]);
        for level in (0..=u8::MAX).filter(|level| !matches!(level & !BRIDGE, 4 | 5)) {
            // [MQTT-3.1.2-2] [MQTT3-3.1.2-2]
            let error = DecodeError::UnsupportedProtocolVersion { level };
            assert_eq!(error.reason_code(), ReasonCode::UnsupportedProtocolVersion);
            refuses(V5, &with(MQTT, level), error);
        }
        for level in [0, 4, 5, 0x84] {
            refuses(V5, &with(b"\0\x06MQIsdp", level), DecodeError::UnsupportedProtocolVersion { level });
        }
        // [MQTT-3.1.2-1] [MQTT3-3.1.2-1]
        for name in
            [&b"\0\x04mqtt"[..], b"\0\x04MQTt", b"\0\x05MQTTX", b"\0\x06mqisdp", b"\0\0", b"\0\x01\xFF"]
        {
            refuses(V5, &with(name, 5), DecodeError::UnsupportedProtocolName);
        }
        // The rest may even be missing.
        refuses(V5, &packet(0x10, &[MQTT, &[6]]), DecodeError::UnsupportedProtocolVersion { level: 6 });
    }

    #[test]
    fn the_reserved_flag_is_refused() {
        for version in [V3_1_1, V5] {
            // [MQTT-3.1.2-3] [MQTT3-3.1.2-3]
            refuses(version, &connect(version, 0b11, &[ID]), DecodeError::ConnectFlagReserved);
        }
        reads(V3_1, &connect(V3_1, 0b11, &[ID]), Packet::Connect(bare(V3_1)));
    }

    #[test]
    fn will_flags_are_checked() {
        for version in [V3_1_1, V5] {
            for flags in [0b0000_1010, 0b0001_0010, 0b0001_1010, 0b0010_0010] {
                // [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-13] [MQTT3-3.1.2-15]
                refuses(version, &connect(version, flags, &[ID]), DecodeError::WillFlagsWithoutWill);
            }
        }
        reads(V3_1, &connect(V3_1, 0b0011_1010, &[ID]), Packet::Connect(bare(V3_1)));
        for version in Version::ALL {
            let no_properties: &[u8] = if version == V5 { &[0] } else { &[] };
            let payload = [ID, no_properties, b"\0\x01w", b"\0\0"];
            for (bits, qos) in [(0, QoS::AtMostOnce), (1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce)] {
                for retain in [false, true] {
                    let flags = 0b110 | bits << 3 | u8::from(retain) << 5;
                    let will =
                        Will { qos, retain, topic: "w", payload: b"", properties: Properties::default() };
                    let expected = Connect { will: Some(will), ..bare(version) };
                    same(version, &connect(version, flags, &payload), Packet::Connect(expected));
                }
            }
            // [MQTT-3.1.2-12] [MQTT3-3.1.2-14]
            refuses(version, &connect(version, 0b0001_1110, &payload), DecodeError::QoSReserved);
            // [MQTT-3.1.2-9] [MQTT3-3.1.2-9]: the flag determines the fields of the payload.
            refuses(version, &connect(version, 0b0000_0110, &[ID]), DecodeError::Truncated);
            let count = payload.concat().len() as u32 - 3;
            refuses(version, &connect(version, 0b10, &payload), DecodeError::TrailingBytes { count });
        }
    }

    #[test]
    fn the_will_topic_is_checked() {
        for version in Version::ALL {
            let no_properties: &[u8] = if version == V5 { &[0] } else { &[] };
            let cases: [(&[u8], DecodeError); 5] = [
                // [MQTT-3.1.3-11] [MQTT3-3.1.3-10]
                (b"\0\x01\xFF", DecodeError::StringNotUtf8),
                (b"\0\x01\0", DecodeError::StringContainsNull),
                // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
                (b"\0\0", DecodeError::TopicNameInvalid),
                // [MQTT-4.7.0-1] [MQTT3-4.7.1-1]
                (b"\0\x01#", DecodeError::TopicNameInvalid),
                (b"\0\x03a/+", DecodeError::TopicNameInvalid),
            ];
            for (topic, error) in cases {
                refuses(version, &connect(version, 0b110, &[ID, no_properties, topic, b"\0\0"]), error);
            }
        }
    }

    #[test]
    fn user_name_and_password_follow_their_flags() {
        for version in Version::ALL {
            let named = Connect { username: Some("u"), ..bare(version) };
            same(version, &connect(version, 0b1000_0010, &[ID, b"\0\x01u"]), Packet::Connect(named));
            let both = Connect { password: Some(b"\0"), ..named };
            same(
                version,
                &connect(version, 0b1100_0010, &[ID, b"\0\x01u", b"\0\x01\0"]),
                Packet::Connect(both),
            );
            // [MQTT-3.1.2-16] [MQTT-3.1.2-18] [MQTT3-3.1.2-18] [MQTT3-3.1.2-20]
            let error = DecodeError::TrailingBytes { count: 3 };
            refuses(version, &connect(version, 0b10, &[ID, b"\0\x01u"]), error);
            refuses(version, &connect(version, 0b1000_0010, &[ID, b"\0\x01u", b"\0\x01p"]), error);
            // [MQTT-3.1.3-12] [MQTT3-3.1.3-11]
            refuses(
                version,
                &connect(version, 0b1000_0010, &[ID, b"\0\x01\xFF"]),
                DecodeError::StringNotUtf8,
            );
        }
    }

    /// [MQTT3-3.1.2-22]; allowed since 5.0 (3.1.2.9).
    #[test]
    fn a_password_alone_needs_5_0() {
        for version in [V3_1, V3_1_1] {
            let bytes = connect(version, 0b0100_0010, &[ID, b"\0\x01p"]);
            refuses(version, &bytes, DecodeError::PasswordWithoutUserName);
            cannot_encode(version, Packet::Connect(Connect { password: Some(b"p"), ..bare(version) }));
        }
        let alone = Connect { password: Some(b"p"), ..bare(V5) };
        same(V5, &connect(V5, 0b0100_0010, &[ID, b"\0\x01p"]), Packet::Connect(alone));
    }

    /// [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT3-3.1.2-19] [MQTT3-3.1.2-21], but in 3.1 the Remaining Length decides.
    #[test]
    fn flags_without_their_fields_are_refused() {
        for version in [V3_1_1, V5] {
            refuses(version, &connect(version, 0b1000_0010, &[ID]), DecodeError::Truncated);
            refuses(version, &connect(version, 0b1100_0010, &[ID, b"\0\x01u"]), DecodeError::Truncated);
        }
        reads(V3_1, &connect(V3_1, 0b1100_0010, &[ID]), Packet::Connect(bare(V3_1)));
        let named = Connect { username: Some("u"), ..bare(V3_1) };
        reads(V3_1, &connect(V3_1, 0b1100_0010, &[ID, b"\0\x01u"]), Packet::Connect(named));
        refuses(V3_1, &connect(V3_1, 0b1000_0010, &[ID, b"\0"]), DecodeError::Truncated);
    }

    /// [MQTT-3.1.3-4] [MQTT3-3.1.3-4]
    #[test]
    fn the_client_identifier_is_a_string() {
        for version in Version::ALL {
            refuses(version, &connect(version, 2, &[b"\0\x01\xFF"]), DecodeError::StringNotUtf8);
            refuses(version, &connect(version, 2, &[b"\0\x01\0"]), DecodeError::StringContainsNull);
        }
    }

    #[test]
    fn properties_of_connect_and_will_are_kept_apart() {
        let delay = packet(0x10, &[MQTT, &[5, 2, 0, 0], &block(&[&[0x18, 0, 0, 0, 1]]), ID]);
        refuses(V5, &delay, DecodeError::PropertyNotAllowed { id: PropertyId::WillDelayInterval });
        let will = &block(&[&[0x21, 0, 1]]);
        let bytes = packet(0x10, &[MQTT, &[5, 0b110, 0, 0, 0], ID, will, b"\0\x01w\0\0"]);
        refuses(V5, &bytes, DecodeError::PropertyNotAllowed { id: PropertyId::ReceiveMaximum });
    }

    /// Padding of the Remaining Length is forbidden in 5.0 only [MQTT-1.5.5-1].
    #[test]
    fn a_padded_remaining_length_is_refused_by_5_0_only() {
        for version in Version::ALL {
            let mut bytes = connect(version, 2, &[ID]);
            bytes[1] |= 0x80;
            bytes.insert(2, 0);
            match version {
                V5 => refuses(V3_1, &bytes, DecodeError::VariableByteIntegerNotMinimal),
                V3_1 | V3_1_1 => reads(V5, &bytes, Packet::Connect(bare(version))),
            }
        }
    }

    #[test]
    fn the_version_is_known_in_an_invalid_connect() {
        for version in Version::ALL {
            let bytes = connect(version, 0xFF, &[]);
            assert_eq!(connect_version(&bytes), Some(version));
            assert_eq!(connect_version(&bytes[..4]), None);
        }
        assert_eq!(connect_version(&packet(0x10, &[MQTT, &[6]])), None);
        assert_eq!(connect_version(&packet(0x20, &[MQTT, &[5]])), None);
        assert_eq!(connect_version(&[]), None);
    }

    #[test]
    fn fields_that_no_packet_can_hold_are_refused() {
        let long = "x".repeat(65_536);
        cannot_encode(V5, Packet::Connect(Connect { client_id: &long, ..bare(V5) }));
        cannot_encode(V5, Packet::Connect(Connect { username: Some("a\0"), ..bare(V5) }));
        cannot_encode(V5, Packet::Connect(Connect { password: Some(long.as_bytes()), ..bare(V5) }));
    }

    #[test]
    fn a_password_is_not_printed() {
        let printed = format!("{:?}", Connect { username: Some("u"), password: Some(b"AAAA"), ..bare(V5) });
        assert!(printed.contains("\"u\"") && printed.contains("hidden"), "{printed}");
        assert!(!printed.contains("65") && !printed.contains("AAAA"), "{printed}");
    }
}
