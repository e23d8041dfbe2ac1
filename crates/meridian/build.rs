//! Passes the commit to the binary. Works without git and in an unpacked archive: then the commit is unknown, or the
//! value of `MERIDIAN_COMMIT`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MERIDIAN_COMMIT");
    let commit =
        std::env::var("MERIDIAN_COMMIT").ok().or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=MERIDIAN_COMMIT={commit}");
}

fn commit() -> Option<String> {
    // An archive unpacked inside another repository must not take the commit of that one.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Each work tree of a repository has its own HEAD; the branches are in the common directory.
    for path in
        [git(&["rev-parse", "--git-path", "HEAD"])?, git(&["rev-parse", "--git-path", "packed-refs"])?]
    {
        watch(&path);
    }
    if let Some(branch) = git(&["symbolic-ref", "-q", "HEAD"]) {
        watch(&git(&["rev-parse", "--git-path", &branch])?);
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Watches a path if it exists: cargo treats a missing path as changed at every build.
fn watch(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    output.status.success().then_some(text)
}
