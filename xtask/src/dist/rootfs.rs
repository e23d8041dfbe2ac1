//! Files of a container image without a distribution: the binary, its libraries, a user, and the files of name
//! resolution. `Dockerfile` copies them to an empty image, and [`super::image`] packs them.

use super::tree::Tree;
use super::{Product, contents, read};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// User and group of the node in an image: fixed, so that volumes keep their owner.
pub const USER: u32 = 10001;

/// Directories with Debian's libraries; the first that has a file wins.
const LIBRARIES: [&str; 4] = ["lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib64"];

/// The files.
///
/// # Errors
/// A library that is not on this machine.
pub fn files(product: &Product) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.program("usr/bin/meridian", product.binary.clone());
    tree.file(contents::CONFIGURATION, read("packaging/docker/meridian.toml")?);
    tree.file("etc/passwd", format!("meridian:x:{USER}:{USER}:meridian:/data:/nonexistent\n").into_bytes());
    tree.file("etc/group", format!("meridian:x:{USER}:\n").into_bytes());
    tree.file("etc/nsswitch.conf", b"hosts: files dns\n".to_vec());
    tree.file("usr/share/doc/meridian/copyright", read("packaging/deb/copyright")?);
    // Scanners of images search for files of this name.
    tree.file("usr/share/doc/meridian/meridian.cdx.json", product.sbom.clone());
    tree.file("usr/share/doc/meridian/third-party.txt", product.notices.clone());
    let mut packed = BTreeSet::new();
    if let Some(interpreter) = &product.elf.interpreter {
        let path = interpreter.trim_start_matches('/');
        tree.program(path, fs::read(interpreter).with_context(|| interpreter.clone())?);
        packed.extend(path.rsplit('/').next().map(str::to_owned));
    }
    for library in &product.elf.needed {
        if packed.insert(library.clone()) {
            let path =
                LIBRARIES.iter().map(|d| format!("{d}/{library}")).find(|p| Path::new("/").join(p).is_file());
            let path = path.with_context(|| format!("{library} is not on this machine"))?;
            tree.file(&path, fs::read(Path::new("/").join(&path)).with_context(|| path.clone())?);
        }
    }
    Ok(tree)
}
