//! Packets of a client.

use super::PUBREL;
use crate::properties;

pub fn put_varint(b: &mut Vec<u8>, mut v: usize) {
    loop {
        let d = (v & 0x7f) as u8;
        v >>= 7;
        if v == 0 {
            b.push(d);
            return;
        }
        b.push(d | 0x80);
    }
}

pub fn varint_len(v: usize) -> usize {
    match v {
        0..=127 => 1,
        128..=16383 => 2,
        16384..=2097151 => 3,
        _ => 4,
    }
}

pub fn put_str(b: &mut Vec<u8>, s: &[u8]) {
    assert!(s.len() <= 65535);
    b.extend_from_slice(&(s.len() as u16).to_be_bytes());
    b.extend_from_slice(s);
}

/// Protocol version. For this client, 3.1 differs from 3.1.1 in CONNECT only.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Version {
    V31,
    #[default]
    V311,
    V5,
}

impl Version {
    #[inline]
    pub fn is_5(self) -> bool {
        self == Version::V5
    }

    /// Number of the version on command lines and in reports; 3.1 is reported as 3.1.1.
    pub fn number(self) -> u8 {
        if self.is_5() { 5 } else { 4 }
    }
}

#[derive(Default)]
pub struct ConnectOpts<'a> {
    pub version: Version,
    pub clean: bool,
    pub keepalive: u16,
    pub client_id: &'a str,
    pub user: Option<&'a str>,
    pub pass: Option<&'a str>,
    /// Session Expiry Interval, v5 only; 0 = property left out (the session ends with the connection).
    pub expiry: u32,
    /// Receive Maximum, v5 only; 0 or 65535 = property left out.
    pub recv_max: u16,
    /// Further encoded properties, v5 only.
    pub properties: &'a [u8],
    pub will: Option<WillOpts<'a>>,
}

pub struct WillOpts<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: u8,
    pub retain: bool,
    /// Encoded properties of the Will, v5 only.
    pub properties: &'a [u8],
}

pub fn connect(b: &mut Vec<u8>, o: &ConnectOpts) {
    let mut v = Vec::with_capacity(64);
    let (name, level): (&[u8], u8) = match o.version {
        Version::V31 => (b"MQIsdp", 3),
        Version::V311 => (b"MQTT", 4),
        Version::V5 => (b"MQTT", 5),
    };
    put_str(&mut v, name);
    v.push(level);
    let mut flags = 0u8;
    if o.clean {
        flags |= 0x02;
    }
    if o.user.is_some() {
        flags |= 0x80;
    }
    if o.pass.is_some() {
        flags |= 0x40;
    }
    if let Some(will) = &o.will {
        flags |= 0x04 | will.qos << 3 | u8::from(will.retain) << 5;
    }
    v.push(flags);
    v.extend_from_slice(&o.keepalive.to_be_bytes());
    if o.version.is_5() {
        let mut p = Vec::new();
        if o.expiry > 0 {
            p.push(0x11);
            p.extend_from_slice(&o.expiry.to_be_bytes());
        }
        if o.recv_max != 0 && o.recv_max != 65535 {
            p.push(0x21);
            p.extend_from_slice(&o.recv_max.to_be_bytes());
        }
        p.extend_from_slice(o.properties);
        properties::put(&mut v, &p);
    }
    put_str(&mut v, o.client_id.as_bytes());
    if let Some(will) = &o.will {
        if o.version.is_5() {
            properties::put(&mut v, will.properties);
        }
        put_str(&mut v, will.topic.as_bytes());
        put_str(&mut v, will.payload);
    }
    if let Some(u) = o.user {
        put_str(&mut v, u.as_bytes());
    }
    if let Some(p) = o.pass {
        put_str(&mut v, p.as_bytes());
    }
    b.push(0x10);
    put_varint(b, v.len());
    b.extend_from_slice(&v);
}

pub fn subscribe<S: AsRef<str>>(b: &mut Vec<u8>, v5: bool, pid: u16, filters: &[S], qos: u8) {
    let len = 2 + v5 as usize + filters.iter().map(|f| f.as_ref().len() + 3).sum::<usize>();
    b.push(0x82);
    put_varint(b, len);
    b.extend_from_slice(&pid.to_be_bytes());
    if v5 {
        b.push(0);
    }
    for f in filters {
        put_str(b, f.as_ref().as_bytes());
        b.push(qos);
    }
}

/// Appends PUBACK, PUBREC, PUBREL or PUBCOMP with success (the short form is valid in both versions).
#[inline]
pub fn ack(b: &mut Vec<u8>, kind: u8, pid: u16) {
    let flags = if kind == PUBREL { 2 } else { 0 };
    let p = pid.to_be_bytes();
    b.extend_from_slice(&[(kind << 4) | flags, 2, p[0], p[1]]);
}

pub fn pingreq(b: &mut Vec<u8>) {
    b.extend_from_slice(&[0xc0, 0]);
}

/// Appends a normal DISCONNECT (the short form is valid in both versions).
pub fn disconnect(b: &mut Vec<u8>) {
    b.extend_from_slice(&[0xe0, 0]);
}

/// Constant part of a publisher's PUBLISH after the first byte: remaining length and topic. `properties` are encoded;
/// v5 only.
pub fn publish_head(properties: Option<&[u8]>, qos: u8, topic: &str, payload: usize) -> Vec<u8> {
    let properties = properties.map_or(0, |properties| varint_len(properties.len()) + properties.len());
    let rem = 2 + topic.len() + if qos > 0 { 2 } else { 0 } + properties + payload;
    let mut h = Vec::with_capacity(topic.len() + 6);
    put_varint(&mut h, rem);
    put_str(&mut h, topic.as_bytes());
    h
}

/// Bits of a PUBLISH's first byte.
pub const DUP: u8 = 8;
pub const RETAIN: u8 = 1;

/// Appends a PUBLISH up to its payload.
#[inline]
pub fn publish_start(b: &mut Vec<u8>, properties: Option<&[u8]>, qos: u8, flags: u8, head: &[u8], pid: u16) {
    b.push(0x30 | (qos << 1) | flags);
    b.extend_from_slice(head);
    if qos > 0 {
        b.extend_from_slice(&pid.to_be_bytes());
    }
    if let Some(properties) = properties {
        properties::put(b, properties);
    }
}
