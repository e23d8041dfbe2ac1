"""Commands that change something."""

import json
import subprocess

from node import end, until


def publish(node):
    """publish: text, a file, an empty payload, lines of standard input; matching subscribers"""
    held = node.subscriber("pub-sub", "p/#")
    assert "no matching" in node.text("publish", "-t", "nobody/here", "-m", "x")
    assert node.json("publish", "-t", "p/1", "-m", "good", "-q", "1")["reason_code"] == 0
    path = node.directory / "payload"
    path.write_bytes(b"\xff\x00\x1b")
    node.ctl("publish", "-t", "p/2", "-f", str(path))
    node.ctl("publish", "-t", "p/3", "-f", "-", stdin=b"from stdin")
    node.ctl("publish", "-t", "p/4", "--null")
    assert "3 published" in node.text("publish", "-t", "p/5", "--lines", "-q", "1", stdin="a\nb\n\n")
    results = node.lines("publish", "-t", "p/6", "--lines", stdin="1\n2")
    assert [result["reason_code"] for result in results] == [0, 0], results
    got = [held.stdout.readline().split() for _ in range(9)]
    expected = [["p/1", b"good".hex()], ["p/2", "ff001b"], ["p/3", b"from stdin".hex()], ["p/4"], ["p/5", "61"], ["p/5", "62"],
                ["p/5"], ["p/6", "31"], ["p/6", "32"]]
    assert got == expected, got
    end(held)
    assert "topic" in node.ctl("publish", "-t", "p/#", "-m", "x", code=1).err
    node.ctl("publish", "-t", "p/#", "--lines", stdin="x\n", code=1)
    path.write_bytes(b"x" * (6 << 20))
    assert "http.body_max" in node.ctl("publish", "-t", "p/1", "-f", str(path), code=1).err
    node.ctl("publish", "-t", "p/1", "-m", "x", "-q", "3", code=2)
    node.ctl("publish", "-t", "p/1", "-f", str(node.directory / "absent"), code=1)


def retained(node):
    """retained: list, get, exact bytes, delete one, delete many only with --yes"""
    node.ctl("publish", "-t", "kept/1", "-m", "one", "-r", "--expires", "1h", "--content-type", "text/plain", "--property", "k=v", "--text")
    node.ctl("publish", "-t", "kept/2", "-f", "-", "-r", stdin=b"\x00\xff\n")
    node.ctl("publish", "-t", "kept/3", "-m", "three", "-r")
    topics = lambda *flags: sorted(item["topic"] for item in node.json("retained", *flags)["items"])
    assert topics("--filter", "kept/#") == ["kept/1", "kept/2", "kept/3"]
    assert topics("list", "--filter", "kept/+") == ["kept/1", "kept/2", "kept/3"]
    assert len(node.lines("retained", "--filter", "kept/#", "--all")) == 3
    table = node.text("retained", "--filter", "kept/1")
    assert "59m" in table or "1h" in table, table
    text = node.text("retained", "get", "kept/1")
    assert "one" in text and "text/plain" in text and "k=v" in text, text
    assert node.ctl("retained", "get", "kept/2", "--raw").stdout == b"\x00\xff\n"
    assert node.json("retained", "get", "kept/3")["payload"] == "three"
    node.ctl("retained", "get", "kept/4", code=4)
    assert "1 deleted" in node.text("retained", "delete", "kept/1")
    said = node.ctl("retained", "delete", "kept/#", code=2).err
    assert "--yes" in said, said
    assert topics("--filter", "kept/#") == ["kept/2", "kept/3"]
    assert node.json("retained", "delete", "kept/#", "--yes") == {"deleted": 2}
    assert node.ctl("retained", "--filter", "kept/#").err.strip() == "no retained messages"


def on_behalf(node):
    """client subscribe and unsubscribe: for a connected client"""
    held = node.subscriber("behalf", "b/own")
    answer = node.json("client", "subscribe", "behalf", "b/more", "--qos", "1", "--subscription-id", "7")
    assert answer["reason_code"] == 1, answer
    items = node.json("client", "subscriptions", "behalf")["items"]
    assert {"b/own", "b/more"} == {item["filter"] for item in items}, items
    assert [item["subscription_id"] for item in items if item["filter"] == "b/more"] == [7]
    node.publish("b/more", "x", "-q", "1")
    assert held.stdout.readline().split() == ["b/more", "78"]
    assert "success" in node.text("client", "unsubscribe", "behalf", "b/more").lower()
    assert [item["filter"] for item in node.json("client", "subscriptions", "behalf")["items"]] == ["b/own"]
    node.ctl("client", "subscribe", "nobody", "b/more", code=4)
    node.ctl("client", "subscribe", "behalf", "b/#/x", code=1)
    end(held)


