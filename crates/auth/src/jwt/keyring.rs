//! Keys that verify tokens, and their sources.

use std::path::Path;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use super::algorithm::{Algorithm, KeyKind};
use super::der;
use super::error::JwtError;
use super::jwk::JWKS_MAX;
use super::jwks::{FetchSettings, Jwks};
use super::key::{Key, Material};
use super::refusal::Refusal;
use super::settings::{Jwt, SecretEncoding};
use super::token::Token;

/// Maximum number of keys that are tried for one token. It bounds the cost of foreign tokens.
const TRIED_MAX: usize = 4;

/// Keys at one moment.
#[derive(Debug, Default)]
pub struct Keys {
    pub all: Vec<Key>,
    /// True when the keys have names. A token's `kid` must be one of them.
    pub named: bool,
}

impl Keys {
    /// Verifies that one of the keys has signed the token.
    ///
    /// # Errors
    /// [`Refusal::NoKey`], [`Refusal::KeyNotNamed`], [`Refusal::Signature`].
    pub fn verify(&self, token: &Token<'_>) -> Result<(), Refusal> {
        let wanted = token.key_id.as_deref().filter(|_| self.named);
        let fits =
            |key: &&Key| wanted.is_none_or(|id| key.id.as_deref() == Some(id)) && key.fits(token.algorithm);
        match self.all.iter().filter(fits).count() {
            0 => return Err(Refusal::NoKey),
            1..=TRIED_MAX => {}
            _ => return Err(Refusal::KeyNotNamed),
        }
        let verifies = |key: &Key| key.verify(token.algorithm, token.signed.as_bytes(), &token.signature);
        if self.all.iter().filter(fits).any(verifies) { Ok(()) } else { Err(Refusal::Signature) }
    }
}

/// Source of keys.
#[derive(Debug)]
pub enum Keyring {
    Secret(Keys),
    PublicKeys(Keys),
    Set(Arc<Jwks>),
}

const SECRET_FILE: &str = "jwt.secret_file";
const PUBLIC_KEY_FILE: &str = "jwt.public_key_file";

impl Keyring {
    /// Reads the keys; `None` when no source of keys is configured.
    ///
    /// # Errors
    /// There is more than one source, or a file cannot be used.
    pub fn open(settings: &Jwt) -> Result<Option<Self>, JwtError> {
        let sources = [
            (SECRET_FILE, settings.secret_file.is_some()),
            (PUBLIC_KEY_FILE, settings.public_key_file.is_some()),
            ("jwt.jwks_file", settings.jwks_file.is_some()),
            ("jwt.jwks_url", settings.jwks_url.is_some()),
        ];
        let set: Vec<&str> = sources.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        if set.len() > 1 {
            let both = set.join(" and ");
            return Err(JwtError::Settings(format!(
                "{both} are set; keys come from one of them, remove the others"
            )));
        }
        if let Some(path) = &settings.secret_file {
            let keys = secret(path, settings.secret_encoding).map_err(of_setting(SECRET_FILE))?;
            return Ok(Some(Self::Secret(keys)));
        }
        if let Some(path) = &settings.public_key_file {
            let keys = public_keys(path).map_err(of_setting(PUBLIC_KEY_FILE))?;
            return Ok(Some(Self::PublicKeys(keys)));
        }
        match FetchSettings::of(settings)? {
            Some(fetch_settings) => Ok(Some(Self::Set(Arc::new(Jwks::start(fetch_settings)?)))),
            None => Ok(None),
        }
    }

