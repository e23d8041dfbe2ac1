"""API keys: with the first one the node asks everybody for a token."""

import json

from checks_top import top


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
    """top: a token that is not permitted any more is said to be so, without a screen"""
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


def the_last_key_goes(node):
    """keys: without the last one the node is open again"""
    node.ctl("keys", "remove", "boss")
    node.token = None
    assert node.json("whoami")["open"]


CHECKS = [keys, top_with_a_token, the_last_key_goes]