def kick(node):
    """kick: the connection, and the session only with --yes"""
    node.subscriber("kicked", "k/#", durable=True)
    answer = node.json("kick", "kicked")
    assert len(answer.pop("nodes")) == 1, answer
    assert answer == {"connection_closed": True, "session_ended": False}, answer
    # mosquitto_sub reconnects by itself; the session ends in both cases.
    said = node.ctl("kick", "kicked", "--session", code=2).err
    assert "--yes" in said
    node.clients[-1].kill()
    node.clients[-1].wait()
    until(lambda: not node.json("client", "kicked")["connected"], "the client is gone")
    assert "session ended" in node.text("client", "kick", "kicked", "--session", "--yes")
    node.ctl("kick", "kicked", code=4)


def ban(node):
    """ban: a banned client is disconnected and refused until the ban is lifted"""
    held = node.subscriber("banned-1", "x/#")
    added = node.json("ban", "add", "client-id", "banned-*", "--reason", "noise", "--for", "1h")
    assert added["until"], added
    until(lambda: not node.json("clients", "--search", "banned-1")["items"], "the client is disconnected")
    end(held)
    table = node.text("bans")
    assert "banned-*" in table and "noise" in table, table
    refused = subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-i", "banned-2", "-t", "x", "-m", "x"],
                             capture_output=True, timeout=10, check=False)
    assert refused.returncode != 0
    node.ctl("ban", "add", "address", "not an address", code=1)
    node.ctl("ban", "add", "shoe-size", "46", code=2)
    network = node.json("ban", "add", "address", "10.9.0.0/16")
    assert network["until"] is None
    assert len(node.json("ban", "list")["items"]) == 2
    line = next(line for line in node.text("bans").splitlines() if "10.9.0.0/16" in line)
    assert "never" in line, line
    for item in (added, network):
        assert "lifted" in node.text("ban", "remove", str(item["id"]))
    node.ctl("ban", "remove", str(added["id"]), code=4)
    node.publish("x", "x", "-i", "banned-2")


def login(node, user, password):
    """True if this user can connect."""
    words = ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-u", user, "-P", password, "-t", "u", "-m", "x", "-q", "1"]
    return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0


def users(node):
    """users: add, log in, set, passwd, import, remove; anonymous access ends with the first user and returns without the last"""
    assert "user alice" in node.text("users", "add", "alice", "--description", "the first", stdin="secret\n")
    assert login(node, "alice", "secret") and not login(node, "alice", "wrong") and not login(node, "eve", "secret")
    anonymous = subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), "-t", "u", "-m", "x"], capture_output=True, timeout=20, check=False)
    assert anonymous.returncode != 0
    node.ctl("users", "add", "alice", "--no-password", code=1)
    node.ctl("users", "add", "alice", "--password", "secret", code=2)
    node.ctl("users", "set", "alice", "--disabled", "--attribute", "class=gold")
    assert not login(node, "alice", "secret")
    node.ctl("users", "set", "alice", "--enabled")
    assert node.json("users", "show", "alice")["attributes"] == {"class": "gold"}
    node.ctl("users", "passwd", "alice", "--scram", stdin="other\n")
    assert login(node, "alice", "other") and not login(node, "alice", "secret")
    held = subprocess.Popen(["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-u", "alice", "-P", "other", "-t", "u"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: any(client["username"] == "alice" for client in node.json("clients")["items"]), "alice is connected")
    path = node.directory / "users.csv"
    path.write_text("name,password,tenant\nbob,pw,acme\n")
    assert "1 added" in node.text("users", "import", str(path))
    node.ctl("users", "import", str(path), code=1)
    assert "1 left as they were" in node.text("users", "import", str(path), "--existing", "keep")
    assert login(node, "bob", "pw")
    table = node.text("users", "--search", "first")
    assert "alice" in table and "bob" not in table and "secret" not in table, table
    node.ctl("users", "remove", "alice", code=2)
    assert "removed" in node.text("users", "remove", "alice", "--yes")
    until(lambda: not any(client["username"] == "alice" for client in node.json("clients")["items"]), "alice is gone")
    end(held)
    node.ctl("users", "remove", "alice", "--yes", code=4)
    node.ctl("users", "remove", "bob", "--yes")
    node.publish("u", "x")


def rules(node):
    """rules: add, insert, change, move, remove; a denied publish is refused"""
    node.ctl("rules", "add", "allow everyone all #")
    first = node.json("rules", "add", "deny everyone publish kept/out", "--position", "1")
    assert first["position"] == 1
    refused = subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-t", "kept/out", "-m", "x", "-q", "1"],
                             capture_output=True, text=True, timeout=20, check=False)
    assert "authori" in (refused.stdout + refused.stderr).lower() or refused.returncode != 0, refused
    node.ctl("rules", "add", "permit everyone publish x", code=1)
    assert node.json("rules", "set", first["id"], "--disabled")["enabled"] is False
    assert node.json("rules", "move", first["id"], "2")["position"] == 2
    table = node.text("rules")
    assert "off" in table and "kept/out" in table, table
    node.ctl("rules", "remove", first["id"], code=2)
    for rule in node.json("rules", "list")["items"]:
        assert "removed" in node.text("rules", "remove", rule["id"], "--yes")
    node.ctl("rules", "remove", first["id"], "--yes", code=4)
    node.publish("kept/out", "x")


