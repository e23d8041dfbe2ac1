"""What a node does when the operating system gives it no more of something."""

import socket
import subprocess

from node import Node, until

DESCRIPTORS = 300


def no_descriptors(_):
    """limits: connections that say nothing and have all descriptors stop nothing for good: the log waits, says what it lacks, and goes on"""
    node = Node()
    node.within = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(DESCRIPTORS)]
    log = node.directory / "node.log"
    idle = []
    try:
        node.start("--set", "storage.segment_size=1MiB", "--set", "storage.reserve=2MiB")
        command = ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-q", "1", "-r", "-l", "-t", "kept", "-i", "writer"]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        node.clients.append(writer)
        until(lambda: '"writer"' in node.text("--json", "clients"), "the writer is connected")
        for _ in range(DESCRIPTORS):
            idle.append(socket.create_connection(("127.0.0.1", node.http), timeout=5))
        until(lambda: "Too many open files" in log.read_text(errors="replace"), "no descriptor is left")
        line = "x" * 10_000 + "\n"
        for _ in range(100 * 6):
            writer.stdin.write(line)
        writer.stdin.flush()
        until(lambda: "no file descriptor is left for the log" in log.read_text(errors="replace"), "the log says what it lacks", 20)
        assert node.process.poll() is None
        for one in idle:
            one.close()
        until(lambda: node.run("ctl", "health", code=None).returncode == 0, "operators are served again", 20)
        until(lambda: node.json("storage")["log"]["state"] == "good", "there is room", 20)
        node.publish("kept", "the last", "-q", "1", "-r")
        assert node.text("retained", "get", "kept", "--raw").rstrip("\n") == "the last"
        assert "the log stopped" not in log.read_text(errors="replace")
    finally:
        for one in idle:
            one.close()
        node.close()


CHECKS = [no_descriptors]
