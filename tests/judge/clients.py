"""Publishers and subscribers with durable sessions, which connect again to any node.

A client has one current connection. Packets of an older one are ignored from the moment at which the client connects again.
"""

import asyncio
import struct
import time

import packets
import record

# Seconds between two turns of a client.
TURN = 0.02
# Seconds without a packet of the node, after which the client asks whether it is there, and after which it connects to another one.
PING, SILENCE = 1.0, 5.0
# Maximum seconds of a connect, until CONNACK.
CONNECT = 8.0
KEEP_ALIVE = 30
EXPIRY = 3600
# Maximum seconds for which a subscriber stays away.
AWAY = 4.0
# How a client leaves a node for another one: its old connection stays open, DISCONNECT, or an end without a word.
LEAVES = ("taken over", "disconnected", "dropped")


class Connection(asyncio.Protocol):
    """A connection to a node, which gives its client each packet."""

    def __init__(self, client):
        self.client = client
        self.transport, self.unread = None, b""
        self.is_open, self.last_read = True, time.monotonic()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.last_read = time.monotonic()
        try:
            found, self.unread = packets.split(self.unread + data)
            for first, body in found:
                self.client.receive(self, first, body)
        except (IndexError, ValueError, struct.error) as error:
            self.client.record.violation("protocol", f"{self.client.name} got a malformed packet: {error}")
            self.close()

    def connection_lost(self, exc):
        self.is_open = False

    def send(self, data):
        if self.is_open and not self.transport.is_closing():
            self.transport.write(data)

    def close(self):
        """Ends the connection, without a DISCONNECT and without waiting for unsent bytes."""
        self.is_open = False
        if self.transport:
            self.transport.abort()


class Client:
    """`ports` are those of all nodes. `roam` is the mean time in seconds between two changes of the node, and 0 means never."""

    def __init__(self, name, ports, judged, random, roam):
        self.name, self.ports, self.record, self.random, self.roam = name, ports, judged, random, roam
        self.connection, self.connack = None, None
        self.receive_maximum = 65_535
        # True after the first CONNACK.
        self.has_session = False
        self.is_over = False
        self.last_id = 0

    # What a kind of client does.

    def begin(self):
        """Begins with a connection that has got CONNACK."""

    def handle(self, kind, first, body):
        """Handles a packet of the current connection."""

    def turn(self):
        """Sends what is due. It is called again and again."""

    def forget(self):
        """The node has lost the session."""

    # What they share.

    def is_up(self):
        return self.connack is not None and self.connection.is_open

    def send(self, data):
        self.connection.send(data)

    def receive(self, connection, first, body):
        if connection is not self.connection:
            return
        kind = first >> 4
        if kind == packets.CONNACK:
            self.connack = body[0] & 1, body[1]
        elif kind == packets.DISCONNECT:
            connection.close()
        elif self.connack is None:
            self.record.violation("protocol", f"{self.name} got packet {first:#x} before CONNACK")
        elif kind != packets.PINGRESP:
            self.handle(kind, first, body)

    async def connect(self):
        """Connects to any node, and returns whether it has the session."""
        # Packets that the last connection gets from now on are ignored.
        connection = Connection(self)
        self.connection, self.connack = connection, None
        end = time.monotonic() + CONNECT
        try:
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.create_connection(lambda: connection, "127.0.0.1", self.random.choice(self.ports)), CONNECT)
        except (OSError, asyncio.TimeoutError):
            return False
        connection.send(packets.connect(self.name, EXPIRY, KEEP_ALIVE, self.receive_maximum))
        while self.connack is None and connection.is_open and time.monotonic() < end:
            await asyncio.sleep(TURN)
        if self.connack is None or self.connack[1] != 0:
            self.record.counts["refused connections" if self.connack else "unanswered connections"] += 1
            self.connack = None
            return False
        self.accept()
        return True

    def accept(self):
        """Begins with a connection that was accepted."""
        self.record.counts["connections"] += 1
        if self.has_session and not self.connack[0]:
            self.record.violation("session lost", f"{self.name}: CONNACK without Session Present")
            self.forget()
        self.has_session = True
        self.begin()

    async def run(self):
        while not self.is_over:
            last = self.connection
            is_served = await self.connect()
            if last:
                last.close()
            if is_served:
                await self.serve()
            else:
                self.connection.close()
                await asyncio.sleep(self.random.uniform(0.02, 0.3))
        self.connection.close()

    async def serve(self):
        """Uses the connection until it ends, is silent, or the client leaves the node."""
        leaves = time.monotonic() + (self.random.expovariate(1 / self.roam) if self.roam else 1e9)
        pinged = 0
        while self.connection.is_open and not self.is_over:
            now = time.monotonic()
            silent = now - self.connection.last_read
            if silent > SILENCE:
                self.record.counts["silent nodes"] += 1
                self.connection.close()
                return
            if silent > PING and now - pinged > PING:
                pinged = now
                self.send(packets.packet(packets.PINGREQ))
            if self.roam and now > leaves:
                await self.leave()
                return
            self.turn()
            await asyncio.sleep(TURN)

    async def leave(self):
        how = self.random.choice(LEAVES)
        self.record.counts[how] += 1
        if how == "taken over":
            return
        if how == "disconnected":
            # Code 0 and no properties: the session stays.
            self.send(packets.packet(packets.DISCONNECT))
            self.connection.is_open = False
            self.connection.transport.close()
        else:
            self.connection.close()
        await asyncio.sleep(self.random.uniform(0, AWAY) if self.random.random() < 0.5 else 0)

    def packet_id(self):
        self.last_id = self.last_id % 65_535 + 1
        return self.last_id


