"""A small client of MQTT 5.0, whose requests wait for their acknowledgement."""

import contextlib
import socket
import struct
import time

# Server unavailable, server busy.
BUSY = (0x88, 0x89)
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 1, 2, 3, 4, 8, 9, 10, 11


def text(value):
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def varint(number):
    out = b""
    while True:
        out += bytes([number % 128 | (0x80 if number >= 128 else 0)])
        number //= 128
        if number == 0:
            return out


class Client:
    """A connection. `expiry` is that of the session, in seconds."""

    def __init__(self, port, client_id, expiry=0, timeout=120):
        properties = b"\x11" + struct.pack(">I", expiry)
        connect = text("MQTT") + bytes([5, 2, 0, 0]) + varint(len(properties)) + properties + text(client_id)
        end = time.monotonic() + timeout
        while True:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout)
            self.unread, self.last, self.messages = b"", 0, []
            self.send(CONNECT, 0, connect)
            reason = self.until(CONNACK)[1]
            if reason == 0:
                return
            # The shard of the session may have no leader for a moment.
            assert reason in BUSY and time.monotonic() < end, f"CONNACK with {reason:#x}"
            self.close()
            time.sleep(0.5)

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()

    def send(self, kind, flags, body):
        self.socket.sendall(bytes([kind << 4 | flags]) + varint(len(body)) + body)

    def read(self):
        """The next packet: first byte and body."""
        while True:
            if len(self.unread) > 1:
                length, shift, at = 0, 0, 1
                while at < len(self.unread):
                    byte = self.unread[at]
                    length |= (byte & 0x7F) << shift
                    shift, at = shift + 7, at + 1
                    if byte < 0x80:
                        if len(self.unread) < at + length:
                            break
                        packet = self.unread[0], self.unread[at:at + length]
                        self.unread = self.unread[at + length:]
                        return packet
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self.unread += more

    def until(self, kind):
        """The body of the next packet of a kind. Messages before it are kept."""
        while True:
            first, body = self.read()
            if first >> 4 == kind:
                return body
            self.take(first, body)

    def take(self, first, body):
        if first >> 4 != PUBLISH:
            raise AssertionError(f"packet {first:#x}")
        length = struct.unpack(">H", body[:2])[0]
        topic, rest = body[2:2 + length].decode(), body[2 + length:]
        if first >> 1 & 3:
            self.send(PUBACK, 0, rest[:2])
            rest = rest[2:]
        # The properties of these messages have fewer than 128 bytes.
        self.messages.append((topic, rest[1 + rest[0]:].decode()))

    def packet_id(self):
        self.last = self.last % 65_535 + 1
        return struct.pack(">H", self.last)

    def subscribe(self, *filters, level=None, qos=1):
        """Subscribes, and returns the Reason Codes. `level` is the User Property `suback`."""
        properties = b"" if level is None else b"\x26" + text("suback") + text(level)
        body = self.packet_id() + varint(len(properties)) + properties
        self.send(SUBSCRIBE, 2, body + b"".join(text(topic) + bytes([qos]) for topic in filters))
        answer = self.until(SUBACK)
        return list(answer[3 + answer[2]:])

    def unsubscribe(self, *filters):
        self.send(UNSUBSCRIBE, 2, self.packet_id() + b"\x00" + b"".join(text(topic) for topic in filters))
        self.until(UNSUBACK)

    def publish(self, topic, payload):
        """Publishes at QoS 1, and waits for PUBACK."""
        self.send(PUBLISH, 2, text(topic) + self.packet_id() + b"\x00" + payload.encode())
        self.until(PUBACK)

    def message(self):
        """The next message: topic and payload."""
        while not self.messages:
            self.take(*self.read())
        return self.messages.pop(0)
