"""Commands about the members of a cluster, on clusters that the checks start."""

import errno
import json
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from node import Node, end, free_port, until


def asked(node, path):
    """Status and body of a request without a key."""
    try:
        with urllib.request.urlopen(node.url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def health(node):
    return asked(node, "/health/quorum")


def answers(node):
    try:
        return health(node)
    except OSError:
        return None


def states(node):
    """States of the members by name, as the node knows them."""
    membership = node.json("cluster", "status")["membership"]
    return {member["node"]: member["state"] for member in membership["members"]}


def start(nodes, ports, secret, name, *more, join=None):
    """Starts a node. `join`: ports to join; by default all ports."""
    join = ",".join(f"127.0.0.1:{port}" for port in (ports.values() if join is None else join))
    settings = [f"cluster.listen=127.0.0.1:{ports[name]}", *([f"cluster.join={join}"] if join else []), f"cluster.secret_file={secret}",
                "cluster.silence_max=500ms", "cluster.lease=500ms", *more]
    nodes[name].launch("--name", name, *(word for setting in settings for word in ("--set", setting)))


def members(_):
    """cluster: three cores form a cluster with one leader; a killed core is declared dead, is removed with --yes, and joins again"""
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
            until(lambda node=node: health(node)[0] == 200, "the node has a quorum", 30)
        replica = until(lambda: (it := first.json("cluster")["membership"]["replica"])["voters"] == 3 and it["leader"] and it, "three vote", 30)
        text = first.text("cluster", "status")
        assert "majority is 2" in text and "leads" in text and "INCARNATION" in text, (replica, text)
        assert "stop it first" in first.ctl("cluster", "remove", "n3", "--yes", code=1).err
        assert "n1, n2, n3" in first.ctl("cluster", "remove", "n4", "--yes", code=4).err
        leads = lambda node: "meridian_cluster_meta_leader 1\n" in node.text("metrics", "meridian_cluster_meta")
        until(lambda: sum(map(leads, nodes.values())) == 1, "there is one leader", 30)

        last.process.kill()
        last.process.wait(20)
        until(lambda: states(first)["n3"] == "dead", "it is declared dead", 60)
        follower = nodes["n2"] if leads(first) else first
        until(lambda: said(follower, "WARN", "node n3 is suspected: no core reaches it"), "a follower logs it too")
        shown = first.ctl("cluster")
        assert "meridian ctl cluster remove n3" in shown.err and "! n3 (" not in shown.err, shown.err
        assert "3: 2 up, 1 dead (n3)" in shown.out, shown.out
        assert first.json("cluster")["unjoined_peers"] == [], "a dead member is no unjoined peer"
        assert health(first)[0] == 200, health(first)
        assert "n3" in first.ctl("cluster", "remove", "n3", code=2).err
        assert first.text("cluster", "remove", "n3", "--yes") == "node n3 is removed\n"
        for node in (first, nodes["n2"]):
            until(lambda node=node: states(node) == {"n1": "alive", "n2": "alive"}, "it is no longer a member", 30)
        entries = first.json("audit", "--limit", "100")["items"]
        assert any(entry["path"].endswith("/cluster/nodes/n3") and entry["status"] == 204 for entry in entries), entries

        start(nodes, ports, secret, "n3")
        until(lambda: states(first) == alive, "it has joined again", 60)
        # A link to a restarted node is new. This is no error.
        second = nodes["n2"]
        second.stop()
        start(nodes, ports, secret, "n2")
        second.ctl("health", "--wait", "30s")
        for name, node in nodes.items():
            until(lambda: all(link["state"] == "up" for link in node.json("cluster")["links"]), f"{name} is linked to all", 30)
            assert not said(node, "not joined", "secret") and not said(node, "not joined", "handshake"), name
        until(lambda: states(first) == alive, "it is alive again", 60)

        for node in (nodes["n2"], last):
            node.process.kill()
            node.process.wait(20)
        status, body = until(lambda: (it := health(first))[0] == 503 and it, "one of three has no majority", 60)
        assert "no_quorum" in body and "majority" in body, (status, body)
        shown = until(lambda: "no quorum" in (it := first.ctl("cluster", "status")).err and it, "it has lost the leader", 30)
        assert "as last known" in shown.out, shown
        refused = first.ctl("ban", "add", "client-id", "c", code=3).err
        assert "look before you try again" in refused and "cluster status" in refused, refused
        warning, problem = first.ctl("--json", "rules", "add", "allow everyone publish a", code=3).err.split("\n", 1)
        assert "first rule" in warning and json.loads(problem)["status"] == 503, (warning, problem)
    finally:
        for node in nodes.values():
            node.close()


def read_line(client, what):
    """Next line of a client, which has to come soon."""
    timer = threading.Timer(30, client.kill)
    timer.start()
    line = client.stdout.readline()
    timer.cancel()
    assert line, what
    return line


def grows(_):
    """cluster: one node grows to three cores while clients publish and subscribe at QoS 1: no client is disconnected, no message is refused or lost; its clients are taken over elsewhere, also after its death"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    enough = threading.Event()
    count = 0

    def publish(pipe):
        """Publishes a message every 10 ms."""
        nonlocal count
        while not enough.is_set():
            pipe.write(f"{count}\n")
            pipe.flush()
            count += 1
            time.sleep(0.01)

    def payloads(client, last):
        """Payloads that a client has received, up to `last`."""
        lines = []
        while not lines or lines[-1] != last:
            line = client.stdout.readline()
            assert line, f"it has ended: {client.communicate(timeout=10)[1]}"
            lines.append(line.rstrip("\n"))
        return lines

    try:
        start(nodes, ports, secret, "n1", join=[])
        first.ctl("health", "--wait", "20s")
        # These clients do not reconnect: they end with an error when the connection is lost.
        subscriber = first.spawn("sub", "-p", str(first.mqtt), "-i", "subscriber", "-t", "grows", "-t", "from/#", "-q", "1", "-F", "%p")
        until(lambda: first.subscribed("subscriber") == 2, "it has subscribed")
        sender = first.spawn("pub", "-p", str(first.mqtt), "-i", "sender", "-t", "grows", "-q", "1", "--stdin-lines", stdin=subprocess.PIPE)
        owned = first.spawn("sub", "-p", str(first.mqtt), "-i", "owned", "-t", "owned")
        until(lambda: first.subscribed("owned") == 1, "another client has connected")
        publisher = threading.Thread(target=publish, args=[sender.stdin])
        publisher.start()
        try:
            until(lambda: count > 20, "it publishes")
            until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 1, "it is a cluster of one")
            for name in ("n2", "n3"):
                start(nodes, ports, secret, name, join=[ports["n1"]])
                nodes[name].ctl("health", "--wait", "30s")
            for node in nodes.values():
                until(lambda node=node: states(node) == dict.fromkeys(nodes, "alive"), "all know all members", 30)
                until(lambda node=node: node.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
                votes = [member["votes"] for member in node.json("cluster", "status")["membership"]["members"]]
                assert votes == [True] * 3, votes
            there = last.spawn("sub", "-p", str(last.mqtt), "-i", "there", "-t", "grows", "-q", "1", "-F", "%p")
            until(lambda: last.subscribed("there") == 1, "a client of the third node has subscribed")
            grown = count
            until(lambda: count > grown + 50, "it goes on publishing")
        finally:
            enough.set()
            publisher.join()
        sender.stdin.close()
        assert sender.wait(20) == 0, sender.stderr.read()
        for node in (second, last):
            node.publish(f"from/{node.mqtt}", str(node.mqtt), "-q", "1")
        expected = [str(number) for number in range(count)]
        came = payloads(subscriber, str(last.mqtt))
        assert came == [*expected, str(second.mqtt), str(last.mqtt)], (count, came)
        crossed = payloads(there, expected[-1])
        assert crossed == expected[-len(crossed):] and len(crossed) >= 50, crossed
        assert subscriber.poll() is None and there.poll() is None and owned.poll() is None
        until(lambda: all(len(shard["replicas"]) == 3 for shard in first.json("cluster")["shards"]["items"]), "each shard has three replicas", 60)
        # The first node has these connections from the time when it was alone.
        taker = second.subscriber("owned", "taken")
        assert owned.wait(20) != 0, "it was taken over"
        first.process.kill()
        first.process.wait(20)
        subscriber.wait(20)
        until(lambda: states(second)["n1"] == "dead", "the first node is dead", 60)
        returned = last.subscriber("subscriber", "taken")
        second.publish("taken", "on", "-q", "1")
        for client in (taker, returned):
            assert read_line(client, "no message arrives").split() == ["taken", b"on".hex()]
    finally:
        for node in nodes.values():
            node.close()


def wills(_):
    """cluster: the Wills of a durable and of an ephemeral session whose node was killed are published by the others, once"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        subscriber = second.subscriber("subscriber", "will/#")
        mortals = []
        for name, durable in (("durable", ["-c", "-x", "3600"]), ("ephemeral", [])):
            mortals.append(last.spawn("sub", "-p", str(last.mqtt), "-i", name, *durable, "-t", "t", "--will-topic", f"will/{name}", "--will-payload", "gone", "--will-qos", "1"))
            until(lambda name=name: last.subscribed(name) == 1, "it has connected")
        last.process.kill()
        last.process.wait(20)
        for mortal in mortals:
            mortal.wait(20)
        until(lambda: states(first)["n3"] == "dead", "its node is dead", 60)
        came = sorted(read_line(subscriber, "no Will arrives").split()[0] for _ in mortals)
        assert came == ["will/durable", "will/ephemeral"], came
        first.publish("will/end", "now", "-q", "1")
        assert read_line(subscriber, "no message arrives").split()[0] == "will/end", "a Will came twice"
    finally:
        for node in nodes.values():
            node.close()


def by_name(_):
    """cluster: cores that share one host name with many addresses form a cluster, and a replicant joins although the first addresses are dead"""
    nodes = {name: Node() for name in ("n1", "n2", "n3", "n4")}
    first = nodes["n1"]
    port = free_port()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    # No node has the first address.
    hosts = first.directory / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.{last} cores.test\n" for last in (9, 1, 2, 3)))

    def begin(name):
        settings = [f"cluster.listen=127.0.0.{name[1]}:{port}", f"cluster.join=cores.test:{port}", "cluster.expect=3", f"cluster.secret_file={secret}",
                    "cluster.silence_max=500ms", "cluster.lease=500ms", f"cluster.role={'replicant' if name == 'n4' else 'core'}"]
        nodes[name].launch("--name", name, *(word for setting in settings for word in ("--set", setting)))

    try:
        if not all(node.mounts("--bind", str(hosts), "/etc/hosts") for node in nodes.values()):
            print("skipped: names of its own for a node need root, or user namespaces", flush=True)
            return
        cores = ("n1", "n2", "n3")
        for name in cores:
            begin(name)
        for name in cores:
            node = nodes[name]
            node.ctl("health", "--wait", "30s")
            until(lambda node=node: states(node) == dict.fromkeys(cores, "alive"), "all know all members", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        first.process.kill()
        first.process.wait(20)
        begin("n4")
        nodes["n4"].ctl("health", "--wait", "30s")
        until(lambda: states(nodes["n3"]).get("n4") == "alive", "it has joined", 30)
    finally:
        for node in nodes.values():
            node.close()


def logs(_):
    """cluster: the event log has links, leader, core of a replicant, and lost leases"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    secret = nodes["n1"].directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    cores, replicant = ("n1", "n2"), nodes["n3"]
    role = {"n3": ["cluster.role=replicant"]}
    try:
        for name in nodes:
            start(nodes, ports, secret, name, *role.get(name, []), join=[ports[core] for core in cores])
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
            until(lambda node=node: states(node) == dict.fromkeys(nodes, "alive"), "all know all members", 30)
            until(lambda node=node: said(node, "INFO", "a majority of the cores lets this node acknowledge QoS 1 and 2"), "it may acknowledge", 30)
            for other in nodes:
                assert nodes[other] is node or said(node, "INFO", f"linked to node {other}"), other
        assert said(nodes["n1"], "core n2 has joined the cluster") or said(nodes["n2"], "core n1 has joined the cluster")
        leader = until(lambda: nodes["n1"].json("cluster")["membership"]["replica"]["leader"], "there is one leader", 30)
        other = next(core for core in cores if core != leader)
        until(lambda: said(nodes[other], "INFO", f"core {leader} leads the meta group"), "the other core logs the leader")
        until(lambda: said(nodes[leader], "INFO", "this core leads the meta group"), "the leader logs that it leads")

        # The replicant does this by itself five seconds after it has joined.
        nodes["n1"].ctl("cluster", "balance")
        attached = lambda: replicant.json("cluster")["attached_to"]

        def settled():
            before = attached()
            time.sleep(1.5)
            return before if attached() == before else None

        core = until(settled, "it is attached to a core, and does not move any more", 20)
        assert said(replicant, "INFO", f"this node is attached to core {core}")
        remains = next(other for other in cores if other != core)
        nodes[core].process.kill()
        nodes[core].process.wait(20)
        until(lambda: attached() == remains, "it is attached to the other core", 20)
        until(lambda: said(replicant, "INFO", f"this node is attached to core {remains}: the link to the previous core is lost", f'from="{core}"'), "it logs the change")
        for name in (remains, "n3"):
            node = nodes[name]
            until(lambda node=node: said(node, "WARN", f"link to node {core} lost", "queued here up to cluster.buffer_max"), "it logs the lost link", 20)
            until(lambda node=node: said(node, "WARN", "no majority of the cores lets this node acknowledge any more", "of 2 cores this node reaches 1", core),
                  "it logs why it does not acknowledge", 20)
        start(nodes, ports, secret, core, join=[ports[core] for core in cores])
        for name in (remains, "n3"):
            node = nodes[name]
            until(lambda node=node: said(node, "INFO", f"linked to node {core} again"), "it logs the new link", 30)
            until(lambda node=node: said(node, "INFO", "lets this node acknowledge again: publishers of QoS 1 and 2 continue"), "it logs that it acknowledges again", 30)
    finally:
        for node in nodes.values():
            node.close()


def come_and_go(_):
    """cluster: a core joins by command, leadership is transferred, and cores leave until one is left"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    try:
        pair = {name: ports[name] for name in ("n1", "n2")}
        for name in pair:
            start(nodes, pair, secret, name)
        # The command gives the addresses to the running node. Until then it accepts no clients.
        start(nodes, {**ports, "n1": free_port(), "n2": free_port()}, secret, "n3")
        until(lambda: answers(last), "it runs", 30)
        until(lambda: last.json("cluster")["membership"]["waits_for"], "it waits", 30)
        assert "starting" in last.ctl("health", code=1).err
        assert "write nowhere:PORT" in last.ctl("cluster", "join", "nowhere", code=2).err
        last.ctl("cluster", "join", f"127.0.0.1:{ports['n1']}")
        last.ctl("health", "--wait", "30s")
        alive = dict.fromkeys(nodes, "alive")
        for node in nodes.values():
            until(lambda node=node: states(node) == alive, "all know all members", 30)
        # A node that does not know yet of the last vote would refuse a transfer to its core.
        for node in nodes.values():
            until(lambda node=node: node.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        assert "already" in last.ctl("cluster", "join", f"127.0.0.1:{ports['n1']}", code=1).err

        for name in ("n2", "n1", "n3"):
            assert last.text("cluster", "transfer", name) == f"node {name} leads\n"
            until(lambda name=name: first.json("cluster")["membership"]["replica"]["leader"] == name, f"{name} leads", 30)
        assert "n1, n2, n3" in last.ctl("cluster", "transfer", "n4", code=4).err
        assert "ATTACHED TO" in last.text("cluster", "nodes") and "n2" in last.text("cluster", "nodes")
        last.ctl("cluster", "balance")

        assert "--yes" in last.ctl("cluster", "leave", code=2).err
        last.ctl("--yes", "cluster", "leave")
        assert last.process.wait(60) == 0, "the process ends"
        until(lambda: states(first) == {"n1": "alive", "n2": "alive"}, "it has left", 30)
        second.ctl("--yes", "cluster", "leave")
        assert second.process.wait(60) == 0
        until(lambda: states(first) == {"n1": "alive"}, "the next one has left", 30)
        until(lambda: health(first)[0] == 200, "one is a majority of one", 30)
        assert "nobody to agree" in first.ctl("--yes", "cluster", "leave", code=1).err
    finally:
        for node in nodes.values():
            node.close()


def leaves_once(_):
    """cluster: a repeated leave is harmless, a stopping node stays a member, and a failed leave is an error"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    # With replicas, a core that leaves waits for their copies, here for ten minutes.
    long = ["cluster.lease=10s", "cluster.silence_max=10s", "node.shutdown_timeout=20s", "cluster.replicas=0"]
    leave = lambda node, **more: node.ctl("--yes", "cluster", "leave", **more)
    try:
        for name in nodes:
            start(nodes, ports, secret, name, *long)
        for node in nodes.values():
            node.ctl("health", "--wait", "60s")
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 60)

        # A client that does not read delays the shutdown.
        stays = last.subscriber("stays", "t", qos=0)
        stays.send_signal(signal.SIGSTOP)
        large = last.directory / "large"
        large.write_bytes(b"x" * 1_000_000)
        for _ in range(30):
            subprocess.run(["mosquitto_pub", "-p", str(last.mqtt), "-t", "t", "-f", str(large)], capture_output=True, timeout=20, check=True)
        last.process.terminate()
        until(lambda: said(last, "INFO", "stopping"), "it stops")
        assert "begun to stop" in leave(last, code=1).err
        assert last.process.poll() is None, "the shutdown continues"
        stays.kill()
        assert last.process.wait(60) == 0
        start(nodes, ports, secret, "n3", *long)
        last.ctl("health", "--wait", "60s")
        until(lambda: states(first) == dict.fromkeys(nodes, "alive"), "it is still a member", 60)
        until(lambda: states(last) == dict.fromkeys(nodes, "alive"), "it knows its state", 60)
        # In this incarnation, not only in the previous one.
        until(lambda: last.json("cluster")["membership"]["waits_for"] is None, "it has joined", 60)

        # Without a majority it cannot leave.
        for node in (first, second):
            node.process.send_signal(signal.SIGSTOP)
        assert "stops and leaves" in leave(last).out
        until(lambda: said(last, "leaving the cluster"), "it leaves", 30)
        assert "stops and leaves" in leave(last).out
        assert last.process.poll() is None, "it still leaves"
        for node in (first, second):
            node.process.send_signal(signal.SIGCONT)
        assert last.process.wait(90) == 0
        until(lambda: states(first) == {"n1": "alive", "n2": "alive"}, "it has left", 60)

        until(lambda: states(second) == {"n1": "alive", "n2": "alive"}, "the other core knows it", 60)
        first.process.send_signal(signal.SIGSTOP)
        assert "stops and leaves" in leave(second).out
        assert second.process.wait(120) == 1, "it is still a member"
        assert said(second, "ERROR", "without having left the cluster", "cluster remove n2")
    finally:
        for node in nodes.values():
            node.close()


def said(node, *parts):
    """True if one line of the node's log contains all parts."""
    lines = (node.directory / "node.log").read_text(errors="replace").splitlines()
    return any(all(part in line for part in parts) for line in lines)


def peer_of(node, address, words, name=None):
    """Unjoined peer of the node with this address and reason, or `None`."""
    shown = node.json("cluster")["unjoined_peers"]
    of = (it for it in shown if it["address"] == address and words in it["reason"] and name in (None, it["name"]))
    return next(of, None)


def refused_peers(_):
    """cluster: a node with a taken name, another secret or another cluster id is refused; both nodes show and log the reason and what to do"""
    nodes = {name: Node() for name in ("core", "n2", "own", "taken", "secret", "other")}
    core = nodes["core"]
    port = free_port()
    secrets = {name: node.directory / "cluster.secret" for name, node in nodes.items()}
    for name, path in secrets.items():
        path.write_text("a secret of another cluster" if name == "secret" else "a secret that is long enough")

    listens = {}

    def start_as(which, name, *more):
        listen = port if which == "core" else free_port()
        listens[which] = f"127.0.0.1:{listen}"
        settings = [f"cluster.listen=127.0.0.1:{listen}", f"cluster.secret_file={secrets[which]}", *more]
        if which != "core":
            settings += [f"cluster.join=127.0.0.1:{port}", "cluster.role=replicant"]
        nodes[which].launch("--name", name, *(word for setting in settings for word in ("--set", setting)))

    try:
        start_as("core", "n1")
        core.ctl("health", "--wait", "30s")
        start_as("n2", "n2")
        nodes["n2"].ctl("health", "--wait", "30s")
        for which, name, here, there in [
            ("own", "n1", "give each node a name of its own", "give each node a name of its own"),
            ("taken", "n2", "another process with this name", "another process with this name"),
            ("secret", "n4", "does not know the cluster's secret", "the cluster's secret is not the same on both: check the secret's file"),
            ("other", "n5", 'The cluster.id of this node is "another"', 'The cluster.id of this node is "meridian"'),
        ]:
            start_as(which, name, *(["cluster.id=another"] if which == "other" else []))
            until(lambda it=nodes[which], words=here: said(it, "not joined", words), f"{which} logs the reason", 30)
            until(lambda words=there: said(core, "not joined", words), f"the core logs the reason for {which}", 30)
            at = f"127.0.0.1:{port}"
            shown = until(lambda it=nodes[which], words=here, at=at: peer_of(it, at, words), f"{which} shows the reason", 30)
            assert f"! {shown['address']}" in nodes[which].ctl("cluster", "status").err, shown
            # A peer with a taken name is shown by its advertised address, others by their source address.
            there_at = listens[which] if which in ("own", "taken") else "127.0.0.1"
            shown = until(lambda words=there, at=there_at, name=name: peer_of(core, at, words, name), f"the core shows the reason for {which}", 30)
            assert f"! {there_at} ({name}): " in core.ctl("cluster", "status").err, shown
            if which == "taken":
                words = f"another process at this address has the name of this node, which is at {listens['n2']}"
                until(lambda it=there_at, words=words: peer_of(nodes["n2"], it, words, "n2"), "the node with that name shows it too", 30)
                time.sleep(11)
                assert not said(nodes[which], "the other one of the two nodes must connect"), "the reason is known"
            nodes[which].stop()
        assert states(core) == {"n1": "alive", "n2": "alive"}, states(core)
        replicant = nodes["n2"]
        shown = replicant.json("cluster")
        assert shown["acknowledging"] and shown["lease_s"] > 0 and [core["node"] for core in shown["lease_granted_by"]] == ["n1"], shown
        assert [node["node"] for node in core.json("cluster")["leases_granted"]] == ["n2"]
        assert "by leases of n1" in replicant.text("cluster"), replicant.text("cluster")
        core.stop()
        until(lambda: replicant.json("cluster")["membership"]["stale"], "the replicant notices that no core is reachable", 30)
        out = replicant.text("cluster")
        assert "NO: this node reaches no majority" in out and "alive (as last known)" in out, out
    finally:
        for node in nodes.values():
            node.close()


def unreachable(_):
    """cluster: a node with an unreachable advertised address is named by the others and learns of it, until it is reachable"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    first, *others = nodes.values()
    port, closed = free_port(), free_port()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    settings = [f"cluster.listen=127.0.0.1:{port}", f"cluster.secret_file={secret}"]

    def join(node, *more):
        mine = [f"cluster.listen=127.0.0.1:{free_port()}", f"cluster.join=127.0.0.1:{port}", f"cluster.secret_file={secret}", "cluster.role=replicant", *more]
        node.launch("--name", name_of(node), *(word for setting in mine for word in ("--set", setting)))

    name_of = lambda node: next(name for name, it in nodes.items() if it is node)
    try:
        first.launch("--name", "n1", *(word for setting in settings for word in ("--set", setting)))
        first.ctl("health", "--wait", "30s")
        for node in others:
            name = name_of(node)
            join(node, f"cluster.advertise=127.0.0.1:{closed}")
            # Only one of two nodes dials. The other one sees no connection.
            until(lambda: answers(node), "it runs", 30)
            is_dialed = lambda: peer_of(first, f"127.0.0.1:{closed}", "cluster.advertise", name)
            waits = lambda: peer_of(node, f"127.0.0.1:{port}", f"reaches this node at 127.0.0.1:{closed} (cluster.advertise", "n1")
            is_member = lambda: states(first).get(name) == "alive"
            until(lambda: is_dialed() and waits() or is_member(), "it learns of it, or it is the one that dials", 60)
            if not is_member():
                assert f"! 127.0.0.1:{closed} ({name}): it cannot be reached" in first.ctl("cluster").err
            node.stop()
            join(node)
            node.ctl("health", "--wait", "30s")
            until(lambda: not peer_of(first, f"127.0.0.1:{closed}", "", name), "it is joined", 30)
            assert not node.json("cluster")["unjoined_peers"], node.json("cluster")["unjoined_peers"]
    finally:
        for node in nodes.values():
            node.close()


def damaged(_):
    """cluster: a core with damage inside its log does not start, even after a repair, and joins again with an empty directory"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, last = nodes["n1"], nodes["n3"]
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    data = last.directory / "data"
    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        alive = dict.fromkeys(nodes, "alive")
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
            until(lambda node=node: states(node) == alive, "all know all members", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        for topic in ("before", "find-me", "after"):
            first.ctl("rules", "add", f"deny everyone publish {topic}")
        until(lambda: "after" in last.text("rules"), "the last node has all rules", 30)
        last.stop()
        flip(data / "storage", b"find-me")

        def refused(*parts):
            start(nodes, ports, secret, "n3")
            assert last.process.wait(30) == 1
            assert said(last, "ERROR", *parts), (last.directory / "node.log").read_text()[-2000:]

        refused("meridian storage repair")
        assert health(first)[0] == 200, health(first)
        last.run("storage", "repair", str(data))
        (data / "storage").rename(data / "damaged")
        (data / "storage.repaired").rename(data / "storage")
        refused("without the file `replicas`", "with an empty data directory")
        data.rename(last.directory / "moved")
        start(nodes, ports, secret, "n3")
        last.ctl("health", "--wait", "30s")
        until(lambda: health(last)[0] == 200, "it takes part again", 30)
        until(lambda: "find-me" in last.text("rules"), "it has the configuration store", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "it votes", 30)
    finally:
        for node in nodes.values():
            node.close()


def restored(_):
    """cluster: a core is not started from a backup, which lacks its later votes; with an empty directory it joins as another replica"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, last = nodes["n1"], nodes["n3"]
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    storage = last.directory / "data" / "storage"

    def changes():
        """Number of changes of the replicas of the meta group."""
        logs = [(node.directory / "node.log").read_text(errors="replace") for node in nodes.values()]
        return sum(log.count("changing the replicas of the meta group") for log in logs)

    try:
        for name in nodes:
            start(nodes, ports, secret, name)
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "three vote", 30)
        # A backup that is older than the replicas is no replica.
        until(lambda: all(len(shard["replicas"]) == 3 for shard in first.json("cluster")["shards"]["items"]), "each shard has three replicas", 60)
        until((storage / "replicas").exists, "the core has its own", 30)
        last.stop()
        last.run("storage", "backup", str(last.directory / "data"), str(last.directory / "backup"))
        start(nodes, ports, secret, "n3")
        last.ctl("health", "--wait", "30s")
        before = changes()
        first.ctl("rules", "add", "deny everyone publish since")
        until(lambda: "since" in last.text("rules"), "the last node has the rule", 30)
        last.stop()
        storage.rename(last.directory / "lost")
        shutil.copytree(last.directory / "backup", storage)
        start(nodes, ports, secret, "n3")
        assert last.process.wait(90) == 1
        assert said(last, "ERROR", "with an empty data directory"), (last.directory / "node.log").read_text()[-2000:]
        (last.directory / "data").rename(last.directory / "restored")
        start(nodes, ports, secret, "n3")
        last.ctl("health", "--wait", "30s")
        until(lambda: health(last)[0] == 200, "it takes part again", 30)
        until(lambda: "since" in last.text("rules"), "it has the configuration store", 30)
        until(lambda: first.json("cluster")["membership"]["replica"]["voters"] == 3, "it votes", 30)
        assert changes() > before, "it is another replica"
    finally:
        for node in nodes.values():
            node.close()


def full(_):
    """cluster: a core with a full disk reports it, stores nothing, still votes, no client notices, and it catches up when there is space"""
    nodes = {name: Node() for name in ("n1", "n2", "n3")}
    ports = {name: free_port() for name in nodes}
    first, second, last = nodes.values()
    secret = first.directory / "cluster.secret"
    secret.write_text("a secret that is long enough")
    small = ["storage.segment_size=1MiB", "storage.reserve=2MiB"]

    def accepts(node, name):
        return node.ctl("ban", "add", "client-id", name, code=None).returncode == 0

    def has(node, name):
        return name in node.text("ban")

    def waits(node):
        return node.json("storage")["log"]["queue_records"]

    try:
        if not last.on_small_disk("12m"):
            print("skipped: a disk of its own for one node needs root, or user namespaces", flush=True)
            return
        for name in nodes:
            start(nodes, ports, secret, name, *small)
        for node in nodes.values():
            node.ctl("health", "--wait", "30s")
        replica = lambda node: node.json("cluster")["membership"]["replica"]
        until(lambda: replica(first)["voters"] == 3, "three vote", 30)
        first.ctl("cluster", "transfer", "n3")
        until(lambda: replica(first)["leader"] == "n3", "it leads", 30)
        kept = last.subscriber("waits", "t", durable=True)
        end(kept)
        large = last.directory / "large"
        large.write_bytes(b"x" * 900_000)

        def publish():
            """Answer of the node to a message for the durable session."""
            words = ["mosquitto_pub", "-p", str(last.mqtt), "-V", "5", "-q", "1", "-t", "t", "-f", str(large)]
            done = subprocess.run(words, capture_output=True, timeout=20, check=False, text=True)
            return done.stdout + done.stderr

        ballast = last.seen(last.directory / "data" / "ballast")
        with open(ballast, "wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
        assert publish() == "", "there is space in the spare segments"
        assert publish() == "", "there is space in the reserve, and the full disk is not noticed yet"
        until(lambda: asked(last, "/health/storage")[0] == 503, "it reports a full disk", 10)
        assert said(last, "ERROR", "disk is full"), (last.directory / "node.log").read_text()[-2000:]
        figures = last.text("metrics", "meridian_storage_condition")
        assert 'meridian_storage_condition{condition="full"} 1\n' in figures, figures
        until(lambda: publish() == "", "two other cores store what this one cannot", 20)
        # Use up the reserve too.
        for number in range(30):
            filters = [f"{number}/{part}/{'x' * 60_000}" for part in range(8)]
            last.spawn("sub", "-p", str(last.mqtt), "-i", f"much-{number}", "-x", "3600", *(word for name in filters for word in ("-t", name)))
            if waits(last) and waits(last):
                break
        until(lambda: waits(last), "no record fits", 10)
        passing = last.subscriber("passes", "e", qos=1)
        for node in nodes.values():
            node.publish("e", "m", "-q", "1")
            assert passing.stdout.readline().split() == ["e", "6d"]
        # In its own term, and in the terms of two other leaders.
        for leader in ("n3", "n1", "n2"):
            assert first.text("cluster", "transfer", leader) == f"node {leader} leads\n"
            for node in nodes.values():
                until(lambda: replica(node)["leader"] == leader and replica(node)["quorum"], f"all nodes know the leader {leader}", 20)
        for node in nodes.values():
            assert accepts(node, f"full-{node.mqtt}"), "changes are accepted"
            assert has(node, f"full-{node.mqtt}")
        assert states(first) == dict.fromkeys(nodes, "alive"), states(first)

        ballast.unlink()
        until(lambda: asked(last, "/health/storage")[0] == 200, "there has been space for 30 s", 90)
        until(lambda: not waits(last), "waiting records are written", 20)
        until(lambda: publish() == "", "it stores messages again", 20)
        copy = last.seen(last.directory / "data" / "registry.log")
        until(lambda: copy.exists() and f"full-{last.mqtt}".encode() in copy.read_bytes(), "its copy of the configuration store is written", 20)
        # This core and one other are a majority.
        second.process.kill()
        second.process.wait(20)
        until(lambda: accepts(first, "again"), "two cores accept changes", 30)
        until(lambda: has(last, "again"), "it has the ban", 20)
    finally:
        for node in nodes.values():
            node.close()


def flip(storage, text):
    """Flips a bit in each record of the log that contains the text."""
    found = 0
    for path in storage.glob("*.seg"):
        whole = bytearray(path.read_bytes())
        at = whole.find(text)
        while at >= 0:
            whole[at] ^= 1
            found += 1
            at = whole.find(text, at + 1)
        path.write_bytes(whole)
    assert found, "the text is in no record"


CHECKS = [members, grows, by_name, wills, logs, come_and_go, leaves_once, refused_peers, unreachable, damaged, restored, full]
