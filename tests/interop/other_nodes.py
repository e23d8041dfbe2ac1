"""Clients that change nodes: three cores and two replicants, of which a core is killed. Each row is a library and a version.

All rows go through a phase together, so that one cluster and one `kill -9` are enough for all of them.
"""

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading

from client import Failure
from mosquitto_clients import MosquittoClient

CELLS = {
    "another core": "the session's node is killed while its client is away; the client finds its session on another core",
    "a replicant": "the client goes on to a replicant, and finds its session there",
    "takeover by another node": "a second connection, on another core, closes the first (5.0: with reason 0x8E) and gets the messages",
    "right after CONNACK": "clients of a replicant publish a message at QoS 0 and leave at once; a new client of a core gets all",
}
VERSIONS = {4: "3.1.1", 5: "5.0"}
ROWS = [
    (client, version) for client in ("Paho Python", "MQTT.js", "mosquitto clients", "rumqttc") for version in VERSIONS
]
START_S = 60
STOP_S = 30
SESSION = {"clean": False, "expiry": 300}
SESSION_TAKEN_OVER = 0x8E
BRIEF_CLIENTS = 20

EXPLANATION = """
One row has two durable sessions, with a subscription of QoS 1 and one of QoS 2. They begin on the first of three cores,
and their clients leave. Clients of the same library publish at QoS 1 and 2 on other nodes, cores and replicants, before
and after `kill -9` of the first core. Session Present is 1 each time, and the client has each message once, in the
order of its QoS. mosquitto_sub does not print Session Present.
"""


def expect(actual, wanted, what):
    if actual != wanted:
        raise Failure(f"{what}: wanted {wanted!r}, got {actual!r}")


def host(node):
    return f"127.0.0.{node}"


