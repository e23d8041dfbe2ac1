#!/usr/bin/env python3
"""Judges a cluster while its nodes are killed: no acknowledged message may be lost. It shares no code with the broker and its tools.

    tests/judge/run.py [--kills 300] [--cores 3] [--replicants 2] [--rate 200] [--seed 1]
    tests/judge/run.py --self-test

Publishers of QoS 1 and 2 and subscribers have durable sessions, and connect again to any node. They also change nodes without a reason.
Nodes get SIGKILL, a core loses its data directory now and then, two nodes are killed at once, or a node gets SIGSTOP for a while.
At the end every subscriber must have every acknowledged message, in the order of its publisher and topic, at QoS 2 once. Each CONNACK
after the first one must have Session Present.

The binary is MERIDIAN_BIN or target/debug/meridian. Exits 1 when anything is wrong; then the logs of the nodes are in target/judge.
"""

import argparse
import asyncio
import random
import sys
import time

import clients
import faults
import packets
import record
import self_test
from node import TARGET

# Maximum seconds until all sessions exist, and until all messages have arrived at the end.
SETUP, DRAIN = 60, 180
# Seconds between the last fault and the last message.
CALM = 3
# Receive Maximum of the subscribers in turn.
RECEIVE_MAXIMUM = (20, 100, 65_535)


def parsed():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    arguments.add_argument("--kills", type=int, default=300, help="number of SIGKILLs")
    arguments.add_argument("--minutes", type=float, default=1e9, help="ends earlier after so many minutes")
    arguments.add_argument("--cores", type=int, default=3)
    arguments.add_argument("--replicants", type=int, default=2)
    arguments.add_argument("--publishers", type=int, default=6)
    arguments.add_argument("--subscribers", type=int, default=6)
    arguments.add_argument("--rate", type=float, default=200, help="messages per second of all publishers together")
    arguments.add_argument("--window", type=int, default=20, help="unacknowledged messages of a publisher at most")
    arguments.add_argument("--size", type=int, default=64, help="bytes of a payload")
    arguments.add_argument("--roam", type=float, default=15, help="mean seconds between two changes of the node of a client; 0: never without a reason")
    arguments.add_argument("--seed", type=int, help="of the faults and clients; by default a random one")
    arguments.add_argument("--self-test", action="store_true", help="check the judge itself, without a broker")
    return arguments.parse_args()


async def until(holds, seconds):
    """Waits until `holds()` is true, and returns whether it is."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


class Run:
    def __init__(self, given, cluster, seed):
        self.given, self.cluster = given, cluster
        drawn = random.Random(seed)
        self.faults = faults.Faults(cluster, random.Random(drawn.random()))
        publishers = [f"publisher-{number}" for number in range(given.publishers)]
        subscribers = [f"subscriber-{number}" for number in range(given.subscribers)]
        self.record = record.Record(publishers, subscribers, given.size)
        ports = [node.mqtt for node in cluster.nodes.values()]
        shared = lambda name: (name, ports, self.record, random.Random(drawn.random()), given.roam)
        rate = given.rate / given.publishers
        self.publishers = [clients.Publisher(*shared(name), rate=rate, window=given.window) for name in publishers]
        self.subscribers = [clients.Subscriber(*shared(name), receive_maximum=RECEIVE_MAXIMUM[at % len(RECEIVE_MAXIMUM)]) for at, name in enumerate(subscribers)]
        self.clients = self.publishers + self.subscribers
        self.begun = time.monotonic()

    def say(self, what):
        print(f"{time.monotonic() - self.begun:8.1f} s  {what}", flush=True)

    def progress(self):
        counts = self.record.counts
        return f"{counts['acknowledged']} acknowledged, {self.record.missing} not delivered yet, {self.record.wrong.total()} wrong"

    async def judge(self):
        tasks = [asyncio.create_task(client.run()) for client in self.clients]
        subscribed = lambda: all(it.is_subscribed for it in self.subscribers) and all(it.has_session for it in self.publishers)
        if not await until(subscribed, SETUP):
            self.record.violation("setup", f"not all clients have a session after {SETUP} s")
            return
        for publisher in self.publishers:
            publisher.start()
        try:
            await self.inject()
        except AssertionError as error:
            self.record.violation("cluster", str(error))
        await asyncio.sleep(CALM)
        for publisher in self.publishers:
            publisher.stop()
        for client in self.clients:
            client.roam = 0
        is_done = lambda: self.record.missing == 0 and not any(it.flights for it in self.publishers) and all(it.is_up() for it in self.clients)
        if not await until(is_done, DRAIN):
            waiting = [it.name for it in self.publishers if it.flights]
            down = [it.name for it in self.clients if not it.is_up()]
            self.record.violation("not settled", f"after {DRAIN} s; without acknowledgements: {waiting}; without a connection: {down}")
        # A message that arrives twice may arrive late.
        await asyncio.sleep(CALM)
        for client in self.clients:
            client.is_over = True
        for task in tasks:
            # Raises what ended a client.
            await task
        self.record.count_lost()

    async def inject(self):
        end = self.begun + self.given.minutes * 60
        while self.faults.kills < self.given.kills and time.monotonic() < end:
            what = await asyncio.to_thread(self.faults.next)
            self.say(f"{what}; {self.faults.kills} kills; {self.progress()}")
        await asyncio.to_thread(self.cluster.recover)

    def summary(self):
        counts, injected = self.record.counts, self.faults
        print(f"faults       {injected.kills} kills, {injected.disks} of them with the loss of a disk, {injected.stops} stops; {injected.early} faults before a recovery")
        print(f"messages     {counts['sent']} sent, {counts['acknowledged']} acknowledged, {counts['refused messages']} refused, {counts['sent again']} sent again")
        print(f"deliveries   {counts['delivered']} to {len(self.subscribers)} subscribers, {counts['again']} a second time at QoS 1")
        leaves = ", ".join(f"{counts[how]} {how}" for how in clients.LEAVES)
        print(f"connections  {counts['connections']}, {counts['refused connections']} refused, {counts['unanswered connections']} unanswered; "
              f"ended by clients: {leaves}, {counts['silent nodes']} because of a silent node")
        print(f"longest wait for an acknowledgement: {max(it.longest_wait for it in self.publishers):.1f} s")
        wrong = self.record.wrong
        print(f"LOST {wrong['lost']}, QoS 2 twice {wrong['twice at QoS 2']}, out of order {wrong['out of order']}, sessions lost {wrong['session lost']}, "
              f"other violations {wrong.total() - sum(wrong[it] for it in ('lost', 'twice at QoS 2', 'out of order', 'session lost'))}")
        for example in self.record.examples:
            print(f"VIOLATION    {example}")


def main():
    given = parsed()
    if given.self_test:
        self_test.run()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    cluster = faults.Cluster(given.cores, given.replicants)
    try:
        cluster.start()
        run = Run(given, cluster, seed)
        run.say(f"{given.cores} cores and {given.replicants} replicants are whole; seed {seed}")
        asyncio.run(run.judge())
        run.summary()
        if run.record.wrong or not run.record.counts["acknowledged"]:
            cluster.save_logs(TARGET / "judge")
            print(f"logs: {TARGET / 'judge'}")
            sys.exit(1)
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
