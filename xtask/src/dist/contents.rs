//! Contents of the packages, and their paths.

use super::tree::Tree;
use super::{Product, read};
use crate::repository::tracked;
use anyhow::Result;

/// Path of a packaged node's configuration, without the leading `/`.
pub const CONFIGURATION: &str = "etc/meridian/meridian.toml";

/// Documents of every package: file of the repository, and its path below the directory of documents.
const DOCUMENTS: [(&str, &str); 7] = [
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("meridian.example.toml", "meridian.example.toml"),
    ("packaging/sysctl/90-meridian.conf", "packaging/sysctl/90-meridian.conf"),
    ("packaging/prometheus/alerts.yml", "packaging/prometheus/alerts.yml"),
    ("packaging/grafana/meridian.json", "packaging/grafana/meridian.json"),
    ("packaging/systemd/meridian.service", "packaging/systemd/meridian.service"),
];

/// Archive for any Linux: everything below one directory, for manual installation.
pub fn archive(product: &Product) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.program("meridian", product.binary.clone());
    tree.file("LICENSE", read("LICENSE")?);
    tree.file("packaging/meridian.toml", read("packaging/meridian.toml")?);
    tree.file("meridian.cdx.json", product.sbom.clone());
    tree.file("third-party.txt", product.notices.clone());
    add_documents(&mut tree, "")?;
    for (shell, script) in &product.completions {
        tree.file(&format!("completions/{}", completion_name(shell)), script.clone());
    }
    Ok(tree)
}

/// Files of the Debian package, by their path on the machine.
pub fn package(product: &Product) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.program("usr/bin/meridian", product.binary.clone());
    tree.file(CONFIGURATION, read("packaging/meridian.toml")?);
    tree.file("usr/lib/systemd/system/meridian.service", read("packaging/systemd/meridian.service")?);
    tree.file("usr/share/doc/meridian/copyright", read("packaging/deb/copyright")?);
    tree.file("usr/share/doc/meridian/meridian.cdx.json", product.sbom.clone());
    tree.file("usr/share/doc/meridian/third-party.txt", product.notices.clone());
    add_documents(&mut tree, "usr/share/doc/meridian/")?;
    for (shell, script) in &product.completions {
        let directory = match *shell {
            "bash" => "usr/share/bash-completion/completions",
            "zsh" => "usr/share/zsh/vendor-completions",
            _ => "usr/share/fish/vendor_completions.d",
        };
        tree.file(&format!("{directory}/{}", completion_name(shell)), script.clone());
    }
    Ok(tree)
}

/// File name of the completion script for each shell.
fn completion_name(shell: &str) -> String {
    match shell {
        "bash" => "meridian".to_owned(),
        "zsh" => "_meridian".to_owned(),
        shell => format!("meridian.{shell}"),
    }
}

fn add_documents(tree: &mut Tree, below: &str) -> Result<()> {
    for (from, to) in DOCUMENTS {
        tree.file(&format!("{below}{to}"), read(from)?);
    }
    // Pages link to each other, and contain pictures.
    for ending in [".md", ".png"] {
        for path in tracked(ending)? {
            if path.starts_with("docs") {
                let path = path.to_string_lossy();
                tree.file(&format!("{below}{path}"), read(&path)?);
            }
        }
    }
    Ok(())
}
