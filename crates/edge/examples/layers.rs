//! Measures the user memory of the layers of an idle connection, by kind of listener: bytes requested from the
//! allocator, after the handshake, the WebSocket request and one message each way. Both sides run in memory, and the
//! client is gone before the count. Run it with `cargo run -p edge --example layers -- 1000`. `cargo xtask idle`
//! measures a connection without layers.

#[path = "../src/layer/mod.rs"]
#[allow(dead_code, reason = "the reactor uses the rest")]
mod layer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use layer::{Decoded, LayerRules, Layers, PageRule, WebSocketRules};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedProtocolVersion};

struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Failed = Box<dyn Error>;

fn main() -> Result<(), Failed> {
    let count: usize = std::env::args().nth(1).map_or(Ok(1_000), |text| text.parse())?;
    let (v12, v13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let websocket = Arc::new(WebSocketRules { path: "/mqtt".into(), origins: Vec::new() });
    println!("user memory of an idle connection's layers, mean of {count}");
    for (name, version, mutual, framed) in [
        ("TLS 1.3", Some(v13), false, false),
        ("TLS 1.2", Some(v12), false, false),
        ("WebSocket", None, false, true),
        ("WebSocket, TLS 1.3", Some(v13), false, true),
        ("TLS 1.3, client certificate", Some(v13), true, false),
        ("TLS 1.2, client certificate", Some(v12), true, false),
    ] {
        let both = version.map(|version| configurations(version, mutual)).transpose()?;
        let rules = LayerRules {
            tls: both.as_ref().map(|(server, _)| server.clone()),
            websocket: framed.then(|| websocket.clone()),
        };
        let client = both.map(|(_, client)| client);
        // Structures that are created once are created before the count.
        let mut kept = vec![idle(&rules, client.as_ref())?];
        kept.reserve(count);
        let before = BYTES.load(Relaxed);
        for _ in 0..count {
            kept.push(idle(&rules, client.as_ref())?);
        }
        let bytes = BYTES.load(Relaxed) - before;
        println!("{name:<28} {:>6} bytes", bytes / count as isize);
    }
    Ok(())
}

/// Creates an authority, and TLS configurations of a server and a client.
fn configurations(
    version: &'static SupportedProtocolVersion,
    mutual: bool,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), Failed> {
    let mut params = CertificateParams::new([])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let issue = |name: &str| -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Failed> {
        let key = KeyPair::generate()?;
        let issued = CertificateParams::new([name.to_owned()])?.signed_by(&key, &authority)?;
        Ok((issued.der().clone(), PrivateKeyDer::try_from(key.serialize_der())?))
    };
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone())?;
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version])?;
    let server = if mutual {
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        server.with_client_cert_verifier(verifier)
    } else {
        server.with_no_client_auth()
    };
    let (certificate, key) = issue("localhost")?;
    let mut server = server.with_single_cert(vec![certificate], key)?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = rustls::crypto::ring::Ticketer::new()?;
    server.send_tls13_tickets = 1;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])?
        .with_root_certificates(roots);
    let mut client = if mutual {
        let (certificate, key) = issue("device")?;
        client.with_client_auth_cert(vec![certificate], key)?
    } else {
        client.with_no_client_auth()
    };
    client.resumption = rustls::client::Resumption::disabled();
    Ok((Arc::new(server), Arc::new(client)))
}

const REQUEST: &[u8] = b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";
/// Frame with a mask of 0.
const FRAME: &[u8] = b"\x82\x82\0\0\0\0\xC0\0";
const PLAIN: &[u8] = b"\xC0\0";

/// Returns the server's layers of a connection after one message each way, and what it keeps of the client's
/// certificate.
fn idle(rules: &LayerRules, client: Option<&Arc<ClientConfig>>) -> Result<(Box<Layers>, Decoded), Failed> {
    let mut layers = rules.start(false, || PageRule::Any)?.ok_or("there are layers")?;
    let framed = rules.websocket.is_some();
    let plaintext = if framed { [REQUEST, FRAME].concat() } else { PLAIN.to_vec() };
    let mut decoded = Decoded::default();
    let mut receive = |layers: &mut Layers, bytes: &[u8]| {
        layers.receive(bytes, &mut decoded).map_err(|error| error.to_string())
    };
    match client {
        None => receive(&mut layers, &plaintext)?,
        Some(config) => {
            let mut peer = ClientConnection::new(config.clone(), ServerName::try_from("localhost")?)?;
            peer.writer().write_all(&plaintext)?;
            for _ in 0..4 {
                let mut sent = Vec::new();
                while peer.wants_write() {
                    peer.write_tls(&mut sent)?;
                }
                receive(&mut layers, &sent)?;
                let mut answer = layers.wire();
                while !answer.is_empty() {
                    peer.read_tls(&mut answer)?;
                    peer.process_new_packets()?;
                }
                let written = layers.wire().len();
                layers.advance(written);
            }
        }
    }
    if decoded.plain != PLAIN {
        return Err("the message came through".into());
    }
    decoded.plain = Vec::new();
    layers.send(b"\xD0\0").map_err(|error| error.to_string())?;
    let written = layers.wire().len();
    layers.advance(written);
    layers.rest();
    Ok((layers, decoded))
}
