//! PROXY protocol, versions 1 and 2: a load balancer first sends the address of the client.

use std::net::{IpAddr, SocketAddr};

use super::LayerError;

/// PROXY header of one connection, until it is complete.
#[derive(Debug, Default)]
pub(crate) struct ProxyHeader {
    buffered: Vec<u8>,
}

/// Maximum size of a header in bytes. Version 2 allows 16 bytes and 65,535 of addresses and extensions, but no balancer
/// sends as much.
const HEADER_MAX: usize = 4 * 1024;
/// Maximum size of a version 1 header in bytes.
const V1_MAX: usize = 107;

/// Complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proxied {
    /// Address of the client. `None` when the balancer connects for itself (a health check) or hides the address.
    pub source: Option<SocketAddr>,
    /// Number of the received bytes that belong to the header.
    pub used: usize,
}

impl ProxyHeader {
    /// Handles received bytes. `None`: the header is incomplete, and the bytes are kept.
    ///
    /// # Errors
    /// The bytes are not a PROXY header.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Proxied>, LayerError> {
        let before = self.buffered.len();
        let taken = bytes.len().min(HEADER_MAX - before);
        self.buffered.extend_from_slice(&bytes[..taken]);
        let parsed = match self.buffered.first() {
            Some(b'\r') => v2(&self.buffered),
            _ => v1(&self.buffered),
        };
        match parsed {
            Parsed::Whole { source, length } => Ok(Some(Proxied { source, used: length - before })),
            Parsed::Partial if self.buffered.len() < HEADER_MAX => Ok(None),
            Parsed::Partial | Parsed::Wrong => {
                Err(LayerError::Refused("the connection does not begin with a PROXY header"))
            }
        }
    }
}

enum Parsed {
    Whole { source: Option<SocketAddr>, length: usize },
    Partial,
    Wrong,
}

/// Parses version 1, such as `PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r
/// `.
fn v1(bytes: &[u8]) -> Parsed {
    const BEGINNING: &[u8] = b"PROXY ";
    let known = bytes.len().min(BEGINNING.len());
    if bytes[..known] != BEGINNING[..known] {
        return Parsed::Wrong;
    }
    let searched = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = searched.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_MAX { Parsed::Partial } else { Parsed::Wrong };
    };
    let Ok(line) = std::str::from_utf8(&bytes[..end]) else { return Parsed::Wrong };
    let length = end + 2;
    let mut words = line.split(' ').skip(1);
    let (Some(family), source, _, port) = (words.next(), words.next(), words.next(), words.next()) else {
        return Parsed::Wrong;
    };
    if family == "UNKNOWN" {
        return Parsed::Whole { source: None, length };
    }
    let address = source.and_then(|source| source.parse::<IpAddr>().ok());
    let port = port.and_then(|port| port.parse::<u16>().ok());
    match (family, address, port) {
        ("TCP4", Some(address @ IpAddr::V4(_)), Some(port))
        | ("TCP6", Some(address @ IpAddr::V6(_)), Some(port)) => {
            Parsed::Whole { source: Some(SocketAddr::new(address, port)), length }
        }
        _ => Parsed::Wrong,
    }
}

fn v2(bytes: &[u8]) -> Parsed {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    const FIXED: usize = 16;
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Parsed::Wrong;
    }
    let Some(fixed) = bytes.get(..FIXED) else { return Parsed::Partial };
    let (command, family) = (fixed[12], fixed[13]);
    let length = FIXED + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if command >> 4 != 2 || command & 0xF > 1 {
        return Parsed::Wrong;
    }
    let Some(block) = bytes.get(FIXED..length) else { return Parsed::Partial };
    // LOCAL is a connection of the balancer itself. Families other than IPv4 and IPv6 over a stream have no usable
    // address.
    let source = match (command & 0xF, family) {
        (1, 0x11) => match block.get(..12) {
            Some(block) => {
                let address: [u8; 4] = block[..4].try_into().unwrap_or_default();
                Some(SocketAddr::from((address, u16::from_be_bytes([block[8], block[9]]))))
            }
            None => return Parsed::Wrong,
        },
        (1, 0x21) => match block.get(..36) {
            Some(block) => {
                let address: [u8; 16] = block[..16].try_into().unwrap_or_default();
                Some(SocketAddr::from((address, u16::from_be_bytes([block[32], block[33]]))))
            }
            None => return Parsed::Wrong,
        },
        _ => None,
    };
    Parsed::Whole { source, length }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(bytes: &[u8], size: usize) -> Result<Option<(Option<String>, usize)>, LayerError> {
        let mut header = ProxyHeader::default();
        let mut before = 0;
        for piece in bytes.chunks(size) {
            if let Some(Proxied { source, used }) = header.receive(piece)? {
                return Ok(Some((source.map(|source| source.to_string()), before + used)));
            }
            before += piece.len();
        }
        Ok(None)
    }

    fn v2_header(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        bytes.extend([command, family]);
        bytes.extend((block.len() as u16).to_be_bytes());
        bytes.extend(block);
        bytes
    }

    #[test]
    fn headers_are_read_in_pieces_of_any_size() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 0xDC, 0x04, 0x07, 0x5B];
        let mut v6 = [0; 36];
        v6[0..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 7;
        v6[32..34].copy_from_slice(&[0x10, 0x00]);
        let cases: [(Vec<u8>, Option<&str>); 7] = [
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 1883\r\n".to_vec(), Some("192.0.2.1:56324")),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 1883\r\n".to_vec(), Some("[2001:db8::1]:56324")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n".to_vec(), None),
            (v2_header(0x21, 0x11, &v4), Some("192.0.2.1:56324")),
            (v2_header(0x21, 0x21, &[&v6[..], b"\x03\x00\x02xx"].concat()), Some("[2001::7]:4096")),
            (v2_header(0x20, 0x00, &[]), None),
        ];
        for (header, source) in cases {
            let bytes = [&header[..], b"\x10\x0c"].concat();
            for size in [1, 5, 1000] {
                let expected = Some((source.map(str::to_owned), header.len()));
                assert_eq!(receive(&bytes, size), Ok(expected), "{header:?}");
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused_at_the_first_wrong_byte() {
        let cases: [&[u8]; 9] = [
            b"\x10\x0c\x00\x04MQTT",
            b"PROXX",
            b"PROXY TCP4 a b c d\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4\r\n",
            b"PROXY \xff\r\n",
            b"\r\n\r\n\0\r\nQUIX",
            &v2_header(0x31, 0x11, &[0; 12]),
            &v2_header(0x21, 0x11, &[0; 11]),
        ];
        for bytes in cases {
            for size in [1, 1000] {
                assert!(receive(bytes, size).is_err(), "{bytes:?}");
            }
        }
        assert!(receive(&[b'P'; 1], 1).is_ok_and(|header| header.is_none()));
        assert!(receive(format!("PROXY {}", "x".repeat(200)).as_bytes(), 1).is_err());
        assert!(receive(&v2_header(0x21, 0x11, &[0; 60_000]), 1000).is_err());
    }
}
