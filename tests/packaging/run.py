#!/usr/bin/env python3
"""Checks monitoring, service files, packages, and the pages about them.

    tests/packaging/run.py [--only WORD]

The binary is MERIDIAN_BIN, or target/debug/meridian, or target/release/meridian; promtool is PROMTOOL or the one in PATH. A check
whose tool is missing is skipped. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import argparse
import inspect
import os
import pathlib
import shutil
import sys
import time

import checks_documents
import checks_from_emqx
import checks_http_auth
import checks_monitoring
import checks_node
import checks_packages

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
MODULES = [checks_documents, checks_monitoring, checks_node, checks_http_auth, checks_from_emqx, checks_packages]


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
    skip("no binary: cargo build, or MERIDIAN_BIN=...")


def tool(name, variable=None):
    found = os.environ.get(variable or "") or shutil.which(name)
    return found or skip(f"{name} is not installed")


# Values for the parameters of checks, by name.
GIVEN = {
    "skip": lambda: skip,
    "binary": binary,
    "promtool": lambda: tool("promtool", "PROMTOOL"),
    "mosquitto_pub": lambda: tool("mosquitto_pub"),
    "mosquitto_sub": lambda: tool("mosquitto_sub"),
    "dpkg_deb": lambda: tool("dpkg-deb"),
    "strace": lambda: tool("strace"),
    "systemd_analyze": lambda: tool("systemd-analyze"),
    "as_root": lambda: os.geteuid() == 0 or skip("only root can change its root"),
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", default="", help="run only checks whose name contains this word")
    only = arguments.parse_args().only
    passed = failed = 0
    for module in MODULES:
        for check in module.CHECKS:
            if only not in check.__name__:
                continue
            text = " ".join(check.__doc__.split())
            begun = time.monotonic()
            try:
                check(**{name: GIVEN[name]() for name in inspect.signature(check).parameters})
            except Skipped as reason:
                print(f"skipped  {text} ({reason})", flush=True)
            except Exception as error:  # pylint: disable=broad-except
                failed += 1
                print(f"FAILED   {text}\n         {type(error).__name__}: {error}", flush=True)
            else:
                passed += 1
                print(f"ok       {text} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
