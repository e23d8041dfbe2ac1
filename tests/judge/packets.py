"""Packets of MQTT 5.0, as far as the clients of the judge need them."""

import struct

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK = range(1, 10)
PINGREQ, PINGRESP, DISCONNECT = 12, 13, 14
# From this Reason Code on, an acknowledgement is a refusal.
REFUSED = 0x80


def text(value):
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def packet(kind, flags=0, body=b""):
    length, number = b"", len(body)
    while True:
        length += bytes([number % 128 | (0x80 if number >= 128 else 0)])
        number //= 128
        if number == 0:
            return bytes([kind << 4 | flags]) + length + body


def connect(client_id, expiry, keep_alive, receive_maximum):
    """CONNECT without Clean Start."""
    properties = b"\x11" + struct.pack(">I", expiry) + b"\x21" + struct.pack(">H", receive_maximum)
    return packet(CONNECT, 0, text("MQTT") + bytes([5, 0]) + struct.pack(">H", keep_alive) + bytes([len(properties)]) + properties + text(client_id))


def subscribe(packet_id, filters):
    """SUBSCRIBE with Topic Filters and their maximum QoS."""
    body = b"".join(text(topic) + bytes([qos]) for topic, qos in filters)
    return packet(SUBSCRIBE, 2, struct.pack(">H", packet_id) + b"\x00" + body)


def publish(topic, payload, qos, packet_id, is_again):
    return packet(PUBLISH, (8 if is_again else 0) | qos << 1, text(topic) + struct.pack(">H", packet_id) + b"\x00" + payload)


def acknowledge(kind, packet_id):
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return packet(kind, 2 if kind == PUBREL else 0, struct.pack(">H", packet_id))


def variable_integer(data, at):
    """A Variable Byte Integer and the index after it, or None if it is incomplete."""
    number = 0
    for shift in (0, 7, 14, 21):
        if at >= len(data):
            return None
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise ValueError("a Variable Byte Integer of five bytes")


def split(data):
    """The complete packets at the start, as pairs of the first byte and the body, and the rest."""
    packets, at = [], 0
    while at < len(data):
        found = variable_integer(data, at + 1)
        if found is None or len(data) < found[1] + found[0]:
            break
        length, begin = found
        packets.append((data[at], data[begin:begin + length]))
        at = begin + length
    return packets, data[at:]


def acknowledged(body):
    """Packet Identifier and Reason Code of PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return struct.unpack(">H", body[:2])[0], body[2] if len(body) > 2 else 0


def published(first, body):
    """Topic Name, QoS, Packet Identifier and payload of PUBLISH. The Packet Identifier is 0 at QoS 0."""
    qos = first >> 1 & 3
    length = struct.unpack(">H", body[:2])[0]
    topic, at = body[2:2 + length].decode(), 2 + length
    packet_id = struct.unpack(">H", body[at:at + 2])[0] if qos else 0
    properties, at = variable_integer(body, at + (2 if qos else 0))
    return topic, qos, packet_id, body[at + properties:]
