#!/usr/bin/env python3
"""Measures what clients notice when a node of a cluster is drained, is stopped, or is killed.

    tests/measure/drain.py [--binary target/release/meridian] [--mqload target/release/mqload] [--clients 3000] [--within 20]

Three cores on this machine, three replicas. `meridian bench ha` has all clients on the first core; durable sessions, QoS 1. Then
that core is drained, or stopped by SIGTERM, or killed by SIGKILL. Other clients are pairs of `mqload` on the second core.
Prints a table in Markdown.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ctl"))


def parsed():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--binary", default=str(ROOT / "target/release/meridian"))
    arguments.add_argument("--mqload", default=str(ROOT / "target/release/mqload"))
    arguments.add_argument("--clients", type=int, default=3_000, help="subscribers with durable sessions, at most 15,000; all begin at the first core")
    arguments.add_argument("--rate", type=int, default=2_000, help="messages per second to them")
    arguments.add_argument("--within", type=int, default=20, help="seconds of the drain")
    arguments.add_argument("--only", default="", help="run only what contains this word: drain, SIGTERM, SIGKILL")
    return arguments.parse_args()


GIVEN = parsed()
os.environ["MERIDIAN_BIN"] = GIVEN.binary

from checks_away import cluster  # noqa: E402  pylint: disable=wrong-import-position
from node import until  # noqa: E402  pylint: disable=wrong-import-position

PUBLISHERS = 20
# Time until the clients are connected and publish, and time after the event.
BEFORE, AFTER = 10, 20


def connected(node):
    """Number of connects that a node has accepted."""
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("meridian_clients_connected_total"))


def event(kind, nodes):
    """Does what is measured. Returns its seconds."""
    first, second, begun = nodes["n1"], nodes["n2"], time.monotonic()
    if kind == "drain":
        second.run("ctl", "--timeout", "30s", "cluster", "drain", "n1", "--for", f"{GIVEN.within}s", "--wait", "1s", "--detach")
        until(lambda: any(it["state"] == "drained" for it in second.json("cluster", "drains")["items"]), "the node is drained", 120)
    else:
        first.process.send_signal(getattr(signal, kind))
        first.process.wait(90)
    return time.monotonic() - begun


def measured(kind):
    settings = ["cluster.replicas=3", f"node.drain_max={GIVEN.within}s", "log.level=warn"]
    with cluster(*settings) as nodes:
        hosts = ",".join(f"127.0.0.1:{nodes[name].mqtt}" for name in ("n1", "n2", "n3"))
        duration = BEFORE + GIVEN.within + AFTER
        ha = [GIVEN.binary, "bench", "ha", "-h", hosts, "--publishers", str(PUBLISHERS), "--subscribers", str(GIVEN.clients), "--topology", "dealt", "--first",
              "-q", "1", "-R", str(GIVEN.rate), "--duration", str(duration), "--setup", "90", "--drain", "60", "--json", "--quiet"]
        others = [GIVEN.mqload, "pubsub", "-H", f"127.0.0.1:{nodes['n2'].mqtt}", "-p", "20", "-s", "20", "-q", "1", "-l", "256", "--pub-topic",
                  "calm/%i", "--sub-topic", "calm/%i", "-R", "500", "--latency-from", "due", "-d", str(duration - 4), "--quiet"]
        with subprocess.Popen(ha, stdout=subprocess.PIPE, text=True) as clients:
            until(lambda: sum(connected(node) for node in nodes.values()) >= GIVEN.clients + PUBLISHERS, "all clients are connected", 120)
            with subprocess.Popen(others, stdout=subprocess.PIPE, text=True) as calm:
                time.sleep(BEFORE)
                on_first = connected(nodes["n1"])
                took = event(kind, nodes)
                report = json.loads(clients.communicate(timeout=duration + 180)[0])
                quiet = json.loads(calm.communicate(timeout=duration + 60)[0])
    return report, quiet, took, on_first


def main():
    print(f"\n{GIVEN.clients:,} subscribers and {PUBLISHERS} publishers with durable sessions, {GIVEN.rate:,} messages/s of QoS 1; three cores, three replicas\n")
    print("| what | s until the node is empty or gone | clients of the node | lost | longest time without a server ms: p50 | p99 | longest | "
          "longest silence of all subscribers ms | other clients: p99 ms | longest ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in ("drain", "SIGTERM", "SIGKILL"):
        if GIVEN.only not in kind:
            continue
        report, quiet, took, on_first = measured(kind)
        gap, calm = report["reconnect_us"] or {}, quiet["latency_us"]
        ms = lambda value: "-" if value is None else f"{value / 1e3:,.0f}"
        print(f"| {kind} | {took:.1f} | {on_first:,.0f} | {report['lost']} | {ms(gap.get('p50'))} | {ms(gap.get('p99'))} | {ms(gap.get('max'))} | "
              f"{report['longest_silence_ms']:,.0f} | {calm['p99'] / 1e3:.1f} | {calm['max'] / 1e3:.0f} |", flush=True)
        assert quiet["lost"] == 0, quiet["lost"]


if __name__ == "__main__":
    main()
