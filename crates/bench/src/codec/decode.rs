//! Packets of a server, decoded in place from the read buffer.

use super::*;

#[derive(Debug, PartialEq, Clone, Copy)]
pub enum Frame {
    /// More bytes are needed. Holds the packet's size when it is known, else 0.
    Need(usize),
    /// A complete packet: first byte, start of the body, end of the packet.
    Have(u8, usize, usize),
}

#[inline]
pub fn frame(b: &[u8]) -> Res<Frame> {
    if b.len() < 2 {
        return Ok(Frame::Need(0));
    }
    let mut len = 0usize;
    let mut i = 1;
    loop {
        if i >= b.len() {
            return Ok(Frame::Need(0));
        }
        let d = b[i];
        len |= ((d & 0x7f) as usize) << (7 * (i - 1));
        i += 1;
        if d & 0x80 == 0 {
            break;
        }
        if i > 4 {
            return Err("remaining length over 4 bytes");
        }
    }
    if b.len() < i + len { Ok(Frame::Need(i + len)) } else { Ok(Frame::Have(b[0], i, i + len)) }
}

#[derive(Debug, Default, PartialEq, Clone)]
pub struct ConnAckProps {
    pub session_expiry: Option<u32>,
    pub receive_max: Option<u16>,
    pub max_qos: Option<u8>,
    pub max_packet: Option<u32>,
    pub server_keepalive: Option<u16>,
    pub assigned_id: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, PartialEq)]
pub enum Packet<'a> {
    ConnAck {
        session_present: bool,
        code: u8,
        props: ConnAckProps,
    },
    Publish {
        dup: bool,
        qos: u8,
        retain: bool,
        topic: &'a [u8],
        pid: u16,
        payload: &'a [u8],
    },
    /// An acknowledgement. The kind is PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack {
        kind: u8,
        pid: u16,
        reason: u8,
    },
    SubAck {
        pid: u16,
        codes: &'a [u8],
    },
    UnsubAck,
    PingResp,
    Disconnect {
        reason: u8,
    },
    Auth,
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take(&mut self, n: usize) -> Res<&'a [u8]> {
        if self.0.len() < n {
            return Err("packet ends early");
        }
        let (a, b) = self.0.split_at(n);
        self.0 = b;
        Ok(a)
    }
    #[inline]
    fn u8(&mut self) -> Res<u8> {
        Ok(self.take(1)?[0])
    }
    #[inline]
    fn u16(&mut self) -> Res<u16> {
        let s = self.take(2)?;
        Ok(u16::from_be_bytes([s[0], s[1]]))
    }
    fn u32(&mut self) -> Res<u32> {
        let s = self.take(4)?;
        Ok(u32::from_be_bytes([s[0], s[1], s[2], s[3]]))
    }
    #[inline]
    fn bin(&mut self) -> Res<&'a [u8]> {
        let n = self.u16()? as usize;
        self.take(n)
    }
    fn str(&mut self) -> Res<&'a str> {
        std::str::from_utf8(self.bin()?).map_err(|_| "string is not UTF-8")
    }
    pub(super) fn varint(&mut self) -> Res<usize> {
        let mut v = 0usize;
        for i in 0..4 {
            let d = self.u8()?;
            v |= ((d & 0x7f) as usize) << (7 * i);
            if d & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err("varint over 4 bytes")
    }
    #[inline]
    fn props(&mut self) -> Res<Reader<'a>> {
        let n = self.varint()?;
        Ok(Reader(self.take(n)?))
    }
}

/// Reads one property, checks its form and drops it.
fn skip_prop(id: u8, r: &mut Reader) -> Res<()> {
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => {
            r.u8()?;
        }
        0x13 | 0x21 | 0x22 | 0x23 => {
            r.u16()?;
        }
        0x02 | 0x11 | 0x18 | 0x27 => {
            r.u32()?;
        }
        0x0b => {
            r.varint()?;
        }
        0x03 | 0x08 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => {
            r.str()?;
        }
        0x09 | 0x16 => {
            r.bin()?;
        }
        0x26 => {
            r.str()?;
            r.str()?;
        }
        _ => return Err("unknown property"),
    }
    Ok(())
}

