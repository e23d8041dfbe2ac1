#!/usr/bin/env python3
"""Checks the Helm chart: lint, templates against golden files, schemas, configuration, and pods in network namespaces.

    tests/helm/run.py [--only WORD]
    MERIDIAN_WRITE=1 tests/helm/run.py --only golden      writes the golden files

Helm is HELM, or the one in PATH, or built from go.mod by Go (PATH, /usr/local/go/bin). The binary is MERIDIAN_BIN, or
target/debug/meridian, or target/release/meridian. The schemas of Kubernetes are a Python package, which is installed below target/.
A check whose tool is missing is SKIPPED. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import argparse
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "helm"
# Brings PyYAML and jsonschema.
PACKAGES = ["kubernetes-validate==1.37.0"]


class Skipped(Exception):
    """Reason for which a check is skipped."""


def skip(reason):
    raise Skipped(reason)


def binary():
    if named := os.environ.get("MERIDIAN_BIN"):
        return str(pathlib.Path(named).resolve())
    for profile in ("debug", "release"):
        if (path := TARGET / profile / "meridian").is_file():
            return str(path)
    return skip("no binary: cargo build, or MERIDIAN_BIN=...")


def helm():
    if found := os.environ.get("HELM") or shutil.which("helm"):
        return found
    built = WORK / "bin/helm"
    manifest = (HERE / "go.mod").read_text()
    mark = WORK / "bin/helm.go.mod"
    if built.is_file() and mark.is_file() and mark.read_text() == manifest:
        return str(built)
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        skip("neither helm nor go is installed")
    begun = time.monotonic()
    environment = os.environ | {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run([go, "build", "-ldflags=-s -w", "-o", built, "helm.sh/helm/v3/cmd/helm"], cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"helm does not build:\n{done.stderr[-2000:]}")
    mark.write_text(manifest)
    print(f"built    helm ({time.monotonic() - begun:.0f} s)", flush=True)
    return str(built)


def in_environment():
    """Starts this program again with a Python that has the packages."""
    python = WORK / "venv/bin/python"
    mark = WORK / "venv/packages"
    if not mark.is_file() or mark.read_text().split() != PACKAGES:
        subprocess.run([sys.executable, "-m", "venv", WORK / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        mark.write_text("\n".join(PACKAGES))
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


# Values for the parameters of checks, by name.
GIVEN = {
    "binary": binary,
    "helm": helm,
    "openssl": lambda: shutil.which("openssl") or skip("openssl is not installed"),
    "ip": lambda: (os.geteuid() == 0 and shutil.which("ip")) or skip("network namespaces need root and ip"),
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--only", default="", help="run only checks whose name contains this word")
    only = arguments.parse_args().only
    if pathlib.Path(sys.prefix) != WORK / "venv":
        in_environment()
    import checks_chart  # pylint: disable=import-outside-toplevel
    import checks_pods  # pylint: disable=import-outside-toplevel
    import checks_server  # pylint: disable=import-outside-toplevel

    passed = failed = 0
    given = {}
    for check in [*checks_chart.CHECKS, *checks_server.CHECKS, *checks_pods.CHECKS]:
        if only not in check.__name__:
            continue
        text = " ".join(check.__doc__.split())
        begun = time.monotonic()
        try:
            for name in inspect.signature(check).parameters:
                if name not in given:
                    given[name] = GIVEN[name]()
            check(**{name: given[name] for name in inspect.signature(check).parameters})
        except Skipped as reason:
            print(f"SKIPPED  {text} ({reason})", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAILED   {text}\n         {type(error).__name__}: {error}", flush=True)
        else:
            passed += 1
            print(f"ok       {text} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
