"""Links between clusters, here of one node each."""

import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from checks_actions import put, status_of
from checks_away import cluster
from checks_bridges import leave, received
from checks_cluster import answers
from client import Client
from node import Node, until

SECRET = "0123456789abcdef0123456789abcdef\n"


def api(node, method, path, body=None):
    """Status and body of an answer of the API."""
    request = urllib.request.Request(f"{node.url}/api/v1/{path}", method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def link_of(node, name):
    status, body = api(node, "GET", f"links/external/{name}")
    assert status == 200, (status, body)
    return body


def taking(node, name, origin=None):
    """What a node takes of an origin by a link; empty when it does not run."""
    return next((entry for entry in link_of(node, name)["taking"] if entry["origin"] == (origin or name)), {})


def giving(node, name, origin):
    return next((entry for entry in link_of(node, name)["giving"] if entry["origin"] == origin), {})


def is_settled(node, name, filters, origin=None):
    seen = taking(node, name, origin)
    return seen.get("connected") and seen["filters_wanted"] == seen["filters_subscribed"] == filters


class Clusters:
    """Nodes that are clusters of their own, with the names `a`, `b` and so on, and a secret."""

    def __init__(self, count):
        self.nodes = [Node() for _ in range(count)]
        self.names = [chr(ord("a") + at) for at in range(count)]
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="meridian-linked-"))
        self.secret = self.directory / "link.secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)

    def link(self, at, to, **more):
        """An entry of node `at` for node `to`. With topics it takes them."""
        settings = {"name": self.names[to], "own_name": self.names[at], "secret_file": str(self.secret), "backoff_min": "100ms", "backoff_max": "500ms"}
        if "topics" in more:
            settings["address"] = f"127.0.0.1:{self.nodes[to].mqtt}"
        return {**settings, **more}

    def start(self, at, *links):
        path = self.nodes[at].directory / "meridian.toml"
        tables = ("[[cluster_link]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in link.items()) for link in links)
        path.write_text("\n".join(tables))
        self.nodes[at].start("--config", str(path))

    def restart(self, at):
        self.nodes[at].restart()
        self.nodes[at].ctl("health", "--wait", "20s")

    def kill(self, at):
        self.nodes[at].process.kill()
        self.nodes[at].process.wait()

    def close(self):
        for node in self.nodes:
            node.close()
        self.secret.unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def clusters(count):
    made = Clusters(count)
    try:
        yield made
    finally:
        made.close()


def text_of(lines):
    """Lines of a subscriber with readable payloads."""
    return [f"{line.split()[0]} {bytes.fromhex(line.split()[1]).decode()}" for line in lines]


def link_takes_what_is_wanted(_):
    """two linked clusters take from each other what their clients have subscribed to, with the prefix, and nothing else"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="#", prefix="b/"))
        pair.start(1, pair.link(1, 0, topics="up/#\nx/#", prefix="a/"))
        until(lambda: is_settled(a, "b", 0) and is_settled(b, "a", 0), "both links are connected")
        b.publish("t/unwanted", "x", "-q", "1")
        here = a.subscriber("here", "b/t/+", "b/t/#", qos=2)
        until(lambda: is_settled(a, "b", 2), "the filters are subscribed at the other cluster")
        for qos in "012":
            b.publish("t/1", f"qos {qos}", "-q", qos)
        b.publish("other", "x", "-q", "1")
        lines = text_of(received(here, 3))
        # A client whose subscriptions overlap may get a message for each of them.
        assert list(dict.fromkeys(lines)) == ["b/t/1 qos 0", "b/t/1 qos 1", "b/t/1 qos 2"], lines
        seen = taking(a, "b")
        assert seen["messages"] == 3 and sum(seen["dropped"].values()) == 0, seen
        until(lambda: is_settled(a, "b", 0), "the subscriptions end with the client")
        b.publish("t/1", "nobody wants it", "-q", "1")
        there = b.subscriber("there", "#", "a/up/1", qos=1)
        until(lambda: is_settled(b, "a", 3), "a wildcard is cut to the topics of the link")
        a.publish("up/1", "one", "-q", "1")
        a.publish("down/1", "two", "-q", "1")
        lines = text_of(received(there, 1))
        assert set(lines) == {"a/up/1 one"}, lines
        assert taking(a, "b")["messages"] == 3 and taking(b, "a")["messages"] == 1, (taking(a, "b"), taking(b, "a"))
        gives = giving(a, "b", "a")
        assert gives["connected"] and gives["queued_messages"] == 0, gives


def link_widens(_):
    """a client with more filters than a link may have widens its own part of the topics only, and single filters come back"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="#", filters_max=100))
        pair.start(1, pair.link(1, 0))
        calm = a.subscriber("calm", "plant/1", qos=1)
        until(lambda: is_settled(a, "b", 1), "the link runs")
        greedy = a.subscriber("greedy", *(f"line/{at}/temp" for at in range(300)), qos=1)
        until(lambda: is_settled(a, "b", 2), "a broader filter stands for those of the client")
        seen = taking(a, "b")
        assert (seen["filters_broader"], seen["broader"]) == (1, ["line/+/temp"]), seen
        assert "line/+/temp" in a.text("links", "external", "show", "b")
        for topic in ("plant/2", "line/1/speed", "line/new/temp", "line/299/temp", "plant/1"):
            b.publish(topic, "x", "-q", "1")
        assert text_of(received(calm, 1)) == ["plant/1 x"]
        until(lambda: taking(a, "b")["messages"] == 3, "only one message comes that nobody wants")
        until(lambda: taking(a, "b")["dropped"]["unwanted"] == 1, "it is counted")
        assert text_of(received(greedy, 1)) == ["line/299/temp x"]
        until(lambda: is_settled(a, "b", 0) and taking(a, "b")["filters_broader"] == 0, "single filters come back when the client is gone", 20)


def link_takes_retained(_):
    """a new filter gets the retained messages of the other cluster once, and they are retained here"""
    with clusters(2) as pair:
        a, b = pair.nodes
        b.start()
        b.publish("state/1", "old", "-q", "1", "-r")
        b.stop()
        pair.start(1, pair.link(1, 0))
        pair.start(0, pair.link(0, 1, topics="state/#"))
        first = a.subscriber("first", "state/+", durable=True)
        assert text_of(received(first, 1)) == ["state/1 old"]
        second = a.subscriber("second", "state/#", durable=True)
        assert "state/1 old" in text_of(received(second, 1))
        seen = taking(a, "b")["messages"]
        third = a.subscriber("third", "state/1")
        until(lambda: is_settled(a, "b", 3), "a filter is subscribed that another one of this connection includes")
        assert text_of(received(third, 1)) == ["state/1 old"], "its copy comes, and the message does not come again"
        assert taking(a, "b")["messages"] == seen, taking(a, "b")
        pair.kill(0)
        b.publish("state/1", "new", "-q", "1", "-r")
        pair.restart(0)
        until(lambda: is_settled(a, "b", 2), "the link is connected again")
        until(lambda: taking(a, "b")["messages"] == 1, "only the message of the meantime comes")
        assert seen in (1, 2), (seen, taking(a, "b"))
        # It is retained here, and comes once more because the filter is new on this connection.
        later = text_of(received(a.subscriber("later", "state/1"), 2))
        assert set(later) == {"state/1 new"}, later


def link_survives_kills(_):
    """linked clusters that are killed in turn lose nothing, and deliver QoS 2 once and in order"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="t/#"))
        pair.start(1, pair.link(1, 0))
        leave(a.subscriber("here", "t/#", durable=True, qos=2))
        until(lambda: is_settled(a, "b", 1), "the filter is subscribed at the other cluster")
        for number in range(80):
            b.publish("t/n", str(number), "-q", "2")
            if number in (10, 50):
                pair.kill(0)
            if number in (30, 60):
                pair.kill(1)
                pair.restart(1)
            if number in (40, 70):
                pair.restart(0)
        until(lambda: is_settled(a, "b", 1), "the link is connected at the end", 20)
        until(lambda: giving(b, "a", "b").get("queued_messages") == 0 and giving(b, "a", "b")["in_flight"] == 0, "nothing waits", 20)
        lines = text_of(received(a.subscriber("here", "t/#", durable=True, qos=2), 80))
        assert lines == [f"t/n {number}" for number in range(80)], lines
        assert taking(a, "b")["remote_sessions_lost"] == 0


def link_postpones(_):
    """what a cluster refuses for now stays at the other one, is counted, and arrives when there is room"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="t/#"))
        pair.start(1, pair.link(1, 0))
        leave(a.subscriber("here", "t/#", durable=True))
        until(lambda: is_settled(a, "b", 1), "the filter is subscribed at the other cluster")
        action = {"rule": 'SELECT payload FROM "t/#"', "topic": "out", "content": "${payload}", "queue_full": "refuse", "queue_messages_max": 2}
        put(a, "strict", **action)
        assert api(a, "PUT", "actions/strict", {**action, "enabled": False})[0] in (200, 204)
        until(lambda: status_of(a, "strict").get("state") == "stopped", "the action is turned off")
        for number in range(6):
            b.publish("t/n", str(number), "-q", "1")
        until(lambda: taking(a, "b")["postponed"] >= 2, "this cluster refuses again and again")
        seen = taking(a, "b")
        assert "Quota exceeded" in seen["last_error"] and seen["refused"] == 0 and sum(seen["dropped"].values()) == 0, seen
        assert "refused for now" in a.ctl("links", "external", "show", "b").out
        with urllib.request.urlopen(f"{a.url}/metrics", timeout=10) as answer:
            assert b'meridian_cluster_link_postponed_total{link="b",origin="b"}' in answer.read()
        put(a, "strict", **action)
        until(lambda: giving(b, "a", "b").get("queued_messages") == 0 and giving(b, "a", "b")["in_flight"] == 0, "nothing waits", 30)
        lines = text_of(received(a.subscriber("here", "t/#", durable=True), 6))
        # A subscriber may get a refused message, and gets it again when it comes again.
        assert {line.split()[1] for line in lines} == set("012345"), lines
        assert taking(a, "b")["refused"] == 0


def link_restored(_):
    """a cluster that is restored from a backup gets the subscriptions of its links that it had lost, and the other cluster says so once"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="t/#"))
        pair.start(1, pair.link(1, 0))
        first = a.subscriber("first", "t/1", qos=2)
        until(lambda: is_settled(a, "b", 1), "the link runs")
        b.stop()
        data, backup = b.directory / "data", b.directory / "backup"
        b.run("storage", "backup", str(data), str(backup))
        pair.restart(1)
        second = a.subscriber("second", "t/2", qos=2)
        until(lambda: is_settled(a, "b", 2), "a restart is no restore, and the next filter is subscribed")
        assert taking(a, "b")["restores"] == 0, taking(a, "b")
        b.publish("t/1", "before", "-q", "2")
        until(lambda: taking(a, "b")["messages"] == 1, "a message comes")
        pair.kill(1)
        shutil.rmtree(data)
        b.run("storage", "restore", str(backup), str(data))
        pair.restart(1)
        until(lambda: taking(a, "b").get("restores") == 1, "the restore is noticed", 20)
        until(lambda: is_settled(a, "b", 2) and giving(b, "a", "b").get("filters") == 3, "what the backup did not have is subscribed again", 20)
        b.publish("t/1", "one", "-q", "2")
        b.publish("t/2", "two", "-q", "2")
        assert text_of(received(second, 1)) == ["t/2 two"]
        assert text_of(received(first, 2)) == ["t/1 before", "t/1 one"]
        assert "restored from a backup" in a.text("links", "external", "show", "b")
        pair.kill(1)
        pair.restart(1)
        until(lambda: taking(a, "b").get("connected") and taking(a, "b")["reconnects"] >= 3, "the link is connected again", 20)
        assert taking(a, "b")["restores"] == 1, taking(a, "b")
        assert (a.directory / "node.log").read_text(errors="replace").count("continues from a backup") == 1
        # A node that was stopped meanwhile knows what it has seen last.
        a.stop()
        pair.kill(1)
        shutil.rmtree(data)
        b.run("storage", "restore", str(backup), str(data))
        pair.restart(1)
        pair.restart(0)
        until(lambda: taking(a, "b").get("connected") and taking(a, "b")["restores"] == 1, "the second restore is noticed", 20)


def link_ring(_):
    """in a full mesh of three clusters each client gets each message once"""
    with clusters(3) as ring:
        for at in range(3):
            ring.start(at, *(ring.link(at, to, topics="ring/#") for to in range(3) if to != at))
        subscribers = [node.subscriber(f"in-{at}", "ring/#") for at, node in enumerate(ring.nodes)]
        for at, node in enumerate(ring.nodes):
            for to in range(3):
                until(lambda node=node, to=to, at=at: to == at or is_settled(node, ring.names[to], 1), "all filters are subscribed")
        for name, node in zip(ring.names, ring.nodes):
            node.publish("ring/t", f"from {name}", "-q", "2")
        for process in subscribers:
            lines = text_of(received(process, 3))
            assert sorted(lines) == ["ring/t from a", "ring/t from b", "ring/t from c"], lines


GROUP = "$share/linked:jobs/jobs/#"


def publish_numbers(node, numbers, prefix):
    """Publishes numbers at QoS 2 in their order, over one connection."""
    lines = "".join(f"{prefix}{number}\n" for number in numbers)
    command = ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-t", "jobs/x", "-q", "2", "-l"]

    def is_published():
        done = subprocess.run(command, input=lines, text=True, check=False, capture_output=True, timeout=60)
        # A node of a cluster on a loaded machine may lack its lease for a moment, and refuses clients then.
        assert done.returncode in (0, 0x88), done
        return done.returncode == 0

    until(is_published, "the messages are published", 60)


def numbers_of(lines):
    """Payloads of lines. Those of one publisher are in their order, and none comes twice."""
    payloads = [line.split()[1] for line in text_of(lines)]
    assert len(payloads) == len(set(payloads)), payloads
    for prefix in {payload[0] for payload in payloads}:
        numbers = [int(payload[1:]) for payload in payloads if payload[0] == prefix]
        assert numbers == sorted(numbers), numbers
    return payloads


def named(prefix, numbers):
    return sorted(f"{prefix}{number}" for number in numbers)


def link_group(_):
    """of a group over two linked clusters one member gets each message, one in the publisher's cluster first, and messages wait for the other cluster"""
    with clusters(2) as pair:
        a, b = pair.nodes
        pair.start(0, pair.link(0, 1, topics="#"))
        pair.start(1, pair.link(1, 0, topics="#"))
        here = a.subscriber("here", GROUP, qos=2)
        there = [b.subscriber(f"there-{at}", GROUP, qos=2) for at in range(2)]
        plain, other = b.subscriber("plain", "jobs/#", qos=2), b.subscriber("other", "$share/other/jobs/+", qos=2)
        until(lambda: is_settled(a, "b", 1) and is_settled(b, "a", 3), "the groups are joined at the other cluster")
        publish_numbers(a, range(60), "a")
        publish_numbers(b, range(40), "b")
        assert sorted(numbers_of(received(here, 60))) == named("a", range(60)), "a member in the publisher's cluster gets them"
        until(lambda: is_settled(a, "b", 0), "the last member there has left")
        publish_numbers(a, range(60, 120), "a")
        got = [numbers_of(received(process, 50)) for process in there]
        assert sorted(got[0] + got[1]) == sorted(named("b", range(40)) + named("a", range(60, 120))), got
        assert all(got), "each member gets some"
        # Others get their own copies, and each message once.
        for process in (plain, other):
            assert sorted(numbers_of(received(process, 160))) == sorted(named("a", range(120)) + named("b", range(40)))
        until(lambda: is_settled(b, "a", 0), "all have left")
        leave(b.subscriber("durable", GROUP, durable=True, qos=2))
        until(lambda: is_settled(b, "a", 1), "a durable member is one, too")
        pair.kill(1)
        until(lambda: giving(a, "b", "a").get("connected") is False, "the other cluster is away")
        publish_numbers(a, range(200, 220), "a")
        until(lambda: giving(a, "b", "a")["queued_messages"] == 20, "the messages wait for the other cluster")
        late = a.subscriber("late", GROUP, qos=2)
        publish_numbers(a, range(220, 230), "a")
        assert numbers_of(received(late, 10)) == [f"a{number}" for number in range(220, 230)], "nothing waits while a member is connected"
        pair.restart(1)
        got = numbers_of(received(b.subscriber("durable", GROUP, durable=True, qos=2), 20))
        assert sorted(got) == named("a", range(200, 220)), got
        for node, link in ((a, "b"), (b, "a")):
            seen = taking(node, link)
            assert sum(seen["dropped"].values()) == 0 and seen["filters_refused"] == 0, seen


def link_group_of_three(_):
    """of a group over three linked clusters one member gets each message, and none goes through two clusters"""
    with clusters(3) as ring:
        for at in range(3):
            ring.start(at, *(ring.link(at, to, topics="#") for to in range(3) if to != at))
        a, b, c = ring.nodes
        plain = a.subscriber("plain", "jobs/#", qos=2)
        in_b, in_c = b.subscriber("in-b", GROUP, qos=2), c.subscriber("in-c", GROUP, qos=2)
        for at, node in enumerate(ring.nodes):
            for to in range(3):
                until(lambda node=node, to=to, at=at: to == at or is_settled(node, ring.names[to], 1), "all subscriptions are made")
        for node, name in zip(ring.nodes, ring.names):
            publish_numbers(node, range(60), name)
        of_b, of_c = numbers_of(received(in_b, 90)), numbers_of(received(in_c, 90))
        assert sorted(of_b + of_c) == sorted(sum((named(name, range(60)) for name in "abc"), [])), (of_b, of_c)
        count = lambda payloads, name: sum(payload[0] == name for payload in payloads)  # noqa: E731
        assert (count(of_b, "b"), count(of_c, "c")) == (60, 60), "a member in the publisher's cluster comes first"
        assert count(of_b, "a") and count(of_c, "a"), "the others take turns"
        assert len(numbers_of(received(plain, 180))) == 180


def link_group_in_cluster(_):
    """a group over a cluster of several nodes and a linked one: each node gives its messages to clients of the cluster first, wherever they are connected"""
    alone, directory = Node(), pathlib.Path(tempfile.mkdtemp(prefix="meridian-linked-"))
    secret = directory / "link.secret"
    secret.write_text(SECRET)
    entry = {"name": "b", "own_name": "a", "secret_file": str(secret), "address": f"127.0.0.1:{alone.mqtt}", "topics": "#", "backoff_max": "1s"}
    try:
        with cluster(*(f"cluster_link.0.{key}={value}" for key, value in entry.items())) as nodes:
            first, _, _, replicant = nodes.values()
            addresses = ",".join(f"127.0.0.1:{node.mqtt}" for node in nodes.values())
            path = alone.directory / "meridian.toml"
            other = {"name": "a", "own_name": "b", "secret_file": str(secret), "address": addresses, "topics": "#", "backoff_max": "1s"}
            path.write_text("[[cluster_link]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in other.items()))
            alone.start("--config", str(path))
            there = alone.subscriber("there", GROUP, qos=2)
            until(lambda: is_settled(alone, "a", 1) and is_settled(replicant, "b", 0), "the group is joined", 60)
            for prefix, node in zip("abcd", nodes.values()):
                publish_numbers(node, range(10), prefix)
            here = replicant.subscriber("here", GROUP, qos=2)
            until(lambda: is_settled(replicant, "b", 1), "the other cluster knows that clients here are members", 30)
            # A SUBACK says that all nodes know the member.
            for prefix, node in zip("efgh", nodes.values()):
                publish_numbers(node, range(10), prefix)
            got = numbers_of(received(here, 40))
            assert sorted(got) == sorted(sum((named(prefix, range(10)) for prefix in "efgh"), [])), got
            until(lambda: is_settled(replicant, "b", 0), "the last member here has left", 30)
            publish_numbers(first, range(10), "i")
            got = numbers_of(received(there, 50))
            assert sorted(got) == sorted(sum((named(prefix, range(10)) for prefix in "abcdi"), [])), got
            for node, link in ((replicant, "b"), (alone, "a")):
                seen = taking(node, link)
                assert sum(seen["dropped"].values()) == 0 and seen["filters_refused"] == 0, seen
    finally:
        alone.close()
        secret.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def link_transit(_):
    """a cluster takes messages of a third one through its neighbour if its link says so, and interest goes the whole way"""
    with clusters(3) as line:
        a, b, c = line.nodes
        line.start(0, line.link(0, 1, topics="#", origins="c"))
        line.start(1, line.link(1, 0, topics="#"), line.link(1, 2, topics="#"))
        line.start(2, line.link(2, 1, topics="#"))
        until(lambda: is_settled(a, "b", 0) and is_settled(a, "b", 0, "c"), "both origins are connected")
        there = a.subscriber("there", "t/#")
        until(lambda: is_settled(a, "b", 1) and is_settled(a, "b", 1, "c"), "the filter is subscribed for both origins")
        until(lambda: is_settled(b, "c", 1), "the interest of the first cluster reaches the third one")
        beyond = c.subscriber("beyond", "t/#")
        until(lambda: is_settled(c, "b", 1), "the filter of the third cluster is subscribed")
        c.publish("t/1", "from c", "-q", "2")
        b.publish("t/1", "from b", "-q", "1")
        a.publish("t/1", "from a", "-q", "1")
        lines = text_of(received(there, 3))
        assert sorted(lines) == ["t/1 from a", "t/1 from b", "t/1 from c"], lines
        # It does not take messages of the first cluster.
        assert sorted(text_of(received(beyond, 2))) == ["t/1 from b", "t/1 from c"]
        until(lambda: is_settled(b, "c", 0), "the interest ends the whole way")


def link_is_refused(_):
    """a wrong secret and an unknown name are refused, the link says why, and a wrong entry is refused with advice"""
    with clusters(2) as pair:
        a, b = pair.nodes
        other = pair.directory / "other.secret"
        other.write_text("another secret of some length\n")
        pair.start(1, pair.link(1, 0))
        pair.start(0, pair.link(0, 1, topics="#", secret_file=str(other)))
        refusal = until(lambda: link_of(b, "a")["refusal"], "the link says that another cluster was refused")
        assert "the secret or a name differs" in refusal["why"], refusal
        until(lambda: "not authorized" in (taking(a, "b").get("last_error") or "").lower(), "the other side says it, too")
        for client in ("$link/a", "$link/unknown", "$linked/b", "$linkd/x"):
            refused = subprocess.run(["mosquitto_pub", "-p", str(b.mqtt), "-V", "5", "-i", client, "-t", "x", "-m", "x"], capture_output=True, text=True,
                                     timeout=10, check=False)
            assert refused.returncode != 0, client
        other.write_text(SECRET)
        until(lambda: is_settled(a, "b", 0), "the secret is read at each connection", 20)
        other.unlink()
        for changed, advice in [({"secret_file": "/nonexistent"}, "head -c 32"), ({"topics": "#", "address": ""}, "HOST:PORT"), ({"prefix": "x"}, 'write "x/"')]:
            entry = {**pair.link(0, 1), **changed}
            path = a.directory / "wrong.toml"
            path.write_text("[[cluster_link]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()))
            checked = a.run("config", "check", "--config", str(path), code=1)
            assert advice in checked.out + checked.err, (changed, checked.out, checked.err)


def link_changes_at_run_time(_):
    """a link is added, changed, disabled and removed while the nodes run"""
    with clusters(2) as pair:
        a, b = pair.nodes
        a.start()
        b.start()
        here = a.subscriber("here", "t/#", "u/#")
        for node, at, to, more in [(b, 1, 0, {}), (a, 0, 1, {"topics": "t/#"})]:
            entry = pair.link(at, to, **more)
            status, body = api(node, "PUT", f"links/external/{entry.pop('name')}", entry)
            assert status in (200, 201), (status, body)
        until(lambda: is_settled(a, "b", 1), "the link runs")
        entry = pair.link(0, 1, topics="t/#\nu/#")
        status, body = api(a, "PUT", f"links/external/{entry.pop('name')}", entry)
        assert status in (200, 201), (status, body)
        until(lambda: is_settled(a, "b", 2), "the link has its new topics")
        b.publish("u/1", "one", "-q", "1")
        assert text_of(received(here, 1)) == ["u/1 one"]
        entry = pair.link(1, 0, enabled=False)
        status, body = api(b, "PUT", f"links/external/{entry.pop('name')}", entry)
        assert status in (200, 201), (status, body)
        until(lambda: not taking(a, "b").get("connected"), "a link that is disabled disconnects the other cluster")
        until(lambda: "not enabled" in (link_of(b, "a")["refusal"] or {}).get("why", ""), "it says why it is refused")
        status, body = api(b, "DELETE", "links/external/a?messages=delete")
        assert status in (200, 204), (status, body)
        assert api(b, "GET", "links/external/a")[0] == 404
        assert api(b, "GET", "clients/$link%2Fa")[0] == 404, "the session has ended"
        status, body = api(a, "DELETE", "links/external/b")
        assert status in (200, 204), (status, body)
        time.sleep(0.5)
        assert api(a, "GET", "links/external")[1]["items"] == []


def link_exports_less(_):
    """a cluster that exports less gives nothing else, also not what has waited, and one that exports more again gives all of it"""
    with clusters(2) as pair:
        a, b = pair.nodes
        a.start()
        b.start()

        def put(node, at, to, **more):
            entry = pair.link(at, to, **more)
            status, body = api(node, "PUT", f"links/external/{entry.pop('name')}", entry)
            assert status in (200, 201), (status, body)

        def publish_both(text):
            for topic in ("secret/1", "public/1"):
                b.publish(topic, text, "-q", "1")

        def subscribed():
            seen = taking(a, "b")
            return (seen.get("connected"), seen.get("filters_wanted"), seen.get("filters_subscribed"))

        put(b, 1, 0, export="public/#\nsecret/#")
        put(a, 0, 1, topics="#")
        here = a.subscriber("here", "public/#", "secret/#")
        until(lambda: is_settled(a, "b", 2), "the link has both filters")
        publish_both("first")
        put(a, 0, 1, topics="#", enabled=False)
        until(lambda: giving(b, "a", "b").get("connected") is False, "the other cluster is away")
        publish_both("waits")
        put(b, 1, 0, export="public/#")
        # The node takes over new entries a quarter of a second later.
        time.sleep(2)
        put(a, 0, 1, topics="#")
        until(lambda: subscribed() == (True, 2, 1), "one of the filters is refused")
        publish_both("narrow")
        put(b, 1, 0, export="public/#\nsecret/#")
        until(lambda: is_settled(a, "b", 2), "the link subscribes again when the export is wider")
        publish_both("wide")
        # The relay goes on, and notices the changes by itself.
        put(b, 1, 0, export="public/#")
        until(lambda: subscribed() == (True, 2, 1), "one of the filters is refused again")
        publish_both("narrow again")
        put(b, 1, 0, export="public/#\nsecret/#")
        until(lambda: is_settled(a, "b", 2), "the link subscribes once more")
        publish_both("last")
        lines = text_of(received(here, 9))
        public = [line for line in lines if line.startswith("public")]
        assert public == [f"public/1 {text}" for text in ("first", "waits", "narrow", "wide", "narrow again", "last")], lines
        assert [line for line in lines if line.startswith("secret")] == [f"secret/1 {text}" for text in ("first", "wide", "last")], lines
        assert taking(a, "b")["restores"] == 0, taking(a, "b")


def link_moves(_):
    """in a cluster a link runs on one node; when that node is killed, another one goes on, and nothing is lost or comes twice in either direction"""
    alone, directory = Node(), pathlib.Path(tempfile.mkdtemp(prefix="meridian-linked-"))
    secret = directory / "link.secret"
    secret.write_text(SECRET)
    entry = {"name": "b", "own_name": "a", "secret_file": str(secret), "address": f"127.0.0.1:{alone.mqtt}", "topics": "up/#", "backoff_max": "1s"}
    settings = [f"cluster_link.0.{key}={value}" for key, value in entry.items()] + ["cluster.silence_max=5s", "cluster.lease=2s"]
    try:
        with cluster(*settings) as nodes:
            replicant = nodes["r1"]
            addresses = ",".join(f"127.0.0.1:{node.mqtt}" for node in nodes.values())
            path = alone.directory / "meridian.toml"
            other = {"name": "a", "own_name": "b", "secret_file": str(secret), "address": addresses, "topics": "down/#", "backoff_max": "1s"}
            path.write_text("[[cluster_link]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in other.items()))
            alone.start("--config", str(path))
            leave(replicant.subscriber("here", "up/#", durable=True, qos=2))
            leave(alone.subscriber("there", "down/#", durable=True, qos=2))
            until(lambda: is_settled(replicant, "b", 1) and is_settled(alone, "a", 1), "both links have their filters, as another node says", 60)
            runs_on = until(lambda: taking(replicant, "b").get("node"), "a node runs the link")
            for number in range(60):
                alone.publish("up/n", str(number), "-q", "2")
                # Its acknowledgement waits until another node leads the shard.
                subprocess.run(["mosquitto_pub", "-p", str(replicant.mqtt), "-V", "5", "-t", "down/n", "-m", str(number), "-q", "2"],
                               check=True, capture_output=True, timeout=60)
                if number == 30:
                    nodes[runs_on].process.kill()
                    nodes[runs_on].process.wait()
            until(lambda: taking(replicant, "b").get("node") not in (None, runs_on), "another node runs the link", 30)
            until(lambda: is_settled(replicant, "b", 1) and is_settled(alone, "a", 1), "both links are connected", 30)
            for node, link, origin in [(replicant, "b", "a"), (alone, "a", "b")]:
                empty = lambda node=node, link=link, origin=origin: giving(node, link, origin).get("queued_messages") == 0  # noqa: E731
                until(empty, "nothing waits", 30)
            for node, client, topic in [(replicant, "here", "up"), (alone, "there", "down")]:
                lines = text_of(received(node.subscriber(client, f"{topic}/#", durable=True, qos=2), 60))
                assert lines == [f"{topic}/n {number}" for number in range(60)], lines
    finally:
        alone.close()
        secret.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def unconfirmed(node):
    """Number of SUBACKs of a node that were sent without the confirmation of a linked cluster."""
    line = node.text("metrics", "meridian_subacks_links_unconfirmed").splitlines()[-1]
    return int(line.split()[-1])


def link_suback(_):
    """after a SUBACK of level `links` no message of the other cluster is missed, whichever node runs the link; one that is down makes nobody wait"""
    alone, directory = Node(), pathlib.Path(tempfile.mkdtemp(prefix="meridian-linked-"))
    secret = directory / "link.secret"
    secret.write_text(SECRET)
    entry = {"name": "b", "own_name": "a", "secret_file": str(secret), "address": f"127.0.0.1:{alone.mqtt}", "topics": "up/#", "backoff_min": "100ms", "backoff_max": "500ms"}
    # A SUBACK within the patience of the client has not waited until the time was over.
    settings = [f"cluster_link.0.{key}={value}" for key, value in entry.items()] + ["cluster.silence_max=5s", "cluster.lease=2s", "cluster.suback_timeout=2m", "routing.suback_links_timeout=5m"]
    clients = []
    try:
        with cluster(*settings) as nodes:
            path = alone.directory / "meridian.toml"
            other = {"name": "a", "own_name": "b", "secret_file": str(secret)}
            path.write_text("[[cluster_link]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in other.items()))
            alone.start("--config", str(path))
            replicant = nodes["r1"]
            until(lambda: is_settled(replicant, "b", 0), "the link is connected", 60)
            runs_on = taking(replicant, "b")["node"]
            elsewhere = next(name for name in nodes if name not in ("r1", runs_on))
            publisher = Client(alone.mqtt, "publisher")
            durable = Client(nodes[elsewhere].mqtt, "durable", expiry=3600)
            here = [Client(replicant.mqtt, "on-replicant"), Client(nodes[elsewhere].mqtt, "on-core"), Client(nodes[runs_on].mqtt, "on-runner"), durable]
            clients += [publisher, *here]

            def round_of(client, number):
                topic = f"up/{number}"
                assert client.subscribe(topic, "down/x", level="links") == [1, 1]
                publisher.publish(topic, "after SUBACK")
                # A message of QoS 1 may come again after a node was killed.
                while client.message() != (topic, "after SUBACK"):
                    pass

            end, number = time.monotonic() + 20, 0
            while number < 2 * len(here) or number < 1000 and time.monotonic() < end:
                client = here[number % len(here)]
                round_of(client, number)
                # Some filters stay, and others end while new ones begin.
                if number % 3:
                    client.unsubscribe(f"up/{number}")
                number += 1
            # A filter that the link has already.
            assert here[0].subscribe(f"up/{number - 1}", level="links") == [1]
            assert here[1].subscribe("$share/g/up/shared", level="links") == [1]
            publisher.publish("up/shared", "for the group")
            while here[1].message() != ("up/shared", "for the group"):
                pass

            reconnects = taking(replicant, "b")["reconnects"]
            alone.process.kill()
            alone.process.wait()
            for client in here:
                assert client.subscribe("up/down", level="links") == [1], "a link that is down makes nobody wait"
            alone.restart()
            alone.ctl("health", "--wait", "20s")
            # The figures may still be those of the former connection.
            until(lambda: taking(replicant, "b").get("connected") and taking(replicant, "b")["reconnects"] > reconnects, "the link is connected again", 60)
            publisher = Client(alone.mqtt, "publisher")
            clients.append(publisher)
            for number in range(1000, 1010):
                round_of(here[number % len(here)], number)

            nodes[runs_on].process.kill()
            nodes[runs_on].process.wait()
            left = [client for client in here if client is not here[2]]
            for number in range(20):
                # It waits for the new runner, whose first attempt to connect may fail.
                assert left[number % len(left)].subscribe(f"up/moved/{number}", level="links") == [1]
            until(lambda: taking(replicant, "b").get("node") not in (None, runs_on) and taking(replicant, "b").get("connected"), "another node runs the link", 60)
            for number in range(2000, 2030):
                round_of(left[number % len(left)], number)
            late = {name: unconfirmed(node) for name, node in nodes.items() if name != runs_on}
            assert not any(late.values()), late
    finally:
        for client in clients:
            client.close()
        alone.close()
        secret.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def link_giver_killed(_):
    """nodes of the giving cluster to which the link is connected are killed in turn; nothing of QoS 2 is missing, and nothing comes twice"""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="meridian-linked-"))
    secret = directory / "link.secret"
    secret.write_text(SECRET)
    common = ["cluster.silence_max=5s", "cluster.lease=2s"]
    names = ("n1", "n2", "n3")
    of = lambda entry: [f"cluster_link.0.{key}={value}" for key, value in entry.items()]  # noqa: E731
    gives = {"name": "a", "own_name": "b", "secret_file": str(secret)}
    try:
        with cluster(*of(gives), *common, names=names) as givers:
            takes = {"own_name": "a", "secret_file": str(secret), "topics": "t/#", "backoff_min": "100ms", "backoff_max": "1s"}
            with cluster(*common, names=names) as takers:
                here, number = takers["n1"], 0
                leave(here.subscriber("here", "t/#", durable=True, qos=2))
                for victim in names:
                    # The link connects to the first address that answers.
                    others = [node for name, node in givers.items() if name != victim]
                    address = ",".join(f"127.0.0.1:{node.mqtt}" for node in [givers[victim], *others])
                    status, body = api(here, "PUT", "links/external/b", {**takes, "address": address})
                    assert status in (200, 201), (status, body)
                    until(lambda victim=victim: giving(others[0], "a", "b").get("connection_node") == victim, f"the link is connected to {victim}", 60)
                    until(lambda: is_settled(here, "b", 1), "the filter is subscribed at the other cluster", 60)
                    for step in range(24):
                        if step == 8:
                            givers[victim].process.kill()
                            givers[victim].process.wait()
                        if step == 16:
                            givers[victim].restart()
                        # Its acknowledgement may wait until another node leads a shard.
                        subprocess.run(["mosquitto_pub", "-p", str(others[0].mqtt), "-V", "5", "-t", "t/n", "-m", str(number), "-q", "2"],
                                       check=True, capture_output=True, timeout=60)
                        number += 1
                    until(lambda victim=victim: (answers(givers[victim]) or (0,))[0] == 200, "the node is back", 120)
                    until(lambda: is_settled(here, "b", 1), "the link is connected again", 60)
                empty = lambda: (it := giving(givers["n1"], "a", "b")).get("queued_messages") == 0 and it["in_flight"] == 0  # noqa: E731
                until(empty, "nothing waits", 60)
                command = ["mosquitto_sub", "-p", str(here.mqtt), "-V", "5", "-i", "here", "-q", "2", "-F", "%t %x", "-c", "-x", "3600", "-t", "t/#"]
                last = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                here.clients.append(last)
                lines = text_of(received(last, number, 60))
                assert lines == [f"t/n {number}" for number in range(number)], lines
                assert taking(here, "b")["remote_sessions_lost"] == 0
    finally:
        secret.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


CHECKS = [link_takes_what_is_wanted, link_widens, link_takes_retained, link_survives_kills, link_giver_killed, link_postpones, link_restored, link_ring, link_group, link_group_of_three, link_group_in_cluster, link_transit, link_is_refused, link_changes_at_run_time, link_exports_less, link_moves, link_suback]
