"""Debian's mosquitto as a bridge to a node: each row is a mosquitto of its own with another configuration of the bridge.

A small proxy stands between the two, so that the connection of a bridge can be cut while both brokers run.
"""

import concurrent.futures
import itertools
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

from client import Failure
from mosquitto_clients import MosquittoDriver

WAIT_S = 20
CLIENT = "mosquitto bridge"
CELLS = {
    "out": "the node's clients get messages of mosquitto's clients, in order, with the other topic prefix",
    "in": "mosquitto's clients get messages of the node's clients, in order, with the other topic prefix",
    "once": "messages of the bridge do not come back: mosquitto's clients get their own messages once",
    "retain": "a message retained on one side while the bridge is connected is retained on the other side",
    "away": "after its connection was cut, the bridge gets the messages of QoS 1 that it missed (`cleansession false`)",
    "state": "`$SYS/broker/connection/<client identifier>/state` is 1, 0 after the connection was cut, and 1 again",
}
ROWS = [
    (version, private, notifications)
    for version, private, notifications in itertools.product(("3.1.1", "5.0"), (True, False), (True, False))
]
PROTOCOLS = {"3.1.1": "mqttv311", "5.0": "mqttv50"}

EXPLANATION = """
**`try_private`.** A bridge with `try_private true` sets bit 7 of the protocol level in CONNECT. Meridian then sends it
none of its own messages, and keeps the RETAIN flag as published. MQTT 3.1.1 has no other way to request this. mosquitto
sets the bit in 3.1.1 only. In 5.0 it uses subscription options for the same. Without `try_private`, 3.1.1 messages of a
topic with direction `both` come back.

**`cleansession`.** A 5.0 bridge of mosquitto 2.0 sends no Session Expiry Interval, whatever `cleansession` says. Its
session ends with its connection, so it misses messages while it is away. Use `bridge_protocol_version mqttv311`, the
default, with `cleansession false`.

**`notifications`.** A bridge may publish on its own state topic. Access rules must allow it, and `#` does not match
this topic: `allow everyone publish $SYS/broker/connection/${clientid}/state`. Otherwise set `notifications false`.
Behind a mountpoint no client publishes below `$SYS`. In a cluster, clients of other nodes get changes of the state if
their filter begins with `$SYS/broker/connection/`.
"""


def expects(row, cell):
    """Whether a row can have a cell at all."""
    version, private, notifications = row
    if cell in ("once", "retain"):
        return private or version == "5.0"
    if cell == "away":
        return version != "5.0"
    return cell != "state" or notifications


def expect(found, wanted, what):
    if found != wanted:
        raise Failure(f"{what}: {found} instead of {wanted}")


