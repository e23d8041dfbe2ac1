"""Drains: clients and shards are taken away from a node gently, by order and before a stop."""

import collections
import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time

from checks_away import cluster
from checks_cluster import answers, asked
from node import until


class Client:
    """A client of MQTT 5.0 that connects to the next address when a node sends it away."""

    def __init__(self, nodes, name, filters=(), expiry=0):
        self.nodes, self.name, self.filters, self.expiry = list(nodes), name, filters, expiry
        self.reasons, self.references, self.payloads, self.gaps = [], [], [], []
        self.at, self.socket, self.number = 0, None, 0
        self.lock, self.ends = threading.Lock(), False
        self.connect()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def node(self):
        return self.nodes[self.at % len(self.nodes)]

    def connect(self):
        """Connects to the first node that accepts the client."""
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError, EOFError, struct.error):
                self.socket = socket.create_connection(("127.0.0.1", self.node().mqtt), timeout=15)
                properties = struct.pack(">BI", 0x11, self.expiry) if self.expiry else b""
                name = self.name.encode()
                body = b"\x00\x04MQTT\x05\x00\x00\x3c" + varint(len(properties)) + properties
                self.send(0x10, body + struct.pack(">H", len(name)) + name)
                kind, answer = self.packet()
                if kind == 0x20 and answer[1] == 0:
                    for topic in self.filters:
                        self.send(0x82, b"\x00\x01\x00" + struct.pack(">H", len(topic)) + topic.encode() + b"\x01")
                    return
                self.reasons.append(answer[1])
                self.socket.close()
            assert time.monotonic() < end, f"{self.name} finds no node"
            self.at += 1
            time.sleep(0.02)

    def send(self, kind, body):
        self.socket.sendall(bytes([kind]) + varint(len(body)) + body)

    def packet(self):
        """Next packet: its first byte, and its content."""
        kind, length, shift = self.exactly(1)[0], 0, 0
        while True:
            byte = self.exactly(1)[0]
            length, shift = length | (byte & 127) << shift, shift + 7
            if byte < 128:
                return kind, self.exactly(length)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            some = self.socket.recv(count - len(data))
            if not some:
                raise EOFError
            data += some
        return data

    def run(self):
        while not self.ends:
            try:
                kind, body = self.packet()
                if kind & 0xF0 == 0x30:
                    self.received(kind, body)
                elif kind == 0xE0:
                    self.reasons.append(body[0])
                    self.references.append(body)
                    raise EOFError
            except (OSError, EOFError):
                if self.ends:
                    return
                lost = time.monotonic()
                self.at += 1
                self.connect()
                self.gaps.append(time.monotonic() - lost)

    def received(self, kind, body):
        length = struct.unpack(">H", body[:2])[0]
        rest = body[2 + length:]
        if kind & 6:
            packet_id, rest = rest[:2], rest[2:]
            with contextlib.suppress(OSError):
                self.send(0x40, packet_id)
        # All properties of these tests are shorter than 128 bytes.
        self.payloads.append(rest[1 + rest[0]:].decode())

    def close(self):
        self.ends = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(10)


def varint(value):
    out = bytearray()
    while True:
        value, byte = value >> 7, value & 127
        out.append(byte | (128 if value else 0))
        if not value:
            return bytes(out)


def connections(node):
    return json.loads(asked(node, "/api/v1/node")[1])["connections"]


def drains(node):
    return {item["node"]: item for item in node.json("cluster", "drains")["items"]}


def leaders(node):
    return [shard["leader"] for shard in node.json("cluster")["shards"]["items"]]


def use_another_server(client):
    return client.reasons[:1] == [0x9C]


def drain_moves_clients(_):
    """drain: clients, shards and shared groups leave a node without loss, and return after undrain"""
    with cluster("cluster.replicas=3", "node.server_reference=mqtt.example:1883") as nodes:
        first, second = nodes["n1"], nodes["n2"]
        away = [second, first]
        clients = [Client(away, f"plain-{i}", [f"plain/{i}"]) for i in range(8)]
        durable = Client(away, "durable", ["jobs/#"], expiry=600)
        members = [Client(away, f"member-{i}", ["$share/g/work"]) for i in range(2)]
        everyone = [*clients, durable, *members]
        try:
            until(lambda: connections(second) == 11, "all clients are on the second node")
            sent, stop = [], threading.Event()

            def publish():
                while not stop.is_set():
                    first.publish("jobs/x", str(len(sent)), "-q", "1")
                    first.publish("work", str(len(sent)), "-q", "1")
                    sent.append(str(len(sent)))

            publisher = threading.Thread(target=publish)
            publisher.start()
            first.ctl("cluster", "drain", "n2", "--rate", "10", "--wait", "1s", "--detach")
            until(lambda: drains(first).get("n2", {}).get("state") == "drained", "the node is drained", 90)
            done = first.text("cluster", "drain", "n2", "--rate", "10", "--wait", "1s")
            assert "node n2 has no clients any more; 0 shards led" in done, done
            stop.set()
            publisher.join()
            assert len(sent) >= 3, "something was published"
            assert all(use_another_server(client) for client in everyone), [client.reasons for client in everyone]
            assert all(b"mqtt.example:1883" in client.references[0] for client in everyone), durable.references
            assert "n2" not in leaders(first), leaders(first)
            until(lambda: set(sent) <= set(durable.payloads), "the durable session got all messages")
            until(lambda: set(sent) <= {payload for member in members for payload in member.payloads}, "the group got all messages")
            assert second.ctl("health", code=1).err.strip().endswith("the node is draining")
            view = drains(first)["n2"]
            assert (view["state"], view["clients_left"], view["disconnected"]) == ("drained", 0, 11), view
            # The order outlives a restart of the node.
            second.process.kill()
            second.process.wait()
            second.restart()
            until(lambda: answers(second), "the node answers", 30)
            until(lambda: drains(second).get("n2", {}).get("state") == "drained", "the node goes on draining", 30)
            assert second.ctl("health", code=1).err.strip().endswith("the node is draining")
            assert "accepts clients again" in first.text("cluster", "undrain", "n2")
            second.ctl("health", "--wait", "10s")
            assert drains(first) == {}, drains(first)
            late = Client([second], "late", ["late"])
            late.close()
            first.ctl("cluster", "undrain", "n2", code=4)
            first.ctl("cluster", "drain", "nobody", code=4)
        finally:
            for client in everyone:
                client.close()


