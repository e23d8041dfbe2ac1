#!/usr/bin/env python3
"""Every command of meridian ctl, and meridian top, against a node.

    tests/ctl/run.py [--only WORD] [--lanes COUNT]

The binary is MERIDIAN_BIN or target/debug/meridian; mosquitto_pub and mosquitto_sub are the MQTT clients. The node listens on free
ports of 127.0.0.1 and keeps its data in a temporary directory. Checks with nodes of their own run next to those of the shared node, in
COUNT processes. They mostly wait. Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import collections
import concurrent.futures
import inspect
import multiprocessing
import pathlib
import sys
import time

import checks_access
import checks_accounts
import checks_actions
import checks_away
import checks_backup
import checks_bridges
import checks_change
import checks_clocks
import checks_cluster
import checks_drain
import checks_limits
import checks_linking
import checks_live
import checks_look
import checks_replaced
import checks_secure
import checks_top
import node

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

# The checks of access come last, because they end open mode.
MODULES = [checks_look, checks_change, checks_live, checks_top, checks_cluster, checks_drain, checks_backup, checks_bridges, checks_linking, checks_secure, checks_actions, checks_replaced, checks_away,
           checks_clocks, checks_limits, checks_accounts, checks_access]
# Checks with nodes of their own that take longest. They begin first, so that all processes end at about the same time.
LONGEST = ["action_counts_drops", "bridge_moves", "mosquitto_is_replaced", "link_giver_killed", "link_suback", "link_moves", "bridge_survives_kills", "leaves_once", "changed_everywhere", "full", "no_descriptors", "members", "refused_peers"]


def has_own_nodes(check):
    return list(inspect.signature(check).parameters) == ["_"]


def run(check, shared):
    """Runs a check, whose only parameter is the shared node or `_`."""
    return runner.run(check, collections.defaultdict(lambda: lambda: shared))


def take_ports(started, processes):
    """Gives this process ports that no other process of this run uses."""
    with started.get_lock():
        node.split_ports(started.value, processes)
        started.value += 1


def main():
    arguments = runner.arguments(__doc__)
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
            if False in passed:
                print((shared.directory / "node.log").read_text(errors="replace")[-4000:])
        finally:
            shared.close()
        passed += [check.result() for check in beside]
    print(f"{time.monotonic() - began:.0f} s")
    runner.finish(passed)


if __name__ == "__main__":
    main()
