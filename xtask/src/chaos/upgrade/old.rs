//! The program of the old version: a given file, or a commit that is built once and kept.

use super::super::{Args, target};
use crate::repository::{cargo, root};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commit to upgrade from while the repository has no tag. docs/upgrades.md says why this one.
const FROM: &str = include_str!("../upgrade_from");
/// Length of a commit's name in the directory of builds.
const SHORT: usize = 8;

/// The old program. `None` when it would have to be built and the arguments forbid that.
///
/// # Errors
/// The file or the commit does not exist, or the build fails.
pub fn program(args: &Args) -> Result<Option<PathBuf>> {
    if let Some(program) = &args.old {
        return program.canonicalize().map(Some).with_context(|| program.display().to_string());
    }
    let name = match &args.old_commit {
        Some(commit) => commit.clone(),
        None => last_tag().unwrap_or_else(|| FROM.trim().to_owned()),
    };
    let commit = git(&["rev-parse", "--verify", &format!("{name}^{{commit}}")])
        .with_context(|| format!("{name} is no commit of this repository"))?;
    let directory = target::directory().join("upgrade").join(&commit[..SHORT.min(commit.len())]);
    let program = directory.join("target/debug/meridian");
    if program.exists() {
        return Ok(Some(program));
    }
    if args.no_build {
        println!("skipped: {} does not exist; `cargo xtask chaos --upgrade` builds it", program.display());
        return Ok(None);
    }
    println!("building {name} in {}", directory.display());
    if !directory.join("Cargo.toml").exists() {
        // A directory that was removed, such as by `cargo clean`, is still registered: `--force` replaces it.
        let path = directory.display().to_string();
        git(&["worktree", "add", "--force", "--detach", &path, &commit])?;
    }
    build(&directory)?;
    ensure!(program.exists(), "the build of {name} made no {}", program.display());
    Ok(Some(program))
}

fn build(directory: &Path) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--locked", "--package", "meridian", "--bin", "meridian"]).current_dir(directory);
    command.env("CARGO_TARGET_DIR", directory.join("target")).env("CARGO_INCREMENTAL", "0");
    ensure!(command.status().context("cargo build")?.success(), "cargo build of the old version failed");
    Ok(())
}

fn last_tag() -> Option<String> {
    git(&["describe", "--tags", "--abbrev=0"]).ok()
}

fn git(words: &[&str]) -> Result<String> {
    let output = Command::new("git").args(words).current_dir(root()).output().context("git")?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(output.status.success(), "git {}: {}", words.join(" "), said(&output.stderr));
    Ok(said(&output.stdout))
}
