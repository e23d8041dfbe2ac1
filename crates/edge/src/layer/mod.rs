//! Layers between a socket and MQTT: the PROXY protocol, TLS and WebSocket, in this order. Sans-IO: bytes in, bytes
//! out.
//!
//! A plain connection has no layers and no cost for them.

mod certificate;
mod page;
mod proxy;
mod tls;
mod websocket;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use broker::access::ClientCertificate;
use rustls::ServerConfig;

pub(crate) use page::PageRule;
pub(crate) use websocket::WebSocketRules;

use proxy::{Proxied, ProxyHeader};
use tls::Tls;
use websocket::WebSocket;

/// Maximum number of MQTT bytes that are wrapped in one piece.
pub(crate) const CHUNK: usize = 64 * 1024;

/// Layers of a listener's connections.
#[derive(Clone, Default)]
pub(crate) struct LayerRules {
    pub tls: Option<Arc<ServerConfig>>,
    pub websocket: Option<Arc<WebSocketRules>>,
}

/// Layers of one connection.
pub(crate) struct Layers {
    proxy: Option<ProxyHeader>,
    tls: Option<Tls>,
    websocket: Option<(WebSocket, Arc<WebSocketRules>)>,
    /// Bytes for the socket.
    wire: Vec<u8>,
    /// Number of these bytes that are written.
    sent: usize,
}

/// Result of received bytes. It is valid also when the bytes end the connection.
#[derive(Default)]
pub(crate) struct Decoded {
    /// MQTT bytes.
    pub plain: Vec<u8>,
    /// Client address from a PROXY header. Set once, before any MQTT bytes.
    pub source: Option<SocketAddr>,
    /// Verified certificate of the client. Set once, before any MQTT bytes.
    pub certificate: Option<Arc<ClientCertificate>>,
}

/// Reason why a connection ends in its layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayerError {
    /// The peer has closed the connection in order.
    Closed,
    Refused(&'static str),
    Tls(rustls::Error),
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayerError::Closed => f.write_str("closed by the peer"),
            LayerError::Refused(why) => f.write_str(why),
            LayerError::Tls(error) => write!(f, "TLS: {error}"),
        }
    }
}

impl LayerError {
    /// Returns a log message for a peer that speaks another protocol than its port.
    pub fn foreign(&self) -> Option<&'static str> {
        match self {
            LayerError::Tls(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
                Some(
                    "a client does not speak TLS on a TLS port; connect with TLS (mqtts://), or to a listener without tls_certificate",
                )
            }
            LayerError::Refused(websocket::NOT_HTTP) => Some(
                "a client does not speak WebSocket on a WebSocket port; connect with WebSocket (ws://), or to a listener with transport = \"mqtt\"",
            ),
            _ => None,
        }
    }
}

impl LayerRules {
    /// Builds the layers of a new connection; `None` when it needs none. `proxy` says that a PROXY header comes first.
    /// `pages` is called for WebSocket only.
    ///
    /// # Errors
    /// The TLS configuration cannot be used.
    pub fn start(
        &self,
        proxy: bool,
        pages: impl FnOnce() -> PageRule,
    ) -> Result<Option<Box<Layers>>, rustls::Error> {
        if !proxy && self.tls.is_none() && self.websocket.is_none() {
            return Ok(None);
        }
        let tls = self.tls.clone().map(Tls::new).transpose()?;
        let websocket = self.websocket.clone().map(|rules| (WebSocket::new(pages()), rules));
        let proxy = proxy.then(ProxyHeader::default);
        Ok(Some(Box::new(Layers { proxy, tls, websocket, wire: Vec::new(), sent: 0 })))
    }
}

