#!/usr/bin/env python3
"""Every command of meridian ctl, and meridian top, against a node.

    tests/ctl/run.py [--only WORD]

The binary is MERIDIAN_BIN or target/debug/meridian; mosquitto_pub and mosquitto_sub are the MQTT clients. The node listens on free
ports of 127.0.0.1 and keeps its data in a temporary directory. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import argparse
import sys
import time
import traceback

import checks_access
import checks_away
import checks_change
import checks_clocks
import checks_cluster
import checks_limits
import checks_live
import checks_look
import checks_top
from node import Node

# The checks of access come last, because they end open mode.
MODULES = [checks_look, checks_change, checks_live, checks_top, checks_cluster, checks_away, checks_clocks, checks_limits, checks_access]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", default="", help="run only checks whose name contains this word")
    only = arguments.parse_args().only
    passed = failed = 0
    began = time.monotonic()
    node = Node()
    try:
        node.start()
        for check in (check for module in MODULES for check in module.CHECKS if only in check.__name__):
            text = " ".join(check.__doc__.split())
            try:
                check(node)
            except Exception as error:  # pylint: disable=broad-except
                failed += 1
                where = traceback.extract_tb(error.__traceback__)[1]
                print(f"FAILED   {text}\n         {where.filename}:{where.lineno}: {type(error).__name__}: {error}", flush=True)
            else:
                passed += 1
                print(f"ok       {text}", flush=True)
        if failed:
            print((node.directory / "node.log").read_text(errors="replace")[-4000:])
    finally:
        node.close()
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
