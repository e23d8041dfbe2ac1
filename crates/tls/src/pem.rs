//! Certificates and keys in PEM files.

use std::io;
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
    let found = regular(path).and_then(|()| CertificateDer::pem_file_iter(path));
    let found = found.and_then(Iterator::collect::<Result<Vec<_>, _>>);
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
    regular(path).and_then(|()| PrivateKeyDer::from_pem_file(path)).map_err(|error| match error {
        Error::NoItemsFound => TlsError::NoKey { path: path.to_owned() },
        error => TlsError::Unreadable { path: path.to_owned(), error },
    })
}

/// Checks that a file ends: who names it may do so over the API.
fn regular(path: &Path) -> Result<(), Error> {
    let facts = path.metadata().map_err(Error::Io)?;
    let why = match (facts.is_file(), facts.len()) {
        (false, _) => "it is not a regular file",
        (true, PEM_MAX..) => "it has more than 16 MiB",
        (true, _) => return Ok(()),
    };
    Err(Error::Io(io::Error::new(io::ErrorKind::InvalidInput, why)))
}

/// Maximum size of a file.
const PEM_MAX: u64 = 16 << 20;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_an_end_is_no_certificate_and_no_key() {
        let device = Path::new("/dev/zero");
        let errors = [certificates(device).unwrap_err(), key(device).unwrap_err()];
        for error in errors {
            assert!(error.to_string().contains("it is not a regular file"), "{error}");
        }
    }
}
