//! A software bill of materials (SBOM): a `CycloneDX` 1.5 document in JSON of everything from other projects in the
//! binary. Packages of the dashboard are those that its build has bundled.
//!
//! Macros and build scripts run at build time only and are not listed. Crates of this repository are part of Meridian:
//! in a registry, other crates may have their names.

use super::parts::{Id, Parts};
use super::{Product, VERSION, created, read, sha256};
use anyhow::{Context, Result, ensure};
use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Licences of the packages in the dashboard, written by its build.
pub const BUNDLED: &str = "crates/api/dashboard/assets/third-party.txt";

/// The document.
///
/// # Errors
/// Cargo fails; a crate without a licence or a checksum.
pub fn document(product: &Product, parts: &Parts) -> Result<Vec<u8>> {
    let (mut components, mut dependencies) = crates(parts)?;
    let npm_lock = serde_json::from_slice(&read("dashboard/package-lock.json")?)?;
    for component in bundled(&String::from_utf8(read(BUNDLED)?)?, &npm_lock)? {
        dependencies.entry(ROOT.to_owned()).or_default().insert(reference(&component));
        components.push(component);
    }
    for component in &components {
        dependencies.entry(reference(component)).or_default();
    }
    let dependencies: Vec<_> =
        dependencies.iter().map(|(of, on)| json!({ "ref": of, "dependsOn": on })).collect();
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": created(product),
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": VERSION }] },
            "component": {
                "type": "application",
                "bom-ref": ROOT,
                "name": ROOT,
                "version": VERSION,
                "description": "MQTT broker",
                "hashes": [{ "alg": "SHA-256", "content": sha256(&product.binary) }],
                "licenses": [{ "license": { "id": "Apache-2.0" } }],
                "properties": [{ "name": "meridian:target", "value": parts.target }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

/// Name of the binary, and its reference.
const ROOT: &str = "meridian";

/// References of parts that each part depends on.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Components of the included crates of registries, and what each depends on. Those of this repository are one.
fn crates(parts: &Parts) -> Result<(Vec<Value>, Dependencies)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let locked =
        parts.lock.get("package").and_then(|it| it.as_array()).context("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    let checksums: BTreeMap<Id, String> = locked
        .iter()
        .filter_map(|it| Some(((field(it, "name")?, field(it, "version")?), field(it, "checksum")?)))
        .collect();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();

    let mut components = BTreeMap::new();
    // References by the identifiers of `cargo metadata`.
    let mut references = BTreeMap::new();
    for (id, package) in parts.packages() {
        if package["source"].is_null() {
            references.insert(text(&package["id"]), ROOT.to_owned());
            continue;
        }
        let (name, version) = &id;
        let licence = package["license"].as_str().with_context(|| format!("{name} names no licence"))?;
        let checksum = checksums.get(&id).with_context(|| format!("{name} {version} has no checksum"))?;
        let mut component = component("cargo", name, version, licence, "SHA-256", checksum);
        if let Some(address) = package["repository"].as_str() {
            component["externalReferences"] = json!([{ "type": "vcs", "url": address }]);
        }
        references.insert(text(&package["id"]), reference(&component));
        components.insert(id, component);
    }
    ensure!(parts.included.len() == references.len(), "cargo tree and cargo metadata have different crates");

    let mut dependencies = Dependencies::new();
    for node in list(&parts.metadata["resolve"]["nodes"]) {
        let Some(from) = references.get(&text(&node["id"])) else { continue };
        for dependency in list(&node["deps"]) {
            let is_normal = list(&dependency["dep_kinds"]).iter().any(|it| it["kind"].is_null());
            if let Some(to) = references.get(&text(&dependency["pkg"]))
                && is_normal
                && to != ROOT
            {
                dependencies.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    Ok((components.into_values().collect(), dependencies))
}

/// Components of the packages in the dashboard. The text has a line `name (licence)` at the start of each part.
fn bundled(licences: &str, lock: &Value) -> Result<Vec<Value>> {
    let (_, parts) = licences.split_once("\n\n").with_context(|| format!("{BUNDLED}: no packages"))?;
    let mut components = vec![];
    for part in parts.split("\n----\n\n") {
        let line = part.lines().next().and_then(|line| line.strip_suffix(')')?.split_once(" ("));
        let (name, licence) = line.with_context(|| format!("{BUNDLED}: no package in {part:?}"))?;
        let package = &lock["packages"][format!("node_modules/{name}")];
        let version = package["version"].as_str().with_context(|| format!("{name} is not locked"))?;
        let hash = package["integrity"].as_str().and_then(|it| it.strip_prefix("sha512-"));
        let hash = Base64::decode_vec(hash.with_context(|| format!("{name} has no checksum"))?)
            .ok()
            .with_context(|| format!("{name}: the checksum is not Base64"))?;
        components.push(component("npm", name, version, licence, "SHA-512", &super::hex(&hash)));
    }
    Ok(components)
}

fn component(kind: &str, name: &str, version: &str, licence: &str, algorithm: &str, hash: &str) -> Value {
    // Characters with a meaning of their own in package URLs.
    let address = format!("pkg:{kind}/{}@{}", name.replacen('@', "%40", 1), version.replace('+', "%2B"));
    json!({
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "scope": "required",
        "hashes": [{ "alg": algorithm, "content": hash }],
        // Old manifests write "MIT/Apache-2.0" for OR.
        "licenses": [{ "expression": licence.replace(" / ", "/").replace('/', " OR ") }],
        "purl": address,
    })
}

fn reference(component: &Value) -> String {
    component["bom-ref"].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::parts::included;
    use super::*;

    fn package(name: &str, version: &str, source: Option<&str>, licence: Option<&str>) -> Value {
        json!({ "name": name, "version": version, "source": source, "license": licence, "id": format!("{name}#{version}") })
    }

    fn metadata(licence: Option<&str>) -> Value {
        json!({
            "packages": [
                package("meridian", "0.1.0", None, Some("Apache-2.0")),
                package("link", "0.1.0", None, Some("Apache-2.0")),
                package("slab", "0.4.12", Some("registry"), licence),
                package("ring", "1.0.0+a", Some("registry"), Some("ISC")),
                package("cc", "1.0.0", Some("registry"), Some("MIT")),
            ],
            "resolve": { "nodes": [
                { "id": "meridian#0.1.0", "deps": [{ "pkg": "link#0.1.0", "dep_kinds": [{ "kind": null }] }] },
                { "id": "link#0.1.0", "deps": [
                    { "pkg": "slab#0.4.12", "dep_kinds": [{ "kind": "dev" }, { "kind": null }] },
                    { "pkg": "ring#1.0.0+a", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "slab#0.4.12", "deps": [
                    { "pkg": "ring#1.0.0+a", "dep_kinds": [{ "kind": null }] },
                    { "pkg": "cc#1.0.0", "dep_kinds": [{ "kind": "build" }] },
                ] },
            ] },
        })
    }

    const TREE: &str = "meridian v0.1.0 (/m/crates/meridian)\nlink v0.1.0 (/m/crates/link)\nslab v0.4.12\n\
                        ring v1.0.0+a\nslab v0.4.12 (*)\n";

    fn lock() -> toml::Table {
        let package = |name: &str, version: &str| {
            format!("[[package]]\nname = {name:?}\nversion = {version:?}\nchecksum = \"00ff\"\n")
        };
        [package("slab", "0.4.12"), package("ring", "1.0.0+a")].concat().parse().unwrap()
    }

    fn parts(tree: &str, metadata: Value, lock: toml::Table) -> Parts {
        Parts { target: String::new(), included: included(tree), metadata, lock }
    }

    #[test]
    fn crates_of_the_binary_are_listed_with_the_addresses_of_registries() {
        let (components, dependencies) =
            crates(&parts(TREE, metadata(Some("MIT/Apache-2.0")), lock())).unwrap();
        let seen: Vec<_> = components.iter().map(reference).collect();
        assert_eq!(seen, ["pkg:cargo/ring@1.0.0%2Ba", "pkg:cargo/slab@0.4.12"]);
        assert_eq!(components[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[1]["hashes"][0], json!({ "alg": "SHA-256", "content": "00ff" }));
        // Crates of this repository are one with the binary, and dependencies of tests and builds are none.
        let of =
            |name: &str| dependencies.get(name).map(|it| it.iter().map(|it| &it[..]).collect::<Vec<_>>());
        assert_eq!(of(ROOT).unwrap(), ["pkg:cargo/slab@0.4.12"]);
        assert_eq!(of("pkg:cargo/slab@0.4.12").unwrap(), ["pkg:cargo/ring@1.0.0%2Ba"]);
        assert_eq!(dependencies.len(), 2);
    }

    #[test]
    fn a_crate_without_licence_checksum_or_metadata_is_an_error() {
        let text = |result: Result<_>| result.map(|_: (Vec<Value>, _)| ()).unwrap_err().to_string();
        assert_eq!(text(crates(&parts(TREE, metadata(None), lock()))), "slab names no licence");
        let mut short = lock();
        short["package"].as_array_mut().unwrap().pop();
        assert_eq!(text(crates(&parts(TREE, metadata(Some("MIT")), short))), "ring 1.0.0+a has no checksum");
        let more = format!("{TREE}tar v1.0.0\n");
        assert!(text(crates(&parts(&more, metadata(Some("MIT")), lock()))).contains("different crates"));
    }

    #[test]
    fn packages_of_the_dashboard_have_the_version_of_its_lock() {
        let licences =
            "Parts come from these.\n\n@a/b (MIT)\n\nThe (MIT) text\n\n----\n\nclsx (ISC)\n\nText\n";
        let entry = |version| json!({ "version": version, "integrity": "sha512-AP8=" });
        let lock = json!({ "packages": { "node_modules/@a/b": entry("1.0.0"), "node_modules/clsx": entry("2.1.1") } });
        let seen = bundled(licences, &lock).unwrap();
        assert_eq!(
            seen.iter().map(reference).collect::<Vec<_>>(),
            ["pkg:npm/%40a/b@1.0.0", "pkg:npm/clsx@2.1.1"]
        );
        assert_eq!(seen[0]["hashes"][0], json!({ "alg": "SHA-512", "content": "00ff" }));
        assert!(bundled(&licences.replace("clsx", "gone"), &lock).is_err());
        assert!(bundled("Parts come from these.\n\nnothing\n", &lock).is_err());
    }
}
