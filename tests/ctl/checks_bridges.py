"""Bridges: to mosquitto, and between nodes."""

import collections
import errno
import json
import math
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

from checks_away import cluster
from node import Node, free_port, until


# Beginning of a line with a message. Others are of `mosquitto_sub -d`.
LINE = "message "


class Mosquitto:
    """A mosquitto that keeps its sessions over an orderly stop."""

    def __init__(self, *more, client=()):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="meridian-bridged-"))
        self.directory.chmod(0o777)
        self.port = free_port()
        self.process = None
        # Options of its clients.
        self.client = ["-p", str(self.port), *client]
        # Root's mosquitto would become another user, who may not write here.
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true",
                 f"persistence_location {self.directory}/", "user root", *more]
        (self.directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def let_in(self, username, password):
        """Makes it refuse other passwords of this user. Clients without a user name may connect."""
        passwords = self.directory / "passwords"
        subprocess.run(["mosquitto_passwd", "-b", "-c", str(passwords), username, password], check=True, capture_output=True, timeout=10)
        passwords.chmod(0o644)
        with open(self.directory / "mosquitto.conf", "a", encoding="utf-8") as conf:
            conf.write(f"password_file {passwords}\n")
        return self

    def start(self):
        log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen(["mosquitto", "-c", str(self.directory / "mosquitto.conf")], stdout=log, stderr=log)
        log.close()
        until(lambda: subprocess.run(["mosquitto_pub", *self.client, "-t", "up", "-m", "x"], capture_output=True,
                                     timeout=5, check=False).returncode == 0, "mosquitto answers")
        return self

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)

    def close(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def subscriber(self, client_id, *topics, durable=False, qos=2):
        """A mosquitto_sub that has subscribed. Its lines are `topic retain payload`."""
        command = ["stdbuf", "-oL", "mosquitto_sub", "-d", *self.client, "-V", "311", "-i", client_id, "-q", str(qos), "-F", f"{LINE}%t %r %p"]
        command += ["-c"] if durable else []
        for topic in topics:
            command += ["-t", topic]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.early = read_until(process, b"received SUBACK", 20)
        return process

    def publish(self, topic, payload, *more):
        subprocess.run(["mosquitto_pub", *self.client, "-t", topic, "-m", payload, *more], check=True, capture_output=True, timeout=10)


def configured(node, *bridges):
    """Writes the bridges of a node into its configuration file, and returns the arguments that use it."""
    path = node.directory / "meridian.toml"
    path.write_text("\n".join("[[bridge]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in bridge.items()) for bridge in bridges))
    return ["--config", str(path)]


def bridge_of(node, name):
    return next((bridge for bridge in node.json("bridges")["items"] if bridge["name"] == name), None)


def connected(node, name):
    return (bridge_of(node, name) or {}).get("connected")


def leave(process):
    """Ends a subscriber whose session stays."""
    process.kill()
    process.communicate(timeout=10)


def read_until(process, mark, seconds, count=1, data=b""):
    """Reads until `mark` has come so many times, or the time is over. Nothing of it stays in a buffer of Python."""
    pipe, finish = process.stdout.fileno(), time.monotonic() + seconds
    while data.count(mark) < count and time.monotonic() < finish:
        if select.select([pipe], [], [], 0.2)[0]:
            more = os.read(pipe, 65_536)
            if not more:
                break
            data += more
    return data


def received(process, count, seconds=15):
    """Messages of a subscriber: `count` of them, and what comes in the second after that."""
    early = getattr(process, "early", None)
    mark = b"\n" if early is None else LINE.encode()
    data = read_until(process, mark, seconds, count, early or b"")
    data = read_until(process, mark, 1, math.inf, data)
    # mosquitto_sub 2.0.11 sometimes does not end on SIGTERM.
    process.kill()
    data = read_until(process, mark, 10, math.inf, data)
    process.wait(10)
    # A message that came again can be cut off in the middle of its line.
    lines = data[:data.rfind(b"\n") + 1].decode().splitlines()
    return lines if early is None else [line.removeprefix(LINE) for line in lines if line.startswith(LINE)]


def bridge_carries_topics(_):
    """a bridge to mosquitto carries topics both ways with their prefixes, keeps retain, and publishes its state"""
    other, node = Mosquitto().start(), Node()
    try:
        node.start(*configured(node, {
            "name": "plant", "address": f"127.0.0.1:{other.port}", "version": "3.1.1", "state_topic_remote": "bridges/plant",
            "topics": 'sensors/# out 2 "" site7/\ncommands/# in 1 "" site7/\n'}))
        until(lambda: connected(node, "plant"), "the bridge is connected")
        there = other.subscriber("there", "#", "bridges/#")
        here = node.subscriber("here", "#")
        node.publish("sensors/t", "21", "-q", "2", "-r")
        other.publish("site7/commands/fan", "on", "-q", "1")
        lines = received(there, 3)
        assert "bridges/plant 1 1" in lines and "site7/sensors/t 0 21" in lines, lines
        lines = received(here, 2)
        assert sorted(lines) == ["commands/fan " + "on".encode().hex(), "sensors/t " + "21".encode().hex()], lines
        later = other.subscriber("later", "site7/sensors/#")
        assert received(later, 1) == ["site7/sensors/t 1 21"]
        table = node.text("bridges")
        assert "BRIDGE" in table and f"connected to 127.0.0.1:{other.port}" in table, table
        node.stop()
        state = other.subscriber("state", "bridges/#")
        assert received(state, 1) == ["bridges/plant 1 0"]
    finally:
        node.close()
        other.close()


def bridge_waits_for_other(_):
    """while the other broker is away, messages wait on disk, over a kill -9 of the node, and arrive once in their order"""
    other, node = Mosquitto().start(), Node()
    try:
        start = configured(node, {"name": "plant", "address": f"127.0.0.1:{other.port}", "version": "3.1.1", "topics": "a/# out 2",
                                  "backoff_min": "100ms", "backoff_max": "500ms"})
        node.start(*start)
        until(lambda: connected(node, "plant"), "the bridge is connected")
        leave(other.subscriber("there", "a/#", durable=True))
        other.stop()
        until(lambda: not connected(node, "plant"), "the bridge has lost its connection")
        for number in range(100):
            node.publish("a/n", str(number), "-q", "2")
            if number == 50:
                node.process.kill()
                node.process.wait()
                node.start(*start)
        until(lambda: (bridge_of(node, "plant") or {}).get("queued_messages", 0) >= 99, "all messages wait, but for one that may be in flight")
        assert "waiting: " in bridge_of(node, "plant")["state"]
        other.start()
        until(lambda: connected(node, "plant"), "the bridge is connected again", 20)
        until(lambda: bridge_of(node, "plant")["queued_messages"] == 0, "nothing waits")
        lines = received(other.subscriber("there", "a/#", durable=True), 100)
        assert lines == [f"a/n 0 {number}" for number in range(100)], lines
    finally:
        node.close()
        other.close()


def bridge_ends_removed_topics(_):
    """a topic that is removed while the node is down ends at the other broker with the next start, and the others stay"""
    other, node = Mosquitto().start(), Node()
    try:
        bridge = {"name": "plant", "address": f"127.0.0.1:{other.port}", "version": "3.1.1", "backoff_min": "100ms", "backoff_max": "500ms"}
        node.start(*configured(node, {**bridge, "topics": "old/# in 1\nkept/# in 1\nout/# out 1"}))
        until(lambda: connected(node, "plant"), "the bridge is connected")
        stored = lambda: sorted(item["filter"] for item in node.json("client", "subscriptions", "$bridge/plant")["items"])
        assert stored() == ["$bridge/plant/in/kept/#", "$bridge/plant/in/old/#", "out/#"], stored()
        node.process.kill()
        node.process.wait()
        node.start(*configured(node, {**bridge, "topics": "kept/# in 1\nout/# out 1"}))
        until(lambda: connected(node, "plant"), "the bridge is connected again")
        until(lambda: stored() == ["$bridge/plant/in/kept/#", "out/#"], "the removed topic is forgotten")
        here = node.subscriber("here", "#")
        other.publish("old/x", "1", "-q", "1")
        other.publish("kept/x", "2", "-q", "1")
        lines = received(here, 1)
        assert lines == ["kept/x " + "2".encode().hex()], lines
        status = bridge_of(node, "plant")
        assert status["dropped"] == 0, status
    finally:
        node.close()
        other.close()


def bridge_survives_kills(_):
    """two bridged nodes that are killed in turn lose nothing, and deliver QoS 2 once"""
    nodes = [Node(), Node()]
    try:
        bridge = {"name": "pair", "address": f"127.0.0.1:{nodes[1].mqtt}", "topics": "+/# both 2", "backoff_min": "100ms", "backoff_max": "500ms"}
        starts = [configured(nodes[0], bridge), []]
        for node, start in zip(nodes, starts):
            node.start(*start)
        until(lambda: connected(nodes[0], "pair"), "the bridge is connected")
        hosts = ",".join(f"127.0.0.1:{node.mqtt}" for node in nodes)
        load = nodes[0].spawn("bench", "ha", "--stay", "-h", hosts, "--prefix", "kills", "-q", "mixed", "--publishers", "2", "--subscribers", "2",
                              "-R", "400", "--duration", "14", "--still", "8", "--json", "--quiet")
        carried = collections.Counter()
        for kill in range(6):
            time.sleep(2)
            node, start = nodes[kill % 2], starts[kill % 2]
            if node is nodes[0]:
                # It counts from 0 afterwards. On a slow machine the load may end before the last kill.
                carried.update({key: bridge_of(node, "pair")[key] for key in ("messages_out", "messages_in")})
            node.process.kill()
            node.process.wait()
            node.start(*start)
        out, err = load.communicate(timeout=100)
        verdict = json.loads(out)
        wrong = {key: verdict[key] for key in ("losses", "duplicated_qos2", "out_of_order", "unacknowledged", "phantom", "corrupt") if verdict[key]}
        assert not wrong and verdict["delivered"] > 1000, (wrong, verdict, err)
        until(lambda: connected(nodes[0], "pair"), "the bridge is connected at the end")
        seen = bridge_of(nodes[0], "pair")
        carried.update({key: seen[key] for key in ("messages_out", "messages_in")})
        assert seen["remote_sessions_lost"] == 0 and carried["messages_out"] > 100 and carried["messages_in"] > 100, (carried, seen)
    finally:
        for node in nodes:
            node.close()


def bridge_ring(_):
    """a ring of three bridged brokers delivers each message to each, at most once from each side and once back, and comes to rest"""
    nodes = [Node(), Node(), Node()]
    try:
        for at, node in enumerate(nodes):
            following = nodes[(at + 1) % 3]
            # All have the name of this machine.
            node.start(*configured(node, {
                "name": f"next{at}", "address": f"127.0.0.1:{following.mqtt}", "topics": "ring/# both 1", "backoff_min": "100ms", "backoff_max": "500ms"}))
        for at, node in enumerate(nodes):
            until(lambda node=node, at=at: connected(node, f"next{at}"), "the bridge is connected")
        subscribers = [node.subscriber(f"in-{at}", "ring/#") for at, node in enumerate(nodes)]
        for at, node in enumerate(nodes):
            node.publish("ring/t", f"from {at}", "-q", "1")
        time.sleep(3)
        moved = [sum(bridge_of(node, f"next{at}")[key] for key in ("messages_out", "messages_in")) for at, node in enumerate(nodes)]
        time.sleep(2)
        later = [sum(bridge_of(node, f"next{at}")[key] for key in ("messages_out", "messages_in")) for at, node in enumerate(nodes)]
        assert moved == later, ("messages still go round", moved, later)
        for process in subscribers:
            payloads = [bytes.fromhex(line.split()[1]).decode() for line in received(process, 3)]
            copies = {payload: payloads.count(payload) for payload in payloads}
            assert set(copies) == {"from 0", "from 1", "from 2"} and max(copies.values()) <= 3, copies
    finally:
        for node in nodes:
            node.close()


def bridge_moves(_):
    """in a cluster a bridge runs on one node; when that node is killed, another one goes on, and nothing is lost or comes twice"""
    other = Mosquitto("max_queued_messages 10000").start()
    settings = ["bridge.0.name=plant", f"bridge.0.address=127.0.0.1:{other.port}", "bridge.0.topics=up/# out 2", "bridge.0.backoff_max=1s",
                "cluster.silence_max=5s", "cluster.lease=2s"]
    try:
        with cluster(*settings) as nodes:
            replicant = nodes["r1"]
            until(lambda: connected(replicant, "plant"), "the bridge is connected, as another node says", 60)
            leave(other.subscriber("there", "up/#", durable=True))
            runs_on = bridge_of(replicant, "plant")["node"]
            for number in range(60):
                # Its acknowledgement waits until another node leads the shard.
                subprocess.run(["mosquitto_pub", "-p", str(replicant.mqtt), "-V", "5", "-t", "up/n", "-m", str(number), "-q", "2"],
                               check=True, capture_output=True, timeout=60)
                if number == 30:
                    nodes[runs_on].process.kill()
                    nodes[runs_on].process.wait()
            until(lambda: (bridge_of(replicant, "plant") or {}).get("node") not in (None, runs_on), "another node runs the bridge", 30)
            until(lambda: connected(replicant, "plant") and bridge_of(replicant, "plant")["queued_messages"] == 0, "nothing waits", 30)
            time.sleep(1)
            lines = received(other.subscriber("there", "up/#", durable=True), 60)
            assert lines == [f"up/n 0 {number}" for number in range(60)], lines
    finally:
        other.close()


def bridge_names_are_reserved(_):
    """no client from outside gets the session of a bridge, and a wrong bridge is refused with advice"""
    node = Node()
    try:
        node.start()
        for client_id in ("$bridge/plant", "$action/x"):
            refused = subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-i", client_id, "-t", "x", "-m", "x"], capture_output=True,
                                     text=True, timeout=10, check=False)
            assert refused.returncode != 0 and "not valid" in refused.stderr.lower(), refused
        for bridge, advice in [
            ({"name": "x", "topics": "a/#"}, "address"),
            ({"name": "x", "address": "127.0.0.1:1"}, "topics"),
            ({"name": "x", "address": "127.0.0.1:1", "topics": "a/# up"}, "use out, in or both"),
            ({"name": "a/b", "address": "127.0.0.1:1", "topics": "a/#"}, "name"),
            ({"name": "x", "address": "127.0.0.1:1", "topics": "a/#", "version": "3.1.1", "password_file": "/x"}, "set a user name"),
        ]:
            checked = node.run("config", "check", *configured(node, bridge), code=1)
            assert advice in checked.out + checked.err, (bridge, checked.out, checked.err)
    finally:
        node.close()


def bridge_reads_password_again(_):
    """a bridge whose password is refused, or whose file is gone, connects when the file has the right one, without a restart"""
    other, node = Mosquitto(), Node()
    try:
        password = node.directory / "password"
        other.let_in("site", "right").start()
        password.write_text("wrong\n")
        node.start(*configured(node, {"name": "plant", "address": f"127.0.0.1:{other.port}", "version": "3.1.1", "topics": "a/# out 1",
                                      "username": "site", "password_file": str(password), "backoff_min": "100ms", "backoff_max": "500ms"}))
        seen = lambda words: words in str((bridge_of(node, "plant") or {}).get("last_error"))  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
        until(lambda: seen("refused the connection"), "the wrong password is refused")
        password.unlink()
        until(lambda: seen("password_file"), "the missing file is named")
        password.write_text("right\n")
        until(lambda: connected(node, "plant"), "the bridge is connected")
    finally:
        node.close()
        other.close()


def bridge_counts_what_its_queue_drops(_):
    """what a full queue drops is counted for the bridge, with the bytes and the age of what waits"""
    node = Node()
    try:
        node.start(*configured(node, {"name": "plant", "address": f"127.0.0.1:{free_port()}", "topics": "a/# out 1", "queue_messages_max": 2}))
        until(lambda: bridge_of(node, "plant"), "the bridge is known")
        until(lambda: "refused" in (bridge_of(node, "plant")["last_error"] or ""), "its session exists")
        for number in range(5):
            node.publish("a/b", str(number), "-q", "1")
        until(lambda: bridge_of(node, "plant")["dropped_by_cause"]["queue"] == 3, "three are dropped")
        seen = bridge_of(node, "plant")
        assert (seen["queued_messages"], seen["dropped"], seen["configured"]) == (2, 3, True) and seen["queued_bytes"] > 0, seen
        assert seen["oldest_s"] is not None, seen
        figures = node.text("metrics", "meridian_bridge_")
        assert 'meridian_bridge_dropped_total{bridge="plant",cause="queue"} 3\n' in figures, figures
        assert 'meridian_bridge_queued_bytes{bridge="plant"} 0\n' not in figures, figures
    finally:
        node.close()


def bridge_waits_for_room(_):
    """messages that the other broker refuses because a queue there is full wait here, and arrive when there is room"""
    last, far, near = Mosquitto(), Node(), Node()
    try:
        quick = {"backoff_min": "100ms", "backoff_max": "300ms"}
        password = far.directory / "password"
        password.write_text("wrong\n")
        last.let_in("site", "right").start()
        # The subscription is older than the bridge's first connection, so no message is early.
        leave(last.subscriber("there", "a/#", durable=True))
        far.start(*configured(far, {"name": "last", "address": f"127.0.0.1:{last.port}", "version": "3.1.1", "topics": "a/# out 2",
                                    "username": "site", "password_file": str(password), "queue_full": "refuse", "queue_messages_max": 3, **quick}))
        until(lambda: "refused" in ((bridge_of(far, "last") or {}).get("last_error") or ""), "the session of the second bridge exists")
        near.start(*configured(near, {"name": "far", "address": f"127.0.0.1:{far.mqtt}", "topics": "a/# out 2", **quick}))
        until(lambda: connected(near, "far"), "the bridge is connected")
        for number in range(20):
            near.publish("a/b", str(number), "-q", str(1 + number % 2))
        until(lambda: bridge_of(near, "far")["postponed"] >= 3, "the other broker refuses again and again")
        seen = bridge_of(near, "far")
        assert "it refuses a message, which comes again: Quota exceeded" in seen["last_error"], seen
        assert (seen["refused"], seen["dropped"]) == (0, 0) and not seen["failing"], seen
        until(lambda: bridge_of(near, "far")["failing"], "the bridge makes no progress", 60)
        password.write_text("right\n")
        until(lambda: connected(far, "last"), "the second bridge is connected")
        until(lambda: bridge_of(near, "far")["messages_out"] >= 20 and bridge_of(near, "far")["queued_messages"] == 0, "nothing waits", 60)
        until(lambda: bridge_of(far, "last")["queued_messages"] == 0, "nothing waits there")
        until(lambda: not bridge_of(near, "far")["failing"], "the bridge makes progress")
        lines = received(last.subscriber("there", "a/#", durable=True), 20)
        numbers = [int(line.split()[2]) for line in lines]
        # A message of QoS 1 may come twice.
        assert set(numbers) == set(range(20)) and all(numbers.count(number) == 1 for number in range(1, 20, 2)), numbers
        assert bridge_of(near, "far")["refused"] == 0
    finally:
        for each in (near, far, last):
            each.close()


def bridge_changes_at_run_time(_):
    """a bridge is added, changed, turned off and removed while the node runs, and loses nothing that waits"""
    other, node = Mosquitto().start(), Node()
    settings = lambda *more: ("bridges", "set", "plant", *more)  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
    try:
        node.start(*configured(node, {"name": "fixed", "address": f"127.0.0.1:{other.port}", "topics": "fixed/# out 1"}))
        until(lambda: connected(node, "fixed"), "the bridge of the file is connected")
        leave(other.subscriber("there", "a/#", "b/#", "fixed/#", durable=True))
        assert "configuration file" in node.ctl("bridges", "set", "fixed", "enabled=false", code=None).err
        assert "of this node" in node.ctl(*settings(f"address=127.0.0.1:{node.mqtt}", "topics=a/# out 1"), code=None).err
        node.ctl(*settings(f"address=127.0.0.1:{other.port}", "topics=a/# out 2", "topics=c/# in 1", "backoff_min=100ms", "backoff_max=300ms"))
        until(lambda: connected(node, "plant"), "the new bridge is connected", 20)
        node.publish("a/1", "first", "-q", "2")
        here = node.subscriber("here", "c/#", "d/#", qos=1)
        other.publish("c/1", "in", "-q", "1")
        until(lambda: bridge_of(node, "plant")["messages_in"] == 1, "the message has come")
        leave(here)
        # Messages wait in the session of a bridge that is off.
        node.ctl(*settings("enabled=false"))
        until(lambda: not connected(node, "plant"), "the bridge is off", 20)
        for number in range(10):
            node.publish("a/n", str(number), "-q", "2")
        until(lambda: bridge_of(node, "plant")["queued_messages"] == 10, "they wait")
        node.restart()
        node.ctl("health", "--wait", "20s")
        until(lambda: (bridge_of(node, "plant") or {}).get("queued_messages") == 10, "they wait after a restart", 20)
        assert not bridge_of(node, "plant")["enabled"]
        here = node.subscriber("here", "c/#", "d/#", qos=1)
        # A change of topics ends subscriptions at the other broker.
        node.ctl(*settings("enabled=true", "topics=a/# out 2", "topics=b/# out 2", "topics=d/# in 1"))
        until(lambda: connected(node, "plant") and bridge_of(node, "plant")["queued_messages"] == 0, "what has waited is there", 20)
        node.publish("b/1", "other topic", "-q", "2")
        other.publish("c/1", "no topic of the bridge any more", "-q", "1")
        other.publish("d/1", "in", "-q", "1")
        lines = received(here, 1)
        assert [line.split()[0] for line in lines] == ["d/1"], lines
        until(lambda: bridge_of(node, "plant")["messages_out"] == 11, "all has gone")
        node.publish("fixed/1", "still", "-q", "1")
        shown = node.text("bridges", "show", "plant")
        assert "b/# out 2" in shown and "connected to" in shown, shown
        # The session of a removed bridge stays, is shown, and is found by a new bridge.
        node.ctl("--yes", "bridges", "remove", "plant")
        until(lambda: (bridge_of(node, "plant") or {}).get("configured") is False, "its session is shown", 30)
        node.publish("a/2", "kept", "-q", "2")
        node.ctl(*settings(f"address=127.0.0.1:{other.port}", "topics=a/# out 2"))
        until(lambda: connected(node, "plant") and bridge_of(node, "plant")["messages_out"] == 1, "the new bridge has the message", 20)
        node.ctl("--yes", "bridges", "remove", "plant", "--delete-messages")
        assert not node.json("clients", "--search", "$bridge/plant")["items"]
        assert node.ctl("bridges", "show", "plant", code=None).returncode != 0 and connected(node, "fixed")
        there = received(other.subscriber("there", "a/#", "b/#", "fixed/#", durable=True), 14)
        payloads = [line.split(maxsplit=2)[2] for line in there]
        assert sorted(payloads) == sorted(["first", *map(str, range(10)), "other topic", "still", "kept"]), payloads
        assert [payload for payload in payloads if payload.isdigit()] == [str(number) for number in range(10)], payloads
    finally:
        node.close()
        other.close()


def bridge_waits_for_disk(_):
    """while the disk of the node is full, messages of a broker of MQTT 3.1.1 stay there, and arrive when there is space"""
    other, node = Mosquitto().start(), Node()
    try:
        if not node.on_small_disk("16m"):
            print("skipped: a disk of its own for one node needs root, or user namespaces", flush=True)
            return
        bridge = {"name": "plant", "address": f"127.0.0.1:{other.port}", "version": "3.1.1", "topics": "in/# in 1", "backoff_min": "100ms", "backoff_max": "300ms"}
        node.start(*configured(node, bridge), "--set", "storage.segment_size=1MiB", "--set", "storage.reserve=2MiB")
        until(lambda: connected(node, "plant"), "the bridge is connected")
        leave(node.subscriber("keeps", "in/#", durable=True))
        ballast = node.seen(node.directory / "data" / "ballast")
        with open(ballast, "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        for number in range(40):
            other.publish("in/x", f"{number}:" + "x" * 100_000, "-q", "1")
        # The node also refuses the next connections of the bridge.
        until(lambda: bridge_of(node, "plant")["postponed"] >= 1 and bridge_of(node, "plant")["reconnects"] >= 5, "this node refuses again and again")
        seen = bridge_of(node, "plant")
        assert seen["last_error"].startswith("this broker: ") and "Quota exceeded" in seen["last_error"] and seen["refused"] == 0, seen
        ballast.unlink()
        waiting = lambda: node.json("client", "keeps")["session"]["queued_messages"]  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
        until(lambda: waiting() >= 40, "all messages are here", 60)
        lines = received(node.subscriber("keeps", "in/#", durable=True), 40)
        numbers = [int(bytes.fromhex(line.split()[1]).split(b":")[0]) for line in lines]
        # A message of QoS 1 may come twice.
        assert set(numbers) == set(range(40)), numbers
        assert bridge_of(node, "plant")["refused"] == 0
    finally:
        node.close()
        other.close()


def bridge_that_is_removed_is_listed(_):
    """the session of a bridge that is not configured any more is listed until it is removed, and the node warns about it"""
    node = Node()
    try:
        node.start(*configured(node, {"name": "gone", "address": f"127.0.0.1:{free_port()}", "topics": "a/# out 1"}))
        until(lambda: "refused" in ((bridge_of(node, "gone") or {}).get("last_error") or ""), "its session exists")
        node.stop()
        node.start()
        node.publish("a/b", "1", "-q", "1")
        until(lambda: (bridge_of(node, "gone") or {}).get("queued_messages") == 1, "the session is found, with what waits")
        seen = bridge_of(node, "gone")
        assert (seen["configured"], seen["failing"], seen["session"]) == (False, True, "$bridge/gone"), seen
        assert "not configured" in node.text("bridges")
        assert "has no [[bridge]]" in (node.directory / "node.log").read_text()
        node.ctl("kick", "$bridge/gone", "--session", "--yes")
        until(lambda: bridge_of(node, "gone") is None, "it is not listed any more")
    finally:
        node.close()


def bridge_ring_with_mosquitto(_):
    """in a ring with a mosquitto, bridges of MQTT 5.0 end each message after one round"""
    other, nodes = Mosquitto().start(), [Node(), Node()]
    try:
        quick = {"topics": "ring/# both 1", "backoff_min": "100ms", "backoff_max": "500ms"}
        bridges = [[("pair", nodes[1].mqtt), ("first", other.port)], [("second", other.port)]]
        for node, to in zip(nodes, bridges):
            node.start(*configured(node, *({"name": name, "address": f"127.0.0.1:{port}", **quick} for name, port in to)))
        names = [(node, name) for node, to in zip(nodes, bridges) for name, _ in to]
        for node, name in names:
            until(lambda node=node, name=name: connected(node, name), "the bridge is connected")
        moved = lambda: [bridge_of(node, name)[key] for node, name in names for key in ("messages_out", "messages_in")]  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
        subscribers = [node.subscriber(f"in-{at}", "ring/#") for at, node in enumerate(nodes)]
        there = other.subscriber("there", "ring/#")
        nodes[0].publish("ring/t", "from 0", "-q", "1")
        nodes[1].publish("ring/t", "from 1", "-q", "1")
        other.publish("ring/t", "from mosquitto", "-q", "1")
        time.sleep(3)
        before = moved()
        time.sleep(2)
        assert moved() == before, ("messages still go round", before, moved())
        everything = {"from 0", "from 1", "from mosquitto"}
        for process in subscribers:
            copies = collections.Counter(bytes.fromhex(line.split()[1]).decode() for line in received(process, 3))
            assert set(copies) == everything and max(copies.values()) <= 3, copies
        copies = collections.Counter(line.split(maxsplit=2)[2] for line in received(there, 3))
        assert set(copies) == everything and max(copies.values()) <= 3, copies
    finally:
        for node in nodes:
            node.close()
        other.close()


CHECKS = [bridge_carries_topics, bridge_changes_at_run_time, bridge_reads_password_again, bridge_waits_for_other, bridge_waits_for_room, bridge_waits_for_disk, bridge_counts_what_its_queue_drops,
          bridge_that_is_removed_is_listed, bridge_ends_removed_topics, bridge_survives_kills, bridge_ring, bridge_ring_with_mosquitto, bridge_moves,
          bridge_names_are_reserved]
