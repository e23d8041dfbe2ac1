//! Answers to clients that speak another protocol than MQTT. An answer names the right port.

/// Protocol of a connection that does not begin with CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignProtocol {
    /// A record of a TLS handshake.
    Tls,
    /// An HTTP request.
    Http,
}

const METHODS: [&[u8]; 9] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"PRI * "];

const BODY: &str = "This port speaks MQTT, not HTTP.\n\
                    MQTT over WebSocket needs a listener with transport = \"websocket\", usually port 8083.\n\
                    The dashboard and the API are at the address of http.listen, usually port 18083.\n";

impl ForeignProtocol {
    /// Returns the protocol that the first bytes belong to. `None` means that they may be MQTT.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        // CONNECT begins with 0x10; the type of the first packet and its flags have no other value (2.1.3).
        match bytes {
            [] | [0x10, ..] => None,
            [0x16, 3, ..] => Some(Self::Tls),
            _ => METHODS.iter().any(|method| bytes.starts_with(method)).then_some(Self::Http),
        }
    }

    /// Returns the answer for the client, if the client can read one.
    pub fn answer(self) -> Option<String> {
        (self == Self::Http).then(|| {
            let length = BODY.len();
            format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{BODY}"
            )
        })
    }

    /// Returns the text for the log.
    pub fn what(self) -> &'static str {
        match self {
            Self::Tls => {
                "a client speaks TLS to a port without it; it should connect without TLS, or to a listener with tls_certificate"
            }
            Self::Http => {
                "a client speaks HTTP to a port of MQTT; WebSocket has a listener of its own, and the API its own port"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_recognized_by_their_first_bytes() {
        let client_hello = [0x16, 3, 1, 2, 0, 1];
        assert_eq!(ForeignProtocol::of(&client_hello), Some(ForeignProtocol::Tls));
        for request in ["GET / HTTP/1.1\r\n", "POST /x HTTP/1.0\r\n", "PRI * HTTP/2.0\r\n"] {
            assert_eq!(ForeignProtocol::of(request.as_bytes()), Some(ForeignProtocol::Http), "{request}");
        }
        for unknown in [&[][..], &[0x16], &[0x10, 3], b"GET", b"GETTING", b"\xF0GET "] {
            assert_eq!(ForeignProtocol::of(unknown), None, "{unknown:?}");
        }
    }
}
