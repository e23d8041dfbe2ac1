"""mosquitto_sub and mosquitto_pub behind the same calls as `client.DrivenClient`: one process a subscription or publish.

`mosquitto_sub -d` prints what it receives packet by packet; that, not a guess about time, tells when it is subscribed.
"""

import json
import re
import signal
import subprocess
import threading

from client import WAIT_S, Failure, Mailbox

VERSIONS = {3: "31", 4: "311", 5: "5"}
MESSAGE = "message "


class MosquittoClient:
    def __init__(self, driver, name, identifier):
        self.driver, self.name, self.identifier = driver, name, identifier
        self.host = driver.host
        self.mailbox = Mailbox(name)
        self.process = None
        self.subscription = None
        self.session = {}

    def _common(self):
        d = self.driver
        return ["-h", self.host, "-p", str(d.port), "-V", VERSIONS[d.version], "-i", self.identifier]

    def connect(self, clean=True, expiry=None, will=None):
        """None: the programs do not print Session Present. Connecting itself happens with the first subscription."""
        self.session = {"clean": clean, "expiry": expiry, "will": will}
        if self.subscription is not None:
            self._start_subscriber()
        return None

    def subscribe(self, topic_filter, qos=0, no_local=False, identifier=None):
        if no_local:
            raise NotImplementedError("mosquitto_sub has no option for No Local")
        self.subscription = ["-t", topic_filter, "-q", str(qos)]
        if identifier is not None:
            self.subscription += ["-D", "subscribe", "subscription-identifier", str(identifier)]
        return self._start_subscriber()

    def _start_subscriber(self):
        arguments = ["-d", "-F", MESSAGE + "%j", *self._common(), *self.subscription]
        if not self.session["clean"]:
            arguments.append("-c")
        if self.driver.version == 5 and self.session["expiry"] is not None:
            arguments += ["-x", str(self.session["expiry"])]
        if will := self.session["will"]:
            arguments += ["--will-topic", will["topic"], "--will-payload", will["payload"]]
            arguments += ["--will-qos", str(will["qos"])] + (["--will-retain"] if will["retain"] else [])
        # Into a pipe the debug lines would wait for a full buffer.
        command = ["stdbuf", "-oL", "mosquitto_sub", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.driver.processes.append(self.process)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        return self.mailbox.wait("subscribed")["reasons"]

    def _read(self, process):
        connects, is_closed = 0, False
        for line in process.stdout:
            if line.startswith(MESSAGE):
                self.mailbox.put(self._message(line[len(MESSAGE) :]))
            elif granted := re.match(r"Subscribed \(mid: \d+\): ([\d, ]+)", line):
                if connects == 1:
                    self.mailbox.put(
                        {"event": "subscribed", "reasons": [int(code) for code in granted[1].split(",")]}
                    )
            elif "sending CONNECT" in line:
                connects += 1
                # mosquitto_sub does not report a lost connection; a second connect shows that it was closed.
                if connects == 2 and not is_closed:
                    self.mailbox.put({"event": "closed", "reason": None})
            elif by_broker := re.search(r"Received DISCONNECT \((\d+)\)", line):
                is_closed = True
                self.mailbox.put({"event": "closed", "reason": int(by_broker[1])})
            elif line.startswith(("Error", "Connection error")):
                self.mailbox.put({"event": "error", "text": line.strip()})
        process.wait()
        if connects < 2 and not is_closed:
            self.mailbox.put({"event": "closed", "reason": None})

    @staticmethod
    def _message(line):
        # Objects as lists of pairs: User Properties may repeat a key, and their order matters.
        said = dict(json.loads(line, object_pairs_hook=list))
        properties = dict(said.get("properties", []))
        identifier = properties.get("subscription-identifier")
        return {
            "event": "message",
            "topic": said["topic"],
            "payload": said.get("payload") or "",
            "qos": said["qos"],
            "retain": bool(said["retain"]),
            "properties": {
                "content_type": properties.get("content-type"),
                "response_topic": properties.get("response-topic"),
                "correlation_data": properties.get("correlation-data"),
                "message_expiry": properties.get("message-expiry-interval"),
                "payload_format": properties.get("payload-format-indicator"),
                "user": properties.get("user-properties", []),
                "identifiers": [] if identifier is None else [identifier],
            },
        }

    def publish(self, topic, payloads, qos=0, retain=False, properties=None):
        arguments = [*self._common(), "-t", topic, "-q", str(qos)] + (["-r"] if retain else [])
        for name, value in _publish_properties(properties):
            arguments += ["-D", "publish", name, *value]
        # An empty line is not an empty message to `-l`.
        arguments += ["-n"] if payloads == [""] else ["-l"]
        lines = "".join(payload + "\n" for payload in payloads)
        done = subprocess.run(
            ["mosquitto_pub", *arguments], input=lines, text=True, capture_output=True, timeout=WAIT_S, check=False
        )
        if done.returncode != 0:
            raise Failure(f"mosquitto_pub exited {done.returncode}: {done.stdout}{done.stderr}")

    def receive(self, count):
        return self.mailbox.receive(count)

    def settle(self, topic_filter, qos):
        """Nothing to wait for: libmosquitto acknowledges a message before mosquitto_sub prints it."""

    def disconnect(self):
        self._end(signal.SIGTERM)

    def abort(self):
        self._end(signal.SIGKILL)

    def _end(self, how):
        if self.process is not None:
            self.process.send_signal(how)
            self.mailbox.wait("closed")

    def wait_closed(self):
        reason = self.mailbox.wait("closed")["reason"]
        # It connects again by itself, and would take its session back.
        self.process.kill()
        return reason


def _publish_properties(said):
    if said is None:
        return []
    single = [
        ("content-type", said["content_type"]),
        ("response-topic", said["response_topic"]),
        ("correlation-data", said["correlation_data"]),
        ("message-expiry-interval", str(said["message_expiry"])),
        ("payload-format-indicator", str(said["payload_format"])),
    ]
    return [(name, [value]) for name, value in single] + [("user-property", pair) for pair in said["user"]]


class MosquittoDriver:
    def __init__(self, host, port, version):
        # mosquitto_sub with a Will ends so in MQTT 5.0.
        self.disconnects_with_will = version == 5
        self.host, self.port, self.version = host, port, version
        self.processes = []

    def client(self, name, identifier):
        name = f"{name}-{len(self.processes)}"
        return MosquittoClient(self, name, identifier)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
