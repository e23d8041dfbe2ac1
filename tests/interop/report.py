"""docs/interop.md from the results: the same results give the same bytes, so no dates and no times."""

import re
import subprocess

PREFACE = """# Clients that were tried

<!-- Written by tests/interop/run.py, which CI runs; edit that, not this page. -->

This page shows which MQTT clients work with Meridian, and which of their features were tested. Each cell is a scenario
over a real socket, for one client library and one version of MQTT.

| cell | meaning |
|---|---|
| `pass`, `FAIL` | the result of the scenario |
| `-` | the version or the library does not have the feature. For rumqttc "everyone": it runs in another process |

All clients of a cell have the library and version of the row, except in "everyone". Each cell runs against a node with
one worker and a node with three workers. It shows the worse result.

"""

EXPLANATION = """
## What a cell does

| cell | scenario |
|---|---|
"""

CELLS = {
    "QoS 0": "21 messages, once each and in order, at the QoS of both ends, with a QoS 0 subscription of the same topic",
    "retain set": "a retained message reaches live subscribers without the RETAIN flag",
    "retain get": "new subscriptions (by topic, by `+`, by `#`) get the last retained message with the flag",
    "retain delete": "an empty retained payload deletes it, and live subscribers get the message",
    "will": "the Will is published at its QoS when the socket closes without DISCONNECT, and not after a DISCONNECT",
    "resume": "a session that outlives its connection gets 20 queued messages of QoS 1 and 2 in order; Session Present both ways",
    "shared": "two members of a group split 40 messages, each to one of them, while an ordinary subscriber gets all",
    "takeover": "a second connection with the same Client Identifier closes the first (5.0: with reason 0x8E)",
    "properties": "content type, response topic, correlation data, expiry, payload format, User Properties in order",
    "subscription identifier": "arrives with the message",
    "no local": "a client does not get its own messages",
    "everyone": "all rows at one time: each publishes at every QoS, and each gets all messages of each, in order",
}

COMMANDS = """
## How to run it

```text
cargo build --release
tests/interop/run.py                            # everything; writes this page
tests/interop/run.py --only paho --cell "will"  # one cell
tests/interop/run.py --only transport           # TLS and WebSocket alone
tests/interop/run.py --only bridge              # mosquitto as a bridge alone
tests/interop/run.py --only nodes               # clients that change nodes alone
tests/interop/run.py --broker mosquitto         # the same scenarios against another broker
cargo test -p interop                           # the rumqttc rows alone, against a node inside the test process
```
"""


def mosquitto_version():
    """Without Debian's revision: a security update there must not change this page."""
    said = subprocess.run(["mosquitto_pub", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version ([\d.]+)", said)
    return found[1] if found else "absent"


def rumqttc_version(root):
    found = re.search(r'name = "rumqttc"\nversion = "([^"]+)"', (root / "Cargo.lock").read_text())
    return found[1] if found else "absent"


def table(results, cells, paho, mqttjs, root, transports):
    by_place = {(r["client"], r["version"], r["cell"]): r["result"] for r in results}
    rows = list(dict.fromkeys((r["client"], r["version"]) for r in results))
    lines = ["| client | MQTT | " + " | ".join(cells) + " |", "|---|---" + "|---" * len(cells) + "|"]
    for client, version in rows:
        row = [by_place.get((client, version, cell), "-") for cell in cells]
        lines.append(f"| {client} | {version} | " + " | ".join(row) + " |")
    passed = sum(r["result"] == "pass" for r in results)
    red = [r for r in results if r["result"] == "FAIL"]
    lines.append(f"\n{passed} cells pass, {len(red)} fail.")
    lines += ["- {client} {version}, {cell}: {detail}".format(**r) for r in red]
    versions = [
        ("Paho Python", paho, "`pip install paho-mqtt`"),
        ("MQTT.js", mqttjs, "`npm install mqtt`, on Node 20"),
        ("mosquitto clients", mosquitto_version(), "`mosquitto_sub`, `mosquitto_pub`"),
        ("mosquitto bridge", mosquitto_version(), "Debian's package `mosquitto`"),
        ("rumqttc", rumqttc_version(root), "crate `rumqttc` (`v4` for 3.1.1, `v5` for 5.0)"),
    ]
    lines += ["\n## Versions\n", "| client | version | what |", "|---|---|---|"]
    lines += [f"| {client} | {version} | {what} |" for client, version, what in versions]
    explained = [f"| {cell} | {CELLS[cell]} |" for cell in cells if cell in CELLS]
    explained[0] = explained[0].replace("| QoS 0 |", "| QoS 0, 1, 2 |")
    return PREFACE + "\n".join(lines) + "\n" + EXPLANATION + "\n".join(explained) + "\n" + transports + COMMANDS
