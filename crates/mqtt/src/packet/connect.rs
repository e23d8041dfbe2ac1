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
    /// Clean Start; in 3.x Clean Session.
    pub clean_start: bool,
    /// Seconds; 0 turns it off.
    pub keep_alive: u16,
    /// May be empty (3.1.3.1); the server decides whether it assigns one.
    pub client_id: &'a str,
    pub will: Option<Will<'a>>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub properties: Properties<'a>,
}

impl<'a> Connect<'a> {
    /// Seconds that the Session outlives the connection; `u32::MAX` is for ever. In 3.x Clean Session is two 5.0 ideas in
    /// one bit: such a Session ends with its connection, any other never does [MQTT3-3.1.2-4] [MQTT3-3.1.2-6].
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

    /// QoS 1 and 2 PUBLISH packets that the client takes at a time; `None` when it names no limit, which in 5.0 means
    /// 65,535 (3.1.2.11.3).
    pub fn receive_maximum(&self) -> Option<u16> {
        self.properties.receive_maximum()
    }

    /// Bytes of the largest packet that the client takes; `u32::MAX` when it names no limit [MQTT-3.1.2-24].
    pub fn maximum_packet_size(&self) -> u32 {
        self.properties.maximum_packet_size().unwrap_or(u32::MAX)
    }

    /// Highest Topic Alias that the client takes; 0 for none [MQTT-3.1.2-26] [MQTT-3.1.2-27].
    pub fn topic_alias_maximum(&self) -> u16 {
        self.properties.topic_alias_maximum().unwrap_or(0)
    }

    pub(crate) fn decode(mut reader: Reader<'a>) -> Result<Connect<'a>, DecodeError> {
        let version = protocol(&mut reader)?;
        let flags = Flags::read(version, reader.u8()?)?;
        let keep_alive = reader.u16()?;
        let properties = Properties::read(&mut reader, version, Scope::Connect)?;
        // The payload's order is that of the specification [MQTT-3.1.3-1] [MQTT3-3.1.3-1].
        let client_id = reader.string()?;
        let will = match flags.will {
            Some((qos, retain)) => Some(Will::decode(version, qos, retain, &mut reader)?),
            None => None,
        };
        // 3.1 lets the Remaining Length overrule these two flags, for the sake of clients older than they are.
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
            .u8(version as u8)
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
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
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

/// The version that a whole or partial CONNECT claims, however wrong its rest is; `None` if that cannot be told or is
/// none of ours. Tells a server how to phrase its refusal.
pub fn connect_version(packet: &[u8]) -> Option<Version> {
    if PacketType::of(*packet.first()?)? != PacketType::Connect {
        return None;
    }
    let (_, header) = remaining_length(packet).ok()??;
    protocol(&mut Reader::new(packet.get(header..)?)).ok()
}

/// Protocol Name and Protocol Version [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT3-3.1.2-1] [MQTT3-3.1.2-2].
fn protocol(reader: &mut Reader<'_>) -> Result<Version, DecodeError> {
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
        .find(|&version| version as u8 == level)
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
        // [MQTT-3.1.2-3] [MQTT3-3.1.2-3]; 3.1 reserves the bit without saying what it is.
        if bit(0) && version != Version::V3_1 {
            return Err(DecodeError::ConnectFlagReserved);
        }
        let will = if bit(2) {
            // [MQTT-3.1.2-12] [MQTT3-3.1.2-14]
            let qos = QoS::from_bits(flags >> 3 & 0b11).ok_or(DecodeError::QoSReserved)?;
            Some((qos, bit(5)))
        } else {
            // [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-13] [MQTT3-3.1.2-15]; 3.1 disregards the bits.
            if flags & 0b0011_1000 != 0 && version != Version::V3_1 {
                return Err(DecodeError::WillFlagsWithoutWill);
            }
            None
        };
        let (username, password) = (bit(7), bit(6));
        // [MQTT3-3.1.2-22]; 5.0 lets a password stand alone (3.1.2.9).
        if password && !username && version != Version::V5 {
            return Err(DecodeError::PasswordWithoutUserName);
        }
        Ok(Flags { clean_start: bit(1), will, username, password })
    }
}
