"""Record of all messages, which says what is wrong.

A flow is the messages of one publisher at one QoS. All of them have one topic, and numbers from 0 on. Every subscriber has to get every
acknowledged message of every flow.
"""

import collections

# Maximum number of violations that are described.
EXAMPLES = 20


class Flow:
    def __init__(self):
        self.sent = 0
        # One byte for each message: 1 when it was acknowledged.
        self.acknowledged = bytearray()


class Deliveries:
    """Messages of a flow that a subscriber got."""

    def __init__(self):
        self.last = -1
        # One byte for each message: 1 when it has arrived.
        self.arrived = bytearray()


def payload(flow, number, size):
    """Payload of a message. Everything in it follows from the number, so a changed payload is noticed."""
    words = f"{flow[0]} {flow[1]} {number} ".encode()
    return words + bytes((number * 7 + at) % 251 for at in range(max(0, size - len(words))))


class Record:
    def __init__(self, publishers, subscribers, size=64):
        self.size = size
        self.flows = {(publisher, qos): Flow() for publisher in publishers for qos in (1, 2)}
        self.deliveries = {(name, flow): Deliveries() for name in subscribers for flow in self.flows}
        self.subscribers = list(subscribers)
        self.counts = collections.Counter()
        self.wrong = collections.Counter()
        self.examples = []
        # Number of deliveries of acknowledged messages that have not happened yet.
        self.missing = 0

    def violation(self, kind, what):
        self.wrong[kind] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{kind}: {what}")

    def next_message(self, flow):
        """The number and the payload of the next message of a flow."""
        number = self.flows[flow].sent
        self.flows[flow].sent += 1
        self.flows[flow].acknowledged.append(0)
        for name in self.subscribers:
            self.deliveries[name, flow].arrived.append(0)
        self.counts["sent"] += 1
        return number, payload(flow, number, self.size)

    def acknowledge(self, flow, number):
        """The publisher has got PUBACK or PUBREC."""
        if self.flows[flow].acknowledged[number]:
            return
        self.flows[flow].acknowledged[number] = 1
        self.counts["acknowledged"] += 1
        self.missing += sum(not self.deliveries[name, flow].arrived[number] for name in self.subscribers)

    def deliver(self, subscriber, topic, qos, data):
        """A subscriber has got a message."""
        try:
            publisher, flow_qos, number = data.split(b" ", 3)[:3]
            flow, number = (publisher.decode(), int(flow_qos)), int(number)
            is_known = number < self.flows[flow].sent
        except (ValueError, KeyError):
            is_known = False
        if not is_known or number < 0:
            self.violation("unknown", f"{subscriber} got {data[:40]} of {topic}, which nobody has sent")
            return
        what = f"{subscriber}, message {number} of {flow[0]} at QoS {flow[1]}"
        if data != payload(flow, number, self.size) or topic != topic_of(flow) or qos != flow[1]:
            self.violation("changed", f"{what}: {topic}, QoS {qos}, {data[:40]}")
            return
        deliveries = self.deliveries[subscriber, flow]
        if deliveries.arrived[number]:
            self.counts["again"] += 1
            if qos == 2:
                self.violation("twice at QoS 2", what)
            return
        deliveries.arrived[number] = 1
        self.counts["delivered"] += 1
        self.missing -= self.flows[flow].acknowledged[number]
        if number < deliveries.last:
            self.violation("out of order", f"{what}, after {deliveries.last}")
        deliveries.last = max(deliveries.last, number)

    def count_lost(self):
        """Adds each acknowledged message that a subscriber did not get to the violations."""
        for (name, flow), deliveries in self.deliveries.items():
            pairs = zip(self.flows[flow].acknowledged, deliveries.arrived)
            for number, (acknowledged, arrived) in enumerate(pairs):
                if acknowledged and not arrived:
                    self.violation("lost", f"{name}, message {number} of {flow[0]} at QoS {flow[1]}")


def topic_of(flow):
    return f"judge/{flow[0]}/{flow[1]}"
