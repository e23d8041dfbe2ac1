#!/usr/bin/env python3
"""Measures one publisher and one subscriber on pods of the Helm chart, with the load in a pod of its own.

    tests/measure/pods.py [--binary target/release/meridian] [--mqload target/release/mqload] [--seconds 5] [--rounds 3]

Three cores with three replicas, each in a network namespace, and the client in another one. The publisher sends as fast as the
window of unacknowledged messages allows. It is on the core of the subscriber or on another one. The session of the subscriber ends
with its connection, or is durable. Prints a table in Markdown: messages per second at the subscriber, the median of the rounds, and
the latency at the subscriber. Needs root, and Helm (HELM, PATH, or as tests/helm builds it).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helm"))

import chart  # noqa: E402  pylint: disable=wrong-import-position
import pods  # noqa: E402  pylint: disable=wrong-import-position
import run as checks  # noqa: E402  pylint: disable=wrong-import-position

VALUES = ["--set", "replicants.replicas=0", "--set", "auth.open=true", "--set", "config.storage.reserve=128MiB", "--set", "config.log.format=text"]
SIZES = {"100 B": 100, "64 KiB": 65_536}


def parsed():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--binary", default=str(ROOT / "target/release/meridian"))
    arguments.add_argument("--mqload", default=str(ROOT / "target/release/mqload"))
    arguments.add_argument("--seconds", type=int, default=5, help="seconds of a measurement")
    arguments.add_argument("--rounds", type=int, default=3, help="repetitions; the median counts")
    arguments.add_argument("--inflight", type=int, default=100, help="messages that are not acknowledged, of QoS 1 and 2")
    return arguments.parse_args()


def measured(given, namespace, publisher, subscriber, qos, size, durable):
    """Result of one load: a document of mqload."""
    command = ["ip", "netns", "exec", namespace, given.mqload, "pubsub", "--allow-remote", "--quiet", "-V", "5", "-p", "1", "-s", "1", "-q", str(qos),
               "-l", str(size), "-w", str(given.inflight), "-d", str(given.seconds), "--warmup", "1", "--verify", "--pub-host", f"{publisher.address}:1883",
               "--sub-host", f"{subscriber.address}:1883"]
    if durable:
        command += ["--session-expiry", "600"]
    if qos == 0:
        # As fast as they arrive: what is lost at QoS 0 is not of interest here.
        command += ["--max-outstanding", str(max(20, 100_000 // size))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=given.seconds * 4 + 60, check=False)
    try:
        result = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise AssertionError(f"{done.stdout}{done.stderr}") from None
    assert not result.get("error"), result
    return result


def main():
    given = parsed()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    pods.own_namespace()
    text = chart.render(checks.helm(), *VALUES)
    rows = []
    with tempfile.TemporaryDirectory(prefix="meridian-pods-") as directory, pods.Lab(given.binary, text, directory) as lab:
        lab.scale("core", 3)
        lab.wait_ready()
        namespace = f"{pods.PREFIX}-client"
        lab.add_namespace(namespace)
        subprocess.run(["ip", "-n", namespace, "addr", "add", "10.77.200.1/16", "dev", "eth0"], check=True)
        one, other = lab.pods["core"][:2]
        for durable in (False, True):
            for place, publisher in (("one", one), ("two", other)):
                for name, size in SIZES.items():
                    for qos in (0, 1, 2):
                        found = [measured(given, namespace, publisher, one, qos, size, durable) for _ in range(given.rounds)]
                        rows.append(("durable" if durable else "ephemeral", place, name, qos, found))
                        print(f"{rows[-1][:4]}: {[round(rate(it)) for it in found]}", file=sys.stderr, flush=True)
    table(rows)


def rate(result):
    return result["received_per_s"]


def table(rows):
    print("| session | pods | payload | QoS | messages/s | p50 ms | p99 ms | lost | twice |")
    print("|---|---|---|---|---|---|---|---|---|")
    for session, place, name, qos, found in rows:
        middle = sorted(found, key=rate)[len(found) // 2]
        rates = [rate(it) for it in found]
        lost, twice = sum(it["lost"] for it in found), sum(it["duplicated"] for it in found)
        print(f"| {session} | {place} | {name} | {qos} | {statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) | "
              f"{middle['latency_us']['p50'] / 1000:.2f} | {middle['latency_us']['p99'] / 1000:.2f} | {lost} | {twice} |")


if __name__ == "__main__":
    main()
