//! The secret that a controller and its agents share.

use crate::config::SetupError;
use std::fmt;
use std::path::Path;

/// Bytes of the secret's file; empty without a file.
#[derive(Clone, Default, PartialEq)]
pub struct Shared(Vec<u8>);

/// Minimum length in bytes. An attacker with a recorded connection can guess shorter ones.
const SECRET_MIN: usize = 16;
/// Maximum length in bytes. A longer file is probably the wrong one.
const SECRET_MAX: usize = 4096;

impl Shared {
    /// Reads the file, without surrounding white space.
    ///
    /// # Errors
    /// A file that cannot be read, and a secret of invalid length.
    pub fn read(path: Option<&Path>) -> Result<Shared, SetupError> {
        let Some(path) = path else { return Ok(Shared::default()) };
        let bytes = std::fs::read(path).map_err(|error| SetupError::file(path, &error))?;
        let secret = bytes.trim_ascii();
        if !(SECRET_MIN..=SECRET_MAX).contains(&secret.len()) {
            return Err(SetupError::Agent(format!(
                "{}: a secret has {SECRET_MIN} to {SECRET_MAX} bytes, and this one {}: make one with \
                 `head -c 32 /dev/urandom | base64 > {}`",
                path.display(),
                secret.len(),
                path.display()
            )));
        }
        Ok(Shared(secret.to_vec()))
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("***")
    }
}
