//! Check that other nodes will accept the certificate of this process, where both ends of a connection present one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, Error, RootCertStore};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{TlsError, pem};

/// Validity of a certificate at the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    Valid,
    /// Expired this many seconds ago.
    Over(u64),
    /// Becomes valid in this many seconds.
    NotYet(u64),
}

/// Checks a certificate that is used both as a server and as a client, against the authorities that all nodes share.
/// `now` is Unix time in seconds.
///
/// # Errors
/// The files cannot be read, or no peer would accept the certificate: [`TlsError::Purpose`], [`TlsError::NotSigned`].
pub fn check_mutual(certificate: &Path, authorities: &Path, now: u64) -> Result<Age, TlsError> {
    let chain = pem::certificates(certificate)?;
    let roots = Arc::new(pem::authorities(authorities)?);
    let (age, valid_at) = age(&chain[0], now);
    for error in [as_server(&chain, roots.clone(), valid_at), as_client(&chain, roots, valid_at)] {
        let Err(error) = error else { continue };
        let certificate = certificate.to_owned();
        return Err(match error {
            Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
            ) => TlsError::Purpose { certificate },
            error => TlsError::NotSigned { certificate, authorities: authorities.to_owned(), error },
        });
    }
    Ok(age)
}

/// Returns the validity at `now`, and a time at which the certificate is valid. Other faults are then found
/// independently of the clock.
fn age(certificate: &CertificateDer<'_>, now: u64) -> (Age, UnixTime) {
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    // A certificate that cannot be parsed is rejected by the verifier later.
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return (Age::Valid, at(now)) };
    let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
    let validity = certificate.validity();
    let (begin, end) = (seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp()));
    match () {
        () if now > end => (Age::Over(now - end), at(end)),
        () if now < begin => (Age::NotYet(begin - now), at(begin)),
        () => (Age::Valid, at(now)),
    }
}

fn as_server(chain: &[CertificateDer<'_>], roots: Arc<RootCertStore>, at: UnixTime) -> Result<(), Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(ring::default_provider()));
    let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
    let name = ServerName::try_from("node").map_err(|error| Error::General(error.to_string()))?;
    match verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], at) {
        // The verifier checks the name last, and any name is accepted here.
        Ok(_)
        | Err(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Ok(()),
        Err(error) => Err(error),
    }
}

fn as_client(chain: &[CertificateDer<'_>], roots: Arc<RootCertStore>, at: UnixTime) -> Result<(), Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(ring::default_provider()));
    let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
    verifier.verify_client_cert(&chain[0], &chain[1..], at).map(drop)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Purpose,
        IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    /// 2030-01-01 in Unix time.
    const NOW: u64 = 1_893_456_000;
    const DAY: u64 = 24 * 60 * 60;

    struct Authority {
        directory: PathBuf,
        issuer: CertifiedIssuer<'static, KeyPair>,
    }

    impl Authority {
        fn new(name: &str) -> Self {
            let directory = std::env::temp_dir().join(format!("meridian-own-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let mut params = CertificateParams::new([]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            std::fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
            Self { directory, issuer }
        }

        /// Issues a certificate that is valid in 2029 and 2030.
        fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> PathBuf {
            let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
            params.extended_key_usages = vec![Purpose::ServerAuth, Purpose::ClientAuth];
            (params.not_before, params.not_after) = (date_time_ymd(2029, 1, 1), date_time_ymd(2031, 1, 1));
            change(&mut params);
            let issued = params.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap();
            let path = self.directory.join("node.crt");
            std::fs::write(&path, issued.pem()).unwrap();
            path
        }

        fn check(&self, certificate: &Path, now: u64) -> Result<Age, String> {
            check_mutual(certificate, &self.directory.join("ca.pem"), now).map_err(|error| error.to_string())
        }
    }

    impl Drop for Authority {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.directory));
        }
    }

    #[test]
    fn a_certificate_has_to_be_valid_for_both_purposes() {
        let authority = Authority::new("purposes");
        let with = |usages: &[Purpose]| {
            let path = authority.issue(|params| params.extended_key_usages = usages.to_vec());
            authority.check(&path, NOW)
        };
        assert_eq!(with(&[Purpose::ServerAuth, Purpose::ClientAuth]), Ok(Age::Valid));
        assert_eq!(with(&[]), Ok(Age::Valid), "one that names no purpose is for any");
        for one in [Purpose::ServerAuth, Purpose::ClientAuth] {
            let error = with(&[one]).unwrap_err();
            assert!(error.contains("extendedKeyUsage = serverAuth, clientAuth"), "{error}");
        }
    }

    #[test]
    fn a_certificate_has_to_be_signed_by_one_of_the_authorities() {
        let (one, other) = (Authority::new("one"), Authority::new("other"));
        let foreign = other.issue(|_| ());
        let error = one.check(&foreign, NOW).unwrap_err();
        assert!(error.contains("not signed by") && error.contains("ca.pem"), "{error}");
        // The certificate of the authority itself is not accepted either.
        assert!(one.check(&one.directory.join("ca.pem"), NOW).is_err());
    }

    #[test]
    fn an_expired_certificate_is_still_checked_for_other_faults() {
        let authority = Authority::new("age");
        let good = authority.issue(|_| ());
        let year = 365 * DAY;
        assert_eq!(authority.check(&good, NOW + year + 3 * DAY), Ok(Age::Over(3 * DAY)));
        assert_eq!(authority.check(&good, NOW - year - DAY), Ok(Age::NotYet(DAY)));
        let bad = authority.issue(|params| params.extended_key_usages = vec![Purpose::ServerAuth]);
        assert!(authority.check(&bad, NOW + 10 * year).is_err());
    }
}
