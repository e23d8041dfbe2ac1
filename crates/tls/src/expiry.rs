//! Expiry dates of certificate files and of certificate revocation lists.

use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

/// Expiry date of a file that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub kind: ExpiryKind,
    pub file: PathBuf,
    /// Unix time in seconds. The earliest end of the certificates in the file; the time of the next update of a
    /// revocation list.
    pub not_after: i64,
}

/// Purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryKind {
    /// Certificate chain that is presented to clients.
    Server,
    /// Authorities that verify the certificates of clients.
    ClientCa,
    /// Revoked certificates of clients.
    ClientCrl,
}

impl ExpiryKind {
    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::ClientCa => "client_ca",
            Self::ClientCrl => "client_crl",
        }
    }
}

impl Expiry {
    /// Returns the earliest expiry of `certificates`; `None` when no expiry date can be read.
    pub fn of_certificates<'a>(
        kind: ExpiryKind,
        file: &Path,
        certificates: impl IntoIterator<Item = &'a CertificateDer<'a>>,
    ) -> Option<Self> {
        let ends = certificates.into_iter().filter_map(|der| {
            let (_, certificate) = X509Certificate::from_der(der).ok()?;
            Some(certificate.validity().not_after.timestamp())
        });
        Some(Self { kind, file: file.to_owned(), not_after: ends.min()? })
    }

    /// Returns the earliest next update of `lists`; `None` when no list has one.
    pub fn of_lists<'a>(
        file: &Path,
        lists: impl IntoIterator<Item = &'a CertificateRevocationListDer<'a>>,
    ) -> Option<Self> {
        let ends = lists.into_iter().filter_map(|der| {
            let (_, list) = CertificateRevocationList::from_der(der).ok()?;
            Some(list.next_update()?.timestamp())
        });
        Some(Self { kind: ExpiryKind::ClientCrl, file: file.to_owned(), not_after: ends.min()? })
    }

    /// Returns the whole days that are left at `now` (Unix time in seconds), once it is time to warn. 0 on the last day
    /// and later.
    pub fn days_to_warn_of(&self, now: i64) -> Option<i64> {
        let left = self.not_after.saturating_sub(now);
        (left <= WARN_S).then(|| left.max(0) / DAY_S)
    }

    /// Returns whether the file has expired at `now` (Unix time in seconds).
    pub fn is_over(&self, now: i64) -> bool {
        now > self.not_after
    }
}

const DAY_S: i64 = 24 * 60 * 60;
/// Warning period of 14 days. Automatic renewal has replaced a certificate by then.
const WARN_S: i64 = 14 * DAY_S;

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
        KeyIdMethod, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
    };

    use super::*;

    fn ending(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_earliest_end_of_several_certificates_counts() {
        let (file, kind) = (Path::new("chain.crt"), ExpiryKind::Server);
        let chain = [ending(2041), ending(2031), ending(2035)];
        let expiry = Expiry::of_certificates(kind, file, &chain).unwrap();
        assert_eq!(expiry, Expiry { kind, file: file.to_owned(), not_after: 1_924_992_000 });
        assert_eq!(Expiry::of_certificates(kind, file, &[CertificateDer::from(&b"none"[..])]), None);
    }

    #[test]
    fn a_list_ends_when_the_next_one_is_due() {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2030, 1, 1),
            next_update: date_time_ymd(2031, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&issuer).unwrap().der().clone();
        let expiry = Expiry::of_lists(Path::new("crl.pem"), &[list]).unwrap();
        assert_eq!((expiry.kind, expiry.not_after), (ExpiryKind::ClientCrl, 1_924_992_000));
    }

    #[test]
    fn the_warning_begins_14_days_before_the_end() {
        let expiry = Expiry { kind: ExpiryKind::Server, file: "c".into(), not_after: 100 * DAY_S };
        for (now, days, over) in [
            (86 * DAY_S - 1, None, false),
            (86 * DAY_S, Some(14), false),
            (99 * DAY_S, Some(1), false),
            (100 * DAY_S, Some(0), false),
            (100 * DAY_S + 1, Some(0), true),
            (300 * DAY_S, Some(0), true),
        ] {
            assert_eq!((expiry.days_to_warn_of(now), expiry.is_over(now)), (days, over), "{now}");
        }
    }
}
