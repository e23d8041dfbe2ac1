//! TLS of a connection to PostgreSQL.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::limited::{Allowance, Limited};

/// Makes the TLS session of one connection. The certificate of the server is always verified.
pub struct Handshake {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
    pub allowance: Allowance,
}

/// A stream in a TLS session.
pub struct Secure(Limited<client::TlsStream<TcpStream>>);

impl TlsConnect<TcpStream> for Handshake {
    type Stream = Secure;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secure>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let stream = TlsConnector::from(self.config).connect(self.name, stream).await?;
            Ok(Secure(Limited::new(stream, self.allowance)))
        })
    }
}

impl TlsStream for Secure {
    /// SCRAM then proves that the server that knows the password is the one with this certificate (RFC 5929).
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref().get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        match certificate.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

/// Returns the hash of a certificate by the algorithm of its signature, with SHA-256 in place of MD5 and SHA-1. `None`
/// for signatures without one certain hash.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm: &Algorithm = match parsed.signature_algorithm.algorithm.to_id_string().as_str() {
        // RSA with MD5, SHA-1 and SHA-256; ECDSA with SHA-1 and SHA-256.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" => &SHA256,
        "1.2.840.10045.4.1" | "1.2.840.10045.4.3.2" => &SHA256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => &SHA384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => &SHA512,
        _ => return None,
    };
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_hashed_by_the_algorithm_of_its_signature() {
        for (algorithm, len) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
            let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
            let certificate = params.self_signed(&key).expect("a certificate");
            assert_eq!(end_point(certificate.der()).map(|hash| hash.len()), len, "{algorithm:?}");
        }
        assert_eq!(end_point(b"\x30\x80garbage"), None);
    }
}