def led(node):
    return collections.Counter(leaders(node))


def is_spread(node):
    counts = [led(node)[name] for name in ("n1", "n2", "n3")]
    return None not in leaders(node) and max(counts) - min(counts) <= 1


def drain_to_named_nodes(_):
    """drain: named nodes get shards and clients, wrong names are refused, and the order outlives SIGTERM"""
    with cluster("cluster.replicas=3", "node.server_reference=balancer.example:1883", "node.client_address=named.example:1883") as nodes:
        first, second = nodes["n1"], nodes["n2"]

        def drain(node, to, code=0):
            return first.ctl("cluster", "drain", node, "--to", to, "--rate", "50", "--wait", "4s", "--detach", code=code)

        # The replicant may be a member a moment later than the cores.
        until(lambda: "there is no node `nobody`; name some of n1, n3, r1" in drain("n2", "n3,nobody", 1).err, "the refusal names all others")
        assert "`n2` is the node that is drained" in drain("n2", "n2", 1).err
        until(lambda: is_spread(first), "the shards are spread", 90)
        clients = [Client([second, first], f"c-{i}") for i in range(4)]
        try:
            until(lambda: connections(second) == 4, "all clients are on the second node")
            drain("n2", "n3")
            until(lambda: drains(first).get("n2", {}).get("state") == "drained", "the node is drained", 90)
            assert drains(first)["n2"]["to"] == ["n3"], drains(first)
            assert all(b"named.example:1883" in client.references[0] for client in clients), clients[0].references
            # Spread over the other two, they would lead the same number.
            until(lambda: not led(first)["n2"] and led(first)["n3"] >= led(first)["n1"] + 2, "n3 leads the shards of n2", 60)
            assert "drained itself" in drain("n1", "n2", 1).err
            second.process.terminate()
            assert second.process.wait(40) == 0
            second.restart()
            until(lambda: drains(first).get("n2", {}).get("state") == "drained", "the node goes on draining", 60)
            assert drains(first)["n2"]["to"] == ["n3"], drains(first)
        finally:
            for client in clients:
                client.close()


def stop_drains_first(_):
    """drain: SIGTERM in a cluster takes clients and shards away before the node stops, a second signal ends it"""
    with cluster("cluster.replicas=3") as nodes:
        first, second, third = nodes["n1"], nodes["n2"], nodes["n3"]
        clients = [Client([second, first], f"c-{i}", [f"c/{i}"]) for i in range(5)]
        try:
            until(lambda: connections(second) == 5, "all clients are on the second node")
            second.process.terminate()
            assert second.process.wait(40) == 0
            assert all(use_another_server(client) for client in clients), [client.reasons for client in clients]
            log = (second.directory / "node.log").read_text()
            assert "drain before the stop has ended clients_left=0" in log, log[-2000:]
            # It removes the order of its stop when it starts again.
            second.restart()
            second.ctl("health", "--wait", "30s")
            assert drains(second) == {}, drains(second)
            late = Client([second], "late", ["late"])
            late.close()
        finally:
            for client in clients:
                client.close()
        # Nobody else accepts clients: a stop does not wait.
        others = [third, nodes["r1"], second]
        for node in others:
            os.kill(node.process.pid, signal.SIGKILL)
            node.process.wait()
        begun = time.monotonic()
        first.process.terminate()
        assert first.process.wait(40) == 0
        assert time.monotonic() - begun < 20, "the drain ended early"


def rebalance_spreads(_):
    """drain: a rebalance takes clients from a node until it has its share"""
    with cluster("cluster.replicas=3") as nodes:
        first, second = nodes["n1"], nodes["n2"]
        clients = [Client([first, second, nodes["n3"], nodes["r1"]], f"c-{i}") for i in range(12)]
        try:
            until(lambda: connections(first) == 12, "all clients are on the first node")
            done = second.text("cluster", "rebalance", "--rate", "20")
            assert "n1 to 3" in done, done
            # A client that another node does not answer in time comes back.
            until(lambda: connections(first) <= 5, "the first node has its share", 60)
            until(lambda: drains(second) == {}, "the order is done", 60)
            until(lambda: sum(connections(node) for node in nodes.values()) == 12, "all clients are connected")
            assert first.ctl("health").out.strip() == "ready"
            assert "no node has more" in second.text("cluster", "rebalance", "--tolerance", "900")
        finally:
            for client in clients:
                client.close()


CHECKS = [drain_moves_clients, drain_to_named_nodes, stop_drains_first, rebalance_spreads]
