//! Explanations of TLS errors for users of the command line, with advice.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Explains an error of a connection to `host` and says how to fix it. The text does not repeat the address.
pub fn explain(error: &Error, host: &str) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error, host),
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            "the server at this port does not speak TLS; use the URL without TLS (mqtt://, ws://, http://), or the port that has it"
                .to_owned()
        }
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => "the server does not speak the requested version of TLS (1.2 or 1.3, or what --tls-version says)".to_owned(),
        Error::NoApplicationProtocol => NO_ALPN.to_owned(),
        other => format!("TLS: {other}"),
    }
}

/// Explains an I/O error that wraps a TLS error; `None` when it does not.
pub fn explain_io(error: &io::Error, host: &str) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    Some(explain(inner, host))
}

const NO_ALPN: &str = "the server does not speak the protocol that was offered by ALPN; check the port, or offer another \
                       one with --alpn";

fn of_certificate(error: &CertificateError, host: &str) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the server's certificate is signed by an authority that is not known here: name that authority's certificate with \
             --ca FILE (for a private one; a server that keeps its intermediate certificates to itself looks the same)"
                .to_owned()
        }
        CertificateError::NotValidForName => wrong_name(host, &[]),
        CertificateError::NotValidForNameContext { presented, .. } => wrong_name(host, presented),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: renew it on the server (a running node reloads it on SIGHUP); if it has not, \
             this machine's clock is wrong"
                .to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: check the clock of this machine, then that of the server".to_owned()
        }
        CertificateError::Revoked => "the server's certificate was revoked".to_owned(),
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "the server shows an authority's certificate as its own: it needs one that the authority signed (docs/security.md has \
             the commands)"
                .to_owned()
        }
        other => format!("the server's certificate is not accepted: {other}"),
    }
}

fn wrong_name(host: &str, presented: &[String]) -> String {
    let names: Vec<&str> = presented.iter().take(NAMES_MAX).map(|name| plain_name(name)).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => format!("; it is for {}", names.join(", ")),
    };
    format!(
        "the server's certificate is not for {host}{names}: use a name that it has, or make one with this name \
         (subjectAltName = DNS:{host}, or IP:ADDRESS)"
    )
}

/// Returns the name in `DnsName("localhost")`, which is the form that the library prints.
fn plain_name(name: &str) -> &str {
    let quoted = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    quoted.trim_matches('"')
}

/// Maximum number of certificate names in an error message.
const NAMES_MAX: usize = 5;

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "the server wants a certificate from the client: give one with --cert FILE and --key FILE".to_owned()
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::DecryptError
        | AlertDescription::CertificateUnknown => {
            "the server does not accept the client's certificate (--cert): it was signed by an authority that the server does not \
             know, or not for clients (extendedKeyUsage = clientAuth)"
                .to_owned()
        }
        AlertDescription::CertificateExpired => "the client's certificate (--cert) has expired".to_owned(),
        AlertDescription::CertificateRevoked => "the client's certificate (--cert) was revoked".to_owned(),
        AlertDescription::ProtocolVersion => {
            "the server does not speak the requested version of TLS (--tls-version)".to_owned()
        }
        AlertDescription::NoApplicationProtocol => NO_ALPN.to_owned(),
        other => format!("the server ends the TLS handshake: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn common_mistakes_are_explained_with_a_fix() {
        let certificate = |error| explain(&Error::InvalidCertificate(error), "broker.example");
        let alert = |alert| explain(&Error::AlertReceived(alert), "broker.example");
        for (text, says) in [
            (certificate(CertificateError::UnknownIssuer), "--ca FILE"),
            (certificate(CertificateError::NotValidForName), "not for broker.example: "),
            (
                certificate(CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("broker.example").unwrap(),
                    presented: vec![r#"DnsName("localhost")"#.to_owned(), "IpAddress(127.0.0.1)".to_owned()],
                }),
                "it is for localhost, 127.0.0.1: use",
            ),
            (certificate(CertificateError::Expired), "renew it"),
            (certificate(CertificateError::NotValidYet), "clock"),
            (alert(AlertDescription::CertificateRequired), "--cert FILE"),
            (alert(AlertDescription::UnknownCA), "--cert"),
            (alert(AlertDescription::ProtocolVersion), "--tls-version"),
            (explain(&Error::InvalidMessage(InvalidMessage::InvalidContentType), "h"), "does not speak TLS"),
        ] {
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_network_error_is_not_a_tls_error() {
        assert_eq!(explain_io(&io::Error::from(io::ErrorKind::ConnectionReset), "h"), None);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, Error::NoApplicationProtocol);
        assert_eq!(explain_io(&wrapped, "h").as_deref(), Some(NO_ALPN));
    }
}
