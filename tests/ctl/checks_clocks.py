"""Clocks of the nodes of a cluster. A preloaded library adds an hour to the clock of one process."""

import os
import subprocess

from checks_cluster import said, start
from node import Node, free_port, until

# The clock is an hour ahead while the file exists.
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
    """Builds a library from C code for LD_PRELOAD."""
    source, library = directory / f"{name}.c", directory / f"{name}.so"
    source.write_text(text)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def ahead(node, of):
    """Seconds that another node's clock is ahead, as the node knows it; `None` while unknown."""
    return next(link["clock_ahead_s"] for link in node.json("cluster")["links"] if link["node"] == of)


def an_hour_off(_):
    """clocks: a clock that is off by an hour is reported at the start by the node and by the others, with what to do, and recovers when it is set"""
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
            until(lambda node=node: said(node, "WARN", "the clock of node n2 is 60.0 minutes ahead of", "chronyc"), f"{name} reports the wrong clock", 30)
            assert not said(node, "the clock of this machine"), name
            shown = until(lambda node=node: ahead(node, "n2"), f"{name} shows the difference", 30)
            assert 3_599 < shown < 3_601, shown
        until(lambda: said(wrong, "WARN", "the clock of this machine is 60.0 minutes ahead of", "chronyc"), "n2 reports its own clock", 30)
        assert not said(wrong, "WARN", "the clock of node"), "no other clock is wrong"
        # The alarm of n2 may be shown before that of this node.
        until(lambda: "the clock of n2 is 1h ahead of that of this node: timedatectl" in first.ctl("cluster", "status").err, "ctl shows it", 30)
        notes = until(lambda: "clock" in (it := wrong.ctl("cluster", "status").err) and it, "ctl of the other node shows it", 30)
        assert "the clock of this node (n2) is 1h ahead of those of most nodes" in notes and notes.count("clock of") == 1, notes
        row = next(line for line in first.text("links").splitlines() if line.startswith("n2 "))
        assert " +1h " in row, row
        metrics = first.text("metrics", "meridian_link_clock")
        assert any(line.startswith('meridian_link_clock_ahead_seconds{peer="n2"} 3') for line in metrics.splitlines()), metrics

        switch.unlink()
        until(lambda: said(wrong, "INFO", "the clock of this machine agrees"), "the running node reports that its clock is right", 30)
        until(lambda: "clock" not in wrong.ctl("cluster", "status").err, "ctl shows no wrong clock", 30)
        until(lambda: said(first, "INFO", "n2", "agrees with that of this node again"), "other nodes report it", 60)
        until(lambda: "clock" not in first.ctl("cluster", "status").err, "ctl of the other node shows it", 30)
    finally:
        for node in nodes.values():
            node.close()


CHECKS = [an_hour_off]
