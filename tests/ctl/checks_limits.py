"""A node without file descriptors, and a node whose disk fails."""

import os
import socket
import subprocess
import time

from checks_away import cluster
from checks_cluster import asked, health, said, start
from checks_clocks import built
from node import Node, free_port, until

# Syncs fail while the file exists.
BROKEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int descriptor) {
    static int (*real)(int);
    if (!real)
        real = dlsym(RTLD_NEXT, "fdatasync");
    const char *file = getenv("BROKEN_WHILE");
    if (file && access(file, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return real(descriptor);
}
"""

DESCRIPTORS = 300


def no_descriptors(_):
    """limits: idle connections that use all descriptors stop the log only for a time: it waits, reports the reason, and continues"""
    node = Node()
    node.within = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(DESCRIPTORS)]
    log = node.directory / "node.log"
    idle = []
    try:
        node.start("--set", "storage.segment_size=1MiB", "--set", "storage.reserve=2MiB")
        command = ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-q", "1", "-r", "-l", "-t", "kept", "-i", "writer"]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        node.clients.append(writer)
        until(lambda: '"writer"' in node.text("--json", "clients"), "the writer is connected")
        for _ in range(DESCRIPTORS):
            idle.append(socket.create_connection(("127.0.0.1", node.http), timeout=5))
        until(lambda: "Too many open files" in log.read_text(errors="replace"), "no descriptor is left")
        line = "x" * 10_000 + "\n"
        for _ in range(100 * 6):
            writer.stdin.write(line)
        writer.stdin.flush()
        until(lambda: "no file descriptor is left for the log" in log.read_text(errors="replace"), "the log reports missing descriptors", 20)
        assert node.process.poll() is None
        for one in idle:
            one.close()
        until(lambda: node.run("ctl", "health", code=None).returncode == 0, "operators are served again", 20)
        until(lambda: node.json("storage")["log"]["state"] == "good", "the log is good again", 60)
        node.publish("kept", "the last", "-q", "1", "-r")
        assert node.text("retained", "get", "kept", "--raw").rstrip("\n") == "the last"
        assert "the log stopped" not in log.read_text(errors="replace")
    finally:
        for one in idle:
            one.close()
        node.close()


def leader(node):
    """Leader, as a core knows it."""
    return (node.json("cluster")["membership"]["replica"] or {}).get("leader")


def broken_disk(_):
    """limits: a core whose disk fails gives up leadership and reports the reason; another core becomes leader, without any proposal"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first = nodes["n1"]
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    library = built(first.directory, "broken", BROKEN)
    try:
        for name, node in nodes.items():
            preloaded = {"LD_PRELOAD": str(library), "BROKEN_WHILE": str(node.directory / "broken")}
            os.environ.update(preloaded)
            try:
                start(nodes, ports, secret, name)
            finally:
                for variable in preloaded:
                    os.environ.pop(variable)
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
            until(lambda node=node: health(node)[0] == 200, "the node has a quorum", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        name = until(lambda: leader(first), "there is a leader", 30)
        victim, others = nodes[name], [node for other, node in nodes.items() if other != name]
        (victim.directory / "broken").touch()
        # The node has to write a record.
        subprocess.run(["mosquitto_pub", "-p", str(victim.mqtt), "-t", "kept", "-m", "x", "-r"], check=True, timeout=10, capture_output=True)
        status, body = until(lambda: (it := health(victim))[0] == 503 and it, "it leaves the quorum", 20)
        assert "failed" in body, (status, body)
        assert asked(victim, "/health/storage")[0] == 503
        assert said(victim, "ERROR", "the disk has failed"), (victim.directory / "node.log").read_text()[-2000:]
        for node in others:
            until(lambda node=node: leader(node) not in (None, name), "another core is leader", 30)
        others[0].ctl("ban", "add", "client-id", "any")
    finally:
        for node in nodes.values():
            node.close()


def sessions_of_cluster(_):
    """limits: session.sessions_max counts sessions of the whole cluster, on whichever node they begin and whoever leads"""
    with cluster("session.sessions_max=12", "quota.user_percent=100", names=("n1", "n2", "n3")) as named:
        nodes = list(named.values())

        def begins(at, name):
            """Begins a durable session. Returns the words of a refusal, if there is one."""
            done = subprocess.run(["mosquitto_sub", "-V", "5", "-p", str(nodes[at % 3].mqtt), "-i", name, "-c", "-x", "3600", "-t", "t", "-E"], capture_output=True,
                                  text=True, timeout=20, check=False)
            return done.stderr if done.returncode else ""

        for number in range(12):
            refusal = begins(number, f"s{number}")
            assert refusal == "", (number, refusal)
        # A leader knows the sessions of other leaders after a second. If each counted only its own, 24 more could begin.
        time.sleep(2)
        accepted = [number for number in range(24) if "Quota exceeded" not in begins(number, f"more {number}")]
        assert len(accepted) < 6, accepted
        for number in range(12):
            refusal = begins(number, f"beyond {number}")
            assert "Quota exceeded" in refusal, (number, refusal)
            assert begins(number + 1, f"s{number}") == "", "an existing session goes on, on any node"


CHECKS = [no_descriptors, broken_disk, sessions_of_cluster]
