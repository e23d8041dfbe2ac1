//! A blocking client for any kind of listener, with the parts of MQTT and WebSocket that these measurements need.

use super::certificates::Certificates;
use anyhow::{Context, Result, bail, ensure};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Layers between the socket and MQTT.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenerKind {
    Plain,
    WebSocket,
    Tls13,
    Tls12,
    SecureWebSocket,
    Mutual,
}

impl ListenerKind {
    pub const ALL: [ListenerKind; 6] = [
        ListenerKind::Plain,
        ListenerKind::WebSocket,
        ListenerKind::Tls13,
        ListenerKind::Tls12,
        ListenerKind::SecureWebSocket,
        ListenerKind::Mutual,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ListenerKind::Plain => "plain TCP",
            ListenerKind::WebSocket => "WebSocket",
            ListenerKind::Tls13 => "TLS 1.3",
            ListenerKind::Tls12 => "TLS 1.2",
            ListenerKind::SecureWebSocket => "secure WebSocket, TLS 1.3",
            ListenerKind::Mutual => "TLS 1.3, certificate of the client",
        }
    }

    pub fn is_tls(self) -> bool {
        !matches!(self, ListenerKind::Plain | ListenerKind::WebSocket)
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, ListenerKind::WebSocket | ListenerKind::SecureWebSocket)
    }

    /// TLS configuration; `None` without TLS. With `resume` it remembers sessions, so it belongs to one client.
    pub fn config(self, certificates: &Certificates, resume: bool) -> Result<Option<Arc<ClientConfig>>> {
        if !self.is_tls() {
            return Ok(None);
        }
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificates.path("ca.pem"))?)?;
        let version =
            if self == ListenerKind::Tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots);
        let mut config = if self == ListenerKind::Mutual {
            let chain = vec![CertificateDer::from_pem_file(certificates.path("client.pem"))?];
            builder.with_client_auth_cert(
                chain,
                PrivateKeyDer::from_pem_file(certificates.path("client.key"))?,
            )?
        } else {
            builder.with_no_client_auth()
        };
        if !resume {
            config.resumption = Resumption::disabled();
        }
        Ok(Some(Arc::new(config)))
    }
}

enum Pipe {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One connection.
pub struct Client {
    pipe: Pipe,
    websocket: bool,
    /// Bytes of incomplete frames.
    frames: Vec<u8>,
    /// Unread bytes of MQTT.
    plain: Vec<u8>,
    pub resumed: bool,
}

impl Client {
    /// Connects, and returns after CONNACK.
    pub fn connect(
        address: SocketAddr,
        listener: ListenerKind,
        config: Option<&Arc<ClientConfig>>,
        client_id: &str,
    ) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let pipe = match config {
            None => Pipe::Plain(stream),
            Some(config) => {
                let connection = ClientConnection::new(config.clone(), ServerName::try_from("localhost")?)?;
                Pipe::Tls(Box::new(StreamOwned::new(connection, stream)))
            }
        };
        let (frames, plain) = (Vec::new(), Vec::new());
        let mut client = Client { pipe, websocket: false, frames, plain, resumed: false };
        if listener.is_websocket() {
            client.upgrade()?;
        }
        let mut connect = b"\x10\0\0\x04MQTT\x04\x02\x02\x58\0".to_vec();
        connect.push(client_id.len() as u8);
        connect.extend_from_slice(client_id.as_bytes());
        connect[1] = (connect.len() - 2) as u8;
        client.send(&connect)?;
        let connack = client.packet()?;
        ensure!(connack == b"\x20\x02\0\0", "CONNACK is {connack:02x?}");
        if let Pipe::Tls(stream) = &client.pipe {
            client.resumed = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
        }
        Ok(client)
    }

    fn upgrade(&mut self) -> Result<()> {
        self.pipe.write_all(
            b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
              Sec-WebSocket-Key: bWVhc3VyZWQgb25seSBoZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
        )?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < 4096, "the answer to the upgrade does not end");
            self.pipe.read_exact(&mut byte)?;
            head.extend(byte);
        }
        ensure!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        self.websocket = true;
        Ok(())
    }

    /// Sends complete packets.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.websocket {
            return Ok(self.pipe.write_all(bytes)?);
        }
        // The key need not be secret without a proxy on the path.
        const KEY: [u8; 4] = [1, 2, 3, 4];
        let mut frame = vec![0x82];
        match u16::try_from(bytes.len()).context("a frame too long")? {
            short @ ..126 => frame.push(0x80 | short as u8),
            long => {
                frame.push(0x80 | 126);
                frame.extend(long.to_be_bytes());
            }
        }
        frame.extend(KEY);
        frame.extend(bytes.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
        Ok(self.pipe.write_all(&frame)?)
    }

    /// Waits for the next packet.
    pub fn packet(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(length) = length(&self.plain)? {
                return Ok(self.plain.drain(..length).collect());
            }
            let mut buffer = [0; 16 * 1024];
            let count = self.pipe.read(&mut buffer)?;
            ensure!(count > 0, "the broker closed the connection");
            if self.websocket {
                self.frames.extend_from_slice(&buffer[..count]);
                self.unframe()?;
            } else {
                self.plain.extend_from_slice(&buffer[..count]);
            }
        }
    }

    fn unframe(&mut self) -> Result<()> {
        while let [first, second, ..] = self.frames[..] {
            ensure!(first & 0x0F <= 2 && second & 0x80 == 0, "a frame of kind {first:#x} {second:#x}");
            let extended = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
            let (start, length) = match second {
                126 => (4, self.frames.get(2..4).map(extended)),
                127 => (10, self.frames.get(2..10).map(extended)),
                short => (2, Some(usize::from(short))),
            };
            let Some(end) = length.map(|length| start + length) else { return Ok(()) };
            if self.frames.len() < end {
                return Ok(());
            }
            self.plain.extend_from_slice(&self.frames[start..end]);
            self.frames.drain(..end);
        }
        Ok(())
    }
}

/// Length in bytes of the first packet, when it is complete.
pub fn length(bytes: &[u8]) -> Result<Option<usize>> {
    let mut remaining = 0;
    for at in 0..4 {
        let Some(byte) = bytes.get(at + 1) else { return Ok(None) };
        remaining |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            let length = at + 2 + remaining;
            return Ok((bytes.len() >= length).then_some(length));
        }
    }
    bail!("a Remaining Length of five bytes")
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Plain(stream) => stream.read(buffer),
            Pipe::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Plain(stream) => stream.write(bytes),
            Pipe::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Pipe::Plain(stream) => stream.flush(),
            Pipe::Tls(stream) => stream.flush(),
        }
    }
}

/// Maximum time of every operation here.
const PATIENCE: Duration = Duration::from_secs(20);