def config(node):
    """config: show, validate, set, unset, history, rollback, reload"""
    document = node.json("config", "show")
    names = {setting["name"] for setting in document["settings"]}
    assert {"log.level", "queue.messages_max"} <= names, sorted(names)
    text = node.text("config", "show", "queue.messages_max")
    assert "default" in text and "type" in text, text
    assert "queue.messages_max" in node.text("config", "show", "queue")
    assert "queue.messages_max" in node.ctl("config", "show", "queue.message_max", code=2).err
    changeable = next(s for s in document["settings"] if s["name"] == "queue.messages_max")
    assert changeable["reloadable"], changeable
    assert "can be set" in node.text("config", "validate", "queue.messages_max=77")
    said = node.ctl("config", "validate", "queue.messages_max=lots", "no.such=1", code=1).err
    assert "queue.messages_max" in said and "no.such" in said, said
    assert node.json("config", "validate", "queue.messages_max=lots", code=1)["valid"] is False
    text = node.text("config", "set", "queue.messages_max=77", "--comment", "a test")
    assert "-> 77" in text, text
    first = int(text.split()[-1])
    node.ctl("config", "set", "queue.messages_max=78")
    # Whole words: a port may contain the same digits.
    words = node.text("config").split()
    assert "77" not in words and "78" in words, words
    history = node.json("config", "history")["items"]
    assert history[0]["version"] > first and any(item["comment"] == "a test" for item in history), history
    assert "a test" in node.text("config", "history")
    assert "--yes" in node.ctl("config", "rollback", str(first), code=2).err
    assert "78 -> 77" in node.text("config", "rollback", str(first), "--yes")
    node.ctl("config", "rollback", "999999", "--yes", code=4)
    assert "77 ->" in node.text("config", "unset", "queue.messages_max")
    said = node.ctl("config", "set", "no.such=1", "queue.messages_max=5", code=1).err
    assert "no.such" in said, said
    problem = json.loads(node.ctl("--json", "config", "set", "queue.messages_max=lots", code=1).err)
    assert problem["status"] == 422 and problem["errors"][0]["name"] == "queue.messages_max", problem
    reloaded = node.json("config", "reload")
    assert reloaded["changed"] == [] and any(file.endswith("runtime.toml") for file in reloaded["files"]), reloaded
    assert "no setting changed\nread again: " in node.text("config", "reload")


def counted_topics(node):
    """topic-metrics: add, count, remove"""
    assert "counted" in node.text("topic-metrics", "add", "m/+")
    node.ctl("topic-metrics", "add", "m/+", code=1)
    node.publish("m/1", "12345", "-q", "1")

    def counted():
        item = node.json("topic-metrics")["items"][0]
        return item["received"]["messages"] == 1 and item["received"]["bytes"] >= 5
    until(counted, "the message is counted")
    assert "m/+" in node.text("topic-metrics", "list")
    node.text("topic-metrics", "remove", "m/+")
    node.ctl("topic-metrics", "remove", "m/+", code=4)
    assert "add FILTER" in node.ctl("topic-metrics").err
    assert node.ctl("slow", "clear").out == "forgotten\n"


def cluster(node):
    """cluster: a node without a cluster has no members, and a removal needs --yes"""
    for verb in ([], ["status"]):
        assert "cluster.listen" in node.ctl("cluster", *verb, code=4).err
    said = node.ctl("cluster", "remove", "n2", code=2).err
    assert "n2" in said and "--yes" in said, said
    problem = json.loads(node.ctl("--json", "cluster", "remove", "n2", "--yes", code=4).err)
    assert problem["status"] == 404, problem
    node.ctl("cluster", "remove", code=2)


def audit(node):
    """audit: the changes of the checks above are listed, also refused ones"""
    entries = node.json("audit", "--limit", "1000")["items"]
    assert any(entry["path"].startswith("/api/v1/bans") and entry["status"] == 201 for entry in entries), entries[:3]
    assert any(entry["status"] >= 400 for entry in entries)
    assert "/api/v1/publish" in node.text("audit", "--limit", "1000")


CHECKS = [publish, retained, on_behalf, kick, ban, users, rules, config, counted_topics, cluster, audit]
