#!/usr/bin/env python3
"""Checks packaging/terraform without a cloud: references, variables, addresses, cloud-init files, and their configuration.

    tests/terraform/run.py [--only WORD]

The binary is MERIDIAN_BIN, or target/debug/meridian, or target/release/meridian; Terraform is TERRAFORM, or terraform or tofu in PATH.
The parser of HCL is a Python package, which is installed below target/. A check whose tool is missing is SKIPPED. Exits 1 when a check
fails; the last line is 'N passed, M failed'.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

PACKAGES = ["python-hcl2==8.1.4", "PyYAML==6.0.3"]
# Values for the parameters of checks, by name.
VALUES = {
    "binary": runner.binary,
    "terraform": lambda: runner.tool("terraform", "tofu", variable="TERRAFORM"),
}


def main():
    only = runner.arguments(__doc__).parse_args().only
    runner.in_environment(runner.TARGET / "terraform", PACKAGES)
    import checks  # pylint: disable=import-outside-toplevel

    runner.run_all(checks.CHECKS, VALUES, only)


if __name__ == "__main__":
    main()
