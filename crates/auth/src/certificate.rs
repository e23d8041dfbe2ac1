//! Link of the chain that authenticates by client certificate, and the names in a certificate.

use access::{Admission, ClientCertificate, Credentials};
use mqtt::ReasonCode;
use settings::choices;

use crate::link::{Attempt, Link, Outcome};

choices! {
    /// Field of a certificate that is used as a name.
    pub enum CertificateName {
        /// No field.
        None = "none",
        /// Common Name of the subject.
        Cn = "cn",
        /// Subject, as RFC 4514 formats it.
        Dn = "dn",
        /// First DNS name of the Subject Alternative Names.
        Dns = "dns",
        /// First email address of the Subject Alternative Names.
        Email = "email",
        /// First URI of the Subject Alternative Names.
        Uri = "uri",
    }
}

impl CertificateName {
    /// Returns the name; `None` when the certificate has none, or an empty one.
    pub fn of(self, certificate: &ClientCertificate) -> Option<&str> {
        let name = match self {
            Self::None => None,
            Self::Cn => certificate.common_name.as_deref(),
            Self::Dn => Some(&*certificate.subject),
            Self::Dns => certificate.dns_names.first().map(|name| &**name),
            Self::Email => certificate.email_addresses.first().map(|name| &**name),
            Self::Uri => certificate.uris.first().map(|name| &**name),
        };
        name.filter(|name| !name.is_empty())
    }
}

/// Admits clients with a certificate that an authority of their listener has signed.
#[derive(Clone, Copy, Debug)]
pub struct Certificate {
    pub username: CertificateName,
}

impl Link for Certificate {
    fn name(&self) -> &'static str {
        "certificate"
    }

    fn check_immediately(&self, credentials: Credentials<'_>) -> Option<Outcome> {
        let Some(certificate) = credentials.certificate else { return Some(Outcome::NotMine) };
        let name = self.username.of(certificate);
        Some(match (name, credentials.username) {
            (Some(name), Some(claimed)) if name != claimed => {
                tracing::debug!(
                    name,
                    claimed,
                    "authentication: user name differs from that of the certificate; refusing"
                );
                Outcome::Refuse(ReasonCode::NotAuthorized)
            }
            (Some(name), _) => {
                Outcome::Admit(Box::new(Admission { username: Some(name.into()), ..Admission::default() }))
            }
            // The certificate does not prove this name, so another link has to.
            (None, Some(_)) => Outcome::NotMine,
            (None, None) if self.username == CertificateName::None => Outcome::Admit(Box::default()),
            (None, None) => Outcome::NotMine,
        })
    }

    fn work(&self, _: &Attempt) -> Outcome {
        Outcome::NotMine
    }

    fn guessable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn certificate() -> ClientCertificate {
        ClientCertificate {
            common_name: Some("press-7".into()),
            subject: "CN=press-7,O=Works".into(),
            dns_names: vec!["a.example".into(), "b.example".into()],
            email_addresses: vec!["press@example".into()],
            ..ClientCertificate::default()
        }
    }

    fn ask(
        field: CertificateName,
        certificate: Option<ClientCertificate>,
        username: Option<&str>,
    ) -> Outcome {
        let certificate = certificate.map(Arc::new);
        let credentials =
            Credentials { username, certificate: certificate.as_ref(), ..Credentials::default() };
        Certificate { username: field }.check_immediately(credentials).unwrap()
    }

    fn as_user(name: &str) -> Outcome {
        Outcome::Admit(Box::new(Admission { username: Some(name.into()), ..Admission::default() }))
    }

    #[test]
    fn each_field_returns_its_name() {
        for (field, name) in [
            (CertificateName::Cn, Some("press-7")),
            (CertificateName::Dn, Some("CN=press-7,O=Works")),
            (CertificateName::Dns, Some("a.example")),
            (CertificateName::Email, Some("press@example")),
            (CertificateName::Uri, None),
            (CertificateName::None, None),
        ] {
            assert_eq!(field.of(&certificate()), name, "{field:?}");
        }
    }

    #[test]
    fn a_verified_certificate_is_enough_and_names_the_user() {
        assert_eq!(ask(CertificateName::Cn, Some(certificate()), None), as_user("press-7"));
        assert_eq!(ask(CertificateName::Cn, Some(certificate()), Some("press-7")), as_user("press-7"));
        assert_eq!(ask(CertificateName::None, Some(certificate()), None), Outcome::Admit(Box::default()));
    }

    #[test]
    fn a_user_name_that_differs_from_the_certificate_is_refused() {
        let refused = Outcome::Refuse(ReasonCode::NotAuthorized);
        assert_eq!(ask(CertificateName::Cn, Some(certificate()), Some("admin")), refused);
    }

    /// Otherwise any certificate of the authority would be valid for any user name.
    #[test]
    fn a_certificate_without_a_name_proves_no_user_name() {
        assert_eq!(ask(CertificateName::None, Some(certificate()), Some("admin")), Outcome::NotMine);
        assert_eq!(ask(CertificateName::Uri, Some(certificate()), Some("admin")), Outcome::NotMine);
        assert_eq!(ask(CertificateName::Uri, Some(certificate()), None), Outcome::NotMine);
        let nameless = ClientCertificate { common_name: Some("".into()), ..certificate() };
        assert_eq!(ask(CertificateName::Cn, Some(nameless), None), Outcome::NotMine);
        assert_eq!(ask(CertificateName::Cn, None, None), Outcome::NotMine);
    }
}
