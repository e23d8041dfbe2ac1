"""Commands that only read."""

import json
import re
import socket
import subprocess
import time

from node import BINARY, Node, end, environment, free_port, until

COMMANDS = ["status", "health", "whoami", "clients", "client", "sessions", "kick", "storage", "subscriptions", "routes", "retained", "publish",
            "trace", "ban", "config", "log", "topic-metrics", "slow", "top-talkers", "keys", "audit", "metrics"]


def every_command_explains_itself(node):
    """every command explains itself, most of them with examples"""
    top = node.text("--help")
    for command in COMMANDS:
        assert command in top, command
        text = node.text(command, "--help")
        assert "Usage:" in text
        assert "Examples:" in text or command == "whoami", command
    assert "Exit codes" in top


def a_wrong_command_line_is_2(node):
    """a wrong command line is exit code 2 and says what is meant"""
    assert "clients" in node.ctl("client-s", code=2).err
    node.ctl("clients", "--no-such-flag", code=2)
    node.ctl("publish", "-t", "a", code=2)
    assert "http://" in node.ctl("--url", "ftp://localhost:1", "status", code=2).err


def an_unreachable_node_is_3(node):
    """an unreachable node is exit code 3, with how to start one"""
    url = f"http://127.0.0.1:{free_port()}"
    said = node.ctl("--url", url, "status", code=3).err
    assert url in said and "meridian start" in said and "--url" in said, said
    problem = json.loads(node.ctl("--url", url, "--json", "status", code=3).err)
    assert problem["type"] == "urn:meridian:problem:unreachable"


def another_server_is_3(node):
    """a server of MQTT instead of HTTP is exit code 3"""
    said = node.ctl("--url", f"http://127.0.0.1:{node.mqtt}", "--timeout", "5s", "status", code=3).err
    assert "18083" in said or "did not answer" in said, said


def health_and_whoami(node):
    """health and whoami"""
    assert node.text("health").strip() == "ready"
    assert node.json("health") == {"status": "ready"}
    who = node.json("whoami")
    assert who["open"] and who["role"] == "admin", who
    assert "no API key" in node.text("whoami")


def status(node):
    """status: a screen for people, a document for scripts, a warning without keys"""
    until(lambda: node.json("status")["stats"]["uptime_s"] >= 1, "load can be shown")
    done = node.ctl("status")
    for word in ("ready", "LISTENER", "REACTOR", f":{node.mqtt}", "memory", "descriptors"):
        assert word in done.out, f"{word}\n{done.out}"
    assert "meridian key add" in done.err
    document = node.json("status")
    assert document["node"]["state"] == "ready" and len(document["stats"]["workers"]) == 2
    assert " - " not in done.out.replace(" -> ", ""), f"a figure is missing\n{done.out}"


def clients(node):
    """clients: table, filters, pages, all of them as NDJSON"""
    held = [node.subscriber(f"look-{i}", "look/#", version="311" if i == 2 else "5") for i in range(3)]
    table = node.text("clients", "--search", "look-")
    lines = table.splitlines()
    assert lines[0].startswith("CLIENT") and len(lines) == 4, table
    assert "127.0.0.1:" in table and "3.1.1" in table
    ids = lambda *flags: sorted(item["client_id"] for item in node.json("clients", "--search", "look-", *flags)["items"])
    assert ids("--version", "3.1.1") == ["look-2"]
    assert ids("--address", "127.0.0.0/8") == ["look-0", "look-1", "look-2"]
    assert ids("--address", "10.0.0.0/8") == ids("--offline") == ids("--username", "nobody") == ids("--min-queued", "1") == []
    assert ids("--connected") == ["look-0", "look-1", "look-2"]
    done = node.ctl("clients", "--search", "look-", "--limit", "2")
    assert "--all" in done.err and len(done.out.splitlines()) == 3
    first = node.json("clients", "--search", "look-", "--limit", "2")
    rest = node.json("clients", "--search", "look-", "--cursor", first["next"])
    found = sorted(item["client_id"] for item in first["items"] + rest["items"])
    assert found == ["look-0", "look-1", "look-2"] and rest["next"] is None
    assert sorted(item["client_id"] for item in node.lines("clients", "--search", "look-", "--all")) == found
    assert node.ctl("clients", "--search", "look-nobody").err.strip() == "no clients"
    node.ctl("clients", "--cursor", "nonsense", code=1)
    node.ctl("clients", "--address", "nonsense", code=1)
    for process in held:
        end(process)


