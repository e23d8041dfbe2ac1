"""Commands about the members of a cluster, against three cores of their own."""

import json
import urllib.error
import urllib.request

from node import Node, free_port, until


def health(node):
    """Status and body of /health/quorum."""
    try:
        with urllib.request.urlopen(f"{node.url}/health/quorum", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def answers(node):
    try:
        return health(node)
    except OSError:
        return None


def states(node):
    """What the node knows the members to be, by name."""
    membership = node.json("cluster", "status")["membership"]
    return {member["node"]: member["state"] for member in membership["members"]}


def start(nodes, ports, secret, name):
    join = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    settings = [f"cluster.listen=127.0.0.1:{ports[name]}", f"cluster.join={join}", f"cluster.secret_file={secret}",
                "cluster.silence_max=500ms", "cluster.lease=500ms"]
    nodes[name].launch("--name", name, *(word for setting in settings for word in ("--set", setting)))


def members(_):
    """cluster: three cores found one and agree who leads, one that is killed is dead, is removed when it is meant, and joins again"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, last = nodes["n1"], nodes["n3"]
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        for node in nodes.values():
            node.ctl("health", "--wait", "20s")
        alive = dict.fromkeys(nodes, "alive")
        for node in nodes.values():
            until(lambda node=node: states(node) == alive, "all know all members", 30)
            until(lambda node=node: health(node)[0] == 200, "a majority agrees", 30)
        replica = until(lambda: (it := first.json("cluster")["membership"]["replica"])["voters"] == 3 and it["leader"] and it, "three vote", 30)
        text = first.text("cluster", "status")
        assert "majority is 2" in text and "leads" in text and "INCARNATION" in text, (replica, text)
        assert "stop it first" in first.ctl("cluster", "remove", "n3", "--yes", code=1).err
        assert "n1, n2, n3" in first.ctl("cluster", "remove", "n4", "--yes", code=4).err
        leads = lambda node: "meridian_cluster_meta_leader 1\n" in node.text("metrics", "meridian_cluster_meta")
        until(lambda: sum(map(leads, nodes.values())) == 1, "one leads", 30)

        last.process.kill()
        last.process.wait(20)
        until(lambda: states(first)["n3"] == "dead", "the others agree that it is dead", 60)
        assert "meridian ctl cluster remove n3" in first.ctl("cluster").err
        assert health(first)[0] == 200, health(first)
        assert "n3" in first.ctl("cluster", "remove", "n3", code=2).err
        assert first.text("cluster", "remove", "n3", "--yes") == "node n3 is removed\n"
        for node in (first, nodes["n2"]):
            until(lambda node=node: states(node) == {"n1": "alive", "n2": "alive"}, "it is a member no more", 30)
        entries = first.json("audit", "--limit", "100")["items"]
        assert any(entry["path"].endswith("/cluster/nodes/n3") and entry["status"] == 204 for entry in entries), entries

        start(nodes, ports, secret, "n3")
        until(lambda: states(first) == alive, "it has joined again", 60)

        for node in (nodes["n2"], last):
            node.process.kill()
            node.process.wait(20)
        status, body = until(lambda: (it := health(first))[0] == 503 and it, "one of three has no majority", 60)
        assert "no_quorum" in body and "majority" in body, (status, body)
        assert "no quorum" in first.ctl("cluster", "status").err
        refused = first.ctl("ban", "add", "client-id", "c", code=3).err
        assert "look before you try again" in refused and "cluster status" in refused, refused
        assert json.loads(first.ctl("--json", "rules", "add", "allow everyone publish a", code=3).err)["status"] == 503
    finally:
        for node in nodes.values():
            node.close()


def come_and_go(_):
    """cluster: a core that was told of another one joins, the lead is handed over, and cores leave until one is left"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    nobody = free_port()
    try:
        pair = {name: ports[name] for name in ("n1", "n2")}
        for name in pair:
            start(nodes, pair, secret, name)
        # It is told where others are when it runs already. Until then it lets nobody in.
        start(nodes, {**ports, "n1": nobody, "n2": nobody}, secret, "n3")
        until(lambda: answers(last), "it runs", 30)
        until(lambda: last.json("cluster")["membership"]["waits_for"], "it waits", 30)
        assert "starting" in last.ctl("health", code=1).err
        assert "HOST:PORT" in last.ctl("cluster", "join", "nowhere", code=1).err
        last.ctl("cluster", "join", f"127.0.0.1:{ports['n1']}")
        last.ctl("health", "--wait", "30s")
        alive = dict.fromkeys(nodes, "alive")
        for node in nodes.values():
            until(lambda node=node: states(node) == alive, "all know all members", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        assert "already" in last.ctl("cluster", "join", f"127.0.0.1:{ports['n1']}", code=1).err

        for name in ("n2", "n1", "n3"):
            assert last.text("cluster", "transfer", name) == f"node {name} leads\n"
            until(lambda name=name: first.json("cluster")["membership"]["replica"]["leader"] == name, f"{name} leads", 30)
        assert "n1, n2, n3" in last.ctl("cluster", "transfer", "n4", code=4).err
        assert "HEARS FROM" in last.text("cluster", "nodes") and "n2" in last.text("cluster", "nodes")
        last.ctl("cluster", "balance")

        assert "--yes" in last.ctl("cluster", "leave", code=2).err
        last.ctl("--yes", "cluster", "leave")
        assert last.process.wait(60) == 0, "it has ended by itself"
        until(lambda: states(first) == {"n1": "alive", "n2": "alive"}, "it has left", 30)
        second.ctl("--yes", "cluster", "leave")
        assert second.process.wait(60) == 0
        until(lambda: states(first) == {"n1": "alive"}, "the next one, too", 30)
        until(lambda: health(first)[0] == 200, "one is a majority of one", 30)
        assert "nobody to agree" in first.ctl("--yes", "cluster", "leave", code=1).err
    finally:
        for node in nodes.values():
            node.close()


CHECKS = [members, come_and_go]
