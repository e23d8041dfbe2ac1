//! TLS on a reactor, through rustls's unbuffered interface. A connection owns no record buffer; it keeps only the
//! beginning of an incomplete record.

use std::sync::Arc;

use broker::access::ClientCertificate;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{HandshakeKind, ServerConfig};

use super::{Decoded, LayerError, certificate};

/// TLS state of one connection.
pub(crate) struct Tls {
    connection: Box<UnbufferedServerConnection>,
    /// Configuration, kept until the client's certificate has been read.
    config: Option<Arc<ServerConfig>>,
    /// Bytes of incomplete records.
    incoming: Vec<u8>,
    established: bool,
    closing: bool,
    /// rustls has reported an error and is not called again.
    failed: bool,
}

/// Maximum overhead of a record in bytes: header, content type, tag, and the explicit nonce of TLS 1.2.
const RECORD_EXTRA: usize = 64;
/// Maximum payload of a record in bytes.
const RECORD_MAX: usize = 16 * 1024;
/// Maximum number of bytes that are kept for an incomplete record or handshake message.
const INCOMING_MAX: usize = 64 * 1024;

impl Tls {
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let connection = Box::new(UnbufferedServerConnection::new(config.clone())?);
        Ok(Self {
            connection,
            config: Some(config),
            incoming: Vec::new(),
            established: false,
            closing: false,
            failed: false,
        })
    }

    /// Returns whether the handshake is complete.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Returns whether the complete handshake resumed a session.
    pub fn is_resumed(&self) -> Option<bool> {
        let kind = self.connection.handshake_kind().filter(|_| self.established)?;
        Some(kind == HandshakeKind::Resumed)
    }

    /// Handles received bytes: adds their content to `decoded`, and the answer to `wire`.
    ///
    /// # Errors
    /// The peer breaks the protocol or closes the connection, and `wire` then holds the alert; or its certificate is
    /// not accepted.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        decoded: &mut Decoded,
        wire: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        if self.failed {
            return Err(LayerError::Closed);
        }
        self.incoming.extend_from_slice(bytes);
        let result = match self.drive(&mut decoded.plain, wire, |_, _| Ok(())) {
            Err(LayerError::Tls(error)) => {
                self.alert(wire);
                Err(LayerError::Tls(error))
            }
            Ok(()) if self.incoming.len() > INCOMING_MAX => {
                Err(LayerError::Refused("a TLS record or message is too long"))
            }
            result => result,
        };
        if self.incoming.is_empty() {
            self.incoming = Vec::new();
        }
        // Received bytes may precede the end of the connection. They are passed on only after the certificate is known.
        if (self.established || !decoded.plain.is_empty())
            && let Some(config) = self.config.take()
        {
            match self.peer_certificate(&config) {
                Ok(certificate) => decoded.certificate = certificate,
                Err(error) => {
                    decoded.plain.clear();
                    return Err(error);
                }
            }
        }
        result
    }

    /// Returns the certificate that the client presented now, or in the handshake of the session that it resumes. TLS
    /// does not verify the latter again, so its expiry is checked here.
    fn peer_certificate(&self, config: &ServerConfig) -> Result<Option<Arc<ClientCertificate>>, LayerError> {
        let Some([peer_certificate, ..]) = self.connection.peer_certificates() else { return Ok(None) };
        let peer_certificate = certificate::read(peer_certificate)
            .ok_or(LayerError::Refused("a name in the certificate cannot be read"))?;
        let now = config.time_provider.current_time().and_then(|now| i64::try_from(now.as_secs()).ok());
        if !now.is_some_and(|now| (peer_certificate.valid.0..=peer_certificate.valid.1).contains(&now)) {
            return Err(LayerError::Refused("the certificate of a resumed session has expired"));
        }
        Ok(Some(Arc::new(peer_certificate.certificate)))
    }

    /// Appends rustls's alert for a peer that broke the protocol: the next data that it would send. It is called once,
    /// because rustls would process the same bytes again.
    fn alert(&mut self, wire: &mut Vec<u8>) {
        let UnbufferedStatus { state, .. } = self.connection.process_tls_records(&mut self.incoming);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
            // A failure only means that the peer gets no alert.
            let _ = grow(wire, |room| room_for(data.encode(room)));
        }
    }

    /// Encrypts bytes for the client.
    ///
    /// # Errors
    /// The connection can no longer be written to.
    pub fn send(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<(), LayerError> {
        for piece in plain.chunks(RECORD_MAX) {
            if self.failed {
                return Err(LayerError::Closed);
            }
            let mut sent = false;
            let (mut read, established) = (Vec::new(), self.established);
            self.drive(&mut read, wire, |traffic, wire| {
                sent = true;
                wire.reserve(piece.len() + RECORD_EXTRA);
                grow(wire, |room| room_for(traffic.encrypt(piece, room))).map_err(|_| LayerError::Closed)
            })?;
            debug_assert!(read.is_empty(), "received bytes are processed");
            if !sent || !established {
                return Err(LayerError::Closed);
            }
        }
        Ok(())
    }

    /// Sends close_notify.
    pub fn close(&mut self, wire: &mut Vec<u8>) {
        if std::mem::replace(&mut self.closing, true) || !self.established || self.failed {
            return;
        }
        // A failure only means that the peer gets no close_notify.
        let _ = self.drive(&mut Vec::new(), wire, |traffic, wire| {
            grow(wire, |room| room_for(traffic.queue_close_notify(room))).map_err(|_| LayerError::Closed)
        });
    }

    /// Runs rustls until it waits for the peer; calls `write` when application data may be written.
    ///
    /// rustls remembers positions in the bytes that it was given, so each call gets all bytes that it has not consumed.
    fn drive(
        &mut self,
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
        write: impl FnOnce(&mut WriteTraffic<'_, ServerConnectionData>, &mut Vec<u8>) -> Result<(), LayerError>,
    ) -> Result<(), LayerError> {
        let mut taken = 0;
        let done = loop {
            let UnbufferedStatus { mut discard, state, .. } =
                self.connection.process_tls_records(&mut self.incoming[taken..]);
            let mut done = None;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                plain.extend_from_slice(record.payload);
                            }
                            Err(error) => {
                                done = Some(Err(LayerError::Tls(error)));
                                break;
                            }
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if grow(wire, |room| room_for(data.encode(room))).is_err() {
                        done = Some(Err(LayerError::Closed));
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::BlockedHandshake) => done = Some(Ok(())),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.established = true;
                    taken += discard;
                    break write(&mut traffic, wire);
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    done = Some(Err(LayerError::Closed));
                }
                // The configurations of this crate never allow early data.
                Ok(_) => done = Some(Err(LayerError::Refused("TLS early data"))),
                Err(error) => done = Some(Err(LayerError::Tls(error))),
            }
            taken += discard;
            if let Some(done) = done {
                break done;
            }
        };
        self.incoming.drain(..taken);
        self.failed |= matches!(done, Err(LayerError::Tls(_)));
        done
    }
}

