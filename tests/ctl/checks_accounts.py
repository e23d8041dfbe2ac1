"""Accounts and their sessions: `meridian account`, `meridian ctl accounts`, and logins on the nodes of a cluster."""

import json
import urllib.error
import urllib.request

from checks_cluster import health, start
from node import Node, free_port, until


def asked(node, method, path, cookie=None, body=None):
    """Status, body and cookie of a request as a page of the node sends it."""
    headers = {"Content-Type": "application/json", "Origin": node.url}
    if cookie:
        headers["Cookie"] = cookie
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(node.url + path, method=method, headers=headers, data=data)
    try:
        with urllib.request.urlopen(request, timeout=35) as answer:
            cookie = answer.headers.get("Set-Cookie", "").split(";")[0]
            text = answer.read().decode()
            return answer.status, json.loads(text) if text else None, cookie
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read().decode()), None


def login(node, name, password):
    status, body, cookie = asked(node, "POST", "/api/v1/login", body={"name": name, "password": password})
    assert status == 200 and cookie, f"{node.url}: {status} {body}"
    return cookie


def holds(node, cookie):
    return asked(node, "GET", "/api/v1/whoami", cookie)[0] == 200


def on_machine(node, *words, **more):
    """Runs `meridian account` on the data directory of a node, as an operator on the machine does."""
    return node.run("account", *words, "--data-dir", str(node.directory / "data"), **more)


def accounts(_):
    """accounts: the first one on the machine, others by ctl; passwd, role, list, remove; a key is not needed"""
    node = Node()
    try:
        on_machine(node, "add", "ann", "--role", "admin", stdin="correct horse\n")
        assert "at least 8" in on_machine(node, "add", "bob", "--role", "viewer", stdin="short\n", code=1).err
        assert "ann" in on_machine(node, "list").out and "admin" in on_machine(node, "list").out
        node.launch()
        node.ctl("health", "--wait", "20s")
        node.ctl("status", code=5)
        cookie = login(node, "ann", "correct horse")
        assert asked(node, "GET", "/api/v1/whoami", cookie)[1] == {"name": "ann", "role": "admin", "open": False, "session": True}
        made = asked(node, "POST", "/api/v1/keys", cookie, {"name": "boss", "role": "admin"})[1]
        node.token = made["token"]
        assert "account bob, viewer" in node.text("accounts", "add", "bob", "--role", "viewer", stdin="correct horse\n")
        table = node.text("accounts")
        assert "bob" in table and "viewer" in table, table
        of_bob = login(node, "bob", "correct horse")
        node.text("accounts", "role", "bob", "operator")
        assert not holds(node, of_bob)
        node.ctl("accounts", "passwd", "bob", stdin="another horse\n")
        assert asked(node, "POST", "/api/v1/login", body={"name": "bob", "password": "correct horse"})[0] == 401
        of_bob = login(node, "bob", "another horse")
        node.text("accounts", "remove", "bob", "--yes")
        assert not holds(node, of_bob)
        node.ctl("accounts", "remove", "bob", "--yes", code=4)
        assert any(entry["by"] == "ann" and entry["path"] == "/api/v1/login" for entry in node.json("audit")["items"])
        # A forgotten password is replaced on the machine, while the node runs.
        on_machine(node, "passwd", "ann", stdin="a third horse\n")
        assert not holds(node, cookie)
        cookie = login(node, "ann", "a third horse")
        # A restart ends no session.
        node.stop()
        node.restart()
        node.ctl("health", "--wait", "20s")
        assert holds(node, cookie)
    finally:
        node.close()


def sessions_of_a_cluster(_):
    """accounts: a session is valid on all nodes at once and ends on all; without a majority a login holds on its node"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, third = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        for node in nodes.values():
            node.ctl("health", "--wait", "60s")
            until(lambda node=node: health(node)[0] == 200, "the node has a quorum", 60)
        on_machine(second, "add", "ann", "--role", "admin", stdin="correct horse\n")
        for node in nodes.values():
            until(lambda node=node: node.ctl("status", code=None).returncode == 5, "an account is needed", 20)
        for node in nodes.values():
            cookie = login(node, "ann", "correct horse")
            # No waiting: a node that does not know the session yet reads it.
            assert all(holds(other, cookie) for other in nodes.values())
        ended = login(first, "ann", "correct horse")
        assert asked(second, "POST", "/api/v1/logout", ended)[0] == 204
        for node in nodes.values():
            until(lambda node=node: not holds(node, ended), "the session has ended on every node", 20)
        assert holds(third, cookie)
        changed = asked(third, "POST", "/api/v1/password", cookie, {"current": "correct horse", "new": "another horse"})
        assert changed[0] == 200, changed
        for node in nodes.values():
            until(lambda node=node: not holds(node, cookie), "the old session has ended on every node", 20)
        cookie = changed[2]
        assert all(holds(node, cookie) for node in nodes.values())

        for node in (second, third):
            node.process.kill()
            node.process.wait(20)
        until(lambda: health(first)[0] == 503, "the majority is gone", 30)
        assert holds(first, cookie), "sessions go on without a majority"
        alone = login(first, "ann", "another horse")
        assert holds(first, alone)
        assert asked(first, "POST", "/api/v1/logout", alone)[0] == 204
        assert not holds(first, alone)
    finally:
        for node in nodes.values():
            node.close()


CHECKS = [accounts, sessions_of_a_cluster]
