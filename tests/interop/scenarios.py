"""The cells of the matrix. Each is a short story told with `driver.client(name, identifier)`; see `client.py`.

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


class Story:
    """One cell: its own topics and Client Identifiers, at most 23 characters for the sake of MQTT 3.1."""

    def __init__(self, driver, place, cell):
        self.driver = driver
        self.topic = f"interop/{place}/{cell.replace(' ', '-')}/value"
        self.identifier = f"{place}{CELLS_INDEX[cell]}"
        self.clients = 0

    def client(self, name, **connect):
        client = self.unconnected(name)
        client.connect(**connect)
        return client

    def unconnected(self, name, identifier=None):
        self.clients += 1
        return self.driver.client(name, identifier or f"{self.identifier}-{self.clients}")


def flow(story, qos):
    """Twenty messages arrive once each, in order, at the QoS of both ends; a subscription of QoS 0 lowers it."""
    subscriber, low = story.client("subscriber"), story.client("low")
    expect(subscriber.subscribe(story.topic, qos), [qos], "granted QoS")
    expect(low.subscribe(story.topic, 0), [0], "granted QoS")
    sent = numbered("m", 20)
    publisher = story.client("publisher")
    publisher.publish(story.topic, sent, qos)
    publisher.publish(story.topic, ["end"], qos)
    for client, effective in ((subscriber, qos), (low, 0)):
        received = client.receive(21)
        expect(payloads_of(received), sent + ["end"], "messages")
        expect({m["qos"] for m in received}, {effective}, "effective QoS")
        expect({m["topic"] for m in received}, {story.topic}, "topics")
        expect({m["retain"] for m in received}, {False}, "RETAIN")


def qos0(story):
    flow(story, 0)


def qos1(story):
    flow(story, 1)


def qos2(story):
    flow(story, 2)


def retain_set(story):
    """A retained message reaches a live subscriber as an ordinary one [MQTT-3.3.1-12] and is kept."""
    live = story.client("live")
    live.subscribe(story.topic, 1)
    publisher = story.client("publisher")
    publisher.publish(story.topic, ["first"], 1, retain=True)
    publisher.publish(story.topic, ["second"], 1, retain=True)
    received = live.receive(2)
    expect(payloads_of(received), ["first", "second"], "live messages")
    expect([m["retain"] for m in received], [False, False], "RETAIN of live messages")
    publisher.publish(story.topic, [""], 1, retain=True)


def retain_get(story):
    """A new subscription gets the last retained message, marked so, by topic and by wildcard [MQTT-3.3.1-6]."""
    publisher = story.client("publisher")
    publisher.publish(story.topic, ["old"], 1, retain=True)
    publisher.publish(story.topic, ["new"], 1, retain=True)
    for topic_filter in (story.topic, story.topic.rsplit("/", 1)[0] + "/+", story.topic + "/#"):
        subscriber = story.client("subscriber")
        subscriber.subscribe(topic_filter, 1)
        [message] = subscriber.receive(1)
        expect((message["payload"], message["retain"], message["qos"]), ("new", True, 1), topic_filter)
    publisher.publish(story.topic, [""], 1, retain=True)


def retain_delete(story):
    """An empty retained payload deletes [MQTT-3.3.1-7]; it is passed on to live subscribers all the same."""
    live = story.client("live")
    live.subscribe(story.topic, 1)
    publisher = story.client("publisher")
    publisher.publish(story.topic, ["kept"], 1, retain=True)
    publisher.publish(story.topic, [""], 1, retain=True)
    expect(payloads_of(live.receive(2)), ["kept", ""], "live messages")
    late = story.client("late")
    late.subscribe(story.topic, 1)
    publisher.publish(story.topic, ["fence"], 1)
    expect([(m["payload"], m["retain"]) for m in late.receive(1)], [("fence", False)], "after deletion")


def will(story):
    """The Will is published when the connection ends without a DISCONNECT [MQTT-3.1.2-8], and not after one."""
    watcher = story.client("watcher")
    watcher.subscribe(story.topic, 1)
    said = {"topic": story.topic, "payload": "gone", "qos": 1, "retain": False}

    identifier = f"{story.identifier}-w"
    mortal = story.unconnected("mortal", identifier)
    mortal.connect(will=said)
    mortal.subscribe(story.topic + "/own", 0)
    mortal.abort()
    expect([(m["payload"], m["qos"]) for m in watcher.receive(1)], [("gone", 1)], "Will")

    polite = story.unconnected("polite", identifier)
    polite.connect(will=said)
    polite.subscribe(story.topic + "/own", 0)
    polite.disconnect()
    if story.driver.disconnects_with_will:
        expect(payloads_of(watcher.receive(1)), ["gone"], "Will after DISCONNECT 0x04")
    # The broker answers a second connection of one Client Identifier only when the first is over.
    again = story.unconnected("again", identifier)
    again.connect()
    again.publish(story.topic, ["fence"], 1)
    expect(payloads_of(watcher.receive(1)), ["fence"], "after DISCONNECT")


def resume(story):
    """A durable session keeps QoS 1 and 2 in order while its client is away, and only then ends."""
    durable = story.unconnected("durable")
    session = {"clean": False, "expiry": 300}
    expect_session_present(durable.connect(**session), False, story)
    durable.subscribe(story.topic, 2)
    durable.disconnect()
    publisher = story.client("publisher")
    sent = []
    for i in range(10):
        sent += [f"one{i}", f"two{i}"]
        publisher.publish(story.topic, [f"one{i}"], 1)
        publisher.publish(story.topic, [f"two{i}"], 2)
    expect_session_present(durable.connect(**session), True, story)
    received = durable.receive(20)
    # Each QoS has its own order: a client may hand over QoS 2 at PUBLISH or at PUBREL.
    for qos in (1, 2):
        expect(payloads_of(m for m in received if m["qos"] == qos), sent[qos - 1 :: 2], f"queued messages of QoS {qos}")
    publisher.publish(story.topic, ["live"], 1)
    expect(payloads_of(durable.receive(1)), ["live"], "after the queue")
    durable.disconnect()
    fresh = story.unconnected("fresh", durable.identifier)
    expect_session_present(fresh.connect(clean=True), False, story)


def expect_session_present(actual, wanted, story):
    """MQTT 3.1 has no such flag, and mosquitto_sub does not print it; there the queued messages tell."""
    if actual is not None and story.driver.version > 3:
        expect(actual, wanted, "Session Present")


def shared(story):
    """Two members of a group split its messages: each goes to one of them, and both get some [MQTT-4.8.2-4]."""
    left, right, everything = story.client("left"), story.client("right"), story.client("everything")
    right.mailbox.join(left.mailbox)
    left.subscribe(f"$share/{story.identifier}/{story.topic}", 1)
    right.subscribe(f"$share/{story.identifier}/{story.topic}", 1)
    everything.subscribe(story.topic, 1)
    sent = numbered("s", 40)
    story.client("publisher").publish(story.topic, sent, 1)
    expect(payloads_of(everything.receive(40)), sent, "an ordinary subscriber beside the group")
    received = {"left": [], "right": []}
    for message in left.receive(40):
        received["left" if message["to"] == left.name else "right"].append(message["payload"])
    expect(sorted(received["left"] + received["right"]), sorted(sent), "messages of the group")
    for name, messages in received.items():
        if not messages:
            raise Failure(f"{name} got none of 40 messages")
        expect(messages, [m for m in sent if m in set(messages)], f"order at {name}")


def takeover(story):
    """A second connection of one Client Identifier closes the first [MQTT-3.1.4-3], with 0x8E in MQTT 5.0."""
    first = story.client("first")
    first.subscribe(story.topic + "/first", 0)
    second = story.unconnected("second", first.identifier)
    second.connect()
    second.publish(story.topic, ["mine"], 1)
    reason = first.wait_closed()
    if story.driver.version == 5 and story.driver.sees_reasons:
        expect(SESSION_TAKEN_OVER if reason == "untold" else reason, SESSION_TAKEN_OVER, "reason of the first's end")


def properties(story):
    """What belongs to the Application Message is passed on unaltered, User Properties in order [MQTT-3.3.2-18]."""
    subscriber = story.client("subscriber")
    subscriber.subscribe(story.topic, 1)
    said = {
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": "correlate",
        "message_expiry": 600,
        "payload_format": 1,
        "user": [["colour", "red"], ["colour", "green"], ["shape", "round"]],
    }
    story.client("publisher").publish(story.topic, ["with properties"], 1, properties=said)
    [message] = subscriber.receive(1)
    got = dict(message["properties"])
    remaining = got.pop("message_expiry")
    wanted = {**said, "identifiers": []}
    del wanted["message_expiry"]
    got["user"] = [list(pair) for pair in got["user"]]
    expect(got, wanted, "properties")
    if not 0 < remaining <= 600:
        raise Failure(f"Message Expiry Interval {remaining}, wanted what remains of 600 s")


def subscription_identifier(story):
    """The identifier of the matching subscription comes with the message [MQTT-3.3.4-3]."""
    subscriber = story.client("subscriber")
    subscriber.subscribe(story.topic, 1, identifier=77)
    story.client("publisher").publish(story.topic, ["identified"], 1)
    [message] = subscriber.receive(1)
    expect(message["properties"]["identifiers"], [77], "Subscription Identifiers")


def no_local(story):
    """A No Local subscription does not get what its own client publishes [MQTT-3.8.3-3]."""
    own = story.client("own")
    own.subscribe(story.topic, 1, no_local=True)
    own.publish(story.topic, ["echo"], 1)
    story.client("other").publish(story.topic, ["fence"], 1)
    expect(payloads_of(own.receive(1)), ["fence"], "messages")


EVERYONE = "everyone"


def everyone(drivers):
    """All libraries and versions at one time: each publishes at every QoS, and each gets everything from each, once and
    in order, at the QoS it was sent with. For each place what was wrong there, empty when nothing was.
    """
    root = "interop/everyone"
    subscribers, wrong, sent = {}, {}, {}
    for place, driver in drivers.items():
        subscribers[place] = driver.client("subscriber", f"{place}-all")
        try:
            subscribers[place].connect()
            subscribers[place].subscribe(root + "/#", 2)
            wrong[place] = ""
        except Failure as failure:
            wrong[place] = str(failure)
    for place, driver in drivers.items():
        for qos in (0, 1, 2):
            topic, payloads = f"{root}/{place}/{qos}", numbered("x", 5)
            publisher = driver.client("publisher", f"{place}-{qos}")
            try:
                publisher.connect()
                publisher.publish(topic, payloads, qos)
                sent[topic] = [(payload, qos) for payload in payloads]
            except Failure as failure:
                wrong[place] = wrong[place] or str(failure)
    for place, subscriber in subscribers.items():
        try:
            received = {}
            for message in subscriber.receive(sum(map(len, sent.values()))):
                received.setdefault(message["topic"], []).append((message["payload"], message["qos"]))
            expect(received, sent, "messages by topic")
        except Failure as failure:
            wrong[place] = wrong[place] or str(failure)
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
