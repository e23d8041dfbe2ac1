"""Backups of a cluster, and clusters and nodes that begin with them."""

import contextlib
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

from checks_away import cluster
from node import Node, free_port, until

SESSIONS = [f"session-{number}" for number in range(24)]
NAME = "2026-01-31"


def session_begins(node, name):
    """A durable session, whose client goes away."""
    done = subprocess.run(["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-i", name, "-c", "-x", "3600", "-q", "2", "-t", f"to/{name}",
                           "-t", "all", "-E"], capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def session_resumes(node, name):
    """Payloads of the queue of a session, up to the last ones of each publisher, in any order."""
    command = ["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-i", name, "-c", "-x", "3600", "-q", "2", "-t", f"to/{name}", "-F", "%p", "-W", "5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    payloads = []
    for line in process.stdout:
        payloads.append(line.strip())
        if {last[-1] for last in expected(name)} <= set(payloads):
            break
    process.kill()
    process.communicate()
    return payloads


def publish_all(node, topic, payloads, *words):
    lines = "".join(f"{payload}\n" for payload in payloads)
    subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-t", topic, "-l", *words], input=lines, text=True,
                   capture_output=True, timeout=30, check=True)


@contextlib.contextmanager
def load(node):
    """Publishes to all sessions until the end, and no more than their queues hold."""
    ends = threading.Event()

    def run():
        number = 0
        while number < 15 and not ends.is_set():
            number += 1
            with contextlib.suppress(subprocess.SubprocessError):
                publish_all(node, "all", [f"late-{number}-{at}" for at in range(50)], "-q", "1")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(40)


def expected(name):
    """Messages of each publisher, in their order."""
    return [[f"{of}-{at}" for at in range(20)] for of in (f"one-{name}", f"two-{name}", "all")]


def fill(nodes):
    """Sessions, queues, retained messages and records of operators. All of them are acknowledged."""
    first, second, last = nodes
    for at, name in enumerate(SESSIONS):
        session_begins(nodes[at % 3], name)
    for at, name in enumerate(SESSIONS):
        publish_all(nodes[(at + 1) % 3], f"to/{name}", [f"one-{name}-{at}" for at in range(20)], "-q", "1")
        publish_all(nodes[(at + 2) % 3], f"to/{name}", [f"two-{name}-{at}" for at in range(20)], "-q", "2")
    publish_all(last, "all", [f"all-{at}" for at in range(20)], "-q", "1")
    for at in range(20):
        first.publish(f"kept/{at}", f"value-{at}", "-r", "-q", "1")
    second.ctl("ban", "add", "client-id", "evil-*")


def check_content(node, resumes):
    """All that was acknowledged before the backup is there once."""
    for name in resumes:
        payloads = session_resumes(node, name)
        of = [[payload for payload in payloads if payload.startswith(start)] for start in ("one-", "two-", "all-")]
        assert of == expected(name), (name, payloads)
    for at in range(20):
        assert node.json("retained", "get", f"kept/{at}")["payload"] == f"value-{at}"
    assert "evil-*" in node.text("ban", "list")


def restore(sources, into, code=0):
    binary = Node.__init__.__globals__["BINARY"]
    done = subprocess.run([binary, "storage", "restore", *map(str, sources), str(into)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def core(node, port, secret, name, *more):
    node.launch("--name", name, "--cluster-listen", f"127.0.0.1:{port}", "--set", f"cluster.secret_file={secret}", *more)


def restored(_):
    """backup: all cores lose their disks; four new ones, and a node alone, have everything of a backup that was made under load"""
    kept = pathlib.Path(tempfile.mkdtemp(prefix="meridian-backup-"))
    new = [Node() for _ in range(4)]
    alone = Node()
    try:
        with cluster("storage.backup_dir=backups", "storage.segment_size=2MiB", "storage.reserve=4MiB") as nodes:
            cores = [nodes[name] for name in ("n1", "n2", "n3")]
            until(lambda: cores[0].json("cluster")["shards"], "the shards are placed", 30)
            for one in cores:
                (one.directory / "backups").mkdir()
            fill(cores)
            with load(cores[1]):
                text = nodes["r1"].text("cluster", "backup", NAME, "--fetch", str(kept / NAME), "--remove")
            assert text.count("done") == 3 and str(kept / NAME / "n2") in text, text
            for one in cores:
                assert not list((one.directory / "backups").iterdir()), "it is removed when it is fetched"
            (cores[1].directory / "backups" / NAME).mkdir()
            again = cores[0].ctl("cluster", "backup", NAME, code=1)
            assert "is there already" in again.out and "1 of 3 cores made no backup" in again.err, again.out + again.err
            for one in cores:
                one.process.send_signal(signal.SIGKILL)
                one.process.wait()
                shutil.rmtree(one.directory)
            parts = [kept / NAME / name for name in ("n1", "n2", "n3")]
        text = restore(parts, new[0].directory / "data")
        assert text.count(" sessions, ") == 16 and "MISSING" not in text and "LOST" not in text, text
        again = restore(parts, new[0].directory / "data", code=2)
        assert "is there already" in again, again
        secret = new[0].directory / "cluster.secret"
        secret.write_text("another secret of a cluster")
        ports = [free_port() for _ in new]
        core(new[0], ports[0], secret, "new1")
        for number in (1, 2, 3):
            core(new[number], ports[number], secret, f"new{number + 1}", "--join", f"127.0.0.1:{ports[0]}")
        for one in new:
            one.ctl("health", "--wait", "60s")
        check_content(new[3], SESSIONS)
        until(lambda: all(len(shard["replicas"]) == 3 for shard in new[0].json("cluster")["shards"]["items"]), "each shard has three replicas", 60)
        # A majority of the cores is enough, and one of them may lack what the two others acknowledged last.
        text = restore(parts[1:], alone.directory / "data")
        alone.start()
        check_content(alone, SESSIONS)
        text = restore(parts[:1], kept / "one", code=1)
        assert text.count("only 1 of 3 replicas are here") == 16, text
        assert not (kept / "one" / "storage.unfinished").exists()
    finally:
        for one in [*new, alone]:
            one.close()
        shutil.rmtree(kept, ignore_errors=True)


CHECKS = [restored]
