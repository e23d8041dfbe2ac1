//! Names in a client's certificate. TLS has verified the certificate before it is read here.

use broker::access::ClientCertificate;
use sha2::{Digest as _, Sha256};
use x509_parser::asn1_rs::{Any, Oid, Tag, ToDer as _};
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry as oid;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;

/// Content of a client's certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    pub certificate: ClientCertificate,
    /// Validity period: first and last second, in Unix time.
    pub valid: (i64, i64),
}

/// Parses a certificate (DER). `None` when it is invalid, or when a name in it is ambiguous: bytes that are not text,
/// or a NUL, at which other programs stop reading.
pub(crate) fn read(der: &[u8]) -> Option<PeerCertificate> {
    let (rest, parsed) = X509Certificate::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let mut certificate = ClientCertificate {
        common_name: common_name(parsed.subject())?,
        subject: distinguished(parsed.subject())?.into(),
        issuer: distinguished(parsed.issuer())?.into(),
        serial: serial(parsed.raw_serial()).into(),
        fingerprint: Sha256::digest(der).into(),
        ..ClientCertificate::default()
    };
    let names = parsed.subject_alternative_name().ok()?;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        let (list, name) = match name {
            GeneralName::DNSName(name) => (&mut certificate.dns_names, name),
            GeneralName::RFC822Name(name) => (&mut certificate.email_addresses, name),
            GeneralName::URI(name) => (&mut certificate.uris, name),
            GeneralName::Invalid(..) => return None,
            _ => continue,
        };
        if !name.bytes().all(|byte| (0x20..0x7F).contains(&byte)) {
            return None;
        }
        list.push((*name).into());
    }
    let valid = parsed.validity();
    Some(PeerCertificate { certificate, valid: (valid.not_before.timestamp(), valid.not_after.timestamp()) })
}

/// Returns the last common name of a subject, which is the most specific one.
fn common_name(subject: &X509Name<'_>) -> Option<Option<Box<str>>> {
    let Some(attribute) = subject.iter_common_name().last() else { return Some(None) };
    text(attribute.attr_value()).map(|name| Some(name.into()))
}

/// Formats a name as RFC 4514 defines it, the most specific part first.
fn distinguished(name: &X509Name<'_>) -> Option<String> {
    let mut written = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (at, part) in parts.into_iter().rev().enumerate() {
        for (within, attribute) in part.iter().enumerate() {
            match (at, within) {
                (0, 0) => {}
                (_, 0) => written.push(','),
                _ => written.push('+'),
            }
            match short_name(attribute.attr_type()) {
                Some(short) => {
                    written.push_str(short);
                    written.push('=');
                    escape(&text(attribute.attr_value())?, &mut written);
                }
                None => {
                    written.push_str(&attribute.attr_type().to_id_string());
                    written.push_str("=#");
                    let value = attribute.attr_value().to_der_vec().ok()?;
                    value.iter().for_each(|byte| written.push_str(&format!("{byte:02X}")));
                }
            }
        }
    }
    Some(written)
}