class Cluster:
    """`meridian start --dev-cluster 3+2`: nodes 1 to 3 are cores, 4 and 5 replicants."""

    def __init__(self, binary, directory):
        self.port = free_port()
        command = [binary, "start", "--dev-cluster", "3+2", "--workers", "1", "--data-dir", "data"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--http", f"127.0.0.1:{self.port + 1}"]
        self.process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.nodes = {}
        said = []
        # Nodes that never find each other end by themselves; this bounds a program that hangs.
        bound = threading.Timer(START_S + STOP_S, self.process.kill)
        bound.start()
        for line in self.process.stdout:
            said.append(line)
            if node := re.match(r"n(\d) .* process (\d+) ", line):
                self.nodes[int(node[1])] = int(node[2])
            if "all of them reach each other" in line:
                break
        else:
            raise Failure(f"the cluster does not start: {''.join(said)[-600:]}")
        bound.cancel()
        # The process goes on printing, so the pipe must be read.
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()

    def kill(self, node):
        os.kill(self.nodes[node], signal.SIGKILL)

    def stop(self):
        """Whether the rest of the nodes were running and stopped in time."""
        alive = self.process.poll() is None
        self.process.terminate()
        try:
            return alive and self.process.wait(STOP_S) == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False


def free_port():
    """A port whose next one and whose link port, 6,000 above, are free on all nodes, below those of outgoing connections."""
    for port in range(14_000 + os.getpid() % 400 * 10, 26_000, 10):
        probes = []
        try:
            for node in range(1, 6):
                probes += [socket.create_server((host(node), at)) for at in (port, port + 1, port + 6_000)]
            return port
        except OSError:
            pass
        finally:
            for probe in probes:
                probe.close()
    raise Failure("no free ports")


class Row:
    """A client library and version with its sessions, one of each QoS."""

    def __init__(self, client, version, driver):
        self.driver, self.version = driver, version
        self.label = f"{client[:2].lower()}{version}"
        self.results = {cell: "not reached" for cell in CELLS}
        self.sessions = [driver.client(f"session{qos}", f"{self.label}-move{qos}") for qos in (1, 2)]
        self.number = 0
        self.sent = []
        self.phase_failed = False

    def topic(self, qos):
        return f"interop/nodes/{self.label}/{qos}"

    def publish(self, node, count):
        """Publishes messages at QoS 1 and 2 in turn through a node. Every session wants all of them."""
        publisher = self.driver.client("publisher", f"{self.label}-from{node}")
        publisher.host = host(node)
        publisher.connect()
        for _ in range(count):
            for qos in (1, 2):
                payload = f"m{self.number}"
                self.number += 1
                publisher.publish(self.topic(qos), [payload], qos)
                self.sent.append((payload, qos))
        publisher.disconnect()

    def begin(self):
        for qos, session in zip((1, 2), self.sessions):
            session.host = host(1)
            self.connect(session, False)
            expect(session.subscribe(f"interop/nodes/{self.label}/+", qos), [qos], "granted QoS")
        self.sessions[0].abort()
        self.sessions[1].disconnect()
        self.publish(2, 5)
        self.publish(5, 5)

    def connect(self, session, is_present):
        said = session.connect(**SESSION)
        if said is not None:
            expect(said, is_present, f"Session Present on {session.host}")

    def move(self, node):
        """The sessions are resumed on a node, and get what they missed and a live message."""
        for qos, session in zip((1, 2), self.sessions):
            session.host = host(node)
            self.connect(session, True)
        missed, self.sent = self.sent, []
        for qos, session in zip((1, 2), self.sessions):
            self.check(session, qos, missed)
        self.publish(4, 1)
        live, self.sent = self.sent, []
        for qos, session in zip((1, 2), self.sessions):
            self.check(session, qos, live)
            session.settle(f"interop/nodes/{self.label}/+", qos)
            session.disconnect()

    def check(self, session, granted, wanted):
        received = [(message["payload"], message["qos"]) for message in session.receive(len(wanted))]
        wanted = [(payload, min(qos, granted)) for payload, qos in wanted]
        # Each QoS has its own order: a client may hand over QoS 2 at PUBLISH or at PUBREL.
        for qos in range(1, granted + 1):
            of_qos = [message for message in received if message[1] == qos]
            expect(of_qos, [message for message in wanted if message[1] == qos], f"messages on {session.host}")

    def another_core(self):
        self.publish(3, 5)
        self.move(2)

    def replicant(self):
        self.publish(3, 5)
        self.move(5)

    def takeover(self):
        """[MQTT-3.1.4-3] between nodes."""
        first = self.sessions[1]
        first.host = host(2)
        self.connect(first, True)
        second = self.driver.client("second", first.identifier)
        second.host = host(3)
        if isinstance(second, MosquittoClient):
            second.subscription = first.subscription
        self.connect(second, True)
        reason = first.wait_closed()
        if self.version == 5:
            expect(SESSION_TAKEN_OVER if reason == "unknown" else reason, SESSION_TAKEN_OVER, "reason of the first's end")
        self.publish(5, 5)
        messages, self.sent = self.sent, []
        self.check(second, 2, messages)

    def brief(self):
        """CONNACK does not wait for the cluster (`cluster.connack`), and what comes behind it counts."""
        topic = f"interop/brief/{self.label}"
        reader = self.driver.client("reader", f"{self.label}-reader")
        reader.host = host(3)
        reader.connect()
        expect(reader.subscribe(topic, 0), [0], "granted QoS")
        wanted = [f"b{number}" for number in range(BRIEF_CLIENTS)]
        for payload in wanted:
            publisher = self.driver.client(payload, f"{self.label}-{payload}")
            publisher.host = host(4)
            publisher.connect()
            publisher.publish(topic, [payload], 0)
            publisher.disconnect()
        received = [message["payload"] for message in reader.receive(len(wanted))]
        # Each publisher has its own order.
        expect(sorted(received), sorted(wanted), "messages of clients that left at once")
        reader.disconnect()

    def run(self, cell, phase):
        """Runs a phase, unless an earlier one failed. Its failure is that of the cell."""
        if self.phase_failed:
            return
        try:
            phase()
        except Exception as error:  # Whatever broke, the other rows go on.
            self.phase_failed = True
            self.results[cell] = str(error) if isinstance(error, Failure) else repr(error)


def run_all(binary, open_driver):
    """One result a cell, as those of the scenarios."""
    rows, why = {}, ""
    with tempfile.TemporaryDirectory() as directory:
        cluster = None
        try:
            cluster = Cluster(binary, directory)
            rows = {
                (client, version): Row(client, version, open_driver(client, version, host(1), cluster.port))
                for client, version in ROWS
            }
            walk(cluster, list(rows.values()))
        except Failure as failure:
            why = str(failure)
        finally:
            for row in rows.values():
                row.driver.close()
            if cluster and not cluster.stop():
                why = why or "a node ended, or did not stop in time"
    results = []
    for client, version in ROWS:
        for cell in CELLS:
            said = why or rows[client, version].results[cell]
            result = {"client": client, "version": VERSIONS[version], "cell": cell, "result": "pass", "detail": ""}
            results.append(result if said == "pass" else {**result, "result": "FAIL", "detail": said})
    return results


def walk(cluster, rows):
    core, replicant, takeover, brief = CELLS
    with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:

        def everyone(cell, phase, passes=True):
            def one(row):
                row.run(cell, lambda: phase(row))
                if passes and not row.phase_failed:
                    row.results[cell] = "pass"

            list(pool.map(one, rows))

        everyone(core, Row.begin, passes=False)
        cluster.kill(1)
        everyone(core, Row.another_core)
        everyone(replicant, Row.replicant)
        everyone(takeover, Row.takeover)
        everyone(brief, Row.brief)


def table(results):
    """For docs/interop.md."""
    by_place = {(r["client"], r["version"], r["cell"]): r["result"] for r in results}
    lines = ["\n## Other nodes of a cluster\n", "| client | MQTT | " + " | ".join(CELLS) + " |", "|---|---" + "|---" * len(CELLS) + "|"]
    rows = list(dict.fromkeys((r["client"], r["version"]) for r in results))
    lines += [f"| {' | '.join(row)} | " + " | ".join(by_place.get((*row, cell), "-") for cell in CELLS) + " |" for row in rows]
    lines += ["\n| cell | scenario |", "|---|---|"]
    lines += [f"| {cell} | {what} |" for cell, what in CELLS.items()]
    return "\n".join(lines) + "\n" + EXPLANATION
