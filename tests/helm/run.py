#!/usr/bin/env python3
"""Checks the Helm chart: lint, templates against golden files, schemas, configuration, and pods in network namespaces.

    tests/helm/run.py [--only WORD]
    tests/helm/run.py --build                             only builds Helm
    MERIDIAN_WRITE=1 tests/helm/run.py --only golden      writes the golden files

Helm is HELM, or the one in PATH, or built from go.mod by Go (PATH, /usr/local/go/bin). The binary is MERIDIAN_BIN, or
target/debug/meridian, or target/release/meridian. The schemas of Kubernetes are a Python package, which is installed below target/.
A check whose tool is missing is SKIPPED. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

WORK = runner.TARGET / "helm"
# Brings PyYAML and jsonschema.
PACKAGES = ["kubernetes-validate==1.37.0"]


@functools.cache
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
        runner.skip("neither helm nor go is installed")
    begun = time.monotonic()
    environment = os.environ | {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run([go, "build", "-ldflags=-s -w", "-o", built, "helm.sh/helm/v3/cmd/helm"], cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"helm does not build:\n{done.stderr[-2000:]}")
    mark.write_text(manifest)
    print(f"built    helm ({time.monotonic() - begun:.0f} s)", flush=True)
    return str(built)


# Values for the parameters of checks, by name.
VALUES = {
    "binary": runner.binary,
    "helm": helm,
    "openssl": lambda: runner.tool("openssl"),
    "ip": lambda: runner.tool("ip") if os.geteuid() == 0 else runner.skip("network namespaces need root"),
}


def main():
    arguments = runner.arguments(__doc__)
    arguments.add_argument("--build", action="store_true", help="run no check: build Helm and install the schemas for a later run")
    given = arguments.parse_args()
    runner.in_environment(WORK, PACKAGES)
    if given.build:
        try:
            print(f"helm: {helm()}")
        except runner.Skipped as reason:
            print(f"SKIPPED  helm ({reason})")
        return
    import checks_chart  # pylint: disable=import-outside-toplevel
    import checks_pods  # pylint: disable=import-outside-toplevel
    import checks_server  # pylint: disable=import-outside-toplevel

    runner.run_all([*checks_chart.CHECKS, *checks_server.CHECKS, *checks_pods.CHECKS], VALUES, given.only)


if __name__ == "__main__":
    main()
