//! Errors of certificate and key files.

use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::pem;

use crate::OptionStyle;

/// Reason why files do not make a TLS configuration. Each variant names the file.
#[derive(Debug)]
pub enum TlsError {
    /// The file cannot be read or is not PEM.
    Unreadable { path: PathBuf, error: pem::Error },
    /// The PEM file has no certificate.
    NoCertificate { path: PathBuf },
    /// The PEM file has no private key.
    NoKey { path: PathBuf },
    /// The certificate cannot be used as an authority.
    BadAuthority { path: PathBuf, error: rustls::Error },
    /// Certificate and key do not match.
    Unfit { certificate: PathBuf, key: PathBuf, error: rustls::Error },
    /// The certificate is used as a server and as a client, and is not valid for both.
    Purpose { certificate: PathBuf },
    /// None of the authorities has signed the certificate.
    NotSigned { certificate: PathBuf, authorities: PathBuf, error: rustls::Error },
    /// The system has no authorities, and none were named.
    NoAuthorities { why: String, style: OptionStyle },
    /// The TLS library does not support the requested configuration.
    Unusable(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error: pem::Error::Io(error) } => {
                write!(f, "{}: {error}", path.display())
            }
            Self::Unreadable { path, error } => {
                write!(f, "{}: it is not a PEM file ({error})", path.display())
            }
            Self::NoCertificate { path } => {
                write!(
                    f,
                    "{}: there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)",
                    path.display()
                )
            }
            Self::NoKey { path } => write!(
                f,
                "{}: there is no private key in it that can be read (PEM: -----BEGIN PRIVATE KEY-----; one with a passphrase \
                 cannot be used: `openssl pkey -in FILE -out PLAIN` writes it without)",
                path.display()
            ),
            Self::BadAuthority { path, error } => {
                write!(f, "{}: a certificate in it cannot be used as an authority ({error})", path.display())
            }
            Self::Unfit { certificate, key, error } => write!(
                f,
                "{} and {} cannot be used together ({error}): the key has to belong to the first certificate of the file",
                certificate.display(),
                key.display()
            ),
            Self::Purpose { certificate } => write!(
                f,
                "{}: the certificate is not for both servers and clients, and it is used as both: create it with extendedKeyUsage = \
                 serverAuth, clientAuth",
                certificate.display()
            ),
            Self::NotSigned { certificate, authorities, error } => write!(
                f,
                "{}: the certificate is not signed by an authority of {} ({error}): name the file of the authority that signed it, and put \
                 the intermediate certificates into the certificate's file, after it",
                certificate.display(),
                authorities.display()
            ),
            Self::NoAuthorities { why, style } => write!(
                f,
                "this system has no list of authorities to check the server's certificate by{why}: {}, or install the \
                 system's (package ca-certificates)",
                style.name_some_authority()
            ),
            Self::Unusable(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TlsError {}