class Flight:
    """A message that is not acknowledged."""

    def __init__(self, flow, number, payload):
        self.flow, self.number, self.payload = flow, number, payload
        self.sent_at = time.monotonic()
        # True after PUBREC.
        self.is_taken = False


class Publisher(Client):
    """Sends `rate` messages a second, at QoS 1 and 2 in turn, of which at most `window` wait for an acknowledgement."""

    def __init__(self, *more, rate, window):
        super().__init__(*more)
        self.rate, self.window = rate, window
        # Unacknowledged messages by Packet Identifier, in their order.
        self.flights = {}
        self.begun, self.given, self.longest_wait = None, 0, 0.0

    def start(self):
        """Publishes from now on."""
        self.begun = time.monotonic()

    def stop(self):
        """Sends no new messages any more."""
        self.begun = None

    def begin(self):
        # In their order. The node has a part of them, and that is the first part.
        for packet_id, flight in self.flights.items():
            if flight.is_taken:
                self.send(packets.acknowledge(packets.PUBREL, packet_id))
            else:
                self.send(packets.publish(record.topic_of(flight.flow), flight.payload, flight.flow[1], packet_id, True))
                self.record.counts["sent again"] += 1

    def turn(self):
        if self.begun is None:
            return
        due = int((time.monotonic() - self.begun) * self.rate) - self.given
        for _ in range(min(due, self.window - len(self.flights))):
            flow = self.name, 1 + self.given % 2
            self.given += 1
            packet_id = self.packet_id()
            while packet_id in self.flights:
                packet_id = self.packet_id()
            self.flights[packet_id] = Flight(flow, *self.record.next_message(flow))
            self.send(packets.publish(record.topic_of(flow), self.flights[packet_id].payload, flow[1], packet_id, False))

    def handle(self, kind, first, body):
        packet_id, reason = packets.acknowledged(body)
        flight = self.flights.get(packet_id)
        if flight is None or kind not in ((packets.PUBACK,) if flight.flow[1] == 1 else (packets.PUBREC, packets.PUBCOMP)):
            self.record.violation("protocol", f"{self.name} got packet {first:#x} for {packet_id}, which is not in flight")
            return
        if kind == packets.PUBCOMP and not flight.is_taken:
            self.record.violation("protocol", f"{self.name} got PUBCOMP for {packet_id} before PUBREC")
        if kind != packets.PUBCOMP and reason >= packets.REFUSED:
            self.record.counts["refused messages"] += 1
            del self.flights[packet_id]
            return
        if kind != packets.PUBCOMP:
            self.record.acknowledge(flight.flow, flight.number)
            self.longest_wait = max(self.longest_wait, time.monotonic() - flight.sent_at)
        if kind == packets.PUBREC:
            flight.is_taken = True
            self.send(packets.acknowledge(packets.PUBREL, packet_id))
        else:
            del self.flights[packet_id]

    def forget(self):
        # A message with PUBREC is the node's. Others are sent again as new ones.
        self.flights = {packet_id: flight for packet_id, flight in self.flights.items() if not flight.is_taken}


class Subscriber(Client):
    """Subscribes to all flows, and gives the record each message that it gets."""

    def __init__(self, *more, receive_maximum):
        super().__init__(*more)
        self.receive_maximum = receive_maximum
        self.is_subscribed = False
        # Payloads of QoS 2 by Packet Identifier, between PUBLISH and PUBREL.
        self.taken = {}

    def begin(self):
        if not self.is_subscribed:
            self.send(packets.subscribe(self.packet_id(), [("judge/+/1", 1), ("judge/+/2", 2)]))

    def handle(self, kind, first, body):
        if kind == packets.SUBACK:
            if any(code >= packets.REFUSED for code in body[3 + body[2]:]):
                self.connection.close()
            else:
                self.is_subscribed = True
        elif kind == packets.PUBLISH:
            self.take(*packets.published(first, body))
        elif kind == packets.PUBREL:
            packet_id, _ = packets.acknowledged(body)
            self.taken.pop(packet_id, None)
            self.send(packets.acknowledge(packets.PUBCOMP, packet_id))
        else:
            self.record.violation("protocol", f"{self.name} got packet {first:#x}")

    def take(self, topic, qos, packet_id, payload):
        if qos != 2:
            self.record.deliver(self.name, topic, qos, payload)
            if qos == 1:
                self.send(packets.acknowledge(packets.PUBACK, packet_id))
            return
        before = self.taken.get(packet_id)
        if before is None:
            self.taken[packet_id] = payload
            self.record.deliver(self.name, topic, qos, payload)
        elif before != payload:
            self.record.violation("protocol", f"{self.name}: Packet Identifier {packet_id} has another message before PUBREL")
        self.send(packets.acknowledge(packets.PUBREC, packet_id))

    def forget(self):
        self.taken, self.is_subscribed = {}, False
