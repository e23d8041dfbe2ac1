//! Explanations of TLS errors, with advice.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::OptionStyle;

/// Explains an error of a connection to `host` and says how to fix it. The text does not repeat the address.
pub fn explain(error: &Error, host: &str, style: OptionStyle) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error, host, style),
        Error::AlertReceived(alert) => of_alert(*alert, style),
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => {
            format!(
                "the server at this port does not speak TLS; {}, or use the port that has it",
                style.turn_off()
            )
        }
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        ) => format!("the server does not speak {}", style.versions()),
        Error::NoApplicationProtocol => no_protocol(style),
        other => format!("TLS: {other}"),
    }
}

/// Explains an I/O error that wraps a TLS error; `None` when it does not.
pub fn explain_io(error: &io::Error, host: &str, style: OptionStyle) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    Some(explain(inner, host, style))
}

/// Returns whether the first bytes of a server are a record of TLS, an alert or a handshake. Such a server expects TLS.
pub fn is_record(bytes: &[u8]) -> bool {
    matches!(bytes, [21 | 22, 3, ..])
}

fn no_protocol(style: OptionStyle) -> String {
    format!("the server does not speak the protocol that was offered by ALPN; {}", style.change_protocol())
}

fn of_certificate(error: &CertificateError, host: &str, style: OptionStyle) -> String {
    match error {
        CertificateError::UnknownIssuer => format!(
            "the server's certificate is signed by an authority that is not known here: {} (for a private one; a server that \
             keeps its intermediate certificates to itself looks the same)",
            style.name_authority()
        ),
        CertificateError::BadSignature => format!(
            "the server's certificate is not signed by the authority that is known here under the same name: {}",
            style.name_authority()
        ),
        CertificateError::NotValidForName => wrong_name(host, &[], style),
        CertificateError::NotValidForNameContext { presented, .. } => wrong_name(host, presented, style),
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

fn wrong_name(host: &str, presented: &[String], style: OptionStyle) -> String {
    let names: Vec<&str> = presented.iter().take(NAMES_MAX).map(|name| plain_name(name)).collect();
    let names = match names.is_empty() {
        true => String::new(),
        false => format!("; it is for {}", names.join(", ")),
    };
    format!(
        "the server's certificate is not for {host}{names}: {}, or make one with this name (subjectAltName = DNS:{host}, or \
         IP:ADDRESS)",
        style.use_other_name()
    )
}

/// Returns the name in `DnsName("localhost")`, which is the form that the library prints.
fn plain_name(name: &str) -> &str {
    let quoted = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    quoted.trim_matches('"')
}

/// Maximum number of certificate names in an error message.
const NAMES_MAX: usize = 5;

fn of_alert(alert: AlertDescription, style: OptionStyle) -> String {
    let certificate = style.certificate();
    match alert {
        AlertDescription::CertificateRequired => {
            format!("the server wants a certificate from the client: {}", style.give_certificate())
        }
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::DecryptError
        | AlertDescription::CertificateUnknown => format!(
            "the server does not accept the client's certificate ({certificate}): it was signed by an authority that the server \
             does not know, or not for clients (extendedKeyUsage = clientAuth)"
        ),
        AlertDescription::CertificateExpired => {
            format!("the client's certificate ({certificate}) has expired")
        }
        AlertDescription::CertificateRevoked => {
            format!("the client's certificate ({certificate}) was revoked")
        }
        AlertDescription::ProtocolVersion => format!("the server does not speak {}", style.versions()),
        AlertDescription::NoApplicationProtocol => no_protocol(style),
        other => format!("the server ends the TLS handshake: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;

    const COMMAND: OptionStyle = OptionStyle::CommandLine;

    #[test]
    fn common_mistakes_are_explained_with_a_fix() {
        let certificate = |error| explain(&Error::InvalidCertificate(error), "broker.example", COMMAND);
        let alert = |alert| explain(&Error::AlertReceived(alert), "broker.example", COMMAND);
        for (text, says) in [
            (certificate(CertificateError::UnknownIssuer), "--ca FILE"),
            (certificate(CertificateError::NotValidForName), "not for broker.example: "),
            (certificate(presented()), "it is for localhost, 127.0.0.1: use"),
            (certificate(CertificateError::Expired), "renew it"),
            (certificate(CertificateError::NotValidYet), "clock"),
            (alert(AlertDescription::CertificateRequired), "--cert FILE"),
            (alert(AlertDescription::UnknownCA), "--cert"),
            (alert(AlertDescription::ProtocolVersion), "--tls-version"),
            (explain(&NOT_TLS, "h", COMMAND), "does not speak TLS; use the URL without TLS"),
        ] {
            assert!(text.contains(says), "{text}");
        }
    }

    /// An error of a bridge, a link or a connector names what its user has written. A connector has no name of its
    /// server.
    #[test]
    fn advice_for_settings_names_settings() {
        use OptionStyle::{Bridge, Connector, ConnectorUrl};
        let every = &[Bridge, Connector, ConnectorUrl][..];
        let certificate = Error::InvalidCertificate;
        for (error, styles, says) in [
            (certificate(CertificateError::UnknownIssuer), every, "set tls_ca to the file"),
            (certificate(CertificateError::BadSignature), every, "set tls_ca to the file"),
            (certificate(presented()), &[Bridge][..], "set tls_server_name to a name that it has"),
            (certificate(presented()), &[Connector, ConnectorUrl][..], "use a name that it has"),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                every,
                "set tls_certificate and tls_key",
            ),
            (Error::AlertReceived(AlertDescription::UnknownCA), every, "certificate (tls_certificate)"),
            (
                Error::AlertReceived(AlertDescription::CertificateExpired),
                every,
                "(tls_certificate) has expired",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRevoked),
                every,
                "(tls_certificate) was revoked",
            ),
            (Error::AlertReceived(AlertDescription::ProtocolVersion), every, "speak TLS 1.2 or 1.3"),
            (PeerIncompatible::ServerDoesNotSupportTls12Or13.into(), every, "speak TLS 1.2 or 1.3"),
            (Error::NoApplicationProtocol, every, "check the port"),
            (NOT_TLS, &[Bridge, Connector][..], "; set tls = false, or"),
            (NOT_TLS, &[ConnectorUrl][..], "; write http:// in url, or"),
        ] {
            for style in styles {
                let text = explain(&error, "broker.example", *style);
                assert!(text.contains(says) && !text.contains("--"), "{style:?}: {text}");
            }
        }
        for style in every {
            let text = crate::TlsError::NoAuthorities { why: String::new(), style: *style }.to_string();
            assert!(text.contains("set tls_ca to a file") && !text.contains("--"), "{text}");
        }
    }

    #[test]
    fn a_network_error_is_not_a_tls_error() {
        assert_eq!(explain_io(&io::Error::from(io::ErrorKind::ConnectionReset), "h", COMMAND), None);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, Error::NoApplicationProtocol);
        assert_eq!(explain_io(&wrapped, "h", COMMAND), Some(no_protocol(COMMAND)));
    }

    const NOT_TLS: Error = Error::InvalidMessage(InvalidMessage::InvalidContentType);

    fn presented() -> CertificateError {
        CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("broker.example").unwrap(),
            presented: vec![r#"DnsName("localhost")"#.to_owned(), "IpAddress(127.0.0.1)".to_owned()],
        }
    }
}