impl Layers {
    /// Handles bytes from the socket, and adds their content to `decoded`.
    ///
    /// # Errors
    /// The connection ends. The bytes in [`Self::wire`] are still to be sent.
    pub fn receive(&mut self, bytes: &[u8], decoded: &mut Decoded) -> Result<(), LayerError> {
        let mut bytes = bytes;
        if let Some(header) = &mut self.proxy {
            let Some(Proxied { source, used }) = header.receive(bytes)? else { return Ok(()) };
            decoded.source = source;
            self.proxy = None;
            bytes = &bytes[used..];
        }
        let Some(tls) = &mut self.tls else {
            return self.receive_framed(bytes, &mut decoded.plain);
        };
        if self.websocket.is_none() {
            return tls.receive(bytes, decoded, &mut self.wire);
        }
        let mut decrypted = Decoded::default();
        let received = tls.receive(bytes, &mut decrypted, &mut self.wire);
        decoded.certificate = decrypted.certificate;
        self.receive_framed(&decrypted.plain, &mut decoded.plain)?;
        received
    }

    fn receive_framed(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), LayerError> {
        let Some((websocket, rules)) = &mut self.websocket else {
            plain.extend_from_slice(bytes);
            return Ok(());
        };
        let mut answer = Vec::new();
        let received = websocket.receive(rules, bytes, plain, &mut answer);
        if !answer.is_empty() {
            match &mut self.tls {
                Some(tls) => tls.send(&answer, &mut self.wire)?,
                None => self.wire.extend_from_slice(&answer),
            }
        }
        received
    }

    /// Wraps MQTT bytes for the socket.
    ///
    /// # Errors
    /// The connection can no longer be written to.
    pub fn send(&mut self, plain: &[u8]) -> Result<(), LayerError> {
        match (&self.websocket, &mut self.tls) {
            (None, None) => self.wire.extend_from_slice(plain),
            (Some((websocket, _)), None) => websocket.send(plain, &mut self.wire),
            (None, Some(tls)) => tls.send(plain, &mut self.wire)?,
            (Some((websocket, _)), Some(tls)) => {
                let mut framed = Vec::with_capacity(plain.len() + 16);
                websocket.send(plain, &mut framed);
                tls.send(&framed, &mut self.wire)?;
            }
        }
        Ok(())
    }

    /// Sends the closing message of each layer that has one. Returns true when there is something to send, the first
    /// time.
    pub fn close(&mut self) -> bool {
        let mut farewell = Vec::new();
        if let Some((websocket, _)) = &mut self.websocket {
            websocket.close(&mut farewell);
        }
        match &mut self.tls {
            Some(tls) => {
                if !farewell.is_empty() {
                    // An error is ignored: the connection ends anyway.
                    let _ = tls.send(&farewell, &mut self.wire);
                }
                tls.close(&mut self.wire);
            }
            None => self.wire.extend_from_slice(&farewell),
        }
        !self.wire().is_empty()
    }

    /// Returns whether a TLS handshake is in progress, which is the expensive part.
    pub fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_established())
    }

    /// Returns whether all layers are ready for MQTT.
    pub fn is_through(&self) -> bool {
        let framed = self.websocket.as_ref().is_none_or(|(websocket, _)| websocket.is_open());
        self.proxy.is_none() && !self.is_shaking_hands() && framed
    }

    /// Returns whether a TLS session was resumed; `None` until TLS is established.
    pub fn is_resumed(&self) -> Option<bool> {
        self.tls.as_ref().and_then(Tls::is_resumed)
    }

    /// Returns the bytes to write to the socket.
    pub fn wire(&self) -> &[u8] {
        &self.wire[self.sent..]
    }

    /// Removes `count` written bytes.
    pub fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.wire.len() {
            self.sent = 0;
            self.wire.clear();
            if self.wire.capacity() > BUFFER_KEPT_MAX {
                self.wire = Vec::new();
            }
        }
    }

    /// Frees the buffer of an idle connection.
    pub fn rest(&mut self) {
        if self.wire.is_empty() {
            self.wire = Vec::new();
        }
    }
}

/// Maximum size of an empty buffer that stays allocated for the next message of the same turn.
const BUFFER_KEPT_MAX: usize = 16 * 1024;
