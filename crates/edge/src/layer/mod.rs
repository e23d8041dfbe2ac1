//! What may lie between a socket and MQTT: the PROXY protocol, TLS, WebSocket, in this order. Sans-IO: bytes in, bytes out.
//!
//! A plain connection has none of this and pays for none of it.

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

/// Bytes of MQTT that are wrapped at one time.
pub(crate) const CHUNK: usize = 64 * 1024;

/// What a listener's connections have to pass through.
#[derive(Clone, Default)]
pub(crate) struct LayerRules {
    pub tls: Option<Arc<ServerConfig>>,
    pub websocket: Option<Arc<WebSocketRules>>,
}

/// The layers of one connection.
pub(crate) struct Layers {
    proxy: Option<ProxyHeader>,
    tls: Option<Tls>,
    websocket: Option<(WebSocket, Arc<WebSocketRules>)>,
    /// For the socket.
    wire: Vec<u8>,
    /// How much of it has left.
    sent: usize,
}

/// What bytes from the socket have brought. It counts also when they end the connection.
#[derive(Default)]
pub(crate) struct Decoded {
    /// MQTT's bytes.
    pub plain: Vec<u8>,
    /// Whom a balancer speaks for. Told once, before any of MQTT's bytes.
    pub source: Option<SocketAddr>,
    /// The client has shown it, and TLS has verified it. Told once, before any of MQTT's bytes.
    pub certificate: Option<Arc<ClientCertificate>>,
}

/// Why a connection ends in its layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayerError {
    /// The peer has ended it in order.
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
    /// What the log says of a peer that speaks another protocol than its port.
    pub fn foreign(&self) -> Option<&'static str> {
        match self {
            LayerError::Tls(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
                Some(
                    "a client does not speak TLS to a port of TLS; it should connect with TLS (mqtts://), or to a listener without tls_certificate",
                )
            }
            LayerError::Refused(websocket::NOT_HTTP) => Some(
                "a client does not speak WebSocket to a port of WebSocket; it should use WebSocket (ws://), or a listener with transport = \"tcp\"",
            ),
            _ => None,
        }
    }
}

impl LayerRules {
    /// Layers for a new connection, on which a PROXY header comes first if `proxy` says so; `None` when there are none. `pages` is asked
    /// when there is WebSocket.
    ///
    /// # Errors
    /// A TLS configuration that cannot serve.
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
    /// Bytes came from the socket: adds what they say to `decoded`.
    ///
    /// # Errors
    /// The end of the connection. What is in [`Self::wire`] is still to be sent.
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

    /// Wraps MQTT's bytes.
    ///
    /// # Errors
    /// A connection that takes nothing more.
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

    /// Says good-bye in every layer that has a word for it. True when there is something to be sent, the first time.
    pub fn close(&mut self) -> bool {
        let mut farewell = Vec::new();
        if let Some((websocket, _)) = &mut self.websocket {
            websocket.close(&mut farewell);
        }
        match &mut self.tls {
            Some(tls) => {
                if !farewell.is_empty() {
                    // What cannot be said any more is not missed.
                    let _ = tls.send(&farewell, &mut self.wire);
                }
                tls.close(&mut self.wire);
            }
            None => self.wire.extend_from_slice(&farewell),
        }
        !self.wire().is_empty()
    }

    /// Whether a TLS handshake goes on: what costs most.
    pub fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_established())
    }

    /// Whether nothing is left to be done before MQTT.
    pub fn is_through(&self) -> bool {
        let framed = self.websocket.as_ref().is_none_or(|(websocket, _)| websocket.is_open());
        self.proxy.is_none() && !self.is_shaking_hands() && framed
    }

    /// Whether a session was resumed, once TLS is there.
    pub fn is_resumed(&self) -> Option<bool> {
        self.tls.as_ref().and_then(Tls::is_resumed)
    }

    /// What is to be written to the socket.
    pub fn wire(&self) -> &[u8] {
        &self.wire[self.sent..]
    }

    /// So much of it has left.
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

    /// The connection is idle: its buffer goes.
    pub fn rest(&mut self) {
        if self.wire.is_empty() {
            self.wire = Vec::new();
        }
    }
}

/// Bytes of an empty buffer that may stay for the next message of the same turn.
const BUFFER_KEPT_MAX: usize = 16 * 1024;
