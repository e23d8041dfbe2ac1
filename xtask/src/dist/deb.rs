//! A Debian package: an `ar` archive of three members, as specified by deb(5). Written here so that packing needs no
//! Debian.

use super::tree::Tree;
use super::{Product, VERSION, contents, read};
use anyhow::{Context, Result, ensure};

/// The package and its name.
///
/// # Errors
/// Files of the repository that cannot be read.
pub fn pack(product: &Product) -> Result<(String, Vec<u8>)> {
    let (version, architecture) = (version(VERSION), product.elf.architecture());
    let data = contents::package(product)?;
    let mut control = Tree::default();
    control
        .file("control", control_file(product, &version, architecture, data.installed_kib())?.into_bytes());
    control.file("conffiles", format!("/{}\n", contents::CONFIGURATION).into_bytes());
    for script in ["postinst", "prerm", "postrm"] {
        control.program(script, read(&format!("packaging/deb/{script}"))?);
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.tar_gz("./", product.time)?),
        ("data.tar.gz", data.tar_gz("./", product.time)?),
    ];
    Ok((format!("meridian_{version}_{architecture}.deb"), ar(&members, product.time)?))
}

/// Converts a version: Debian sorts a pre-release before its release only with `~`.
fn version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

fn control_file(product: &Product, version: &str, architecture: &str, kib: usize) -> Result<String> {
    let template = String::from_utf8(read("packaging/deb/control")?).context("packaging/deb/control")?;
    let mut depends = vec!["passwd".to_owned(), "init-system-helpers (>= 1.52)".to_owned()];
    for library in &product.elf.needed {
        match (library.as_str(), product.elf.glibc) {
            ("libc.so.6", Some((major, minor))) => depends.push(format!("libc6 (>= {major}.{minor})")),
            ("libgcc_s.so.1", _) => depends.push("libgcc-s1".to_owned()),
            // These come with libc6.
            _ => {}
        }
    }
    depends.sort();
    let text = template
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@KIB@", &kib.to_string())
        .replace("@DEPENDS@", &depends.join(", "));
    let empty = text.split('@').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_uppercase()));
    ensure!(!empty, "packaging/deb/control has an unknown placeholder:\n{text}");
    Ok(text)
}

/// The common `ar` format: 60 bytes of text before each member, members at even offsets.
fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Result<Vec<u8>> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let header = format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len());
        ensure!(header.len() == 60, "{name}: name, time or size does not fit an ar header");
        archive.extend(header.as_bytes());
        archive.extend(bytes);
        if bytes.len() % 2 == 1 {
            archive.push(b'\n');
        }
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_begin_at_even_offsets_after_their_headers() {
        let archive = ar(&[("a", b"odd".to_vec()), ("b", b"even".to_vec())], 12).unwrap();
        let expected = "!<arch>\n\
            a               12          0     0     100644  3         `\nodd\n\
            b               12          0     0     100644  4         `\neven";
        assert_eq!(String::from_utf8(archive).unwrap(), expected);
    }

    #[test]
    fn a_name_that_does_not_fit_is_an_error() {
        assert!(ar(&[("a name of more than 16", vec![])], 0).is_err());
    }

    #[test]
    fn a_pre_release_sorts_before_its_release() {
        assert_eq!(version("1.0.0-rc.1"), "1.0.0~rc.1");
        assert_eq!(version("1.0.0"), "1.0.0");
    }
}
