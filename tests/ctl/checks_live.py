"""Commands that follow."""

import json
import signal

from node import until


def traces(node):
    return next(s["value"] for s in node.json("metrics", "meridian_traces_active")["items"])


def trace(node):
    """trace: a topic until Ctrl-C with exit code 0; a client until a number of events"""
    process = node.spawn("ctl", "trace", "--topic", "t/#", "--payload", "16", "--kind", "publish-in", "--json")
    until(lambda: traces(node) == 1, "the trace is on")
    node.publish("t/1", "hello", "-i", "tracer")
    event = json.loads(process.stdout.readline())
    assert (event["event"], event["kind"], event["topic"], event["payload"]) == ("trace", "publish_in", "t/1", "aGVsbG8="), event
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    process.communicate()
    until(lambda: traces(node) == 0, "the trace is over")
    process = node.spawn("ctl", "trace", "--client", "tracer", "--events", "2")
    until(lambda: traces(node) == 1, "the trace is on")
    node.publish("t/1", "hello", "-i", "tracer")
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0 and len(out.splitlines()) == 2 and "connect" in out, out + err
    assert "the node ended the trace" in err and "2 events" in err, err
    node.ctl("trace", "--for", "2h", "--client", "x", code=2)
    node.ctl("trace", "--client", "x", "--topic", "y", code=2)
    node.ctl("trace", "--topic", "a/#/b", code=1)
    node.ctl("trace", "--client", "x", "--kind", "nonsense", code=1)


def too_many_traces(node):
    """trace: the number of traces is limited, with an error"""
    held = [node.spawn("ctl", "trace", "--client", f"x{i}") for i in range(8)]
    until(lambda: traces(node) == 8, "eight traces are on")
    assert node.ctl("trace", "--client", "one-more", code=1).err
    for process in held:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        process.communicate()
    until(lambda: traces(node) == 0, "the traces are over")


def log(node):
    """log: recent lines, new lines, and the level"""
    events = node.json("log", "--limit", "1000")["items"]
    assert events and all(event["level"] in ("ERROR", "WARN", "INFO") for event in events)
    text = node.text("log", "show", "--limit", "5")
    assert " INFO " in text or " WARN " in text, text
    assert all(event["level"] in ("ERROR", "WARN") for event in node.json("log", "--level", "warn")["items"])
    assert node.text("log", "level").strip() == "info"
    level = node.json("log", "level", "debug", "--for", "10m")
    assert level["level"] == "debug" and level["until"], level
    process = node.spawn("ctl", "log", "--follow", "--json", "--limit", "1")
    first = json.loads(process.stdout.readline())
    assert first["event"] == "log" and first["message"], first
    node.ctl("log", "level", "info,broker=debug")
    while "changes the log level" not in (event := json.loads(process.stdout.readline()))["message"]:
        assert event["event"] == "log", event
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    process.communicate()
    assert node.text("log", "level", "info").strip() == "info"
    node.ctl("log", "level", "deafening!!", code=1)


def a_stopped_node_is_not_waited_for(node):
    """a node that hangs is exit code 3 after --timeout"""
    node.process.send_signal(signal.SIGSTOP)
    try:
        said = node.ctl("--timeout", "300ms", "status", code=3).err
        assert "did not answer within 300ms" in said, said
    finally:
        node.process.send_signal(signal.SIGCONT)
    node.ctl("health", "--wait", "10s")


def a_stream_ends_with_the_node(node):
    """a stream ends when the node stops"""
    process = node.spawn("ctl", "trace", "--client", "x")
    until(lambda: traces(node) == 1, "the trace is on")
    node.stop()
    _, err = process.communicate(timeout=20)
    assert process.returncode in (0, 3), (process.returncode, err)
    node.start()


CHECKS = [trace, too_many_traces, log, a_stopped_node_is_not_waited_for, a_stream_ends_with_the_node]

