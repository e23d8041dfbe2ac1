"""Clients that may no longer connect are disconnected on every node of a cluster of three cores and a replicant."""

import contextlib
import signal
import subprocess

from checks_cluster import health, start
from node import Node, free_port, until

# A node that is stopped for a moment must not be declared dead: it would disconnect all its clients.
PATIENT = ["cluster.silence_max=20s", "cluster.lease=5s"]


@contextlib.contextmanager
def cluster(*more, names=("n1", "n2", "n3", "r1")):
    """Nodes by name; those that begin with `r` are replicants."""
    nodes = {name: Node() for name in names}
    ports = {name: free_port() for name in nodes}
    secret = nodes[names[0]].directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    cores = ",".join(f"127.0.0.1:{port}" for name, port in ports.items() if not name.startswith("r"))
    try:
        for name in nodes:
            role = "replicant" if name.startswith("r") else "core"
            start(nodes, ports, secret, name, f"cluster.role={role}", f"cluster.join={cores}", *PATIENT, *more)
        for node in nodes.values():
            node.ctl("health", "--wait", "60s")
            until(lambda node=node: health(node)[0] == 200, "the node has a quorum", 60)
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def client(node, name, *words):
    """A client that does not reconnect."""
    process = node.spawn("sub", "-p", str(node.mqtt), "-i", name, "-t", "t", *words)
    until(lambda: node.subscribed(name), f"{name} subscribes", 20)
    return process


def assert_disconnected(process):
    out, err = process.communicate(timeout=30)
    assert process.returncode != 0 and "Administrative action" in err, (process.returncode, out, err)


def can_connect(node, name, *words):
    command = ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-i", name, "-t", "t", "-m", "x", "-q", "1", *words]
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def banned_everywhere(_):
    """away: a ban disconnects its clients on every node, also on one that was unreachable when the ban was added"""
    with cluster() as nodes:
        first, second, last, replicant = nodes.values()
        stay = [client(node, f"good-{name}", "-u", "adam") for name, node in nodes.items()]
        evil = [client(node, f"evil-{name}") for name, node in nodes.items()]
        added = first.text("ban", "add", "client-id", "evil-*")
        assert added.startswith("ban 1: client_id evil-*"), added
        for process in evil:
            assert_disconnected(process)
        for name, node in nodes.items():
            assert not can_connect(node, f"evil-{name}"), name
        mallory = [client(node, f"m-{name}", "-u", "mallory") for name, node in nodes.items()]
        replicant.ctl("ban", "add", "username", "mallory")
        for process in mallory:
            assert_disconnected(process)

        late = client(replicant, "late")
        replicant.process.send_signal(signal.SIGSTOP)
        second.ctl("ban", "add", "client-id", "late", "--for", "1h")
        until(lambda: not can_connect(last, "late"), "the ban is in force on other nodes")
        assert late.poll() is None
        replicant.process.send_signal(signal.SIGCONT)
        assert_disconnected(late)
        assert not can_connect(replicant, "late")
        assert all(process.poll() is None for process in stay), [process.poll() for process in stay]
        assert all(node.subscribed(f"good-{name}") for name, node in nodes.items())


def changed_everywhere(_):
    """away: clients of a changed or removed user are disconnected on every node, also on an unreachable one, unless --keep-connected is given"""
    with cluster("auth.allow_anonymous=true") as nodes:
        first, second, last, replicant = nodes.values()
        names = ["adam", "changed", "disabled", "kept", "late", "left", "removed"]
        for name in names:
            first.ctl("users", "add", name, stdin="secret\n")
        login = lambda user, password="secret": ["-u", user, "-P", password]
        for name, node in nodes.items():
            for user in names:
                until(lambda node=node, user=user: can_connect(node, "probe", *login(user)), f"{user} is known to {name}", 20)
        here = {(name, user): client(node, f"{user}-{name}", *login(user)) for name, node in nodes.items() for user in names if user != "late"}

        second.ctl("users", "passwd", "kept", "--keep-connected", stdin="other\n")
        first.ctl("users", "remove", "left", "--keep-connected", "--yes")
        second.ctl("users", "passwd", "changed", stdin="other\n")
        last.ctl("users", "set", "disabled", "--disabled")
        replicant.ctl("users", "remove", "removed", "--yes")
        for (_, user), process in here.items():
            if user in ("changed", "disabled", "removed"):
                assert_disconnected(process)
        for name, node in nodes.items():
            for user in ("changed", "disabled", "kept", "left", "removed"):
                assert not can_connect(node, "probe", *login(user)), (name, user)
            assert can_connect(node, "probe", *login("changed", "other")), name

        late = client(replicant, "late", *login("late"))
        replicant.process.send_signal(signal.SIGSTOP)
        first.ctl("users", "passwd", "late", stdin="other\n")
        # A change that keeps connections does not hide the change before it.
        first.ctl("users", "set", "late", "--description", "words alone")
        until(lambda: not can_connect(last, "probe", *login("late")), "the change is in force on other nodes")
        assert late.poll() is None
        replicant.process.send_signal(signal.SIGCONT)
        assert_disconnected(late)

        stay = [process for (_, user), process in here.items() if user in ("adam", "kept", "left")]
        assert len(stay) == 12 and all(process.poll() is None for process in stay)
        # The next change disconnects kept clients too, also a change of a new user of that name.
        second.ctl("users", "add", "left", stdin="other\n")
        for name, node in nodes.items():
            until(lambda node=node: can_connect(node, "probe", *login("left", "other")), f"left is known to {name} again", 20)
        assert all(process.poll() is None for process in stay)
        for user in ("kept", "left"):
            last.ctl("users", "remove", user, "--yes")
        for (_, user), process in here.items():
            if user in ("kept", "left"):
                assert_disconnected(process)
        assert all(process.poll() is None for (_, user), process in here.items() if user == "adam")


CHECKS = [banned_everywhere, changed_everywhere]
