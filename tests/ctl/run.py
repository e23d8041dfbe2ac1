#!/usr/bin/env python3
"""Every command of meridian ctl, and meridian top, against a node.

    tests/ctl/run.py [--only WORD] [--lanes COUNT]

The binary is MERIDIAN_BIN or target/debug/meridian; mosquitto_pub and mosquitto_sub are the MQTT clients. The node listens on free
ports of 127.0.0.1 and keeps its data in a temporary directory. Checks with nodes of their own run next to those of the shared node, in
COUNT processes. They mostly wait. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import argparse
import concurrent.futures
import inspect
import multiprocessing
import sys
import time
import traceback

import checks_access
import checks_accounts
import checks_actions
import checks_away
import checks_bridges
import checks_change
import checks_clocks
import checks_cluster
import checks_drain
import checks_limits
import checks_live
import checks_look
import checks_top
import node

# The checks of access come last, because they end open mode.
MODULES = [checks_look, checks_change, checks_live, checks_top, checks_cluster, checks_drain, checks_bridges, checks_actions, checks_away, checks_clocks, checks_limits, checks_accounts, checks_access]
# Checks with nodes of their own that take longest. They begin first, so that all processes end at about the same time.
LONGEST = ["bridge_moves", "bridge_survives_kills", "leaves_once", "changed_everywhere", "full", "no_descriptors", "members", "refused_peers"]


def has_own_nodes(check):
    return list(inspect.signature(check).parameters) == ["_"]


def run(check, shared):
    """Runs a check and prints its result. Returns whether it passed."""
    text = " ".join(check.__doc__.split())
    begun = time.monotonic()
    try:
        check(shared)
    except Exception as error:  # pylint: disable=broad-except
        where = traceback.extract_tb(error.__traceback__)[1]
        print(f"FAILED   {text}\n         {where.filename}:{where.lineno}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"ok       {text} ({time.monotonic() - begun:.1f} s)", flush=True)
    return True


def take_ports(started, processes):
    """Gives this process ports that no other process of this run uses."""
    with started.get_lock():
        node.split_ports(started.value, processes)
        started.value += 1


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", default="", help="run only checks whose name contains this word")
    arguments.add_argument("--lanes", type=int, default=4, help="processes for checks with nodes of their own")
    given = arguments.parse_args()
    checks = [check for module in MODULES for check in module.CHECKS if given.only in check.__name__]
    own = sorted(filter(has_own_nodes, checks), key=lambda check: check.__name__ not in LONGEST)
    began = time.monotonic()
    context = multiprocessing.get_context("fork")
    ports = (context.Value("i", 0), given.lanes + 1)
    with concurrent.futures.ProcessPoolExecutor(given.lanes, context, take_ports, ports) as pool:
        beside = [pool.submit(run, check, None) for check in own]
        take_ports(*ports)
        shared = node.Node()
        try:
            shared.start()
            passed = [run(check, shared) for check in checks if not has_own_nodes(check)]
            if not all(passed):
                print((shared.directory / "node.log").read_text(errors="replace")[-4000:])
        finally:
            shared.close()
        passed += [check.result() for check in beside]
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{passed.count(True)} passed, {passed.count(False)} failed")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
