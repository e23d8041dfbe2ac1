"""A mosquitto that is replaced by a node, from its configuration file on."""

import json
import subprocess
import threading

from checks_actions import LOCAL, Postgres, api, put, status_of
from checks_bridges import LINE, Mosquitto, connected, read_until
from node import BINARY, Node, until

RATE = 50
SECONDS_WITHOUT_PLUG = 6


def configuration(directory, port, far):
    """Configuration of a mosquitto with users, rules and two bridges. Its rules follow the bridges, in an included file."""
    users, rules, more = directory / "users", directory / "acl", directory / "conf.d"
    more.mkdir()
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "plant", "secret"], check=True, capture_output=True, timeout=20)
    rules.write_text("user plant\ntopic readwrite temp/#\ntopic readwrite down/#\n")
    for path in (users, rules):
        path.chmod(0o644)
    (more / "a-bridges.conf").write_text("\n".join([
        "connection up", f"address 127.0.0.1:{far[0].port}", "topic temp/# out 1 \"\" site/", "bridge_protocol_version mqttv311",
        "connection down", f"address 127.0.0.1:{far[1].port}", "topic down/# in 2", "cleansession false", "restart_timeout 1 2"]) + "\n")
    (more / "b-access.conf").write_text(f"password_file {users}\nacl_file {rules}\nallow_anonymous false\n")
    path = directory / "mosquitto.conf"
    path.write_text(f"listener {port} 127.0.0.1\nuser root\npersistence false\ninclude_dir {more}\n")
    return path


def crosses(port, far, word):
    """Publishes here and at the second broker, and checks that both bridges carry it."""
    user = ["-u", "plant", "-P", "secret"]
    up = far[0].subscriber(f"far-{word}", "site/temp/#")
    down = subprocess.Popen(["stdbuf", "-oL", "mosquitto_sub", "-p", str(port), *user, "-i", f"near-{word}", "-q", "2", "-t", "down/#", "-t", "other/#", "-d",
                             "-F", f"{LINE}%t %p"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert b"SUBACK" in read_until(down, b"received SUBACK", 20)
        seen = {up: up.early, down: b""}
        # Bridges may connect later than clients.
        for number in range(60):
            subprocess.run(["mosquitto_pub", "-p", str(port), *user, "-t", "temp/a", "-m", f"{word} {number}", "-q", "1"], check=True, capture_output=True, timeout=10)
            far[1].publish("down/b", f"{word} {number}", "-q", "1")
            seen = {process: read_until(process, LINE.encode(), 0.3, 1, data) for process, data in seen.items()}
            if all(LINE.encode() in data for data in seen.values()):
                break
        assert b"message site/temp/a" in seen[up] and b"message down/b" in seen[down], seen.values()
    finally:
        for process in (up, down):
            process.kill()
            process.wait()


def may_publish(port, topic):
    """Publishes as a user of MQTT 5.0, and returns whether the rules accept it."""
    done = subprocess.run(["mosquitto_pub", "-V", "5", "-p", str(port), "-u", "plant", "-P", "secret", "-t", topic, "-m", "x", "-q", "1"], capture_output=True,
                          text=True, timeout=10, check=False)
    return "Not authorized" not in done.stderr + done.stdout


def mosquitto_is_replaced(_):
    """a mosquitto with two bridges, users and rules is imported and replaced, and a rule fills PostgreSQL over a time without it"""
    node, database, far = Node(), Postgres(), [Mosquitto(), Mosquitto()]
    old = None
    try:
        for broker in far:
            broker.start()
        path = configuration(node.directory, node.mqtt, far)
        old = subprocess.Popen(["mosquitto", "-c", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        user = ["-u", "plant", "-P", "secret"]
        until(lambda: subprocess.run(["mosquitto_pub", "-p", str(node.mqtt), *user, "-t", "x", "-m", "x"], capture_output=True, timeout=5,
                                     check=False).returncode == 0, "mosquitto answers")
        crosses(node.mqtt, far, "before")
        assert not may_publish(node.mqtt, "other/x"), "mosquitto keeps to the rules, which follow the bridges"
        old.terminate()
        old.wait(10)

        imported = subprocess.run([BINARY, "config", "import", str(path)], capture_output=True, text=True, timeout=20, check=True)
        left = imported.stdout.split("# Without a counterpart:\n")[1].splitlines()
        assert len(left) == 1 and "user root" in left[0], left
        toml = node.directory / "meridian.toml"
        toml.write_text(imported.stdout)
        given = ["--config", str(toml), *LOCAL]
        subprocess.run([BINARY, "config", "check", "--config", str(toml)], capture_output=True, text=True, timeout=20, check=True)
        node.start(*given)
        for name in ("up", "down"):
            until(lambda name=name: connected(node, name), f"the bridge {name} is connected")
        crosses(node.mqtt, far, "after")
        assert not may_publish(node.mqtt, "other/x") and may_publish(node.mqtt, "temp/x"), "the rules are those of mosquitto"

        database.start()
        database.sql("CREATE TABLE hot (id uuid PRIMARY KEY, topic text, number int)")
        api(node, "PUT", "connectors/db", database.connector(node))
        put(node, "hot", rule='SELECT payload.number AS number, topic FROM "temp/#" WHERE payload.temp > 80', connector="db", retry_max="500ms",
            statement="INSERT INTO hot (id, topic, number) VALUES (${meridian_id}, ${topic}, ${number}) ON CONFLICT DO NOTHING")
        publisher = subprocess.Popen(["mosquitto_pub", "-p", str(node.mqtt), *user, "-t", "temp/boiler", "-q", "1", "-l"], stdin=subprocess.PIPE, text=True)
        ended, sent = threading.Event(), []

        def publish():
            while not ended.wait(1 / RATE):
                publisher.stdin.write(json.dumps({"temp": 70 + len(sent) % 20, "number": len(sent)}) + "\n")
                publisher.stdin.flush()
                sent.append(70 + len(sent) % 20 > 80)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            until(lambda: database.sql("SELECT count(*) FROM hot") != "0", "rows are written")
            database.kill()
            until(lambda: status_of(node, "hot").get("state") == "retrying", "the action tries again")
            before = len(sent)
            until(lambda: len(sent) >= before + RATE * SECONDS_WITHOUT_PLUG, "messages are published without the database", 60)
            assert connected(node, "up"), "the bridge does not notice"
            database.start()
        finally:
            ended.set()
            thread.join()
            publisher.stdin.close()
            publisher.wait(30)
        expected = sum(sent)
        until(lambda: database.sql("SELECT count(DISTINCT number) FROM hot") == str(expected), "every row is there", 30)
        assert database.sql("SELECT count(*) FROM hot WHERE topic = 'temp/boiler'") == str(expected), "no row is there twice"
    finally:
        if old and old.poll() is None:
            old.kill()
            old.wait()
        node.close()
        database.close()
        for broker in far:
            broker.close()


CHECKS = [mosquitto_is_replaced]
