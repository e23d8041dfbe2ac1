#!/usr/bin/env python3
"""Measures actions and bridges: messages per second, CPU of the broker for a message, and what a cut costs.

    tests/measure/integration.py [--binary target/release/meridian] [--mqload target/release/mqload] [--only WORD]
                                 [--messages 500000] [--payload 256] [--rounds 3] [--cut 60]
                                 [--dead 60] [--rate 10000] [--calm 20]

Prints tables in Markdown, with medians of the rounds. CPU is that of the broker's process only. PostgreSQL and mosquitto come from
the packages of .ci/packages. Nothing leaves this machine.
"""

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ctl"))

# Bytes of a message of other clients, and their messages per second.
OTHERS_PAYLOAD = 256
OTHERS_RATE = 500


def parsed():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--binary", default=str(ROOT / "target/release/meridian"))
    arguments.add_argument("--mqload", default=str(ROOT / "target/release/mqload"))
    arguments.add_argument("--only", default="", help="run only measurements whose name contains this word")
    arguments.add_argument("--messages", type=int, default=500_000, help="messages of a run")
    arguments.add_argument("--payload", type=int, default=256, help="bytes of the payload of a message")
    arguments.add_argument("--rounds", type=int, default=3, help="runs of each measurement, in alternation")
    arguments.add_argument("--cut", type=int, default=60, help="seconds for which the target of the bridges is not reached")
    arguments.add_argument("--dead", type=int, default=60, help="seconds for which an action writes to a target that is not there")
    arguments.add_argument("--rate", type=int, default=10_000, help="messages per second for the action whose target is not there")
    arguments.add_argument("--calm", type=int, default=20, help="seconds of each phase before and after that")
    return arguments.parse_args()


GIVEN = parsed()
os.environ["MERIDIAN_BIN"] = GIVEN.binary

from checks_actions import LOCAL, Postgres, api, status_of  # noqa: E402  pylint: disable=wrong-import-position
from checks_bridges import Mosquitto, configured  # noqa: E402  pylint: disable=wrong-import-position
from node import Node, free_port, until  # noqa: E402  pylint: disable=wrong-import-position

# Queues that hold all messages of a run.
ROOM = [word for setting in ("queue.messages_max=20000000", "queue.bytes_max=16GiB", "limits.memory_queued_max=16GiB",
                             "quota.client_bytes_max=16GiB", "log.level=warn") for word in ("--set", setting)]


