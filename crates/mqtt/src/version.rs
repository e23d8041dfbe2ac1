//! The protocol versions.

use std::fmt;

/// A protocol version; its value is the Protocol Level (Protocol Version in 5.0) of CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// Protocol Name "MQIsdp", level 3.
    V3_1 = 3,
    /// Protocol Name "MQTT", level 4.
    V3_1_1 = 4,
    /// Protocol Name "MQTT", level 5.
    V5 = 5,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];

    /// Returns whether packets carry properties, so that each side can announce its limits.
    pub fn has_properties(self) -> bool {
        self >= Version::V5
    }

    /// Returns whether the receiver of a PUBLISH announces how many it accepts without acknowledgement, and may
    /// refuse one. Before 5.0 it can only acknowledge or close [MQTT3-3.3.5-2].
    pub fn has_receive_maximum(self) -> bool {
        self >= Version::V5
    }

    /// Returns whether a CONNECT may leave the Client Identifier to the server [MQTT-3.1.3-6] [MQTT3-3.1.3-7].
    pub fn allows_assigned_client_id(self, clean_start: bool) -> bool {
        match self {
            Version::V3_1 => false,
            Version::V3_1_1 => clean_start,
            Version::V5 => true,
        }
    }

    /// Returns the Protocol Name of the version [MQTT-3.1.2-1] [MQTT3-3.1.2-1].
    pub fn protocol_name(self) -> &'static str {
        match self {
            Version::V3_1 => "MQIsdp",
            Version::V3_1_1 | Version::V5 => "MQTT",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V3_1 => "3.1",
            Version::V3_1_1 => "3.1.1",
            Version::V5 => "5.0",
        })
    }
}