/// Returns the short names of RFC 4514 section 3, and two more that are common.
fn short_name(attribute: &Oid<'_>) -> Option<&'static str> {
    let known = [
        (oid::OID_X509_COMMON_NAME, "CN"),
        (oid::OID_X509_LOCALITY_NAME, "L"),
        (oid::OID_X509_STATE_OR_PROVINCE_NAME, "ST"),
        (oid::OID_X509_ORGANIZATION_NAME, "O"),
        (oid::OID_X509_ORGANIZATIONAL_UNIT, "OU"),
        (oid::OID_X509_COUNTRY_NAME, "C"),
        (oid::OID_X509_STREET_ADDRESS, "STREET"),
        (oid::OID_DOMAIN_COMPONENT, "DC"),
        (oid::OID_USERID, "UID"),
        (oid::OID_X509_SERIALNUMBER, "serialNumber"),
        (oid::OID_PKCS9_EMAIL_ADDRESS, "emailAddress"),
    ];
    known.into_iter().find(|(known, _)| known == attribute).map(|(_, name)| name)
}

fn escape(text: &str, written: &mut String) {
    let last = text.chars().count().saturating_sub(1);
    for (at, char) in text.chars().enumerate() {
        match char {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => written.extend(['\\', char]),
            ' ' if at == 0 || at == last => written.push_str("\\ "),
            '#' if at == 0 => written.push_str("\\#"),
            char if char.is_ascii_control() => written.push_str(&format!("\\{:02X}", char as u32)),
            char => written.push(char),
        }
    }
}

/// Returns the text of a DirectoryString or of an older string type.
fn text(value: &Any<'_>) -> Option<String> {
    let bytes = value.data;
    let text = match value.tag() {
        Tag::Utf8String => String::from_utf8(bytes.to_vec()).ok()?,
        Tag::PrintableString | Tag::Ia5String | Tag::NumericString | Tag::VisibleString | Tag::T61String => {
            // Bytes beyond ASCII have no agreed meaning in T61 strings.
            bytes.is_ascii().then(|| String::from_utf8(bytes.to_vec()))?.ok()?
        }
        Tag::BmpString => {
            let (units, rest) = bytes.as_chunks::<2>();
            let units: Vec<_> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            rest.is_empty().then(|| String::from_utf16(&units))?.ok()?
        }
        Tag::UniversalString => {
            let (units, rest) = bytes.as_chunks::<4>();
            let chars = units.iter().map(|unit| char::from_u32(u32::from_be_bytes(*unit)));
            rest.is_empty().then(|| chars.collect::<Option<String>>())??
        }
        _ => return None,
    };
    (!text.contains('\0')).then_some(text)
}

/// Formats a serial number without the leading zero that only marks a positive number.
fn serial(bytes: &[u8]) -> String {
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        bytes => bytes,
    };
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType, SerialNumber};

    use super::*;

    fn issue(parts: &[(DnType, DnValue)], names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.subject_alt_names = names;
        params.serial_number = Some(SerialNumber::from_slice(&[0x00, 0xAB, 0x01]));
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn names_of_a_certificate_are_read() {
        let name = |text: &str| text.try_into().expect("ASCII");
        let der = issue(
            &[
                (DnType::CountryName, DnValue::PrintableString("DE".try_into().expect("printable"))),
                (DnType::OrganizationName, utf8("Widgets, \"Inc\" +1")),
                (DnType::CommonName, utf8(" #sensor ")),
            ],
            vec![
                SanType::DnsName(name("a.example")),
                SanType::Rfc822Name(name("a@example.com")),
                SanType::URI(name("urn:device:7")),
                SanType::IpAddress([192, 0, 2, 1].into()),
                SanType::DnsName(name("b.example")),
            ],
        );
        let PeerCertificate { certificate, valid } = read(&der).expect("a certificate");
        assert_eq!(certificate.common_name.as_deref(), Some(" #sensor "));
        assert_eq!(&*certificate.subject, r#"CN=\ #sensor\ ,O=Widgets\, \"Inc\" \+1,C=DE"#);
        assert_eq!(certificate.issuer, certificate.subject, "self-signed");
        assert_eq!(&*certificate.serial, "AB01");
        assert_eq!(certificate.dns_names, ["a.example".into(), "b.example".into()]);
        assert_eq!(certificate.email_addresses, ["a@example.com".into()]);
        assert_eq!(certificate.uris, ["urn:device:7".into()]);
        assert_eq!(certificate.fingerprint[..], Sha256::digest(&der)[..]);
        assert!(valid.0 < valid.1);
    }

    #[test]
    fn old_string_types_and_unknown_attributes_are_read() {
        let bmp = DnValue::BmpString("Gerät".try_into().expect("in the plane"));
        let der = issue(
            &[(DnType::CommonName, bmp), (DnType::CustomDnType(vec![2, 5, 4, 12]), utf8("Dr"))],
            Vec::new(),
        );
        let PeerCertificate { certificate, .. } = read(&der).expect("a certificate");
        assert_eq!(certificate.common_name.as_deref(), Some("Gerät"));
        assert_eq!(&*certificate.subject, "2.5.4.12=#0C024472,CN=Gerät");
        let nameless = read(&issue(&[], Vec::new())).expect("a certificate").certificate;
        assert_eq!((nameless.common_name, &*nameless.subject), (None, ""));
    }

    #[test]
    fn ambiguous_names_are_refused() {
        assert_eq!(read(&issue(&[(DnType::CommonName, utf8("admin\0.example"))], Vec::new())), None);
        let teletex = DnValue::TeletexString("x".try_into().expect("a string"));
        assert!(read(&issue(&[(DnType::CommonName, teletex)], Vec::new())).is_some());
    }

    /// Damaged bytes never cause a panic, and bytes after a certificate are not read as a part of it.
    #[test]
    fn damaged_certificates_are_refused_or_read_as_others() {
        let der = issue(&[(DnType::CommonName, utf8("sensor"))], Vec::new());
        for end in 0..der.len() {
            assert_eq!(read(&der[..end]), None, "{end}");
        }
        assert_eq!(read(&[&der[..], b"\0"].concat()), None);
        for at in 0..der.len() {
            for bit in 0..8 {
                let mut damaged = der.clone();
                damaged[at] ^= 1 << bit;
                let fingerprint =
                    read(&damaged).map(|peer_certificate| peer_certificate.certificate.fingerprint);
                assert_ne!(
                    fingerprint,
                    read(&der).map(|peer_certificate| peer_certificate.certificate.fingerprint)
                );
            }
        }
    }
}
