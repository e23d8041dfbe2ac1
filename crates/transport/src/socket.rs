//! One connection: its socket, TLS on it, and the output that the socket has not accepted yet.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, IoSlice, Read as _, Write as _};
use std::net::Shutdown;

use bytes::{Buf as _, Bytes};
use link::ConnectionId;
use mio::net::TcpStream;
use rustls::Connection;

use crate::address_rotation::Attempt;

/// Maximum slices of one write.
const SLICES_MAX: usize = 64;
/// Bytes that are encrypted at once.
const PLAIN_MAX: usize = 64 * 1024;

pub struct Socket {
    pub id: ConnectionId,
    pub stream: TcpStream,
    tls: Option<Box<Connection>>,
    pub stage: Stage,
    /// Attempt that dialed the connection, until the peer at the address is known to be the dialed node.
    pub attempt: Option<Attempt>,
    /// Output of [`link::Mesh::output`] that the socket has not accepted.
    pending: VecDeque<Bytes>,
    /// True once the peer has ended TLS: bytes after that are not read.
    is_over: bool,
    /// True once the peer has ended its direction or the connection has failed. Received bytes may still wait to be
    /// read, but no further event comes.
    pub is_read_closed: bool,
    /// True when the last write was not accepted whole: wait for the socket's event.
    pub is_blocked: bool,
    /// True while the socket is queued for reading.
    pub is_ready: bool,
    /// True while the socket is queued for writing.
    pub is_writing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not connected yet; other addresses of the same name are tried after this one.
    Connecting,
    Open,
}

/// Reason why a connection ends.
pub enum CloseReason {
    Closed,
    Io(io::Error),
    Tls(rustls::Error),
    /// The peer is a node that does not speak TLS.
    NoTls,
}

