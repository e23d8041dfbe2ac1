//! Packets of MQTT 5.0 as bytes, well formed or not.

use anyhow::{Result, bail};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time without progress after which a socket counts as blocked.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// A packet with its Remaining Length; `missing` bytes of it are announced and not included.
pub fn packet(first: u8, body: &[u8], missing: usize) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = body.len() + missing;
    loop {
        let more = length >= 0x80;
        packet.push((length & 0x7f) as u8 | if more { 0x80 } else { 0 });
        length >>= 7;
        if !more {
            break;
        }
    }
    packet.extend(body);
    packet
}

/// Encodes CONNECT with Clean Start, no Keep Alive and a Receive Maximum.
pub fn connect(id: &str, expiry: u32, receive_max: u16) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05\x02\0\0\x08\x11".to_vec();
    body.extend(expiry.to_be_bytes());
    body.push(0x21);
    body.extend(receive_max.to_be_bytes());
    text(id, &mut body);
    packet(0x10, &body, 0)
}

/// Encodes SUBSCRIBE at QoS 1.
pub fn subscribe<'a>(packet_id: u16, filters: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.push(0);
    for filter in filters {
        text(filter, &mut body);
        body.push(1);
    }
    packet(0x82, &body, 0)
}

/// Encodes UNSUBSCRIBE.
pub fn unsubscribe<'a>(packet_id: u16, filters: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.push(0);
    filters.for_each(|filter| text(filter, &mut body));
    packet(0xa2, &body, 0)
}

/// Reads a whole packet, and returns its first byte.
pub fn read_packet(stream: &mut TcpStream) -> Result<u8> {
    let mut byte = [0];
    let mut next = |stream: &mut TcpStream| stream.read_exact(&mut byte).map(|()| byte[0]);
    let first = next(stream)?;
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let byte = next(stream)?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    Ok(first)
}

/// Encodes PUBLISH at QoS 1.
pub fn publish(topic: &str, packet_id: u16, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    text(topic, &mut body);
    body.extend(packet_id.to_be_bytes());
    body.push(0);
    body.extend(payload);
    packet(0x32, &body, 0)
}

pub fn dial(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Connects, and waits for a successful CONNACK.
pub fn connected(address: SocketAddr, id: &str, expiry: u32, receive_max: u16) -> Result<TcpStream> {
    let mut stream = dial(address)?;
    stream.write_all(&connect(id, expiry, receive_max))?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    if head[0] != 0x20 || head[3] != 0 {
        bail!("refused with {:#04x}", head[3]);
    }
    // The rest of CONNACK.
    let mut rest = vec![0; usize::from(head[1]) - 2];
    stream.read_exact(&mut rest)?;
    Ok(stream)
}

/// Reads the available bytes, up to `most`. `None` when the connection is closed.
pub fn drain(stream: &mut TcpStream, most: usize, wait: Duration) -> Option<usize> {
    let mut bytes = vec![0; most];
    if stream.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).is_err() {
        return None;
    }
    match stream.read(&mut bytes) {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Some(0),
        Err(_) => None,
    }
}
