//! An authority, a server's and a client's certificate, made by `openssl`: ECDSA with P-256.

use crate::bench::broker::Directory;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// Certificates in a directory that is removed when this is dropped.
pub struct Certificates(Directory);

impl Certificates {
    pub fn make() -> Result<Certificates> {
        let made = Certificates(Directory::new()?);
        made.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=measured")?;
        std::fs::write(made.path("extensions"), "subjectAltName=DNS:localhost\n")?;
        for name in ["server", "client"] {
            made.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
            ))?;
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile extensions -out {name}.pem"
            ))?;
        }
        Ok(made)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, arguments: &str) -> Result<()> {
        let done = Command::new("openssl").args(arguments.split(' ')).current_dir(self.0.join("")).output();
        let done = done.context("openssl")?;
        ensure!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}
