//! The end of a connection.

use std::fmt;

use mqtt::{DecodeError, Disconnect, PacketType, ReasonCode};

use super::limits::{Limits, printable};

/// Cause of the end of a connection, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The CONNACK has a failure.
    Refused { reason: ReasonCode, text: Option<String>, server_reference: Option<String> },
    /// The server has sent a DISCONNECT.
    Disconnected { reason: ReasonCode, text: Option<String>, server_reference: Option<String> },
    /// The server's bytes are no valid packet.
    Malformed(DecodeError),
    /// The server must not send this packet, or not now.
    Unexpected(PacketType),
    /// The server used a Topic Alias, although the client accepts none.
    TopicAlias,
    /// An answer has another number of Reason Codes than its request has filters, or answers nothing.
    AnswerMismatch(PacketType),
    /// The server did not answer a PINGREQ.
    PingTimeout,
    /// The server did not answer a SUBSCRIBE or UNSUBSCRIBE.
    RequestTimeout,
    /// The options do not fit into a CONNECT.
    ConnectNotEncodable,
}

impl CloseReason {
    pub(crate) fn refused(reason: ReasonCode, limits: Limits) -> Self {
        Self::Refused { reason, text: limits.reason_string, server_reference: limits.server_reference }
    }

    pub(crate) fn disconnected(disconnect: &Disconnect<'_>) -> Self {
        let properties = disconnect.properties;
        Self::Disconnected {
            reason: disconnect.reason,
            text: properties.reason_string().map(printable),
            server_reference: properties.server_reference().map(printable),
        }
    }

    /// Returns the Reason Code that the server is to get; `None` when the server has ended the connection itself.
    pub fn reason_code(&self) -> Option<ReasonCode> {
        match self {
            Self::Refused { .. } | Self::Disconnected { .. } | Self::ConnectNotEncodable => None,
            Self::Malformed(error) => Some(error.reason_code()),
            Self::Unexpected(_) | Self::AnswerMismatch(_) => Some(ReasonCode::ProtocolError),
            Self::TopicAlias => Some(ReasonCode::TopicAliasInvalid),
            Self::PingTimeout | Self::RequestTimeout => Some(ReasonCode::UnspecifiedError),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = |f: &mut fmt::Formatter<'_>, text: &Option<String>, reference: &Option<String>| {
            if let Some(text) = text {
                write!(f, ": {text}")?;
            }
            match reference {
                Some(reference) => write!(f, "; it names the server {reference}"),
                None => Ok(()),
            }
        };
        match self {
            Self::Refused { reason, text, server_reference } => {
                write!(f, "the server refused the connection: {reason}")?;
                details(f, text, server_reference)
            }
            Self::Disconnected { reason, text, server_reference } => {
                write!(f, "the server closed the connection: {reason}")?;
                details(f, text, server_reference)
            }
            Self::Malformed(error) => write!(f, "the server sent an invalid packet: {error}"),
            Self::Unexpected(packet) => write!(f, "the server sent {packet} where it is not allowed"),
            Self::TopicAlias => f.write_str("the server used a Topic Alias without permission"),
            Self::AnswerMismatch(packet) => write!(f, "the server sent {packet} that answers no request"),
            Self::PingTimeout => f.write_str("the server did not answer a PINGREQ"),
            Self::RequestTimeout => f.write_str("the server did not answer a SUBSCRIBE or UNSUBSCRIBE"),
            Self::ConnectNotEncodable => {
                f.write_str("the client id, user name, password or Will does not fit into a CONNECT")
            }
        }
    }
}

impl std::error::Error for CloseReason {}
