//! Licence texts of all parts from other projects, which their licences require next to the binary. They come from the
//! packages that Cargo has unpacked, whose checksums are in `Cargo.lock`.

use super::parts::Parts;
use super::{read, sbom};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One text for each licence file, with the names of the crates that have it.
///
/// # Errors
/// A package that cannot be read.
pub fn text(parts: &Parts) -> Result<Vec<u8>> {
    let mut listed = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut packages: Vec<_> = parts.packages().filter(|(_, it)| !it["source"].is_null()).collect();
    packages.sort_by(|(one, _), (other, _)| one.cmp(other));
    for ((name, version), package) in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        listed.push_str(&format!("{name} {version} ({licence})\n"));
        let manifest = package["manifest_path"].as_str().context("a package without a path")?;
        let directory = Path::new(manifest).parent().context("a manifest without a directory")?;
        let mut files = vec![];
        find(directory, &mut files).with_context(|| directory.display().to_string())?;
        files.sort();
        for path in files {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned();
            let owners = texts.entry(text).or_default();
            let owner = format!("{name} {version}");
            if owners.last() != Some(&owner) {
                owners.push(owner);
            }
        }
    }
    let mut by_owner: Vec<_> = texts.into_iter().map(|(text, owners)| (owners, text)).collect();
    by_owner.sort();
    let mut all = format!("The binary contains parts of these projects.\n\n{listed}");
    for (owners, text) in by_owner {
        all.push_str(&format!("\n----\n\n{}\n\n{text}\n", owners.join(", ")));
    }
    all.push_str("\n----\n\n");
    all.push_str(&String::from_utf8(read(sbom::BUNDLED)?)?);
    Ok(all.into_bytes())
}

/// Finds the files with a licence or a notice below a directory. A package may have sources of others.
fn find(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else if is_notice(&entry.path()) {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Returns whether a file has a licence or a notice, by its name or that of its directory.
fn is_notice(path: &Path) -> bool {
    let is_known = |name: &str| {
        ["license", "licence", "copying", "copyright", "notice", "unlicense"]
            .iter()
            .any(|known| name.to_lowercase().starts_with(known))
    };
    let name = |path: &Path| path.file_name().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
    let has_text = path.extension().is_none_or(|it| {
        let it = it.to_string_lossy().to_lowercase();
        !["rs", "c", "h", "py", "toml", "json", "html"].contains(&it.as_str())
    });
    has_text
        && (is_known(&name(path))
            || path.parent().is_some_and(|it| ["LICENSES", "licenses"].contains(&&*name(it))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_found_by_name() {
        for path in [
            "a/LICENSE",
            "a/LICENSE-MIT",
            "a/license.txt",
            "a/COPYING",
            "a/LICENSES/MIT.txt",
            "a/LICENSE-1.0",
        ] {
            assert!(is_notice(Path::new(path)), "{path}");
        }
        for path in ["a/src/license.rs", "a/README.md", "a/licenses.json", "a/Cargo.toml"] {
            assert!(!is_notice(Path::new(path)), "{path}");
        }
    }
}
