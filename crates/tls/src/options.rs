//! The names of TLS options, as users write them, and the files of settings.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::{ClientTls, TlsError, Trust};

/// Notation of the TLS options of a client. Advice in errors uses its names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptionStyle {
    /// Options of a command, such as `--ca FILE`.
    #[default]
    CommandLine,
    /// Settings of a bridge or a cluster link, such as `tls_ca`. They include `tls` and `tls_server_name`.
    Bridge,
    /// Settings of a connector with the setting `tls`.
    Connector,
    /// Settings of a connector whose `url` says whether it uses TLS.
    ConnectorUrl,
}

impl OptionStyle {
    /// Advice to name the file of an authority.
    pub(crate) fn name_authority(self) -> &'static str {
        match self {
            Self::CommandLine => "name that authority's certificate with --ca FILE",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => {
                "set tls_ca to the file of that authority's certificate"
            }
        }
    }

    /// Advice when the system has no authorities.
    pub(crate) fn name_some_authority(self) -> &'static str {
        match self {
            Self::CommandLine => "name one with --ca FILE",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => "set tls_ca to a file with one",
        }
    }

    /// Advice to give the client a certificate.
    pub(crate) fn give_certificate(self) -> &'static str {
        match self {
            Self::CommandLine => "give one with --cert FILE and --key FILE",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => {
                "set tls_certificate and tls_key to the files of one"
            }
        }
    }

    /// Name of the option with the client's certificate.
    pub(crate) fn certificate(self) -> &'static str {
        match self {
            Self::CommandLine => "--cert",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => "tls_certificate",
        }
    }

    /// Advice when the server does not speak TLS.
    pub(crate) fn turn_off(self) -> &'static str {
        match self {
            Self::CommandLine => "use the URL without TLS (mqtt://, ws://, http://)",
            Self::Bridge | Self::Connector => "set tls = false",
            Self::ConnectorUrl => "write http:// in url",
        }
    }

    /// Versions of TLS that the client accepts.
    pub(crate) fn versions(self) -> &'static str {
        match self {
            Self::CommandLine => "the requested version of TLS (1.2 or 1.3, or what --tls-version says)",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => "TLS 1.2 or 1.3",
        }
    }

    /// Advice when the server does not speak the protocol that ALPN offers. Only commands have an option for it.
    pub(crate) fn change_protocol(self) -> &'static str {
        match self {
            Self::CommandLine => "check the port, or offer another one with --alpn",
            Self::Bridge | Self::Connector | Self::ConnectorUrl => "check the port",
        }
    }

    /// Advice when the certificate has other names than the host.
    pub(crate) fn use_other_name(self) -> &'static str {
        match self {
            Self::CommandLine | Self::Connector | Self::ConnectorUrl => "use a name that it has",
            Self::Bridge => "set tls_server_name to a name that it has",
        }
    }
}

/// Files of the settings `tls_ca`, `tls_certificate` and `tls_key`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsFiles<'a> {
    /// Authorities; `None` for those of the system.
    pub ca: Option<&'a Path>,
    pub certificate: Option<&'a Path>,
    pub key: Option<&'a Path>,
}

impl TlsFiles<'_> {
    /// Reads the files and builds the configuration of a client.
    ///
    /// # Errors
    /// The name of the setting that is wrong, and why.
    pub fn config(self, style: OptionStyle) -> Result<Arc<ClientConfig>, (&'static str, String)> {
        let own = self.certificate.zip(self.key);
        let tls = ClientTls {
            trust: self.ca.map_or(Trust::System, |path| Trust::File(path.to_owned())),
            own: own.map(|(certificate, key)| (certificate.to_owned(), key.to_owned())),
            style,
            ..ClientTls::default()
        };
        tls.config().map_err(|error| (self.setting_of(&error), error.to_string()))
    }

    /// Name of the setting that an error is about.
    fn setting_of(self, error: &TlsError) -> &'static str {
        match error {
            // The authorities are read first.
            TlsError::Unreadable { path, .. } | TlsError::NoCertificate { path } => match Some(&**path) {
                path if path == self.ca => "tls_ca",
                path if path == self.certificate => "tls_certificate",
                _ => "tls_key",
            },
            TlsError::NoKey { .. } => "tls_key",
            TlsError::Unfit { .. } | TlsError::Purpose { .. } | TlsError::NotSigned { .. } => {
                "tls_certificate"
            }
            TlsError::BadAuthority { .. } | TlsError::NoAuthorities { .. } | TlsError::Unusable(_) => {
                "tls_ca"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_file_names_its_setting() {
        let directory = std::env::temp_dir().join(format!("meridian-tls-options-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) =
            (file("crt", &made.cert.pem()), file("key", &made.signing_key.serialize_pem()));
        let (other, missing) = (file("other", &other.signing_key.serialize_pem()), directory.join("missing"));
        for (ca, own, wrong) in [
            (&certificate, Some((&certificate, &key)), None),
            (&certificate, None, None),
            (&missing, Some((&missing, &key)), Some("tls_ca")),
            (&key, None, Some("tls_ca")),
            (&certificate, Some((&missing, &key)), Some("tls_certificate")),
            (&certificate, Some((&key, &key)), Some("tls_certificate")),
            (&certificate, Some((&certificate, &other)), Some("tls_certificate")),
            (&certificate, Some((&certificate, &missing)), Some("tls_key")),
            (&certificate, Some((&certificate, &certificate)), Some("tls_key")),
        ] {
            let files = TlsFiles {
                ca: Some(ca),
                certificate: own.map(|(certificate, _)| certificate.as_path()),
                key: own.map(|(_, key)| key.as_path()),
            };
            let setting = files.config(OptionStyle::Bridge).err().map(|(setting, _)| setting);
            assert_eq!(setting, wrong, "{files:?}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
