//! Check that dependencies have the same features whichever packages are selected. Otherwise `cargo test -p X` builds
//! them again.

use crate::repository::cargo;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Child, Stdio};

type Features = BTreeSet<String>;

/// The feature sets of each package of a selection. A package has two when build scripts or procedural macros use it
/// with other features than the program.
type Tree = BTreeMap<Package, BTreeSet<Features>>;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// Set for a member of the workspace.
    member: bool,
}

const WORKSPACE: &[&str] = &["--workspace"];
/// Everything that `cargo test` builds.
const ALL: &str = "normal,build,dev";
/// The part of it that a program or a test contains: neither build scripts nor procedural macros.
const TARGET: &str = "normal,dev,no-proc-macro";

fn spawn(selection: &[&str], edges: &str) -> Result<Child> {
    cargo()
        .args(["tree", "--quiet", "--locked", "--prefix", "none", "--format", "{p}|{f}", "--edges", edges])
        .args(selection)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo tree")
}

fn tree(mut child: Child) -> Result<Tree> {
    let mut text = String::new();
    child.stdout.take().context("no output of cargo tree")?.read_to_string(&mut text)?;
    ensure!(child.wait()?.success(), "cargo tree failed");
    Ok(parse(&text))
}

fn parse(text: &str) -> Tree {
    let mut tree = Tree::new();
    for (package, features) in text.lines().filter_map(|line| line.split_once('|')) {
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let package = Package {
            name: name.into(),
            version: version.trim_start_matches('v').into(),
            // Only a member has a path.
            member: words.any(|word| word.starts_with("(/")),
        };
        let features = features.trim_end_matches("(*)").trim().split(',').filter(|it| !it.is_empty());
        tree.entry(package).or_default().insert(features.map(str::to_string).collect());
    }
    tree
}

/// Lines to add for the tests of `member`, each with the file that it belongs to. `target` has the packages of `whole`
/// that are part of a program or a test.
fn missing(member: &str, selected: &Tree, whole: &Tree, target: &Tree) -> BTreeSet<String> {
    let manifest =
        if member == "xtask" { "xtask/Cargo.toml".into() } else { format!("crates/{member}/Cargo.toml") };
    let is_unified = selected.keys().any(|it| it.name == UNIFIED);
    let mut lines = BTreeSet::new();
    for (package, sets) in selected {
        let Some(wanted) = whole.get(package) else { continue };
        for features in sets.difference(wanted) {
            // Other packages can only add features.
            let Some(all) = wanted.iter().find(|it| it.is_superset(features)) else { continue };
            let list = all.difference(features).map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
            let Package { name, version, member } = package;
            lines.insert(if *member {
                format!(
                    "{manifest}, [dev-dependencies]: {name} = {{ workspace = true, features = [{list}] }}"
                )
            } else if !is_unified {
                format!("{manifest}, [dev-dependencies]: {UNIFIED}.workspace = true")
            } else {
                let is_target = target.get(package).is_some_and(|sets| sets.contains(all));
                let section = if is_target { "[dependencies]" } else { "[build-dependencies]" };
                let default = if all.contains("default") { "" } else { "default-features = false, " };
                format!(
                    "crates/{UNIFIED}/Cargo.toml, {section}: \
                     {name} = {{ version = \"{version}\", {default}features = [{list}] }}"
                )
            });
        }
    }
    lines
}

/// The crate that lists the features of other packages.
const UNIFIED: &str = "unified-features";

/// Compares the features that each member of the workspace gets alone with those that it gets in the workspace.
pub fn run() -> Result<()> {
    let metadata = cargo().args(["metadata", "--no-deps", "--locked", "--format-version", "1"]).output()?;
    ensure!(
        metadata.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&metadata.stderr)
    );
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let members = metadata["packages"].as_array().context("no packages")?;
    let members: Vec<&str> = members.iter().filter_map(|it| it["name"].as_str()).collect();

    // All at once: each takes a fraction of a second.
    let whole = spawn(WORKSPACE, ALL)?;
    let target = spawn(WORKSPACE, TARGET)?;
    let selected = members.iter().map(|it| spawn(&["--package", it], ALL)).collect::<Result<Vec<_>>>()?;
    let (whole, target) = (tree(whole)?, tree(target)?);
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (member, child) in members.iter().zip(selected) {
        for line in missing(member, &tree(child)?, &whole, &target) {
            found.entry(line).or_default().push(member);
        }
    }
    println!("{} packages, each with {} selections", whole.len(), members.len() + 1);
    if !found.is_empty() {
        println!("`cargo test -p X` builds dependencies again, with fewer features than the workspace. Add:");
        for (line, members) in &found {
            println!("{line}\n    for {}", members.join(", "));
        }
        bail!("{} lines are missing", found.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(selected: &str, whole: &str, target: &str) -> Vec<String> {
        let selected = format!("{UNIFIED} v0.1.0 (/m/crates/{UNIFIED})|\n{selected}");
        missing("broker", &parse(&selected), &parse(whole), &parse(target)).into_iter().collect()
    }

    #[test]
    fn equal_features_need_no_line() {
        assert!(lines("serde v1.0.2|default,rc", "serde v1.0.2|default,rc (*)", "").is_empty());
    }

    #[test]
    fn a_feature_of_a_registry_package_belongs_to_the_crate_without_code() {
        let whole = "memchr v2.8.3|alloc,default,std";
        assert_eq!(
            lines("memchr v2.8.3|alloc", whole, whole),
            [
                r#"crates/unified-features/Cargo.toml, [dependencies]: memchr = { version = "2.8.3", features = ["default", "std"] }"#
            ]
        );
    }

    #[test]
    fn features_of_procedural_macros_have_a_section_of_their_own() {
        assert_eq!(
            lines("syn v3.0.9|full", "syn v3.0.9|fold,full", ""),
            [
                r#"crates/unified-features/Cargo.toml, [build-dependencies]: syn = { version = "3.0.9", default-features = false, features = ["fold"] }"#
            ]
        );
    }

    #[test]
    fn a_feature_of_a_member_belongs_to_the_crate_that_is_tested() {
        assert_eq!(
            lines("shard v0.1.0 (/m/crates/shard)|", "shard v0.1.0 (/m/crates/shard)|trial", ""),
            [
                r#"crates/broker/Cargo.toml, [dev-dependencies]: shard = { workspace = true, features = ["trial"] }"#
            ]
        );
    }

    #[test]
    fn a_crate_without_the_crate_of_features_needs_it_first() {
        let found = missing("mqtt", &parse("libc v0.2.1|"), &parse("libc v0.2.1|std"), &Tree::new());
        assert_eq!(
            found,
            ["crates/mqtt/Cargo.toml, [dev-dependencies]: unified-features.workspace = true".into()].into()
        );
        assert!(missing("mqtt", &parse("libc v0.2.1|"), &parse("libc v0.2.1|"), &Tree::new()).is_empty());
    }
}