def cpu(process):
    """Seconds of CPU that a process has used, with threads that have ended. It is counted in ticks of 10 ms."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(*words, seconds=900):
    """Runs mqload, and returns its report."""
    done = subprocess.run([GIVEN.mqload, "pubsub", *(str(word) for word in words), "--quiet"], capture_output=True, text=True,
                          timeout=seconds, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(done.stdout)


def publish(port, count, qos=1, publishers=50, topic="in/%i"):
    window = ["--max-outstanding", 20_000] if qos == 0 else ["--inflight", 100]
    report = load("-H", f"127.0.0.1:{port}", "-p", publishers, "-s", 0, "-q", qos, "-l", GIVEN.payload, "--pub-topic", topic, "-m", count,
                  "--max-time", 600, *window)
    return report


class Server:
    """A server on a free port, in a thread. Subclasses have `serve`, which gets each connection."""

    def __init__(self):
        self.port, self.loop, self.listener = free_port(), asyncio.new_event_loop(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.ready = threading.Event()
        self.thread.start()
        assert self.ready.wait(10), "the server does not start"

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.listen())
        self.ready.set()
        self.loop.run_forever()

    async def listen(self):
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", self.port)

    async def serve(self, reader, writer):
        raise NotImplementedError

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


class Target(Server):
    """An HTTP server that answers at once. It writes the bodies to `kept`, if there is such a file."""

    def __init__(self, kept=None):
        self.kept, self.writers, self.left_at = kept, set(), None
        super().__init__()

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
                body = await reader.readexactly(length)
                if self.kept:
                    self.kept.write(body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            self.writers.discard(writer)

    def leave(self):
        """Closes the port and aborts all connections."""
        self.left_at = time.monotonic()

        def change():
            self.listener.close()
            for writer in self.writers:
                writer.transport.abort()

        self.loop.call_soon_threadsafe(change)

    def come_back(self):
        asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)


class Proxy(Server):
    """Passes bytes on to a port, until it is cut."""

    def __init__(self, to):
        self.to, self.is_cut, self.tasks = to, False, set()
        super().__init__()

    async def serve(self, reader, writer):
        if self.is_cut:
            writer.transport.abort()
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.to)

        async def passes(source, sink):
            try:
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            except (ConnectionError, asyncio.CancelledError):
                pass
            sink.transport.abort()

        both = [asyncio.ensure_future(passes(reader, other_writer)), asyncio.ensure_future(passes(other_reader, writer))]
        self.tasks.update(both)
        await asyncio.gather(*both, return_exceptions=True)
        self.tasks.difference_update(both)

    def cut(self, is_cut):
        def change():
            self.is_cut = is_cut
            if is_cut:
                for task in list(self.tasks):
                    task.cancel()

        self.loop.call_soon_threadsafe(change)


def metric(node, name, **labels):
    """Sum of the samples of a metric that have these labels."""
    with urllib.request.urlopen(f"{node.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            head, value = line.rsplit(" ", 1)
            total += float(value) if head.split("{")[0] == name else 0.0
    return total


def settled(value, wanted, seconds=600, quiet=5):
    """Waits until a number has reached `wanted`, or does not change any more. Returns it with the time of the last change."""
    last, changed = value(), time.monotonic()
    end = changed + seconds
    while last < wanted and time.monotonic() < end and time.monotonic() - changed < quiet:
        time.sleep(0.05)
        if (now := value()) != last:
            last, changed = now, time.monotonic()
    return last, changed


def figures(of, rounds):
    """Medians of the fields of several runs."""
    return {field: statistics.median(run[field] for run in rounds) for field in rounds[0]} | {"of": of}


def done(status):
    """Messages that an action has done with."""
    return status.get("written", 0) + status.get("not_selected", 0)


def action_run(node, name, settings):
    """Publishes while an action works. Returns rates and CPU until it has written everything."""
    if settings is not None:
        api(node, "PUT", f"actions/{name}", settings)
        until(lambda: status_of(node, name).get("state") == "running", f"{name} runs", 20)
    before, begun = cpu(node.process), time.monotonic()
    report = publish(node.mqtt, GIVEN.messages)
    acknowledged = time.monotonic() - begun
    took = acknowledged
    if settings is not None:
        received, at = settled(lambda: done(status_of(node, name)), GIVEN.messages, quiet=20)
        assert received >= GIVEN.messages, (name, received, status_of(node, name))
        took = at - begun
        until(lambda: (status_of(node, name).get("queued_messages") or 0) == 0, "all is acknowledged", 60)
    # The time of a thread that has not slept since is counted late.
    time.sleep(1)
    used = cpu(node.process) - before
    if settings is not None:
        api(node, "DELETE", f"actions/{name}?messages=delete")
    assert report["totals"]["acked"] == GIVEN.messages, report["totals"]
    return {"rate": GIVEN.messages / took, "acknowledged": GIVEN.messages / acknowledged, "cpu": used * 1e6 / GIVEN.messages}


def actions():
    """Rules and targets"""
    node, target, database = Node(), Target(), Postgres()
    database.start()
    try:
        node.start(*LOCAL, *ROOM)
        database.sql("CREATE TABLE readings (topic text, size bigint)")
        api(node, "PUT", "connectors/http", {"kind": "http", "url": f"http://127.0.0.1:{target.port}/in"})
        api(node, "PUT", "connectors/db", database.connector(node))
        every = 'SELECT topic, payload FROM "in/#"'
        row = {"connector": "db", "statement": "INSERT INTO readings VALUES (${topic}, ${size})",
               "rule": 'SELECT topic, strlen(topic) AS size FROM "in/#"'}
        kinds = {
            "no action": None,
            "a rule that selects 1 of 50": {"rule": "SELECT topic, payload FROM \"in/#\" WHERE topic = 'in/7'", "topic": "out", "content": "${topic}"},
            "republish": {"rule": every, "topic": "out/${topic}", "content": "${payload}"},
            "HTTP, batches of 500": {"rule": 'SELECT topic FROM "in/#"', "connector": "http", "body": "lines", "batch_max": 500},
            "PostgreSQL, batches of 500": row | {"batch_max": 500},
        }
        runs = {kind: [] for kind in kinds}
        for _ in range(GIVEN.rounds):
            for kind, settings in kinds.items():
                runs[kind].append(action_run(node, "measured", settings))
                print(kind, runs[kind][-1], file=sys.stderr, flush=True)
        print(f"\n{GIVEN.messages:,} messages of QoS 1, {GIVEN.payload:,} B, 50 publishers to 50 topics; one action; medians of {GIVEN.rounds}\n")
        print("| action | acknowledged/s | messages/s until all is written | CPU us a message |")
        print("|---|---|---|---|")
        for kind, rounds in runs.items():
            one = figures(kind, rounds)
            print(f"| {kind} | {one['acknowledged']:,.0f} | {one['rate']:,.0f} | {one['cpu']:.1f} |")
    finally:
        node.close()
        target.close()
        database.close()


class Bridged:
    """A broker with a bridge to a node, through a proxy."""

    def __init__(self, kind, qos, is_subscribed=False):
        self.kind, self.far, self.subscriber = kind, Node(), None
        self.far.start(*ROOM)
        if is_subscribed:
            self.subscriber = subprocess.Popen([GIVEN.binary, "sub", "-p", str(self.far.mqtt), "-t", "in/#", "-q", str(qos)], stdout=subprocess.DEVNULL)
            until(lambda: metric(self.far, "meridian_subscriptions") >= 1, "the subscriber is there", 20)
        self.proxy = Proxy(self.far.mqtt)
        if kind == "meridian":
            self.near = Node()
            bridge = {"name": "measured", "address": f"127.0.0.1:{self.proxy.port}", "topics": f"in/# out {qos}"}
            self.near.start(*configured(self.near, bridge), *ROOM)
            self.port, self.process = self.near.mqtt, self.near.process
        else:
            self.near = Mosquitto("max_queued_messages 0", "max_inflight_messages 100", "connection measured",
                                  f"address 127.0.0.1:{self.proxy.port}", f"topic in/# out {qos}", "cleansession false",
                                  "restart_timeout 1", "bridge_protocol_version mqttv50", "try_private false").start()
            self.port, self.process = self.near.port, self.near.process
        until(lambda: metric(self.far, "meridian_clients") >= (2 if self.subscriber else 1), "the bridge is connected", 20)

    def arrived(self, qos):
        """Packets that the far node has received, or messages that its subscriber got."""
        if self.subscriber:
            return metric(self.far, "meridian_messages_sent_total", qos=qos)
        return metric(self.far, "meridian_messages_received_total", qos=qos)

    def close(self):
        if self.subscriber:
            self.subscriber.terminate()
            self.subscriber.wait(20)
        self.near.close()
        self.far.close()
        self.proxy.close()


def bridge_run(kind, qos):
    # mosquitto is slow with QoS 2.
    count = GIVEN.messages if qos < 2 else GIVEN.messages // 25
    both = Bridged(kind, qos)
    try:
        before, begun = cpu(both.process), time.monotonic()
        publish(both.port, count, qos=max(qos, 1))
        arrived, at = settled(lambda: both.arrived(qos), count, quiet=10)
        return {"rate": arrived / max(at - begun, 0.001), "cpu": (cpu(both.process) - before) * 1e6 / count,
                "lost": count - min(arrived, count)}
    finally:
        both.close()


def bridges():
    """Bridges, saturated"""
    runs = {(kind, qos): [] for qos in range(3) for kind in ("meridian", "mosquitto")}
    for _ in range(GIVEN.rounds):
        for (kind, qos), rounds in runs.items():
            rounds.append(bridge_run(kind, qos))
            print(kind, qos, rounds[-1], file=sys.stderr, flush=True)
    print(f"\nA bridge to another broker: {GIVEN.messages:,} messages of {GIVEN.payload:,} B (QoS 2: {GIVEN.messages // 25:,}), 50 publishers; "
          f"medians of {GIVEN.rounds}\n")
    print("| QoS of the bridge | broker with the bridge | messages/s until all have arrived | CPU us a message, that broker | lost |")
    print("|---|---|---|---|---|")
    for (kind, qos), rounds in runs.items():
        one = figures(kind, rounds)
        print(f"| {qos} | {kind} | {one['rate']:,.0f} | {one['cpu']:.1f} | {one['lost']:,.0f} |")


CUT_RATE = 1_000


def cuts():
    """Bridges whose target is not reached for some time"""
    print(f"\nThe target of the bridge is not reached for {GIVEN.cut} s; {CUT_RATE:,} messages/s of {GIVEN.payload:,} B for {GIVEN.cut + 20} s\n")
    print("| QoS | broker with the bridge | published | arrived | not arrived | arrived twice |")
    print("|---|---|---|---|---|---|")
    for qos in (1, 2):
        for kind in ("meridian", "mosquitto"):
            both = Bridged(kind, qos, is_subscribed=True)
            try:
                cut = threading.Timer(8, both.proxy.cut, [True])
                mend = threading.Timer(8 + GIVEN.cut, both.proxy.cut, [False])
                cut.start()
                mend.start()
                count = CUT_RATE * (GIVEN.cut + 20)
                load("-H", f"127.0.0.1:{both.port}", "-p", 10, "-s", 0, "-q", qos, "-l", GIVEN.payload, "--pub-topic", "in/%i", "-m", count,
                     "-R", CUT_RATE, "--max-time", GIVEN.cut + 120, "--inflight", 100)
                arrived, _ = settled(lambda b=both, q=qos: b.arrived(q), count, seconds=120, quiet=45)
                print(f"| {qos} | {kind} | {count:,} | {arrived:,.0f} | {max(count - arrived, 0):,.0f} | {max(arrived - count, 0):,.0f} |", flush=True)
            finally:
                both.close()


class Memory:
    """Watches the anonymous memory of a node and the queue of its action, once a second, in a thread."""

    def __init__(self, node):
        # Seconds, MiB of memory, and messages and MiB in the queue.
        self.node, self.samples, self.began = node, [], time.monotonic()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.is_over.wait(1):
            self.samples.append(self.sample())

    def sample(self):
        status = pathlib.Path(f"/proc/{self.node.process.pid}/status").read_text()
        anonymous = int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")))
        actions_of_node = api(self.node, "GET", "actions")["items"]
        queue = (actions_of_node[0]["status"] or {}) if actions_of_node else {}
        return (time.monotonic() - self.began, anonymous / 1024, queue.get("queued_messages") or 0, (queue.get("queued_bytes") or 0) / (1 << 20))

    def since(self, moment):
        """Samples that were taken later, with their time after this moment."""
        after = moment - self.began
        return [(at - after, *figures_of_sample) for at, *figures_of_sample in self.samples if at >= after]

    def close(self):
        self.is_over.set()
        self.thread.join(60)


def phase(node, name, seconds, change=None):
    """Publishes for the action, and measures other clients for this time. `change` is called after the first message."""
    words = ["-H", f"127.0.0.1:{node.mqtt}", "-p", "50", "-s", "0", "-q", "1", "-l", str(GIVEN.payload), "--pub-topic", "in/%i", "-R",
             str(GIVEN.rate), "-d", str(seconds + 4), "--inflight", "1000", "--quiet"]
    began = time.monotonic()
    with subprocess.Popen([GIVEN.mqload, "pubsub", *words], stdout=subprocess.PIPE, text=True) as publishers:
        time.sleep(1)
        if change:
            change()
        time.sleep(1)
        others = load("-H", f"127.0.0.1:{node.mqtt}", "-p", 20, "-s", 20, "-q", 1, "-l", OTHERS_PAYLOAD, "--pub-topic", "calm/%i", "--sub-topic",
                      "calm/%i", "-R", OTHERS_RATE, "--latency-from", "due", "-d", seconds, seconds=seconds + 120)
        report = json.loads(publishers.communicate(timeout=seconds + 120)[0])
    assert others["lost"] == 0, (name, others["lost"])
    assert report["totals"]["rejected"] == 0, (name, report["totals"])
    print(name, others["latency_us"], report["totals"]["acked"], file=sys.stderr, flush=True)
    return {"name": name, "latency": others["latency_us"], "acked": report["totals"]["acked"], "began": began, "ended": time.monotonic()}


def kept_identifiers(kept):
    """Number of lines of a file, and of different ones. Sets of a part each: all together would need much memory."""
    kept.flush()
    kept.seek(0)
    parts = [bytearray() for _ in range(256)]
    for line in kept:
        number = bytes.fromhex(line.strip().decode())
        parts[number[-1]] += number
    different = (len({bytes(part[at:at + 16]) for at in range(0, len(part), 16)}) for part in parts)
    return sum(len(part) // 16 for part in parts), sum(different)


def dead():
    """Other clients and memory while the target of an action is gone"""
    node, kept = Node(), tempfile.TemporaryFile()
    target, memory = Target(kept), None
    try:
        node.start(*LOCAL, *ROOM)
        memory = Memory(node)
        phases = [phase(node, "no action", GIVEN.calm)]
        api(node, "PUT", "connectors/http", {"kind": "http", "url": f"http://127.0.0.1:{target.port}/in", "timeout": "1s"})
        api(node, "PUT", "actions/measured", {"rule": 'SELECT id FROM "in/#"', "connector": "http", "body": "lines", "content": "${id}", "batch_max": 500,
                                              "retry_max": "2s", "queue_messages_max": 20_000_000, "queue_bytes_max": "16GiB"})
        until(lambda: status_of(node, "measured").get("state") == "running", "the action runs", 20)
        phases.append(phase(node, "its target answers", GIVEN.calm))
        phases.append(phase(node, "its target is gone", GIVEN.dead, target.leave))
        gone = target.left_at
        phases.append(phase(node, "its target is back", GIVEN.calm, target.come_back))
        back = time.monotonic()
        until(lambda: (status_of(node, "measured").get("queued_messages") or 0) == 0, "all is written", 1_800)
        caught_up = time.monotonic()
        phases.append(phase(node, "all is written", GIVEN.calm))
        until(lambda: (status_of(node, "measured").get("queued_messages") or 0) == 0, "all is written", 60)
        status = status_of(node, "measured")
        target.leave()
        memory.close()
        acked = sum(one["acked"] for one in phases[1:])
        written, different = kept_identifiers(kept)
        print_phases(phases, memory)
        print(f"\nThe target was back for {GIVEN.calm + 4} s; {caught_up - back:.0f} s later everything was written.")
        print("\n| acknowledged | written | lost | written twice | dropped by the queue |")
        print("|---|---|---|---|---|")
        print(f"| {acked:,} | {different:,} | {max(acked - different, 0):,} | {written - different:,} | {status['dropped_queue']:,} |")
        print_memory(memory.since(gone), back - gone)
        assert different >= acked, "messages are lost"
    finally:
        if memory:
            memory.close()
        node.close()
        target.close()
        kept.close()


def print_phases(phases, memory):
    print(f"\n{GIVEN.rate:,} messages/s of {GIVEN.payload:,} B to 50 topics for an action with HTTP, batches of 500; its target is gone for {GIVEN.dead} s. "
          f"Others: 20 pairs, {OTHERS_RATE} messages/s of {OTHERS_PAYLOAD} B\n")
    print("| action | others: p50 ms | p99 ms | p99 to that before | longest ms | queued at the end | RssAnon MiB at the end | most |")
    print("|---|---|---|---|---|---|---|---|")
    before = phases[1]["latency"]["p99"]
    for one in phases:
        latency = one["latency"]
        samples = [sample for sample in memory.since(one["began"]) if sample[0] <= one["ended"] - one["began"]]
        _, resident, queued, _ = samples[-1]
        print(f"| {one['name']} | {latency['p50'] / 1e3:.2f} | {latency['p99'] / 1e3:.2f} | {latency['p99'] / before:.2f} | {latency['max'] / 1e3:.1f} "
              f"| {queued:,} | {resident:,.0f} | {max(sample[1] for sample in samples):,.0f} |")


def print_memory(samples, seconds):
    """Prints about twelve samples of the time in which the target was gone and came back, and the last one."""
    print("\n| s since the target is gone | queued messages | queued MiB | RssAnon MiB |")
    print("|---|---|---|---|")
    step, due = max(seconds / 12, 1), 0
    for at, resident, queued, queued_size in samples:
        if at >= due or (at, resident, queued, queued_size) == samples[-1]:
            print(f"| {at:.0f} | {queued:,} | {queued_size:,.0f} | {resident:,.0f} |")
            due = at + step


MEASUREMENTS = [actions, bridges, cuts, dead]


def main():
    for measurement in MEASUREMENTS:
        if GIVEN.only in measurement.__name__:
            print(f"\n## {measurement.__doc__}", flush=True)
            measurement()


if __name__ == "__main__":
    main()
