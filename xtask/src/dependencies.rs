//! Licences, banned crates and duplicate versions, from `cargo metadata`.

use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Policy of `xtask/dependencies.toml`.
struct Policy {
    licences: BTreeSet<String>,
    /// Banned crates with the reasons.
    banned: BTreeMap<String, String>,
    /// Allowed duplicates with the reasons.
    duplicates: BTreeMap<String, String>,
}

impl Policy {
    fn parse(text: &str) -> Result<Policy> {
        let document: toml::Table = text.parse().context("xtask/dependencies.toml")?;
        let licences = document.get("licences").and_then(|l| l.as_array()).context("no `licences`")?;
        let reasons = |key: &str| -> Result<BTreeMap<String, String>> {
            let table =
                document.get(key).and_then(|t| t.as_table()).with_context(|| format!("no [{key}]"))?;
            let reason = |(name, why): (&String, &toml::Value)| {
                Ok((name.clone(), why.as_str().with_context(|| format!("{key}.{name}"))?.to_string()))
            };
            table.iter().map(reason).collect()
        };
        Ok(Policy {
            licences: licences.iter().filter_map(|l| l.as_str()).map(str::to_string).collect(),
            banned: reasons("banned")?,
            duplicates: reasons("duplicates")?,
        })
    }
}

/// A package from a registry.
struct Package {
    name: String,
    version: String,
    /// Licence as an SPDX expression.
    licence: Option<String>,
}

fn packages(metadata: &Value) -> Vec<Package> {
    let all = metadata["packages"].as_array().map_or(&[][..], |p| p);
    let text = |p: &Value, key: &str| p[key].as_str().map(str::to_string);
    all.iter()
        .filter(|p| !p["source"].is_null())
        .map(|p| Package {
            name: text(p, "name").unwrap_or_default(),
            version: text(p, "version").unwrap_or_default(),
            licence: text(p, "license"),
        })
        .collect()
}

/// Violations of the policy, a line each.
fn findings(policy: &Policy, packages: &[Package]) -> Vec<String> {
    let mut found = vec![];
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for p in packages {
        versions.entry(&p.name).or_default().push(&p.version);
        match &p.licence {
            None => found.push(format!("{} {} names no licence", p.name, p.version)),
            Some(l) if !permits(l, &policy.licences) => {
                found.push(format!("{} {} is under {l}, which is not on the list", p.name, p.version))
            }
            Some(_) => {}
        }
        if let Some(why) = policy.banned.get(&p.name) {
            found.push(format!("{} {} is banned: {why}", p.name, p.version));
        }
    }
    for (name, versions) in &versions {
        if versions.len() > 1 && !policy.duplicates.contains_key(*name) {
            found.push(format!("{name} is there {} times: {}", versions.len(), versions.join(", ")));
        }
    }
    for name in policy.duplicates.keys() {
        if versions.get(&name[..]).is_none_or(|v| v.len() < 2) {
            found.push(format!("{name} is allowed to be there twice and is not: remove it from the list"));
        }
    }
    found
}

/// Returns whether an SPDX expression can be met with the allowed licences alone.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Old manifests write "MIT/Apache-2.0" for OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let met = any_of(&mut rest, allowed);
    met == Some(true) && rest.is_empty()
}

/// Evaluates `a AND b OR c ...`; `None` when it is invalid.
fn any_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = all_of(words, allowed)?;
    while let Some((&"OR", rest)) = words.split_first() {
        *words = rest;
        met |= all_of(words, allowed)?;
    }
    Some(met)
}

fn all_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while let Some((&"AND", rest)) = words.split_first() {
        *words = rest;
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    match *first {
        "(" => {
            let met = any_of(words, allowed)?;
            let (close, rest) = words.split_first()?;
            *words = rest;
            (*close == ")").then_some(met)
        }
        "AND" | "OR" | "WITH" | ")" => None,
        licence => {
            let mut name = licence.to_string();
            if let [with, exception, rest @ ..] = words
                && *with == "WITH"
            {
                name = format!("{licence} WITH {exception}");
                *words = rest;
            }
            Some(allowed.contains(&name))
        }
    }
}

/// Checks all packages.
///
/// # Errors
/// Cargo.lock is stale or a package violates the policy.
pub fn run() -> Result<()> {
    let output = crate::repository::cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let policy = Policy::parse(&std::fs::read_to_string(root().join("xtask/dependencies.toml"))?)?;
    let packages = packages(&metadata);
    let found = findings(&policy, &packages);
    for finding in &found {
        println!("{finding}");
    }
    if !found.is_empty() {
        bail!("dependencies: {} findings", found.len());
    }
    println!("dependencies: {} packages are in order", packages.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = "licences = [\"MIT\", \"Apache-2.0\", \"Zlib\", \"Apache-2.0 WITH LLVM-exception\"]\n\
                    [banned]\nopenssl-sys = \"TLS is rustls\"\n[duplicates]\nsyn = \"two derive macros\"\n";
        Policy::parse(text).unwrap()
    }

    fn package(name: &str, version: &str, licence: &str) -> Package {
        Package { name: name.into(), version: version.into(), licence: Some(licence.into()) }
    }

    #[test]
    fn licence_expressions_are_evaluated() {
        let allowed = policy().licences;
        for fine in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR GPL-3.0) AND Zlib",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "MIT AND Zlib OR GPL-3.0",
        ] {
            assert!(permits(fine, &allowed), "{fine}");
        }
        for wrong in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT WITH LLVM-exception",
            "(MIT",
            "MIT OR",
            "",
            "GPL-3.0 OR (MIT AND GPL-2.0)",
        ] {
            assert!(!permits(wrong, &allowed), "{wrong}");
        }
    }

    #[test]
    fn findings_name_the_package_and_the_reason() {
        let twice = [package("syn", "1.0.0", "MIT"), package("syn", "2.0.0", "MIT")];
        assert!(findings(&policy(), &twice).is_empty());
        let with = |p: Package| {
            findings(
                &policy(),
                &twice.iter().map(|t| package(&t.name, &t.version, "MIT")).chain([p]).collect::<Vec<_>>(),
            )
        };
        assert_eq!(with(package("openssl-sys", "0.9", "MIT")), ["openssl-sys 0.9 is banned: TLS is rustls"]);
        assert_eq!(
            with(package("a", "1.0", "GPL-3.0")),
            ["a 1.0 is under GPL-3.0, which is not on the list"]
        );
        let thrice = [package("a", "1.0", "MIT"), package("a", "2.0", "MIT")];
        assert_eq!(
            findings(&policy(), &thrice),
            [
                "a is there 2 times: 1.0, 2.0",
                "syn is allowed to be there twice and is not: remove it from the list"
            ]
        );
    }

    #[test]
    fn crates_of_this_repository_are_not_checked() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "mqtt", "version": "0.1.0", "source": null, "license": "Apache-2.0" },
            { "name": "slab", "version": "0.4.12", "source": "registry", "license": "MIT" },
        ]});
        assert_eq!(packages(&metadata).iter().map(|p| &p.name[..]).collect::<Vec<_>>(), ["slab"]);
    }
}