/// Converts the result of a write for [`grow`].
fn room_for<E: NeedsRoom>(written: Result<usize, E>) -> Result<Result<usize, usize>, E> {
    match written {
        Ok(written) => Ok(Ok(written)),
        Err(error) => error.room().map(Err).ok_or(error),
    }
}

/// Error that may report a lack of room.
trait NeedsRoom {
    fn room(&self) -> Option<usize>;
}

impl NeedsRoom for EncodeError {
    fn room(&self) -> Option<usize> {
        match self {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            EncodeError::AlreadyEncoded => None,
        }
    }
}

impl NeedsRoom for EncryptError {
    fn room(&self) -> Option<usize> {
        match self {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            EncryptError::EncryptExhausted => None,
        }
    }
}

/// Calls `write` with the space behind the end of `wire`, and with more space if it asks for it.
fn grow<E>(
    wire: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<Result<usize, usize>, E>,
) -> Result<(), E> {
    let end = wire.len();
    let mut room = wire.capacity().saturating_sub(end).max(RECORD_EXTRA);
    loop {
        wire.resize(end + room, 0);
        match write(&mut wire[end..]) {
            Ok(Ok(written)) => {
                wire.truncate(end + written);
                return Ok(());
            }
            Ok(Err(needed)) => room = needed,
            Err(error) => {
                wire.truncate(end);
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use random::Random;

    use super::*;

    fn configurations() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let certificate: CertificateDer<'static> = issued.cert.der().clone();
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
        (Arc::new(server), Arc::new(client))
    }

    #[test]
    fn bytes_that_are_not_tls_are_distinguished_from_broken_tls() {
        let (server, _) = configurations();
        let foreign = |bytes: &[u8]| {
            let mut tls = Tls::new(server.clone()).expect("a server");
            let result = tls.receive(bytes, &mut Decoded::default(), &mut Vec::new());
            result.expect_err("it is not a handshake").foreign()
        };
        for bytes in [&b"\x10\x0C\0\x04MQTT\x04\x02\0\0\0\0"[..], b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"] {
            assert!(foreign(bytes).is_some_and(|what| what.contains("does not speak TLS")), "{bytes:?}");
        }
        assert_eq!(foreign(&[22, 3, 1, 0, 4, 1, 0, 0, 0]), None, "an empty ClientHello");
    }

    /// Runs one conversation; `harm` may change the client's bytes. Returns true when everything arrived.
    fn converse(
        (server, client): &(Arc<ServerConfig>, Arc<ClientConfig>),
        random: &mut Random,
        mut harm: impl FnMut(&mut Random, &mut Vec<u8>),
    ) -> bool {
        let mut tls = Tls::new(server.clone()).expect("a server");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut peer = ClientConnection::new(client.clone(), name).expect("a client");
        let (mut decoded, mut answer) = (Decoded::default(), Vec::new());
        let plaintext: Vec<u8> = (0..40_000_u32).map(|at| at as u8).collect();
        std::io::Write::write_all(&mut peer.writer(), &plaintext).expect("buffered");
        for _ in 0..20 {
            let mut sent = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut sent).expect("to memory");
            }
            harm(random, &mut sent);
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(1 + random.below(rest.len()));
                if tls.receive(piece, &mut decoded, &mut answer).is_err() {
                    return false;
                }
                rest = after;
            }
            if tls.is_established() && tls.send(b"answer", &mut answer).is_err() {
                return false;
            }
            let mut unread = &answer[..];
            while !unread.is_empty() {
                if peer.read_tls(&mut unread).is_err() || peer.process_new_packets().is_err() {
                    return false;
                }
            }
            answer.clear();
        }
        decoded.plain == plaintext && tls.incoming.capacity() == 0
    }

    #[test]
    fn data_arrives_in_pieces_of_any_size() {
        let (both, mut random) = (configurations(), Random::new(7));
        for _ in 0..20 {
            assert!(converse(&both, &mut random, |_, _| {}));
        }
    }

    /// Damaged bytes never cause a panic, and no data arrives that was not sent.
    #[test]
    fn damaged_bytes_end_the_connection() {
        let (both, mut random) = (configurations(), Random::new(11));
        let mut survived = 0;
        for _ in 0..400 {
            let whole = converse(&both, &mut random, |random, bytes| {
                if bytes.is_empty() || random.below(3) > 0 {
                    return;
                }
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => drop(bytes.drain(at..)),
                    2 => bytes.insert(at, random.below(256) as u8),
                    _ => bytes[at] = random.below(256) as u8,
                }
            });
            survived += usize::from(whole);
        }
        assert!(survived < 400, "some were damaged");
    }

    /// rustls accepts no bytes after close_notify, so it must not be called with the same bytes in a loop.
    #[test]
    fn bytes_after_the_end_of_tls_are_ignored() {
        let (server, client) = configurations();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut peer = ClientConnection::new(client, name).expect("a client");
        let mut tls = Tls::new(server).expect("a server");
        let (mut decoded, mut answer) = (Decoded::default(), Vec::new());
        let output = |peer: &mut ClientConnection| {
            let mut wire = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut wire).expect("to memory");
            }
            wire
        };
        for _ in 0..3 {
            tls.receive(&output(&mut peer), &mut decoded, &mut answer).expect("a handshake");
            let mut unread = &answer[..];
            while !unread.is_empty() {
                assert_ne!(peer.read_tls(&mut unread).expect("from memory"), 0);
                peer.process_new_packets().expect("a handshake");
            }
            answer.clear();
        }
        std::io::Write::write_all(&mut peer.writer(), b"data").expect("buffered");
        peer.send_close_notify();
        let mut wire = output(&mut peer);
        wire.extend([0; 8_000]);
        assert_eq!(tls.receive(&wire, &mut decoded, &mut answer), Err(LayerError::Closed));
        assert_eq!(decoded.plain, b"data", "data before the end is delivered");
        // Further bytes are bounded and ignored.
        let more =
            (0..100).take_while(|_| tls.receive(&[0; 8_000], &mut decoded, &mut answer).is_ok()).count();
        assert!(more < 100 && decoded.plain == b"data");
    }
}
