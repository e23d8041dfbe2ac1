//! What lies between a socket and MQTT: TLS, WebSocket, or one in the other. Bytes in, bytes out; no sockets in here.

mod websocket;

use crate::random::Random;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use websocket::WebSocket;
pub use websocket::check_headers;

/// What every connection of a run speaks below MQTT.
#[derive(Clone, Default)]
pub struct Layers {
    pub tls: Option<Arc<ClientConfig>>,
    /// The path of the WebSocket.
    pub websocket: Option<String>,
    /// Of the WebSocket's request, checked by [`check_headers`].
    pub headers: Vec<(String, String)>,
    /// The hosts as they were named, in the order of their addresses: what certificates are checked by.
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
    /// Bytes of the connection's output that are sealed already.
    pub sealed: usize,
}

/// Bytes that TLS takes at once.
const CHUNK: usize = 16 * 1024;

impl Layer {
    /// Puts the first bytes for the server into `wire`. `number` chooses among the hosts' names.
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
                let tls = ClientConnection::new(config.clone(), name).map_err(|e| tls::explain(&e, host))?;
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

    /// Whether MQTT can be sent.
    pub fn is_open(&self) -> bool {
        !self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
            && self.websocket.as_ref().is_none_or(WebSocket::is_open)
    }

    /// Bytes of MQTT become bytes for the socket.
    ///
    /// # Errors
    /// What TLS says.
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

    /// Bytes from the socket become bytes of MQTT; what is to be answered at once goes to `wire`.
    ///
    /// # Errors
    /// A server that breaks a protocol, or whose certificate is not accepted.
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
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            if let Err(error) = tls.process_new_packets() {
                let why = tls::explain(&error, &self.host);
                // The server learns of it by an alert, if it still reads.
                let _ = tls.write_tls(wire);
                return Err(why);
            }
            match tls.reader().read_to_end(&mut opened) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.to_string()),
            }
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

/// `[::1]:8883` is `::1`.
fn host_of(named: &str) -> &str {
    let host = named.rsplit_once(':').map_or(named, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_certificate_has_neither_port_nor_brackets() {
        for (named, host) in [("a.b:1", "a.b"), ("[::1]:8883", "::1"), ("127.0.0.1:1", "127.0.0.1")] {
            assert_eq!(host_of(named), host);
        }
    }
}
