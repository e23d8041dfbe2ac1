//! TLS options of `pub` and `sub`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use rustls::ClientConfig;
use tls::{ClientTls, OptionStyle, Trust, Versions};

use super::Failure;
use super::target::Scheme;

/// Options that turn TLS on and configure it.
#[derive(Args, Clone, Debug)]
pub struct TlsArgs {
    /// Use TLS; each of the options below does so too, and so do mqtts:// and wss://
    #[arg(long)]
    tls: bool,
    /// File with the authorities (PEM) that sign the broker's certificate; without it, those of this system
    #[arg(long, visible_alias = "ca", value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// File with the client's own certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// File with the private key (PEM) of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Do not check the broker's certificate: an attacker on the path can read and change everything
    #[arg(long)]
    insecure: bool,
    /// Use only this version of TLS: 1.2 or 1.3
    #[arg(long, value_name = "VERSION", value_parser = versions)]
    tls_version: Option<Versions>,
    /// Protocol to request by ALPN, such as mqtt; can be repeated
    #[arg(long, value_name = "PROTOCOL")]
    alpn: Vec<String>,
    /// Host name to request from the broker and to expect in its certificate, instead of the host of the address
    #[arg(long, value_name = "NAME")]
    pub sni: Option<String>,
}

impl TlsArgs {
    /// The first of these options that was given.
    pub fn asked_for(&self) -> Option<&'static str> {
        let Self { tls, cafile, cert, key, insecure, tls_version, alpn, sni } = self;
        let given = [
            ("--tls", *tls),
            ("--cafile", cafile.is_some()),
            ("--cert", cert.is_some()),
            ("--key", key.is_some()),
            ("--insecure", *insecure),
            ("--tls-version", tls_version.is_some()),
            ("--alpn", !alpn.is_empty()),
            ("--sni", sni.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Failure::Trouble`] for files that cannot be used.
    pub fn client(&self, scheme: Scheme) -> Result<Arc<ClientConfig>, Failure> {
        let trust = match &self.cafile {
            _ if self.insecure => {
                eprintln!(
                    "WARNING: --insecure: the broker's certificate is not checked; an attacker \
                     on the path can read and change everything. --cafile FILE names the \
                     authority to check by."
                );
                Trust::Anybody
            }
            Some(path) => Trust::File(path.clone()),
            None => Trust::System,
        };
        let alpn = match self.alpn.is_empty() && scheme.websocket() {
            true => vec![b"http/1.1".to_vec()],
            false => self.alpn.iter().map(|name| name.clone().into_bytes()).collect(),
        };
        let own = self.cert.clone().zip(self.key.clone());
        let versions = self.tls_version.unwrap_or_default();
        let tls = ClientTls { trust, own, versions, alpn, style: OptionStyle::CommandLine };
        tls.config().map_err(|error| Failure::Trouble(error.to_string()))
    }
}

/// Parses `--tls-version` in common notation, and in that of mosquitto's clients.
fn versions(text: &str) -> Result<Versions, String> {
    match text.strip_prefix("tlsv").unwrap_or(text) {
        "1.2" => Ok(Versions::Only1_2),
        "1.3" => Ok(Versions::Only1_3),
        _ => Err("known versions are 1.2 and 1.3; older ones are broken".to_owned()),
    }
}
