//! Builds the release binary and separates its debugging information.

use super::elf::Elf;
use super::{Product, VERSION, tool};
use crate::repository::root;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the release with debugging information, without the paths of this machine. It has its own target directory,
/// because those flags would make every other build start over.
pub fn release(target: Option<&str>) -> Result<PathBuf> {
    let root = root();
    let directory = root.join("target/dist-build");
    let home = std::env::var_os("CARGO_HOME").map_or_else(default_home, PathBuf::from);
    let flags = [(&root, "/meridian"), (&home, "/cargo")]
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .join("\u{1f}");
    let mut command = crate::repository::cargo();
    let build = ["build", "--profile", "profiling", "--locked", "--package", "meridian", "--target-dir"];
    command.args(build).arg(&directory);
    let mut built = directory;
    if let Some(target) = target {
        command.args(["--target", target]);
        built.push(target);
    }
    let status =
        command.env("CARGO_ENCODED_RUSTFLAGS", flags).current_dir(&root).status().context("cargo")?;
    ensure!(
        status.success(),
        "the build failed; a target that rustup does not have is added with `rustup target add`"
    );
    Ok(built.join("profiling/meridian"))
}

fn default_home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo")
}

/// Splits the binary and inspects it.
pub fn product(path: &Path, time: u64) -> Result<Product> {
    let whole = fs::read(path).with_context(|| path.display().to_string())?;
    let elf = Elf::read(&whole).with_context(|| path.display().to_string())?;
    elf.check_libraries()?;

    let scratch = Scratch::new()?;
    let (debug, stripped) = (scratch.0.join("meridian.debug"), scratch.0.join("meridian"));
    tool(Command::new("objcopy").arg("--only-keep-debug").arg(path).arg(&debug))?;
    // The link holds the name and a checksum of the file with the debugging information; debuggers use both.
    tool(
        Command::new("objcopy")
            .arg("--strip-debug")
            .arg("--add-gnu-debuglink=meridian.debug")
            .arg(path.canonicalize()?)
            .arg(&stripped)
            .current_dir(&scratch.0),
    )?;
    let mut completions = vec![];
    let mut revision = std::env::var("MERIDIAN_COMMIT").ok();
    if elf.machine == std::env::consts::ARCH {
        let version = String::from_utf8(tool(Command::new(&stripped).arg("--version"))?)?;
        ensure!(
            version.split_whitespace().nth(1) == Some(VERSION),
            "{} says {version:?}, and this is {VERSION}",
            path.display()
        );
        revision = commit(&version);
        for shell in ["bash", "zsh", "fish"] {
            completions.push((shell, tool(Command::new(&stripped).args(["completions", shell]))?));
        }
    }
    Ok(Product {
        binary: fs::read(&stripped)?,
        debug: fs::read(&debug)?,
        elf,
        time,
        sbom: vec![],
        notices: vec![],
        revision,
        completions,
    })
}

/// Commit in the output of `meridian --version`, such as `meridian 0.1.0 (4f1d2c3b5a69)`.
fn commit(version: &str) -> Option<String> {
    let commit = version.split_once('(')?.1.split_once(')')?.0;
    (commit != "unknown").then(|| commit.to_owned())
}

/// A directory that is removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("meridian-dist-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files left in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_the_commit() {
        assert_eq!(commit("meridian 0.1.0 (4f1d2c3b5a69)\n").as_deref(), Some("4f1d2c3b5a69"));
        assert_eq!(commit("meridian 0.1.0 (unknown)\n"), None);
        assert_eq!(commit("meridian 0.1.0\n"), None);
    }
}
