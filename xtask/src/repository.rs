//! Where the repository is and what belongs to it.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace, wherever the task was called from.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Tracked files whose name ends with `ending`, relative to the root, that still exist.
///
/// # Errors
/// When git fails, as it does outside a work tree.
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
