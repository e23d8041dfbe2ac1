#!/usr/bin/env python3
"""Checks that the release binary starts, delivers messages, refuses wrong input, and stops. Prints one line per check.

    tests/interop/smoke.py [--only WORD] [--binary target/release/meridian]

Exits 1 when a check fails; the last line is 'N passed, M failed'.
"""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

WAIT_S = 15


class Node:
    """A running `meridian start` in an empty directory, with the defaults."""

    def __init__(self, binary, *arguments):
        self.directory = tempfile.TemporaryDirectory()
        # Both sockets stay open until both ports are known, so that they differ.
        with socket.socket() as mqtt, socket.socket() as http:
            mqtt.bind(("127.0.0.1", 0))
            http.bind(("127.0.0.1", 0))
            self.port, self.http = str(mqtt.getsockname()[1]), f"127.0.0.1:{http.getsockname()[1]}"
        command = [binary, "start", "--listen", f"127.0.0.1:{self.port}", "--http", self.http, *arguments]
        self.log = pathlib.Path(self.directory.name) / "output"
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                command, cwd=self.directory.name, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(self.port)), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, f"exit {self.process.returncode}: {self.log.read_text()}"
                assert time.monotonic() < deadline, "does not accept connections"
                time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.directory.cleanup()


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, check=False)