/// Result of a write.
pub struct Written {
    pub bytes: usize,
    pub writes: u64,
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Socket {
    pub fn new(id: ConnectionId, stream: TcpStream, tls: Option<Connection>, stage: Stage) -> Self {
        Self {
            id,
            stream,
            tls: tls.map(Box::new),
            stage,
            attempt: None,
            pending: VecDeque::new(),
            is_over: false,
            is_read_closed: false,
            is_blocked: false,
            is_ready: false,
            is_writing: false,
        }
    }

    /// Returns whether all output has left.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Returns whether TLS itself has something to write.
    pub fn tls_has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    pub fn push(&mut self, chunks: impl IntoIterator<Item = Bytes>) {
        self.pending.extend(chunks.into_iter().filter(|chunk| !chunk.is_empty()));
    }

    /// Reads once. Returns the bytes for the mesh, which are empty while TLS has no whole record, and whether there may
    /// be more.
    ///
    /// # Errors
    /// The end of the connection. Bytes just before it may be lost, as on a connection that fails.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<(usize, Bytes, bool), CloseReason> {
        if self.is_over {
            return Err(CloseReason::Closed);
        }
        let count = match self.stream.read(scratch) {
            Ok(0) => return Err(CloseReason::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((0, Bytes::new(), false)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok((0, Bytes::new(), true)),
            Err(error) => return Err(error.into()),
        };
        let bytes = match &mut self.tls {
            None => Bytes::copy_from_slice(&scratch[..count]),
            Some(tls) => {
                let mut plain = Vec::new();
                let is_first = tls.is_handshaking();
                self.is_over = decrypt(tls, &scratch[..count], &mut plain).map_err(|ended| match ended {
                    CloseReason::Tls(_) if is_first && link::is_handshake(&scratch[..count]) => {
                        CloseReason::NoTls
                    }
                    other => other,
                })?;
                plain.into()
            }
        };
        // A short read has emptied the socket, and later bytes cause an event. Once the peer has ended its direction
        // there is no such event, so reading continues until an empty read. Once TLS is over, the next read reports it.
        let is_more = count == scratch.len() || self.is_read_closed || self.is_over;
        Ok((count, bytes, is_more))
    }

    /// Writes pending output until the socket accepts no more.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn write(&mut self) -> Result<Written, CloseReason> {
        let mut written = Written { bytes: 0, writes: 0 };
        while !self.is_blocked && !self.is_empty() {
            let result = match &mut self.tls {
                None => write_chunks(&mut self.stream, &mut self.pending),
                Some(tls) => write_tls(&mut self.stream, tls, &mut self.pending),
            };
            match result {
                Ok((count, is_all)) => {
                    written.writes += 1;
                    written.bytes += count;
                    self.is_blocked = !is_all;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(written)
    }

    /// Writes the last bytes as far as the socket accepts them, and closes the connection.
    pub fn close(mut self, last: Bytes) {
        let is_open = self.stage == Stage::Open;
        self.push([last]);
        // A peer that does not receive these bytes still notices the end of the connection.
        if is_open && self.write().is_ok() {
            if let Some(tls) = &mut self.tls {
                tls.send_close_notify();
                let _ = self.write();
            }
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Sends the alert of TLS, if TLS has ended the connection with one.
    pub fn alert(&mut self) {
        if let Some(tls) = &mut self.tls {
            // A peer that does not receive the alert still notices the end of the connection.
            let _ = tls.write_tls(&mut self.stream);
        }
    }
}

fn write_chunks(stream: &mut TcpStream, pending: &mut VecDeque<Bytes>) -> io::Result<(usize, bool)> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    let mut offered = 0;
    for (slice, chunk) in slices.iter_mut().zip(&*pending) {
        *slice = IoSlice::new(chunk);
        offered += chunk.len();
        count += 1;
    }
    let written = stream.write_vectored(&slices[..count])?;
    advance(pending, written);
    Ok((written, written == offered))
}

/// Encrypts a part of the pending output unless records wait already, and writes records. Bytes count as written once
/// they are encrypted.
fn write_tls(
    stream: &mut TcpStream,
    tls: &mut Connection,
    pending: &mut VecDeque<Bytes>,
) -> io::Result<(usize, bool)> {
    let mut plain = 0;
    while !tls.wants_write() && plain < PLAIN_MAX && !pending.is_empty() {
        while plain < PLAIN_MAX
            && let Some(chunk) = pending.front()
        {
            let some = &chunk[..chunk.len().min(PLAIN_MAX - plain)];
            let taken = tls.writer().write(some)?;
            advance(pending, taken);
            plain += taken;
        }
    }
    if !tls.wants_write() {
        // Before the handshake is done TLS keeps the bytes it was given; it waits for the peer.
        return Ok((0, false));
    }
    let mut written = 0;
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((written, false)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((written, true))
}

fn advance(pending: &mut VecDeque<Bytes>, mut count: usize) {
    while count > 0
        && let Some(chunk) = pending.front_mut()
    {
        let taken = count.min(chunk.len());
        chunk.advance(taken);
        count -= taken;
        if chunk.is_empty() {
            pending.pop_front();
        }
    }
}

/// Appends whole decrypted records to `plain`. Returns true when the peer has ended TLS; bytes after that are ignored.
fn decrypt(tls: &mut Connection, mut wire: &[u8], plain: &mut Vec<u8>) -> Result<bool, CloseReason> {
    let mut is_over = false;
    while !is_over && !wire.is_empty() {
        is_over = decrypt_some(tls, &mut wire, plain)?;
    }
    Ok(is_over)
}

/// Runs one round of [`decrypt`]: takes a part of `wire`, or returns that the peer has ended TLS. rustls accepts
/// nothing after that, and reports no error.
fn decrypt_some(tls: &mut Connection, wire: &mut &[u8], plain: &mut Vec<u8>) -> Result<bool, CloseReason> {
    let taken = tls.read_tls(wire)?;
    let state = tls.process_new_packets().map_err(CloseReason::Tls)?;
    let mut left = state.plaintext_bytes_to_read();
    let mut reader = tls.reader();
    while left > 0 {
        let Ok(some) = reader.fill_buf() else { break };
        let count = some.len();
        plain.extend_from_slice(some);
        reader.consume(count);
        left = left.saturating_sub(count);
    }
    Ok(taken == 0 || state.peer_has_closed())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::ring;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    /// Returns two ends with a complete handshake: the writer, and the reader.
    fn pair() -> (Connection, Connection) {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate = issued.cert.der().clone();
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(ring::default_provider());
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
        let mut peer: Connection = ClientConnection::new(Arc::new(client), name).expect("a client").into();
        let mut ours: Connection = ServerConnection::new(Arc::new(server)).expect("a server").into();
        for _ in 0..3 {
            let said = output(&mut peer);
            assert!(decrypt(&mut ours, &said, &mut Vec::new()).is_ok_and(|is_over| !is_over));
            let answer = output(&mut ours);
            assert!(decrypt(&mut peer, &answer, &mut Vec::new()).is_ok_and(|is_over| !is_over));
        }
        assert!(!ours.is_handshaking());
        (peer, ours)
    }

    fn output(tls: &mut Connection) -> Vec<u8> {
        let mut wire = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut wire).expect("to memory");
        }
        wire
    }

    /// A node with a certificate of the cluster could otherwise keep the thread busy for ever.
    #[test]
    fn bytes_after_the_end_of_tls_end_the_reading() {
        for said in [&b"data"[..], b""] {
            let (mut peer, mut ours) = pair();
            peer.writer().write_all(said).expect("buffered");
            peer.send_close_notify();
            let mut wire = output(&mut peer);
            wire.extend([0; 8_000]);
            let (mut unread, mut plain, mut rounds) = (&wire[..], Vec::new(), 0);
            while !decrypt_some(&mut ours, &mut unread, &mut plain).ok().expect("no fault") {
                rounds += 1;
                assert!(rounds < 100, "{} bytes are never taken", unread.len());
            }
            assert_eq!(plain, said, "bytes before the end count");
            assert!(decrypt(&mut ours, &wire, &mut plain).is_ok_and(|is_over| is_over));
            assert_eq!(plain, said);
        }
    }
}
