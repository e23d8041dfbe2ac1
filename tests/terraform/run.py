#!/usr/bin/env python3
"""Checks packaging/terraform without a cloud: references, variables, addresses, cloud-init files, and their configuration.

    tests/terraform/run.py [--only WORD]

The binary is MERIDIAN_BIN, or target/debug/meridian, or target/release/meridian; Terraform is TERRAFORM, or terraform or tofu in PATH.
The parser of HCL is a Python package, which is installed below target/. A check whose tool is missing is SKIPPED. Exits 1 when a check
fails; the last line is 'N passed, M failed'.
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
WORK = TARGET / "terraform"
PACKAGES = ["python-hcl2==8.1.4", "PyYAML==6.0.3"]


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
    "terraform": lambda: os.environ.get("TERRAFORM") or shutil.which("terraform") or shutil.which("tofu") or skip("neither terraform nor tofu is installed"),
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--only", default="", help="run only checks whose name contains this word")
    only = arguments.parse_args().only
    if pathlib.Path(sys.prefix) != WORK / "venv":
        in_environment()
    import checks  # pylint: disable=import-outside-toplevel

    passed = failed = 0
    for check in checks.CHECKS:
        if only not in check.__name__:
            continue
        text = " ".join(check.__doc__.split())
        begun = time.monotonic()
        try:
            check(**{name: GIVEN[name]() for name in inspect.signature(check).parameters})
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
