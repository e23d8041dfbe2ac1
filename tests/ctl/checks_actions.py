"""Actions: rules whose outputs are published here or written to other systems."""

import glob
import http.server
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from checks_away import cluster
from client import Client
from node import BINARY, ROOT, Node, environment, free_port, until


class Receiver:
    """An HTTP server that records the bodies of requests, in their order."""

    def __init__(self):
        self.port, self.bodies, self.keys = free_port(), [], []
        # Status of the answer to a body.
        self.status = lambda body: 200
        self.server = None

    def start(self):
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                status = receiver.status(body)
                if status == 200:
                    receiver.bodies.append(body)
                    receiver.keys.append(self.headers["Idempotency-Key"])
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_OPTIONS = do_HEAD = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        # A node that is killed resets its connections.
        self.server.handle_error = lambda *_: None
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def stop(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def connector(self):
        return {"kind": "http", "url": f"http://127.0.0.1:{self.port}/in", "timeout": "2s"}


class Postgres:
    """A PostgreSQL server with its data in a temporary directory."""

    def __init__(self):
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        assert binaries, "PostgreSQL is missing; install the packages of .ci/packages"
        self.binaries = pathlib.Path(binaries[-1]).parent
        self.directory, self.port, self.process = pathlib.Path(tempfile.mkdtemp(prefix="meridian-pg-")), free_port(), None
        # PostgreSQL refuses to run as root.
        self.user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        if self.user:
            os.chown(self.directory, self.user.pw_uid, self.user.pw_gid)
        (self.directory / "password").write_text("secret")
        os.chmod(self.directory / "password", 0o644)
        self.tool("initdb", "-D", str(self.directory / "data"), "-U", "meridian", "--auth=scram-sha-256", "--no-sync",
                  f"--pwfile={self.directory}/password")

    def command(self, name, *arguments):
        return {"args": [str(self.binaries / name), *arguments], "cwd": self.directory,
                **({"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {})}

    def tool(self, name, *arguments):
        done = subprocess.run(**self.command(name, *arguments), capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "PGPASSWORD": "secret"})
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        return done.stdout

    def start(self):
        log = open(self.directory / "log", "ab")
        self.process = subprocess.Popen(**self.command("postgres", "-D", str(self.directory / "data"), "-p", str(self.port), "-h", "127.0.0.1",
                                                       "-k", str(self.directory)), stdout=log, stderr=log)
        log.close()
        until(lambda: subprocess.run(**self.command("pg_isready", "-h", "127.0.0.1", "-p", str(self.port)), capture_output=True,
                                     check=False).returncode == 0, "PostgreSQL answers", 30)
        return self

    def sql(self, statement):
        return self.tool("psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "meridian", "-d", "postgres", "-At", "-c", statement).strip()

    def kill(self):
        """Pulls the plug: the server and all its children end at once."""
        if self.process:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(20)
            self.process = None

    def close(self):
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def connector(self, node):
        secret = node.directory / "pg-password"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        return {"kind": "postgresql", "address": f"127.0.0.1:{self.port}", "database": "postgres", "username": "meridian",
                "password_file": str(secret), "timeout": "2s"}


# Other systems run on this machine.
LOCAL = ["--set", "actions.allow_loopback=true"]


def api(node, method, path, body=None, code=(200, 201, 204)):
    """A request to the API. Returns the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{node.url}/api/v1/{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    assert status in (code if isinstance(code, tuple) else (code,)), (method, path, status, text)
    return json.loads(text) if text else None


def status_of(node, name):
    return api(node, "GET", f"actions/{name}")["status"] or {}


def put(node, name, **settings):
    """Writes an action, and waits until it runs."""
    api(node, "PUT", f"actions/{name}", settings)
    until(lambda: status_of(node, name).get("state") == "running", f"{name} runs", 20)


def distinct(bodies):
    """Bodies without those that came before, in their order."""
    return list(dict.fromkeys(bodies))


def action_publishes(_):
    """a rule selects messages of any QoS, publishes its output here, and does not loop"""
    node = Node()
    try:
        node.start()
        put(node, "hot", rule='SELECT clientid, topic, qos, payload.temp AS temp FROM "sensors/+/temp" WHERE payload.temp > 80',
            topic="alarms/${topic}", headers="by: ${clientid}")
        seen = node.subscriber("seen", "alarms/#")
        for temp in (79, 81, 90):
            node.publish("sensors/a/temp", json.dumps({"temp": temp}), "-i", "probe", "-q", str(temp % 3))
        until(lambda: status_of(node, "hot")["written"] == 2, "both outputs are published")
        lines = [seen.stdout.readline().split() for _ in range(2)]
        outputs = [json.loads(bytes.fromhex(payload)) for _, payload in lines]
        assert lines[0][0] == "alarms/sensors/a/temp"
        assert outputs == [{"clientid": "probe", "topic": "sensors/a/temp", "qos": 0, "temp": 81},
                           {"clientid": "probe", "topic": "sensors/a/temp", "qos": 0, "temp": 90}], outputs
        status = status_of(node, "hot")
        assert status["received"] == 3 and status["not_selected"] == 1, status
        # An action that selects its own messages ends after the first one.
        put(node, "echo", rule='SELECT * FROM "echo/#"', topic="echo/${topic}", content="${payload}")
        node.publish("echo/x", "1", "-q", "1")
        until(lambda: status_of(node, "echo")["loops"] == 1, "the loop has ended")
        assert status_of(node, "echo")["written"] == 1
        assert "hot" in node.text("actions")
    finally:
        node.close()


def action_waits_for_http(_):
    """while an HTTP server is away, messages of QoS 0 and 1 wait on disk, over a kill -9 of the node, and arrive once in their order"""
    node, receiver = Node(), Receiver()
    try:
        node.start(*LOCAL)
        # No request is repeated because this machine is slow.
        api(node, "PUT", "connectors/web", {**receiver.connector(), "timeout": "1m"})
        put(node, "save", rule='SELECT payload FROM "a/#"', connector="web", content="${payload}", retry_min="50ms", retry_max="200ms")
        for number in range(60):
            node.publish("a/n", str(number), "-q", str(number % 2))
            if number == 30:
                until(lambda: status_of(node, "save").get("state") == "retrying", "it retries")
                until(lambda: status_of(node, "save")["queued_messages"] + status_of(node, "save")["in_flight"] >= 31, "all are stored")
                node.process.kill()
                node.process.wait()
                node.start(*LOCAL)
                until(lambda: status_of(node, "save").get("state") in ("running", "retrying"), "it runs again", 20)
        tested = api(node, "POST", "connectors/test", {"name": "web"})
        assert not tested["ok"], tested
        receiver.start()
        until(lambda: len(distinct(receiver.bodies)) == 60, "all messages arrive", 20)
        assert len(set(receiver.keys)) == 60, "each record has its own key"
        until(lambda: status_of(node, "save")["in_flight"] == 0 and status_of(node, "save")["queued_messages"] == 0, "nothing waits")
        # None was written before the kill, so none comes twice.
        assert receiver.bodies == [str(number) for number in range(60)], receiver.bodies
        assert api(node, "POST", "connectors/test", {"name": "web"})["ok"]
        assert status_of(node, "save")["state"] == "running"
    finally:
        node.close()
        receiver.stop()


def action_keeps_order(_):
    """messages of each topic are written in their order over several connections and a kill -9; only those in flight come twice"""
    node, receiver = Node(), Receiver()
    topics, in_flight = [f"o/{name}" for name in "abcdef"], 20
    expected = {topic: list(range(40)) for topic in topics}

    def slowly(_):
        time.sleep(0.005)
        return 200

    def numbers(topic):
        return [int(body.split()[1]) for body in receiver.bodies if body.startswith(f"{topic} ")]

    def publish(some):
        client = Client(node.mqtt, "publisher")
        for number in some:
            for topic in topics:
                client.publish(topic, str(number))
        client.close()

    receiver.status = slowly
    try:
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", {**receiver.connector(), "timeout": "1m"})
        put(node, "save", rule='SELECT topic, payload FROM "o/#"', connector="web", content="${topic} ${payload}", connections=3, batch_max=5,
            in_flight=in_flight, retry_min="20ms", retry_max="100ms")
        publish(range(20))
        receiver.start()
        until(lambda: len(receiver.bodies) >= 60, "a part is written", 30)
        node.process.kill()
        node.process.wait()
        before = len(receiver.bodies)
        assert before < 120, "the kill came when all was written"
        node.start(*LOCAL)
        publish(range(20, 40))
        until(lambda: {topic: sorted(set(numbers(topic))) for topic in topics} == expected, "all messages arrive", 40)
        until(lambda: status_of(node, "save")["in_flight"] == 0, "nothing is written any more")
        for topic in topics:
            assert distinct(numbers(topic)) == expected[topic], numbers(topic)
            steps = list(zip(numbers(topic), numbers(topic)[1:]))
            assert sum(after <= one for one, after in steps) <= 1, ("repeated once, from one message on", numbers(topic))
        twice = len(receiver.bodies) - sum(map(len, expected.values()))
        assert twice <= in_flight, (twice, receiver.bodies)
        assert len(set(receiver.keys)) == len(set(receiver.bodies)), "a record has the same key each time"
    finally:
        node.close()
        receiver.stop()


def action_gives_up(_):
    """what a server refuses goes to the dead letter topic or to another action, and the others arrive"""
    node, receiver = Node(), Receiver()
    receiver.status = lambda body: 422 if "bad" in body else 200
    try:
        receiver.start()
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", receiver.connector())
        put(node, "save", rule='SELECT payload FROM "b/#"', connector="web", content="${payload}", body="lines", batch_wait="200ms",
            dead_letter="dead/${action}/${reason}")
        dead = node.subscriber("dead", "dead/#")
        for text in ("1", "bad 2", "3", "bad 4", "5"):
            node.publish("b/x", text, "-q", "1")
        until(lambda: status_of(node, "save")["dead_letters"] == 2, "two were refused", 20)
        lines = [dead.stdout.readline().split() for _ in range(2)]
        assert [(topic, bytes.fromhex(payload).decode()) for topic, payload in lines] == [("dead/save/refused", "bad 2"), ("dead/save/refused", "bad 4")]
        sent = "".join(receiver.bodies).splitlines()
        assert sent == ["1", "3", "5"], receiver.bodies
        # The fallback applies its own rule to the message.
        put(node, "spare", rule='SELECT topic, clientid, payload FROM "c/#"', topic="spare/${topic}", content="${clientid} ${payload}")
        put(node, "first", rule='SELECT payload FROM "c/#"', connector="web", content="${payload}", fallback="spare")
        spare = node.subscriber("spare", "spare/#")
        node.publish("c/x", "bad 6", "-q", "1", "-i", "origin")
        until(lambda: status_of(node, "first")["fallbacks"] == 1, "the fallback has it")
        # Once for the rule of the fallback, and once for the message that it got.
        lines = {spare.stdout.readline().strip() for _ in range(2)}
        assert lines == {"spare/c/x " + b"origin bad 6".hex()}, lines
        listed = {action["name"] for action in api(node, "GET", "actions")["items"]}
        assert listed == {"save", "spare", "first"}, listed
        refused = api(node, "DELETE", "actions/spare", code=409)
        assert "first" in refused["detail"], refused
    finally:
        node.close()
        receiver.stop()


def action_passes_poison(_):
    """a record that a server always answers with 500 is given up while others arrive, and an outage gives nothing up"""
    node, receiver = Node(), Receiver()
    receiver.status = lambda body: 500 if "poison" in body else 200
    try:
        receiver.start()
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", receiver.connector())
        put(node, "save", rule='SELECT payload FROM "p/#"', connector="web", content="${payload}", retry_min="20ms", retry_max="100ms",
            attempts_max=3, dead_letter="dead/${action}/${reason}")
        dead = node.subscriber("dead", "dead/#")
        for text in ("1", "poison", "2"):
            node.publish("p/x", text, "-q", "1")
        until(lambda: len(distinct(receiver.bodies)) == 2, "the others arrive")
        time.sleep(1)
        assert status_of(node, "save")["given_up"] == 0, "nothing else was written meanwhile"
        number = 2
        while status_of(node, "save")["given_up"] == 0:
            number += 1
            assert number < 50, status_of(node, "save")
            node.publish("p/x", str(number), "-q", "1")
            time.sleep(0.2)
        topic, payload = dead.stdout.readline().split()
        assert (topic, bytes.fromhex(payload).decode()) == ("dead/save/failed", "poison"), (topic, payload)
        receiver.status = lambda body: 500
        for further in range(number + 1, number + 21):
            node.publish("p/x", str(further), "-q", "1")
        time.sleep(3)
        receiver.status = lambda body: 200
        until(lambda: len(distinct(receiver.bodies)) == number + 20, "all arrive after the outage", 20)
        assert status_of(node, "save")["given_up"] == 1, status_of(node, "save")
    finally:
        node.close()
        receiver.stop()


def action_is_tested(_):
    """a test shows outputs and records for a sample and for the next message, and errors with their place"""
    node = Node()
    try:
        node.start()
        test = {"settings": {"rule": 'SELECT payload.v AS v, clientid FROM "t/#" WHERE payload.v > 1', "topic": "out/${clientid}", "content": "v=${v}"}}
        sample = {"topic": "t/a", "payload": {"v": 2}, "clientid": "c"}
        shown = api(node, "POST", "actions/test", {**test, "message": sample})
        assert shown["matched"] and shown["outputs"] == [{"v": 2, "clientid": "c"}], shown
        fields = {field["name"]: field["value"] for field in shown["records"][0]["fields"]}
        assert fields["topic"] == "out/c" and fields["content"] == "v=2", fields
        assert not api(node, "POST", "actions/test", {**test, "message": {"payload": {"v": 0}}})["matched"]
        wrong = api(node, "POST", "actions/test", {"settings": {"rule": "SELECT FROM"}, "message": sample})
        assert wrong["error"]["where"] == "rule", wrong
        wrong = api(node, "POST", "actions/test", {**test, "message": {"payload": "{"}})
        assert wrong["error"]["where"] == "evaluation", wrong
        answers = []
        live = threading.Thread(target=lambda: answers.append(api(node, "POST", "actions/test", {**test, "live": True})))
        live.start()
        while live.is_alive():
            node.publish("t/live", '{"v": 3}', "-i", "living")
            live.join(0.2)
        assert answers[0]["outputs"] == [{"v": 3, "clientid": "living"}] and answers[0]["message"]["topic"] == "t/live", answers
        # Nothing was written or published, and nothing is left of the tests.
        assert api(node, "GET", "actions")["items"] == [] and node.json("clients")["items"] == []
        refused = api(node, "PUT", "actions/x", {"rule": 'SELECT * FROM "a"'}, code=422)
        assert "topic" in json.dumps(refused), refused
        refused = api(node, "PUT", "connectors/x", {"kind": "http", "url": "http://127.0.0.1:1/"}, code=(201,))
        tested = api(node, "POST", "connectors/test", {"name": "x"})
        assert not tested["ok"] and "actions.allow_loopback" in tested["message"], tested
    finally:
        node.close()


def action_refuses(_):
    """with queue_full = refuse, publishers are told that the queue is full, and what was accepted arrives"""
    node, receiver = Node(), Receiver()
    try:
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", receiver.connector())
        put(node, "strict", rule='SELECT payload FROM "a/#"', connector="web", content="${payload}", queue_full="refuse", queue_messages_max=2,
            in_flight=1, retry_min="50ms", retry_max="200ms")
        seen = node.subscriber("seen", "a/#")

        def publish(payload, *more):
            return node.run("pub", "-p", str(node.mqtt), "-t", "a/n", "-m", payload, *more, code=None)

        for number in range(3):
            assert publish(str(number), "-q", str(1 + number % 2)).returncode == 0, number
        for qos in "12":
            refused = publish("refused", "-q", qos)
            assert refused.returncode != 0 and "Quota exceeded" in refused.err, (qos, refused.returncode, refused.err)
        lines = [bytes.fromhex(seen.stdout.readline().split()[1]).decode() for _ in range(5)]
        assert lines == ["0", "1", "2", "refused", "refused"], "other subscribers get them"
        receiver.start()
        until(lambda: distinct(receiver.bodies) == ["0", "1", "2"], "the accepted ones arrive", 20)
        until(lambda: status_of(node, "strict")["queued_messages"] == 0, "there is room")
        assert publish("3", "-q", "2").returncode == 0
        until(lambda: distinct(receiver.bodies) == ["0", "1", "2", "3"], "the next one arrives", 20)
    finally:
        node.close()
        receiver.stop()


def action_counts_drops(_):
    """messages that a full queue drops are in the status, the metrics and the alarms of the action, with what still waits"""
    node, receiver = Node(), Receiver()
    try:
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", receiver.connector())
        put(node, "small", rule='SELECT payload FROM "a/#"', connector="web", content="${payload}", queue_messages_max=2, in_flight=1)
        for number in range(6):
            node.publish("a/n", str(number), "-q", "1")
        status = until(lambda: (found := status_of(node, "small")).get("dropped_queue") == 3 and found, "three are dropped")
        assert (status["dropped"], status["queued_messages"]) == (3, 2) and status["queued_bytes"] > 0 and status["oldest_s"] is not None, status
        with urllib.request.urlopen(f"{node.url}/metrics", timeout=30) as answer:
            assert 'meridian_action_dropped_total{action="small",reason="queue"} 3' in answer.read().decode()
        alarms = [alarm["text"] for alarm in api(node, "GET", "alarms")["items"] if alarm["code"] == "dropping"]
        assert len(alarms) == 1 and alarms[0].startswith("the action small has lost 3 messages"), alarms
        until(lambda: any(alarm["code"] == "action" for alarm in api(node, "GET", "alarms")["items"]), "it stands still", 60)
    finally:
        node.close()
        receiver.stop()


def action_is_removed(_):
    """an action that is removed keeps its messages for a later one, or loses them on request"""
    node, receiver = Node(), Receiver()
    try:
        node.start(*LOCAL)
        api(node, "PUT", "connectors/web", receiver.connector())
        settings = {"rule": 'SELECT payload FROM "a"', "connector": "web", "content": "${payload}", "retry_max": "200ms", "retry_min": "100ms"}
        put(node, "keep", **settings)
        put(node, "lose", **settings)
        for number in range(3):
            node.publish("a", str(number), "-q", "1")
        until(lambda: all(status_of(node, name)["in_flight"] == 3 for name in ("keep", "lose")), "both have the messages")
        api(node, "DELETE", "actions/keep")
        api(node, "DELETE", "actions/lose?messages=delete")
        receiver.start()
        put(node, "lose", **settings)
        put(node, "keep", **settings)
        until(lambda: status_of(node, "keep")["written"] == 3, "the kept messages arrive")
        assert sorted(receiver.bodies) == ["0", "1", "2"], receiver.bodies
        assert status_of(node, "lose")["written"] == 0
        # The messages of an action that was removed before, and then nothing any more.
        api(node, "DELETE", "actions/keep")
        api(node, "DELETE", "actions/keep?messages=delete", code=204)
        for name in ("keep", "never"):
            api(node, "DELETE", f"actions/{name}?messages=delete", code=404)
    finally:
        node.close()
        receiver.stop()


def action_writes_events(_):
    """events about clients are written to a file, and cost nothing to others"""
    node = Node()
    try:
        node.start()
        directory = node.directory / "events"
        api(node, "PUT", "connectors/disk", {"kind": "file", "directory": str(directory)})
        put(node, "audit", rule='SELECT event, clientid, reason FROM "$events/client/connected", "$events/client/disconnected"', connector="disk")
        time.sleep(1)
        node.publish("x", "y", "-i", "visitor")
        lines = lambda: [json.loads(line) for path in directory.glob("audit*.ndjson") for line in path.read_text().splitlines()]
        until(lambda: len(lines()) >= 2, "both events are written")
        seen = [(line["event"], line["clientid"]) for line in lines()]
        assert seen == [("client.connected", "visitor"), ("client.disconnected", "visitor")], lines()
        # A client from outside sees no events unless a rule allows it.
        refused = subprocess.run(["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-t", "$events/#", "-W", "2"], capture_output=True, text=True,
                                 timeout=10, check=False)
        assert refused.stdout == "", refused
    finally:
        node.close()


def soon(holds, seconds=2):
    """Polls until `holds()` is true, or the time is over. Returns whether it is true."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


# Connections in a row that an event has to reach, so that all reactors know that it is selected.
IN_A_ROW = 6


def action_knows_attributes(_):
    """rules and templates use the attributes of publishers and of clients in events, and operators see them"""
    node = Node()
    try:
        node.start("--set", "auth.allow_anonymous=true")
        for name, *attributes in [("ann", "site=north", "class=gold"), ("bob", "site=south", "class=silver"), ("cid",)]:
            node.ctl("users", "add", name, *[word for attribute in attributes for word in ("--attribute", attribute)], stdin="secret\n")
        put(node, "sites", rule='SELECT client_attrs.site AS site, client_attrs FROM "in/#" WHERE client_attrs.class = \'gold\'',
            topic="out/${site}", content="${client_attrs.class}")
        put(node, "who", rule='SELECT clientid, client_attrs FROM "$events/client/connected"', topic="who/${clientid}", content="${client_attrs.site?}")

        def visit(number):
            before = status_of(node, "who")["received"]
            node.publish("x", "y", "-i", f"visitor-{number}")
            return soon(lambda: status_of(node, "who")["received"] > before)

        until(lambda: all(visit(number) for number in range(IN_A_ROW)), "events are published", 60)
        there = node.subscriber("there", "out/#", "who/of-ann", "who/of-bob", "who/of-cid")
        for name in ["bob", "cid", "ann"]:
            node.publish("in/1", "x", "-i", f"of-{name}", "-u", name, "-P", "secret", "-q", "1")
        lines = [there.stdout.readline().split() for _ in range(4)]
        seen = {line[0]: bytes.fromhex(line[1]).decode() if len(line) > 1 else "" for line in lines}
        assert seen == {"out/north": "gold", "who/of-ann": "north", "who/of-bob": "south", "who/of-cid": ""}, seen
        node.clients.append(subprocess.Popen(
            ["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-i", "reader", "-u", "ann", "-P", "secret", "-t", "x"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until(lambda: node.subscribed("reader") == 1, "the reader has subscribed", 20)
        assert "class=gold, site=north" in node.text("client", "reader")
        assert node.json("client", "reader")["connection"]["client_attrs"] == {"class": ["gold"], "site": ["north"]}
    finally:
        node.close()


def action_of_tenant(_):
    """a rule of a tenant sees topics and events of the tenant only, publishes below its mountpoint, and uses no entries and files of others"""
    node, receiver = Node(), Receiver()
    receiver.start()
    try:
        own = node.directory / "tenants"
        (own / "x").mkdir(parents=True)
        node.start(*LOCAL, "--set", "auth.allow_anonymous=true", "--set", f"actions.tenant_directory={own}", "--set", "actions.tenant_actions_max=3")
        for tenant in ["x", "y"]:
            node.ctl("users", "add", f"of-{tenant}", "--tenant", tenant, stdin="secret\n")
        api(node, "PUT", "connectors/web-x", {**receiver.connector(), "tenant": "x"})
        api(node, "PUT", "connectors/web", receiver.connector())
        put(node, "all-x", tenant="x", connector="web-x", batch_wait="0s",
            rule='SELECT event, topic, clientid, mountpoint, payload, from_clientid FROM "#", "$events/client/connected", "$events/message/delivered"')
        put(node, "echo-x", tenant="x", rule='SELECT payload FROM "in/#"', topic="${payload}", content="echo")
        of_x = ["-u", "of-x", "-P", "secret"]
        node.clients.append(subprocess.Popen(
            ["mosquitto_sub", "-p", str(node.mqtt), "-V", "5", "-i", "reader", *of_x, "-t", "in/#", "-t", "warm"], stdout=subprocess.DEVNULL))
        until(lambda: node.json("clients", "--search", "reader")["items"], "the reader is connected", 20)
        seen = lambda: [json.loads(body) for body in list(receiver.bodies)]

        def warm(number):
            node.publish("warm", text := f"{number} {time.monotonic()}", "-i", "probe", *of_x)
            return soon(lambda: any((item["event"], item["payload"], item["from_clientid"]) == ("message.delivered", text, "probe") for item in seen()))

        until(lambda: all(warm(number) for number in range(IN_A_ROW)), "events are published", 60)
        there = node.subscriber("there", "#")
        for client, topic, payload, *more in [
                ("spy", "in/secret", "of y", "-u", "of-y", "-P", "secret"), ("root", "y/in/secret", "of y"), ("root", "x/in/1", "../y/from-x"),
                ("probe", "in/2", "$SYS/from-x", *of_x), ("probe", "in/3", "out", *of_x)]:
            node.publish(topic, payload, "-i", client, "-q", "1", *more)
        until(lambda: status_of(node, "echo-x")["written"] == 2, "two of three are published")
        until(lambda: any(item["payload"] == "out" and item["event"] == "message.delivered" for item in seen()), "the last delivery is known")
        until(lambda: any(item["topic"] == "out" and item["event"] == "message.publish" for item in seen()), "the last message is known")
        bodies = list(receiver.bodies)
        assert not any(word in body for body in bodies for word in ("of y", "secret", "spy", "root", "of-y", "there")), bodies
        messages = {(item["topic"], item["clientid"], item["mountpoint"]) for item in seen() if item["event"] == "message.publish" and item["topic"] != "warm"}
        assert messages == {("in/1", None, None), ("in/2", "probe", "x/"), ("in/3", "probe", "x/"), ("../y/from-x", None, None), ("out", None, None)}, messages
        delivered = {(item["topic"], item["clientid"], item["from_clientid"]) for item in seen() if item["event"] == "message.delivered" and item["topic"] != "warm"}
        assert delivered == {("in/1", "reader", None), ("in/2", "reader", "probe"), ("in/3", "reader", "probe")}, delivered
        assert {item["clientid"] for item in seen() if item["event"] == "client.connected"} <= {"reader", "probe"}, bodies
        got = sorted(there.stdout.readline().split()[0] for _ in range(7))
        assert got == sorted(["y/in/secret", "y/in/secret", "x/in/1", "x/in/2", "x/in/3", "x/../y/from-x", "x/out"]), got
        # Entries and files of others, and more than the limit.
        rule = {"rule": 'SELECT * FROM "#"', "topic": "t", "tenant": "x"}
        for path, settings, setting in [
                ("actions/a", {**rule, "connector": "web"}, "connector"), ("actions/a", {**rule, "tenant": "y", "fallback": "all-x"}, "fallback"),
                ("actions/a", {**rule, "rule": 'SELECT * FROM "$events/sys/alarm"'}, "rule"), ("actions/a", {**rule, "tenant": "#"}, "tenant"),
                ("connectors/d", {"kind": "file", "directory": f"{own}/y", "tenant": "x"}, "directory"),
                ("connectors/d", {"kind": "file", "directory": f"{own}/x/../y", "tenant": "x"}, "directory"),
                ("connectors/d", {**receiver.connector(), "token_file": "/etc/hostname", "tenant": "x"}, "token_file")]:
            refused = json.dumps(api(node, "PUT", path, settings, code=(400, 409, 422)))
            assert setting in refused, (settings, refused)
        api(node, "PUT", "actions/third", rule)
        assert "tenant_actions_max" in json.dumps(api(node, "PUT", "actions/fourth", rule, code=(400, 409, 422)))
        api(node, "PUT", "actions/of-y", {**rule, "tenant": "y"})
        assert [item["name"] for item in node.json("actions", "--tenant", "x")["items"]] == ["all-x", "echo-x", "third"]
        assert [item["name"] for item in node.json("connectors", "--tenant", "x")["items"]] == ["web-x"]
    finally:
        node.close()
        receiver.stop()


def secrets_have_a_directory(_):
    """with a directory of secrets, connectors, bridges and links of the API name no secret elsewhere, and those stored before do not run"""
    node = Node()
    try:
        own, outside = node.directory / "secrets", node.directory / "outside"
        own.mkdir()
        for path in (own / "inside", outside):
            path.write_text("0123456789abcdef0123456789abcdef\n")
        away = {"address": f"127.0.0.1:{free_port()}"}
        kinds = [("connectors", "token_file", {"kind": "http", "url": "http://192.0.2.1/"}), ("links/external", "secret_file", {"own_name": "here"}),
                 ("bridges", "password_file", {**away, "topics": "a/# out", "username": "u"})]
        node.start()
        for path, setting, settings in kinds:
            api(node, "PUT", f"{path}/old", {**settings, setting: str(outside)})
        node.stop()
        node.start("--set", f"http.secrets_directory={own}")
        for path, setting, settings in kinds:
            fault = api(node, "GET", f"{path}/old")["fault"]
            assert fault and fault.startswith(f"{setting}: {outside} is not below {own}"), (path, fault)
            for elsewhere in (outside, own, own / ".." / "outside", "inside"):
                refused = json.dumps(api(node, "PUT", f"{path}/new", {**settings, setting: str(elsewhere)}, code=(400, 422)))
                assert setting in refused and "http.secrets_directory" in refused, (path, refused)
            api(node, "PUT", f"{path}/new", {**settings, setting: str(own / "inside")})
            assert api(node, "GET", f"{path}/new")["fault"] is None, path
        refused = api(node, "POST", "connectors/test", {"name": "old", "settings": {"url": "http://192.0.2.2/"}}, code=(400, 422))
        assert "token_file" in json.dumps(refused), refused
        tested = node.run("config", "check", "--set", f"http.secrets_directory={own}", "--set", "connector.0.name=c", "--set", "connector.0.url=http://192.0.2.1/",
                          "--set", f"connector.0.token_file={outside}", code=1)
        assert f"connector.0.token_file: {outside} is not below" in tested.out + tested.err, tested
        for wrong, why in [(own / ".." / "secrets", "has `..` in it"), ("secrets", "is a relative path"), (outside, "is not a directory")]:
            for command in ("config", "check"), ("start", "--data-dir", str(node.directory / "other")):
                refused = node.run(*command, "--set", f"http.secrets_directory={wrong}", code=1)
                assert f"http.secrets_directory: {wrong} {why}" in refused.out + refused.err, refused
        missing = node.run("config", "check", "--set", f"http.secrets_directory={own / 'missing'}")
        assert f"warning: http.secrets_directory: there is no directory {own / 'missing'}" in missing.out, missing
        renamed = node.run("config", "check", "--set", f"actions.secrets_directory={own}", code=1)
        assert "write http.secrets_directory" in renamed.out + renamed.err, renamed
    finally:
        node.close()


def action_fills_postgres(_):
    """temperatures over 80 are rows in PostgreSQL, also those of the time in which its plug was pulled"""
    node, database = Node(), Postgres()
    try:
        database.start()
        database.sql("CREATE TABLE hot (id uuid PRIMARY KEY, at timestamptz, client text, temp double precision)")
        node.start(*LOCAL)
        api(node, "PUT", "connectors/db", database.connector(node))
        assert "PostgreSQL" in api(node, "POST", "connectors/test", {"name": "db"})["message"]
        put(node, "hot", rule='SELECT payload.temp AS temp, clientid, timestamp FROM "s/#" WHERE payload.temp > 80', connector="db",
            statement="INSERT INTO hot (id, at, client, temp) VALUES (${meridian_id}, to_timestamp(${timestamp}::double precision / 1000), "
                      "${clientid}, ${temp}) ON CONFLICT DO NOTHING", retry_max="500ms")
        for number in range(90):
            node.publish("s/a", json.dumps({"temp": 60 + number}), "-i", f"c{number % 3}", "-q", str(number % 3))
            if number == 30:
                database.kill()
            # Its acknowledgement says that it is on disk, and so is the message of QoS 0 before it.
            if number == 61:
                node.process.kill()
                node.process.wait()
                node.start(*LOCAL)
                until(lambda: status_of(node, "hot").get("state") in ("running", "retrying"), "it runs again", 20)
        database.start()
        expected = 90 - 21
        until(lambda: int(database.sql("SELECT count(*) FROM hot")) >= expected, "every row is there", 30)
        assert database.sql("SELECT count(*), count(DISTINCT temp), min(temp), max(temp) FROM hot") == f"{expected}|{expected}|81|149"
        assert database.sql("SELECT count(*) FROM hot WHERE client IN ('c0', 'c1', 'c2') AND at > now() - interval '10 minutes'") == str(expected)
    finally:
        node.close()
        database.close()


def action_moves(_):
    """in a cluster an action runs on one node, moves when that node is killed for good, and loses nothing"""
    receiver = Receiver().start()
    try:
        with cluster("actions.allow_loopback=true") as named:
            nodes = list(named.values())
            api(nodes[0], "PUT", "connectors/web", receiver.connector())
            put(nodes[0], "save", rule='SELECT payload FROM "a/#"', connector="web", content="${payload}", retry_min="50ms", retry_max="200ms")
            assert all(status_of(node, "save")["state"] == "running" for node in nodes)
            where = status_of(nodes[0], "save")["node"]
            killed = named[where]
            others = [node for node in nodes if node is not killed]
            for number in range(40):
                if number == 20:
                    killed.process.kill()
                    killed.process.wait()
                node = others[number % 2]
                until(lambda node=node, number=number: subprocess.run(
                    ["mosquitto_pub", "-p", str(node.mqtt), "-V", "5", "-t", f"a/{number}", "-m", str(number), "-q", "1"], capture_output=True,
                    timeout=20, check=False).returncode == 0, "the publisher is acknowledged", 30)
            until(lambda: len(distinct(receiver.bodies)) == 40, "all messages arrive", 40)
            until(lambda: status_of(others[0], "save").get("node") in set(named) - {where}, "it has moved", 20)
    finally:
        receiver.stop()


def tutorial_is_true(_):
    """the commands of docs/rules.md print what the page says"""
    node = Node()
    try:
        node.start()
        directory = node.directory / "tutorial"
        binaries = directory / "bin"
        binaries.mkdir(parents=True)
        # The page uses the default ports.
        (binaries / "meridian").write_text(
            "#!/bin/sh\n"
            f'case "$1" in pub|sub) command=$1; shift; exec {BINARY} $command -p {node.mqtt} "$@";; esac\n'
            f'exec {BINARY} "$@"\n')
        (binaries / "meridian").chmod(0o755)
        page = (ROOT / "docs" / "rules.md").read_text()
        blocks = re.findall(r"```sh\n(.*?)```\n\n```text\n(.*?)```", page, re.S)
        assert len(blocks) == 9, len(blocks)
        for commands, expected in blocks:
            done = subprocess.run(["bash", "-eu", "-c", commands], cwd=directory, capture_output=True, text=True, timeout=60, check=False,
                                  env=environment(MERIDIAN_URL=node.url, PATH=f"{binaries}:{os.environ['PATH']}"))
            assert done.stdout == expected and done.returncode == 0, (commands, expected, done.stdout, done.stderr)
    finally:
        node.close()


CHECKS = [tutorial_is_true, action_publishes, action_waits_for_http, action_keeps_order, action_gives_up, action_passes_poison, action_is_tested, action_refuses, action_counts_drops,
          action_is_removed, action_writes_events, action_knows_attributes, action_of_tenant, secrets_have_a_directory,
          action_fills_postgres, action_moves]
