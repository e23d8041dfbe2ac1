#!/usr/bin/env python3
"""Measures a backup of a cluster and its restore, and what other clients notice.

    tests/measure/backup.py [--binary target/release/meridian] [--mqload target/release/mqload] [--sessions 1000] [--messages 500]

Three cores on this machine, three replicas. Durable sessions are away, each with a queue of messages of 256 B at QoS 1. Other clients
are pairs of `mqload`. The backups of all cores are made and fetched by one command, and restored into one directory. A node alone
starts with it. Prints a table in Markdown.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ctl"))


def parsed():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--binary", default=str(ROOT / "target/release/meridian"))
    arguments.add_argument("--mqload", default=str(ROOT / "target/release/mqload"))
    arguments.add_argument("--sessions", type=int, default=1_000, help="durable sessions")
    arguments.add_argument("--messages", type=int, default=500, help="messages in the queue of each session")
    return arguments.parse_args()


GIVEN = parsed()
os.environ["MERIDIAN_BIN"] = GIVEN.binary

from checks_away import cluster  # noqa: E402  pylint: disable=wrong-import-position
from node import Node, until  # noqa: E402  pylint: disable=wrong-import-position

# Seconds of the other clients before the backup, and after it.
BEFORE, AFTER = 10, 5


def run(*command, seconds=600):
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return time.monotonic() - begun, done.stdout


def fill(nodes):
    """Sessions whose clients are gone, with their queues."""
    count = str(GIVEN.sessions)
    common = ["--quiet", "--json", "-h", "127.0.0.1", "-V", "5", "-q", "1", "-R", "500"]
    sub = [GIVEN.binary, "bench", "sub", *common, "-p", str(nodes["n1"].mqtt), "-c", count, "-C", "false", "-x", "7200", "-t", "queue/%i",
           "--prefix", "queue", "--duration", str(GIVEN.sessions // 500 + 5)]
    run(*sub)
    pub = [GIVEN.binary, "bench", "pub", *common, "-p", str(nodes["n2"].mqtt), "-c", count, "-t", "queue/%i", "-s", "256", "-I", "20",
           "-L", str(GIVEN.sessions * GIVEN.messages)]
    run(*pub)


def queued(node):
    """Messages in the queues of all shards, as their leaders count them."""
    shards = node.json("cluster", "shards")["items"]
    return sum((shard["figures"] or {}).get("queued_messages") or 0 for shard in shards)


def size(directory):
    return sum(file.stat().st_blocks * 512 for file in pathlib.Path(directory).rglob("*") if file.is_file())


def main():
    kept = pathlib.Path(tempfile.mkdtemp(prefix="meridian-backup-"))
    alone = Node()
    try:
        with cluster("storage.backup_dir=backups", "queue.messages_max=1000000", "log.level=warn") as nodes:
            for name in ("n1", "n2", "n3"):
                (nodes[name].directory / "backups").mkdir()
            fill(nodes)
            expected = GIVEN.sessions * GIVEN.messages
            until(lambda: queued(nodes["n1"]) >= expected, f"{expected} messages are queued", 60)
            calm = measured_calm(nodes, lambda: time.sleep(BEFORE))
            fetch = []
            during = measured_calm(nodes, lambda: fetch.append(run(GIVEN.binary, "ctl", "--url", nodes["r1"].url, "cluster", "backup", "one", "--fetch", kept / "one")[0]))
        took, _ = run(GIVEN.binary, "storage", "restore", *sorted((kept / "one").iterdir()), alone.directory / "data")
        begun = time.monotonic()
        alone.start("--set", "queue.messages_max=1000000")
        start = time.monotonic() - begun
        found = alone.json("storage")["log"]["recovery"]["sessions"]
        assert found == GIVEN.sessions, found
        print(f"\n{GIVEN.sessions:,} durable sessions with {GIVEN.messages:,} messages of 256 B each; three cores, three replicas\n")
        print("| backup and fetch s | on three cores MiB | restore s | restored MiB | start of a node alone s | other clients: p99 ms without a backup | with it | longest ms |")
        print("|---|---|---|---|---|---|---|---|")
        mib = lambda directory: f"{size(directory) / 2**20:,.0f}"
        print(f"| {fetch[0]:.1f} | {mib(kept / 'one')} | {took:.1f} | {mib(alone.directory / 'data')} | {start:.1f} | {calm['p99'] / 1e3:.1f} | "
              f"{during['p99'] / 1e3:.1f} | {during['max'] / 1e3:.0f} |")
    finally:
        alone.close()
        shutil.rmtree(kept, ignore_errors=True)


def measured_calm(nodes, event):
    """Latency of other clients during an event."""
    load = [GIVEN.mqload, "pubsub", "-H", f"127.0.0.1:{nodes['n2'].mqtt}", "-p", "20", "-s", "20", "-q", "1", "-l", "256", "--pub-topic", "calm/%i",
            "--sub-topic", "calm/%i", "-R", "500", "--latency-from", "due", "-d", "600", "--quiet"]
    with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as clients:
        time.sleep(3)
        event()
        time.sleep(AFTER)
        clients.terminate()
        report = json.loads(clients.communicate(timeout=60)[0])
    assert report["lost"] == 0, report["lost"]
    return report["latency_us"]


if __name__ == "__main__":
    main()
