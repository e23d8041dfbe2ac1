//! Public keys in PEM files: the forms of SubjectPublicKeyInfo (RFC 5280) for keys that sign tokens.

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;

use super::key::{Key, Material};

/// Maximum number of keys in a file.
pub const PEM_KEYS_MAX: usize = 4;

/// Returns all public keys of a PEM text, at least one.
///
/// # Errors
/// A sentence with the fix, to follow the file's name.
pub fn public_keys(pem: &[u8]) -> Result<Vec<Key>, String> {
    let has = |label: &[u8]| pem.windows(label.len()).any(|window| window == label);
    if has(b"PRIVATE KEY-----") {
        return Err("it holds a private key, which only the issuer may have; \
                    `openssl pkey -in FILE -pubout -out PUBLIC` writes the public one"
            .to_owned());
    }
    let mut keys = Vec::new();
    for found in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
        let der = found.map_err(|error| format!("it is not a PEM file ({error})"))?;
        if keys.len() == PEM_KEYS_MAX {
            return Err(format!("it holds more than {PEM_KEYS_MAX} keys; use a JWK Set (jwt.jwks_file)"));
        }
        let material = subject_public_key(&der).map_err(|why| format!("key {}: {why}", keys.len() + 1))?;
        keys.push(Key { id: None, algorithm: None, material });
    }
    if !keys.is_empty() {
        return Ok(keys);
    }
    Err(if has(b"BEGIN CERTIFICATE-----") {
        "it holds a certificate; `openssl x509 -in FILE -noout -pubkey` prints its public key".to_owned()
    } else if has(b"BEGIN RSA PUBLIC KEY-----") {
        "it holds an RSA key in its old form; `openssl rsa -RSAPublicKey_in -in FILE -pubout` prints the new one".to_owned()
    } else {
        "it holds no public key (-----BEGIN PUBLIC KEY-----)".to_owned()
    })
}

fn subject_public_key(der: &[u8]) -> Result<Material, &'static str> {
    const WRONG: &str = "it is not a SubjectPublicKeyInfo";
    let (algorithm, bits) = parts(der).ok_or(WRONG)?;
    match algorithm {
        RSA => {
            let (n, e) = rsa(bits).ok_or(WRONG)?;
            Material::rsa(n, e)
        }
        P256 => Material::p256(bits).ok_or("it is not an uncompressed point of P-256"),
        P384 => Material::p384(bits).ok_or("it is not an uncompressed point of P-384"),
        ED25519 => bits.try_into().map(Material::Ed25519).map_err(|_| WRONG),
        _ => Err("only RSA, P-256, P-384 and Ed25519 are supported"),
    }
}

/// Returns the content of AlgorithmIdentifier, and of the bit string after it.
fn parts(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = Der(der);
    let mut inner = Der(outer.take(SEQUENCE)?);
    let algorithm = inner.take(SEQUENCE)?;
    let [0, bits @ ..] = inner.take(BIT_STRING)? else { return None };
    (outer.0.is_empty() && inner.0.is_empty()).then_some((algorithm, bits))
}

fn rsa(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = Der(der);
    let mut inner = Der(outer.take(SEQUENCE)?);
    let (n, e) = (inner.take(INTEGER)?, inner.take(INTEGER)?);
    (outer.0.is_empty() && inner.0.is_empty()).then_some((n, e))
}

/// Bytes that remain to be parsed.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Returns the content of the next element, when it has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (len, rest) = match *first {
            short @ 0..=0x7f => (usize::from(short), rest),
            0x81 => (usize::from(*rest.first()?), &rest[1..]),
            0x82 => (usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])), &rest[2..]),
            _ => return None,
        };
        if *found != tag || len > rest.len() {
            return None;
        }
        let (content, rest) = rest.split_at(len);
        self.0 = rest;
        Some(content)
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
/// Contents of AlgorithmIdentifier, parameters included (RFC 3279, 5480, 8410).
const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
const P256: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const P384: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22";
const ED25519: &[u8] = b"\x06\x03\x2b\x65\x70";
