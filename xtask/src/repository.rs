//! Location and files of the repository.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root of the workspace, wherever the task was called from.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// The cargo that runs this program, at the root. Its environment variables for this program are removed. Otherwise
/// build scripts that read them (that of `ring`) would run again, and all their dependents would be rebuilt.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_xtask = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|it| name.starts_with(it))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_xtask) {
            command.env_remove(name);
        }
    }
    command.current_dir(root());
    command
}

/// Tracked files whose name ends with `ending`, relative to the root, that still exist.
///
/// # Errors
/// Git fails, as it does outside a work tree.
pub fn tracked(ending: &str) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--", &format!("*{ending}")])
        .current_dir(root())
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).context("file names are UTF-8")?;
    let paths = names.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from);
    Ok(paths.filter(|p| root().join(p).is_file()).collect())
}