def one_client(node):
    """client: a connected client with its connection; an unknown one is exit code 4"""
    held = node.subscriber("one/client +é", "one/#")
    text = node.text("client", "one/client +é")
    for word in ("one/client +é", "connected", "CONNECTION", "receive maximum", "MQTT"):
        assert word in text, text
    assert node.json("client", "show", "one/client +é")["connection"]["worker"] in (0, 1)
    assert "one/#" in node.text("client", "subscriptions", "one/client +é")
    said = node.ctl("client", "nobody", code=4).err
    assert "nobody" in said, said
    problem = json.loads(node.ctl("client", "nobody", "--json", code=4).err)
    assert problem["type"] == "urn:meridian:problem:not-found"
    node.ctl("client", "subscriptions", "nobody", code=4)
    node.ctl("client", "queue", "nobody", code=4)
    assert "the verb comes first" in node.ctl("client", "x", "kick", "x", code=2).err
    end(held)


def sessions_and_queues(node):
    """sessions and queues: the durable session of a disconnected client, with its queue"""
    end(node.subscriber("absent", "absent/#", durable=True))
    until(lambda: not node.json("client", "absent")["connected"], "the client is gone")
    node.publish("absent/1", "first", "-q", "1")
    node.publish("absent/2", "sec\x1b[2Jond", "-q", "1")
    assert [item["client_id"] for item in node.json("sessions", "--offline")["items"]] == ["absent"]
    assert "absent" in node.text("sessions") and node.json("sessions")["next"] is None
    assert "absent" in node.text("clients", "--offline", "--min-queued", "2")
    text = node.text("client", "absent")
    assert "SESSION" in text and "absent" in text and "expires at" in text, text
    table = node.text("client", "queue", "absent", "--payload")
    assert "absent/1" in table and "first" in table and "sec\\u{1b}[2Jond" in table, table
    assert "\x1b" not in table
    queue = node.json("client", "queue", "absent", "--limit", "1")
    assert len(queue["items"]) == 1 and queue["truncated"], queue
    assert "payload" not in queue["items"][0]


def subscriptions_and_routes(node):
    """subscriptions and routes: by filter, by topic, by share, by client"""
    held = [node.subscriber("sub-a", "r/+/x", "r/1/#"), node.subscriber("sub-b", "$share/team/r/1/x")]
    filters = lambda *flags: sorted(item["filter"] for item in node.json("subscriptions", *flags)["items"])
    assert filters("--match", "r/1/x") == ["$share/team/r/1/x", "r/+/x", "r/1/#"], filters("--match", "r/1/x")
    assert filters("--filter", "r/+/x") == ["r/+/x"]
    assert filters("--share", "team") == ["$share/team/r/1/x"]
    assert filters("--client", "sub-a") == ["r/+/x", "r/1/#"]
    assert "sub-b" in node.text("subs", "--share", "team")
    receivers = node.json("routes", "--match", "r/1/x")["receivers"]
    found = {receiver["client_id"]: sorted(receiver["filters"]) for receiver in receivers}
    assert found["sub-a"] == ["r/+/x", "r/1/#"] and len(found) == 2, receivers
    table = node.text("routes", "--match", "r/1/x")
    assert "team" in table and "r/+/x r/1/#" in table or "r/1/# r/+/x" in table, table
    assert "receivers" in node.ctl("routes", "--match", "nobody/wants/this").err
    # A shared subscription is routed by its Topic Filter without the share name.
    assert node.json("routes", "--filter", "r/+/x")["items"][0]["filter"] == "r/+/x"
    assert len(node.json("routes", "--prefix", "r/", "--limit", "2")["items"]) == 2
    assert "FILTER" in node.text("routes", "--prefix", "r/")
    node.ctl("routes", "--match", "a/#", code=1)
    node.ctl("routes", "--match", "a", "--filter", "b", code=2)
    for process in held:
        end(process)


