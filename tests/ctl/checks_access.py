"""API keys: once one exists, the node requires a token for every request."""

import json

from checks_cluster import health, start
from checks_top import top
from node import Node, free_port, until


def keys(node):
    """keys: add, list, use, remove; roles; exit code 5"""
    admin = node.ctl("keys", "add", "boss", "--role", "admin")
    token = admin.out.strip()
    assert admin.out.count("\n") == 1 and token and "not shown again" in admin.err
    said = node.ctl("status", code=5).err
    assert "meridian key add" in said and "MERIDIAN_TOKEN" in said, said
    assert json.loads(node.ctl("--json", "status", code=5).err)["status"] == 401
    node.ctl("status", token="wrong", code=5)
    assert node.text("health").strip() == "ready", "health needs no token"
    node.token = token
    viewer = node.json("keys", "add", "eye", "--role", "viewer", "--expires", "1h")
    assert viewer["expires_at"], viewer
    assert "viewer" in node.text("whoami", token=viewer["token"]) and "eye" in node.text("whoami", token=viewer["token"])
    assert node.json("whoami", token=viewer["token"])["open"] is False
    node.ctl("clients", token=viewer["token"])
    said = node.ctl("kick", "x", token=viewer["token"], code=5).err
    assert "whoami" in said, said
    node.ctl("keys", token=viewer["token"], code=5)
    path = node.directory / "token"
    path.write_text(viewer["token"] + "\n")
    assert node.json("whoami", "--token-file", str(path))["name"] == "eye"
    node.ctl("whoami", "--token-file", str(node.directory / "absent"), code=1)
    table = node.text("keys", "list")
    assert "boss" in table and "eye" in table and token not in table, table
    node.ctl("keys", "add", "boss", "--role", "admin", code=1)
    node.text("keys", "remove", "eye")
    node.ctl("clients", token=viewer["token"], code=5)
    node.ctl("keys", "remove", "eye", code=4)
    assert any(entry["by"] == "boss" for entry in node.json("audit")["items"])


def top_with_a_token(node):
    """top: a token that is no longer valid is an error before the screen opens"""
    terminal = top(node)
    terminal.until("Traffic")
    terminal.press("q")
    assert terminal.end() == 0
    terminal.close()
    token, node.token = node.token, None
    terminal = top(node)
    assert terminal.end() == 5
    terminal.close()
    node.token = token


def key_in_data_directory(node, *words, **more):
    """Runs `meridian key` on the data directory of a node, as an operator on the machine without a key does."""
    return node.run("key", *words, "--data-dir", str(node.directory / "data"), **more)


def keys_lost(node):
    """keys: a lost admin key is replaced on the machine of the node; the event log and the audit log record it"""
    before = node.token
    done = key_in_data_directory(node, "add", "rescue", "--role", "admin")
    rescue = done.out.strip()
    assert done.out.count("\n") == 1 and "not in force" not in done.err, done.err
    assert node.json("whoami", token=rescue)["role"] == "admin"
    assert "already" in key_in_data_directory(node, "add", "rescue", "--role", "admin", code=1).err
    entry = next(entry for entry in node.json("audit", token=rescue)["items"] if entry["by"] == "meridian key")
    assert entry["status"] == 201 and entry["path"] == "/api/v1/keys" and "rescue" in entry["detail"], entry
    assert rescue not in json.dumps(entry)
    assert "meridian key" in node.text("audit", token=rescue)
    log = (node.directory / "node.log").read_text()
    assert any("WARN" in line and "key rescue for a admin" in line for line in log.splitlines()), log[-2000:]
    key_in_data_directory(node, "remove", "rescue")
    node.ctl("status", token=rescue, code=5)
    node.ctl("status", token=before)


def keys_lost_in_a_cluster(_):
    """keys: in a cluster a lost admin key is replaced on the machine of one running or stopped node; the new key is valid on all nodes"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        for node in nodes.values():
            node.ctl("health", "--wait", "60s")
            until(lambda node=node: health(node)[0] == 200, "the node has a quorum", 60)
        first.ctl("keys", "add", "lost", "--role", "admin")
        for node in nodes.values():
            until(lambda node=node: node.ctl("status", code=None).returncode == 5, "a key is needed", 20)

        is_valid = lambda node, token: node.ctl("whoami", token=token, code=None).returncode == 0
        rescue = key_in_data_directory(second, "add", "rescue", "--role", "admin").out.strip()
        for node in nodes.values():
            until(lambda node=node: is_valid(node, rescue), "the key is valid on every node", 20)
        assert any(entry["by"] == "meridian key" for entry in second.json("audit", token=rescue)["items"])

        # A key that is added while a node is stopped is valid once that node has started.
        last.stop()
        done = key_in_data_directory(last, "add", "late", "--role", "admin")
        late, wanted = done.out.strip(), last.directory / "data" / "key-wanted.json"
        assert "not in force yet" in done.err and str(wanted) in done.err, done.err
        assert late not in wanted.read_text() and wanted.stat().st_mode & 0o777 == 0o600
        assert str(wanted) in key_in_data_directory(last, "remove", "lost", code=1).err
        assert not is_valid(first, late)
        start(nodes, ports, secret, "n3")
        for node in nodes.values():
            until(lambda node=node: is_valid(node, late), "the key is valid on every node", 60)
        assert not wanted.exists()
        key_in_data_directory(last, "remove", "lost")
        assert {key["name"] for key in first.json("keys", token=late)["items"]} == {"rescue", "late"}
    finally:
        for node in nodes.values():
            node.close()


def last_key_removed(node):
    """keys: after the last one is removed, the node is in open mode"""
    node.ctl("keys", "remove", "boss")
    node.token = None
    assert node.json("whoami")["open"]


CHECKS = [keys, keys_lost, keys_lost_in_a_cluster, top_with_a_token, last_key_removed]
