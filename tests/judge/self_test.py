"""Gives the clients of the judge what a faulty broker would send, and checks that the record says so."""

import pathlib
import random
import sys

import clients
import packets
import record

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import runner  # noqa: E402  pylint: disable=wrong-import-position

ONE, TWO = ("p", 1), ("p", 2)


class Wire:
    """Transport that keeps what a client sends."""

    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data

    def is_closing(self):
        return False

    def abort(self):
        pass

    def sent(self):
        """Kind, flags and body of each packet since the last call."""
        found, self.written = packets.split(self.written)
        return [(first >> 4, first & 15, body) for first, body in found]


class World:
    """A publisher and a subscriber, and the broker's side of their connections."""

    def __init__(self):
        self.record = record.Record(["p"], ["s"])
        shared = lambda name: (name, [0], self.record, random.Random(0), 0)
        self.publisher = clients.Publisher(*shared("p"), rate=0, window=10)
        self.subscriber = clients.Subscriber(*shared("s"), receive_maximum=10)
        for client in (self.publisher, self.subscriber):
            self.connect(client, 0)

    def connect(self, client, session_present):
        client.connection, client.connack = clients.Connection(client), None
        client.connection.connection_made(Wire())
        self.give(client, packets.packet(packets.CONNACK, 0, bytes([session_present, 0, 0])))
        client.accept()
        return client.connection.transport

    def give(self, client, data):
        client.connection.data_received(data)

    def publish(self, flow, count=1):
        """Messages that the broker acknowledges."""
        numbers = [self.record.next_message(flow)[0] for _ in range(count)]
        for number in numbers:
            self.record.acknowledge(flow, number)
        return numbers

    def deliver(self, flow, number, packet_id, is_again=False):
        """PUBLISH, and at QoS 2 PUBREL."""
        data = record.payload(flow, number, self.record.size)
        self.give(self.subscriber, packets.publish(record.topic_of(flow), data, flow[1], packet_id, is_again))
        if flow[1] == 2:
            self.give(self.subscriber, packets.acknowledge(packets.PUBREL, packet_id))

    def wrong(self):
        self.record.count_lost()
        return dict(self.record.wrong)


def clean():
    """messages that arrive once and in order are no violation, also when packets come in pieces"""
    world = World()
    world.publish(ONE, 3)
    world.publish(TWO, 3)
    wire = world.subscriber.connection.transport
    wire.sent()
    for number in range(3):
        world.deliver(ONE, number, number + 1)
        world.deliver(TWO, number, number + 10)
    kinds = [kind for kind, _, _ in wire.sent()]
    assert kinds == [packets.PUBACK, packets.PUBREC, packets.PUBCOMP] * 3, kinds
    world.publish(ONE)
    last = packets.publish(record.topic_of(ONE), record.payload(ONE, 3, world.record.size), 1, 20, False)
    for at in range(len(last)):
        world.give(world.subscriber, last[at:at + 1])
    assert world.record.missing == 0 and world.wrong() == {}, world.record.examples


def lost():
    """an acknowledged message that does not arrive is lost, and one without an acknowledgement is not"""
    world = World()
    world.publish(ONE, 2)
    world.publish(TWO, 2)
    world.record.next_message(ONE)
    world.deliver(ONE, 0, 1)
    world.deliver(TWO, 1, 2)
    assert world.record.missing == 2, world.record.missing
    assert world.wrong() == {"lost": 2}, world.record.examples


def doubled():
    """a message that arrives twice is a violation at QoS 2, but not at QoS 1 and not with its Packet Identifier before PUBREL"""
    world = World()
    world.publish(ONE)
    world.publish(TWO, 2)
    for again in (False, True):
        world.deliver(ONE, 0, 1, again)
    data = record.payload(TWO, 0, world.record.size)
    for again in (False, True):
        world.give(world.subscriber, packets.publish(record.topic_of(TWO), data, 2, 2, again))
    world.give(world.subscriber, packets.acknowledge(packets.PUBREL, 2))
    world.deliver(TWO, 1, 3)
    assert world.wrong() == {} and world.record.counts["again"] == 1, world.record.examples
    world.deliver(TWO, 1, 4, True)
    assert world.wrong() == {"twice at QoS 2": 1}, world.record.examples


