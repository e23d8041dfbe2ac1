//! Crates in the binary, as Cargo knows them.

use super::elf::Elf;
use super::{read, tool};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;

/// Name and version.
pub type Id = (String, String);

/// The crates of a build.
pub struct Parts {
    pub target: String,
    /// Crates in the binary: `cargo tree` knows the features of the build.
    pub included: BTreeSet<Id>,
    /// Output of `cargo metadata` about more crates than those.
    pub metadata: Value,
    /// `Cargo.lock`.
    pub lock: toml::Table,
}

impl Parts {
    /// Asks Cargo. Without a target, it is that of the binary.
    ///
    /// # Errors
    /// Cargo fails.
    pub fn read(elf: &Elf, target: Option<&str>) -> Result<Self> {
        let is_musl = elf.interpreter.as_ref().is_none_or(|it| it.contains("musl"));
        let guess = format!("{}-unknown-linux-{}", elf.machine, if is_musl { "musl" } else { "gnu" });
        let target = target.map_or(guess, str::to_owned);
        let mut cargo = crate::repository::cargo();
        cargo.args(["tree", "--locked", "--package", "meridian", "--target", &target]);
        cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]);
        let included = included(&String::from_utf8(tool(&mut cargo)?)?);
        let mut cargo = crate::repository::cargo();
        cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &target]);
        let metadata = serde_json::from_slice(&tool(&mut cargo)?).context("cargo metadata")?;
        let lock = String::from_utf8(read("Cargo.lock")?)?.parse().context("Cargo.lock")?;
        Ok(Self { target, included, metadata, lock })
    }

    /// Included crates in the output of `cargo metadata`, by name and version.
    pub fn packages(&self) -> impl Iterator<Item = (Id, &Value)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = self.metadata["packages"].as_array().into_iter().flatten();
        all.map(move |it| ((text(&it["name"]), text(&it["version"])), it))
            .filter(|(id, _)| self.included.contains(id))
    }
}

/// Reads the lines of `cargo tree`, such as `slab v0.4.12 (*)`.
pub fn included(tree: &str) -> BTreeSet<Id> {
    let word = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), rest.split_whitespace().next()?.to_owned()))
    };
    tree.lines().filter_map(word).collect()
}
