//! The settings of the edge: threads and listeners.

use std::path::PathBuf;
use std::time::Duration;

use broker::settings::{Durability, SubackLevel};
use settings::{choices, section};

section! {
    /// The threads that serve connections.
    [edge]
    pub struct EdgeSettings {
        /// Threads that serve connections; 0 is one per CPU.
        pub workers: usize = "0" in "0..=1024", at start;
        /// TLS handshakes that each of these threads takes a step further before it looks after its other connections.
        pub handshakes_per_turn: u32 = "8" in "1..=10000", at start;
    }
    and {
        /// Where clients connect. Never empty.
        pub listeners: Vec<Listener> = vec![Listener::default(), Listener::websocket()];
    }
}

section! {
    /// One address where clients connect.
    [listener]
    pub struct Listener {
        /// What logs and figures call it; its address when empty.
        pub name: String = "", at start;
        /// `127.0.0.1:1883`, `[::1]:1883`, `0.0.0.0:1883` for every IPv4 address, `[::]:1883` for every address,
        /// `localhost:1883` for all addresses of a name, or `unix:/run/meridian.sock`. Port 0 lets the system choose.
        pub address: String = "127.0.0.1:1883", at start;
        /// Connections of this listener at one time; 0 is no limit of its own.
        pub connections_max: u32 = "0", at start;
        /// New connections a second, at most; others wait in the backlog. 0 is no limit.
        pub connect_rate: u32 = "0", at start;
        /// Connections that the system holds until they are accepted.
        pub backlog: u32 = "1024" in "1..=65535", at start;
        /// How long a connection may take for the PROXY header, the TLS handshake and the WebSocket request together.
        pub handshake_timeout: Duration = "5s" in "100ms..=10m", at start;
        /// What is spoken: MQTT as it is, or in WebSocket frames.
        pub transport: Transport = "mqtt", at start;
        /// The path of WebSocket requests.
        pub websocket_path: String = "/mqtt", at start;
        /// Web pages that may connect by WebSocket: values of Origin, separated by commas, such as `https://app.example.com`, or `*` for
        /// any. Empty: any page while clients have to log in, else only pages of the host that they connect to. Programs that are not
        /// browsers send no Origin and are not asked.
        pub websocket_origins: String = "", at start;
        /// The certificate chain (PEM) that the listener shows; with it, TLS is spoken.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// The certificate's private key (PEM).
        pub tls_key: Option<PathBuf> = "", at start;
        /// A directory of further certificates, chosen by the host name that a client asks for (SNI): NAME.crt and NAME.key; a
        /// leading `_.` stands for `*.`.
        pub tls_names: Option<PathBuf> = "", at start;
        /// Lowest version of TLS.
        pub tls_version_min: TlsVersion = "1.2", at start;
        /// Authorities (PEM) whose certificates clients have to show, or may, as `tls_client` says.
        pub tls_client_ca: Option<PathBuf> = "", at start;
        /// Whether clients show a certificate of `tls_client_ca`.
        pub tls_client: TlsClient = "required", at start;
        /// Certificates of clients that were revoked (PEM CRLs).
        pub tls_client_crl: Option<PathBuf> = "", at start;
        /// Whether clients get tickets by which they resume a session without a whole handshake.
        pub tls_tickets: bool = "true", at start;
        /// Networks of balancers that say for whom they speak (PROXY protocol 1 and 2), separated by commas, such as `10.0.0.0/8`.
        /// Their connections have to begin with a header; others are taken as they are.
        pub proxy_networks: String = "", at start;
        /// What the acknowledgement of a message means that came in here, unless a `[[durability]]` rule says so.
        pub durability: Durability = "local-disk", at start;
        /// Who has to know of a subscription that is made here before SUBACK leaves, on a node of a cluster; `routing.suback` when unset.
        pub suback: Option<SubackLevel> = "", at start;
    }
}

impl Listener {
    /// Where browsers connect, unless something else is configured.
    pub fn websocket() -> Self {
        let address = "127.0.0.1:8083".to_owned();
        Self { address, transport: Transport::WebSocket, ..Self::default() }
    }
}

choices! {
    /// What is spoken on a listener.
    pub enum Transport {
        /// MQTT on TCP, or on TLS with `tls_certificate`.
        Mqtt = "mqtt",
        /// MQTT in WebSocket, secure with `tls_certificate`.
        WebSocket = "websocket",
    }
}

choices! {
    /// A version of TLS.
    pub enum TlsVersion {
        /// TLS 1.2 and 1.3.
        V1_2 = "1.2",
        /// TLS 1.3 only.
        V1_3 = "1.3",
    }
}

choices! {
    /// Whether clients show certificates, where `tls_client_ca` is set.
    pub enum TlsClient {
        /// Who shows none is refused.
        Required = "required",
        /// Who shows none is let through to other authentication.
        Optional = "optional",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node without configuration is reachable from its own machine only.
    #[test]
    fn the_default_listener_is_on_loopback() {
        let EdgeSettings { workers, handshakes_per_turn, listeners } = EdgeSettings::default();
        assert_eq!((workers, handshakes_per_turn), (0, 8));
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.address.as_str()).collect();
        assert_eq!(addresses, ["127.0.0.1:1883", "127.0.0.1:8083"]);
    }
}
