#!/usr/bin/env python3
"""A DNS server for a test: names.py ADDRESS FILE answers A queries from a file of JSON, {"name": ["address", ..]}.

It reads the file again when it has changed. Other types of a known name get an empty answer, unknown names NXDOMAIN. Nothing may be
kept: the time to live is 0.
"""

import json
import os
import random
import socket
import struct
import sys

A, IN = 1, 1


def question(query):
    """Name, type, and the end of the first question."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    return ".".join(labels), struct.unpack(">H", query[at + 1 : at + 3])[0], at + 5


def answer(query, names):
    name, kind, end = question(query)
    addresses = names.get(name)
    # Kubernetes has no order of addresses either.
    found = random.sample(addresses, len(addresses)) if addresses and kind == A else []
    header = query[:2] + struct.pack(">HHHHH", 0x8580 | (0 if addresses is not None else 3), 1, len(found), 0, 0)
    records = b"".join(struct.pack(">HHHIH4s", 0xC00C, A, IN, 0, 4, socket.inet_aton(address)) for address in found)
    return header + query[12:end] + records


def main():
    address, path = sys.argv[1:]
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    print("ready", flush=True)
    names, read = {}, None
    while True:
        query, client = server.recvfrom(1500)
        now = os.stat(path).st_mtime_ns
        if now != read:
            with open(path, encoding="utf-8") as file:
                names, read = json.load(file), now
        try:
            server.sendto(answer(query, names), client)
        except (IndexError, struct.error, UnicodeError):
            continue


if __name__ == "__main__":
    main()
