//! Certificates and keys in PEM files.

use std::path::Path;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::TlsError;

/// Returns all certificates of a file, at least one.
///
/// # Errors
/// [`TlsError::Unreadable`], [`TlsError::NoCertificate`].
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::NoCertificate { path: path.to_owned() }),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::Unreadable { path: path.to_owned(), error }),
    }
}

/// Returns the first private key of a file.
///
/// # Errors
/// [`TlsError::Unreadable`], [`TlsError::NoKey`].
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        Error::NoItemsFound => TlsError::NoKey { path: path.to_owned() },
        error => TlsError::Unreadable { path: path.to_owned(), error },
    })
}

/// Returns a certificate chain with the key of its first certificate.
///
/// # Errors
/// Errors of [`certificates`] and [`key`], and [`TlsError::Unfit`].
pub fn certified(certificate: &Path, private: &Path) -> Result<CertifiedKey, TlsError> {
    let (chain, key) = (certificates(certificate)?, key(private)?);
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| TlsError::Unfit {
        certificate: certificate.to_owned(),
        key: private.to_owned(),
        error,
    })
}

/// Returns the authorities of a file.
///
/// # Errors
/// Errors of [`certificates`], and [`TlsError::BadAuthority`].
pub fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| TlsError::BadAuthority { path: path.to_owned(), error })?;
    }
    Ok(roots)
}
