//! Why files do not make a configuration.

use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::pem;

/// Facts with the file that they are about.
#[derive(Debug)]
pub enum TlsError {
    /// The file cannot be read, or is no PEM.
    Unreadable { path: PathBuf, error: pem::Error },
    /// A PEM file without a certificate.
    NoCertificate { path: PathBuf },
    /// A PEM file without a private key.
    NoKey { path: PathBuf },
    /// Not an authority that others can be checked by.
    BadAuthority { path: PathBuf, error: rustls::Error },
    /// Certificate and key cannot be used together.
    Unfit { certificate: PathBuf, key: PathBuf, error: rustls::Error },
    /// It is shown as a server and as a client, and is not for both.
    Purpose { certificate: PathBuf },
    /// None of the authorities stands for it.
    NotSigned { certificate: PathBuf, authorities: PathBuf, error: rustls::Error },
    /// The system has no authorities, and none was named.
    NoAuthorities { why: String },
    /// What was asked for cannot be had of the library.
    Unusable(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error: pem::Error::Io(error) } => {
                write!(f, "{}: {error}", path.display())
            }
            Self::Unreadable { path, error } => write!(f, "{}: it is no PEM file ({error})", path.display()),
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
                write!(f, "{}: a certificate in it cannot be an authority ({error})", path.display())
            }
            Self::Unfit { certificate, key, error } => write!(
                f,
                "{} and {} cannot be used together ({error}): the key has to be the one that the first certificate was made of",
                certificate.display(),
                key.display()
            ),
            Self::Purpose { certificate } => write!(
                f,
                "{}: the certificate is not for both servers and clients, and it is shown as both: make it with extendedKeyUsage = \
                 serverAuth, clientAuth",
                certificate.display()
            ),
            Self::NotSigned { certificate, authorities, error } => write!(
                f,
                "{}: the certificate is not signed by an authority of {} ({error}): name the file of the authority that signed it, and let \
                 the certificate's file have the intermediate ones behind it",
                certificate.display(),
                authorities.display()
            ),
            Self::NoAuthorities { why } => write!(
                f,
                "this system has no list of authorities to check the server's certificate by{why}: name one with --ca FILE, or \
                 install the system's (package ca-certificates)"
            ),
            Self::Unusable(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for TlsError {}
