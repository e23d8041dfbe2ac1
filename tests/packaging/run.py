#!/usr/bin/env python3
"""Checks monitoring, service files, packages, and the pages about them.

    tests/packaging/run.py [--only WORD]

The binary is MERIDIAN_BIN, or target/debug/meridian, or target/release/meridian; promtool is PROMTOOL or the one in PATH. A check
whose tool is missing is SKIPPED. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import importlib.util
import os
import pathlib
import sys

import checks_documents
import checks_from_emqx
import checks_http_auth
import checks_image
import checks_monitoring
import checks_node
import checks_packages
import checks_sbom
import checks_systemd

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

MODULES = [checks_documents, checks_monitoring, checks_node, checks_http_auth, checks_from_emqx, checks_packages, checks_image, checks_sbom, checks_systemd]
# Values for the parameters of checks, by name.
VALUES = {
    "skip": lambda: runner.skip,
    "binary": runner.binary,
    "promtool": lambda: runner.tool("promtool", variable="PROMTOOL"),
    "mosquitto_pub": lambda: runner.tool("mosquitto_pub"),
    "mosquitto_sub": lambda: runner.tool("mosquitto_sub"),
    "dpkg_deb": lambda: runner.tool("dpkg-deb"),
    "strace": lambda: runner.tool("strace"),
    "systemd_analyze": lambda: runner.tool("systemd-analyze"),
    "ip": lambda: runner.tool("ip"),
    "buildah": lambda: runner.tool("buildah"),
    "yaml": lambda: importlib.import_module("yaml") if importlib.util.find_spec("yaml") else runner.skip("PyYAML is not installed"),
    "as_root": lambda: os.geteuid() == 0 or runner.skip("only root can change its root"),
}

if __name__ == "__main__":
    runner.run_all([check for module in MODULES for check in module.CHECKS], VALUES, runner.arguments(__doc__).parse_args().only)