class Proxy:
    """Passes on bytes between a bridge and the node until it is cut."""

    def __init__(self, port):
        self.to, self.open = port, []
        self.port = None
        self.listen()

    def listen(self):
        self.listener = socket.create_server(("127.0.0.1", self.port or 0), reuse_port=False)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                bridge, _ = listener.accept()
                node = socket.create_connection(("127.0.0.1", self.to), WAIT_S)
            except OSError:
                return
            node.settimeout(None)
            self.open += [bridge, node]
            for source, sink in ((bridge, node), (node, bridge)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        """No connection is left, and none is accepted."""
        for end in (self.listener, *self.open):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self.open = []


class Bridge:
    """A mosquitto with a bridge to the node behind a proxy."""

    def __init__(self, row, name, node_port, directory):
        version, private, notifications = row
        self.proxy = Proxy(node_port)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = pathlib.Path(directory) / f"{name}.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            f"connection {name}\naddress 127.0.0.1:{self.proxy.port}\nremote_clientid {name}\n"
            f"bridge_protocol_version {PROTOCOLS[version]}\ntry_private {str(private).lower()}\n"
            f"notifications {str(notifications).lower()}\ncleansession false\nrestart_timeout 1\n"
            f"topic # both 1 site/ interop/{name}/\n"
        )
        log = open(pathlib.Path(directory) / f"{name}.log", "w")
        self.process = subprocess.Popen(["mosquitto", "-c", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise Failure("mosquitto does not accept connections") from None
                time.sleep(0.05)

    def stop(self):
        self.proxy.cut()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(10)


def client(driver, name, topic_filter, qos=1):
    found = driver.client(name, name)
    found.connect()
    found.subscribe(topic_filter, qos)
    return found


def until(subscriber, last):
    """Payloads up to this one."""
    payloads = []
    while last not in payloads:
        payloads.append(subscriber.receive(1)[0]["payload"])
    return payloads


def run_row(row, name, node_port, directory):
    """Results of all cells of a row, one after the other over one bridge."""
    results = {cell: "not reached" if expects(row, cell) else None for cell in CELLS}
    here, there = None, MosquittoDriver("127.0.0.1", node_port, 4)
    bridge = None
    try:
        remote = f"interop/{name}"
        state = client(there, f"{name}s", f"$SYS/broker/connection/{name}/state")
        far = client(there, f"{name}f", f"{remote}/+")
        publisher = there.client("publisher", f"{name}p")
        # The bridge gets it when it subscribes: from then on it passes on what is published.
        publisher.publish(f"{remote}/hello", ["hello"], 1, retain=True)
        expect(far.receive(1)[0]["payload"], "hello", "before the bridge is there")
        bridge = Bridge(row, name, node_port, directory)
        here = MosquittoDriver("127.0.0.1", bridge.port, 4)
        near = client(here, f"{name}n", "site/+")
        expect(near.receive(1)[0]["topic"], "site/hello", "the first message")

        def check(cell, run):
            if expects(row, cell):
                results[cell] = None
                try:
                    run()
                    results[cell] = "pass"
                except Failure as failure:
                    results[cell] = str(failure)
                    raise

        seen = []
        local = here.client("publisher", f"{name}l")

        def out():
            local.publish("site/out", ["o1", "o2", "o3"], 1)
            received = far.receive(3)
            expect([(m["topic"], m["payload"]) for m in received], [(f"{remote}/out", f"o{n}") for n in (1, 2, 3)], "at the node")

        def inward():
            publisher.publish(f"{remote}/in", ["i1", "i2", "i3"], 1)
            seen.extend(until(near, "i3"))
            expect([payload for payload in seen if payload.startswith("i")], ["i1", "i2", "i3"], "at mosquitto")

        def once():
            expect(seen, ["o1", "o2", "o3", "i1", "i2", "i3"], "at mosquitto")

        def retain():
            publisher.publish(f"{remote}/kept", ["far"], 1, retain=True)
            until(near, "far")
            late = client(here, f"{name}r", "site/kept").receive(1)[0]
            expect((late["payload"], late["retain"]), ("far", True), "retained at mosquitto")
            local.publish("site/kept", ["near"], 1, retain=True)
            until(far, "near")
            late = client(there, f"{name}t", f"{remote}/kept").receive(1)[0]
            expect((late["payload"], late["retain"]), ("near", True), "retained at the node")

        def states(wanted):
            if row[2]:
                expect([m["payload"] for m in state.receive(len(wanted))], wanted, "state")

        check("out", out)
        check("in", inward)
        check("once", once)
        check("retain", retain)
        check("state", lambda: states(["1"]))
        bridge.proxy.cut()
        check("state", lambda: states(["0"]))

        def away():
            publisher.publish(f"{remote}/missed", ["m1", "m2", "m3"], 1)
            bridge.proxy.listen()
            received = [payload for payload in until(near, "m3") if payload.startswith("m")]
            expect(received, ["m1", "m2", "m3"], "at mosquitto")

        check("away", away)
        if not expects(row, "away"):
            bridge.proxy.listen()
        check("state", lambda: states(["1"]))
    except Exception as error:  # Whatever broke, the other rows go on, and the cells that were not reached are red.
        detail = str(error) if isinstance(error, Failure) else repr(error)
        results = {cell: detail if said == "not reached" else said for cell, said in results.items()}
    finally:
        there.close()
        if here:
            here.close()
        if bridge:
            bridge.stop()
    return results


def run_all(binary):
    """One result a cell, as those of the scenarios."""
    results = []
    with tempfile.TemporaryDirectory() as directory:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = open(pathlib.Path(directory) / "node.log", "w")
        command = [binary, "start", "--listen", f"127.0.0.1:{port}", "--http", "off", "--workers", "3"]
        node = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + WAIT_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if node.poll() is not None or time.monotonic() > deadline:
                        raise Failure("the node does not accept connections") from None
                    time.sleep(0.05)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                rows = list(pool.map(lambda at: run_row(ROWS[at], f"bridge{at}", port, directory), range(len(ROWS))))
        finally:
            node.terminate()
            node.wait(20)
    for (version, private, notifications), cells in zip(ROWS, rows):
        row = f"{version}, try_private {'on' if private else 'off'}, notifications {'on' if notifications else 'off'}"
        for cell, said in cells.items():
            result = {"client": CLIENT, "version": row, "cell": cell, "result": "FAIL", "detail": said}
            if said in (None, "pass"):
                result.update(result=said or "-", detail="")
            results.append(result)
    return results


def table(results):
    """For docs/interop.md."""
    by_place = {(r["version"], r["cell"]): r["result"] for r in results}
    lines = ["\n## mosquitto as a bridge\n", "| bridge | " + " | ".join(CELLS) + " |", "|---" * (len(CELLS) + 1) + "|"]
    rows = list(dict.fromkeys(r["version"] for r in results))
    lines += [f"| {row} | " + " | ".join(by_place.get((row, cell), "-") for cell in CELLS) + " |" for row in rows]
    lines += ["\n| cell | scenario |", "|---|---|"]
    lines += [f"| {cell} | {what} |" for cell, what in CELLS.items()]
    return "\n".join(lines) + "\n" + EXPLANATION
