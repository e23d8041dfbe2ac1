//! Layers that connections of one listener pass through before MQTT, read from the settings and their files.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tls::{Expiry, ExpiryKind};

use crate::layer::{LayerRules, Layers, PageRule, WebSocketRules};
use crate::settings::{EdgeSettings, Listener, TlsClient, TlsVersion, Transport};

/// Layers of one listener.
#[derive(Default)]
pub(crate) struct ListenerLayers {
    rules: LayerRules,
    /// Networks of trusted balancers, which send PROXY headers.
    proxies: Vec<(IpAddr, u8)>,
    /// Expiry dates of the TLS files.
    expiries: Vec<Expiry>,
}

/// Error in the layers of a listener: the setting, the file, and the fault.
#[derive(Debug)]
pub struct ListenerLayersError {
    listener: String,
    what: String,
}

impl fmt::Display for ListenerLayersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {}: {}", self.listener, self.what)
    }
}

impl std::error::Error for ListenerLayersError {}

/// Reads the files of all listeners as a start does. Returns one error for each listener with a fault.
pub fn check(edge: &EdgeSettings) -> Vec<ListenerLayersError> {
    edge.listeners.iter().filter_map(|listener| ListenerLayers::read(listener).err()).collect()
}

impl ListenerLayers {
    /// # Errors
    /// A file cannot be read, files do not match each other, or a text is not a network.
    pub fn read(settings: &Listener) -> Result<Self, ListenerLayersError> {
        let failed = |what| ListenerLayersError { listener: settings.address.to_string(), what };
        let mut expiries = Vec::new();
        let tls = tls(settings, &mut expiries).map_err(failed)?.map(Arc::new);
        let websocket = (settings.transport == Transport::WebSocket).then(|| {
            let path = settings.websocket_path.clone();
            Arc::new(WebSocketRules { path, origins: words(&settings.websocket_origins) })
        });
        if settings.transport == Transport::WebSocket && !settings.websocket_path.starts_with('/') {
            return Err(failed(format!(
                "websocket_path = {:?} does not begin with /",
                settings.websocket_path
            )));
        }
        let networks = words(&settings.proxy_networks).into_iter().map(|word| {
            network(&word).ok_or_else(|| {
                failed(format!("proxy_networks: {word:?} is not a network such as 10.0.0.0/8"))
            })
        });
        let proxies = networks.collect::<Result<_, _>>()?;
        Ok(Self { rules: LayerRules { tls, websocket }, proxies, expiries })
    }

    /// Returns the expiry dates of its certificates, authorities and revocation lists.
    pub fn expiries(&self) -> &[Expiry] {
        &self.expiries
    }

    /// Builds the layers of a new connection from `peer`. `is_open` says that clients may connect here without a login.
    ///
    /// # Errors
    /// The TLS configuration cannot be used.
    pub fn layers(
        &self,
        peer: Option<SocketAddr>,
        is_open: impl FnOnce() -> bool,
    ) -> Result<Option<Box<Layers>>, rustls::Error> {
        let proxy = self.expects_proxy(peer);
        // Browsers never send a PROXY header, so a connection with one does not come from a browser on this machine.
        let loopback = !proxy && peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        let pages = || if is_open() { PageRule::SameHost { loopback } } else { PageRule::Any };
        self.rules.start(proxy, pages)
    }