def figures(node):
    """metrics, top talkers, slow subscribers, audit"""
    assert "# TYPE meridian_clients gauge" in node.text("metrics")
    assert set(line.split("{")[0].split(" ")[0] for line in node.text("metrics", "meridian_packets_received_total").splitlines()
               if not line.startswith("#")) == {"meridian_packets_received_total"}
    samples = node.json("metrics", "meridian_build_info")["items"]
    assert samples[0]["labels"]["version"] and samples[0]["value"] == 1, samples
    assert any(s["name"] == "meridian_reactor_turn_seconds_bucket" and s["type"] == "histogram"
               for s in node.json("metrics", "meridian_reactor_turn")["items"])
    node.ctl("metrics", "no_such_metric", code=1)
    talkers = node.json("top-talkers")
    assert set(talkers) >= {"publishers", "subscribers", "topics", "window_s"}, talkers
    done = node.ctl("top-talkers")
    assert "one message of" in done.err and "one message of" not in done.out, done.out + done.err
    assert "items" in node.json("slow", "--limit", "5")
    node.ctl("slow", "--limit", "101", code=2)
    assert "items" in node.json("audit", "--limit", "5")


def a_closed_pipe_is_no_error(node):
    """a pipe that closes early is no error"""
    command = [BINARY, "ctl", "metrics"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(MERIDIAN_URL=node.url))
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(20) == 0 and said == b"", said
    process.stderr.close()


def completions(node):
    """completions for every shell; bash accepts them"""
    for shell in ("bash", "zsh", "fish", "elvish", "powershell"):
        script = node.run("completions", shell).out
        assert "topic-metrics" in script and "passwd" in script, shell
    script = node.run("completions", "bash").out
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    node.run("completions", "tcsh", code=2)


def control_characters_are_escaped(node):
    """control characters of payloads, topics and identifiers are escaped"""
    node.ctl("publish", "-t", "raw/x", "-m", "\x1b]0;owned\x07\u009b2J\u202e", "--retain")
    for done in (node.ctl("retained", "get", "raw/x"), node.ctl("--json", "retained", "get", "raw/x")):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.out + done.err), done.out
    node.ctl("retained", "delete", "raw/x")


def no_descriptors_for_http(_):
    """http: a node without descriptors logs once that it accepts no connection, and accepts them again when there are some"""
    node = Node()
    node.within = ["sh", "-c", 'ulimit -n 150 && exec "$@"', "sh"]
    try:
        node.start()
        said = lambda: (node.directory / "node.log").read_text().count("an HTTP connection was not accepted")
        connections = [socket.create_connection(("127.0.0.1", node.http)) for _ in range(200)]
        until(said, "it logs the failure", 20)
        # It tries again ten times a second.
        time.sleep(2)
        assert said() == 1, (node.directory / "node.log").read_text()[-2000:]
        for one in connections:
            one.close()
        node.ctl("health", "--wait", "20s")
    finally:
        node.close()


CHECKS = [every_command_explains_itself, a_wrong_command_line_is_2, an_unreachable_node_is_3, another_server_is_3, health_and_whoami,
          status, clients, one_client, sessions_and_queues, subscriptions_and_routes, figures, a_closed_pipe_is_no_error,
          completions, control_characters_are_escaped, no_descriptors_for_http]