def reordered():
    """a message after a later one of its publisher and topic is out of order, and a repetition of it is not"""
    world = World()
    world.publish(ONE, 3)
    world.publish(TWO)
    for flow, number in ((ONE, 0), (ONE, 2), (TWO, 0), (ONE, 1), (ONE, 1)):
        world.deliver(flow, number, 1)
    assert world.wrong() == {"out of order": 1}, world.record.examples


def changed():
    """other bytes, another topic, another QoS and a message that nobody sent are violations"""
    world = World()
    number = world.publish(ONE)[0]
    data, topic = record.payload(ONE, number, world.record.size), record.topic_of(ONE)
    for wrong in (packets.publish(topic, data[:-1] + b"\xff", 1, 1, False), packets.publish("judge/p/2", data, 1, 2, False), packets.publish(topic, data, 2, 3, False)):
        world.give(world.subscriber, wrong)
    for flow in (("p", 7), ("q", 1), ONE):
        world.give(world.subscriber, packets.publish(topic, record.payload(flow, 5, world.record.size), 1, 4, False))
    assert world.wrong() == {"changed": 3, "unknown": 3, "lost": 1}, world.record.examples


def forgotten():
    """CONNACK without Session Present is a violation from the second connection on, and the client subscribes again"""
    world = World()
    world.give(world.subscriber, packets.packet(packets.SUBACK, 0, b"\x00\x01\x00\x01\x02"))
    assert not world.connect(world.subscriber, 1).sent() and world.wrong() == {}
    wire = world.connect(world.subscriber, 0)
    assert [kind for kind, _, _ in wire.sent()] == [packets.SUBSCRIBE]
    assert world.wrong() == {"session lost": 1}, world.record.examples


def sent_again():
    """a publisher sends what is not acknowledged again, in its order, and PUBREL after PUBREC"""
    world = World()
    publisher = world.publisher
    publisher.rate = 1e9
    publisher.start()
    publisher.turn()
    publisher.stop()
    first = publisher.connection.transport.sent()
    assert [flags for _, flags, _ in first] == [2, 4] * 5, first
    world.give(publisher, packets.acknowledge(packets.PUBACK, 1))
    world.give(publisher, packets.acknowledge(packets.PUBREC, 2))
    world.give(publisher, packets.packet(packets.PUBACK, 0, b"\x00\x03\x97"))
    again = world.connect(publisher, 1).sent()
    assert [(kind, flags) for kind, flags, _ in again] == [(packets.PUBREL, 2)] + [(packets.PUBLISH, 12), (packets.PUBLISH, 10)] * 3 + [(packets.PUBLISH, 12)], again
    assert world.record.counts["acknowledged"] == 2 and world.record.counts["refused messages"] == 1
    world.give(publisher, packets.acknowledge(packets.PUBCOMP, 2))
    assert len(publisher.flights) == 7 and world.record.missing == 2
    world.give(publisher, packets.acknowledge(packets.PUBACK, 9_999))
    assert world.record.wrong["protocol"] == 1


def ignored():
    """packets of a connection that another one has replaced are ignored, and malformed ones are violations"""
    world = World()
    number = world.publish(ONE)[0]
    old = world.subscriber.connection
    world.connect(world.subscriber, 1)
    old.data_received(packets.publish(record.topic_of(ONE), record.payload(ONE, number, world.record.size), 1, 1, False))
    assert world.record.missing == 1
    world.deliver(ONE, number, 1)
    assert world.wrong() == {}, world.record.examples
    world.give(world.subscriber, b"\x32\xff\xff\xff\xff\xff")
    assert world.wrong() == {"protocol": 1}, world.record.examples


def run():
    """Runs all checks, and ends the program."""
    runner.run_all([clean, lost, doubled, reordered, changed, forgotten, sent_again, ignored], {}, "")
