//! Minimal MQTT 3.1.1 / 5.0 client codec: encodes packets of a client, decodes packets of a server.

mod decode;
mod encode;
mod reason;
#[cfg(test)]
mod tests;

pub use decode::{ConnAckProps, Frame, Packet, frame, parse};
pub use encode::{
    ConnectOpts, DUP, RETAIN, Version, WillOpts, ack, connect, disconnect, pingreq, publish_head,
    publish_start, put_str, put_varint, subscribe,
};
pub use reason::{connack_name, reason_name};

pub const CONNACK: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
pub const SUBACK: u8 = 9;
pub const UNSUBACK: u8 = 11;
pub const PINGRESP: u8 = 13;
pub const DISCONNECT: u8 = 14;
pub const AUTH: u8 = 15;

pub type Res<T> = Result<T, &'static str>;