def round_trip(subscribe, publish, subscribed):
    """Starts a subscriber, waits until its output says that it is subscribed, publishes; its remaining output."""
    subscriber = subprocess.Popen(subscribe, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        seen = ""
        while subscribed not in seen:
            line = subscriber.stdout.readline()
            assert line, f"the subscriber ended: {seen}"
            seen += line
        sent = run(*publish)
        assert sent.returncode == 0, f"publish: exit {sent.returncode}: {sent.stdout}{sent.stderr}"
        output, _ = subscriber.communicate(timeout=WAIT_S)
        assert subscriber.returncode == 0, f"subscribe: exit {subscriber.returncode}: {output}"
        return output
    finally:
        if subscriber.poll() is None:
            subscriber.kill()
        subscriber.wait()


def mosquitto_round_trip(binary):
    """mosquitto_pub to mosquitto_sub, QoS 1."""
    with Node(binary) as node:
        subscribe = ["stdbuf", "-oL", "mosquitto_sub", "-d", "-p", node.port, "-t", "smoke/#", "-q", "1", "-C", "1"]
        publish = ["mosquitto_pub", "-p", node.port, "-t", "smoke/test", "-q", "1", "-m", "hello"]
        assert "\nhello\n" in round_trip(subscribe, publish, "Subscribed"), "the message did not arrive"


def own_round_trip(binary):
    """meridian pub to meridian sub: a retained message, so that the order of the two does not matter."""
    with Node(binary) as node:
        sent = run(binary, "pub", "-p", node.port, "-t", "smoke/own", "-q", "1", "-r", "-m", "hello")
        assert sent.returncode == 0, f"meridian pub: exit {sent.returncode}: {sent.stdout}{sent.stderr}"
        got = run(binary, "sub", "-p", node.port, "-t", "smoke/+", "-q", "1", "-C", "1")
        assert got.returncode == 0 and "hello" in got.stdout, f"meridian sub: {got.returncode}: {got.stdout}{got.stderr}"


def stops_on(signal_number):
    """Exits 0 on the signal, with a client connected."""

    def check(binary):
        with Node(binary) as node, socket.create_connection(("127.0.0.1", int(node.port)), WAIT_S) as client:
            # CONNECT of MQTT 5.0, Clean Start, Keep Alive 0, Client Identifier "s".
            client.sendall(bytes.fromhex("100e00044d5154540502000000000173"))
            assert client.recv(1) == b"\x20", "no CONNACK"
            node.process.send_signal(signal_number)
            assert node.process.wait(WAIT_S) == 0, f"exit {node.process.returncode}: {node.log.read_text()}"
            rest = b""
            while chunk := client.recv(4096):
                rest += chunk
            # DISCONNECT, Server shutting down [MQTT-3.14.0-1 and 4.13].
            # The packet's length depends on the Reason String.
            assert re.search(rb"\xe0[\x01-\x7f]\x8b", rest), f"no DISCONNECT 0x8B: {rest.hex()}"

    check.__doc__ = f"{signal_number.name}: {stops_on.__doc__}"
    return check


def version(binary):
    """--version names a version and a commit."""
    said = run(binary, "--version")
    assert said.returncode == 0 and re.search(r"\d+\.\d+\.\d+.*\b[0-9a-f]{7,}", said.stdout), said.stdout + said.stderr


def configuration(binary):
    """config show is accepted by config check; an unknown key is not, and the nearest known one is named."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "meridian.toml"
        shown = run(binary, "config", "show")
        assert shown.returncode == 0, shown.stderr
        file.write_text(shown.stdout)
        checked = run(binary, "config", "check", "--config", str(file))
        assert checked.returncode == 0, f"config check of config show: {checked.stdout}{checked.stderr}"
        file.write_text("[mqtt]\nqos_maxx = 1\n")
        refused = run(binary, "start", "--config", str(file))
        assert refused.returncode not in (0, None), "an unknown key was accepted"
        assert "qos_max" in (refused.stdout + refused.stderr).replace("qos_maxx", ""), refused.stdout + refused.stderr


def refuses_open_addresses(binary):
    """Other addresses than loopback need authentication or allow_anonymous."""
    refused = run(binary, "start", "--listen", "0.0.0.0:0")
    assert refused.returncode != 0, "listens on every address without authentication"
    assert "allow_anonymous" in refused.stdout + refused.stderr, refused.stdout + refused.stderr


def port_in_use(binary):
    """A port that is taken is an error that names it."""
    with Node(binary) as node:
        data = str(pathlib.Path(node.directory.name) / "other")
        refused = run(binary, "start", "--listen", f"127.0.0.1:{node.port}", "--http", "off", "--data-dir", data)
        assert refused.returncode != 0, "started twice on one port"
        assert node.port in refused.stdout + refused.stderr, refused.stdout + refused.stderr


def answers_operators(binary):
    """meridian ctl and meridian top work over HTTP."""
    with Node(binary) as node:
        url = f"http://{node.http}"
        status = run(binary, "ctl", "--url", url, "status")
        assert status.returncode == 0 and node.port in status.stdout, f"{status.stdout}{status.stderr}"
        sent = run(binary, "ctl", "--url", url, "publish", "-t", "smoke/ctl", "-m", "hello", "--retain")
        assert sent.returncode == 0, f"{sent.stdout}{sent.stderr}"
        got = run(binary, "sub", "-p", node.port, "-t", "smoke/ctl", "-C", "1")
        assert "hello" in got.stdout, f"{got.stdout}{got.stderr}"
        top = run(binary, "top", "--url", url, "--once")
        assert top.returncode == 0 and top.stdout, f"{top.stdout}{top.stderr}"
        away = run(binary, "ctl", "--url", "http://127.0.0.1:9", "status")
        assert away.returncode == 3, f"exit {away.returncode} for a node that is not there"


def survives_malformed_input(binary):
    """Bytes that are not MQTT close only their connection."""
    with Node(binary) as node:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x10\xff\xff\xff\xff\x7f", b"\x00"):
            with socket.create_connection(("127.0.0.1", int(node.port)), WAIT_S) as client:
                client.sendall(nonsense)
                try:
                    while client.recv(4096):
                        pass
                except ConnectionResetError:
                    pass  # A reset, if the broker has unread bytes.
        assert node.process.poll() is None, node.log.read_text()
        sent = run("mosquitto_pub", "-p", node.port, "-t", "smoke/after", "-q", "1", "-m", "x")
        assert sent.returncode == 0, sent.stderr


CHECKS = [
    version,
    configuration,
    refuses_open_addresses,
    port_in_use,
    mosquitto_round_trip,
    own_round_trip,
    answers_operators,
    survives_malformed_input,
    stops_on(signal.SIGTERM),
    stops_on(signal.SIGINT),
]


def main():
    arguments = runner.arguments(__doc__)
    arguments.add_argument("--binary", default=str(runner.TARGET / "release/meridian"))
    given = arguments.parse_args()
    binary = str(pathlib.Path(given.binary).resolve())
    runner.run_all(CHECKS, {"binary": lambda: binary}, given.only)


if __name__ == "__main__":
    main()
