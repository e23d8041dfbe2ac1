//! HTTP services with a real server on loopback.

mod acl;
mod link;
mod tls;

use std::path::PathBuf;

/// Creates a file of this test process.
pub fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("meridian-http-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}
