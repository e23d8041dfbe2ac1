"""A cluster of processes, and its faults: SIGKILL of nodes, loss of a core's data directory, SIGSTOP."""

import contextlib
import json
import pathlib
import shutil
import signal
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ctl"))

from node import Node, free_port  # noqa: E402  pylint: disable=wrong-import-position

REPLICAS = 3
# Queues never drop a message by their rule, which is not what this examines.
SETTINGS = [f"cluster.replicas={REPLICAS}", "queue.messages_max=1000000", "queue.bytes_max=1GiB"]
# Maximum seconds until all nodes are there and all shards have their replicas.
RECOVERY = 180
POLL = 0.25
# Maximum number of records that a replica lacks, and seconds since its last answer. Replicas answer twice a second.
BEHIND, SILENT = 1_000, 1.5
# Seconds for which this has to hold after the loss of a disk. The replicas of the lost disk are silent before that.
STEADY = 3
# Maximum seconds for which a node is down, is stopped, and lives longer than another node of the same fault.
DOWN, STOPPED, APART = 4.0, 12.0, 1.0
# Kinds of faults and how often they happen, in percent. Other faults are kills of one node.
DISK, PAIR, STOP = 10, 15, 15
# Percentage of faults without lost disks that happen before the cluster has recovered from the last one.
EARLY = 25


class Cluster:
    def __init__(self, cores, replicants):
        self.cores = [f"n{number + 1}" for number in range(cores)]
        self.names = self.cores + [f"r{number + 1}" for number in range(replicants)]
        self.nodes = {name: Node() for name in self.names}
        self.links = {name: free_port() for name in self.names}

    def start(self):
        secret = self.nodes[self.names[0]].directory / "cluster.secret"
        secret.write_text("a secret that is long enough")
        join = ",".join(f"127.0.0.1:{self.links[name]}" for name in self.cores)
        for name, node in self.nodes.items():
            role = "core" if name in self.cores else "replicant"
            settings = [f"cluster.role={role}", f"cluster.listen=127.0.0.1:{self.links[name]}", f"cluster.join={join}", f"cluster.secret_file={secret}", *SETTINGS]
            node.launch("--name", name, *(word for setting in settings for word in ("--set", setting)))
        self.recover()

    def close(self):
        for node in self.nodes.values():
            if node.process and node.process.poll() is None:
                node.process.kill()
            node.close()

    def ended(self):
        """A node whose process has ended by itself, or None."""
        return next((f"{name} has ended by itself with {node.process.poll()}" for name, node in self.nodes.items() if node.process.poll() is not None), None)

    def recover(self, steady=0):
        """Waits until the cluster is whole, and has been for `steady` seconds. Returns the seconds of the wait."""
        begun = since = time.monotonic()
        while time.monotonic() - begun < RECOVERY:
            assert not self.ended(), self.ended()
            now = time.monotonic()
            if not self.is_whole():
                since = time.monotonic()
            elif now - since >= steady:
                return now - begun
            time.sleep(POLL)
        raise AssertionError(f"the cluster is not whole after {RECOVERY} s")

    def is_whole(self):
        """Returns whether all nodes are ready, and the leader of each shard gets answers of its other replicas, which have almost everything."""
        try:
            views = [asked(node, "/health/ready") and asked(node, "/api/v1/cluster") for node in self.nodes.values()]
            led = [shard for name in self.cores for shard in asked(self.nodes[name], "/api/v1/node")["cluster"]["shards"]]
            shards = views[0]["shards"]["items"]
            is_placed = all(shard["leader"] and not shard["joining"] and not shard["leaving"] for view in views for shard in view["shards"]["items"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return is_placed and {shard["shard"] for shard in led} == {shard["shard"] for shard in shards} and all(map(has_replicas, led))

    def kill(self, name):
        node = self.nodes[name]
        assert node.process.poll() is None, f"{name} has ended by itself with {node.process.poll()}"
        node.process.kill()
        node.process.wait(60)

    def save_logs(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, node in self.nodes.items():
            with contextlib.suppress(OSError):
                shutil.copy(node.directory / "node.log", directory / f"{name}.log")


def asked(node, path):
    """The JSON of an answer."""
    with urllib.request.urlopen(node.url + path, timeout=5) as answer:
        return json.load(answer)


def has_replicas(shard):
    """Returns whether all replicas of a shard answer its leader."""
    answers = [it for it in shard["replicas"] if it["behind"] is not None and it["behind"] <= BEHIND and it["silent_s"] is not None and it["silent_s"] < SILENT]
    return len(answers) == REPLICAS - 1


class Faults:
    """One fault after the other. `kills` counts the nodes that have got SIGKILL."""

    def __init__(self, cluster, random):
        self.cluster, self.random = cluster, random
        self.kills, self.disks, self.stops, self.early = 0, 0, 0, 0
        self.needs_recovery = True

    def next(self):
        """Does something to a node or two, and ends it. Returns what it was."""
        drawn = self.random.randrange(100)
        loses_disk = drawn < DISK
        if loses_disk or self.needs_recovery or self.random.randrange(100) >= EARLY:
            took = self.cluster.recover(STEADY if self.needs_recovery else 0)
        else:
            self.early += 1
            took = None
        # No other node may end before the replicas of a lost disk are there again.
        self.needs_recovery = loses_disk
        what = self.lose_disk() if loses_disk else self.kill_two() if drawn < DISK + PAIR else self.stop() if drawn < DISK + PAIR + STOP else self.kill_one()
        return f"{what}; {'not recovered before' if took is None else f'recovered before in {took:.1f} s'}"

    def kill(self, name):
        self.cluster.kill(name)
        self.kills += 1

    def pause(self, longest):
        pause = self.random.uniform(0, longest)
        time.sleep(pause)
        return pause

    def kill_one(self):
        name = self.random.choice(self.cluster.names)
        self.kill(name)
        down = self.pause(DOWN)
        self.cluster.nodes[name].restart()
        return f"SIGKILL of {name}, down for {down:.1f} s"

    def kill_two(self):
        names = self.random.sample(self.cluster.cores if len(self.cluster.cores) > 3 else self.cluster.names, 2)
        self.kill(names[0])
        apart = self.pause(APART)
        self.kill(names[1])
        for name in names:
            self.pause(DOWN)
            self.cluster.nodes[name].restart()
        return f"SIGKILL of {names[0]} and {apart:.1f} s later of {names[1]}"

    def lose_disk(self):
        name = self.random.choice(self.cluster.cores)
        self.kill(name)
        self.disks += 1
        shutil.rmtree(self.cluster.nodes[name].directory / "data")
        down = self.pause(DOWN)
        self.cluster.nodes[name].restart()
        return f"SIGKILL of {name}, which has lost its disk, down for {down:.1f} s"

    def stop(self):
        name = self.random.choice(self.cluster.names)
        process = self.cluster.nodes[name].process
        process.send_signal(signal.SIGSTOP)
        self.stops += 1
        stopped = self.pause(STOPPED)
        process.send_signal(signal.SIGCONT)
        return f"SIGSTOP of {name} for {stopped:.1f} s"
