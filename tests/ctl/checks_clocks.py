"""Clocks of the nodes of a cluster. That of one is wrong for its process only: a library that is loaded before others adds an hour."""

import os
import subprocess

from checks_cluster import said, start
from node import Node, free_port, until

# An hour ahead while the file is there.
WRONG = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(clock, time);
    const char *file = getenv("WRONG_WHILE");
    if (outcome == 0 && clock == CLOCK_REALTIME && file && access(file, F_OK) == 0)
        time->tv_sec += 3600;
    return outcome;
}
"""


def built(directory, name, text):
    """A library of that C code, to be loaded before others."""
    source, library = directory / f"{name}.c", directory / f"{name}.so"
    source.write_text(text)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def ahead(node, of):
    """How far the node knows another's clock to be ahead; `None` while it does not know."""
    return next(link["clock_ahead_s"] for link in node.json("cluster")["links"] if link["node"] == of)


def an_hour_off(_):
    """clocks: one that is off by an hour is said at start with what to do, by the node itself and by the others, and is taken up when it is set"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, wrong = nodes["n1"], nodes["n2"]
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    switch = first.directory / "wrong"
    switch.touch()
    preloaded = {"LD_PRELOAD": str(built(first.directory, "wrong", WRONG)), "WRONG_WHILE": str(switch)}
    try:
        for name in nodes:
            os.environ.update(preloaded if name == "n2" else {})
            try:
                start(nodes, ports, secret, name)
            finally:
                for variable in preloaded:
                    os.environ.pop(variable, None)
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
        for name in ("n1", "n3"):
            node = nodes[name]
            until(lambda node=node: said(node, "WARN", "the clock of node n2 is 60.0 minutes ahead of", "chronyc"), f"{name} says whose is wrong", 30)
            assert not said(node, "the clock of this machine"), name
            shown = until(lambda node=node: ahead(node, "n2"), f"{name} shows by how much", 30)
            assert 3_599 < shown < 3_601, shown
        until(lambda: said(wrong, "WARN", "the clock of this machine is 60.0 minutes ahead of", "chronyc"), "n2 says that it is its own", 30)
        assert not said(wrong, "WARN", "the clock of node"), "it is nobody else's"
        notes = until(lambda: "clock" in (it := first.ctl("cluster", "status").err) and it, "operators are told", 30)
        assert "the clock of n2 is 1h ahead of that of this node: timedatectl" in notes, notes
        notes = until(lambda: "clock" in (it := wrong.ctl("cluster", "status").err) and it, "there, too", 30)
        assert "the clock of this node (n2) is 1h ahead of those of most nodes" in notes and notes.count("clock of") == 1, notes
        row = next(line for line in first.text("links").splitlines() if line.startswith("n2 "))
        assert " +1h " in row, row
        metrics = first.text("metrics", "meridian_link_clock")
        assert any(line.startswith('meridian_link_clock_ahead_seconds{peer="n2"} 3') for line in metrics.splitlines()), metrics

        switch.unlink()
        until(lambda: said(wrong, "INFO", "the clock of this machine agrees"), "it is taken up while the node runs", 30)
        until(lambda: "clock" not in wrong.ctl("cluster", "status").err, "nothing is wrong any more", 30)
        until(lambda: said(first, "INFO", "n2", "agrees with that of this node again"), "others hear of it", 60)
        until(lambda: "clock" not in first.ctl("cluster", "status").err, "there, too", 30)
    finally:
        for node in nodes.values():
            node.close()


CHECKS = [an_hour_off]