fn check_props(mut p: Reader) -> Res<()> {
    while !p.0.is_empty() {
        let id = p.u8()?;
        skip_prop(id, &mut p)?;
    }
    Ok(())
}

#[inline]
pub fn parse<'a>(hdr: u8, body: &'a [u8], v5: bool) -> Res<Packet<'a>> {
    let mut r = Reader(body);
    let kind = hdr >> 4;
    let flags = hdr & 0x0f;
    if kind == PUBLISH {
        let qos = (flags >> 1) & 3;
        if qos == 3 {
            return Err("PUBLISH with QoS 3");
        }
        let topic = r.bin()?;
        let mut pid = 0;
        if qos > 0 {
            pid = r.u16()?;
            if pid == 0 {
                return Err("PUBLISH with packet id 0");
            }
        } else if flags & 8 != 0 {
            return Err("PUBLISH QoS 0 with DUP");
        }
        if v5 {
            let p = r.props()?;
            if !p.0.is_empty() {
                check_props(p)?;
            }
        }
        if topic.is_empty() {
            return Err("PUBLISH with an empty topic (no alias was allowed)");
        }
        return Ok(Packet::Publish {
            dup: flags & 8 != 0,
            qos,
            retain: flags & 1 != 0,
            topic,
            pid,
            payload: r.0,
        });
    }
    let want = if kind == PUBREL { 2 } else { 0 };
    if flags != want {
        return Err("bad flags in the fixed header");
    }
    match kind {
        PUBACK | PUBREC | PUBREL | PUBCOMP => {
            let pid = r.u16()?;
            let mut reason = 0;
            if v5 {
                if !r.0.is_empty() {
                    reason = r.u8()?;
                }
                if !r.0.is_empty() {
                    check_props(r.props()?)?;
                }
            }
            if !r.0.is_empty() {
                return Err("bytes after the end of an acknowledgement");
            }
            if pid == 0 {
                return Err("acknowledgement with packet id 0");
            }
            Ok(Packet::Ack { kind, pid, reason })
        }
        CONNACK => {
            let f = r.u8()?;
            if f & 0xfe != 0 {
                return Err("CONNACK with reserved flags");
            }
            let code = r.u8()?;
            let mut c = ConnAckProps::default();
            // A v5 client refused for its version may get a 3.1.1 CONNACK.
            if v5 && !r.0.is_empty() {
                let mut p = r.props()?;
                while !p.0.is_empty() {
                    match p.u8()? {
                        0x11 => c.session_expiry = Some(p.u32()?),
                        0x21 => c.receive_max = Some(p.u16()?),
                        0x24 => c.max_qos = Some(p.u8()?),
                        0x27 => c.max_packet = Some(p.u32()?),
                        0x13 => c.server_keepalive = Some(p.u16()?),
                        0x12 => c.assigned_id = Some(p.str()?.to_string()),
                        0x1f => c.reason = Some(p.str()?.to_string()),
                        id => skip_prop(id, &mut p)?,
                    }
                }
            }
            if !r.0.is_empty() {
                return Err("bytes after the end of CONNACK");
            }
            if c.receive_max == Some(0) {
                return Err("CONNACK with receive maximum 0");
            }
            Ok(Packet::ConnAck { session_present: f & 1 == 1, code, props: c })
        }
        SUBACK => {
            let pid = r.u16()?;
            if v5 {
                check_props(r.props()?)?;
            }
            if r.0.is_empty() {
                return Err("SUBACK without codes");
            }
            Ok(Packet::SubAck { pid, codes: r.0 })
        }
        UNSUBACK => Ok(Packet::UnsubAck),
        PINGRESP => {
            if !body.is_empty() {
                return Err("PINGRESP with a body");
            }
            Ok(Packet::PingResp)
        }
        DISCONNECT => {
            if !v5 {
                return Err("DISCONNECT from a 3.1.1 server");
            }
            let mut reason = 0;
            if !r.0.is_empty() {
                reason = r.u8()?;
            }
            if !r.0.is_empty() {
                check_props(r.props()?)?;
            }
            Ok(Packet::Disconnect { reason })
        }
        AUTH if v5 => Ok(Packet::Auth),
        _ => Err("packet type not for a client"),
    }
}
