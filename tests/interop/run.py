#!/usr/bin/env python3
"""Runs every client library against the broker and writes docs/interop.md. Exits 1 when a cell is red.

    tests/interop/run.py                                  the release binary, started here on a free port of 127.0.0.1
    tests/interop/run.py --broker mosquitto               the same scenarios against another broker, as a check of them
                                                          (2.0.11: red is takeover in 5.0, as it sends no DISCONNECT)
    tests/interop/run.py --address 127.0.0.1:1883         a broker that already runs
    tests/interop/run.py --only paho --cell "QoS 1"       one client, one cell; nothing is written
    tests/interop/run.py --only transport                 TLS and WebSocket alone; nothing is written
    tests/interop/run.py --only bridge                    mosquitto as a bridge alone; nothing is written
    tests/interop/run.py --only nodes                     clients that change nodes alone; nothing is written

The Python and Node packages and the rumqttc program are fetched and built below target/. Results go to stdout as JSON
lines {client, version, cell, result, detail}; the last line is 'N passed, M failed'.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "interop"

import bridges
import other_nodes
import report
import scenarios
import transports
from client import Driver, Failure
from mosquitto_clients import MosquittoDriver

PAHO = "2.1.0"
MQTTJS = "5.16.0"
VERSION_NAMES = {3: "3.1", 4: "3.1.1", 5: "5.0"}
PAIRS = [(client, version) for client in ("Paho Python", "MQTT.js", "mosquitto clients") for version in (3, 4, 5)]
START_S = 20


def run(command, **arguments):
    """Everything a tool prints goes to stderr: stdout is for results."""
    subprocess.run(command, check=True, stdout=sys.stderr, **arguments)


def prepare_paho():
    python = WORK / "venv/bin/python"
    if not python.exists():
        run([sys.executable, "-m", "venv", WORK / "venv"])
    run([python, "-m", "pip", "install", "--quiet", f"paho-mqtt=={PAHO}"])
    return [str(python), str(HERE / "paho_driver.py")]


def prepare_mqttjs():
    modules = WORK / "node/node_modules"
    manifest = modules / "mqtt/package.json"
    if not manifest.exists() or json.loads(manifest.read_text())["version"] != MQTTJS:
        (WORK / "node").mkdir(parents=True, exist_ok=True)
        # No manifest and no lock file: nothing of the registry gets written down.
        run(["npm", "install", "--silent", "--no-save", "--no-package-lock", "--prefix", WORK / "node", f"mqtt@{MQTTJS}"])
    os.environ["NODE_PATH"] = str(modules)
    return ["node", str(HERE / "mqttjs_driver.js")]


def prepare_rumqttc():
    run(["cargo", "build", "--quiet", "--workspace", "--bin", "rumqttc-interop"], cwd=ROOT)
    return [str(TARGET / "debug/rumqttc-interop")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """A broker started for this run, or one that already runs."""

    def __init__(self, arguments, workers):
        self.process = None
        if arguments.address:
            host, port = arguments.address.rsplit(":", 1)
            self.host, self.port = host, int(port)
            return
        self.host, self.port = "127.0.0.1", free_port()
        self.directory = tempfile.TemporaryDirectory()
        if os.path.basename(arguments.broker) == "mosquitto":
            config = pathlib.Path(self.directory.name) / "mosquitto.conf"
            config.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n")
            command = [arguments.broker, "-c", config]
        else:
            command = [arguments.broker, "start", "--listen", f"127.0.0.1:{self.port}", "--http", "off", "--workers", str(workers)]
        WORK.mkdir(parents=True, exist_ok=True)
        log = open(WORK / "broker.log", "w")
        self.process = subprocess.Popen(
            command, cwd=self.directory.name, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection((self.host, self.port), 1).close()
                return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"the broker does not accept on port {self.port} ({error}): {WORK / 'broker.log'}")
                time.sleep(0.05)

    def stop(self):
        """Whether it was still running, which is one more thing to check."""
        if self.process is None:
            return True
        alive = self.process.poll() is None
        if alive:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                alive = False
        self.directory.cleanup()
        return alive


def open_driver(client, version, commands, host, port):
    if client in commands:
        return Driver(commands[client], host, port, version)
    return MosquittoDriver(host, port, version)


def run_pair(client, version, cells, commands, broker):
    """All cells of one client and version, one after the other, each with fresh clients."""
    results = []
    label = f"{client[:2].lower()}{version}"
    for cell in cells:
        result = {"client": client, "version": VERSION_NAMES[version], "cell": cell, "result": "pass", "detail": ""}
        results.append(result)
        if cell in scenarios.ONLY_V5 and version != 5:
            result["result"] = "-"
            continue
        driver = open_driver(client, version, commands, broker.host, broker.port)
        try:
            scenarios.CELLS[cell](scenarios.Scenario(driver, label, cell))
        except NotImplementedError:
            result["result"] = "-"
        except Failure as failure:
            result.update(result="FAIL", detail=str(failure))
        except Exception as error:  # A driver that broke is a red cell too, and the other cells go on.
            result.update(result="FAIL", detail=repr(error))
        finally:
            driver.close()
    return results


def run_everyone(pairs, commands, broker):
    """The one scenario of all libraries and versions together: a cell is green if its row received the messages of every other."""
    drivers = {pair: open_driver(*pair, commands, broker.host, broker.port) for pair in pairs}
    labels = {pair: f"{pair[0][:2].lower()}{pair[1]}" for pair in pairs}
    results = []
    try:
        results_of = scenarios.everyone({labels[pair]: driver for pair, driver in drivers.items()})
    finally:
        for driver in drivers.values():
            driver.close()
    for client, version in pairs:
        detail = results_of[labels[client, version]]
        result = {"client": client, "version": VERSION_NAMES[version], "cell": scenarios.EVERYONE}
        results.append({**result, "result": "FAIL" if detail else "pass", "detail": detail})
    return results


def run_rumqttc(command, broker):
    """Its scenarios are Rust (crates/interop, which also runs them under `cargo test`); it prints the same lines."""
    done = subprocess.run([*command, f"{broker.host}:{broker.port}"], stdout=subprocess.PIPE, text=True, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if not results:
        results = [
            {"client": "rumqttc", "version": "3.1.1", "cell": "QoS 0", "result": "FAIL", "detail": f"exit {done.returncode}"}
        ]
    return results


def run_all(pairs, cells, cell, commands, rumqttc, broker):
    results = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(run_pair, client, version, cells, commands, broker) for client, version in pairs]
        if rumqttc:
            running.append(pool.submit(run_rumqttc, rumqttc, broker))
        for future in running:
            results += future.result()
    if pairs and cell in (None, scenarios.EVERYONE):
        results += run_everyone(pairs, commands, broker)
    return results


def merge(before, after, where):
    """A cell is as bad as the worst of its runs."""
    for result in after:
        if result["result"] == "FAIL":
            result["detail"] = where + result["detail"]
    worst = {(r["client"], r["version"], r["cell"]): r for r in before}
    for result in after:
        key = (result["client"], result["version"], result["cell"])
        if key not in worst or worst[key]["result"] != "FAIL":
            worst[key] = result
    return list(worst.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default=str(TARGET / "release/meridian"))
    parser.add_argument("--address")
    parser.add_argument("--only", default="", help="clients whose name contains this")
    parser.add_argument("--cell", help="this cell only")
    parser.add_argument("--write", type=pathlib.Path, help="where the table goes (default for a full run: docs/interop.md)")
    arguments = parser.parse_args()

    if "/" in arguments.broker:
        arguments.broker = os.path.abspath(arguments.broker)
    wanted = [pair for pair in PAIRS if arguments.only.lower() in pair[0].lower()]
    with_rumqttc = arguments.only.lower() in "rumqttc" and not arguments.cell
    commands = {}
    if any(client == "Paho Python" for client, _ in wanted):
        commands["Paho Python"] = prepare_paho()
    if any(client == "MQTT.js" for client, _ in wanted):
        commands["MQTT.js"] = prepare_mqttjs()
    rumqttc = prepare_rumqttc() if with_rumqttc else None
    cells = [cell for cell in scenarios.CELLS if arguments.cell in (None, cell)]

    # With one worker all clients of a scenario share a reactor; with three they are on different ones.
    is_meridian = not arguments.address and os.path.basename(arguments.broker) != "mosquitto"
    results, survived = [], True
    for workers in (1, 3) if is_meridian else (0,):
        broker = Broker(arguments, workers)
        found = run_all(wanted, cells, arguments.cell, commands, rumqttc, broker)
        results = merge(results, found, f"{workers} workers: " if is_meridian else "")
        survived &= broker.stop()

    over = []
    if is_meridian and arguments.only in ("", "transport") and not arguments.cell:
        if not commands:
            commands = {"Paho Python": prepare_paho(), "MQTT.js": prepare_mqttjs()}
        over = transports.run_all(arguments.broker, commands["Paho Python"][0], WORK / "node/node_modules")
    bridged = []
    if is_meridian and arguments.only in ("", "bridge") and not arguments.cell:
        bridged = bridges.run_all(arguments.broker)
    moved = []
    if is_meridian and arguments.only in ("", "nodes") and not arguments.cell:
        commands = commands or {"Paho Python": prepare_paho(), "MQTT.js": prepare_mqttjs()}
        drivers = {**commands, "rumqttc": [*(rumqttc or prepare_rumqttc()), "driver"]}

        def open_on(client, version, host, port):
            return open_driver(client, version, drivers, host, port)

        moved = other_nodes.run_all(arguments.broker, open_on)
    table = [*results]
    results += moved + over + bridged
    for result in results:
        print(json.dumps(result))
    path = arguments.write
    complete = not arguments.only and not arguments.cell
    if path is None and complete and is_meridian:
        path = ROOT / "docs/interop.md"
    if path:
        more = other_nodes.table(moved) + transports.table(over) + bridges.table(bridged)
        path.write_text(report.table(table, [*scenarios.CELLS, scenarios.EVERYONE], PAHO, MQTTJS, ROOT, more))
    failed = sum(result["result"] == "FAIL" for result in results) + (not survived)
    passed = sum(result["result"] == "pass" for result in results) + survived
    if not survived:
        print(f"the broker ended during the run or ignored SIGTERM: {WORK / 'broker.log'}", file=sys.stderr)
    for result in results:
        if result["result"] == "FAIL":
            print("RED {client} {version} {cell}: {detail}".format(**result), file=sys.stderr)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