    /// Reads the files again. A JWK Set stays shared with this keyring, and its new settings are returned with it.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn read(&self, settings: &Jwt) -> Result<(Self, Option<Arc<FetchSettings>>), JwtError> {
        match self {
            Self::Set(jwks) => {
                let fetch_settings =
                    FetchSettings::of(settings)?.ok_or_else(|| moved("jwt.jwks_file or jwt.jwks_url"))?;
                fetch_settings.check_file()?;
                Ok((Self::Set(jwks.clone()), Some(Arc::new(fetch_settings))))
            }
            Self::Secret(_) => {
                let path = settings.secret_file.as_deref().ok_or_else(|| moved(SECRET_FILE))?;
                let keys = secret(path, settings.secret_encoding).map_err(of_setting(SECRET_FILE))?;
                Ok((Self::Secret(keys), None))
            }
            Self::PublicKeys(_) => {
                let path = settings.public_key_file.as_deref().ok_or_else(|| moved(PUBLIC_KEY_FILE))?;
                let keys = public_keys(path).map_err(of_setting(PUBLIC_KEY_FILE))?;
                Ok((Self::PublicKeys(keys), None))
            }
        }
    }

    /// Returns the allowed algorithms: the configured ones, if they fit the keys, or else all that fit.
    ///
    /// # Errors
    /// A name is unknown, or no key fits it: secrets and public keys are never mixed.
    pub fn algorithms(&self, setting: &str) -> Result<Vec<Algorithm>, JwtError> {
        let fits = |algorithm: Algorithm| match self {
            Self::Secret(keys) | Self::PublicKeys(keys) => keys.all.iter().any(|key| key.fits(algorithm)),
            Self::Set(_) => algorithm.key_kind() != KeyKind::Secret,
        };
        let named: Vec<&str> = setting.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        if named.is_empty() {
            return Ok(Algorithm::ALL
                .into_iter()
                .map(|(_, algorithm)| algorithm)
                .filter(|a| fits(*a))
                .collect());
        }
        named
            .into_iter()
            .map(|name| {
                let known = || Algorithm::ALL.map(|(name, _)| name).join(", ");
                let algorithm = Algorithm::parse(name).ok_or_else(|| {
                    JwtError::Settings(format!(
                        "jwt.algorithms has `{name}`, which is unknown; known are {}",
                        known()
                    ))
                })?;
                if fits(algorithm) {
                    return Ok(algorithm);
                }
                let why = match (self, algorithm.secret_len_min()) {
                    (Self::Secret(_), min @ 1..) => format!("needs a secret of at least {min} bytes"),
                    (Self::Secret(_), 0) => "needs a public key, and jwt.secret_file is a secret".to_owned(),
                    (_, 1..) => "needs jwt.secret_file; the configured keys are public".to_owned(),
                    (_, 0) => "needs a key of another kind than those in jwt.public_key_file".to_owned(),
                };
                Err(JwtError::Settings(format!("jwt.algorithms has {name}, which {why}")))
            })
            .collect()
    }
}

/// Returns the error for a changed source of keys, which is fixed at the start.
fn moved(setting: &str) -> JwtError {
    JwtError::Settings(format!("{setting} is the source of keys until the next start, and is no longer set"))
}

/// Puts the setting that names a file in front of its errors.
fn of_setting(setting: &'static str) -> impl FnOnce(JwtError) -> JwtError {
    move |error| match error {
        JwtError::File { .. } => JwtError::Settings(format!("{setting}: {error}")),
        JwtError::Settings(_) | JwtError::System(_) => error,
    }
}

/// Reads a secret. Errors never contain the contents of the file.
fn secret(path: &Path, encoding: SecretEncoding) -> Result<Keys, JwtError> {
    let bytes = Zeroizing::new(read(path)?);
    if bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        return Err(JwtError::file(
            path,
            "it is a PEM file, not a secret: public keys belong in jwt.public_key_file",
        ));
    }
    let secret: Box<[u8]> = match encoding {
        SecretEncoding::Raw => {
            let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            line.strip_suffix(b"\r").unwrap_or(line).into()
        }
        SecretEncoding::Base64 => {
            let mut text = Zeroizing::new(Vec::with_capacity(bytes.len() + 3));
            for byte in bytes.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b'=') {
                text.push(match *byte {
                    b'-' => b'+',
                    b'_' => b'/',
                    byte => byte,
                });
            }
            while text.len() % 4 != 0 {
                text.push(b'=');
            }
            let text = std::str::from_utf8(&text).ok();
            let decoded = text.and_then(|text| Base64::decode_vec(text).ok());
            let why = "it is not base64, as jwt.secret_encoding requires";
            decoded.ok_or_else(|| JwtError::file(path, why))?.into()
        }
    };
    let min = Algorithm::Hs256.secret_len_min();
    if secret.len() < min {
        let len = secret.len();
        return Err(JwtError::file(
            path,
            format!(
                "the secret has {len} bytes, which is too short; it needs {min} (`openssl rand -out FILE -base64 48`)"
            ),
        ));
    }
    let key = Key { id: None, algorithm: None, material: Material::Secret(secret) };
    Ok(Keys { all: vec![key], named: false })
}

fn public_keys(path: &Path) -> Result<Keys, JwtError> {
    let all = der::public_keys(&read(path)?).map_err(|why| JwtError::file(path, why))?;
    Ok(Keys { all, named: false })
}

/// Reads a whole file of bounded size.
pub fn read(path: &Path) -> Result<Vec<u8>, JwtError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| JwtError::file(path, error))?;
    file.take(JWKS_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| JwtError::file(path, error))?;
    if bytes.len() > JWKS_MAX {
        return Err(JwtError::file(path, format!("it is larger than {JWKS_MAX} bytes")));
    }
    Ok(bytes)
}
