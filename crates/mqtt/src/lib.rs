//! MQTT 3.1, 3.1.1 and 5.0 on the wire, as one model in the shape of 5.0.
//!
//! [`frame`] finds a packet in a stream, and [`decode`] turns it into a [`Packet`] that borrows from it.
//! [`Packet::encode`] and [`Outgoing`] write packets. [`TopicName`], [`TopicFilter`] and [`Subscription`] implement
//! section 4.7 about topics.
//!
//! **Invariant:** this is the only crate that knows a protocol version; [`Packet::encode`] handles everything that
//! an older version cannot express. **Invariant:** no input panics, and neither decoding nor encoding into a buffer
//! with capacity allocates.

#![forbid(unsafe_code)]

mod encoder;
mod error;
mod frame;
mod packet;
mod packet_id;
mod packet_type;
mod properties;
mod qos;
mod reader;
mod reason_code;
mod topic;
mod version;

pub use error::DecodeError;
pub use frame::{PACKET_SIZE_MAX, frame};
pub use packet::ack::{Ack, SHORT_ACK_LEN, put_short_ack, short_ack};
pub use packet::auth::Auth;
pub use packet::connack::ConnAck;
pub use packet::connect::{Connect, connect_version};
pub use packet::disconnect::Disconnect;
pub use packet::outgoing::Outgoing;
pub use packet::plain::{PlainPublish, PlainShape};
pub use packet::publish::Publish;
pub use packet::suback::SubAck;
pub use packet::subscribe::{Subscribe, SubscribeFilters, SubscribeFiltersBuf};
pub use packet::subscription_options::{RetainHandling, SubscriptionOptions};
pub use packet::unsubscribe::{Unsubscribe, UnsubscribeFilters, UnsubscribeFiltersBuf};
pub use packet::will::Will;
pub use packet::{Packet, decode};
pub use packet_id::PacketId;
pub use packet_type::PacketType;
pub use properties::Properties;
pub use properties::buf::PropertiesBuf;
pub use properties::id::PropertyId;
pub use properties::property::Property;
pub use qos::QoS;
pub use reason_code::ReasonCode;
pub use topic::error::TopicError;
pub use topic::filter::TopicFilter;
pub use topic::name::{TopicName, TopicNameBuf};
pub use topic::subscription::Subscription;
pub use version::Version;
