"""The cells of the matrix. Each is a short scenario run with `driver.client(name, identifier)`; see `client.py`.

Nothing sleeps. That something does *not* arrive is shown by a later message (a fence) that arrives first, sent when the
broker has certainly dealt with whatever could have caused the unwanted one.
"""

from client import Failure

SESSION_TAKEN_OVER = 0x8E


def expect(actual, wanted, what):
    if actual != wanted:
        raise Failure(f"{what}: wanted {wanted!r}, got {actual!r}")


def payloads_of(messages):
    return [message["payload"] for message in messages]


def numbered(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


class Scenario:
    """One cell: its own topics and Client Identifiers, at most 23 characters for the sake of MQTT 3.1."""

    def __init__(self, driver, label, cell):
        self.driver = driver
        self.topic = f"interop/{label}/{cell.replace(' ', '-')}/value"
        self.identifier = f"{label}{CELLS_INDEX[cell]}"
        self.clients = 0

    def client(self, name, **connect):
        client = self.unconnected(name)
        client.connect(**connect)
        return client

    def unconnected(self, name, identifier=None):
        self.clients += 1
        return self.driver.client(name, identifier or f"{self.identifier}-{self.clients}")


def flow(scenario, qos):
    """Twenty messages arrive once each, in order, at the QoS of both ends; a subscription of QoS 0 lowers it."""
    subscriber, low = scenario.client("subscriber"), scenario.client("low")
    expect(subscriber.subscribe(scenario.topic, qos), [qos], "granted QoS")
    expect(low.subscribe(scenario.topic, 0), [0], "granted QoS")
    sent = numbered("m", 20)
    publisher = scenario.client("publisher")
    publisher.publish(scenario.topic, sent, qos)
    publisher.publish(scenario.topic, ["end"], qos)
    for client, effective in ((subscriber, qos), (low, 0)):
        received = client.receive(21)
        expect(payloads_of(received), sent + ["end"], "messages")
        expect({m["qos"] for m in received}, {effective}, "effective QoS")
        expect({m["topic"] for m in received}, {scenario.topic}, "topics")
        expect({m["retain"] for m in received}, {False}, "RETAIN")


def qos0(scenario):
    flow(scenario, 0)


def qos1(scenario):
    flow(scenario, 1)


def qos2(scenario):
    flow(scenario, 2)


def retain_set(scenario):
    """A retained message reaches a live subscriber as an ordinary one [MQTT-3.3.1-12] and is kept."""
    live = scenario.client("live")
    live.subscribe(scenario.topic, 1)
    publisher = scenario.client("publisher")
    publisher.publish(scenario.topic, ["first"], 1, retain=True)
    publisher.publish(scenario.topic, ["second"], 1, retain=True)
    received = live.receive(2)
    expect(payloads_of(received), ["first", "second"], "live messages")
    expect([m["retain"] for m in received], [False, False], "RETAIN of live messages")
    publisher.publish(scenario.topic, [""], 1, retain=True)


def retain_get(scenario):
    """A new subscription gets the last retained message, marked so, by topic and by wildcard [MQTT-3.3.1-6]."""
    publisher = scenario.client("publisher")
    publisher.publish(scenario.topic, ["old"], 1, retain=True)
    publisher.publish(scenario.topic, ["new"], 1, retain=True)
    for topic_filter in (scenario.topic, scenario.topic.rsplit("/", 1)[0] + "/+", scenario.topic + "/#"):
        subscriber = scenario.client("subscriber")
        subscriber.subscribe(topic_filter, 1)
        [message] = subscriber.receive(1)
        expect((message["payload"], message["retain"], message["qos"]), ("new", True, 1), topic_filter)
    publisher.publish(scenario.topic, [""], 1, retain=True)


def retain_delete(scenario):
    """An empty retained payload deletes [MQTT-3.3.1-7]; it is passed on to live subscribers all the same."""
    live = scenario.client("live")
    live.subscribe(scenario.topic, 1)
    publisher = scenario.client("publisher")
    publisher.publish(scenario.topic, ["kept"], 1, retain=True)
    publisher.publish(scenario.topic, [""], 1, retain=True)
    expect(payloads_of(live.receive(2)), ["kept", ""], "live messages")
    late = scenario.client("late")
    late.subscribe(scenario.topic, 1)
    publisher.publish(scenario.topic, ["fence"], 1)
    expect([(m["payload"], m["retain"]) for m in late.receive(1)], [("fence", False)], "after deletion")


def will(scenario):
    """The Will is published when the connection ends without a DISCONNECT [MQTT-3.1.2-8], and not after one."""
    watcher = scenario.client("watcher")
    watcher.subscribe(scenario.topic, 1)
    said = {"topic": scenario.topic, "payload": "gone", "qos": 1, "retain": False}

    identifier = f"{scenario.identifier}-w"
    mortal = scenario.unconnected("mortal", identifier)
    mortal.connect(will=said)
    mortal.subscribe(scenario.topic + "/own", 0)
    mortal.abort()
    expect([(m["payload"], m["qos"]) for m in watcher.receive(1)], [("gone", 1)], "Will")

    polite = scenario.unconnected("polite", identifier)
    polite.connect(will=said)
    polite.subscribe(scenario.topic + "/own", 0)
    polite.disconnect()
    if scenario.driver.disconnects_with_will:
        expect(payloads_of(watcher.receive(1)), ["gone"], "Will after DISCONNECT 0x04")
    # The broker answers a second connection of one Client Identifier only when the first is over.
    again = scenario.unconnected("again", identifier)
    again.connect()
    again.publish(scenario.topic, ["fence"], 1)
    expect(payloads_of(watcher.receive(1)), ["fence"], "after DISCONNECT")


def resume(scenario):
    """A durable session keeps QoS 1 and 2 in order while its client is away, and only then ends."""
    durable = scenario.unconnected("durable")
    session = {"clean": False, "expiry": 300}
    expect_session_present(durable.connect(**session), False, scenario)
    durable.subscribe(scenario.topic, 2)
    durable.disconnect()
    publisher = scenario.client("publisher")
    sent = []
    for i in range(10):
        sent += [f"one{i}", f"two{i}"]
        publisher.publish(scenario.topic, [f"one{i}"], 1)
        publisher.publish(scenario.topic, [f"two{i}"], 2)
    expect_session_present(durable.connect(**session), True, scenario)
    received = durable.receive(20)
    # Each QoS has its own order: a client may hand over QoS 2 at PUBLISH or at PUBREL.
    for qos in (1, 2):
        expect(payloads_of(m for m in received if m["qos"] == qos), sent[qos - 1 :: 2], f"queued messages of QoS {qos}")
    publisher.publish(scenario.topic, ["live"], 1)
    expect(payloads_of(durable.receive(1)), ["live"], "after the queue")
    durable.disconnect()
    fresh = scenario.unconnected("fresh", durable.identifier)
    expect_session_present(fresh.connect(clean=True), False, scenario)


def expect_session_present(actual, wanted, scenario):
    """MQTT 3.1 has no such flag, and mosquitto_sub does not print it; there the queued messages tell."""
    if actual is not None and scenario.driver.version > 3:
        expect(actual, wanted, "Session Present")


def shared(scenario):
    """Two members of a group split its messages: each goes to one of them, and both get some [MQTT-4.8.2-4]."""
    left, right, everything = scenario.client("left"), scenario.client("right"), scenario.client("everything")
    right.mailbox.join(left.mailbox)
    left.subscribe(f"$share/{scenario.identifier}/{scenario.topic}", 1)
    right.subscribe(f"$share/{scenario.identifier}/{scenario.topic}", 1)
    everything.subscribe(scenario.topic, 1)
    sent = numbered("s", 40)
    scenario.client("publisher").publish(scenario.topic, sent, 1)
    expect(payloads_of(everything.receive(40)), sent, "an ordinary subscriber next to the group")
    received = {"left": [], "right": []}
    for message in left.receive(40):
        received["left" if message["to"] == left.name else "right"].append(message["payload"])
    expect(sorted(received["left"] + received["right"]), sorted(sent), "messages of the group")
    for name, messages in received.items():
        if not messages:
            raise Failure(f"{name} got none of 40 messages")
        expect(messages, [m for m in sent if m in set(messages)], f"order at {name}")


def takeover(scenario):
    """A second connection of one Client Identifier closes the first [MQTT-3.1.4-3], with 0x8E in MQTT 5.0."""
    first = scenario.client("first")
    first.subscribe(scenario.topic + "/first", 0)
    second = scenario.unconnected("second", first.identifier)
    second.connect()
    second.publish(scenario.topic, ["mine"], 1)
    reason = first.wait_closed()
    if scenario.driver.version == 5:
        expect(SESSION_TAKEN_OVER if reason == "unknown" else reason, SESSION_TAKEN_OVER, "reason of the first's end")


def properties(scenario):
    """What belongs to the Application Message is passed on unaltered, User Properties in order [MQTT-3.3.2-18]."""
    subscriber = scenario.client("subscriber")
    subscriber.subscribe(scenario.topic, 1)
    said = {
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": "correlate",
        "message_expiry": 600,
        "payload_format": 1,
        "user": [["colour", "red"], ["colour", "green"], ["shape", "round"]],
    }
    scenario.client("publisher").publish(scenario.topic, ["with properties"], 1, properties=said)
    [message] = subscriber.receive(1)
    got = dict(message["properties"])
    remaining = got.pop("message_expiry")
    wanted = {**said, "identifiers": []}
    del wanted["message_expiry"]
    got["user"] = [list(pair) for pair in got["user"]]
    expect(got, wanted, "properties")
    if not 0 < remaining <= 600:
        raise Failure(f"Message Expiry Interval {remaining}, wanted what remains of 600 s")


def subscription_identifier(scenario):
    """The identifier of the matching subscription comes with the message [MQTT-3.3.4-3]."""
    subscriber = scenario.client("subscriber")
    subscriber.subscribe(scenario.topic, 1, identifier=77)
    scenario.client("publisher").publish(scenario.topic, ["identified"], 1)
    [message] = subscriber.receive(1)
    expect(message["properties"]["identifiers"], [77], "Subscription Identifiers")


def no_local(scenario):
    """A No Local subscription does not get what its own client publishes [MQTT-3.8.3-3]."""
    own = scenario.client("own")
    own.subscribe(scenario.topic, 1, no_local=True)
    own.publish(scenario.topic, ["echo"], 1)
    scenario.client("other").publish(scenario.topic, ["fence"], 1)
    expect(payloads_of(own.receive(1)), ["fence"], "messages")


EVERYONE = "everyone"


def everyone(drivers):
    """All libraries and versions at one time: each publishes at every QoS, and each gets everything from each, once and
    in order, at the QoS it was sent with. Returns the error of each label; empty without an error.
    """
    root = "interop/everyone"
    subscribers, wrong, sent = {}, {}, {}
    for label, driver in drivers.items():
        subscribers[label] = driver.client("subscriber", f"{label}-all")
        try:
            subscribers[label].connect()
            subscribers[label].subscribe(root + "/#", 2)
            wrong[label] = ""
        except Failure as failure:
            wrong[label] = str(failure)
    for label, driver in drivers.items():
        for qos in (0, 1, 2):
            topic, payloads = f"{root}/{label}/{qos}", numbered("x", 5)
            publisher = driver.client("publisher", f"{label}-{qos}")
            try:
                publisher.connect()
                publisher.publish(topic, payloads, qos)
                sent[topic] = [(payload, qos) for payload in payloads]
            except Failure as failure:
                wrong[label] = wrong[label] or str(failure)
    for label, subscriber in subscribers.items():
        try:
            received = {}
            for message in subscriber.receive(sum(map(len, sent.values()))):
                received.setdefault(message["topic"], []).append((message["payload"], message["qos"]))
            expect(received, sent, "messages by topic")
        except Failure as failure:
            wrong[label] = wrong[label] or str(failure)
    return wrong


CELLS = {
    "QoS 0": qos0,
    "QoS 1": qos1,
    "QoS 2": qos2,
    "retain set": retain_set,
    "retain get": retain_get,
    "retain delete": retain_delete,
    "will": will,
    "resume": resume,
    "shared": shared,
    "takeover": takeover,
    "properties": properties,
    "subscription identifier": subscription_identifier,
    "no local": no_local,
}
CELLS_INDEX = {cell: index for index, cell in enumerate(CELLS)}
ONLY_V5 = {"properties", "subscription identifier", "no local"}
