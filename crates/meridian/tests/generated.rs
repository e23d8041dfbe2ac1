//! The files that are generated from the declarations of the settings are not stale.

use std::path::Path;
use std::process::Command;

fn check(command: &str, file: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_meridian")).args(["config", command]).output().unwrap();
    assert!(output.status.success());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let generated = String::from_utf8(output.stdout).unwrap();
    assert!(found == generated, "{file} is stale: run `cargo run -- config {command} > {file}`");
}

#[test]
fn the_reference_page_matches_the_settings() {
    check("reference", "docs/configuration.md");
}

#[test]
fn the_example_file_matches_the_settings() {
    check("example", "meridian.example.toml");
}

/// The file that users copy is a valid configuration.
#[test]
fn the_example_file_is_valid() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../meridian.example.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    let output = command.args(["config", "check", "--config"]).arg(example).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