    /// Returns whether a connection from `peer` begins with a PROXY header.
    pub fn expects_proxy(&self, peer: Option<SocketAddr>) -> bool {
        let trusted = |peer: SocketAddr| {
            self.proxies.iter().any(|(network, bits)| broker::admin::is_within(peer.ip(), *network, *bits))
        };
        // A Unix socket belongs to the balancer, if balancers are configured.
        !self.proxies.is_empty() && peer.is_none_or(trusted)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = if bits.is_empty() { most } else { bits.parse().ok()? };
    (bits <= most).then_some((address, bits))
}

/// Builds the TLS configuration; `None` without TLS. Adds the expiry dates of its files to `expiries`.
fn tls(settings: &Listener, expiries: &mut Vec<Expiry>) -> Result<Option<ServerConfig>, String> {
    let (certificate, key) = match (&settings.tls_certificate, &settings.tls_key) {
        (None, None) if settings.tls_names.is_none() && settings.tls_client_ca.is_none() => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => return Err("tls_certificate is set, and tls_key is not".to_owned()),
        (None, _) => return Err("TLS needs tls_certificate and tls_key".to_owned()),
    };
    let mut read = |certificate: &Path, key: &Path| {
        let certified = certified(certificate, key)?;
        expiries.extend(Expiry::of_certificates(ExpiryKind::Server, certificate, &certified.cert));
        Ok::<_, String>(Arc::new(certified))
    };
    let other = read(certificate, key)?;
    let mut names = HashMap::new();
    if let Some(directory) = &settings.tls_names {
        for (name, certificate, key) in pairs(directory)? {
            names.insert(name, read(&certificate, &key)?);
        }
    }
    let certificates = Certificates { names, other };
    let versions: &[_] = match settings.tls_version_min {
        TlsVersion::V1_2 => rustls::ALL_VERSIONS,
        TlsVersion::V1_3 => &[&rustls::version::TLS13],
    };
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let builder = match &settings.tls_client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let authorities = certificates_of(path)?;
            expiries.extend(Expiry::of_certificates(ExpiryKind::ClientCa, path, &authorities));
            for authority in authorities {
                roots.add(authority).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if let Some(path) = &settings.tls_client_crl {
                let lists = CertificateRevocationListDer::pem_file_iter(path)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                expiries.extend(Expiry::of_lists(path, &lists));
                verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
            }
            if settings.tls_client == TlsClient::Optional {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(|error| format!("tls_client_ca: {error}"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = match settings.transport {
        Transport::Mqtt => vec![b"mqtt".to_vec()],
        Transport::WebSocket => vec![b"http/1.1".to_vec()],
    };
    // Session tickets are kept by the client; the server stores no sessions.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    if settings.tls_tickets {
        config.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
        config.send_tls13_tickets = 1;
    } else {
        config.send_tls13_tickets = 0;
    }
    Ok(Some(config))
}

fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    tls::pem::certificates(path).map_err(|error| error.to_string())
}

fn certified(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    tls::pem::certified(certificate, key).map_err(|error| error.to_string())
}

/// Returns host names with their certificates and keys.
fn pairs(directory: &Path) -> Result<Vec<(String, PathBuf, PathBuf)>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "crt")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            found.push((name.to_lowercase(), path.clone(), path.with_extension("key")));
        }
    }
    Ok(found)
}

/// Certificates by host name.
#[derive(Debug)]
struct Certificates {
    names: HashMap<String, Arc<CertifiedKey>>,
    other: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.server_name().and_then(|name| {
            let name = name.to_lowercase();
            let parent = name.split_once('.').map(|(_, parent)| format!("_.{parent}"));
            self.names.get(&name).or_else(|| self.names.get(&parent?))
        });
        Some(named.unwrap_or(&self.other).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.0.0.0/8"), Some(("10.0.0.0".parse().expect("an address"), 8)));
        assert_eq!(network("::1"), Some(("::1".parse().expect("an address"), 128)));
        for wrong in ["", "10.0.0.0/33", "host", "10.0.0.0/x", "/8"] {
            assert_eq!(network(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_setting_that_cannot_be_used() {
        let error = |settings: Listener| ListenerLayers::read(&settings).err().expect("an error").to_string();
        let missing = |name: &str| Some(PathBuf::from(format!("/nonexistent/{name}")));
        let tls =
            || Listener { tls_certificate: missing("crt"), tls_key: missing("key"), ..Listener::default() };
        assert!(error(tls()).contains("/nonexistent/crt"));
        assert!(error(Listener { tls_key: None, ..tls() }).contains("tls_key"));
        assert!(
            error(Listener { tls_client_ca: missing("ca"), ..Listener::default() })
                .contains("tls_certificate")
        );
        let networks = Listener { proxy_networks: "10.0.0.0/8, x".into(), ..Listener::default() };
        assert!(error(networks).contains("\"x\" is not a network"));
        let path = Listener {
            transport: Transport::WebSocket,
            websocket_path: "mqtt".into(),
            ..Listener::default()
        };
        assert!(error(path).contains("websocket_path"));
        assert!(ListenerLayers::read(&Listener::default()).is_ok());
    }
}
