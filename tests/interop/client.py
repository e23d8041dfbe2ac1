"""What every scenario may ask of a client, and clients that live in a driver process.

A driver is a small program in the client library's own language (`paho_driver.py`, `mqttjs_driver.js`). It reads one
JSON command a line and writes one JSON event a line, so that a scenario is written once and runs with every library.

commands  {"do": "connect", "client": NAME, "host": ..., "id": ..., "version": 3|4|5, "clean": ..., "expiry": S|null,
           "will": {...}|null}
          {"do": "subscribe", "client": NAME, "filter": ..., "qos": ..., "no_local": ..., "identifier": N|null}
          {"do": "publish", "client": NAME, "topic": ..., "payloads": [...], "qos": ..., "retain": ..., "properties": {...}|null}
          {"do": "disconnect" | "abort", "client": NAME}
events    connected {session_present}, subscribed {reasons}, published, error {text},
          message {topic, payload, qos, retain, properties},
          closed {reason: the code, null where the broker sent no DISCONNECT, "unknown" where the library keeps it}
"""

import json
import queue
import subprocess
import threading
import time

WAIT_S = 20
"""Longest wait for any one event. A green run never comes near it; it bounds a red one."""


class Failure(Exception):
    """A cell is red: what was expected and what came instead."""


class Mailbox:
    """Events of one client, in order; messages apart from answers, because they interleave freely."""

    def __init__(self, name):
        self.name = name
        self.answers = queue.Queue()
        self.messages = queue.Queue()

    def join(self, other):
        """From now on both clients' messages are received from either, in the order of their arrival."""
        self.messages = other.messages

    def put(self, event):
        event["to"] = self.name
        (self.messages if event["event"] == "message" else self.answers).put(event)

    def wait(self, kind):
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                event = self.answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"{self.name}: no '{kind}' within {WAIT_S} s") from None
            if event["event"] == kind:
                return event
            if event["event"] in ("error", "closed"):
                raise Failure(f"{self.name}: waited for '{kind}', got {json.dumps(event)}")

    def receive(self, count):
        """The next `count` messages, in the order of their arrival."""
        deadline = time.monotonic() + WAIT_S
        received = []
        while len(received) < count:
            try:
                received.append(self.messages.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                raise Failure(
                    f"{self.name}: {len(received)} of {count} messages within {WAIT_S} s: "
                    f"{[m['payload'] for m in received]}"
                ) from None
        return received


class DrivenClient:
    """One client inside a driver process."""

    def __init__(self, driver, name, identifier):
        self.driver, self.name, self.identifier = driver, name, identifier
        self.host = driver.host
        self.mailbox = Mailbox(name)

    def _ask(self, do, answer, **arguments):
        self.driver.send({"do": do, "client": self.name, **arguments})
        return self.mailbox.wait(answer)

    def connect(self, clean=True, expiry=None, will=None):
        """Whether the broker had a session for this client."""
        connected = self._ask(
            "connect",
            "connected",
            host=self.host,
            id=self.identifier,
            version=self.driver.version,
            clean=clean,
            expiry=expiry,
            will=will,
        )
        return connected["session_present"]

    def subscribe(self, topic_filter, qos=0, no_local=False, identifier=None):
        """The reason codes of the SUBACK."""
        return self._ask(
            "subscribe", "subscribed", filter=topic_filter, qos=qos, no_local=no_local, identifier=identifier
        )["reasons"]

    def publish(self, topic, payloads, qos=0, retain=False, properties=None):
        """Returns when the broker has acknowledged all of them (QoS 0: when they are written)."""
        self._ask("publish", "published", topic=topic, payloads=payloads, qos=qos, retain=retain, properties=properties)

    def receive(self, count):
        return self.mailbox.receive(count)

    def settle(self, topic_filter, qos):
        """Returns when the broker has the acknowledgements of all received messages: Paho hands over a message before it
        acknowledges it. The client subscribes again, because SUBACK follows them.
        """
        self.subscribe(topic_filter, qos)

    def disconnect(self):
        self._ask("disconnect", "closed")

    def abort(self):
        """Closes the socket without a DISCONNECT."""
        self._ask("abort", "closed")

    def wait_closed(self):
        """The reason code with which the broker closed, None where the version or the library has none."""
        return self.mailbox.wait("closed")["reason"]


class Driver:
    """A driver process and the clients in it."""

    disconnects_with_will = False
    """Whether a client with a Will ends with DISCONNECT 0x04, which publishes it [MQTT-3.14.4-3]."""

    def __init__(self, command, host, port, version):
        self.host, self.version = host, version
        self.clients = {}
        self.process = subprocess.Popen(
            [*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            self.clients[event["client"]].mailbox.put(event)
        for client in self.clients.values():
            client.mailbox.put({"event": "error", "text": "the driver process ended"})

    def send(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")

    def client(self, name, identifier):
        name = f"{name}-{len(self.clients)}"
        client = DrivenClient(self, name, identifier)
        self.clients[name] = client
        return client

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
