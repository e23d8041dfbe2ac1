//! Layers between a socket and MQTT: TLS, WebSocket, or one in the other. Bytes in, bytes out; no sockets.

mod websocket;

use crate::random::Random;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use tls::OptionStyle;
use websocket::WebSocket;
pub use websocket::check_headers;

/// Layers of every connection of a run below MQTT.
#[derive(Clone, Default)]
pub struct Layers {
    pub tls: Option<Arc<ClientConfig>>,
    /// Path of the WebSocket.
    pub websocket: Option<String>,
    /// Headers of the WebSocket request, checked by [`check_headers`].
    pub headers: Vec<(String, String)>,
    /// Names of the hosts, in the order of their addresses: certificates are checked against them.
    pub names: Vec<String>,
}

impl Layers {
    pub fn are_plain(&self) -> bool {
        self.tls.is_none() && self.websocket.is_none()
    }
}

/// The layers of one connection.
pub struct Layer {
    tls: Option<Box<ClientConnection>>,
    websocket: Option<WebSocket>,
    host: String,
    /// Number of bytes of the connection's output that are sealed already.
    pub sealed: usize,
}

/// Number of bytes that TLS processes at once.
const CHUNK: usize = 16 * 1024;

impl Layer {
    /// Appends the first bytes for the server to `wire`. `number` selects a host name.
    ///
    /// # Errors
    /// A host that cannot be in a certificate.
    pub fn open(
        layers: &Layers,
        number: usize,
        random: &mut Random,
        wire: &mut Vec<u8>,
    ) -> Result<Layer, String> {
        let full = layers.names.get(number % layers.names.len().max(1)).map_or("", String::as_str);
        let host = host_of(full);
        let tls = match &layers.tls {
            Some(config) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|_| format!("TLS: {host} cannot be the name in a certificate"))?;
                let tls = ClientConnection::new(config.clone(), name)
                    .map_err(|e| tls::explain(&e, host, OptionStyle::CommandLine))?;
                Some(Box::new(tls))
            }
            None => None,
        };
        let mut layer = Layer { tls, websocket: None, host: host.to_owned(), sealed: 0 };
        if let Some(path) = &layers.websocket {
            let (websocket, request) = WebSocket::open(full, path, &layers.headers, random);
            layer.websocket = Some(websocket);
            layer.seal_tls(&request, wire)?;
        }
        layer.flush_tls(wire)?;
        Ok(layer)
    }

    /// Returns whether MQTT can be sent.
    pub fn is_open(&self) -> bool {
        !self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
            && self.websocket.as_ref().is_none_or(WebSocket::is_open)
    }

    /// Converts bytes of MQTT to bytes for the socket.
    ///
    /// # Errors
    /// Errors of TLS.
    pub fn seal(&mut self, plain: &[u8], random: &mut Random, wire: &mut Vec<u8>) -> Result<(), String> {
        match &mut self.websocket {
            Some(websocket) => {
                let mut framed = Vec::with_capacity(plain.len() + 14);
                websocket.frame(plain, random, &mut framed);
                self.seal_tls(&framed, wire)
            }
            None => self.seal_tls(plain, wire),
        }
    }

    /// Converts bytes from the socket to bytes of MQTT; immediate answers are appended to `wire`.
    ///
    /// # Errors
    /// A server that violates a protocol, or whose certificate is not accepted.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        random: &mut Random,
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<(), String> {
        let opened;
        let inner = match &mut self.tls {
            None => bytes,
            Some(_) => {
                opened = self.open_tls(bytes, wire)?;
                &opened[..]
            }
        };
        let Some(websocket) = &mut self.websocket else {
            plain.extend_from_slice(inner);
            return Ok(());
        };
        let mut answer = vec![];
        websocket.receive(inner, random, plain, &mut answer)?;
        if answer.is_empty() { Ok(()) } else { self.seal_tls(&answer, wire) }
    }

    fn open_tls(&mut self, mut bytes: &[u8], wire: &mut Vec<u8>) -> Result<Vec<u8>, String> {
        let mut opened = vec![];
        let Some(tls) = &mut self.tls else { return Ok(opened) };
        let mut is_over = false;
        while !is_over && !bytes.is_empty() {
            is_over = match open_some(tls, &mut bytes, &mut opened) {
                Ok(is_over) => is_over,
                Err(OpenError::Io(error)) => return Err(error.to_string()),
                Err(OpenError::Tls(error)) => {
                    // An alert informs the server, if it still reads.
                    let _ = tls.write_tls(wire);
                    return Err(tls::explain(&error, &self.host, OptionStyle::CommandLine));
                }
            };
        }
        self.flush_tls(wire)?;
        Ok(opened)
    }

    fn seal_tls(&mut self, bytes: &[u8], wire: &mut Vec<u8>) -> Result<(), String> {
        let Some(tls) = &mut self.tls else {
            wire.extend_from_slice(bytes);
            return Ok(());
        };
        for chunk in bytes.chunks(CHUNK) {
            tls.writer().write_all(chunk).map_err(|error| error.to_string())?;
            while tls.wants_write() {
                tls.write_tls(wire).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn flush_tls(&mut self, wire: &mut Vec<u8>) -> Result<(), String> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(wire).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

enum OpenError {
    Io(std::io::Error),
    Tls(rustls::Error),
}

/// Consumes some of `bytes` and appends decrypted data to `opened`. True when the server has ended TLS: all further
/// bytes are ignored.
fn open_some(tls: &mut ClientConnection, bytes: &mut &[u8], opened: &mut Vec<u8>) -> Result<bool, OpenError> {
    let taken = tls.read_tls(bytes).map_err(OpenError::Io)?;
    let state = tls.process_new_packets().map_err(OpenError::Tls)?;
    match tls.reader().read_to_end(opened) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(OpenError::Io(error)),
        _ => {}
    }
    Ok(taken == 0 || state.peer_has_closed())
}

/// Extracts the host: `[::1]:8883` becomes `::1`.
fn host_of(named: &str) -> &str {
    let host = named.rsplit_once(':').map_or(named, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    #[test]
    fn a_name_in_a_certificate_has_neither_port_nor_brackets() {
        for (named, host) in [("a.b:1", "a.b"), ("[::1]:8883", "::1"), ("127.0.0.1:1", "127.0.0.1")] {
            assert_eq!(host_of(named), host);
        }
    }

    /// Two ends with a completed handshake: the measured server, and this client.
    fn pair() -> (ServerConnection, ClientConnection) {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate = issued.cert.der().clone();
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("a server");
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("a root");
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut server = ServerConnection::new(Arc::new(server)).expect("a server");
        let mut client = ClientConnection::new(Arc::new(client), name).expect("a client");
        for _ in 0..3 {
            let mut sent_bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent_bytes).expect("to memory");
            }
            server.read_tls(&mut &sent_bytes[..]).expect("from memory");
            server.process_new_packets().expect("a handshake");
            let answer = output(&mut server);
            let mut unread = &answer[..];
            while !unread.is_empty() {
                assert!(open_some(&mut client, &mut unread, &mut Vec::new()).is_ok_and(|is_over| !is_over));
            }
        }
        (server, client)
    }

    fn output(server: &mut ServerConnection) -> Vec<u8> {
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("to memory");
        }
        wire
    }

    /// A server could otherwise occupy the client for ever.
    #[test]
    fn bytes_after_the_end_of_tls_are_ignored() {
        let (mut server, mut client) = pair();
        server.writer().write_all(b"data").expect("buffered");
        server.send_close_notify();
        let mut wire = output(&mut server);
        wire.extend([0; 8_000]);
        let (mut unread, mut opened, mut rounds) = (&wire[..], Vec::new(), 0);
        while !open_some(&mut client, &mut unread, &mut opened).ok().expect("no fault") {
            rounds += 1;
            assert!(rounds < 100, "{} bytes are never consumed", unread.len());
        }
        assert_eq!(opened, b"data");
    }
}
