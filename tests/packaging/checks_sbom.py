"""The list of all parts from other projects (SBOM) of `cargo xtask dist`."""

import base64
import hashlib
import json
import os
import re
import tomllib

from checks_image import image, members
from checks_packages import ROOT, only, packed, run

# Paths of sources in panic messages and in debugging information.
SOURCES = re.compile(rb"/registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[^/\0]*)/")
LICENCE = re.compile(r"\(?[A-Za-z0-9.-]+\)?( (AND|OR|WITH) \(?[A-Za-z0-9.-]+\)?)*")


def document(binary):
    return json.loads(only(packed(binary).glob("*.cdx.json")).read_text())


def tree(edges, *packages):
    done = run(os.environ.get("CARGO", "cargo"), "tree", "--locked", "--edges", edges, "--prefix", "none", "--format", "{p}", *packages, cwd=ROOT)
    return {(name, version.removeprefix("v")) for name, version, *_ in filter(None, map(str.split, done.stdout.splitlines()))}


def the_parts_are_named(binary):
    """SBOM: each part has a name, a version, a licence of SPDX, an address, and the checksum of the lock file; the dependencies name all parts and lead to each."""
    it = document(binary)
    assert (it["bomFormat"], it["specVersion"], it["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", it["metadata"]["timestamp"])
    root = it["metadata"]["component"]
    assert root["version"] == run(binary, "--version").stdout.split()[1]
    crates = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    npm = json.loads((ROOT / "dashboard/package-lock.json").read_text())["packages"]
    for one in it["components"]:
        name, version = one["name"], one["version"]
        kind = re.match(r"pkg:(\w+)/", one["purl"]).group(1)
        assert one["purl"] == one["bom-ref"] == f"pkg:{kind}/{name.replace('@', '%40')}@{version.replace('+', '%2B')}", one
        if kind == "cargo":
            expected = {"alg": "SHA-256", "content": crates[name, version]}
        else:
            package = npm[f"node_modules/{name}"]
            assert package["version"] == version, one
            expected = {"alg": "SHA-512", "content": base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()}
        assert only(one["hashes"]) == expected, one
        assert one["type"] == "library" and LICENCE.fullmatch(only(one["licenses"])["expression"]), one
    references = [one["bom-ref"] for one in it["components"]]
    assert references == sorted(set(references), key=references.index), "a part is there twice"
    depends = {one["ref"]: one["dependsOn"] for one in it["dependencies"]}
    assert set(depends) == {root["bom-ref"], *references} and len(depends) == len(it["dependencies"])
    reached, todo = set(), [root["bom-ref"]]
    while todo:
        if (one := todo.pop()) not in reached:
            reached.add(one)
            todo += depends[one]
    assert reached == set(depends), f"nothing needs {sorted(set(depends) - reached)}"


def the_parts_are_those_of_the_binary(binary):
    """SBOM: it has each crate whose sources the binary names, and each package of the dashboard."""
    listed = {(one["name"], one["version"]) for one in document(binary)["components"]}
    with open(binary, "rb") as file:
        found = {(name.decode(), version.decode()) for name, version in SOURCES.findall(file.read())}
    assert len(found) > 50, "the binary names no sources"
    # A binary of a build with the tests has more features than a release.
    of_tests = tree("normal,dev", "--workspace") - tree("normal", "--package", "meridian")
    assert found <= listed | of_tests, f"not listed: {sorted(found - listed - of_tests)}"
    bundled = re.findall(r"^(\S+) \([\w .-]+\)$", (ROOT / "crates/api/dashboard/assets/third-party.txt").read_text(), re.MULTILINE)
    assert bundled and set(bundled) <= {name for name, _ in listed}, bundled


def the_parts_are_packed(binary, dpkg_deb):
    """Archive, Debian package and image have the same SBOM, with the checksum of the binary that each has, and licence texts of all parts."""
    text = only(packed(binary).glob("*.cdx.json")).read_bytes()
    digest = only(document(binary)["metadata"]["component"]["hashes"])["content"]
    package = run(dpkg_deb, "--fsys-tarfile", only(packed(binary).glob("*.deb")), text=False).stdout
    archive = only(path for path in packed(binary).glob("*.tar.gz") if "debug" not in path.name)
    below = archive.name.removesuffix(".tar.gz")
    places = [
        (members(image(binary).layer), "usr/bin/meridian", "usr/share/doc/meridian/meridian.cdx.json"),
        (members(package), "./usr/bin/meridian", "./usr/share/doc/meridian/meridian.cdx.json"),
        (members(archive.read_bytes()), f"{below}/meridian", f"{below}/meridian.cdx.json"),
    ]
    for files, program, sbom in places:
        assert files[sbom][1] == text, sbom
        assert hashlib.sha256(files[program][1]).hexdigest() == digest, program
        notices = files[sbom.replace("meridian.cdx.json", "third-party.txt")][1].decode()
        names, *texts = notices.split("\n----\n\n")
        listed = {tuple(line.split()[:2]) for line in names.splitlines()[2:]}
        crates = [(one["name"], one["version"]) for one in document(binary)["components"] if one["purl"].startswith("pkg:cargo/")]
        assert listed == set(crates), listed ^ set(crates)
        with_text = {tuple(owner.split(" ")) for text in texts for owner in text.split("\n")[0].split(", ")}
        # The packages of these crates have no file with a licence.
        assert all(name.startswith(("openraft", "opentelemetry")) for name, _ in listed - with_text), listed - with_text
        assert "Svelte" in notices and notices.count("Permission is hereby granted") > 50


CHECKS = [
    the_parts_are_named,
    the_parts_are_those_of_the_binary,
    the_parts_are_packed,
]
